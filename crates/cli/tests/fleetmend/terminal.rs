//! Runs operator commands with a service and a key, in a pipe or on a pseudo-terminal of a given
//! width.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};

use nix::pty::{Winsize, openpty};

use crate::support::fleetmend;

/// The output and exit code of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    /// Standard output; on a terminal, everything that was printed.
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs commands against one service with one API key.
pub(crate) struct Cli {
    pub(crate) url: String,
    pub(crate) key: String,
}

impl Cli {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = fleetmend(args);
        command.env("FLEETMEND_URL", &self.url).env("FLEETMEND_API_KEY", &self.key);
        command
    }

    /// Runs a command with its output piped.
    pub(crate) fn run_piped(&self, args: &[&str]) -> CommandOutput {
        command_output(self.command(args).output().unwrap())
    }

    /// Runs a command with its output piped; it must succeed. Returns its output.
    #[track_caller]
    pub(crate) fn run_ok(&self, args: &[&str]) -> String {
        let output = self.run_piped(args);
        assert_eq!(output.code, 0, "{args:?}: {}", output.err);
        output.out
    }

    /// Runs a command on a terminal of this width, with this input.
    pub(crate) fn run_on_terminal(&self, width: u16, args: &[&str], keys: &str) -> CommandOutput {
        self.run_on_terminal_with(width, args, keys, &[])
    }

    /// Runs a command on a terminal with additional environment variables.
    pub(crate) fn run_on_terminal_with(
        &self,
        width: u16,
        args: &[&str],
        keys: &str,
        more: &[(&str, &str)],
    ) -> CommandOutput {
        let mut command = self.command(args);
        command.envs(more.iter().copied());
        run_in_pty(command, width, keys, |_, _| {})
    }
}

/// Runs a command on a terminal of this width, with this input. Calls `sees` with all output so far
/// whenever there is more.
pub(crate) fn run_in_pty(
    mut command: Command,
    width: u16,
    keys: &str,
    sees: impl Fn(&Child, &str),
) -> CommandOutput {
    let size = Winsize { ws_row: 40, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    let pair = openpty(Some(&size), None).unwrap();
    let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    command.stdin(end(&pair.slave)).stdout(end(&pair.slave)).stderr(end(&pair.slave));
    let mut child = command.spawn().unwrap();
    drop((command, pair.slave));
    let mut master = std::fs::File::from(pair.master);
    master.write_all(keys.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let mut part = [0; 4_096];
    // Reading fails once no process has the terminal open.
    while let Ok(read @ 1..) = master.read(&mut part) {
        bytes.extend(&part[..read]);
        sees(&child, &String::from_utf8_lossy(&bytes));
    }
    let code = child.wait().unwrap().code().unwrap();
    let out = String::from_utf8(bytes).unwrap().replace("\r\n", "\n");
    CommandOutput { code, out, err: String::new() }
}

pub(crate) fn command_output(output: Output) -> CommandOutput {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    CommandOutput { code, out: text(output.stdout), err: text(output.stderr) }
}

/// Removes escape sequences.
pub(crate) fn strip_escapes(text: &str) -> String {
    let mut bare = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        bare.push_str(before);
        rest = after.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, rest)| rest);
    }
    bare + rest
}
