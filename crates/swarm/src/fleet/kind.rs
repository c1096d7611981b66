//! A host group: hosts with the same setup, and how each of them may differ from it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use vocab::listing::{self, Installed, Pending};
use vocab::{BlockedBy, Digest, PackageManager, PackageName};
use wire::agent::{Install, PackageMove};

use super::catalogue::{Belongs, Catalogue, Package, Release};
use super::names::ROLES;
use super::system::System;
use crate::Chance;

/// Maximum updates that a group can be missing. [`Packages`] has one bit for each.
const BEHIND_MAX: usize = 64;
/// Number of extra packages that some hosts of a group have.
const EXTRAS: usize = 4;
/// Maximum package states whose digests a group caches.
const REMEMBERED_MAX: usize = 512;

/// Hosts with the same setup.
pub struct Kind {
    catalogue: Arc<Catalogue>,
    role: usize,
    environment: &'static str,
    /// Number of hosts with the same role and environment in earlier groups.
    pub(super) first: u64,
    members: Vec<Member>,
    /// The members that have an available update.
    behind: Vec<Behind>,
    /// Catalog packages that only some hosts have.
    extras: Vec<u16>,
    remembered: Mutex<HashMap<Packages, Digests>>,
}

/// A catalog package, at the level at which the group was set up.
#[derive(Debug, Clone, Copy)]
struct Member {
    package: u16,
    level: u8,
}

#[derive(Debug, Clone, Copy)]
struct Behind {
    member: u16,
    blocked_by: Option<BlockedBy>,
}

/// How a host's packages differ from those of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Packages {
    /// Bit set of the group's extra packages that the host has.
    extras: u8,
    /// Bit set of the group's updates that the host has installed.
    applied: u64,
}

impl Packages {
    /// Returns the state with one more of the group's updates installed.
    #[must_use]
    pub fn with(self, update: usize) -> Packages {
        Packages { applied: self.applied | 1 << (update % BEHIND_MAX), ..self }
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
}

impl Kind {
    pub(super) fn new(
        seed: u64,
        number: u64,
        catalogue: Arc<Catalogue>,
        environment: &'static str,
        chance: &mut Chance,
    ) -> Kind {
        let role = chance.below(ROLES.len() as u64) as usize;
        // How outdated the group is: some are patched often, some are neglected.
        let neglect = *chance.one_of(&[0.12, 0.2, 0.3, 0.3, 0.45]);
        let mut members = Vec::new();
        for package in chosen(&catalogue, role, chance) {
            let Package { source, releases, .. } = &catalogue.packages[usize::from(package)];
            // Packages of one source are outdated together.
            let mut fate = Chance::about(seed ^ number, source, number);
            let missing = match fate.happens(neglect) {
                true => fate.between(1, releases.len() as u64) as usize,
                false => 0,
            };
            let level = releases.len().saturating_sub(missing) as u8;
            members.push(Member { package, level });
        }
        let extras = extras(&catalogue, chance);
        let mut kind = Kind {
            catalogue,
            role,
            environment,
            first: 0,
            members,
            behind: Vec::new(),
            extras,
            remembered: Mutex::default(),
        };
        kind.behind = kind.fallen_behind(chance);
        kind
    }

    fn fallen_behind(&mut self, chance: &mut Chance) -> Vec<Behind> {
        let phases = matches!(self.system(), System::Ubuntu2204 | System::Ubuntu2404);
        let mut behind = Vec::new();
        for place in 0..self.members.len() {
            let latest = self.package(self.members[place]).releases.len();
            if usize::from(self.members[place].level) == latest {
                continue;
            }
            if behind.len() == BEHIND_MAX {
                self.members[place].level = latest as u8;
                continue;
            }
            let blocked_by = match chance.below(100) {
                0 => Some(BlockedBy::Held),
                1 if self.system().manager() == PackageManager::Apt => Some(BlockedBy::KeptBack),
                2..=4 if phases => Some(BlockedBy::Phased),
                _ => None,
            };
            behind.push(Behind { member: place as u16, blocked_by });
        }
        behind
    }

    /// The packages of one host: identical to most of its group, or with up to three differences.
    pub(super) fn packages_of_a_host(&self, chance: &mut Chance) -> Packages {
        let mut packages = Packages { extras: 0, applied: 0 };
        let differences = match chance.below(100) {
            0..=64 => 0,
            65..=84 => 1,
            85..=94 => 2,
            _ => 3,
        };
        for _ in 0..differences {
            // An administrator installed a tool or an update manually, always from the same small
            // selection.
            if chance.happens(0.6) || self.behind.is_empty() {
                packages.extras |= 1 << chance.below(self.extras.len() as u64);
            } else {
                packages = packages.with(chance.below(self.behind.len().min(6) as u64) as usize);
            }
        }
        packages
    }

    pub fn system(&self) -> System {
        self.catalogue.system
    }

    /// The role of the hosts: `web`, `db`.
    pub fn role(&self) -> &'static str {
        ROLES[self.role].0
    }

