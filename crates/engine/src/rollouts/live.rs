//! All open rollouts in memory, and what they share: which servers are unavailable, and which
//! rollout is working on which server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::rollout::{Condition, Phase, Rollout, Target};
use jiff::{SignedDuration, Timestamp};
use store::rollout_targets::{self, Move, TargetRow};
use store::{Conn, Db, StoreError, rollouts};
use vocab::{BatchId, ServerId, TaskId};

use crate::Unable;
use service::commands::batches::restored;
use service::integrity;

/// An open rollout.
pub(super) struct Live {
    /// The stored row; its generation guards the next write.
    pub(super) row: rollouts::Rollout,
    /// The planner's aggregate.
    pub(super) rollout: Rollout,
    tasks: BTreeMap<ServerId, Task>,
    /// The revision up to which it was read.
    revision: i64,
    wake_at: Option<Timestamp>,
}

#[derive(Clone, Copy)]
struct Task {
    id: TaskId,
    position: u32,
    generation: i64,
}

impl Live {
    /// Creates a move of a server's task from its current state to `next`.
    pub(super) fn to(&self, server: ServerId, next: Target) -> Move {
        let seen = self.tasks.get(&server).map_or(0, |task| task.generation);
        let from = self.rollout.target(server).unwrap_or(Target::Waiting);
        Move { server_id: server, from, seen, next, result: None }
    }

    /// Returns the stored row of a task, as far as this process knows it.
    pub(super) fn row_of(&self, server: ServerId) -> Option<TargetRow> {
        let task = self.tasks.get(&server)?;
        Some(TargetRow {
            rollout_id: self.row.id,
            task_id: task.id,
            server_id: server,
            position: task.position,
            target: self.rollout.target(server)?,
            generation: task.generation,
            revision: self.revision,
            seal: store::seals::Code::default(),
        })
    }
}

#[derive(Default)]
pub(super) struct Fleet {
    live: BTreeMap<BatchId, Live>,
    /// The rollouts that each server is part of.
    members: BTreeMap<ServerId, BTreeSet<BatchId>>,
    in_work: BTreeMap<ServerId, BatchId>,
    unable: Arc<Unable>,
    dirty: BTreeSet<BatchId>,
    /// Rollouts with a row that does not verify, with the reason. They are not planned.
    forged: BTreeMap<BatchId, &'static str>,
    deaf: Option<(Timestamp, SignedDuration)>,
}

impl Fleet {
    pub(super) fn get(&self, id: BatchId) -> Option<&Live> {
        self.live.get(&id)
    }

    pub(super) fn ids(&self) -> Vec<BatchId> {
        self.live.keys().copied().collect()
    }

    pub(super) fn revision(&self, id: BatchId) -> Option<i64> {
        self.live.get(&id).map(|live| live.revision)
    }

    /// Returns the rollouts that must be planned now.
    pub(super) fn to_be_planned(&self, now: Timestamp) -> Vec<BatchId> {
        let due = |live: &Live| live.wake_at.is_some_and(|at| at <= now);
        let ids = self.live.iter().filter(|(id, live)| self.dirty.contains(id) || due(live));
        let ids = ids.filter(|(id, _)| !self.forged.contains_key(id));
        ids.map(|(id, _)| *id).collect()
    }

