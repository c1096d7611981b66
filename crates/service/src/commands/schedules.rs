//! Commands on schedules: create, replace, delete, and run now. The engine starts the scheduled
//! runs.

use async_recursion::async_recursion as boxed;
use domain::schedule::{Skipped, next_after, next_runs};
use jiff::Timestamp;
use serde_json::json;
use store::runs::{self, Run, RunState, StartResult, Trigger};
use store::schedules::{self, Schedule};
use store::server_list::{self, Filter};
use store::{StoreError, Topic};
use vocab::{BatchId, Cron, RunId, ScheduleId, Selector, ServerId, SkipReason, Zone};

use super::runs::record_skip;
use crate::App;
use crate::audit::Action;
use crate::clock::random_u128;
use crate::commands::batches as rollouts;
use crate::commands::batches::{NewRollout, Origin};
use crate::queries::freezes;
use crate::{
    ATTEMPTS_MAX, Actor, EventKind, PatchOptions, Result, ServiceError, batch_name, emit,
    integrity, record,
};

/// The complete content of a schedule, as a user submits it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleInput {
    pub name: String,
    pub description: String,
    pub enabled: bool,
    pub cron: Cron,
    /// The time zone of `cron`.
    pub timezone: Zone,
    pub targets: Selector,
    pub options: PatchOptions,
}

/// The next `count` instants at which the engine will start this schedule, according to the stored
/// row.
pub fn upcoming(schedule: &Schedule, count: usize) -> Vec<Timestamp> {
    let Some(first) = schedule.next_run_at else { return Vec::new() };
    let later = next_runs(&schedule.cron, &schedule.timezone, first, count.saturating_sub(1));
    std::iter::once(first).chain(later).take(count).collect()
}

#[boxed]
pub async fn create(app: &App, actor: &Actor, input: ScheduleInput) -> Result<Schedule> {
    let now = app.clock.now();
    let next = input.enabled.then(|| next_after(&input.cron, &input.timezone, now)).flatten();
    let made = Schedule {
        id: ScheduleId::new(now, random_u128()),
        org_id: actor.org,
        name: input.name,
        description: input.description,
        enabled: input.enabled,
        cron: input.cron,
        timezone: input.timezone,
        targets: input.targets,
        options: input.options.to_json(),
        next_run_at: next,
        created_at: now,
        updated_at: now,
        generation: 1,
        seal: store::seals::SealCode::default(),
    };
    let mut tx = app.db.begin().await?;
    schedules::create(&mut tx, &made).await?;
    record_change(&mut tx, actor, &made, Action::ScheduleCreate, EventKind::ScheduleCreated, now);
    tx.commit().await?;
    Ok(made)
}

/// Replaces a schedule, unless it has changed since it was `seen`.
#[boxed]
pub async fn replace(
    app: &App,
    actor: &Actor,
    seen: &Schedule,
    input: ScheduleInput,
) -> Result<Schedule> {
    let now = app.clock.now();
    // The due instant changes only if the timing changes: any other edit must not skip it.
    let same_time =
        seen.enabled == input.enabled && seen.cron == input.cron && seen.timezone == input.timezone;
    let next = match (input.enabled, same_time) {
        (false, _) => None,
        (true, true) => seen.next_run_at,
        (true, false) => next_after(&input.cron, &input.timezone, now),
    };
    let after = Schedule {
        name: input.name,
        description: input.description,
        enabled: input.enabled,
        cron: input.cron,
        timezone: input.timezone,
        targets: input.targets,
        options: input.options.to_json(),
        next_run_at: next,
        updated_at: now,
        ..seen.clone()
    };
    let mut tx = app.db.begin().await?;
    // The stored row is about to be sealed again. A row that does not verify must not become
    // authentic by being read, edited and written back.
    let stored = schedules::get(&mut tx, seen.org_id, seen.id).await?;
    if !tx.is_authentic(&stored) {
        return Err(integrity::tampered_error("schedule"));
    }
    schedules::save(&mut tx, &after).await?;
    let after = Schedule { generation: seen.generation + 1, ..after };
    record_change(&mut tx, actor, &after, Action::ScheduleUpdate, EventKind::ScheduleUpdated, now);
    tx.commit().await?;
    Ok(after)
}

/// Deletes a schedule and its history, unless it has changed since it was `seen`. A batch that it
/// started continues.
#[boxed]
pub async fn delete(app: &App, actor: &Actor, seen: &Schedule) -> Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    schedules::delete(&mut tx, seen).await?;
    record_change(&mut tx, actor, seen, Action::ScheduleDelete, EventKind::ScheduleDeleted, now);
    Ok(tx.commit().await?)
}

fn record_change(
    tx: &mut store::Tx,
    actor: &Actor,
    schedule: &Schedule,
    action: Action,
    event: EventKind,
    now: jiff::Timestamp,
) {
    let detail = json!({"schedule_id": schedule.id, "name": schedule.name, "enabled": schedule.enabled,
        "cron": schedule.cron, "timezone": schedule.timezone, "targets": schedule.targets,
        "options": schedule.options});
    record(tx, actor.org, now, &actor.id, action, schedule.id, &detail);
    let data = json!({"schedule_id": schedule.id, "name": schedule.name});
    emit(tx, actor.org, now, &actor.id, event, schedule.id, data);
    tx.notify(Topic::Schedules);
}

