//! Stores what agents report about the health of their hosts after a change, and while they watch
//! it. `domain::rollout` decides what a report means; the planner reads the result.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use async_recursion::async_recursion as boxed;
use domain::rollout::{HealthMeasurement, HealthProblem, TaskHealth};
use jiff::Timestamp;
use serde_json::{Value, json};
use store::rollout_tasks::{self, HealthChange, TaskResult};
use store::{Tx, rollouts};
use vocab::{BatchId, HealthState, OrgId, ServerId, TaskId};
use wire::agent::{HealthReport, OrderResult, PackageMove};

use super::reports::Reporter;
use crate::{EventKind, emit};

/// Maximum number of packages in an event.
const PACKAGES_MAX: usize = 20;

/// A report of an agent that watches its host.
#[derive(Debug, Clone, Copy)]
pub struct WatchReport<'a> {
    pub reporter: Reporter,
    pub report: &'a HealthReport,
    pub now: Timestamp,
}

/// The health in the result of an order, if the agent measured it.
pub(super) fn from_result(result: &OrderResult, now: Timestamp) -> Option<TaskHealth> {
    let report = result.health.as_ref()?;
    Some(TaskHealth::from_result(measurement(report), now))
}

fn measurement(report: &HealthReport) -> HealthMeasurement {
    let problem = |problem: &wire::agent::HealthProblem| HealthProblem {
        kind: problem.kind,
        name: problem.name.clone(),
    };
    HealthMeasurement {
        problems: report.problems.iter().map(problem).collect(),
        not_measured: report.not_measured.clone(),
        baseline_at: report.baseline_at,
    }
}

/// Stores reports of watches. `Stale` means that another writer changed one of the tasks; then none
/// of the reports is stored.
#[boxed]
pub async fn store_watch_reports(tx: &mut Tx, reports: &[WatchReport<'_>]) -> store::Result<()> {
    // A later report of the same server replaces an earlier one.
    let by_server: BTreeMap<ServerId, &WatchReport<'_>> =
        reports.iter().map(|report| (report.reporter.server, report)).collect();
    let servers: Vec<ServerId> = by_server.keys().copied().collect();
    let mut heads: BTreeMap<BatchId, rollouts::Rollout> = BTreeMap::new();
    let mut changes: BTreeMap<BatchId, Vec<HealthChange>> = BTreeMap::new();
    for task in rollout_tasks::open_by_servers(tx, &servers).await? {
        let Some(WatchReport { reporter, report, now }) = by_server.get(&task.server_id) else {
            continue;
        };
        let id = task.rollout_id;
        let row = match heads.entry(id) {
            Entry::Occupied(loaded) => &*loaded.into_mut(),
            Entry::Vacant(slot) => &*slot.insert(rollouts::load(tx, id).await?),
        };
        if row.org_id != reporter.org {
            continue;
        }
        let before = task.health.as_ref();
        let measured = measurement(report);
        let (head, total) = (&row.head, row.total);
        let after = TaskHealth::from_watch(head, total, task.target, before, measured, *now);
        let Some(after) = after.filter(|after| says_something(before, after)) else { continue };
        emit_degraded(tx, reporter.org, &TaskRef::from(&task), before, &after, *now);
        changes.entry(id).or_default().push(HealthChange {
            server_id: task.server_id,
            seen: task.generation,
            wave: task.target.wave(),
            before: task.health,
            after,
        });
    }
    for (rollout, changes) in changes {
        rollout_tasks::save_health(tx, rollout, &changes).await?;
    }
    Ok(())
}

/// Whether a report is worth a write. Waiting servers without problems, the usual case, are not.
fn says_something(before: Option<&TaskHealth>, after: &TaskHealth) -> bool {
    let had_problems = before.is_some_and(|before| !before.problems.is_empty());
    if !after.changed {
        return had_problems || !after.problems.is_empty();
    }
    before.is_none_or(|before| {
        (before.state, before.soaked, &before.problems)
            != (after.state, after.soaked, &after.problems)
    })
}

/// The task that an event is about.
pub(super) struct TaskRef<'a> {
    pub(super) rollout: BatchId,
    pub(super) task: TaskId,
    pub(super) server: ServerId,
    pub(super) wave: u32,
    pub(super) result: Option<&'a Value>,
}

impl<'a> From<&'a TaskResult> for TaskRef<'a> {
    fn from(row: &'a TaskResult) -> TaskRef<'a> {
        TaskRef {
            rollout: row.rollout_id,
            task: row.task_id,
            server: row.server_id,
            wave: row.target.wave(),
            result: row.result.as_ref(),
        }
    }
}

/// Emits `server.health_degraded` if a changed server has a problem that was not known before.
pub(super) fn emit_degraded(
    tx: &mut Tx,
    org: OrgId,
    task: &TaskRef<'_>,
    before: Option<&TaskHealth>,
    after: &TaskHealth,
    now: Timestamp,
) {
    let known = before.filter(|before| before.changed).map(|before| &before.problems);
    let is_new = |problem: &&HealthProblem| known.is_none_or(|known| !known.contains(problem));
    if after.state != HealthState::Degraded
        || !after.changed
        || !after.problems.iter().any(|problem| is_new(&problem))
    {
        return;
    }
    let packages = packages(task.result);
    let shown: Vec<Value> = packages
        .iter()
        .take(PACKAGES_MAX)
        .map(|change| json!({"name": change.name, "from": change.from, "to": change.to}))
        .collect();
    let data = json!({
        "batch_id": task.rollout,
        "task_id": task.task,
        "server_id": task.server,
        "wave": task.wave,
        "problems": after.problems,
        "packages": shown,
        "packages_total": packages.len(),
    });
    emit(tx, org, now, "engine", EventKind::ServerHealthDegraded, task.server, data);
}

/// The packages that an order changed, according to its stored result.
pub(crate) fn packages(result: Option<&Value>) -> Vec<PackageMove> {
    let packages = result.and_then(|result| result.get("packages")).cloned();
    packages.and_then(|packages| serde_json::from_value(packages).ok()).unwrap_or_default()
}
