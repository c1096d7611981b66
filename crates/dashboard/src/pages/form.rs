//! The fields of forms as the user typed them, so that a rejected form comes back unchanged.

/// The fields of a batch.
#[derive(Debug, Clone, Default)]
pub struct PatchForm {
    pub server_ids: Vec<String>,
    /// `security`, `all`, `packages` or `packages_security`.
    pub what: String,
    pub packages: String,
    pub exclude: String,
    pub reboot: String,
    pub stagger_minutes: String,
    pub max_parallel: String,
    pub canary: String,
    pub max_failures: String,
    pub window_minutes: String,
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
    pub cron: String,
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
