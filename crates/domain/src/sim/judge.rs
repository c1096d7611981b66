//! A test oracle: checks what must hold for rollouts, based on observed events.
//!
//! The oracle keeps its own records: it stores every event and every change with code that is
//! independent of the planner, and recounts everything for every check. It never looks at a
//! rollout's counts, limits, queues or head. It knows the real time; where the control plane's
//! clock jumped in between, it makes no claims about time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, ServerId};

use super::seen::Seen;
use crate::rollout::{
    Cancel, Change, End, Event, Halt, Outcome, PATIENCE, Pace, Phase, Rollout, Skip, Target, limit,
};

/// How far a clock may be set back without being noticed.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(1);

/// A point in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) really: Timestamp,
    /// What the control plane's clock shows.
    pub(super) wall: Timestamp,
    /// How often that clock was set forward without being noticed.
    pub(super) forward: u32,
    /// How often it was set without being noticed.
    pub(super) jumps: u32,
    /// How often it was set, noticed or not.
    pub(super) settings: u32,
}

impl Moment {
    /// Whether more time may seem to have passed than really did.
    fn leapt_since(self, earlier: Moment) -> bool {
        self.forward != earlier.forward
    }

    fn jumped_since(self, earlier: Moment) -> bool {
        self.jumps != earlier.jumps
    }
}

/// A time in which the control plane received no reports, and the grace period after it.
#[derive(Debug, Clone, Copy)]
struct Deaf {
    until: Moment,
    patience: SignedDuration,
}

/// The oracle's record of one rollout.
#[derive(Clone)]
struct Case {
    pace: Pace,
    /// In start order.
    order: Vec<ServerId>,
    seen: BTreeMap<ServerId, Seen>,
    phase: Phase,
    ordered: Moment,
    opens: Timestamp,
    /// Whether it starts at a scheduled time and not immediately.
    by_calendar: bool,
    deaf: Option<Deaf>,
    /// When the control plane first read the clock after it was last set.
    noticed: Moment,
    last_start: Option<Moment>,
    forgiven: BTreeSet<ServerId>,
    /// How many timeouts proved wrong since then.
    corrected: usize,
    canary_waived: bool,
    /// Servers that are expected to install something.
    expected: BTreeSet<ServerId>,
    canary_unchanged: bool,
}

/// The records, and the violations that were found.
#[derive(Clone, Default)]
pub(super) struct Judge {
    cases: BTreeMap<BatchId, Case>,
    pub(super) broken: Vec<String>,
}

impl Judge {
    pub(super) fn ordered(&mut self, rollout: &Rollout, starts_in: SignedDuration, at: Moment) {
        let order: Vec<_> = rollout.targets().map(|(server, _)| server).collect();
        let case = Case {
            pace: rollout.head().pace.clone(),
            seen: order.iter().map(|server| (*server, Seen::Waiting)).collect(),
            expected: match rollout.head().expected {
                Some(count) => order.iter().copied().take(count as usize).collect(),
                None => order.iter().copied().collect(),
            },
            canary_unchanged: false,
            order,
            phase: Phase::Scheduled,
            ordered: at,
            noticed: at,
            opens: at.really + starts_in,
            by_calendar: !starts_in.is_zero(),
            deaf: None,
            last_start: None,
            forgiven: BTreeSet::new(),
            corrected: 0,
            canary_waived: false,
        };
        self.cases.insert(rollout.head().id, case);
    }

    /// The control plane can receive reports only from now on.
    pub(super) fn deaf(&mut self, until: Moment, patience: SignedDuration) {
        for case in self.cases.values_mut() {
            case.deaf = Some(Deaf { until, patience });
        }
    }

