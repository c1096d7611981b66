//! Follows open rollouts and refreshes in the database, keeps the outbox up to date, and wakes the
//! agents that are connected to this process. It runs in every replica, not only in the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::rollout::{Phase, TaskStatus};
use store::rollout_tasks::{self, TaskRow};
use store::{Conn, StoreError, Topic, presence_transitions, refreshes, rollouts, servers};
use vocab::{BatchId, HealthMode, ServerId, Stage, TaskId};

use crate::Gateway;
use crate::outbox::{Assignment, OrderKind};
use service::pins::Versions;
use service::{OrderOptions, PatchOptions, integrity, pins};

/// An open rollout as this process last read it.
struct FollowedRollout {
    revision: i64,
    withdrawn: bool,
    /// `None` if the stored options do not parse. Then no order goes out, and the tasks end at
    /// their deadlines.
    order: Option<Arc<OrderOptions>>,
    /// The pinned versions by system, once a task needs them.
    pins: Option<BTreeMap<String, Versions>>,
    assignments: BTreeMap<ServerId, (TaskId, Assignment)>,
}

/// Follows rollouts and refreshes until aborted. `interval` is how often to check without a
/// notification.
pub(crate) async fn run(app: Gateway, interval: Duration) {
    let mut rollouts = app.db.subscribe(Topic::Rollouts);
    let mut refreshes = app.db.subscribe(Topic::Refreshes);
    let mut follower = Dispatcher { app, followed: BTreeMap::new(), scans: BTreeMap::new() };
    loop {
        let looked = async {
            follower.update_rollouts().await?;
            follower.update_refreshes().await
        };
        if let Err(error) = looked.await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to read open rollouts; orders may be late"
            );
        }
        tokio::select! {
            () = rollouts.notified() => {}
            () = refreshes.notified() => {}
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// Follows removals and quarantines until aborted.
pub(crate) async fn watch_access(app: Gateway, interval: Duration) {
    let mut servers = app.db.subscribe(Topic::Servers);
    let mut known = None;
    let mut all_again = tokio::time::interval(interval);
    loop {
        let barred = async { presence_transitions::list_blocked(&mut *app.db.read().await?).await };
        match barred.await {
            // The notification is sent for every inventory, and rarely means a removal or a
            // quarantine.
            Ok(barred) if known.as_ref() == Some(&barred) => {}
            Ok(barred) => {
                app.registry().set_access_states(&barred);
                known = Some(barred);
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "failed to read removed servers; removals may be late"
                );
            }
        }
        tokio::select! {
            () = servers.notified() => {}
            // A session may have been created from data that was read before the server was
            // quarantined or removed. So all sessions are updated from time to time.
            _ = all_again.tick() => known = None,
        }
    }
}

/// Whether servers of a rollout that are not in progress may have to watch their health.
fn may_watch(row: &rollouts::Rollout) -> bool {
    let pace = &row.head.pace;
    match pace.health {
        HealthMode::Off => false,
        HealthMode::Report => {
            pace.limits(row.total).waves().iter().any(|wave| !wave.soak.is_zero())
        }
        HealthMode::Gate => true,
    }
}

struct Dispatcher {
    app: Gateway,
    followed: BTreeMap<BatchId, FollowedRollout>,
    scans: BTreeMap<TaskId, ServerId>,
}

