//! The options of select fields: the value that is sent, and its label.

/// A value of the API and its label.
pub type Choice = (&'static str, &'static str);

/// The label of a value.
pub fn label_of(choices: &[Choice], value: &str) -> &'static str {
    choices.iter().find(|(known, _)| *known == value).map_or("", |(_, label)| *label)
}

pub const STATUS: &[Choice] = &[("", "Any status"), ("online", "Online"), ("offline", "Offline")];
pub const REBOOT_REQUIRED: &[Choice] =
    &[("", "Any reboot state"), ("true", "Reboot pending"), ("false", "No reboot pending")];
pub const SORT: &[Choice] = &[
    ("", "By name"),
    ("security_updates", "Most security updates"),
    ("last_seen", "Least recently seen"),
    ("newest", "Newest"),
];
pub const PATCH_SORT: &[Choice] = &[
    ("", "Most severe"),
    ("affected_servers", "Most servers"),
    ("first_seen", "Longest pending"),
    ("name", "By name"),
];
pub const CVE_SORT: &[Choice] = &[
    ("", "Most severe"),
    ("affected_servers", "Most servers"),
    ("published", "Most recently published"),
    ("id", "By ID"),
];
pub const SEVERITY: &[Choice] = &[
    ("", "Any severity"),
    ("critical", "Critical"),
    ("critical,high", "Critical and high"),
    ("high", "High"),
    ("medium", "Medium"),
    ("low", "Low"),
    ("unknown", "Unknown"),
];
pub const KEV: &[Choice] =
    &[("", "Exploited: any"), ("true", "Known exploited"), ("false", "Not known to be exploited")];
pub const BATCH_STATE: &[Choice] = &[
    ("", "Any state"),
    ("scheduled,running,awaiting_approval,paused,halted,canceling", "Active"),
    ("running", "Running"),
    ("paused,halted", "Paused or halted"),
    ("succeeded", "Succeeded"),
    ("failed,completed_with_errors,expired", "With failures"),
    ("canceled", "Canceled"),
];
pub const DELIVERY_STATE: &[Choice] =
    &[("", "All"), ("pending", "Pending"), ("delivered", "Delivered"), ("failed", "Failed")];
pub const WEBHOOK_FORMAT: &[Choice] =
    &[("standard", "Standard Webhooks (JSON)"), ("slack", "Slack"), ("teams", "Microsoft Teams")];
/// When a message about events is sent.
pub const RHYTHM: &[Choice] = &[
    ("immediate", "As it happens"),
    ("daily", "Daily digest, at 07:00"),
    ("weekly", "Weekly report, on Monday at 07:00"),
];
pub const ACTION_GROUP: &[Choice] = &[
    ("", "Any kind"),
    ("accounts", "Users and sign-in"),
    ("credentials", "API keys and tokens"),
    ("servers", "Servers and agents"),
    ("batches", "Batches"),
    ("schedules", "Schedules"),
    ("feeds", "Feeds and suppressions"),
    ("webhooks", "Webhooks"),
    ("installation", "Installation"),
];
/// The pages of the settings.
pub const SETTINGS: &[Choice] = &[
    ("/settings", "Organization"),
    ("/settings/people", "People"),
    ("/settings/keys", "API keys"),
    ("/settings/tokens", "Enrollment"),
    ("/settings/agents", "Agents"),
    ("/settings/feeds", "Feeds"),
    ("/settings/webhooks", "Webhooks"),
    ("/settings/sign-in", "Sign-in"),
];
/// What a batch does about the health of its servers.
pub const HEALTH: &[Choice] =
    &[("report", "measure and show"), ("gate", "waves must be healthy"), ("off", "do not measure")];
/// The reboot policies of a batch or schedule.
pub const REBOOT: &[Choice] = &[
    ("never", "never"),
    ("if_required", "if required"),
    ("always", "always"),
    ("services_only", "services only"),
];
pub const ROLE: &[Choice] = &[("viewer", "viewer"), ("operator", "operator"), ("admin", "admin")];
