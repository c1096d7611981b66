//! Converts database rows and domain states to the API types of `wire`: servers, schedules, runs,
//! batches and patches.
//!
//! All matches are exhaustive, so that adding a state fails to compile until someone decides what
//! clients see.

use std::collections::BTreeMap;

use domain::rollout::{
    HaltReason, Phase, RolloutHead, RolloutOutcome, TaskOutcome, TaskSkipReason, TaskStatus,
    WaitReason,
};
use domain::server::Presence;
use jiff::Timestamp;
use serde_json::Value;
use store::StoreError;
use store::batches::ServerName;
use store::patches::Patch;
use store::rollout_tasks::TaskResult as StoredTask;
use store::rollouts::WaveCounts as StoredWaveCounts;
use store::runs;
use vocab::{
    Environment, Exposure, FailureCode, FixState, HealthMode, Hostname, Line, Severity, Stage,
    Status,
};
use wire::agent::{AgentUpgrade, is_older_version};
use wire::v1::{
    Activity, BatchState, BatchWave, BatchWaveState, CveState, Fix, HaltCode, HealthProblem,
    OldCode, Options, Origin, PackageChange, PatchVersion, Progress, Reboot, RunState,
    SeverityCounts, Summary, Suppressed, Task, TaskHealth, TaskResult, TaskState, Trigger,
    UnassessedPackage, WaitingFor, WaveCounts, WaveHealth,
};

use super::tasks::TaskSpan;
use crate::projections::findings::{ActiveSuppressions, ScoredFinding, ServerAssessment};
use crate::{App, PatchOptions, Result, host_facts};

/// Whether a server that was last seen at this time is online.
pub fn status(app: &App, last_seen: Option<Timestamp>) -> Status {
    Presence { last_seen, sync_seconds: app.settings.sync_seconds }.status(app.clock.now())
}

/// A server with its CVE counts, as in lists.
pub fn server(
    app: &App,
    row: store::servers::Server,
    assessed: &ServerAssessment,
) -> wire::v1::Server {
    let line = |text: &str| (!text.is_empty()).then(|| Line::sanitize(text));
    let kept = host_facts::from_stored(&row.facts);
    wire::v1::Server {
        id: row.id,
        status: status(app, Some(row.last_seen_at)),
        hostname: row.hostname,
        display_name: row.display_name.as_deref().map(Line::sanitize),
        notes: row.notes,
        environment: row.environment,
        tags: row.tags,
        os: Some(row.os),
        kernel: line(&row.kernel),
        arch: line(&row.arch),
        package_manager: row.package_manager,
        agent_version: line(&row.agent_version),
        agent_outdated: agent_outdated(app, &row.arch, &row.agent_version),
        last_seen_at: Some(row.last_seen_at),
        enrolled_at: row.enrolled_at,
        stale: row.last_scan_at.is_some_and(|at| at < app.stale_before()),
        last_scan_at: row.last_scan_at,
        assessment: assessed.assessment,
        reboot_required: row.reboot_required,
        reboot_reasons: row.reboot_reasons.iter().map(|reason| Line::sanitize(reason)).collect(),
        activity: activity(&row.activity),
        other_updaters: kept.other_updaters,
        limits: kept.limits,
        quarantine: row.quarantine.as_deref().map(Line::sanitize),
        summary: Summary {
            packages: row.packages,
            updates: row.updates,
            security_updates: row.security_updates,
            cves: severities(&assessed.cves),
            unassessed: assessed.unassessed,
        },
    }
}

/// Whether an agent is older than the one that this service carries for its architecture.
pub fn agent_outdated(app: &App, arch: &str, version: &str) -> Option<bool> {
    let release = app.settings.agents.get(arch.parse().ok()?)?;
    Some(is_older_version(version, &release.version))
}

