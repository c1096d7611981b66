//! Reads and writes the database: the only crate with SQL.
//!
//! SQLite and PostgreSQL get the same SQL where possible. A module is one table, or a few that
//! belong together. Its functions are mostly single statements, which the caller combines in a
//! transaction:
//!
//! ```no_run
//! # async fn example(db: store::Db, org: vocab::OrgId) -> store::Result<()> {
//! let mut tx = db.begin().await?;
//! let found = store::organizations::get(&mut tx, org).await?;
//! store::organizations::rename(&mut tx, &found, "Acme").await?;
//! tx.commit().await
//! # }
//! ```
//!
//! This crate must not make decisions, read the clock or create ids: callers pass in times and ids.
//! Every mutable row has a `generation`. An update names the generation that it has read, and fails
//! with [`StoreError::Stale`] if the row changed since. An id of another organization is treated
//! like an id that does not exist.
//!
//! Start with `db` (connections), `tx` (commits) and `sql` (how text is built).

pub mod counts;
mod db;
mod error;
mod migrate;
pub mod notifications;
mod notify;
mod row;
mod server_index;
mod server_tags;
mod sql;
mod tx;

pub mod advisories;
pub mod api_keys;
pub mod audit;
pub mod backup;
pub mod batches;
pub mod compliance;
pub mod daily_stats;
pub mod enrollment_tokens;
pub mod events;
pub mod feed_progress;
pub mod feed_removals;
pub mod feed_sources;
pub mod feeds;
pub mod findings;
pub mod freezes;
pub mod health;
pub mod idempotency;
pub mod identities;
pub mod leases;
pub mod names;
pub mod organizations;
pub mod package_set_requests;
pub mod package_sets;
pub mod patches;
pub mod policies;
pub mod presence;
pub mod presence_transitions;
pub mod recovery_codes;
pub mod refreshes;
pub mod restores;
pub mod rollout_pins;
pub mod rollout_tasks;
pub mod rollouts;
pub mod root_keys;
pub mod runs;
pub mod saved_views;
pub mod schedules;
pub mod seals;
pub mod security_counts;
pub mod server_labels;
pub mod server_list;
pub mod servers;
pub mod sessions;
pub mod suppressions;
pub mod sync_sessions;
pub mod task_logs;
pub mod transfer;
pub mod users;
pub mod webhooks;

#[cfg(test)]
mod test_support;

use sqlx::FromRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use vocab::OrgId;

use crate::db::on;
use crate::row::put;
use crate::sql::join;

pub use db::{Conn, Db, Durability, Options, Reader};
pub use error::{Cause, Result, StoreError, disk_full_errors};
pub use migrate::{MigrationInfo, SCHEMA_VERSION};
pub use notify::{Subscription, Topic};
#[doc(hidden)]
pub use sql::recorded_sql;
pub use tx::Tx;

/// One page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Maximum number of items.
    pub limit: u32,
    /// Number of items to skip.
    pub offset: u64,
}

/// One page of a list, and the length of the whole list.
#[derive(Debug, Clone, PartialEq)]
pub struct Paged<T> {
    pub items: Vec<T>,
    /// Number of items in the whole list.
    pub total: u64,
}

impl<T> Paged<T> {
    /// Cuts one page out of a list that is in memory.
    pub fn paginate(whole: Vec<T>, page: Page) -> Paged<T> {
        let total = whole.len() as u64;
        let skip = usize::try_from(page.offset).unwrap_or(usize::MAX);
        let items = whole.into_iter().skip(skip).take(page.limit as usize).collect();
        Paged { items, total }
    }
}

impl<T> Paged<T>
where
    T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    /// Reads one page of an organization's rows. `select` and `count` bind the organization as
    /// `$1`; `select` binds limit and offset as `$2` and `$3`.
    pub(crate) async fn for_org(
        conn: &mut Conn,
        org: OrgId,
        page: Page,
        (select, count): (&[&'static str], &'static str),
    ) -> Result<Paged<T>> {
        let items = on!(conn, |c| {
            sqlx::query_as(join(select))
                .bind(put(&org))
                .bind(i64::from(page.limit))
                .bind(put(&page.offset))
                .fetch_all(c)
                .await
        })?;
        let (total,): (i64,) =
            on!(conn, |c| sqlx::query_as(count).bind(put(&org)).fetch_one(c).await)?;
        Ok(Paged { items, total: total.unsigned_abs() })
    }
}
