//! Advisories for the simulated fleet: a small invented sample in the formats of real feeds.
//!
//! It is derived from the simulated hosts' pending updates, so that installing an update closes the
//! CVEs that it lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use domain::advisory::{Ecosystem, PackageNameKind};
use jiff::Timestamp;
use serde_json::{Value, json};
use swarm::fleet::Fleet;
use vocab::Severity;

/// A sample, not a full feed.
const RECORDS_MAX: usize = 400;
const EXPLOITED: usize = 4;

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
        let text = serde_json::to_vec(&osv(cve, record, now))?;
        std::fs::write(folder.join(format!("{cve}.json")), text)?;
    }
    let bad = records.iter().filter(|(_, record)| record.severity == Some(Severity::Critical));
    let exploited: Vec<Value> = bad
        .take(EXPLOITED)
        .map(|(cve, _)| {
            json!({"cveID": cve, "dateAdded": "2026-10-01", "dueDate": "2026-10-22",
            "knownRansomwareCampaignUse": "Unknown", "vulnerabilityName": "Fictional (demo)"})
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
    Ok(written)
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

fn osv(cve: &str, record: &Record, now: Timestamp) -> Value {
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
    json!({"id": cve, "modified": now.to_string(), "published": "2026-09-15T00:00:00Z",
        "summary": "Fictional, for the demo", "affected": affected,
        "severity": [{"type": "CVSS_V3", "score": cvss}]})
}
