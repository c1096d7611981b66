//! A test oracle: checks what must hold for rollouts, based on observed events.
//!
//! The oracle keeps its own records: it stores every event and every change with code that is
//! independent of the planner, and recounts everything for every check. It never looks at a
//! rollout's counts, limits, queues or head. It knows the real time; where the control plane's
//! clock jumped in between, it makes no claims about time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, HealthMode, Portion, ServerId, Wave};

use super::task_record::TaskRecord;
use crate::rollout::{
    APPROVAL_WAIT, CancelReason, Change, HaltReason, HealthProblem, OFFLINE_WAIT, Pace, Phase,
    Rollout, RolloutOutcome, TaskEvent, TaskHealth, TaskOutcome, TaskSkipReason, TaskStatus,
    stage_limit,
};

/// How far a clock may be set back without being noticed.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(1);

/// How long a rollout compares unhealthy servers with others before it blames the change.
const COMPARISON: SignedDuration = SignedDuration::from_mins(5);
/// How long it waits for reports after a soak.
const LAST_REPORTS: SignedDuration = SignedDuration::from_mins(15);

/// A point in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) real: Timestamp,
    /// What the control plane's clock shows.
    pub(super) wall: Timestamp,
    /// How many times that clock was set forward without being noticed.
    pub(super) unnoticed_forward_sets: u32,
    /// How many times it was set without being noticed.
    pub(super) unnoticed_clock_sets: u32,
    /// How many times it was set, noticed or not.
    pub(super) clock_sets: u32,
}

impl Moment {
    /// Whether more time may seem to have passed than really did.
    fn set_forward_since(self, earlier: Moment) -> bool {
        self.unnoticed_forward_sets != earlier.unnoticed_forward_sets
    }

    fn jumped_since(self, earlier: Moment) -> bool {
        self.unnoticed_clock_sets != earlier.unnoticed_clock_sets
    }
}

/// A time in which the control plane received no reports, and the grace period after it.
#[derive(Debug, Clone, Copy)]
struct GracePeriod {
    since: Moment,
    patience: SignedDuration,
}

/// The oracle's record of one rollout.
#[derive(Clone)]
struct RolloutRecord {
    pace: Pace,
    /// In start order.
    order: Vec<ServerId>,
    tasks: BTreeMap<ServerId, TaskRecord>,
    phase: Phase,
    created: Moment,
    starts_at: Timestamp,
    /// Whether it starts at a scheduled time and not immediately.
    by_calendar: bool,
    grace_period: Option<GracePeriod>,
    /// When the control plane first read the clock after it was last set.
    clock_noticed: Moment,
    last_start: Option<Moment>,
    accepted_failures: BTreeSet<ServerId>,
    /// How many timeouts were corrected by a late result since then.
    corrected: usize,
    canary_waived: bool,
    /// Servers that are expected to install something.
    expected: BTreeSet<ServerId>,
    canary_unchanged: bool,
    /// Index of the current wave.
    wave: usize,
    /// The wave in which each server started.
    members: BTreeMap<ServerId, usize>,
    /// When every task of the current wave had ended, if it soaks.
    soaks_since: Option<Moment>,
    /// The approved waves.
    approved: BTreeSet<usize>,
    /// What was reported about the health of each server.
    health: BTreeMap<ServerId, TaskHealth>,
    /// Servers that the control plane considers online.
    online: BTreeSet<ServerId>,
    /// Number of unhealthy servers by wave that a user has accepted.
    accepted_health: BTreeMap<usize, usize>,
    /// Since when more servers than allowed are unhealthy.
    exceeded_at: Option<Moment>,
    /// A user accepted that the health of the current wave is unknown.
    unknown_accepted: bool,
}

/// A period of the control plane's clock in which these servers must not start.
#[derive(Debug, Clone)]
pub(super) struct SimFreeze {
    pub(super) servers: BTreeSet<ServerId>,
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// Whether no server of this one's system installed anything in the first wave, if versions are
/// pinned.
pub(super) fn lacks_proof(server: ServerId) -> bool {
    server.to_string().bytes().map(u32::from).sum::<u32>() % 3 == 0
}

impl SimFreeze {
    /// Until when it covers a server at this time.
    pub(super) fn covers(&self, server: ServerId, wall: Timestamp) -> Option<Timestamp> {
        let covers = self.servers.contains(&server) && self.from <= wall && wall < self.until;
        covers.then_some(self.until)
    }
}

/// The records, and the violations that were found.
#[derive(Clone, Default)]
pub(super) struct Oracle {
    records: BTreeMap<BatchId, RolloutRecord>,
    freezes: Vec<SimFreeze>,
    pub(super) violations: Vec<String>,
}

impl Oracle {
    pub(super) fn record_created(
        &mut self,
        rollout: &Rollout,
        starts_in: SignedDuration,
        at: Moment,
    ) {
        let order: Vec<_> = rollout.tasks().map(|(server, _)| server).collect();
        let case = RolloutRecord {
            pace: rollout.head().pace.clone(),
            tasks: order.iter().map(|server| (*server, TaskRecord::Waiting)).collect(),
            expected: match rollout.head().expected {
                Some(count) => order.iter().copied().take(count as usize).collect(),
                None => order.iter().copied().collect(),
            },
            canary_unchanged: false,
            wave: 0,
            members: BTreeMap::new(),
            soaks_since: None,
            approved: BTreeSet::new(),
            health: BTreeMap::new(),
            online: order.iter().copied().collect(),
            accepted_health: BTreeMap::new(),
            exceeded_at: None,
            unknown_accepted: false,
            order,
            phase: Phase::Scheduled,
            created: at,
            clock_noticed: at,
            starts_at: at.real + starts_in,
            by_calendar: !starts_in.is_zero(),
            grace_period: None,
            last_start: None,
            accepted_failures: BTreeSet::new(),
            corrected: 0,
            canary_waived: false,
        };
        self.records.insert(rollout.head().id, case);
    }

