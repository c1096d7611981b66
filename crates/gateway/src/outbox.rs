//! What is to be said to whom: orders that no agent has begun, those to be dropped, and those in progress, of which
//! an agent is expected to report.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use vocab::{Line, OrgId, PackageName, ServerId, TaskId};
use wire::agent::{Envelope, Install, Order, Work};

use crate::registry::lock;
use service::secrets::SigningKey;

/// An order for one server, not yet signed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment {
    pub(super) task: TaskId,
    pub(super) org: OrgId,
    /// What is to be done; none: look at the packages.
    pub(super) order: Option<Arc<service::Order>>,
    pub(super) issued_at: Timestamp,
    pub(super) expires_at: Timestamp,
    /// The rollout was called off or stopped: it is to be dropped.
    pub(super) withdrawn: bool,
    /// The agent has started it: it is not handed out any more, and every sync should mention it.
    pub(super) started: bool,
}

/// All assignments, by server. Filled from the database only: no agent can add to it.
#[derive(Default)]
pub(super) struct Desk(Mutex<BTreeMap<ServerId, Vec<Assignment>>>);

impl Desk {
    /// What is to be said to this server.
    pub(super) fn of(&self, server: ServerId) -> Vec<Assignment> {
        lock(&self.0).get(&server).cloned().unwrap_or_default()
    }

    /// Puts an assignment in the place of the one with its task. Whether anything changed.
    pub(super) fn put(&self, server: ServerId, assignment: Assignment) -> bool {
        let mut desk = lock(&self.0);
        let pile = desk.entry(server).or_default();
        match pile.iter_mut().find(|known| known.task == assignment.task) {
            Some(known) if *known == assignment => false,
            Some(known) => {
                *known = assignment;
                true
            }
            None => {
                pile.push(assignment);
                true
            }
        }
    }

    /// It is over.
    pub(super) fn clear(&self, server: ServerId, task: TaskId) {
        let mut desk = lock(&self.0);
        if let Some(pile) = desk.get_mut(&server) {
            pile.retain(|known| known.task != task);
            if pile.is_empty() {
                desk.remove(&server);
            }
        }
    }
}

impl Assignment {
    /// Whether what the feeds know of its server's updates matters to it.
    pub(super) fn is_for_security(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.security_only)
    }

    /// The order, signed for this server in the boot that it is in. `secured`: what the feeds call an update for security.
    pub(super) fn envelope(
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
        let text = serde_json::to_string(&order).expect("an order is plain data");
        let signature = STANDARD.encode(key.sign(text.as_bytes()));
        Envelope { order: text, key: key.id().to_owned(), signature }
    }

    fn work(&self, boot_id: &Line, secured: &[PackageName]) -> Work {
        let Some(order) = &self.order else { return Work::Scan };
        let install = Install {
            packages: order.packages.clone(),
            exclude: order.exclude.clone(),
            security_only: order.security_only,
            security_packages: if order.security_only { secured.to_vec() } else { Vec::new() },
            reboot: order.reboot,
            boot_id: boot_id.clone(),
        };
        if order.dry_run { Work::Plan(install) } else { Work::Install(install) }
    }
}
