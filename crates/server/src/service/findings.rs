//! Which flaws an organization's servers have, made ready for reading.
//!
//! [`rebuild`] judges every distinct list of packages once, however many servers carry it, and after a feed has changed
//! only those parts of a list that the change touches. What a finding means for a server also depends on the kernel that
//! runs there; so servers of one list, system and kernel are one kind, and are counted together. [`spawn`] does so
//! whenever servers or feeds changed. Whoever reads asks `store::findings`, and [`of_server`] for a single server.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::advisory::{Ecosystem, Epss, Exploited};
use domain::finding::touch::{self, Part, Touched};
use domain::finding::{Finding, Index, Kernel, Report, Running, Settled, settle};
use store::findings::{self, Cve, Judged, Kind, Summary};
use store::listings::Kind as ListingKind;
use store::servers::Server;
use store::{Conn, StoreError, Topic, advisories, feeds, organizations};
use tokio::task::JoinHandle;
use vocab::{Digest, Environment, Installed, OrgId, Severity};

use super::patches::severity_order;
use super::servers::entries;
use super::{Result, facts};
use crate::app::App;
use crate::clock::Stopwatch;

/// How many packages one row names.
const PACKAGES_MAX: usize = 100;
/// How often the rows are looked after when no bell rings. A command of another process rings none on SQLite.
const LOOK: Duration = Duration::from_secs(5);
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
            if let Err(error) = rebuild_all(&app).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "flaws are matched later");
            }
            let rest = Duration::from_secs_f64(watch.seconds() * REST_TIMES).max(REST);
            tokio::time::sleep(rest).await;
            tokio::select! {
                () = servers.rung() => {}
                () = published.rung() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = app.until_drain() => return,
            }
        }
    })
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
    let kinds = findings::kinds(&mut reader, org, None).await?;
    let revision = feeds::revision(&mut reader).await?;
    let seen = findings::summary(&mut reader, org).await?;
    let basis = basis(&kinds, revision);
    if seen.as_ref().is_some_and(|seen| seen.basis == basis) {
        return Ok(false);
    }
    let judged = findings::judged(&mut reader, org).await?;
    drop(reader);
    judge_all(app, org, &kinds, &judged, revision).await?;
    let mut reader = app.db.snapshot().await?;
    let mut fleet = Fleet::default();
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
        findings::recount(&mut tx, org, &had.kind, &had.counts).await?;
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
    Ok(tx.commit().await?)
}

