//! Selects exact versions: those that an order names, and nothing else. Pure.
//!
//! The names and versions of an order are only compared with those that the host's own package
//! manager lists, as in [`select`](super::select): a version reaches the package manager only if the
//! package manager offers it for an installed package.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, FailureCode, PackageManager, PackageName};
use wire::agent::{InstallVersions, NEWER_MAX, NewerVersion, PackageMove};

use super::failure::Failure;
use super::journal::Selection;
use super::limits::Limits;
use super::select::{SkipReason, SkippedPackage, is_plain_version, matches_any};
use crate::backend::{Choice, OfferedVersion};

/// An ordered version of an installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedVersion<'a> {
    /// The newest installed version of this name and architecture.
    package: &'a Installed,
    version: &'a str,
    manager: PackageManager,
}

impl<'a> WantedVersion<'a> {
    pub(super) fn name(&self) -> &'a str {
        &self.package.name
    }

    /// Whether it is newer than the installed version.
    pub(super) fn is_newer(&self) -> bool {
        let order = self.manager.scheme().compare(&self.package.version, self.version);
        order == Ordering::Less
    }

    /// Whether it is the version that a normal update would install.
    pub(super) fn is_candidate(&self, pending: &[Pending]) -> bool {
        self.update(pending).is_some_and(|update| update.candidate == self.version)
    }

    fn update<'p>(&self, pending: &'p [Pending]) -> Option<&'p Pending> {
        let is_it = |update: &&Pending| {
            update.name == self.package.name && update.arch == self.package.arch
        };
        pending.iter().find(is_it)
    }

    fn is_offered(&self, offered: &[OfferedVersion]) -> bool {
        offered.iter().any(|offer| {
            offer.name == self.package.name
                && matches_arch(&offer.arch, &self.package.arch)
                && offer.version == self.version
        })
    }
}

/// Whether two architectures can be those of two versions of one package: a package may become
/// independent of the architecture, or stop being so.
fn matches_arch(one: &str, other: &str) -> bool {
    const INDEPENDENT: [&str; 4] = ["", "all", "noarch", "any"];
    one == other || INDEPENDENT.contains(&one) || INDEPENDENT.contains(&other)
}

/// The ordered versions of installed packages. If the order names several versions of a package,
/// the newest counts.
pub(super) fn wanted_versions<'a>(
    order: &'a InstallVersions,
    manager: PackageManager,
    installed: &'a [Installed],
) -> Vec<WantedVersion<'a>> {
    let scheme = manager.scheme();
    let mut packages: BTreeMap<&str, BTreeMap<&str, &Installed>> = BTreeMap::new();
    for package in installed {
        let versions = packages.entry(package.name.as_str()).or_default();
        let newest = versions.entry(package.arch.as_str()).or_insert(package);
        if scheme.compare(&newest.version, &package.version) == Ordering::Less {
            *newest = package;
        }
    }
    let requested: BTreeSet<&str> =
        order.install.packages.iter().map(PackageName::as_str).collect();
    let mut wanted: BTreeMap<(&str, &str), WantedVersion<'a>> = BTreeMap::new();
    for pin in &order.versions {
        let (name, version) = (pin.name.as_str(), pin.version.as_str());
        if !(requested.is_empty() || requested.contains(name)) {
            continue;
        }
        let here = packages.get(name).into_iter().flatten();
        let has_exact = packages.get(name).is_some_and(|p| p.contains_key(pin.arch.as_str()));
        for (arch, package) in here.filter(|(arch, _)| match has_exact {
            true => **arch == pin.arch.as_str(),
            false => matches_arch(pin.arch.as_str(), arch),
        }) {
            let one = WantedVersion { package, version, manager };
            let newest = wanted.entry((name, arch)).or_insert_with(|| one.clone());
            if scheme.compare(newest.version, version) == Ordering::Less {
                *newest = one;
            }
        }
    }
    wanted.into_values().collect()
}

