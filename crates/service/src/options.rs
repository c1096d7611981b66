//! How an order is carried out, in the words in which it is stored.
//!
//! The `options` of schedules, runs and rollouts hold this as JSON, with exactly the fields of the
//! API at one level. The planner reads the pace, the agent is told the order.

use domain::rollout::Pace;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vocab::{PackageName, PackagePattern, RebootPolicy};

/// What is done to each server, and how fast it goes from one to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchOptions {
    /// What is done to each server.
    #[serde(flatten)]
    pub order: Order,
    /// How fast it goes through them.
    #[serde(flatten)]
    pub pace: Pace,
}

/// What is done to each server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Order {
    /// Exact names; none means every available update.
    pub packages: Vec<PackageName>,
    /// Names or globs never to touch.
    pub exclude: Vec<PackagePattern>,
    /// Only updates that fix security flaws.
    pub security_only: bool,
    /// Whether servers may be rebooted.
    pub reboot: RebootPolicy,
    /// Report the transaction and change nothing.
    pub dry_run: bool,
}

impl PatchOptions {
    /// As it is stored.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("options are plain data")
    }

    /// As it was stored. An error is a bug or a hand in the database.
    pub fn from_json(stored: &Value) -> serde_json::Result<PatchOptions> {
        PatchOptions::deserialize(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stored_options_have_the_fields_of_the_api_at_one_level() {
        let stored = json!({"packages": ["bash"], "exclude": ["linux-*"], "security_only": true,
            "reboot": "if_required", "dry_run": false, "stagger_minutes": 5, "max_parallel": 3,
            "canary": "10%", "max_failures": 2, "window_minutes": null});
        let options = PatchOptions::from_json(&stored).unwrap();
        assert_eq!(options.pace.canary, Some(vocab::Portion::percent(10).unwrap()));
        assert_eq!(options.to_json(), stored);
    }

    #[test]
    fn what_an_older_release_did_not_store_has_its_default() {
        assert_eq!(PatchOptions::from_json(&json!({})).unwrap(), PatchOptions::default());
        assert_eq!(PatchOptions::default().order.reboot, RebootPolicy::Never);
    }
}
