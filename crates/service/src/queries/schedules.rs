//! Schedules and their runs.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

use domain::freeze::Period;
use jiff::Timestamp;
use store::schedules;
pub use store::schedules::Schedule;
use store::server_list::{self, Filter};
use store::{Conn, Page, Paged, StoreError, rollout_tasks, rollouts, runs};
use vocab::{RunId, ScheduleId, ServerId, Zone};
use wire::v1::{LastRun, Run};

use super::freezes;
use super::summary::is_limited_to;
use super::targets::{UnmatchedTargets, explain_unmatched};
use super::{Scope, convert};
use crate::{App, Result};

/// The number of upcoming runs in a response.
pub const NEXT_RUNS: usize = 5;

/// The schedules by name: all of them, or at most `limit` after the first `offset`. Also returns
/// the effective page.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    limit: Option<u32>,
    offset: u64,
) -> Result<(Page, Paged<wire::v1::Schedule>)> {
    let mut reader = app.db.snapshot().await?;
    let mut all = schedules::list(&mut reader, scope.org).await?;
    all.retain(|one| is_limited_to(scope.environments.as_deref(), &one.targets));
    let everything = u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
    let page = Page { limit: limit.unwrap_or(everything), offset };
    let Paged { items: rows, total } = Paged::paginate(all, page);
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        items.push(to_wire_in(&mut reader, scope, row).await?);
    }
    Ok((page, Paged { items, total }))
}

/// All schedules by name, as database rows.
#[boxed]
pub async fn all(app: &App, scope: &Scope) -> Result<Vec<Schedule>> {
    Ok(schedules::list(&mut *app.db.read().await?, scope.org).await?)
}

/// The runs of a schedule, newest first.
#[boxed]
pub async fn runs(app: &App, scope: &Scope, id: ScheduleId, page: Page) -> Result<Paged<Run>> {
    let mut reader = app.db.snapshot().await?;
    find_in(&mut reader, scope, id).await?;
    let found = runs::list(&mut reader, scope.org, id, page).await?;
    let mut items = Vec::with_capacity(found.items.len());
    for run in found.items {
        items.push(run_to_wire_in(&mut reader, run).await?);
    }
    Ok(Paged { items, total: found.total })
}

#[boxed]
pub async fn run(app: &App, scope: &Scope, schedule: ScheduleId, id: RunId) -> Result<Run> {
    let mut reader = app.db.snapshot().await?;
    find_in(&mut reader, scope, schedule).await?;
    let run = runs::get(&mut reader, scope.org, id).await?;
    if run.schedule_id != schedule {
        return Err(StoreError::not_found("run", id).into());
    }
    run_to_wire_in(&mut reader, run).await
}

/// A schedule that this reader may see. A key that is limited to environments sees the schedules
/// that target one of them.
#[boxed]
pub async fn find(app: &App, scope: &Scope, id: ScheduleId) -> Result<Schedule> {
    find_in(&mut *app.db.read().await?, scope, id).await
}

pub(crate) async fn find_in(conn: &mut Conn, scope: &Scope, id: ScheduleId) -> Result<Schedule> {
    let found = schedules::get(conn, scope.org, id).await?;
    match is_limited_to(scope.environments.as_deref(), &found.targets) {
        true => Ok(found),
        false => Err(StoreError::not_found("schedule", id).into()),
    }
}

/// A schedule as this reader sees it, and its generation.
#[boxed]
pub async fn get(app: &App, scope: &Scope, id: ScheduleId) -> Result<(i64, wire::v1::Schedule)> {
    let mut reader = app.db.snapshot().await?;
    let row = find_in(&mut reader, scope, id).await?;
    Ok((row.generation, to_wire_in(&mut reader, scope, row).await?))
}

/// A schedule and the servers that match it, from one snapshot.
#[boxed]
pub async fn with_matching_servers(
    app: &App,
    scope: &Scope,
    id: ScheduleId,
) -> Result<(Schedule, Vec<ServerId>)> {
    let mut reader = app.db.snapshot().await?;
    let schedule = find_in(&mut reader, scope, id).await?;
    let servers =
        server_list::ids(&mut reader, scope.org, &Filter::from(&schedule.targets)).await?;
    Ok((schedule, servers))
}

/// A schedule as this reader sees it.
#[boxed]
pub async fn to_wire(app: &App, scope: &Scope, row: Schedule) -> Result<wire::v1::Schedule> {
    to_wire_in(&mut *app.db.snapshot().await?, scope, row).await
}

