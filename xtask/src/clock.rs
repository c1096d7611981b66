//! The one place of this crate that asks for the time: how long a step took, how old a file is.

use std::time::{Instant, SystemTime};

#[expect(clippy::disallowed_methods, reason = "this tool measures its own steps")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the age of apt's package lists")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
