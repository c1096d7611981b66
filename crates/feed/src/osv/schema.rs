//! The parts of the OSV schema that are used. All other fields are ignored.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use crate::limits;
use crate::limits::Limit;

use super::{map_or_default, text_or_empty};

#[derive(Deserialize)]
pub(super) struct Osv<'a> {
    pub(super) id: String,
    #[serde(default)]
    pub(super) summary: Option<String>,
    #[serde(borrow, default)]
    pub(super) details: Option<BorrowedText<'a>>,
    #[serde(default)]
    pub(super) published: Option<Timestamp>,
    #[serde(default)]
    pub(super) modified: Option<Timestamp>,
    #[serde(default)]
    pub(super) withdrawn: Option<Timestamp>,
    #[serde(borrow, default)]
    pub(super) aliases: Option<Vec<BorrowedText<'a>>>,
    #[serde(borrow, default)]
    pub(super) upstream: Option<Vec<BorrowedText<'a>>>,
    #[serde(borrow, default)]
    pub(super) related: Option<Vec<BorrowedText<'a>>>,
    #[serde(default)]
    pub(super) severity: Option<Vec<Severity>>,
    #[serde(borrow, default)]
    pub(super) affected: Option<Vec<Affected<'a>>>,
    #[serde(default, deserialize_with = "map_or_default")]
    pub(super) database_specific: PublisherFields,
}

/// A string that is borrowed from the input if possible.
#[derive(Deserialize)]
pub(super) struct BorrowedText<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

#[derive(Deserialize)]
pub(super) struct Severity {
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) score: String,
}

#[derive(Deserialize)]
pub(super) struct Affected<'a> {
    #[serde(default)]
    pub(super) package: Option<Package>,
    #[serde(default)]
    pub(super) severity: Option<Vec<Severity>>,
    #[serde(default)]
    pub(super) ranges: Option<Vec<Range>>,
    /// Long lists of versions. The ranges usually cover them.
    #[serde(borrow, default)]
    pub(super) versions: Option<Vec<BorrowedText<'a>>>,
    #[serde(default, deserialize_with = "map_or_default")]
    pub(super) ecosystem_specific: PublisherFields,
    #[serde(default, deserialize_with = "map_or_default")]
    pub(super) database_specific: PublisherFields,
}

#[derive(Deserialize)]
pub(super) struct Package {
    #[serde(default)]
    pub(super) ecosystem: String,
    #[serde(default)]
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct Range {
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) events: Vec<Event>,
}

#[derive(Deserialize)]
pub(super) struct Event {
    #[serde(default)]
    pub(super) introduced: Option<String>,
    #[serde(default)]
    pub(super) fixed: Option<String>,
    #[serde(default)]
    pub(super) last_affected: Option<String>,
    #[serde(default)]
    pub(super) limit: Option<String>,
}

/// Publisher-specific fields.
#[derive(Deserialize, Default)]
pub(super) struct PublisherFields {
    /// Debian: `unimportant`, `end-of-life`, `low`, `not yet assigned`.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub(super) urgency: String,
    /// Debian's tracker: `no-dsa`, `ignored`, `fixed_in_unstable`.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub(super) debian_state: String,
    /// openEuler and others: `High`.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub(super) severity: String,
    /// Ubuntu: present if the fix is a live patch of the running kernel, not a package.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub(super) module_name_regex: String,
    /// Ubuntu: the severity of each CVE of an advisory.
    #[serde(default, deserialize_with = "map_or_default")]
    pub(super) cves_map: CvesMap,
}

#[derive(Deserialize, Default)]
pub(super) struct CvesMap {
    #[serde(default)]
    pub(super) cves: Vec<RatedCve>,
}

#[derive(Deserialize)]
pub(super) struct RatedCve {
    #[serde(default)]
    pub(super) id: String,
    #[serde(default)]
    pub(super) severity: Vec<Severity>,
}

/// Maximum ratings of one record. Each is compared with all others.
const RATINGS_MAX: usize = 1_000;
/// Maximum comparisons of versions with ranges in one record.
const COMPARISONS_MAX: usize = 5_000_000;

impl Osv<'_> {
    /// Refuses a record whose parts multiply: values that are copied into every part of an advisory
    /// must be short, and lists that are compared with one another must not be long.
    pub(super) fn check(&self) -> Result<(), Limit> {
        let affected = || self.affected.iter().flatten();
        limits::check_names([self.id.as_str()])?;
        let mut ratings = self.severity.iter().flatten().count();
        let mut comparisons: usize = 0;
        for one in affected() {
            limits::check_names(one.package.iter().flat_map(|one| [&*one.ecosystem, &*one.name]))?;
            limits::check_names(one.versions.iter().flatten().map(|word| word.0.as_ref()))?;
            let events = || one.ranges.iter().flatten().flat_map(|range| &range.events);
            limits::check_names(events().flat_map(|event| {
                let Event { introduced, fixed, last_affected, limit } = event;
                [introduced, fixed, last_affected, limit].into_iter().flatten().map(String::as_str)
            }))?;
            let versions = one.versions.iter().flatten().count();
            comparisons = comparisons.saturating_add(versions.saturating_mul(events().count()));
            let cves = &one.database_specific.cves_map.cves;
            limits::check_names(cves.iter().map(|cve| cve.id.as_str()))?;
            ratings += one.severity.iter().flatten().count();
            ratings += cves.iter().map(|cve| cve.severity.len()).sum::<usize>();
        }
        match () {
            () if ratings > RATINGS_MAX => Err(Limit::Count(RATINGS_MAX, "ratings")),
            () if comparisons > COMPARISONS_MAX => {
                Err(Limit::Count(COMPARISONS_MAX, "comparisons of versions with ranges"))
            }
            () => Ok(()),
        }
    }
}