    /// Records and checks an event. `online`: whether a server is online and not busy, as far as
    /// the control plane knows.
    pub(super) fn happened(
        &mut self,
        of: BatchId,
        server: ServerId,
        event: Event,
        at: Moment,
        online: &dyn Fn(ServerId) -> bool,
    ) {
        let free = |server| online(server) && !self.in_work_elsewhere(of, server);
        let case = &self.cases[&of];
        let wrong = match event {
            Event::Offered => case.wrong_to_start(server, at, &free),
            Event::DeadlinePassed => case.wrong_to_give_up(server, at),
            Event::WindowClosed => case.wrong_to_close(at),
            Event::Canceled => {
                not(case.phase == Phase::Canceling, "canceled without a user's request")
            }
            Event::ServerRemoved | Event::Reached(_) | Event::Reported(_) => None,
            Event::GivenBack => Some("an agent never reports this".into()),
            Event::Forgotten => Some("no backup was restored".into()),
        };
        self.broken.extend(wrong.map(|wrong| format!("{server} of {of}: {wrong}")));
        let case = self.cases.get_mut(&of).expect("ordered");
        if event == Event::Offered {
            case.last_start = Some(at);
        }
        if let Some(seen) = case.seen.get_mut(&server) {
            let before = std::mem::replace(seen, seen.after(event, case.phase, at));
            case.corrected += usize::from(before.is_failure() && !seen.is_failure());
        }
    }

    /// Records and checks a change of a rollout that led to this phase.
    pub(super) fn changed(&mut self, of: BatchId, change: Change, into: Phase, at: Moment) {
        let case = self.cases.get_mut(&of).expect("ordered");
        self.broken.extend(case.wrong_to_change(change, at).map(|wrong| format!("{of}: {wrong}")));
        case.changed(change, into, at);
    }

    /// Checks a rollout whose plans were all carried out; it will be planned again at `wake_at`.
    pub(super) fn settled(
        &mut self,
        rollout: &Rollout,
        wake_at: Option<Timestamp>,
        at: Moment,
        online: &dyn Fn(ServerId) -> bool,
    ) {
        let of = rollout.head().id;
        let case = self.cases.get_mut(&of).expect("ordered");
        if at.jumped_since(case.noticed) {
            case.noticed = at;
        }
        let free = |server| online(server) && !self.in_work_elsewhere(of, server);
        let case = &self.cases[&of];
        let undone = case.undone(at, &free);
        let wakes = wake_at.map(|wake_at| at.really + wake_at.duration_since(at.wall));
        let due = case.due(at, &free);
        let late = match (due, wakes) {
            (Some(due), Some(wakes)) => wakes > due,
            (due, None) => due.is_some(),
            (None, Some(_)) => false,
        };
        let overslept = late.then(|| format!("wakes at {wakes:?}, but must act at {due:?}"));
        let differs = case.differs(rollout);
        let wrong = [undone, overslept, differs].into_iter().flatten();
        self.broken.extend(wrong.map(|wrong| format!("{of}: {wrong}")));
    }

    fn in_work_elsewhere(&self, of: BatchId, server: ServerId) -> bool {
        self.cases
            .iter()
            .filter(|(other, _)| **other != of)
            .any(|(_, case)| matches!(case.seen.get(&server), Some(Seen::InWork { .. })))
    }
}

impl Case {
    fn count(&self, which: impl Fn(Outcome) -> bool) -> usize {
        self.seen.values().filter(|seen| matches!(seen, Seen::Ended(end) if which(*end))).count()
    }

    fn good(&self) -> usize {
        self.count(|end| matches!(end, Outcome::Succeeded | Outcome::NoChange))
    }

    fn failures(&self) -> usize {
        self.seen.values().filter(|seen| seen.is_failure()).count()
    }

    fn in_work(&self) -> usize {
        self.seen.values().filter(|seen| matches!(seen, Seen::InWork { .. })).count()
    }

    fn next_in_turn(&self, free: &dyn Fn(ServerId) -> bool) -> Option<ServerId> {
        let waits = |server: &ServerId| matches!(self.seen[server], Seen::Waiting);
        self.order.iter().copied().find(|server| waits(server) && free(*server))
    }

    fn next_may_start(&self, free: &dyn Fn(ServerId) -> bool) -> bool {
        let may = |server| !self.wants_expected() || self.expected.contains(&server);
        self.next_in_turn(free).is_some_and(may)
    }

    /// The deadline of a task, as far as the clock can be trusted.
    fn until(&self, seen: Seen, at: Moment) -> Option<Timestamp> {
        let heard = match self.deaf {
            Some(deaf) if at.jumped_since(deaf.until) => return None,
            Some(deaf) => deaf.until.really + deaf.patience,
            None => Timestamp::MIN,
        };
        match seen {
            Seen::InWork { stage, since } if !at.jumped_since(since) => {
                Some(heard.max(since.really + limit(stage)))
            }
            _ => None,
        }
    }

