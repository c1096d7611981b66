//! The agent's side of a job: starts its supervisor at most once, waits for it, or determines what
//! happened to it. See [`supervise`](super::supervise) for the files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::files;
use super::supervise::{Exit, Job, Process, lock_file};

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobState {
    /// It has not started, and cannot start unless the agent writes `job.json` again.
    NotStarted,
    Running,
    /// It is running without its supervisor, so only its process ids tell when it ends.
    Orphaned,
    Ended(Vec<Exit>),
    /// It started and no longer runs, but left no exit codes: how far it got is unknown.
    Vanished,
}

/// How often the agent polls while it waits.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Determines the state of the job in this directory.
///
/// If the job has not started, its `job.json` is removed while holding the lock. A supervisor that
/// an agent started just before its own death, and that is only now getting ready, then finds
/// nothing to run: "not started" stays true.
pub(super) fn job_state(dir: &Path) -> io::Result<JobState> {
    if !dir.exists() {
        return Ok(JobState::NotStarted);
    }
    let exit = dir.join("exit");
    if let Ok(Some(exits)) = files::read_json(&exit) {
        return Ok(JobState::Ended(exits));
    }
    let has_begun = || dir.join("started").exists() || exit.exists();
    let lock = match lock_file(dir) {
        // Without the lock file, the job's processes are found by their process ids.
        Err(_) if has_begun() => return Ok(state_after_start(dir)),
        lock => lock?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(JobState::Running),
        Err(error) => return Err(error.into()),
    }
    // It may have ended between the two checks.
    if let Ok(Some(exits)) = files::read_json(&exit) {
        return Ok(JobState::Ended(exits));
    }
    if has_begun() {
        return Ok(state_after_start(dir));
    }
    match fs::remove_file(dir.join("job.json")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(JobState::NotStarted),
    }
}

/// The state of a job that started and left no exit codes, or damaged ones.
fn state_after_start(dir: &Path) -> JobState {
    let is_alive = |name: &str| {
        let found: Option<Option<Process>> = files::read_json(&dir.join(name)).unwrap_or(None);
        found.flatten().is_some_and(|process| process.is_alive())
    };
    match is_alive("child") || is_alive("started") {
        true => JobState::Orphaned,
        false => JobState::Vanished,
    }
}

pub(super) fn has_started(dir: &Path) -> bool {
    // A job whose state cannot be read may have started.
    !matches!(job_state(dir), Ok(JobState::NotStarted))
}

/// How waiting for a job ended.
pub(super) enum JobEnd {
    /// Its commands ended with these exit codes.
    Ended(Vec<Exit>),
    /// It was killed.
    Vanished,
    /// The agent is stopping; the job continues.
    Stopped,
}

/// Maximum number of supervisors started for a job that does not start.
const STARTS_MAX: u32 = 3;

/// Starts the job unless it has already started, and waits for it to end. `on_poll` is called
/// periodically and returns whether to keep waiting.
pub(super) fn run(
    program: &Path,
    dir: &Path,
    job: impl Fn() -> Job,
    mut on_poll: impl FnMut() -> bool,
) -> io::Result<JobEnd> {
    let mut starts = 0;
    loop {
        let waiting = match job_state(dir)? {
            JobState::Ended(exits) => return Ok(JobEnd::Ended(exits)),
            JobState::Vanished => return Ok(JobEnd::Vanished),
            JobState::NotStarted if starts == STARTS_MAX => {
                let why = fs::read_to_string(dir.join("trouble")).unwrap_or_default();
                return Err(io::Error::other(format!(
                    "the supervisor does not start the job: {why}"
                )));
            }
            JobState::NotStarted => {
                starts += 1;
                WaitTarget::Child(start(program, dir, &job())?)
            }
            JobState::Running => WaitTarget::Lock(dir.to_owned()),
            JobState::Orphaned => WaitTarget::Time,
        };
        if !wait(waiting, &mut on_poll) {
            return Ok(JobEnd::Stopped);
        }
    }
}

fn start(program: &Path, dir: &Path, job: &Job) -> io::Result<Child> {
    files::create_directory(dir)?;
    files::write_json(&dir.join("job.json"), job)?;
    std::process::Command::new(program)
        .arg("supervise")
        .arg(dir)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
}

/// What to wait for.
enum WaitTarget {
    Child(Child),
    Lock(PathBuf),
    Time,
}

/// Waits. Returns false if `on_poll` asked to stop.
fn wait(waiting: WaitTarget, on_poll: &mut impl FnMut() -> bool) -> bool {
    let (ended, end) = mpsc::channel::<()>();
    // The channel closes when the awaited event has happened.
    let mut open = None;
    match waiting {
        WaitTarget::Time => open = Some(ended),
        WaitTarget::Child(mut child) => drop(std::thread::spawn(move || {
            let _ = child.wait();
            drop(ended);
        })),
        WaitTarget::Lock(dir) => drop(std::thread::spawn(move || {
            let _ = lock_file(&dir).map(|file| flock(&file, FlockOperation::LockShared).is_ok());
            drop(ended);
        })),
    }
    loop {
        match end.recv_timeout(POLL_INTERVAL) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                let _ = on_poll();
                return true;
            }
            Err(RecvTimeoutError::Timeout) if !on_poll() => return false,
            Err(RecvTimeoutError::Timeout) if open.is_some() => return true,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
