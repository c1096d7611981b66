//! A host group: hosts with the same setup, and how each of them may differ from it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use vocab::listing::{self, Installed, Pending};
use vocab::{BlockedBy, Digest, PackageManager, PackageName};
use wire::agent::{Install, InstallVersions, PackageMove};

use super::catalog::{Catalog, Package, PackageScope, Release};
use super::names::ROLES;
use super::system::System;
use crate::Rng;

/// Maximum updates that a group can be missing. [`PackageState`] has one bit for each.
const UPDATES_MAX: usize = 64;
/// Number of extra packages that some hosts of a group have.
const EXTRAS_PER_GROUP: usize = 4;
/// Maximum package states whose digests a group caches.
const CACHED_DIGESTS_MAX: usize = 512;

/// Hosts with the same setup.
pub struct HostGroup {
    catalog: Arc<Catalog>,
    role: usize,
    environment: &'static str,
    /// Number of hosts with the same role and environment in earlier groups.
    pub(super) first_host_number: u64,
    members: Vec<GroupPackage>,
    /// The members that have an available update.
    updates: Vec<AvailableUpdate>,
    /// Catalog packages that only some hosts have.
    extras: Vec<u16>,
    digest_cache: Mutex<HashMap<PackageState, Digests>>,
}

/// A catalog package, at the level at which the group was set up.
#[derive(Debug, Clone, Copy)]
struct GroupPackage {
    package: u16,
    level: u8,
}

#[derive(Debug, Clone, Copy)]
struct AvailableUpdate {
    member: u16,
    blocked_by: Option<BlockedBy>,
}

/// How a host's packages differ from those of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PackageState {
    /// Bit set of the group's extra packages that the host has.
    extras: u8,
    /// Bit set of the group's updates that the host has installed.
    applied: u64,
}

impl PackageState {
    /// Returns the state with one more of the group's updates installed.
    #[must_use]
    pub fn with_update(self, update: usize) -> PackageState {
        PackageState { applied: self.applied | 1 << (update % UPDATES_MAX), ..self }
    }

    pub(super) fn has(self, update: usize) -> bool {
        self.applied & 1 << update != 0
    }
}

/// The digests of a host's two inventories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digests {
    pub installed: Digest,
    pub pending: Digest,
}

/// The effect of an order on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Indices of the updates that would be installed.
    pub updates: Vec<usize>,
    /// Requested updates that are held back, with the reason.
    pub blocked: Vec<String>,
    /// Requested packages that are not installed.
    pub missing: Vec<String>,
    /// Ordered versions that are not available.
    pub gone: Vec<String>,
}

impl HostGroup {
    pub(super) fn new(
        seed: u64,
        number: u64,
        catalogue: Arc<Catalog>,
        environment: &'static str,
        rng: &mut Rng,
    ) -> HostGroup {
        let role = rng.below(ROLES.len() as u64) as usize;
        // How outdated the group is: some are patched often, some are neglected.
        let neglect = *rng.pick(&[0.12, 0.2, 0.3, 0.3, 0.45]);
        let mut members = Vec::new();
        for package in choose_packages(&catalogue, role, rng) {
            let Package { source, releases, .. } = &catalogue.packages[usize::from(package)];
            // Packages of one source are outdated together.
            let mut source_rng = Rng::for_entity(seed ^ number, source, number);
            let missing = match source_rng.with_probability(neglect) {
                true => source_rng.between(1, releases.len() as u64) as usize,
                false => 0,
            };
            let level = releases.len().saturating_sub(missing) as u8;
            members.push(GroupPackage { package, level });
        }
        let extras = choose_extras(&catalogue, rng);
        let mut kind = HostGroup {
            catalog: catalogue,
            role,
            environment,
            first_host_number: 0,
            members,
            updates: Vec::new(),
            extras,
            digest_cache: Mutex::default(),
        };
        kind.updates = kind.find_updates(rng);
        kind
    }

    fn find_updates(&mut self, rng: &mut Rng) -> Vec<AvailableUpdate> {
        let phases = matches!(self.system(), System::Ubuntu2204 | System::Ubuntu2404);
        let mut behind = Vec::new();
        for place in 0..self.members.len() {
            let latest = self.package(self.members[place]).releases.len();
            if usize::from(self.members[place].level) == latest {
                continue;
            }
            if behind.len() == UPDATES_MAX {
                self.members[place].level = latest as u8;
                continue;
            }
            let blocked_by = match rng.below(100) {
                0 => Some(BlockedBy::Held),
                1 if self.system().manager() == PackageManager::Apt => Some(BlockedBy::KeptBack),
                2..=4 if phases => Some(BlockedBy::Phased),
                _ => None,
            };
            behind.push(AvailableUpdate { member: place as u16, blocked_by });
        }
        behind
    }

