//! What a run came upon, counted: a fault that is never tried proves nothing.

/// Something that the simulation is there to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// A message did not arrive.
    Lost,
    /// A message arrived once more, later.
    Repeated,
    /// A message arrived minutes late, after later ones.
    Late,
    /// A server vanished and came back.
    Vanished,
    /// An agent crashed and was started again.
    Crashed,
    /// A host did not come back from its reboot.
    RebootHung,
    /// The control plane crashed.
    ControlCrashed,
    /// The control plane was restored from a backup.
    Restored,
    /// The control plane's clock was set forward.
    ClockForward,
    /// The control plane's clock was set back.
    ClockBack,
    /// A person paused a rollout.
    Paused,
    /// A person resumed one that had halted.
    Resumed,
    /// A person canceled one that had servers waiting or in work.
    Canceled,
    /// An agent dropped an order that it was told to drop.
    Withdrawn,
    /// It did so in a rollout that was stopped and not called off: its turn comes again.
    GivenBack,
    /// A rollout waited for a server whose agent was at work on something given up for lost.
    LeftToWork,
    /// A person had the failed ones tried again.
    Retried,
    /// A person removed a server that was waiting or in work.
    Removed,
    /// A rollout waited for a server that another one had in work.
    Contested,
    /// A rollout halted by itself.
    Halted,
    /// A canary changed nothing, and the rest started unproven.
    CanaryUnchanged,
    /// A window closed on a server that waited.
    Expired,
    /// An agent fell silent and was given up.
    GivenUp,
    /// A late report replaced such a guess.
    Corrected,
    /// An agent lost the record of an order in progress, and said so.
    OrderLost,
}

impl Trial {
    /// All of them.
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

/// How often each was tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached([u64; Trial::ALL.len()]);

impl Reached {
    pub(super) fn count(&mut self, trial: Trial) {
        self.0[trial as usize] += 1;
    }

    /// How often this one was.
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
