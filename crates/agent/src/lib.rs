//! What runs on every server: it reports what is installed and what is pending, and installs updates
//! with the server's own package manager.
//!
//! [`backend`] knows the package managers: what to run, and how to read what they say.
//! [`work`] carries orders out and never loses the truth, [`shell`] talks to the server.
//! [`host`] knows the machine itself: what it is, what runs on it, whether it may be rebooted.
//! [`root`] is the system that is managed, which need not be the one that is running.

pub mod backend;
pub mod command;
pub mod host;
pub mod output;
pub mod root;
pub mod shell;
pub mod work;
