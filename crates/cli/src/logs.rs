//! The log: text lines on a terminal, JSON otherwise. Escapes control characters in both formats.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format;
use vocab::terminal::{escape_line, escape_text};

/// Log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text, for people
    Text,
    /// JSON, one object per line
    Json,
}

/// Starts logging to standard error.
pub(crate) fn start(filter: &str, format: Option<Format>) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)?;
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { Format::Text } else { Format::Json });
    let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // Standard error may be closed or full. By default, tracing reports that on standard error
    // again, with a macro that panics if the write fails, in whichever task logs the line.
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    match format {
        Format::Text => {
            log.with_writer(std::io::stderr)
                .with_ansi(colours)
                .with_target(false)
                .fmt_fields(format::debug_fn(write_field).delimited(" "))
                .init();
        }
        Format::Json => {
            log.with_writer(|| Escaped(std::io::stderr()))
                .json()
                .flatten_event(true)
                .with_span_list(false)
                .init();
        }
    }
    Ok(())
}

/// Writes a field on one line, whatever an agent or an API caller put into it.
fn write_field(
    writer: &mut format::Writer<'_>,
    field: &tracing::field::Field,
    value: &dyn std::fmt::Debug,
) -> std::fmt::Result {
    let value = format!("{value:?}");
    match field.name() {
        "message" => write!(writer, "{}", escape_line(&value)),
        name => write!(writer, "{name}={}", escape_line(&value)),
    }
}

/// Escapes each event; an event arrives in a single write. JSON encoding alone escapes less: it
/// leaves C1 control characters, which terminals obey.
struct Escaped<W>(W);

impl<W: io::Write> io::Write for Escaped<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(escape_text(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_lines_escape_newlines_and_control_characters() {
        let attack = "web\x1b[2J\x07\u{9b}31m\u{202e}\nERROR forged";
        let (text, json) = (Lines::default(), Lines::default());
        let to_text = text.clone();
        let as_text = tracing_subscriber::fmt()
            .with_writer(move || to_text.clone())
            .with_ansi(false)
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .finish();
        let to_json = json.clone();
        let as_json = tracing_subscriber::fmt()
            .with_writer(move || Escaped(to_json.clone()))
            .json()
            .flatten_event(true)
            .finish();
        let write = || tracing::warn!(host = attack, shown = %attack, "joined: {attack}");
        tracing::subscriber::with_default(as_text, write);
        tracing::subscriber::with_default(as_json, write);
        for lines in [text, json] {
            let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            let line = written.strip_suffix('\n').unwrap();
            assert!(line.contains("joined: web"), "{line}");
            assert!(!line.contains(vocab::terminal::is_unsafe), "{line:?}");
        }
    }
}