    /// Returns when the next rollout must be planned: immediately if the step of one rollout
    /// affected another.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        if !self.dirty.is_empty() {
            return Some(Timestamp::MIN);
        }
        self.live.values().filter_map(|live| live.wake_at).min()
    }

    /// Records that there is nothing to do for this rollout before `wake_at`.
    pub(super) fn planned(&mut self, id: BatchId, wake_at: Option<Timestamp>) {
        self.dirty.remove(&id);
        if let Some(live) = self.live.get_mut(&id) {
            live.wake_at = wake_at;
        }
    }

    /// Marks a rollout to be planned again.
    pub(super) fn stir(&mut self, id: BatchId) {
        self.dirty.insert(id);
    }

    /// Records that agents have been able to report only since `since`. They get a grace period of
    /// `patience` before any of them counts as lost: see [`Rollout::was_deaf`].
    pub(super) fn was_deaf(&mut self, since: Timestamp, patience: SignedDuration) {
        self.deaf = Some((since, patience));
        for (id, live) in &mut self.live {
            live.rollout.was_deaf(since, patience);
            self.dirty.insert(*id);
        }
    }

    /// Returns the same state without rollouts, which are then read again.
    pub(super) fn emptied(&self) -> Fleet {
        Fleet { deaf: self.deaf, unable: self.unable.clone(), ..Fleet::default() }
    }

    /// Removes rollouts that are no longer open.
    pub(super) fn keep(&mut self, open: &[(BatchId, i64)]) {
        let open: BTreeSet<_> = open.iter().map(|(id, _)| *id).collect();
        let over: Vec<_> = self.live.keys().filter(|id| !open.contains(id)).copied().collect();
        over.into_iter().for_each(|id| self.forget(id));
    }

    /// Whether a row of this rollout does not verify.
    pub(super) fn is_forged(&self, id: BatchId) -> bool {
        self.forged.contains_key(&id)
    }

    /// Returns the rollouts that must be stopped, each with the reason.
    pub(super) fn forged(&self) -> Vec<(BatchId, &'static str)> {
        self.forged.iter().map(|(id, reason)| (*id, *reason)).collect()
    }

    pub(super) fn forget(&mut self, id: BatchId) {
        self.dirty.remove(&id);
        self.forged.remove(&id);
        let Some(gone) = self.live.remove(&id) else { return };
        for server in gone.tasks.into_keys() {
            if let Some(members) = self.members.get_mut(&server) {
                members.remove(&id);
                if members.is_empty() {
                    self.members.remove(&server);
                }
            }
            self.occupy(id, server, false);
        }
    }

    /// Reads the changes of a rollout since it was last read, or all of it.
    pub(super) async fn follow(
        &mut self,
        db: &Db,
        conn: &mut Conn,
        id: BatchId,
    ) -> store::Result<()> {
        // The head first: changes after this read are read again with the next notification.
        let row = match rollouts::load(conn, id).await {
            Err(StoreError::NotFound { .. }) => {
                self.forget(id);
                return Ok(());
            }
            row => row?,
        };
        if row.ended_at.is_some() {
            self.forget(id);
            return Ok(());
        }
        self.dirty.insert(id);
        let Some(live) = self.live.get_mut(&id) else {
            let rows = rollout_targets::all(conn, id).await?;
            self.judge(db, &row, &rows);
            self.take_up(row, &rows);
            return Ok(());
        };
        let rows = rollout_targets::changed_since(conn, id, live.revision).await?;
        let forged = forged(db, &row, &rows);
        live.revision = row.revision;
        live.rollout.learn_head(row.head.clone());
        live.row = row;
        for target in &rows {
            live.rollout.learn(target.server_id, target.target);
            if let Some(task) = live.tasks.get_mut(&target.server_id) {
                // A task whose order was given back gets a new task id.
                (task.generation, task.id) = (target.generation, target.task_id);
            }
        }
        for target in rows {
            self.occupy(id, target.server_id, is_busy(target.target));
        }
        if let Some(reason) = forged {
            self.forged.insert(id, reason);
        }
        Ok(())
    }

    fn judge(&mut self, db: &Db, row: &rollouts::Rollout, rows: &[TargetRow]) {
        if let Some(reason) = forged(db, row, rows) {
            self.forged.insert(row.id, reason);
        }
    }

    fn take_up(&mut self, row: rollouts::Rollout, rows: &[TargetRow]) {
        let id = row.id;
        let task = |row: &TargetRow| Task {
            id: row.task_id,
            position: row.position,
            generation: row.generation,
        };
        let mut rollout = restored(&row, rows);
        if let Some((since, patience)) = self.deaf {
            rollout.was_deaf(since, patience);
        }
        let live = Live {
            rollout,
            tasks: rows.iter().map(|row| (row.server_id, task(row))).collect(),
            revision: row.revision,
            wake_at: None,
            row,
        };
        self.live.insert(id, live);
        for target in rows {
            self.members.entry(target.server_id).or_default().insert(id);
            self.occupy(id, target.server_id, is_busy(target.target));
            self.notice(id, target.server_id);
        }
    }

    /// Applies a commit of this process. `alone`: no other writer has changed the rollout since it
    /// was last read.
    pub(super) fn saved(
        &mut self,
        id: BatchId,
        row: rollouts::Rollout,
        moved: &[Move],
        alone: bool,
    ) {
        let Some(live) = self.live.get_mut(&id) else { return };
        if alone {
            live.revision = row.revision;
        }
        live.rollout.learn_head(row.head.clone());
        live.row = row;
        for to in moved {
            live.rollout.learn(to.server_id, to.next);
            if let Some(task) = live.tasks.get_mut(&to.server_id) {
                task.generation = to.seen + 1;
            }
        }
        for to in moved {
            self.occupy(id, to.server_id, is_busy(to.next));
        }
    }

    /// Replaces the set of servers that cannot take orders.
    pub(super) fn set_unable(&mut self, unable: Arc<Unable>) {
        let before = std::mem::replace(&mut self.unable, unable);
        if Arc::ptr_eq(&before, &self.unable) {
            return;
        }
        let away = before.away.symmetric_difference(&self.unable.away);
        let at_work = before.at_work.symmetric_difference(&self.unable.at_work);
        let changed: BTreeSet<_> = away.chain(at_work).copied().collect();
        for server in changed {
            self.tell_all(server, None);
        }
    }

    /// Records that the database refused an order for this server before the presence check noticed
    /// why: the server is barred or working on something.
    pub(super) fn is_unable(&mut self, server: ServerId, barred: bool) {
        let unable = Arc::make_mut(&mut self.unable);
        let whom = if barred { &mut unable.away } else { &mut unable.at_work };
        whom.insert(server);
        self.tell_all(server, None);
    }

    /// Records that, according to the database, another rollout is working on this server.
    pub(super) fn is_busy_in(&mut self, server: ServerId, id: BatchId) {
        self.occupy(id, server, true);
    }

    fn occupy(&mut self, id: BatchId, server: ServerId, busy: bool) {
        let holder = self.in_work.get(&server).copied();
        match (busy, holder) {
            (true, Some(holder)) if holder == id => return,
            (true, _) => drop(self.in_work.insert(server, id)),
            (false, Some(holder)) if holder == id => drop(self.in_work.remove(&server)),
            (false, _) => return,
        }
        self.tell_all(server, Some(id));
    }

    /// Updates the condition of a server in all of its rollouts except `except`.
    fn tell_all(&mut self, server: ServerId, except: Option<BatchId>) {
        let members = self.members.get(&server).cloned().unwrap_or_default();
        for id in members.into_iter().filter(|id| Some(*id) != except) {
            self.notice(id, server);
            self.dirty.insert(id);
        }
    }

    fn notice(&mut self, id: BatchId, server: ServerId) {
        let condition = Condition {
            online: !self.unable.away.contains(&server),
            busy_in: self.in_work.get(&server).copied().filter(|holder| *holder != id),
            at_work: self.unable.at_work.contains(&server),
        };
        if let Some(live) = self.live.get_mut(&id) {
            live.rollout.notice(server, condition);
        }
    }
}

/// Returns the reason why a batch must be stopped. A batch that is being canceled starts nothing
/// and is left to finish.
fn forged(db: &Db, row: &rollouts::Rollout, rows: &[TargetRow]) -> Option<&'static str> {
    if row.head.phase == Phase::Canceling {
        return None;
    }
    if !integrity::is_authentic(db, row) {
        return Some("the batch was inserted or changed in the database");
    }
    let genuine = rows.iter().all(|target| db.is_authentic(target));
    (!genuine).then_some("a task of the batch was inserted or changed in the database")
}

fn is_busy(target: Target) -> bool {
    matches!(target, Target::Busy(_))
}
