//! The only place where this program writes to its standard output and, except for the log (`logs`), to standard error.
//!
//! On a terminal, whatever would steer it becomes visible ([`vocab::terminal`]), except for the sequences that this program
//! makes itself with [`control`]. Those carry a random number until they are written, so that no text from elsewhere can
//! pass for one. Into a file or a pipe text goes as it is.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use service::clock::dice;
use vocab::terminal::escape_text;

/// Writes to standard output.
pub(crate) fn out(text: &str) -> io::Result<()> {
    write(&mut io::stdout().lock(), text)
}

/// Writes to standard error.
pub(crate) fn err(text: &str) -> io::Result<()> {
    write(&mut io::stderr().lock(), text)
}

fn write(stream: &mut (impl Write + IsTerminal), text: &str) -> io::Result<()> {
    stream.write_all(rendered(text, stream.is_terminal()).as_bytes())?;
    stream.flush()
}

/// A control sequence of our own: `31m` stands for `ESC [ 31 m`.
pub(crate) fn control(sequence: &str) -> String {
    format!("{}{sequence}\x1b", mark())
}

/// The beginning of the current line, emptied.
pub(crate) fn fresh_line() -> String {
    // Not a carriage return, which text from elsewhere may hold as well.
    control("1G") + &control("K")
}

fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("\x1b{:032x}:", dice()))
}

/// The text as it is written.
fn rendered(text: &str, terminal: bool) -> String {
    let safe = |part: &str| match terminal {
        true => escape_text(part).into_owned(),
        false => part.to_owned(),
    };
    let mut parts = text.split(mark());
    let mut shown = safe(parts.next().unwrap_or_default());
    for part in parts {
        // A control that was cut is none.
        let (sequence, rest) = part.split_once('\x1b').unwrap_or(("", part));
        if terminal && !sequence.is_empty() {
            shown.push_str("\x1b[");
            shown.push_str(sequence);
        }
        shown.push_str(&safe(rest));
    }
    shown
}

/// For tests of what is drawn.
#[cfg(test)]
pub(crate) fn on_terminal(text: &str) -> String {
    rendered(text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_sequences_reach_a_terminal() {
        let text = format!("{}bad\x1b[31m{}\x1b]0;x\x07\n", control("32m"), control("0m"));
        assert_eq!(rendered(&text, true), "\x1b[32mbad\\x1b[31m\x1b[0m\\x1b]0;x\\x07\n");
        assert_eq!(rendered(&text, false), "bad\x1b[31m\x1b]0;x\x07\n");
        assert_eq!(rendered("\x1b0:31m\x1b", true), "\\x1b0:31m\\x1b");
    }

    /// Text that is written anywhere else would not be escaped.
    #[test]
    fn nothing_else_in_this_crate_writes() {
        let mut folders =
            vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        let mut looked = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                // The log has a writer of its own, which escapes each event.
                if path.ends_with("output.rs") || path.ends_with("logs.rs") {
                    continue;
                }
                looked += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                for call in [
                    "stdout().lock",
                    "stderr().lock",
                    "(std::io::stderr()",
                    "(io::stderr()",
                    "(std::io::stdout()",
                    "(io::stdout()",
                    "print!(",
                    "println!(",
                ] {
                    assert!(!text.contains(call), "{} has `{call}`", path.display());
                }
            }
        }
        assert!(looked > 30);
    }
}
