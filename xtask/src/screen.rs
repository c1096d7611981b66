//! What the terminal, or the log of a build, shows.
//!
//! A terminal gets colour and a line that changes in place; anything else gets plain lines. A
//! reader that has gone away is no reason to fail, so nothing here reports an error.

use std::io::{IsTerminal, Write};

/// Standard output, and how far its last line has got.
pub(crate) struct Screen {
    terminal: bool,
    colour: bool,
    /// The label of a line that waits for its end.
    open: Option<String>,
    /// Whether the open line has to be written anew, since others came in between.
    broken: bool,
}

impl Screen {
    /// Standard output, with colour if it is a terminal that nobody asked to stay plain.
    pub(crate) fn of_stdout() -> Screen {
        let terminal = std::io::stdout().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Screen { terminal, colour: terminal && !plain, open: None, broken: false }
    }

    /// Whether what is shown may have colour.
    pub(crate) fn has_colour(&self) -> bool {
        self.colour
    }

    /// A whole line. An open line is left behind and will be written anew.
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

    /// Begins a line whose end is not known yet.
    pub(crate) fn begin(&mut self, label: &str) {
        let label = format!("{label} … ");
        self.write(&label);
        self.open = Some(label);
        self.broken = false;
    }

    /// What the open line is at; a terminal alone shows that.
    pub(crate) fn at(&mut self, doing: &str) {
        if self.terminal
            && let Some(label) = &self.open
        {
            let short: String = doing.chars().take(60).collect();
            let text = format!("\r\x1b[K{label}{short}");
            self.write(&text);
        }
    }

    /// Ends the open line.
    pub(crate) fn end(&mut self, outcome: &str) {
        let label = self.open.take().unwrap_or_default();
        let line = match (self.terminal, self.broken) {
            (true, _) => format!("\r\x1b[K{label}{outcome}\n"),
            (false, true) => format!("{label}{outcome}\n"),
            (false, false) => format!("{outcome}\n"),
        };
        self.write(&line);
    }

    /// Leaves the open line as it is, for good.
    pub(crate) fn abandon(&mut self) {
        if self.open.take().is_some() && !self.broken {
            self.write("\n");
        }
    }

    pub(crate) fn red(&self, text: &str) -> String {
        self.painted("31", text)
    }

    pub(crate) fn green(&self, text: &str) -> String {
        self.painted("32", text)
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn write(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
