//! How often news may be told.

use std::time::{Duration, Instant};

/// How many syncs may follow each other at once, each with news, before one is put off.
const MAX: f64 = 16.0;
/// How many a second may follow for ever.
const A_SECOND: f64 = 2.0;

/// How many syncs may still follow each other at once. It grows with time.
#[derive(Debug, Clone, Copy)]
pub struct SyncThrottle {
    left: f64,
    at: Instant,
}

impl SyncThrottle {
    /// Nobody rushed yet.
    pub fn new(now: Instant) -> SyncThrottle {
        SyncThrottle { left: MAX, at: now }
    }

    /// How long to wait before the next one.
    pub fn next(&mut self, now: Instant) -> Duration {
        let grown = now.saturating_duration_since(self.at).as_secs_f64() * A_SECOND;
        self.left = (self.left + grown).min(MAX) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.left).max(0.0) / A_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant serves")]
    fn news_is_told_at_once_until_it_comes_too_often_and_never_much_later() {
        let start = Instant::now();
        let mut rush = SyncThrottle::new(start);
        for _ in 0..16 {
            assert_eq!(rush.next(start), Duration::ZERO);
        }
        // From here on two a second, however long it goes on.
        let mut now = start;
        for _ in 0..100 {
            let wait = rush.next(now);
            assert_eq!(wait, Duration::from_millis(500));
            now += wait;
        }
        // A quiet while, and there is room again.
        assert_eq!(rush.next(now + Duration::from_secs(60)), Duration::ZERO);
        assert_eq!(rush.left, 15.0);
    }
}
