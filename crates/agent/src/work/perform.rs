//! Executes one step: queries the package manager and the host, runs commands, and returns the
//! result.
//!
//! It decides nothing; the planner does. A package manager is never killed, and its work is judged
//! by inspecting the system.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vocab::listing::{self, Installed};
use vocab::{FailureCode, Line, PackageName};
use wire::agent::Install;

use super::failure::Failure;
use super::journal::{Chosen, Ended, Journal, Lesson, Lock, OldUnits, Task, Verified};
use super::limits::{Limits, Rules, zone};
use super::log::Log;
use super::step::{Act, Facts, Step};
use super::supervise::{Exit, Job};
use super::{ScanReport, Setup, files, hooks, job, select, space};
use crate::backend::{Backend, BackendError, Choice, Diagnosis};

/// How many bytes of the end of a command's output are used for the diagnosis.
const SAID_BYTES: u64 = 64 * 1024;
/// Downloads up to this size are left to the installation: they take only a moment, and a separate
/// download command would take as long again.
const LITTLE_BYTES: u64 = 8 * 1024 * 1024;
/// After how many minutes a running command is reported.
const LONG_MINUTES: u64 = 30;

/// Timeout for notifying logged-in users of a reboot.
const NOTICE_PATIENCE: Duration = Duration::from_secs(5);

/// Executes the steps of one order.
pub(super) struct Hands<'a> {
    pub(super) setup: &'a Setup,
    /// The order's directory.
    pub(super) dir: PathBuf,
    /// Called periodically while a command runs, with a message for people and whether the log
    /// grew. Returns whether to keep waiting.
    pub(super) look_around: &'a dyn Fn(Option<Line>, bool) -> bool,
    /// Receives the result of a scan.
    pub(super) publish: &'a dyn Fn(ScanReport),
    /// Called before a reboot; returns once the server has received the progress report, or after a
    /// timeout.
    pub(super) tell_of_reboot: &'a dyn Fn(),
}

