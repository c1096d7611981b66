//! Runs: the executions of a schedule, skipped ones included.
//!
//! Two unique indexes guarantee that one instant of a schedule starts at most once, and that a
//! schedule has at most one unfinished run, whether a run was started by a person or by the
//! schedule, and however many replicas try.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use domain::rollout::End;
use jiff::Timestamp;
use serde_json::Value;
use vocab::{BatchId, OrgId, RunId, ScheduleId, Selector, SkipReason};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, guarded};
use crate::row::{parse, put, row, via};
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;
use crate::{Page, Paged, seals};

/// What started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The calendar.
    Cron,
    /// A person.
    Manual,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its rollout is under way.
    Running,
    /// It never started.
    Skipped,
    /// Its rollout ended so.
    Ended(End),
}

const TRIGGERS: [(Trigger, &str); 2] = [(Trigger::Cron, "cron"), (Trigger::Manual, "manual")];
const STATES: [(State, &str); 7] = [
    (State::Running, "running"),
    (State::Skipped, "skipped"),
    (State::Ended(End::Succeeded), "succeeded"),
    (State::Ended(End::CompletedWithErrors), "completed_with_errors"),
    (State::Ended(End::Failed), "failed"),
    (State::Ended(End::Canceled), "canceled"),
    (State::Ended(End::Expired), "expired"),
];

/// A word in a column that nobody writes there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a word of a run")]
pub struct UnknownWord(String);

macro_rules! words {
    ($($kind:ty: $table:ident),*) => {$(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let word = $table.iter().find(|(known, _)| known == self);
                f.write_str(word.map_or("?", |(_, word)| word))
            }
        }

        impl FromStr for $kind {
            type Err = UnknownWord;
            fn from_str(text: &str) -> std::result::Result<Self, UnknownWord> {
                let known = $table.iter().find(|(_, word)| *word == text);
                known.map(|(known, _)| *known).ok_or_else(|| UnknownWord(text.to_owned()))
            }
        }
    )*};
}
words!(Trigger: TRIGGERS, State: STATES);
via!(Trigger, State);

row! {
    /// A run.
    pub struct Run in "runs" by "id" {
        /// Its id.
        pub id: RunId,
        /// Whose it is.
        pub org_id: OrgId,
        /// Of which schedule.
        pub schedule_id: ScheduleId,
        /// What started it.
        pub trigger_kind: Trigger,
        /// Where it stands.
        pub state: State,
        /// Why it never started.
        pub skip_reason: Option<SkipReason>,
        /// The instant of the schedule; `None` for a run that a person started.
        pub scheduled_for: Option<Timestamp>,
        /// When it was started, or skipped.
        pub started_at: Timestamp,
        /// When it ended.
        pub finished_at: Option<Timestamp>,
        /// Its rollout. One that the calendar started has it a moment later; one that was skipped, never.
        pub batch_id: Option<BatchId>,
        /// On which servers, as the schedule said then.
        pub targets: Selector,
        /// What it does there, as the schedule said then.
        pub options: Value,
        /// How often it was changed.
        pub generation: i64,
        /// Its code; see [`crate::seals`]. Set by this module.
        pub seal: crate::seals::Code,
    }
}

/// What came of an attempt to start a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Start {
    /// It is ours.
    Started,
    /// This instant was started or skipped already, by this run.
    AlreadyStarted(RunId),
    /// This run of the same schedule is not finished.
    Overlaps(RunId),
}

/// Writes a run down: one that starts, or one that is skipped (its `finished_at` is given, so it
/// overlaps nothing).
#[boxed]
pub async fn start(tx: &mut Tx, run: &Run) -> Result<Start> {
    if !start_all(tx, std::slice::from_ref(run)).await?.is_empty() {
        return Ok(Start::Started);
    }
    if let Some(other) = of_instant(tx, run).await? {
        return Ok(Start::AlreadyStarted(other.id));
    }
    match unfinished(tx, run.schedule_id).await? {
        Some(other) => Ok(Start::Overlaps(other.id)),
        // The other one finished between the two statements: decide again.
        None => Err(StoreError::Stale),
    }
}

/// Writes many runs down, and answers with those that are ours; what stands in the way of another,
/// [`start`] says.
#[boxed]
pub async fn start_all(tx: &mut Tx, runs: &[Run]) -> Result<BTreeSet<RunId>> {
    let seal = &tx.seal().clone();
    // `do nothing` waits for whoever is just inserting the same, and leaves the transaction usable.
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

async fn of_instant(conn: &mut Conn, run: &Run) -> Result<Option<Run>> {
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

/// The run of this schedule that is not finished.
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

/// Which of these schedules have a run that is not finished.
#[boxed]
pub async fn unfinished_among(
    conn: &mut Conn,
    schedules: &[ScheduleId],
) -> Result<BTreeSet<ScheduleId>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        in_chunks(c, schedules, |chunk| {
            let mut text = Text::new("select schedule_id from runs where finished_at is null");
            text.add(" and schedule_id").among(chunk.iter().map(put));
            text
        })
        .await
    })?;
    found.into_iter().map(|(id,)| parse("runs", id)).collect()
}

/// Up to `limit` runs that have started and have no rollout yet, of all organizations, the oldest first.
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

/// Says which rollout carries each of these runs out, and answers with those of which it is true: one that has a rollout
/// keeps it, and one may be gone with its schedule.
#[boxed]
pub async fn give_batches(tx: &mut Tx, given: &[(RunId, BatchId)]) -> Result<BTreeSet<RunId>> {
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

/// Ends runs that have no rollout as skipped. Returns the runs that changed; one that has a rollout or has ended does
/// not.
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
            text.bind(put(&State::Skipped)).add(", skip_reason = ").bind(put(&reason));
            text.add(", finished_at = ").bind(put(&now));
            text.add(
                ", generation = generation + 1
                  where batch_id is null and finished_at is null and id",
            );
            text.among(chunk.iter().map(put)).add(" returning id");
            text
        })
        .await
    })?;
    found.into_iter().map(|(id,)| parse("runs", id)).collect()
}

/// Deletes the records of skipped instants of these schedules that lie after `now`: a wrong clock
/// made them. Returns how many there were.
#[boxed]
pub async fn forget_skipped_ahead(
    tx: &mut Tx,
    schedules: &[ScheduleId],
    now: Timestamp,
) -> Result<usize> {
    let found: Vec<(String,)> = on!(tx, |c| {
        in_chunks(c, schedules, |chunk| {
            let mut text = Text::new("delete from runs where state = ");
            text.bind(put(&State::Skipped)).add(" and scheduled_for > ").bind(put(&now));
            text.add(" and schedule_id").among(chunk.iter().map(put)).add(" returning id");
            text
        })
        .await
    })?;
    Ok(found.len())
}

/// The run that started this rollout.
#[boxed]
pub async fn of_batch(conn: &mut Conn, batch: BatchId) -> Result<Option<Run>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", Run::COLUMNS, " from runs where batch_id = $1"]))
            .bind(put(&batch))
            .fetch_optional(c)
            .await
    })?)
}

/// One of this organization.
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

/// Says how a run ended, unless someone changed it since it was read.
#[boxed]
pub async fn finish(tx: &mut Tx, seen: &Run, end: End, now: Timestamp) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update runs set state = $1, finished_at = $2, generation = generation + 1
              where id = $3 and generation = $4",
        )
        .bind(put(&State::Ended(end)))
        .bind(put(&now))
        .bind(put(&seen.id))
        .bind(seen.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    guarded(saved)
}

/// Forgets up to `limit` runs that ended before `cutoff`, and says how many it were.
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

/// The history of a schedule, newest first.
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
