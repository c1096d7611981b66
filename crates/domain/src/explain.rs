//! Explains why an update or a CVE on one server is not patched.
//!
//! Pure: facts in, an explanation out. `service::queries::explain` collects the facts. Every reason
//! says what is the case and what a person can do about it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use vocab::{
    BatchId, BlockedBy, Exposure, FailureCode, FixState, PackagePattern, PatchState, ReasonCode,
    ScheduleId,
};

#[cfg(test)]
mod tests;

/// Everything that the explanation depends on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    pub host: HostState,
    /// The pending updates in question.
    pub updates: Vec<UpdateFacts>,
    /// The findings in question.
    pub findings: Vec<FindingFacts>,
    /// Unfinished tasks of this server.
    pub tasks: Vec<OpenTask>,
    /// The newest attempt that would have installed one of the updates, if it failed.
    pub failed: Option<FailedAttempt>,
    /// The schedules that select this server.
    pub schedules: Vec<ScheduleFacts>,
}

/// The state of the server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostState {
    /// It reported its packages at least once.
    pub scanned: bool,
    /// The time of its last scan, if that is too long ago.
    pub stale_since: Option<Timestamp>,
    /// When it was last heard from, if it is offline.
    pub offline_since: Option<Timestamp>,
    pub quarantine: Option<String>,
    /// Why it allows scans only.
    pub limits_error: Option<String>,
    pub frozen: bool,
    pub security_only: bool,
    pub exclude: Vec<PackagePattern>,
    /// When it allows changes; empty: always.
    pub allowed_hours: Vec<String>,
    pub reboot_required: bool,
    /// Services and processes that run replaced code of the packages in question.
    pub old_code: Vec<String>,
}

/// A pending update.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateFacts {
    pub package: String,
    pub available: String,
    pub security: bool,
    pub blocked_by: Option<BlockedBy>,
}

/// A CVE in a package.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingFacts {
    pub cve: String,
    pub package: String,
    pub fix: FixState,
    pub fixed_version: Option<String>,
    pub exposure: Exposure,
    /// The origin of the package, if that is not the distribution.
    pub third_party: Option<String>,
    /// The reason that a user gave for suppressing it.
    pub suppressed: Option<String>,
    /// Whether one of the pending updates closes it.
    pub has_update: bool,
}

/// An unfinished task.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenTask {
    pub batch: BatchId,
    pub name: String,
    /// Whether it installs the update, for each of [`Facts::updates`].
    pub installs: Vec<bool>,
    /// Why it has not started; `None` if it has.
    pub waits: Option<String>,
}

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedAttempt {
    pub batch: BatchId,
    pub name: String,
    pub code: Option<FailureCode>,
    pub message: Option<String>,
}

/// A schedule that selects the server.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleFacts {
    pub id: ScheduleId,
    pub name: String,
    /// The next run; `None` if it is disabled or never runs again.
    pub next: Option<Timestamp>,
    /// What its order does with the update, for each of [`Facts::updates`].
    pub effects: Vec<Effect>,
}

/// What the order of a schedule does with an update.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    Installs,
    /// Only simulates.
    DryRun,
    Excludes,
    /// Selects other packages.
    OtherPackages,
    /// Selects security updates, and this is none.
    SecurityOnly,
    /// The host would reject the order, for this reason.
    Rejected(String),
    /// The update is blocked on the host.
    Blocked,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub state: PatchState,
    /// The most important first.
    pub reasons: Vec<Reason>,
    /// The run that will install it.
    pub next: Option<NextRun>,
    /// The batch that installs it.
    pub batch: Option<BatchId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    pub code: ReasonCode,
    /// What is the case, as a sentence.
    pub detail: String,
    /// What a person can do about it, as a sentence.
    pub remedy: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRun {
    pub schedule: ScheduleId,
    pub name: String,
    pub at: Timestamp,
}

/// The maximum number of schedules that are named as reasons.
const SCHEDULES_MAX: usize = 5;

