//! Three weeks of scheduled runs and manual batches, written to the store.
//!
//! Each batch goes through the real planner: it is started, its tasks end, and the planner computes
//! the outcome. Randomness comes from the seed, and servers are sorted by name, so the same seed
//! creates the same history.

use anyhow::{Context as _, anyhow};
use domain::freeze::{Freeze, Timing};
use domain::rollout::{
    Change, EndedTask, Pace, Phase, Plan, Rollout, TaskOutcome, TaskStatus, plan,
};
use domain::schedule::{next_after, next_runs};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use server::app::App;
use service::clock::random_u128;
use service::commands::batches::{NewRollout, Origin, create_in};
use service::commands::freezes::{self, FreezeInput};
use service::commands::schedules as commands;
use service::commands::schedules::ScheduleInput;
use service::{OrderOptions, PatchOptions};
use store::rollout_tasks::{self, StateChange};
use store::runs::{self, Run, RunState, Trigger};
use store::schedules::Schedule;
use store::server_list::{self, Filter};
use store::servers::{self, Server};
use store::{Tx, rollouts};
use swarm::Rng;
use vocab::{BatchId, FailureCode, OrgId, Portion, RebootPolicy, RunId, Selector, ServerId, Stage};
use wire::agent::{OrderResult, PackageMove};

use crate::dev;

/// More than the number of runs that any of these schedules has in three weeks.
const INSTANTS_MAX: usize = 200;

/// Selects the servers of an environment.
pub(super) fn environment(name: &str) -> anyhow::Result<Selector> {
    let read = Selector::parse(&json!({"environment": name}));
    read.map_err(|errors| anyhow!("{errors:?}"))
}

struct ScheduleTemplate {
    name: &'static str,
    about: &'static str,
    cron: &'static str,
    zone: &'static str,
    environment: &'static str,
    security_only: bool,
    enabled: bool,
}

const SCHEDULES: [ScheduleTemplate; 4] = [
    ScheduleTemplate {
        name: "Production, security, nightly",
        about: "Ten percent go first as canaries; the rest follow if they succeed.",
        cron: "0 2 * * *",
        zone: "Europe/Berlin",
        environment: "production",
        security_only: true,
        enabled: true,
    },
    ScheduleTemplate {
        name: "Staging, all updates, Mondays",
        about: "Production gets these updates a week later.",
        cron: "30 4 * * mon",
        zone: "Europe/Berlin",
        environment: "staging",
        security_only: false,
        enabled: true,
    },
    ScheduleTemplate {
        name: "Development, weekdays at noon",
        about: "",
        cron: "0 12 * * mon-fri",
        zone: "America/New_York",
        environment: "development",
        security_only: false,
        enabled: true,
    },
    ScheduleTemplate {
        name: "Testing, manual",
        about: "Disabled: testers run it manually.",
        cron: "@monthly",
        zone: "UTC",
        environment: "testing",
        security_only: false,
        enabled: false,
    },
];

/// Writes the fleet's history from the app's current time until `now`.
pub(super) async fn write(app: &App, org: OrgId, seed: u64, now: Timestamp) -> anyhow::Result<()> {
    let begin = app.clock.now();
    for (number, sketch) in SCHEDULES.iter().enumerate() {
        let created = commands::create(app, &dev::actor(org), sketch.request()?).await?;
        let mut tx = app.db.begin().await?;
        let fleet = fleet(&mut tx, org, &created.targets).await?;
        let instants = next_runs(&created.cron, &created.timezone, begin, INSTANTS_MAX);
        // A small demo may have no server in this environment; then nothing ran there.
        let ran = sketch.enabled && !fleet.is_empty();
        let past = instants.into_iter().take_while(|at| ran && *at < now - HOUR);
        for at in past {
            // Seeded by the instant, so that the same demo created an hour later has the same
            // history.
            let which = at.as_second().unsigned_abs() << 2 | number as u64;
            let mut rng = Rng::for_entity(seed, "run", which);
            let story = PastBatch { org, fleet: &fleet, options: sketch.options(), at };
            story.run(&mut tx, &created, &mut rng).await?;
        }
        let next =
            sketch.enabled.then(|| next_after(&created.cron, &created.timezone, now)).flatten();
        store::schedules::save(&mut tx, &Schedule { next_run_at: next, ..created }).await?;
        tx.commit().await?;
    }
    write_freezes(app, org, now).await?;
    write_manual_batches(app, org, seed, now).await
}

