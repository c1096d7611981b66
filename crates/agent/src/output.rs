//! The only module that writes to standard output and standard error.
//!
//! The text may come from a service, a package manager or a repository, and is read on a terminal
//! or in the journal. It must not be able to control the terminal or to forge another log line.

use std::io::{self, IsTerminal as _, Write as _};

use vocab::terminal::{escape_line, escape_text};

/// Writes one line to standard error, which the systemd journal records.
pub fn note(what: &str) {
    let _ = io::stderr().write_all(format_note(what).as_bytes());
}

fn format_note(what: &str) -> String {
    format!("fleetmend-agent: {}\n", escape_line(what))
}

/// Writes a command's result to standard output. Control characters are escaped on a terminal.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.is_terminal() {
        true => writeln!(out, "{}", escape_text(text)),
        false => writeln!(out, "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_is_one_line_for_any_server_text() {
        let line =
            format_note("the server refuses: \x1b[2Jx\r\nfleetmend-agent: forged\u{9b}31m\u{202e}");
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.trim_end().contains(vocab::terminal::is_unsafe), "{line:?}");
    }

    /// Text written anywhere else would not be escaped.
    #[test]
    fn only_this_module_writes_to_the_terminal() {
        let mut folders =
            vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("output.rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    for call in ["io::stdout()", "io::stderr()", "print!(", "println!("] {
                        assert!(!text.contains(call), "{} has `{call}`", path.display());
                    }
                }
            }
        }
    }
}
