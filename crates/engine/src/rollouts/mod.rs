//! Rollouts: the planner says what happens next, and here it happens.
//!
//! Every open rollout is kept in memory as the planner wants it (`live`), follows what others write
//! (reports of agents, a person's pause), and is planned again whenever something changed or its
//! time came. A step is one transaction, fenced by the lease and guarded by generations; what
//! somebody else did in between makes it stale, and then it is read again and planned again.
//!
//! Two things are no fault of the servers. While nobody led, or the database was away, no agent could
//! report: whoever then listens again gives everyone three sync intervals and 30 s before a
//! deadline counts, as long as a silent server counts as online. And where the clock was set,
//! every wait goes on for as long as it would have; schedules follow the clock.

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

/// After so many attempts in a row that others overtook, a rollout pauses.
const FRUITLESS_MAX: u32 = 100;
const PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// Whoever could not look for so long was deaf.
const DEAF_SECONDS: f64 = 30.0;

/// Carries rollouts out, while this process leads. Until it is aborted.
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
                // Nobody has looked yet who is there.
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
    /// Rollouts that have not been told yet that the clock was set.
    owed: BTreeMap<BatchId, ClockSet>,
    /// Since when nothing was done.
    rested: Stopwatch,
}

/// What came of a step.
enum Step {
    /// It is done.
    Done,
    /// The rollout is over.
    Over,
    /// Others were faster, or hold the servers.
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

    /// Does everything that can be done now. Answers with when to look again.
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
            tracing::warn!("nothing was heard or done for a while; agents are given time");
            self.listens_from_now_on();
        }
        let now = self.now();
        for id in self.fleet.to_be_planned(now) {
            self.settle(id).await?;
        }
        self.rested = Stopwatch::start();
        Ok(self.fleet.wake_at())
    }

    /// Cancels batches of which a row does not verify. They go on as any that was canceled; one that
    /// cannot be canceled is left alone, and not planned either.
    async fn stop_forged(&mut self) -> store::Result<()> {
        for (id, reason) in self.fleet.forged() {
            self.fleet.forget(id);
            match integrity::stop_batch(&self.app, id, reason).await {
                Ok(()) => {
                    let mut reader = self.app.db.read().await?;
                    self.fleet.follow(&self.app.db, &mut reader, id).await?;
                }
                Err(error) => complain("a batch that was changed in the database", &error),
            }
        }
        Ok(())
    }

    /// What time it is. No time is planned by before the rollouts know how the clock came to show it.
    fn now(&mut self) -> Timestamp {
        if let Some(set) = self.hands.look() {
            tracing::warn!(seconds = set.by.as_secs(), "the clock was set; no wait is cut short");
            for id in self.fleet.ids() {
                // One that was not told of the last time is told of both at once.
                let before = self.owed.get(&id).map_or(SignedDuration::ZERO, |owed| owed.by);
                self.owed.insert(id, ClockSet { by: set.by + before, ..set });
                self.fleet.stir(id);
            }
        }
        self.hands.shown()
    }

    /// What happens next to a rollout: whatever the planner says, by a clock that it knows of.
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
            // A change was noticed while this was carried out; the next step stops the batch.
            if self.fleet.is_forged(id) {
                self.fleet.stir(id);
                return Ok(());
            }
            if next.is_idle() {
                self.fleet.planned(id, next.wake_at);
                return Ok(());
            }
            if fruitless > FRUITLESS_MAX {
                tracing::warn!(batch = %id, "others keep overtaking; waiting a little");
                self.fleet.planned(id, now.checked_add(PAUSE).ok());
                return Ok(());
            }
            match self.carry_out(id, next, now).await {
                Ok(Step::Done) => {
                    // The first thing that is done is to tell it of the clock.
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

    /// Something happens to the whole.
    async fn change(&mut self, id: BatchId, change: Change, now: Timestamp) -> store::Result<Step> {
        let Some(live) = self.fleet.get(id) else { return Ok(Step::Over) };
        let mut after = live.rollout.clone();
        if let Err(refused) = after.change(change, now) {
            tracing::error!(batch = %id, %refused, "the planner planned what is refused");
            return Ok(Step::Overtaken);
        }
        // Only a clock that was set moves targets along with the whole.
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

    /// Something happens to some targets; all of it is of one kind.
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
                    tracing::error!(batch = %id, %server, %refused, "planned what is refused");
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

    /// What was committed stands in memory too. If others wrote in between, that is read as well.
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

    /// Servers that we wanted are not to be had: who has them, or which may have no orders?
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
