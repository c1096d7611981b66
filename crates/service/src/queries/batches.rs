//! Batches: the list, unfinished ones, and a single batch with its tasks.

use async_recursion::async_recursion as boxed;
use domain::rollout::Phase;
use store::rollout_tasks::state_name;
pub use store::rollouts::Rollout;
use store::{Conn, Page, Paged, StoreError, rollout_tasks, rollouts, runs};
use vocab::{BatchId, Line, ServerId};
use wire::v1::{Batch, BatchState};

use super::{Scope, convert, server_health, tasks};
use crate::{App, Result, ServiceError};

/// The states of a batch, as the API names them. Those of unfinished batches come first.
pub const STATES: [&str; 11] = [
    "scheduled",
    "running",
    "awaiting_approval",
    "paused",
    "halted",
    "canceling",
    "succeeded",
    "completed_with_errors",
    "failed",
    "canceled",
    "expired",
];
const OPEN_STATES: usize = 6;
/// The maximum number of tasks in the response for a batch.
const RESULTS_MAX: u32 = 500;

/// Batches without their tasks, newest first, in any of these states. Without states, all batches.
#[boxed]
pub async fn list(app: &App, scope: &Scope, states: &[&str], page: Page) -> Result<Paged<Batch>> {
    let within = scope.environments.as_deref();
    let mut reader = app.db.snapshot().await?;
    let found = store::batches::list(&mut reader, scope.org, states, within, page).await?;
    let mut items = Vec::with_capacity(found.items.len());
    for row in found.items {
        items.push(summarize(&mut reader, row).await?);
    }
    Ok(Paged { items, total: found.total })
}

/// The newest `few` unfinished batches.
#[boxed]
pub async fn open(app: &App, scope: &Scope, limit: u32) -> Result<Vec<Batch>> {
    let page = Page { limit, offset: 0 };
    Ok(list(app, scope, &STATES[..OPEN_STATES], page).await?.items)
}

/// The newest batches whose name contains `text`, at most `limit`: their id, name and state.
#[boxed]
pub async fn search(
    app: &App,
    scope: &Scope,
    text: &str,
    limit: u32,
) -> Result<Vec<(BatchId, Line, BatchState)>> {
    let mut reader = app.db.snapshot().await?;
    let mut found = Vec::new();
    for row in rollouts::search(&mut reader, scope.org, text, limit).await? {
        let is_visible = match scope.environments.as_deref() {
            Some(within) => {
                store::batches::is_within_environments(&mut reader, row.id, within).await?
            }
            None => true,
        };
        if is_visible {
            let state = convert::batch_state(row.head.phase);
            found.push((row.id, Line::sanitize(&row.name), state));
        }
    }
    Ok(found)
}

/// A batch that this reader may see. A key that is limited to environments sees only batches whose
/// servers are all in these environments.
#[boxed]
pub async fn find(app: &App, scope: &Scope, id: BatchId) -> Result<rollouts::Rollout> {
    find_in(&mut *app.db.read().await?, scope, id).await
}

pub(crate) async fn find_in(
    conn: &mut Conn,
    scope: &Scope,
    id: BatchId,
) -> Result<rollouts::Rollout> {
    let found = rollouts::get(conn, scope.org, id).await?;
    if let Some(environments) = scope.environments.as_deref()
        && !store::batches::is_within_environments(conn, id, environments).await?
    {
        return Err(StoreError::not_found("batch", id).into());
    }
    Ok(found)
}

/// A batch without its tasks.
#[boxed]
pub async fn get(app: &App, scope: &Scope, id: BatchId) -> Result<Batch> {
    let mut reader = app.db.snapshot().await?;
    let row = find_in(&mut reader, scope, id).await?;
    summarize(&mut reader, row).await
}

/// A batch with its tasks.
#[boxed]
pub async fn with_tasks(app: &App, row: rollouts::Rollout) -> Result<Batch> {
    let mut reader = app.db.snapshot().await?;
    // Read again, so that the state and the counts are consistent.
    let row = rollouts::load(&mut reader, row.id).await?;
    let first = Page { limit: RESULTS_MAX, offset: 0 };
    let results = tasks::of_batch(app, &mut reader, &row, &[], first).await?.items;
    let batch = summarize(&mut reader, row).await?;
    Ok(Batch { results: Some(results), ..batch })
}

/// A batch that has ended, and those of its canceled servers that still exist.
#[boxed]
pub async fn canceled(app: &App, scope: &Scope, id: BatchId) -> Result<(Batch, Vec<ServerId>)> {
    let mut reader = app.db.snapshot().await?;
    let row = find_in(&mut reader, scope, id).await?;
    if row.ended_at.is_none() {
        let detail = "The batch has not ended yet.";
        return Err(ServiceError::conflict("batch_not_ended", detail));
    }
    let rows = rollout_tasks::all(&mut reader, id).await?;
    let canceled = rows.iter().filter(|row| state_name(row.target) == "canceled");
    let servers = canceled.map(|row| row.server_id);
    let servers = super::servers::existing(&mut reader, scope, servers).await?;
    Ok((summarize(&mut reader, row).await?, servers.into_iter().collect()))
}

/// Why a batch continued although its canary tested nothing.
const CANARY_UNCHANGED: &str = "the canary had too few updates to install and no other server was known to \
    have more, so the other servers started without a tested update; the first failure halts the batch";

/// A batch without its tasks.
async fn summarize(conn: &mut Conn, row: rollouts::Rollout) -> Result<Batch> {
    let counts = rollout_tasks::counts(conn, &row).await?;
    let wave_counts = rollout_tasks::wave_counts(conn, &row).await?;
    let (options, shown) = convert::stored_options("rollouts", row.id, &row.options)?;
    let schedule_id = match row.run_id {
        Some(run) => match runs::get(conn, row.org_id, run).await {
            // The run was deleted with its schedule.
            Err(StoreError::NotFound { .. }) => None,
            run => Some(run?.schedule_id),
        },
        None => None,
    };
    let phase = row.head.phase;
    let halt_reason = match server_health::halt_reason(conn, &row).await? {
        Some(reason) => Some(reason),
        None => convert::halt_reason(phase),
    };
    let started = !matches!(phase, Phase::Scheduled);
    let mut warnings = convert::warnings(&options, u64::from(row.total));
    if row.head.canary_unchanged {
        warnings.push(CANARY_UNCHANGED.to_owned());
    }
    Ok(Batch {
        id: row.id,
        name: Line::sanitize(&row.name),
        state: convert::batch_state(phase),
        halt_reason,
        halt_code: convert::halt_code(phase),
        origin: convert::origin(&row.origin),
        started_by: Some(row.started_by),
        schedule_id,
        run_id: row.run_id,
        progress: convert::progress(&counts, phase),
        waves: convert::waves(&row.head, row.total, &wave_counts),
        created_at: row.created_at,
        started_at: started.then_some(row.head.starts_at),
        finished_at: row.ended_at,
        results: None,
        warnings,
        options: shown,
    })
}
