//! Integration tests of the dashboard through the real router, on both databases.

mod account;
mod actions;
mod activity;
mod csv_exports;
mod every_page;
mod forms;
mod login;
mod oidc;
mod previews;
mod root_rotation;
mod tables;
mod views;