/// A freeze to come. None is active, so that batches run.
async fn write_freezes(app: &App, org: OrgId, now: Timestamp) -> anyhow::Result<()> {
    let day = HOUR * 24;
    let timing = Timing::OneOff { starts_at: now + day * 20, ends_at: now + day * 25 };
    let input = FreezeInput {
        name: "Season sale".to_owned(),
        reason: "Most orders of the year: nothing changes in production.".to_owned(),
        rule: Freeze { targets: environment("production")?, timing },
    };
    freezes::create(app, &dev::actor(org), input).await?;
    Ok(())
}

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// Batches that users started manually.
async fn write_manual_batches(
    app: &App,
    org: OrgId,
    seed: u64,
    now: Timestamp,
) -> anyhow::Result<()> {
    let mut tx = app.db.begin().await?;
    for (number, (hours, name)) in
        [(310, "testing"), (200, "staging"), (75, "production"), (20, "testing")]
            .into_iter()
            .enumerate()
    {
        let fleet = fleet(&mut tx, org, &environment(name)?).await?;
        if fleet.is_empty() {
            continue;
        }
        let mut rng = Rng::for_entity(seed, "by hand", number as u64);
        let some = fleet.len().min(6 + rng.below(10) as usize);
        let at = now - SignedDuration::from_hours(hours);
        let options = PatchOptions {
            order: OrderOptions { reboot: RebootPolicy::IfRequired, ..OrderOptions::default() },
            pace: Pace { max_parallel: Some(3), ..Pace::default() },
        };
        PastBatch { org, fleet: &fleet[..some], options, at }
            .rollout(&mut tx, None, None, &mut rng)
            .await?;
    }
    Ok(tx.commit().await?)
}

/// The selected servers, sorted by name.
async fn fleet(tx: &mut Tx, org: OrgId, targets: &Selector) -> anyhow::Result<Vec<Server>> {
    let ids = server_list::ids(tx, org, &Filter::from(targets)).await?;
    let mut fleet = servers::get_all(tx, &ids).await?;
    fleet.sort_by(|a, b| a.hostname.as_str().cmp(b.hostname.as_str()));
    Ok(fleet)
}

impl ScheduleTemplate {
    fn options(&self) -> PatchOptions {
        PatchOptions {
            order: OrderOptions {
                security_only: self.security_only,
                reboot: RebootPolicy::IfRequired,
                ..OrderOptions::default()
            },
            pace: Pace {
                max_parallel: Some(20),
                canary: Portion::percent(10).ok(),
                window_minutes: Some(240),
                ..Pace::default()
            },
        }
    }

    fn request(&self) -> anyhow::Result<ScheduleInput> {
        Ok(ScheduleInput {
            name: self.name.into(),
            description: self.about.into(),
            enabled: self.enabled,
            cron: self.cron.parse()?,
            timezone: self.zone.parse()?,
            targets: environment(self.environment)?,
            options: self.options(),
        })
    }
}

/// One batch of the past.
struct PastBatch<'a> {
    org: OrgId,
    fleet: &'a [Server],
    options: PatchOptions,
    at: Timestamp,
}

impl PastBatch<'_> {
    async fn run(&self, tx: &mut Tx, schedule: &Schedule, rng: &mut Rng) -> anyhow::Result<()> {
        let id = RunId::new(self.at, random_u128());
        let (batch, phase, ended_at) = self.rollout(tx, Some(id), Some(schedule), rng).await?;
        let Phase::Ended(end) = phase else { return Ok(()) };
        let run = Run {
            id,
            org_id: self.org,
            schedule_id: schedule.id,
            trigger_kind: Trigger::Cron,
            state: RunState::Ended(end),
            skip_reason: None,
            scheduled_for: Some(self.at),
            started_at: self.at,
            finished_at: Some(ended_at),
            batch_id: Some(batch),
            targets: schedule.targets.clone(),
            options: schedule.options.clone(),
            generation: 1,
            seal: store::seals::SealCode::default(),
        };
        runs::start(tx, &run).await?;
        Ok(())
    }

    async fn rollout(
        &self,
        tx: &mut Tx,
        run_id: Option<RunId>,
        schedule: Option<&Schedule>,
        rng: &mut Rng,
    ) -> anyhow::Result<(BatchId, Phase, Timestamp)> {
        let id = BatchId::new(self.at, random_u128());
        let servers: Vec<ServerId> = self.fleet.iter().map(|server| server.id).collect();
        let origin = if run_id.is_some() { Origin::Schedule } else { Origin::Api };
        let started_by = if run_id.is_some() { "schedule" } else { "demo" }.to_owned();
        let options = self.options.clone();
        let new = NewRollout {
            org: self.org,
            options,
            servers,
            starts_at: self.at,
            origin,
            started_by,
            run_id,
            retry_of: None,
            name: schedule.map(|schedule| service::batch_name::for_schedule(&schedule.name)),
        };
        let created = create_in(tx, id, new, self.at).await?;
        let rows = rollout_tasks::all(tx, id).await?;
        let stands = rows.iter().map(|row| (row.server_id, row.target));
        let mut rollout = Rollout::restore(created.head.clone(), stands);
        if let Plan { change: Some(change @ Change::Start), .. } = plan(&rollout, self.at) {
            rollout.apply_change(change, self.at)?;
        }
        let mut moves = Vec::with_capacity(rows.len());
        let mut last = self.at;
        for (place, row) in rows.iter().enumerate() {
            let server = self.fleet.iter().find(|server| server.id == row.server_id);
            let server = server.context("the rollout contains an unknown server")?;
            let begins = self.at + SignedDuration::from_secs(i64::try_from(place / 20 * 260)?);
            let ends = begins + SignedDuration::from_secs(i64::try_from(rng.between(35, 250))?);
            let outcome = outcome(rng);
            let next = TaskStatus::Done(EndedTask {
                outcome,
                started_at: Some(begins),
                at: ends,
                wave: 1,
            });
            let result = agent_result(server, row.task_id, outcome, (begins, ends), rng);
            rollout.load_task(row.server_id, next);
            let (server_id, from, seen) = (row.server_id, row.target, row.generation);
            moves.push(StateChange { server_id, from, seen, next, result, health: None });
            last = last.max(ends);
        }
        rollout_tasks::save(tx, id, &moves).await?;
        while !rollout.head().phase.is_ended() {
            let next = plan(&rollout, last).change.context("a simulated rollout did not end")?;
            rollout.apply_change(next, last)?;
        }
        let seen = rollouts::load(tx, id).await?;
        rollouts::save_head(tx, &seen, rollout.head(), Some(last)).await?;
        Ok((id, rollout.head().phase, last))
    }
}