    pub(super) fn record_freeze(&mut self, freeze: SimFreeze) {
        self.freezes.push(freeze);
    }

    pub(super) fn set_online(&mut self, batch: BatchId, servers: BTreeSet<ServerId>) {
        self.records.get_mut(&batch).expect("created").online = servers;
    }

    /// Records and checks what a server reported about its health.
    pub(super) fn record_health(
        &mut self,
        batch: BatchId,
        server: ServerId,
        health: &TaskHealth,
        at: Moment,
    ) {
        let case = self.records.get_mut(&batch).expect("created");
        let before = case.is_unhealthy(server);
        let was_soaked = case.health.get(&server).is_some_and(|known| known.soaked);
        case.health.insert(server, health.clone());
        if let Some(wave) = case.members.get(&server).filter(|_| before)
            && !case.is_unhealthy(server)
            && let Some(accepted) = case.accepted_health.get_mut(wave)
        {
            *accepted = accepted.saturating_sub(1);
        }
        let ended = matches!(case.tasks[&server], TaskRecord::Ended(_));
        let soaked = case.soaks_since.is_some_and(|since| {
            at.clock_sets != since.clock_sets || at.real.duration_since(since.real) >= case.soak()
        });
        let wrong = violation_unless(
            health.changed == ended,
            "reported health of the wrong kind was accepted",
        )
        .or(violation_unless(
            !health.soaked || soaked || was_soaked,
            "a report before the end of the soak counts as one after it",
        ));
        self.violations.extend(wrong.map(|wrong| format!("{server} of {batch}: {wrong}")));
    }

    /// Until when a server is frozen for this rollout.
    fn frozen_until(&self, batch: BatchId, server: ServerId, at: Moment) -> Option<Timestamp> {
        if self.records[&batch].pace.override_freeze.is_some() {
            return None;
        }
        self.freezes.iter().filter_map(|freeze| freeze.covers(server, at.wall)).max()
    }

    /// The control plane can receive reports only from now on.
    pub(super) fn start_grace_period(&mut self, until: Moment, duration: SignedDuration) {
        for case in self.records.values_mut() {
            case.grace_period = Some(GracePeriod { since: until, patience: duration });
        }
    }

    /// Records and checks an event. `online`: whether a server is online and not busy, as far as
    /// the control plane knows.
    pub(super) fn record_event(
        &mut self,
        batch: BatchId,
        server: ServerId,
        event: TaskEvent,
        at: Moment,
        online: &dyn Fn(ServerId) -> bool,
    ) {
        let free = |server| {
            online(server)
                && !self.is_busy_elsewhere(batch, server)
                && self.frozen_until(batch, server, at).is_none()
                && !self.records[&batch].is_unproven(server)
        };
        let case = &self.records[&batch];
        let wrong = match event {
            TaskEvent::Offered { wave } => case
                .check_start(server, at, &free)
                .or(violation_unless(
                    self.frozen_until(batch, server, at).is_none(),
                    "started in a freeze",
                ))
                .or(violation_unless(
                    wave as usize == case.wave + 1,
                    "started with the number of another wave",
                )),
            TaskEvent::DeadlinePassed => case.check_timeout(server, at),
            TaskEvent::WindowClosed => case.check_window_closed(at),
            TaskEvent::VersionUnproven => violation_unless(
                case.is_unproven(server) && case.phase == Phase::Running,
                "skipped although a version was proven",
            ),
            TaskEvent::Canceled => violation_unless(
                case.phase == Phase::Canceling,
                "canceled without a user's request",
            ),
            TaskEvent::ServerRemoved | TaskEvent::Reached(_) | TaskEvent::Reported(_) => None,
            TaskEvent::GivenBack => Some("an agent never reports this".into()),
            TaskEvent::Forgotten => Some("no backup was restored".into()),
        };
        self.violations.extend(wrong.map(|wrong| format!("{server} of {batch}: {wrong}")));
        let case = self.records.get_mut(&batch).expect("ordered");
        if matches!(event, TaskEvent::Offered { .. }) {
            case.last_start = Some(at);
            case.members.insert(server, case.wave);
        }
        if let Some(seen) = case.tasks.get_mut(&server) {
            let before = std::mem::replace(seen, seen.after(event, case.phase, at));
            case.corrected += usize::from(before.is_failure() && !seen.is_failure());
        }
    }

    /// Records and checks a change of a rollout that led to this phase.
    pub(super) fn record_change(
        &mut self,
        batch: BatchId,
        change: Change,
        into: Phase,
        at: Moment,
    ) {
        let case = self.records.get_mut(&batch).expect("ordered");
        self.violations
            .extend(case.check_change(change, at).map(|wrong| format!("{batch}: {wrong}")));
        case.apply_change(change, into, at);
    }

