//! Executes rollouts: the planner (`domain::rollout`) decides what happens next, this module does
//! it.
//!
//! Every open rollout is kept in memory (`open_rollouts`). It follows what others write, such as
//! reports of agents or a user's pause, and is planned again whenever something changed or its
//! wake-up time has come. A step is one transaction, fenced by the lease and guarded by
//! generations. If another writer interfered, the step is stale: the rollout is read and planned
//! again.
//!
//! Two events must not count against the servers. While no replica led, or the database was down,
//! no agent could report. After that, every server gets a grace period of three sync intervals and
//! 30 s before a deadline counts, the same time for which a silent server counts as online. And
//! after the clock was set, remaining waits keep their length; schedules follow the new clock.

mod open_rollouts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::rollout::{Change, ClockSet, Phase, Plan, TaskEvent, plan};
use domain::server::Presence;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::leases::{self, Lease};
use store::rollout_pins;
use store::rollout_tasks::{self, StateChange, TaskRow};
use store::rollouts::{self, phase_name};
use store::{StoreError, Topic, presence_transitions};
use tokio::sync::watch;
use vocab::{BatchId, ServerId};

use self::open_rollouts::OpenRollouts;
use super::{LeaderLease, PresenceSnapshot, WriteLock, log_error, sleep_time, wait_for_lead};
use service::App;
use service::audit::Action;
use service::clock::{ClockWatcher, Stopwatch};
use service::commands::batches::{emit_phase, halt_code, record_end, record_task_transition};
use service::queries::{freezes, server_health};
use service::{integrity, pins, record};

/// After this many consecutive write conflicts, the engine waits before it tries again.
const CONFLICTS_MAX: u32 = 100;
const CONFLICT_PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// If the engine completed no step for this long, agents could not report. They then get a grace
/// period.
const STALL_SECONDS: f64 = 30.0;

/// Executes rollouts while this process leads. Runs until it is aborted.
pub(super) async fn run(
    app: App,
    poll: Duration,
    mut lead: watch::Receiver<LeaderLease>,
    mut away: watch::Receiver<PresenceSnapshot>,
    write_lock: WriteLock,
) {
    let mut changed = app.db.subscribe(Topic::Rollouts);
    loop {
        let lease = wait_for_lead(&mut lead).await;
        let mut driver = Driver::new(&app, lease, write_lock.clone());
        loop {
            let unable = away.borrow_and_update().clone();
            let sleep = match unable {
                // The first presence check has not finished.
                None => poll,
                Some(unable) => {
                    driver.rollouts.set_unavailable(unable);
                    match driver.step().await {
                        Ok(next) => sleep_time(next, app.clock.now(), poll),
                        Err(error) => {
                            log_error("rollouts", &error);
                            driver.rollouts = driver.rollouts.without_rollouts();
                            poll
                        }
                    }
                }
            };
            tokio::select! {
                () = changed.notified() => {}
                _ = away.changed() => {}
                () = tokio::time::sleep(sleep) => {}
                _ = lead.changed() => break,
            }
        }
        lead.mark_changed();
    }
}

struct Driver {
    app: App,
    lease: Arc<Lease>,
    write_lock: WriteLock,
    rollouts: OpenRollouts,
    clock_watcher: ClockWatcher,
    /// Clock changes that have not been applied to these rollouts yet.
    pending_clock_changes: BTreeMap<BatchId, ClockSet>,
    /// Time since the last completed step.
    since_last_step: Stopwatch,
}

enum StepOutcome {
    Done,
    /// The rollout has ended.
    Over,
    /// Another writer changed the rows first, or other rollouts hold the servers.
    Conflict,
}

impl Driver {
    fn new(app: &App, lease: Arc<Lease>, write_lock: WriteLock) -> Driver {
        let mut driver = Driver {
            app: app.clone(),
            lease,
            write_lock,
            rollouts: OpenRollouts::default(),
            clock_watcher: app.clock.watch(),
            pending_clock_changes: BTreeMap::new(),
            since_last_step: Stopwatch::start(),
        };
        driver.start_grace_period();
        driver
    }

    fn start_grace_period(&mut self) {
        let sync_seconds = self.app.settings.sync_seconds;
        let patience = Presence { last_seen: None, sync_seconds }.offline_after();
        let now = self.now();
        self.rollouts.start_grace_period(now, patience);
    }