/// The upgrade of an agent.
pub fn agent_upgrade(row: store::refreshes::Refresh) -> Option<wire::v1::AgentUpgradeStatus> {
    let upgrade: AgentUpgrade = serde_json::from_str(row.upgrade.as_deref()?).ok()?;
    let wire::v1::Refresh { state, requested_at, completed_at, message, .. } = refresh(row);
    let version = upgrade.version;
    Some(wire::v1::AgentUpgradeStatus { version, state, requested_at, completed_at, message })
}

/// A package that could not be assessed.
pub fn unassessed(one: domain::finding::Unassessed) -> UnassessedPackage {
    let domain::finding::Unassessed { package, version, reason } = one;
    let version = Some(version).filter(|version| !version.is_empty());
    UnassessedPackage { package, version, reason: reason.code(), detail: reason.to_string() }
}

/// A process or service that runs outdated code.
pub fn old_code(old_code: wire::agent::OldCode) -> OldCode {
    OldCode { package: old_code.package, unit: old_code.unit, process: old_code.process }
}

/// The suppression of a finding.
pub fn suppressed(by: &store::suppressions::Suppression) -> Suppressed {
    Suppressed { suppression_id: by.id, reason: by.reason.clone(), until: by.expires_at }
}

/// A finding of a server in this environment.
pub fn cve(
    exposed: &ScoredFinding,
    suppressions: &ActiveSuppressions,
    environment: Option<&Environment>,
) -> wire::v1::Cve {
    let ScoredFinding { server_finding: settled, exploited, epss, manager_agrees } = exposed;
    let finding = &settled.finding;
    let mut found = finding.explanation();
    if *manager_agrees {
        found.push_str("; the host's package manager reports the same CVE for the pending update");
    }
    wire::v1::Cve {
        id: finding.cve.to_string(),
        aliases: finding.aliases.iter().map(ToString::to_string).collect(),
        severity: finding.severity,
        severity_source: finding.severity_source.as_ref().map(ToString::to_string),
        cvss: finding.cvss.as_ref().map(|score| score.score()),
        package: finding.package.source.clone(),
        installed_version: finding.package.version.clone(),
        fixed_version: finding.fixed_version.as_ref().map(ToString::to_string),
        state: cve_state(settled.exposure),
        fix: fix(finding.state),
        found,
        kev: exploited.is_some(),
        epss: epss.as_ref().map(domain::advisory::Epss::score),
        published: finding.published,
        suppressed: suppressions
            .covering(environment, &finding.cve, &finding.package.source)
            .map(suppressed),
    }
}

pub fn cve_state(exposure: Exposure) -> CveState {
    match exposure {
        Exposure::Open => CveState::Open,
        Exposure::FixedOnDisk => CveState::FixedOnDisk,
    }
}

fn fix(state: FixState) -> Fix {
    match state {
        FixState::Fixed => Fix::Fixed,
        FixState::Affected => Fix::Affected,
        FixState::Deferred => Fix::Deferred,
        FixState::WontFix => Fix::WontFix,
        FixState::NotAffected => Fix::NotAffected,
        FixState::Unimportant => Fix::Unimportant,
        FixState::EndOfLife => Fix::EndOfLife,
        FixState::Subscription => Fix::Subscription,
        FixState::Unknown => Fix::Unknown,
    }
}

fn activity(word: &str) -> Activity {
    match word {
        "scanning" => Activity::Scanning,
        "patching" => Activity::Patching,
        "rebooting" => Activity::Rebooting,
        _ => Activity::Idle,
    }
}

/// The number of CVEs by severity.
pub fn severities(counts: &BTreeMap<Severity, u32>) -> SeverityCounts {
    let count = |severity| counts.get(&severity).copied().unwrap_or(0);
    SeverityCounts {
        critical: count(Severity::Critical),
        high: count(Severity::High),
        medium: count(Severity::Medium),
        low: count(Severity::Low),
        unknown: count(Severity::Unknown),
    }
}

