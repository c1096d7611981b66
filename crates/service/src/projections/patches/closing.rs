//! Which CVEs pending updates close, and how many updates are therefore security updates. Computed
//! once per server kind, and again when the findings of its package set change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::advisory::Ecosystem;
use domain::finding::{self, Finding};
use store::patches::Kind;
use store::{Conn, findings};
use vocab::{Digest, OrgId, Pending, Severity};

use super::Lists;
use crate::Result;
use crate::projections::findings as matched;

/// A CVE that an update closes, with the severity from the feeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) cve: Arc<str>,
    pub(super) severity: Severity,
    pub(super) source: Option<Arc<str>>,
    /// Whether the severity comes from a CVSS score and not from the distribution.
    pub(super) scored: bool,
}

impl From<&Finding> for Flaw {
    fn from(finding: &Finding) -> Flaw {
        let source = finding.severity_source.clone();
        let by_score =
            |score: &Arc<domain::advisory::CvssScore>| source.as_deref() == Some(score.source());
        Flaw {
            cve: finding.cve.clone(),
            severity: finding.severity,
            scored: finding.cvss.as_ref().is_some_and(by_score),
            source,
        }
    }
}

/// The CVEs that the updates of a server kind close, by package.
pub(super) type Closed = BTreeMap<String, Vec<Flaw>>;

type Key = (Digest, Digest, String, String, String);

#[derive(Debug)]
struct Closing {
    /// The feed revision at which the findings of the package set last changed; `None` if it has
    /// not been assessed yet or cannot be.
    changed: Option<i64>,
    closed: Closed,
    /// The number of security updates; `None` before the package set is assessed.
    secured: Option<u32>,
}

/// The CVEs that the updates of every server kind close.
#[derive(Debug, Default)]
pub(super) struct Closings(BTreeMap<Key, Closing>);

impl Closings {
    pub(super) fn of(&self, kind: &Kind) -> Option<&Closed> {
        self.0.get(&key(kind)?).map(|known| &known.closed)
    }

    /// The number of security updates on servers of this kind, as counted by a security-only
    /// order. `None` until it is known.
    pub(super) fn secured(&self, kind: &Kind, lists: &Lists) -> Option<u32> {
        let key = key(kind)?;
        match lists.get(&key.0)?.is_empty() {
            true => Some(0),
            false => self.0.get(&key)?.secured,
        }
    }

    /// All CVEs that any update closes.
    pub(super) fn flaws(&self) -> impl Iterator<Item = &Flaw> {
        self.0.values().flat_map(|known| known.closed.values().flatten())
    }

    /// Computes the server kinds that are new or whose findings changed, and drops those that are
    /// gone.
    pub(super) async fn read(
        &mut self,
        conn: &mut Conn,
        org: OrgId,
        kinds: &[Kind],
        lists: &Lists,
    ) -> Result<()> {
        let judged = findings::judged(conn, org).await?;
        let changed: BTreeMap<(Digest, &str), i64> =
            judged.iter().map(|one| ((one.package_set, one.base.as_str()), one.changed)).collect();
        let used: BTreeSet<Key> = kinds.iter().filter_map(key).collect();
        self.0.retain(|key, _| used.contains(key));
        for kind in kinds {
            let Some(key) = key(kind) else { continue };
            let Some(list) = lists.get(&key.0).filter(|list| !list.is_empty()) else { continue };
            let base = Ecosystem::of(&kind.os);
            let changed = base.as_ref().and_then(|base| changed.get(&(key.1, base.as_str())));
            let changed = changed.copied();
            if self.0.get(&key).is_some_and(|known| known.changed == changed) {
                continue;
            }
            let alike = findings::Kind {
                package_set: key.1,
                update_set: None,
                os_release: kind.os_release.clone(),
                kernel: kind.kernel.clone(),
                runs: kind.runs.clone(),
                os: kind.os.clone(),
                environment: None,
                servers: kind.servers,
            };
            let mut closed = Closed::new();
            let all = match changed {
                Some(_) => matched::closed(conn, org, &alike, list).await?,
                None => Vec::new(),
            };
            for (update, flaws) in list.iter().zip(all).filter(|(_, flaws)| !flaws.is_empty()) {
                closed.entry(update.name.clone()).or_default().extend(flaws.iter().map(Flaw::from));
            }
            // Without a feed, the package manager's mark is the only source.
            let is_known = changed.is_some() || base.is_none();
            let secured = is_known.then(|| secured(list, &closed));
            self.0.insert(key, Closing { changed, closed, secured });
        }
        Ok(())
    }
}

fn secured(list: &[Pending], closed: &Closed) -> u32 {
    let closes = list.iter().map(|update| closed.contains_key(&update.name));
    let names = finding::secured(list, closes);
    let secured = list.iter().filter(|update| names.contains(update.name.as_str()));
    u32::try_from(secured.count()).unwrap_or(u32::MAX)
}

fn key(kind: &Kind) -> Option<Key> {
    let Kind { os_release, kernel, runs, .. } = kind;
    let lists = (kind.update_set?, kind.package_set?);
    Some((lists.0, lists.1, os_release.clone(), kernel.clone(), runs.clone()))
}
