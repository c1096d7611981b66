//! Executes rollouts: the planner (`domain::rollout`) decides what happens next, this module does
//! it.
//!
//! Every open rollout is kept in memory (`open_rollouts`). It follows what others write, such as reports of
//! agents or a user's pause, and is planned again whenever something changed or its wake-up time
//! has come. A step is one transaction, fenced by the lease and guarded by generations. If another
//! writer interfered, the step is stale: the rollout is read and planned again.
//!
//! Two events must not count against the servers. While no replica led, or the database was down,
//! no agent could report. After that, every server gets a grace period of three sync intervals and
//! 30 s before a deadline counts, the same time for which a silent server counts as online. And
//! after the clock was set, every wait lasts as long as it would have; schedules follow the new
//! clock.

mod live;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::rollout::{Change, ClockSet, Event, Phase, Plan, plan};
use domain::server::Presence;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::leases::{self, Lease};
use store::rollout_targets::{self, Move, TargetRow};
use store::rollouts::{self, phase_word};
use store::{StoreError, Topic, absences};
use tokio::sync::watch;
use vocab::{BatchId, ServerId};

use self::live::Fleet;
use super::{Away, Lead, Pen, complain, until, until_leading};
use service::App;
use service::clock::{Hands, Stopwatch};
use service::commands::batches::{ended, task_moved};
use service::{emit, integrity, record};

/// After this many consecutive attempts that lost against other writers, a rollout pauses.
const FRUITLESS_MAX: u32 = 100;
const PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// If no step was completed for this long, agents could not report and get a grace period.
const DEAF_SECONDS: f64 = 30.0;

