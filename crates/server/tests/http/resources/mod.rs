//! Integration tests of the API's resources through the real router, on both databases.

mod assessment;
mod audit;
mod batches;
mod compliance;
mod crashes;
mod cves;
mod events;
mod explain;
mod feed_downloads;
mod feed_management;
mod feeds;
mod forecast;
mod freezes;
mod matching;
pub(crate) mod mutations;
mod patches;
mod policies;
mod preview;
mod repository_feeds;
mod schedules;
mod security_updates;
mod server_edits;
mod servers;
mod severity;
mod suppressions;
mod tenant_isolation;
mod webhooks;
