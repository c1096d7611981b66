//! The hosts of a simulated fleet. The same seed generates the same hosts, package for package.
//!
//! As in real fleets, hosts form groups of fifty with the same setup, and some differ by up to
//! three packages. The content-addressed storage of the service therefore has realistic work. Data
//! that the hosts of a group have in common is shared, and package sets are generated on demand:
//! an idle host needs a few hundred bytes. This module uses neither the network nor the clock.

mod catalog;
mod host_group;
mod names;
mod system;

pub use host_group::{Digests, HostGroup, PackageState, Selection};
pub use system::System;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vocab::{Environment, Hostname, Line, Tag};
use wire::agent::Facts;

use crate::Rng;
use catalog::Catalog;

/// Number of groups that are interleaved, so that any few consecutive hosts are a mixture.
const INTERLEAVED_GROUPS: u64 = 8;
const HOSTS_PER_GROUP: u64 = 50;
/// Share of hosts that need a reboot at the start of the simulation.
const PENDING_REBOOT_SHARE: f64 = 0.06;

const ENVIRONMENTS: [&str; 8] = [
    "production",
    "staging",
    "production",
    "development",
    "production",
    "staging",
    "production",
    "testing",
];

/// All hosts of one seed.
pub struct Fleet {
    seed: u64,
    groups: Vec<Arc<HostGroup>>,
}

#[derive(Clone)]
pub struct Host {
    /// Position in the fleet.
    pub index: u64,
    group: Arc<HostGroup>,
    seed: u64,
    hostname: Hostname,
    pub state: HostState,
}

/// The mutable state of a host, which survives a restart of its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    pub packages: PackageState,
    /// The packages at the last boot. The running code may be older than what is installed.
    booted: PackageState,
    /// Number of boots.
    pub boots: u32,
    /// Whether the host needed a reboot when the simulation started.
    owed_reboot: bool,
}

impl Fleet {
    /// The first `hosts` hosts of a seed. A larger fleet of the same seed starts with the same
    /// hosts.
    pub fn new(seed: u64, hosts: u64) -> Fleet {
        let catalogues = System::ALL.map(|system| Arc::new(Catalog::new(seed, system)));
        let turns = hosts.div_ceil(HOSTS_PER_GROUP * INTERLEAVED_GROUPS).max(1);
        let mut kinds: Vec<Arc<HostGroup>> = Vec::new();
        for number in 0..turns * INTERLEAVED_GROUPS {
            let mut rng = Rng::for_entity(seed, "kind", number);
            let system = system_for_group(number, &mut rng);
            let turned =
                Rng::for_entity(seed, "environments", number / INTERLEAVED_GROUPS).next_u64();
            let environment = ENVIRONMENTS[(number.wrapping_add(turned) % 8) as usize];
            let catalogue = catalogues
                .iter()
                .find(|catalogue| catalogue.system == system)
                .unwrap_or(&catalogues[0])
                .clone();
            let mut kind = HostGroup::new(seed, number, catalogue, environment, &mut rng);
            let alike = |other: &&Arc<HostGroup>| {
                other.role() == kind.role() && other.environment() == environment
            };
            kind.first_host_number = HOSTS_PER_GROUP * kinds.iter().filter(alike).count() as u64;
            kinds.push(Arc::new(kind));
        }
        Fleet { seed, groups: kinds }
    }

    /// The host at this position, as it was initially set up.
    ///
    /// # Panics
    /// If the fleet has fewer hosts.
    pub fn host(&self, index: u64) -> Host {
        let turn = index / (HOSTS_PER_GROUP * INTERLEAVED_GROUPS);
        let kind = &self.groups[(turn * INTERLEAVED_GROUPS + index % INTERLEAVED_GROUPS) as usize];
        let within = index % (HOSTS_PER_GROUP * INTERLEAVED_GROUPS) / INTERLEAVED_GROUPS;
        let mut rng = Rng::for_entity(self.seed, "host", index);
        let packages = kind.random_packages(&mut rng);
        let owed_reboot = rng.with_probability(PENDING_REBOOT_SHARE);
        let prefix = match kind.environment() {
            "staging" => "stg-",
            "development" => "dev-",
            "testing" => "test-",
            _ => "",
        };
        let hostname =
            format!("{prefix}{}-{:02}", kind.role(), kind.first_host_number + within + 1);
        Host {
            index,
            group: kind.clone(),
            seed: self.seed,
            hostname: hostname.parse().expect("a role and a number form a valid hostname"),
            state: HostState { packages, booted: packages, boots: 1, owed_reboot },
        }
    }
}

