//! The findings of an organization's servers, prepared for reading.
//!
//! A package set is split into groups by source package. Each distinct group is assessed once,
//! however many package sets and servers contain it, and again only after a feed change that
//! affects it (`package_groups`). What a finding means for a server also depends on what runs
//! there: the kernel, and processes that still run outdated code. Servers with the same package
//! set, system and running code form a server kind and are counted together (`state`). A
//! [`Matcher`] keeps this state between rounds and writes what changed; [`spawn`] runs it whenever
//! servers, feeds or suppressions change. Readers use `store::findings`, and [`server_findings`]
//! for a single server.

mod changeset;
mod matcher;
mod package_groups;
mod server;
mod state;
mod suppressions;

use async_recursion::async_recursion as boxed;
pub use matcher::{Matcher, RoundScope};
pub use server::{
    ScoredFinding, ServerAssessment, assess_servers, assessments_within, count_key, covered_bases,
    findings_closed_by, lists_unfixed, pending_updates, policy_fixes, security_packages,
    server_findings, server_findings_of_cve,
};
pub use suppressions::ActiveSuppressions;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use store::findings::{self, Cve, ServerKind};
use store::{Conn, Topic, advisories, feeds, organizations};
use tokio::task::JoinHandle;
use vocab::{Digest, Environment, OrgId};

use self::server::kind_findings;
use self::state::MatcherState;
use crate::App;
use crate::clock::Stopwatch;
use crate::{Result, host_facts, run_on_blocking_thread};

/// The interval at which changes without a notification are polled.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// After this number of polls, a full round runs in any case.
const POLLS_UNTIL_FULL_ROUND: u32 = 12;
/// The minimum pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// The pause before the servers are counted again, as a multiple of the time that counting took: in
/// a busy fleet, server changes arrive all the time.
const FULL_ROUND_PAUSE_FACTOR: f64 = 12.0;
/// The delay of a matcher without state, which would have to read everything first: a replica that
/// has its state in memory is faster.
const COLD_START_DELAY: Duration = Duration::from_secs(2);

/// Keeps the findings of every organization current until it is aborted or the app drains.
pub fn spawn(app: App) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::select! {
            () = run(&app) => {}
            () = app.until_drain() => {}
        }
    })
}

async fn run(app: &App) {
    let mut servers = app.db.subscribe(Topic::Servers);
    let mut published = app.db.subscribe(Topic::Feeds);
    let mut matchers = BTreeMap::new();
    let mut scope = RoundScope::All;
    let mut rested = Box::pin(tokio::time::sleep(Duration::ZERO));
    let (mut is_rested, mut news_of_servers) = (false, false);
    loop {
        let watch = Stopwatch::start();
        let before = poll_state(app).await.ok();
        let (taken, its_app) = (std::mem::take(&mut matchers), app.clone());
        let done = run_on_blocking_thread(async move {
            let mut matchers = taken;
            let done = run_rounds(&its_app, &mut matchers, scope).await;
            (matchers, done)
        });
        let done = done.await.and_then(|(taken, done)| {
            matchers = taken;
            done
        });
        if let Err(error) = done {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "matching of findings failed and will be retried"
            );
        }
        let took = Duration::from_secs_f64(watch.seconds());
        if scope == RoundScope::All {
            rested =
                Box::pin(tokio::time::sleep(took.mul_f64(FULL_ROUND_PAUSE_FACTOR).max(PAUSE_MIN)));
            (is_rested, news_of_servers) = (false, false);
        }
        tokio::time::sleep(took.max(PAUSE_MIN)).await;
        let is_cold = matchers.values().any(|matcher| !matcher.is_warm());
        let mut changed = Box::pin(until_changed(app, before, is_cold));
        scope = loop {
            tokio::select! {
                () = published.notified() => break RoundScope::FeedsAndSuppressions,
                () = servers.notified(), if !news_of_servers => news_of_servers = true,
                () = &mut rested, if !is_rested => is_rested = true,
                look = &mut changed => break look,
            }
            if is_rested && news_of_servers {
                break RoundScope::All;
            }
        };
    }
}

async fn run_rounds(
    app: &App,
    matchers: &mut BTreeMap<OrgId, Matcher>,
    scope: RoundScope,
) -> Result<()> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    matchers.retain(|org, _| all.iter().any(|known| known.id == *org));
    for organization in all {
        let org = organization.id;
        let matcher = matchers.entry(org).or_insert_with(|| Matcher::new(org));
        if scope == RoundScope::FeedsAndSuppressions && !matcher.is_warm() {
            tokio::time::sleep(COLD_START_DELAY).await;
        }
        matcher.round(app, scope).await?;
    }
    Ok(())
}

/// Waits until polling shows a change, or for a limited time. The result is the scope of the next
/// round.
async fn until_changed(app: &App, before: Option<PolledState>, is_cold: bool) -> RoundScope {
    for _ in 0..POLLS_UNTIL_FULL_ROUND {
        tokio::time::sleep(POLL_INTERVAL).await;
        if before.is_none() || poll_state(app).await.ok() != before {
            return RoundScope::FeedsAndSuppressions;
        }
        if is_cold {
            return RoundScope::WarmUp;
        }
    }
    RoundScope::All
}

/// What may change without a notification: the feed revision, because a command in another process
/// sends no notification on SQLite, and the active suppressions, because they expire.
type PolledState = (i64, Vec<Vec<String>>);

async fn poll_state(app: &App) -> Result<PolledState> {
    let mut reader = app.db.snapshot().await?;
    let revision = feeds::revision(&mut reader).await?;
    let mut suppressions = Vec::new();
    for organization in organizations::list(&mut reader).await? {
        suppressions.push(
            ActiveSuppressions::read(&mut reader, organization.id, app.clock.now()).await?.ids(),
        );
    }
    Ok((revision, suppressions))
}

/// Rebuilds the findings of an organization if its servers or the feeds have changed. Returns
/// whether it wrote anything.
#[boxed]
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    Matcher::new(org).round(app, RoundScope::All).await
}

/// The package sets that determine the findings of a server kind: the installed one, and the one
/// from which its outdated processes run.
fn package_sets_of(kind: &ServerKind) -> impl Iterator<Item = Digest> {
    [kind.package_set].into_iter().chain(host_facts::runs_from_text(&kind.runs).since)
}

/// The CVEs of the servers in some environments, in list order. Computed on demand.
#[boxed]
pub async fn cves_in_environments(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    environments: &[Environment],
) -> Result<Vec<Cve>> {
    let suppressions = ActiveSuppressions::read(conn, org, app.clock.now()).await?;
    let mut state = MatcherState::new(0, 0, suppressions.clone());
    for kind in findings::kinds(conn, org, Some(environments), suppressions.environments()).await? {
        let (had, _) = kind_findings(conn, org, &kind, None).await?;
        state.add_kind(&kind, had.iter().map(|one| &one.server_finding.finding));
    }
    let mut rows = state.into_rows();
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let exploited = advisories::exploited(conn, &ids).await?;
    for row in &mut rows {
        row.kev_order = i64::from(!exploited.contains_key(&row.id));
    }
    rows.sort_by(|a, b| {
        let key = |row: &Cve| (row.severity_order, row.kev_order, row.servers_order);
        key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
    });
    Ok(rows)
}
