//! Interprets OSV records: CVEs, severities, affected versions, and publisher-specific fields.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use domain::advisory::{
    Advisory, Affected, CveRating, CvssScore, Ecosystem, Family, Rating, Span, SpanEnd,
    parse_vendor_severity,
};
use vocab::FixState;

use super::schema;
use crate::{limits, tracker};

pub(super) fn advisory(osv: schema::Osv<'_>) -> Advisory {
    let covered_cves = vulnerability_ids(&osv);
    let aliases = aliases(&osv, &covered_cves);
    let schema::Osv {
        id,
        summary,
        details,
        published,
        modified,
        withdrawn,
        severity,
        affected,
        ..
    } = osv;
    let summary = summary.unwrap_or_default();
    let description = match (covered_cves.as_slice(), &details) {
        ([_], Some(details)) => shorten(&details.0),
        _ => String::new(),
    };
    let mut ratings: Vec<CveRating> = Vec::new();
    let mut rate = |cve_id: Option<&str>, rating: Rating| {
        let rated = CveRating { flaw: cve_id.map(str::to_owned), rating };
        if !ratings.contains(&rated) {
            ratings.push(rated);
        }
    };
    for score in severity.iter().flatten().filter_map(rating) {
        rate(None, score);
    }
    if let Some(word) = parse_vendor_severity(&osv.database_specific.severity) {
        rate(None, Rating::Word(word));
    }
    let mut all = Vec::new();
    for entry in affected.into_iter().flatten() {
        for score in entry.severity.iter().flatten().filter_map(rating) {
            rate(None, score);
        }
        for cve in &entry.database_specific.cves_map.cves {
            for score in cve.severity.iter().filter_map(rating) {
                rate(Some(&cve.id), score);
            }
        }
        all.extend(self::affected(entry, &summary));
    }
    let rebuild = |entry: &Affected| {
        matches!(entry.ecosystem.family(), Family::AlmaLinux | Family::Rocky | Family::RedHat)
    };
    // These publishers state the severity only here: `Important: nodejs:18 security update`.
    if all.iter().any(rebuild)
        && let Some(word) =
            summary.split_once(':').and_then(|(word, _)| parse_vendor_severity(word))
    {
        rate(None, Rating::Word(word));
    }
    Advisory {
        id,
        flaws: covered_cves,
        aliases,
        summary,
        description,
        published,
        modified,
        withdrawn,
        ratings,
        affected: all,
    }
}

/// The CVEs that a record is about. Publishers put them into `upstream`, `aliases` or `related`, or
/// only into the id. A security advisory without a CVE is identified by its own id. A bug fix has
/// none.
fn vulnerability_ids(osv: &schema::Osv<'_>) -> Vec<String> {
    let cves = |list: &Option<Vec<schema::BorrowedText<'_>>>| -> Vec<String> {
        let words = list.iter().flatten().map(|word| word.0.as_ref());
        words.filter(|word| word.starts_with("CVE-")).map(str::to_owned).collect()
    };
    let mut covered_cves = cves(&osv.upstream);
    covered_cves.extend(cves(&osv.aliases));
    if let Some(at) = osv.id.find("CVE-") {
        covered_cves.push(osv.id[at..].to_owned());
    }
    if covered_cves.is_empty() {
        covered_cves = cves(&osv.related);
    }
    let bug_fix = ["ALBA-", "ALEA-", "RLBA-", "RLEA-", "RHBA-", "RHEA-"]
        .iter()
        .any(|start| osv.id.starts_with(start));
    if covered_cves.is_empty() && !bug_fix {
        covered_cves.push(osv.id.clone());
    }
    covered_cves.sort();
    covered_cves.dedup();
    covered_cves
}

/// Longer descriptions are cut. Most have less than half of it.
const DESCRIPTION_CHARS_MAX: usize = 1000;

