//! Renders the pages of the dashboard from the types of the API, with their stylesheet and script.
//!
//! Everything here is pure: it uses no database, clock or network. The handlers of this crate fetch
//! the data. Templates escape their values; the few functions that build markup themselves
//! ([`pill`], [`Frame::ago`], [`plot`]) escape what they insert.

pub mod activity;
pub mod ages;
pub mod asset;
pub mod batch;
pub mod calendar;
pub mod choice;
pub mod display;
pub mod facets;
pub mod form;
pub mod form_errors;
mod format;
mod icon;
mod layout;
mod names;
pub mod plot;
mod qr;
pub mod schedule_builder;
pub mod sentence;
mod theme;
pub mod trend;
mod user_agent;
mod views;
pub mod webhooks;

pub use askama::Template;
pub use asset::{ICON, SCRIPT, STYLE};
pub use facets::servers_path;
pub use format::{
    Count, api_name, area_icon, change_html, compliance_counts, compliance_trend, counts,
    describe_health, describe_import, describe_import_of, describe_pace, describe_problems,
    describe_targets, describe_updates, escape, freeze_when, in_zone, is_truncated, label,
    last_shown, local, number, path_segment, pill, plural, policy_rules, probability, score, share,
    start_label, tone_class, urgency_class, verdict_class, when, with_spaces,
};
pub use icon::{ICONS, icon};
pub use layout::{Frame, NavItem, Section};
pub use names::Names;
pub use qr::qr_code;
pub use theme::{APPEARANCE_VALUE, Appearance, Density, Theme};
pub use user_agent::describe_user_agent;
pub use views::{
    Account, Activity, Arrived, BatchPage, Batches, Code, CompliancePage, ComplianceReportPage,
    ComplianceServersPage, Confirm, CvePage, Cves, EmailLink, ExplanationPage, Find, Found,
    FreezeEdit, Freezes, HistoryRow, Matches, MatchesFragment, NextRun, NextRunsFragment,
    NotificationNew, Notifications, OrderPage, Overview, PasswordErrors, PatchPage, Patches,
    PolicyEdit, PreviewWithToken, Problem, ProblemBare, ProviderFacts, RecoveryCodes, ScheduleEdit,
    SchedulePage, Schedules, Secret, ServerEdit, ServerPage, ServerTab, Servers, ServersEdit,
    SessionRow, Settings, SettingsAgents, SettingsFeeds, SettingsKeys, SettingsPeople,
    SettingsSignIn, SettingsTokens, SettingsWebhooks, SignIn, Styleguide, Suppress, TaskPage,
    UserRow, WebhookEdit, WebhookPage, Welcome,
};

/// Maximum number of rows in a table that the API does not page.
pub const ROWS_MAX: usize = 500;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
