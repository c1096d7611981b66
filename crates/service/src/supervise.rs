//! Restarts a background task when it panics.
//!
//! A panic is a bug, but it must not stop the patching of a fleet until someone restarts the
//! service. Background tasks keep nothing in memory that they cannot read again, so restarting them
//! is safe.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;

/// The delay before a restart. A task that panics every time must not fill the log.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// Runs a task until it ends, and restarts it each time it panics.
pub async fn run<F: Future<Output = ()>>(name: &'static str, start: impl Fn() -> F) {
    while AssertUnwindSafe(start()).catch_unwind().await.is_err() {
        // The panic handler has already logged the message and the location.
        tracing::error!(task = name, "a background task panicked and is restarted");
        metrics::counter!("fleetmend_task_panics_total", "task" => name).increment(1);
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn panicking_task_is_restarted_until_it_ends() {
        let starts = AtomicU32::new(0);
        let task = || async {
            tokio::task::yield_now().await;
            assert!(starts.fetch_add(1, Ordering::Relaxed) == 2, "a bug");
        };
        run("test", task).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
