//! Runs: the executions of a schedule, skipped ones included.
//!
//! Two unique indexes guarantee that one instant of a schedule starts at most once, and that a
//! schedule has at most one unfinished run, whether a run was started by a user or by the schedule,
//! and however many replicas try.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use domain::rollout::RolloutOutcome;
use jiff::Timestamp;
use serde_json::Value;
use vocab::{BatchId, OrgId, RunId, ScheduleId, Selector, SkipReason};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, expect_one_row};
use crate::row::{parse, put, row, via};
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;
use crate::{Page, Paged, seals};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The schedule's cron expression.
    Cron,
    /// A user.
    Manual,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// Its rollout has not ended.
    Running,
    /// It was never started.
    Skipped,
    /// Its rollout ended with this result.
    Ended(RolloutOutcome),
}

const TRIGGERS: [(Trigger, &str); 2] = [(Trigger::Cron, "cron"), (Trigger::Manual, "manual")];
const STATES: [(RunState, &str); 7] = [
    (RunState::Running, "running"),
    (RunState::Skipped, "skipped"),
    (RunState::Ended(RolloutOutcome::Succeeded), "succeeded"),
    (RunState::Ended(RolloutOutcome::CompletedWithErrors), "completed_with_errors"),
    (RunState::Ended(RolloutOutcome::Failed), "failed"),
    (RunState::Ended(RolloutOutcome::Canceled), "canceled"),
    (RunState::Ended(RolloutOutcome::Expired), "expired"),
];

/// A text in the column that is not a known name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a state or trigger of a run")]
pub struct UnknownName(String);

macro_rules! text_enum {
    ($($kind:ty: $table:ident),*) => {$(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let word = $table.iter().find(|(known, _)| known == self);
                f.write_str(word.map_or("?", |(_, word)| word))
            }
        }

        impl FromStr for $kind {
            type Err = UnknownName;
            fn from_str(text: &str) -> std::result::Result<Self, UnknownName> {
                let known = $table.iter().find(|(_, word)| *word == text);
                known.map(|(known, _)| *known).ok_or_else(|| UnknownName(text.to_owned()))
            }
        }
    )*};
}
text_enum!(Trigger: TRIGGERS, RunState: STATES);
via!(Trigger, RunState);

row! {
    pub struct Run in "runs" by "id" {
        pub id: RunId,
        pub org_id: OrgId,
        pub schedule_id: ScheduleId,
        pub trigger_kind: Trigger,
        pub state: RunState,
        /// Why it was skipped.
        pub skip_reason: Option<SkipReason>,
        /// The instant of the schedule; `None` for a run that a user started.
        pub scheduled_for: Option<Timestamp>,
        /// When it was started or skipped.
        pub started_at: Timestamp,
        pub finished_at: Option<Timestamp>,
        /// Its rollout. A run started by cron gets it a moment later; a skipped run never has one.
        pub batch_id: Option<BatchId>,
        /// The servers that the schedule selected when the run was created.
        pub targets: Selector,
        /// The patch options of the schedule when the run was created.
        pub options: Value,
        /// Incremented by every change.
        pub generation: i64,
        /// Its authentication code; see [`crate::seals`]. Set by this module.
        pub seal: crate::seals::SealCode,
    }
}

/// The result of [`start`].
#[derive(Debug, Clone, PartialEq)]
pub enum StartResult {
    /// The run was inserted.
    Started,
    /// This run already started or skipped the instant.
    AlreadyStarted(RunId),
    /// This run of the same schedule has not finished.
    Overlaps(RunId),
}

