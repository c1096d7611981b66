//! Counts the situations that a run encountered: a fault that never occurs proves nothing.

/// A situation that the simulation must cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Situation {
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
    /// A rollout waited for a server whose agent was working on an order that the
    /// engine considered lost.
    LeftToWork,
    /// A user retried the failed servers.
    Retried,
    /// A user removed a server that was waiting or in progress.
    Removed,
    /// A rollout waited for a server that another one was working on.
    Contested,
    /// A rollout halted automatically.
    Halted,
    /// The canaries had nothing to install, so the other servers started without a tested update.
    CanaryUnchanged,
    /// The window closed while a server was waiting.
    Expired,
    /// An agent stopped reporting and its task timed out.
    GivenUp,
    /// A late report replaced a timeout.
    Corrected,
    /// An agent lost the record of an order in progress, and reported it.
    OrderLost,
    /// Every task of a wave ended, and the wave soaked.
    Soaked,
    /// A wave passed and the next one opened.
    WavePassed,
    /// A wave needed an approval.
    ApprovalAsked,
    /// A user approved a wave.
    Approved,
    /// A user rejected a wave.
    Rejected,
    /// A user froze some servers.
    FreezeAdded,
    /// A freeze kept a server from starting.
    Frozen,
    /// The whole fleet disconnected at once.
    FleetOutage,
    /// Versions were pinned, and a server had none.
    VersionUnproven,
    /// More servers of a wave than allowed became unhealthy.
    HealthExceeded,
    /// They recovered before the rollout halted.
    HealthRecovered,
    /// A rollout halted because its servers are unhealthy since the change.
    HealthDegraded,
    /// A rollout halted because the health of a wave is unknown.
    HealthUnknown,
    /// A rollout paused because unchanged servers are unhealthy too.
    FleetWideDegradation,
    /// A server reported at the end of the soak.
    SoakReported,
    /// An agent could not measure the health of its host.
    NotMeasured,
    /// An agent is older than the measurement of health.
    OldAgent,
    /// An update broke a service.
    BadUpdate,
    /// A service broke on the whole fleet.
    FleetBroken,
}

impl Situation {
    pub const ALL: [Situation; 44] = [
        Situation::Lost,
        Situation::Repeated,
        Situation::Late,
        Situation::Vanished,
        Situation::Crashed,
        Situation::RebootHung,
        Situation::ControlCrashed,
        Situation::Restored,
        Situation::ClockForward,
        Situation::ClockBack,
        Situation::Paused,
        Situation::Resumed,
        Situation::Canceled,
        Situation::Withdrawn,
        Situation::GivenBack,
        Situation::LeftToWork,
        Situation::Retried,
        Situation::Removed,
        Situation::Contested,
        Situation::Halted,
        Situation::CanaryUnchanged,
        Situation::Expired,
        Situation::GivenUp,
        Situation::Corrected,
        Situation::OrderLost,
        Situation::Soaked,
        Situation::WavePassed,
        Situation::ApprovalAsked,
        Situation::Approved,
        Situation::Rejected,
        Situation::FreezeAdded,
        Situation::Frozen,
        Situation::FleetOutage,
        Situation::VersionUnproven,
        Situation::HealthExceeded,
        Situation::HealthRecovered,
        Situation::HealthDegraded,
        Situation::HealthUnknown,
        Situation::FleetWideDegradation,
        Situation::SoakReported,
        Situation::NotMeasured,
        Situation::OldAgent,
        Situation::BadUpdate,
        Situation::FleetBroken,
    ];
}

/// How many times each situation occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SituationCounts([u64; Situation::ALL.len()]);

impl Default for SituationCounts {
    fn default() -> Self {
        SituationCounts([0; Situation::ALL.len()])
    }
}

impl SituationCounts {
    pub(super) fn count(&mut self, situation: Situation) {
        self.0[situation as usize] += 1;
    }

    pub fn times(&self, situation: Situation) -> u64 {
        self.0[situation as usize]
    }
}

impl std::ops::Add for SituationCounts {
    type Output = SituationCounts;
    fn add(self, other: SituationCounts) -> SituationCounts {
        SituationCounts(std::array::from_fn(|trial| self.0[trial] + other.0[trial]))
    }
}

impl std::fmt::Display for SituationCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, trial) in Situation::ALL.into_iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{trial:?} {}", self.times(trial))?;
        }
        Ok(())
    }
}
