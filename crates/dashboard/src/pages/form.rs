//! The fields of forms as the user typed them, so that a rejected form comes back unchanged, and
//! the labels under which their errors are listed.

use crate::pages::form_errors::FormFields;
use crate::pages::schedule_builder::ScheduleBuilder;

/// The fields of a batch.
#[derive(Debug, Clone, Default)]
pub struct PatchForm {
    /// The name of the batch; may be empty.
    pub name: String,
    pub server_ids: Vec<String>,
    /// `security`, `all`, `packages` or `packages_security`.
    pub what: String,
    pub packages: String,
    pub exclude: String,
    pub reboot: String,
    pub stagger_minutes: String,
    pub max_parallel: String,
    pub canary: String,
    /// One wave per line.
    pub waves: String,
    /// Why freezes are ignored; usually empty.
    pub override_freeze: String,
    pub max_failures: String,
    /// `off`, `report` or `gate`.
    pub health: String,
    pub max_unhealthy: String,
    pub window_minutes: String,
    pub pin_versions: bool,
    pub dry_run: bool,
}

impl PatchForm {
    /// The same form with each server once, in a fixed order.
    pub fn sorted(mut self) -> PatchForm {
        self.server_ids.sort();
        self.server_ids.dedup();
        self
    }
}

/// The fields of an edit of several servers.
#[derive(Debug, Clone, Default)]
pub struct ServersForm {
    pub server_ids: Vec<String>,
    /// `keep`, `set` or `remove`.
    pub environment_change: String,
    pub environment: String,
    pub add_tags: String,
    pub remove_tags: String,
}

/// The fields of a suppression, with their labels.
pub const SUPPRESSION_FIELDS: FormFields = &[
    ("reason", "Reason"),
    ("environment", "Environment"),
    ("package", "Package"),
    ("expires_at", "Until"),
];

/// The fields of a suppression.
#[derive(Debug, Clone, Default)]
pub struct SuppressionForm {
    pub reason: String,
    pub environment: String,
    pub package: String,
    /// A date.
    pub until: String,
}

/// The fields of a schedule.
#[derive(Debug, Clone, Default)]
pub struct ScheduleForm {
    /// The version of the schedule that the form was loaded from.
    pub generation: String,
    pub name: String,
    pub description: String,
    pub enabled: bool,
    pub when: ScheduleBuilder,
    pub timezone: String,
    pub all: bool,
    pub environment: String,
    pub os: String,
    pub tags: String,
    /// Names of servers to add. Servers that were added before are in `order.server_ids`.
    pub add_servers: String,
    /// Save although no server matches.
    pub allow_empty: bool,
    pub order: PatchForm,
}

/// The fields of a freeze that a schedule does not have.
#[derive(Debug, Clone, Default)]
pub struct FreezeFields {
    pub reason: String,
    /// `one_off` or `recurring`.
    pub kind: String,
    /// Local times in the time zone of the form.
    pub starts_at: String,
    pub ends_at: String,
    pub duration: String,
}

/// The fields of the freeze form.
pub const FREEZE_FIELDS: FormFields = &[
    ("name", "Name"),
    ("reason", "Reason"),
    ("kind", "How often"),
    ("starts_at", "Start"),
    ("ends_at", "End"),
    ("repeat", "Repeats"),
    ("weekdays", "Days of the week"),
    ("month_day", "Day of the month"),
    ("nth", "Which weekday"),
    ("nth_weekday", "Weekday"),
    ("cron", "Cron expression"),
    ("time", "Time"),
    ("duration_minutes", "Duration"),
    ("timezone", "Time zone"),
    ("targets", "Servers"),
    ("all", "All servers"),
    ("environment", "Environment"),
    ("os", "System"),
    ("tags", "Tags"),
    ("add_servers", "Add servers by name"),
    ("server_ids", "Named servers"),
];

/// The fields of a policy that a schedule does not have. The rules are numbers of days; empty: none.
#[derive(Debug, Clone, Default)]
pub struct PolicyDays {
    pub description: String,
    pub kev: String,
    pub critical: String,
    pub high: String,
    pub medium: String,
    pub low: String,
    pub security: String,
}

/// The fields of the policy form.
pub const POLICY_FIELDS: FormFields = &[
    ("name", "Name"),
    ("description", "Description"),
    ("rules", "Rules"),
    ("kev", "Known exploited CVEs"),
    ("critical", "Critical"),
    ("high", "High or worse"),
    ("medium", "Medium or worse"),
    ("low", "Low or worse"),
    ("security", "All security updates"),
    ("targets", "Servers"),
    ("all", "All servers"),
    ("environment", "Environment"),
    ("os", "System"),
    ("tags", "Tags"),
    ("add_servers", "Add servers by name"),
    ("server_ids", "Named servers"),
];

