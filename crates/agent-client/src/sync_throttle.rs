//! Token bucket that limits how often an agent syncs immediately.

use std::time::{Duration, Instant};

/// Number of immediate syncs allowed in a burst.
const BURST: f64 = 16.0;
/// Sustained rate, in syncs per second.
const SYNCS_PER_SECOND: f64 = 2.0;

/// A token bucket: the number of immediate syncs still allowed, refilled over time.
#[derive(Debug, Clone, Copy)]
pub struct SyncThrottle {
    tokens: f64,
    updated_at: Instant,
}

impl SyncThrottle {
    /// Starts with a full bucket.
    pub fn new(now: Instant) -> SyncThrottle {
        SyncThrottle { tokens: BURST, updated_at: now }
    }

    /// How long to wait before the next sync.
    pub fn next_delay(&mut self, now: Instant) -> Duration {
        let grown = now.saturating_duration_since(self.updated_at).as_secs_f64() * SYNCS_PER_SECOND;
        self.tokens = (self.tokens + grown).min(BURST) - 1.0;
        self.updated_at = now;
        Duration::from_secs_f64((-self.tokens).max(0.0) / SYNCS_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant works")]
    fn syncs_are_immediate_up_to_the_burst_then_limited() {
        let start = Instant::now();
        let mut rush = SyncThrottle::new(start);
        for _ in 0..16 {
            assert_eq!(rush.next_delay(start), Duration::ZERO);
        }
        // From here on, two per second, indefinitely.
        let mut now = start;
        for _ in 0..100 {
            let wait = rush.next_delay(now);
            assert_eq!(wait, Duration::from_millis(500));
            now += wait;
        }
        // After a quiet minute the bucket is full again.
        assert_eq!(rush.next_delay(now + Duration::from_secs(60)), Duration::ZERO);
        assert_eq!(rush.tokens, 15.0);
    }
}
