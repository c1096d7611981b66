//! What the findings of a package set mean on one server or on a server kind.

use async_recursion::async_recursion as boxed;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::advisory::{Ecosystem, Epss, KevEntry, UnfixedCves};
use domain::finding::invalidation::{self, SourceGroup};
use domain::finding::{
    Finding, MatchReport, ServerFinding, Unassessed, foreign_kernel, vendor_reported,
};
use domain::policy::{Availability, Fix, Subject};
use jiff::Timestamp;
use store::findings::{self, Cve, CvesBySeverity, KindCounts, ServerKind};
use store::package_sets::SetKind as ListingKind;
use store::servers::Server;
use store::{Conn, advisories, feeds};
use vocab::{
    Assessment, BlockedBy, Digest, Environment, Exposure, Installed, OrgId, Pending, Severity,
};

use super::ActiveSuppressions;
use super::matcher::{covered_ecosystems, installed_packages};
use super::package_groups::{running_kernel, visible_findings};
use super::state::{PACKAGES_MAX, assessment};
use crate::commands::servers::entries;
use crate::{Result, host_facts};

/// The findings of a server kind, and the packages they were derived from.
#[derive(Debug, Default)]
pub(super) struct KindFindings {
    packages: Vec<Installed>,
    pub(super) findings: Vec<ServerFinding>,
    unassessed: Vec<Unassessed>,
}

/// The findings that feeds report for a server kind, limited to the groups that are `wanted`.
/// Empty if no supported feed covers the system. Hidden findings are left out.
async fn feed_findings(
    conn: &mut Conn,
    org: OrgId,
    kind: &ServerKind,
    wanted: impl Fn(&Ecosystem, &SourceGroup) -> bool,
) -> Result<KindFindings> {
    let Some(base) = Ecosystem::for_os(&kind.os) else { return Ok(KindFindings::default()) };
    let packages = installed_packages(conn, org, kind.package_set).await?;
    let wanted = |group: &SourceGroup| wanted(&base, group);
    let groups = invalidation::group_by_source(&base, &packages).into_iter().filter(wanted);
    let groups: Vec<Digest> = groups.map(|group| group.digest()).collect();
    let known = findings::groups(conn, org, base.as_str(), &groups).await?;
    let report = MatchReport::merge(known.values());
    let runs = host_facts::runs_from_text(&kind.runs);
    let before = match runs.since {
        Some(set) => findings::saved_report(conn, org, set, base.as_str()).await?,
        None => None,
    };
    let running = (kind.kernel.as_str(), &runs);
    let settled =
        visible_findings(&base, before.unwrap_or_default(), &report.findings, &packages, running);
    let mut unassessed = report.unassessed;
    unassessed.extend(foreign_kernel(
        base.family(),
        &packages,
        running_kernel(&kind.kernel, &runs),
    ));
    Ok(KindFindings { packages, findings: settled, unassessed })
}

/// The findings that each of these pending updates closes on a server kind: one list per update,
/// in the same order.
#[boxed]
pub async fn findings_closed_by(
    conn: &mut Conn,
    org: OrgId,
    kind: &ServerKind,
    pending: &[Pending],
) -> Result<Vec<Vec<Finding>>> {
    let Some(base) = Ecosystem::for_os(&kind.os) else {
        return Ok(vec![Vec::new(); pending.len()]);
    };
    let names: BTreeSet<&str> = pending.iter().map(|update| update.name.as_str()).collect();
    // A kernel is also updated by packages that only depend on it.
    let wanted = |base: &Ecosystem, group: &SourceGroup| {
        group.packages.iter().any(|package| names.contains(package.name.as_str()))
            || group.has_kernel(base)
    };
    let KindFindings { packages, findings, .. } = feed_findings(conn, org, kind, wanted).await?;
    let closed = domain::finding::closed_findings(base.family(), &packages, &findings, pending);
    Ok(closed.into_iter().map(|some| some.into_iter().cloned().collect()).collect())
}

