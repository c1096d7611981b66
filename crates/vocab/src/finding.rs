//! The states of a finding: a vulnerability in an installed package.

use crate::keyword::{WordError, words};

words! {
    /// Fix status of a vulnerability in the installed release, according to the distribution.
    FixState ("a fix status") {
        /// This release has a fixed version.
        Fixed = "fixed",
        /// The release is affected, and no fix exists yet.
        Affected = "affected",
        /// The fix is deferred: not important enough for a separate update, it ships with a later
        /// one.
        Deferred = "deferred",
        /// It will not be fixed in this release.
        WontFix = "wont_fix",
        /// The release was never affected.
        NotAffected = "not_affected",
        /// Affected, but the distribution considers it harmless.
        Unimportant = "unimportant",
        /// The distribution no longer supports this package.
        EndOfLife = "end_of_life",
        /// The fix is available to subscribers only.
        Subscription = "subscription",
        /// The distribution has not published a status, or the status cannot be read.
        Unknown = "unknown",
    }

    /// Whether a vulnerability is still exploitable on a server.
    Exposure ("an exposure") {
        /// A vulnerable version is installed.
        Open = "open",
        /// The fix is installed, but the old code is still running.
        FixedOnDisk = "fixed_on_disk",
    }

    /// Whether the CVEs of a server are known.
    Assessment ("an assessment") {
        /// All of its packages were matched.
        Assessed = "assessed",
        /// Some of its packages or its kernel could not be matched.
        Partial = "partial",
        /// No imported feed covers its system.
        NoFeed = "no_feed",
        /// It has not reported its packages, or they are not matched yet.
        NotScanned = "not_scanned",
    }

    /// Why a package was not assessed.
    UnassessedReason ("a reason") {
        /// It comes from a repository that the distribution's advisories do not cover.
        ThirdParty = "third_party",
        /// Its version cannot be compared.
        UnknownVersion = "unknown_version",
        /// It belongs to a module whose stream the advisories do not name.
        UnknownModule = "unknown_module",
        /// The running kernel belongs to no installed package.
        ForeignKernel = "foreign_kernel",
    }
}

impl FixState {
    /// Whether lists omit the finding by default: the release is not affected, or not in a way that
    /// matters.
    pub const fn is_hidden(self) -> bool {
        matches!(self, Self::NotAffected | Self::Unimportant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_states_are_hidden() {
        let hidden: Vec<_> = FixState::ALL.iter().filter(|state| state.is_hidden()).collect();
        assert_eq!(hidden, [&FixState::NotAffected, &FixState::Unimportant]);
    }

    #[test]
    fn every_state_round_trips_through_text() {
        for state in FixState::ALL {
            assert_eq!(state.to_string().parse(), Ok(*state));
        }
        for exposure in Exposure::ALL {
            assert_eq!(exposure.to_string().parse(), Ok(*exposure));
        }
    }
}