/// Explains the facts.
pub fn explain(facts: &Facts) -> Explanation {
    if !facts.host.scanned {
        let mut reasons = vec![Reason::new(
            ReasonCode::NotScanned,
            "The server has not reported its packages yet.",
            "Wait for its first scan, or request one: `fleetmend servers refresh`.",
        )];
        reasons.extend(unreachable_reasons(&facts.host));
        return Explanation { state: PatchState::Unknown, reasons, next: None, batch: None };
    }
    let mut parts: Vec<Part> = Vec::new();
    parts.extend((0..facts.updates.len()).map(|place| explain_update(facts, place)));
    let without_update = facts.findings.iter().filter(|finding| !finding.has_update);
    parts.extend(without_update.map(|finding| explain_finding(finding, &facts.host)));
    if parts.is_empty() && !facts.host.old_code.is_empty() {
        parts.push(waits_for_restart(&facts.host));
    }
    // The part that needs most attention determines the state.
    parts.sort_by_key(|part| std::cmp::Reverse(part.state));
    let mut state = parts.first().map_or(PatchState::UpToDate, |part| part.state);
    let batch = parts.iter().find_map(|part| part.batch);
    let next = latest_run(&parts);
    let mut reasons: Vec<Reason> = parts.into_iter().flat_map(|part| part.reasons).collect();
    for finding in &facts.findings {
        reasons.extend(finding.suppressed.as_ref().map(|why| {
            Reason::new(
                ReasonCode::Suppressed,
                end_sentence(format!("{} is suppressed: {why}", finding.cve)),
                "End the suppression if the reason no longer applies.",
            )
        }));
    }
    if let Some(at) = facts.host.stale_since {
        reasons.push(Reason::new(
            ReasonCode::StaleScan,
            format!("The last scan was at {at}; the packages may have changed since."),
            "Check the agent on the host, or request a scan: `fleetmend servers refresh`.",
        ));
        // A server that was not scanned lately is not known to be up to date.
        if state == PatchState::UpToDate {
            state = PatchState::Unknown;
        }
    }
    deduplicate(&mut reasons);
    Explanation { state, reasons, next, batch }
}

/// The explanation of one update, or of one finding without an update.
struct Part {
    state: PatchState,
    reasons: Vec<Reason>,
    next: Option<NextRun>,
    batch: Option<BatchId>,
}

impl Part {
    fn new(state: PatchState, reasons: Vec<Reason>) -> Part {
        Part { state, reasons, next: None, batch: None }
    }
}

impl Reason {
    fn new(code: ReasonCode, detail: impl Into<String>, remedy: impl Into<String>) -> Reason {
        Reason { code, detail: detail.into(), remedy: remedy.into() }
    }
}

fn explain_update(facts: &Facts, place: usize) -> Part {
    let update = &facts.updates[place];
    let installs = |task: &&OpenTask| task.installs.get(place).copied().unwrap_or(false);
    let tasks: Vec<&OpenTask> = facts.tasks.iter().filter(installs).collect();
    if let Some(running) = tasks.iter().find(|task| task.waits.is_none()) {
        let detail = format!("The batch \"{}\" is installing it now.", running.name);
        let reason = Reason::new(ReasonCode::Installing, detail, "Wait for the result.");
        return Part {
            batch: Some(running.batch),
            ..Part::new(PatchState::InProgress, vec![reason])
        };
    }
    let mut reasons = unreachable_reasons(&facts.host);
    reasons.extend(host_reasons(&facts.host, update));
    reasons.extend(blocked_reason(update));
    let blocked = !reasons.is_empty();
    reasons.extend(facts.failed.as_ref().map(failed_reason));
    if let Some(task) = tasks.first() {
        let waits = task.waits.as_deref().unwrap_or_default();
        reasons.push(Reason::new(
            ReasonCode::Waiting,
            format!("The batch \"{}\" will install it. It waits for {waits}.", task.name),
            "Wait, or change the batch.",
        ));
        let state = if blocked { PatchState::Blocked } else { PatchState::InProgress };
        return Part { batch: Some(task.batch), ..Part::new(state, reasons) };
    }
    let next = next_run(facts, place);
    if next.is_some() && !facts.host.allowed_hours.is_empty() {
        reasons.push(Reason::new(
            ReasonCode::HostHours,
            format!("The host allows changes only {}.", facts.host.allowed_hours.join("; ")),
            "Check that the schedule runs within these hours; they are set in limits.toml.",
        ));
    }
    if next.is_none() {
        reasons.extend(schedule_reasons(facts, place));
    }
    let state = match (blocked, &next) {
        (true, _) => PatchState::Blocked,
        (false, Some(_)) => PatchState::Scheduled,
        (false, None) => PatchState::Unscheduled,
    };
    Part { next, ..Part::new(state, reasons) }
}