    /// Whether its start time and window cannot be checked, because the clock was set. A
    /// rollout that started immediately is adjusted when a clock change is noticed.
    fn has_lost_the_hour(&self, at: Moment) -> bool {
        at.jumped_since(self.ordered) || self.by_calendar && at.settings != self.ordered.settings
    }

    fn someone_waits(&self) -> bool {
        self.seen.values().any(|seen| matches!(seen, Seen::Waiting))
    }

    fn total(&self) -> u32 {
        self.order.len() as u32
    }

    fn succeeded(&self) -> usize {
        self.count(|end| end == Outcome::Succeeded)
    }

    fn canary(&self) -> usize {
        let canary = self.pace.canary.map_or(0, |portion| portion.of(self.total()));
        canary.min(self.total()) as usize
    }

    fn is_unproven(&self) -> bool {
        !self.canary_waived && self.succeeded() < self.canary()
    }

    fn canary_is_out(&self) -> bool {
        self.is_unproven() && !self.canary_unchanged
    }

    /// Whether servers without a change have used up the canary: only servers that are expected to
    /// install something can complete it.
    fn wants_expected(&self) -> bool {
        self.canary_is_out() && self.good() + self.in_work() >= self.canary()
    }

    /// Whether the canary changed nothing, and none of the servers that could start is expected to.
    fn nobody_can_prove(&self, free: &dyn Fn(ServerId) -> bool) -> bool {
        let next = self.next_in_turn(free);
        self.wants_expected()
            && self.in_work() == 0
            && next.is_some_and(|server| !self.expected.contains(&server))
    }

    /// How many more tasks may be in progress, regardless of the stagger.
    fn room(&self) -> usize {
        let parallel = self.pace.max_parallel.map_or(usize::MAX, |at_once| at_once as usize);
        let left = self.canary().saturating_sub(self.succeeded());
        let first = if self.canary_is_out() { left } else { usize::MAX };
        parallel.min(first).saturating_sub(self.in_work())
    }

    /// The reason for which it must halt, given the number of `failures` that no user has accepted.
    fn halt(&self, failures: usize) -> Option<Halt> {
        let allowed =
            self.pace.max_failures.map_or(usize::MAX, |share| share.of(self.total()) as usize);
        let failed_first = failures > 0 && self.is_unproven();
        let too_many = failures > 0 && failures >= allowed;
        failed_first
            .then_some(Halt::CanaryFailed)
            .or_else(|| too_many.then_some(Halt::TooManyFailures))
    }

    fn fresh_failures(&self) -> usize {
        let fresh = |server: &ServerId| !self.forgiven.contains(server);
        self.seen.iter().filter(|(server, seen)| seen.is_failure() && fresh(server)).count()
    }

    fn stagger(&self) -> SignedDuration {
        SignedDuration::from_mins(i64::from(self.pace.stagger_minutes))
    }

    fn closes(&self) -> Timestamp {
        let total = i64::from(self.total());
        let in_turn = SignedDuration::from_mins(i64::from(self.pace.stagger_minutes) * (total - 1));
        let rounds = self.pace.max_parallel.map_or(1, |at_once| self.total().div_ceil(at_once));
        let in_rounds = SignedDuration::from_hours(i64::from(rounds) - 1);
        self.opens
            + match self.pace.window_minutes {
                Some(minutes) => SignedDuration::from_mins(i64::from(minutes)),
                None => in_turn.max(in_rounds).max(SignedDuration::ZERO) + PATIENCE,
            }
    }