    /// Checks a rollout whose plans were all carried out; it will be planned again at `wake_at`.
    pub(super) fn check_settled(
        &mut self,
        rollout: &Rollout,
        wake_at: Option<Timestamp>,
        at: Moment,
        online: &dyn Fn(ServerId) -> bool,
    ) {
        let batch = rollout.head().id;
        let case = self.records.get_mut(&batch).expect("ordered");
        if at.jumped_since(case.clock_noticed) {
            case.clock_noticed = at;
        }
        let able = |server| online(server) && !self.is_busy_elsewhere(batch, server);
        let free = |server| {
            able(server)
                && self.frozen_until(batch, server, at).is_none()
                && !self.records[&batch].is_unproven(server)
        };
        let case = &self.records[&batch];
        let undone = case.overdue_action(at, &free);
        let wakes = wake_at.map(|wake_at| at.real + wake_at.duration_since(at.wall));
        // A server whose freeze ends may be able to start.
        let waits = |server: &&ServerId| {
            case.phase == Phase::Running
                && matches!(case.tasks[server], TaskRecord::Waiting)
                && able(**server)
        };
        let frozen = case.order.iter().filter(waits);
        let thaws = frozen
            .filter_map(|server| self.frozen_until(batch, *server, at))
            .map(|until| at.real + until.duration_since(at.wall));
        let due = case.next_action_at(at, &free).into_iter().chain(thaws).min();
        let late = match (due, wakes) {
            (Some(due), Some(wakes)) => wakes > due,
            (due, None) => due.is_some(),
            (None, Some(_)) => false,
        };
        let overslept = late.then(|| format!("wakes at {wakes:?}, but must act at {due:?}"));
        let differs = case.difference(rollout);
        let wrong = [undone, overslept, differs].into_iter().flatten();
        self.violations.extend(wrong.map(|wrong| format!("{batch}: {wrong}")));
    }

    fn is_busy_elsewhere(&self, batch: BatchId, server: ServerId) -> bool {
        self.records
            .iter()
            .filter(|(other, _)| **other != batch)
            .any(|(_, case)| matches!(case.tasks.get(&server), Some(TaskRecord::InProgress { .. })))
    }
}

impl RolloutRecord {
    fn count(&self, which: impl Fn(TaskOutcome) -> bool) -> usize {
        self.tasks
            .values()
            .filter(|seen| matches!(seen, TaskRecord::Ended(end) if which(*end)))
            .count()
    }

    fn successes(&self) -> usize {
        self.count(|end| matches!(end, TaskOutcome::Succeeded | TaskOutcome::NoChange))
    }

    fn failures(&self) -> usize {
        self.tasks.values().filter(|seen| seen.is_failure()).count()
    }

    fn in_progress(&self) -> usize {
        self.tasks.values().filter(|seen| matches!(seen, TaskRecord::InProgress { .. })).count()
    }

    fn next_in_turn(&self, free: &dyn Fn(ServerId) -> bool) -> Option<ServerId> {
        let waits = |server: &ServerId| matches!(self.tasks[server], TaskRecord::Waiting);
        self.order.iter().copied().find(|server| waits(server) && free(*server))
    }

    fn next_may_start(&self, free: &dyn Fn(ServerId) -> bool) -> bool {
        let may = |server| !self.needs_expected_changes() || self.expected.contains(&server);
        self.next_in_turn(free).is_some_and(may)
    }

    /// The deadline of a task, as far as the clock can be trusted.
    fn deadline(&self, record: TaskRecord, at: Moment) -> Option<Timestamp> {
        let heard = match self.grace_period {
            Some(deaf) if at.jumped_since(deaf.since) => return None,
            Some(grace) => grace.since.real + grace.patience,
            None => Timestamp::MIN,
        };
        match record {
            TaskRecord::InProgress { stage, since } if !at.jumped_since(since) => {
                Some(heard.max(since.real + stage_limit(stage)))
            }
            _ => None,
        }
    }

    /// Whether its start time and window cannot be checked, because the clock was set. A
    /// rollout that started immediately is adjusted when a clock change is noticed.
    fn clock_untrusted(&self, at: Moment) -> bool {
        at.jumped_since(self.created)
            || self.by_calendar && at.clock_sets != self.created.clock_sets
    }

    fn has_waiting_task(&self) -> bool {
        self.tasks.values().any(|seen| matches!(seen, TaskRecord::Waiting))
    }

    fn total(&self) -> u32 {
        self.order.len() as u32
    }

    /// Whether a server has no version to install, because versions are pinned.
    fn is_unproven(&self, server: ServerId) -> bool {
        self.pace.pin_versions && self.wave > 0 && lacks_proof(server)
    }

    fn succeeded(&self) -> usize {
        self.count(|end| end == TaskOutcome::Succeeded)
    }

    fn canary(&self) -> usize {
        let first = match self.pace.waves.first() {
            Some(first) => first.size,
            None => self.pace.canary,
        };
        first.map_or(0, |portion| portion.resolve(self.total())).min(self.total()) as usize
    }

    /// The waves with their sizes; the last one takes the rest.
    fn waves(&self) -> Vec<(usize, Wave)> {
        let mut waves: Vec<(usize, Wave)> = Vec::new();
        let mut left = self.order.len();
        let rest = Wave::default();
        let canary = Wave { size: self.pace.canary, ..rest };
        let shorthand = if self.pace.canary.is_some() { vec![canary] } else { vec![] };
        let listed = if self.pace.waves.is_empty() { &shorthand } else { &self.pace.waves };
        for wave in listed.iter().chain([&rest]) {
            let size = wave.size.map_or(left, |size| size.resolve(self.total()) as usize);
            if left > 0 || waves.is_empty() {
                waves.push((size.min(left), *wave));
            }
            left -= size.min(left);
        }
        waves
    }

    fn current_wave(&self) -> (usize, Wave) {
        self.waves().get(self.wave).copied().unwrap_or_default()
    }

    fn is_last_wave(&self) -> bool {
        self.wave + 1 >= self.waves().len()
    }

