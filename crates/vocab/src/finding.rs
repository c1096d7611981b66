//! What can be said of a flaw in an installed package.

use crate::word::{WordError, words};

words! {
    /// What the distribution says of a flaw in the release that is installed.
    FixState ("a state of a fix") {
        /// A version of this release fixes it.
        Fixed = "fixed",
        /// The release is affected, and nothing fixes it yet.
        Affected = "affected",
        /// It will be fixed later, with something else: too small for an update of its own.
        Deferred = "deferred",
        /// It will not be fixed in this release.
        WontFix = "wont_fix",
        /// The release never had it.
        NotAffected = "not_affected",
        /// It is there and harmless, in the distribution's opinion.
        Unimportant = "unimportant",
        /// The distribution no longer looks after this package.
        EndOfLife = "end_of_life",
        /// The fix is for subscribers only.
        Subscription = "subscription",
        /// Nobody can say: the distribution has not, or its word cannot be read.
        Unknown = "unknown",
    }

    /// What a flaw means for a server right now.
    Exposure ("an exposure") {
        /// The flawed version is installed.
        Open = "open",
        /// The fix is installed, and the old code still runs.
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
    /// Whether a list leaves it out unless asked: what is no flaw here, or none that matters.
    pub const fn is_hidden(self) -> bool {
        matches!(self, Self::NotAffected | Self::Unimportant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_no_harm_is_hidden() {
        let hidden: Vec<_> = FixState::ALL.iter().filter(|state| state.is_hidden()).collect();
        assert_eq!(hidden, [&FixState::NotAffected, &FixState::Unimportant]);
    }

    #[test]
    fn every_state_prints_what_it_parses() {
        for state in FixState::ALL {
            assert_eq!(state.to_string().parse(), Ok(*state));
        }
        for exposure in Exposure::ALL {
            assert_eq!(exposure.to_string().parse(), Ok(*exposure));
        }
    }
}
