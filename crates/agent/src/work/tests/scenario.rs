//! Scenarios for the simulated host, and when it crashes: random, or set by a test.

use vocab::{Digest, RebootPolicy};

use crate::work::step::Action;

/// A deterministic random number generator: the same seed gives the same sequence.
pub(super) struct Rng {
    seed: u64,
    draws: u64,
}

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng { seed, draws: 0 }
    }

    fn next(&mut self) -> u64 {
        self.draws += 1;
        let digest = Digest::compute(format!("{} {}", self.seed, self.draws).as_bytes());
        digest.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    pub(super) fn percent(&mut self, often: u64) -> bool {
        self.next() % 100 < often
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    /// Only the agent is killed; its child processes continue.
    Agent,
    /// The agent and the supervisor are killed; a package manager continues alone.
    Supervisor,
    /// Power failure: everything ends, and a new boot starts.
    Power,
}

/// When to crash.
pub(super) enum CrashPlan {
    /// Once, at this instant.
    At(u64, Crash),
    /// With this probability in percent, at most this many times.
    Often(u64, u64),
}

/// The properties of a simulated host.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) policy: RebootPolicy,
    pub(super) lock_ticks: u64,
    pub(super) damage: bool,
    pub(super) repair_fails: bool,
    pub(super) failing_action: Option<Action>,
    /// Whether the package manager reports success and does nothing.
    pub(super) reports_false_success: bool,
    pub(super) needs_reboot: bool,
    pub(super) check_unreadable: bool,
    pub(super) reboots_work: bool,
    pub(super) container: bool,
    pub(super) never_reboot: bool,
    pub(super) frozen: bool,
    pub(super) old_boot: bool,
    pub(super) withdrawn_after: Option<u64>,
    pub(super) old_code: bool,
    pub(super) only_reboot: bool,
    /// Whether the installation downloads its packages itself.
    pub(super) small_download: bool,
    /// Whether the order asks for the host's health.
    pub(super) measures_health: bool,
    /// Whether the updates stop a service.
    pub(super) breaks_service: bool,
}

impl Scenario {
    pub(super) fn with_policy(policy: RebootPolicy) -> Scenario {
        Scenario {
            policy,
            lock_ticks: 0,
            damage: false,
            repair_fails: false,
            failing_action: None,
            reports_false_success: false,
            needs_reboot: true,
            check_unreadable: false,
            reboots_work: true,
            container: false,
            never_reboot: false,
            frozen: false,
            old_boot: false,
            withdrawn_after: None,
            old_code: true,
            only_reboot: false,
            small_download: false,
            measures_health: true,
            breaks_service: false,
        }
    }

    pub(super) fn random(rng: &mut Rng) -> Scenario {
        let acts = [
            Action::Refresh,
            Action::PreInstall,
            Action::Download,
            Action::Install,
            Action::PostInstall,
        ];
        let more = [Action::Restart, Action::PreReboot, Action::Reboot];
        let all: Vec<Action> = acts.into_iter().chain(more).collect();
        Scenario {
            policy: RebootPolicy::ALL[rng.below(4) as usize],
            lock_ticks: [0, 0, 0, 0, 3, 3, 3, 50, 50, u64::MAX][rng.below(10) as usize],
            damage: rng.percent(20),
            repair_fails: rng.percent(10),
            failing_action: rng.percent(25).then(|| all[rng.below(8) as usize]),
            reports_false_success: rng.percent(8),
            needs_reboot: rng.percent(60),
            check_unreadable: rng.percent(10),
            reboots_work: rng.percent(90),
            container: rng.percent(10),
            never_reboot: rng.percent(10),
            frozen: rng.percent(4),
            old_boot: rng.percent(10),
            withdrawn_after: rng.percent(25).then(|| rng.below(40)),
            old_code: rng.percent(50),
            only_reboot: rng.percent(12),
            small_download: rng.percent(50),
            measures_health: rng.percent(70),
            breaks_service: rng.percent(30),
        }
    }
}