    /// Does everything that can be done now. Returns the time of the next call.
    async fn step(&mut self) -> store::Result<Option<Timestamp>> {
        let mut reader = self.app.db.read().await?;
        let open = rollouts::list_open(&mut reader).await?;
        self.rollouts.retain_open(&open);
        self.pending_clock_changes.retain(|batch, _| open.iter().any(|(id, _)| id == batch));
        for (id, revision) in open {
            if self.rollouts.revision(id) != Some(revision) {
                self.rollouts.reload(&self.app.db, &mut reader, id).await?;
            }
        }
        drop(reader);
        self.stop_forged().await?;
        let mut reader = self.app.db.read().await?;
        let now = self.app.clock.now();
        self.rollouts.load_freezes(&mut reader, now).await?;
        drop(reader);
        if self.since_last_step.seconds() > STALL_SECONDS {
            tracing::warn!("no step completed for a while; agents get a grace period to report");
            self.start_grace_period();
        }
        let now = self.now();
        for id in self.rollouts.due_for_planning(now) {
            self.run_until_idle(id).await?;
        }
        self.since_last_step = Stopwatch::start();
        Ok(self.rollouts.wake_at())
    }

    /// Cancels batches with a row that does not verify. They then continue like any canceled batch.
    /// A batch that cannot be canceled is left alone and is not planned either.
    async fn stop_forged(&mut self) -> store::Result<()> {
        for (id, reason) in self.rollouts.forged_rollouts() {
            self.rollouts.remove(id);
            match integrity::stop_batch(&self.app, id, reason).await {
                Ok(()) => {
                    let mut reader = self.app.db.read().await?;
                    self.rollouts.reload(&self.app.db, &mut reader, id).await?;
                }
                Err(error) => log_error("stop a batch that was changed in the database", &error),
            }
        }
        Ok(())
    }

    /// Returns the current time. If the clock was set, first queues the change for every rollout, so
    /// that no rollout is planned with the new time before it has applied the change.
    fn now(&mut self) -> Timestamp {
        if let Some(set) = self.clock_watcher.clock_change() {
            tracing::warn!(
                seconds = set.by.as_secs(),
                "the clock was set; waits keep their length"
            );
            for id in self.rollouts.ids() {
                // A rollout that has not applied the previous change gets the sum of both.
                let before = self
                    .pending_clock_changes
                    .get(&id)
                    .map_or(SignedDuration::ZERO, |pending| pending.by);
                self.pending_clock_changes.insert(id, ClockSet { by: set.by + before, ..set });
                self.rollouts.mark_dirty(id);
            }
        }
        self.clock_watcher.last_time()
    }

    /// Returns the next step of a rollout: a pending clock change, or what the planner decides.
    fn next_plan(&self, id: BatchId, now: Timestamp) -> Option<Plan> {
        let live = self.rollouts.get(id)?;
        Some(match self.pending_clock_changes.get(&id) {
            Some(set) => {
                let change = Change::ClockSet(ClockSet { now: set.now.max(now), ..*set });
                Plan { change: Some(change), ..Plan::default() }
            }
            None => plan(&live.rollout, now),
        })
    }

