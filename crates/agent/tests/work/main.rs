//! Orders executed for real: the worker thread, the supervisor process, the journal on disk.

#![expect(clippy::unwrap_used, reason = "a test whose setup fails has failed")]

mod apt;
mod asked;
mod damage;
mod disks;
mod orders;
mod toy;
