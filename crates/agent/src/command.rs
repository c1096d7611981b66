//! External commands: a program, its arguments and an environment built from scratch. Never a
//! shell.
//!
//! [`Command::query`] runs short read-only queries. Commands that change the system are only
//! described by a back end; the executor (`work::executor`) records them in the journal and then
//! runs them in their own session.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// Maximum size of a command's output. Longer output is an error; it is never truncated silently.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A command, in the form in which it is run and written to the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Looked up in the usual directories (see [`Command::to_std_command`]).
    pub program: String,
    pub args: Vec<String>,
    /// Variables added to the environment.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Exit codes other than 0 that mean success. Example: zypper exits with 102 if a reboot is
    /// needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_well: Vec<i32>,
}

/// The output of a read-only query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// The exit code; `None` if a signal ended the process.
    pub exit: Option<i32>,
    /// Standard output. Invalid UTF-8 is replaced.
    pub stdout: String,
    pub stderr: String,
}

/// Why a query has no output.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error("`{program}` could not be started")]
    Start { program: String, source: std::io::Error },
    /// The program was killed after its timeout.
    #[error("`{program}` timed out after {seconds} s")]
    TimedOut {
        program: String,
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// The output is larger than 64 MiB.
    #[error("`{program}` printed more than 64 MiB")]
    OutputTooLarge { program: String },
}

impl Command {
    /// A command without arguments.
    pub fn new(program: &str) -> Command {
        Command {
            program: program.to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            also_well: Vec::new(),
        }
    }

    #[must_use]
    pub fn arg(mut self, arg: &str) -> Command {
        self.args.push(arg.to_owned());
        self
    }

    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: Into<String>>(mut self, args: I) -> Command {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Command {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds exit codes that mean success.
    #[must_use]
    pub fn accept_exit_codes(mut self, exits: &[i32]) -> Command {
        self.also_well.extend(exits);
        self
    }

    /// Whether this exit code means success.
    pub fn succeeded_with(&self, exit: Option<i32>) -> bool {
        exit.is_some_and(|exit| exit == 0 || self.also_well.contains(&exit))
    }

    /// Converts to a standard-library command with a clean environment, no input and `/` as its
    /// directory.
    pub fn to_std_command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.args).env_clear().stdin(Stdio::null()).current_dir("/");
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("LC_ALL", "C").env("LANG", "C").env("HOME", "/root").env("TERM", "dumb");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the command and waits until the PROCESS exits, not until its output is closed: a child
    /// that it leaves behind may keep the output open forever.
    pub fn query(&self, timeout: Duration) -> Result<CommandOutput, QueryError> {
        let start =
            |source: std::io::Error| QueryError::Start { program: self.program.clone(), source };
        let capture_file = || memfd_create("answer", MemfdFlags::CLOEXEC).map(File::from);
        let mut stdout = capture_file().map_err(|error| start(error.into()))?;
        let mut stderr = capture_file().map_err(|error| start(error.into()))?;
        let mut child = self
            .to_std_command()
            .stdout(stdout.try_clone().map_err(start)?)
            .stderr(stderr.try_clone().map_err(start)?)
            .spawn()
            .map_err(start)?;
        let Some(status) = wait(&mut child, timeout).map_err(start)? else {
            // A query changes nothing, so it may be killed. A package manager that changes the
            // system is never killed.
            let _ = child.kill();
            let _ = child.wait();
            let seconds = timeout.as_secs();
            return Err(QueryError::TimedOut { program: self.program.clone(), seconds });
        };
        let text = |file: &mut File| -> Result<String, QueryError> {
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0)).map_err(start)?;
            file.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(start)?;
            if bytes.len() as u64 > OUTPUT_BYTES_MAX {
                return Err(QueryError::OutputTooLarge { program: self.program.clone() });
            }
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(CommandOutput {
            exit: status.code(),
            stdout: text(&mut stdout)?,
            stderr: text(&mut stderr)?,
        })
    }
}

/// Waits for a child process, up to a timeout. `None` if it is still running.
pub(crate) fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    match pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        Ok(end) => wait_on_pidfd(&end, child, timeout),
        // Kernels before 5.3 have no pidfd.
        Err(_) => poll_for_exit(child, timeout),
    }
}

/// Waits on a pidfd, so that the kernel reports the exit immediately. Polling would always be late.
fn wait_on_pidfd(
    end: &OwnedFd,
    child: &mut Child,
    timeout: Duration,
) -> io::Result<Option<ExitStatus>> {
    let slice = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut left = timeout;
    loop {
        let second = Duration::from_secs(1).min(left);
        let max = Timespec::try_from(second).unwrap_or(slice);
        match poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&max)) {
            Ok(0) if left.is_zero() => return child.try_wait(),
            Ok(0) => left -= second,
            Ok(_) => return child.wait().map(Some),
            // The agent received a signal.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Polls with pauses that grow from 1 ms to 50 ms: queries take between milliseconds and seconds.
fn poll_for_exit(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let mut waited = Duration::ZERO;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if waited >= timeout {
            return Ok(None);
        }
        #[expect(clippy::disallowed_methods, reason = "waits for a process")]
        std::thread::sleep(pause);
        waited += pause;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_complete_while_a_child_keeps_it_open() {
        let left_behind = Command::new("sh").args(["-c", "sleep 600 & echo $!"]);
        let output = left_behind.query(Duration::from_secs(60)).unwrap();
        assert_eq!(output.exit, Some(0));
        let child: i32 = output.stdout.trim().parse().unwrap();
        let child = rustix::process::Pid::from_raw(child).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn some_nonzero_exit_codes_mean_success() {
        let plain = Command::new("apt-get");
        assert!(
            plain.succeeded_with(Some(0))
                && !plain.succeeded_with(Some(102))
                && !plain.succeeded_with(None)
        );
        let zypper = Command::new("zypper").accept_exit_codes(&[102, 103]);
        assert!(zypper.succeeded_with(Some(0)) && zypper.succeeded_with(Some(102)));
        assert!(!zypper.succeeded_with(Some(104)) && !zypper.succeeded_with(None));
    }

    #[test]
    fn environment_is_built_from_scratch() {
        let output = Command::new("env").env("A", "1").query(Duration::from_secs(60)).unwrap();
        let mut names: Vec<_> =
            output.stdout.lines().filter_map(|line| line.split('=').next()).collect();
        names.sort_unstable();
        assert_eq!(names, ["A", "HOME", "LANG", "LC_ALL", "PATH", "TERM"]);
    }

    #[test]
    fn process_exit_is_noticed_with_and_without_pidfd() {
        for wait in [wait, poll_for_exit] {
            let start = |seconds: &str| Command::new("sleep").arg(seconds).to_std_command().spawn();
            let mut quick = start("0.01").unwrap();
            let status = wait(&mut quick, Duration::from_secs(60)).unwrap();
            assert_eq!(status.and_then(|status| status.code()), Some(0));
            let mut long = start("600").unwrap();
            assert_eq!(wait(&mut long, Duration::from_millis(20)).unwrap(), None);
            long.kill().unwrap();
            assert!(wait(&mut long, Duration::from_secs(60)).unwrap().is_some());
        }
    }

    #[test]
    fn slow_query_times_out() {
        let error = Command::new("sleep").arg("600").query(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, QueryError::TimedOut { .. }), "{error}");
        let error = Command::new("no-such-program").query(Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), "`no-such-program` could not be started");
    }
}