/// Runs a schedule now, even a disabled one. A schedule has at most one unfinished run. If its
/// targets match no server, or only frozen ones, the returned run is skipped and has no batch.
#[boxed]
pub async fn run(app: &App, actor: &Actor, schedule: &Schedule) -> Result<Run> {
    run_if(app, actor, schedule, &|_, _| true).await?.ok_or(ServiceError::Stale)
}

/// Runs a schedule now if `approve` accepts the schedule and the servers that match it at this
/// moment; returns `None` if not. `approve` is called inside the transaction that starts the run.
#[boxed]
pub async fn run_if(
    app: &App,
    actor: &Actor,
    schedule: &Schedule,
    approve: &(dyn Fn(&Schedule, &[ServerId]) -> bool + Sync),
) -> Result<Option<Run>> {
    for _ in 0..ATTEMPTS_MAX {
        match try_run(app, actor, schedule, approve).await {
            // The conflicting run ended between two statements.
            Err(ServiceError::Stale) => {}
            done => return done,
        }
    }
    Err(ServiceError::Stale)
}

async fn try_run(
    app: &App,
    actor: &Actor,
    schedule: &Schedule,
    approve: &(dyn Fn(&Schedule, &[ServerId]) -> bool + Sync),
) -> Result<Option<Run>> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    // The current row, which may differ from the one that the caller saw.
    let schedule = schedules::get(&mut tx, actor.org, schedule.id).await?;
    if !tx.is_authentic(&schedule) {
        return Err(integrity::tampered_error("schedule"));
    }
    let options = PatchOptions::from_json(&schedule.options).map_err(|source| {
        let id = schedule.id.to_string();
        StoreError::Corrupt { table: "schedules", id, source: source.into() }
    })?;
    let servers = server_list::ids(&mut tx, actor.org, &Filter::from(&schedule.targets)).await?;
    if !approve(&schedule, &servers) {
        return Ok(None);
    }
    let batch = BatchId::new(now, random_u128());
    let run = Run {
        id: RunId::new(now, random_u128()),
        org_id: actor.org,
        schedule_id: schedule.id,
        trigger_kind: Trigger::Manual,
        state: RunState::Running,
        skip_reason: None,
        scheduled_for: None,
        started_at: now,
        finished_at: None,
        batch_id: Some(batch),
        targets: schedule.targets.clone(),
        options: schedule.options.clone(),
        generation: 1,
        seal: store::seals::SealCode::default(),
    };
    let in_progress = |other: RunId| {
        let detail = format!("run {other} of this schedule has not ended");
        ServiceError::conflict("run_in_progress", detail)
    };
    let active = freezes::active(&mut tx, actor.org, now).await?;
    let nothing_to_do = if servers.is_empty() {
        Some(SkipReason::NoServers)
    } else if options.pace.override_freeze.is_none()
        && freezes::are_all_frozen(&mut tx, actor.org, &schedule.targets, &servers, &active).await?
    {
        Some(SkipReason::Freeze)
    } else {
        None
    };
    if let Some(reason) = nothing_to_do {
        // The store does not treat a skipped run as overlapping, so check for an unfinished run
        // here.
        if let Some(other) = runs::unfinished(&mut tx, schedule.id).await? {
            return Err(in_progress(other.id));
        }
        let run = Run {
            state: RunState::Skipped,
            skip_reason: Some(reason),
            finished_at: Some(now),
            batch_id: None,
            ..run
        };
        runs::start(&mut tx, &run).await?;
        let skipped = Skipped { reason, first: now, last: now, count: 1 };
        record_skip(&mut tx, &actor.id, &run, &skipped, now);
        tx.notify(Topic::Schedules);
        tx.commit().await?;
        return Ok(Some(run));
    }
    match runs::start(&mut tx, &run).await? {
        StartResult::Started => {}
        StartResult::Overlaps(other) | StartResult::AlreadyStarted(other) => {
            return Err(in_progress(other));
        }
    }
    let new = NewRollout {
        org: actor.org,
        options,
        servers,
        starts_at: now,
        origin: Origin::Schedule,
        started_by: actor.id.clone(),
        run_id: Some(run.id),
        retry_of: None,
        name: Some(batch_name::for_schedule(&schedule.name)),
    };
    rollouts::create_in(&mut tx, batch, new, now).await?;
    let detail = json!({"run_id": run.id, "schedule_id": schedule.id, "batch_id": batch});
    record(&mut tx, actor.org, now, &actor.id, Action::RunStart, run.id, &detail);
    emit(&mut tx, actor.org, now, &actor.id, EventKind::RunStarted, schedule.id, detail);
    tx.notify(Topic::Schedules);
    tx.commit().await?;
    Ok(Some(run))
}
