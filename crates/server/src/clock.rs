//! Where the service's time and chance come from: the only place that asks for either.

use std::sync::Arc;

use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};

/// What time it is, and numbers nobody can guess. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// This machine's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the shell's clock")]
    pub fn system() -> Clock {
        Clock(Arc::new(Timestamp::now))
    }

    /// A clock that someone else turns.
    pub fn turned_by(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// What time it is, to the microsecond: finer times would not survive the database.
    pub fn now(&self) -> Timestamp {
        let now = (self.0)();
        Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
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

/// How long something takes. For the log and the metrics; nothing is decided by it.
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