/// All findings of a server kind: those from feeds, and those that only the package manager
/// reports for its pending updates. If a feed knows a CVE in any package of the kind, the feed's
/// finding is used.
pub(super) async fn kind_findings(
    conn: &mut Conn,
    org: OrgId,
    kind: &ServerKind,
    only: Option<&Cve>,
) -> Result<(Vec<KindFinding>, Vec<Unassessed>)> {
    let wanted = |base: &Ecosystem, group: &SourceGroup| {
        // The row may not list all packages.
        only.is_none_or(|cve| {
            cve.packages.len() >= PACKAGES_MAX
                || cve.packages.iter().any(|source| group.is_source(base, source))
        })
    };
    let KindFindings { findings: mut found, unassessed, .. } =
        feed_findings(conn, org, kind, wanted).await?;
    found.retain(|one| only.is_none_or(|cve| *cve.id == *one.finding.cve));
    let pending: Vec<Pending> = match kind.update_set {
        Some(set) => entries(conn, org, ListingKind::Updates, set).await?,
        None => Vec::new(),
    };
    let mut vendor_reported = vendor_reported(&kind.os_release, &pending);
    vendor_reported.retain(|one| only.is_none_or(|cve| *cve.id == *one.cve));
    let says = |one: &ServerFinding| {
        vendor_reported.iter().any(|also| {
            let package = &one.finding.package;
            also.cve == one.finding.cve
                && (package.source == also.package.source
                    || package.binaries.iter().any(|binary| binary.name == also.package.source))
        })
    };
    let mut all: Vec<KindFinding> = found
        .into_iter()
        .map(|settled| KindFinding { manager_agrees: says(&settled), server_finding: settled })
        .collect();
    let known: BTreeSet<Arc<str>> =
        all.iter().map(|one| one.server_finding.finding.cve.clone()).collect();
    let alone = vendor_reported.into_iter().filter(|one| !known.contains(&one.cve));
    all.extend(alone.map(|finding| KindFinding {
        server_finding: ServerFinding { finding, exposure: Exposure::Open },
        manager_agrees: false,
    }));
    Ok((all, unassessed))
}

/// A finding of a server kind.
#[derive(Debug, Clone)]
pub(super) struct KindFinding {
    pub(super) server_finding: ServerFinding,
    manager_agrees: bool,
}

/// The number of a server's CVEs, and whether the number is complete.
#[derive(Debug, Clone)]
pub struct ServerAssessment {
    /// Whether its CVEs are known.
    pub assessment: Assessment,
    /// CVEs by severity.
    pub cves: CvesBySeverity,
    /// The number of packages that could not be assessed.
    pub unassessed: u32,
}

/// The CVE counts of these servers, in the same order.
#[boxed]
pub async fn assess_servers(
    conn: &mut Conn,
    org: OrgId,
    servers: &[Server],
) -> Result<Vec<ServerAssessment>> {
    let sets: BTreeSet<Digest> = servers.iter().filter_map(|server| server.package_set).collect();
    let assessed_sets = findings::filter_assessed(conn, org, &sets).await?;
    let bases: BTreeSet<Ecosystem> =
        servers.iter().filter_map(|server| Ecosystem::for_os(&server.os)).collect();
    let covered = covered_ecosystems(conn, bases.iter()).await?;
    let counts = stored_counts(conn, org, servers).await?;
    let assessed = servers.iter().zip(counts).map(|(server, KindCounts { cves, unassessed })| {
        let base = Ecosystem::for_os(&server.os);
        let is_covered = base.as_ref().is_some_and(|base| covered.contains(base));
        let is_matched = server.package_set.is_some_and(|set| match &base {
            Some(base) if is_covered => assessed_sets.contains(&(set, base.as_str().to_owned())),
            _ => true,
        });
        let assessment = match is_matched {
            true => assessment(is_covered, unassessed),
            false => Assessment::NotScanned,
        };
        // Without a feed, all packages are unassessed, so a number is not useful.
        let unassessed = if assessment == Assessment::Partial { unassessed } else { 0 };
        ServerAssessment { assessment, cves, unassessed }
    });
    Ok(assessed.collect())
}