    fn wrong_to_start(
        &self,
        server: ServerId,
        at: Moment,
        free: &dyn Fn(ServerId) -> bool,
    ) -> Option<String> {
        let too_soon = self.last_start.is_some_and(|last| {
            !at.leapt_since(last) && at.really.duration_since(last.really) < self.stagger()
        });
        let jumped = self.has_lost_the_hour(at);
        let overdue = self.seen.values().filter_map(|seen| self.until(*seen, at));
        not(matches!(self.seen[&server], Seen::Waiting), "started twice")
            .or(not(self.phase == Phase::Running, "started while the rollout was not running"))
            .or(not(free(server), "started while offline or busy elsewhere"))
            .or(not(self.next_in_turn(free) == Some(server), "started out of turn"))
            .or(not(self.room() > 0, "started beyond the canary or max_parallel"))
            .or(not(
                !self.wants_expected() || self.expected.contains(&server),
                "started after a canary that changed nothing",
            ))
            .or(not(self.halt(self.fresh_failures()).is_none(), "started after too many failures"))
            .or(not(
                overdue.min().is_none_or(|by| by > at.really),
                "started before an overdue task timed out",
            ))
            .or(not(!too_soon, "started too soon after the previous server"))
            .or(not(jumped || at.really >= self.opens, "started before the start time"))
            .or(not(jumped || at.really < self.closes(), "started after the window"))
    }

    fn wrong_to_give_up(&self, server: ServerId, at: Moment) -> Option<String> {
        let Seen::InWork { stage, since } = self.seen[&server] else {
            return Some("timed out while not in progress".into());
        };
        let had = at.really.duration_since(since.really);
        let unheard = self.deaf.is_some_and(|deaf| {
            !at.leapt_since(deaf.until) && at.really < deaf.until.really + deaf.patience
        });
        not(at.leapt_since(since) || had >= limit(stage), "timed out too early")
            .or(not(!unheard, "timed out within the grace period"))
    }

    fn wrong_to_close(&self, at: Moment) -> Option<String> {
        not(self.has_lost_the_hour(at) || at.really >= self.closes(), "window closed too early")
    }

    fn wrong_to_change(&self, change: Change, at: Moment) -> Option<String> {
        match change {
            Change::Start => {
                let due = self.has_lost_the_hour(at) || at.really >= self.opens;
                not(due && self.phase == Phase::Scheduled, "began before the start time")
            }
            // Which of the accepted failures were corrected since is not tracked here: halting once
            // too often is on the safe side.
            Change::Halt(_) => {
                let forgiven = self.forgiven.len().saturating_sub(self.corrected);
                let fresh = self.failures().saturating_sub(forgiven);
                not(self.halt(fresh).is_some(), "halted without a reason")
            }
            Change::CanaryUnchanged => not(
                self.phase == Phase::Running && self.wants_expected() && self.in_work() == 0,
                "marked the canary unchanged although it can still succeed",
            ),
            Change::End(end) => not(
                self.end() == Some(end),
                &format!("ended as {end:?}, but should be {:?}", self.end()),
            ),
            Change::Pause
            | Change::Resume
            | Change::Cancel
            | Change::ClockWentBack { .. }
            | Change::ClockSet(_) => None,
        }
    }

    fn changed(&mut self, change: Change, into: Phase, at: Moment) {
        if let (Phase::Halted(why), Change::Resume) = (self.phase, change) {
            let failed_anew = self.fresh_failures() > 0;
            let failed = self.seen.iter().filter(|(_, seen)| seen.is_failure());
            self.forgiven = failed.map(|(server, _)| *server).collect();
            self.corrected = 0;
            self.canary_waived |= failed_anew && why == Halt::CanaryFailed;
        }
        self.phase = match (self.phase, change) {
            (_, Change::Start) => Phase::Running,
            (_, Change::Pause) => Phase::Paused,
            (Phase::Scheduled, Change::Resume) => Phase::Scheduled,
            // Whether the start time has come depends on the clock, and after a jump it is
            // uncertain.
            (Phase::Paused, Change::Resume) if self.has_lost_the_hour(at) => into,
            (Phase::Paused, Change::Resume) if at.really < self.opens => Phase::Scheduled,
            (_, Change::Resume) => Phase::Running,
            (_, Change::Cancel) => Phase::Canceling,
            (_, Change::Halt(why)) => Phase::Halted(why),
            (_, Change::End(end)) => Phase::Ended(end),
            (
                same,
                Change::CanaryUnchanged | Change::ClockWentBack { .. } | Change::ClockSet(_),
            ) => same,
        };
        self.canary_unchanged |= change == Change::CanaryUnchanged;
    }

