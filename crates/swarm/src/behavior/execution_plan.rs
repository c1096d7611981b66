//! Decides how an order will proceed on a host: its steps, its outcome and any failure.
//!
//! The decision is made when the order starts and is stored in the journal, so that the order
//! proceeds in the same way after a crash.

use serde::{Deserialize, Serialize};
use vocab::{FailureCode, RebootPolicy, Stage};
use wire::agent::{Install, Outcome, Work};

use super::{Behavior, Script};
use crate::Rng;
use crate::fleet::{Host, Selection};

/// The steps of an order and its final result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExecutionPlan {
    pub(super) steps: Vec<Step>,
    pub(super) outcome: Outcome,
    pub(super) failure_code: Option<FailureCode>,
    pub(super) message: Option<String>,
    /// For a dry run: the updates that an installation would apply.
    pub(super) would: Vec<usize>,
    pub(super) exit: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) stage: Stage,
    /// `None` if the step never ends.
    pub(super) lasts_ms: Option<u64>,
    /// What the step has changed when it ends.
    pub(super) effect: Effect,
    /// Whether the agent is reachable during the step.
    pub(super) up: bool,
    /// Whether the step starts with a crash of the agent.
    pub(super) crash: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Effect {
    None,
    /// These updates of the host group are installed.
    Install(Vec<usize>),
    /// The host has rebooted.
    Boot,
    /// The packages were scanned.
    Scan,
}

/// Plans how `work` will proceed on `host`.
pub(super) fn plan_execution(
    work: &Work,
    host: &Host,
    behavior: &Behavior,
    script: Script,
    rng: &mut Rng,
) -> ExecutionPlan {
    let mut builder = PlanBuilder { behavior, rng, steps: Vec::new() };
    let mut gone = false;
    let (outcome, message, would) = match work {
        Work::Install(order) => {
            builder.install(order, host, host.group().select(host.state.packages, order))
        }
        Work::InstallVersions(order) => {
            let selection = host.group().select_versions(host.state.packages, order);
            gone = selection.updates.is_empty() && !selection.gone.is_empty();
            builder.install(&order.install, host, selection)
        }
        Work::Plan(order) => {
            builder.step(Stage::Preflight, 2..=8);
            let selection = host.group().select(host.state.packages, order);
            let outcome =
                if selection.updates.is_empty() { Outcome::NoChange } else { Outcome::Succeeded };
            (outcome, None, selection.updates)
        }
        Work::Scan => {
            builder.step(Stage::Preflight, 1..=5).effect = Effect::Scan;
            (Outcome::Succeeded, None, Vec::new())
        }
        Work::RestartServices => {
            builder.step(Stage::RestartingServices, 1..=6);
            (Outcome::Succeeded, None, Vec::new())
        }
        Work::Reboot(order) if order.boot_id == host.boot_id() => {
            builder.reboot();
            (Outcome::Succeeded, None, Vec::new())
        }
        Work::Reboot(_) => {
            builder.step(Stage::Preflight, 0..=1);
            (
                Outcome::NoChange,
                Some("the host has rebooted since the order was issued".to_owned()),
                Vec::new(),
            )
        }
        Work::UpgradeAgent(_) => {
            builder.step(Stage::Preflight, 0..=1);
            let message = "a simulated agent has no program to replace".to_owned();
            (Outcome::Failed, Some(message), Vec::new())
        }
        Work::Unknown { .. } | Work::Malformed { .. } => {
            (Outcome::Failed, Some("the order cannot be started".to_owned()), Vec::new())
        }
    };
    let steps = builder.steps;
    let exit = is_installation(work).then_some(0);
    let failure_code = gone.then_some(FailureCode::VersionGone);
    let mut plan = ExecutionPlan { steps, outcome, failure_code, message, would, exit };
    if let Some(code) = choose_failure(work, behavior, script, rng) {
        plan.fail(code);
    }
    match (script, choose_crash_stage(&plan, behavior, script, rng)) {
        (Script::HangInReboot, _) => plan.hang(),
        (_, Some(stage)) => plan.crash_in(stage, random_duration_ms(behavior, rng, 1..=10)),
        (_, None) => {}
    }
    plan
}

