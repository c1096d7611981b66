//! What the dashboard looks like: from the bodies of the API to pages, with the stylesheet and the script they need.
//!
//! Pure: nothing here asks a database, a clock or the network; `server::web` fetches and calls. Templates escape what they are given;
//! the few functions here that make markup themselves ([`pill`], [`Frame::ago`], [`plot`]) escape what they put into it.

pub mod ages;
pub mod asset;
pub mod calendar;
pub mod choice;
pub mod csv;
pub mod form;
mod frame;
mod names;
pub mod plot;
mod say;
pub mod trend;
mod views;

pub use askama::Template;
pub use asset::{Asset, ICON, SCRIPT, STYLE};
pub use frame::{Frame, NavItem, Section};
pub use names::Names;
pub use say::{
    Count, chance, change, counts, escape, fewer, in_zone, last_shown, local, number, pace, pill,
    plural, score, share, spaced, spoken, start_label, targets, what, word,
};
pub use views::{
    Account, Activity, ActivityEntry, Arrived, Asked, BatchPage, Batches, Code, Confirm, CvePage,
    Cves, HistoryRow, NextRun, OrderPage, OrderPreview, Overview, PatchPage, Patches, Problem,
    ProblemBare, ScheduleEdit, SchedulePage, Schedules, Secret, ServerFilter, ServerPage, Servers,
    Settings, SignIn, TaskPage, UserRow, Welcome,
};

/// How many rows a table shows at the most where the API does not page.
pub const ROWS_MAX: usize = 500;