    /// The environment of the hosts: `production`.
    pub fn environment(&self) -> &'static str {
        self.environment
    }

    fn package(&self, member: Member) -> &Package {
        &self.catalogue.packages[usize::from(member.package)]
    }

    /// The installed packages, in inventory order.
    pub fn installed(&self, packages: Packages) -> Vec<Installed> {
        let mut list = Vec::with_capacity(self.members.len() + EXTRAS);
        let mut updates = self.behind.iter().enumerate().peekable();
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
                let package = &self.catalogue.packages[usize::from(*extra)];
                list.push(self.entry(package, package.releases.len()));
            }
        }
        listing::sort(&mut list);
        list
    }

    fn entry(&self, package: &Package, level: usize) -> Installed {
        let version = self.catalogue.version(package, level);
        Installed::new(&package.name, &version, self.catalogue.arch(package))
            .with_source(&package.source, &version)
    }

    /// The pending updates, in inventory order.
    pub fn pending(&self, packages: Packages) -> Vec<Pending> {
        let mut list: Vec<Pending> = self
            .behind
            .iter()
            .enumerate()
            .filter(|(update, _)| !packages.has(*update))
            .map(|(_, behind)| self.update(*behind))
            .collect();
        listing::sort(&mut list);
        list
    }

    /// Combines all releases that the host is missing into one pending update.
    fn update(&self, behind: Behind) -> Pending {
        let member = self.members[usize::from(behind.member)];
        let package = self.package(member);
        let (from, to) = self.versions(member);
        let missed = &package.releases[usize::from(member.level)..];
        let mut pending = Pending::new(&package.name, self.catalogue.arch(package), &from, &to);
        pending.severity = missed.iter().filter_map(|release| release.severity).max();
        pending.security = pending.severity.is_some();
        let worst = |release: &&Release| release.severity.is_some() == pending.security;
        if let Some(release) = missed.iter().rfind(worst) {
            pending.update_type = release.update_type;
        }
        pending.advisories = missed.iter().filter_map(|release| release.advisory.clone()).collect();
        pending.cves = missed.iter().flat_map(|release| release.cves.clone()).collect();
        pending.blocked_by = behind.blocked_by;
        pending
    }

    fn versions(&self, member: Member) -> (String, String) {
        let package = self.package(member);
        let version = |level| self.catalogue.version(package, level);
        (version(usize::from(member.level)), version(package.releases.len()))
    }

    /// The digests of both inventories. Hosts with identical packages share the cached result.
    pub fn digests(&self, packages: Packages) -> Digests {
        let lock = || self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(digests) = lock().get(&packages) {
            return *digests;
        }
        let digests = Digests {
            installed: Digest::of(&listing::encode(&self.installed(packages))),
            pending: Digest::of(&listing::encode(&self.pending(packages))),
        };
        let mut remembered = lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(packages, digests);
        digests
    }

    /// What an order would do on a host with these packages.
    pub fn select(&self, packages: Packages, order: &Install) -> Selection {
        let mut selection = Selection::default();
        for (place, behind) in self.behind.iter().enumerate() {
            let pending = self.update(*behind);
            let named = order.packages.is_empty()
                || order.packages.iter().any(|name| name.as_str() == pending.name);
            let excluded = order.exclude.iter().any(|pattern| pattern.matches(&pending.name));
            let told = order.security_packages.iter().any(|name| name.as_str() == pending.name);
            let secures = pending.security || told || !order.security_only;
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
                        && *self.catalogue.packages[usize::from(*extra)].name == *name
                })
        };
        let names = order.packages.iter().map(PackageName::as_str);
        selection.missing = names.filter(|name| !has(name)).map(str::to_owned).collect();
        selection
    }

    /// The package change that an update makes.
    pub fn move_of(&self, update: usize) -> PackageMove {
        let member = self.members[usize::from(self.behind[update].member)];
        let package = self.package(member);
        let (from, to) = self.versions(member);
        PackageMove {
            name: (&*package.name).into(),
            arch: self.catalogue.arch(package).into(),
            from: Some(from.into()),
            to: Some(to.into()),
        }
    }

    /// The index of the kernel update, if there is one.
    pub fn kernel_update(&self) -> Option<usize> {
        let kernel = self.system().kernel_packages()[0];
        self.behind.iter().position(|behind| {
            *self.package(self.members[usize::from(behind.member)]).name == *kernel
        })
    }

    /// The kernel version of a host that booted with these packages.
    pub(super) fn kernel(&self, booted: Packages) -> String {
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
        booted: Packages,
        now: Packages,
    ) -> impl Iterator<Item = &str> {
        self.behind.iter().enumerate().filter_map(move |(update, behind)| {
            let package = self.package(self.members[usize::from(behind.member)]);
            let since = now.has(update) && !booted.has(update);
            (since && package.reboot).then_some(&*package.name)
        })
    }
}

/// The packages of a group: the base, those of its role, and enough others to reach 300 to 700.
fn chosen(catalogue: &Catalogue, role: usize, chance: &mut Chance) -> Vec<u16> {
    let belongs = |package: &Package| match package.belongs {
        Belongs::Base => true,
        Belongs::Role(of) => of == role,
        Belongs::Common | Belongs::Extra => false,
    };
    let common = |package: &&Package| package.belongs == Belongs::Common;
    let sure = catalogue.packages.iter().filter(|package| belongs(package)).count() as u64;
    let mut wanted = chance.between(300, 690).saturating_sub(sure);
    let mut left = catalogue.packages.iter().filter(common).count() as u64;
    let mut chosen = Vec::new();
    for (place, package) in catalogue.packages.iter().enumerate() {
        let taken = if common(&package) {
            let taken = chance.below(left) < wanted;
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

fn extras(catalogue: &Catalogue, chance: &mut Chance) -> Vec<u16> {
    let all: Vec<u16> = (0..catalogue.packages.len())
        .filter(|place| catalogue.packages[*place].belongs == Belongs::Extra)
        .map(|place| place as u16)
        .collect();
    let from = chance.below((all.len() - EXTRAS) as u64) as usize;
    all[from..from + EXTRAS].to_vec()
}