/// Why the server gets no orders now.
fn unreachable_reasons(host: &HostState) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if let Some(why) = &host.quarantine {
        reasons.push(Reason::new(
            ReasonCode::Quarantined,
            format!("The server is in quarantine and gets no orders: {why}"),
            "Find out which host is genuine, and release it: `fleetmend servers release`.",
        ));
    }
    if let Some(at) = host.offline_since {
        reasons.push(Reason::new(
            ReasonCode::Offline,
            format!("The server is offline; it was last heard from at {at}."),
            "Check the host, its network and its agent.",
        ));
    }
    reasons
}

/// Why the limits of the host prevent an update.
fn host_reasons(host: &HostState, update: &UpdateFacts) -> Vec<Reason> {
    const FILE: &str = "Change limits.toml on the host.";
    if let Some(error) = &host.limits_error {
        let detail = format!("limits.toml on the host cannot be used: {error}");
        let remedy = "Correct limits.toml on the host.";
        return vec![Reason::new(ReasonCode::HostLimitsUnusable, detail, remedy)];
    }
    let mut reasons = Vec::new();
    if host.frozen {
        let detail = "The host allows no changes: `frozen` is set in limits.toml.";
        reasons.push(Reason::new(ReasonCode::HostFrozen, detail, FILE));
    }
    if let Some(pattern) = host.exclude.iter().find(|out| out.matches(&update.package)) {
        let detail = format!("limits.toml on the host excludes {} (`{pattern}`).", update.package);
        reasons.push(Reason::new(ReasonCode::ExcludedByHost, detail, FILE));
    } else if update.blocked_by == Some(BlockedBy::Excluded) {
        let detail = format!("The host excludes {}.", update.package);
        reasons.push(Reason::new(ReasonCode::ExcludedByHost, detail, FILE));
    }
    if host.security_only && !update.security {
        let detail = "The host allows security updates only, and this is none.";
        reasons.push(Reason::new(ReasonCode::HostSecurityOnly, detail, FILE));
    }
    reasons
}

fn blocked_reason(update: &UpdateFacts) -> Option<Reason> {
    let UpdateFacts { package, available, .. } = update;
    Some(match update.blocked_by? {
        BlockedBy::Held => Reason::new(
            ReasonCode::Held,
            format!("The package manager of the host holds {package}."),
            "Remove the hold on the host (for example `apt-mark unhold`) if it is no longer needed.",
        ),
        BlockedBy::Phased => Reason::new(
            ReasonCode::Phased,
            format!(
                "The distribution rolls out {package} {available} in phases, and this host's phase has not started."
            ),
            "Wait: the package manager offers it when the phase of this host starts.",
        ),
        BlockedBy::KeptBack => Reason::new(
            ReasonCode::KeptBack,
            format!(
                "The package manager keeps {package} back: the update needs a removal, or its dependencies cannot be resolved."
            ),
            "Resolve it on the host with the package manager; its dry run names the conflict.",
        ),
        BlockedBy::Pinned => Reason::new(
            ReasonCode::Pinned,
            format!("A pin on the host prefers another version of {package} than {available}."),
            "Change the pin on the host if it is no longer needed.",
        ),
        // `host_reasons` explains it.
        BlockedBy::Excluded => return None,
    })
}

