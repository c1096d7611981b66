//! Executes one step: queries the package manager and the host, runs commands, and returns the
//! result.
//!
//! It decides nothing; the planner does. A package manager is never killed, and its work is judged
//! by inspecting the system.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vocab::listing::{self, Installed};
use vocab::{FailureCode, Line, PackageName};
use wire::agent::{AgentUpgrade, Install, InstallVersions};

use super::failure::Failure;
use super::health::HookResults;
use super::journal::{
    ActionResult, Journal, Lock, OutdatedServices, Selection, StepResult, Task, Verification,
};
use super::limits::{ActiveLimits, Limits, local_time_zone};
use super::log::Log;
use super::step::{Action, Facts, Step};
use super::supervise::{Exit, Job};
use super::{AgentReplacement, ScanReport, WorkerConfig, files, hooks, job, pinned, select, space};
use crate::backend::{Backend, BackendError, Choice, Diagnosis};
use crate::host::health::HealthSnapshot;

/// How many bytes of the end of a command's output are used for the diagnosis.
const DIAGNOSIS_BYTES: u64 = 64 * 1024;
/// Downloads up to this size are left to the installation: they take only a moment, and a separate
/// download command would take as long again.
const SMALL_DOWNLOAD_BYTES: u64 = 8 * 1024 * 1024;
/// After how many minutes a running command is reported.
const LONG_RUN_MINUTES: u64 = 30;

/// Timeout for notifying logged-in users of a reboot.
const WALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Executes the steps of one order.
pub(super) struct Executor<'a> {
    pub(super) config: &'a WorkerConfig,
    /// The order's directory.
    pub(super) dir: PathBuf,
    /// Called periodically while a command runs, with a message for people and whether the log
    /// grew. Returns whether to keep waiting.
    pub(super) on_poll: &'a dyn Fn(Option<Line>, bool) -> bool,
    /// Receives the result of a scan.
    pub(super) publish: &'a dyn Fn(ScanReport),
    /// Called before a reboot; returns once the service has received the progress report, or after
    /// a timeout.
    pub(super) before_reboot: &'a dyn Fn(),
}

