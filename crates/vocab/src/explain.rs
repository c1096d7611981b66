//! Why an update or a CVE on a server is not patched: the states and reasons of the answer.

use crate::keyword::{WordError, words};

words! {
    /// Where an update or a CVE on one server stands. Later values need more attention.
    PatchState ("a patch state") {
        /// Nothing is pending.
        UpToDate = "up_to_date",
        /// The update is installed, but the old code still runs.
        WaitingForRestart = "waiting_for_restart",
        /// A batch is installing it, or will when it is this server's turn.
        InProgress = "in_progress",
        /// A schedule will install it.
        Scheduled = "scheduled",
        /// Nothing prevents it, and nothing will install it.
        Unscheduled = "unscheduled",
        /// There is no update to install.
        NoFix = "no_fix",
        /// Something prevents the installation.
        Blocked = "blocked",
        /// It cannot be determined.
        Unknown = "unknown",
    }

    /// Why an update or a CVE on one server is not patched. The list only grows.
    ReasonCode ("a reason code") {
        /// A batch is installing it.
        Installing = "installing",
        /// A batch will install it, and waits.
        Waiting = "waiting",
        /// The last attempt to install it failed.
        LastAttemptFailed = "last_attempt_failed",
        /// The host's administrator holds the package.
        Held = "held",
        /// The distribution rolls out the update in phases.
        Phased = "phased",
        /// The update needs a removal, or cannot be resolved.
        KeptBack = "kept_back",
        /// A pin on the host prefers another version.
        Pinned = "pinned",
        /// The host limits exclude the package.
        ExcludedByHost = "excluded_by_host",
        /// The host limits allow security updates only.
        HostSecurityOnly = "host_security_only",
        /// The host limits allow no changes.
        HostFrozen = "host_frozen",
        /// The host limits cannot be read, so the host allows scans only.
        HostLimitsUnusable = "host_limits_unusable",
        /// The host allows changes at certain hours only.
        HostHours = "host_hours",
        /// The server is in quarantine and gets no orders.
        Quarantined = "quarantined",
        /// The server is offline.
        Offline = "offline",
        /// The server never reported its packages.
        NotScanned = "not_scanned",
        /// The last scan is too old to be relied on.
        StaleScan = "stale_scan",
        /// No schedule selects the server.
        NoSchedule = "no_schedule",
        /// A schedule selects the server and excludes the package.
        ExcludedBySchedule = "excluded_by_schedule",
        /// A schedule selects the server, but only other packages.
        NotInSchedule = "not_in_schedule",
        /// A schedule selects the server, but installs security updates only.
        ScheduleSecurityOnly = "schedule_security_only",
        /// A schedule would install it, but only simulates.
        ScheduleDryRun = "schedule_dry_run",
        /// A schedule would install it, but is disabled or never runs again.
        ScheduleDisabled = "schedule_disabled",
        /// A schedule would install it, but the host limits reject its order.
        ScheduleRejectedByHost = "schedule_rejected_by_host",
        /// The host's repositories offer no version that fixes it.
        RepositoryHasNoFix = "repository_has_no_fix",
        /// The distribution has not published a fix.
        NoFixYet = "no_fix_yet",
        /// The distribution defers the fix to a later update.
        FixDeferred = "fix_deferred",
        /// The distribution will not fix it in this release.
        WontFix = "wont_fix",
        /// The distribution no longer supports the package.
        EndOfLife = "end_of_life",
        /// The fix is available to subscribers only.
        Subscription = "subscription",
        /// The package does not come from the distribution.
        ThirdParty = "third_party",
        /// The distribution has not published whether the version is affected.
        UnknownFix = "unknown_fix",
        /// Programs must be restarted to run the new code.
        RestartServices = "restart_services",
        /// The server must be rebooted to run the new code.
        RebootRequired = "reboot_required",
        /// A user suppressed the CVE.
        Suppressed = "suppressed",
    }
}
