//! Freezes: times in which no task starts on the selected servers.
//!
//! Unlike schedules, freezes carry no authentication code ([`crate::seals`]). A freeze only prevents
//! work: a row that someone writes into the database cannot make a host do anything, and what a host
//! does while no freeze is active still needs a batch or a schedule that verifies. A code would not
//! prevent the opposite either, because who can change a row can also delete it. A row that cannot
//! be read is an error, so that nothing starts, rather than no freeze.

use async_recursion::async_recursion as boxed;

use domain::freeze::{Freeze as Rule, Timing};
use jiff::{SignedDuration, Timestamp};
use vocab::{Cron, FreezeId, OrgId, Selector, Zone};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    struct Row in "freezes" by "id" {
        id: FreezeId,
        org_id: OrgId,
        name: String,
        reason: String,
        targets: Selector,
        starts_at: Option<Timestamp>,
        ends_at: Option<Timestamp>,
        cron: Option<Cron>,
        duration_minutes: Option<u32>,
        timezone: Option<Zone>,
        created_at: Timestamp,
        created_by: String,
        updated_at: Timestamp,
        generation: i64,
    }
}

/// A freeze.
#[derive(Debug, Clone, PartialEq)]
pub struct Freeze {
    pub id: FreezeId,
    pub org_id: OrgId,
    /// Its name, unique in the organization.
    pub name: String,
    pub reason: String,
    /// Which servers are frozen, and when. Durations have whole minutes.
    pub rule: Rule,
    pub created_at: Timestamp,
    /// The id of the key or user that created it.
    pub created_by: String,
    /// When a user last changed it.
    pub updated_at: Timestamp,
    /// Incremented by every change.
    pub generation: i64,
}

impl TryFrom<Row> for Freeze {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Freeze> {
        let recurring = (row.cron, row.duration_minutes, row.timezone);
        let timing = match (row.starts_at, row.ends_at, recurring) {
            (Some(starts_at), Some(ends_at), (None, None, None)) => {
                Timing::OneOff { starts_at, ends_at }
            }
            (None, None, (Some(cron), Some(minutes), Some(timezone))) => {
                let duration = SignedDuration::from_mins(minutes.into());
                Timing::Recurring { cron, duration, timezone }
            }
            _ => {
                return Err(StoreError::Corrupt {
                    table: "freezes",
                    id: row.id.to_string(),
                    source: "neither one-off nor recurring".into(),
                });
            }
        };
        Ok(Freeze {
            id: row.id,
            org_id: row.org_id,
            name: row.name,
            reason: row.reason,
            rule: Rule { targets: row.targets, timing },
            created_at: row.created_at,
            created_by: row.created_by,
            updated_at: row.updated_at,
            generation: row.generation,
        })
    }
}

impl From<&Freeze> for Row {
    fn from(freeze: &Freeze) -> Row {
        let freeze = freeze.clone();
        let (starts_at, ends_at, cron, duration_minutes, timezone) = match freeze.rule.timing {
            Timing::OneOff { starts_at, ends_at } => {
                (Some(starts_at), Some(ends_at), None, None, None)
            }
            Timing::Recurring { cron, duration, timezone } => {
                let minutes = u32::try_from(duration.as_mins()).unwrap_or(0);
                (None, None, Some(cron), Some(minutes), Some(timezone))
            }
        };
        Row {
            id: freeze.id,
            org_id: freeze.org_id,
            name: freeze.name,
            reason: freeze.reason,
            targets: freeze.rule.targets,
            starts_at,
            ends_at,
            cron,
            duration_minutes,
            timezone,
            created_at: freeze.created_at,
            created_by: freeze.created_by,
            updated_at: freeze.updated_at,
            generation: freeze.generation,
        }
    }
}

const NAME: &str = "a freeze with this name";

/// Adds a freeze. The caller sets its `generation`.
#[boxed]
pub async fn create(tx: &mut Tx, freeze: &Freeze) -> Result<()> {
    let row = Row::from(freeze);
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into freezes (",
            Row::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        ]))
        .bind(put(&row.id))
        .bind(put(&row.org_id))
        .bind(put(&row.name))
        .bind(put(&row.reason))
        .bind(put(&row.targets))
        .bind(put(&row.starts_at))
        .bind(put(&row.ends_at))
        .bind(put(&row.cron))
        .bind(put(&row.duration_minutes))
        .bind(put(&row.timezone))
        .bind(put(&row.created_at))
        .bind(put(&row.created_by))
        .bind(put(&row.updated_at))
        .bind(row.generation)
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists(NAME))
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: FreezeId) -> Result<Freeze> {
    let found: Option<Row> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Row::COLUMNS,
            " from freezes where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("freeze", id))?.try_into()
}

/// All freezes of this organization, by name.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId) -> Result<Vec<Freeze>> {
    let found: Vec<Row> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Row::COLUMNS,
            " from freezes where org_id = $1 order by name, id",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    found.into_iter().map(Freeze::try_from).collect()
}

/// The freezes of this organization that have not ended at `now`, by name.
#[boxed]
pub async fn list_current(conn: &mut Conn, org: OrgId, now: Timestamp) -> Result<Vec<Freeze>> {
    let found: Vec<Row> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Row::COLUMNS,
            " from freezes where org_id = $1 and (ends_at is null or ends_at > $2)
               order by name, id",
        ]))
        .bind(put(&org))
        .bind(put(&now))
        .fetch_all(c)
        .await
    })?;
    found.into_iter().map(Freeze::try_from).collect()
}

/// Saves `next`, unless the freeze changed since it was read. `next.generation` is the one that was
/// read.
#[boxed]
pub async fn save(tx: &mut Tx, next: &Freeze) -> Result<()> {
    let row = Row::from(next);
    let saved = on!(tx, |c| {
        sqlx::query(
            "update freezes
                set name = $1, reason = $2, targets = $3, starts_at = $4, ends_at = $5, cron = $6,
                    duration_minutes = $7, timezone = $8, updated_at = $9,
                    generation = generation + 1
              where id = $10 and org_id = $11 and generation = $12",
        )
        .bind(put(&row.name))
        .bind(put(&row.reason))
        .bind(put(&row.targets))
        .bind(put(&row.starts_at))
        .bind(put(&row.ends_at))
        .bind(put(&row.cron))
        .bind(put(&row.duration_minutes))
        .bind(put(&row.timezone))
        .bind(put(&row.updated_at))
        .bind(put(&row.id))
        .bind(put(&row.org_id))
        .bind(row.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })
    .map_err(already_exists(NAME))?;
    expect_one_row(saved)
}

/// Deletes a freeze, unless it changed since it was read.
#[boxed]
pub async fn delete(tx: &mut Tx, seen: &Freeze) -> Result<()> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from freezes where id = $1 and org_id = $2 and generation = $3")
            .bind(put(&seen.id))
            .bind(put(&seen.org_id))
            .bind(seen.generation)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    expect_one_row(gone)
}
