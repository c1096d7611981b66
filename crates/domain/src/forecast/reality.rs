//! Forecasts against reality: random fleets live for 30 days, and every server must be patched by
//! the run that the forecast named, or by one next to it.
//!
//! Reality is a second program: a clock that ticks every minute, agents that go offline at their
//! own times and report late, and tasks whose durations vary. It shares the production planner with
//! the forecast, but none of the forecast's code. The forecast sees only what the service would
//! have measured before: the offline times of four weeks and the durations of some past tasks.

use std::collections::{BTreeMap, BTreeSet};

use vocab::{BatchId, Os, Portion, ServerId, Stage, Wave};

use super::*;
use crate::rollout::{
    Change, Phase, ReportedResult, ServerCondition, StartOrder, TaskEvent, TaskStatus, plan,
};
use crate::schedule::{self, LATE_WINDOW, Progress};
use crate::selector;
use crate::sim::rng::Rng;

const FLEETS: u64 = 50;
const DAYS: i64 = 30;
const HISTORY_DAYS: i64 = 28;
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn start() -> Timestamp {
    "2026-03-02T09:17:00Z".parse().unwrap()
}

/// A server as it really is.
struct Truth {
    id: ServerId,
    /// When it is offline, in order and not overlapping.
    offline: Vec<(Timestamp, Timestamp)>,
    /// Typical duration of an installation.
    minutes: i64,
}

impl Truth {
    fn is_online(&self, at: Timestamp) -> bool {
        let place = self.offline.partition_point(|(from, _)| *from <= at);
        place == 0 || self.offline[place - 1].1 <= at
    }
}

struct World {
    rng: Rng,
    fleet: Fleet,
    servers: Vec<Truth>,
}

/// Offline times over history and future: regular nights or weekends with varying minutes, and rare
/// outages.
fn offline_times(rng: &mut Rng) -> Vec<(Timestamp, Timestamp)> {
    let habit = rng.between(0, 99);
    let (off_hour, hours_off) = (rng.between(17, 23), rng.between(6, 12));
    let mut times = Vec::new();
    let midnight: Timestamp = "2026-02-02T00:00:00Z".parse().unwrap();
    for day in 0..HISTORY_DAYS + DAYS + 2 {
        let day_start = midnight + SignedDuration::from_hours(24 * day);
        let jitter = |rng: &mut Rng| SignedDuration::from_mins(rng.between(-20, 20));
        let is_weekend = day % 7 >= 5;
        let habitual = match habit {
            0..70 => None,
            70..88 => Some((off_hour, hours_off)),
            _ if is_weekend => Some((0, 24)),
            _ => None,
        };
        if let Some((from, hours)) = habitual {
            let from = day_start + SignedDuration::from_hours(from) + jitter(rng);
            times.push((from, from + SignedDuration::from_hours(hours) + jitter(rng)));
        } else if rng.percent(1) {
            let from = day_start + SignedDuration::from_mins(rng.between(0, 1_439));
            times.push((from, from + SignedDuration::from_mins(rng.between(30, 300))));
        }
    }
    times.sort_unstable();
    let mut merged: Vec<(Timestamp, Timestamp)> = Vec::new();
    for (from, until) in times {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => merged.push((from, until)),
        }
    }
    merged
}

/// A duration around the typical one: from 60 % to 150 %.
fn varied(rng: &mut Rng, minutes: i64) -> SignedDuration {
    SignedDuration::from_secs(minutes * 60 * rng.between(60, 150) / 100)
}

fn targets(rng: &mut Rng) -> Selector {
    let text = rng.pick(&[
        r#"{"all": true}"#,
        r#"{"tags": ["web"]}"#,
        r#"{"tags": ["db"]}"#,
        r#"{"tags": ["blue"]}"#,
    ]);
    serde_json::from_str(text).unwrap()
}

fn random_pace(rng: &mut Rng) -> Pace {
    let mut pace = Pace {
        stagger_minutes: rng.pick(&[0, 0, 0, 5]),
        max_parallel: rng.pick(&[None, Some(1), Some(2), Some(4)]),
        window_minutes: rng.pick(&[None, Some(60), Some(120), Some(240)]),
        ..Pace::default()
    };
    match rng.between(0, 3) {
        0 => pace.canary = Some(Portion::Count(rng.between(1, 2) as u32)),
        1 => {
            let first = Wave {
                size: Some(Portion::percent(20).unwrap()),
                soak_minutes: rng.pick(&[0, 30]),
                ..Wave::default()
            };
            pace.waves = vec![first, Wave::default()];
        }
        _ => {}
    }
    pace
}

