//! Runs of schedules: started by the schedule or by a user, or skipped.

use async_recursion::async_recursion as boxed;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use domain::schedule::Skipped;
use jiff::Timestamp;
use serde_json::json;
use store::freezes::Freeze;
use store::runs::{self, Run, RunState, StartResult, Trigger};
use store::schedules::{self, Schedule};
use store::server_list::{self, Filter};
use store::{StoreError, Tx};
use vocab::{BatchId, OrgId, RunId, Selector, ServerId, SkipReason};

use crate::audit::Action;
use crate::clock::random_u128;
use crate::commands::batches::{NewRollout, Origin, create_all_in};
use crate::queries;
use crate::queries::freezes::are_all_frozen;
use crate::{EventKind, PatchOptions, batch_name, emit, integrity, record};

/// Starts runs for these due instants, in a few SQL statements. A run whose schedule has an
/// unfinished run is skipped; a run that was already started is left unchanged.
///
/// This only records that the instants are taken: ten thousand may be due at once, and none may
/// delay the others. [`create_batches`] creates the batches, right afterwards or after a crash.
#[boxed]
pub async fn start_all(
    tx: &mut Tx,
    due: &[(&Schedule, Timestamp)],
    now: Timestamp,
) -> store::Result<()> {
    let new: Vec<Run> = due
        .iter()
        .map(|(schedule, instant)| Run { scheduled_for: Some(*instant), ..new_run(schedule, now) })
        .collect();
    let started = runs::start_all(tx, &new).await?;
    for ((schedule, instant), run) in due.iter().zip(&new) {
        if !started.contains(&run.id) {
            handle_conflict(tx, schedule, *instant, run, now).await?;
        }
    }
    Ok(())
}

/// Creates the batches of up to `limit` started runs that have none, for the servers that their
/// targets match now. A run that matches no server, or only frozen ones, ends as skipped. Returns
/// whether there were any such runs.
#[boxed]
pub async fn create_batches(tx: &mut Tx, limit: u32, now: Timestamp) -> store::Result<bool> {
    let (waiting, forged): (Vec<_>, Vec<_>) =
        runs::without_batch(tx, limit).await?.into_iter().partition(|run| tx.is_authentic(run));
    for run in &forged {
        integrity::refuse_run(tx, run, now).await?;
    }
    let readable: Vec<_> =
        waiting.into_iter().filter_map(|run| Some((options(&run)?, run))).collect();
    let mut cache = SelectorCache::load(tx, readable.iter().map(|(_, run)| run)).await?;
    let mut freezes: BTreeMap<OrgId, Vec<(Timestamp, Freeze)>> = BTreeMap::new();
    let (mut empty, mut frozen) = (Vec::new(), Vec::new());
    let mut planned = Vec::with_capacity(readable.len());
    for (options, run) in &readable {
        let servers = cache.servers_of(tx, run).await?;
        if servers.is_empty() {
            empty.push(run);
            continue;
        }
        let active = match freezes.entry(run.org_id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(queries::freezes::active(tx, run.org_id, now).await?),
        };
        let overrides = options.pace.override_freeze.is_some();
        match !overrides && are_all_frozen(tx, run.org_id, &run.targets, &servers, active).await? {
            true => frozen.push(run),
            false => planned.push((run, BatchId::new(now, random_u128()), options, servers)),
        }
    }
    end_as_skipped(tx, &empty, SkipReason::NoServers, now).await?;
    end_as_skipped(tx, &frozen, SkipReason::Freeze, now).await?;
    let ids: Vec<_> = planned.iter().map(|(run, batch, ..)| (run.id, *batch)).collect();
    let given = runs::set_batches(tx, &ids).await?;
    let named = planned.iter().map(|(run, ..)| run.schedule_id).collect();
    let names = schedules::names(tx, &named).await?;
    let mut batches = Vec::with_capacity(given.len());
    for (run, batch, options, servers) in planned {
        if !given.contains(&run.id) {
            continue;
        }
        let rollout = NewRollout {
            org: run.org_id,
            options: options.clone(),
            servers,
            starts_at: run.started_at,
            origin: Origin::Schedule,
            started_by: ACTOR.to_owned(),
            run_id: Some(run.id),
            retry_of: None,
            name: names.get(&run.schedule_id).map(|name| batch_name::for_schedule(name)),
        };
        batches.push((batch, rollout));
        let detail = json!({"run_id": run.id, "schedule_id": run.schedule_id, "batch_id": batch,
            "scheduled_for": run.scheduled_for});
        record(tx, run.org_id, now, ACTOR, Action::RunStart, run.id, &detail);
        emit(tx, run.org_id, now, ACTOR, EventKind::RunStarted, run.schedule_id, detail);
    }
    create_all_in(tx, batches, now).await?;
    Ok(!readable.is_empty() || !forged.is_empty())
}

/// Ends runs that have no server to patch.
async fn end_as_skipped(
    tx: &mut Tx,
    ended: &[&Run],
    reason: SkipReason,
    now: Timestamp,
) -> store::Result<()> {
    let ids: Vec<_> = ended.iter().map(|run| run.id).collect();
    let skipped = runs::skip_all(tx, &ids, reason, now).await?;
    for run in ended.iter().filter(|run| skipped.contains(&run.id)) {
        let at = run.scheduled_for.unwrap_or(run.started_at);
        record_skip(tx, ACTOR, run, &Skipped { reason, first: at, last: at, count: 1 }, now);
    }
    Ok(())
}

