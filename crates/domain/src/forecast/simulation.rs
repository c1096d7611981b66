//! Runs the production planner over the fleet, on a clock that jumps from event to event.
//!
//! What a batch does next is decided by [`plan`], what is due by [`schedule::due`], and what is
//! frozen by the freezes, as in production. This module only plays the part of the world: servers
//! come and go, and tasks end after their estimated durations. At the same instant, tasks end
//! before servers come or go, freezes change, schedules become due and batches are planned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, RebootPolicy, Selector, ServerId, SkipReason, Stage};

use super::coverage::{Obstacles, Selected, gap, selections};
use super::durations::ESTIMATE_MAX;
use super::presence::{HOURS, hour_of_week, next_hour};
use super::{
    Approval, Fleet, Forecast, GapReason, Install, Left, NotPatched, Order, Origin, PatchOutlook,
    RUNS_MAX, Reboots, Run, RunResult, STEPS_MAX, ServerForecast, UpdateSet, assumptions,
};
use crate::rollout::{
    Change, Phase, Plan, ReportedResult, Rollout, ServerCondition, StartOrder, TaskEvent,
    TaskStatus, plan,
};
use crate::schedule::{self, LATE_WINDOW, Progress};
use crate::selector;
use crate::server::ServerFacts;

/// How far a closed window is extended to find out by how much it is too short.
const EXTENSION: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A task that takes longer reports a second stage, so that it does not exceed the limit of one.
const STAGE_ESTIMATE: SignedDuration = SignedDuration::from_mins(110);

/// What happens next. The order of the variants is the order at the same instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The task of a server ends.
    TaskEnds { run: usize, server: u32 },
    /// A long task reaches its second stage.
    TaskInstalls { run: usize, server: u32 },
    /// An hour begins in which servers come or go.
    Hour,
    /// A freeze begins or ends.
    Freezes,
    /// A schedule is due.
    Schedule(usize),
    /// A batch is planned again.
    Plan { run: usize },
}

/// A batch that has not ended.
struct Open {
    rollout: Rollout,
    wake_at: Option<Timestamp>,
}

/// The state of a server.
struct Host {
    online: bool,
    frozen_until: Option<Timestamp>,
    /// The run that works on it.
    busy_in: Option<usize>,
    /// When its task ends.
    ends_at: Timestamp,
    /// Pending updates that are not installed yet.
    remaining: UpdateSet,
    needs_reboot: bool,
    /// The open runs that it is part of.
    member_of: Vec<usize>,
    first: Option<Install>,
    last: Option<Install>,
    /// A run that installs selected it, and started on it.
    due: bool,
    started: bool,
    obstacles: Obstacles,
}

struct FreezeState {
    members: Vec<u32>,
    until: Option<Timestamp>,
    next_change: Option<Timestamp>,
}

struct Simulation<'a> {
    fleet: &'a Fleet,
    now: Timestamp,
    until: Timestamp,
    queue: BinaryHeap<Reverse<(Timestamp, Event)>>,
    hosts: Vec<Host>,
    numbers: BTreeMap<ServerId, u32>,
    /// The servers of each schedule, in start order.
    members: Vec<Vec<u32>>,
    selected: Vec<Selected>,
    freezes: Vec<FreezeState>,
    /// The freezes of each server.
    freezes_of: Vec<Vec<u32>>,
    /// Hours of the week in which servers come or go.
    changing_hours: Vec<Vec<u32>>,
    runs: Vec<Run>,
    /// The open batch of each run.
    open: Vec<Option<Open>>,
    dirty: BTreeSet<usize>,
    /// The last handled instant and the unfinished run of each schedule.
    handled: Vec<Timestamp>,
    unfinished: Vec<Option<usize>>,
    days: BTreeMap<jiff::civil::Date, super::Day>,
    steps: u64,
    /// Presence follows the patterns, after the first full hour.
    patterns_apply: bool,
    from: Timestamp,
}

/// Forecasts the time from `now` to `until`.
pub(super) fn run(fleet: &Fleet, now: Timestamp, until: Timestamp) -> Forecast {
    let mut simulation = Simulation::new(fleet, now, until);
    simulation.open_batches();
    simulation.queue_first_events();
    let ended_early = simulation.run();
    simulation.finish(ended_early)
}

