//! Which flaws an organization's servers have, made ready for reading.
//!
//! A distinct list of packages is taken apart by source, and each group is judged once, however many lists and servers carry it; after a feed
//! has changed only those that the change touches (`shelf`). What a finding means for a server also depends on what runs there, the
//! kernel and old code; so servers of one list and system on which the same runs are one kind, and are counted together
//! (`memory`). A [`Matcher`] remembers all that from one round to the next and writes what changed. [`spawn`] lets it do so whenever
//! servers, feeds or suppressions changed. Whoever reads asks `store::findings`, and [`of_server`] for a single server.

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

/// How often it is asked whether something changed of which no bell tells.
const LOOK: Duration = Duration::from_secs(5);
/// After how many such looks the servers are walked over all the same.
const LOOKS: u32 = 12;
/// The least rest between two rounds.
const REST: Duration = Duration::from_millis(200);
/// How many times as long as counting the servers takes they are not counted again: a busy fleet has news of them all the time.
const REST_TIMES: f64 = 12.0;
/// How long one waits that would have to read everything first: if another replica need not, it is faster.
const STEP_BACK: Duration = Duration::from_secs(2);

/// Looks after the rows of every organization for as long as it is not aborted.
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
            tracing::warn!(error = &error as &dyn std::error::Error, "flaws are matched later");
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

/// Returns when something changed of which no bell tells, or after a while: with what to look for.
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

/// What changes without a bell: the revision of what is published, because a command of another process rings none on SQLite,
/// and what of that which was set aside still is.
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

/// Makes the rows of an organization anew, if its servers or the feeds are not as they were. Says whether it did.
#[boxed]
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    Matcher::new(org).round(app, Look::Servers).await
}

/// The lists that decide what servers of a kind have: theirs, and the one that old code of theirs is from.
fn carried(kind: &Kind) -> impl Iterator<Item = Digest> {
    [kind.package_set].into_iter().chain(host_facts::runs_of(&kind.runs).since)
}

/// The flaws of some environments' servers, in the order of the list. Made on the spot.
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
