//! Generates random statements about the packages of a dpkg database, as Debian's security tracker
//! makes them.

use std::collections::{BTreeMap, BTreeSet};

use domain::sim::Rng;
use vocab::Installed;

use super::lab::LOCAL_SOURCES;

/// The tracker's statements about one CVE in one source package.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fact {
    pub(crate) cve: String,
    pub(crate) source: String,
    pub(crate) unstable: Option<Note>,
    /// The note for bookworm, the release that the tests use.
    pub(crate) release: Option<Note>,
    /// The note for bullseye.
    pub(crate) older: Option<Note>,
    /// The versions in which advisories (DSA) for bookworm fix the bug.
    pub(crate) advisories: Vec<String>,
    /// The fixed version of a withdrawn advisory.
    pub(crate) withdrawn: Option<String>,
    /// Affected ranges (from, until), for bugs that came back. Only OSV can express them; the other
    /// fields are then empty.
    pub(crate) ranges: Vec<(String, Option<String>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) state: State,
    pub(crate) urgency: Urgency,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Fixed(String),
    Unfixed,
    Removed,
    Undetermined,
    NotAffected,
    EndOfLife,
    NoDsa,
    Postponed,
    Ignored,
}

/// In the tracker's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    NotYetAssigned,
    EndOfLife,
    Unimportant,
    Low,
    Medium,
    High,
}

impl Note {
    fn new(state: State) -> Note {
        let urgency = match state {
            State::NotAffected => Urgency::Unimportant,
            State::EndOfLife => Urgency::EndOfLife,
            _ => Urgency::NotYetAssigned,
        };
        Note { state, urgency }
    }

    /// The fixed version as the tracker stores it.
    pub(crate) fn version(&self) -> Option<&str> {
        match &self.state {
            State::Fixed(version) => Some(version),
            State::NotAffected => Some("0"),
            State::Undetermined => Some("undetermined"),
            _ => None,
        }
    }

    /// Whether the note only states when the security team will fix the bug. The tracker stores
    /// such notes separately.
    pub(crate) fn is_fix_plan(&self) -> bool {
        matches!(self.state, State::NoDsa | State::Postponed | State::Ignored)
    }
}

impl Fact {
    /// The version that fixes this release, from its line or its latest advisory.
    pub(crate) fn release_fix(&self) -> Option<&str> {
        let line = self.release.as_ref().and_then(|note| match &note.state {
            State::Fixed(version) => Some(version.as_str()),
            _ => None,
        });
        let advisories = self.advisories.iter().map(String::as_str);
        advisories.chain(line).max_by(|a, b| pkgver::deb::compare(a, b))
    }

    pub(crate) fn unstable_version(&self) -> Option<&str> {
        self.unstable.as_ref().and_then(Note::version)
    }

    /// The highest urgency of all lines, which the tracker takes for the urgency of the pair.
    pub(crate) fn urgency(&self) -> Urgency {
        let lines = [&self.unstable, &self.release, &self.older].into_iter().flatten();
        let stored = lines.filter(|note| !note.is_fix_plan()).map(|note| note.urgency);
        stored.max().unwrap_or(Urgency::NotYetAssigned)
    }
}

/// The installed versions of each source package, by the name that advisories use.
pub(crate) type Sources = BTreeMap<String, BTreeSet<String>>;

pub(crate) fn sources(packages: &[Installed]) -> Sources {
    let mut sources = Sources::new();
    for package in packages {
        let versions = sources.entry(advisory_name(package).to_owned()).or_default();
        versions.insert(package.source_version().to_owned());
    }
    sources
}

/// The source package name that advisories about a package use.
pub(crate) fn advisory_name(package: &Installed) -> &str {
    if is_signed_kernel(package.source()) { "linux" } else { package.source() }
}

pub(crate) fn is_signed_kernel(source: &str) -> bool {
    source.starts_with("linux-signed-")
}

/// The versions of a source that the archive has for this release.
pub(crate) fn archive_versions<'a>(sources: &'a Sources, source: &str) -> Vec<&'a str> {
    let is_local = LOCAL_SOURCES.contains(&source);
    let versions = sources.get(source).into_iter().flatten().filter(|_| !is_local);
    versions.map(String::as_str).collect()
}

pub(crate) fn generate(seed: u64, count: usize, sources: &Sources) -> Vec<Fact> {
    let mut rng = Rng::new(seed);
    let names: Vec<&str> = sources.keys().map(String::as_str).collect();
    let mut facts: Vec<Fact> = Vec::new();
    let mut number = 0;
    let mut named: BTreeSet<&str> = BTreeSet::new();
    while facts.len() < count {
        let source = rng.pick(&names);
        // Some CVEs are in several sources.
        if named.contains(source) || !rng.percent(15) {
            number += 1;
            named.clear();
        }
        named.insert(source);
        let installed: Vec<&str> = sources[source].iter().map(String::as_str).collect();
        let cve = format!("CVE-2026-{:05}", 10_000 + number);
        facts.push(fact(&mut rng, cve, source, &installed));
    }
    facts
}

