//! Time and randomness. No other code of the service reads the clock or generates random numbers.

use std::sync::Arc;

use domain::rollout::ClockSet;
use jiff::{SignedDuration, Timestamp};
use ring::rand::{SecureRandom as _, SystemRandom};

/// A smaller change of the clock is a correction. A larger one means that the clock was set.
const CORRECTION_MAX: SignedDuration = SignedDuration::from_secs(5);

/// The clock of the service. Cheap to clone.
#[derive(Clone)]
pub struct Clock {
    read: Arc<dyn Fn() -> Reading + Send + Sync>,
    is_real: bool,
}

/// The readings of two clocks at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock, which can be set.
    pub wall: Timestamp,
    /// A monotonic clock, which cannot be set: the time since it started.
    pub steady: SignedDuration,
}

impl Clock {
    /// The clock of this host.
    pub fn system() -> Clock {
        Clock::system_ahead_by(SignedDuration::ZERO)
    }

    /// The clock of this host with an offset, for tests with clocks that disagree.
    #[expect(clippy::disallowed_methods, reason = "this module provides the clock")]
    pub fn system_ahead_by(ahead: SignedDuration) -> Clock {
        let start = std::time::Instant::now();
        let clock = Clock::from_readings(move || Reading {
            wall: Timestamp::now().saturating_add(ahead).unwrap_or(Timestamp::MAX),
            steady: SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX),
        });
        Clock { is_real: true, ..clock }
    }

    /// A clock that a test controls. Its monotonic clock follows the wall clock.
    pub fn controlled(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
        Clock::from_readings(move || {
            let wall = now();
            Reading { wall, steady: wall.duration_since(Timestamp::UNIX_EPOCH) }
        })
    }

    /// A pair of clocks that a test controls independently.
    pub fn from_readings(read: impl Fn() -> Reading + Send + Sync + 'static) -> Clock {
        Clock { read: Arc::new(read), is_real: false }
    }

    /// The current time with microsecond precision, which is what the database stores.
    pub fn now(&self) -> Timestamp {
        self.read().wall
    }

    /// Whether this is the clock of this host, which should agree with the database's clock. A
    /// clock that a test controls may differ.
    pub fn is_real(&self) -> bool {
        self.is_real
    }

    /// Detects from now on when the clock is set.
    pub fn watch(&self) -> ClockWatcher {
        ClockWatcher { clock: self.clone(), last: self.read() }
    }

    fn read(&self) -> Reading {
        let Reading { wall, steady } = (self.read)();
        Reading { wall: Timestamp::from_microsecond(wall.as_microsecond()).unwrap_or(wall), steady }
    }
}

/// Detects that the wall clock was set. Code that waits for a time of day uses the wall clock
/// directly. Code that waits for a duration must be notified: otherwise a clock that is set forward
/// by a day would end every shorter wait.
pub struct ClockWatcher {
    clock: Clock,
    last: Reading,
}

impl ClockWatcher {
    /// How the clock was set since the last call, if it was.
    pub fn clock_change(&mut self) -> Option<ClockSet> {
        let now = self.clock.read();
        let last = std::mem::replace(&mut self.last, now);
        let passed = now.steady - last.steady;
        let by = now.wall.duration_since(last.wall) - passed;
        let since = now.wall.saturating_sub(passed).unwrap_or(Timestamp::MIN);
        (by.abs() > CORRECTION_MAX).then_some(ClockSet { by, since, now: now.wall })
    }

    /// The time at the last call of [`ClockWatcher::clock_change`]. A later clock change is
    /// not detected yet.
    pub fn last_time(&self) -> Timestamp {
        self.last.wall
    }
}

/// `N` random bytes from the operating system.
///
/// # Panics
/// If the operating system cannot provide randomness: no operation would be safe without it.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system provides random bytes");
    bytes
}

/// The random part of a new id.
pub fn random_u128() -> u128 {
    u128::from_be_bytes(random_bytes())
}

/// Measures a duration.
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this module provides the clock")]
    pub fn start() -> Stopwatch {
        Stopwatch(std::time::Instant::now())
    }

    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn setting_the_clock_is_detected_once_but_not_drift() {
        let shows = Arc::new(Mutex::new((0_i64, 0_i64)));
        let read = shows.clone();
        let clock = Clock::from_readings(move || {
            let (wall, steady) = *read.lock().unwrap();
            let wall = Timestamp::from_second(wall).unwrap();
            Reading { wall, steady: SignedDuration::from_secs(steady) }
        });
        let mut watcher = clock.watch();
        let mut after = |wall, steady| {
            *shows.lock().unwrap() = (wall, steady);
            watcher
                .clock_change()
                .map(|set| (set.by.as_secs(), set.since.as_second(), set.now.as_second()))
        };
        assert_eq!(after(1_000, 1_000), None);
        assert_eq!(after(1_013, 1_010), None, "a correction");
        assert_eq!(after(4_620, 1_017), Some((3_600, 4_613, 4_620)));
        assert_eq!(after(4_630, 1_027), None);
        assert_eq!(after(-81_768, 1_029), Some((-86_400, -81_770, -81_768)));
    }
}
