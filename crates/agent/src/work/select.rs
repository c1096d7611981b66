//! Selects the updates that an order requests, and explains what is skipped. Pure.
//!
//! No text of an order reaches a package manager: it is only compared with the names in the host's
//! own package list, and the package manager gets the host's own name, architecture and version.
//! This is a security boundary: `ba.h` is a valid package name and a regular expression to apt, but
//! no package has this name.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, FailureCode, Line, PackageManager, PackageName, PackagePattern};
use wire::agent::{Install, PackageMove};

use super::failure::Failure;
use super::limits::Limits;
use crate::backend::{Choice, Transaction};

/// A package that is not updated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedPackage {
    pub name: String,
    pub why: SkipReason,
}

/// Why a package is not updated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Held back by the package manager or excluded by the order.
    Blocked(BlockedBy),
    /// Forbidden by this key of the host limits.
    Limits(String),
    NotInstalled,
    NoUpdate,
    /// Only security updates are requested, and its update is not one.
    NotSecurity,
    /// Its name or version is not safe to pass to the package manager.
    Odd,
    /// The ordered version is not available.
    VersionGone {
        version: String,
        /// The newest version that is available.
        available: Option<String>,
        /// What this package manager cannot do, if that is the reason.
        restriction: Option<String>,
    },
}

impl SkippedPackage {
    /// Whether the ordered version is not available.
    pub fn is_version_gone(&self) -> bool {
        matches!(self.why, SkipReason::VersionGone { .. })
    }

    /// The reason as a message for people.
    pub fn to_message(&self) -> Line {
        let why = match &self.why {
            SkipReason::Blocked(by) => blocked_reason(*by).to_owned(),
            SkipReason::Limits(key) => format!("forbidden by `{key}` in the host's limits.toml"),
            SkipReason::NotInstalled => "it is not installed".to_owned(),
            SkipReason::NoUpdate => "no update available".to_owned(),
            SkipReason::NotSecurity => "not a security update".to_owned(),
            SkipReason::Odd => "unsafe package name or version".to_owned(),
            SkipReason::VersionGone { version, available, restriction } => {
                let available = available.as_deref().map(|other| format!(" ({other} is)"));
                let restriction = restriction.as_deref().map(|why| format!("; {why}"));
                format!(
                    "version {version} is not available{}{}",
                    available.unwrap_or_default(),
                    restriction.unwrap_or_default()
                )
            }
        };
        format!("{} was skipped: {why}", self.name).into()
    }
}

/// The reason as text.
fn blocked_reason(by: BlockedBy) -> &'static str {
    match by {
        BlockedBy::Held => "held by the administrator",
        BlockedBy::Phased => "phased update, not yet released to this host",
        BlockedBy::KeptBack => "kept back: it requires a package removal, or cannot be resolved",
        BlockedBy::Excluded => "excluded by the order",
        BlockedBy::Pinned => "pinned to another version",
    }
}

/// The updates to install, and the packages that are skipped.
pub fn choose(
    order: &Install,
    limits: &Limits,
    manager: PackageManager,
    installed: &[Installed],
    pending: &[Pending],
) -> (Vec<Choice>, Vec<SkippedPackage>) {
    let here: BTreeMap<(&str, &str), &Installed> =
        installed.iter().map(|i| ((i.name.as_str(), i.arch.as_str()), i)).collect();
    let requested: BTreeSet<&str> = order.packages.iter().map(PackageName::as_str).collect();
    let (mut choices, mut passed) = (Vec::new(), Vec::new());
    for update in pending {
        let named = requested.contains(update.name.as_str());
        if !(requested.is_empty() || named) {
            continue;
        }
        let Some(package) = here.get(&(update.name.as_str(), update.arch.as_str())) else {
            continue;
        };
        match skip_reason(order, limits, manager, package, update) {
            None => choices.push(Choice {
                name: update.name.clone(),
                arch: update.arch.clone(),
                from: installed_version(package, update).to_owned(),
                to: update.candidate.clone(),
            }),
            // An order for all updates does not list the updates that are not security updates.
            Some(SkipReason::NotSecurity) if !named => {}
            Some(why) => passed.push(SkippedPackage { name: update.name.clone(), why }),
        }
    }
    let chosen_names: BTreeSet<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
    let skipped_names: BTreeSet<String> = passed.iter().map(|passed| passed.name.clone()).collect();
    let names: BTreeSet<&str> = installed.iter().map(|package| package.name.as_str()).collect();
    for name in requested {
        if !chosen_names.contains(name) && !skipped_names.contains(name) {
            let why =
                if names.contains(name) { SkipReason::NoUpdate } else { SkipReason::NotInstalled };
            passed.push(SkippedPackage { name: name.to_owned(), why });
        }
    }
    choices.sort();
    choices.dedup_by(|b, a| a.name == b.name && a.arch == b.arch);
    passed.dedup();
    (choices, passed)
}

fn installed_version<'a>(package: &'a Installed, update: &'a Pending) -> &'a str {
    if update.installed.is_empty() { &package.version } else { &update.installed }
}

fn skip_reason(
    order: &Install,
    limits: &Limits,
    manager: PackageManager,
    package: &Installed,
    update: &Pending,
) -> Option<SkipReason> {
    let name = update.name.as_str();
    // The service has vulnerability feeds, and may know more than a repository without security
    // data.
    let is_listed_by_server =
        order.security_packages.iter().any(|security_package| security_package.as_str() == name);
    let newer = manager.scheme().compare(installed_version(package, update), &update.candidate);
    if matches_any(&order.exclude, name) {
        Some(SkipReason::Blocked(BlockedBy::Excluded))
    } else if matches_any(&limits.exclude, name) {
        Some(SkipReason::Limits("exclude".to_owned()))
    } else if package.held {
        Some(SkipReason::Blocked(BlockedBy::Held))
    } else if let Some(by) = update.blocked_by {
        Some(SkipReason::Blocked(by))
    } else if order.security_only && !update.security && !is_listed_by_server {
        Some(SkipReason::NotSecurity)
    } else if limits.security_only && !update.security {
        Some(SkipReason::Limits("security_only".to_owned()))
    } else if newer != Ordering::Less {
        Some(SkipReason::NoUpdate)
    } else if PackageName::parse(manager, name).is_err() || !is_plain_version(&update.candidate) {
        Some(SkipReason::Odd)
    } else {
        None
    }
}

