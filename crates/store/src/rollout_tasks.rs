//! The tasks of rollouts: the state of each server in each rollout.
//!
//! A task is active exactly while its `deadline` is not null. A unique index over the servers of
//! active tasks keeps a server from having two of them, even if a replica is outdated. [`claim`]
//! skips servers that already have an active task, instead of failing.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

use domain::rollout::{TaskHealth, TaskOutcome, TaskStatus};
use jiff::Timestamp;
use serde_json::Value;
use vocab::{BatchId, OrgId, ServerId, Stage, TaskId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists};
use crate::rollouts::{self, Counts, Rollout, TaskChanges, WaveCounts};
use crate::row::{parse, put, row};
use crate::sql::{ROWS_MAX, Text, in_chunks, join};
use crate::tx::Tx;
use crate::{Page, Paged, seals};

row! {
    /// A task, as the planner needs it.
    pub struct TaskRow in "rollout_tasks" by "task_id" {
        pub rollout_id: BatchId,
        pub task_id: TaskId,
        pub server_id: ServerId,
        /// Its position in the sequence of the rollout's servers.
        pub position: u32,
        /// Its state.
        pub target: TaskStatus,
        /// Incremented by every change.
        pub generation: i64,
        /// The rollout's revision when it last changed.
        pub revision: i64,
        /// Its authentication code; see [`crate::seals`].
        pub seal: crate::seals::SealCode,
        /// The last known health of its server. Not sealed, because no host acts on it.
        pub health: Option<TaskHealth>,
    }
}

row! {
    /// A task with the result that its agent reported.
    pub struct TaskResult in "rollout_tasks" by "task_id" {
        pub rollout_id: BatchId,
        pub task_id: TaskId,
        pub server_id: ServerId,
        /// Its position in the sequence of the rollout's servers.
        pub position: u32,
        /// Its state.
        pub target: TaskStatus,
        pub result: Option<Value>,
        /// Incremented by every change.
        pub generation: i64,
        /// Its authentication code; see [`crate::seals`].
        pub seal: crate::seals::SealCode,
        /// The last known health of its server.
        pub health: Option<TaskHealth>,
    }
}

row! {
    /// An active task of a server.
    pub struct ActiveTask in "rollout_tasks" by "server_id" {
        pub server_id: ServerId,
        pub rollout_id: BatchId,
        pub task_id: TaskId,
        /// When its current stage times out.
        pub deadline: Timestamp,
    }
}

row! {
    /// The state of a task alone.
    struct TaskTarget in "rollout_tasks" by "task_id" {
        task_id: TaskId,
        target: TaskStatus,
    }
}

row! {
    /// The state of a server's task.
    pub struct ServerTask in "rollout_tasks" by "server_id" {
        pub server_id: ServerId,
        pub target: TaskStatus,
    }
}

/// A change of a task's state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateChange {
    pub server_id: ServerId,
    /// The state on which this was decided.
    pub from: TaskStatus,
    /// The generation of the task in that state.
    pub seen: i64,
    /// The new state.
    pub next: TaskStatus,
    /// The result that its agent reported; `None` keeps the previous one.
    pub result: Option<Value>,
    /// The health in that result; `None` keeps what is known.
    pub health: Option<TaskHealth>,
}

/// A change of what is known about the health of a task's server.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthChange {
    pub server_id: ServerId,
    /// The generation of the task for which this was decided.
    pub seen: i64,
    /// The wave in which the task started; 0 if it has not.
    pub wave: u32,
    pub before: Option<TaskHealth>,
    pub after: TaskHealth,
}

/// The name of a state of health, in the column and in counts of waves. `None` if the server has
/// not been changed.
fn health_state(health: &TaskHealth) -> Option<&'static str> {
    health.changed.then(|| health.state.as_str())
}

/// The name of a state, in the column and in counts.
pub fn state_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Waiting => "waiting",
        TaskStatus::Busy(busy) => busy.stage.as_str(),
        TaskStatus::Done(done) => match done.outcome {
            TaskOutcome::Succeeded => "succeeded",
            TaskOutcome::NoChange => "no_change",
            TaskOutcome::Failed(_) => "failed",
            TaskOutcome::TimedOut(_) => "timed_out",
            TaskOutcome::Skipped(_) => "skipped",
            TaskOutcome::Canceled(_) => "canceled",
        },
    }
}