fn is_installation(work: &Work) -> bool {
    matches!(work, Work::Install(_) | Work::InstallVersions(_))
}

fn choose_failure(
    work: &Work,
    behavior: &Behavior,
    script: Script,
    rng: &mut Rng,
) -> Option<FailureCode> {
    const LIKELY: [FailureCode; 8] = [
        FailureCode::PkgLockTimeout,
        FailureCode::RepoUnreachable,
        FailureCode::RepoUnreachable,
        FailureCode::DependencyConflict,
        FailureCode::DiskFull,
        FailureCode::InstallFailed,
        FailureCode::InstallFailed,
        FailureCode::VerifyFailed,
    ];
    // Drawn in every case, so that a script affects only this agent and does not shift the random
    // numbers that follow.
    let (unlucky, code) = (rng.with_probability(behavior.fail), *rng.pick(&LIKELY));
    match script {
        Script::FailWith(code) => Some(code),
        Script::Random | Script::Disconnect => (unlucky && is_installation(work)).then_some(code),
        _ => None,
    }
}

fn choose_crash_stage(
    plan: &ExecutionPlan,
    behavior: &Behavior,
    script: Script,
    rng: &mut Rng,
) -> Option<Stage> {
    let crashes = rng.with_probability(behavior.crash);
    let place = rng.below(plan.steps.len() as u64) as usize;
    match script {
        Script::CrashIn(stage) => Some(stage),
        Script::Random | Script::Disconnect if crashes => {
            plan.steps.get(place).map(|step| step.stage)
        }
        _ => None,
    }
}

struct PlanBuilder<'a> {
    behavior: &'a Behavior,
    rng: &'a mut Rng,
    steps: Vec<Step>,
}

fn random_duration_ms(
    behavior: &Behavior,
    rng: &mut Rng,
    seconds: std::ops::RangeInclusive<u64>,
) -> u64 {
    let real = rng.between(seconds.start() * 1_000, seconds.end() * 1_000);
    (real as f64 / behavior.speed.max(0.001)) as u64
}

impl PlanBuilder<'_> {
    fn step(&mut self, stage: Stage, seconds: std::ops::RangeInclusive<u64>) -> &mut Step {
        let lasts_ms = Some(random_duration_ms(self.behavior, self.rng, seconds));
        self.steps.push(Step { stage, lasts_ms, effect: Effect::None, up: true, crash: false });
        let last = self.steps.len() - 1;
        &mut self.steps[last]
    }

    fn reboot(&mut self) {
        self.step(Stage::Rebooting, 1..=2);
        let down = self.step(Stage::Rebooting, 20..=80);
        (down.up, down.effect) = (false, Effect::Boot);
        self.step(Stage::Verifying, 1..=3);
    }

    fn install(
        &mut self,
        order: &Install,
        host: &Host,
        selection: Selection,
    ) -> (Outcome, Option<String>, Vec<usize>) {
        self.step(Stage::Preflight, 1..=4);
        let nothing = selection.updates.is_empty();
        if nothing && !selection.gone.is_empty() {
            let message = format!("not available: {}", selection.gone.join(", "));
            return (Outcome::Skipped, Some(message), Vec::new());
        }
        if nothing && !selection.blocked.is_empty() {
            return (Outcome::Skipped, Some(selection.blocked.join(", ")), Vec::new());
        }
        let mut after = host.clone();
        for update in &selection.updates {
            after.state.packages = after.state.packages.with_update(*update);
        }
        // An order for an earlier boot has had its reboot already, or the host has rebooted since.
        let reboots = order.boot_id == host.boot_id()
            && match order.reboot {
                RebootPolicy::Never | RebootPolicy::ServicesOnly => false,
                RebootPolicy::IfRequired => !after.reboot_reasons().is_empty(),
                RebootPolicy::Always => true,
            };
        if !nothing {
            self.step(Stage::Downloading, 2..=15);
            self.step(Stage::Installing, 4..=40).effect = Effect::Install(selection.updates);
            if order.reboot == RebootPolicy::ServicesOnly {
                self.step(Stage::RestartingServices, 1..=6);
            }
        }
        match (reboots, nothing) {
            (true, _) => self.reboot(),
            (false, false) => drop(self.step(Stage::Verifying, 1..=3)),
            (false, true) => {}
        }
        let message = (!selection.missing.is_empty())
            .then(|| format!("not installed: {}", selection.missing.join(", ")));
        let outcome = if nothing && !reboots { Outcome::NoChange } else { Outcome::Succeeded };
        (outcome, message, Vec::new())
    }
}