/// Whether a version contains only characters that are safe to pass to a package manager.
pub(super) fn is_plain_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".+~:-^_".contains(c))
}

pub(super) fn matches_any(patterns: &[PackagePattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

/// Checks that the transaction is acceptable: every choice as selected, nothing removed, nothing
/// downgraded, no package that is excluded or held.
pub fn check_transaction(
    order: &Install,
    limits: &Limits,
    manager: PackageManager,
    installed: &[Installed],
    choices: &[Choice],
    transaction: &Transaction,
) -> Result<Vec<PackageMove>, Failure> {
    let conflict = |words: String| Err(Failure::new(FailureCode::DependencyConflict, words));
    let held: BTreeSet<&str> =
        installed.iter().filter(|i| i.held).map(|i| i.name.as_str()).collect();
    for change in &transaction.changes {
        let name = change.name.as_str();
        let (from, to) = (change.from.as_deref(), change.to.as_deref());
        let Some(to) = to else {
            return conflict(format!("the update would remove {name}"));
        };
        if let Some(from) = from
            && manager.scheme().compare(from, to) == Ordering::Greater
        {
            return conflict(format!("the update would downgrade {name} from {from} to {to}"));
        }
        if matches_any(&order.exclude, name) {
            return conflict(format!("the update requires {name} {to}, which the order excludes"));
        }
        if matches_any(&limits.exclude, name) {
            return conflict(format!(
                "the update requires {name} {to}, which limits.toml excludes"
            ));
        }
        if from.is_some() && held.contains(name) {
            return conflict(format!("the update requires {name} {to}, which is held"));
        }
    }
    for choice in choices {
        let change = transaction
            .changes
            .iter()
            .find(|change| change.name == choice.name && change.arch == choice.arch);
        let to = change.and_then(|change| change.to.as_deref());
        if to != Some(choice.to.as_str()) {
            let instead = to.unwrap_or("nothing");
            return conflict(format!(
                "{} {} was selected, but the resolver would install {instead}",
                choice.name, choice.to
            ));
        }
    }
    let count = transaction.changes.len();
    if let Some(max) = limits.max_packages.filter(|most| count > *most) {
        let words = format!(
            "the update would change {count} packages, but limits.toml allows {max} (`max_packages`)"
        );
        return Err(Failure::new(FailureCode::RejectedByAgent, words));
    }
    Ok(transaction
        .changes
        .iter()
        .map(|c| package_move(&c.name, &c.arch, c.from.as_deref(), c.to.as_deref()))
        .collect())
}

fn package_move(name: &str, arch: &str, from: Option<&str>, to: Option<&str>) -> PackageMove {
    PackageMove {
        name: name.into(),
        arch: arch.into(),
        from: from.map(Into::into),
        to: to.map(Into::into),
    }
}

/// The versions by name and architecture: some packages, such as kernels, have several at once.
type Versions<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>;

fn versions(list: &[Installed]) -> Versions<'_> {
    let mut versions = Versions::new();
    for package in list {
        versions.entry((&package.name, &package.arch)).or_default().insert(&package.version);
    }
    versions
}

pub fn difference(before: &[Installed], after: &[Installed]) -> Vec<PackageMove> {
    let (before, after) = (versions(before), versions(after));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    let none = BTreeSet::new();
    let mut moves = Vec::new();
    for key in keys {
        let (old, new) = (before.get(&key).unwrap_or(&none), after.get(&key).unwrap_or(&none));
        let mut gone = old.difference(new).copied();
        let mut come = new.difference(old).copied();
        loop {
            let (from, to) = (gone.next(), come.next());
            if from.is_none() && to.is_none() {
                break;
            }
            moves.push(package_move(key.0, key.1, from, to));
        }
    }
    moves
}

/// Expectations that are not met, including removals and downgrades, which must never happen.
pub fn unmet_expectations(
    choices: &[Choice],
    manager: PackageManager,
    before: &[Installed],
    after: &[Installed],
) -> Vec<Line> {
    let (old, new) = (versions(before), versions(after));
    let mut lines: Vec<Line> = Vec::new();
    for choice in choices {
        let found = new.get(&(choice.name.as_str(), choice.arch.as_str()));
        if found.is_some_and(|found| found.contains(choice.to.as_str())) {
            continue;
        }
        let found = found.and_then(|found| found.last()).copied().unwrap_or("not installed");
        lines.push(format!("{}: installed {found}, expected {}", choice.name, choice.to).into());
    }
    for (key, versions) in &old {
        let Some(now) = new.get(key) else {
            lines.push(format!("{} was removed", key.0).into());
            continue;
        };
        let newest = |names: &BTreeSet<&str>| {
            names.iter().copied().max_by(|a, b| manager.scheme().compare(a, b)).map(str::to_owned)
        };
        if let (Some(was), Some(is)) = (newest(versions), newest(now))
            && manager.scheme().compare(&was, &is) == Ordering::Greater
        {
            lines.push(format!("{} was downgraded from {was} to {is}", key.0).into());
        }
    }
    lines
}

#[cfg(test)]
#[path = "select/tests.rs"]
mod tests;
