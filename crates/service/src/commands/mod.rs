//! All writes. A command checks that the object it changes exists and may be changed, and writes
//! the change, its event and its audit entry in one transaction.

pub mod batches;
pub mod database_copy;
pub mod feeds;
pub mod freezes;
pub mod notifications;
pub mod organizations;
pub mod policies;
pub mod refreshes;
pub mod reports;
pub mod restore;
pub mod runs;
pub mod schedules;
pub mod server_health;
pub mod servers;
pub mod setup;
pub mod suppressions;
pub mod views;
pub mod webhooks;
