//! Where the service's time and chance come from: the only place that asks for either.

use std::sync::Arc;

use domain::rollout::ClockSet;
use jiff::{SignedDuration, Timestamp};
use ring::rand::{SecureRandom as _, SystemRandom};

/// By less than this a clock is corrected, not set.
const CORRECTION_MAX: SignedDuration = SignedDuration::from_secs(5);

/// What time it is, and numbers nobody can guess. Cheap to clone.
#[derive(Clone)]
pub struct Clock {
    read: Arc<dyn Fn() -> Reading + Send + Sync>,
    is_real: bool,
}

/// What two clocks show at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The clock on the wall, which people set.
    pub wall: Timestamp,
    /// One that nobody can set: how long it has been running.
    pub steady: SignedDuration,
}

impl Clock {
    /// This machine's clock.
    pub fn system() -> Clock {
        Clock::system_ahead_by(SignedDuration::ZERO)
    }

    /// This machine's clock, set wrong: for tests of machines whose clocks disagree.
    #[expect(clippy::disallowed_methods, reason = "this is the shell's clock")]
    pub fn system_ahead_by(ahead: SignedDuration) -> Clock {
        let start = std::time::Instant::now();
        let clock = Clock::read_by(move || Reading {
            wall: Timestamp::now().saturating_add(ahead).unwrap_or(Timestamp::MAX),
            steady: SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX),
        });
        Clock { is_real: true, ..clock }
    }

    /// A clock that someone else turns, as time passes.
    pub fn turned_by(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
        Clock::read_by(move || {
            let wall = now();
            Reading { wall, steady: wall.duration_since(Timestamp::UNIX_EPOCH) }
        })
    }

    /// Clocks that someone else turns, each for itself.
    pub fn read_by(read: impl Fn() -> Reading + Send + Sync + 'static) -> Clock {
        Clock { read: Arc::new(read), is_real: false }
    }

    /// What time it is, to the microsecond: finer times would not survive the database.
    pub fn now(&self) -> Timestamp {
        self.read().wall
    }

    /// Whether this is the machine's clock, which should agree with the database's. One that a test
    /// turns need not.
    pub fn is_real(&self) -> bool {
        self.is_real
    }

    /// Notices from now on whenever the clock is set.
    pub fn hands(&self) -> Hands {
        Hands { clock: self.clone(), last: self.read() }
    }

    fn read(&self) -> Reading {
        let Reading { wall, steady } = (self.read)();
        Reading { wall: Timestamp::from_microsecond(wall.as_microsecond()).unwrap_or(wall), steady }
    }
}

/// Notices when the clock on the wall is set. What waits for an hour of the calendar goes by that clock
/// as it is; what waits for time to pass must be told, or a clock set forward by a day would
/// end every wait that is shorter.
pub struct Hands {
    clock: Clock,
    last: Reading,
}

impl Hands {
    /// How the clock was set since the last look, if it was.
    pub fn look(&mut self) -> Option<ClockSet> {
        let now = self.clock.read();
        let last = std::mem::replace(&mut self.last, now);
        let passed = now.steady - last.steady;
        let by = now.wall.duration_since(last.wall) - passed;
        let since = now.wall.saturating_sub(passed).unwrap_or(Timestamp::MIN);
        (by.abs() > CORRECTION_MAX).then_some(ClockSet { by, since, now: now.wall })
    }

    /// What time it was at the last look. The clock may have been set since; nobody knows yet.
    pub fn shown(&self) -> Timestamp {
        self.last.wall
    }
}

/// `N` bytes that nobody can guess.
///
/// # Panics
/// If the operating system has no randomness to give; nothing could be done safely then.
pub fn chance<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// The chance that an id is made with.
pub fn dice() -> u128 {
    u128::from_be_bytes(chance())
}

/// How long something takes.
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Starts one.
    #[expect(clippy::disallowed_methods, reason = "this is the shell's clock")]
    pub fn start() -> Stopwatch {
        Stopwatch(std::time::Instant::now())
    }

    /// How many seconds have passed.
    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_clock_that_is_set_is_noticed_once_and_one_that_runs_is_not() {
        let shows = Arc::new(Mutex::new((0_i64, 0_i64)));
        let read = shows.clone();
        let clock = Clock::read_by(move || {
            let (wall, steady) = *read.lock().unwrap();
            let wall = Timestamp::from_second(wall).unwrap();
            Reading { wall, steady: SignedDuration::from_secs(steady) }
        });
        let mut hands = clock.hands();
        let mut after = |wall, steady| {
            *shows.lock().unwrap() = (wall, steady);
            hands.look().map(|set| (set.by.as_secs(), set.since.as_second(), set.now.as_second()))
        };
        assert_eq!(after(1_000, 1_000), None);
        assert_eq!(after(1_013, 1_010), None, "a correction");
        assert_eq!(after(4_620, 1_017), Some((3_600, 4_613, 4_620)));
        assert_eq!(after(4_630, 1_027), None);
        assert_eq!(after(-81_768, 1_029), Some((-86_400, -81_770, -81_768)));
    }
}
