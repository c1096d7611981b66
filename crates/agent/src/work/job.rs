//! The agent's side of a job: starts its supervisor at most once, waits for it, or finds out what became
//! of it. See [`supervise`](super::supervise) for the files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::files;
use super::supervise::{Exit, Job, Process, lock_file};

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It has not begun, and nothing will begin it but whoever writes it anew.
    NotBegun,
    /// It is at work.
    Running,
    /// It is at work, and nobody waits for it any more but us.
    Orphaned,
    /// It is done.
    Ended(Vec<Exit>),
    /// It was begun, and is at work no more, and nobody knows how far it came.
    Vanished,
}

/// How often whoever waits looks around.
const LOOK_AROUND: Duration = Duration::from_millis(500);

/// What became of the job in this directory.
///
/// If it has not begun, its `job.json` is taken away under the lock. A supervisor that an agent
/// started just before its own death, and that is only now getting ready, then finds nothing to do:
/// "not begun" stays true.
pub(super) fn state(dir: &Path) -> io::Result<State> {
    if !dir.exists() {
        return Ok(State::NotBegun);
    }
    let exit = dir.join("exit");
    if let Ok(Some(exits)) = files::read_json(&exit) {
        return Ok(State::Ended(exits));
    }
    let has_begun = || dir.join("started").exists() || exit.exists();
    let lock = match lock_file(dir) {
        // Without the lock's file whoever began it is looked for by their numbers.
        Err(_) if has_begun() => return Ok(begun(dir)),
        lock => lock?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(State::Running),
        Err(error) => return Err(error.into()),
    }
    // It may have ended between the two looks.
    if let Ok(Some(exits)) = files::read_json(&exit) {
        return Ok(State::Ended(exits));
    }
    if has_begun() {
        return Ok(begun(dir));
    }
    match fs::remove_file(dir.join("job.json")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(State::NotBegun),
    }
}

/// What became of a job that was begun and did not say how it ended, or whose words are damaged.
fn begun(dir: &Path) -> State {
    let is_alive = |name: &str| {
        let found: Option<Option<Process>> = files::read_json(&dir.join(name)).unwrap_or(None);
        found.flatten().is_some_and(|process| process.is_alive())
    };
    match is_alive("child") || is_alive("started") {
        true => State::Orphaned,
        false => State::Vanished,
    }
}

/// Whether the job has begun.
pub(super) fn has_begun(dir: &Path) -> bool {
    // What cannot be read may have begun.
    !matches!(state(dir), Ok(State::NotBegun))
}

/// How a job came to its end.
pub(super) enum End {
    /// Its commands ended so.
    Ended(Vec<Exit>),
    /// It was killed.
    Vanished,
    /// The agent is to stop; the job goes on.
    Stopped,
}

/// How often a supervisor is started that does not begin its job.
const STARTS_MAX: u32 = 3;

/// Starts the job unless it was started, and waits for its end. `look_around` is called now and then, and
/// says whether to go on waiting.
pub(super) fn run(
    program: &Path,
    dir: &Path,
    job: impl Fn() -> Job,
    mut look_around: impl FnMut() -> bool,
) -> io::Result<End> {
    let mut starts = 0;
    loop {
        let waiting = match state(dir)? {
            State::Ended(exits) => return Ok(End::Ended(exits)),
            State::Vanished => return Ok(End::Vanished),
            State::NotBegun if starts == STARTS_MAX => {
                let why = fs::read_to_string(dir.join("trouble")).unwrap_or_default();
                return Err(io::Error::other(format!("the supervisor does not begin: {why}")));
            }
            State::NotBegun => {
                starts += 1;
                For::Child(start(program, dir, &job())?)
            }
            State::Running => For::Lock(dir.to_owned()),
            State::Orphaned => For::Time,
        };
        if !wait(waiting, &mut look_around) {
            return Ok(End::Stopped);
        }
    }
}

fn start(program: &Path, dir: &Path, job: &Job) -> io::Result<Child> {
    files::make_directory(dir)?;
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

/// What is waited for.
enum For {
    Child(Child),
    Lock(PathBuf),
    Time,
}

/// Waits; false if it was told to give up.
fn wait(waiting: For, look_around: &mut impl FnMut() -> bool) -> bool {
    let (ended, end) = mpsc::channel::<()>();
    // The channel closes when what is waited for has happened.
    let mut open = None;
    match waiting {
        For::Time => open = Some(ended),
        For::Child(mut child) => drop(std::thread::spawn(move || {
            let _ = child.wait();
            drop(ended);
        })),
        For::Lock(dir) => drop(std::thread::spawn(move || {
            let _ = lock_file(&dir).map(|file| flock(&file, FlockOperation::LockShared).is_ok());
            drop(ended);
        })),
    }
    loop {
        match end.recv_timeout(LOOK_AROUND) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                let _ = look_around();
                return true;
            }
            Err(RecvTimeoutError::Timeout) if !look_around() => return false,
            Err(RecvTimeoutError::Timeout) if open.is_some() => return true,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
