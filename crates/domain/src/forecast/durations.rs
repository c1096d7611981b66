//! How long a task takes, from the tasks of the past.
//!
//! The estimate is the median: of the server's own tasks if there are [`OWN_MIN`], else of those of
//! its operating system, else of all. Few outliers do not move it, and half of the tasks are faster,
//! so the errors of many tasks cancel out.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use vocab::{Os, ServerId};

use super::Server;

/// The duration of a task that installs something, if none was measured.
pub const DEFAULT_INSTALL: SignedDuration = SignedDuration::from_mins(10);

/// The duration of a task with nothing to install, if none was measured.
pub const DEFAULT_NO_CHANGE: SignedDuration = SignedDuration::from_mins(1);

/// The longest estimate. A task that took longer waited for something, such as a host that was down.
pub(super) const ESTIMATE_MAX: SignedDuration = SignedDuration::from_mins(280);

/// How many tasks of a server are needed for an estimate of its own.
const OWN_MIN: usize = 3;
/// How many tasks of an operating system, or of all servers, are needed.
const SHARED_MIN: usize = 5;

/// A task of the past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub server: ServerId,
    pub os: Option<Os>,
    /// It installed something.
    pub changed: bool,
    pub duration: SignedDuration,
}

/// Medians of past tasks, with and without changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Measured {
    install: Option<SignedDuration>,
    no_change: Option<SignedDuration>,
}

/// What was measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durations {
    servers: BTreeMap<ServerId, Measured>,
    systems: BTreeMap<(String, String), Measured>,
    all: Measured,
}

/// For how many servers the duration of an installation comes from which source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationBasis {
    /// The server's own tasks.
    pub own: u32,
    /// Tasks of servers with the same operating system.
    pub system: u32,
    /// Tasks of all servers.
    pub fleet: u32,
    /// Nothing was measured.
    pub default: u32,
}

impl Durations {
    /// Computes the medians.
    pub fn measure(samples: &[Sample]) -> Durations {
        let mut servers: BTreeMap<ServerId, Vec<&Sample>> = BTreeMap::new();
        let mut systems: BTreeMap<(String, String), Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            servers.entry(sample.server).or_default().push(sample);
            if let Some(os) = &sample.os {
                systems.entry(system_key(os)).or_default().push(sample);
            }
        }
        let measure = |samples: &[&Sample], min| Measured {
            install: median(samples, true, min),
            no_change: median(samples, false, min),
        };
        let all: Vec<&Sample> = samples.iter().collect();
        Durations {
            all: measure(&all, SHARED_MIN),
            servers: servers.iter().map(|(id, list)| (*id, measure(list, OWN_MIN))).collect(),
            systems: systems
                .iter()
                .map(|(system, list)| (system.clone(), measure(list, SHARED_MIN)))
                .collect(),
        }
    }

    /// How long a task on this server takes.
    pub fn estimate(&self, id: ServerId, os: Option<&Os>, installs: bool) -> SignedDuration {
        let of = |measured: &Measured| if installs { measured.install } else { measured.no_change };
        let own = self.servers.get(&id).and_then(of);
        let system = || os.and_then(|os| self.systems.get(&system_key(os))).and_then(of);
        let default = if installs { DEFAULT_INSTALL } else { DEFAULT_NO_CHANGE };
        own.or_else(system).or_else(|| of(&self.all)).unwrap_or(default)
    }

    /// Where the estimates come from.
    pub(super) fn basis(&self, servers: &[Server]) -> DurationBasis {
        let mut basis = DurationBasis::default();
        for server in servers {
            let measured =
                |found: Option<&Measured>| found.is_some_and(|one| one.install.is_some());
            let system = server.facts.os.as_ref().map(system_key);
            let counter = if measured(self.servers.get(&server.facts.id)) {
                &mut basis.own
            } else if measured(system.and_then(|system| self.systems.get(&system))) {
                &mut basis.system
            } else if self.all.install.is_some() {
                &mut basis.fleet
            } else {
                &mut basis.default
            };
            *counter += 1;
        }
        basis
    }
}

fn system_key(os: &Os) -> (String, String) {
    (os.id().to_owned(), os.version().to_owned())
}

/// The lower median of the samples with or without changes, if there are enough.
fn median(samples: &[&Sample], changed: bool, min: usize) -> Option<SignedDuration> {
    let mut durations: Vec<SignedDuration> =
        samples.iter().filter(|one| one.changed == changed).map(|one| one.duration).collect();
    if durations.len() < min {
        return None;
    }
    let middle = (durations.len() - 1) / 2;
    let (_, median, _) = durations.select_nth_unstable(middle);
    Some((*median).clamp(SignedDuration::from_secs(1), ESTIMATE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn id(n: u128) -> ServerId {
        ServerId::new(Timestamp::UNIX_EPOCH, n)
    }

    fn sample(n: u128, os: &str, changed: bool, minutes: i64) -> Sample {
        let os = Os::new(os, "12", "").unwrap();
        Sample {
            server: id(n),
            os: Some(os),
            changed,
            duration: SignedDuration::from_mins(minutes),
        }
    }

    #[test]
    fn own_tasks_count_before_those_of_the_system_and_of_all() {
        let mut samples = vec![];
        samples.extend([30, 31, 90].map(|minutes| sample(1, "debian", true, minutes)));
        samples.extend([5, 6, 7, 8].map(|minutes| sample(2, "debian", true, minutes)));
        samples.push(sample(3, "rhel", true, 60));
        let durations = Durations::measure(&samples);
        let debian = Os::new("debian", "12", "").unwrap();
        let rhel = Os::new("rhel", "12", "").unwrap();
        let minutes = |id, os| durations.estimate(id, Some(os), true).as_mins();
        assert_eq!(minutes(id(1), &debian), 31, "its own median");
        assert_eq!(minutes(id(9), &debian), 8, "the median of the system");
        assert_eq!(minutes(id(3), &rhel), 8, "one task is not enough: the median of all");
        assert_eq!(durations.estimate(id(1), Some(&debian), false), DEFAULT_NO_CHANGE);
    }

    #[test]
    fn without_history_the_defaults_apply() {
        let durations = Durations::measure(&[sample(1, "debian", true, 3)]);
        assert_eq!(durations.estimate(id(1), None, true), DEFAULT_INSTALL);
        assert_eq!(durations.estimate(id(1), None, false), DEFAULT_NO_CHANGE);
    }

    #[test]
    fn extreme_measurements_are_bounded() {
        let days = [0, 0, 0].map(|minutes| sample(1, "debian", true, minutes));
        let durations = Durations::measure(&days);
        assert_eq!(durations.estimate(id(1), None, true), SignedDuration::from_secs(1));
        let days = [9_000, 9_000, 9_000].map(|minutes| sample(1, "debian", true, minutes));
        assert_eq!(Durations::measure(&days).estimate(id(1), None, true), ESTIMATE_MAX);
    }
}