fn fact(rng: &mut Rng, cve: String, source: &str, installed: &[&str]) -> Fact {
    let mut fact = Fact { cve, source: source.to_owned(), ..Fact::default() };
    if rng.percent(6) {
        fact.ranges = ranges(rng, installed);
        return fact;
    }
    let is_local = LOCAL_SOURCES.contains(&source);
    let version = |rng: &mut Rng| {
        loop {
            let version = version_near(rng, installed);
            // Debian does not fix a bug in a version that it never shipped.
            let same = |known: &&str| pkgver::deb::compare(known, &version).is_eq();
            if !is_local || !installed.iter().any(same) {
                return version;
            }
        }
    };
    let unstable = match rng.between(0, 99) {
        0..55 => Some(State::Fixed(version(rng))),
        55..75 => Some(State::Unfixed),
        75..80 => Some(State::Removed),
        80..85 => Some(State::Undetermined),
        85..88 => Some(State::NotAffected),
        88..90 => Some(State::Fixed("0".to_owned())),
        _ => None,
    };
    let release = match rng.between(0, 99) {
        0..25 => Some(State::Fixed(version(rng))),
        25..30 => Some(State::NotAffected),
        30..35 => Some(State::EndOfLife),
        35..45 => Some(State::NoDsa),
        45..50 => Some(State::Postponed),
        50..55 => Some(State::Ignored),
        55..58 => Some(State::Undetermined),
        58..62 => Some(State::Unfixed),
        62..63 => Some(State::Fixed("0".to_owned())),
        _ => None,
    };
    let older = match rng.between(0, 99) {
        0..10 => Some(State::Fixed(version(rng))),
        10..14 => Some(State::NotAffected),
        14..17 => Some(State::EndOfLife),
        17..20 => Some(State::NoDsa),
        _ => None,
    };
    fact.unstable = unstable.map(Note::new);
    fact.release = release.map(Note::new);
    fact.older = older.map(Note::new);
    if let Some(note) = &mut fact.unstable
        && note.state != State::NotAffected
    {
        let nothing = Urgency::NotYetAssigned;
        let words = [Urgency::Unimportant, Urgency::Low, Urgency::Medium, Urgency::High];
        note.urgency = if rng.percent(40) { rng.pick(&words) } else { nothing };
    }
    if fact.release.as_ref().is_none_or(Note::is_fix_plan) && rng.percent(35) {
        let number = rng.between(1, 2);
        fact.advisories = (0..number).map(|_| version(rng)).collect();
    }
    // A release is usually fixed in a lower version than unstable.
    if rng.percent(80) {
        fix_unstable_last(&mut fact);
    }
    // Every fact has a line or an advisory that covers the release.
    if fact.unstable.is_none() && fact.release.is_none() && fact.advisories.is_empty() {
        fact.unstable = Some(Note::new(State::Unfixed));
    }
    if rng.percent(5) {
        fact.withdrawn = Some("99:1".to_owned());
    }
    fact
}

/// Swaps the fixes of unstable and of the release if unstable's is the lower one.
fn fix_unstable_last(fact: &mut Fact) {
    let (Some(unstable), Some(release)) = (&mut fact.unstable, &mut fact.release) else { return };
    if let (State::Fixed(in_unstable), State::Fixed(in_release)) =
        (&mut unstable.state, &mut release.state)
        && in_unstable != "0"
        && in_release != "0"
        && pkgver::deb::compare(in_unstable, in_release).is_lt()
    {
        std::mem::swap(in_unstable, in_release);
    }
}

/// A version at, shortly before, shortly after, or far from an installed one.
fn version_near(rng: &mut Rng, installed: &[&str]) -> String {
    let version = rng.pick(installed);
    let suffix = rng.pick(&["", "", "", "~", "~~1", "~rc1", "+", "+b1", "+deb12u1", ".1", "a"]);
    match rng.between(0, 19) {
        0 => "0~1".to_owned(),
        1 => "99:1".to_owned(),
        // The same without its epoch, or with one.
        2 => version.split_once(':').map_or(version, |(_, rest)| rest).to_owned(),
        3 if !version.contains(':') => format!("1:{version}"),
        4 if !version.contains(':') => format!("0:{version}"),
        _ => format!("{version}{suffix}"),
    }
}

/// Two ranges, one after the other; the second may be open.
fn ranges(rng: &mut Rng, installed: &[&str]) -> Vec<(String, Option<String>)> {
    let mut bounds: Vec<String> = (0..4).map(|_| version_near(rng, installed)).collect();
    bounds.sort_by(|a, b| pkgver::deb::compare(a, b));
    bounds.dedup_by(|a, b| pkgver::deb::compare(a, b).is_eq());
    let mut bounds = bounds.into_iter();
    let mut ranges = Vec::new();
    while let Some(from) = bounds.next() {
        ranges.push((from, bounds.next()));
    }
    ranges
}