fn world(seed: u64) -> World {
    let mut rng = Rng::new(seed);
    let mut fleet = Fleet {
        kinds: vec![Kind { pending: 3, installable: UpdateSet::first(3) }, Kind::default()],
        ..Fleet::default()
    };
    let (mut servers, mut samples) = (Vec::new(), Vec::new());
    let observed_from = start() - SignedDuration::from_hours(24 * HISTORY_DAYS);
    for number in 0..rng.between(6, 30) {
        let id = ServerId::new(Timestamp::UNIX_EPOCH, number as u128);
        let truth = Truth { id, offline: offline_times(&mut rng), minutes: rng.between(3, 25) };
        let os = Os::new(rng.pick(&["debian", "rocky"]), "12", "").unwrap();
        for _ in 0..rng.between(0, 7) {
            let duration = varied(&mut rng, truth.minutes);
            samples.push(Sample { server: id, os: Some(os.clone()), changed: true, duration });
        }
        let mut changes = Vec::new();
        for (from, until) in &truth.offline {
            changes.extend([(*from, false), (*until, true)]);
        }
        changes.retain(|(at, _)| (observed_from..=start()).contains(at));
        let pattern = WeekPattern::measure(&changes, observed_from, start());
        let seen = changes.last().map_or(start(), |(at, _)| *at);
        let mut tags: BTreeSet<vocab::Tag> = BTreeSet::new();
        tags.insert(rng.pick(&["web", "db"]).parse().unwrap());
        if rng.percent(30) {
            tags.insert("blue".parse().unwrap());
        }
        fleet.servers.push(Server {
            facts: ServerFacts { id, environment: None, tags, os: Some(os) },
            kind: Some(usize::from(rng.percent(10))),
            presence: Presence::new(!truth.is_online(start()), seen, start(), pattern),
            reboot_required: false,
            quarantined: false,
            refuses_changes: false,
            never_reboot: false,
            limited_hours: false,
        });
        servers.push(truth);
    }
    fleet.durations = Durations::measure(&samples);
    for _ in 0..rng.between(1, 4) {
        let cron =
            rng.pick(&["0 2 * * *", "30 22 * * *", "0 12 * * 3", "0 */8 * * *", "15 4 * * 6"]);
        let cron = Cron::parse(cron).unwrap();
        let timezone: Zone =
            rng.pick(&["UTC", "Europe/Berlin", "America/New_York"]).parse().unwrap();
        let everything = BTreeMap::from([(0, UpdateSet::first(3))]);
        fleet.schedules.push(Schedule {
            enabled: !rng.percent(10),
            next_run_at: schedule::next_after(&cron, &timezone, start()),
            cron,
            timezone,
            targets: targets(&mut rng),
            pace: random_pace(&mut rng),
            order: Order { installs: everything, ..Order::default() },
        });
    }
    for _ in 0..rng.between(0, 2) {
        let begins = start() + SignedDuration::from_hours(rng.between(0, 24 * 10));
        let timing = match rng.percent(50) {
            true => Timing::OneOff {
                starts_at: begins,
                ends_at: begins + SignedDuration::from_hours(rng.between(6, 72)),
            },
            false => Timing::Recurring {
                cron: Cron::parse(rng.pick(&["0 6 * * 1-5", "0 0 * * 6"])).unwrap(),
                duration: SignedDuration::from_hours(rng.between(4, 16)),
                timezone: Zone::default(),
            },
        };
        fleet.freezes.push(Freeze { targets: targets(&mut rng), timing });
    }
    World { rng, fleet, servers }
}

/// A batch that is open in reality.
struct OpenBatch {
    schedule: usize,
    rollout: Rollout,
    wake_at: Option<Timestamp>,
}

/// A task that an agent carries out.
struct Task {
    batch: usize,
    ends_at: Timestamp,
}

/// Thirty days of reality. Returns when each server was patched, and the servers of which a task
/// timed out.
struct Reality<'a> {
    world: &'a mut World,
    now: Timestamp,
    batches: BTreeMap<usize, OpenBatch>,
    tasks: BTreeMap<usize, Task>,
    /// By schedule: the last handled instant and when to look again.
    handled: Vec<(Timestamp, Option<Timestamp>)>,
    frozen: Vec<Option<Timestamp>>,
    freezes_change_at: Option<Timestamp>,
    online: Vec<bool>,
    pending: Vec<bool>,
    patched: Vec<Option<Timestamp>>,
    failed: BTreeSet<usize>,
    created: usize,
}