/// The first groups cover each system once, so that a small fleet has all of them.
fn system_for_group(kind: u64, chance: &mut Rng) -> System {
    use System::{Alma9, Alpine322, Arch, Debian12, Leap156, Rocky9, Ubuntu2204, Ubuntu2404};
    let first = [Debian12, Ubuntu2404, Rocky9, Ubuntu2204, Alpine322, Alma9, Leap156, Arch];
    if let Some(system) = first.get(kind as usize) {
        return *system;
    }
    let mut place = chance.below(System::ALL.iter().map(|system| system.share()).sum());
    for system in System::ALL {
        if place < system.share() {
            return system;
        }
        place -= system.share();
    }
    Debian12
}

impl Host {
    /// The group of hosts with the same setup.
    pub fn group(&self) -> &HostGroup {
        &self.group
    }

    /// The id of the current boot.
    pub fn boot_id(&self) -> Line {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"boot").update(&self.seed.to_be_bytes());
        hasher.update(&self.index.to_be_bytes()).update(&self.state.boots.to_be_bytes());
        let hex = hasher.finalize().to_hex();
        let part = |from: usize, to: usize| &hex.as_str()[from..to];
        let (a, b, c, d, e) = (part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32));
        Line::from(format!("{a}-{b}-4{c}-a{d}-{e}"))
    }

    /// The facts that the host's agent reports.
    pub fn facts(&self) -> Facts {
        let system = self.group.system();
        let reasons = self.reboot_reasons();
        Facts {
            hostname: self.hostname.clone(),
            os: system.os(),
            kernel: Line::from(self.group.kernel(self.state.booted)),
            arch: "x86_64".into(),
            package_manager: system.manager(),
            agent_version: concat!(env!("CARGO_PKG_VERSION"), "-swarm").into(),
            reboot_required: !reasons.is_empty(),
            reboot_reasons: reasons,
            old_code: Vec::new(),
            other_updaters: Vec::new(),
            limits: None,
            trusted_keys: Vec::new(),
            // Like a container: none of its packages provides the running kernel.
            foreign_kernel: true,
        }
    }

    /// Why the host should be rebooted. Empty if it should not.
    pub fn reboot_reasons(&self) -> Vec<Line> {
        let mut reasons: Vec<Line> = self
            .group
            .reboot_names(self.state.booted, self.state.packages)
            .map(|name| Line::from(format!("{name} was updated")))
            .collect();
        if self.state.owed_reboot {
            reasons.push("a library that running services use was updated".into());
        }
        reasons
    }

    /// Simulates a boot.
    pub fn boot(&mut self) {
        let HostState { packages, boots, .. } = self.state;
        self.state = HostState { packages, booted: packages, boots: boots + 1, owed_reboot: false };
    }

    /// The environment that the host requests at enrollment.
    pub fn environment(&self) -> Option<Environment> {
        self.group.environment().parse().ok()
    }

    /// The tags that the host requests at enrollment.
    pub fn tags(&self) -> Vec<Tag> {
        [format!("role:{}", self.group.role()), self.group.role().to_owned()]
            .iter()
            .filter_map(|tag| tag.parse().ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use vocab::Severity;

    #[test]
    fn same_seed_gives_same_hosts_in_any_fleet_size() {
        let (small, large) = (Fleet::new(7, 100), Fleet::new(7, 2_000));
        let other = Fleet::new(8, 100);
        let mut differs = 0;
        for index in 0..100 {
            let (a, b, c) = (small.host(index), large.host(index), other.host(index));
            assert_eq!(a.facts(), b.facts());
            let digests = |host: &Host| host.group().digests(host.state.packages);
            assert_eq!(digests(&a), digests(&b));
            differs += u32::from(digests(&a).installed != digests(&c).installed);
        }
        assert_eq!(differs, 100);
    }

    #[test]
    fn fleet_has_a_realistic_mix_of_hosts() {
        let fleet = Fleet::new(1, 2_000);
        let (mut names, mut systems) = (BTreeSet::new(), BTreeMap::<_, u32>::new());
        let mut environments = BTreeMap::<_, u32>::new();
        for index in 0..2_000 {
            let host = fleet.host(index);
            *systems.entry(host.facts().os.to_string()).or_default() += 1;
            *environments.entry(host.environment()).or_default() += 1;
            assert!(names.insert(host.facts().hostname), "{:?} twice", host.facts().hostname);
        }
        assert_eq!(systems.len(), 8, "{systems:?}");
        assert_eq!(environments.len(), 4, "{environments:?}");
        assert!(environments[&"production".parse().ok()] > 800, "{environments:?}");
    }

    #[test]
    fn package_lists_have_a_realistic_size() {
        let fleet = Fleet::new(1, 2_000);
        let (mut updates, mut security, mut severities) = (0, 0, BTreeSet::<Severity>::new());
        for index in (0..2_000).step_by(37) {
            let host = fleet.host(index);
            let installed = host.group().installed(host.state.packages);
            assert!((290..=720).contains(&installed.len()), "{}", installed.len());
            let pending = host.group().pending(host.state.packages);
            assert!(pending.len() <= 64);
            for update in &pending {
                let order = host.group().system().manager().scheme();
                assert!(order.compare(&update.installed, &update.candidate).is_lt(), "{update:?}");
                assert!(
                    installed.iter().any(|package| package.name == update.name
                        && package.version == update.installed)
                );
                assert_eq!(update.security, !update.cves.is_empty());
                severities.extend(update.severity);
            }
            updates += pending.len();
            security += pending.iter().filter(|update| update.security).count();
        }
        let hosts = 2_000_usize.div_ceil(37);
        assert!((8 * hosts..50 * hosts).contains(&updates), "{updates} updates");
        assert!(security > updates / 6 && security < updates * 2 / 3, "{security} of {updates}");
        assert_eq!(severities.len(), 4);
    }

    /// Content addressing depends on this: few distinct lists for many hosts, but more than one per
    /// group.
    #[test]
    fn hosts_of_a_group_share_some_package_lists() {
        let fleet = Fleet::new(1, 1_200);
        let digests = (0..1_200).map(|index| {
            let host = fleet.host(index);
            host.group().digests(host.state.packages)
        });
        let (installed, pending): (BTreeSet<_>, BTreeSet<_>) =
            digests.map(|digests| (digests.installed, digests.pending)).unzip();
        // 24 groups of 50 hosts.
        assert!((48..400).contains(&installed.len()), "{} lists", installed.len());
        assert!((24..300).contains(&pending.len()), "{} lists of updates", pending.len());
    }

    #[test]
    fn reboot_changes_boot_id_and_runs_installed_kernel() {
        let fleet = Fleet::new(1, 400);
        let mut host = (0..400)
            .map(|index| fleet.host(index))
            .find(|host| {
                let kernel = host.group().kernel_update();
                kernel.is_some_and(|update| !host.state.packages.has(update))
                    && host.reboot_reasons().is_empty()
            })
            .unwrap();
        let (before, kernel) = (host.boot_id(), host.facts().kernel);
        let update = host.group().kernel_update().unwrap();
        host.state.packages = host.state.packages.with_update(update);
        assert!(host.facts().reboot_required);
        assert_eq!(host.facts().kernel, kernel, "the old kernel runs until the reboot");
        host.boot();
        assert_ne!(host.boot_id(), before);
        assert_ne!(host.facts().kernel, kernel);
        assert!(!host.facts().reboot_required);
    }
}