/// Writes the event and the audit entry of a skipped run.
pub fn record_skip(tx: &mut Tx, by: &str, run: &Run, skipped: &Skipped, now: Timestamp) {
    let detail = json!({"run_id": run.id, "schedule_id": run.schedule_id, "reason": skipped.reason,
        "first": skipped.first, "last": skipped.last, "count": skipped.count});
    record(tx, run.org_id, now, by, Action::RunSkip, run.id, &detail);
    emit(tx, run.org_id, now, by, EventKind::RunSkipped, run.schedule_id, detail);
}

/// The options of a run. A run with unreadable options must not block the others.
fn options(run: &Run) -> Option<PatchOptions> {
    let read = PatchOptions::from_json(&run.options);
    read.inspect_err(|error| tracing::error!(run = %run.id, %error, "cannot create the batch of a run: its options are unreadable")).ok()
}

/// The actor in audit entries of scheduled runs.
const ACTOR: &str = "schedule";

/// The servers that selectors match. Each distinct selector is resolved once, because many
/// schedules select the same servers. Selectors that only list server ids are resolved together.
#[derive(Default)]
struct SelectorCache {
    by_selector: BTreeMap<(OrgId, String), Vec<ServerId>>,
    /// The listed servers that exist, with the name by which servers are sorted.
    listed: BTreeMap<OrgId, BTreeMap<ServerId, String>>,
}

impl SelectorCache {
    async fn load(tx: &mut Tx, runs: impl Iterator<Item = &Run>) -> store::Result<SelectorCache> {
        let mut ids = BTreeMap::<OrgId, BTreeSet<ServerId>>::new();
        for run in runs {
            let named = ids_only(&run.targets).unwrap_or_default();
            ids.entry(run.org_id).or_default().extend(named);
        }
        let mut cache = SelectorCache::default();
        for (org, ids) in ids {
            let ids: Vec<_> = ids.into_iter().collect();
            cache.listed.insert(org, server_list::names(tx, org, &ids).await?);
        }
        Ok(cache)
    }

    async fn servers_of(&mut self, tx: &mut Tx, run: &Run) -> store::Result<Vec<ServerId>> {
        if let Some(names) = self.listed.get(&run.org_id)
            && let Some(ids) = ids_only(&run.targets)
        {
            let there = ids.iter().filter_map(|id| Some((names.get(id)?, *id)));
            let there: BTreeSet<(&String, ServerId)> = there.collect();
            return Ok(there.into_iter().map(|(_, id)| id).collect());
        }
        let text = json!(run.targets).to_string();
        match self.by_selector.entry((run.org_id, text)) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(new) => {
                let ids = server_list::ids(tx, run.org_id, &Filter::from(&run.targets)).await?;
                Ok(new.insert(ids).clone())
            }
        }
    }
}

/// The server ids of a selector that consists of ids only.
fn ids_only(targets: &Selector) -> Option<&[ServerId]> {
    match targets {
        Selector::All => None,
        Selector::Matching(criteria) => {
            let alone = criteria.environment().is_none()
                && criteria.os().is_none()
                && criteria.tags().is_empty();
            alone.then(|| criteria.server_ids())
        }
    }
}

/// Handles a run that could not be started, depending on the reason.
async fn handle_conflict(
    tx: &mut Tx,
    schedule: &Schedule,
    instant: Timestamp,
    run: &Run,
    now: Timestamp,
) -> store::Result<()> {
    match runs::start(tx, run).await? {
        // The system clock was set back, and this instant came again.
        StartResult::AlreadyStarted(_) => Ok(()),
        StartResult::Overlaps(_) => {
            let reason = SkipReason::Overlap;
            let skipped = Skipped { reason, first: instant, last: instant, count: 1 };
            skip(tx, schedule, &skipped, now).await
        }
        // The conflicting run has ended meanwhile: the caller retries.
        StartResult::Started => Err(StoreError::Stale),
    }
}

/// Records instants that were not started as one skipped run.
#[boxed]
pub async fn skip(
    tx: &mut Tx,
    schedule: &Schedule,
    skipped: &Skipped,
    now: Timestamp,
) -> store::Result<()> {
    let run = Run {
        state: RunState::Skipped,
        skip_reason: Some(skipped.reason),
        scheduled_for: Some(skipped.last),
        finished_at: Some(now),
        ..new_run(schedule, now)
    };
    if runs::start(tx, &run).await? != StartResult::Started {
        return Ok(());
    }
    record_skip(tx, ACTOR, &run, skipped, now);
    Ok(())
}

fn new_run(schedule: &Schedule, now: Timestamp) -> Run {
    Run {
        id: RunId::new(now, random_u128()),
        org_id: schedule.org_id,
        schedule_id: schedule.id,
        trigger_kind: Trigger::Cron,
        state: RunState::Running,
        skip_reason: None,
        scheduled_for: None,
        started_at: now,
        finished_at: None,
        batch_id: None,
        targets: schedule.targets.clone(),
        options: schedule.options.clone(),
        generation: 1,
        seal: store::seals::SealCode::default(),
    }
}
