//! All open rollouts in memory, and what they share: which servers are unavailable, and which
//! rollout is working on which server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::rollout::{Phase, Rollout, ServerCondition, TaskStatus};
use jiff::{SignedDuration, Timestamp};
use store::rollout_tasks::{self, StateChange, TaskRow};
use store::{Conn, Db, StoreError, rollouts};
use vocab::{BatchId, OrgId, ServerId, TaskId};

use crate::UnavailableServers;
use service::commands::batches::restore_rollout;
use service::integrity;
use service::pins;
use service::queries::freezes;

/// Freezes are read again after this time, in case someone created one.
const FREEZES_AGE_MAX: SignedDuration = SignedDuration::from_secs(5);

/// An open rollout.
pub(super) struct OpenRollout {
    /// The stored row; its generation guards the next write.
    pub(super) row: rollouts::Rollout,
    /// The planner's aggregate.
    pub(super) rollout: Rollout,
    tasks: BTreeMap<ServerId, Task>,
    /// The revision up to which it was read.
    revision: i64,
    wake_at: Option<Timestamp>,
    /// If versions are pinned and the first wave has passed: the servers without one.
    unproven: Option<BTreeSet<ServerId>>,
}

#[derive(Clone, Copy)]
struct Task {
    id: TaskId,
    position: u32,
    generation: i64,
}

impl OpenRollout {
    /// Creates a move of a server's task from its current state to `next`.
    pub(super) fn move_to(&self, server: ServerId, next: TaskStatus) -> StateChange {
        let seen = self.tasks.get(&server).map_or(0, |task| task.generation);
        let from = self.rollout.task_status(server).unwrap_or(TaskStatus::Waiting);
        StateChange { server_id: server, from, seen, next, result: None, health: None }
    }

    /// Returns the stored row of a task, as far as this process knows it.
    pub(super) fn task_row(&self, server: ServerId) -> Option<TaskRow> {
        let task = self.tasks.get(&server)?;
        Some(TaskRow {
            rollout_id: self.row.id,
            task_id: task.id,
            server_id: server,
            position: task.position,
            target: self.rollout.task_status(server)?,
            generation: task.generation,
            revision: self.revision,
            seal: store::seals::SealCode::default(),
            health: None,
        })
    }
}

/// What is known about the freezes of an organization.
#[derive(Default)]
struct Freezes {
    /// Until when each server of an open rollout is frozen.
    until: BTreeMap<ServerId, Timestamp>,
    /// When a freeze begins or ends next.
    next_change: Option<Timestamp>,
    /// When they were read.
    read_at: Option<Timestamp>,
    /// Servers of a new rollout are missing.
    stale: bool,
}

#[derive(Default)]
pub(super) struct OpenRollouts {
    rollouts: BTreeMap<BatchId, OpenRollout>,
    /// The rollouts that each server is part of.
    members: BTreeMap<ServerId, BTreeSet<BatchId>>,
    busy_in: BTreeMap<ServerId, BatchId>,
    unavailable: Arc<UnavailableServers>,
    /// The freezes of each organization with an open rollout.
    freezes: BTreeMap<OrgId, Freezes>,
    dirty: BTreeSet<BatchId>,
    /// Rollouts with a row that does not verify, with the reason. They are not planned.
    forged: BTreeMap<BatchId, &'static str>,
    grace_period: Option<(Timestamp, SignedDuration)>,
}

impl OpenRollouts {
    pub(super) fn get(&self, id: BatchId) -> Option<&OpenRollout> {
        self.rollouts.get(&id)
    }

    pub(super) fn ids(&self) -> Vec<BatchId> {
        self.rollouts.keys().copied().collect()
    }

    pub(super) fn revision(&self, id: BatchId) -> Option<i64> {
        self.rollouts.get(&id).map(|live| live.revision)
    }

    /// Returns the rollouts that must be planned now.
    pub(super) fn due_for_planning(&self, now: Timestamp) -> Vec<BatchId> {
        let due = |live: &OpenRollout| live.wake_at.is_some_and(|at| at <= now);
        let ids = self.rollouts.iter().filter(|(id, live)| self.dirty.contains(id) || due(live));
        let ids = ids.filter(|(id, _)| !self.forged.contains_key(id));
        ids.map(|(id, _)| *id).collect()
    }