impl<'a> Simulation<'a> {
    fn new(fleet: &'a Fleet, now: Timestamp, until: Timestamp) -> Simulation<'a> {
        let numbers: BTreeMap<ServerId, u32> =
            (0_u32..).zip(&fleet.servers).map(|(number, one)| (one.facts.id, number)).collect();
        // Many schedules select the same servers.
        let mut known: Vec<(&Selector, Vec<u32>)> = Vec::new();
        let mut members_of = |targets: &'a Selector| {
            if let Some((_, members)) = known.iter().find(|(one, _)| *one == targets) {
                return members.clone();
            }
            let ids = selector::select(targets, fleet.servers.iter().map(|server| &server.facts));
            let members: Vec<u32> = ids.iter().filter_map(|id| numbers.get(id).copied()).collect();
            known.push((targets, members.clone()));
            members
        };
        let members: Vec<Vec<u32>> =
            fleet.schedules.iter().map(|schedule| members_of(&schedule.targets)).collect();
        let freezes: Vec<FreezeState> = fleet
            .freezes
            .iter()
            .map(|freeze| FreezeState {
                members: members_of(&freeze.targets),
                until: None,
                next_change: Some(now),
            })
            .collect();
        let mut freezes_of = vec![Vec::new(); fleet.servers.len()];
        for (number, freeze) in (0_u32..).zip(&freezes) {
            for server in &freeze.members {
                freezes_of[*server as usize].push(number);
            }
        }
        let mut changing_hours = vec![Vec::new(); HOURS];
        for (number, server) in (0_u32..).zip(&fleet.servers) {
            for (hour, changing) in changing_hours.iter_mut().enumerate() {
                if server.presence.changes_at(hour) {
                    changing.push(number);
                }
            }
        }
        let hosts = fleet.servers.iter().map(|server| Host {
            online: server.presence.is_online_now() && !server.quarantined,
            frozen_until: None,
            busy_in: None,
            ends_at: now,
            remaining: server
                .kind
                .and_then(|kind| fleet.kinds.get(kind))
                .map(|kind| kind.installable.clone())
                .unwrap_or_default(),
            needs_reboot: server.reboot_required,
            member_of: Vec::new(),
            first: None,
            last: None,
            due: false,
            started: false,
            obstacles: Obstacles::default(),
        });
        Simulation {
            hosts: hosts.collect(),
            selected: selections(fleet, &members),
            numbers,
            members,
            freezes,
            freezes_of,
            changing_hours,
            queue: BinaryHeap::new(),
            runs: Vec::new(),
            open: Vec::new(),
            dirty: BTreeSet::new(),
            handled: vec![now; fleet.schedules.len()],
            unfinished: vec![None; fleet.schedules.len()],
            days: BTreeMap::new(),
            steps: 0,
            patterns_apply: false,
            from: now,
            fleet,
            now,
            until,
        }
    }

    /// Takes over the batches that are open now. Tasks in progress end after the rest of their
    /// estimated durations.
    fn open_batches(&mut self) {
        let fleet = self.fleet;
        for (number, batch) in fleet.batches.iter().enumerate() {
            let run = self.runs.len();
            let mut rollout = batch.rollout.clone().without_health();
            if let Some(schedule) = batch.schedule {
                self.unfinished[schedule] = Some(run);
            }
            let mut servers = 0;
            let tasks: Vec<(ServerId, TaskStatus)> = rollout.tasks().collect();
            for (id, status) in tasks {
                let Some(number) = self.numbers.get(&id).copied() else { continue };
                servers += 1;
                if matches!(status, TaskStatus::Done(_)) {
                    continue;
                }
                self.hosts[number as usize].member_of.push(run);
                if let TaskStatus::Busy(_) = status {
                    // It counts as installing; a task that would exceed its deadline ends before.
                    let reached = TaskEvent::Reached(Stage::Installing);
                    let status = rollout.apply_event(id, reached, self.now);
                    let Ok(TaskStatus::Busy(busy)) = status else { continue };
                    let duration = self.duration(number, &batch.order);
                    let ends_at = (busy.started_at + duration).min(busy.by).max(self.now);
                    let host = &mut self.hosts[number as usize];
                    (host.busy_in, host.ends_at) = (Some(run), ends_at);
                    host.started |= batch.schedule.is_some() && !batch.order.dry_run;
                    self.push(ends_at, Event::TaskEnds { run, server: number });
                }
            }
            self.runs.push(Run {
                origin: Origin::Batch(number),
                at: rollout.head().starts_at,
                result: RunResult::Open,
                servers,
                started: 0,
                installed: 0,
                left: None,
                approval: None,
                reboots: Reboots::default(),
            });
            self.open.push(Some(Open { rollout, wake_at: None }));
            self.dirty.insert(run);
        }
        for number in 0..self.hosts.len() {
            self.update_conditions(number as u32, None);
        }
    }

