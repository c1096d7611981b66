//! What one may choose from, as it is sent and as it is said.

/// A word of the API, and the same for people.
pub type Choice = (&'static str, &'static str);

/// Whether servers are heard from.
pub const STATUS: &[Choice] = &[("", "Any status"), ("online", "Online"), ("offline", "Offline")];
/// Whether servers should be rebooted.
pub const REBOOT_REQUIRED: &[Choice] =
    &[("", "Any reboot state"), ("true", "Reboot pending"), ("false", "No reboot pending")];
/// In which order servers are listed.
pub const SORT: &[Choice] = &[
    ("", "By name"),
    ("security_updates", "Most security updates"),
    ("last_seen", "Least recently seen"),
    ("newest", "Newest"),
];
/// How bad something is.
pub const SEVERITY: &[Choice] = &[
    ("", "Any severity"),
    ("critical", "Critical"),
    ("critical,high", "Critical and high"),
    ("medium", "Medium"),
    ("low", "Low"),
    ("unknown", "Unknown"),
];
/// Whether a flaw is known to be exploited.
pub const KEV: &[Choice] = &[("", "Exploited: any"), ("true", "Known exploited")];
/// Where batches stand.
pub const BATCH_STATE: &[Choice] = &[
    ("", "Any state"),
    ("scheduled,running,paused,halted,canceling", "Open"),
    ("running", "Running"),
    ("paused,halted", "Paused or halted"),
    ("succeeded", "Succeeded"),
    ("failed,completed_with_errors,expired", "With failures"),
    ("canceled", "Canceled"),
];
/// Whether servers may be rebooted.
pub const REBOOT: &[Choice] = &[
    ("never", "never"),
    ("if_required", "if required"),
    ("always", "always"),
    ("services_only", "services only"),
];
/// What someone may do.
pub const ROLE: &[Choice] = &[("viewer", "viewer"), ("operator", "operator"), ("admin", "admin")];