    /// Returns the time at which the next rollout must be planned. That is now if a step of one
    /// rollout affected another.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        if !self.dirty.is_empty() {
            return Some(Timestamp::MIN);
        }
        let frozen = self.freezes.values().filter_map(|freezes| freezes.next_change);
        self.rollouts.values().filter_map(|live| live.wake_at).chain(frozen).min()
    }

    /// Reads which servers are frozen, where that may have changed. Nothing is planned with freezes
    /// that were read before one began.
    pub(super) async fn load_freezes(
        &mut self,
        conn: &mut Conn,
        now: Timestamp,
    ) -> store::Result<()> {
        let orgs: BTreeSet<OrgId> = self.rollouts.values().map(|live| live.row.org_id).collect();
        self.freezes.retain(|org, _| orgs.contains(org));
        for org in orgs {
            let known = self.freezes.entry(org).or_default();
            let changes = known.next_change.is_some_and(|at| at <= now);
            let current = known.read_at.is_some_and(|at| {
                (SignedDuration::ZERO..FREEZES_AGE_MAX).contains(&now.duration_since(at))
            });
            if current && !changes && !known.stale {
                continue;
            }
            let servers: BTreeSet<ServerId> = self
                .rollouts
                .values()
                .filter(|live| live.row.org_id == org)
                .flat_map(|live| live.tasks.keys().copied())
                .collect();
            let servers: Vec<ServerId> = servers.into_iter().collect();
            let until = freezes::frozen_servers(conn, org, &servers, now).await?;
            let next_change = freezes::next_change(conn, org, now).await?;
            let read = Freezes { until, next_change, read_at: Some(now), stale: false };
            let before = self.freezes.insert(org, read).unwrap_or_default().until;
            let after = &self.freezes[&org].until;
            let differs = |server: &&ServerId| before.get(server) != after.get(server);
            let changed: Vec<ServerId> = servers.iter().filter(differs).copied().collect();
            for server in changed {
                self.update_condition_in_all(server, None);
            }
        }
        Ok(())
    }

    /// Reads which servers of a rollout have no pinned version, once its first wave has passed.
    pub(super) async fn load_unproven(&mut self, db: &Db, id: BatchId) -> store::Result<()> {
        let Some(live) = self.rollouts.get_mut(&id) else { return Ok(()) };
        if live.unproven.is_some()
            || live.rollout.head().waves.current == 0
            || !pins::are_pinned(&live.row)
        {
            return Ok(());
        }
        // All of them: one that has started may return its order and wait again.
        let servers: Vec<ServerId> = live.rollout.tasks().map(|(server, _)| server).collect();
        let conn = &mut *db.read().await?;
        let unproven = pins::unproven_servers(conn, &live.row, &servers).await?;
        live.unproven = Some(unproven.clone());
        for server in unproven {
            self.update_condition(id, server);
        }
        Ok(())
    }

    /// Records servers that turned out to be frozen.
    pub(super) fn add_frozen(&mut self, org: OrgId, frozen: BTreeMap<ServerId, Timestamp>) {
        let servers: Vec<ServerId> = frozen.keys().copied().collect();
        let known = self.freezes.entry(org).or_default();
        known.until.extend(frozen);
        known.stale = true;
        for server in servers {
            self.update_condition_in_all(server, None);
        }
    }

    /// Ends the freezes that are over.
    pub(super) fn end_freezes(&mut self, id: BatchId, now: Timestamp) {
        if let Some(live) = self.rollouts.get_mut(&id) {
            live.rollout.end_freezes(now);
        }
    }

    /// Records that there is nothing to do for this rollout before `wake_at`.
    pub(super) fn set_wake_at(&mut self, id: BatchId, wake_at: Option<Timestamp>) {
        self.dirty.remove(&id);
        if let Some(live) = self.rollouts.get_mut(&id) {
            live.wake_at = wake_at;
        }
    }

    /// Marks a rollout to be planned again.
    pub(super) fn mark_dirty(&mut self, id: BatchId) {
        self.dirty.insert(id);
    }

    /// Records that agents have been able to report only since `since`. They get a grace period of
    /// `patience` before any of them counts as lost: see [`Rollout::start_grace_period`].
    pub(super) fn start_grace_period(&mut self, since: Timestamp, duration: SignedDuration) {
        self.grace_period = Some((since, duration));
        for (id, live) in &mut self.rollouts {
            live.rollout.start_grace_period(since, duration);
            self.dirty.insert(*id);
        }
    }

    /// Returns the same state without rollouts, which are then read again.
    pub(super) fn without_rollouts(&self) -> OpenRollouts {
        OpenRollouts {
            grace_period: self.grace_period,
            unavailable: self.unavailable.clone(),
            freezes: BTreeMap::new(),
            ..OpenRollouts::default()
        }
    }

    /// Removes rollouts that are no longer open.
    pub(super) fn retain_open(&mut self, open: &[(BatchId, i64)]) {
        let open: BTreeSet<_> = open.iter().map(|(id, _)| *id).collect();
        let over: Vec<_> = self.rollouts.keys().filter(|id| !open.contains(id)).copied().collect();
        over.into_iter().for_each(|id| self.remove(id));
    }

    /// Whether a row of this rollout does not verify.
    pub(super) fn is_forged(&self, id: BatchId) -> bool {
        self.forged.contains_key(&id)
    }

    /// Returns the rollouts that must be stopped, each with the reason.
    pub(super) fn forged_rollouts(&self) -> Vec<(BatchId, &'static str)> {
        self.forged.iter().map(|(id, reason)| (*id, *reason)).collect()
    }

    pub(super) fn remove(&mut self, id: BatchId) {
        self.dirty.remove(&id);
        self.forged.remove(&id);
        let Some(gone) = self.rollouts.remove(&id) else { return };
        for server in gone.tasks.into_keys() {
            if let Some(members) = self.members.get_mut(&server) {
                members.remove(&id);
                if members.is_empty() {
                    self.members.remove(&server);
                }
            }
            self.set_occupied(id, server, false);
        }
    }

    /// Reads the changes of a rollout since it was last read, or all of it.
    pub(super) async fn reload(
        &mut self,
        db: &Db,
        conn: &mut Conn,
        id: BatchId,
    ) -> store::Result<()> {
        // The head first: changes after this read are read again with the next notification.
        let row = match rollouts::load(conn, id).await {
            Err(StoreError::NotFound { .. }) => {
                self.remove(id);
                return Ok(());
            }
            row => row?,
        };
        if row.ended_at.is_some() {
            self.remove(id);
            return Ok(());
        }
        self.dirty.insert(id);
        let Some(live) = self.rollouts.get_mut(&id) else {
            let rows = rollout_tasks::all(conn, id).await?;
            self.check_authenticity(db, &row, &rows);
            self.insert(row, &rows);
            return Ok(());
        };
        let rows = rollout_tasks::changed_since(conn, id, live.revision).await?;
        let forged = forgery_reason(db, &row, &rows);
        live.revision = row.revision;
        live.rollout.load_head(row.head.clone());
        live.row = row;
        for target in &rows {
            live.rollout.load_task(target.server_id, target.target);
            live.rollout.set_health(target.server_id, target.health.clone().map(Arc::new));
            if let Some(task) = live.tasks.get_mut(&target.server_id) {
                // A task whose order was given back gets a new task id.
                (task.generation, task.id) = (target.generation, target.task_id);
            }
        }
        for target in rows {
            self.set_occupied(id, target.server_id, is_busy(target.target));
        }
        if let Some(reason) = forged {
            self.forged.insert(id, reason);
        }
        Ok(())
    }

    fn check_authenticity(&mut self, db: &Db, row: &rollouts::Rollout, rows: &[TaskRow]) {
        if let Some(reason) = forgery_reason(db, row, rows) {
            self.forged.insert(row.id, reason);
        }
    }

    fn insert(&mut self, row: rollouts::Rollout, rows: &[TaskRow]) {
        let id = row.id;
        let task = |row: &TaskRow| Task {
            id: row.task_id,
            position: row.position,
            generation: row.generation,
        };
        let mut rollout = restore_rollout(&row, rows);
        if let Some((since, patience)) = self.grace_period {
            rollout.start_grace_period(since, patience);
        }
        let live = OpenRollout {
            rollout,
            tasks: rows.iter().map(|row| (row.server_id, task(row))).collect(),
            revision: row.revision,
            wake_at: None,
            unproven: None,
            row,
        };
        self.freezes.entry(live.row.org_id).or_default().stale = true;
        self.rollouts.insert(id, live);
        for target in rows {
            self.members.entry(target.server_id).or_default().insert(id);
            self.set_occupied(id, target.server_id, is_busy(target.target));
            self.update_condition(id, target.server_id);
        }
    }

    /// Applies a commit of this process. `alone`: no other writer has changed the rollout since it
    /// was last read.
    pub(super) fn apply_commit(
        &mut self,
        id: BatchId,
        row: rollouts::Rollout,
        change: &[StateChange],
        alone: bool,
    ) {
        let Some(live) = self.rollouts.get_mut(&id) else { return };
        if alone {
            live.revision = row.revision;
        }
        live.rollout.load_head(row.head.clone());
        live.row = row;
        for to in change {
            live.rollout.load_task(to.server_id, to.next);
            if let Some(task) = live.tasks.get_mut(&to.server_id) {
                task.generation = to.seen + 1;
            }
        }
        for to in change {
            self.set_occupied(id, to.server_id, is_busy(to.next));
        }
    }

    /// Replaces the set of servers that cannot take orders.
    pub(super) fn set_unavailable(&mut self, unavailable: Arc<UnavailableServers>) {
        let before = std::mem::replace(&mut self.unavailable, unavailable);
        if Arc::ptr_eq(&before, &self.unavailable) {
            return;
        }
        let away = before.offline.symmetric_difference(&self.unavailable.offline);
        let busy = before.busy.symmetric_difference(&self.unavailable.busy);
        let changed: BTreeSet<_> = away.chain(busy).copied().collect();
        for server in changed {
            self.update_condition_in_all(server, None);
        }
    }

    /// Records that the database refused an order for this server before the presence check noticed
    /// why: the server is quarantined, removed or busy.
    pub(super) fn mark_unavailable(&mut self, server: ServerId, blocked: bool) {
        let unable = Arc::make_mut(&mut self.unavailable);
        let servers = if blocked { &mut unable.offline } else { &mut unable.busy };
        servers.insert(server);
        self.update_condition_in_all(server, None);
    }

    /// Records that, according to the database, another rollout is working on this server.
    pub(super) fn mark_busy(&mut self, server: ServerId, id: BatchId) {
        self.set_occupied(id, server, true);
    }

    fn set_occupied(&mut self, id: BatchId, server: ServerId, busy: bool) {
        let holder = self.busy_in.get(&server).copied();
        match (busy, holder) {
            (true, Some(holder)) if holder == id => return,
            (true, _) => drop(self.busy_in.insert(server, id)),
            (false, Some(holder)) if holder == id => drop(self.busy_in.remove(&server)),
            (false, _) => return,
        }
        self.update_condition_in_all(server, Some(id));
    }

    /// Updates the condition of a server in all of its rollouts except `except`.
    fn update_condition_in_all(&mut self, server: ServerId, except: Option<BatchId>) {
        let members = self.members.get(&server).cloned().unwrap_or_default();
        for id in members.into_iter().filter(|id| Some(*id) != except) {
            self.update_condition(id, server);
            self.dirty.insert(id);
        }
    }

    fn update_condition(&mut self, id: BatchId, server: ServerId) {
        let Some(live) = self.rollouts.get_mut(&id) else { return };
        let frozen = self.freezes.get(&live.row.org_id);
        let condition = ServerCondition {
            online: !self.unavailable.offline.contains(&server),
            busy_in: self.busy_in.get(&server).copied().filter(|holder| *holder != id),
            agent_busy: self.unavailable.busy.contains(&server),
            frozen_until: frozen.and_then(|freezes| freezes.until.get(&server).copied()),
            unproven: live.unproven.as_ref().is_some_and(|unproven| unproven.contains(&server)),
        };
        live.rollout.set_condition(server, condition);
    }
}

/// Returns the reason why a batch must be stopped. A batch that is being canceled starts nothing
/// and is left to finish.
fn forgery_reason(db: &Db, row: &rollouts::Rollout, rows: &[TaskRow]) -> Option<&'static str> {
    if row.head.phase == Phase::Canceling {
        return None;
    }
    if !integrity::is_authentic(db, row) {
        return Some("the batch was inserted or changed outside Fleetmend");
    }
    let genuine = rows.iter().all(|target| db.is_authentic(target));
    (!genuine).then_some("a task of the batch was inserted or changed outside Fleetmend")
}

fn is_busy(status: TaskStatus) -> bool {
    matches!(status, TaskStatus::Busy(_))
}
