//! Compares our matcher with the evaluation algorithm of the OSV schema on random records.
//!
//! The algorithm is implemented from the specification ("Evaluation" in the schema's documentation)
//! and works on raw JSON, so that it shares only the version order with our reader.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::Ecosystem;
use domain::finding::AdvisoryIndex;
use domain::sim::Rng;
use feed::FeedKind;
use pkgver::Scheme;
use serde_json::{Value, json};
use vocab::Installed;

use crate::differential::tally::Tally;
use crate::support::{Folder, advisories};

const SEEDS: u64 = 10;
const RECORDS: usize = 400;
const PACKAGE: &str = "package";
const REMARK: &str = "see notes";

/// Ecosystem, version scheme, and versions close to each other.
const ECOSYSTEMS: &[(&str, Scheme, &[&str])] = &[
    (
        "Debian:12",
        Scheme::Deb,
        &[
            "0~1",
            "0.9-1",
            "1.0~rc1-1",
            "1.0-1",
            "0:1.0-1",
            "1.0-1+b1",
            "1.0-1+deb12u1",
            "1.2-1",
            "1.10-1",
            "1:0.1-1",
        ],
    ),
    (
        "Alpine:v3.22",
        Scheme::Apk,
        &[
            "0.9-r0",
            "1.0_rc1-r0",
            "1.0-r0",
            "1.00-r0",
            "1.0-r1",
            "1.0_p1-r0",
            "1.2-r0",
            "1.10-r0",
            "2.0-r0",
        ],
    ),
    (
        "AlmaLinux:9",
        Scheme::Rpm,
        &[
            "0.9-1.el9",
            "1.0~rc1-1.el9",
            "1.0-1.el9",
            "0:1.0-1.el9",
            "1.0^git1-1.el9",
            "1.0-1.el9_4",
            "1.0-2.el9",
            "1.10-1.el9",
            "1:0.1-1.el9",
        ],
    ),
    (
        "Rocky Linux:9",
        Scheme::Rpm,
        &["0:0.9-1.el9", "0:1.0-1.el9", "0:1.0-1.el9_4.1", "0:1.0-2.el9", "1:0.1-1.el9"],
    ),
];

/// Whether a record declares a version of [`PACKAGE`] vulnerable, according to the specification.
fn is_vulnerable(record: &Value, ecosystem: &str, scheme: Scheme, version: &str) -> bool {
    let entries = record["affected"].as_array().unwrap().iter();
    record.get("withdrawn").is_none()
        && entries
            .filter(|entry| {
                entry["package"]["ecosystem"] == ecosystem && entry["package"]["name"] == PACKAGE
            })
            .any(|entry| {
                array_or_empty(&entry["versions"]).iter().any(|listed| listed == version)
                    || array_or_empty(&entry["ranges"])
                        .iter()
                        .filter(|range| range["type"] != "GIT")
                        .any(|range| {
                            is_in_range(&array_or_empty(&range["events"]), scheme, version)
                        })
            })
}

/// Evaluates one range. The specification does not define the order of events at the same version.
/// Here `introduced` comes first, so that a fix in the same version counts.
fn is_in_range(events: &[Value], scheme: Scheme, version: &str) -> bool {
    let at_least = |bound: &str| bound == "0" || scheme.compare(version, bound).is_ge();
    let limits: Vec<&str> = events.iter().filter_map(|event| event["limit"].as_str()).collect();
    let before = |limit: &&str| limit.contains('*') || scheme.compare(version, limit).is_lt();
    if !limits.is_empty() && !limits.iter().any(before) {
        return false;
    }
    let mut sorted: Vec<(&str, &str)> = Vec::new();
    for kind in ["introduced", "fixed", "last_affected"] {
        let versions = events.iter().filter_map(|event| event[kind].as_str());
        sorted.extend(versions.map(|bound| (kind, bound)));
    }
    // The sort is stable, so `introduced` stays first.
    sorted
        .sort_by(|(_, a), (_, b)| (*a != "0").cmp(&(*b != "0")).then_with(|| scheme.compare(a, b)));
    let mut vulnerable = false;
    for (kind, bound) in sorted {
        match kind {
            "introduced" if at_least(bound) => vulnerable = true,
            "fixed" if scheme.compare(version, bound).is_ge() => vulnerable = false,
            "last_affected" if scheme.compare(version, bound).is_gt() => vulnerable = false,
            _ => {}
        }
    }
    vulnerable
}