/// A description in one paragraph, at most [`DESCRIPTION_CHARS_MAX`] characters long.
fn shorten(details: &str) -> String {
    let mut text = String::new();
    let mut chars = 0;
    for word in details.split_whitespace() {
        chars += word.chars().count() + 1;
        if chars > DESCRIPTION_CHARS_MAX {
            text.push_str(" …");
            break;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text.extend(word.chars().filter(|char| !char.is_control()));
    }
    text.trim_start().to_owned()
}

/// Other ids of the vulnerability, if the record is about exactly one.
fn aliases(osv: &schema::Osv<'_>, covered_cves: &[String]) -> Vec<String> {
    let [only] = covered_cves else { return Vec::new() };
    let words = osv.aliases.iter().flatten().map(|word| word.0.as_ref());
    let aliases: BTreeSet<&str> = words.filter(|word| word != only && !word.is_empty()).collect();
    aliases.into_iter().map(str::to_owned).collect()
}

/// Parses a rating. A value that cannot be parsed is ignored; the severity is then unknown.
fn rating(score: &schema::Severity) -> Option<Rating> {
    match score.kind.starts_with("CVSS") {
        true => CvssScore::parse(&score.score).ok().map(Rating::Cvss),
        false => parse_vendor_severity(&score.score).map(Rating::Word),
    }
}

fn affected(entry: schema::Affected<'_>, summary: &str) -> Option<Affected> {
    let package = entry.package.filter(|package| !package.name.is_empty())?;
    let own = &entry.ecosystem_specific;
    if !own.module_name_regex.is_empty() {
        return None;
    }
    let mut affected = Affected::new(&package.ecosystem, &package.name);
    let family = affected.ecosystem.family();
    for range in entry.ranges.iter().flatten().filter(|range| range.kind != "GIT") {
        affected.spans.extend(spans(&affected.ecosystem, &range.events));
    }
    // A version in the list is affected even if no range contains it.
    let ranges = affected.spans.len();
    for schema::BorrowedText(version) in entry.versions.iter().flatten() {
        let in_range = family.scheme().is_some_and(|scheme| {
            affected.spans[..ranges].iter().any(|span| span.contains(scheme, version))
        });
        // If the version order is unknown, only the list tells which versions the ranges cover.
        if !in_range && (family.scheme().is_some() || ranges == 0) {
            let version = version.clone().into_owned();
            affected.spans.push(Span { from: Some(version.clone()), end: SpanEnd::Last(version) });
        }
    }
    if family == Family::Debian {
        apply_debian_fields(&mut affected, own, &entry.database_specific);
    }
    let modular =
        |span: &Span| matches!(&span.end, SpanEnd::Fixed(fixed) if fixed.contains("module"));
    if affected.spans.iter().any(modular) {
        affected.modules = modules(summary);
    }
    Some(affected)
}

/// The module streams named in a summary. `Moderate: virt:rhel and virt-devel:rhel security update`
/// has two.
fn modules(summary: &str) -> Vec<String> {
    const STREAMS_MAX: usize = 20;
    let words = summary
        .get(..limits::NAME_BYTES_MAX)
        .unwrap_or(summary)
        .split_whitespace()
        .skip(1)
        .map(|word| word.trim_matches([',', ';']));
    let is_stream = |word: &&str| {
        word.split_once(':').is_some_and(|(name, stream)| !name.is_empty() && !stream.is_empty())
    };
    // The streams are copied into every package, so only the start of an overlong summary is used.
    words.filter(is_stream).take(STREAMS_MAX).map(str::to_owned).collect()
}

fn apply_debian_fields(
    affected: &mut Affected,
    own: &schema::PublisherFields,
    database: &schema::PublisherFields,
) {
    affected.severity = parse_vendor_severity(&own.urgency);
    affected.stance = match own.urgency.as_str() {
        "unimportant" => Some(FixState::Unimportant),
        "end-of-life" => Some(FixState::EndOfLife),
        _ => tracker::fix_state_from_keyword(&database.debian_state),
    };
    if database.debian_state == "fixed_in_unstable" {
        for span in &mut affected.spans {
            if let SpanEnd::Fixed(fixed) = &mut span.end {
                span.end = SpanEnd::FixedElsewhere(std::mem::take(fixed));
            }
        }
    }
}

/// The affected spans of a range, evaluated as the OSV schema specifies.
///
/// The order in which events are written does not matter. In version order, `introduced` opens a
/// span and the next end closes it. An end without an open span is ignored. A range without
/// `introduced` is invalid and is read as if it started at the first version. No version at or
/// above the highest `limit` is affected.
fn spans(ecosystem: &Ecosystem, events: &[schema::Event]) -> Vec<Span> {
    enum Boundary<'a> {
        Start(&'a str),
        Stop(SpanEnd),
    }
    let mut boundaries: Vec<(&str, Boundary<'_>)> = Vec::new();
    for event in events {
        if let Some(version) = &event.introduced {
            boundaries.push((version, Boundary::Start(version)));
        }
        if let Some(version) = &event.fixed {
            boundaries.push((version, Boundary::Stop(SpanEnd::Fixed(version.clone()))));
        }
        if let Some(version) = &event.last_affected {
            boundaries.push((version, Boundary::Stop(SpanEnd::Last(version.clone()))));
        }
    }
    let limits: Vec<&str> = events.iter().filter_map(|event| event.limit.as_deref()).collect();
    let is_start = |(_, turn): &(&str, Boundary<'_>)| matches!(turn, Boundary::Start(_));
    let is_empty = boundaries.is_empty() && limits.is_empty();
    if !is_empty && !boundaries.iter().any(is_start) {
        boundaries.insert(0, ("0", Boundary::Start("0")));
    }
    let scheme = ecosystem.family().scheme();
    // `0` sorts before everything. Of two events at the same version, `introduced` comes first.
    if let Some(scheme) = scheme {
        boundaries.sort_by(|(a, one), (b, other)| {
            let ends = |boundary: &Boundary<'_>| matches!(boundary, Boundary::Stop(_));
            (*a != "0")
                .cmp(&(*b != "0"))
                .then_with(|| scheme.compare(a, b))
                .then_with(|| ends(one).cmp(&ends(other)))
        });
    }
    let mut spans = Vec::new();
    let mut open: Option<Option<String>> = None;
    for (_, turn) in boundaries {
        match turn {
            Boundary::Start(version) => {
                open.get_or_insert_with(|| (version != "0").then(|| version.to_owned()));
            }
            Boundary::Stop(end) => spans.extend(open.take().map(|from| Span { from, end })),
        }
    }
    spans.extend(open.map(|from| Span { from, end: SpanEnd::Open }));
    if let Some(scheme) = scheme
        && !limits.iter().any(|limit| limit.contains('*'))
        && let Some(limit) = limits.iter().max_by(|a, b| scheme.compare(a, b))
    {
        let compare = |a: &str, b: &str| scheme.compare(a, b);
        spans.iter_mut().for_each(|span| limit_span(span, limit, compare));
    }
    spans
}

/// Ends a span at a limit, unless it ends earlier.
fn limit_span(span: &mut Span, limit: &str, compare: impl Fn(&str, &str) -> Ordering) {
    let ends_before = match &span.end {
        SpanEnd::Fixed(end) | SpanEnd::FixedElsewhere(end) => compare(end, limit).is_le(),
        SpanEnd::Last(last) => compare(last, limit).is_lt(),
        SpanEnd::Open => false,
    };
    if !ends_before {
        span.end = SpanEnd::FixedElsewhere(limit.to_owned());
    }
}
