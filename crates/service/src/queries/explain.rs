//! Why an update or a CVE on a server is not patched: collects the facts; `domain::explain` decides.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

use domain::explain::{
    Effect, FailedAttempt, FindingFacts, HostState, OpenTask, ScheduleFacts, UpdateFacts, explain,
};
use domain::policy::Obligation;
use domain::rollout::{Phase, TaskOutcome, TaskStatus};
use domain::selector;
use domain::server::ServerFacts;
use store::rollouts::{Rollout, phase_name};
use store::servers::Server;
use store::{Conn, Page, StoreError, rollout_tasks, rollouts, schedules};
use vocab::{Exposure, Installed, Line, Pending, ServerId, Status, TaskId};
use wire::v1::{ExplainedPackage, Explanation, NextInstall, Reason, WaitingFor};

use super::preview::{SelectedUpdates, select_updates};
use super::{Scope, compliance, convert, servers, tasks};
use crate::commands::schedules::upcoming;
use crate::commands::servers::inventory;
use crate::projections::findings::{self, ActiveSuppressions, ScoredFinding};
use crate::{App, PatchOptions, Result, host_facts};

/// The number of past tasks that are searched for the last attempt.
const ATTEMPTS_SEARCHED: u32 = 10;
/// The maximum number of schedules that are considered. The first in the order of their names count.
const SCHEDULES_MAX: usize = 1_000;

/// Explains the pending update of a package. 404 if the package is not installed.
#[boxed]
pub async fn update(app: &App, scope: &Scope, id: ServerId, package: &str) -> Result<Explanation> {
    let mut reader = app.db.snapshot().await?;
    let server = servers::find_in(&mut reader, scope, id).await?;
    let (installed, _) = inventory(&mut reader, &server).await?;
    if server.package_set.is_some() && !installed.iter().any(|one| one.name == package) {
        return Err(StoreError::not_found("package", package).into());
    }
    let (found, _) = findings::server_findings(&mut reader, &server).await?;
    let of_package = |one: &ScoredFinding| {
        let finding = &one.server_finding.finding.package;
        finding.source == package || finding.binaries.iter().any(|binary| binary.name == package)
    };
    let found = found.into_iter().filter(of_package).collect();
    let names = BTreeSet::from([package.to_owned()]);
    answer(app, &mut reader, server, package, &names, found, &installed).await
}

/// Explains a CVE of a server. 404 if it does not affect the server.
#[boxed]
pub async fn cve(app: &App, scope: &Scope, id: ServerId, cve: &str) -> Result<Explanation> {
    let mut reader = app.db.snapshot().await?;
    let server = servers::find_in(&mut reader, scope, id).await?;
    let (installed, _) = inventory(&mut reader, &server).await?;
    let (mut found, _) = findings::server_findings(&mut reader, &server).await?;
    found.retain(|one| {
        let finding = &one.server_finding.finding;
        *finding.cve == *cve || finding.aliases.iter().any(|alias| **alias == *cve)
    });
    if found.is_empty() {
        return Err(StoreError::not_found("cve", cve).into());
    }
    let binaries = found.iter().flat_map(|one| &one.server_finding.finding.package.binaries);
    let names = binaries.map(|binary| binary.name.clone()).collect();
    answer(app, &mut reader, server, cve, &names, found, &installed).await
}