pub fn refresh(row: store::refreshes::Refresh) -> wire::v1::Refresh {
    use store::refreshes::RefreshState as Stored;
    use wire::v1::RefreshState;
    wire::v1::Refresh {
        id: row.id,
        server_id: row.server_id,
        state: match row.state {
            Stored::Requested => RefreshState::Pending,
            Stored::Succeeded => RefreshState::Completed,
            Stored::Failed => RefreshState::Failed,
            Stored::TimedOut => RefreshState::TimedOut,
            Stored::Canceled => RefreshState::Canceled,
        },
        requested_at: row.requested_at,
        deadline_at: row.deadline,
        completed_at: row.ended_at,
        message: row.message.as_deref().map(Line::sanitize),
    }
}

/// Reads stored options, and converts them to the API type.
pub fn stored_options(
    table: &'static str,
    id: impl ToString,
    stored: &Value,
) -> Result<(PatchOptions, Options)> {
    let options = PatchOptions::from_json(stored).map_err(|source| StoreError::Corrupt {
        table,
        id: id.to_string(),
        source: source.into(),
    })?;
    let shown = self::options(&options);
    Ok((options, shown))
}

/// Converts options to the API type.
pub fn options(options: &PatchOptions) -> Options {
    let PatchOptions { order, pace } = options.clone();
    Options {
        packages: order.packages,
        exclude: order.exclude,
        security_only: order.security_only,
        reboot: order.reboot,
        stagger_minutes: pace.stagger_minutes,
        max_parallel: pace.max_parallel,
        canary: pace.canary.unwrap_or(vocab::Portion::Count(0)),
        waves: pace.waves,
        max_failures: pace.max_failures,
        window_minutes: pace.window_minutes,
        override_freeze: pace.override_freeze,
        pin_versions: pace.pin_versions,
        health: pace.health,
        max_unhealthy: pace.max_unhealthy.unwrap_or(vocab::Portion::Count(0)),
        dry_run: order.dry_run,
    }
}

/// Warnings about a pace that probably does not have the intended effect for this number of
/// servers.
pub fn warnings(options: &PatchOptions, servers: u64) -> Vec<String> {
    let mut warnings = window_warnings(options, servers);
    if options.pace.max_unhealthy.is_some() && options.pace.health != HealthMode::Gate {
        warnings.push("`max_unhealthy` has no effect without `health: gate`".to_owned());
    }
    warnings
}

fn window_warnings(options: &PatchOptions, servers: u64) -> Vec<String> {
    let total = u32::try_from(servers).unwrap_or(u32::MAX);
    let (span, Some(window)) = (options.pace.min_duration(total), options.pace.window_minutes)
    else {
        return Vec::new();
    };
    let minutes = span.as_mins();
    if minutes <= i64::from(window) {
        return Vec::new();
    }
    let soaks = match options.pace.soak(total).is_zero() {
        true => "",
        false => ", with the soaks of its waves",
    };
    vec![format!(
        "starting {total} servers takes {minutes} minutes at this pace{soaks}, but the window closes after {window} minutes: \
         servers that would start later are skipped"
    )]
}

pub fn batch_state(phase: Phase) -> BatchState {
    match phase {
        Phase::Scheduled => BatchState::Scheduled,
        Phase::Running => BatchState::Running,
        Phase::AwaitingApproval => BatchState::AwaitingApproval,
        Phase::Paused | Phase::Halted(HaltReason::FleetWideDegradation { .. }) => {
            BatchState::Paused
        }
        Phase::Halted(_) => BatchState::Halted,
        Phase::Canceling => BatchState::Canceling,
        Phase::Ended(RolloutOutcome::Succeeded) => BatchState::Succeeded,
        Phase::Ended(RolloutOutcome::CompletedWithErrors) => BatchState::CompletedWithErrors,
        Phase::Ended(RolloutOutcome::Failed) => BatchState::Failed,
        Phase::Ended(RolloutOutcome::Canceled) => BatchState::Canceled,
        Phase::Ended(RolloutOutcome::Expired) => BatchState::Expired,
    }
}

