//! Integration tests of the dashboard through the real router, on both databases.

mod account;
mod actions;
mod activity;
mod audited_forms;
mod csv_exports;
mod every_page;
mod forms;
mod login;
pub(crate) mod notifications;
mod oidc;
mod previews;
mod root_rotation;
mod tables;
mod views;
pub(crate) mod webhooks;
