//! What is known of flaws, in one shape whoever published it.
//!
//! The shape is OSV's, reduced to what a match needs. An ecosystem is an open word, never a closed
//! list: a feed may name systems that nobody here has heard of, and its record is kept all the
//! same. Crate `feed` reads advisories, `finding` holds them against what is installed.

mod ecosystem;
mod exploited;
mod severity;

pub use ecosystem::{Channel, Ecosystem, Family, Names, UnfixedCves};
pub use exploited::{Epss, EpssError, Exploited};
pub use severity::{CvssScore, Rating, ScoreError, Verdict, severity_word};

use jiff::Timestamp;
use pkgver::Scheme;
use serde::{Deserialize, Deserializer, Serialize};
use vocab::{FixState, Severity};

/// One published statement on one or more flaws.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advisory {
    /// What its publisher calls it: `DSA-5418-1`.
    pub id: String,
    /// The CVEs that it is about, sorted, each once. A statement without a CVE is about itself,
    /// and this holds its own id.
    pub flaws: Vec<String>,
    /// Other ids of the same vulnerability, such as `GHSA-…`. Only for an advisory about one CVE.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// When it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Timestamp>,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<Timestamp>,
    /// When it was taken back. Such an advisory is kept and matches nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<Timestamp>,
    /// How bad its flaws are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ratings: Vec<Rated>,
    /// What is affected, and until when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affected: Vec<Affected>,
}

impl AsRef<Advisory> for Advisory {
    fn as_ref(&self) -> &Advisory {
        self
    }
}

impl Advisory {
    /// Whether this takes the place of `stored`, a statement of the same id: unless it is older.
    /// So a feed from last week changes nothing that is known since.
    pub fn supersedes(&self, stored: &Advisory) -> bool {
        match (self.modified, stored.modified) {
            (Some(this), Some(that)) if this < that => false,
            _ => self != stored,
        }
    }
}

/// A rating, and which of an advisory's flaws it is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rated {
    /// The flaw; none for all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<String>,
    /// How bad it is.
    pub rating: Rating,
}

/// One package of one release, and which of its versions are affected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affected {
    /// Whose package it is, with the release.
    pub ecosystem: Ecosystem,
    /// The name of the package; see `names` for what it is the name of.
    pub package: String,
    /// What `package` is the name of, where this differs from [`Family::names`]. One CSAF document
    /// names source packages for one product and binary packages for another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Names>,
    /// The affected versions: those in any of the spans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<Span>,
    /// What the publisher says beyond versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stance: Option<FixState>,
    /// How bad the distribution finds it in this very package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// The modules and streams that the package may belong to: `nodejs:18`. An advisory such as
    /// `virt:rhel and virt-devel:rhel security update` names several.
    #[serde(default, alias = "module", skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "one_or_many")]
    pub modules: Vec<String>,
}

impl Affected {
    /// What `package` is the name of.
    pub fn names(&self) -> Names {
        self.names.unwrap_or_else(|| self.ecosystem.family().names())
    }

    /// A package of which no more is known than that it is affected.
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

/// A run of affected versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Span {
    /// The first of them; none if there was never a sound one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Where it ends.
    #[serde(flatten)]
    pub end: End,
}

/// A span as it is read. What is flattened is written well and read slowly: serde takes every field apart first, and a
/// feed has hundreds of thousands.
#[derive(Deserialize)]
struct Written {
    from: Option<String>,
    fixed: Option<String>,
    fixed_elsewhere: Option<String>,
    last: Option<String>,
    #[serde(default, rename = "open")]
    is_open: Mark,
}

/// Whether a field is there, whatever it holds.
#[derive(Default)]
struct Mark(bool);

impl<'de> Deserialize<'de> for Mark {
    fn deserialize<D: Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(field).map(|_| Mark(true))
    }
}

