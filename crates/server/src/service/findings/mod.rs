//! Which flaws an organization's servers have, made ready for reading.
//!
//! [`rebuild`] judges every distinct list of packages once, however many servers carry it, and after a feed has changed
//! only those parts of a list that the change touches. What a finding means for a server also depends on what runs there, the
//! kernel and old code; so servers of one list and system on which the same runs are one kind, and are counted together. [`spawn`] does so
//! whenever servers, feeds or suppressions changed. Whoever reads asks `store::findings`, and [`of_server`] for a single server.

mod aside;
mod judging;
mod server;

pub use aside::Aside;
pub use server::{Exposed, closed, closing, is_checked, of_server};

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::finding::{Finding, Settled};
use store::findings::{self, Cve, Judged, Kind, Summary};
use store::{Conn, StoreError, Topic, advisories, feeds, organizations};
use tokio::task::JoinHandle;
use vocab::{Digest, Environment, OrgId, Severity};

use self::judging::judge_all;
use self::server::of_kind;
use super::patches::severity_order;
use super::{Result, facts};
use crate::app::App;
use crate::clock::Stopwatch;

/// How many packages one row names.
const PACKAGES_MAX: usize = 100;
/// How often it is asked whether something changed of which no bell tells.
const LOOK: Duration = Duration::from_secs(5);
/// After how many such looks the servers are walked over all the same.
const LOOKS: u32 = 12;
/// The least rest between two rounds, and how many times as long as a round takes.
const REST: Duration = Duration::from_millis(200);
const REST_TIMES: f64 = 4.0;

/// Looks after the rows of every organization for as long as it is not aborted.
pub fn spawn(app: App) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut servers = app.db.bell(Topic::Servers);
        let mut published = app.db.bell(Topic::Feeds);
        loop {
            let watch = Stopwatch::start();
            let before = unannounced(&app).await.ok();
            if let Err(error) = rebuild_all(&app).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "flaws are matched later");
            }
            let rest = Duration::from_secs_f64(watch.seconds() * REST_TIMES).max(REST);
            tokio::time::sleep(rest).await;
            tokio::select! {
                () = servers.rung() => {}
                () = published.rung() => {}
                () = until_unlike(&app, before) => {}
                () = app.until_drain() => return,
            }
        }
    })
}

/// Returns when something changed of which no bell tells, or after a while.
async fn until_unlike(app: &App, before: Option<Unannounced>) {
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        if before.is_none() || unannounced(app).await.ok() != before {
            return;
        }
    }
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

async fn rebuild_all(app: &App) -> Result<()> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    for organization in all {
        rebuild(app, organization.id).await?;
    }
    Ok(())
}

/// Makes the rows of an organization anew, if its servers or the feeds are not as they were. Says whether it did.
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    let mut reader = app.db.snapshot().await?;
    let aside = Aside::read(&mut reader, org, app.clock.now()).await?;
    let kinds = findings::kinds(&mut reader, org, None, aside.environments()).await?;
    let revision = feeds::revision(&mut reader).await?;
    let seen = findings::summary(&mut reader, org).await?;
    let basis = basis(&kinds, revision, &aside);
    if seen.as_ref().is_some_and(|seen| seen.basis == basis) {
        return Ok(false);
    }
    let judged = findings::judged(&mut reader, org).await?;
    drop(reader);
    judge_all(app, org, &kinds, &judged, revision).await?;
    let mut reader = app.db.snapshot().await?;
    let mut fleet = Fleet::new(aside);
    for kind in &kinds {
        fleet.take(&mut reader, org, kind).await?;
    }
    let rows = fleet.rows(&mut reader).await?;
    let before = findings::all(&mut reader, org).await?;
    let known = findings::known_kinds(&mut reader, org).await?;
    drop(reader);
    let next = Summary {
        org_id: org,
        basis,
        made_at: app.clock.now(),
        generation: seen.map_or(0, |seen| seen.generation),
    };
    write(app, next, &fleet, (before, rows), &known).await?;
    drop_unused(app, org, &kinds, &judged).await?;
    Ok(true)
}

async fn write(
    app: &App,
    next: Summary,
    fleet: &Fleet,
    (before, after): (Vec<Cve>, Vec<Cve>),
    known: &BTreeMap<Digest, Digest>,
) -> Result<()> {
    let org = next.org_id;
    let mut before: BTreeMap<String, Cve> =
        before.into_iter().map(|row| (row.id.clone(), row)).collect();
    let put: Vec<Cve> = after
        .into_iter()
        .filter(|row| before.remove(&row.id).is_none_or(|was| was != *row))
        .collect();
    let gone: Vec<String> = before.into_keys().collect();
    // A kind at a time: each is true by itself, and others want to write too.
    for (digest, had) in &fleet.kinds {
        let mut tx = app.db.begin().await?;
        if known.get(digest) != Some(&had.basis) {
            let cves: Vec<&str> = had.cves.iter().map(String::as_str).collect();
            findings::put_kind(&mut tx, org, &had.kind, had.basis, &cves).await?;
        }
        for (kind, counts) in &had.counts {
            findings::recount(&mut tx, org, kind, fleet.aside.environments(), counts).await?;
        }
        tx.commit().await?;
    }
    let mut tx = app.db.begin().await?;
    match findings::begin(&mut tx, &next).await {
        // Another replica was faster; its rows are as good as ours.
        Err(StoreError::Stale) => return Ok(()),
        begun => begun?,
    }
    findings::change(&mut tx, org, &put, &gone).await?;
    let left: Vec<Digest> =
        known.keys().filter(|kind| !fleet.kinds.contains_key(kind)).copied().collect();
    findings::drop_kinds(&mut tx, org, &left).await?;
    tx.ring(Topic::Findings);
    Ok(tx.commit().await?)
}

