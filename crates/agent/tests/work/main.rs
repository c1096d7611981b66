//! Orders carried out for real: the worker's thread, the supervisor's process, the journal on disk.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

mod apt;
mod asked;
mod damage;
mod disks;
mod orders;
mod toy;
