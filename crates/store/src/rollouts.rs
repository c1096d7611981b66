//! Rollouts as a whole; [`crate::rollout_tasks`] has their tasks.
//!
//! A rollout has two counters. `generation` belongs to the head: a planner that starts servers
//! saves the head too, so it gets `Stale` if the rollout was paused in between. `revision` grows
//! with every transaction that changes any part of the rollout: a planner that keeps a rollout in
//! memory asks for the changes since the revision that it has.
//!
//! Each such transaction also updates the number of tasks per state, so that no reader has to count
//! 100,000 of them.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use domain::rollout::{HaltReason, Phase, RolloutHead, RolloutOutcome, TaskHealth, TaskStatus};
use jiff::Timestamp;
use serde_json::Value;
use vocab::{BatchId, OrgId, RunId, ServerId, TaskId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::rollout_tasks;
use crate::rollout_tasks::state_name;
use crate::row::{parse, put, row};
use crate::sql::{Text, in_chunks, join, like_pattern};
use crate::tx::Tx;
use crate::{Page, Paged, Topic, seals};

row! {
    /// A rollout, without its tasks.
    pub struct Rollout in "rollouts" by "id" {
        pub id: BatchId,
        pub org_id: OrgId,
        /// Not sealed, because no host acts on it.
        pub name: String,
        /// The state that the planner reads.
        pub head: RolloutHead,
        /// The patch options, which the planner does not read.
        pub options: Value,
        /// How it was started: `api`, `schedule` or `dashboard`.
        pub origin: String,
        pub started_by: String,
        pub run_id: Option<RunId>,
        /// The batch that it retries. Not sealed, because no host acts on it.
        pub retry_of: Option<BatchId>,
        pub total: u32,
        pub created_at: Timestamp,
        pub ended_at: Option<Timestamp>,
        /// Incremented by every change of the head.
        pub generation: i64,
        /// Incremented by every change of the rollout or its tasks.
        pub revision: i64,
        /// The number of tasks per state ([`rollout_tasks::state_name`]) when the revision was
        /// `counted`.
        pub counts: Option<Counts>,
        /// The same for the tasks that started in each wave, by its number.
        pub wave_counts: Option<WaveCounts>,
        /// See `counts`.
        pub counted: i64,
        /// The authentication code of what it does; see [`crate::seals`]. Set by this module.
        pub seal: crate::seals::SealCode,
        /// The authentication code of its progress. Set by this module.
        pub head_seal: crate::seals::SealCode,
    }
}

/// The number of tasks per state ([`rollout_tasks::state_name`]), without zeros.
pub type Counts = BTreeMap<String, u64>;

/// The number of tasks per state that started in each wave, by its number.
pub type WaveCounts = BTreeMap<u32, Counts>;

/// The counts of a new rollout over this many servers.
pub fn initial_counts(total: u64) -> Counts {
    (total > 0).then(|| (state_name(TaskStatus::Waiting).to_owned(), total)).into_iter().collect()
}

/// The name of a phase, in the API and in the column.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Scheduled => "scheduled",
        Phase::Running => "running",
        Phase::AwaitingApproval => "awaiting_approval",
        // It says nothing about the change, so users see it as a pause.
        Phase::Paused | Phase::Halted(HaltReason::FleetWideDegradation { .. }) => "paused",
        Phase::Halted(_) => "halted",
        Phase::Canceling => "canceling",
        Phase::Ended(RolloutOutcome::Succeeded) => "succeeded",
        Phase::Ended(RolloutOutcome::CompletedWithErrors) => "completed_with_errors",
        Phase::Ended(RolloutOutcome::Failed) => "failed",
        Phase::Ended(RolloutOutcome::Canceled) => "canceled",
        Phase::Ended(RolloutOutcome::Expired) => "expired",
    }
}

/// Adds a rollout with a waiting task for each of these servers, in this order. All or nothing:
/// 100,000 tasks are some hundred statements in one transaction. Sets `total`, `generation`,
/// `revision`, the counts and the seals.
#[boxed]
pub async fn create(tx: &mut Tx, rollout: &Rollout, targets: &[(TaskId, ServerId)]) -> Result<()> {
    create_all(tx, &[(rollout, targets)]).await
}