/// Explains the findings `found` and the pending updates of the packages `names`.
async fn answer(
    app: &App,
    conn: &mut Conn,
    server: Server,
    subject: &str,
    names: &BTreeSet<String>,
    found: Vec<ScoredFinding>,
    installed: &[Installed],
) -> Result<Explanation> {
    let now = app.clock.now();
    let pending = findings::pending_updates(conn, &server).await?;
    let concerned: Vec<&Pending> =
        pending.iter().filter(|update| names.contains(&update.name)).collect();
    let suppressions = ActiveSuppressions::read(conn, server.org_id, now).await?;
    let finding_facts = found.iter().map(|one| {
        let finding = &one.server_finding.finding;
        let closes = |update: &&Pending| {
            let family = domain::advisory::Ecosystem::for_os(&server.os).map(|base| base.family());
            let known = family.and_then(|family| {
                domain::finding::closes(finding, family, &update.name, &update.candidate)
            });
            known == Some(true) || update.cves.iter().any(|cve| **cve == *finding.cve)
        };
        let environment = server.environment.as_ref();
        let suppression = suppressions.covering(environment, &finding.cve, &finding.package.source);
        FindingFacts {
            cve: finding.cve.to_string(),
            package: finding.package.source.clone(),
            fix: finding.state,
            fixed_version: finding.fixed_version.as_ref().map(ToString::to_string),
            exposure: one.server_finding.exposure,
            third_party: finding.package.elsewhere.clone(),
            suppressed: suppression.map(|one| one.reason.clone()),
            has_update: one.server_finding.exposure == Exposure::Open
                && concerned.iter().any(closes),
        }
    });
    let finding_facts: Vec<FindingFacts> = finding_facts.collect();
    let facts = domain::explain::Facts {
        host: host_state(app, &server, names),
        updates: concerned.iter().map(|update| update_facts(update)).collect(),
        findings: finding_facts,
        tasks: open_tasks(app, conn, &server, &concerned, &pending).await?,
        failed: failed_attempt(conn, &server, &concerned, &pending).await?,
        schedules: schedule_facts(conn, &server, &concerned, &pending).await?,
    };
    let subjects: BTreeSet<(&str, &str)> = found
        .iter()
        .map(|one| &one.server_finding.finding)
        .map(|finding| (finding.cve.as_ref(), finding.package.source.as_str()))
        .collect();
    let concerns = |one: &Obligation| match one.subject.cve.as_str() {
        "" => names.contains(&one.subject.package),
        cve => subjects.contains(&(cve, one.subject.package.as_str())),
    };
    let policy = compliance::explained(conn, &server, &suppressions, concerns, now).await?;
    let explained = explain(&facts);
    let packages = names.iter().flat_map(|name| {
        let update = concerned.iter().find(|update| update.name == *name);
        installed.iter().filter(move |one| one.name == *name).map(move |one| ExplainedPackage {
            name: one.name.clone(),
            installed_version: one.version.clone(),
            available_version: update.map(|update| update.candidate.clone()),
        })
    });
    Ok(Explanation {
        server_id: server.id,
        subject: subject.to_owned(),
        packages: packages.collect(),
        hostname: server.hostname,
        display_name: server.display_name.as_deref().map(Line::sanitize),
        state: explained.state,
        reasons: explained
            .reasons
            .into_iter()
            .map(|one| Reason { code: one.code, detail: one.detail, remedy: one.remedy })
            .collect(),
        next: explained.next.map(|run| NextInstall {
            schedule_id: run.schedule,
            schedule: run.name,
            at: run.at,
        }),
        batch_id: explained.batch,
        policy,
    })
}

fn update_facts(update: &Pending) -> UpdateFacts {
    UpdateFacts {
        package: update.name.clone(),
        available: update.candidate.clone(),
        security: update.security,
        blocked_by: update.blocked_by,
    }
}

fn host_state(app: &App, server: &Server, names: &BTreeSet<String>) -> HostState {
    let facts = host_facts::from_stored(&server.facts);
    let limits = facts.limits.unwrap_or_default();
    let offline = convert::status(app, Some(server.last_seen_at)) == Status::Offline;
    let old_code = facts
        .old_code
        .iter()
        .filter(|old| old.package.as_ref().is_some_and(|package| names.contains(package.as_str())));
    let old_code: BTreeSet<String> =
        old_code.map(|old| old.unit.as_ref().unwrap_or(&old.process).to_string()).collect();
    HostState {
        scanned: server.package_set.is_some(),
        stale_since: server.last_scan_at.filter(|at| *at < app.stale_before()),
        offline_since: offline.then_some(server.last_seen_at),
        quarantine: server.quarantine.clone(),
        limits_error: limits.error.map(|error| error.to_string()),
        frozen: limits.frozen,
        security_only: limits.security_only,
        exclude: limits.exclude,
        allowed_hours: limits.allowed_hours.iter().map(ToString::to_string).collect(),
        reboot_required: server.reboot_required,
        old_code: old_code.into_iter().collect(),
    }
}

/// What an order with these options does with each of the updates `concerned`.
fn effects(
    options: &PatchOptions,
    server: &Server,
    concerned: &[&Pending],
    pending: &[Pending],
) -> Vec<Effect> {
    let SelectedUpdates { updates, refused, host_limits, .. } =
        select_updates(options, server, pending);
    let order = &options.order;
    let effect = |update: &&Pending| {
        let named = order.packages.is_empty()
            || order.packages.iter().any(|name| name.as_str() == update.name);
        if !named {
            return Effect::OtherPackages;
        }
        if order.exclude.iter().any(|out| out.matches(&update.name)) {
            return Effect::Excludes;
        }
        if order.security_only && !update.security {
            return Effect::SecurityOnly;
        }
        if order.dry_run {
            return Effect::DryRun;
        }
        let selected = |one: &Pending| one.name == update.name && one.arch == update.arch;
        if updates.iter().any(selected) {
            return Effect::Installs;
        }
        // Why an update itself is blocked does not depend on the schedule.
        match refused && update.blocked_by.is_none() {
            true => Effect::Rejected(format!("{}.", host_limits.join("; "))),
            false => Effect::Blocked,
        }
    };
    concerned.iter().map(effect).collect()
}

