//! What people fill in, kept as they wrote it, so that a refused form comes back as it was sent.

/// An order.
#[derive(Debug, Clone, Default)]
pub struct OrderForm {
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

/// A schedule.
#[derive(Debug, Clone, Default)]
pub struct ScheduleForm {
    /// The version that it was made from.
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
    /// Names of servers that are to be named, too; those that are, are the order's.
    pub add_servers: String,
    /// Save it although no server matches.
    pub allow_empty: bool,
    pub order: OrderForm,
}