    fn lacks_approval(&self) -> bool {
        self.current_wave().1.approval && !self.approved.contains(&self.wave)
    }

    fn soak(&self) -> SignedDuration {
        SignedDuration::from_mins(i64::from(self.current_wave().1.soak_minutes))
    }

    /// The tasks of the current wave: started, and not removed.
    fn wave_tasks(&self) -> impl Iterator<Item = TaskRecord> + '_ {
        let in_wave = |server: &&ServerId| self.members.get(*server) == Some(&self.wave);
        let tasks = self.order.iter().filter(in_wave).map(|server| self.tasks[server]);
        tasks.filter(|record| match record {
            TaskRecord::Waiting | TaskRecord::Ended(TaskOutcome::Canceled(_)) => false,
            TaskRecord::InProgress { .. } | TaskRecord::Ended(_) => true,
        })
    }

    /// How many more servers of the current wave may start, apart from pace and canary.
    fn left_in_wave(&self) -> usize {
        let closed = self.lacks_approval() || self.soaks_since.is_some();
        match (closed, self.is_last_wave(), self.wave) {
            (true, ..) => 0,
            (_, true, _) => usize::MAX,
            (_, _, 0) if self.waits_for_canary() => usize::MAX,
            (_, _, 0) => 0,
            _ => self.current_wave().0.saturating_sub(self.wave_tasks().count()),
        }
    }

    /// Whether every server of the current wave has started and ended, and another wave follows.
    fn wave_is_over(&self) -> bool {
        let started = match self.wave {
            0 => !self.waits_for_canary(),
            _ => self.wave_tasks().count() >= self.current_wave().0,
        };
        let waived = self.wave == 0 && self.canary_waived && self.soak().is_zero();
        let ended = self.in_progress() == 0 || waived;
        !self.is_last_wave() && !self.lacks_approval() && started && ended
    }

    /// Whether the current wave must soak after its end.
    fn must_soak(&self) -> bool {
        let changed = |record: &TaskRecord| {
            record.is_failure() || matches!(record, TaskRecord::Ended(TaskOutcome::Succeeded))
        };
        !self.soak().is_zero() && self.wave_tasks().any(|record| changed(&record))
    }

    fn canary_incomplete(&self) -> bool {
        !self.canary_waived && self.succeeded() < self.canary()
    }

    fn waits_for_canary(&self) -> bool {
        self.canary_incomplete() && !self.canary_unchanged && self.wave == 0
    }

    /// Whether servers without a change have used up the canary: only servers that are expected to
    /// install something can complete it.
    fn needs_expected_changes(&self) -> bool {
        self.waits_for_canary() && self.successes() + self.in_progress() >= self.canary()
    }

    /// Whether the canary changed nothing, and none of the servers that could start is expected to.
    fn canary_cannot_complete(&self, free: &dyn Fn(ServerId) -> bool) -> bool {
        let next = self.next_in_turn(free);
        self.needs_expected_changes()
            && self.in_progress() == 0
            && next.is_some_and(|server| !self.expected.contains(&server))
    }

    /// How many more tasks may be in progress, regardless of the stagger.
    fn free_slots(&self) -> usize {
        let parallel = self.pace.max_parallel.map_or(usize::MAX, |at_once| at_once as usize);
        let left = self.canary().saturating_sub(self.succeeded());
        let first = if self.waits_for_canary() { left } else { usize::MAX };
        parallel.min(first).saturating_sub(self.in_progress()).min(self.left_in_wave())
    }

    /// The reason for which it must halt, given the number of `failures` that no user has accepted.
    fn halt_reason(&self, failures: usize) -> Option<HaltReason> {
        let allowed =
            self.pace.max_failures.map_or(usize::MAX, |share| share.resolve(self.total()) as usize);
        let failed_first = failures > 0 && self.canary_incomplete();
        let too_many = failures > 0 && failures >= allowed;
        failed_first
            .then_some(HaltReason::CanaryFailed)
            .or_else(|| too_many.then_some(HaltReason::TooManyFailures))
    }

    fn new_failures(&self) -> usize {
        let fresh = |server: &ServerId| !self.accepted_failures.contains(server);
        self.tasks.iter().filter(|(server, seen)| seen.is_failure() && fresh(server)).count()
    }

    fn stagger(&self) -> SignedDuration {
        SignedDuration::from_mins(i64::from(self.pace.stagger_minutes))
    }

    fn window_end(&self) -> Timestamp {
        let total = i64::from(self.total());
        let in_turn = SignedDuration::from_mins(i64::from(self.pace.stagger_minutes) * (total - 1));
        let rounds = self.pace.max_parallel.map_or(1, |at_once| self.total().div_ceil(at_once));
        let in_rounds = SignedDuration::from_hours(i64::from(rounds) - 1);
        let waves = self.waves();
        let soaks = waves.iter().rev().skip(1).map(|(_, wave)| i64::from(wave.soak_minutes));
        let soaks = SignedDuration::from_mins(soaks.sum());
        let approvals = waves.iter().filter(|(_, wave)| wave.approval).count() as i32;
        self.starts_at
            + match self.pace.window_minutes {
                Some(minutes) => SignedDuration::from_mins(i64::from(minutes)),
                None => {
                    in_turn.max(in_rounds).max(SignedDuration::ZERO)
                        + soaks
                        + APPROVAL_WAIT * approvals
                        + OFFLINE_WAIT
                }
            }
    }

