//! Which CVEs pending updates fix, and how many updates are therefore security updates. Computed
//! once per server kind, and again when the findings of its package set change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::advisory::Ecosystem;
use domain::finding::{self, Finding};
use store::patches::PatchServerKind;
use store::{Conn, findings};
use vocab::{Digest, OrgId, Pending, Severity};

use super::UpdateSets;
use crate::Result;
use crate::projections::findings as matched;

/// A CVE that an update fixes, with the severity from the feeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClosedCve {
    pub(super) cve: Arc<str>,
    pub(super) severity: Severity,
    pub(super) source: Option<Arc<str>>,
    /// Whether the severity comes from a CVSS score and not from the distribution.
    pub(super) scored: bool,
}

impl From<&Finding> for ClosedCve {
    fn from(finding: &Finding) -> ClosedCve {
        let source = finding.severity_source.clone();
        let by_score =
            |score: &Arc<domain::advisory::CvssScore>| source.as_deref() == Some(score.source());
        ClosedCve {
            cve: finding.cve.clone(),
            severity: finding.severity,
            scored: finding.cvss.as_ref().is_some_and(by_score),
            source,
        }
    }
}

/// The CVEs that the updates of a server kind fix, by package.
pub(super) type ClosedCves = BTreeMap<String, Vec<ClosedCve>>;

type Key = (Digest, Digest, String, String, String);

#[derive(Debug)]
struct KindClosures {
    /// The feed revision at which the findings of the package set last changed; `None` if it has
    /// not been assessed yet or cannot be.
    changed: Option<i64>,
    closed: ClosedCves,
    /// The number of security updates; `None` before the package set is assessed.
    security_updates: Option<u32>,
}

/// The CVEs that the updates of every server kind fix.
#[derive(Debug, Default)]
pub(super) struct ClosureIndex(BTreeMap<Key, KindClosures>);

impl ClosureIndex {
    pub(super) fn closed_cves(&self, kind: &PatchServerKind) -> Option<&ClosedCves> {
        self.0.get(&key(kind)?).map(|known| &known.closed)
    }

    /// The number of security updates on servers of this kind, as counted by a security-only
    /// order. `None` until it is known.
    pub(super) fn security_update_count(
        &self,
        kind: &PatchServerKind,
        update_sets: &UpdateSets,
    ) -> Option<u32> {
        let key = key(kind)?;
        match update_sets.get(&key.0)?.is_empty() {
            true => Some(0),
            false => self.0.get(&key)?.security_updates,
        }
    }

    /// All CVEs that any update fixes.
    pub(super) fn all_cves(&self) -> impl Iterator<Item = &ClosedCve> {
        self.0.values().flat_map(|known| known.closed.values().flatten())
    }

    /// Computes the server kinds that are new or whose findings changed, and drops those that are
    /// gone.
    pub(super) async fn refresh(
        &mut self,
        conn: &mut Conn,
        org: OrgId,
        kinds: &[PatchServerKind],
        update_sets: &UpdateSets,
    ) -> Result<()> {
        let assessed = findings::assessed_sets(conn, org).await?;
        let changed: BTreeMap<(Digest, &str), i64> = assessed
            .iter()
            .map(|one| ((one.package_set, one.base.as_str()), one.changed))
            .collect();
        let used: BTreeSet<Key> = kinds.iter().filter_map(key).collect();
        self.0.retain(|key, _| used.contains(key));
        for kind in kinds {
            let Some(key) = key(kind) else { continue };
            let Some(list) = update_sets.get(&key.0).filter(|list| !list.is_empty()) else {
                continue;
            };
            let base = Ecosystem::for_os(&kind.os);
            let changed = base.as_ref().and_then(|base| changed.get(&(key.1, base.as_str())));
            let changed = changed.copied();
            if self.0.get(&key).is_some_and(|known| known.changed == changed) {
                continue;
            }
            let finding_kind = findings::ServerKind {
                package_set: key.1,
                update_set: None,
                os_release: kind.os_release.clone(),
                kernel: kind.kernel.clone(),
                runs: kind.runs.clone(),
                os: kind.os.clone(),
                environment: None,
                servers: kind.servers,
            };
            let mut closed = ClosedCves::new();
            let all = match changed {
                Some(_) => matched::findings_closed_by(conn, org, &finding_kind, list).await?,
                None => Vec::new(),
            };
            for (update, cves) in list.iter().zip(all).filter(|(_, flaws)| !flaws.is_empty()) {
                closed
                    .entry(update.name.clone())
                    .or_default()
                    .extend(cves.iter().map(ClosedCve::from));
            }
            // Without a feed, the package manager's mark is the only source.
            let is_known = changed.is_some() || base.is_none();
            let secured = is_known.then(|| count_security_updates(list, &closed));
            self.0.insert(key, KindClosures { changed, closed, security_updates: secured });
        }
        Ok(())
    }
}

fn count_security_updates(list: &[Pending], closed: &ClosedCves) -> u32 {
    let closes = list.iter().map(|update| closed.contains_key(&update.name));
    let names = finding::security_packages(list, closes);
    let secured = list.iter().filter(|update| names.contains(update.name.as_str()));
    u32::try_from(secured.count()).unwrap_or(u32::MAX)
}

fn key(kind: &PatchServerKind) -> Option<Key> {
    let PatchServerKind { os_release, kernel, runs, .. } = kind;
    let lists = (kind.update_set?, kind.package_set?);
    Some((lists.0, lists.1, os_release.clone(), kernel.clone(), runs.clone()))
}
