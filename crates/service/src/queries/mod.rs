//! Read models. The dashboard, the API and CSV exports use the same queries.
//!
//! A query takes the reader's [`Scope`] and a typed filter, reads from one snapshot, and returns
//! types of `wire`. It changes nothing.

pub mod activity;
pub mod agents;
pub mod audit;
pub mod batches;
pub mod changes;
pub mod compliance;
pub mod convert;
pub mod credentials;
pub mod cves;
pub mod events;
pub mod explain;
pub mod feeds;
pub mod forecast;
pub mod freezes;
pub mod metrics;
pub mod names;
pub mod notifications;
pub mod patches;
pub mod policies;
pub mod preview;
pub mod schedules;
pub mod server_health;
pub mod servers;
pub mod summary;
pub mod suppressions;
pub mod targets;
pub mod task_logs;
pub mod tasks;
pub mod trends;
pub mod users;
pub mod views;
pub mod webhooks;

use std::sync::Arc;

pub use store::{Page, Paged};
use vocab::{Environment, OrgId};

/// What a reader may see.
#[derive(Debug, Clone)]
pub struct Scope {
    pub org: OrgId,
    /// The environments that the reader is limited to; `None` means all.
    pub environments: Option<Arc<[Environment]>>,
}

impl Scope {
    /// Whether servers of this environment are visible.
    pub fn includes(&self, environment: Option<&Environment>) -> bool {
        self.environments
            .as_deref()
            .is_none_or(|allowed| environment.is_some_and(|one| allowed.contains(one)))
    }
}
