//! Scenarios for the simulated host, and when it crashes: random, or set by a test.

use vocab::{Digest, RebootPolicy};

use crate::work::step::Act;

/// A deterministic random number generator: the same seed gives the same sequence.
pub(super) struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice { seed, thrown: 0 }
    }

    fn throw(&mut self) -> u64 {
        self.thrown += 1;
        let digest = Digest::of(format!("{} {}", self.seed, self.thrown).as_bytes());
        digest.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    pub(super) fn percent(&mut self, often: u64) -> bool {
        self.throw() % 100 < often
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.throw() % end
    }
}

/// What crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Only the agent is killed; its child processes continue.
    Agent,
    /// The agent and the supervisor are killed; a package manager continues alone.
    Supervisor,
    /// Power failure: everything ends, and a new boot starts.
    Power,
}

/// When to crash.
pub(super) enum Cuts {
    /// Once, at this instant.
    At(u64, Cut),
    /// With this probability in percent, at most this many times.
    Often(u64, u64),
}

/// The properties of a simulated host.
#[derive(Debug, Clone)]
pub(super) struct Nature {
    pub(super) policy: RebootPolicy,
    pub(super) lock_ticks: u64,
    pub(super) damage: bool,
    pub(super) hopeless: bool,
    pub(super) fails: Option<Act>,
    /// Whether the package manager reports success and does nothing.
    pub(super) lies: bool,
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
    pub(super) little: bool,
}

impl Nature {
    pub(super) fn plain(policy: RebootPolicy) -> Nature {
        Nature {
            policy,
            lock_ticks: 0,
            damage: false,
            hopeless: false,
            fails: None,
            lies: false,
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
            little: false,
        }
    }

    pub(super) fn of(dice: &mut Dice) -> Nature {
        let acts = [Act::Refresh, Act::PreInstall, Act::Download, Act::Install, Act::PostInstall];
        let more = [Act::Restart, Act::PreReboot, Act::Reboot];
        let all: Vec<Act> = acts.into_iter().chain(more).collect();
        Nature {
            policy: RebootPolicy::ALL[dice.below(4) as usize],
            lock_ticks: [0, 0, 0, 0, 3, 3, 3, 50, 50, u64::MAX][dice.below(10) as usize],
            damage: dice.percent(20),
            hopeless: dice.percent(10),
            fails: dice.percent(25).then(|| all[dice.below(8) as usize]),
            lies: dice.percent(8),
            needs_reboot: dice.percent(60),
            check_unreadable: dice.percent(10),
            reboots_work: dice.percent(90),
            container: dice.percent(10),
            never_reboot: dice.percent(10),
            frozen: dice.percent(4),
            old_boot: dice.percent(10),
            withdrawn_after: dice.percent(25).then(|| dice.below(40)),
            old_code: dice.percent(50),
            only_reboot: dice.percent(12),
            little: dice.percent(50),
        }
    }
}
