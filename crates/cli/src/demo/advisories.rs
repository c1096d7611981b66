//! Advisories for the simulated fleet: a small invented sample in the formats of real feeds.
//!
//! It is derived from the simulated hosts' pending updates, so that installing an update closes the
//! CVEs that it lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use domain::advisory::{Ecosystem, PackageNameKind};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use swarm::Rng;
use swarm::fleet::Fleet;
use vocab::Severity;

/// A sample, not a full feed.
const RECORDS_MAX: usize = 400;
const EXPLOITED: usize = 6;
/// The CVEs were published in the days from the second to the first number before the start.
const PUBLISHED_DAYS: (u64, u64) = (3, 240);

/// An advisory: its severity, and the packages it affects.
#[derive(Default)]
struct Record {
    severity: Option<Severity>,
    /// The fixed version by ecosystem and package.
    fixed: BTreeMap<(String, String), String>,
}

/// Writes the sample to files below `dir` and returns their paths.
pub(super) fn write(
    dir: &Path,
    seed: u64,
    servers: u64,
    now: Timestamp,
) -> anyhow::Result<Vec<PathBuf>> {
    let records = records(seed, servers);
    let folder = dir.join("demo-advisories");
    std::fs::create_dir_all(&folder)?;
    for (cve, record) in &records {
        let text = serde_json::to_vec(&osv(cve, record, published(cve, seed, now), now))?;
        std::fs::write(folder.join(format!("{cve}.json")), text)?;
    }
    let bad = records.iter().filter(|(_, record)| record.severity == Some(Severity::Critical));
    let exploited: Vec<Value> = bad
        .take(EXPLOITED)
        .enumerate()
        .map(|(number, (cve, _))| {
            let added = (published(cve, seed, now) + DAY).min(now - DAY);
            let date = |time: Timestamp| time.strftime("%Y-%m-%d").to_string();
            let ransomware = if number % 3 == 0 { "Known" } else { "Unknown" };
            json!({"cveID": cve, "dateAdded": date(added), "dueDate": date(added + DAY * 21),
                "knownRansomwareCampaignUse": ransomware, "vulnerabilityName": "Fictional (demo)"})
        })
        .collect();
    let mut written = vec![folder];
    if !exploited.is_empty() {
        let list = json!({"title": "Fictional KEV list for the demo", "catalogVersion": "demo",
            "dateReleased": now.to_string(), "count": exploited.len(), "vulnerabilities": exploited});
        let path = dir.join("demo-exploited.json");
        std::fs::write(&path, serde_json::to_vec(&list)?)?;
        written.push(path);
    }
    let path = dir.join("demo-epss.csv");
    std::fs::write(&path, epss(&records, seed, now))?;
    written.push(path);
    Ok(written)
}

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// A random number generator for one CVE, so that its values do not depend on the other CVEs.
fn rng(cve: &str, purpose: &'static str, seed: u64) -> Rng {
    let number = cve
        .bytes()
        .fold(7_u64, |number, byte| number.wrapping_mul(31).wrapping_add(u64::from(byte)));
    Rng::for_entity(seed, purpose, number)
}

fn published(cve: &str, seed: u64, now: Timestamp) -> Timestamp {
    let (first, last) = PUBLISHED_DAYS;
    let hours = rng(cve, "published", seed).between(first * 24, last * 24);
    now - SignedDuration::from_hours(i64::try_from(hours).unwrap_or(24))
}

/// Exploit predictions: most CVEs are unlikely to be exploited, and severe ones are likelier.
fn epss(records: &BTreeMap<String, Record>, seed: u64, now: Timestamp) -> String {
    let mut text =
        format!("#model_version:demo,score_date:{}\ncve,epss,percentile\n", now.strftime("%FT%TZ"));
    for (cve, record) in records {
        let mut rng = rng(cve, "epss", seed);
        // In hundredths of a percent.
        let score = match (record.severity, rng.below(10)) {
            (Some(Severity::Critical), 0..=4) => rng.between(2_000, 9_500),
            (Some(Severity::Critical | Severity::High), 0..=6) => rng.between(100, 2_000),
            _ => rng.between(2, 150),
        };
        let percentile = 10_000 - 9_000 / (1 + score / 20);
        text += &format!("{cve},0.{score:04},0.{:04}\n", percentile.min(9_999));
    }
    text
}

fn records(seed: u64, servers: u64) -> BTreeMap<String, Record> {
    let fleet = Fleet::new(seed, servers);
    let mut records = BTreeMap::<String, Record>::new();
    let mut seen = BTreeSet::new();
    for host in (0..servers).map(|index| fleet.host(index)) {
        let Some(ecosystem) = Ecosystem::for_os(&host.facts().os) else { continue };
        let digests = host.group().digests(host.state.packages);
        if !seen.insert((digests.installed, digests.pending)) {
            continue;
        }
        let by_source = ecosystem.family().name_kind() == PackageNameKind::Source;
        let installed = host.group().installed(host.state.packages);
        for update in host.group().pending(host.state.packages) {
            let package = installed.iter().find(|package| package.name == update.name);
            let source = package.filter(|_| by_source).map(|package| package.source().to_owned());
            let name = source.unwrap_or_else(|| update.name.clone());
            for cve in &update.cves {
                if records.len() >= RECORDS_MAX && !records.contains_key(cve) {
                    continue;
                }
                let record = records.entry(cve.clone()).or_default();
                record.severity = record.severity.max(update.severity);
                record
                    .fixed
                    .insert((ecosystem.to_string(), name.clone()), update.candidate.clone());
            }
        }
    }
    records
}

fn osv(cve: &str, record: &Record, published: Timestamp, now: Timestamp) -> Value {
    let affected: Vec<Value> = record
        .fixed
        .iter()
        .map(|((ecosystem, name), fixed)| {
            json!({"package": {"ecosystem": ecosystem, "name": name},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]})
        })
        .collect();
    let cvss = match record.severity {
        Some(Severity::Critical) => "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H",
        Some(Severity::High) => "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:N/A:N",
        Some(Severity::Medium) => "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:L/I:N/A:N",
        _ => "CVSS:3.1/AV:L/AC:H/PR:L/UI:N/S:U/C:L/I:N/A:N",
    };
    json!({"id": cve, "modified": now.to_string(), "published": published.to_string(),
        "summary": "Fictional, for the demo", "affected": affected,
        "severity": [{"type": "CVSS_V3", "score": cvss}]})
}
