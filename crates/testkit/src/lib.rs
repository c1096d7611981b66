//! What the tests of several crates share. Nothing here is shipped, and nothing here knows a crate
//! that it helps to test, so every crate may use it.
//!
//! - [`both!`] runs a test on SQLite and on PostgreSQL.
//! - [`TestDatabase`] is a fresh database of either engine.
//! - [`mail`] is an SMTP server.
//! - [`publisher`] is a local HTTP server that responds as a test tells it to.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

mod database;
pub mod mail;
pub mod publisher;

pub use database::{TestDatabase, superuser};

use jiff::{SignedDuration, Timestamp};

/// Runs each of these test functions on both engines, as `NAME::sqlite` and `NAME::postgres`.
///
/// ```text
/// async fn batch_can_be_canceled(world: &World) {}
///
/// testkit::both!(crate::support: batch_can_be_canceled);
/// ```
///
/// The module before the colon has the functions `sqlite` and `postgres`. Each takes a test
/// function, creates what the test needs, runs the test, and removes everything again. A function
/// that is not listed is unused code, which fails the build.
#[macro_export]
macro_rules! both {
    (@each $support:tt $($name:ident)+) => {
        $($crate::both!(@one $support $name);)+
    };
    (@one [$($support:ident)::+] $name:ident) => {
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                $($support)::+::sqlite(super::$name).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                $($support)::+::postgres(super::$name).await;
            }
        }
    };
    ($($support:ident)::+: $($name:ident),+ $(,)?) => {
        $crate::both!(@each [$($support)::+] $($name)+);
    };
}

/// A Sunday in November, plus some seconds.
pub fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(seconds)
}
