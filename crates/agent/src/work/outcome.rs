//! Builds the result of an order. Pure.
//!
//! The packages in a result are the difference between two inventories, never what a package
//! manager reported about itself. An order succeeds only if the installed versions are the
//! requested ones.

use jiff::Timestamp;
use vocab::{FailureCode, Line, RebootPolicy};
use wire::agent::{InstallVersions, OrderResult, Outcome};

use super::failure::Failure;
use super::journal::{ActionResult, Journal, Task};
use super::select::{SkipReason, SkippedPackage};
use super::step::{Action, Facts};

/// How an order ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    Done,
    /// Withdrawn before anything was executed.
    Withdrawn,
    /// The server lists it as in progress, but this host has no record of it.
    Lost,
    Failed(Failure),
}

/// Why the host is not rebooted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRebootReason {
    /// The order was issued for an earlier boot, which has ended.
    OtherBoot,
    /// The order does not name the boot for which it was issued.
    NoBoot,
    /// Forbidden by the host limits.
    Limits(Line),
    /// The host cannot be rebooted.
    Host(Line),
}

impl NoRebootReason {
    /// Whether the reboot has already happened.
    pub fn has_rebooted(&self) -> bool {
        *self == NoRebootReason::OtherBoot
    }

    /// The reason as a message for people.
    pub fn to_message(&self) -> Line {
        match self {
            NoRebootReason::OtherBoot => {
                "no reboot: the host has already rebooted since the order was issued".into()
            }
            NoRebootReason::NoBoot => "no reboot: the order does not contain a boot id".into(),
            NoRebootReason::Limits(why) | NoRebootReason::Host(why) => {
                format!("no reboot: {why}").into()
            }
        }
    }
}

/// Why the host must not be rebooted, whatever the order requests.
pub fn no_reboot_reason(journal: &Journal, facts: &Facts) -> Option<NoRebootReason> {
    let boot_id = match &journal.task {
        Task::Install(install) => &install.boot_id,
        Task::InstallVersions(order) => &order.install.boot_id,
        Task::Reboot(reboot) => &reboot.boot_id,
        _ => return Some(NoRebootReason::NoBoot),
    };
    if boot_id.as_str().is_empty() {
        return Some(NoRebootReason::NoBoot);
    }
    if *boot_id != facts.boot_id {
        return Some(NoRebootReason::OtherBoot);
    }
    if let Some(why) = facts.active_limits.forbids_reboot() {
        return Some(NoRebootReason::Limits(why));
    }
    facts.may_reboot.clone().err().map(NoRebootReason::Host)
}

/// The failure for a package database that could not be repaired.
pub fn damage_failure(damage: &[Line]) -> Failure {
    let first: Vec<&str> = damage.iter().take(3).map(Line::as_str).collect();
    let more = damage.len().saturating_sub(3);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    Failure::new(
        FailureCode::PackageDbBroken,
        format!("the package database is damaged: {}{rest}", first.join("; ")),
    )
}

/// The failure for an action that was killed.
pub fn killed_failure(act: Action) -> Failure {
    let code = match act {
        Action::PreInstall | Action::PostInstall | Action::PreReboot => FailureCode::HookFailed,
        Action::Restart => FailureCode::ServiceRestartFailed,
        _ => FailureCode::InstallFailed,
    };
    Failure::new(code, format!("{} was killed before it finished", act.name()))
}

/// Why an installation that ran has failed; `None` if everything is as requested.
pub fn install_failure(journal: &Journal) -> Option<Failure> {
    let state = &journal.known;
    let verified = state.verified.as_ref()?;
    let installed = state.acts.get(&Action::Install)?;
    let diagnosed = match installed {
        ActionResult::Well => None,
        ActionResult::Badly { failure, .. } => Some(failure.clone()),
        ActionResult::Vanished => Some(killed_failure(Action::Install)),
    };
    let damage = state.damage.as_deref().unwrap_or_default();
    if let Some(failure) = &state.failure {
        return Some(failure.clone());
    }
    if !damage.is_empty() {
        return Some(match installed {
            ActionResult::Badly { failure, .. } => failure.clone(),
            _ => damage_failure(damage),
        });
    }
    if let Some(unmet) = verified.unmet.first() {
        return Some(
            diagnosed.unwrap_or_else(|| Failure::new(FailureCode::VerifyFailed, unmet.as_str())),
        );
    }
    // Everything is as requested, even if the package manager failed at first and was repaired.
    // Only the administrator's post-install hooks can still fail the order.
    match state.acts.get(&Action::PostInstall) {
        Some(ActionResult::Badly { failure, .. }) => Some(failure.clone()),
        Some(ActionResult::Vanished) => Some(killed_failure(Action::PostInstall)),
        _ => None,
    }
}