/// The number of servers in some environments per assessment.
#[boxed]
pub async fn assessments_within(
    conn: &mut Conn,
    org: OrgId,
    environments: &[Environment],
    now: Timestamp,
) -> Result<BTreeMap<Assessment, u64>> {
    let suppressions = ActiveSuppressions::read(conn, org, now).await?;
    let kinds = findings::kinds(conn, org, Some(environments), suppressions.environments()).await?;
    let bases: BTreeSet<Ecosystem> =
        kinds.iter().filter_map(|kind| Ecosystem::for_os(&kind.os)).collect();
    let covered = covered_ecosystems(conn, bases.iter()).await?;
    let keys: BTreeSet<Digest> =
        kinds.iter().flat_map(|kind| possible_count_keys(kind, None)).collect();
    let keys: Vec<Digest> = keys.into_iter().collect();
    let known = findings::counts(conn, org, Some(&keys)).await?;
    let mut servers = BTreeMap::new();
    for kind in &kinds {
        let counts =
            self::possible_count_keys(kind, None).into_iter().find_map(|key| known.get(&key));
        let is_covered = Ecosystem::for_os(&kind.os).is_some_and(|base| covered.contains(&base));
        let unassessed = counts.map_or(0, |tallied| tallied.unassessed);
        *servers.entry(assessment(is_covered, unassessed)).or_default() += kind.servers;
    }
    Ok(servers)
}

/// The keys under which a server kind may be counted, the most specific first. This function does
/// not know whether its environment or its pending updates separate it from others.
fn possible_count_keys(kind: &ServerKind, environment: Option<Environment>) -> Vec<Digest> {
    let environment = environment.or_else(|| kind.environment.clone());
    let separate = [(kind.update_set, environment.clone()), (kind.update_set, None)];
    let together = [(None, environment), (None, None)];
    let both = separate.into_iter().chain(together);
    both.map(|(update_set, environment)| {
        ServerKind { update_set, environment, ..kind.clone() }.count_key()
    })
    .collect()
}

/// The stored counts of these servers, in the same order.
async fn stored_counts(conn: &mut Conn, org: OrgId, servers: &[Server]) -> Result<Vec<KindCounts>> {
    let keys = |server: &Server| -> Vec<Digest> {
        let Some(kind) = kind_of(server) else { return Vec::new() };
        possible_count_keys(&kind, server.environment.clone())
    };
    let keys: Vec<Vec<Digest>> = servers.iter().map(keys).collect();
    let all: BTreeSet<Digest> = keys.iter().flatten().copied().collect();
    let all: Vec<Digest> = all.into_iter().collect();
    let known = findings::counts(conn, org, Some(&all)).await?;
    let first = |keys: &Vec<Digest>| keys.iter().find_map(|key| known.get(key)).cloned();
    Ok(keys.iter().map(|keys| first(keys).unwrap_or_default()).collect())
}

/// The kind of a server; `None` before it has reported its packages.
pub(super) fn kind_of(server: &Server) -> Option<ServerKind> {
    Some(ServerKind {
        package_set: server.package_set?,
        update_set: server.update_set,
        os_release: server.os.to_string().to_ascii_lowercase(),
        kernel: server.kernel.clone(),
        runs: server.runs.clone(),
        os: server.os.clone(),
        environment: None,
        servers: 1,
    })
}

/// The key that servers with the same findings share; `None` before the server has reported its
/// packages.
pub fn count_key(server: &Server) -> Option<Digest> {
    kind_of(server).map(|kind| kind.count_key())
}

