//! The agent's clock.

use jiff::Timestamp;

/// The host's current time, to the microsecond, which is the precision that the service stores.
#[expect(clippy::disallowed_methods, reason = "this is the agent's clock")]
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// Waits before a file that another process writes is read again.
#[expect(clippy::disallowed_methods, reason = "waits for another process")]
pub(super) fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}
