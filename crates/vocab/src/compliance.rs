//! Where a server stands with a policy.

use crate::keyword::{WordError, words};

words! {
    /// Where a server stands with a policy.
    ComplianceState ("a state of compliance") {
        /// Nothing is overdue, and nothing is due within 48 hours.
        Compliant = "compliant",
        /// The next update is due within 48 hours.
        DueSoon = "due_soon",
        /// An update is overdue.
        Breaching = "breaching",
        /// It cannot be determined. Never counts as compliant.
        Unknown = "unknown",
    }

    /// Why it cannot be determined whether a server complies.
    UnknownCompliance ("a reason") {
        /// It has not reported its packages, or they are not matched yet.
        NotScanned = "not_scanned",
        /// No imported feed covers its system.
        NoFeed = "no_feed",
        /// Its last scan is too old.
        Stale = "stale",
    }
}
