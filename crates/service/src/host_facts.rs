//! Facts about a host that are stored as one JSON value and not in separate columns.

use std::collections::BTreeSet;

use domain::finding::RunningCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vocab::Line;
use wire::agent::{Facts, OLD_CODE_MAX, ORDERS_KEYS_MAX, OldCode};
use wire::v1::HostLimits;

/// The maximum number of other updaters that are stored per host; far more than exist.
const UPDATERS_MAX: usize = 50;
/// The maximum number of reboot reasons that are stored per host. Each is a `Line`, so at most 500
/// characters.
const REBOOT_REASONS_MAX: usize = 50;
/// The maximum number of excluded packages that are stored from a host's limits.
const EXCLUDES_MAX: usize = 200;
/// The maximum number of allowed time ranges that are stored from a host's limits.
const HOURS_MAX: usize = 50;

/// The stored facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    pub old_code: Vec<OldCode>,
    pub other_updaters: Vec<Line>,
    pub limits: Option<HostLimits>,
    /// The ids of the keys whose orders the agent accepts; empty if the agent does not report them.
    pub trusted_keys: Vec<Line>,
}

/// Converts reported facts to the stored form, with limits on their size.
pub fn to_stored(facts: &Facts) -> Value {
    let facts_to_store = HostFacts {
        old_code: facts.old_code.iter().take(OLD_CODE_MAX).cloned().collect(),
        other_updaters: facts.other_updaters.iter().take(UPDATERS_MAX).cloned().collect(),
        limits: facts.limits.clone().map(|mut limits| {
            limits.exclude.truncate(EXCLUDES_MAX);
            limits.allowed_hours.truncate(HOURS_MAX);
            limits
        }),
        trusted_keys: facts.trusted_keys.iter().take(ORDERS_KEYS_MAX).cloned().collect(),
    };
    serde_json::to_value(facts_to_store).expect("lists of strings serialize to JSON")
}

/// The reboot reasons to store.
pub fn reboot_reasons(facts: &Facts) -> Vec<String> {
    facts.reboot_reasons.iter().take(REBOOT_REASONS_MAX).map(ToString::to_string).collect()
}

/// The reported runtime state: the packages whose outdated code still runs, and whether the kernel
/// is not from a package.
pub fn runtime_state(facts: &Facts) -> (BTreeSet<String>, bool) {
    let old_code = facts.old_code.get(..OLD_CODE_MAX).unwrap_or(&facts.old_code);
    (outdated_packages(old_code), facts.foreign_kernel)
}

/// The packages whose outdated code still runs.
pub fn outdated_packages(told: &[OldCode]) -> BTreeSet<String> {
    told.iter().filter_map(|one| one.package.as_ref()).map(ToString::to_string).collect()
}

/// Converts the runtime state to the stored form; an empty text if there is nothing to store.
pub fn runs_to_text(running_code: &RunningCode) -> String {
    match *running_code == RunningCode::default() {
        true => String::new(),
        false => serde_json::to_string(running_code).expect("digests and names serialize to JSON"),
    }
}

/// Reads the stored runtime state; empty if it cannot be read.
pub fn runs_from_text(text: &str) -> RunningCode {
    serde_json::from_str(text).unwrap_or_default()
}

/// Reads the stored facts; empty for a server that has not reported any.
pub fn from_stored(value: &Value) -> HostFacts {
    HostFacts::deserialize(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_state_survives_a_round_trip_through_text() {
        assert_eq!(runs_to_text(&RunningCode::default()), "");
        let old_code: BTreeSet<String> = ["libc6".to_owned(), "libssl3".to_owned()].into();
        let since = Some(vocab::Digest::compute(b"before"));
        for runs in [
            RunningCode { foreign_kernel: true, ..RunningCode::default() },
            RunningCode { since, old_code, foreign_kernel: false },
        ] {
            assert_eq!(runs_from_text(&runs_to_text(&runs)), runs);
        }
        assert_eq!(runs_from_text(""), RunningCode::default());
        assert_eq!(runs_from_text("nonsense"), RunningCode::default());
    }
}