async fn drop_unused(app: &App, org: OrgId, kinds: &[Kind], judged: &[Judged]) -> Result<()> {
    let used: BTreeSet<Digest> = kinds.iter().map(|kind| kind.package_set).collect();
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

fn basis(kinds: &[Kind], revision: i64) -> Digest {
    let mut text = format!("{revision}\n");
    for kind in kinds {
        text += &format!("{} {}\n", kind.digest(), kind.servers);
    }
    Digest::of(text.as_bytes())
}

/// A list that has to be judged: wholly, or a part of what is known of it.
struct Task {
    set: Digest,
    part: Option<Part>,
}

/// Judges every list that was not, or not since what is published about it changed.
async fn judge_all(
    app: &App,
    org: OrgId,
    kinds: &[Kind],
    judged: &[Judged],
    revision: i64,
) -> Result<()> {
    let judged: BTreeMap<(Digest, &str), i64> =
        judged.iter().map(|one| ((one.package_set, one.base.as_str()), one.revision)).collect();
    let mut wanted: BTreeMap<Ecosystem, BTreeSet<Digest>> = BTreeMap::new();
    for kind in kinds {
        if let Some(base) = Ecosystem::of(&kind.os) {
            wanted.entry(base).or_default().insert(kind.package_set);
        }
    }
    for (base, sets) in wanted {
        let mut reader = app.db.snapshot().await?;
        let mut changes: BTreeMap<i64, Touched> = BTreeMap::new();
        let mut names: BTreeSet<String> = BTreeSet::new();
        let (mut tasks, mut same) = (Vec::new(), Vec::new());
        for set in sets {
            let known = judged.get(&(set, base.as_str())).copied();
            if known == Some(revision) {
                continue;
            }
            let packages = packages(&mut reader, org, set).await?;
            let Some(since) = known else {
                names.extend(touch::names(&base, &packages).into_iter().map(Cow::into_owned));
                tasks.push(Task { set, part: None });
                continue;
            };
            let touched = match changes.entry(since) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let mut touched = Touched::default();
                    for name in advisories::changed_since(&mut reader, &base, since).await? {
                        touched.add(base.clone(), name);
                    }
                    new.insert(touched)
                }
            };
            let part = touched.part(&base, &packages);
            if part.is_empty() {
                same.push(set);
                continue;
            }
            names.extend(part.names.iter().cloned());
            tasks.push(Task { set, part: Some(part) });
        }
        let index = Index::new(&base, advisories::naming(&mut reader, &base, &names).await?);
        for task in tasks {
            let report = judge(&mut reader, org, &index, &task).await?;
            let judged = Judged { package_set: task.set, base: base.as_str().to_owned(), revision };
            let mut tx = app.db.begin().await?;
            findings::put_report(&mut tx, org, &judged, &report).await?;
            tx.commit().await?;
        }
        if !same.is_empty() {
            let mut tx = app.db.begin().await?;
            findings::still_true(&mut tx, org, base.as_str(), &same, revision).await?;
            tx.commit().await?;
        }
    }
    Ok(())
}

async fn judge(conn: &mut Conn, org: OrgId, index: &Index, task: &Task) -> Result<Report> {
    let base = index.base();
    let packages = packages(conn, org, task.set).await?;
    let Some(part) = &task.part else { return Ok(index.judge(&packages)) };
    let known = findings::report(conn, org, task.set, base.as_str()).await?;
    let mut report = known.unwrap_or_default();
    report.renew(part, index.judge(&part.of(base, &packages)));
    Ok(report)
}

async fn packages(conn: &mut Conn, org: OrgId, set: Digest) -> Result<Vec<Installed>> {
    entries(conn, org, ListingKind::Packages, set).await
}

/// What the servers have, gathered.
#[derive(Default)]
struct Fleet {
    kinds: BTreeMap<Digest, Had>,
    flaws: BTreeMap<String, Flaw>,
}

/// What the servers of a kind have.
struct Had {
    kind: Kind,
    basis: Digest,
    cves: BTreeSet<String>,
    counts: BTreeMap<Severity, u32>,
}

/// One flaw, wherever it is.
#[derive(Default)]
struct Flaw {
    servers: u64,
    worst: Option<Finding>,
    packages: BTreeSet<String>,
}