pub fn halt_reason(phase: Phase) -> Option<String> {
    match phase {
        Phase::Halted(HaltReason::CanaryFailed) => Some("a canary server failed".into()),
        Phase::Halted(HaltReason::TooManyFailures) => {
            Some("the failure limit (`max_failures`) was reached".into())
        }
        // `server_health::halt_reason` names the servers.
        Phase::Halted(
            HaltReason::HealthDegraded { .. }
            | HaltReason::HealthUnknown { .. }
            | HaltReason::FleetWideDegradation { .. },
        )
        | Phase::Scheduled
        | Phase::Running
        | Phase::AwaitingApproval
        | Phase::Paused
        | Phase::Canceling
        | Phase::Ended(_) => None,
    }
}

pub fn halt_code(phase: Phase) -> Option<HaltCode> {
    match phase {
        Phase::Halted(reason) => Some(crate::commands::batches::halt_code(reason).0),
        Phase::Scheduled
        | Phase::Running
        | Phase::AwaitingApproval
        | Phase::Paused
        | Phase::Canceling
        | Phase::Ended(_) => None,
    }
}

/// The last known health of a task's server.
fn task_health(row: &StoredTask) -> Option<TaskHealth> {
    let health = row.health.as_ref()?;
    let problem = |problem: &domain::rollout::HealthProblem| HealthProblem {
        kind: problem.kind,
        name: problem.name.clone(),
        description: super::server_health::describe_problem(problem),
    };
    Some(TaskHealth {
        state: health.state,
        problems: health.problems.iter().map(problem).collect(),
        not_measured: health.not_measured.clone(),
        after_change: health.changed,
        after_soak: health.soaked,
        reported_at: health.reported_at,
    })
}

/// The waves of a batch over `total` servers.
pub fn waves(head: &RolloutHead, total: u32, counts: &StoredWaveCounts) -> Vec<BatchWave> {
    let limits = head.pace.limits(total);
    let of_wave = |(index, wave): (u32, &domain::rollout::WaveLimits)| {
        let number = index + 1;
        let approval = head.waves.approval(index);
        let is_current = head.waves.current == index;
        let soak_until = head
            .waves
            .ended_at
            .filter(|_| is_current)
            .map(|ended_at| ended_at.saturating_add(wave.soak).unwrap_or(Timestamp::MAX));
        let state = match head.phase {
            _ if index < head.waves.current => BatchWaveState::Passed,
            _ if !is_current => BatchWaveState::Pending,
            Phase::Scheduled => BatchWaveState::Pending,
            Phase::Ended(_) => BatchWaveState::Ended,
            Phase::AwaitingApproval => BatchWaveState::AwaitingApproval,
            Phase::Running | Phase::Paused | Phase::Halted(_) | Phase::Canceling => {
                match soak_until {
                    Some(_) => BatchWaveState::Soaking,
                    None => BatchWaveState::Running,
                }
            }
        };
        BatchWave {
            number,
            size: wave.servers,
            state,
            soak_minutes: u32::try_from(wave.soak.as_mins()).unwrap_or(u32::MAX),
            soak_until: soak_until.filter(|_| state == BatchWaveState::Soaking),
            approval: wave.approval,
            approved_by: approval.map(|approval| approval.by.clone()),
            approved_at: approval.map(|approval| approval.at),
            comment: approval.and_then(|approval| approval.comment.clone()),
            servers: counts.get(&number).map(wave_counts).unwrap_or_default(),
            health: counts.get(&number).map(wave_health).unwrap_or_default(),
            max_unhealthy: wave.unhealthy,
        }
    };
    (0_u32..).zip(limits.waves()).map(of_wave).collect()
}