fn failed_reason(failed: &FailedAttempt) -> Reason {
    let cause = match (&failed.message, failed.code) {
        (Some(message), _) => end_sentence(message.clone()),
        (None, Some(code)) => format!("{code}."),
        (None, None) => "no reason was reported.".to_owned(),
    };
    Reason::new(
        ReasonCode::LastAttemptFailed,
        format!("The last attempt, in the batch \"{}\", failed: {cause}", failed.name),
        failed.code.map_or("Read the log of the task.", FailureCode::remedy),
    )
}

/// The first run that installs the update.
fn next_run(facts: &Facts, place: usize) -> Option<NextRun> {
    let installs = |one: &&ScheduleFacts| one.effects.get(place) == Some(&Effect::Installs);
    let runs = facts.schedules.iter().filter(installs);
    let runs = runs.filter_map(|one| Some((one.next?, one)));
    let (at, one) = runs.min_by_key(|(at, one)| (*at, one.id))?;
    Some(NextRun { schedule: one.id, name: one.name.clone(), at })
}

/// Why no schedule installs the update.
fn schedule_reasons(facts: &Facts, place: usize) -> Vec<Reason> {
    let package = &facts.updates[place].package;
    if facts.schedules.is_empty() {
        let detail = "No schedule selects this server.";
        let remedy = "Create a schedule for it, or patch it now.";
        return vec![Reason::new(ReasonCode::NoSchedule, detail, remedy)];
    }
    let reason = |one: &ScheduleFacts| {
        let name = &one.name;
        Some(match one.effects.get(place)? {
            Effect::Installs => Reason::new(
                ReasonCode::ScheduleDisabled,
                format!("The schedule \"{name}\" would install it, but has no next run."),
                "Enable the schedule, or change its times.",
            ),
            Effect::DryRun => Reason::new(
                ReasonCode::ScheduleDryRun,
                format!("The schedule \"{name}\" only simulates (`dry_run`)."),
                "Turn off `dry_run` in the schedule.",
            ),
            Effect::Excludes => Reason::new(
                ReasonCode::ExcludedBySchedule,
                format!("The schedule \"{name}\" excludes {package}."),
                "Remove the package from `exclude` of the schedule, or patch the server now.",
            ),
            Effect::OtherPackages => Reason::new(
                ReasonCode::NotInSchedule,
                format!("The schedule \"{name}\" installs other packages only."),
                "Add the package to the schedule, or patch the server now.",
            ),
            Effect::SecurityOnly => Reason::new(
                ReasonCode::ScheduleSecurityOnly,
                format!(
                    "The schedule \"{name}\" installs security updates only, and this is none."
                ),
                "Use a schedule for all updates, or patch the server now.",
            ),
            Effect::Rejected(why) => Reason::new(
                ReasonCode::ScheduleRejectedByHost,
                format!("The host would reject the order of the schedule \"{name}\": {why}"),
                "Change the schedule, or limits.toml on the host.",
            ),
            // The reason why it is blocked is given elsewhere.
            Effect::Blocked => return None,
        })
    };
    facts.schedules.iter().filter_map(reason).take(SCHEDULES_MAX).collect()
}