impl Fleet {
    async fn take(&mut self, conn: &mut Conn, org: OrgId, kind: &Kind) -> Result<()> {
        let settled = of_kind(conn, org, kind, &BTreeSet::new()).await?;
        let mut worst: BTreeMap<String, Severity> = BTreeMap::new();
        for Settled { finding, .. } in settled {
            let cve = finding.cve.to_string();
            let flaw = self.flaws.entry(cve.clone()).or_default();
            // However many of its packages have it, a server has a flaw once.
            if !worst.contains_key(&cve) {
                flaw.servers += kind.servers;
            }
            let bad = worst.entry(cve).or_insert(Severity::Unknown);
            *bad = (*bad).max(finding.severity);
            if flaw.packages.len() < PACKAGES_MAX {
                flaw.packages.insert(finding.package.source.clone());
            }
            if flaw.worst.as_ref().is_none_or(|known| known.severity < finding.severity) {
                flaw.worst = Some(finding);
            }
        }
        let mut counts = BTreeMap::new();
        worst.values().for_each(|severity| *counts.entry(*severity).or_default() += 1);
        let cves: BTreeSet<String> = worst.into_keys().collect();
        let text = cves.iter().map(|cve| format!("{cve}\n")).collect::<String>();
        let basis = Digest::of(text.as_bytes());
        self.kinds.insert(kind.digest(), Had { kind: kind.clone(), basis, cves, counts });
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
pub async fn within(conn: &mut Conn, org: OrgId, environments: &[Environment]) -> Result<Vec<Cve>> {
    let mut fleet = Fleet::default();
    for kind in findings::kinds(conn, org, Some(environments)).await? {
        fleet.take(conn, org, &kind).await?;
    }
    let mut rows = fleet.rows(conn).await?;
    rows.sort_by(|a, b| {
        let key = |row: &Cve| (row.severity_order, row.kev_order, row.servers_order);
        key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
    });
    Ok(rows)
}

/// What servers of a kind have; nothing where nobody publishes anything that is understood. What does no harm is left out.
async fn of_kind(
    conn: &mut Conn,
    org: OrgId,
    kind: &Kind,
    old_code: &BTreeSet<String>,
) -> Result<Vec<Settled>> {
    let Some(base) = Ecosystem::of(&kind.os) else { return Ok(Vec::new()) };
    let report = findings::report(conn, org, kind.package_set, base.as_str()).await?;
    let Some(report) = report else { return Ok(Vec::new()) };
    let packages = packages(conn, org, kind.package_set).await?;
    let kernel = match kind.kernel.as_str() {
        "" => Kernel::Unknown,
        release => Kernel::Release(release),
    };
    let running = Running { kernel, old_code };
    let mut settled = settle(base.family(), &[], &report.findings, &packages, &running);
    settled.retain(|one| !one.finding.state.is_hidden());
    Ok(settled)
}

/// A flaw of one server, with what stands beside its severity.
#[derive(Debug, Clone)]
pub struct Exposed {
    /// The finding, and what it means here.
    pub settled: Settled,
    /// Whether it is exploited, and since when.
    pub exploited: Option<Exploited>,
    /// How likely it is to be.
    pub epss: Option<Epss>,
}

/// The flaws of one server, the worst first.
pub async fn of_server(conn: &mut Conn, server: &Server) -> Result<Vec<Exposed>> {
    let Some(package_set) = server.package_set else { return Ok(Vec::new()) };
    let kind = Kind {
        package_set,
        os_release: server.os.to_string(),
        kernel: server.kernel.clone(),
        os: server.os.clone(),
        servers: 1,
    };
    let told = facts::kept(&server.facts).old_code;
    let old_code = told.into_iter().filter_map(|one| one.package);
    let old_code: BTreeSet<String> = old_code.map(|package| package.to_string()).collect();
    let mut settled = of_kind(conn, server.org_id, &kind, &old_code).await?;
    settled.sort_by_key(|one| Reverse(one.finding.severity));
    let ids: BTreeSet<&str> = settled.iter().map(|one| one.finding.cve.as_ref()).collect();
    let exploited = advisories::exploited(conn, &ids).await?;
    let epss = advisories::epss(conn, &ids).await?;
    let beside = |one: &Settled| {
        let cve = one.finding.cve.as_ref();
        (exploited.get(cve).cloned(), epss.get(cve).cloned())
    };
    let exposed = settled.iter().map(|one| {
        let (exploited, epss) = beside(one);
        Exposed { settled: one.clone(), exploited, epss }
    });
    Ok(exposed.collect())
}

/// Whether a server's packages were held against anything: where they were not, no flaw found does not mean that there is none.
pub async fn is_checked(conn: &mut Conn, server: &Server) -> Result<bool> {
    let (Some(set), Some(base)) = (server.package_set, Ecosystem::of(&server.os)) else {
        return Ok(false);
    };
    Ok(advisories::covers(conn, &base).await?
        && findings::report(conn, server.org_id, set, base.as_str()).await?.is_some())
}