impl Dispatcher {
    async fn update_rollouts(&mut self) -> store::Result<()> {
        let mut reader = self.app.db.read().await?;
        let open: BTreeMap<_, _> = rollouts::list_open(&mut reader).await?.into_iter().collect();
        let ended: Vec<_> =
            self.followed.keys().filter(|id| !open.contains_key(id)).copied().collect();
        for id in ended {
            self.remove_rollout(id);
        }
        for (id, revision) in open {
            if self.followed.get(&id).is_some_and(|known| known.revision == revision) {
                continue;
            }
            // Read the head first: what changes after that is read again at the next notification.
            let row = match rollouts::load(&mut reader, id).await {
                Err(StoreError::NotFound { .. }) => continue,
                row => row?,
            };
            let watches = may_watch(&row);
            let rows = match self.followed.get(&id) {
                // Waiting and changed servers too may have to watch their health.
                _ if watches && !self.app.registry().health_watches.follows(id) => {
                    rollout_tasks::all(&mut reader, id).await?
                }
                None => rollout_tasks::list_active(&mut reader, id).await?,
                Some(known) => {
                    rollout_tasks::changed_since(&mut reader, id, known.revision).await?
                }
            };
            let canceling = row.head.phase == Phase::Canceling;
            if !integrity::is_authentic(&self.app.db, &row) {
                self.withdraw_all(&row);
                if !canceling {
                    self.cancel_batch(id, "the batch was inserted or changed outside Fleetmend")
                        .await;
                }
                continue;
            }
            let (genuine, forged): (Vec<_>, Vec<_>) =
                rows.into_iter().partition(|target| self.app.db.is_authentic(target));
            let Some(versions) = self.pinned_versions(&mut reader, &row, &genuine).await? else {
                self.withdraw_all(&row);
                if !canceling {
                    let reason = "a pinned version was inserted or changed outside Fleetmend";
                    self.cancel_batch(id, reason).await;
                }
                continue;
            };
            self.update_rollout(&row, genuine, &versions);
            if !forged.is_empty() && !canceling {
                let reason = "a task of the batch was inserted or changed outside Fleetmend";
                self.cancel_batch(id, reason).await;
            }
        }
        Ok(())
    }