/// Inserts a run: a started one, or a skipped one, which has `finished_at` and so overlaps no
/// other.
#[boxed]
pub async fn start(tx: &mut Tx, run: &Run) -> Result<StartResult> {
    if !start_all(tx, std::slice::from_ref(run)).await?.is_empty() {
        return Ok(StartResult::Started);
    }
    if let Some(other) = by_instant(tx, run).await? {
        return Ok(StartResult::AlreadyStarted(other.id));
    }
    match unfinished(tx, run.schedule_id).await? {
        Some(other) => Ok(StartResult::Overlaps(other.id)),
        // The other run finished between the two statements: decide again.
        None => Err(StoreError::Stale),
    }
}

/// Inserts many runs and returns those that were inserted. [`start`] tells why one is not.
#[boxed]
pub async fn start_all(tx: &mut Tx, runs: &[Run]) -> Result<BTreeSet<RunId>> {
    let seal = &tx.seal().clone();
    // `do nothing` waits for a transaction that is inserting the same run, and leaves this
    // transaction usable.
    let found: Vec<(String,)> = on!(tx, |c| {
        in_chunks(c, runs, |chunk| {
            let mut text = Text::new("insert into runs (");
            text.add(Run::COLUMNS).add(") ");
            text.rows(chunk, |row, run| {
                row.bind(put(&run.id)).bind(put(&run.org_id)).bind(put(&run.schedule_id));
                row.bind(put(&run.trigger_kind)).bind(put(&run.state));
                row.bind(put(&run.skip_reason)).bind(put(&run.scheduled_for));
                row.bind(put(&run.started_at)).bind(put(&run.finished_at));
                row.bind(put(&run.batch_id)).bind(put(&run.targets));
                row.bind(put(&run.options)).bind(run.generation);
                row.bind(seals::run(seal, run).to_vec());
            });
            text.add(" on conflict do nothing returning id");
            text
        })
        .await
    })?;
    found.into_iter().map(|(id,)| parse("runs", id)).collect()
}

async fn by_instant(conn: &mut Conn, run: &Run) -> Result<Option<Run>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Run::COLUMNS,
            " from runs where schedule_id = $1 and scheduled_for = $2",
        ]))
        .bind(put(&run.schedule_id))
        .bind(put(&run.scheduled_for))
        .fetch_optional(c)
        .await
    })?)
}

/// The unfinished run of this schedule.
#[boxed]
pub async fn unfinished(conn: &mut Conn, schedule: ScheduleId) -> Result<Option<Run>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Run::COLUMNS,
            " from runs where schedule_id = $1 and finished_at is null",
        ]))
        .bind(put(&schedule))
        .fetch_optional(c)
        .await
    })?)
}

/// Returns which of these schedules have an unfinished run.
#[boxed]
pub async fn filter_unfinished(
    conn: &mut Conn,
    schedules: &[ScheduleId],
) -> Result<BTreeSet<ScheduleId>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        in_chunks(c, schedules, |chunk| {
            let mut text = Text::new("select schedule_id from runs where finished_at is null");
            text.add(" and schedule_id").in_ids(chunk.iter().map(put));
            text
        })
        .await
    })?;
    found.into_iter().map(|(id,)| parse("runs", id)).collect()
}

/// Up to `limit` unfinished runs of all organizations that have no rollout yet, oldest first.
#[boxed]
pub async fn without_batch(conn: &mut Conn, limit: u32) -> Result<Vec<Run>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Run::COLUMNS,
            " from runs where finished_at is null and batch_id is null
              order by started_at, id limit $1",
        ]))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Sets the rollouts of these runs and returns the runs that were changed. A run that already has a
/// rollout keeps it, and a run may have been deleted with its schedule.
#[boxed]
pub async fn set_batches(tx: &mut Tx, given: &[(RunId, BatchId)]) -> Result<BTreeSet<RunId>> {
    let found: Vec<(String,)> = on!(tx, |c| {
        in_chunks(c, given, |chunk| {
            let mut text = Text::new("with v (run, batch) as (");
            text.rows(chunk, |row, (run, batch)| {
                row.bind(put(run)).bind(put(batch));
            });
            text.add(
                ") update runs set batch_id = v.batch, generation = generation + 1 from v
                    where id = v.run and batch_id is null and finished_at is null returning id",
            );
            text
        })
        .await
    })?;
    found.into_iter().map(|(id,)| parse("runs", id)).collect()
}