    fn check_start(
        &self,
        server: ServerId,
        at: Moment,
        free: &dyn Fn(ServerId) -> bool,
    ) -> Option<String> {
        let too_soon = self.last_start.is_some_and(|last| {
            !at.set_forward_since(last) && at.real.duration_since(last.real) < self.stagger()
        });
        let jumped = self.clock_untrusted(at);
        let overdue = self.tasks.values().filter_map(|seen| self.deadline(*seen, at));
        violation_unless(matches!(self.tasks[&server], TaskRecord::Waiting), "started twice")
            .or(violation_unless(
                self.phase == Phase::Running,
                "started while the rollout was not running",
            ))
            .or(violation_unless(free(server), "started while offline or busy elsewhere"))
            .or(violation_unless(self.next_in_turn(free) == Some(server), "started out of turn"))
            .or(violation_unless(!self.lacks_approval(), "started without an approval"))
            .or(violation_unless(
                self.unhealthy_wave().is_none(),
                "started although too many servers are unhealthy",
            ))
            .or(violation_unless(self.soaks_since.is_none(), "started while the wave soaks"))
            .or(violation_unless(self.left_in_wave() > 0, "started before its wave"))
            .or(violation_unless(
                self.free_slots() > 0,
                "started more servers than canary or max_parallel allows",
            ))
            .or(violation_unless(
                !self.needs_expected_changes() || self.expected.contains(&server),
                "started after a canary that changed nothing",
            ))
            .or(violation_unless(
                self.halt_reason(self.new_failures()).is_none(),
                "started after too many failures",
            ))
            .or(violation_unless(
                overdue.min().is_none_or(|by| by > at.real),
                "started before an overdue task timed out",
            ))
            .or(violation_unless(!too_soon, "started too soon after the previous server"))
            .or(violation_unless(
                jumped || at.real >= self.starts_at,
                "started before the start time",
            ))
            .or(violation_unless(jumped || at.real < self.window_end(), "started after the window"))
    }

    fn check_timeout(&self, server: ServerId, at: Moment) -> Option<String> {
        let TaskRecord::InProgress { stage, since } = self.tasks[&server] else {
            return Some("timed out while not in progress".into());
        };
        let had = at.real.duration_since(since.real);
        let unheard = self.grace_period.is_some_and(|grace| {
            !at.set_forward_since(grace.since) && at.real < grace.since.real + grace.patience
        });
        violation_unless(
            at.set_forward_since(since) || had >= stage_limit(stage),
            "timed out too early",
        )
        .or(violation_unless(!unheard, "timed out within the grace period"))
    }

    fn check_window_closed(&self, at: Moment) -> Option<String> {
        violation_unless(
            self.clock_untrusted(at) || at.real >= self.window_end(),
            "window closed too early",
        )
    }

    fn check_change(&self, change: Change, at: Moment) -> Option<String> {
        match change {
            Change::Start => {
                let due = self.clock_untrusted(at) || at.real >= self.starts_at;
                violation_unless(
                    due && self.phase == Phase::Scheduled,
                    "began before the start time",
                )
            }
            // Which of the accepted failures were corrected since is not tracked here: halting once
            // too often is on the safe side.
            Change::Halt(HaltReason::HealthDegraded { wave }) => {
                let compared = self.comparable() == 0
                    || self.exceeded_at.is_some_and(|since| {
                        at.set_forward_since(since)
                            || at.real.duration_since(since.real) >= COMPARISON
                    });
                violation_unless(
                    self.unhealthy_wave().is_some_and(|it| it + 1 == wave as usize),
                    "halted although no servers are unhealthy",
                )
                .or(violation_unless(
                    self.unhealthy_wave().is_some_and(|it| !self.is_fleet_wide(it)),
                    "blamed the change for a fleet-wide problem",
                ))
                .or(violation_unless(compared, "blamed the change before others could report"))
            }
            Change::Halt(HaltReason::FleetWideDegradation { wave }) => violation_unless(
                self.unhealthy_wave()
                    .is_some_and(|it| it + 1 == wave as usize && self.is_fleet_wide(it)),
                "paused for a problem that is not fleet-wide",
            ),
            Change::Halt(HaltReason::HealthUnknown { wave }) => {
                let late = self.last_reports_by(at).is_none_or(|by| {
                    self.soaks_since.is_none_or(|since| at.set_forward_since(since))
                        || by <= at.real
                });
                violation_unless(
                    self.wave + 1 == wave as usize
                        && self.wave_is_over()
                        && self.unhealthy_wave().is_none()
                        && self.health_is_unknown(),
                    "halted for unknown health although it is known",
                )
                .or(violation_unless(
                    !self.lacks_reports() || late,
                    "halted for unknown health before the last reports",
                ))
            }
            Change::HealthExceeded => violation_unless(
                self.phase == Phase::Running
                    && self.unhealthy_wave().is_some()
                    && self.exceeded_at.is_none(),
                "found too many unhealthy servers where there are none",
            ),
            Change::HealthRecovered => violation_unless(
                self.unhealthy_wave().is_none() && self.exceeded_at.is_some(),
                "found its servers healthy again although they are not",
            ),
            Change::Halt(HaltReason::CanaryFailed | HaltReason::TooManyFailures) => {
                let forgiven = self.accepted_failures.len().saturating_sub(self.corrected);
                let fresh = self.failures().saturating_sub(forgiven);
                violation_unless(self.halt_reason(fresh).is_some(), "halted without a reason")
            }
            Change::CanaryUnchanged => violation_unless(
                self.phase == Phase::Running
                    && self.needs_expected_changes()
                    && self.in_progress() == 0,
                "marked the canary unchanged although it can still succeed",
            ),
            Change::End(end) => violation_unless(
                self.expected_outcome() == Some(end),
                &format!("ended as {end:?}, but should be {:?}", self.expected_outcome()),
            ),
            Change::WaveEnded => violation_unless(
                self.phase == Phase::Running
                    && self.wave_is_over()
                    && self.must_soak()
                    && self.soaks_since.is_none(),
                "began to soak although the wave is not over",
            ),
            Change::NextWave => {
                let soaked = match self.soaks_since {
                    Some(since) => {
                        at.set_forward_since(since)
                            || at.real.duration_since(since.real) >= self.soak()
                    }
                    None => !self.must_soak(),
                };
                violation_unless(
                    self.phase == Phase::Running && self.wave_is_over(),
                    "opened the next wave before this one is over",
                )
                .or(violation_unless(
                    self.unhealthy_wave().is_none(),
                    "opened the next wave after an unhealthy one",
                ))
                .or(violation_unless(
                    !self.health_is_unknown(),
                    "opened the next wave although the health of this one is unknown",
                ))
                .or(violation_unless(
                    !self.lacks_reports()
                        || self.soaks_since.is_none_or(|since| at.set_forward_since(since))
                        || self.last_reports_by(at).is_none_or(|by| by <= at.real),
                    "opened the next wave before the last reports",
                ))
                .or(violation_unless(soaked, "opened the next wave before the end of the soak"))
            }
            Change::AskApproval => violation_unless(
                self.phase == Phase::Running && self.lacks_approval(),
                "asked for an approval that is not needed",
            ),
            Change::Approve | Change::Reject => violation_unless(
                self.phase == Phase::AwaitingApproval,
                "took an answer that it did not ask for",
            ),
            Change::Pause
            | Change::Resume
            | Change::Cancel
            | Change::ClockWentBack { .. }
            | Change::ClockSet(_) => None,
        }
    }