    /// Cancels a batch with a row that does not verify. Whether that succeeds or not, nothing from
    /// the row goes out.
    async fn cancel_batch(&self, id: BatchId, reason: &str) {
        if let Err(error) = integrity::stop_batch(&self.app, id, reason).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(batch = %id, reason, error, "failed to cancel a batch with an invalid row");
        }
    }

    /// Sends no more orders of a batch that does not verify, and withdraws those that were sent but
    /// not started.
    fn withdraw_all(&mut self, row: &rollouts::Rollout) {
        let nothing = FollowedRollout {
            revision: 0,
            withdrawn: true,
            order: None,
            pins: None,
            assignments: BTreeMap::new(),
        };
        let followed = self.followed.entry(row.id).or_insert(nothing);
        (followed.revision, followed.withdrawn, followed.order) = (row.revision, true, None);
        let registry = self.app.registry();
        for (server, (_, assignment)) in &mut followed.assignments {
            assignment.withdrawn = true;
            registry.outbox.set(*server, assignment.clone());
            if let Some(session) = registry.find_session(*server) {
                session.wake.notify_waiters();
            }
        }
    }

    fn remove_rollout(&mut self, id: BatchId) {
        let Some(gone) = self.followed.remove(&id) else { return };
        self.app.registry().health_watches.remove(id);
        for (server, (task, _)) in gone.assignments {
            self.app.registry().outbox.remove(server, task);
        }
    }

    /// The versions to install on servers that start after the first wave, if versions are pinned;
    /// `None` if they do not verify. A server whose system changed since its task started gets no
    /// version.
    async fn pinned_versions(
        &mut self,
        conn: &mut Conn,
        row: &rollouts::Rollout,
        rows: &[TaskRow],
    ) -> store::Result<Option<BTreeMap<ServerId, Versions>>> {
        if !pins::are_pinned(row) {
            return Ok(Some(BTreeMap::new()));
        }
        let later =
            |task: &&TaskRow| matches!(task.target, TaskStatus::Busy(_)) && task.target.wave() > 1;
        let ids: Vec<ServerId> = rows.iter().filter(later).map(|task| task.server_id).collect();
        if ids.is_empty() {
            return Ok(Some(BTreeMap::new()));
        }
        let known = self.followed.get_mut(&row.id).and_then(|followed| followed.pins.take());
        let by_system = match known {
            Some(known) => known,
            None => match pins::load(&self.app.db, conn, row).await? {
                Some(read) => read,
                None => return Ok(None),
            },
        };
        let systems = servers::systems(conn, &ids).await?;
        let of_server = |server: &servers::ServerSystem| {
            let versions = by_system.get(&pins::system_of(server).to_string());
            (server.id, versions.cloned().unwrap_or_default())
        };
        let versions = systems.iter().map(of_server).collect();
        if let Some(followed) = self.followed.get_mut(&row.id) {
            followed.pins = Some(by_system);
        }
        Ok(Some(versions))
    }

    fn update_rollout(
        &mut self,
        row: &rollouts::Rollout,
        rows: Vec<TaskRow>,
        versions: &BTreeMap<ServerId, Versions>,
    ) {
        let registry = self.app.registry();
        let followed = self.followed.entry(row.id).or_insert_with(|| {
            let order = match PatchOptions::from_json(&row.options) {
                Ok(options) => Some(Arc::new(options.order)),
                Err(error) => {
                    tracing::error!(batch = %row.id, %error, "failed to parse the options of a batch");
                    None
                }
            };
            FollowedRollout {
                revision: 0,
                withdrawn: false,
                order,
                pins: None,
                assignments: BTreeMap::new(),
            }
        });
        followed.revision = row.revision;
        let started = row.head.phase != Phase::Scheduled;
        let pinned = pins::are_pinned(row);
        let mut wake = BTreeSet::new();
        if may_watch(row) {
            let changed = rows.iter().map(|row| (row.server_id, row.target));
            let watches = row.head.health_watches(row.total);
            registry.health_watches.update(row.id, row.org_id, watches, changed);
        }
        for target in rows {
            let (server, task) = (target.server_id, target.task_id);
            match (target.target, &followed.order) {
                (TaskStatus::Busy(busy), Some(order)) if started => {
                    let assignment = Assignment {
                        task,
                        org: row.org_id,
                        kind: match (pinned && busy.wave > 1, versions.get(&server)) {
                            (false, _) => OrderKind::Patch(order.clone()),
                            (true, versions) => OrderKind::PatchVersions(
                                order.clone(),
                                versions.cloned().unwrap_or_default(),
                            ),
                        },
                        issued_at: busy.started_at,
                        // The window applies to agents too: an order that arrives after it is not
                        // started.
                        expires_at: busy.by.min(row.head.start_by),
                        withdrawn: followed.withdrawn,
                        started: busy.stage != Stage::Dispatched,
                        health: row.head.pace.health != HealthMode::Off,
                    };
                    followed.assignments.insert(server, (task, assignment.clone()));
                    // The agent already knows an order that it has started.
                    let news = !assignment.started;
                    if registry.outbox.set(server, assignment) && news {
                        wake.insert(server);
                    }
                }
                _ => {
                    // A task that was returned to the queue went out under another id.
                    let out = followed.assignments.remove(&server).map_or(task, |(task, _)| task);
                    registry.outbox.remove(server, out);
                }
            }
        }
        // No further task may start, permanently or for now: withdraw the orders that have not
        // started.
        let withdrawn =
            matches!(row.head.phase, Phase::Canceling | Phase::Paused | Phase::Halted(_));
        if followed.withdrawn != withdrawn {
            followed.withdrawn = withdrawn;
            for (server, (_, assignment)) in &mut followed.assignments {
                assignment.withdrawn = withdrawn;
                registry.outbox.set(*server, assignment.clone());
                if !assignment.started {
                    wake.insert(*server);
                }
            }
        }
        wake.into_iter()
            .filter_map(|server| registry.find_session(server))
            .for_each(|session| session.wake.notify_waiters());
    }

    async fn update_refreshes(&mut self) -> store::Result<()> {
        let mut reader = self.app.db.read().await?;
        let open = refreshes::list_open(&mut reader).await?;
        drop(reader);
        let (open, forged): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|refresh| self.app.db.is_authentic(refresh));
        for refresh in &forged {
            if let Err(error) = integrity::refuse_refresh(&self.app, refresh).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(refresh = %refresh.id, error, "failed to end a tampered refresh");
            }
        }
        let registry = self.app.registry();
        let mut scans = BTreeMap::new();
        for refresh in open {
            let kind = match refresh.upgrade.as_deref().map(serde_json::from_str) {
                None => OrderKind::Scan,
                Some(Ok(upgrade)) => OrderKind::UpgradeAgent(upgrade),
                Some(Err(error)) => {
                    tracing::error!(request = %refresh.id, %error, "failed to parse an upgrade");
                    continue;
                }
            };
            scans.insert(refresh.id, refresh.server_id);
            let assignment = Assignment {
                task: refresh.id,
                org: refresh.org_id,
                kind,
                issued_at: refresh.requested_at,
                expires_at: refresh.deadline,
                withdrawn: false,
                started: false,
                health: false,
            };
            if registry.outbox.set(refresh.server_id, assignment)
                && let Some(session) = registry.find_session(refresh.server_id)
            {
                session.wake.notify_waiters();
            }
        }
        let before = std::mem::replace(&mut self.scans, scans);
        for (task, server) in before {
            if !self.scans.contains_key(&task) {
                registry.outbox.remove(server, task);
            }
        }
        Ok(())
    }
}
