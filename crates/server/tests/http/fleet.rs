//! Servers for tests, inserted as the gateway would, without an agent.

use domain::rollout::{Change, ReportedResult, Rollout, RolloutOutcome, TaskEvent, TaskStatus};
use serde_json::json;
use service::clock::random_u128;
use store::package_sets::{self, PackedSet, SetKind};
use store::rollout_tasks::{self, StateChange};
use store::servers::{self, Server};
use store::{Topic, rollouts};
use vocab::listing::encode;
use vocab::{
    BatchId, FailureCode, Installed, OrgId, Os, Pending, ServerId, Severity, Stage, UpdateType,
};

use crate::support::Service;

/// A server to create.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) name: &'static str,
    pub(crate) environment: Option<&'static str>,
    pub(crate) tags: &'static [&'static str],
    pub(crate) os: (&'static str, &'static str),
    pub(crate) reboot_required: bool,
    pub(crate) quarantine: Option<&'static str>,
    pub(crate) installed: Vec<Installed>,
    pub(crate) pending: Vec<Pending>,
    /// Facts from its agent beyond those in lists.
    pub(crate) facts: serde_json::Value,
}

impl Host {
    pub(crate) fn new(name: &'static str) -> Host {
        Host {
            name,
            environment: Some("production"),
            tags: &[],
            os: ("debian", "12"),
            reboot_required: false,
            quarantine: None,
            installed: Vec::new(),
            pending: Vec::new(),
            facts: json!({}),
        }
    }

    pub(crate) fn in_environment(self, environment: &'static str) -> Host {
        Host { environment: Some(environment), ..self }
    }

    pub(crate) fn with_updates(self, pending: Vec<Pending>) -> Host {
        Host { pending, ..self }
    }
}

/// An update that fixes vulnerabilities.
pub(crate) fn security(name: &str, severity: Severity, cves: &[&str]) -> Pending {
    let mut update = Pending::new(name, "amd64", "1.0", "1.1");
    update.security = true;
    update.update_type = UpdateType::Security;
    update.severity = Some(severity);
    update.cves = cves.iter().map(|&cve| cve.to_owned()).collect();
    update
}

/// Enrolls a host.
pub(crate) async fn join(service: &Service, host: Host) -> ServerId {
    join_org(service, service.org, host).await
}

pub(crate) async fn join_org(service: &Service, org_id: OrgId, host: Host) -> ServerId {
    let now = service.clock.now();
    let id = ServerId::new(now, random_u128());
    let mut tx = service.app.db.begin().await.unwrap();
    let packages = PackedSet::new(host.installed.len() as u32, &encode(&host.installed));
    let updates = PackedSet::new(host.pending.len() as u32, &encode(&host.pending));
    package_sets::store(&mut tx, org_id, SetKind::Packages, &packages, now).await.unwrap();
    package_sets::store(&mut tx, org_id, SetKind::Updates, &updates, now).await.unwrap();
    let server = Server {
        id,
        org_id,
        hostname: host.name.parse().unwrap(),
        display_name: None,
        notes: String::new(),
        environment: host.environment.map(|name| name.parse().unwrap()),
        tags: host.tags.iter().map(|tag| tag.parse().unwrap()).collect(),
        os: Os::new(host.os.0, host.os.1, "").unwrap(),
        kernel: "6.1.0".into(),
        arch: "x86_64".into(),
        package_manager: None,
        agent_version: "0.1.0".into(),
        public_key: random_u128().to_be_bytes().to_vec(),
        enrolled_at: now,
        last_scan_at: Some(now),
        reboot_required: host.reboot_required,
        reboot_reasons: Vec::new(),
        activity: "idle".into(),
        package_set: Some(packages.digest()),
        update_set: Some(updates.digest()),
        packages: host.installed.len() as u32,
        updates: host.pending.len() as u32,
        security_updates: host.pending.iter().filter(|update| update.security).count() as u32,
        facts: host.facts,
        runs: String::new(),
        quarantine: host.quarantine.map(str::to_owned),
        generation: 1,
        last_seen_at: now,
        counter: 7,
    };
    servers::enroll(&mut tx, &server).await.unwrap();
    tx.notify(Topic::Servers);
    tx.commit().await.unwrap();
    id
}