/// Adds many rollouts, each over its servers: ten thousand schedules may be due in one second.
/// Fails with `AlreadyExists` if one is a retry of a rollout that has an unfinished retry.
#[boxed]
pub async fn create_all(tx: &mut Tx, rollouts: &[(&Rollout, &[(TaskId, ServerId)])]) -> Result<()> {
    let seal = &tx.seal().clone();
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, rollouts, |chunk| {
            let mut text = Text::new(
                "insert into rollouts (id, org_id, name, head, phase, options, origin, started_by, run_id,
                    retry_of, total, created_at, ended_at, generation, revision, counts, wave_counts,
                    counted, seal, head_seal) ",
            );
            text.rows(chunk, |row, (rollout, targets)| {
                row.bind(put(&rollout.id)).bind(put(&rollout.org_id)).bind(put(&rollout.name));
                row.bind(put(&rollout.head));
                row.bind(phase_name(rollout.head.phase)).bind(put(&rollout.options));
                row.bind(put(&rollout.origin)).bind(put(&rollout.started_by));
                row.bind(put(&rollout.run_id)).bind(put(&rollout.retry_of));
                row.bind(targets.len() as i64);
                row.bind(put(&rollout.created_at)).bind(put(&rollout.ended_at));
                row.bind(1_i64).bind(1_i64);
                row.bind(put(&initial_counts(targets.len() as u64)));
                row.bind(put(&WaveCounts::new())).bind(1_i64);
                row.bind(seals::rollout(seal, rollout).to_vec());
                let head = seals::head(seal, rollout.id, &rollout.head, rollout.ended_at, 1);
                row.bind(head.to_vec());
            });
            text
        })
        .await
    })
    .map_err(already_exists("this batch"))?;
    rollout_tasks::insert(tx, rollouts).await?;
    tx.notify(Topic::Rollouts);
    Ok(())
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: BatchId) -> Result<Rollout> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Rollout::COLUMNS,
            " from rollouts where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("batch", id))
}

/// A rollout of any organization, for the engine.
#[boxed]
pub async fn load(conn: &mut Conn, id: BatchId) -> Result<Rollout> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&["select ", Rollout::COLUMNS, " from rollouts where id = $1"]))
            .bind(put(&id))
            .fetch_optional(c)
            .await
    })?;
    found.ok_or_else(|| StoreError::not_found("batch", id))
}

/// The retry of this rollout that has not ended.
#[boxed]
pub async fn unfinished_retry(conn: &mut Conn, batch: BatchId) -> Result<Option<BatchId>> {
    let found: Option<(String,)> = on!(conn, |c| {
        sqlx::query_as("select id from rollouts where retry_of = $1 and ended_at is null")
            .bind(put(&batch))
            .fetch_optional(c)
            .await
    })?;
    found.map(|(id,)| parse("rollouts", id)).transpose()
}

/// The id and revision of every rollout that has not ended, of all organizations. The engine
/// processes these.
#[boxed]
pub async fn list_open(conn: &mut Conn) -> Result<Vec<(BatchId, i64)>> {
    let found: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as("select id, revision from rollouts where ended_at is null order by id")
            .fetch_all(c)
            .await
    })?;
    found.into_iter().map(|(id, revision)| Ok((parse("rollouts", id)?, revision))).collect()
}

/// This organization's rollouts that have not ended, oldest first.
#[boxed]
pub async fn open(conn: &mut Conn, org: OrgId) -> Result<Vec<Rollout>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Rollout::COLUMNS,
            " from rollouts where ended_at is null and org_id = $1 order by id",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// The number of this organization's rollouts that have not ended, by phase ([`phase_name`]).
#[boxed]
pub async fn open_counts(conn: &mut Conn, org: OrgId) -> Result<BTreeMap<String, u64>> {
    let found: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select phase, count(*) from rollouts where ended_at is null and org_id = $1
              group by phase",
        )
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|(phase, count)| (phase, count.unsigned_abs())).collect())
}

/// Returns a page of the rollouts in one of these phases, or in any if `phases` is empty, newest
/// first.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    phases: &[&str],
    page: Page,
) -> Result<Paged<Rollout>> {
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Rollout::COLUMNS).add(" from rollouts where org_id = ").bind(put(&org));
        if !phases.is_empty() {
            text.add(" and phase in ").list(phases.iter().map(ToString::to_string));
        }
        text.add(" order by created_at desc, id desc limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from rollouts where org_id = ");
        text.bind(put(&org));
        if !phases.is_empty() {
            text.add(" and phase in ").list(phases.iter().map(ToString::to_string));
        }
        text.build_as().fetch_one(c).await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}

/// How many of the newest rollouts a search by name reads.
const SEARCHED_MAX: i64 = 10_000;