    fn queue_first_events(&mut self) {
        for (number, schedule) in self.fleet.schedules.iter().enumerate() {
            let Some(next) = schedule.next_run_at.filter(|_| schedule.enabled) else { continue };
            // The stored instant is the first one that has not been handled.
            self.handled[number] =
                next.checked_sub(SignedDuration::from_micros(1)).unwrap_or(Timestamp::MIN);
            self.push(next.max(self.now), Event::Schedule(number));
        }
        if !self.freezes.is_empty() {
            self.push(self.now, Event::Freezes);
        }
        // After the current hour, presence follows the patterns.
        if let Some(at) = next_hour(self.now) {
            self.push(at, Event::Hour);
        }
    }

    fn push(&mut self, at: Timestamp, event: Event) {
        if at <= self.until {
            self.queue.push(Reverse((at, event)));
        }
    }

    /// Runs until the end. Returns the time if it has to end early.
    fn run(&mut self) -> Option<Timestamp> {
        self.plan_dirty();
        while let Some(Reverse((at, event))) = self.queue.pop() {
            self.now = at;
            self.steps += 1;
            if self.steps > STEPS_MAX || self.runs.len() >= RUNS_MAX {
                return Some(at);
            }
            match event {
                Event::TaskEnds { run, server } => self.end_task(run, server),
                Event::TaskInstalls { run, server } => self.report_installing(run, server),
                Event::Hour => self.update_presence(),
                Event::Freezes => self.update_freezes(),
                Event::Schedule(number) => self.handle_due(number),
                Event::Plan { run } => {
                    let open = self.open[run].as_ref();
                    if open.is_some_and(|open| open.wake_at == Some(at)) {
                        self.dirty.insert(run);
                    }
                }
            }
            // Plan once for everything that happens at the same instant.
            if self.queue.peek().is_none_or(|Reverse((next, _))| *next > at) {
                self.plan_dirty();
            }
        }
        None
    }

    // --- The world ---------------------------------------------------------------------------

    /// Sets which servers are online in the hour that begins.
    fn update_presence(&mut self) {
        let hour = hour_of_week(self.now);
        // At the first full hour, every server may differ from its current state.
        let is_first = !std::mem::replace(&mut self.patterns_apply, true);
        let servers: Vec<u32> = match is_first {
            true => (0..self.hosts.len() as u32).collect(),
            false => self.changing_hours[hour].clone(),
        };
        for server in servers {
            let facts = &self.fleet.servers[server as usize];
            let online = !facts.quarantined && facts.presence.is_online_at(self.now);
            let host = &mut self.hosts[server as usize];
            if host.online != online {
                host.online = online;
                self.update_conditions(server, None);
            }
        }
        let next =
            (1..=HOURS).find(|ahead| !self.changing_hours[(hour + ahead) % HOURS].is_empty());
        let next = next
            .and_then(|ahead| self.now.checked_add(SignedDuration::from_hours(ahead as i64)).ok());
        if let Some(at) = next {
            self.push(at, Event::Hour);
        }
    }

