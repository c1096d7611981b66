//! Builds one patch row per package from the update sets and the number of servers with each.

use std::collections::{BTreeMap, BTreeSet};

use domain::finding::PACKAGE_MANAGER;
use jiff::Timestamp;
use serde_json::json;
use store::patches::{Patch, PatchServerKind};
use vocab::{Pending, Severity, UpdateType};

use super::closed_cves::{ClosedCve, ClosureIndex};
use super::{Counts, UpdateSets, severity_order};

/// Limits for one row: version pairs, and CVEs.
const VERSIONS_MAX: usize = 100;
const CVES_MAX: usize = 1_000;

pub(super) struct PatchInputs<'a> {
    pub(super) kinds: &'a [PatchServerKind],
    pub(super) update_sets: &'a UpdateSets,
    pub(super) closure_index: &'a ClosureIndex,
    /// The CVEs that are known to be exploited, among those that any update fixes.
    pub(super) exploited: &'a BTreeSet<String>,
    pub(super) first_seen: &'a BTreeMap<String, Timestamp>,
    pub(super) now: Timestamp,
}

/// The severity of an update and its source. The greatest rating wins: the highest severity first;
/// for equal severities, a feed (which rates the CVE) before the package manager (which rates the
/// update), and both before a CVSS score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rating<'a> {
    severity: Severity,
    rated_by: RatingSource,
    source: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RatingSource {
    Score,
    Manager,
    Feed,
}

/// The aggregate of one package's updates.
#[derive(Default)]
struct PackageAggregate<'a> {
    rating: Option<Rating<'a>>,
    security: bool,
    exploited: bool,
    update_type: Option<UpdateType>,
    servers: u64,
    versions: BTreeSet<(&'a str, &'a str, &'a str)>,
    cves: BTreeSet<&'a str>,
}

/// One row per package, in list order.
pub(super) fn build_rows(inputs: &PatchInputs<'_>) -> Vec<Patch> {
    let mut packages: BTreeMap<&str, PackageAggregate<'_>> = BTreeMap::new();
    for kind in inputs.kinds {
        let Some(list) = kind.update_set.and_then(|set| inputs.update_sets.get(&set)) else {
            continue;
        };
        let closed = inputs.closure_index.closed_cves(kind);
        let mut last = None;
        for update in list {
            let package = packages.entry(&update.name).or_default();
            let closed_cves = closed.and_then(|closed| closed.get(&update.name));
            // A package of two architectures is one row, and counts each server once.
            if last.replace(&update.name) != Some(&update.name) {
                package.servers += kind.servers;
            }
            package.add_update(update, &kind.os_release, closed_cves.map_or(&[], Vec::as_slice));
        }
    }
    for package in packages.values_mut() {
        package.exploited = package.cves.iter().any(|cve| inputs.exploited.contains(*cve));
    }
    let mut rows: Vec<Patch> = packages
        .into_iter()
        .map(|(name, package)| {
            package.into_row(name, inputs.first_seen.get(name).copied().unwrap_or(inputs.now))
        })
        .collect();
    sort(&mut rows);
    rows
}

/// Every CVE that a pending update fixes.
pub(super) fn all_cves<'a>(
    update_sets: &'a UpdateSets,
    closure_index: &'a ClosureIndex,
) -> BTreeSet<&'a str> {
    let vendor_reported =
        update_sets.values().flatten().flat_map(|update| &update.cves).map(String::as_str);
    vendor_reported
        .chain(closure_index.all_cves().map(|closed_cve| closed_cve.cve.as_ref()))
        .collect()
}

impl<'a> PackageAggregate<'a> {
    fn add_update(&mut self, update: &'a Pending, os: &'a str, closed_cves: &'a [ClosedCve]) {
        self.rating = self.rating.max(rate(update, closed_cves));
        self.security |= update.security || !closed_cves.is_empty();
        // The most important type of all updates; the variants are ordered by importance.
        let worse =
            self.update_type.map_or(update.update_type, |known| known.min(update.update_type));
        self.update_type = Some(worse);
        if self.versions.len() < VERSIONS_MAX {
            self.versions.insert((os, &update.installed, &update.candidate));
        }
        self.cves.extend(update.cves.iter().map(String::as_str));
        self.cves.extend(closed_cves.iter().map(|closed_cve| closed_cve.cve.as_ref()));
    }

    fn into_row(self, name: &str, first_seen_at: Timestamp) -> Patch {
        let severity = self.rating.map_or(Severity::Unknown, |rating| rating.severity);
        let update_type = match self.security {
            true => UpdateType::Security,
            false => self.update_type.unwrap_or(UpdateType::Other),
        };
        let versions = self.versions.iter();
        let versions = versions.map(|(os, from, to)| json!({"os": os, "from": from, "to": to}));
        Patch {
            package_name: name.to_owned(),
            severity_order: severity_order(severity),
            kev_order: i64::from(!self.exploited),
            servers_order: i64::try_from(self.servers).map_or(i64::MIN, |servers| -servers),
            update_type,
            severity_source: self.rating.map(|rating| rating.source.to_owned()),
            versions: versions.collect(),
            cves: self.cves.into_iter().take(CVES_MAX).map(str::to_owned).collect(),
            first_seen_at,
        }
    }
}

