//! Daily statistics of an organization, one row per day.
//!
//! The row of the current day is overwritten until the day is over. `engine::daily_stats` writes it
//! from counts that already exist for other pages.

use async_recursion::async_recursion as boxed;
use jiff::civil::Date;
use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row, via};
use crate::sql::join;
use crate::tx::Tx;

via!(Date);

row! {
    /// The statistics of one day.
    pub struct DailyStats in "daily_stats" by "day" {
        /// The day in UTC.
        pub day: Date,
        pub servers: u64,
        /// The number of servers without pending updates.
        pub up_to_date: u64,
        /// The number of critical CVEs that are not suppressed.
        pub critical: u64,
        pub high: u64,
        pub medium: u64,
        pub low: u64,
        /// The number of CVEs without a severity.
        pub unknown: u64,
        /// The number of CVEs, of any severity, that are known to be exploited.
        pub exploited: u64,
    }
}

/// Writes the statistics of a day, replacing those written before.
#[boxed]
pub async fn write(tx: &mut Tx, org: OrgId, day: &DailyStats) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into daily_stats (org_id, day, servers, up_to_date, critical, high, medium, low,
                unknown, exploited) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
             on conflict (org_id, day) do update
                set servers = excluded.servers, up_to_date = excluded.up_to_date,
                    critical = excluded.critical, high = excluded.high, medium = excluded.medium,
                    low = excluded.low, unknown = excluded.unknown, exploited = excluded.exploited",
        )
        .bind(put(&org))
        .bind(put(&day.day))
        .bind(put(&day.servers))
        .bind(put(&day.up_to_date))
        .bind(put(&day.critical))
        .bind(put(&day.high))
        .bind(put(&day.medium))
        .bind(put(&day.low))
        .bind(put(&day.unknown))
        .bind(put(&day.exploited))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// The days from `first` on, oldest first.
#[boxed]
pub async fn since(conn: &mut Conn, org: OrgId, first: Date) -> Result<Vec<DailyStats>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            DailyStats::COLUMNS,
            " from daily_stats where org_id = $1 and day >= $2 order by day",
        ]))
        .bind(put(&org))
        .bind(put(&first))
        .fetch_all(c)
        .await
    })?)
}

/// Deletes the days before `first` of every organization. Returns the number of deleted rows. There
/// is only one row per day, so no limit is needed.
#[boxed]
pub async fn purge(tx: &mut Tx, first: Date) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query("delete from daily_stats where day < $1")
            .bind(put(&first))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?)
}