/// Executes rollouts while this process leads. Runs until it is aborted.
pub(super) async fn drive(
    app: App,
    look: Duration,
    mut lead: watch::Receiver<Lead>,
    mut away: watch::Receiver<Away>,
    pen: Pen,
) {
    let mut changed = app.db.bell(Topic::Rollouts);
    loop {
        let lease = until_leading(&mut lead).await;
        let mut driver = Driver::new(&app, lease, pen.clone());
        loop {
            let unable = away.borrow_and_update().clone();
            let sleep = match unable {
                // The first presence check has not finished.
                None => look,
                Some(unable) => {
                    driver.fleet.set_unable(unable);
                    match driver.step().await {
                        Ok(next) => until(next, app.clock.now(), look),
                        Err(error) => {
                            complain("rollouts", &error);
                            driver.fleet = driver.fleet.emptied();
                            look
                        }
                    }
                }
            };
            tokio::select! {
                () = changed.rung() => {}
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
    pen: Pen,
    fleet: Fleet,
    hands: Hands,
    /// Clock changes that have not been applied to these rollouts yet.
    owed: BTreeMap<BatchId, ClockSet>,
    /// Time since the last completed step.
    rested: Stopwatch,
}

enum Step {
    Done,
    /// The rollout has ended.
    Over,
    /// Other writers were faster, or other rollouts hold the servers.
    Overtaken,
}

impl Driver {
    fn new(app: &App, lease: Arc<Lease>, pen: Pen) -> Driver {
        let mut driver = Driver {
            app: app.clone(),
            lease,
            pen,
            fleet: Fleet::default(),
            hands: app.clock.hands(),
            owed: BTreeMap::new(),
            rested: Stopwatch::start(),
        };
        driver.listens_from_now_on();
        driver
    }

    fn listens_from_now_on(&mut self) {
        let sync_seconds = self.app.settings.sync_seconds;
        let patience = Presence { last_seen: None, sync_seconds }.patience();
        let now = self.now();
        self.fleet.was_deaf(now, patience);
    }

    /// Does everything that can be done now. Returns when to run again.
    async fn step(&mut self) -> store::Result<Option<Timestamp>> {
        let mut reader = self.app.db.read().await?;
        let open = rollouts::open(&mut reader).await?;
        self.fleet.keep(&open);
        self.owed.retain(|owed, _| open.iter().any(|(id, _)| id == owed));
        for (id, revision) in open {
            if self.fleet.revision(id) != Some(revision) {
                self.fleet.follow(&self.app.db, &mut reader, id).await?;
            }
        }
        drop(reader);
        self.stop_forged().await?;
        if self.rested.seconds() > DEAF_SECONDS {
            tracing::warn!("no step completed for a while; agents get a grace period to report");
            self.listens_from_now_on();
        }
        let now = self.now();
        for id in self.fleet.to_be_planned(now) {
            self.settle(id).await?;
        }
        self.rested = Stopwatch::start();
        Ok(self.fleet.wake_at())
    }

    /// Cancels batches with a row that does not verify. They then continue like any canceled batch.
    /// A batch that cannot be canceled is left alone and is not planned either.
    async fn stop_forged(&mut self) -> store::Result<()> {
        for (id, reason) in self.fleet.forged() {
            self.fleet.forget(id);
            match integrity::stop_batch(&self.app, id, reason).await {
                Ok(()) => {
                    let mut reader = self.app.db.read().await?;
                    self.fleet.follow(&self.app.db, &mut reader, id).await?;
                }
                Err(error) => complain("stop a batch that was changed in the database", &error),
            }
        }
        Ok(())
    }

    /// Returns the current time. Nothing is planned by a new time before the rollouts know how the
    /// clock was changed.
    fn now(&mut self) -> Timestamp {
        if let Some(set) = self.hands.look() {
            tracing::warn!(
                seconds = set.by.as_secs(),
                "the clock was set; waits keep their length"
            );
            for id in self.fleet.ids() {
                // A rollout that has not applied the previous change gets the sum of both.
                let before = self.owed.get(&id).map_or(SignedDuration::ZERO, |owed| owed.by);
                self.owed.insert(id, ClockSet { by: set.by + before, ..set });
                self.fleet.stir(id);
            }
        }
        self.hands.shown()
    }

    /// Returns the next step of a rollout: a pending clock change, or what the planner decides.
    fn next(&self, id: BatchId, now: Timestamp) -> Option<Plan> {
        let live = self.fleet.get(id)?;
        Some(match self.owed.get(&id) {
            Some(set) => {
                let change = Change::ClockSet(ClockSet { now: set.now.max(now), ..*set });
                Plan { change: Some(change), ..Plan::default() }
            }
            None => plan(&live.rollout, now),
        })
    }

    async fn settle(&mut self, id: BatchId) -> store::Result<()> {
        let mut fruitless = 0;
        loop {
            let now = self.now();
            let Some(next) = self.next(id, now) else { return Ok(()) };
            // A forged row was found while this was carried out; the next step stops the batch.
            if self.fleet.is_forged(id) {
                self.fleet.stir(id);
                return Ok(());
            }
            if next.is_idle() {
                self.fleet.planned(id, next.wake_at);
                return Ok(());
            }
            if fruitless > FRUITLESS_MAX {
                tracing::warn!(batch = %id, "other writers keep changing this batch; pausing");
                self.fleet.planned(id, now.checked_add(PAUSE).ok());
                return Ok(());
            }
            match self.carry_out(id, next, now).await {
                Ok(Step::Done) => {
                    // A pending clock change is always the first step.
                    self.owed.remove(&id);
                    fruitless = 0;
                }
                Ok(Step::Over) => {
                    self.fleet.forget(id);
                    return Ok(());
                }
                Ok(Step::Overtaken) | Err(StoreError::Stale | StoreError::Busy(_)) => {
                    fruitless += 1;
                    self.fleet.follow(&self.app.db, &mut *self.app.db.read().await?, id).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn carry_out(&mut self, id: BatchId, next: Plan, now: Timestamp) -> store::Result<Step> {
        let pen = self.pen.clone();
        let _held = pen.lock().await;
        match next.change {
            Some(change) => self.change(id, change, now).await,
            None => self.moves(id, &next.moves, now).await,
        }
    }

    /// Applies a change of the whole rollout.
    async fn change(&mut self, id: BatchId, change: Change, now: Timestamp) -> store::Result<Step> {
        let Some(live) = self.fleet.get(id) else { return Ok(Step::Over) };
        let mut after = live.rollout.clone();
        if let Err(refused) = after.change(change, now) {
            tracing::error!(batch = %id, %refused, "bug: the planner planned an invalid change");
            return Ok(Step::Overtaken);
        }
        // Only a clock change moves tasks together with the whole.
        let moved: Vec<Move> = live
            .rollout
            .targets()
            .zip(after.targets())
            .filter(|(before, after)| before != after)
            .map(|(_, (server, next))| live.to(server, next))
            .collect();
        let over = match after.head().phase {
            Phase::Ended(end) => Some(end),
            _ => None,
        };
        let mut tx = self.app.db.begin().await?;
        leases::fence(&mut tx, &self.lease).await?;
        if !moved.is_empty() {
            rollout_targets::save(&mut tx, id, &moved).await?;
        }
        let row = rollouts::save_head(&mut tx, &live.row, after.head(), over.map(|_| now)).await?;
        match over {
            Some(end) => ended(&mut tx, &row, end, now, now).await?,
            None => {
                let mut told = json!({"batch_id": id, "state": phase_word(row.head.phase)});
                if change == Change::CanaryUnchanged {
                    told["reason"] = json!("canary_unchanged");
                }
                record(&mut tx, row.org_id, now, "engine", "batch.change", id, &told);
                emit(&mut tx, row.org_id, "batch.changed", now, told);
            }
        }
        tx.commit().await?;
        if over.is_some() {
            return Ok(Step::Over);
        }
        let revisions = 1 + i64::from(!moved.is_empty());
        self.saved(id, row, &moved, revisions).await?;
        Ok(Step::Done)
    }

    /// Applies events to some tasks; all are of the same kind.
    async fn moves(
        &mut self,
        id: BatchId,
        moves: &[(ServerId, Event)],
        now: Timestamp,
    ) -> store::Result<Step> {
        let Some(live) = self.fleet.get(id) else { return Ok(Step::Over) };
        let starts = moves.iter().any(|(_, event)| *event == Event::Offered);
        let mut planned: Vec<(Move, TargetRow)> = Vec::with_capacity(moves.len());
        for (server, event) in moves {
            let Some(row) = live.row_of(*server) else { continue };
            match row.target.apply(*event, now) {
                Ok(next) => planned.push((live.to(*server, next), row)),
                Err(refused) => {
                    tracing::error!(batch = %id, %server, %refused, "bug: the planner planned an invalid event");
                    return Ok(Step::Overtaken);
                }
            }
        }
        let to: Vec<Move> = planned.iter().map(|(to, _)| to.clone()).collect();
        let mut head = live.rollout.head().clone();
        head.clock = head.clock.max(now);
        if starts {
            head.last_start = Some(now);
        }
        let mut tx = self.app.db.begin().await?;
        leases::fence(&mut tx, &self.lease).await?;
        let done: Vec<Move> = if starts {
            let claimed = rollout_targets::claim(&mut tx, id, &to).await?;
            let claimed: std::collections::BTreeSet<_> = claimed.into_iter().collect();
            to.iter().filter(|to| claimed.contains(&to.server_id)).cloned().collect()
        } else {
            rollout_targets::save(&mut tx, id, &to).await?;
            to.clone()
        };
        if done.is_empty() {
            drop(tx);
            self.contested(id, &to).await?;
            return Ok(Step::Overtaken);
        }
        let row = rollouts::save_head(&mut tx, &live.row, &head, None).await?;
        let moved: std::collections::BTreeSet<_> = done.iter().map(|to| to.server_id).collect();
        for (to, seen) in planned.iter().filter(|(to, _)| moved.contains(&to.server_id)) {
            task_moved(&mut tx, row.org_id, seen, to.next, now);
        }
        tx.commit().await?;
        self.saved(id, row, &done, 2).await?;
        if done.len() < to.len() {
            self.contested(id, &to).await?;
        }
        Ok(Step::Done)
    }

    /// Applies a commit in memory. If other writers interfered, reads their changes as well.
    async fn saved(
        &mut self,
        id: BatchId,
        row: rollouts::Rollout,
        moved: &[Move],
        revisions: i64,
    ) -> store::Result<()> {
        let alone = self.fleet.revision(id) == Some(row.revision - revisions);
        self.fleet.saved(id, row, moved, alone);
        if alone {
            return Ok(());
        }
        self.fleet.follow(&self.app.db, &mut *self.app.db.read().await?, id).await
    }

    /// Some of the wanted servers could not be claimed: finds out which rollouts hold them, and
    /// which servers cannot take orders.
    async fn contested(&mut self, id: BatchId, wanted: &[Move]) -> store::Result<()> {
        let servers: Vec<_> = wanted.iter().map(|to| to.server_id).collect();
        let mut reader = self.app.db.read().await?;
        let found = rollout_targets::in_work(&mut reader, &servers).await?;
        for busy in found.into_iter().filter(|busy| busy.rollout_id != id) {
            self.fleet.is_busy_in(busy.server_id, busy.rollout_id);
        }
        for (server, barred) in absences::unable_among(&mut reader, &servers).await? {
            self.fleet.is_unable(server, barred);
        }
        Ok(())
    }
}