fn outcome(rng: &mut Rng) -> TaskOutcome {
    const LIKELY: [FailureCode; 4] = [
        FailureCode::RepoUnreachable,
        FailureCode::PkgLockTimeout,
        FailureCode::DiskFull,
        FailureCode::DependencyConflict,
    ];
    match rng.below(100) {
        0..=2 => TaskOutcome::Failed(*rng.pick(&LIKELY)),
        3 => TaskOutcome::TimedOut(Stage::Installing),
        4..=20 => TaskOutcome::NoChange,
        _ => TaskOutcome::Succeeded,
    }
}

/// The result that the server's agent reported. A task that timed out has none.
fn agent_result(
    server: &Server,
    order_id: vocab::TaskId,
    outcome: TaskOutcome,
    (started_at, finished_at): (Timestamp, Timestamp),
    rng: &mut Rng,
) -> Option<serde_json::Value> {
    use wire::agent::Outcome;
    let (reported, failure_code, message) = match outcome {
        TaskOutcome::Succeeded => (Outcome::Succeeded, None, None),
        TaskOutcome::NoChange => (Outcome::NoChange, None, None),
        TaskOutcome::Failed(code) => (Outcome::Failed, Some(code), Some(reason(code))),
        TaskOutcome::TimedOut(_) | TaskOutcome::Skipped(_) | TaskOutcome::Canceled(_) => {
            return None;
        }
    };
    let packages = match reported {
        Outcome::Succeeded => (0..rng.between(1, 5)).map(|_| package_move(rng)).collect(),
        _ => Vec::new(),
    };
    let result = OrderResult {
        order_id,
        outcome: reported,
        failure_code,
        message: message.map(Into::into),
        packages,
        reboot_needed: server.reboot_required,
        reboot_seconds: None,
        exit: Some(if failure_code.is_some() { 100 } else { 0 }),
        set_aside: Vec::new(),
        restarted: Vec::new(),
        notes: Vec::new(),
        newer_available: Vec::new(),
        health: None,
        started_at,
        finished_at,
    };
    serde_json::to_value(result).ok()
}

fn reason(code: FailureCode) -> &'static str {
    match code {
        FailureCode::RepoUnreachable => "cannot reach the repository: connection timed out",
        FailureCode::PkgLockTimeout => {
            "another process held the package manager's lock for ten minutes"
        }
        FailureCode::DiskFull => "/var has 41 MiB free, but 212 MiB are needed",
        _ => "two installed packages require different versions of a third",
    }
}

fn package_move(rng: &mut Rng) -> PackageMove {
    const NAMES: [&str; 8] =
        ["openssl", "curl", "sudo", "bash", "tzdata", "ca-certificates", "rsync", "vim"];
    let name = *rng.pick(&NAMES);
    let (major, minor) = (rng.between(1, 9), rng.between(0, 30));
    PackageMove {
        name: name.into(),
        arch: "x86_64".into(),
        from: Some(format!("{major}.{minor}-1").into()),
        to: Some(format!("{major}.{minor}-2").into()),
    }
}
