//! However xtask exits, its PostgreSQL exits with it. Tested with the real program and real
//! signals.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]
#![expect(clippy::print_stdout, reason = "tests report when they skip")]

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// A running `cargo xtask postgres -- cat`, which continues until it is stopped.
struct RunningXtask {
    xtask: Child,
    /// Closed on drop, which ends `cat` if nothing else has ended it.
    _stdin: ChildStdin,
    directory: PathBuf,
    postgres: OwnedFd,
    command: OwnedFd,
}

impl RunningXtask {
    fn start(mut xtask: Command) -> RunningXtask {
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
        RunningXtask {
            _stdin: xtask.stdin.take().unwrap(),
            xtask,
            postgres: open_pidfd(pid_file.lines().next().unwrap()),
            command: open_pidfd(command),
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

/// A pidfd identifies a process permanently, even if its id is reused.
fn open_pidfd(pid: &str) -> OwnedFd {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Whether the process is dead or dies within 30 seconds.
fn exits_soon(process: &OwnedFd) -> bool {
    let half_a_minute = Timespec { tv_sec: 30, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&half_a_minute)).unwrap() == 1
}

/// `cargo xtask test` sets the variable, so PostgreSQL is installed. Otherwise xtask would install
/// it, which a test must not do.
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
fn signal_stops_command_and_postgres_and_removes_directory() {
    if !can_run() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut running = RunningXtask::start(xtask());
        running.send(signal);
        assert_eq!(running.xtask.wait().unwrap().code(), Some(130), "after {signal:?}");
        assert!(exits_soon(&running.command), "the command, after {signal:?}");
        assert!(exits_soon(&running.postgres), "PostgreSQL, after {signal:?}");
        assert!(!running.directory.exists(), "the directory, after {signal:?}");
    }
}

#[test]
fn postgres_dies_with_killed_xtask_and_next_run_cleans_up() {
    if !can_run() {
        return;
    }
    // A separate directory, because any other run would clean up abandoned directories too.
    let base = std::env::temp_dir().join(format!("xtask-killed-{}", std::process::id()));
    std::fs::create_dir(&base).unwrap();
    let xtask = || {
        let mut xtask = xtask();
        xtask.env("TMPDIR", &base);
        xtask
    };

    let mut running = RunningXtask::start(xtask());
    running.send(Signal::KILL);
    running.xtask.wait().unwrap();
    assert!(exits_soon(&running.postgres));
    assert!(running.directory.exists(), "a killed process cannot remove its directory");

    assert!(xtask().args(["postgres", "--", "true"]).status().unwrap().success());
    assert!(!running.directory.exists());
    std::fs::remove_dir(&base).unwrap();
}

#[test]
fn exit_code_of_command_is_passed_on() {
    if !can_run() {
        return;
    }
    let status = xtask().args(["postgres", "--", "sh", "-c", "exit 7"]).status().unwrap();
    assert_eq!(status.code(), Some(7));
}
