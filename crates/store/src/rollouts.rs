//! Rollouts as a whole; [`crate::rollout_targets`] has their tasks.
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

use domain::rollout::{End, Head, Phase, Target};
use jiff::Timestamp;
use serde_json::Value;
use vocab::{BatchId, OrgId, RunId, ServerId, TaskId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, guarded, taken};
use crate::rollout_targets;
use crate::rollout_targets::state_word;
use crate::row::{parse, put, row};
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;
use crate::{Page, Paged, Topic, seals};

row! {
    /// A rollout, without its targets.
    pub struct Rollout in "rollouts" by "id" {
        /// Its id.
        pub id: BatchId,
        /// Whose it is.
        pub org_id: OrgId,
        /// What the planner knows of it.
        pub head: Head,
        /// The order, which the planner does not read.
        pub options: Value,
        /// Through which door it came.
        pub origin: String,
        /// Who started it.
        pub started_by: String,
        /// The run that started it.
        pub run_id: Option<RunId>,
        /// The batch that it retries. Not sealed: it makes no host act.
        pub retry_of: Option<BatchId>,
        /// How many servers it has.
        pub total: u32,
        /// When it was made.
        pub created_at: Timestamp,
        /// When it ended.
        pub ended_at: Option<Timestamp>,
        /// How often the head was changed.
        pub generation: i64,
        /// How often anything was.
        pub revision: i64,
        /// How many targets stood where, by [`rollout_targets::state_word`], when the revision was `counted`.
        pub counts: Option<Counts>,
        /// See `counts`.
        pub counted: i64,
        /// The code of what it does; see [`crate::seals`]. Set by this module.
        pub seal: crate::seals::Code,
        /// The code of how far it is. Set by this module.
        pub head_seal: crate::seals::Code,
    }
}

/// How many targets stand where, by [`rollout_targets::state_word`]; none of them is zero.
pub type Counts = BTreeMap<String, u64>;

/// The counts of a rollout that was just made over so many servers.
pub fn all_waiting(total: u64) -> Counts {
    (total > 0).then(|| (state_word(Target::Waiting).to_owned(), total)).into_iter().collect()
}

/// The phase in one word, as the API and the column have it.
pub fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Scheduled => "scheduled",
        Phase::Running => "running",
        Phase::Paused => "paused",
        Phase::Halted(_) => "halted",
        Phase::Canceling => "canceling",
        Phase::Ended(End::Succeeded) => "succeeded",
        Phase::Ended(End::CompletedWithErrors) => "completed_with_errors",
        Phase::Ended(End::Failed) => "failed",
        Phase::Ended(End::Canceled) => "canceled",
        Phase::Ended(End::Expired) => "expired",
    }
}

/// Adds a rollout over these servers in the order of their turns, each waiting. All or nothing:
/// 100,000 of them are some hundred statements in one transaction. `total`, `generation`,
/// `revision`, the counts and the seals are set here.
#[boxed]
pub async fn create(tx: &mut Tx, rollout: &Rollout, targets: &[(TaskId, ServerId)]) -> Result<()> {
    create_all(tx, &[(rollout, targets)]).await
}

/// Adds many rollouts, each over its servers: ten thousand schedules may be due in one second.
/// `AlreadyExists` if one is a retry of a rollout that has an unfinished retry.
#[boxed]
pub async fn create_all(tx: &mut Tx, rollouts: &[(&Rollout, &[(TaskId, ServerId)])]) -> Result<()> {
    let seal = &tx.seal().clone();
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, rollouts, |chunk| {
            let mut text = Text::new(
                "insert into rollouts (id, org_id, head, phase, options, origin, started_by, run_id,
                    retry_of, total, created_at, ended_at, generation, revision, counts, counted,
                    seal, head_seal) ",
            );
            text.rows(chunk, |row, (rollout, targets)| {
                row.bind(put(&rollout.id)).bind(put(&rollout.org_id)).bind(put(&rollout.head));
                row.bind(phase_word(rollout.head.phase)).bind(put(&rollout.options));
                row.bind(put(&rollout.origin)).bind(put(&rollout.started_by));
                row.bind(put(&rollout.run_id)).bind(put(&rollout.retry_of));
                row.bind(targets.len() as i64);
                row.bind(put(&rollout.created_at)).bind(put(&rollout.ended_at));
                row.bind(1_i64).bind(1_i64);
                row.bind(put(&all_waiting(targets.len() as u64))).bind(1_i64);
                row.bind(seals::rollout(seal, rollout).to_vec());
                let head = seals::head(seal, rollout.id, &rollout.head, rollout.ended_at, 1);
                row.bind(head.to_vec());
            });
            text
        })
        .await
    })
    .map_err(taken("this batch"))?;
    rollout_targets::insert(tx, rollouts).await?;
    tx.ring(Topic::Rollouts);
    Ok(())
}

