//! The agent's clock.

use jiff::Timestamp;

/// What time it is, as far as this host knows, to the microsecond, as the server keeps it.
#[expect(clippy::disallowed_methods, reason = "this is the agent's clock")]
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}
