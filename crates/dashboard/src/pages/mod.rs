//! Renders the pages of the dashboard from the types of the API, with their stylesheet and script.
//!
//! Everything here is pure: it uses no database, clock or network. The handlers of this crate fetch
//! the data. Templates escape their values; the few functions that build markup themselves
//! ([`pill`], [`Frame::ago`], [`plot`]) escape what they insert.

pub mod ages;
pub mod asset;
pub mod calendar;
pub mod choice;
pub mod csv;
pub mod form;
mod format;
mod layout;
mod names;
pub mod plot;
pub mod trend;
mod views;

pub use askama::Template;
pub use asset::{Asset, ICON, SCRIPT, STYLE};
pub use format::{
    Count, chance, change, counts, escape, fewer, in_zone, last_shown, local, number, pace, pill,
    plural, score, share, spaced, spoken, start_label, targets, what, word,
};
pub use layout::{Frame, NavItem, Section};
pub use names::Names;
pub use views::{
    Account, Activity, ActivityEntry, Arrived, Asked, BatchPage, Batches, Code, Confirm, CvePage,
    Cves, HistoryRow, NextRun, OrderPage, OrderPreview, Overview, PatchPage, Patches, Problem,
    ProblemBare, ScheduleEdit, SchedulePage, Schedules, Secret, ServerFilter, ServerPage, Servers,
    Settings, SignIn, TaskPage, UserRow, Welcome,
};

/// Maximum number of rows in a table that the API does not page.
pub const ROWS_MAX: usize = 500;