fn wave_counts(counts: &BTreeMap<String, u64>) -> WaveCounts {
    let count = |word: &str| counts.get(word).map_or(0, |n| u32::try_from(*n).unwrap_or(u32::MAX));
    WaveCounts {
        in_progress: Stage::ALL.iter().map(|stage| count(stage.as_str())).sum(),
        succeeded: count("succeeded"),
        no_change: count("no_change"),
        failed: count("failed") + count("timed_out"),
        skipped: count("skipped") + count("canceled"),
    }
}

fn wave_health(counts: &BTreeMap<String, u64>) -> WaveHealth {
    let count = |word: &str| counts.get(word).map_or(0, |n| u32::try_from(*n).unwrap_or(u32::MAX));
    let (healthy, degraded) = (count("health.healthy"), count("health.degraded"));
    let not_measured = count("health.not_measured");
    let changed = count("succeeded");
    let known = healthy + degraded + not_measured;
    WaveHealth { healthy, degraded, not_measured, unknown: changed.saturating_sub(known) }
}

/// The interface through which a batch was created.
pub fn origin(word: &str) -> Origin {
    match word {
        "schedule" => Origin::Schedule,
        "dashboard" => Origin::Dashboard,
        _ => Origin::Api,
    }
}

pub fn progress(counts: &BTreeMap<String, u64>, phase: Phase) -> Progress {
    let count = |word: &str| counts.get(word).map_or(0, |n| u32::try_from(*n).unwrap_or(u32::MAX));
    let not_started = count("waiting");
    let (pending, waiting) =
        if phase == Phase::Scheduled { (not_started, 0) } else { (0, not_started) };
    let total: u64 = counts.values().sum();
    let ended = ["succeeded", "no_change", "failed", "timed_out", "skipped", "canceled"];
    let ended: u64 = ended.iter().filter_map(|word| counts.get(*word)).sum();
    let percent = (ended * 100).checked_div(total).unwrap_or(100);
    Progress {
        total: u32::try_from(total).unwrap_or(u32::MAX),
        pending,
        waiting,
        dispatched: count(Stage::Dispatched.as_str()),
        preflight: count(Stage::Preflight.as_str()),
        downloading: count(Stage::Downloading.as_str()),
        installing: count(Stage::Installing.as_str()),
        restarting_services: count(Stage::RestartingServices.as_str()),
        rebooting: count(Stage::Rebooting.as_str()),
        verifying: count(Stage::Verifying.as_str()),
        succeeded: count("succeeded"),
        no_change: count("no_change"),
        failed: count("failed"),
        timed_out: count("timed_out"),
        skipped: count("skipped"),
        canceled: count("canceled"),
        percent: u8::try_from(percent).unwrap_or(100),
    }
}

/// One server's task of a batch.
pub fn task(
    row: StoredTask,
    server_name: Option<&ServerName>,
    phase: Phase,
    wait_reason: Option<WaitReason>,
) -> Task {
    let TaskSpan { state, started_at, finished_at } = task_span(row.target, phase);
    let deadline_at = match row.target {
        TaskStatus::Busy(busy) => Some(busy.by),
        TaskStatus::Waiting | TaskStatus::Done(_) => None,
    };
    let unnamed = || Hostname::sanitize(&row.server_id.to_string());
    Task {
        id: row.task_id,
        server_id: row.server_id,
        hostname: server_name.map_or_else(unnamed, |named| named.hostname.clone()),
        display_name: server_name
            .and_then(|named| named.display_name.as_deref())
            .map(Line::sanitize),
        state,
        waiting_for: (row.target == TaskStatus::Waiting)
            .then_some(wait_reason)
            .flatten()
            .and_then(waiting_for),
        wave: Some(row.target.wave()).filter(|wave| *wave > 0),
        health: task_health(&row),
        deadline_at,
        started_at,
        finished_at,
        result: task_result(&row),
    }
}

/// When a task ran.
pub(super) fn task_span(status: TaskStatus, phase: Phase) -> TaskSpan {
    let (started_at, finished_at) = match status {
        TaskStatus::Waiting => (None, None),
        TaskStatus::Busy(busy) => (Some(busy.started_at), None),
        TaskStatus::Done(done) => (done.started_at, Some(done.at)),
    };
    TaskSpan { state: task_state(status, phase), started_at, finished_at }
}