/// Changes the package set of a server.
pub(crate) async fn scan(
    service: &Service,
    server: ServerId,
    installed: &[Installed],
    pending: &[Pending],
) {
    let now = service.clock.now();
    let mut tx = service.app.db.begin().await.unwrap();
    let packages = PackedSet::new(installed.len() as u32, &encode(installed));
    let updates = PackedSet::new(pending.len() as u32, &encode(pending));
    package_sets::store(&mut tx, service.org, SetKind::Packages, &packages, now).await.unwrap();
    package_sets::store(&mut tx, service.org, SetKind::Updates, &updates, now).await.unwrap();
    let before = servers::get(&mut tx, service.org, server).await.unwrap();
    let after = Server {
        package_set: Some(packages.digest()),
        update_set: Some(updates.digest()),
        updates: pending.len() as u32,
        security_updates: pending.iter().filter(|update| update.security).count() as u32,
        ..before.clone()
    };
    servers::save(&mut tx, &before, &after, now).await.unwrap();
    tx.notify(Topic::Servers);
    tx.commit().await.unwrap();
}

/// Acts as engine and agent for one server: an order is sent and ends with this result.
pub(crate) async fn finish(
    service: &Service,
    batch: &str,
    server: ServerId,
    verdict: ReportedResult,
) {
    let id: BatchId = batch.parse().unwrap();
    let now = service.clock.now();
    let mut tx = service.app.db.begin().await.unwrap();
    let rows = rollout_tasks::all(&mut tx, id).await.unwrap();
    let row = rows.iter().find(|row| row.server_id == server).unwrap();
    let busy = row.target.apply(TaskEvent::Offered { wave: 1 }, now).unwrap();
    let busy = busy.apply(TaskEvent::Reached(Stage::Installing), now).unwrap();
    let (from, seen) = (row.target, row.generation);
    let started =
        StateChange { server_id: server, from, seen, next: busy, result: None, health: None };
    assert_eq!(rollout_tasks::claim(&mut tx, id, &[started]).await.unwrap(), [server]);
    let next = busy.apply(TaskEvent::Reported(verdict), now).unwrap();
    let report = json!({"order_id": row.task_id, "outcome": "succeeded", "message": "done",
        "packages": [{"name": "openssl", "from": "1.0", "to": "1.1"}], "reboot_needed": true,
        "reboot_seconds": 40, "exit": 0, "started_at": now, "finished_at": now});
    let (from, seen) = (busy, seen + 1);
    let done =
        StateChange { server_id: server, from, seen, next, result: Some(report), health: None };
    rollout_tasks::save(&mut tx, id, &[done]).await.unwrap();
    tx.commit().await.unwrap();
}

/// Cancels every task of a batch that has not started, as the engine would.
pub(crate) async fn cancel_tasks(service: &Service, batch: &str) {
    let id: BatchId = batch.parse().unwrap();
    let mut tx = service.app.db.begin().await.unwrap();
    let rows = rollout_tasks::all(&mut tx, id).await.unwrap();
    let canceled: Vec<StateChange> = rows
        .iter()
        .map(|row| StateChange {
            server_id: row.server_id,
            from: row.target,
            seen: row.generation,
            next: row.target.apply(TaskEvent::Canceled, service.clock.now()).unwrap(),
            result: None,
            health: None,
        })
        .collect();
    rollout_tasks::save(&mut tx, id, &canceled).await.unwrap();
    tx.commit().await.unwrap();
}

pub(crate) const FAILED: ReportedResult = ReportedResult::Failed(FailureCode::PkgLockTimeout);

/// Changes a batch as the engine would.
pub(crate) async fn change(service: &Service, batch: &str, change: Change) {
    let id: BatchId = batch.parse().unwrap();
    let now = service.clock.now();
    let mut tx = service.app.db.begin().await.unwrap();
    let seen = rollouts::load(&mut tx, id).await.unwrap();
    let rows = rollout_tasks::all(&mut tx, id).await.unwrap();
    let targets = rows.iter().map(|row| (row.server_id, row.target));
    let mut rollout = Rollout::restore(seen.head.clone(), targets);
    rollout.apply_change(change, now).unwrap();
    let ended = matches!(change, Change::End(_)).then_some(now);
    rollouts::save_head(&mut tx, &seen, rollout.head(), ended).await.unwrap();
    tx.commit().await.unwrap();
}

/// Ends a batch and its run.
pub(crate) async fn end(service: &Service, batch: &str, end: RolloutOutcome) {
    change(service, batch, Change::End(end)).await;
    let mut tx = service.app.db.begin().await.unwrap();
    if let Some(run) = store::runs::by_batch(&mut tx, batch.parse().unwrap()).await.unwrap() {
        store::runs::finish(&mut tx, &run, end, service.clock.now()).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// The state of a server in a batch.
pub(crate) async fn rollout_task(service: &Service, batch: &str, server: ServerId) -> TaskStatus {
    let mut reader = service.app.db.read().await.unwrap();
    let rows = rollout_tasks::all(&mut reader, batch.parse().unwrap()).await.unwrap();
    rows.iter().find(|row| row.server_id == server).unwrap().target
}
