//! Counts the situations that a run encountered: a fault that never occurs proves nothing.

/// A situation that the simulation must cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    Lost,
    /// A message arrived again later.
    Repeated,
    /// A message arrived minutes late, after later ones.
    Late,
    /// A server disconnected and came back.
    Vanished,
    /// An agent crashed and was restarted.
    Crashed,
    RebootHung,
    ControlCrashed,
    Restored,
    ClockForward,
    ClockBack,
    /// A user paused a rollout.
    Paused,
    /// A user resumed a halted rollout.
    Resumed,
    /// A user canceled a rollout with servers waiting or in progress.
    Canceled,
    /// An agent dropped an order on request.
    Withdrawn,
    /// An agent dropped an order of a rollout that was stopped but not canceled: the server waits
    /// again.
    GivenBack,
    /// A rollout waited for a server whose agent was working on an order given up as lost.
    LeftToWork,
    /// A user retried the failed servers.
    Retried,
    /// A user removed a server that was waiting or in progress.
    Removed,
    /// A rollout waited for a server that another one was working on.
    Contested,
    /// A rollout halted automatically.
    Halted,
    /// A canary changed nothing, and the rest started without its proof.
    CanaryUnchanged,
    /// The window closed while a server was waiting.
    Expired,
    /// An agent stopped reporting and its task timed out.
    GivenUp,
    /// A late report replaced a timeout.
    Corrected,
    /// An agent lost the record of an order in progress, and reported it.
    OrderLost,
}

impl Trial {
    pub const ALL: [Trial; 25] = [
        Trial::Lost,
        Trial::Repeated,
        Trial::Late,
        Trial::Vanished,
        Trial::Crashed,
        Trial::RebootHung,
        Trial::ControlCrashed,
        Trial::Restored,
        Trial::ClockForward,
        Trial::ClockBack,
        Trial::Paused,
        Trial::Resumed,
        Trial::Canceled,
        Trial::Withdrawn,
        Trial::GivenBack,
        Trial::LeftToWork,
        Trial::Retried,
        Trial::Removed,
        Trial::Contested,
        Trial::Halted,
        Trial::CanaryUnchanged,
        Trial::Expired,
        Trial::GivenUp,
        Trial::Corrected,
        Trial::OrderLost,
    ];
}

/// How often each situation occurred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached([u64; Trial::ALL.len()]);

impl Reached {
    pub(super) fn count(&mut self, trial: Trial) {
        self.0[trial as usize] += 1;
    }

    pub fn times(&self, trial: Trial) -> u64 {
        self.0[trial as usize]
    }
}

impl std::ops::Add for Reached {
    type Output = Reached;
    fn add(self, other: Reached) -> Reached {
        Reached(std::array::from_fn(|trial| self.0[trial] + other.0[trial]))
    }
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, trial) in Trial::ALL.into_iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{trial:?} {}", self.times(trial))?;
        }
        Ok(())
    }
}