/// A finding of one server, with exploitation data.
#[derive(Debug, Clone)]
pub struct ScoredFinding {
    /// The finding, and what it means on this server.
    pub server_finding: ServerFinding,
    /// Whether a feed found it and the host's package manager reports the same CVE for a pending
    /// update.
    pub manager_agrees: bool,
    /// The KEV entry, if the CVE is known to be exploited.
    pub exploited: Option<KevEntry>,
    /// The estimated probability of exploitation.
    pub epss: Option<Epss>,
}

/// The findings of one server, the most severe first, and its packages that could not be assessed.
#[boxed]
pub async fn server_findings(
    conn: &mut Conn,
    server: &Server,
) -> Result<(Vec<ScoredFinding>, Vec<Unassessed>)> {
    load_findings(conn, server, None).await
}

/// The findings of one CVE on one server, one per affected package.
#[boxed]
pub async fn server_findings_of_cve(
    conn: &mut Conn,
    server: &Server,
    cve: &Cve,
) -> Result<Vec<ScoredFinding>> {
    Ok(load_findings(conn, server, Some(cve)).await?.0)
}

async fn load_findings(
    conn: &mut Conn,
    server: &Server,
    only: Option<&Cve>,
) -> Result<(Vec<ScoredFinding>, Vec<Unassessed>)> {
    let Some(kind) = kind_of(server) else { return Ok((Vec::new(), Vec::new())) };
    let (mut all, unassessed) = kind_findings(conn, server.org_id, &kind, only).await?;
    all.sort_by_key(|one| Reverse(one.server_finding.finding.severity));
    let ids: BTreeSet<&str> =
        all.iter().map(|one| one.server_finding.finding.cve.as_ref()).collect();
    let exploited = advisories::exploited(conn, &ids).await?;
    let epss = advisories::epss(conn, &ids).await?;
    let exposed = all.into_iter().map(|KindFinding { server_finding: settled, manager_agrees }| {
        let cve = settled.finding.cve.as_ref();
        let (exploited, epss) = (exploited.get(cve).cloned(), epss.get(cve).cloned());
        ScoredFinding { server_finding: settled, manager_agrees, exploited, epss }
    });
    Ok((exposed.collect(), unassessed))
}

/// Whether the imported feeds list CVEs of a base ecosystem that no update fixes yet.
#[boxed]
pub async fn lists_unfixed(conn: &mut Conn, base: &Ecosystem) -> Result<bool> {
    match base.family().unfixed_cves() {
        UnfixedCves::Listed => Ok(true),
        UnfixedCves::NotListed => Ok(false),
        UnfixedCves::CsafOnly => {
            let feeds = feeds::list(conn).await?;
            let csaf = feeds.into_iter().filter(|feed| feed.kind == "csaf").map(|feed| feed.name);
            Ok(advisories::covered_by(conn, base, &csaf.collect::<Vec<_>>()).await?)
        }
    }
}

