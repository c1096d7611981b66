//! Stages of a task and reasons of its failure, shared by agent, service and API.

use crate::keyword::{WordError, words};

words! {
    /// The stage of an order on the agent. Later stages compare greater; a task never goes back.
    Stage ("a stage of a task") {
        /// The order is on its way to the agent.
        Dispatched = "dispatched",
        /// The agent checks limits, locks, free space, and what the update would change.
        Preflight = "preflight",
        /// Downloading packages.
        Downloading = "downloading",
        /// The package manager is running.
        Installing = "installing",
        /// Restarting services that run old code.
        RestartingServices = "restarting_services",
        /// Rebooting, or about to reboot.
        Rebooting = "rebooting",
        /// Comparing the installed versions with the requested ones.
        Verifying = "verifying",
    }

    /// Why a task did not succeed. The list is closed: clients may rely on it.
    FailureCode ("a failure code") {
        /// Another program held the package manager's lock for too long.
        PkgLockTimeout = "pkg_lock_timeout",
        /// A repository did not respond, or its content does not match its index.
        RepoUnreachable = "repo_unreachable",
        /// The update would require a removal or a downgrade, or cannot be resolved.
        DependencyConflict = "dependency_conflict",
        /// Not enough space on a file system.
        DiskFull = "disk_full",
        /// The package database is damaged and could not be repaired.
        PackageDbBroken = "package_db_broken",
        /// A maintainer script of a package failed, or the package manager failed for another
        /// reason.
        InstallFailed = "install_failed",
        /// The package manager succeeded, but the installed versions are not the requested ones.
        VerifyFailed = "verify_failed",
        /// A service did not start again.
        ServiceRestartFailed = "service_restart_failed",
        /// The server did not come back from its reboot in time.
        RebootTimeout = "reboot_timeout",
        /// A hook of the host's administrator refused the order.
        HookFailed = "hook_failed",
        /// The agent stopped reporting.
        AgentLost = "agent_lost",
        /// The host limits or the agent's own rules forbid it.
        RejectedByAgent = "rejected_by_agent",
        /// The agent does not know this kind of order and must be updated.
        UnsupportedOrder = "unsupported_order",
        /// The order arrived too late to start.
        OrderExpired = "order_expired",
        /// The agent has no record of an order that it had started. The server's inventory shows
        /// whether anything changed.
        OrderLost = "order_lost",
        /// The window closed before the task could start.
        WindowClosed = "window_closed",
        /// The repositories no longer offer any of the versions that the order named.
        VersionGone = "version_gone",
        /// Versions are pinned, and no server with the same operating system and architecture
        /// installed any in the first wave.
        VersionUnproven = "version_unproven",
        /// Internal error of the agent.
        AgentError = "agent_error",
    }

    /// What a rollout does about the health of its servers.
    #[derive(Default)]
    HealthMode ("a health mode") {
        /// Not measured.
        Off = "off",
        /// Measured and shown.
        #[default]
        Report = "report",
        /// A wave passes only if its servers are healthy.
        Gate = "gate",
    }

    /// The health of a server after a change.
    HealthState ("a state of health") {
        /// Measured, and nothing is worse than before.
        Healthy = "healthy",
        /// Something is worse than before.
        Degraded = "degraded",
        /// The agent could not measure it.
        NotMeasured = "not_measured",
    }

    /// What is worse on a server than before a change.
    HealthProblemKind ("a kind of health problem") {
        /// A systemd unit has failed.
        UnitFailed = "unit_failed",
        /// A systemd unit that was active is not active.
        UnitInactive = "unit_inactive",
        /// A service no longer listens on a port.
        SocketLost = "socket_lost",
        /// A health hook of the host's administrator fails.
        HookFailed = "hook_failed",
        /// The host rebooted and has not finished booting.
        BootIncomplete = "boot_incomplete",
        /// A problem of a kind that this version does not know, reported by a newer agent.
        Other = "other",
    }
}

impl FailureCode {
    /// What a user can do about it, as a sentence.
    pub const fn remedy(self) -> &'static str {
        match self {
            FailureCode::PkgLockTimeout => {
                "Stop the other updater on the host, or let it finish, and retry."
            }
            FailureCode::RepoUnreachable => {
                "Check the host's network, proxy and repository configuration, and retry."
            }
            FailureCode::DependencyConflict => {
                "Log in to the host and resolve the conflict, or exclude the package, and retry."
            }
            FailureCode::DiskFull => {
                "Free space on the file system that the message names, and retry."
            }
            FailureCode::PackageDbBroken => "Repair the package database on the host, and retry.",
            FailureCode::InstallFailed => "Read the log of the task, fix the package, and retry.",
            FailureCode::VerifyFailed => {
                "Read the log of the task, and compare the host's packages."
            }
            FailureCode::ServiceRestartFailed => "Read the service's log on the host and start it.",
            FailureCode::RebootTimeout => "Check the host's console: it did not come back.",
            FailureCode::HookFailed => "Read the hook's output in the log of the task.",
            FailureCode::AgentLost => {
                "Check the host and its agent. A late result replaces this one."
            }
            FailureCode::RejectedByAgent => "Change the order, or limits.toml on the host.",
            FailureCode::UnsupportedOrder => "Upgrade the agent, and retry.",
            FailureCode::OrderExpired => "Retry while the host is online.",
            FailureCode::OrderLost => "Compare the host's packages before you retry.",
            FailureCode::WindowClosed => "Use a longer window, or more servers in parallel.",
            FailureCode::VersionGone => {
                "Start a new batch, which installs the versions that are available now."
            }
            FailureCode::VersionUnproven => {
                "Start a new batch for the server, or make the first wave larger."
            }
            FailureCode::AgentError => "Read the log of the task and of the agent.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The planner relies on this order to ignore outdated progress reports.
    #[test]
    fn stages_are_ordered_as_the_agent_reaches_them() {
        assert!(Stage::ALL.is_sorted());
        assert_eq!(Stage::ALL.first(), Some(&Stage::Dispatched));
        assert_eq!(Stage::ALL.last(), Some(&Stage::Verifying));
    }

    #[test]
    fn codes_match_api_spelling() {
        assert_eq!("pkg_lock_timeout".parse(), Ok(FailureCode::PkgLockTimeout));
        assert_eq!(
            serde_json::to_string(&Stage::RestartingServices).unwrap(),
            "\"restarting_services\""
        );
    }
}