impl Hands<'_> {
    /// The current facts for the planner.
    pub(super) fn facts(&self, journal: &Journal) -> Facts {
        let begun = match &journal.doing {
            Some(Step::Run(act)) => job::has_begun(&self.job_dir(journal, *act)),
            _ => false,
        };
        let path = &self.setup.limits;
        let (rules, in_container) = match Limits::read(path) {
            Ok(limits) => {
                let zone = zone(&self.setup.root);
                (limits.rules(path, &zone, (self.setup.clock)()), limits.reboot_in_container)
            }
            Err(why) => (Rules { unreadable: Some(why), ..Rules::default() }, false),
        };
        Facts {
            boot_id: self.setup.host.boot_id(),
            withdrawn: self.dir.join("withdrawn").exists(),
            begun,
            rules,
            may_reboot: self.setup.host.may_reboot(in_container),
        }
    }

    /// Executes a step. `None` if the agent is stopping in the middle of it.
    pub(super) fn take(&self, journal: &Journal, step: &Step) -> Option<Lesson> {
        let lesson = match step {
            Step::Lock => self.lock(),

            Step::Damage => self.backend().damage().map(Lesson::Damage),
            Step::Choose => self.choose(journal),
            Step::Resolve => self.resolve(journal),
            Step::Verify => self.verify(journal),
            Step::OldCode => Ok(self.old_code()),
            Step::Reasons => Ok(self.reasons()),
            Step::Scan => self.scan(),
            Step::Run(act) => return self.run(journal, *act),
            Step::Pause | Step::End(_) => Ok(Lesson::Paused),
        };
        Some(lesson.unwrap_or_else(|error| Lesson::NoAnswer(failure_of(error))))
    }

    fn backend(&self) -> &dyn Backend {
        &*self.setup.backend
    }

    fn lock(&self) -> Result<Lesson, BackendError> {
        let holder = self.backend().lock_holder()?;
        Ok(Lesson::Lock(holder.map_or(Lock::Free, |holder| Lock::HeldBy(holder.name))))
    }

    fn choose(&self, journal: &Journal) -> Result<Lesson, BackendError> {
        let Some(order) = order_of(journal) else { return Ok(Lesson::Chosen(Chosen::default())) };
        let limits = match Limits::read(&self.setup.limits) {
            Ok(limits) => limits,
            Err(why) => {
                let failure = Failure::new(FailureCode::RejectedByAgent, why);
                return Ok(Lesson::Forbidden(failure));
            }
        };
        let installed = self.backend().versions()?;
        let pending = match order.packages.is_empty() {
            true => self.backend().pending(&installed)?,
            false => {
                let names = order.packages.iter().map(PackageName::as_str).collect();
                let security = order.security_only || limits.security_only;
                self.backend().offered(&installed, &names, security)?
            }
        };
        let set_aside = self.set_aside()?;
        files::write_json(&self.dir.join("before.json"), &installed).map_err(unwritable)?;
        let manager = self.backend().manager();
        let (choices, passed) = select::choose(order, &limits, manager, &installed, &pending);
        Ok(Lesson::Chosen(Chosen { choices, passed, set_aside }))
    }

    fn resolve(&self, journal: &Journal) -> Result<Lesson, BackendError> {
        let (Some(order), Ok(limits)) = (order_of(journal), Limits::read(&self.setup.limits))
        else {
            let words = format!("cannot read {}", self.setup.limits.display());
            let failure = Failure::new(FailureCode::RejectedByAgent, words);
            return Ok(Lesson::Forbidden(failure));
        };
        let choices = choices_of(journal);
        let transaction = match self.backend().resolve(choices) {
            Err(BackendError::Conflict(words)) => {
                let failure = Failure::new(FailureCode::DependencyConflict, words);
                return Ok(Lesson::Forbidden(failure));
            }
            answer => answer?,
        };
        let before = self.before()?;
        let manager = self.backend().manager();
        let judged = select::judge(order, &limits, manager, &before, choices, &transaction)
            .and_then(|moves| {
                let (fetch, disk) = (transaction.download_bytes, transaction.disk_bytes);
                space::room(&self.places(), fetch, disk, &moves).map(|()| moves)
            });
        // A download can take hours. Where only some hours are allowed, the limits are checked
        // again after it, so it must not be part of the installation.
        let little = transaction.download_bytes.is_some_and(|bytes| bytes <= LITTLE_BYTES)
            && self.backend().fetches_to_install()
            && limits.allowed_hours.is_none();
        Ok(judged.map_or_else(Lesson::Forbidden, |moves| Lesson::Resolved { moves, little }))
    }

    fn places(&self) -> Vec<space::Place> {
        let place = |path: &'static str| {
            let device = fs::metadata(self.setup.root.path(path)).ok()?.dev();
            let free_bytes = self.setup.host.free_bytes(path)?;
            Some(space::Place { path, device, free_bytes })
        };
        space::PLACES.into_iter().filter_map(place).collect()
    }

    fn verify(&self, journal: &Journal) -> Result<Lesson, BackendError> {
        let before = self.before()?;
        let after = self.backend().versions()?;
        let chosen = journal.known.chosen.as_ref();
        let was_aside = chosen.map(|chosen| chosen.set_aside.as_slice()).unwrap_or_default();
        let set_aside = self.set_aside()?.into_iter().filter(|path| !was_aside.contains(path));
        let manager = self.backend().manager();
        Ok(Lesson::Verified(Verified {
            moves: select::difference(&before, &after),
            unmet: select::unmet(choices_of(journal), manager, &before, &after),
            set_aside: set_aside.collect(),
        }))
    }

    fn before(&self) -> Result<Vec<Installed>, BackendError> {
        let unreadable = |why: String| BackendError::Unreadable {
            what: "the inventory before the order".to_owned(),
            why,
        };
        files::read_json(&self.dir.join("before.json"))
            .map_err(|error| unreadable(error.to_string()))?
            .ok_or_else(|| unreadable("the file does not exist".to_owned()))
    }

    fn set_aside(&self) -> Result<Vec<Line>, BackendError> {
        let paths = self.backend().set_aside()?;
        Ok(paths.iter().map(|path| Line::made_of(&path.to_string_lossy())).collect())
    }

    fn old_code(&self) -> Lesson {
        let mut old = OldUnits::default();
        for process in self.setup.host.old_code(self.backend()) {
            match process.unit {
                Some(unit) if self.setup.host.is_restartable(unit.as_str()) => {
                    old.units.push(unit.to_string());
                }
                Some(unit) => old.others.push(unit),
                None => old.others.push(process.process),
            }
        }
        old.units.sort();
        old.units.dedup();
        old.others.sort();
        old.others.dedup();
        Lesson::OldCode(old)
    }

    fn reasons(&self) -> Lesson {
        let reasons = self.setup.host.reboot_reasons(self.backend());
        Lesson::RebootReasons(reasons.map_err(|error| Line::from(error.to_string())))
    }

    fn scan(&self) -> Result<Lesson, BackendError> {
        (self.publish)(scan(self.setup)?);
        Ok(Lesson::Scanned)
    }

    fn job_dir(&self, journal: &Journal, act: Act) -> PathBuf {
        let times = journal.known.repeats.get(&act).copied().unwrap_or(0);
        self.dir.join(format!("{}.{times}", act.name()))
    }

    fn run(&self, journal: &Journal, act: Act) -> Option<Lesson> {
        let (dir, log) = (self.job_dir(journal, act), Log::in_directory(&self.dir));
        let ended = |ended| Some(Lesson::Ended(ended, Vec::new()));
        let badly = |failure| ended(Ended::Badly { exit: None, failure });
        let commands = match self.commands(journal, act) {
            Ok(commands) => commands,
            Err(failure) => return badly(failure),
        };
        // A job that has started is awaited even if its commands are no longer known.
        if commands.is_empty() && !job::has_begun(&dir) {
            return ended(Ended::Well);
        }
        let is_hook = matches!(act, Act::PreInstall | Act::PostInstall | Act::PreReboot);
        let keep_going = matches!(act, Act::RepairBefore | Act::RepairAfter | Act::Restart);
        let program = commands.last().map(|command| command.program.clone()).unwrap_or_default();
        let job = || {
            let _ = log.say(act.name());
            Job {
                commands: commands.clone(),
                keep_going,
                seconds_max: is_hook.then_some(hooks::SECONDS_MAX),
                log_from: log.length(),
            }
        };
        let mut looks: u64 = 0;
        let look_around = || {
            looks += 1;
            let grew = log.follow(&dir).unwrap_or(false);
            let minutes = looks / 120;
            let words = (minutes >= LONG_MINUTES)
                .then(|| format!("`{program}` has been running for {minutes} minutes").into());
            (self.look_around)(words, grew)
        };
        if act == Act::Reboot && !job::has_begun(&dir) {
            // Notify logged-in users; failures are ignored.
            let notice = self.setup.host.wall("this server is rebooting now to finish its updates");
            let _ = notice.map(|notice| notice.ask(NOTICE_PATIENCE));
            (self.tell_of_reboot)();
        }
        match job::run(&self.setup.program, &dir, job, look_around) {
            Ok(job::End::Stopped) => None,
            Ok(job::End::Vanished) => {
                let _ = log.finish(&dir);
                ended(Ended::Vanished)
            }
            Ok(job::End::Ended(exits)) => {
                let _ = log.finish(&dir);
                let (end, restarted) = self.judge(journal, act, &dir, &exits);
                Some(Lesson::Ended(end, restarted))
            }
            Err(error) => {
                let words = format!("cannot run {}: {error}", act.name());
                badly(Failure::new(FailureCode::AgentError, words))
            }
        }
    }

    fn commands(
        &self,
        journal: &Journal,
        act: Act,
    ) -> Result<Vec<crate::command::Command>, Failure> {
        let choices = choices_of(journal);
        Ok(match act {
            Act::RepairBefore | Act::RepairAfter => self.backend().repair(),
            Act::Refresh => self.backend().refresh(),
            Act::Download => self.backend().download(choices),
            Act::Install => self.backend().install(choices),
            Act::Restart => {
                let units = journal.known.restarting.iter();
                units.map(|unit| self.setup.host.restart(unit)).collect()
            }
            Act::Reboot => vec![self.setup.host.reboot()],
            Act::PreInstall | Act::PostInstall | Act::PreReboot => {
                let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
                let environment = [
                    ("FLEETMEND_ORDER_ID", journal.id.to_string()),
                    ("FLEETMEND_HOOK", act.name().to_owned()),
                    ("FLEETMEND_PACKAGES", names.join(" ")),
                    ("FLEETMEND_OUTCOME", how_it_went(journal).to_owned()),
                    ("FLEETMEND_ROOT", self.setup.root.dir().to_string_lossy().into_owned()),
                ];
                hooks::commands(&self.setup.hooks, act, &environment)?
            }
        })
    }

    /// Interprets the exit codes of a job's commands.
    fn judge(&self, journal: &Journal, act: Act, dir: &Path, exits: &[Exit]) -> (Ended, Vec<Line>) {
        let job: Option<Job> = files::read_json(&dir.join("job.json")).unwrap_or(None);
        let commands = job.map(|job| job.commands).unwrap_or_default();
        let well = |(place, exit): (usize, &Exit)| match commands.get(place) {
            Some(command) => command.ended_well(exit.code),
            None => exit.code == Some(0),
        };
        let mut restarted = Vec::new();
        if act == Act::Restart {
            let units = journal.known.restarting.iter().zip(exits.iter().enumerate());
            restarted =
                units.filter(|(_, end)| well(*end)).map(|(unit, _)| unit.as_str().into()).collect();
        }
        let Some(place) = exits.iter().enumerate().position(|end| !well(end)) else {
            return (Ended::Well, restarted);
        };
        let exit = &exits[place];
        let said = files::tail(&dir.join("output"), SAID_BYTES);
        let program = commands.get(place).map(|c| c.program.as_str()).unwrap_or_default();
        let failure = match act {
            Act::PreInstall | Act::PostInstall | Act::PreReboot => Failure::new(
                FailureCode::HookFailed,
                format!("{program}: {}", last_words(exit, &said)),
            ),
            Act::Restart => {
                let unit =
                    journal.known.restarting.get(place).map(String::as_str).unwrap_or_default();
                let words = format!("cannot restart {unit}: {}", last_words(exit, &said));
                Failure::new(FailureCode::ServiceRestartFailed, words)
            }
            Act::Reboot => {
                let words = format!("`{program}` failed: {}", last_words(exit, &said));
                Failure::new(FailureCode::RebootTimeout, words)
            }
            _ => match &exit.why {
                Some(why) if exit.code.is_none() && said.is_empty() => {
                    Failure::new(FailureCode::InstallFailed, why.as_str())
                }
                _ => self.backend().diagnose(exit.code, &said).into(),
            },
        };
        (Ended::Badly { exit: exit.code, failure }, restarted)
    }
}