fn deadline(status: TaskStatus) -> Option<Timestamp> {
    match status {
        TaskStatus::Busy(busy) => Some(busy.by),
        TaskStatus::Waiting | TaskStatus::Done(_) => None,
    }
}

pub(crate) async fn insert(
    tx: &mut Tx,
    rollouts: &[(&Rollout, &[(TaskId, ServerId)])],
) -> Result<()> {
    let waiting = put(&TaskStatus::Waiting);
    let places = rollouts.iter().flat_map(|(rollout, targets)| {
        (0_i64..).zip(*targets).map(|(position, target)| (rollout.id, position, target))
    });
    let places: Vec<_> = places.collect();
    let seal = &tx.seal().clone();
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, &places, |chunk| {
            let mut text = Text::new(
                "insert into rollout_tasks
                    (rollout_id, task_id, server_id, position, state, target,
                     generation, revision, seal) ",
            );
            text.rows(chunk, |row, (rollout, position, (task, server))| {
                row.bind(put(rollout)).bind(put(task)).bind(put(server)).bind(*position);
                row.bind("waiting").bind(waiting.clone()).bind(1_i64).bind(1_i64);
                let place = u32::try_from(*position).unwrap_or(u32::MAX);
                row.bind(seals::task(seal, *rollout, *task, *server, place).to_vec());
            });
            text
        })
        .await
    })
    .map_err(already_exists("a server of this batch"))?;
    Ok(())
}

/// All tasks of a rollout, in their order.
#[boxed]
pub async fn all(conn: &mut Conn, rollout: BatchId) -> Result<Vec<TaskRow>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            TaskRow::COLUMNS,
            " from rollout_tasks where rollout_id = $1 order by position",
        ]))
        .bind(put(&rollout))
        .fetch_all(c)
        .await
    })?)
}

/// The tasks of these rollouts that succeeded or had nothing to change, at most `limit`.
#[boxed]
pub async fn successes(
    conn: &mut Conn,
    rollouts: &[BatchId],
    limit: u32,
) -> Result<Vec<ServerTask>> {
    if rollouts.is_empty() {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(ServerTask::COLUMNS).add(" from rollout_tasks where rollout_id in ");
        text.list(rollouts.iter().map(put));
        text.add(
            " and state in ('succeeded', 'no_change') order by rollout_id desc, position limit ",
        );
        text.bind(i64::from(limit));
        text.build_as().fetch_all(c).await
    })?)
}

/// The states of at most `limit` tasks of a rollout, in their order, from this position on.
#[boxed]
pub async fn states(
    conn: &mut Conn,
    rollout: BatchId,
    first: u64,
    limit: u32,
) -> Result<Vec<TaskStatus>> {
    let found: Vec<TaskTarget> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            TaskTarget::COLUMNS,
            " from rollout_tasks where rollout_id = $1 and position >= $2
              order by position limit $3",
        ]))
        .bind(put(&rollout))
        .bind(put(&first))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|row| row.target).collect())
}

/// The tasks that changed after `revision`, in the order of their changes.
#[boxed]
pub async fn changed_since(
    conn: &mut Conn,
    rollout: BatchId,
    revision: i64,
) -> Result<Vec<TaskRow>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            TaskRow::COLUMNS,
            " from rollout_tasks where rollout_id = $1 and revision > $2
              order by revision, position",
        ]))
        .bind(put(&rollout))
        .bind(revision)
        .fetch_all(c)
        .await
    })?)
}

/// The active tasks: an order was sent, started or not.
#[boxed]
pub async fn list_active(conn: &mut Conn, rollout: BatchId) -> Result<Vec<TaskRow>> {
    let mut found: Vec<TaskRow> = Vec::new();
    // One state at a time: with a list of states, PostgreSQL may scan the whole rollout instead.
    for stage in Stage::ALL {
        found.extend(on!(conn, |c| {
            sqlx::query_as::<_, TaskRow>(join(&[
                "select ",
                TaskRow::COLUMNS,
                " from rollout_tasks where rollout_id = $1 and state = $2 order by position",
            ]))
            .bind(put(&rollout))
            .bind(stage.as_str())
            .fetch_all(c)
            .await
        })?);
    }
    found.sort_by_key(|row| row.position);
    Ok(found)
}

