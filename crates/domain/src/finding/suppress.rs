//! Suppressions: findings that a person has reviewed and hidden. They are shown as suppressed,
//! never removed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Finding;

/// A decision that a CVE can be ignored, with a reason and an optional expiry. The caller
/// determines the servers or environments to which it applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppression {
    pub cve: String,
    /// The source package; `None` for all packages.
    pub source: Option<String>,
    /// Why the CVE can be ignored.
    pub reason: String,
    /// Expiry; `None` if it does not expire.
    pub until: Option<Timestamp>,
}

impl Suppression {
    pub fn covers(&self, finding: &Finding, now: Timestamp) -> bool {
        self.covers_cve(&finding.cve, &finding.package.source, now)
    }

    /// Whether it covers a CVE in this source package at this time.
    pub fn covers_cve(&self, cve: &str, source: &str, now: Timestamp) -> bool {
        self.cve == cve
            && self.source.as_ref().is_none_or(|only| only == source)
            && self.until.is_none_or(|until| now < until)
    }
}