/// A finding that no pending update closes.
fn explain_finding(finding: &FindingFacts, host: &HostState) -> Part {
    if finding.exposure == Exposure::FixedOnDisk {
        return waits_for_restart(host);
    }
    let package = &finding.package;
    let what = &finding.cve;
    if let Some(origin) = &finding.third_party {
        let detail = format!(
            "{package} comes from {origin}; the distribution's advisories do not cover it, so it is unknown whether {what} applies."
        );
        let remedy = "Ask the publisher of the package.";
        return Part::new(
            PatchState::Unknown,
            vec![Reason::new(ReasonCode::ThirdParty, detail, remedy)],
        );
    }
    const OTHERWISE: &str =
        "Replace or isolate the package, or suppress the CVE if it does not matter here.";
    let (state, code, detail, remedy) = match finding.fix {
        FixState::Fixed => {
            let version = finding.fixed_version.as_deref().unwrap_or("a later version");
            let detail = format!(
                "{package} {version} fixes {what}, but the repositories of the host do not offer it."
            );
            let remedy = "Check that the host's repositories are complete and current: the security repository, the mirror, and the release.";
            (PatchState::NoFix, ReasonCode::RepositoryHasNoFix, detail, remedy)
        }
        FixState::Affected => {
            let detail =
                format!("The distribution has not published a fix of {what} in {package}.");
            (PatchState::NoFix, ReasonCode::NoFixYet, detail, OTHERWISE)
        }
        FixState::Deferred => {
            let detail = format!(
                "The distribution defers the fix of {what} to a later update of {package}."
            );
            (PatchState::NoFix, ReasonCode::FixDeferred, detail, OTHERWISE)
        }
        FixState::WontFix => {
            let detail =
                format!("The distribution will not fix {what} in {package} of this release.");
            (PatchState::NoFix, ReasonCode::WontFix, detail, OTHERWISE)
        }
        FixState::EndOfLife => {
            let detail = format!("The distribution no longer supports {package} in this release.");
            let remedy = "Upgrade the release, or replace the package.";
            (PatchState::NoFix, ReasonCode::EndOfLife, detail, remedy)
        }
        FixState::Subscription => {
            let detail =
                format!("The fix of {what} in {package} is available to subscribers only.");
            let remedy = "Subscribe the host, or replace the package.";
            (PatchState::NoFix, ReasonCode::Subscription, detail, remedy)
        }
        FixState::NotAffected | FixState::Unimportant => {
            return Part::new(PatchState::UpToDate, Vec::new());
        }
        FixState::Unknown => {
            let detail = format!("It is unknown whether {what} affects this version of {package}.");
            let remedy = "Read the advisory.";
            (PatchState::Unknown, ReasonCode::UnknownFix, detail, remedy)
        }
    };
    Part::new(state, vec![Reason::new(code, detail, remedy)])
}

fn waits_for_restart(host: &HostState) -> Part {
    let mut reasons = Vec::new();
    if !host.old_code.is_empty() {
        let shown: Vec<&str> = host.old_code.iter().take(10).map(String::as_str).collect();
        let more = host.old_code.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        reasons.push(Reason::new(
            ReasonCode::RestartServices,
            format!("The old code still runs in {}{more}.", shown.join(", ")),
            "Restart these programs, or patch the server with `reboot: services_only`.",
        ));
    }
    if host.reboot_required || reasons.is_empty() {
        reasons.push(Reason::new(
            ReasonCode::RebootRequired,
            "The server must be rebooted to run the new code.",
            "Reboot the server, or patch it with `reboot: if_required`.",
        ));
    }
    Part::new(PatchState::WaitingForRestart, reasons)
}

/// When the last of the parts is installed, if every part that needs an update has a run.
fn latest_run(parts: &[Part]) -> Option<NextRun> {
    let open = parts
        .iter()
        .filter(|part| !matches!(part.state, PatchState::UpToDate | PatchState::WaitingForRestart));
    let runs: Option<Vec<&NextRun>> = open.map(|part| part.next.as_ref()).collect();
    runs?.into_iter().max_by_key(|run| (run.at, run.schedule)).cloned()
}

fn end_sentence(text: String) -> String {
    if text.ends_with(['.', '!', '?']) { text } else { format!("{text}.") }
}

fn deduplicate(reasons: &mut Vec<Reason>) {
    let mut seen = BTreeSet::new();
    reasons.retain(|reason| seen.insert((reason.code, reason.detail.clone())));
}
