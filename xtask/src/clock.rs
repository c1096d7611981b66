//! The only place in this crate that reads the clock: for step durations and file ages.

use std::time::{Instant, SystemTime};

#[expect(clippy::disallowed_methods, reason = "xtask measures the duration of its steps")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the age of apt's package lists")]
pub(crate) fn system_time() -> SystemTime {
    SystemTime::now()
}
