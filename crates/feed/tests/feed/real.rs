//! Tests on real feeds at full size, if `FLEETMEND_TEST_ADVISORIES` names a directory of them. The
//! feeds are not part of this repository. The file name determines the format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use domain::advisory::{Advisory, Ecosystem, Span};
use domain::finding::AdvisoryIndex;
use domain::finding::invalidation::ChangedNames;
use feed::{FeedKind, Record};
use vocab::FixState;

use crate::debsecan::{installed, status};
use crate::support::{advisories, all, check, records};

/// The directory of real feeds. Prints a skip message if there is none.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("FLEETMEND_TEST_ADVISORIES").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: FLEETMEND_TEST_ADVISORIES is not set");
    }
    folder
}

fn tracker() -> FeedKind {
    FeedKind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() }
}

fn feed_kind(name: &str) -> Option<FeedKind> {
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    if plain.ends_with(".osv.jsonl") {
        Some(FeedKind::Osv)
    } else if plain.ends_with(".secdb.json") {
        Some(FeedKind::Secdb)
    } else if plain.starts_with("kev-") {
        Some(FeedKind::Kev)
    } else if plain.starts_with("epss-") {
        Some(FeedKind::Epss)
    } else if plain.ends_with("-tracker-sample.list") {
        Some(tracker())
    } else {
        None
    }
}

fn feeds(folder: &Path) -> Vec<(PathBuf, FeedKind)> {
    let mut found: Vec<(PathBuf, FeedKind)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter_map(|path| {
            let kind = feed_kind(path.file_name()?.to_str()?)?;
            Some((path, kind))
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert!(!found.is_empty(), "{} contains no feeds", folder.display());
    found
}

/// The number of lines, which equals the number of records in a JSONL feed.
fn count_lines(path: &Path) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let unpacked = flate2::read::MultiGzDecoder::new(file);
    std::io::read_to_string(unpacked).unwrap().lines().count()
}

#[test]
fn every_record_of_every_feed_is_read() {
    let Some(folder) = folder() else { return };
    for (path, kind) in feeds(&folder) {
        let checked = check(&path, kind.clone()).unwrap_or_else(|error| panic!("{error}"));
        let count = all(&checked).len();
        println!("{}: {count} records", path.file_name().unwrap().display());
        if kind == FeedKind::Osv {
            assert_eq!(count, count_lines(&path), "{}", path.display());
        }
    }
}

/// Imports a feed as the store does: by id, unless the stored advisory is newer.
fn import(store: &mut BTreeMap<String, Advisory>, feed: &[Advisory]) -> ChangedNames {
    let mut changed_names = ChangedNames::default();
    for advisory in feed {
        let known = store.get(&advisory.id);
        if known.is_none_or(|known| advisory.supersedes(known)) {
            changed_names.record(known, Some(advisory));
            store.insert(advisory.id.clone(), advisory.clone());
        }
    }
    changed_names
}

#[test]
fn importing_a_feed_again_changes_nothing() {
    let Some(folder) = folder() else { return };
    for (path, kind) in feeds(&folder) {
        if !matches!(kind, FeedKind::Osv | FeedKind::Secdb | FeedKind::DebianTracker { .. }) {
            continue;
        }
        let feed = advisories(&path, kind);
        let mut store = BTreeMap::new();
        assert_ne!(import(&mut store, &feed), ChangedNames::default(), "{}", path.display());
        let before = store.clone();
        assert_eq!(import(&mut store, &feed), ChangedNames::default(), "{}", path.display());
        assert!(store == before, "{}", path.display());
    }
}

/// The newer catalog must contain almost all entries of the older one.
#[test]
fn exploited_catalogs_agree_on_common_entries() {
    let Some(folder) = folder() else { return };
    let exploited = |path: &Path| -> BTreeMap<String, _> {
        let entry = |record| match record {
            Record::Exploited(entry) => (entry.cve.clone(), entry.added),
            other => panic!("{other:?}"),
        };
        records(path, FeedKind::Kev).into_iter().map(entry).collect()
    };
    let catalogs: Vec<_> = feeds(&folder)
        .into_iter()
        .filter(|(_, kind)| *kind == FeedKind::Kev)
        .map(|(path, _)| exploited(&path))
        .collect();
    let [older, newer] = &catalogs[..] else { panic!("two catalogs, not {}", catalogs.len()) };
    assert!(older.len() < newer.len());
    let differ = older.iter().filter(|(cve, added)| newer.get(*cve) != Some(added)).count();
    assert!(differ * 100 < older.len(), "{differ} of {}", older.len());
}

/// Compares the tracker's native list with a table of states that was produced independently.
#[test]
fn tracker_list_matches_reference_states() {
    let Some(folder) = folder() else { return };
    let table = std::fs::read_to_string(folder.join("debian12-tracker-sample.states.tsv")).unwrap();
    let list = advisories(&folder.join("debian12-tracker-sample.list"), tracker());
    let mut compared = 0;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [cve, source, state, fixed, urgency, ..] = fields[..] else { panic!("{line}") };
        let affected = list
            .iter()
            .filter(|advisory| advisory.flaws == [cve])
            .flat_map(|advisory| &advisory.affected)
            .find(|affected| affected.package == source);
        // The table also lists packages that only another release's line mentions.
        let Some(affected) = affected else {
            assert_eq!(state, "unknown", "{line}");
            continue;
        };
        let expected = match (urgency, state) {
            // A statement about unstable only. An advisory for the release overrides it.
            (_, "not_affected") if affected.spans == [Span::until("0")] => None,
            (_, "not_affected") => Some(FixState::NotAffected),
            ("unimportant", _) => Some(FixState::Unimportant),
            (_, "unfixed" | "removed") => Some(FixState::Affected),
            (_, "no-dsa" | "postponed") => Some(FixState::Deferred),
            (_, "ignored") => Some(FixState::WontFix),
            (_, "fixed" | "fixed_in_unstable") => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(affected.stance, expected, "{line}");
        if !fixed.is_empty() {
            let text = format!("{:?}", affected.spans);
            assert!(text.contains(fixed), "{line}: {text}");
            assert_eq!(text.contains("Elsewhere"), state == "fixed_in_unstable", "{line}: {text}");
        }
        compared += 1;
    }
    assert!(compared > 40, "{compared}");
}

/// The packages of this machine are matched against Debian's real advisories.
#[test]
fn local_packages_match_real_debian_advisories() {
    let Some(folder) = folder() else { return };
    let Some(packages) = status().map(|text| installed(&text)) else { return };
    let feed = advisories(&folder.join("debian12-advisories.osv.jsonl.gz"), FeedKind::Osv);
    let index = AdvisoryIndex::new(&Ecosystem::new("Debian:12"), &feed);
    let report = index.match_packages(&packages);
    println!(
        "{} packages, {} names with advisories: {} findings, {} unassessed",
        packages.len(),
        index.name_count(),
        report.findings.len(),
        report.unassessed.len()
    );
    for finding in report.findings.iter().take(3) {
        println!("{}: {}", finding.cve, finding.explanation());
    }
    let all_older = report.findings.iter().all(|finding| {
        let fixed = finding.fixed_version.as_deref().expect("advisories have fixes");
        pkgver::deb::compare(&finding.package.version, fixed).is_lt()
    });
    assert!(all_older);
}