/// Returns a page of the tasks in one of these states with their results, or of all if `states` is
/// empty, in their order.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    rollout: &Rollout,
    states: &[&str],
    page: Page,
) -> Result<Paged<TaskResult>> {
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(TaskResult::COLUMNS).add(" from rollout_tasks where rollout_id = ");
        text.bind(put(&rollout.id));
        if !states.is_empty() {
            text.add(" and state in ").list(states.iter().map(ToString::to_string));
        }
        text.add(" order by position limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let counts = counts(conn, rollout).await?;
    let wanted = |state: &str| states.is_empty() || states.contains(&state);
    let total = counts.iter().filter(|(state, _)| wanted(state)).map(|(_, count)| count).sum();
    Ok(Paged { items, total })
}

/// The number of tasks of a rollout per state. Uses the stored counts, unless an earlier release
/// changed the rollout last.
#[boxed]
pub async fn counts(conn: &mut Conn, rollout: &Rollout) -> Result<Counts> {
    match &rollout.counts {
        Some(kept) if rollout.counted == rollout.revision => Ok(kept.clone()),
        _ => count(conn, rollout.id).await,
    }
}

/// The number of tasks per state that started in each wave. Uses the stored counts where they are
/// valid, like [`counts`].
#[boxed]
pub async fn wave_counts(conn: &mut Conn, rollout: &Rollout) -> Result<WaveCounts> {
    if let Some(kept) = &rollout.wave_counts
        && rollout.counted == rollout.revision
    {
        return Ok(kept.clone());
    }
    let mut counts = WaveCounts::new();
    for row in all(conn, rollout.id).await? {
        if row.target.wave() > 0 {
            let counts = counts.entry(row.target.wave()).or_default();
            rollouts::add(counts, row.target);
            rollouts::add_health(counts, row.health.as_ref());
        }
    }
    Ok(counts)
}

/// Counts the tasks of a rollout per state.
#[boxed]
pub async fn count(conn: &mut Conn, rollout: BatchId) -> Result<Counts> {
    let found: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select state, count(*) from rollout_tasks where rollout_id = $1 group by state",
        )
        .bind(put(&rollout))
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|(state, count)| (state, count.unsigned_abs())).collect())
}

/// A task of this organization.
#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, task: TaskId) -> Result<TaskResult> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            TaskResult::COLUMNS,
            " from rollout_tasks where task_id = $1 and exists
                (select 1 from rollouts where id = rollout_id and org_id = $2)",
        ]))
        .bind(put(&task))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("task", task))
}

/// Returns which of these tasks belong to this organization.
#[boxed]
pub async fn get_all(conn: &mut Conn, org: OrgId, tasks: &[TaskId]) -> Result<Vec<TaskResult>> {
    let mut found = Vec::with_capacity(tasks.len());
    for chunk in tasks.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(TaskResult::COLUMNS).add(" from rollout_tasks where task_id");
            text.in_ids(chunk.iter().map(put));
            text.add(" and exists (select 1 from rollouts where id = rollout_id and org_id = ");
            text.bind(put(&org)).add(")");
            text.build_as::<TaskResult>().fetch_all(c).await
        })?);
    }
    Ok(found)
}

/// The unfinished tasks of one server, in any rollout.
#[boxed]
pub async fn unfinished_by_server(conn: &mut Conn, server: ServerId) -> Result<Vec<TaskRow>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            TaskRow::COLUMNS,
            " from rollout_tasks
              where server_id = $1 and (state = 'waiting' or deadline is not null)
              order by rollout_id",
        ]))
        .bind(put(&server))
        .fetch_all(c)
        .await
    })?)
}

/// Returns a page of one server's tasks in any rollout, newest first.
#[boxed]
pub async fn list_by_server(
    conn: &mut Conn,
    server: ServerId,
    page: Page,
) -> Result<Paged<TaskResult>> {
    let items = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            TaskResult::COLUMNS,
            " from rollout_tasks where server_id = $1 order by rollout_id desc limit $2 offset $3",
        ]))
        .bind(put(&server))
        .bind(i64::from(page.limit))
        .bind(put(&page.offset))
        .fetch_all(c)
        .await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        sqlx::query_as("select count(*) from rollout_tasks where server_id = $1")
            .bind(put(&server))
            .fetch_one(c)
            .await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}

