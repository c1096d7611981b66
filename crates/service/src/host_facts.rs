//! What an agent tells of its host beyond what every list shows, as it is kept.

use std::collections::BTreeSet;

use domain::finding::Runs;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vocab::Line;
use wire::agent::{Facts, OLD_CODE_MAX, ORDERS_KEYS_MAX, OldCode};
use wire::v1::HostLimits;

/// The most other updaters that are kept of one host; there are not that many in the world.
const UPDATERS_MAX: usize = 50;
/// The most reasons for a reboot that are kept of one host. Each is a `Line`, so at most 500
/// characters.
const REBOOT_REASONS_MAX: usize = 50;
/// The most excluded packages of a host's limits that are kept.
const EXCLUDES_MAX: usize = 200;
/// The most spans of allowed hours of a host's limits that are kept.
const HOURS_MAX: usize = 50;

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Told {
    pub old_code: Vec<OldCode>,
    pub other_updaters: Vec<Line>,
    pub limits: Option<HostLimits>,
    /// The ids of the keys whose orders the agent accepts; empty if it does not say.
    pub trusted_keys: Vec<Line>,
}

/// What to keep of what was told.
pub fn keep(facts: &Facts) -> Value {
    let told = Told {
        old_code: facts.old_code.iter().take(OLD_CODE_MAX).cloned().collect(),
        other_updaters: facts.other_updaters.iter().take(UPDATERS_MAX).cloned().collect(),
        limits: facts.limits.clone().map(|mut limits| {
            limits.exclude.truncate(EXCLUDES_MAX);
            limits.allowed_hours.truncate(HOURS_MAX);
            limits
        }),
        trusted_keys: facts.trusted_keys.iter().take(ORDERS_KEYS_MAX).cloned().collect(),
    };
    serde_json::to_value(told).expect("lists of text are JSON")
}

/// Why the host should be rebooted, as far as it is kept.
pub fn reboot_reasons(facts: &Facts) -> Vec<String> {
    facts.reboot_reasons.iter().take(REBOOT_REASONS_MAX).map(ToString::to_string).collect()
}

/// What was told of what runs: the packages whose old code does, and whether the kernel is foreign.
pub fn runs(facts: &Facts) -> (BTreeSet<String>, bool) {
    let told = facts.old_code.get(..OLD_CODE_MAX).unwrap_or(&facts.old_code);
    (old_packages(told), facts.foreign_kernel)
}

/// The packages whose old code runs.
pub fn old_packages(told: &[OldCode]) -> BTreeSet<String> {
    told.iter().filter_map(|one| one.package.as_ref()).map(ToString::to_string).collect()
}

/// What runs, as it is kept; an empty text where there is nothing to say.
pub fn runs_text(runs: &Runs) -> String {
    match *runs == Runs::default() {
        true => String::new(),
        false => serde_json::to_string(runs).expect("digests and names are JSON"),
    }
}

/// What was kept of what runs; nothing where it cannot be read.
pub fn runs_of(text: &str) -> Runs {
    serde_json::from_str(text).unwrap_or_default()
}

/// What was kept; nothing of a server that has not told yet.
pub fn kept(value: &Value) -> Told {
    Told::deserialize(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_read_back_as_it_was_kept_and_nothing_is_an_empty_text() {
        assert_eq!(runs_text(&Runs::default()), "");
        let old_code: BTreeSet<String> = ["libc6".to_owned(), "libssl3".to_owned()].into();
        let since = Some(vocab::Digest::of(b"before"));
        for runs in [
            Runs { foreign_kernel: true, ..Runs::default() },
            Runs { since, old_code, foreign_kernel: false },
        ] {
            assert_eq!(runs_of(&runs_text(&runs)), runs);
        }
        assert_eq!(runs_of(""), Runs::default());
        assert_eq!(runs_of("nonsense"), Runs::default());
    }
}