async fn to_wire_in(conn: &mut Conn, scope: &Scope, row: Schedule) -> Result<wire::v1::Schedule> {
    let (options, shown_options) = convert::stored_options("schedules", row.id, &row.options)?;
    let paced = options.pace.stagger_minutes > 0 || options.pace.max_parallel.is_some();
    let visible = scope.environments.as_deref();
    let next_runs = crate::commands::schedules::upcoming(&row, NEXT_RUNS);
    let mut warnings = match explain_unmatched(conn, row.org_id, visible, &row.targets).await? {
        Some(UnmatchedTargets { reason, .. }) => {
            vec![format!("{reason} Runs are skipped until a server matches.")]
        }
        None if paced && options.pace.window_minutes.is_some() => {
            let servers = server_list::count(conn, row.org_id, &Filter::from(&row.targets)).await?;
            convert::warnings(&options, servers)
        }
        None => Vec::new(),
    };
    if let Some(first) = next_runs.first() {
        let current = store::freezes::list_current(conn, row.org_id, *first).await?;
        let covered =
            freezes::covering(conn, row.org_id, &row.targets, &next_runs, &current).await?;
        warnings.extend(freeze_warnings(&covered, &row.timezone));
    }
    let newest = runs::list(conn, row.org_id, row.id, Page { limit: 1, offset: 0 }).await?;
    let last_run = match newest.items.into_iter().next() {
        Some(run) => {
            // The state of an ended run is stored in the run itself.
            let batch = match run.state {
                runs::RunState::Running => batch_of(conn, &run).await?,
                runs::RunState::Skipped | runs::RunState::Ended(_) => None,
            };
            let phase = batch.map(|batch| batch.head.phase);
            Some(LastRun {
                id: run.id,
                state: convert::run_state(run.state, phase),
                scheduled_for: run.scheduled_for.unwrap_or(run.started_at),
                finished_at: run.finished_at,
            })
        }
        None => None,
    };
    Ok(wire::v1::Schedule {
        id: row.id,
        name: row.name,
        description: row.description,
        enabled: row.enabled,
        cron: row.cron,
        timezone: row.timezone,
        targets: row.targets,
        options: shown_options,
        next_runs,
        last_run,
        created_at: row.created_at,
        updated_at: row.updated_at,
        warnings,
    })
}

/// One warning for each freeze that covers a next run.
fn freeze_warnings(covered: &[(Timestamp, Period, freezes::Freeze)], zone: &Zone) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut seen = BTreeSet::new();
    for (at, period, freeze) in covered {
        let runs = covered.iter().filter(|(_, _, other)| other.id == freeze.id).count();
        if !seen.insert(freeze.id) {
            continue;
        }
        let local = |at: &Timestamp| {
            at.to_zoned(zone.time_zone().clone()).strftime("%Y-%m-%d %H:%M").to_string()
        };
        let more = match runs {
            1 => String::new(),
            2 => " (and another of the next runs)".to_owned(),
            runs => format!(" (and {} more of the next runs)", runs - 1),
        };
        warnings.push(format!(
            "The run at {}{more} will be skipped: the freeze \"{}\" covers all servers until {} ({zone}).",
            local(at),
            freeze.name,
            local(&period.ends_at),
        ));
    }
    warnings
}

/// The batch of a run; `None` if it has none, or the batch has been deleted.
async fn batch_of(conn: &mut Conn, run: &runs::Run) -> Result<Option<rollouts::Rollout>> {
    let Some(batch) = run.batch_id else { return Ok(None) };
    match rollouts::get(conn, run.org_id, batch).await {
        Err(StoreError::NotFound { .. }) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// A run with the progress of its batch.
#[boxed]
pub async fn run_to_wire(app: &App, run: runs::Run) -> Result<Run> {
    run_to_wire_in(&mut *app.db.snapshot().await?, run).await
}

async fn run_to_wire_in(conn: &mut Conn, run: runs::Run) -> Result<Run> {
    let batch = batch_of(conn, &run).await?;
    let phase = batch.as_ref().map(|batch| batch.head.phase);
    let progress = match batch {
        Some(batch) => {
            let counts = rollout_tasks::counts(conn, &batch).await?;
            Some(convert::progress(&counts, batch.head.phase))
        }
        None => None,
    };
    let skipped = run.state == runs::RunState::Skipped;
    let (_, options) = convert::stored_options("runs", run.id, &run.options)?;
    Ok(Run {
        id: run.id,
        schedule_id: run.schedule_id,
        trigger: convert::trigger(run.trigger_kind),
        state: convert::run_state(run.state, phase),
        skip_reason: run.skip_reason,
        scheduled_for: run.scheduled_for.unwrap_or(run.started_at),
        started_at: (!skipped).then_some(run.started_at),
        finished_at: run.finished_at,
        batch_id: run.batch_id,
        progress,
        options,
        targets: run.targets,
    })
}