/// The active tasks of these servers.
#[boxed]
pub async fn active_by_servers(conn: &mut Conn, servers: &[ServerId]) -> Result<Vec<ActiveTask>> {
    let mut found = Vec::new();
    for chunk in servers.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(ActiveTask::COLUMNS);
            text.add(" from rollout_tasks where deadline is not null and server_id");
            text.in_ids(chunk.iter().map(put));
            text.build_as::<ActiveTask>().fetch_all(c).await
        })?);
    }
    Ok(found)
}

/// The active tasks of all rollouts whose deadline has passed at `now`, the longest overdue first.
#[boxed]
pub async fn overdue(conn: &mut Conn, now: Timestamp, limit: u32) -> Result<Vec<ActiveTask>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            ActiveTask::COLUMNS,
            " from rollout_tasks where deadline <= $1 order by deadline limit $2",
        ]))
        .bind(put(&now))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Saves all changes, or fails with `Stale` if one of the tasks changed since it was read; then the
/// transaction must be dropped. Returns the rollout's revision.
///
/// Not for starting a waiting task: use [`claim`].
#[boxed]
pub async fn save(tx: &mut Tx, rollout: BatchId, changes: &[StateChange]) -> Result<i64> {
    let mut task_changes = TaskChanges::begin(tx, rollout).await?;
    let mut saved = 0;
    for chunk in changes.chunks(ROWS_MAX) {
        saved += write(tx, rollout, task_changes.revision, chunk, "").await?.len();
    }
    if saved < changes.len() {
        return Err(StoreError::Stale);
    }
    for done in changes {
        task_changes.count_change(done.from, done.next);
        task_changes.count_health(done.next.wave(), None, done.health.as_ref());
    }
    task_changes.finish(tx).await
}

/// Saves what is known about the health of servers, or fails with `Stale` if one of the tasks
/// changed since it was read; then the transaction must be dropped.
#[boxed]
pub async fn save_health(tx: &mut Tx, rollout: BatchId, changes: &[HealthChange]) -> Result<()> {
    let mut task_changes = TaskChanges::begin(tx, rollout).await?;
    let revision = task_changes.revision;
    let mut saved = 0;
    for chunk in changes.chunks(ROWS_MAX) {
        let written: Vec<(String,)> = on!(tx, |c| {
            let mut text = Text::new("with v (batch, server, seen, health, health_state) as (");
            text.rows(chunk, |row, next| {
                row.bind(put(&rollout)).bind(put(&next.server_id)).bind(next.seen);
                row.bind(put(&next.after));
                row.bind(put(&health_state(&next.after).map(str::to_owned)));
            });
            text.add(
                ") update rollout_tasks
                      set health = v.health, health_state = v.health_state,
                          generation = generation + 1, revision = ",
            );
            text.bind(revision).add(" from v where rollout_id = v.batch and server_id = v.server");
            text.add(" and generation = v.seen returning server_id");
            text.build_as().fetch_all(c).await
        })?;
        saved += written.len();
    }
    if saved < changes.len() {
        return Err(StoreError::Stale);
    }
    for done in changes {
        task_changes.count_health(done.wave, done.before.as_ref(), Some(&done.after));
    }
    task_changes.finish(tx).await.map(drop)
}

/// The tasks of these servers in rollouts that have not ended.
#[boxed]
pub async fn open_by_servers(conn: &mut Conn, servers: &[ServerId]) -> Result<Vec<TaskResult>> {
    let mut found = Vec::new();
    for chunk in servers.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(TaskResult::COLUMNS).add(" from rollout_tasks where server_id");
            text.in_ids(chunk.iter().map(put));
            text.add(" and exists (select 1 from rollouts where id = rollout_id");
            text.add(" and ended_at is null) order by rollout_id, server_id");
            text.build_as::<TaskResult>().fetch_all(c).await
        })?);
    }
    Ok(found)
}

/// The tasks whose servers are unhealthy since their change, in start order, at most `limit`.
#[boxed]
pub async fn degraded(conn: &mut Conn, rollout: BatchId, limit: u32) -> Result<Vec<TaskResult>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            TaskResult::COLUMNS,
            " from rollout_tasks where rollout_id = $1 and health_state = 'degraded'
              order by position limit $2",
        ]))
        .bind(put(&rollout))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Gives a task a new id, for its next order. The agent remembers the order that it returned under
