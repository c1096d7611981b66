//! Read models: what a page, the API and a CSV file show is the same query.

pub mod preview;
pub mod summary;
pub mod targets;
