//! How far a server's task is, and why one failed: what agent, service and people all say.

use crate::word::{WordError, words};

words! {
    /// What an agent is doing for an order. Later stages are greater; a task only goes forward.
    Stage ("a stage of a task") {
        /// The order is on its way.
        Dispatched = "dispatched",
        /// Checking: limits, locks, free space, what the update would do.
        Preflight = "preflight",
        /// Fetching packages.
        Downloading = "downloading",
        /// The package manager is at work.
        Installing = "installing",
        /// Restarting services that run old code.
        RestartingServices = "restarting_services",
        /// Rebooting, or about to.
        Rebooting = "rebooting",
        /// Comparing what is there with what was asked for.
        Verifying = "verifying",
    }

    /// Why a task did not succeed. The list is closed: a client may rely on it.
    FailureCode ("a failure code") {
        /// Another program held the package manager's lock for too long.
        PkgLockTimeout = "pkg_lock_timeout",
        /// A repository did not answer, or what it holds does not fit its index.
        RepoUnreachable = "repo_unreachable",
        /// It would need a removal or a downgrade, or cannot be resolved at all.
        DependencyConflict = "dependency_conflict",
        /// Not enough room on a file system.
        DiskFull = "disk_full",
        /// The package database is damaged and could not be repaired.
        PackageDbBroken = "package_db_broken",
        /// A package's own script failed, or the package manager did for another reason.
        InstallFailed = "install_failed",
        /// It ended well, and yet versions are not as asked.
        VerifyFailed = "verify_failed",
        /// A service did not come back.
        ServiceRestartFailed = "service_restart_failed",
        /// The server did not come back from its reboot in time.
        RebootTimeout = "reboot_timeout",
        /// A hook of the host's own administrator said no.
        HookFailed = "hook_failed",
        /// The agent fell silent.
        AgentLost = "agent_lost",
        /// The host's limits, or the agent's own rules, forbid it.
        RejectedByAgent = "rejected_by_agent",
        /// The agent does not know this kind of order; it wants updating.
        UnsupportedOrder = "unsupported_order",
        /// The order arrived too late to be started.
        OrderExpired = "order_expired",
        /// The agent has no record of an order that it had started. Whether anything was changed
        /// shows in the server's inventory.
        OrderLost = "order_lost",
        /// The time to start ran out.
        WindowClosed = "window_closed",
        /// A fault of the agent's own.
        AgentError = "agent_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The planner trusts this order to tell news from old news.
    #[test]
    fn stages_follow_each_other_as_an_agent_goes_through_them() {
        assert!(Stage::ALL.is_sorted());
        assert_eq!(Stage::ALL.first(), Some(&Stage::Dispatched));
        assert_eq!(Stage::ALL.last(), Some(&Stage::Verifying));
    }

    #[test]
    fn codes_are_spelled_as_the_api_shows_them() {
        assert_eq!("pkg_lock_timeout".parse(), Ok(FailureCode::PkgLockTimeout));
        assert_eq!(
            serde_json::to_string(&Stage::RestartingServices).unwrap(),
            "\"restarting_services\""
        );
    }
}