    /// Sets which servers are frozen.
    fn update_freezes(&mut self) {
        let mut affected = BTreeSet::new();
        for (state, freeze) in self.freezes.iter_mut().zip(&self.fleet.freezes) {
            if state.next_change.is_none_or(|at| at > self.now) {
                continue;
            }
            let until = freeze.timing.active_period(self.now).map(|period| period.ends_at);
            state.next_change = freeze.timing.next_change(self.now);
            if state.until != until {
                state.until = until;
                affected.extend(state.members.iter().copied());
            }
        }
        self.steps += affected.len() as u64;
        for server in affected {
            let ends = self.freezes_of[server as usize]
                .iter()
                .filter_map(|freeze| self.freezes[*freeze as usize].until);
            let frozen_until = ends.max();
            let host = &mut self.hosts[server as usize];
            if host.frozen_until != frozen_until {
                host.frozen_until = frozen_until;
                self.update_conditions(server, None);
            }
        }
        let next = self.freezes.iter().filter_map(|state| state.next_change).min();
        if let Some(at) = next.filter(|at| *at > self.now) {
            self.push(at, Event::Freezes);
        }
    }

    /// Updates what the open batches know about a server, except for the run `except`.
    fn update_conditions(&mut self, server: u32, except: Option<usize>) {
        let host = &self.hosts[server as usize];
        for run in host.member_of.iter().copied().filter(|run| Some(*run) != except) {
            let Some(open) = self.open[run].as_mut() else { continue };
            let id = self.fleet.servers[server as usize].facts.id;
            open.rollout.set_condition(id, condition(host, run));
            self.dirty.insert(run);
        }
    }

    // --- Schedules ---------------------------------------------------------------------------

    fn handle_due(&mut self, number: usize) {
        let schedule = &self.fleet.schedules[number];
        let window = schedule.pace.window_minutes;
        let progress = Progress {
            handled: self.handled[number],
            window: window.map_or(LATE_WINDOW, |minutes| SignedDuration::from_mins(minutes.into())),
            unfinished: self.unfinished[number].is_some(),
        };
        let due = schedule::due(&schedule.cron, &schedule.timezone, progress, self.now);
        self.handled[number] = due.handled;
        for skipped in &due.skipped {
            self.skip(number, skipped.last, skipped.reason);
        }
        if let Some(at) = due.start {
            self.start_run(number, at);
        }
        if let Some(at) = due.wake_at {
            self.push(at, Event::Schedule(number));
        }
    }

    fn new_run(&self, number: usize, at: Timestamp, result: RunResult) -> Run {
        Run {
            origin: Origin::Schedule(number),
            at,
            result,
            servers: self.members[number].len() as u32,
            started: 0,
            installed: 0,
            left: None,
            approval: None,
            reboots: Reboots::default(),
        }
    }

    fn skip(&mut self, number: usize, at: Timestamp, reason: SkipReason) {
        let installs = !self.fleet.schedules[number].order.dry_run;
        for server in &self.members[number] {
            let host = &mut self.hosts[*server as usize];
            host.due |= installs;
            host.obstacles.frozen |= reason == SkipReason::Freeze;
            host.obstacles.overlap |= reason == SkipReason::Overlap;
        }
        self.steps += self.members[number].len() as u64 / 16;
        self.runs.push(self.new_run(number, at, RunResult::Skipped(reason)));
        self.open.push(None);
        let date = self.date(Origin::Schedule(number), at);
        self.days.entry(date).or_default().skipped += 1;
    }

    /// Starts a run as `service::commands::runs` does.
    fn start_run(&mut self, number: usize, at: Timestamp) {
        let schedule = &self.fleet.schedules[number];
        let members = std::mem::take(&mut self.members[number]);
        let is_frozen = |server: &u32| self.hosts[*server as usize].frozen_until.is_some();
        let skip = if members.is_empty() {
            Some(SkipReason::NoServers)
        } else if schedule.pace.override_freeze.is_none() && members.iter().all(is_frozen) {
            Some(SkipReason::Freeze)
        } else {
            None
        };
        self.members[number] = members;
        if let Some(reason) = skip {
            return self.skip(number, at, reason);
        }
        let run = self.runs.len();
        let rollout = self.new_rollout(number, run);
        self.runs.push(self.new_run(number, at, RunResult::Open));
        self.open.push(Some(Open { rollout, wake_at: None }));
        self.unfinished[number] = Some(run);
        self.steps += self.members[number].len() as u64;
        for position in 0..self.members[number].len() {
            let server = self.members[number][position];
            let host = &mut self.hosts[server as usize];
            host.member_of.push(run);
            host.due |= !schedule.order.dry_run;
            let condition = condition(host, run);
            if condition != ServerCondition::FREE
                && let Some(open) = self.open[run].as_mut()
            {
                open.rollout.set_condition(self.fleet.servers[server as usize].facts.id, condition);
            }
        }
        let date = self.date(Origin::Schedule(number), at);
        self.days.entry(date).or_default().runs += 1;
        self.dirty.insert(run);
    }

