//! The pace of a rollout, and how many failures it tolerates.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{HealthMode, Portion, Wave};

/// How long a rollout without a window waits for offline servers, beyond its slowest reasonable
/// duration. Long enough for someone to come back from a holiday weekend and decide.
pub const OFFLINE_WAIT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How long a rollout without a window waits for each approval that it needs, in addition.
pub const APPROVAL_WAIT: SignedDuration = SignedDuration::from_hours(7 * 24);

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
    /// The waves, in order; empty: that of `canary` and the rest, or one wave. The last one takes
    /// the rest.
    pub waves: Vec<Wave>,
    /// Number of failed servers at which the rollout halts.
    pub max_failures: Option<Portion>,
    /// No server starts later than this after the start.
    pub window_minutes: Option<u32>,
    /// Why freezes are ignored, if they are.
    pub override_freeze: Option<String>,
    /// Whether later waves install exactly the versions that the first wave installed.
    pub pin_versions: bool,
    /// What is done about the health of the servers.
    pub health: HealthMode,
    /// Number of servers of each wave that may become unhealthy, under [`HealthMode::Gate`].
    pub max_unhealthy: Option<Portion>,
}

/// The pace with percentages resolved for a number of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub(super) stagger: SignedDuration,
    pub(super) parallel: u32,
    pub(super) canary: u32,
    pub(super) failures: u32,
    pub(super) waves: Vec<WaveLimits>,
}

/// A wave with its size resolved for a number of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaveLimits {
    /// Number of servers.
    pub servers: u32,
    /// How long to wait after its last task before the next wave.
    pub soak: SignedDuration,
    /// Whether a second person must approve it before it starts.
    pub approval: bool,
    /// Number of servers that may become unhealthy.
    pub unhealthy: u32,
}

impl Pace {
    /// Resolves the pace for `total` servers.
    pub fn limits(&self, total: u32) -> Limits {
        Limits {
            stagger: SignedDuration::from_mins(i64::from(self.stagger_minutes)),
            parallel: self.max_parallel.unwrap_or(u32::MAX).max(1),
            canary: self.first_wave(total),
            waves: self.waves(total),
            failures: self.max_failures.map_or(u32::MAX, |portion| portion.resolve(total).max(1)),
        }
    }

    /// The number of servers that go first and must succeed.
    fn first_wave(&self, total: u32) -> u32 {
        let size = match self.waves.first() {
            // The rest of everything is no test for anyone.
            Some(first) => first.size.map(|size| size.resolve(total).max(1)),
            None => self.canary.map(|size| size.resolve(total)),
        };
        size.unwrap_or(0).min(total)
    }

    /// The waves of a rollout over `total` servers: at least one, and none without servers. The
    /// last one takes the rest.
    fn waves(&self, total: u32) -> Vec<WaveLimits> {
        let shorthand = Wave { size: self.canary, ..Wave::default() };
        let canary = self.first_wave(total) > 0;
        let requested = match (self.waves.as_slice(), canary) {
            ([], true) => std::slice::from_ref(&shorthand),
            (waves, _) => waves,
        };
        let mut left = total;
        let mut waves = Vec::with_capacity(requested.len() + 1);
        for wave in requested {
            let size = wave.size.map_or(left, |size| size.resolve(total).clamp(1, left.max(1)));
            waves.push(WaveLimits {
                unhealthy: self.unhealthy(size.min(left)),
                servers: size.min(left),
                soak: SignedDuration::from_mins(i64::from(wave.soak_minutes)),
                approval: wave.approval,
            });
            left -= size.min(left);
            if left == 0 {
                return waves;
            }
        }
        waves.push(WaveLimits {
            servers: left,
            soak: SignedDuration::ZERO,
            approval: false,
            unhealthy: self.unhealthy(left),
        });
        waves
    }

    /// How many servers of a wave of this size may become unhealthy.
    fn unhealthy(&self, servers: u32) -> u32 {
        self.max_unhealthy.map_or(0, |portion| portion.resolve_down(servers))
    }

    /// Returns the time after which no server may start.
    pub fn start_by(&self, starts_at: Timestamp, total: u32) -> Timestamp {
        let allowed = match self.window_minutes {
            Some(minutes) => SignedDuration::from_mins(i64::from(minutes)),
            None => {
                let approvals = self.waves(total).iter().filter(|wave| wave.approval).count();
                let approvals = APPROVAL_WAIT * i32::try_from(approvals).unwrap_or(i32::MAX);
                self.min_duration(total).saturating_add(OFFLINE_WAIT).saturating_add(approvals)
            }
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
        let starts = staggered.max(TASK_ESTIMATE * i32::try_from(rounds).unwrap_or(i32::MAX));
        self.soak(total).saturating_add(starts)
    }

    /// Returns how long a rollout over `total` servers takes if each of its tasks takes `task`, every
    /// server is available and approvals come at once.
    pub fn expected_duration(&self, total: u32, task: SignedDuration) -> SignedDuration {
        let times = |duration: SignedDuration, count: u32| {
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            duration.checked_mul(count).unwrap_or(SignedDuration::MAX)
        };
        let parallel = self.max_parallel.unwrap_or(u32::MAX).max(1);
        let stagger = SignedDuration::from_mins(i64::from(self.stagger_minutes));
        let of_wave = |wave: &WaveLimits| {
            let in_turn = times(stagger, wave.servers.saturating_sub(1)).saturating_add(task);
            times(task, wave.servers.div_ceil(parallel)).max(in_turn)
        };
        let waves = self.waves(total);
        let waves = waves.iter().filter(|wave| wave.servers > 0).map(of_wave);
        waves.fold(self.soak(total), SignedDuration::saturating_add)
    }

    /// The sum of the soaks. Nothing waits for that of the last wave.
    pub fn soak(&self, total: u32) -> SignedDuration {
        let waves = self.waves(total);
        let before_last = waves.iter().take(waves.len() - 1);
        before_last.fold(SignedDuration::ZERO, |sum, wave| sum.saturating_add(wave.soak))
    }
}

impl Limits {
    /// Number of servers that go first.
    pub fn canary(&self) -> u32 {
        self.canary
    }

    /// The waves, in order. There is at least one.
    pub fn waves(&self) -> &[WaveLimits] {
        &self.waves
    }
}
