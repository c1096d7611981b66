//! What has to be judged again when advisories change: only sets that carry a name which a changed
//! advisory names.
//!
//! The store keeps, for every distinct set, its [`names`]; it asks a [`Touched`] for the names of a
//! base and finds the sets that carry one of them. Of each only a [`Part`] needs to be judged: an
//! index of the advisories that name one of the part's names is enough for it, so that one new
//! advisory does not cost an index of all of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use vocab::Installed;

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

    /// What of a set has to be judged again: everything of a source of which something is
    /// touched, because its packages' findings are one.
    pub fn part(&self, base: &Ecosystem, packages: &[Installed]) -> Part {
        let family = base.family();
        let Some(touched) = self.0.get(base) else { return Part::default() };
        let looked_up = |package| {
            let name = subject::name(family, package)?;
            Some((subject::source(family, package), name))
        };
        let mut part = Part::default();
        for (source, name) in packages.iter().filter_map(looked_up) {
            if touched.contains(name.as_ref()) {
                part.sources.insert(source.into_owned());
            }
        }
        for (source, name) in packages.iter().filter_map(looked_up) {
            if part.sources.contains(source.as_ref()) {
                part.names.insert(name.into_owned());
            }
        }
        part
    }

    /// Whether a set has to be judged again.
    pub fn touches(&self, base: &Ecosystem, packages: &[Installed]) -> bool {
        let family = base.family();
        self.0.get(base).is_some_and(|touched| {
            packages.iter().any(|package| {
                subject::name(family, package).is_some_and(|name| touched.contains(name.as_ref()))
            })
        })
    }
}

/// What of a set has to be judged again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// The names whose advisories decide it.
    pub names: BTreeSet<String>,
    /// The sources whose findings it replaces.
    pub sources: BTreeSet<String>,
}

impl Part {
    /// Whether there is nothing to judge again.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The packages to judge again, and no others: an index of the part's advisories does not know
    /// enough of the rest.
    pub fn of(&self, base: &Ecosystem, packages: &[Installed]) -> Vec<Installed> {
        let family = base.family();
        let wanted =
            |package: &&Installed| self.sources.contains(subject::source(family, package).as_ref());
        packages.iter().filter(wanted).cloned().collect()
    }
}

/// Whether two statements differ in what they affect at most. A severity or a flaw more concerns
/// every package that is named.
fn same_meaning(a: &Advisory, b: &Advisory) -> bool {
    a.flaws == b.flaws
        && a.ratings == b.ratings
        && a.published == b.published
        && a.withdrawn == b.withdrawn
}

/// The names that a set of packages is looked up by in a base, sorted, each once.
pub fn names<'a>(base: &Ecosystem, packages: &'a [Installed]) -> BTreeSet<Cow<'a, str>> {
    let family = base.family();
    packages.iter().filter_map(|package| subject::name(family, package)).collect()
}
