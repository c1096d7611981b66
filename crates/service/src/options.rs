//! Patch options in their stored form.
//!
//! The `options` of schedules, runs and rollouts contain this as JSON, with exactly the fields of
//! the API, flattened. The planner uses the pace; the order is sent to the agent.

use domain::rollout::Pace;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vocab::{PackageName, PackagePattern, RebootPolicy};

/// What to do on each server, and how fast to proceed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchOptions {
    /// What to do on each server.
    #[serde(flatten)]
    pub order: OrderOptions,
    /// How fast to proceed from one server to the next.
    #[serde(flatten)]
    pub pace: Pace,
}

/// What to do on each server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderOptions {
    /// Exact package names; empty means all available updates.
    pub packages: Vec<PackageName>,
    /// Names or globs of packages that must not be changed.
    pub exclude: Vec<PackagePattern>,
    /// Install only security updates.
    pub security_only: bool,
    /// Whether servers may be rebooted.
    pub reboot: RebootPolicy,
    /// Report the transaction without changing anything.
    pub dry_run: bool,
}

impl PatchOptions {
    /// The stored form.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("options serialize to JSON")
    }

    /// Reads the stored form. An error is a bug, or data that was changed directly in the database.
    pub fn from_json(stored: &Value) -> serde_json::Result<PatchOptions> {
        PatchOptions::deserialize(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stored_options_have_the_flattened_api_fields() {
        let stored = json!({"packages": ["bash"], "exclude": ["linux-*"], "security_only": true,
            "reboot": "if_required", "dry_run": false, "stagger_minutes": 5, "max_parallel": 3,
            "canary": "10%", "max_failures": 2, "window_minutes": null, "override_freeze": null,
            "pin_versions": false, "health": "gate", "max_unhealthy": "5%",
            "waves": [{"size": null, "soak_minutes": 0, "approval": true}]});
        let options = PatchOptions::from_json(&stored).unwrap();
        assert_eq!(options.pace.canary, Some(vocab::Portion::percent(10).unwrap()));
        assert_eq!(options.to_json(), stored);
    }

    #[test]
    fn options_missing_in_older_rows_have_defaults() {
        assert_eq!(PatchOptions::from_json(&json!({})).unwrap(), PatchOptions::default());
        assert_eq!(PatchOptions::default().order.reboot, RebootPolicy::Never);
    }
}