/// What a server kind has to fix, for policies: its findings, whether an update fixes them, and the
/// security updates that no finding explains. An update that its distribution still phases in is not
/// offered yet.
#[boxed]
pub async fn policy_fixes(conn: &mut Conn, org: OrgId, kind: &ServerKind) -> Result<Vec<Fix>> {
    let (found, _) = kind_findings(conn, org, kind, None).await?;
    let pending: Vec<Pending> = match kind.update_set {
        Some(set) => entries(conn, org, ListingKind::Updates, set).await?,
        None => Vec::new(),
    };
    let offered: Vec<Pending> =
        pending.into_iter().filter(|update| update.blocked_by != Some(BlockedBy::Phased)).collect();
    let closed = findings_closed_by(conn, org, kind, &offered).await?;
    let named: BTreeSet<&str> =
        offered.iter().flat_map(|update| &update.cves).map(String::as_str).collect();
    let ids: BTreeSet<&str> =
        found.iter().map(|one| one.server_finding.finding.cve.as_ref()).collect();
    let exploited = advisories::exploited(conn, &ids).await?;
    let key = |finding: &Finding| (finding.cve.clone(), finding.package.source.clone());
    let fixable: BTreeSet<(Arc<str>, String)> = closed.iter().flatten().map(key).collect();
    let mut fixes: Vec<Fix> = Vec::new();
    for one in &found {
        let finding = &one.server_finding.finding;
        let availability = match one.server_finding.exposure {
            Exposure::FixedOnDisk => Availability::FixedOnDisk,
            Exposure::Open
                if fixable.contains(&key(finding)) || named.contains(finding.cve.as_ref()) =>
            {
                Availability::Offered
            }
            Exposure::Open => Availability::NoFix,
        };
        fixes.push(Fix {
            subject: Subject {
                cve: finding.cve.to_string(),
                package: finding.package.source.clone(),
            },
            severity: finding.severity,
            kev: exploited.contains_key(finding.cve.as_ref()),
            availability,
        });
    }
    let unexplained = offered
        .iter()
        .zip(&closed)
        .filter(|(update, closed)| update.security && closed.is_empty() && update.cves.is_empty());
    fixes.extend(unexplained.map(|(update, _)| Fix {
        subject: Subject { cve: String::new(), package: update.name.clone() },
        severity: update.severity.unwrap_or(Severity::Unknown),
        kev: false,
        availability: Availability::Offered,
    }));
    Ok(fixes)
}

/// The base ecosystems that feeds cover, among those of the matched servers of an organization.
#[boxed]
pub async fn covered_bases(conn: &mut Conn, org: OrgId) -> Result<BTreeSet<Ecosystem>> {
    let bases = findings::assessed_bases(conn, org).await?;
    let bases: Vec<Ecosystem> = bases.iter().map(String::as_str).map(Ecosystem::new).collect();
    covered_ecosystems(conn, bases.iter()).await
}

/// The pending updates of a server. An update that closes a finding is marked as a security update,
/// even if its repository does not mark it as one.
#[boxed]
pub async fn pending_updates(conn: &mut Conn, server: &Server) -> Result<Vec<Pending>> {
    let Some(kind) = kind_of(server) else { return Ok(Vec::new()) };
    let Some(set) = kind.update_set else { return Ok(Vec::new()) };
    let mut pending: Vec<Pending> = entries(conn, server.org_id, ListingKind::Updates, set).await?;
    if pending.iter().any(|update| !update.security) {
        let closed = findings_closed_by(conn, server.org_id, &kind, &pending).await?;
        let closes = closed.iter().map(|cves| !cves.is_empty());
        let secured = domain::finding::security_packages(&pending, closes);
        let secured: BTreeSet<String> = secured.into_iter().map(str::to_owned).collect();
        for update in &mut pending {
            update.security = secured.contains(&update.name);
        }
    }
    Ok(pending)
}

/// The packages of a server whose pending updates are security updates, by the same rule as
/// [`pending_updates`], for a caller that has already read the findings.
pub fn security_packages<'a>(
    server: &Server,
    installed: &[Installed],
    exposed: &[ScoredFinding],
    pending: &'a [Pending],
) -> BTreeSet<&'a str> {
    let Some(base) = Ecosystem::for_os(&server.os) else {
        return domain::finding::security_packages(pending, pending.iter().map(|_| false));
    };
    // A CVE that only the package manager reports does not make an update a security update; the
    // manager's own mark does.
    let known = exposed.iter().filter(|one| !one.server_finding.finding.found.told);
    let findings: Vec<ServerFinding> = known.map(|one| one.server_finding.clone()).collect();
    let closed = domain::finding::closed_findings(base.family(), installed, &findings, pending);
    domain::finding::security_packages(pending, closed.iter().map(|cves| !cves.is_empty()))
}