/// The fields of the patch form.
pub const PATCH_FIELDS: FormFields = &[
    ("name", "Name"),
    ("server_ids", "Servers"),
    ("what", "Install"),
    ("packages", "Packages"),
    ("exclude", "Exclude packages"),
    ("reboot", "Reboot"),
    ("canary", "Canary"),
    ("waves", "Waves"),
    ("override_freeze", "Reason to ignore freezes"),
    ("pin_versions", "Pin versions"),
    ("max_failures", "Stop after failures"),
    ("health", "Health"),
    ("max_unhealthy", "Max unhealthy"),
    ("max_parallel", "Max parallel"),
    ("stagger_minutes", "Stagger"),
    ("window_minutes", "Window"),
];

/// The fields of the schedule form.
pub const SCHEDULE_FIELDS: FormFields = &[
    ("name", "Name"),
    ("description", "Description"),
    ("repeat", "Repeats"),
    ("weekdays", "Days of the week"),
    ("month_day", "Day of the month"),
    ("nth", "Which weekday"),
    ("nth_weekday", "Weekday"),
    ("cron", "Cron expression"),
    ("time", "Time"),
    ("timezone", "Time zone"),
    ("targets", "Servers"),
    ("all", "All servers"),
    ("environment", "Environment"),
    ("os", "System"),
    ("tags", "Tags"),
    ("add_servers", "Add servers by name"),
    ("server_ids", "Named servers"),
    ("what", "Install"),
    ("packages", "Packages"),
    ("exclude", "Exclude packages"),
    ("reboot", "Reboot"),
    ("canary", "Canary"),
    ("waves", "Waves"),
    ("override_freeze", "Reason to ignore freezes"),
    ("pin_versions", "Pin versions"),
    ("max_failures", "Stop after failures"),
    ("health", "Health"),
    ("max_unhealthy", "Max unhealthy"),
    ("max_parallel", "Max parallel"),
    ("stagger_minutes", "Stagger"),
    ("window_minutes", "Window"),
];

/// The fields of one server.
pub const SERVER_FIELDS: FormFields = &[
    ("display_name", "Display name"),
    ("environment", "Environment"),
    ("tags", "Tags"),
    ("notes", "Notes"),
];

/// The fields of several servers.
pub const SERVERS_FIELDS: FormFields =
    &[("environment", "Environment"), ("add_tags", "Add tags"), ("remove_tags", "Remove tags")];

/// The fields of an invitation.
#[derive(Debug, Clone)]
pub struct InviteForm {
    pub name: String,
    pub role: String,
}

pub const INVITE_FIELDS: FormFields = &[("name", "Name"), ("role", "Role")];

/// The fields of an API key.
#[derive(Debug, Clone)]
pub struct KeyForm {
    pub name: String,
    pub role: String,
}

pub const KEY_FIELDS: FormFields = &[("name", "Name"), ("role", "Role")];

/// The fields of an enrollment token.
#[derive(Debug, Clone, Default)]
pub struct TokenForm {
    pub name: String,
    pub environment: String,
    pub max_uses: String,
}

pub const TOKEN_FIELDS: FormFields =
    &[("name", "Name"), ("environment", "Environment"), ("max_uses", "Maximum uses")];

/// The fields of a feed from a URL.
#[derive(Debug, Clone, Default)]
pub struct FeedForm {
    pub url: String,
    pub name: String,
}

pub const FEED_FIELDS: FormFields = &[("url", "URL"), ("name", "Name")];

/// The fields of a webhook.
#[derive(Debug, Clone, Default)]
pub struct WebhookForm {
    /// The version of the webhook that the form was loaded from; empty for a new one.
    pub generation: String,
    pub name: String,
    pub url: String,
    pub format: String,
    pub types: Vec<String>,
    pub environment: String,
    pub os: String,
    pub tags: String,
    pub server_ids: Vec<String>,
}

impl WebhookForm {
    /// Whether this type or pattern is selected.
    pub fn has_type(&self, pattern: &str) -> bool {
        self.types.iter().any(|chosen| chosen == pattern)
    }
}

pub const WEBHOOK_FIELDS: FormFields = &[
    ("name", "Name"),
    ("url", "URL"),
    ("format", "Format"),
    ("types", "Events"),
    ("targets", "Servers"),
    ("environment", "Environment"),
    ("os", "System"),
    ("tags", "Tags"),
    ("server_ids", "Named servers"),
];

/// The fields of a notification rule.
#[derive(Debug, Clone, Default)]
pub struct NotificationForm {
    pub rhythm: String,
    pub types: Vec<String>,
    pub environment: String,
    pub os: String,
    pub tags: String,
    pub server_ids: Vec<String>,
}

impl NotificationForm {
    /// Whether this type or pattern is selected.
    pub fn has_type(&self, pattern: &str) -> bool {
        self.types.iter().any(|chosen| chosen == pattern)
    }
}

pub const NOTIFICATION_FIELDS: FormFields = &[
    ("rhythm", "When"),
    ("types", "Events"),
    ("targets", "Servers"),
    ("environment", "Environment"),
    ("os", "System"),
    ("tags", "Tags"),
    ("server_ids", "Named servers"),
];

pub const EMAIL_FIELDS: FormFields = &[("address", "Email address"), ("timezone", "Time zone")];

pub const ORGANIZATION_FIELDS: FormFields = &[("name", "Name")];
