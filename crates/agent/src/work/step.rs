//! The steps of an order, and the facts about the host that decide which one comes next.
//!
//! Types only. [`planner`](super::planner) chooses a step, [`journal`](super::journal) records it,
//! `executor` executes it.

use serde::{Deserialize, Serialize};
use vocab::Line;
use wire::agent::OrderResult;

use super::limits::ActiveLimits;

/// One step of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Check who holds the package database lock.
    Lock,
    /// Check for incomplete operations in the package database.
    Damage,
    /// Take the first inventory, list the pending updates, select.
    Choose,
    /// Ask the resolver what would change, and check for disk space.
    Resolve,
    /// Take the second inventory, and compare.
    Verify,
    /// Find processes that run outdated code.
    OldCode,
    /// Check whether the host needs a reboot.
    Reasons,
    /// Measure the host's health before the change.
    Baseline,
    /// Measure the host's health after the change.
    Health {
        /// Whether to run the administrator's health hooks as well.
        hooks: bool,
    },
    /// Scan the packages and publish the package sets.
    Scan,
    /// Start an action, unless it has already started, and wait for it to end.
    Run(Action),
    /// Wait for [`PAUSE_SECONDS`], then check again.
    Pause,
    /// Store the result: the order has ended.
    End(Box<OrderResult>),
}

/// The state of the host at this moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub boot_id: Line,
    pub withdrawn: bool,
    /// Whether the action of the journal's last step has started.
    pub started: bool,
    pub active_limits: ActiveLimits,
    /// Why the host cannot be rebooted, if it cannot.
    pub may_reboot: Result<(), Line>,
    /// The version of this agent.
    pub agent_version: Line,
    /// Why the agent's program cannot be replaced, if it cannot.
    pub may_upgrade: Result<(), Line>,
}

impl Facts {
    /// For orders that end without any facts about the host.
    pub(super) fn unknown() -> Facts {
        Facts {
            boot_id: Line::default(),
            withdrawn: false,
            started: false,
            active_limits: ActiveLimits::default(),
            may_reboot: Err("no facts about the host".into()),
            agent_version: Line::default(),
            may_upgrade: Err("no facts about the host".into()),
        }
    }
}

/// An action, which runs as a separate process. Runs at most once, unless it is repeatable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Repairs incomplete operations from before the order.
    RepairBefore,
    /// Refreshes the package lists.
    Refresh,
    PreInstall,
    /// Downloads packages.
    Download,
    Install,
    /// Repairs incomplete operations that the installation left.
    RepairAfter,
    PostInstall,
    /// Restarts services.
    Restart,
    PreReboot,
    Reboot,
    /// Replaces the agent's own program.
    UpgradeAgent,
}

impl Action {
    /// The name of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Action::RepairBefore => "repair-before",
            Action::Refresh => "refresh",
            Action::PreInstall => "pre-install",
            Action::Download => "download",
            Action::Install => "install",
            Action::RepairAfter => "repair-after",
            Action::PostInstall => "post-install",
            Action::Restart => "restart-services",
            Action::PreReboot => "pre-reboot",
            Action::Reboot => "reboot",
            Action::UpgradeAgent => "upgrade-agent",
        }
    }

    /// Whether the action may run again after it was killed, because it is idempotent.
    pub fn is_repeatable(self) -> bool {
        matches!(
            self,
            Action::RepairBefore | Action::Refresh | Action::Download | Action::RepairAfter
        )
    }
}

pub const PAUSE_SECONDS: u64 = 5;