fn array_or_empty(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// One random record for a CVE.
fn random_record(rng: &mut Rng, ecosystem: &str, versions: &[&str], number: usize) -> Value {
    let entries = rng.between(1, 2);
    let affected: Vec<Value> = (0..entries)
        .map(|_| {
            let other = rng.percent(10);
            let package = json!({
                "ecosystem": if other { "Debian:11" } else { ecosystem },
                "name": if rng.percent(10) { "other" } else { PACKAGE },
            });
            let count = if rng.percent(3) { 0 } else { rng.pick(&[1, 1, 1, 2, 3]) };
            let ranges: Vec<Value> = (0..count).map(|_| random_range(rng, versions)).collect();
            let mut entry = json!({"package": package, "ranges": ranges});
            if rng.percent(25) {
                let count = rng.between(1, 3);
                let listed: Vec<&str> = (0..count).map(|_| rng.pick(versions)).collect();
                entry["versions"] = json!(listed);
            }
            entry
        })
        .collect();
    // Some CVEs have two records.
    let cve = if rng.percent(10) { number.saturating_sub(1) } else { number };
    let mut record = json!({
        "id": format!("A-{number}"),
        "upstream": [format!("CVE-2026-{cve:05}")],
        "affected": affected,
    });
    if rng.percent(3) {
        record["withdrawn"] = json!("2026-11-02T00:00:00Z");
    }
    record
}

fn random_range(rng: &mut Rng, versions: &[&str]) -> Value {
    if rng.percent(5) {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        return json!({"type": "GIT", "repo": "https://example.invalid", "events": [{"introduced": commit}]});
    }
    let bound = |rng: &mut Rng| match rng.between(0, 99) {
        0 => REMARK,
        _ => rng.pick(versions),
    };
    let mut events = Vec::new();
    if !rng.percent(3) {
        let first = if rng.percent(60) { "0" } else { bound(rng) };
        events.push(json!({"introduced": first}));
    }
    // A range has fixes or last affected versions, not both.
    let end = if rng.percent(75) { "fixed" } else { "last_affected" };
    for _ in 0..rng.pick(&[0, 1, 1, 1, 2, 2, 3]) {
        let kind = if rng.percent(25) { "introduced" } else { end };
        events.push(json!({kind: bound(rng)}));
    }
    if end == "fixed" && rng.percent(4) {
        events.push(json!({"fixed": "0"}));
    }
    if rng.percent(10) {
        for _ in 0..rng.between(1, 2) {
            let limit = if rng.percent(20) { "*" } else { rng.pick(versions) };
            events.push(json!({"limit": limit}));
        }
    }
    for place in (1..events.len()).rev() {
        events.swap(place, rng.between(0, place as i64) as usize);
    }
    json!({"type": "ECOSYSTEM", "events": events})
}

/// One CVE and one installed version on which the specification and our matcher differ.
struct Case<'a> {
    /// Every record for the CVE.
    records: &'a [Value],
    ecosystem: &'a str,
    scheme: Scheme,
    version: &'a str,
    /// Whether we report it. The specification does the opposite.
    is_ours: bool,
}

impl Case<'_> {
    fn entries(&self) -> impl Iterator<Item = &Value> {
        let records = self.records.iter().filter(|record| record.get("withdrawn").is_none());
        records.flat_map(|record| record["affected"].as_array().unwrap()).filter(|entry| {
            entry["package"]["ecosystem"] == self.ecosystem && entry["package"]["name"] == PACKAGE
        })
    }

    fn any_range(&self, holds: impl Fn(&[Value]) -> bool) -> bool {
        let ranges = self.entries().flat_map(|entry| array_or_empty(&entry["ranges"]));
        let ranges = ranges.filter(|range| range["type"] != "GIT");
        ranges.into_iter().any(|range| holds(&array_or_empty(&range["events"])))
    }

    fn any_bound(&self, holds: impl Fn(&str) -> bool) -> bool {
        self.any_range(|events| {
            let bounds = events.iter().flat_map(|event| event.as_object().unwrap().values());
            bounds.into_iter().any(|bound| holds(bound.as_str().unwrap()))
        })
    }
}

type Rule = (&'static str, fn(&Case<'_>) -> bool);

