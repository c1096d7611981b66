//! Advisories of all publishers in one common format.
//!
//! The format is OSV, reduced to what matching needs. Ecosystem names are open: a feed may name
//! systems that are unknown here, and its records are still stored. The crate `feed` parses
//! advisories, `finding` matches them against installed packages.

mod ecosystem;
mod exploited;
mod severity;

pub use ecosystem::{Channel, Ecosystem, Family, PackageNameKind, UnfixedCves};
pub use exploited::{Epss, EpssError, KevEntry};
pub use severity::{CvssScore, Rating, RatingSummary, ScoreError, parse_vendor_severity};

use jiff::Timestamp;
use pkgver::Scheme;
use serde::{Deserialize, Deserializer, Serialize};
use vocab::{FixState, Severity};

/// A published statement about one or more vulnerabilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advisory {
    /// The publisher's id: `DSA-5418-1`.
    pub id: String,
    /// The CVEs that it covers, sorted, without duplicates. For an advisory without a CVE, its own
    /// id.
    pub flaws: Vec<String>,
    /// Other ids of the same vulnerability, such as `GHSA-…`. Only for an advisory about one CVE.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Summary in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// What its CVE is about, shortened. Only for an advisory about one CVE.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<Timestamp>,
    /// When it was withdrawn. A withdrawn advisory is kept and matches nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<Timestamp>,
    /// Severity ratings of its CVEs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ratings: Vec<CveRating>,
    /// The affected packages and versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affected: Vec<Affected>,
}

impl AsRef<Advisory> for Advisory {
    fn as_ref(&self) -> &Advisory {
        self
    }
}

impl Advisory {
    /// Whether this replaces `stored`, an advisory with the same id. An older advisory never does,
    /// so an outdated copy of a feed changes nothing.
    pub fn supersedes(&self, stored: &Advisory) -> bool {
        match (self.modified, stored.modified) {
            (Some(this), Some(that)) if this < that => false,
            _ => self != stored,
        }
    }
}

/// A rating, and the CVE of the advisory that it applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CveRating {
    /// The CVE; `None` if the rating applies to all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<String>,
    pub rating: Rating,
}

/// One package of one release, with its affected versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affected {
    /// The ecosystem of the package, with the release.
    pub ecosystem: Ecosystem,
    /// The name of the package; see `names` for its kind.
    pub package: String,
    /// The kind of name in `package`, if it differs from [`Family::name_kind`]. One CSAF document
    /// uses source package names for one product and binary package names for another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<PackageNameKind>,
    /// The affected versions: those in any of the spans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<Span>,
    /// The publisher's fix status, in addition to versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stance: Option<FixState>,
    /// The distribution's severity for this package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// The modules and streams that the package may belong to: `nodejs:18`. An advisory such as
    /// `virt:rhel and virt-devel:rhel security update` names several.
    #[serde(default, alias = "module", skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "one_or_many")]
    pub modules: Vec<String>,
}

impl Affected {
    /// The kind of name in `package`.
    pub fn name_kind(&self) -> PackageNameKind {
        self.names.unwrap_or_else(|| self.ecosystem.family().name_kind())
    }

    /// Creates an entry without any details.
    pub fn new(ecosystem: &str, package: &str) -> Self {
        Self {
            ecosystem: Ecosystem::new(ecosystem),
            package: package.to_owned(),
            names: None,
            spans: Vec::new(),
            stance: None,
            severity: None,
            modules: Vec::new(),
        }
    }
}

/// Earlier releases stored a single module as a string.
fn one_or_many<'de, D: Deserializer<'de>>(field: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Stored::deserialize(field)? {
        Stored::One(module) => vec![module],
        Stored::Many(modules) => modules,
    })
}

/// A range of affected versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawSpan")]
pub struct Span {
    /// The first affected version; `None` if all earlier versions are affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(flatten)]
    pub end: SpanEnd,
}

/// A span as stored. Flattened enums serialize well but deserialize slowly: serde buffers every
/// field first, and a feed has hundreds of thousands of spans.
#[derive(Deserialize)]
struct RawSpan {
    from: Option<String>,
    fixed: Option<String>,
    fixed_elsewhere: Option<String>,
    last: Option<String>,
    #[serde(default, rename = "open")]
    is_open: FieldPresence,
}

/// Whether a field is present, whatever its value.
#[derive(Default)]
struct FieldPresence(bool);

impl<'de> Deserialize<'de> for FieldPresence {
    fn deserialize<D: Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(field).map(|_| FieldPresence(true))
    }
}

impl TryFrom<RawSpan> for Span {
    type Error = &'static str;