/// Scans the packages and writes the listings to disk for upload.
pub(super) fn scan(setup: &Setup) -> Result<ScanReport, BackendError> {
    let mut installed = setup.backend.installed()?;
    let mut pending = setup.backend.pending(&installed)?;
    listing::sort(&mut installed);
    listing::sort(&mut pending);
    if let Some(memory) = setup.backend.memory_if_new() {
        // If the write fails, the same query runs again later.
        let _ = files::write(&super::memory_path(&setup.state_dir), &memory);
    }
    let facts = setup.host.facts(&*setup.backend);
    let store = |bytes: Vec<u8>| -> io::Result<vocab::Digest> {
        let digest = vocab::Digest::of(&bytes);
        let path = super::listing_path(&setup.state_dir, digest);
        if !path.exists() {
            files::write(&path, &bytes)?;
        }
        Ok(digest)
    };
    Ok(ScanReport {
        installed: store(listing::encode(&installed)).map_err(unwritable)?,
        pending: store(listing::encode(&pending)).map_err(unwritable)?,
        at: (setup.clock)(),
        facts,
    })
}

/// The outcome so far, as passed to hooks.
fn how_it_went(journal: &Journal) -> &'static str {
    let installed = journal.known.acts.contains_key(&Act::Install);
    match (installed, super::outcome::verdict(journal)) {
        (false, _) => "not_installed",
        (true, None) => "succeeded",
        (true, Some(_)) => "failed",
    }
}