/// The unfinished tasks of a server.
async fn open_tasks(
    app: &App,
    conn: &mut Conn,
    server: &Server,
    concerned: &[&Pending],
    pending: &[Pending],
) -> Result<Vec<OpenTask>> {
    let mut open = Vec::new();
    if concerned.is_empty() {
        return Ok(open);
    }
    for row in rollout_tasks::unfinished_by_server(conn, server.id).await? {
        let batch = rollouts::load(conn, row.rollout_id).await?;
        let (options, _) = convert::stored_options("rollouts", batch.id, &batch.options)?;
        let effects = effects(&options, server, concerned, pending);
        let waits = match row.target {
            TaskStatus::Waiting => Some(wait_description(app, conn, &batch, row.task_id).await?),
            TaskStatus::Busy(_) | TaskStatus::Done(_) => None,
        };
        open.push(OpenTask {
            batch: batch.id,
            name: Line::sanitize(&batch.name).to_string(),
            installs: effects.iter().map(|effect| *effect == Effect::Installs).collect(),
            waits,
        });
    }
    Ok(open)
}

/// What a waiting task waits for, after "It waits for ".
async fn wait_description(
    app: &App,
    conn: &mut Conn,
    batch: &Rollout,
    task: TaskId,
) -> Result<String> {
    let phase = batch.head.phase;
    if matches!(phase, Phase::Paused | Phase::Halted(_)) {
        return Ok(format!("someone to resume the batch, which is {}", phase_name(phase)));
    }
    let row = rollout_tasks::get(conn, batch.org_id, task).await?;
    let task = tasks::to_tasks(app, conn, batch, vec![row]).await?.pop();
    let waits = task.and_then(|task| task.waiting_for);
    Ok(waits.map_or("its turn", WaitingFor::description).to_owned())
}

/// The newest attempt that would have installed one of the updates, if it failed.
async fn failed_attempt(
    conn: &mut Conn,
    server: &Server,
    concerned: &[&Pending],
    pending: &[Pending],
) -> Result<Option<FailedAttempt>> {
    if concerned.is_empty() {
        return Ok(None);
    }
    let page = Page { limit: ATTEMPTS_SEARCHED, offset: 0 };
    for task in rollout_tasks::list_by_server(conn, server.id, page).await?.items {
        let TaskStatus::Done(done) = task.target else { continue };
        let batch = rollouts::load(conn, task.rollout_id).await?;
        let (options, _) = convert::stored_options("rollouts", batch.id, &batch.options)?;
        let effects = effects(&options, server, concerned, pending);
        if !effects.contains(&Effect::Installs) {
            continue;
        }
        return Ok(match done.outcome {
            TaskOutcome::Failed(_) | TaskOutcome::TimedOut(_) => Some(FailedAttempt {
                batch: batch.id,
                name: Line::sanitize(&batch.name).to_string(),
                code: done.outcome.failure_code(),
                message: convert::task(task, None, batch.head.phase, None)
                    .result
                    .and_then(|result| result.message)
                    .map(|message| message.to_string()),
            }),
            TaskOutcome::Succeeded
            | TaskOutcome::NoChange
            | TaskOutcome::Skipped(_)
            | TaskOutcome::Canceled(_) => None,
        });
    }
    Ok(None)
}

/// The schedules that select a server, and what each does with the updates.
async fn schedule_facts(
    conn: &mut Conn,
    server: &Server,
    concerned: &[&Pending],
    pending: &[Pending],
) -> Result<Vec<ScheduleFacts>> {
    if concerned.is_empty() {
        return Ok(Vec::new());
    }
    let facts = ServerFacts {
        id: server.id,
        environment: server.environment.clone(),
        tags: server.tags.iter().cloned().collect(),
        os: Some(server.os.clone()),
    };
    let all = schedules::list(conn, server.org_id).await?;
    let selecting = all.into_iter().filter(|one| selector::matches(&one.targets, &facts));
    let mut found = Vec::new();
    for one in selecting.take(SCHEDULES_MAX) {
        let (options, _) = convert::stored_options("schedules", one.id, &one.options)?;
        found.push(ScheduleFacts {
            id: one.id,
            effects: effects(&options, server, concerned, pending),
            next: upcoming(&one, 1).first().copied(),
            name: one.name,
        });
    }
    Ok(found)
}
