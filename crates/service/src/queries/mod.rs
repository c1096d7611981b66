//! Read models: what a page, the API and a CSV file show is the same query.
//!
//! A query takes the [`Scope`] of the reader and a typed filter, reads from one snapshot, and returns
//! bodies of `wire`. It changes nothing.

pub mod activity;
pub mod batches;
pub mod changes;
pub mod credentials;
pub mod cves;
pub mod feeds;
pub mod names;
pub mod patches;
pub mod preview;
pub mod schedules;
pub mod servers;
pub mod show;
pub mod summary;
pub mod suppressions;
pub mod targets;
pub mod task_logs;
pub mod tasks;
pub mod trends;
pub mod users;

use std::sync::Arc;

pub use store::{Page, Paged};
use vocab::{Environment, OrgId};

/// What a reader may see.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The organization.
    pub org: OrgId,
    /// The environments that the reader is limited to; `None`: all.
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