    fn new_rollout(&self, number: usize, run: usize) -> Rollout {
        let schedule = &self.fleet.schedules[number];
        let members = &self.members[number];
        let facts = |server: &u32| &self.fleet.servers[*server as usize].facts;
        let mut ids: Vec<ServerId> = members.iter().map(|server| facts(server).id).collect();
        let canary = schedule.pace.limits(members.len() as u32).canary();
        let mut expected = None;
        if canary > 0 {
            let mut order = StartOrder::new(canary);
            for (searched, server) in members.iter().enumerate() {
                if order.is_complete(searched) {
                    break;
                }
                let ServerFacts { id, os, .. } = facts(server);
                let system = os.as_ref().map(|os| (os.id(), os.version()));
                if order.wants(&system, *id) && self.installs(*server, &schedule.order) {
                    order.add(system, *id);
                }
            }
            let (ordered, count) = order.finish(ids);
            (ids, expected) = (ordered, Some(count));
        }
        let id = BatchId::new(Timestamp::UNIX_EPOCH, run as u128);
        let pace = schedule.pace.clone();
        let rollout = Rollout::new(id, pace, self.now, ids, self.now).without_health();
        match expected {
            Some(count) => rollout.with_expected_changes(count),
            None => rollout,
        }
    }

    // --- Batches -----------------------------------------------------------------------------

