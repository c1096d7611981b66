//! The only module that writes to standard output and, apart from the log (`logs`), to standard
//! error.
//!
//! On a terminal, control characters in text are escaped ([`vocab::terminal`]), except for the
//! sequences that this program creates with [`control`]. Until they are written, those are marked
//! with a random number, so that text from elsewhere cannot imitate them. Files and pipes get the
//! text unescaped.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use service::clock::random_u128;
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
    stream.write_all(render(text, stream.is_terminal()).as_bytes())?;
    stream.flush()
}

/// Creates a control sequence: `31m` becomes `ESC [ 31 m` when written to a terminal.
pub(crate) fn control(sequence: &str) -> String {
    format!("{}{sequence}\x1b", marker())
}

/// Moves to the start of the current line and clears it.
pub(crate) fn clear_line() -> String {
    // Not a carriage return: text from elsewhere may contain one too.
    control("1G") + &control("K")
}

fn marker() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("\x1b{:032x}:", random_u128()))
}

/// Renders text for output. For a terminal, escapes the text and expands marked control sequences;
/// otherwise removes the marked control sequences and leaves the text unchanged.
fn render(text: &str, terminal: bool) -> String {
    let safe = |part: &str| match terminal {
        true => escape_text(part).into_owned(),
        false => part.to_owned(),
    };
    let mut parts = text.split(marker());
    let mut shown = safe(parts.next().unwrap_or_default());
    for part in parts {
        // Drop a truncated control sequence.
        let (sequence, rest) = part.split_once('\x1b').unwrap_or(("", part));
        if terminal && !sequence.is_empty() {
            shown.push_str("\x1b[");
            shown.push_str(sequence);
        }
        shown.push_str(&safe(rest));
    }
    shown
}

/// For tests of formatted output.
#[cfg(test)]
pub(crate) fn render_for_terminal(text: &str) -> String {
    render(text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_control_sequences_reach_the_terminal() {
        let text = format!("{}bad\x1b[31m{}\x1b]0;x\x07\n", control("32m"), control("0m"));
        assert_eq!(render(&text, true), "\x1b[32mbad\\x1b[31m\x1b[0m\\x1b]0;x\\x07\n");
        assert_eq!(render(&text, false), "bad\x1b[31m\x1b]0;x\x07\n");
        assert_eq!(render("\x1b0:31m\x1b", true), "\\x1b0:31m\\x1b");
    }

    /// Output written anywhere else would not be escaped.
    #[test]
    fn no_other_module_writes_to_stdout_or_stderr() {
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
                // The log has its own writer, which escapes each event.
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
                    assert!(!text.contains(call), "{} contains `{call}`", path.display());
                }
            }
        }
        assert!(looked > 30);
    }
}
