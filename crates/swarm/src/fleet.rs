//! The hosts of a simulated fleet: the same seed makes the same hosts, package for package.
//!
//! Hosts fall into kinds of fifty that were set up alike, with a difference of up to three packages
//! here and there, as fleets do; so the content-addressed parts of the service have real work. What
//! the hosts of a kind share is shared, and lists are made when someone asks for them: a host at rest
//! costs some hundred bytes. Nothing here talks to anyone or knows the time.

mod catalogue;
mod kind;
mod names;
mod system;

pub use kind::{Digests, Kind, Packages, Selection};
pub use system::System;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vocab::{Environment, Hostname, Line, Tag};
use wire::agent::Facts;

use crate::Chance;
use catalogue::Catalogue;

/// How many kinds take turns among neighbours, so that any few hosts are a mixture.
const KINDS_IN_TURN: u64 = 8;
/// How many hosts are of one kind.
const HOSTS_PER_KIND: u64 = 50;
/// What one of so many hosts was owed before the simulation began: a reboot.
const OWED_A_REBOOT: f64 = 0.06;

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

/// The hosts of one seed.
pub struct Fleet {
    seed: u64,
    kinds: Vec<Arc<Kind>>,
}

/// One host.
#[derive(Clone)]
pub struct Host {
    /// Its place in the fleet.
    pub index: u64,
    kind: Arc<Kind>,
    seed: u64,
    hostname: Hostname,
    /// What changes about it.
    pub state: HostState,
}

/// What changes about a host, and outlives its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// Its packages.
    pub packages: Packages,
    /// Its packages when it last booted: what runs may be older than what is installed.
    booted: Packages,
    /// How often it booted.
    pub boots: u32,
    /// Whether it wanted a reboot before anyone watched.
    owed_reboot: bool,
}

impl Fleet {
    /// The first `hosts` hosts of a seed. A greater fleet of the same seed begins with the same hosts.
    pub fn new(seed: u64, hosts: u64) -> Fleet {
        let catalogues = System::ALL.map(|system| Arc::new(Catalogue::new(seed, system)));
        let turns = hosts.div_ceil(HOSTS_PER_KIND * KINDS_IN_TURN).max(1);
        let mut kinds: Vec<Arc<Kind>> = Vec::new();
        for number in 0..turns * KINDS_IN_TURN {
            let mut chance = Chance::about(seed, "kind", number);
            let system = system_of(number, &mut chance);
            let turned = Chance::about(seed, "environments", number / KINDS_IN_TURN).number();
            let environment = ENVIRONMENTS[(number.wrapping_add(turned) % 8) as usize];
            let catalogue = catalogues
                .iter()
                .find(|catalogue| catalogue.system == system)
                .unwrap_or(&catalogues[0])
                .clone();
            let mut kind = Kind::new(seed, number, catalogue, environment, &mut chance);
            let alike = |other: &&Arc<Kind>| {
                other.role() == kind.role() && other.environment() == environment
            };
            kind.first = HOSTS_PER_KIND * kinds.iter().filter(alike).count() as u64;
            kinds.push(Arc::new(kind));
        }
        Fleet { seed, kinds }
    }

    /// The host at a place, as it was set up.
    ///
    /// # Panics
    /// If the fleet has fewer hosts.
    pub fn host(&self, index: u64) -> Host {
        let turn = index / (HOSTS_PER_KIND * KINDS_IN_TURN);
        let kind = &self.kinds[(turn * KINDS_IN_TURN + index % KINDS_IN_TURN) as usize];
        let within = index % (HOSTS_PER_KIND * KINDS_IN_TURN) / KINDS_IN_TURN;
        let mut chance = Chance::about(self.seed, "host", index);
        let packages = kind.packages_of_a_host(&mut chance);
        let owed_reboot = chance.happens(OWED_A_REBOOT);
        let prefix = match kind.environment() {
            "staging" => "stg-",
            "development" => "dev-",
            "testing" => "test-",
            _ => "",
        };
        let hostname = format!("{prefix}{}-{:02}", kind.role(), kind.first + within + 1);
        Host {
            index,
            kind: kind.clone(),
            seed: self.seed,
            hostname: hostname.parse().expect("a role and a number are a hostname"),
            state: HostState { packages, booted: packages, boots: 1, owed_reboot },
        }
    }
}