/// One of this organization.
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

/// One of whatever organization: for the engine, which serves them all.
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
pub async fn unfinished_retry(conn: &mut Conn, of: BatchId) -> Result<Option<BatchId>> {
    let found: Option<(String,)> = on!(conn, |c| {
        sqlx::query_as("select id from rollouts where retry_of = $1 and ended_at is null")
            .bind(put(&of))
            .fetch_optional(c)
            .await
    })?;
    found.map(|(id,)| parse("rollouts", id)).transpose()
}

/// Those that have not ended, of all organizations, and the revision of each: what the engine has
/// to look after.
#[boxed]
pub async fn open(conn: &mut Conn) -> Result<Vec<(BatchId, i64)>> {
    let found: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as("select id, revision from rollouts where ended_at is null order by id")
            .fetch_all(c)
            .await
    })?;
    found.into_iter().map(|(id, revision)| Ok((parse("rollouts", id)?, revision))).collect()
}

/// How many of this organization's that have not ended are in which phase, by [`phase_word`].
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

/// Those of this organization in any of these phases, newest first; no phases: all.
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

/// Saves the head, unless someone saved it since `seen` was read. `ended_at` is given exactly when
/// its phase is an end. Answers with the row as it is now.
#[boxed]
pub async fn save_head(
    tx: &mut Tx,
    seen: &Rollout,
    head: &Head,
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
        .bind(phase_word(head.phase))
        .bind(put(&ended_at))
        .bind(put(&seen.id))
        .bind(seen.generation)
        .bind(head_seal.to_vec())
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    guarded(saved)?;
    tx.ring(Topic::Rollouts);
    load(tx, seen.id).await
}

/// Forgets up to `limit` rollouts that ended before `cutoff`, and says how many it were.
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

/// A transaction's turn to change the targets of a rollout. Whoever has it keeps every other writer of this rollout waiting
/// until his commit, so a reader that has seen one revision never finds an earlier one afterwards.
pub(crate) struct Turn {
    rollout: BatchId,
    /// The rollout's next revision.
    pub(crate) revision: i64,
    counts: Counts,
}

impl Turn {
    pub(crate) async fn take(tx: &mut Tx, id: BatchId) -> Result<Turn> {
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
        let counts = rollout_targets::counts(tx, &seen).await?;
        tx.ring(Topic::Rollouts);
        Ok(Turn { rollout: id, revision: seen.revision + 1, counts })
    }

    /// A target goes from one state to another.
    pub(crate) fn moved(&mut self, from: Target, to: Target) {
        let (from, to) = (state_word(from), state_word(to));
        if let Some(left) = self.counts.get_mut(from) {
            *left -= 1;
        }
        self.counts.retain(|_, count| *count > 0);
        *self.counts.entry(to.to_owned()).or_default() += 1;
    }

    /// Writes down what has become of it.
    pub(crate) async fn end(self, tx: &mut Tx) -> Result<i64> {
        on!(tx, |c| {
            sqlx::query(
                "update rollouts set revision = $1, counted = $1, counts = $2 where id = $3",
            )
            .bind(self.revision)
            .bind(put(&self.counts))
            .bind(put(&self.rollout))
            .execute(c)
            .await
            .map(drop)
        })?;
        Ok(self.revision)
    }
}
