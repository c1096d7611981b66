//! What runs on every server: it reports what is installed and what is pending, and installs updates
//! with the server's own package manager.
//!
//! [`backend`] knows the package managers: what to run, and how to read what they say.
//! [`root`] is the system that is managed, which need not be the one that is running.

pub mod backend;
pub mod command;
pub mod root;