    /// The overall result, once every task has ended.
    fn end(&self) -> Option<End> {
        if !self.seen.values().all(|seen| matches!(seen, Seen::Ended(_))) {
            return None;
        }
        let any = |which: &dyn Fn(Outcome) -> bool| self.count(which) > 0;
        let skipped = |why| any(&|end| end == Outcome::Skipped(why));
        let canceled = |who| any(&|end| end == Outcome::Canceled(who));
        let (good, short) = (self.good() > 0, self.failures() > 0 || skipped(Skip::NotApplicable));
        Some(match (good, short) {
            _ if canceled(Cancel::Person) => End::Canceled,
            _ if skipped(Skip::WindowClosed) => End::Expired,
            (true, true) => End::CompletedWithErrors,
            (false, true) => End::Failed,
            (false, false) if canceled(Cancel::ServerRemoved) => End::Canceled,
            (_, false) => End::Succeeded,
        })
    }

    /// Returns something that should have been done by now.
    fn undone(&self, at: Moment, free: &dyn Fn(ServerId) -> bool) -> Option<String> {
        // After a jump it is unknown how much of a stagger has passed: at most all of it may
        // remain.
        let staggered = self.last_start.is_some_and(|last| match at.jumped_since(last) {
            true => {
                let since = last.really.max(self.noticed.really);
                at.really.duration_since(since) < self.stagger() + CLOCK_TOLERANCE
            }
            false => at.really.duration_since(last.really) < self.stagger(),
        });
        let startable = self.phase == Phase::Running
            && (self.stagger().is_zero() || !staggered)
            && self.room() > 0
            && self.next_may_start(free);
        let unproven = self.phase == Phase::Running && self.nobody_can_prove(free);
        let halts = self.phase == Phase::Running
            && self.end().is_none()
            && self.halt(self.fresh_failures()).is_some();
        let overdue = self.due(at, free).is_some_and(|due| due <= at.really);
        let canceling = self.phase == Phase::Canceling && self.someone_waits();
        not(!startable, "a server could start but does not")
            .or(not(!unproven, "the rest waits for a canary that changed nothing"))
            .or(not(!halts, "it should have halted"))
            .or(not(!overdue, "something is overdue"))
            .or(not(!canceling, "a server waits in a canceled rollout"))
            .or(not(
                self.end().is_none_or(|end| self.phase == Phase::Ended(end)),
                "it should have ended",
            ))
    }

    /// When something must be done next, as far as the clock can be trusted.
    fn due(&self, at: Moment, free: &dyn Fn(ServerId) -> bool) -> Option<Timestamp> {
        let late = self.seen.values().filter_map(|seen| self.until(*seen, at));
        let trusted = !self.has_lost_the_hour(at);
        let opens = (trusted && self.phase == Phase::Scheduled).then_some(self.opens);
        let closes = (trusted && self.someone_waits()).then(|| self.closes());
        let in_turn = self.phase == Phase::Running
            && self.room() > 0
            && !self.stagger().is_zero()
            && self.next_may_start(free);
        let next_start = self
            .last_start
            .filter(|last| in_turn && !at.jumped_since(*last))
            .map(|last| last.really + self.stagger());
        if self.end().is_some() {
            return None;
        }
        late.chain(opens).chain(closes).chain(next_start).min()
    }

    fn differs(&self, rollout: &Rollout) -> Option<String> {
        let same = |seen: Seen, target: Target| match (seen, target) {
            (Seen::Waiting, Target::Waiting) => true,
            (Seen::InWork { stage, .. }, Target::Busy(busy)) => stage == busy.stage,
            (Seen::Ended(outcome), Target::Done(done)) => outcome == done.outcome,
            _ => false,
        };
        if self.phase != rollout.head().phase {
            return Some(format!("is {:?}, should be {:?}", rollout.head().phase, self.phase));
        }
        rollout
            .targets()
            .find(|(server, target)| !same(self.seen[server], *target))
            .map(|(server, target)| format!("{server} is {target:?}, not {:?}", self.seen[&server]))
    }
}

/// Returns `what` unless `holds` is true.
fn not(holds: bool, what: &str) -> Option<String> {
    (!holds).then(|| what.to_owned())
}