fn task_state(status: TaskStatus, phase: Phase) -> TaskState {
    match status {
        TaskStatus::Waiting if phase == Phase::Scheduled => TaskState::Pending,
        TaskStatus::Waiting => TaskState::Waiting,
        TaskStatus::Busy(busy) => match busy.stage {
            Stage::Dispatched => TaskState::Dispatched,
            Stage::Preflight => TaskState::Preflight,
            Stage::Downloading => TaskState::Downloading,
            Stage::Installing => TaskState::Installing,
            Stage::RestartingServices => TaskState::RestartingServices,
            Stage::Rebooting => TaskState::Rebooting,
            Stage::Verifying => TaskState::Verifying,
        },
        TaskStatus::Done(done) => match done.outcome {
            TaskOutcome::Succeeded => TaskState::Succeeded,
            TaskOutcome::NoChange => TaskState::NoChange,
            TaskOutcome::Failed(_) => TaskState::Failed,
            TaskOutcome::TimedOut(_) => TaskState::TimedOut,
            TaskOutcome::Skipped(_) => TaskState::Skipped,
            TaskOutcome::Canceled(_) => TaskState::Canceled,
        },
    }
}

/// What a task waits for. `None` if its batch is paused or halted, because the batch shows that
/// itself.
fn waiting_for(wait_reason: WaitReason) -> Option<WaitingFor> {
    match wait_reason {
        WaitReason::Scheduled { .. } => Some(WaitingFor::Window),
        WaitReason::Paused | WaitReason::Halted(_) => None,
        WaitReason::Offline => Some(WaitingFor::Offline),
        WaitReason::BusyElsewhere(_) | WaitReason::AgentBusy | WaitReason::Parallel => {
            Some(WaitingFor::Parallel)
        }
        WaitReason::Canary => Some(WaitingFor::Canary),
        WaitReason::Stagger { .. } => Some(WaitingFor::Stagger),
        WaitReason::Wave => Some(WaitingFor::Wave),
        WaitReason::Health => Some(WaitingFor::Health),
        WaitReason::Soak { .. } => Some(WaitingFor::Soak),
        WaitReason::Approval => Some(WaitingFor::Approval),
        WaitReason::Freeze { .. } => Some(WaitingFor::Freeze),
    }
}

fn task_result(row: &StoredTask) -> Option<TaskResult> {
    let TaskStatus::Done(done) = row.target else { return None };
    let report: Option<wire::agent::OrderResult> =
        row.result.clone().and_then(|report| serde_json::from_value(report).ok());
    let log = format!("/v1/batches/{}/tasks/{}/log", row.rollout_id, row.task_id);
    let seconds = |from: Timestamp, to: Timestamp| {
        u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0)
    };
    let took = done.started_at.map_or(0, |started| seconds(started, done.at));
    let failure_code = failure_code(done.outcome);
    let Some(report) = report else {
        let unsaid = matches!(done.outcome, TaskOutcome::Canceled(_));
        return (!unsaid).then(|| TaskResult {
            packages: Vec::new(),
            reboot: Reboot::default(),
            duration: took,
            exit: None,
            failure_code,
            message: unreported_reason(done.outcome).map(Line::sanitize),
            set_aside: Vec::new(),
            restarted: Vec::new(),
            notes: Vec::new(),
            newer_available: Vec::new(),
            log,
        });
    };
    let text = |line: &Line| line.as_str().to_owned();
    let packages = report.packages.iter().map(|change| PackageChange {
        name: text(&change.name),
        from: change.from.as_ref().map(text),
        to: change.to.as_ref().map(text),
    });
    let newer = report.newer_available.iter().map(|newer| wire::v1::NewerVersion {
        name: text(&newer.name),
        pinned: text(&newer.pinned),
        available: text(&newer.available),
    });
    Some(TaskResult {
        packages: packages.collect(),
        reboot: Reboot {
            needed: report.reboot_needed,
            done: report.reboot_seconds.is_some(),
            seconds: report.reboot_seconds,
        },
        duration: seconds(report.started_at, report.finished_at),
        exit: report.exit,
        failure_code,
        message: report.message,
        set_aside: report.set_aside,
        restarted: report.restarted,
        notes: report.notes,
        newer_available: newer.collect(),
        log,
    })
}