    /// The packages of one host: identical to most of its group, or with up to three differences.
    pub(super) fn random_packages(&self, rng: &mut Rng) -> PackageState {
        let mut packages = PackageState { extras: 0, applied: 0 };
        let differences = match rng.below(100) {
            0..=64 => 0,
            65..=84 => 1,
            85..=94 => 2,
            _ => 3,
        };
        for _ in 0..differences {
            // An administrator installed a tool or an update manually, always from the same small
            // selection.
            if rng.with_probability(0.6) || self.updates.is_empty() {
                packages.extras |= 1 << rng.below(self.extras.len() as u64);
            } else {
                packages =
                    packages.with_update(rng.below(self.updates.len().min(6) as u64) as usize);
            }
        }
        packages
    }

    pub fn system(&self) -> System {
        self.catalog.system
    }

    /// The role of the hosts: `web`, `db`.
    pub fn role(&self) -> &'static str {
        ROLES[self.role].0
    }

    /// The environment of the hosts: `production`.
    pub fn environment(&self) -> &'static str {
        self.environment
    }

    fn package(&self, member: GroupPackage) -> &Package {
        &self.catalog.packages[usize::from(member.package)]
    }

    /// The installed packages, in inventory order.
    pub fn installed(&self, packages: PackageState) -> Vec<Installed> {
        let mut list = Vec::with_capacity(self.members.len() + EXTRAS_PER_GROUP);
        let mut updates = self.updates.iter().enumerate().peekable();
        for (place, member) in self.members.iter().enumerate() {
            let package = self.package(*member);
            let mut level = usize::from(member.level);
            let mut held = false;
            if let Some((update, behind)) =
                updates.next_if(|(_, behind)| usize::from(behind.member) == place)
            {
                held = behind.blocked_by == Some(BlockedBy::Held);
                level = if packages.has(update) { package.releases.len() } else { level };
            }
            let mut entry = self.entry(package, level);
            entry.held = held;
            list.push(entry);
        }
        for (bit, extra) in self.extras.iter().enumerate() {
            if packages.extras & 1 << bit != 0 {
                let package = &self.catalog.packages[usize::from(*extra)];
                list.push(self.entry(package, package.releases.len()));
            }
        }
        listing::sort(&mut list);
        list
    }

    fn entry(&self, package: &Package, level: usize) -> Installed {
        let version = self.catalog.version(package, level);
        Installed::new(&package.name, &version, self.catalog.arch(package))
            .with_source(&package.source, &version)
    }

    /// The pending updates, in inventory order.
    pub fn pending(&self, packages: PackageState) -> Vec<Pending> {
        let mut list: Vec<Pending> = self
            .updates
            .iter()
            .enumerate()
            .filter(|(update, _)| !packages.has(*update))
            .map(|(_, behind)| self.pending_update(*behind))
            .collect();
        listing::sort(&mut list);
        list
    }

    /// Combines all releases that the host is missing into one pending update.
    fn pending_update(&self, update: AvailableUpdate) -> Pending {
        let member = self.members[usize::from(update.member)];
        let package = self.package(member);
        let (from, to) = self.versions(member);
        let missed = &package.releases[usize::from(member.level)..];
        let mut pending = Pending::new(&package.name, self.catalog.arch(package), &from, &to);
        pending.severity = missed.iter().filter_map(|release| release.severity).max();
        pending.security = pending.severity.is_some();
        let worst = |release: &&Release| release.severity.is_some() == pending.security;
        if let Some(release) = missed.iter().rfind(worst) {
            pending.update_type = release.update_type;
        }
        pending.advisories = missed.iter().filter_map(|release| release.advisory.clone()).collect();
        pending.cves = missed.iter().flat_map(|release| release.cves.clone()).collect();
        pending.blocked_by = update.blocked_by;
        pending
    }

    fn versions(&self, member: GroupPackage) -> (String, String) {
        let package = self.package(member);
        let version = |level| self.catalog.version(package, level);
        (version(usize::from(member.level)), version(package.releases.len()))
    }

    /// The digests of both inventories. Hosts with identical packages share the cached result.
    pub fn digests(&self, packages: PackageState) -> Digests {
        let lock = || self.digest_cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(digests) = lock().get(&packages) {
            return *digests;
        }
        let digests = Digests {
            installed: Digest::compute(&listing::encode(&self.installed(packages))),
            pending: Digest::compute(&listing::encode(&self.pending(packages))),
        };
        let mut remembered = lock();
        if remembered.len() >= CACHED_DIGESTS_MAX {
            remembered.clear();
        }
        remembered.insert(packages, digests);
        digests
    }

    /// What an order would do on a host with these packages.
    pub fn select(&self, packages: PackageState, order: &Install) -> Selection {
        let mut selection = Selection::default();
        for (place, behind) in self.updates.iter().enumerate() {
            let pending = self.pending_update(*behind);
            let named = order.packages.is_empty()
                || order.packages.iter().any(|name| name.as_str() == pending.name);
            let excluded = order.exclude.iter().any(|pattern| pattern.matches(&pending.name));
            let is_listed_security =
                order.security_packages.iter().any(|name| name.as_str() == pending.name);
            let secures = pending.security || is_listed_security || !order.security_only;
            if packages.has(place) || !named || !secures {
                continue;
            }
            match pending.blocked_by {
                None if !excluded => selection.updates.push(place),
                None => selection.blocked.push(format!("{}: excluded", pending.name)),
                Some(reason) => selection.blocked.push(format!("{}: {reason}", pending.name)),
            }
        }
        let has = |name: &str| {
            self.members.iter().any(|member| *self.package(*member).name == *name)
                || self.extras.iter().enumerate().any(|(bit, extra)| {
                    packages.extras & 1 << bit != 0
                        && *self.catalog.packages[usize::from(*extra)].name == *name
                })
        };
        let names = order.packages.iter().map(PackageName::as_str);
        selection.missing = names.filter(|name| !has(name)).map(str::to_owned).collect();
        selection
    }

    /// What an order for exact versions would do on a host with these packages.
    pub fn select_versions(&self, packages: PackageState, order: &InstallVersions) -> Selection {
        let mut selection = self.select(packages, &order.install);
        let Selection { updates, gone, .. } = &mut selection;
        updates.retain(|place| {
            let change = self.package_move(*place);
            let pin = order.versions.iter().find(|pin| pin.name.as_str() == change.name.as_str());
            let is_offered = pin.is_some_and(|pin| change.to.as_ref() == Some(&pin.version));
            if let Some(pin) = pin.filter(|_| !is_offered) {
                gone.push(format!("{} {}", pin.name, pin.version));
            }
            is_offered
        });
        selection
    }

    /// The package change that an update makes.
    pub fn package_move(&self, update: usize) -> PackageMove {
        let member = self.members[usize::from(self.updates[update].member)];
        let package = self.package(member);
        let (from, to) = self.versions(member);
        PackageMove {
            name: (&*package.name).into(),
            arch: self.catalog.arch(package).into(),
            from: Some(from.into()),
            to: Some(to.into()),
        }
    }

    /// The index of the kernel update, if there is one.
    pub fn kernel_update(&self) -> Option<usize> {
        let kernel = self.system().kernel_packages()[0];
        self.updates.iter().position(|behind| {
            *self.package(self.members[usize::from(behind.member)]).name == *kernel
        })
    }

    /// The kernel version of a host that booted with these packages.
    pub(super) fn kernel(&self, booted: PackageState) -> String {
        let kernel = self.system().kernel_packages()[0];
        let member = self.members.iter().find(|member| *self.package(**member).name == *kernel);
        let level = member.map_or(0, |member| {
            let updated = self.kernel_update().is_some_and(|update| booted.has(update));
            if updated { self.package(*member).releases.len() } else { usize::from(member.level) }
        });
        self.system().kernel(level as u64)
    }

    /// The packages updated since the last boot that require a reboot.
    pub(super) fn reboot_names(
        &self,
        booted: PackageState,
        now: PackageState,
    ) -> impl Iterator<Item = &str> {
        self.updates.iter().enumerate().filter_map(move |(update, behind)| {
            let package = self.package(self.members[usize::from(behind.member)]);
            let since = now.has(update) && !booted.has(update);
            (since && package.reboot).then_some(&*package.name)
        })
    }
}