impl TryFrom<Written> for Span {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Span, Self::Error> {
        let Written { from, fixed, fixed_elsewhere, last, is_open } = written;
        let end = match (fixed, fixed_elsewhere, last, is_open) {
            (Some(fixed), None, None, Mark(false)) => End::Fixed(fixed),
            (None, Some(fixed), None, Mark(false)) => End::FixedElsewhere(fixed),
            (None, None, Some(last), Mark(false)) => End::Last(last),
            (None, None, None, Mark(true)) => End::Open,
            _ => return Err("a span has one end"),
        };
        Ok(Span { from, end })
    }
}

impl Span {
    /// Everything.
    pub const ALL: Span = Span { from: None, end: End::Open };

    /// Everything before this version, which fixes it.
    pub fn until(fixed: &str) -> Self {
        Span { from: None, end: End::Fixed(fixed.to_owned()) }
    }

    /// Whether a version lies in it. Both must be versions of this scheme.
    pub fn contains(&self, scheme: Scheme, version: &str) -> bool {
        let is_before = |end: &str| scheme.compare(version, end).is_lt();
        !self.from.as_deref().is_some_and(is_before)
            && match &self.end {
                End::Fixed(end) | End::FixedElsewhere(end) => is_before(end),
                End::Last(last) => scheme.compare(version, last).is_le(),
                End::Open => true,
            }
    }
}

/// Where a run of affected versions ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// This version of the release fixes it.
    Fixed(String),
    /// This version fixes it, but belongs to another release: whoever has it is safe, and an
    /// update of this release will not bring it.
    FixedElsewhere(String),
    /// This is the last affected version.
    Last(String),
    /// It has not ended.
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
            published: None,
            modified: modified.map(|text| text.parse().unwrap()),
            withdrawn: None,
            ratings: Vec::new(),
            affected: vec![affected],
        }
    }

    #[test]
    fn an_older_statement_never_takes_the_place_of_a_newer_one() {
        let monday = advisory(Some("2026-11-09T00:00:00Z"), "1");
        let friday = advisory(Some("2026-11-13T00:00:00Z"), "2");
        assert!(friday.supersedes(&monday) && !monday.supersedes(&friday));
        assert!(!friday.supersedes(&friday), "the same again changes nothing");
    }

    #[test]
    fn a_statement_without_a_date_is_taken_at_its_word() {
        assert!(advisory(None, "2").supersedes(&advisory(None, "1")));
        assert!(!advisory(None, "1").supersedes(&advisory(None, "1")));
    }

    #[test]
    fn an_advisory_is_read_back_from_what_it_writes() {
        let mut written = advisory(Some("2026-11-13T00:00:00Z"), "2");
        written.affected[0].spans.push(Span::ALL);
        written.affected[0]
            .spans
            .push(Span { from: Some("3".to_owned()), end: End::FixedElsewhere("4".to_owned()) });
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<Advisory>(&text).unwrap(), written);
        assert!(text.contains(r#"{"fixed":"2"}"#), "{text}");
        let last = Span { from: None, end: End::Last("5".to_owned()) };
        assert_eq!(serde_json::from_str::<Span>(r#"{"last":"5"}"#).unwrap(), last);
    }

    #[test]
    fn a_module_stored_by_an_earlier_release_is_still_read() {
        let stored = r#"{"ecosystem":"AlmaLinux:9","package":"nodejs","module":"nodejs:18"}"#;
        let affected = serde_json::from_str::<Affected>(stored).unwrap();
        assert_eq!(affected.modules, ["nodejs:18"]);
        let written = serde_json::to_string(&affected).unwrap();
        assert_eq!(serde_json::from_str::<Affected>(&written).unwrap(), affected);
    }

    #[test]
    fn a_span_without_an_end_or_with_two_is_refused() {
        for text in [r"{}", r#"{"from":"1"}"#, r#"{"fixed":"1","open":null}"#, r#"{"until":"1"}"#] {
            assert!(serde_json::from_str::<Span>(text).is_err(), "{text}");
        }
    }
}