/// Why a command failed: its last line of output, or its exit code.
fn last_words(exit: &Exit, said: &str) -> String {
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    match (&exit.why, exit.code, last) {
        (Some(why), _, "") => why.clone(),
        (Some(why), _, last) => format!("{why}: {last}"),
        (None, code, "") => format!("exit code {}", code.unwrap_or(-1)),
        (None, _, last) => last.to_owned(),
    }
}

fn order_of(journal: &Journal) -> Option<&Install> {
    match &journal.task {
        Task::Plan(install) | Task::Install(install) => Some(install),
        _ => None,
    }
}

fn choices_of(journal: &Journal) -> &[Choice] {
    journal.known.chosen.as_ref().map(|chosen| chosen.choices.as_slice()).unwrap_or_default()
}

fn unwritable(error: io::Error) -> BackendError {
    if files::is_full(&error) {
        let message = format!("cannot write to the agent's state directory: {error}").into();
        let diagnosis = Diagnosis { code: FailureCode::DiskFull, message };
        return BackendError::Failed { what: "the agent", diagnosis };
    }
    BackendError::Unreadable {
        what: "the agent's state directory".to_owned(),
        why: error.to_string(),
    }
}

fn failure_of(error: BackendError) -> Failure {
    match error {
        BackendError::Failed { diagnosis, .. } => diagnosis.into(),
        BackendError::Conflict(words) => Failure::new(FailureCode::DependencyConflict, words),
        other => Failure::new(FailureCode::AgentError, other.to_string()),
    }
}
