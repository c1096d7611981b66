//! The Arch Linux security tracker: groups of CVEs (`AVG-…`) that affect the same packages.
//!
//! The tracker derives `status` from its repositories:
//!
//! | status | meaning | interpreted as |
//! |---|---|---|
//! | `Fixed` | the repositories have the fixed version | affected before that version |
//! | `Testing` | only the testing repositories have it | affected before that version; no update available |
//! | `Vulnerable` | no repository has it, even if a fixed version is known | the same |
//! | `Unknown` | undecided, or the package was dropped | unknown |
//! | `Not affected` | the group does not affect Arch, even if it has a fixed version | not affected |
//!
//! `affected` is the version that was found to be vulnerable. Older versions are not examined, so
//! all of them count as affected.

use std::io::BufRead;

use domain::advisory::{
    Advisory, Affected, CveRating, Rating, Span, SpanEnd, parse_vendor_severity,
};
use jiff::Timestamp;
use serde::Deserialize;
use vocab::FixState;

use crate::Record;
use crate::error::{FeedLocation, PassError};
use crate::limits;
use crate::limits::Limit;
use crate::{records, text};

/// Maximum packages of one group.
const PACKAGES_MAX: usize = 10_000;

#[derive(Deserialize)]
struct Group {
    name: String,
    packages: Vec<String>,
    status: String,
    #[serde(default)]
    severity: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    /// Missing, null or empty if there is no known fix.
    #[serde(default)]
    fixed: Option<String>,
    #[serde(default)]
    issues: Option<Vec<String>>,
}

pub(crate) fn read(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    as_of: Option<Timestamp>,
    each: &mut dyn FnMut(Record) -> Result<(), PassError>,
) -> Result<(), PassError> {
    records::read(input, location, &mut |group: Group, number| {
        if !group.name.starts_with("AVG-") {
            let why =
                format!("`{}` is not a group of the Arch tracker", text::excerpt(&group.name));
            return Err(location.invalid_record(number, why).into());
        }
        group.check_limits().map_err(|limit| location.too_large(number, limit))?;
        each(Record::Advisory(Box::new(advisory(group, as_of))))
    })
}

impl Group {
    /// Checks the lengths: the name and the fixed version are copied into every package.
    fn check_limits(&self) -> Result<(), Limit> {
        limits::check_names(self.fixed.as_deref().into_iter().chain([self.name.as_str()]))?;
        match self.packages.len() > PACKAGES_MAX {
            true => Err(Limit::Count(PACKAGES_MAX, "packages")),
            false => Ok(()),
        }
    }
}

fn advisory(group: Group, as_of: Option<Timestamp>) -> Advisory {
    let Group { name, packages, status, severity, kind, fixed, issues } = group;
    let (span, stance) = interpret_status(&status, fixed.filter(|version| !version.is_empty()));
    let mut cves = issues.unwrap_or_default();
    cves.retain(|issue| !issue.is_empty());
    if cves.is_empty() {
        cves.push(name.clone());
    }
    cves.sort();
    cves.dedup();
    let affected = packages
        .iter()
        .filter(|package| !package.is_empty())
        .map(|package| {
            let mut affected = Affected::new("Arch", package);
            affected.spans.extend(span.clone());
            affected.stance = stance;
            affected
        })
        .collect();
    let word = severity.as_deref().and_then(parse_vendor_severity);
    Advisory {
        id: name,
        flaws: cves,
        aliases: Vec::new(),
        summary: kind.unwrap_or_default(),
        description: String::new(),
        published: None,
        modified: as_of,
        withdrawn: None,
        ratings: word
            .map(|word| CveRating { flaw: None, rating: Rating::Word(word) })
            .into_iter()
            .collect(),
        affected,
    }
}

/// The affected versions and the tracker's statement about them. No span means every version.
fn interpret_status(status: &str, fixed: Option<String>) -> (Option<Span>, Option<FixState>) {
    let until = |end: fn(String) -> SpanEnd| move |version| Span { from: None, end: end(version) };
    match (status, fixed) {
        ("Not affected", _) => (None, Some(FixState::NotAffected)),
        ("Fixed", Some(version)) if is_totally_ordered(&version) => {
            (Some(until(SpanEnd::Fixed)(version)), None)
        }
        ("Fixed" | "Testing" | "Vulnerable", Some(version)) => {
            (Some(until(SpanEnd::FixedElsewhere)(version)), None)
        }
        ("Testing" | "Vulnerable", None) => (Some(Span::ALL), None),
        (_, fixed) => (fixed.map(until(SpanEnd::FixedElsewhere)), Some(FixState::Unknown)),
    }
}

/// Whether a version has a pkgrel, and both parts end in a letter or digit. pacman's version order
/// is total only among such versions, and the matcher sorts fixed versions.
fn is_totally_ordered(version: &str) -> bool {
    let ends_well = |part: &str| part.ends_with(|c: char| c.is_ascii_alphanumeric());
    version.rsplit_once('-').is_some_and(|(pkgver, pkgrel)| ends_well(pkgver) && ends_well(pkgrel))
}