/// The first kinds are one of each system, so that a small fleet has them all.
fn system_of(kind: u64, chance: &mut Chance) -> System {
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
    /// What it shares with the hosts that were set up alike.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Which boot this is.
    pub fn boot_id(&self) -> Line {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"boot").update(&self.seed.to_be_bytes());
        hasher.update(&self.index.to_be_bytes()).update(&self.state.boots.to_be_bytes());
        let hex = hasher.finalize().to_hex();
        let part = |from: usize, to: usize| &hex.as_str()[from..to];
        let (a, b, c, d, e) = (part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32));
        Line::from(format!("{a}-{b}-4{c}-a{d}-{e}"))
    }

    /// What it would say of itself.
    pub fn facts(&self) -> Facts {
        let system = self.kind.system();
        let reasons = self.reboot_reasons();
        Facts {
            hostname: self.hostname.clone(),
            os: system.os(),
            kernel: Line::from(self.kind.kernel(self.state.booted)),
            arch: "x86_64".into(),
            package_manager: system.manager(),
            agent_version: concat!(env!("CARGO_PKG_VERSION"), "-swarm").into(),
            reboot_required: !reasons.is_empty(),
            reboot_reasons: reasons,
            old_code: Vec::new(),
            other_updaters: Vec::new(),
            limits: None,
            trusted_keys: Vec::new(),
            // Like a container: the kernel above belongs to none of its packages.
            foreign_kernel: true,
        }
    }

    /// Why it should be rebooted; nothing if it should not.
    pub fn reboot_reasons(&self) -> Vec<Line> {
        let mut reasons: Vec<Line> = self
            .kind
            .reboot_names(self.state.booted, self.state.packages)
            .map(|name| Line::from(format!("{name} was updated")))
            .collect();
        if self.state.owed_reboot {
            reasons.push("a library that running services use was updated".into());
        }
        reasons
    }

    /// Boots it.
    pub fn boot(&mut self) {
        let HostState { packages, boots, .. } = self.state;
        self.state = HostState { packages, booted: packages, boots: boots + 1, owed_reboot: false };
    }

    /// The environment that it says it is in.
    pub fn environment(&self) -> Option<Environment> {
        self.kind.environment().parse().ok()
    }

    /// The tags that it says it has.
    pub fn tags(&self) -> Vec<Tag> {
        [format!("role:{}", self.kind.role()), self.kind.role().to_owned()]
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
    fn the_same_seed_makes_the_same_hosts_in_fleets_of_any_size() {
        let (small, large) = (Fleet::new(7, 100), Fleet::new(7, 2_000));
        let other = Fleet::new(8, 100);
        let mut differs = 0;
        for index in 0..100 {
            let (a, b, c) = (small.host(index), large.host(index), other.host(index));
            assert_eq!(a.facts(), b.facts());
            let digests = |host: &Host| host.kind().digests(host.state.packages);
            assert_eq!(digests(&a), digests(&b));
            differs += u32::from(digests(&a).installed != digests(&c).installed);
        }
        assert_eq!(differs, 100);
    }

    #[test]
    fn hosts_look_like_hosts() {
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
    fn package_lists_have_hundreds_of_lines_and_tens_of_updates() {
        let fleet = Fleet::new(1, 2_000);
        let (mut updates, mut security, mut severities) = (0, 0, BTreeSet::<Severity>::new());
        for index in (0..2_000).step_by(37) {
            let host = fleet.host(index);
            let installed = host.kind().installed(host.state.packages);
            assert!((290..=720).contains(&installed.len()), "{}", installed.len());
            let pending = host.kind().pending(host.state.packages);
            assert!(pending.len() <= 64);
            for update in &pending {
                let order = host.kind().system().manager().scheme();
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

    /// What content-addressing lives on: few lists for many hosts, but not one for each kind.
    #[test]
    fn hosts_share_their_lists_with_some_and_not_with_all_of_their_kind() {
        let fleet = Fleet::new(1, 1_200);
        let digests = (0..1_200).map(|index| {
            let host = fleet.host(index);
            host.kind().digests(host.state.packages)
        });
        let (installed, pending): (BTreeSet<_>, BTreeSet<_>) =
            digests.map(|digests| (digests.installed, digests.pending)).unzip();
        // 24 kinds of 50 hosts.
        assert!((48..400).contains(&installed.len()), "{} lists", installed.len());
        assert!((24..300).contains(&pending.len()), "{} lists of updates", pending.len());
    }

    #[test]
    fn a_boot_is_another_boot_and_runs_what_is_installed() {
        let fleet = Fleet::new(1, 400);
        let mut host = (0..400)
            .map(|index| fleet.host(index))
            .find(|host| {
                let kernel = host.kind().kernel_update();
                kernel.is_some_and(|update| !host.state.packages.has(update))
                    && host.reboot_reasons().is_empty()
            })
            .unwrap();
        let (before, kernel) = (host.boot_id(), host.facts().kernel);
        let update = host.kind().kernel_update().unwrap();
        host.state.packages = host.state.packages.with(update);
        assert!(host.facts().reboot_required);
        assert_eq!(host.facts().kernel, kernel, "it runs on until it is rebooted");
        host.boot();
        assert_ne!(host.boot_id(), before);
        assert_ne!(host.facts().kernel, kernel);
        assert!(!host.facts().reboot_required);
    }
}