/// The rollouts whose name contains `text`, newest first, at most `limit`. Ignores the case of
/// ASCII letters. Only the newest rollouts are searched.
#[boxed]
pub async fn search(conn: &mut Conn, org: OrgId, text: &str, limit: u32) -> Result<Vec<Rollout>> {
    let pattern = like_pattern(&text.to_lowercase());
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Rollout::COLUMNS,
            " from (select ",
            Rollout::COLUMNS,
            " from rollouts where org_id = $1 order by created_at desc, id desc limit $3) recent
               where lower(name) like $2 escape '\\' order by created_at desc, id desc limit $4",
        ]))
        .bind(put(&org))
        .bind(pattern.clone())
        .bind(SEARCHED_MAX)
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Saves the head, unless it changed since `seen` was read. `ended_at` must be given exactly if the
/// phase is an end. Returns the saved row.
#[boxed]
pub async fn save_head(
    tx: &mut Tx,
    seen: &Rollout,
    head: &RolloutHead,
    ended_at: Option<Timestamp>,
) -> Result<Rollout> {
    let next = seen.generation.saturating_add(1);
    let head_seal = seals::head(tx.seal(), seen.id, head, ended_at, next);
    let saved = on!(tx, |c| {
        sqlx::query(
            "update rollouts
                set head = $1, phase = $2, ended_at = $3, head_seal = $6,
                    generation = generation + 1, revision = revision + 1,
                    counted = case when counted = revision then revision + 1 else counted end
              where id = $4 and generation = $5",
        )
        .bind(put(head))
        .bind(phase_name(head.phase))
        .bind(put(&ended_at))
        .bind(put(&seen.id))
        .bind(seen.generation)
        .bind(head_seal.to_vec())
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)?;
    tx.notify(Topic::Rollouts);
    load(tx, seen.id).await
}

/// Deletes up to `limit` rollouts that ended before `cutoff`. Returns their number.
#[boxed]
pub async fn purge(tx: &mut Tx, cutoff: Timestamp, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from rollouts where id in
                (select id from rollouts where ended_at < $1 order by ended_at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}

/// A change of a rollout's tasks. It locks the rollout against other writers until the commit, so a
/// reader that has seen one revision never sees an earlier one afterwards.
pub(crate) struct TaskChanges {
    rollout: BatchId,
    /// The rollout's next revision.
    pub(crate) revision: i64,
    counts: Counts,
    wave_counts: WaveCounts,
}

impl TaskChanges {
    pub(crate) async fn begin(tx: &mut Tx, id: BatchId) -> Result<TaskChanges> {
        let found: Option<Rollout> = on!(tx, |c, d| {
            sqlx::query_as(join(&[
                "select ",
                Rollout::COLUMNS,
                " from rollouts where id = $1",
                d.for_update,
            ]))
            .bind(put(&id))
            .fetch_optional(c)
            .await
        })?;
        let seen = found.ok_or_else(|| StoreError::not_found("batch", id))?;
        let counts = rollout_tasks::counts(tx, &seen).await?;
        let wave_counts = rollout_tasks::wave_counts(tx, &seen).await?;
        tx.notify(Topic::Rollouts);
        Ok(TaskChanges { rollout: id, revision: seen.revision + 1, counts, wave_counts })
    }

    /// Counts a task that changes its state.
    pub(crate) fn count_change(&mut self, from: TaskStatus, to: TaskStatus) {
        subtract(&mut self.counts, from);
        add(&mut self.counts, to);
        if from.wave() > 0 {
            subtract(self.wave_counts.entry(from.wave()).or_default(), from);
        }
        if to.wave() > 0 {
            add(self.wave_counts.entry(to.wave()).or_default(), to);
        }
    }

    /// Counts a server of a wave whose health was measured after its change.
    pub(crate) fn count_health(
        &mut self,
        wave: u32,
        before: Option<&TaskHealth>,
        after: Option<&TaskHealth>,
    ) {
        if wave > 0 && after.is_some() {
            let counts = self.wave_counts.entry(wave).or_default();
            let known = before.filter(|known| known.changed).map(health_name);
            if let Some(left) = known.and_then(|name| counts.get_mut(&name)) {
                *left = left.saturating_sub(1);
            }
            add_health(counts, after);
            counts.retain(|_, count| *count > 0);
        }
    }

    /// Saves the revision and the counts. Returns the revision.
    pub(crate) async fn finish(self, tx: &mut Tx) -> Result<i64> {
        on!(tx, |c| {
            sqlx::query(
                "update rollouts set revision = $1, counted = $1, counts = $2, wave_counts = $4
                  where id = $3",
            )
            .bind(self.revision)
            .bind(put(&self.counts))
            .bind(put(&self.rollout))
            .bind(put(&self.wave_counts))
            .execute(c)
            .await
            .map(drop)
        })?;
        Ok(self.revision)
    }
}

/// Counts one more task in this state.
pub(crate) fn add(counts: &mut Counts, status: TaskStatus) {
    *counts.entry(state_name(status).to_owned()).or_default() += 1;
}

/// Counts one more server by its health after the change.
pub(crate) fn add_health(counts: &mut Counts, health: Option<&TaskHealth>) {
    if let Some(health) = health.filter(|health| health.changed) {
        *counts.entry(health_name(health)).or_default() += 1;
    }
}

/// The name under which the servers of a wave with this health are counted: `health.degraded`.
fn health_name(health: &TaskHealth) -> String {
    format!("health.{}", health.state)
}

fn subtract(counts: &mut Counts, status: TaskStatus) {
    if let Some(left) = counts.get_mut(state_name(status)) {
        *left = left.saturating_sub(1);
    }
    counts.retain(|_, count| *count > 0);
}