    fn try_from(raw: RawSpan) -> Result<Span, Self::Error> {
        let RawSpan { from, fixed, fixed_elsewhere, last, is_open } = raw;
        let end = match (fixed, fixed_elsewhere, last, is_open) {
            (Some(fixed), None, None, FieldPresence(false)) => SpanEnd::Fixed(fixed),
            (None, Some(fixed), None, FieldPresence(false)) => SpanEnd::FixedElsewhere(fixed),
            (None, None, Some(last), FieldPresence(false)) => SpanEnd::Last(last),
            (None, None, None, FieldPresence(true)) => SpanEnd::Open,
            _ => return Err("a span must have exactly one end"),
        };
        Ok(Span { from, end })
    }
}

impl Span {
    /// All versions.
    pub const ALL: Span = Span { from: None, end: SpanEnd::Open };

    /// All versions before `fixed`, which contains the fix.
    pub fn until(fixed: &str) -> Self {
        Span { from: None, end: SpanEnd::Fixed(fixed.to_owned()) }
    }

    /// Whether a version is in the span. Both must be versions of this scheme.
    pub fn contains(&self, scheme: Scheme, version: &str) -> bool {
        let is_before = |end: &str| scheme.compare(version, end).is_lt();
        !self.from.as_deref().is_some_and(is_before)
            && match &self.end {
                SpanEnd::Fixed(end) | SpanEnd::FixedElsewhere(end) => is_before(end),
                SpanEnd::Last(last) => scheme.compare(version, last).is_le(),
                SpanEnd::Open => true,
            }
    }
}

/// The end of a range of affected versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanEnd {
    /// This version of the release contains the fix.
    Fixed(String),
    /// This version contains the fix, but belongs to another release: a server that has it is safe,
    /// but no update of this release will install it.
    FixedElsewhere(String),
    /// The last affected version.
    Last(String),
    /// The range has no end yet.
    Open,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advisory(modified: Option<&str>, fixed: &str) -> Advisory {
        let mut affected = Affected::new("Debian:12", "curl");
        affected.spans.push(Span::until(fixed));
        Advisory {
            id: "DSA-1-1".to_owned(),
            flaws: vec!["CVE-2026-0001".to_owned()],
            aliases: Vec::new(),
            summary: String::new(),
            description: String::new(),
            published: None,
            modified: modified.map(|text| text.parse().unwrap()),
            withdrawn: None,
            ratings: Vec::new(),
            affected: vec![affected],
        }
    }

    #[test]
    fn older_advisory_never_replaces_newer_one() {
        let monday = advisory(Some("2026-11-09T00:00:00Z"), "1");
        let friday = advisory(Some("2026-11-13T00:00:00Z"), "2");
        assert!(friday.supersedes(&monday) && !monday.supersedes(&friday));
        assert!(!friday.supersedes(&friday), "an identical advisory changes nothing");
    }

    #[test]
    fn undated_advisory_replaces_a_different_one() {
        assert!(advisory(None, "2").supersedes(&advisory(None, "1")));
        assert!(!advisory(None, "1").supersedes(&advisory(None, "1")));
    }

    #[test]
    fn advisory_round_trips_through_json() {
        let mut written = advisory(Some("2026-11-13T00:00:00Z"), "2");
        written.affected[0].spans.push(Span::ALL);
        written.affected[0].spans.push(Span {
            from: Some("3".to_owned()),
            end: SpanEnd::FixedElsewhere("4".to_owned()),
        });
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<Advisory>(&text).unwrap(), written);
        assert!(text.contains(r#"{"fixed":"2"}"#), "{text}");
        let last = Span { from: None, end: SpanEnd::Last("5".to_owned()) };
        assert_eq!(serde_json::from_str::<Span>(r#"{"last":"5"}"#).unwrap(), last);
    }

    #[test]
    fn module_stored_by_earlier_release_is_readable() {
        let stored = r#"{"ecosystem":"AlmaLinux:9","package":"nodejs","module":"nodejs:18"}"#;
        let affected = serde_json::from_str::<Affected>(stored).unwrap();
        assert_eq!(affected.modules, ["nodejs:18"]);
        let written = serde_json::to_string(&affected).unwrap();
        assert_eq!(serde_json::from_str::<Affected>(&written).unwrap(), affected);
    }

    #[test]
    fn span_must_have_exactly_one_end() {
        for text in [r"{}", r#"{"from":"1"}"#, r#"{"fixed":"1","open":null}"#, r#"{"until":"1"}"#] {
            assert!(serde_json::from_str::<Span>(text).is_err(), "{text}");
        }
    }
}