    fn order(&self, run: usize) -> &'a Order {
        match self.runs[run].origin {
            Origin::Schedule(number) => &self.fleet.schedules[number].order,
            Origin::Batch(number) => &self.fleet.batches[number].order,
        }
    }

    /// Whether the order would install something on the server now.
    fn installs(&self, server: u32, order: &Order) -> bool {
        let facts = &self.fleet.servers[server as usize];
        let updates = facts.kind.and_then(|kind| order.installs.get(&kind));
        updates.is_some_and(|updates| self.hosts[server as usize].remaining.intersects(updates))
    }

    fn duration(&self, server: u32, order: &Order) -> SignedDuration {
        let ServerFacts { id, os, .. } = &self.fleet.servers[server as usize].facts;
        let installs = self.installs(server, order) && !order.dry_run;
        self.fleet.durations.estimate(*id, os.as_ref(), installs).min(ESTIMATE_MAX)
    }

    fn plan_dirty(&mut self) {
        while let Some(run) = self.dirty.pop_first() {
            self.plan_run(run);
        }
    }

    /// Carries out everything that the planner decides at this instant.
    fn plan_run(&mut self, run: usize) {
        loop {
            let Some(open) = self.open[run].as_mut() else { return };
            open.rollout.end_freezes(self.now);
            let next = plan(&open.rollout, self.now);
            if next.is_idle() {
                return self.wait(run, next);
            }
            if let Some(change) = next.change {
                open.rollout
                    .apply_change(change, self.now)
                    .expect("the planner returns changes that the phase allows");
                if let Change::End(_) = change {
                    return self.end_run(run);
                }
                continue;
            }
            if matches!(next.events.first(), Some((_, TaskEvent::WindowClosed))) {
                self.record_closed_window(run);
            }
            self.steps += next.events.len() as u64;
            for (server, event) in next.events {
                self.apply_planned(run, server, event);
            }
        }
    }

    fn wait(&mut self, run: usize, next: Plan) {
        let Some(open) = self.open[run].as_mut() else { return };
        let now = self.now;
        let head = open.rollout.head();
        if head.phase == Phase::AwaitingApproval && self.runs[run].approval.is_none() {
            let (wave, servers) = (head.waves.number(), open.rollout.counts().waiting);
            self.runs[run].approval = Some(Approval { since: now, wave, servers });
        }
        if open.wake_at.is_none_or(|at| at <= now) || open.wake_at != next.wake_at {
            open.wake_at = next.wake_at;
            if let Some(at) = next.wake_at.filter(|at| *at > now) {
                self.push(at, Event::Plan { run });
            }
        }
    }

    fn apply_planned(&mut self, run: usize, id: ServerId, event: TaskEvent) {
        let Some(open) = self.open[run].as_mut() else { return };
        open.rollout
            .apply_event(id, event, self.now)
            .expect("the planner returns events that the task allows");
        let Some(server) = self.numbers.get(&id).copied() else { return };
        match event {
            TaskEvent::Offered { .. } => self.start_task(run, server),
            TaskEvent::DeadlinePassed => self.free(run, server),
            _ => {}
        }
    }

    fn start_task(&mut self, run: usize, server: u32) {
        let order = self.order(run);
        let duration = self.duration(server, order);
        let (is_long, ends_at) = (duration > STAGE_ESTIMATE, self.now + duration);
        // The agent reports a stage at once, so the short deadline of a new order does not count.
        let stage = if is_long { Stage::Downloading } else { Stage::Installing };
        self.report(run, server, TaskEvent::Reached(stage));
        if is_long {
            self.push(self.now + STAGE_ESTIMATE, Event::TaskInstalls { run, server });
        }
        self.push(ends_at, Event::TaskEnds { run, server });
        self.runs[run].started += 1;
        let is_scheduled = matches!(self.runs[run].origin, Origin::Schedule(_));
        let host = &mut self.hosts[server as usize];
        (host.busy_in, host.ends_at) = (Some(run), ends_at);
        host.started |= is_scheduled && !order.dry_run;
        if host.member_of.len() > 1 {
            self.update_conditions(server, Some(run));
        }
    }

    fn report(&mut self, run: usize, server: u32, event: TaskEvent) {
        let id = self.fleet.servers[server as usize].facts.id;
        if let Some(open) = self.open[run].as_mut() {
            // A report is valid in every state; the server is part of the batch.
            open.rollout.apply_event(id, event, self.now).expect("a report is always valid");
        }
    }

    fn report_installing(&mut self, run: usize, server: u32) {
        if self.hosts[server as usize].busy_in == Some(run) {
            self.report(run, server, TaskEvent::Reached(Stage::Installing));
        }
    }

    fn end_task(&mut self, run: usize, server: u32) {
        if self.hosts[server as usize].busy_in != Some(run) {
            return;
        }
        let order = self.order(run);
        let facts = &self.fleet.servers[server as usize];
        let installs = self.installs(server, order);
        let result = if facts.refuses_changes && !order.dry_run {
            ReportedResult::NotApplicable
        } else if installs {
            ReportedResult::Succeeded
        } else {
            ReportedResult::NoChange
        };
        if !order.dry_run && !facts.refuses_changes {
            self.reboot(run, server, order.reboot, installs);
            if installs {
                self.install(run, server, order);
            }
        }
        self.report(run, server, TaskEvent::Reported(result));
        self.free(run, server);
    }

    fn install(&mut self, run: usize, server: u32, order: &Order) {
        let kind = self.fleet.servers[server as usize].kind;
        let Some(updates) = kind.and_then(|kind| order.installs.get(&kind)) else { return };
        self.runs[run].installed += 1;
        let host = &mut self.hosts[server as usize];
        let install = Install { run, at: self.now };
        host.remaining.subtract(updates);
        host.first.get_or_insert(install);
        host.last = Some(install);
        if host.remaining.is_empty() {
            let date = self.date(self.runs[run].origin, self.now);
            self.days.entry(date).or_default().patched += 1;
        }
    }

    /// Counts the reboot at the end of a task, as the preview predicts it.
    fn reboot(&mut self, run: usize, server: u32, policy: RebootPolicy, installs: bool) {
        let facts = &self.fleet.servers[server as usize];
        let host = &mut self.hosts[server as usize];
        let is_certain = match policy {
            _ if facts.never_reboot => return,
            RebootPolicy::Never | RebootPolicy::ServicesOnly => return,
            RebootPolicy::Always => true,
            RebootPolicy::IfRequired if host.needs_reboot => true,
            RebootPolicy::IfRequired if !installs => return,
            RebootPolicy::IfRequired => false,
        };
        host.needs_reboot = false;
        let date = self.date(self.runs[run].origin, self.now);
        let of_day = &mut self.days.entry(date).or_default().reboots;
        for reboots in [of_day, &mut self.runs[run].reboots] {
            match is_certain {
                true => reboots.certain += 1,
                false => reboots.possible += 1,
            }
        }
    }

    /// Records that a run does not work on a server any longer.
    fn free(&mut self, run: usize, server: u32) {
        let host = &mut self.hosts[server as usize];
        host.busy_in = None;
        self.dirty.insert(run);
        if host.member_of.len() > 1 {
            self.update_conditions(server, Some(run));
        }
    }

    /// Records the servers that have no turn any more, and why.
    fn record_closed_window(&mut self, run: usize) {
        if self.runs[run].left.is_some() {
            return;
        }
        let Some(open) = self.open[run].as_ref() else { return };
        let mut left = Left { at: self.now, ..Left::default() };
        let waits_for_approval = self.runs[run].approval.is_some();
        let installs = !self.order(run).dry_run;
        let override_freeze = open.rollout.head().pace.override_freeze.is_some();
        for (id, status) in open.rollout.tasks() {
            let Some(server) = self.numbers.get(&id) else { continue };
            if status != TaskStatus::Waiting {
                continue;
            }
            let host = &mut self.hosts[*server as usize];
            let seen = &mut host.obstacles;
            let is_scheduled = installs && matches!(self.runs[run].origin, Origin::Schedule(_));
            let counter = if !host.online {
                seen.offline |= is_scheduled;
                &mut left.offline
            } else if host.frozen_until.is_some() && !override_freeze {
                seen.frozen |= is_scheduled;
                &mut left.frozen
            } else if host.busy_in.is_some() {
                &mut left.busy
            } else if waits_for_approval {
                seen.approval |= is_scheduled;
                continue;
            } else {
                seen.no_turn |= is_scheduled;
                &mut left.no_turn
            };
            *counter += 1;
        }
        if left.no_turn > 0 {
            left.minutes_short = self.minutes_short(run);
        }
        if left.total() > 0 {
            self.runs[run].left = Some(left);
        }
    }

    /// How much longer the window of a run has to be, so that every server that could start does:
    /// the planner continues alone, with a window that does not close.
    fn minutes_short(&mut self, run: usize) -> Option<i64> {
        let order = self.order(run);
        let mut rollout = self.open[run].as_ref()?.rollout.clone();
        let mut head = rollout.head().clone();
        let closed_at = head.start_by;
        head.start_by = self.now.checked_add(EXTENSION).ok()?;
        rollout.load_head(head.clone());
        let mut ends: BinaryHeap<Reverse<(Timestamp, ServerId)>> = BinaryHeap::new();
        for (id, status) in rollout.tasks() {
            if let (TaskStatus::Busy(_), Some(server)) = (status, self.numbers.get(&id)) {
                ends.push(Reverse((self.hosts[*server as usize].ends_at, id)));
            }
        }
        let (mut now, mut last_start) = (self.now, None);
        while rollout.has_available() && now < head.start_by {
            self.steps += 1;
            let next = plan(&rollout, now);
            if let Some(change) = next.change {
                rollout.apply_change(change, now).ok()?;
                continue;
            }
            if next.is_idle() {
                let end = ends.peek().map(|Reverse((at, _))| *at);
                let wake_at = next.wake_at.filter(|at| *at > now);
                now = [end, wake_at].into_iter().flatten().min()?;
                while let Some(Reverse((at, id))) = ends.peek().copied()
                    && at <= now
                {
                    ends.pop();
                    let result = TaskEvent::Reported(ReportedResult::Succeeded);
                    rollout.apply_event(id, result, now).ok()?;
                }
                continue;
            }
            for (id, event) in next.events {
                rollout.apply_event(id, event, now).ok()?;
                if matches!(event, TaskEvent::Offered { .. }) {
                    let installing = TaskEvent::Reached(Stage::Installing);
                    rollout.apply_event(id, installing, now).ok()?;
                    let server = self.numbers.get(&id).copied()?;
                    ends.push(Reverse((now + self.duration(server, order), id)));
                    last_start = Some(now);
                }
            }
        }
        if rollout.has_available() {
            return None;
        }
        // At the end of the window nothing starts any more, so it has to end after the last start.
        last_start.map(|at| at.duration_since(closed_at).as_secs().div_euclid(60) + 1)
    }

    fn end_run(&mut self, run: usize) {
        let Some(open) = self.open[run].take() else { return };
        self.runs[run].result = RunResult::Ended(self.now);
        for (id, _) in open.rollout.tasks() {
            if let Some(server) = self.numbers.get(&id) {
                self.hosts[*server as usize].member_of.retain(|member| *member != run);
            }
        }
        let schedule = match self.runs[run].origin {
            Origin::Schedule(number) => Some(number),
            Origin::Batch(number) => self.fleet.batches[number].schedule,
        };
        if let Some(unfinished) = schedule.map(|number| &mut self.unfinished[number])
            && *unfinished == Some(run)
        {
            *unfinished = None;
        }
    }

    /// The date on which something happens, where the schedule's clock is.
    fn date(&self, origin: Origin, at: Timestamp) -> jiff::civil::Date {
        let schedule = match origin {
            Origin::Schedule(number) => Some(number),
            Origin::Batch(number) => self.fleet.batches[number].schedule,
        };
        match schedule {
            Some(number) => {
                let zone = self.fleet.schedules[number].timezone.time_zone();
                zone.to_datetime(at).date()
            }
            None => jiff::tz::TimeZone::UTC.to_datetime(at).date(),
        }
    }

    // --- The result --------------------------------------------------------------------------

    fn finish(mut self, ended_early: Option<Timestamp>) -> Forecast {
        self.record_open_runs();
        let servers = (0..self.hosts.len()).map(|server| self.server_forecast(server)).collect();
        Forecast {
            from: self.from,
            until: self.until,
            ended_early,
            servers,
            assumptions: assumptions(self.fleet, ended_early),
            runs: self.runs,
            days: self.days,
        }
    }

    /// Records why servers wait in runs that have not ended when the forecast does.
    fn record_open_runs(&mut self) {
        for (run, open) in self.open.iter().enumerate() {
            let Some(open) = open else { continue };
            if !matches!(self.runs[run].origin, Origin::Schedule(_)) {
                continue;
            }
            let waits_for_approval = self.runs[run].approval.is_some();
            for (id, status) in open.rollout.tasks() {
                let Some(server) = self.numbers.get(&id) else { continue };
                if status == TaskStatus::Waiting {
                    let host = &mut self.hosts[*server as usize];
                    let (offline, frozen) = (!host.online, host.frozen_until.is_some());
                    host.obstacles.offline |= offline;
                    host.obstacles.frozen |= frozen && !offline;
                    host.obstacles.approval |= waits_for_approval && !offline && !frozen;
                }
            }
        }
    }

    fn server_forecast(&self, number: usize) -> ServerForecast {
        let (server, host) = (&self.fleet.servers[number], &self.hosts[number]);
        let gap = gap(server, self.selected[number], host.started, host.due, host.obstacles);
        let kind = server.kind.and_then(|kind| self.fleet.kinds.get(kind));
        let patch = match (kind, host.first, host.last) {
            (None, ..) => PatchOutlook::NotScanned,
            (Some(kind), ..) if kind.pending == 0 => PatchOutlook::UpToDate,
            (Some(_), Some(first), Some(last)) => match host.remaining.len() {
                0 => PatchOutlook::Patched { first, last },
                left => PatchOutlook::Partly { first, last, left },
            },
            (Some(kind), ..) => PatchOutlook::NotPatched(not_patched(kind, gap)),
        };
        ServerForecast { patch, gap }
    }
}

fn not_patched(kind: &super::Kind, gap: Option<GapReason>) -> NotPatched {
    match gap {
        Some(reason) => NotPatched::Gap(reason),
        None if kind.installable.is_empty() => NotPatched::Blocked,
        None => NotPatched::NotSelected,
    }
}

/// What the batch of `run` knows about a server.
fn condition(host: &Host, run: usize) -> ServerCondition {
    ServerCondition {
        online: host.online,
        busy_in: host
            .busy_in
            .filter(|holder| *holder != run)
            .map(|holder| BatchId::new(Timestamp::UNIX_EPOCH, holder as u128)),
        agent_busy: false,
        frozen_until: host.frozen_until,
        // The forecast does not know what the first wave will install.
        unproven: false,
    }
}
