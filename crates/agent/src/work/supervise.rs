//! `fleetmend-agent supervise JOBDIR`: runs the commands of a job and outlives the agent.
//!
//! It is the agent's own program, started again: `setsid` must run between fork and exec, which
//! requires either a separate process or unsafe code. The agent and the supervisor communicate only
//! through the files in the job's directory:
//!
//! | file | content |
//! |---|---|
//! | `job.json` | what to run; removed if the job must not start |
//! | `lock` | locked while the supervisor lives |
//! | `started` | written before the first command starts: a job with this file never starts again |
//! | `child` | process id and start time of the running command |
//! | `output` | output of the commands |
//! | `exit` | exit codes of the commands: the job has ended |
//! | `room` | reserved space for `exit`, in case the commands fill the disk |

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

/// Space reserved for the `exit` file.
const RESERVED_BYTES: usize = 4_096;

/// The commands for a supervisor to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub commands: Vec<Command>,
    /// Whether to run the next command after one has failed.
    pub keep_going: bool,
    /// Timeout of each command. Only hooks have one; a package manager never does.
    pub seconds_max: Option<u64>,
    /// The length of the order's log when the job was written.
    pub log_from: u64,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; `None` if a signal ended the command or it was never started.
    pub code: Option<i32>,
    /// Why there is no exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A process, identified by its id and start time, because ids are reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start: String,
}

impl Process {
    fn from_pid(pid: u32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The process name, in parentheses, may contain any character; the third field follows it.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // A zombie, which waits to be reaped, is not alive.
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(Process { pid, start: (*fields.get(19)?).to_owned() })
    }

    pub fn is_alive(&self) -> bool {
        Process::from_pid(self.pid).as_ref() == Some(self)
    }
}

/// Entry point of the hidden subcommand. Its exit code is not used; the files contain everything.
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
    // It fails only if this process already leads a process group, and then nothing is missing.
    let _ = setsid();
    let lock = lock_file(dir)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if dir.join("started").exists() || dir.join("exit").exists() {
        return Ok(());
    }
    let Some(job) = files::read_json::<Job>(&dir.join("job.json"))? else { return Ok(()) };
    files::reserve_space(&dir.join("room"), RESERVED_BYTES)?;
    files::write_json(&dir.join("started"), &Process::from_pid(std::process::id()))?;
    let output = OpenOptions::new().create(true).append(true).open(dir.join("output"))?;
    let mut exits = Vec::new();
    for command in &job.commands {
        let exit = run(dir, command, &job, &output);
        let ended_well = command.succeeded_with(exit.code);
        exits.push(exit);
        if !ended_well && !job.keep_going {
            break;
        }
    }
    // Lost output is acceptable; lost exit codes are not.
    let _ = output.sync_all();
    files::write_into_reserved(&dir.join("room"), &dir.join("exit"), &serde_json::to_vec(&exits)?)
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
        let mut prepared = command.to_std_command();
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
    let _ = files::write_json(&dir.join("child"), &Process::from_pid(child.id()));
    match job.seconds_max {
        Some(seconds) => wait_with_timeout(&mut child, seconds),
        None => child.wait().map(to_exit),
    }
    .unwrap_or_else(|error| failed("could not be waited for", &error))
}

fn to_exit(status: std::process::ExitStatus) -> Exit {
    let why = status.signal().map(|signal| format!("killed by signal {signal}"));
    Exit { code: status.code(), why }
}

/// Waits for a hook, and kills it with all its children after the timeout.
fn wait_with_timeout(child: &mut Child, seconds: u64) -> io::Result<Exit> {
    if let Some(status) = wait(child, Duration::from_secs(seconds))? {
        return Ok(to_exit(status));
    }
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    child.wait()?;
    Ok(Exit { code: None, why: Some(format!("timed out after {seconds} s and was killed")) })
}