/// Ends runs that have no rollout as skipped. Returns the runs that changed: not those that have a
/// rollout or have ended.
#[boxed]
pub async fn skip_all(
    tx: &mut Tx,
    runs: &[RunId],
    reason: SkipReason,
    now: Timestamp,
) -> Result<BTreeSet<RunId>> {
    let found: Vec<(String,)> = on!(tx, |c| {
        in_chunks(c, runs, |chunk| {
            let mut text = Text::new("update runs set state = ");
            text.bind(put(&RunState::Skipped)).add(", skip_reason = ").bind(put(&reason));
            text.add(", finished_at = ").bind(put(&now));
            text.add(
                ", generation = generation + 1
                  where batch_id is null and finished_at is null and id",
            );
            text.in_ids(chunk.iter().map(put)).add(" returning id");
            text
        })
        .await
    })?;
    found.into_iter().map(|(id,)| parse("runs", id)).collect()
}

/// Deletes skipped runs of these schedules whose instant is after `now`: a wrong clock created
/// them. Returns their number.
#[boxed]
pub async fn delete_future_skipped(
    tx: &mut Tx,
    schedules: &[ScheduleId],
    now: Timestamp,
) -> Result<usize> {
    let found: Vec<(String,)> = on!(tx, |c| {
        in_chunks(c, schedules, |chunk| {
            let mut text = Text::new("delete from runs where state = ");
            text.bind(put(&RunState::Skipped)).add(" and scheduled_for > ").bind(put(&now));
            text.add(" and schedule_id").in_ids(chunk.iter().map(put)).add(" returning id");
            text
        })
        .await
    })?;
    Ok(found.len())
}

/// The run that started this rollout.
#[boxed]
pub async fn by_batch(conn: &mut Conn, batch: BatchId) -> Result<Option<Run>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", Run::COLUMNS, " from runs where batch_id = $1"]))
            .bind(put(&batch))
            .fetch_optional(c)
            .await
    })?)
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: RunId) -> Result<Run> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&["select ", Run::COLUMNS, " from runs where id = $1 and org_id = $2"]))
            .bind(put(&id))
            .bind(put(&org))
            .fetch_optional(c)
            .await
    })?;
    found.ok_or_else(|| StoreError::not_found("run", id))
}

/// Records how a run ended, unless it changed since it was read.
#[boxed]
pub async fn finish(
    tx: &mut Tx,
    seen: &Run,
    outcome: RolloutOutcome,
    now: Timestamp,
) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update runs set state = $1, finished_at = $2, generation = generation + 1
              where id = $3 and generation = $4",
        )
        .bind(put(&RunState::Ended(outcome)))
        .bind(put(&now))
        .bind(put(&seen.id))
        .bind(seen.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}

/// Deletes up to `limit` runs that ended before `cutoff`. Returns their number.
#[boxed]
pub async fn purge(tx: &mut Tx, cutoff: Timestamp, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from runs where id in
                (select id from runs where finished_at < $1 order by finished_at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}

/// Returns a page of a schedule's runs, newest first.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    schedule: ScheduleId,
    page: Page,
) -> Result<Paged<Run>> {
    let items = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Run::COLUMNS,
            " from runs where schedule_id = $1 and org_id = $2
              order by started_at desc, id desc limit $3 offset $4",
        ]))
        .bind(put(&schedule))
        .bind(put(&org))
        .bind(i64::from(page.limit))
        .bind(put(&page.offset))
        .fetch_all(c)
        .await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        sqlx::query_as("select count(*) from runs where schedule_id = $1 and org_id = $2")
            .bind(put(&schedule))
            .bind(put(&org))
            .fetch_one(c)
            .await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}
