//! The steps of an order, and the facts about the host that decide which one comes next.
//!
//! Types only. [`planner`](super::planner) chooses a step, [`journal`](super::journal) records it,
//! `perform` executes it.

use serde::{Deserialize, Serialize};
use vocab::Line;
use wire::agent::OrderResult;

use super::limits::Rules;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Look who works on the package database.
    Lock,
    /// Look what is half done in it.
    Damage,
    /// Take the first inventory, look for updates, choose.
    Choose,
    /// Ask the manager what would happen, and whether there is room for it.
    Resolve,
    /// Take the second inventory, and compare.
    Verify,
    /// Look who runs old code.
    OldCode,
    /// Look whether the system should be rebooted.
    Reasons,
    /// Look at the packages, and publish what is there.
    Scan,
    /// Start what is to run, unless it was started, and wait for its end.
    Run(Act),
    /// Wait for [`PAUSE_SECONDS`], then look again.
    Pause,
    /// Write the result down: the order has ended.
    End(Box<OrderResult>),
}

/// How things are at this moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Which boot this is.
    pub boot_id: Line,
    /// Whether the order was withdrawn.
    pub withdrawn: bool,
    /// Whether what the journal's last step was to run has been started.
    pub begun: bool,
    /// What the host's administrator allows.
    pub rules: Rules,
    /// Why the host cannot be rebooted.
    pub may_reboot: Result<(), Line>,
}

impl Facts {
    /// Where nothing is known of the host.
    pub(super) fn of_nothing() -> Facts {
        Facts {
            boot_id: Line::default(),
            withdrawn: false,
            begun: false,
            rules: Rules::default(),
            may_reboot: Err("nothing is known of the host".into()),
        }
    }
}

/// What runs as a process of its own, each at most once, apart from those that may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Mends what was half done before the order.
    RepairBefore,
    /// Brings the lists up to date.
    Refresh,
    /// The administrator's hooks before an installation.
    PreInstall,
    /// Fetches packages.
    Download,
    /// Installs them.
    Install,
    /// Mends what the installation left half done.
    RepairAfter,
    /// The administrator's hooks after an installation.
    PostInstall,
    /// Restarts services.
    Restart,
    /// The administrator's hooks before a reboot.
    PreReboot,
    /// Reboots.
    Reboot,
}

impl Act {
    /// What its directory is called.
    pub fn name(self) -> &'static str {
        match self {
            Act::RepairBefore => "repair-before",
            Act::Refresh => "refresh",
            Act::PreInstall => "pre-install",
            Act::Download => "download",
            Act::Install => "install",
            Act::RepairAfter => "repair-after",
            Act::PostInstall => "post-install",
            Act::Restart => "restart-services",
            Act::PreReboot => "pre-reboot",
            Act::Reboot => "reboot",
        }
    }

    /// Whether it may be run again after it was killed: doing it twice is like doing it once.
    pub fn is_repeatable(self) -> bool {
        matches!(self, Act::RepairBefore | Act::Refresh | Act::Download | Act::RepairAfter)
    }
}

/// How long a pause is.
pub const PAUSE_SECONDS: u64 = 5;
