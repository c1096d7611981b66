//! Which flaws pending updates close, and how many updates are for security therefore: asked once for servers that are alike,
//! and again when what is known of their packages has become something else.

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

/// A flaw that an update closes, and what the feeds say of how bad it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) cve: Arc<str>,
    pub(super) severity: Severity,
    pub(super) source: Option<Arc<str>>,
    /// Whether that is a score and not the distribution's word.
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

/// What the updates of a kind close, by package.
pub(super) type Closed = BTreeMap<String, Vec<Flaw>>;

type Key = (Digest, Digest, String, String, String);

/// What is known of the updates of a kind.
#[derive(Debug)]
struct Closing {
    /// When what is known of the packages last became something else; none: they were not judged yet, or nobody can.
    changed: Option<i64>,
    closed: Closed,
    /// How many of the updates are for security; none before the packages are judged.
    secured: Option<u32>,
}

/// What the updates of every kind close.
#[derive(Debug, Default)]
pub(super) struct Closings(BTreeMap<Key, Closing>);

impl Closings {
    /// What the updates of servers of this kind close.
    pub(super) fn of(&self, kind: &Kind) -> Option<&Closed> {
        self.0.get(&key(kind)?).map(|known| &known.closed)
    }

    /// How many updates of servers of this kind are for security, as an order for security means it. None as long as that
    /// is not known.
    pub(super) fn secured(&self, kind: &Kind, lists: &Lists) -> Option<u32> {
        let key = key(kind)?;
        match lists.get(&key.0)?.is_empty() {
            true => Some(0),
            false => self.0.get(&key)?.secured,
        }
    }

    /// The flaws that any update closes.
    pub(super) fn flaws(&self) -> impl Iterator<Item = &Flaw> {
        self.0.values().flat_map(|known| known.closed.values().flatten())
    }

    /// Asks for those kinds that are new or known otherwise since, and forgets those that are gone.
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
            // Where nobody publishes anything, the manager's word is all there is.
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