/// The packages of a group: the base, those of its role, and enough others to reach 300 to 700.
fn choose_packages(catalog: &Catalog, role: usize, rng: &mut Rng) -> Vec<u16> {
    let belongs = |package: &Package| match package.scope {
        PackageScope::Base => true,
        PackageScope::Role(of) => of == role,
        PackageScope::Common | PackageScope::Extra => false,
    };
    let common = |package: &&Package| package.scope == PackageScope::Common;
    let sure = catalog.packages.iter().filter(|package| belongs(package)).count() as u64;
    let mut wanted = rng.between(300, 690).saturating_sub(sure);
    let mut left = catalog.packages.iter().filter(common).count() as u64;
    let mut chosen = Vec::new();
    for (place, package) in catalog.packages.iter().enumerate() {
        let taken = if common(&package) {
            let taken = rng.below(left) < wanted;
            left -= 1;
            wanted -= u64::from(taken);
            taken
        } else {
            belongs(package)
        };
        if taken {
            chosen.push(place as u16);
        }
    }
    chosen
}

fn choose_extras(catalog: &Catalog, rng: &mut Rng) -> Vec<u16> {
    let all: Vec<u16> = (0..catalog.packages.len())
        .filter(|place| catalog.packages[*place].scope == PackageScope::Extra)
        .map(|place| place as u16)
        .collect();
    let from = rng.below((all.len() - EXTRAS_PER_GROUP) as u64) as usize;
    all[from..from + EXTRAS_PER_GROUP].to_vec()
}