    fn apply_change(&mut self, change: Change, into: Phase, at: Moment) {
        if let (Phase::Halted(why), Change::Resume) = (self.phase, change) {
            let failed_anew = self.new_failures() > 0;
            let failed = self.tasks.iter().filter(|(_, seen)| seen.is_failure());
            self.accepted_failures = failed.map(|(server, _)| *server).collect();
            self.corrected = 0;
            self.canary_waived |= failed_anew && why == HaltReason::CanaryFailed;
            let waves = 0..self.waves().len();
            self.accepted_health = waves.map(|wave| (wave, self.unhealthy(wave).len())).collect();
            self.exceeded_at = None;
            self.unknown_accepted |= matches!(why, HaltReason::HealthUnknown { .. });
        }
        match change {
            Change::WaveEnded => self.soaks_since = Some(at),
            Change::NextWave => {
                self.wave += 1;
                self.soaks_since = None;
                self.unknown_accepted = false;
            }
            Change::Approve => _ = self.approved.insert(self.wave),
            Change::HealthExceeded => self.exceeded_at = Some(at),
            Change::HealthRecovered => self.exceeded_at = None,
            _ => {}
        }
        self.phase = match (self.phase, change) {
            (_, Change::AskApproval) => Phase::AwaitingApproval,
            (_, Change::Approve) => Phase::Running,
            (_, Change::Reject) => Phase::Canceling,
            (_, Change::Start) => Phase::Running,
            (same @ Phase::Halted(_), Change::Pause) => same,
            (_, Change::Pause) => Phase::Paused,
            (Phase::Scheduled, Change::Resume) => Phase::Scheduled,
            // Whether the start time has come depends on the clock, and after a jump it is
            // uncertain.
            (Phase::Paused, Change::Resume) if self.clock_untrusted(at) => into,
            (Phase::Paused, Change::Resume) if at.real < self.starts_at => Phase::Scheduled,
            (_, Change::Resume) => Phase::Running,
            (_, Change::Cancel) => Phase::Canceling,
            (_, Change::Halt(why)) => Phase::Halted(why),
            (_, Change::End(end)) => Phase::Ended(end),
            (
                same,
                Change::CanaryUnchanged
                | Change::WaveEnded
                | Change::NextWave
                | Change::HealthExceeded
                | Change::HealthRecovered
                | Change::ClockWentBack { .. }
                | Change::ClockSet(_),
            ) => same,
        };
        self.canary_unchanged |= change == Change::CanaryUnchanged;
    }

    /// The overall result, once every task has ended.
    fn expected_outcome(&self) -> Option<RolloutOutcome> {
        if !self.tasks.values().all(|seen| matches!(seen, TaskRecord::Ended(_))) {
            return None;
        }
        let any = |which: &dyn Fn(TaskOutcome) -> bool| self.count(which) > 0;
        let skipped = |why| any(&|end| end == TaskOutcome::Skipped(why));
        let canceled = |who| any(&|end| end == TaskOutcome::Canceled(who));
        let (good, short) = (
            self.successes() > 0,
            self.failures() > 0
                || skipped(TaskSkipReason::NotApplicable)
                || skipped(TaskSkipReason::VersionUnproven),
        );
        Some(match (good, short) {
            _ if canceled(CancelReason::Person) => RolloutOutcome::Canceled,
            _ if skipped(TaskSkipReason::WindowClosed) => RolloutOutcome::Expired,
            (true, true) => RolloutOutcome::CompletedWithErrors,
            (false, true) => RolloutOutcome::Failed,
            (false, false) if canceled(CancelReason::ServerRemoved) => RolloutOutcome::Canceled,
            (_, false) => RolloutOutcome::Succeeded,
        })
    }

