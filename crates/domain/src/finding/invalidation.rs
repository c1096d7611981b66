//! Determines what must be matched again when advisories change: only packages whose names a
//! changed advisory contains.
//!
//! A package set is split by source package into [groups](group_by_source), and each group is matched once,
//! however many sets contain it. After a change, only the groups with a name in [`ChangedNames`]
//! are matched again. An index of the advisories for the names of a group is enough for it, so one
//! new advisory does not require an index of all of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use vocab::{Digest, Installed};

use crate::advisory::{Advisory, Affected, Ecosystem};

use super::lookup_key;

/// The package names in changed advisories, by base.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedNames(BTreeMap<Ecosystem, BTreeSet<String>>);

impl ChangedNames {
    /// Records one change: the advisory before, and the advisory that replaces it.
    pub fn record(&mut self, before: Option<&Advisory>, after: Option<&Advisory>) {
        match (before, after) {
            (Some(before), Some(after)) if differs_only_in_affected(before, after) => {
                let gone = before.affected.iter().filter(|old| !after.affected.contains(old));
                let new = after.affected.iter().filter(|new| !before.affected.contains(new));
                gone.chain(new).for_each(|affected| self.record_affected(affected));
            }
            _ => {
                let all = before.into_iter().chain(after);
                all.flat_map(|advisory| &advisory.affected)
                    .for_each(|affected| self.record_affected(affected));
            }
        }
    }

    fn record_affected(&mut self, affected: &Affected) {
        let (base, _) = affected.ecosystem.base();
        self.add(base, affected.package.clone());
    }

    /// Records a changed package name.
    pub fn add(&mut self, base: Ecosystem, name: String) {
        self.0.entry(base).or_default().insert(name);
    }

    pub fn bases(&self) -> impl Iterator<Item = &Ecosystem> {
        self.0.keys()
    }

    /// The changed names of a base.
    pub fn names(&self, base: &Ecosystem) -> impl Iterator<Item = &str> {
        self.0.get(base).into_iter().flatten().map(String::as_str)
    }
}

/// All packages of a set that come from one source package. They are matched together and
/// independently of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceGroup {
    /// The names that it is looked up by, sorted, without duplicates.
    pub names: Vec<String>,
    /// The packages, in the order of the set.
    pub packages: Vec<Installed>,
}

impl SourceGroup {
    /// Identifies the group: sets with the same packages of a source share the result.
    pub fn digest(&self) -> Digest {
        Digest::compute(&vocab::listing::encode(&self.packages))
    }

    /// Whether this is the group of the given source package.
    pub fn is_source(&self, base: &Ecosystem, source: &str) -> bool {
        self.packages.first().is_some_and(|one| lookup_key::source(base.family(), one) == source)
    }

    /// Whether it contains a kernel: findings of kernels depend on the other kernels and on the
    /// running one.
    pub fn has_kernel(&self, base: &Ecosystem) -> bool {
        self.packages.iter().any(|package| lookup_key::is_kernel(base.family(), package))
    }
}

/// Splits a package set by source package. Packages that are not looked up are in no group.
pub fn group_by_source(base: &Ecosystem, packages: &[Installed]) -> Vec<SourceGroup> {
    let family = base.family();
    let mut by_source: BTreeMap<Cow<'_, str>, SourceGroup> = BTreeMap::new();
    for package in packages {
        let names: Vec<Cow<'_, str>> = lookup_key::lookup_names(family, package).collect();
        if names.is_empty() {
            continue;
        }
        let group = by_source
            .entry(lookup_key::source(family, package))
            .or_insert_with(|| SourceGroup { names: Vec::new(), packages: Vec::new() });
        for name in names {
            if let Err(place) = group.names.binary_search_by(|known| known.as_str().cmp(&name)) {
                group.names.insert(place, name.into_owned());
            }
        }
        let mut package = package.clone();
        // Whether a package is held does not affect findings.
        package.held = false;
        group.packages.push(package);
    }
    // Most source packages have one package, and a group is kept as long as a server has it.
    let mut groups: Vec<SourceGroup> = by_source.into_values().collect();
    for group in &mut groups {
        group.names.shrink_to_fit();
        group.packages.shrink_to_fit();
    }
    groups
}

/// Whether two versions of an advisory differ at most in the affected packages. A changed severity
/// or CVE list concerns every package in the advisory.
fn differs_only_in_affected(a: &Advisory, b: &Advisory) -> bool {
    a.flaws == b.flaws
        && a.aliases == b.aliases
        && a.ratings == b.ratings
        && a.published == b.published
        && a.withdrawn == b.withdrawn
}

/// The names that a package set is looked up by in a base, sorted, without duplicates.
pub fn lookup_names<'a>(base: &Ecosystem, packages: &'a [Installed]) -> BTreeSet<Cow<'a, str>> {
    let family = base.family();
    packages.iter().flat_map(|package| lookup_key::lookup_names(family, package)).collect()
}
