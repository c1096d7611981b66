//! The findings of an organization's servers, prepared for reading.
//!
//! A package set is split into groups by source package. Each distinct group is assessed once,
//! however many package sets and servers contain it, and again only after a feed change that
//! affects it (`shelf`). What a finding means for a server also depends on what runs there: the
//! kernel, and processes that still run outdated code. Servers with the same package set, system
//! and running code form a server kind and are counted together (`memory`). A [`Matcher`] keeps
//! this state between rounds and writes what changed; [`spawn`] runs it whenever servers, feeds or
//! suppressions change. Readers use `store::findings`, and [`of_server`] for a single server.

mod aside;
mod matcher;
mod memory;
mod server;
mod shelf;
mod writing;

pub use aside::Aside;
use async_recursion::async_recursion as boxed;
pub use matcher::{Look, Matcher};
pub use server::{
    Assessed, Exposed, alike_by, assessed, assessments_within, closed, lists_unfixed, of_server,
    one_of_server, pending, secured,
};

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use store::findings::{self, Cve, Kind};
use store::{Conn, Topic, advisories, feeds, organizations};
use tokio::task::JoinHandle;
use vocab::{Digest, Environment, OrgId};

use self::memory::Memory;
use self::server::all_of_kind;
use crate::App;
use crate::clock::Stopwatch;
use crate::{Result, apart, host_facts};

/// The interval at which changes without a notification are polled.
const LOOK: Duration = Duration::from_secs(5);
/// After this number of polls, a full round runs in any case.
const LOOKS: u32 = 12;
/// The minimum pause between two rounds.
const REST: Duration = Duration::from_millis(200);
/// The pause before the servers are counted again, as a multiple of the time that counting took: in
/// a busy fleet, server changes arrive all the time.
const REST_TIMES: f64 = 12.0;
/// The delay of a matcher without state, which would have to read everything first: a replica that
/// has its state in memory is faster.
const STEP_BACK: Duration = Duration::from_secs(2);

/// Keeps the findings of every organization current until it is aborted or the app drains.
pub fn spawn(app: App) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::select! {
            () = keep(&app) => {}
            () = app.until_drain() => {}
        }
    })
}

async fn keep(app: &App) {
    let mut servers = app.db.bell(Topic::Servers);
    let mut published = app.db.bell(Topic::Feeds);
    let mut matchers = BTreeMap::new();
    let mut look = Look::Servers;
    let mut rested = Box::pin(tokio::time::sleep(Duration::ZERO));
    let (mut is_rested, mut news_of_servers) = (false, false);
    loop {
        let watch = Stopwatch::start();
        let before = unannounced(app).await.ok();
        let (taken, its_app) = (std::mem::take(&mut matchers), app.clone());
        let done = apart(async move {
            let mut matchers = taken;
            let done = round_of_all(&its_app, &mut matchers, look).await;
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
        if look == Look::Servers {
            rested = Box::pin(tokio::time::sleep(took.mul_f64(REST_TIMES).max(REST)));
            (is_rested, news_of_servers) = (false, false);
        }
        tokio::time::sleep(took.max(REST)).await;
        let is_cold = matchers.values().any(|matcher| !matcher.is_warm());
        let mut unlike = Box::pin(until_unlike(app, before, is_cold));
        look = loop {
            tokio::select! {
                () = published.rung() => break Look::Published,
                () = servers.rung(), if !news_of_servers => news_of_servers = true,
                () = &mut rested, if !is_rested => is_rested = true,
                look = &mut unlike => break look,
            }
            if is_rested && news_of_servers {
                break Look::Servers;
            }
        };
    }
}

async fn round_of_all(
    app: &App,
    matchers: &mut BTreeMap<OrgId, Matcher>,
    look: Look,
) -> Result<()> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    matchers.retain(|org, _| all.iter().any(|known| known.id == *org));
    for organization in all {
        let org = organization.id;
        let matcher = matchers.entry(org).or_insert_with(|| Matcher::new(org));
        if look == Look::Published && !matcher.is_warm() {
            tokio::time::sleep(STEP_BACK).await;
        }
        matcher.round(app, look).await?;
    }
    Ok(())
}

/// Returns when polling shows a change, or after a while. The result is the scope of the next
/// round.
async fn until_unlike(app: &App, before: Option<Unannounced>, is_cold: bool) -> Look {
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        if before.is_none() || unannounced(app).await.ok() != before {
            return Look::Published;
        }
        if is_cold {
            return Look::Idle;
        }
    }
    Look::Servers
}

/// What may change without a notification: the feed revision, because a command in another process
/// sends no notification on SQLite, and the suppressions in force, because they expire.
type Unannounced = (i64, Vec<Vec<String>>);

async fn unannounced(app: &App) -> Result<Unannounced> {
    let mut reader = app.db.snapshot().await?;
    let revision = feeds::revision(&mut reader).await?;
    let mut aside = Vec::new();
    for organization in organizations::list(&mut reader).await? {
        aside.push(Aside::read(&mut reader, organization.id, app.clock.now()).await?.ids());
    }
    Ok((revision, aside))
}

/// Rebuilds the findings of an organization if its servers or the feeds have changed. Returns
/// whether it wrote anything.
#[boxed]
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    Matcher::new(org).round(app, Look::Servers).await
}

/// The package sets that determine the findings of a server kind: the installed one, and the one
/// from which its outdated processes run.
fn carried(kind: &Kind) -> impl Iterator<Item = Digest> {
    [kind.package_set].into_iter().chain(host_facts::runs_of(&kind.runs).since)
}

/// The CVEs of the servers in some environments, in list order. Computed on demand.
#[boxed]
pub async fn within(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    environments: &[Environment],
) -> Result<Vec<Cve>> {
    let aside = Aside::read(conn, org, app.clock.now()).await?;
    let mut memory = Memory::new(0, 0, aside.clone());
    for kind in findings::kinds(conn, org, Some(environments), aside.environments()).await? {
        let (had, _) = all_of_kind(conn, org, &kind, None).await?;
        memory.add(&kind, had.iter().map(|one| &one.settled.finding));
    }
    let mut rows = memory.into_rows();
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
