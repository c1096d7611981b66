//! Daily statistics of an organization, one row per day.
//!
//! The row of the current day is overwritten until the day is over. `engine::days` writes it, from
//! numbers that are counted for other purposes too.

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
    /// A day.
    pub struct Day in "fleet_days" by "day" {
        /// Which one, of UTC.
        pub day: Date,
        /// How many servers there were.
        pub servers: u64,
        /// How many of them had no update pending.
        pub up_to_date: u64,
        /// How many critical CVEs were open.
        pub critical: u64,
        /// How many of high severity.
        pub high: u64,
        /// How many of medium severity.
        pub medium: u64,
        /// How many of low severity.
        pub low: u64,
        /// How many of which nobody says how bad they are.
        pub unknown: u64,
        /// How many of all of them are known to be exploited.
        pub exploited: u64,
    }
}

/// Writes a day down, over what was written of it before.
#[boxed]
pub async fn write(tx: &mut Tx, org: OrgId, day: &Day) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into fleet_days (org_id, day, servers, up_to_date, critical, high, medium, low,
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

/// The days from this one on, the oldest first.
#[boxed]
pub async fn since(conn: &mut Conn, org: OrgId, first: Date) -> Result<Vec<Day>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Day::COLUMNS,
            " from fleet_days where org_id = $1 and day >= $2 order by day",
        ]))
        .bind(put(&org))
        .bind(put(&first))
        .fetch_all(c)
        .await
    })?)
}

/// Forgets the days before this one, of every organization, and says how many rows it were. There is one a day, so
/// nobody has to wait for it.
#[boxed]
pub async fn purge(tx: &mut Tx, first: Date) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query("delete from fleet_days where day < $1")
            .bind(put(&first))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?)
}