/// the old id, and would report the result of that one again.
///
/// `seen` must be authentic: the new id is sealed with the rest of the row.
#[boxed]
pub async fn set_task_id(tx: &mut Tx, seen: &TaskResult, task: TaskId) -> Result<()> {
    let code = seals::task(tx.seal(), seen.rollout_id, task, seen.server_id, seen.position);
    on!(tx, |c| {
        sqlx::query(
            "update rollout_tasks set task_id = $1, seal = $4
              where rollout_id = $2 and server_id = $3",
        )
        .bind(put(&task))
        .bind(put(&seen.rollout_id))
        .bind(put(&seen.server_id))
        .bind(code.to_vec())
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Starts waiting tasks and returns the servers of those that were started. The others have an
/// active task in another rollout, cannot get orders now (see
/// [`crate::presence_transitions::filter_unavailable`]), or changed since they were read.
#[boxed]
pub async fn claim(
    tx: &mut Tx,
    rollout: BatchId,
    changes: &[StateChange],
) -> Result<Vec<ServerId>> {
    let mut task_changes = TaskChanges::begin(tx, rollout).await?;
    let mut moves = changes.to_vec();
    moves.sort_unstable_by_key(|next| next.server_id);
    let mut claimed = BTreeSet::new();
    for chunk in moves.chunks(ROWS_MAX) {
        lock_servers(tx, chunk).await?;
        claimed.extend(write(tx, rollout, task_changes.revision, chunk, IF_AVAILABLE).await?);
    }
    let done = moves.iter().filter(|next| claimed.contains(&next.server_id));
    done.for_each(|done| task_changes.count_change(done.from, done.next));
    task_changes.finish(tx).await?;
    Ok(claimed.into_iter().collect())
}

const IF_AVAILABLE: &str = " and deadline is null
    and not exists
    (select 1 from rollout_tasks b where b.server_id = v.server and b.deadline is not null)
    and not exists
    (select 1 from servers s
      where s.id = v.server and (s.removed_at is not null or s.quarantine is not null
                                 or s.activity in ('patching', 'rebooting')))";

/// Locks the servers' own rows in the order of their ids. Without this, two rollouts that claim one
/// server at the same time would both find it available, and one would violate the unique index,
/// which aborts its transaction on PostgreSQL. SQLite has one writer at a time and needs no lock.
async fn lock_servers(tx: &mut Tx, changes: &[StateChange]) -> Result<()> {
    on!(tx, |c, d| {
        if d.for_update.is_empty() {
            return Ok(());
        }
        let mut text = Text::new("select id from servers where id");
        text.in_ids(changes.iter().map(|next| put(&next.server_id)));
        text.add(" order by id").add(d.for_update);
        text.build().fetch_all(c).await.map(drop)
    })?;
    Ok(())
}

async fn write(
    tx: &mut Tx,
    rollout: BatchId,
    revision: i64,
    changes: &[StateChange],
    condition: &'static str,
) -> Result<Vec<ServerId>> {
    let written: Vec<(String,)> = on!(tx, |c| {
        let mut text = Text::new(
            "with v (batch, server, seen, to_state, to_target, due, report, to_health,
                     to_health_state) as (",
        );
        text.rows(changes, |row, next| {
            // The rollout is bound with each row: PostgreSQL has no statistics about a rollout that
            // was just created, assumes that it is small, and would read the whole of it.
            row.bind(put(&rollout)).bind(put(&next.server_id));
            row.bind(next.seen).bind(state_name(next.next));
            row.bind(put(&next.next)).bind(put(&deadline(next.next))).bind(put(&next.result));
            row.bind(put(&next.health));
            row.bind(put(&next.health.as_ref().and_then(health_state).map(str::to_owned)));
        });
        text.add(
            ") update rollout_tasks
                  set state = v.to_state, target = v.to_target, deadline = v.due,
                      result = coalesce(v.report, result), health = coalesce(v.to_health, health),
                      health_state = coalesce(v.to_health_state, health_state),
                      generation = generation + 1,
                      revision = ",
        );
        text.bind(revision).add(" from v where rollout_id = v.batch and server_id = v.server");
        text.add(" and generation = v.seen").add(condition);
        text.add(" returning server_id");
        text.build_as().fetch_all(c).await
    })
    .map_err(already_exists("a server with an active task"))?;
    written.into_iter().map(|(id,)| parse("rollout_tasks", id)).collect()
}