/// The rating of an update on servers where it fixes these CVEs. A CVSS score counts only for a
/// CVE that the distribution does not rate; the package manager's severity of an update applies to
/// every CVE that the update names.
fn rate<'a>(update: &'a Pending, closed_cves: &'a [ClosedCve]) -> Option<Rating<'a>> {
    let managers =
        update.severity.map(|severity| (severity, RatingSource::Manager, PACKAGE_MANAGER));
    let is_rated = update.severity.is_some_and(|severity| severity != Severity::Unknown);
    let is_rated_by_manager = |closed_cve: &&ClosedCve| {
        closed_cve.scored && is_rated && update.cves.iter().any(|cve| **cve == *closed_cve.cve)
    };
    let feeds = closed_cves
        .iter()
        .filter(|closed_cve| !is_rated_by_manager(closed_cve))
        .filter_map(|flaw| {
            let rating_source = if flaw.scored { RatingSource::Score } else { RatingSource::Feed };
            Some((flaw.severity, rating_source, flaw.source.as_deref()?))
        });
    let all = managers.into_iter().chain(feeds);
    all.map(|(severity, voice, source)| Rating { severity, rated_by: voice, source }).max()
}

/// Sorts rows into list order.
pub(super) fn sort(rows: &mut [Patch]) {
    rows.sort_by(|a, b| {
        let key = |row: &Patch| (row.severity_order, row.kev_order, row.servers_order);
        key(a).cmp(&key(b)).then_with(|| a.package_name.cmp(&b.package_name))
    });
}

pub(super) fn count_fleet(kinds: &[PatchServerKind], rows: &[Patch]) -> Counts {
    let mut counts = Counts { patches: rows.len() as u64, ..Counts::default() };
    for kind in kinds {
        counts.reboot_required += kind.reboot_required;
        counts.quarantined += kind.quarantined;
        match kind.package_set {
            None => counts.not_scanned += kind.servers,
            Some(_) => {
                counts.with_updates += kind.outdated;
                counts.stale += kind.stale;
                counts.up_to_date +=
                    kind.servers.saturating_sub(kind.outdated).saturating_sub(kind.stale);
            }
        }
        counts.with_security_updates += kind.insecure;
    }
    for row in rows {
        counts.security_patches += u64::from(row.update_type == UpdateType::Security);
        let place = usize::try_from(row.severity_order).unwrap_or(usize::MAX);
        if let Some(count) = counts.severities.get_mut(place) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use std::sync::Arc;

    use vocab::{Digest, Os};

    use super::*;

    fn closed_cve(cve: &str, severity: Severity, source: &str) -> ClosedCve {
        let scored = source.starts_with("cvss");
        ClosedCve { cve: Arc::from(cve), severity, source: Some(Arc::from(source)), scored }
    }

    fn rated(
        severity: Option<Severity>,
        cves: &[&str],
        closed_cves: &[ClosedCve],
    ) -> Option<(Severity, String)> {
        let mut update = Pending::new("curl", "amd64", "1", "2");
        update.severity = severity;
        update.cves = cves.iter().map(|cve| (*cve).to_owned()).collect();
        rate(&update, closed_cves).map(|rating| (rating.severity, rating.source.to_owned()))
    }

    #[test]
    fn distribution_severity_takes_precedence_over_cvss_score() {
        let word = closed_cve("CVE-1", Severity::Low, "debian");
        let score = closed_cve("CVE-2", Severity::Critical, "cvss:3.1");
        let says = |severity: Severity, source: &str| Some((severity, source.to_owned()));
        assert_eq!(rated(None, &[], &[]), None);
        assert_eq!(rated(None, &[], std::slice::from_ref(&word)), says(Severity::Low, "debian"));
        let both = [word, score];
        assert_eq!(rated(None, &[], &both), says(Severity::Critical, "cvss:3.1"));
        let medium = Some(Severity::Medium);
        assert_eq!(rated(medium, &["CVE-2"], &both), says(Severity::Medium, "package_manager"));
        assert_eq!(rated(medium, &[], &both), says(Severity::Critical, "cvss:3.1"));
        assert_eq!(rated(Some(Severity::Low), &[], &both[..1]), says(Severity::Low, "debian"));
        let silent = ClosedCve { source: None, ..closed_cve("CVE-3", Severity::Unknown, "") };
        assert_eq!(rated(None, &[], &[silent]), None);
    }

    #[test]
    fn server_counts_once_per_package_with_several_architectures() {
        let set = Digest::compute(b"one");
        let kind = PatchServerKind {
            update_set: Some(set),
            package_set: None,
            os_release: "debian 12".into(),
            kernel: String::new(),
            runs: String::new(),
            os: Os::new("debian", "12", "").unwrap(),
            servers: 3,
            reboot_required: 1,
            quarantined: 0,
            outdated: 3,
            stale: 0,
            insecure: 0,
            fewest: 0,
            most: 0,
        };
        let list =
            vec![Pending::new("libc6", "amd64", "1", "2"), Pending::new("libc6", "i386", "1", "2")];
        let rows = build_rows(&PatchInputs {
            kinds: &[kind],
            update_sets: &UpdateSets::from([(set, list)]),
            closure_index: &ClosureIndex::default(),
            exploited: &BTreeSet::new(),
            first_seen: &BTreeMap::new(),
            now: Timestamp::UNIX_EPOCH,
        });
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].servers_order, -3);
        assert_eq!(rows[0].versions, json!([{"os": "debian 12", "from": "1", "to": "2"}]));
    }
}