/// The reason for an outcome that no agent reported.
fn unreported_reason(outcome: TaskOutcome) -> Option<&'static str> {
    matches!(outcome, TaskOutcome::Skipped(TaskSkipReason::VersionUnproven)).then_some(
        "versions are pinned, and no server with this operating system and architecture installed \
         an update in the first wave",
    )
}

fn failure_code(outcome: TaskOutcome) -> Option<FailureCode> {
    match outcome {
        TaskOutcome::Failed(code) => Some(code),
        TaskOutcome::TimedOut(Stage::Rebooting) => Some(FailureCode::RebootTimeout),
        TaskOutcome::TimedOut(
            Stage::Dispatched
            | Stage::Preflight
            | Stage::Downloading
            | Stage::Installing
            | Stage::RestartingServices
            | Stage::Verifying,
        ) => Some(FailureCode::AgentLost),
        TaskOutcome::Skipped(TaskSkipReason::WindowClosed) => Some(FailureCode::WindowClosed),
        TaskOutcome::Skipped(TaskSkipReason::VersionGone) => Some(FailureCode::VersionGone),
        TaskOutcome::Skipped(TaskSkipReason::VersionUnproven) => Some(FailureCode::VersionUnproven),
        TaskOutcome::Succeeded
        | TaskOutcome::NoChange
        | TaskOutcome::Skipped(TaskSkipReason::NotApplicable)
        | TaskOutcome::Canceled(_) => None,
    }
}

/// The state of a run: that of its batch, or the stored one once the batch has ended.
pub fn run_state(state: runs::RunState, batch: Option<Phase>) -> RunState {
    match (state, batch) {
        (runs::RunState::Skipped, _) => RunState::Skipped,
        (runs::RunState::Ended(end), _) => run_state_of_phase(Phase::Ended(end)),
        (runs::RunState::Running, phase) => run_state_of_phase(phase.unwrap_or(Phase::Running)),
    }
}

fn run_state_of_phase(phase: Phase) -> RunState {
    match batch_state(phase) {
        BatchState::Scheduled => RunState::Scheduled,
        BatchState::Running => RunState::Running,
        BatchState::AwaitingApproval => RunState::AwaitingApproval,
        BatchState::Paused => RunState::Paused,
        BatchState::Halted => RunState::Halted,
        BatchState::Canceling => RunState::Canceling,
        BatchState::Succeeded => RunState::Succeeded,
        BatchState::CompletedWithErrors => RunState::CompletedWithErrors,
        BatchState::Failed => RunState::Failed,
        BatchState::Canceled => RunState::Canceled,
        BatchState::Expired => RunState::Expired,
    }
}

pub fn trigger(trigger: runs::Trigger) -> Trigger {
    match trigger {
        runs::Trigger::Cron => Trigger::Cron,
        runs::Trigger::Manual => Trigger::Manual,
    }
}

/// A patch, as in lists.
pub fn patch(row: Patch) -> wire::v1::Patch {
    let versions: Vec<PatchVersion> = serde_json::from_value(row.versions).unwrap_or_default();
    wire::v1::Patch {
        package_name: row.package_name,
        severity: crate::projections::patches::severity_at(row.severity_order),
        severity_source: row.severity_source,
        update_type: row.update_type,
        versions,
        affected_servers: row.servers_order.unsigned_abs(),
        cves: row.cves,
        kev: row.kev_order == 0,
        first_seen_at: row.first_seen_at,
    }
}