/// The result that is sent to the service and stored.
pub fn build_result(
    journal: &Journal,
    facts: &Facts,
    ending: Ending,
    now: Timestamp,
) -> OrderResult {
    let state = &journal.known;
    let (outcome, failure, message) = match ending {
        Ending::Withdrawn => (Outcome::Withdrawn, None, None),
        Ending::Lost => (
            Outcome::Unknown,
            Some(FailureCode::OrderLost),
            Some("the agent has no record of this order; what it changed is unknown".into()),
        ),
        Ending::Failed(failure) => {
            (Outcome::Failed, Some(failure.code), Some(failure.message.clone()))
        }
        Ending::Done => {
            let (outcome, message) = completed_outcome(journal);
            let gone = outcome == Outcome::Skipped && has_vanished_version(journal);
            (outcome, gone.then_some(FailureCode::VersionGone), message)
        }
    };
    let verified = state.verified.as_ref();
    let planned = matches!(journal.task, Task::Plan(_)) && outcome != Outcome::Failed;
    let exit = match state.acts.get(&Action::Install) {
        Some(ActionResult::Well) => Some(0),
        Some(ActionResult::Badly { exit, .. }) => *exit,
        Some(ActionResult::Vanished) | None => None,
    };
    OrderResult {
        order_id: journal.id,
        outcome,
        failure_code: failure,
        message,
        packages: match (verified, &state.resolved) {
            (Some(verified), _) => verified.moves.clone(),
            (None, Some(moves)) if planned => moves.clone(),
            _ => Vec::new(),
        },
        reboot_needed: matches!(&state.reboot_reasons, Some(Ok(reasons)) if !reasons.is_empty()),
        reboot_seconds: state.rebooting.as_ref().and_then(|rebooting| rebooting.seconds),
        exit,
        set_aside: verified.map(|verified| verified.set_aside.clone()).unwrap_or_default(),
        restarted: state.restarted.clone(),
        notes: notes(journal, facts),
        newer_available: state.chosen.as_ref().map(|c| c.newer.clone()).unwrap_or_default(),
        health: state.health.as_ref().map(|health| health.report.clone()),
        started_at: journal.started_at.unwrap_or(now),
        finished_at: now,
    }
}

/// The outcome of an order that ended without a failure.
fn completed_outcome(journal: &Journal) -> (Outcome, Option<Line>) {
    let state = &journal.known;
    match &journal.task {
        Task::Scan | Task::Refused(_) | Task::Lost { .. } => (Outcome::Succeeded, None),
        Task::Reboot(_) if state.rebooting.is_none() => {
            (Outcome::NoChange, Some(NoRebootReason::OtherBoot.to_message()))
        }
        Task::Reboot(_) => (Outcome::Succeeded, None),
        Task::UpgradeAgent(_) if !state.acts.contains_key(&Action::UpgradeAgent) => {
            (Outcome::NoChange, Some("the agent already has this version".into()))
        }
        Task::UpgradeAgent(_) => (Outcome::Succeeded, None),
        Task::RestartServices if state.restarting.is_empty() => (Outcome::NoChange, None),
        Task::RestartServices => (Outcome::Succeeded, None),
        Task::Plan(install)
        | Task::Install(install)
        | Task::InstallVersions(InstallVersions { install, .. }) => {
            let chosen = state.chosen.as_ref();
            if chosen.is_some_and(|chosen| !chosen.choices.is_empty()) {
                return (Outcome::Succeeded, None);
            }
            let passed = chosen.map(|chosen| chosen.passed.as_slice()).unwrap_or_default();
            if let Some(gone) = passed.iter().find(|passed| passed.is_version_gone()) {
                return (Outcome::Skipped, Some(gone.to_message()));
            }
            // An order for exact versions names every package.
            let named = |name: &str| {
                matches!(journal.task, Task::InstallVersions(_))
                    || install.packages.iter().any(|requested| requested.as_str() == name)
            };
            let blocked = passed.iter().find(|passed| {
                matches!(passed.why, SkipReason::Blocked(_) | SkipReason::Limits(_))
                    && named(&passed.name)
            });
            match blocked {
                Some(passed) => (Outcome::Skipped, Some(passed.to_message())),
                None => (
                    Outcome::NoChange,
                    passed.iter().find(|p| named(&p.name)).map(SkippedPackage::to_message),
                ),
            }
        }
    }
}

