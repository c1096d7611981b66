//! Writes the same facts as OSV records, as the tracker's list, and as debsecan's data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use pkgver::deb::compare;
use serde_json::{Value, json};

use super::facts::{Fact, Note, Sources, State, Urgency, archive_versions};

fn by_cve(facts: &[Fact]) -> BTreeMap<&str, Vec<&Fact>> {
    let mut groups: BTreeMap<&str, Vec<&Fact>> = BTreeMap::new();
    for fact in facts {
        groups.entry(&fact.cve).or_default().push(fact);
    }
    groups
}

/// The tracker's list. It contains neither advisories nor bugs that came back.
pub(crate) fn list(facts: &[Fact]) -> String {
    let mut text = String::new();
    for (cve, facts) in by_cve(facts) {
        writeln!(text, "{cve} (generated)").unwrap();
        for fact in facts {
            let lines = [
                ("", &fact.unstable),
                ("[bookworm] ", &fact.release),
                ("[bullseye] ", &fact.older),
            ];
            for (release, note) in lines {
                if let Some(note) = note {
                    let line = list_line(&fact.source, note);
                    writeln!(text, "\t{release}- {line}").unwrap();
                }
            }
        }
    }
    text
}

fn list_line(source: &str, note: &Note) -> String {
    let state = match &note.state {
        State::Fixed(version) => version,
        State::Unfixed => "<unfixed>",
        State::Removed => "<removed>",
        State::Undetermined => "<undetermined>",
        State::NotAffected => return format!("{source} <not-affected> (Introduced later)"),
        State::EndOfLife => return format!("{source} <end-of-life> (Not supported)"),
        State::NoDsa => "<no-dsa>",
        State::Postponed => "<postponed>",
        State::Ignored => "<ignored>",
    };
    match urgency_text(note.urgency) {
        _ if note.is_fix_plan() => format!("{source} {state} (Minor issue)"),
        "" => format!("{source} {state} (bug #1)"),
        word => format!("{source} {state} ({word}; bug #1)"),
    }
}

fn urgency_text(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::NotYetAssigned => "",
        Urgency::EndOfLife => "end-of-life",
        Urgency::Unimportant => "unimportant",
        Urgency::Low => "low",
        Urgency::Medium => "medium",
        Urgency::High => "high",
    }
}

fn lines(records: impl IntoIterator<Item = Value>) -> String {
    records.into_iter().map(|record| format!("{record}\n")).collect()
}

fn range(fixed: Option<&str>) -> Value {
    let mut events = vec![json!({"introduced": "0"})];
    events.extend(fixed.map(|version| json!({"fixed": version})));
    json!([{"type": "ECOSYSTEM", "events": events}])
}

/// The advisories, one OSV record each.
pub(crate) fn advisories(facts: &[Fact]) -> String {
    let mut number = 0;
    let mut records = Vec::new();
    for fact in facts {
        let versions = fact.advisories.iter().map(|version| (version, false));
        for (version, withdrawn) in versions.chain(fact.withdrawn.iter().map(|v| (v, true))) {
            number += 1;
            let affected = |ecosystem: &str, fixed: &str| {
                let package = json!({"ecosystem": ecosystem, "name": fact.source});
                json!({"package": package, "ranges": range(Some(fixed))})
            };
            let mut record = json!({
                "id": format!("DSA-{number}-1"),
                "modified": "2026-11-01T00:00:00Z",
                "upstream": [fact.cve],
                "affected": [affected("Debian:12", version), affected("Debian:11", "99:2")],
            });
            if withdrawn {
                record["withdrawn"] = json!("2026-11-02T00:00:00Z");
            }
            records.push(record);
        }
    }
    lines(records)
}

/// The lines of the tracker, as one OSV record for each CVE.
pub(crate) fn osv(facts: &[Fact]) -> String {
    lines(by_cve(facts).into_iter().map(|(cve, facts)| {
        let affected: Vec<Value> = facts.into_iter().flat_map(osv_affected).collect();
        json!({
            "id": format!("DEBIAN-{cve}"),
            "modified": "2026-11-01T00:00:00Z",
            "upstream": [cve],
            "affected": affected,
        })
    }))
}

