//! However the tool ends, its PostgreSQL ends with it: the real program, real signals.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]
#![expect(clippy::print_stdout, reason = "a test says so when it skips")]

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// `cargo xtask postgres -- cat`, which is up, and goes on until somebody ends it.
struct Running {
    xtask: Child,
    /// Closed at the end, at which `cat` ends by itself if nobody else has ended it.
    _stdin: ChildStdin,
    directory: PathBuf,
    postgres: OwnedFd,
    command: OwnedFd,
}

impl Running {
    fn start(mut xtask: Command) -> Running {
        let mut xtask = xtask
            .args(["postgres", "--", "sh", "-c", "echo $$ $PGHOST; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(xtask.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (command, directory) = line.trim().split_once(' ').expect(&line);
        let directory = PathBuf::from(directory);
        let pid_file = std::fs::read_to_string(directory.join("data/postmaster.pid")).unwrap();
        Running {
            _stdin: xtask.stdin.take().unwrap(),
            xtask,
            postgres: watch(pid_file.lines().next().unwrap()),
            command: watch(command),
            directory,
        }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.xtask), signal).unwrap();
    }
}

fn xtask() -> Command {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
}

/// Names a process for good, even when its number is given to another.
fn watch(pid: &str) -> OwnedFd {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Whether the process is dead, or dies within half a minute.
fn dies(process: &OwnedFd) -> bool {
    let half_a_minute = Timespec { tv_sec: 30, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&half_a_minute)).unwrap() == 1
}

/// Started by `cargo xtask test`, there is a PostgreSQL to be had. The tool would install one,
/// which is not for a test to do.
fn can_run() -> bool {
    let there = std::env::var_os("FLEETMEND_TEST_POSTGRES").is_some();
    let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some_and(|set| set == "1");
    assert!(there || !required, "FLEETMEND_TEST_POSTGRES is not set");
    if !there {
        println!("skipped: FLEETMEND_TEST_POSTGRES is not set");
    }
    there
}

#[test]
fn a_signal_ends_the_command_and_postgres_and_removes_the_directory() {
    if !can_run() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut running = Running::start(xtask());
        running.send(signal);
        assert_eq!(running.xtask.wait().unwrap().code(), Some(130), "after {signal:?}");
        assert!(dies(&running.command), "the command, after {signal:?}");
        assert!(dies(&running.postgres), "PostgreSQL, after {signal:?}");
        assert!(!running.directory.exists(), "the directory, after {signal:?}");
    }
}

#[test]
fn postgres_does_not_outlive_a_tool_that_was_killed_and_the_next_run_clears_up() {
    if !can_run() {
        return;
    }
    // A place of its own, for any other run would clear up there too.
    let base = std::env::temp_dir().join(format!("xtask-killed-{}", std::process::id()));
    std::fs::create_dir(&base).unwrap();
    let xtask = || {
        let mut xtask = xtask();
        xtask.env("TMPDIR", &base);
        xtask
    };

    let mut running = Running::start(xtask());
    running.send(Signal::KILL);
    running.xtask.wait().unwrap();
    assert!(dies(&running.postgres));
    assert!(running.directory.exists(), "nobody was left to remove it");

    assert!(xtask().args(["postgres", "--", "true"]).status().unwrap().success());
    assert!(!running.directory.exists());
    std::fs::remove_dir(&base).unwrap();
}

#[test]
fn a_command_ends_the_tool_as_it_ended_itself() {
    if !can_run() {
        return;
    }
    let status = xtask().args(["postgres", "--", "sh", "-c", "exit 7"]).status().unwrap();
    assert_eq!(status.code(), Some(7));
}