/// Whether a version that the order named is no longer available.
fn has_vanished_version(journal: &Journal) -> bool {
    let chosen = journal.known.chosen.as_ref();
    chosen.is_some_and(|chosen| chosen.passed.iter().any(SkippedPackage::is_version_gone))
}

/// Maximum number of notes in a result.
const NOTES_MAX: usize = 100;

/// A list of notes without duplicates, limited in length.
#[derive(Default)]
struct Notes(Vec<Line>);

impl Notes {
    fn add(&mut self, note: impl Into<Line>) {
        let note = note.into();
        if self.0.len() < NOTES_MAX && !self.0.contains(&note) {
            self.0.push(note);
        }
    }
}

/// Additional information for people, in the order in which it happened.
fn notes(journal: &Journal, facts: &Facts) -> Vec<Line> {
    let state = &journal.known;
    let mut notes = Notes::default();
    if let Some(first) = state.damage_before.first() {
        let mended = state.acts.contains_key(&Action::RepairBefore);
        let done = if mended { "repaired before installing" } else { "found damage" };
        notes.add(format!(
            "{done}: {} incomplete package operation(s), first: {first}",
            state.damage_before.len()
        ));
    }
    match state.acts.get(&Action::Install) {
        Some(ActionResult::Vanished) => notes.add(killed_failure(Action::Install).message),
        Some(ActionResult::Badly { failure, .. }) => notes.add(failure.message.clone()),
        Some(ActionResult::Well) | None => {}
    }
    if state.acts.contains_key(&Action::RepairAfter) {
        notes.add("repaired after installing: the installation left incomplete package operations");
    }
    for line in state.verified.iter().flat_map(|verified| &verified.unmet) {
        notes.add(line.clone());
    }
    for line in state.damage.iter().flatten() {
        notes.add(format!("still incomplete: {line}"));
    }
    if let Some(ActionResult::Badly { failure, .. }) = state.acts.get(&Action::PostInstall) {
        notes.add(failure.message.clone());
    }
    for passed in state.chosen.iter().flat_map(|chosen| &chosen.passed) {
        notes.add(passed.to_message());
    }
    for newer in state.chosen.iter().flat_map(|chosen| &chosen.newer) {
        notes.add(format!(
            "{}: {} was ordered, and {} is available",
            newer.name, newer.pinned, newer.available
        ));
    }
    if let Some(old) = &state.old_code {
        let units = old.units.iter().map(String::as_str);
        for name in units.chain(old.others.iter().map(Line::as_str)) {
            notes.add(format!("still runs outdated code: {name}"));
        }
    }
    if let Some(Err(why)) = &state.reboot_reasons {
        notes.add(format!("cannot determine whether a reboot is needed: {why}"));
    }
    if let Some(install) = journal.task.install()
        && state.rebooting.is_none()
        && wants_reboot(install.reboot, journal)
        && let Some(why) = no_reboot_reason(journal, facts)
    {
        notes.add(why.to_message());
    }
    notes.0
}

fn wants_reboot(policy: RebootPolicy, journal: &Journal) -> bool {
    let needed = matches!(&journal.known.reboot_reasons, Some(Ok(reasons)) if !reasons.is_empty());
    match policy {
        RebootPolicy::Always => true,
        RebootPolicy::IfRequired => needed,
        RebootPolicy::Never | RebootPolicy::ServicesOnly => false,
    }
}
