//! Output to the terminal or a build log.
//!
//! A terminal gets color and a line that is updated in place; anything else gets plain lines. A
//! closed output is not a failure, so nothing here reports an error.

use std::io::{IsTerminal, Write};

/// Standard output, and the state of its last line.
pub(crate) struct Screen {
    terminal: bool,
    color: bool,
    /// The label of a line that is not complete yet.
    open: Option<String>,
    /// Whether other lines were printed in between, so that the open line must be written again.
    broken: bool,
}

impl Screen {
    /// Standard output. Uses color if it is a terminal and neither `NO_COLOR` nor `TERM=dumb` is
    /// set.
    pub(crate) fn stdout() -> Screen {
        let terminal = std::io::stdout().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Screen { terminal, color: terminal && !plain, open: None, broken: false }
    }

    pub(crate) fn has_color(&self) -> bool {
        self.color
    }

    /// Prints a complete line. An open line is written again afterwards.
    pub(crate) fn line(&mut self, text: &str) {
        if self.open.is_some() && !self.broken {
            self.broken = true;
            self.write(if self.terminal { "\r\x1b[K" } else { "\n" });
        }
        self.write(&format!("{text}\n"));
        if self.terminal
            && let Some(label) = self.open.clone()
        {
            self.broken = false;
            self.write(&label);
        }
    }

    /// Starts a line that will be completed later.
    pub(crate) fn begin(&mut self, label: &str) {
        let label = format!("{label} … ");
        self.write(&label);
        self.open = Some(label);
        self.broken = false;
    }

    /// Shows the current activity after the open line. Only on a terminal.
    pub(crate) fn show_activity(&mut self, doing: &str) {
        if self.terminal
            && let Some(label) = &self.open
        {
            let short: String = doing.chars().take(60).collect();
            let text = format!("\r\x1b[K{label}{short}");
            self.write(&text);
        }
    }

    /// Completes the open line.
    pub(crate) fn end(&mut self, outcome: &str) {
        let label = self.open.take().unwrap_or_default();
        let line = match (self.terminal, self.broken) {
            (true, _) => format!("\r\x1b[K{label}{outcome}\n"),
            (false, true) => format!("{label}{outcome}\n"),
            (false, false) => format!("{outcome}\n"),
        };
        self.write(&line);
    }

    /// Leaves the open line incomplete and closes it.
    pub(crate) fn abandon(&mut self) {
        if self.open.take().is_some() && !self.broken {
            self.write("\n");
        }
    }

    pub(crate) fn red(&self, text: &str) -> String {
        self.colorize("31", text)
    }

    pub(crate) fn green(&self, text: &str) -> String {
        self.colorize("32", text)
    }

    fn colorize(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn write(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