impl ExecutionPlan {
    /// Ends the plan at the stage in which this failure occurs. Earlier effects remain.
    fn fail(&mut self, code: FailureCode) {
        let shows_in = match code {
            FailureCode::RepoUnreachable => Stage::Downloading,
            FailureCode::InstallFailed => Stage::Installing,
            FailureCode::ServiceRestartFailed => Stage::RestartingServices,
            FailureCode::VerifyFailed => Stage::Verifying,
            _ => Stage::Preflight,
        };
        let place = self.steps.iter().position(|step| step.stage >= shows_in);
        let place = place.unwrap_or(self.steps.len().saturating_sub(1));
        self.steps.truncate(place + 1);
        if let Some(step) = self.steps.last_mut() {
            step.effect = match std::mem::replace(&mut step.effect, Effect::None) {
                // A maintainer script failed half-way: the packages before it are installed.
                Effect::Install(mut updates) if code == FailureCode::InstallFailed => {
                    updates.truncate(updates.len() / 2);
                    Effect::Install(updates)
                }
                Effect::Boot => Effect::Boot,
                Effect::Install(_) | Effect::Scan | Effect::None => Effect::None,
            };
        }
        self.outcome = Outcome::Failed;
        self.failure_code = Some(code);
        self.message = Some(failure_message(code).to_owned());
        self.would.clear();
        self.exit = self.exit.map(|_| if code == FailureCode::InstallFailed { 100 } else { 0 });
    }

    fn hang(&mut self) {
        for step in self.steps.iter_mut().filter(|step| step.effect == Effect::Boot) {
            step.lasts_ms = None;
        }
    }

    /// Makes the agent crash in the middle of a stage. The package manager runs in its own session
    /// and continues; the agent restarts after `away_ms` and finds out how far it got.
    fn crash_in(&mut self, stage: Stage, away_ms: u64) {
        let Some(place) = self.steps.iter().position(|step| step.stage == stage && step.up) else {
            return;
        };
        let whole = self.steps[place].clone();
        let half = whole.lasts_ms.map(|lasts| lasts / 2);
        let before = Step { lasts_ms: half, effect: Effect::None, ..whole.clone() };
        let away = Step { lasts_ms: Some(away_ms), up: false, crash: true, ..before.clone() };
        let after = Step { lasts_ms: half, ..whole };
        self.steps.splice(place..=place, [before, away, after]);
    }
}

fn failure_message(code: FailureCode) -> &'static str {
    match code {
        FailureCode::PkgLockTimeout => "another program held the package manager's lock",
        FailureCode::RepoUnreachable => "a repository is unreachable",
        FailureCode::DependencyConflict => "the updates would require removing a package",
        FailureCode::DiskFull => "not enough free space in /var",
        FailureCode::InstallFailed => "a package's maintainer script failed",
        FailureCode::VerifyFailed => "the installed versions do not match the order",
        _ => "the order failed",
    }
}