/// The versions to install, and what is skipped. Packages that are not installed, or installed in
/// the ordered version or a newer one, are not mentioned.
pub(super) fn choose(
    order: &InstallVersions,
    limits: &Limits,
    manager: PackageManager,
    wanted: &[WantedVersion<'_>],
    pending: &[Pending],
    offered: &[OfferedVersion],
    restriction: Option<&str>,
) -> Selection {
    let scheme = manager.scheme();
    let mut selection = Selection::default();
    for wanted in wanted {
        let update = wanted.update(pending);
        if let Some(update) = update
            && scheme.compare(wanted.version, &update.candidate) == Ordering::Less
            && selection.newer.len() < NEWER_MAX
        {
            selection.newer.push(NewerVersion {
                name: wanted.name().into(),
                pinned: wanted.version.into(),
                available: update.candidate.as_str().into(),
            });
        }
        if !wanted.is_newer() {
            continue;
        }
        match skip_reason(order, limits, wanted, update, offered, restriction) {
            None => selection.choices.push(Choice {
                name: wanted.package.name.clone(),
                arch: wanted.package.arch.clone(),
                from: wanted.package.version.clone(),
                to: wanted.version.to_owned(),
            }),
            Some(why) => {
                selection.passed.push(SkippedPackage { name: wanted.name().to_owned(), why });
            }
        }
    }
    selection.choices.sort();
    selection.passed.dedup();
    selection
}

fn skip_reason(
    order: &InstallVersions,
    limits: &Limits,
    wanted: &WantedVersion<'_>,
    update: Option<&Pending>,
    offered: &[OfferedVersion],
    restriction: Option<&str>,
) -> Option<SkipReason> {
    let (name, version) = (wanted.name(), wanted.version);
    let candidate = update.filter(|update| update.candidate == version);
    // That an update is phased or kept back applies to its candidate only; the resolver judges
    // other versions.
    let blocked = update
        .and_then(|update| update.blocked_by)
        .filter(|by| candidate.is_some() || !matches!(by, BlockedBy::Phased | BlockedBy::KeptBack));
    if matches_any(&order.install.exclude, name) {
        Some(SkipReason::Blocked(BlockedBy::Excluded))
    } else if matches_any(&limits.exclude, name) {
        Some(SkipReason::Limits("exclude".to_owned()))
    } else if wanted.package.held {
        Some(SkipReason::Blocked(BlockedBy::Held))
    } else if let Some(by) = blocked {
        Some(SkipReason::Blocked(by))
    } else if candidate.is_none() && !wanted.is_offered(offered) {
        let available = update.map(|update| update.candidate.clone());
        Some(SkipReason::VersionGone {
            version: version.to_owned(),
            restriction: available.as_ref().and(restriction).map(str::to_owned),
            available,
        })
    // Only of the candidate does the host know whether it is a security update.
    } else if limits.security_only && !candidate.is_some_and(|update| update.security) {
        Some(SkipReason::Limits("security_only".to_owned()))
    } else if PackageName::parse(wanted.manager, name).is_err() || !is_plain_version(version) {
        Some(SkipReason::Odd)
    } else {
        None
    }
}

/// Checks that a transaction changes no installed package to another version than the ordered one.
/// A new package may come with an update, as in every order, but not in another version than the
/// ordered one if the order names it.
pub(super) fn check_moves(
    order: &InstallVersions,
    choices: &[Choice],
    moves: &[PackageMove],
) -> Result<(), Failure> {
    for change in moves {
        let (name, to) = (change.name.as_str(), change.to.as_ref().map_or("", |to| to.as_str()));
        let chosen = choices.iter().any(|choice| choice.name == name && choice.to == to);
        let mut ordered = order.versions.iter().filter(|pin| pin.name.as_str() == name).peekable();
        let allowed = match (&change.from, ordered.peek()) {
            (Some(_), _) => chosen,
            (None, None) => true,
            (None, Some(_)) => chosen || ordered.any(|pin| pin.version.as_str() == to),
        };
        if !allowed {
            let message = format!(
                "the update requires {name} {to}, which is not one of the ordered versions"
            );
            return Err(Failure::new(FailureCode::DependencyConflict, message));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "pinned/tests.rs"]
mod tests;
