//! Findings that someone has looked at and set aside: shown as suppressed, never gone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Finding;

/// A decision that a flaw does not matter here, with its reason, for a time. Whom it is for, which
/// servers or environments, is the caller's to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppression {
    /// The flaw.
    pub cve: String,
    /// The source package, where it is about one only.
    pub source: Option<String>,
    /// Why it does not matter.
    pub reason: String,
    /// Until when this holds; none for as long as nobody takes it back.
    pub until: Option<Timestamp>,
}

impl Suppression {
    /// Whether it covers a finding at this time.
    pub fn covers(&self, finding: &Finding, now: Timestamp) -> bool {
        self.covers_flaw(&finding.cve, &finding.package.source, now)
    }

    /// Whether it covers a flaw in this source at this time.
    pub fn covers_flaw(&self, cve: &str, source: &str, now: Timestamp) -> bool {
        self.cve == cve
            && self.source.as_ref().is_none_or(|only| only == source)
            && self.until.is_none_or(|until| now < until)
    }
}
