//! What the flaws of a list of packages mean on one server, or on servers that are alike.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use domain::advisory::{Ecosystem, Epss, Exploited};
use domain::finding::{Finding, Kernel, Report, Running, Runs, Settled, settle};
use store::findings::{self, Kind};
use store::servers::Server;
use store::{Conn, advisories};
use vocab::{Exposure, Installed, OrgId, Pending};

use super::judging::packages;
use crate::service::{Result, facts};

/// What servers of a kind have, and what of it was settled from.
#[derive(Debug, Default)]
pub(super) struct Found {
    packages: Vec<Installed>,
    pub(super) settled: Vec<Settled>,
}

/// What servers of a kind have; nothing where nobody publishes anything that is understood. What does no harm is left out.
pub(super) async fn of_kind(conn: &mut Conn, org: OrgId, kind: &Kind) -> Result<Found> {
    let Some(base) = Ecosystem::of(&kind.os) else { return Ok(Found::default()) };
    let report = findings::report(conn, org, kind.package_set, base.as_str()).await?;
    let Some(report) = report else { return Ok(Found::default()) };
    let packages = packages(conn, org, kind.package_set).await?;
    let Runs { foreign_kernel, since, old_code } = facts::runs_of(&kind.runs);
    let kernel = match kind.kernel.as_str() {
        _ if foreign_kernel => Kernel::Foreign,
        "" => Kernel::Unknown,
        release => Kernel::Release(release),
    };
    let before = match since {
        Some(set) => findings::report(conn, org, set, base.as_str()).await?.unwrap_or_default(),
        None => Report::default(),
    };
    let open = |finding| Settled { finding, exposure: Exposure::Open };
    let before: Vec<Settled> = before.findings.into_iter().map(open).collect();
    let running = Running { kernel, old_code: &old_code };
    let mut settled = settle(base.family(), &before, &report.findings, &packages, &running);
    settled.retain(|one| !one.finding.state.is_hidden());
    Ok(Found { packages, settled })
}

/// Which flaws each of these pending updates closes on servers of a kind: one list an update, in their order.
pub async fn closed(
    conn: &mut Conn,
    org: OrgId,
    kind: &Kind,
    pending: &[Pending],
) -> Result<Vec<Vec<Finding>>> {
    let Some(base) = Ecosystem::of(&kind.os) else { return Ok(vec![Vec::new(); pending.len()]) };
    let Found { packages, settled } = of_kind(conn, org, kind).await?;
    let closed = domain::finding::closed(base.family(), &packages, &settled, pending);
    Ok(closed.into_iter().map(|some| some.into_iter().cloned().collect()).collect())
}

/// The kind that a server is of; none before it has sent a list.
pub(crate) fn kind_of(server: &Server) -> Option<Kind> {
    Some(Kind {
        package_set: server.package_set?,
        os_release: server.os.to_string(),
        kernel: server.kernel.clone(),
        runs: server.runs.clone(),
        os: server.os.clone(),
        environment: None,
        servers: 1,
    })
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
    let Some(kind) = kind_of(server) else { return Ok(Vec::new()) };
    let mut settled = of_kind(conn, server.org_id, &kind).await?.settled;
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

/// The packages of a server whose pending updates close one of its flaws.
pub fn closing<'a>(
    server: &Server,
    installed: &[Installed],
    exposed: &[Exposed],
    pending: &'a [Pending],
) -> BTreeSet<&'a str> {
    let Some(base) = Ecosystem::of(&server.os) else { return BTreeSet::new() };
    let settled: Vec<Settled> = exposed.iter().map(|one| one.settled.clone()).collect();
    let closed = domain::finding::closed(base.family(), installed, &settled, pending);
    let closing = pending.iter().zip(closed).filter(|(_, flaws)| !flaws.is_empty());
    closing.map(|(update, _)| update.name.as_str()).collect()
}
