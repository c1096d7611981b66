//! What is to be sent to each server: orders that no agent has started, orders to withdraw, and
//! orders in progress whose reports are expected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use vocab::{Line, OrgId, PackageName, ServerId, TaskId};
use wire::agent::{AgentUpgrade, Envelope, Install, InstallVersions, Order, Work};

use crate::registry::lock;
use service::secrets::SigningKey;

/// An order for one server, not yet signed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment {
    pub(super) task: TaskId,
    pub(super) org: OrgId,
    pub(super) kind: OrderKind,
    pub(super) issued_at: Timestamp,
    pub(super) expires_at: Timestamp,
    /// The rollout was canceled, paused or halted: the order is withdrawn.
    pub(super) withdrawn: bool,
    /// The agent has started the order: it is not sent again, and every sync should report on it.
    pub(super) started: bool,
    /// Whether the agent measures the health of its host.
    pub(super) health: bool,
}

/// What an order asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum OrderKind {
    /// A package scan.
    Scan,
    /// Updates to install.
    Patch(Arc<service::OrderOptions>),
    /// Exactly these versions.
    PatchVersions(Arc<service::OrderOptions>, service::pins::Versions),
    UpgradeAgent(AgentUpgrade),
}

/// All unsigned orders by server. Filled from the database only; agents cannot add to it.
#[derive(Default)]
pub(super) struct Outbox(Mutex<BTreeMap<ServerId, Vec<Assignment>>>);

impl Outbox {
    /// The unsigned orders of this server.
    pub(super) fn assignments(&self, server: ServerId) -> Vec<Assignment> {
        lock(&self.0).get(&server).cloned().unwrap_or_default()
    }

    /// Adds an order or replaces the one with the same task. Returns whether anything changed.
    pub(super) fn set(&self, server: ServerId, assignment: Assignment) -> bool {
        let mut orders_by_server = lock(&self.0);
        let orders = orders_by_server.entry(server).or_default();
        match orders.iter_mut().find(|known| known.task == assignment.task) {
            Some(known) if *known == assignment => false,
            Some(known) => {
                *known = assignment;
                true
            }
            None => {
                orders.push(assignment);
                true
            }
        }
    }

    /// Removes the order of a task that has ended.
    pub(super) fn remove(&self, server: ServerId, task: TaskId) {
        let mut orders_by_server = lock(&self.0);
        if let Some(orders) = orders_by_server.get_mut(&server) {
            orders.retain(|known| known.task != task);
            if orders.is_empty() {
                orders_by_server.remove(&server);
            }
        }
    }
}

impl Assignment {
    /// Whether the order depends on which updates the feeds classify as security updates.
    pub(super) fn is_for_security(&self) -> bool {
        matches!(&self.kind, OrderKind::Patch(order) if order.security_only)
    }

    /// The order, signed for this server in its current boot. `secured` lists the packages with
    /// security updates according to the feeds.
    pub(super) fn sign(
        &self,
        key: &SigningKey,
        server: ServerId,
        boot_id: &Line,
        secured: &[PackageName],
    ) -> Envelope {
        let order = Order {
            id: self.task,
            server_id: server,
            issued_at: self.issued_at,
            expires_at: self.expires_at,
            work: self.work(boot_id, secured),
        };
        let text = serde_json::to_string(&order).expect("an order serializes to JSON");
        let signature = STANDARD.encode(key.sign(text.as_bytes()));
        Envelope { order: text, key: key.id().to_owned(), signature }
    }

    fn work(&self, boot_id: &Line, secured: &[PackageName]) -> Work {
        let (order, versions) = match &self.kind {
            OrderKind::Scan => return Work::Scan,
            OrderKind::UpgradeAgent(upgrade) => return Work::UpgradeAgent(upgrade.clone()),
            OrderKind::Patch(order) => (order, None),
            OrderKind::PatchVersions(order, versions) => (order, Some(versions)),
        };
        let install = Install {
            packages: order.packages.clone(),
            exclude: order.exclude.clone(),
            security_only: order.security_only,
            security_packages: if order.security_only { secured.to_vec() } else { Vec::new() },
            reboot: order.reboot,
            boot_id: boot_id.clone(),
            health: self.health,
        };
        match versions {
            // The first wave was restricted to the requested packages, and to security updates. Its
            // versions include what these needed, so the names must not restrict them again.
            Some(versions) => Work::InstallVersions(InstallVersions {
                install: Install { packages: Vec::new(), ..install },
                versions: versions.to_vec(),
            }),
            None if order.dry_run => Work::Plan(install),
            None => Work::Install(install),
        }
    }
}