impl Executor<'_> {
    /// The current facts for the planner.
    pub(super) fn facts(&self, journal: &Journal) -> Facts {
        let started = match &journal.doing {
            Some(Step::Run(act)) => job::has_started(&self.job_dir(journal, *act)),
            _ => false,
        };
        let path = &self.config.limits;
        let (rules, in_container) = match Limits::read(path) {
            Ok(limits) => {
                let zone = local_time_zone(&self.config.root);
                (limits.active_at(path, &zone, (self.config.clock)()), limits.reboot_in_container)
            }
            Err(why) => (ActiveLimits { unreadable: Some(why), ..ActiveLimits::default() }, false),
        };
        Facts {
            boot_id: self.config.host.boot_id(),
            withdrawn: self.dir.join("withdrawn").exists(),
            started,
            active_limits: rules,
            may_reboot: self.config.host.check_reboot_allowed(in_container),
            agent_version: crate::version().into(),
            may_upgrade: self.config.replace.allowed.clone(),
        }
    }

    /// Executes a step. `None` if the agent is stopping in the middle of it.
    pub(super) fn execute(&self, journal: &Journal, step: &Step) -> Option<StepResult> {
        let result = match step {
            Step::Lock => self.lock(),

            Step::Damage => self.backend().damage().map(StepResult::Damage),
            Step::Choose => self.choose(journal),
            Step::Resolve => self.resolve(journal),
            Step::Verify => self.verify(journal),
            Step::OldCode => Ok(self.old_code()),
            Step::Reasons => Ok(self.reboot_reasons()),
            Step::Scan => self.scan(),
            Step::Baseline => return self.measure_baseline(journal),
            Step::Health { hooks } => return self.measure_health(journal, *hooks),
            Step::Run(act) => return self.run(journal, *act),
            Step::Pause | Step::End(_) => Ok(StepResult::Paused),
        };
        Some(result.unwrap_or_else(|error| StepResult::QueryFailed(failure_of(error))))
    }

    fn backend(&self) -> &dyn Backend {
        &*self.config.backend
    }

    fn lock(&self) -> Result<StepResult, BackendError> {
        let holder = self.backend().lock_holder()?;
        Ok(StepResult::Lock(holder.map_or(Lock::Free, |holder| Lock::HeldBy(holder.name))))
    }

    fn choose(&self, journal: &Journal) -> Result<StepResult, BackendError> {
        let Some(order) = install_of(journal) else {
            return Ok(StepResult::Chosen(Selection::default()));
        };
        let limits = match Limits::read(&self.config.limits) {
            Ok(limits) => limits,
            Err(why) => {
                let failure = Failure::new(FailureCode::RejectedByAgent, why);
                return Ok(StepResult::Forbidden(failure));
            }
        };
        let installed = self.backend().installed_versions()?;
        let set_aside = self.set_aside()?;
        files::write_json(&self.dir.join("before.json"), &installed).map_err(write_error)?;
        let manager = self.backend().manager();
        if let Some(order) = versions_of(journal) {
            let selection = self.choose_versions(order, &limits, &installed)?;
            return Ok(StepResult::Chosen(Selection { set_aside, ..selection }));
        }
        let pending = match order.packages.is_empty() {
            true => self.backend().pending(&installed)?,
            false => {
                let names = order.packages.iter().map(PackageName::as_str).collect();
                let security = order.security_only || limits.security_only;
                self.backend().pending_for(&installed, &names, security)?
            }
        };
        let (choices, passed) = select::choose(order, &limits, manager, &installed, &pending);
        Ok(StepResult::Chosen(Selection { choices, passed, set_aside, newer: Vec::new() }))
    }

    /// Selects exact versions. The package manager is asked only about packages that are installed
    /// in an older version than the ordered one.
    fn choose_versions(
        &self,
        order: &InstallVersions,
        limits: &Limits,
        installed: &[Installed],
    ) -> Result<Selection, BackendError> {
        let manager = self.backend().manager();
        let wanted = pinned::wanted_versions(order, manager, installed);
        let names: BTreeSet<&str> = wanted.iter().map(pinned::WantedVersion::name).collect();
        let pending = match names.is_empty() {
            true => Vec::new(),
            false => self.backend().pending_for(installed, &names, limits.security_only)?,
        };
        let asked: BTreeSet<&str> = wanted
            .iter()
            .filter(|wanted| wanted.is_newer() && !wanted.is_candidate(&pending))
            .map(pinned::WantedVersion::name)
            .collect();
        let offered = match asked.is_empty() {
            true => Vec::new(),
            false => self.backend().offered_versions(installed, &asked)?,
        };
        let restriction = self.backend().version_restriction();
        Ok(pinned::choose(order, limits, manager, &wanted, &pending, &offered, restriction))
    }

    fn resolve(&self, journal: &Journal) -> Result<StepResult, BackendError> {
        let (Some(order), Ok(limits)) = (install_of(journal), Limits::read(&self.config.limits))
        else {
            let words = format!("cannot read {}", self.config.limits.display());
            let failure = Failure::new(FailureCode::RejectedByAgent, words);
            return Ok(StepResult::Forbidden(failure));
        };
        let choices = choices_of(journal);
        let transaction = match self.backend().resolve(choices) {
            Err(BackendError::Conflict(words)) => {
                let failure = Failure::new(FailureCode::DependencyConflict, words);
                return Ok(StepResult::Forbidden(failure));
            }
            answer => answer?,
        };
        let before = self.inventory_before()?;
        let manager = self.backend().manager();
        let judged =
            select::check_transaction(order, &limits, manager, &before, choices, &transaction)
                .and_then(|moves| match versions_of(journal) {
                    Some(order) => pinned::check_moves(order, choices, &moves).map(|()| moves),
                    None => Ok(moves),
                })
                .and_then(|moves| {
                    let (fetch, disk) = (transaction.download_bytes, transaction.disk_bytes);
                    space::check_space(&self.file_systems(), fetch, disk, &moves).map(|()| moves)
                });
        // A download can take hours. Where only some hours are allowed, the limits are checked
        // again after it, so it must not be part of the installation.
        let small_download =
            transaction.download_bytes.is_some_and(|bytes| bytes <= SMALL_DOWNLOAD_BYTES)
                && self.backend().downloads_on_install()
                && limits.allowed_hours.is_none();
        Ok(judged.map_or_else(StepResult::Forbidden, |moves| StepResult::Resolved {
            moves,
            small_download,
        }))
    }

    fn file_systems(&self) -> Vec<space::PathSpace> {
        let place = |path: &'static str| {
            let device = fs::metadata(self.config.root.path(path)).ok()?.dev();
            let free_bytes = self.config.host.free_bytes(path)?;
            Some(space::PathSpace { path, device, free_bytes })
        };
        space::CHECKED_PATHS.into_iter().filter_map(place).collect()
    }

    fn verify(&self, journal: &Journal) -> Result<StepResult, BackendError> {
        let before = self.inventory_before()?;
        let after = self.backend().installed_versions()?;
        let chosen = journal.known.chosen.as_ref();
        let was_aside = chosen.map(|chosen| chosen.set_aside.as_slice()).unwrap_or_default();
        let set_aside = self.set_aside()?.into_iter().filter(|path| !was_aside.contains(path));
        let manager = self.backend().manager();
        Ok(StepResult::Verified(Verification {
            moves: select::difference(&before, &after),
            unmet: select::unmet_expectations(choices_of(journal), manager, &before, &after),
            set_aside: set_aside.collect(),
        }))
    }

    fn inventory_before(&self) -> Result<Vec<Installed>, BackendError> {
        let unreadable = |why: String| BackendError::Unreadable {
            what: "the inventory from before the order".to_owned(),
            why,
        };
        files::read_json(&self.dir.join("before.json"))
            .map_err(|error| unreadable(error.to_string()))?
            .ok_or_else(|| unreadable("the file does not exist".to_owned()))
    }

    fn set_aside(&self) -> Result<Vec<Line>, BackendError> {
        let paths = self.backend().new_config_files()?;
        Ok(paths.iter().map(|path| Line::sanitize(&path.to_string_lossy())).collect())
    }

    fn old_code(&self) -> StepResult {
        let mut old = OutdatedServices::default();
        for process in self.config.host.outdated_processes(self.backend()) {
            match process.unit {
                Some(unit) if self.config.host.is_restartable(unit.as_str()) => {
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
        StepResult::OldCode(old)
    }

    fn reboot_reasons(&self) -> StepResult {
        let reasons = self.config.host.reboot_reasons(self.backend());
        StepResult::RebootReasons(reasons.map_err(|error| Line::from(error.to_string())))
    }

    fn scan(&self) -> Result<StepResult, BackendError> {
        (self.publish)(scan(self.config)?);
        Ok(StepResult::Scanned)
    }

    fn measure_baseline(&self, journal: &Journal) -> Option<StepResult> {
        let mut snapshot = self.config.host.measure_health((self.config.clock)(), None);
        snapshot.hooks = self.run_health_hooks(journal, "before")?;
        Some(StepResult::Baseline(Box::new(snapshot)))
    }

    fn measure_health(&self, journal: &Journal, hooks: bool) -> Option<StepResult> {
        let unmeasured = HealthSnapshot::default();
        let baseline = journal.known.baseline.as_deref().unwrap_or(&unmeasured);
        let mut snapshot = self.config.host.measure_health((self.config.clock)(), Some(baseline));
        if hooks {
            snapshot.hooks = self.run_health_hooks(journal, "after")?;
        }
        Some(StepResult::Health(snapshot.report(baseline)))
    }

    fn run_health_hooks(&self, journal: &Journal, when: &str) -> Option<HookResults> {
        let log = Log::in_directory(&self.dir);
        let environment = [
            ("FLEETMEND_ORDER_ID", journal.id.to_string()),
            ("FLEETMEND_HOOK", "health".to_owned()),
            ("FLEETMEND_HEALTH", when.to_owned()),
            ("FLEETMEND_ROOT", self.config.root.dir().to_string_lossy().into_owned()),
        ];
        hooks::run_health_hooks(
            &self.config.health_hooks,
            &environment,
            &|| (self.on_poll)(None, false),
            &|line| drop(log.write_line(line)),
        )
    }

    fn job_dir(&self, journal: &Journal, act: Action) -> PathBuf {
        let times = journal.known.repeats.get(&act).copied().unwrap_or(0);
        self.dir.join(format!("{}.{times}", act.name()))
    }

    fn run(&self, journal: &Journal, act: Action) -> Option<StepResult> {
        let (dir, log) = (self.job_dir(journal, act), Log::in_directory(&self.dir));
        let ended = |ended| Some(StepResult::Ended(ended, Vec::new()));
        let badly = |failure| ended(ActionResult::Badly { exit: None, failure });
        let commands = match self.commands(journal, act) {
            Ok(commands) => commands,
            Err(failure) => return badly(failure),
        };
        // A job that has started is awaited even if its commands are no longer known.
        if commands.is_empty() && !job::has_started(&dir) {
            return ended(ActionResult::Well);
        }
        let is_hook = matches!(act, Action::PreInstall | Action::PostInstall | Action::PreReboot);
        let keep_going =
            matches!(act, Action::RepairBefore | Action::RepairAfter | Action::Restart);
        let program = commands.last().map(|command| command.program.clone()).unwrap_or_default();
        let job = || {
            let _ = log.write_line(act.name());
            Job {
                commands: commands.clone(),
                keep_going,
                seconds_max: is_hook.then_some(hooks::HOOK_SECONDS_MAX),
                log_from: log.length(),
            }
        };
        let mut looks: u64 = 0;
        let look_around = || {
            looks += 1;
            let grew = log.copy_new_output(&dir).unwrap_or(false);
            let minutes = looks / 120;
            let words = (minutes >= LONG_RUN_MINUTES)
                .then(|| format!("`{program}` has been running for {minutes} minutes").into());
            (self.on_poll)(words, grew)
        };
        if act == Action::Reboot && !job::has_started(&dir) {
            // Notify logged-in users; failures are ignored.
            let notice = self
                .config
                .host
                .notify_users_command("this server is rebooting now to finish its updates");
            let _ = notice.map(|notice| notice.query(WALL_TIMEOUT));
            (self.before_reboot)();
        }
        match job::run(&self.config.program, &dir, job, look_around) {
            Ok(job::JobEnd::Stopped) => None,
            Ok(job::JobEnd::Vanished) => {
                let _ = log.copy_remaining_output(&dir);
                ended(ActionResult::Vanished)
            }
            Ok(job::JobEnd::Ended(exits)) => {
                let _ = log.copy_remaining_output(&dir);
                let (end, restarted) = self.interpret_exits(journal, act, &dir, &exits);
                Some(StepResult::Ended(end, restarted))
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
        act: Action,
    ) -> Result<Vec<crate::command::Command>, Failure> {
        let choices = choices_of(journal);
        Ok(match act {
            Action::RepairBefore | Action::RepairAfter => self.backend().repair(),
            Action::Refresh => self.backend().refresh(),
            Action::Download => self.backend().download(choices),
            Action::Install => self.backend().install(choices),
            Action::Restart => {
                let units = journal.known.restarting.iter();
                units.map(|unit| self.config.host.restart_command(unit)).collect()
            }
            Action::Reboot => vec![self.config.host.reboot_command()],
            Action::UpgradeAgent => self.upgrade_command(journal).into_iter().collect(),
            Action::PreInstall | Action::PostInstall | Action::PreReboot => {
                let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
                let environment = [
                    ("FLEETMEND_ORDER_ID", journal.id.to_string()),
                    ("FLEETMEND_HOOK", act.name().to_owned()),
                    ("FLEETMEND_PACKAGES", names.join(" ")),
                    ("FLEETMEND_OUTCOME", hook_outcome(journal).to_owned()),
                    ("FLEETMEND_ROOT", self.config.root.dir().to_string_lossy().into_owned()),
                ];
                hooks::commands(&self.config.hooks, act, &environment)?
            }
        })
    }

    /// The command that replaces the agent's program. It runs the current program, which continues
    /// while its file is replaced.
    fn upgrade_command(&self, journal: &Journal) -> Option<crate::command::Command> {
        let Task::UpgradeAgent(AgentUpgrade { version, sha256, size_bytes, signature }) =
            &journal.task
        else {
            return None;
        };
        let AgentReplacement { program, timeout_seconds, .. } = &self.config.replace;
        let (program, state_dir) =
            (program.to_string_lossy(), self.config.state_dir.to_string_lossy());
        Some(crate::command::Command::new(&program).args([
            "upgrade",
            "--state-dir",
            &state_dir,
            "--program",
            &program,
            "--version",
            version.as_str(),
            "--sha256",
            sha256,
            "--size-bytes",
            &size_bytes.to_string(),
            "--signature",
            signature,
            "--timeout",
            &timeout_seconds.to_string(),
        ]))
    }

    /// Interprets the exit codes of a job's commands.
    fn interpret_exits(
        &self,
        journal: &Journal,
        act: Action,
        dir: &Path,
        exits: &[Exit],
    ) -> (ActionResult, Vec<Line>) {
        let job: Option<Job> = files::read_json(&dir.join("job.json")).unwrap_or(None);
        let commands = job.map(|job| job.commands).unwrap_or_default();
        let well = |(place, exit): (usize, &Exit)| match commands.get(place) {
            Some(command) => command.succeeded_with(exit.code),
            None => exit.code == Some(0),
        };
        let mut restarted = Vec::new();
        if act == Action::Restart {
            let units = journal.known.restarting.iter().zip(exits.iter().enumerate());
            restarted =
                units.filter(|(_, end)| well(*end)).map(|(unit, _)| unit.as_str().into()).collect();
        }
        let Some(place) = exits.iter().enumerate().position(|end| !well(end)) else {
            return (ActionResult::Well, restarted);
        };
        let exit = &exits[place];
        let output = files::tail(&dir.join("output"), DIAGNOSIS_BYTES);
        let program = commands.get(place).map(|c| c.program.as_str()).unwrap_or_default();
        let failure = match act {
            Action::PreInstall | Action::PostInstall | Action::PreReboot => Failure::new(
                FailureCode::HookFailed,
                format!("{program}: {}", exit_reason(exit, &output)),
            ),
            Action::Restart => {
                let unit =
                    journal.known.restarting.get(place).map(String::as_str).unwrap_or_default();
                let words = format!("cannot restart {unit}: {}", exit_reason(exit, &output));
                Failure::new(FailureCode::ServiceRestartFailed, words)
            }
            Action::UpgradeAgent => {
                let reason = exit_reason(exit, &output);
                let reason = reason.strip_prefix("fleetmend-agent: ").unwrap_or(&reason);
                Failure::new(FailureCode::AgentError, reason.to_owned())
            }
            Action::Reboot => {
                let words = format!("`{program}` failed: {}", exit_reason(exit, &output));
                Failure::new(FailureCode::RebootTimeout, words)
            }
            _ => match &exit.why {
                Some(why) if exit.code.is_none() && output.is_empty() => {
                    Failure::new(FailureCode::InstallFailed, why.as_str())
                }
                _ => self.backend().diagnose(exit.code, &output).into(),
            },
        };
        (ActionResult::Badly { exit: exit.code, failure }, restarted)
    }
}

/// Scans the packages and writes the package sets to disk for upload.
pub(super) fn scan(config: &WorkerConfig) -> Result<ScanReport, BackendError> {
    let mut installed = config.backend.installed()?;
    let mut pending = config.backend.pending(&installed)?;
    listing::sort(&mut installed);
    listing::sort(&mut pending);
    if let Some(memory) = config.backend.take_changed_cache() {
        // If the write fails, the same query runs again later.
        let _ = files::write(&super::query_cache_path(&config.state_dir), &memory);
    }
    let facts = config.host.facts(&*config.backend);
    let store = |bytes: Vec<u8>| -> io::Result<vocab::Digest> {
        let digest = vocab::Digest::compute(&bytes);
        let path = super::listing_path(&config.state_dir, digest);
        if !path.exists() {
            files::write(&path, &bytes)?;
        }
        Ok(digest)
    };
    Ok(ScanReport {
        installed: store(listing::encode(&installed)).map_err(write_error)?,
        pending: store(listing::encode(&pending)).map_err(write_error)?,
        at: (config.clock)(),
        facts,
    })
}

/// The outcome so far, as passed to hooks.
fn hook_outcome(journal: &Journal) -> &'static str {
    let installed = journal.known.acts.contains_key(&Action::Install);
    match (installed, super::outcome::install_failure(journal)) {
        (false, _) => "not_installed",
        (true, None) => "succeeded",
        (true, Some(_)) => "failed",
    }
}

/// Why a command failed: its last line of output, or its exit code.
fn exit_reason(exit: &Exit, output: &str) -> String {
    let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    match (&exit.why, exit.code, last) {
        (Some(why), _, "") => why.clone(),
        (Some(why), _, last) => format!("{why}: {last}"),
        (None, code, "") => format!("exit code {}", code.unwrap_or(-1)),
        (None, _, last) => last.to_owned(),
    }
}

fn install_of(journal: &Journal) -> Option<&Install> {
    match &journal.task {
        Task::Plan(install) => Some(install),
        task => task.install(),
    }
}

/// The order for exact versions, if it is one.
fn versions_of(journal: &Journal) -> Option<&InstallVersions> {
    match &journal.task {
        Task::InstallVersions(order) => Some(order),
        _ => None,
    }
}

fn choices_of(journal: &Journal) -> &[Choice] {
    journal.known.chosen.as_ref().map(|chosen| chosen.choices.as_slice()).unwrap_or_default()
}

fn write_error(error: io::Error) -> BackendError {
    if files::is_disk_full(&error) {
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
