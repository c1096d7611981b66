//! Schedules, which start batches regularly, and when each is due next.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;
use vocab::{Cron, OrgId, ScheduleId, Selector, Zone};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::row::{parse, put, row};
use crate::seals;
use crate::sql::{ROWS_MAX, Text, in_chunks, join};
use crate::tx::Tx;

row! {
    pub struct Schedule in "schedules" by "id" {
        pub id: ScheduleId,
        pub org_id: OrgId,
        /// Its name, unique in the organization.
        pub name: String,
        pub description: String,
        pub enabled: bool,
        pub cron: Cron,
        pub timezone: Zone,
        /// The servers that it selects.
        pub targets: Selector,
        /// The patch options.
        pub options: Value,
        /// The next instant; `None` if there is none.
        pub next_run_at: Option<Timestamp>,
        pub created_at: Timestamp,
        /// When a user last changed it.
        pub updated_at: Timestamp,
        /// Incremented by every change.
        pub generation: i64,
        /// Its authentication code; see [`crate::seals`]. Set by this module.
        pub seal: crate::seals::SealCode,
    }
}

const NAME: &str = "a schedule with this name";

/// Adds a schedule. The caller sets its `generation`.
#[boxed]
pub async fn create(tx: &mut Tx, schedule: &Schedule) -> Result<()> {
    let code = seals::schedule(tx.seal(), schedule);
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into schedules (",
            Schedule::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        ]))
        .bind(put(&schedule.id))
        .bind(put(&schedule.org_id))
        .bind(put(&schedule.name))
        .bind(put(&schedule.description))
        .bind(schedule.enabled)
        .bind(put(&schedule.cron))
        .bind(put(&schedule.timezone))
        .bind(put(&schedule.targets))
        .bind(put(&schedule.options))
        .bind(put(&schedule.next_run_at))
        .bind(put(&schedule.created_at))
        .bind(put(&schedule.updated_at))
        .bind(schedule.generation)
        .bind(code.to_vec())
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists(NAME))
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: ScheduleId) -> Result<Schedule> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Schedule::COLUMNS,
            " from schedules where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("schedule", id))
}

/// All schedules of this organization, by name.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId) -> Result<Vec<Schedule>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Schedule::COLUMNS,
            " from schedules where org_id = $1 order by name, id",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// The names of these schedules, of any organization.
#[boxed]
pub async fn names(
    conn: &mut Conn,
    ids: &BTreeSet<ScheduleId>,
) -> Result<BTreeMap<ScheduleId, String>> {
    let ids: Vec<&ScheduleId> = ids.iter().collect();
    let mut found = BTreeMap::new();
    for chunk in ids.chunks(ROWS_MAX) {
        let named: Vec<(String, String)> = on!(conn, |c| {
            let mut text = Text::new("select id, name from schedules where id");
            text.in_ids(chunk.iter().map(|id| put(*id)));
            text.build_as().fetch_all(c).await
        })?;
        for (id, name) in named {
            found.insert(parse("schedules", id)?, name);
        }
    }
    Ok(found)
}

/// Saves `next`, unless the schedule changed since it was read. `next.generation` is the one that
/// was read.
#[boxed]
pub async fn save(tx: &mut Tx, next: &Schedule) -> Result<()> {
    let code = seals::schedule(tx.seal(), next);
    let saved = on!(tx, |c| {
        sqlx::query(
            "update schedules
                set name = $1, description = $2, enabled = $3, cron = $4, timezone = $5,
                    targets = $6, options = $7, next_run_at = $8, updated_at = $9, seal = $13,
                    generation = generation + 1
              where id = $10 and org_id = $11 and generation = $12",
        )
        .bind(put(&next.name))
        .bind(put(&next.description))
        .bind(next.enabled)
        .bind(put(&next.cron))
        .bind(put(&next.timezone))
        .bind(put(&next.targets))
        .bind(put(&next.options))
        .bind(put(&next.next_run_at))
        .bind(put(&next.updated_at))
        .bind(put(&next.id))
        .bind(put(&next.org_id))
        .bind(next.generation)
        .bind(code.to_vec())
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })
    .map_err(already_exists(NAME))?;
    expect_one_row(saved)
}

/// Deletes a schedule and its runs, unless it changed since it was read.
#[boxed]
pub async fn delete(tx: &mut Tx, seen: &Schedule) -> Result<()> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from schedules where id = $1 and org_id = $2 and generation = $3")
            .bind(put(&seen.id))
            .bind(put(&seen.org_id))
            .bind(seen.generation)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    expect_one_row(gone)
}

/// The schedules of all organizations that are due at `now`, the longest overdue first.
#[boxed]
pub async fn due(conn: &mut Conn, now: Timestamp, limit: u32) -> Result<Vec<Schedule>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Schedule::COLUMNS,
            " from schedules where next_run_at <= $1 order by next_run_at, id limit $2",
        ]))
        .bind(put(&now))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// When the next schedule of any organization is due. Until then the engine may sleep.
#[boxed]
pub async fn next_due(conn: &mut Conn) -> Result<Option<Timestamp>> {
    row! {
        struct NextDue in "schedules" by "id" {
            id: String,
            next_run_at: Timestamp,
        }
    }
    let next: Option<NextDue> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            NextDue::COLUMNS,
            " from schedules where next_run_at is not null order by next_run_at limit 1",
        ]))
        .fetch_optional(c)
        .await
    })?;
    Ok(next.map(|next| next.next_run_at))
}

/// The schedules of all organizations whose next instant is after `now`.
#[boxed]
pub async fn list_future(conn: &mut Conn, now: Timestamp) -> Result<Vec<Schedule>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Schedule::COLUMNS,
            " from schedules where next_run_at > $1 order by next_run_at, id",
        ]))
        .bind(put(&now))
        .fetch_all(c)
        .await
    })?)
}

/// Moves schedules from the instant that was due to their next one. Skips schedules that were moved
/// or saved since they were read; returns those that moved. Many in one statement, because ten
/// thousand may be due in one second.
///
/// The update is guarded by the instant and the generation, but does not increase the generation: a
/// user who edits the schedule has read it, and the edit must not fail because a run became due.
#[boxed]
pub async fn advance(
    tx: &mut Tx,
    moves: &[(&Schedule, Option<Timestamp>)],
) -> Result<BTreeSet<ScheduleId>> {
    let found: Vec<(String,)> = on!(tx, |c| {
        in_chunks(c, moves, |chunk| {
            let mut text = Text::new("with v (schedule, seen, was_due, next) as (");
            text.rows(chunk, |row, (seen, next)| {
                row.bind(put(&seen.id)).bind(seen.generation);
                row.bind(put(&seen.next_run_at)).bind(put(next));
            });
            text.add(
                ") update schedules set next_run_at = v.next from v
                    where id = v.schedule and generation = v.seen and next_run_at = v.was_due
                   returning id",
            );
            text
        })
        .await
    })?;
    found.into_iter().map(|(id,)| parse("schedules", id)).collect()
}