/// The lists that decide what servers of a kind have: theirs, and the one that old code of theirs is from.
fn carried(kind: &Kind) -> impl Iterator<Item = Digest> {
    [kind.package_set].into_iter().chain(facts::runs_of(&kind.runs).since)
}

async fn drop_unused(app: &App, org: OrgId, kinds: &[Kind], judged: &[Judged]) -> Result<()> {
    let used: BTreeSet<Digest> = kinds.iter().flat_map(carried).collect();
    let unused: BTreeSet<Digest> =
        judged.iter().map(|set| set.package_set).filter(|set| !used.contains(set)).collect();
    let unused: Vec<Digest> = unused.into_iter().collect();
    if unused.is_empty() {
        return Ok(());
    }
    let mut tx = app.db.begin().await?;
    findings::drop_reports(&mut tx, org, &unused).await?;
    Ok(tx.commit().await?)
}

fn basis(kinds: &[Kind], revision: i64, aside: &Aside) -> Digest {
    let mut text = format!("{revision} {}\n", aside.ids().join(" "));
    for kind in kinds {
        let environment = kind.environment.as_ref().map(Environment::as_str).unwrap_or_default();
        text += &format!("{} {} {environment}\n", kind.digest(), kind.servers);
    }
    Digest::of(text.as_bytes())
}

/// What the servers have, gathered.
struct Fleet {
    aside: Aside,
    kinds: BTreeMap<Digest, Had>,
    flaws: BTreeMap<String, Flaw>,
}

/// What the servers of a kind have.
struct Had {
    kind: Kind,
    basis: Digest,
    cves: BTreeSet<String>,
    /// How many of them count, by severity: not the same in every environment.
    counts: Vec<(Kind, BTreeMap<Severity, u32>)>,
}

/// One flaw, wherever it is.
#[derive(Default)]
struct Flaw {
    servers: u64,
    suppressed: u64,
    worst: Option<Finding>,
    packages: BTreeSet<String>,
}

impl Fleet {
    fn new(aside: Aside) -> Fleet {
        Fleet { aside, kinds: BTreeMap::new(), flaws: BTreeMap::new() }
    }

    async fn take(&mut self, conn: &mut Conn, org: OrgId, kind: &Kind) -> Result<()> {
        let found = of_kind(conn, org, kind).await?;
        // How bad each flaw is where it counts; nothing if it was set aside in all its packages.
        let mut worst: BTreeMap<String, Option<Severity>> = BTreeMap::new();
        for Settled { finding, .. } in found.settled {
            let cve = finding.cve.to_string();
            let source = &finding.package.source;
            let counts = self.aside.covering(kind.environment.as_ref(), &cve, source).is_none();
            let flaw = self.flaws.entry(cve.clone()).or_default();
            let bad = worst.entry(cve).or_default();
            *bad = (*bad).max(counts.then_some(finding.severity));
            if flaw.packages.len() < PACKAGES_MAX {
                flaw.packages.insert(source.clone());
            }
            if flaw.worst.as_ref().is_none_or(|known| known.severity < finding.severity) {
                flaw.worst = Some(finding);
            }
        }
        let mut counts = BTreeMap::new();
        // However many of its packages have it, a server has a flaw once.
        for (cve, bad) in &worst {
            let flaw = self.flaws.entry(cve.clone()).or_default();
            match bad {
                Some(severity) => {
                    flaw.servers += kind.servers;
                    *counts.entry(*severity).or_default() += 1;
                }
                None => flaw.suppressed += kind.servers,
            }
        }
        let cves: BTreeSet<String> = worst.into_keys().collect();
        let text = cves.iter().map(|cve| format!("{cve}\n")).collect::<String>();
        let basis = Digest::of(text.as_bytes());
        let had = self.kinds.entry(kind.digest());
        let had =
            had.or_insert_with(|| Had { kind: kind.clone(), basis, cves, counts: Vec::new() });
        had.counts.push((kind.clone(), counts));
        Ok(())
    }

    async fn rows(&self, conn: &mut Conn) -> Result<Vec<Cve>> {
        let ids: BTreeSet<&str> = self.flaws.keys().map(String::as_str).collect();
        let exploited = advisories::exploited(conn, &ids).await?;
        let row = |(id, flaw): (&String, &Flaw)| {
            let worst = flaw.worst.as_ref();
            Cve {
                id: id.clone(),
                severity_order: severity_order(
                    worst.map_or(Severity::Unknown, |finding| finding.severity),
                ),
                kev_order: i64::from(!exploited.contains_key(id)),
                servers_order: i64::try_from(flaw.servers).map_or(i64::MIN, |servers| -servers),
                suppressed: flaw.suppressed,
                severity_source: worst
                    .and_then(|finding| finding.severity_source.as_ref())
                    .map(ToString::to_string),
                cvss: worst
                    .and_then(|finding| finding.cvss.as_ref())
                    .map(|score| score.vector().to_owned()),
                published: worst.and_then(|finding| finding.published),
                packages: flaw.packages.iter().cloned().collect(),
            }
        };
        Ok(self.flaws.iter().map(row).collect())
    }
}

/// The flaws of some environments' servers, in the order of the list. Made on the spot.
pub async fn within(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    environments: &[Environment],
) -> Result<Vec<Cve>> {
    let mut fleet = Fleet::new(Aside::read(conn, org, app.clock.now()).await?);
    let apart = fleet.aside.environments();
    for kind in findings::kinds(conn, org, Some(environments), apart).await? {
        fleet.take(conn, org, &kind).await?;
    }
    let mut rows = fleet.rows(conn).await?;
    rows.sort_by(|a, b| {
        let key = |row: &Cve| (row.severity_order, row.kev_order, row.servers_order);
        key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
    });
    Ok(rows)
}