const RULES: &[Rule] = &[
    ("bound-is-no-version", |case| case.is_ours && case.any_bound(|bound| bound == REMARK)),
    ("entry-without-versions", |case| {
        let usable =
            |range: &Value| range["type"] != "GIT" && !array_or_empty(&range["events"]).is_empty();
        let says_nothing = |entry: &Value| {
            array_or_empty(&entry["versions"]).is_empty()
                && !array_or_empty(&entry["ranges"]).iter().any(usable)
        };
        case.is_ours && case.entries().any(says_nothing)
    }),
    ("range-without-introduced", |case| {
        let ends_only = |events: &[Value]| {
            !events.is_empty() && events.iter().all(|event| event.get("introduced").is_none())
        };
        case.is_ours && case.any_range(ends_only)
    }),
    ("fixed-in-zero", |case| {
        !case.is_ours
            && case.scheme.compare(case.version, "0").is_lt()
            && case.any_range(|events| events.iter().any(|event| event["fixed"] == "0"))
    }),
    ("listed-version-spelled-differently", |case| {
        let same = |listed: &Value| {
            let listed = listed.as_str().unwrap();
            listed != case.version && case.scheme.compare(listed, case.version).is_eq()
        };
        case.is_ours
            && case.entries().any(|entry| array_or_empty(&entry["versions"]).iter().any(same))
    }),
    ("fixed-by-another-record", |case| {
        let order =
            |bound: &Value| bound.as_str().map(|bound| case.scheme.compare(case.version, bound));
        let is_installed = |event: &Value| order(&event["fixed"]).is_some_and(Ordering::is_ge);
        let is_ahead = |event: &Value| {
            order(&event["fixed"]).is_some_and(Ordering::is_lt)
                || order(&event["last_affected"]).is_some_and(Ordering::is_le)
        };
        // No range that contains the version has an end, and no version list extends the ranges.
        let contains = |events: &[Value]| is_in_range(events, case.scheme, case.version);
        let has_end = |events: &[Value]| {
            contains(events)
                && events.iter().any(is_ahead)
                && events.iter().all(|event| event.get("limit").is_none())
        };
        let is_only_listed = |entry: &Value| {
            array_or_empty(&entry["versions"]).iter().any(|listed| listed == case.version)
                && !array_or_empty(&entry["ranges"])
                    .iter()
                    .any(|range| contains(&array_or_empty(&range["events"])))
        };
        !case.is_ours
            && case.records.len() > 1
            && case.any_range(|events| events.iter().any(is_installed))
            && !case.any_range(has_end)
            && !case.entries().any(is_only_listed)
    }),
];

/// Compares all results for the records of one seed. `dropped` hides one record from our matcher.
fn compare(seed: u64, dropped: Option<&str>, tally: &mut Tally) {
    let folder = Folder::new(&format!("osv-spec-{seed}-{}", dropped.unwrap_or("none")));
    for (ecosystem, scheme, versions) in ECOSYSTEMS {
        let mut rng = Rng::new(seed);
        let records: Vec<Value> = (0..RECORDS)
            .map(|number| random_record(&mut rng, ecosystem, versions, number))
            .collect();
        let text: String = records.iter().map(|record| format!("{record}\n")).collect();
        let mut feed = advisories(&folder.write("records.jsonl", text), FeedKind::Osv);
        feed.retain(|advisory| Some(advisory.id.as_str()) != dropped);
        let index = AdvisoryIndex::new(&Ecosystem::new(ecosystem), &feed);
        let mut by_cve: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for record in records {
            let cve = record["upstream"][0].as_str().unwrap().to_owned();
            by_cve.entry(cve).or_default().push(record);
        }
        for version in *versions {
            let report = index.match_packages(&[Installed::new(PACKAGE, version, "x86_64")]);
            let ours: BTreeSet<&str> =
                report.findings.iter().map(|finding| finding.cve.as_ref()).collect();
            for (cve, records) in &by_cve {
                let is_ours = ours.contains(cve.as_str());
                let is_theirs =
                    records.iter().any(|record| is_vulnerable(record, ecosystem, *scheme, version));
                tally.pairs += 1;
                tally.found += usize::from(is_ours && is_theirs);
                if is_ours == is_theirs {
                    continue;
                }
                let case = Case { records, ecosystem, scheme: *scheme, version, is_ours };
                match RULES.iter().find(|(_, explains)| explains(&case)) {
                    Some((name, _)) => tally.explain(name),
                    None => tally.unexplained.push(format!(
                        "{ecosystem} {version}: {} only: {}",
                        if is_ours { "we" } else { "the specification" },
                        Value::from(records.clone()),
                    )),
                }
            }
        }
    }
}

#[test]
fn osv_records_are_evaluated_as_the_schema_specifies() {
    let mut tally = Tally::default();
    (0..SEEDS).for_each(|seed| compare(seed, None, &mut tally));
    tally.check("osv", RULES.iter().map(|(name, _)| *name));
}

/// Proof that the comparison can fail. Some records match no version, so dropping them changes
/// nothing.
#[test]
fn a_dropped_record_is_reported_as_a_difference() {
    let caught = (0..5).filter(|number| {
        let mut tally = Tally::default();
        compare(0, Some(&format!("A-{number}")), &mut tally);
        !tally.unexplained.is_empty()
    });
    assert!(caught.count() >= 3);
}
