//! What has to be judged again when advisories change: only what has a name that a changed advisory
//! names.
//!
//! A set is taken apart by source into [`groups`], and a group is judged once, however many sets carry
//! it. After a change only those are judged again that have a name which a [`Touched`] names; an index of the
//! advisories that name one of a group's names is enough for it, so that one new advisory does not
//! cost an index of all of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use vocab::{Digest, Installed};

use crate::advisory::{Advisory, Affected, Ecosystem};

use super::subject;

/// The names that changed advisories name, by base.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched(BTreeMap<Ecosystem, BTreeSet<String>>);

impl Touched {
    /// Takes note of one change: what was known before, and what takes its place.
    pub fn note(&mut self, before: Option<&Advisory>, after: Option<&Advisory>) {
        match (before, after) {
            (Some(before), Some(after)) if same_meaning(before, after) => {
                let gone = before.affected.iter().filter(|old| !after.affected.contains(old));
                let new = after.affected.iter().filter(|new| !before.affected.contains(new));
                gone.chain(new).for_each(|affected| self.name(affected));
            }
            _ => {
                let all = before.into_iter().chain(after);
                all.flat_map(|advisory| &advisory.affected)
                    .for_each(|affected| self.name(affected));
            }
        }
    }

    fn name(&mut self, affected: &Affected) {
        let (base, _) = affected.ecosystem.base();
        self.add(base, affected.package.clone());
    }

    /// Takes note of a name about which something changed.
    pub fn add(&mut self, base: Ecosystem, name: String) {
        self.0.entry(base).or_default().insert(name);
    }

    /// The bases that are touched.
    pub fn bases(&self) -> impl Iterator<Item = &Ecosystem> {
        self.0.keys()
    }

    /// The names that are touched in a base.
    pub fn names(&self, base: &Ecosystem) -> impl Iterator<Item = &str> {
        self.0.get(base).into_iter().flatten().map(String::as_str)
    }
}

/// Everything of a set that is of one source: its packages' findings are one, and depend on nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The names that it is looked up by, sorted, each once.
    pub names: Vec<String>,
    /// The packages, in the order of the set.
    pub packages: Vec<Installed>,
}

impl Group {
    /// What it is known by: sets that carry the same of a source share what is known of it.
    pub fn digest(&self) -> Digest {
        Digest::of(&vocab::listing::encode(&self.packages))
    }

    /// Whether it is what a set has of this source.
    pub fn is_of(&self, base: &Ecosystem, source: &str) -> bool {
        self.packages.first().is_some_and(|one| subject::source(base.family(), one) == source)
    }

    /// Whether a kernel is in it: its findings mean something only together with those of other kernels and
    /// with what runs.
    pub fn has_kernel(&self, base: &Ecosystem) -> bool {
        self.packages.iter().any(|package| subject::is_kernel(base.family(), package))
    }
}

/// A set, taken apart by source. What is not looked up at all is in no group.
pub fn groups(base: &Ecosystem, packages: &[Installed]) -> Vec<Group> {
    let family = base.family();
    let mut by_source: BTreeMap<Cow<'_, str>, Group> = BTreeMap::new();
    for package in packages {
        let names: Vec<Cow<'_, str>> = subject::names(family, package).collect();
        if names.is_empty() {
            continue;
        }
        let group = by_source
            .entry(subject::source(family, package))
            .or_insert_with(|| Group { names: Vec::new(), packages: Vec::new() });
        for name in names {
            if let Err(place) = group.names.binary_search_by(|known| known.as_str().cmp(&name)) {
                group.names.insert(place, name.into_owned());
            }
        }
        let mut package = package.clone();
        // That says nothing about flaws.
        package.held = false;
        group.packages.push(package);
    }
    // Most sources have one package, and a group is kept as long as a server has it.
    let mut groups: Vec<Group> = by_source.into_values().collect();
    for group in &mut groups {
        group.names.shrink_to_fit();
        group.packages.shrink_to_fit();
    }
    groups
}

/// Whether two statements differ in what they affect at most. A severity or a flaw more concerns
/// every package that is named.
fn same_meaning(a: &Advisory, b: &Advisory) -> bool {
    a.flaws == b.flaws
        && a.aliases == b.aliases
        && a.ratings == b.ratings
        && a.published == b.published
        && a.withdrawn == b.withdrawn
}

/// The names that a set of packages is looked up by in a base, sorted, each once.
pub fn names<'a>(base: &Ecosystem, packages: &'a [Installed]) -> BTreeSet<Cow<'a, str>> {
    let family = base.family();
    packages.iter().flat_map(|package| subject::names(family, package)).collect()
}
