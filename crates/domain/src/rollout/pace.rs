//! The pace of a rollout, and how many failures it tolerates.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::Portion;

/// How long a rollout without a window waits for offline servers, beyond its slowest reasonable
/// duration. Long enough for someone to come back from a holiday weekend and decide.
pub const OFFLINE_WAIT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Estimated duration of one task, for the time that `max_parallel` makes the others wait.
const TASK_ESTIMATE: SignedDuration = SignedDuration::from_hours(1);

/// The pace as requested. Its fields are those of the API's options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// Minimum time between the starts of two servers.
    pub stagger_minutes: u32,
    /// Maximum number of tasks in progress at a time.
    pub max_parallel: Option<u32>,
    /// How many servers go first and must succeed before the rest start.
    pub canary: Option<Portion>,
    /// Number of failed servers at which the rollout halts.
    pub max_failures: Option<Portion>,
    /// No server starts later than this after the start.
    pub window_minutes: Option<u32>,
}

/// The pace with percentages resolved for a number of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub(super) stagger: SignedDuration,
    pub(super) parallel: u32,
    pub(super) canary: u32,
    pub(super) failures: u32,
}

impl Pace {
    /// Resolves the pace for `total` servers.
    pub fn limits(&self, total: u32) -> Limits {
        Limits {
            stagger: SignedDuration::from_mins(i64::from(self.stagger_minutes)),
            parallel: self.max_parallel.unwrap_or(u32::MAX).max(1),
            canary: self.canary.map_or(0, |portion| portion.resolve(total).min(total)),
            failures: self.max_failures.map_or(u32::MAX, |portion| portion.resolve(total).max(1)),
        }
    }

    /// Returns the time after which no server may start.
    pub fn start_by(&self, starts_at: Timestamp, total: u32) -> Timestamp {
        let allowed = match self.window_minutes {
            Some(minutes) => SignedDuration::from_mins(i64::from(minutes)),
            None => self.min_duration(total).saturating_add(OFFLINE_WAIT),
        };
        starts_at.saturating_add(allowed).unwrap_or(Timestamp::MAX)
    }

    /// Returns how long the starts of `total` servers take by this pace alone, if all goes well. A
    /// window must be longer than this.
    pub fn min_duration(&self, total: u32) -> SignedDuration {
        let gaps = i64::from(total.saturating_sub(1));
        let stagger = SignedDuration::from_mins(i64::from(self.stagger_minutes));
        let gaps = i32::try_from(gaps).unwrap_or(i32::MAX);
        let staggered = stagger.checked_mul(gaps).unwrap_or(SignedDuration::MAX);
        let rounds = self
            .max_parallel
            .map_or(0, |parallel| total.div_ceil(parallel.max(1)).saturating_sub(1));
        staggered.max(TASK_ESTIMATE * i32::try_from(rounds).unwrap_or(i32::MAX))
    }
}

impl Limits {
    /// Number of servers that go first.
    pub fn canary(&self) -> u32 {
        self.canary
    }
}