fn osv_affected(fact: &Fact) -> Vec<Value> {
    let package = |release: &str| json!({"ecosystem": release, "name": fact.source});
    let mut entries = Vec::new();
    if !fact.ranges.is_empty() {
        // Latest first: the order of events must not matter.
        let event = |(from, until): &(String, Option<String>)| {
            let fixed = until.iter().map(|version| json!({"fixed": version}));
            fixed.chain([json!({"introduced": from})]).collect::<Vec<_>>()
        };
        let events: Vec<Value> = fact.ranges.iter().rev().flat_map(event).collect();
        let ranges = json!([{"type": "ECOSYSTEM", "events": events}]);
        entries.push(json!({"package": package("Debian:12"), "ranges": ranges}));
    }
    if let Some(older) = &fact.older {
        entries.push(json!({"package": package("Debian:11"), "ranges": range(older.version())}));
    }
    let Some(decisive) = fact.release.as_ref().or(fact.unstable.as_ref()) else { return entries };
    let (state, fixed) = match &decisive.state {
        State::Fixed(version) if fact.release.is_some() => ("fixed", Some(version.as_str())),
        State::Fixed(version) => ("fixed_in_unstable", Some(version.as_str())),
        State::NotAffected if fact.release.is_some() => ("not_affected", Some("0")),
        State::NotAffected => ("fixed", Some("0")),
        State::Unfixed => ("unfixed", None),
        State::Removed => ("removed", None),
        State::Undetermined => ("undetermined", None),
        State::EndOfLife => ("end-of-life", None),
        State::NoDsa => ("no-dsa", None),
        State::Postponed => ("postponed", None),
        State::Ignored => ("ignored", None),
    };
    let urgencies = [Some(decisive), fact.unstable.as_ref()].into_iter().flatten();
    let urgency = urgencies.map(|note| note.urgency).max().unwrap_or(Urgency::NotYetAssigned);
    entries.push(json!({
        "package": package("Debian:12"),
        "ranges": range(fixed),
        "ecosystem_specific": {"urgency": urgency_text(urgency)},
        "database_specific": {"debian_state": state},
    }));
    entries
}

/// One line of debsecan's data: the version that fixes unstable, and the other fixed versions.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) unstable: String,
    /// For this release.
    pub(crate) release: BTreeSet<String>,
    /// For the older release.
    pub(crate) older: BTreeSet<String>,
}

/// What the tracker exports for debsecan about one fact. `None` if it exports nothing.
pub(crate) fn debsecan_entry(fact: &Fact, fixes: &Fixes, sources: &Sources) -> Option<Entry> {
    let mut entry =
        Entry { unstable: String::new(), release: BTreeSet::new(), older: BTreeSet::new() };
    if !fact.ranges.is_empty() {
        // debsecan has no ranges. The versions outside the ranges are listed as fixed.
        let affected = |version: &str| {
            fact.ranges.iter().any(|(from, until)| {
                compare(version, from).is_ge()
                    && until.as_ref().is_none_or(|until| compare(version, until).is_lt())
            })
        };
        let sound = sources[&fact.source].iter().filter(|version| !affected(version));
        entry.release = sound.cloned().collect();
        return Some(entry);
    }
    if fact.unstable_version() == Some("0")
        || matches!(fact.urgency(), Urgency::Unimportant | Urgency::EndOfLife)
    {
        return None;
    }
    entry.unstable = fact.unstable_version().unwrap_or_default().to_owned();
    let line = fact.release.as_ref().and_then(Note::version);
    let in_archive = archive_versions(sources, &fact.source);
    if let Some(fix) = fact.release_fix().or(line) {
        let known = fixes.release[&fact.source].iter().map(String::as_str).chain(in_archive);
        entry.release = at_least(fix, known);
    }
    if let Some(fix) = fact.older.as_ref().and_then(Note::version) {
        let known = fixes.older[&fact.source].iter().map(String::as_str);
        entry.older = at_least(fix, known);
    }
    Some(entry)
}

fn at_least<'a>(fix: &str, versions: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    versions.filter(|version| compare(version, fix).is_ge()).map(str::to_owned).collect()
}

/// The versions of each source that fix anything.
#[derive(Default)]
pub(crate) struct Fixes {
    release: BTreeMap<String, BTreeSet<String>>,
    older: BTreeMap<String, BTreeSet<String>>,
}

pub(crate) fn fixes(facts: &[Fact]) -> Fixes {
    let mut fixes = Fixes::default();
    for fact in facts {
        let line = fact.release.as_ref().and_then(Note::version);
        let release = fixes.release.entry(fact.source.clone()).or_default();
        release.extend(fact.release_fix().or(line).map(str::to_owned));
        let older = fixes.older.entry(fact.source.clone()).or_default();
        older.extend(fact.older.as_ref().and_then(Note::version).map(str::to_owned));
    }
    fixes
}

/// debsecan's data, not yet compressed.
pub(crate) fn debsecan(facts: &[Fact], sources: &Sources) -> String {
    let fixes = fixes(facts);
    let cves: Vec<&str> = by_cve(facts).into_keys().collect();
    let numbers: BTreeMap<&str, usize> = cves.iter().copied().zip(0..).collect();
    let mut text = "VERSION 1\n".to_owned();
    text.extend(cves.iter().map(|cve| format!("{cve},,\n")));
    text.push('\n');
    for fact in facts {
        let Some(entry) = debsecan_entry(fact, &fixes, sources) else { continue };
        let others: Vec<&str> = entry.release.union(&entry.older).map(String::as_str).collect();
        let (number, others) = (numbers[fact.cve.as_str()], others.join(" "));
        writeln!(text, "{},{number},S ?F,{},{others}", fact.source, entry.unstable).unwrap();
    }
    text.push_str("\n\n");
    text
}