    async fn run_until_idle(&mut self, id: BatchId) -> store::Result<()> {
        let mut conflicts = 0;
        loop {
            let now = self.now();
            self.rollouts.load_unproven(&self.app.db, id).await?;
            self.rollouts.end_freezes(id, now);
            let Some(next) = self.next_plan(id, now) else { return Ok(()) };
            // A forged row was found while this was carried out; the next step stops the batch.
            if self.rollouts.is_forged(id) {
                self.rollouts.mark_dirty(id);
                return Ok(());
            }
            if next.is_idle() {
                self.rollouts.set_wake_at(id, next.wake_at);
                return Ok(());
            }
            if conflicts > CONFLICTS_MAX {
                tracing::warn!(batch = %id, "other processes keep changing this batch; retrying");
                self.rollouts.set_wake_at(id, now.checked_add(CONFLICT_PAUSE).ok());
                return Ok(());
            }
            match self.apply_plan(id, next, now).await {
                Ok(StepOutcome::Done) => {
                    // A pending clock change is always the first step.
                    self.pending_clock_changes.remove(&id);
                    conflicts = 0;
                }
                Ok(StepOutcome::Over) => {
                    self.rollouts.remove(id);
                    return Ok(());
                }
                Ok(StepOutcome::Conflict) | Err(StoreError::Stale | StoreError::Busy(_)) => {
                    conflicts += 1;
                    self.rollouts.reload(&self.app.db, &mut *self.app.db.read().await?, id).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn apply_plan(
        &mut self,
        id: BatchId,
        next: Plan,
        now: Timestamp,
    ) -> store::Result<StepOutcome> {
        let write_lock = self.write_lock.clone();
        let _held = write_lock.lock().await;
        match next.change {
            Some(change) => self.apply_change(id, change, now).await,
            None => self.apply_events(id, &next.events, now).await,
        }
    }

    /// Applies a change of the whole rollout.
    async fn apply_change(
        &mut self,
        id: BatchId,
        change: Change,
        now: Timestamp,
    ) -> store::Result<StepOutcome> {
        let Some(live) = self.rollouts.get(id) else { return Ok(StepOutcome::Over) };
        let mut after = live.rollout.clone();
        if let Err(refused) = after.apply_change(change, now) {
            tracing::error!(batch = %id, %refused, "bug: the planner planned an invalid change");
            return Ok(StepOutcome::Conflict);
        }
        // Only a clock change moves tasks together with the whole.
        let moved: Vec<StateChange> = live
            .rollout
            .tasks()
            .zip(after.tasks())
            .filter(|(before, after)| before != after)
            .map(|(_, (server, next))| live.move_to(server, next))
            .collect();
        let end = match after.head().phase {
            Phase::Ended(end) => Some(end),
            _ => None,
        };
        // Results are final, so they are read before the transaction.
        let passes_first = change == Change::NextWave && live.rollout.head().waves.current == 0;
        let pins = match passes_first && pins::are_pinned(&live.row) {
            true => pins::collect(&mut *self.app.db.read().await?, &live.row, now).await?,
            false => Vec::new(),
        };
        let mut tx = self.app.db.begin().await?;
        leases::fence(&mut tx, &self.lease).await?;
        rollout_pins::create(&mut tx, &pins).await?;
        if !moved.is_empty() {
            rollout_tasks::save(&mut tx, id, &moved).await?;
        }
        let row = rollouts::save_head(&mut tx, &live.row, after.head(), end.map(|_| now)).await?;
        match end {
            Some(end) => record_end(&mut tx, &row, end, now, now).await?,
            None => {
                let mut payload = json!({"batch_id": id, "state": phase_name(row.head.phase)});
                match change {
                    Change::CanaryUnchanged => payload["reason"] = json!("canary_unchanged"),
                    Change::WaveEnded => payload["reason"] = json!("wave_ended"),
                    Change::NextWave => payload["reason"] = json!("next_wave"),
                    Change::HealthExceeded => payload["reason"] = json!("health_exceeded"),
                    Change::HealthRecovered => payload["reason"] = json!("health_recovered"),
                    Change::Halt(reason) => {
                        payload["reason"] = json!(halt_code(reason).0);
                        if let Some(detail) = server_health::halt_reason(&mut tx, &row).await? {
                            payload["message"] = json!(detail);
                        }
                    }
                    _ => {}
                }
                if matches!(change, Change::WaveEnded | Change::NextWave) {
                    payload["wave"] = json!(row.head.waves.number());
                }
                if !pins.is_empty() {
                    let systems = pins.iter().map(|set| (&set.system, set.versions.len()));
                    payload["pinned_versions"] = json!(systems.collect::<BTreeMap<_, _>>());
                }
                record(&mut tx, row.org_id, now, "engine", Action::BatchChange, id, &payload);
                let before = live.row.head.phase;
                emit_phase(&mut tx, &row, before, "engine", now, payload);
            }
        }
        tx.commit().await?;
        if end.is_some() {
            return Ok(StepOutcome::Over);
        }
        let revisions = 1 + i64::from(!moved.is_empty());
        self.apply_commit(id, row, &moved, revisions).await?;
        Ok(StepOutcome::Done)
    }

    /// Applies events to some tasks; all are of the same kind.
    async fn apply_events(
        &mut self,
        id: BatchId,
        moves: &[(ServerId, TaskEvent)],
        now: Timestamp,
    ) -> store::Result<StepOutcome> {
        let Some(live) = self.rollouts.get(id) else { return Ok(StepOutcome::Over) };
        let starts = moves.iter().any(|(_, event)| matches!(event, TaskEvent::Offered { .. }));
        let mut planned: Vec<(StateChange, TaskRow)> = Vec::with_capacity(moves.len());
        for (server, event) in moves {
            let Some(row) = live.task_row(*server) else { continue };
            match row.target.apply(*event, now) {
                Ok(next) => planned.push((live.move_to(*server, next), row)),
                Err(refused) => {
                    tracing::error!(batch = %id, %server, %refused, "bug: the planner planned an invalid event");
                    return Ok(StepOutcome::Conflict);
                }
            }
        }
        let to: Vec<StateChange> = planned.iter().map(|(to, _)| to.clone()).collect();
        let mut head = live.rollout.head().clone();
        head.clock = head.clock.max(now);
        if starts {
            head.last_start = Some(now);
        }
        let mut tx = self.app.db.begin().await?;
        leases::fence(&mut tx, &self.lease).await?;
        if starts && live.row.head.pace.override_freeze.is_none() {
            // Someone may have created a freeze since they were read.
            let (org, servers) = (live.row.org_id, to.iter().map(|to| to.server_id));
            let servers: Vec<ServerId> = servers.collect();
            let frozen = freezes::frozen_servers(&mut tx, org, &servers, now).await?;
            if !frozen.is_empty() {
                drop(tx);
                self.rollouts.add_frozen(org, frozen);
                return Ok(StepOutcome::Conflict);
            }
        }
        let done: Vec<StateChange> = if starts {
            let claimed = rollout_tasks::claim(&mut tx, id, &to).await?;
            let claimed: std::collections::BTreeSet<_> = claimed.into_iter().collect();
            to.iter().filter(|to| claimed.contains(&to.server_id)).cloned().collect()
        } else {
            rollout_tasks::save(&mut tx, id, &to).await?;
            to.clone()
        };
        if done.is_empty() {
            drop(tx);
            self.mark_contested_servers(id, &to).await?;
            return Ok(StepOutcome::Conflict);
        }
        let row = rollouts::save_head(&mut tx, &live.row, &head, None).await?;
        let moved: std::collections::BTreeSet<_> = done.iter().map(|to| to.server_id).collect();
        for (to, seen) in planned.iter().filter(|(to, _)| moved.contains(&to.server_id)) {
            record_task_transition(&mut tx, row.org_id, seen, to.next, None, now);
        }
        tx.commit().await?;
        self.apply_commit(id, row, &done, 2).await?;
        if done.len() < to.len() {
            self.mark_contested_servers(id, &to).await?;
        }
        Ok(StepOutcome::Done)
    }

    /// Applies a commit in memory. If other writers interfered, reads their changes as well.
    async fn apply_commit(
        &mut self,
        id: BatchId,
        row: rollouts::Rollout,
        change: &[StateChange],
        revisions: i64,
    ) -> store::Result<()> {
        let alone = self.rollouts.revision(id) == Some(row.revision - revisions);
        self.rollouts.apply_commit(id, row, change, alone);
        if alone {
            return Ok(());
        }
        self.rollouts.reload(&self.app.db, &mut *self.app.db.read().await?, id).await
    }

    /// Called after some of the wanted servers could not be claimed. Marks those that another
    /// rollout holds, and those that cannot take orders.
    async fn mark_contested_servers(
        &mut self,
        id: BatchId,
        wanted: &[StateChange],
    ) -> store::Result<()> {
        let servers: Vec<_> = wanted.iter().map(|to| to.server_id).collect();
        let mut reader = self.app.db.read().await?;
        let found = rollout_tasks::active_by_servers(&mut reader, &servers).await?;
        for busy in found.into_iter().filter(|busy| busy.rollout_id != id) {
            self.rollouts.mark_busy(busy.server_id, busy.rollout_id);
        }
        for (server, barred) in
            presence_transitions::filter_unavailable(&mut reader, &servers).await?
        {
            self.rollouts.mark_unavailable(server, barred);
        }
        Ok(())
    }
}