    /// Returns something that should have been done by now.
    fn overdue_action(&self, at: Moment, free: &dyn Fn(ServerId) -> bool) -> Option<String> {
        // After a jump it is unknown how much of a stagger has passed: at most all of it may
        // remain.
        let staggered = self.last_start.is_some_and(|last| match at.jumped_since(last) {
            true => {
                let since = last.real.max(self.clock_noticed.real);
                at.real.duration_since(since) < self.stagger() + CLOCK_TOLERANCE
            }
            false => at.real.duration_since(last.real) < self.stagger(),
        });
        let held = self.unhealthy_wave().is_some();
        let startable = self.phase == Phase::Running
            && !held
            && (self.stagger().is_zero() || !staggered)
            && self.free_slots() > 0
            && self.next_may_start(free);
        let unproven = self.phase == Phase::Running && !held && self.canary_cannot_complete(free);
        let halts = self.phase == Phase::Running
            && self.expected_outcome().is_none()
            && self.halt_reason(self.new_failures()).is_some();
        let running = self.phase == Phase::Running && self.expected_outcome().is_none();
        let waits = |server: &ServerId| matches!(self.tasks[server], TaskRecord::Waiting);
        let mut waiting = self.order.iter().filter(|server| waits(server));
        let skips = running && !halts && waiting.any(|server| self.is_unproven(*server));
        let asks = running && !halts && !held && self.lacks_approval();
        let over = running && !halts && !held && self.wave_is_over();
        let unhealthy = running && !halts && self.overdue_about_health(at);
        let soaked = over
            && self.soaks_since.is_some_and(|since| {
                let noticed = match at.jumped_since(since) {
                    true => since.real.max(self.clock_noticed.real) + CLOCK_TOLERANCE,
                    false => since.real,
                };
                at.real.duration_since(noticed) >= self.soak() && !self.lacks_reports()
            });
        let overdue = self.next_action_at(at, free).is_some_and(|due| due <= at.real);
        let canceling = self.phase == Phase::Canceling && self.has_waiting_task();
        violation_unless(!startable, "a server could start but does not")
            .or(violation_unless(!unproven, "the rest waits for a canary that changed nothing"))
            .or(violation_unless(!halts, "it should have halted"))
            .or(violation_unless(!skips, "a server without a proven version waits"))
            .or(violation_unless(!asks, "it should have asked for an approval"))
            .or(violation_unless(
                !over || self.soaks_since.is_some(),
                "the next wave should have opened",
            ))
            .or(violation_unless(!unhealthy, "it should have acted on the health of its servers"))
            .or(violation_unless(!soaked, "the wave has soaked long enough"))
            .or(violation_unless(!overdue, "something is overdue"))
            .or(violation_unless(!canceling, "a server waits in a canceled rollout"))
            .or(violation_unless(
                self.expected_outcome().is_none_or(|end| self.phase == Phase::Ended(end)),
                "it should have ended",
            ))
    }

    /// When the rollout must act next. Window times are left out while the clock is not trusted.
    fn next_action_at(&self, at: Moment, free: &dyn Fn(ServerId) -> bool) -> Option<Timestamp> {
        let late = self.tasks.values().filter_map(|seen| self.deadline(*seen, at));
        let trusted = !self.clock_untrusted(at);
        let opens = (trusted && self.phase == Phase::Scheduled).then_some(self.starts_at);
        let closes = (trusted && self.has_waiting_task()).then(|| self.window_end());
        let held = self.unhealthy_wave().is_some();
        let in_turn = self.phase == Phase::Running
            && !held
            && self.free_slots() > 0
            && !self.stagger().is_zero()
            && self.next_may_start(free);
        let next_start = self
            .last_start
            .filter(|last| in_turn && !at.jumped_since(*last))
            .map(|last| last.real + self.stagger());
        let soaked = self
            .soaks_since
            .filter(|since| self.phase == Phase::Running && !held && !at.jumped_since(*since))
            .map(|since| since.real + self.soak());
        let soaked = match self.lacks_reports() {
            true => self.last_reports_by(at).filter(|_| self.phase == Phase::Running && !held),
            false => soaked,
        };
        // While a soak goes on, its end is due first.
        let soaked = soaked.map(|due| match self.soaks_since {
            Some(since) if at.real < since.real + self.soak() => since.real + self.soak(),
            _ => due,
        });
        let judged = self
            .exceeded_at
            .filter(|since| self.phase == Phase::Running && held && !at.jumped_since(*since))
            .and_then(|since| self.after_grace_period(since.real + COMPARISON, at));
        if self.expected_outcome().is_some() {
            return None;
        }
        late.chain(opens).chain(closes).chain(next_start).chain(soaked).chain(judged).min()
    }

    // --- Health ----------------------------------------------------------------------------

    /// Whether the server is worse than before its change.
    fn is_unhealthy(&self, server: ServerId) -> bool {
        self.changed_health(server).is_some_and(|health| !health.problems.is_empty())
    }

    /// What is known about a server since its change.
    fn changed_health(&self, server: ServerId) -> Option<&TaskHealth> {
        let counted = matches!(
            self.tasks[&server],
            TaskRecord::Ended(end) if !matches!(end, TaskOutcome::Canceled(_))
        );
        self.health.get(&server).filter(|health| counted && health.changed)
    }

