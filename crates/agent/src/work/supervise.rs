//! `fleetmend-agent supervise JOBDIR`: runs the commands of a job and outlives the agent.
//!
//! It is the agent's own program, started anew, because what must happen between fork and exec, a session
//! of its own, needs either this or unsafe code. The files of a job's directory are all that it and the
//! agent tell each other:
//!
//! | file | says |
//! |---|---|
//! | `job.json` | what to run; taken away if the job is not to begin |
//! | `lock` | held while the supervisor lives |
//! | `started` | there before the first command is: a job that has it is never begun again |
//! | `child` | the process and start time of the command that runs |
//! | `output` | what the commands say |
//! | `exit` | how each ended: the job is done |
//! | `room` | what `exit` will be written into, so that a disk which the commands fill has room for their end |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process_group, setsid};
use serde::{Deserialize, Serialize};

use super::files;
use crate::command::{Command, wait};

/// How much is put by for the end of a job.
const ROOM_BYTES: usize = 4_096;

/// What a supervisor is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The commands, one after another.
    pub commands: Vec<Command>,
    /// Whether the next command is run although one failed.
    pub keep_going: bool,
    /// After how long a command is killed. Only hooks have that; a package manager never does.
    pub seconds_max: Option<u64>,
    /// How long the order's log was when the job was written.
    pub log_from: u64,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit code; nothing if a signal ended it or it was never started.
    pub code: Option<i32>,
    /// Why there is no exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A process, told from a later one with the same number by when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks since the boot.
    pub start: String,
}

impl Process {
    fn of(pid: u32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything; after it comes the third field.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // One that has ended and waits to be asked about is not alive.
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(Process { pid, start: (*fields.get(19)?).to_owned() })
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        Process::of(self.pid).as_ref() == Some(self)
    }
}

/// What the hidden subcommand does. Nobody reads its exit code; the files say everything.
pub fn main(job_dir: &Path) -> ExitCode {
    match supervise(job_dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = std::fs::write(job_dir.join("trouble"), error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn supervise(dir: &Path) -> io::Result<()> {
    // It fails only if this process leads a group already, and then it has what it needs.
    let _ = setsid();
    let lock = lock_file(dir)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if dir.join("started").exists() || dir.join("exit").exists() {
        return Ok(());
    }
    let Some(job) = files::read_json::<Job>(&dir.join("job.json"))? else { return Ok(()) };
    files::put_by(&dir.join("room"), ROOM_BYTES)?;
    files::write_json(&dir.join("started"), &Process::of(std::process::id()))?;
    let output = OpenOptions::new().create(true).append(true).open(dir.join("output"))?;
    let mut exits = Vec::new();
    for command in &job.commands {
        let exit = run(dir, command, &job, &output);
        let ended_well = command.ended_well(exit.code);
        exits.push(exit);
        if !ended_well && !job.keep_going {
            break;
        }
    }
    // What could not be written of what they said is missing; how they ended must not be.
    let _ = output.sync_all();
    files::write_put_by(&dir.join("room"), &dir.join("exit"), &serde_json::to_vec(&exits)?)
}

/// The file that is locked while a supervisor lives.
pub(super) fn lock_file(dir: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock"))
}

fn run(dir: &Path, command: &Command, job: &Job, output: &File) -> Exit {
    let failed = |what: &str, error: &io::Error| Exit {
        code: None,
        why: Some(format!("`{}` {what}: {error}", command.program)),
    };
    let spawned = (|| {
        let mut prepared = command.prepare();
        prepared.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        if job.seconds_max.is_some() {
            prepared.process_group(0);
        }
        prepared.spawn()
    })();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return failed("could not be started", &error),
    };
    let _ = files::write_json(&dir.join("child"), &Process::of(child.id()));
    match job.seconds_max {
        Some(seconds) => wait_at_most(&mut child, seconds),
        None => child.wait().map(exit_of),
    }
    .unwrap_or_else(|error| failed("could not be waited for", &error))
}

fn exit_of(status: std::process::ExitStatus) -> Exit {
    let why = status.signal().map(|signal| format!("it was ended by signal {signal}"));
    Exit { code: status.code(), why }
}

/// Waits for a hook, and ends it with all its children if it takes too long.
fn wait_at_most(child: &mut Child, seconds: u64) -> io::Result<Exit> {
    if let Some(status) = wait(child, Duration::from_secs(seconds))? {
        return Ok(exit_of(status));
    }
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    child.wait()?;
    Ok(Exit { code: None, why: Some(format!("it took more than {seconds} s and was ended")) })
}