impl Reality<'_> {
    fn new(world: &mut World) -> Reality<'_> {
        let (fleet, count) = (&world.fleet, world.servers.len());
        let handled = fleet.schedules.iter();
        Reality {
            now: start(),
            batches: BTreeMap::new(),
            tasks: BTreeMap::new(),
            handled: handled
                .map(|one| (start(), one.next_run_at.filter(|_| one.enabled)))
                .collect(),
            frozen: vec![None; count],
            freezes_change_at: Some(start()),
            online: world.servers.iter().map(|server| server.is_online(start())).collect(),
            pending: fleet.servers.iter().map(|server| server.kind == Some(0)).collect(),
            patched: vec![None; count],
            failed: BTreeSet::new(),
            created: 0,
            world,
        }
    }

    fn run(mut self) -> (Vec<Option<Timestamp>>, BTreeSet<usize>) {
        let end = start() + SignedDuration::from_hours(24 * DAYS);
        while self.now < end {
            let mut changed = self.update_presence();
            changed |= self.report();
            changed |= self.update_freezes();
            changed |= self.start_due();
            let woken = |batch: &OpenBatch| batch.wake_at.is_some_and(|at| at <= self.now);
            if changed || self.batches.values().any(woken) {
                self.plan_all();
            }
            self.now += MINUTE;
        }
        (self.patched, self.failed)
    }

    fn update_presence(&mut self) -> bool {
        let mut changed = false;
        for (number, server) in self.world.servers.iter().enumerate() {
            let online = server.is_online(self.now);
            changed |= online != self.online[number];
            self.online[number] = online;
        }
        changed
    }

    /// Agents that are online report what they have finished.
    fn report(&mut self) -> bool {
        let done: Vec<usize> = self
            .tasks
            .iter()
            .filter(|(server, task)| task.ends_at <= self.now && self.online[**server])
            .map(|(server, _)| *server)
            .collect();
        for server in &done {
            let task = self.tasks.remove(server).unwrap();
            let installs = std::mem::take(&mut self.pending[*server]);
            if installs {
                self.patched[*server] = Some(self.now);
            }
            let result =
                if installs { ReportedResult::Succeeded } else { ReportedResult::NoChange };
            if let Some(batch) = self.batches.get_mut(&task.batch) {
                let id = self.world.servers[*server].id;
                batch.rollout.apply_event(id, TaskEvent::Reported(result), self.now).unwrap();
            }
        }
        !done.is_empty()
    }

    fn update_freezes(&mut self) -> bool {
        if self.freezes_change_at.is_none_or(|at| at > self.now) {
            return false;
        }
        let fleet = &self.world.fleet;
        for (number, server) in fleet.servers.iter().enumerate() {
            let covering = fleet.freezes.iter();
            let covering = covering.filter(|one| selector::matches(&one.targets, &server.facts));
            let ends = covering.filter_map(|one| one.timing.active_period(self.now));
            self.frozen[number] = ends.map(|period| period.ends_at).max();
        }
        let next = fleet.freezes.iter().filter_map(|one| one.timing.next_change(self.now));
        self.freezes_change_at = next.min();
        true
    }

    fn start_due(&mut self) -> bool {
        let mut started = false;
        for number in 0..self.handled.len() {
            let (handled, wake_at) = self.handled[number];
            if wake_at.is_none_or(|at| at > self.now) {
                continue;
            }
            let schedule = &self.world.fleet.schedules[number];
            let window = schedule.pace.window_minutes;
            let progress = Progress {
                handled,
                window: window.map_or(LATE_WINDOW, |minutes| MINUTE * minutes as i32),
                unfinished: self.batches.values().any(|batch| batch.schedule == number),
            };
            let due = schedule::due(&schedule.cron, &schedule.timezone, progress, self.now);
            self.handled[number] = (due.handled, due.wake_at);
            if due.start.is_some() {
                self.create_batch(number);
                started = true;
            }
        }
        started
    }

    fn create_batch(&mut self, number: usize) {
        let fleet = &self.world.fleet;
        let schedule = &fleet.schedules[number];
        let selected: Vec<usize> = (0..fleet.servers.len())
            .filter(|n| selector::matches(&schedule.targets, &fleet.servers[*n].facts))
            .collect();
        if selected.iter().all(|server| self.frozen[*server].is_some()) {
            return;
        }
        let id = |server: &usize| fleet.servers[*server].facts.id;
        let mut ids: Vec<ServerId> = selected.iter().map(id).collect();
        let canary = schedule.pace.limits(ids.len() as u32).canary();
        let mut expected = None;
        if canary > 0 {
            let mut order = StartOrder::new(canary);
            for server in &selected {
                let system = fleet.servers[*server].facts.os.as_ref().map(|os| os.id().to_owned());
                if order.wants(&system, id(server)) && self.pending[*server] {
                    order.add(system, id(server));
                }
            }
            let (ordered, count) = order.finish(ids);
            (ids, expected) = (ordered, Some(count));
        }
        self.created += 1;
        let batch = BatchId::new(Timestamp::UNIX_EPOCH, self.created as u128);
        let mut rollout = Rollout::new(batch, schedule.pace.clone(), self.now, ids, self.now);
        if let Some(count) = expected {
            rollout = rollout.with_expected_changes(count);
        }
        self.batches.insert(self.created, OpenBatch { schedule: number, rollout, wake_at: None });
    }

    fn plan_all(&mut self) {
        let ids: Vec<usize> = self.batches.keys().copied().collect();
        for id in ids {
            for number in 0..self.world.servers.len() {
                let holder = self.tasks.get(&number).map(|task| task.batch);
                let condition = ServerCondition {
                    online: self.online[number],
                    busy_in: holder
                        .filter(|holder| *holder != id)
                        .map(|holder| BatchId::new(Timestamp::UNIX_EPOCH, holder as u128)),
                    agent_busy: false,
                    frozen_until: self.frozen[number],
                    unproven: false,
                };
                let batch = self.batches.get_mut(&id).unwrap();
                batch.rollout.set_condition(self.world.servers[number].id, condition);
            }
            self.plan_batch(id);
        }
    }

    fn plan_batch(&mut self, id: usize) {
        loop {
            let batch = self.batches.get_mut(&id).unwrap();
            if let Phase::Halted(_) = batch.rollout.head().phase {
                batch.rollout.apply_change(Change::Resume, self.now).unwrap();
            }
            let next = plan(&batch.rollout, self.now);
            if next.is_idle() {
                batch.wake_at = next.wake_at;
                return;
            }
            if let Some(change) = next.change {
                batch.rollout.apply_change(change, self.now).unwrap();
                if matches!(change, Change::End(_)) {
                    self.batches.remove(&id);
                    return;
                }
                continue;
            }
            for (server, event) in next.events {
                let batch = self.batches.get_mut(&id).unwrap();
                let status = batch.rollout.apply_event(server, event, self.now).unwrap();
                let number = self.world.servers.iter().position(|one| one.id == server).unwrap();
                match status {
                    TaskStatus::Busy(_) => {
                        let installing = TaskEvent::Reached(Stage::Installing);
                        batch.rollout.apply_event(server, installing, self.now).unwrap();
                        let minutes = self.world.servers[number].minutes;
                        let duration = match self.pending[number] {
                            true => varied(&mut self.world.rng, minutes),
                            false => varied(&mut self.world.rng, 2),
                        };
                        let ends_at = self.now + duration;
                        self.tasks.insert(number, Task { batch: id, ends_at });
                    }
                    _ if event == TaskEvent::DeadlinePassed => {
                        self.failed.insert(number);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The number of runs of any schedule of this server up to a time; all of them if it is never.
fn runs_until(world: &World, server: usize, at: Option<Timestamp>) -> usize {
    let end = start() + SignedDuration::from_hours(24 * DAYS);
    let facts = &world.fleet.servers[server].facts;
    let schedules = world.fleet.schedules.iter().filter(|one| one.enabled);
    let schedules = schedules.filter(|one| selector::matches(&one.targets, facts));
    let runs = |one: &Schedule| {
        let next = |after: &Timestamp| schedule::next_after(&one.cron, &one.timezone, *after);
        let all = std::iter::successors(next(&start()), next);
        all.take_while(|run| *run <= at.unwrap_or(end)).count()
    };
    // A server that is never patched is one run behind the last.
    schedules.map(runs).sum::<usize>() + usize::from(at.is_none())
}

/// The forecast names the run that patches a server, or one next to it, for at least 95 % of the
/// servers of which no task failed.
#[test]
fn forecast_agrees_with_reality_within_one_run() {
    let (mut compared, mut agreeing, mut exact, mut patched) = (0, 0, 0, 0);
    let mut wrong = Vec::new();
    for seed in 0..FLEETS {
        let mut world = world(seed);
        let forecast = forecast(&world.fleet, start(), DAYS as u32);
        let pending: Vec<bool> =
            world.fleet.servers.iter().map(|server| server.kind == Some(0)).collect();
        let (actual, failed) = Reality::new(&mut world).run();
        for server in 0..pending.len() {
            if !pending[server] || failed.contains(&server) {
                continue;
            }
            let predicted = forecast.servers[server].patch.patched_at();
            let (expected, real) =
                (runs_until(&world, server, predicted), runs_until(&world, server, actual[server]));
            compared += 1;
            patched += usize::from(actual[server].is_some());
            exact += usize::from(expected == real);
            if expected.abs_diff(real) <= 1 {
                agreeing += 1;
            } else {
                wrong.push((seed, server, predicted, actual[server], expected, real));
            }
        }
    }
    println!("{agreeing} of {compared} agree, {exact} exactly; {patched} were patched");
    assert!(compared > 500 && patched > compared / 2, "{compared} {patched}");
    assert!(agreeing * 100 >= compared * 95, "{agreeing} of {compared} agree: {wrong:#?}");
}