    fn members_of(&self, wave: usize) -> impl Iterator<Item = ServerId> + '_ {
        self.members.iter().filter(move |(_, member)| **member == wave).map(|(server, _)| *server)
    }

    fn unhealthy(&self, wave: usize) -> Vec<ServerId> {
        self.members_of(wave).filter(|server| self.is_unhealthy(*server)).collect()
    }

    /// How many servers of a wave may be unhealthy.
    fn tolerated(&self, wave: usize) -> usize {
        let size = self.waves().get(wave).map_or(0, |(size, _)| *size);
        let allowed = match self.pace.max_unhealthy {
            None => 0,
            Some(Portion::Count(count)) => count as usize,
            Some(percent) => {
                let share: usize = percent.to_string().trim_end_matches('%').parse().unwrap_or(0);
                size * share / 100
            }
        };
        allowed + self.accepted_health.get(&wave).copied().unwrap_or(0)
    }

    /// The first wave of which too many servers are unhealthy.
    fn unhealthy_wave(&self) -> Option<usize> {
        if self.pace.health != HealthMode::Gate {
            return None;
        }
        (0..=self.wave).find(|wave| self.unhealthy(*wave).len() > self.tolerated(*wave))
    }

    fn waiting_online(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.order.iter().copied().filter(|server| {
            matches!(self.tasks[server], TaskRecord::Waiting) && self.online.contains(server)
        })
    }

    /// The number of servers to compare with.
    fn comparable(&self) -> usize {
        self.waiting_online().count()
    }

    /// Whether at least a tenth of the unchanged servers have this problem too.
    fn is_shared(&self, problem: &HealthProblem) -> bool {
        let has = |server: &ServerId| {
            let known = self.health.get(server);
            known.is_some_and(|health| !health.changed && health.problems.contains(problem))
        };
        let affected = self.waiting_online().filter(has).count();
        affected > 0 && affected * 10 >= self.comparable()
    }

    /// Whether the wave has too many unhealthy servers only because of problems that unchanged
    /// servers have too.
    fn is_fleet_wide(&self, wave: usize) -> bool {
        let own = self.unhealthy(wave).into_iter().filter(|server| {
            let health = self.changed_health(*server);
            health.is_some_and(|health| health.problems.iter().any(|it| !self.is_shared(it)))
        });
        own.count() <= self.tolerated(wave)
    }

    /// The measured servers of the current wave, and whether they reported after the soak.
    fn measured(&self) -> impl Iterator<Item = (&TaskHealth, bool)> {
        self.members_of(self.wave)
            .filter_map(|server| self.changed_health(server))
            .filter(|health| !health.problems.is_empty() || health.not_measured.is_none())
            .map(|health| (health, health.soaked))
    }

    /// Whether the current wave needs a proof of its health.
    fn must_prove_health(&self) -> bool {
        let changed =
            |record: TaskRecord| matches!(record, TaskRecord::Ended(TaskOutcome::Succeeded));
        self.pace.health == HealthMode::Gate
            && !self.unknown_accepted
            && self.wave_tasks().any(changed)
    }

    /// Whether servers have not reported since the soak of the current wave.
    fn lacks_reports(&self) -> bool {
        self.must_prove_health()
            && self.soaks_since.is_some()
            && self.measured().any(|(_, soaked)| !soaked)
    }

    fn health_is_unknown(&self) -> bool {
        if !self.must_prove_health() {
            return false;
        }
        if self.soaks_since.is_none() {
            return self.measured().count() == 0;
        }
        let unproven =
            self.measured().filter(|(health, soaked)| !health.problems.is_empty() || !soaked);
        let unproven = unproven.count();
        self.measured().all(|(_, soaked)| !soaked) || unproven > self.tolerated(self.wave)
    }

    /// Until when it waits for the reports after the soak, as far as the clock can be trusted.
    fn last_reports_by(&self, at: Moment) -> Option<Timestamp> {
        let since = self.soaks_since.filter(|since| !at.jumped_since(*since))?;
        self.after_grace_period(since.real + self.soak() + LAST_REPORTS, at)
    }

    fn after_grace_period(&self, due: Timestamp, at: Moment) -> Option<Timestamp> {
        match self.grace_period {
            Some(grace) if at.jumped_since(grace.since) => None,
            Some(grace) => Some(due.max(grace.since.real + grace.patience)),
            None => Some(due),
        }
    }

    /// Whether a halt, a pause or a recovery is due.
    fn overdue_about_health(&self, at: Moment) -> bool {
        let Some(wave) = self.unhealthy_wave() else { return self.exceeded_at.is_some() };
        let Some(since) = self.exceeded_at else { return true };
        let by = self.after_grace_period(since.real + COMPARISON, at);
        let compared = !at.jumped_since(since) && by.is_some_and(|by| by <= at.real);
        self.is_fleet_wide(wave) || self.comparable() == 0 || compared
    }

    fn difference(&self, rollout: &Rollout) -> Option<String> {
        let same = |record: TaskRecord, status: TaskStatus| match (record, status) {
            (TaskRecord::Waiting, TaskStatus::Waiting) => true,
            (TaskRecord::InProgress { stage, .. }, TaskStatus::Busy(busy)) => stage == busy.stage,
            (TaskRecord::Ended(outcome), TaskStatus::Done(done)) => outcome == done.outcome,
            _ => false,
        };
        if self.phase != rollout.head().phase {
            return Some(format!("is {:?}, should be {:?}", rollout.head().phase, self.phase));
        }
        rollout.tasks().find(|(server, target)| !same(self.tasks[server], *target)).map(
            |(server, target)| format!("{server} is {target:?}, not {:?}", self.tasks[&server]),
        )
    }
}

/// Returns `what` unless `holds` is true.
fn violation_unless(holds: bool, what: &str) -> Option<String> {
    (!holds).then(|| what.to_owned())
}
