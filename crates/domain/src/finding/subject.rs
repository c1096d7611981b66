//! What of a set of packages is looked up, under which name and in which version.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use vocab::Installed;

use crate::advisory::{Family, Names};

use super::kernel::{self, Boots, Role};
use super::version::{is_modular, without_epoch};
use super::{Binary, Package};

/// Maps whose order of iteration is the same in every process, though nothing depends on it.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// What is judged together: one source in one version, or one kernel.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    source: Cow<'a, str>,
    /// The names that it is looked up by.
    pub(super) names: Vec<Cow<'a, str>>,
    /// The version that is compared.
    pub(super) version: &'a str,
    epoch_unknown: bool,
    boots: Option<Boots>,
    members: Vec<&'a Installed>,
}

/// The name that a package is looked up by, and what it boots if it is a kernel. None where it is
/// not looked up at all.
fn lookup(family: Family, package: &Installed) -> Option<(Cow<'_, str>, Option<Boots>)> {
    let boots = match kernel::role(family, package) {
        Role::Beside => return None,
        Role::Image(boots) => Some(boots),
        Role::None => None,
    };
    let name = match family.names() {
        Names::Source => kernel::source(family, package),
        Names::Binary => Cow::Borrowed(package.name.as_str()),
    };
    Some((name, boots))
}

/// The name that a package is looked up by; none where it is not looked up at all.
pub(super) fn name(family: Family, package: &Installed) -> Option<Cow<'_, str>> {
    lookup(family, package).map(|(name, _)| name)
}

/// Whether a package is a kernel that can be booted.
pub(super) fn is_kernel(family: Family, package: &Installed) -> bool {
    matches!(kernel::role(family, package), Role::Image(_))
}

/// The source that a finding in this package is shown under.
pub(super) fn source(family: Family, package: &Installed) -> Cow<'_, str> {
    kernel::source(family, package)
}

/// The subjects of a set, in the order of its packages; only those with a name that is `known`.
pub(super) fn subjects<'a>(
    family: Family,
    packages: &'a [Installed],
    known: impl Fn(&str) -> bool,
) -> Vec<Subject<'a>> {
    let mut places: Map<(Cow<'a, str>, &'a str, Option<Boots>), usize> = Map::default();
    let mut subjects: Vec<Subject<'a>> = Vec::new();
    for package in packages {
        let Some((name, boots)) = lookup(family, package) else { continue };
        if !known(&name) || (boots.is_some() && has_core(package, packages)) {
            continue;
        }
        let source = kernel::source(family, package);
        let version = match (family.names(), &boots) {
            (Names::Source, None) => package.source_version(),
            _ => &package.version,
        };
        let place = *places.entry((source.clone(), version, boots.clone())).or_insert_with(|| {
            subjects.push(Subject {
                source,
                names: Vec::new(),
                version,
                epoch_unknown: false,
                boots,
                members: Vec::new(),
            });
            subjects.len() - 1
        });
        let subject = &mut subjects[place];
        if !subject.names.contains(&name) {
            subject.names.push(name);
        }
        subject.members.push(package);
    }
    if family.names() == Names::Source && family.scheme() == Some(pkgver::Scheme::Rpm) {
        subjects.iter_mut().for_each(find_epoch);
    }
    subjects
}

/// Whether a package called `kernel` only stands for the image beside it.
fn has_core(package: &Installed, packages: &[Installed]) -> bool {
    let Some(flavour) = package.name.strip_prefix("kernel") else { return false };
    if package.name.ends_with("-core") {
        return false;
    }
    let core = format!("kernel{flavour}-core");
    packages.iter().any(|other| other.name == core && other.version == package.version)
}

/// An rpm says which source it was built from, but not that source's epoch. Whatever was built
/// from it under the source's own version has it.
fn find_epoch(subject: &mut Subject<'_>) {
    if subject.version != without_epoch(subject.version) {
        return;
    }
    let same =
        subject.members.iter().find(|package| without_epoch(&package.version) == subject.version);
    match same {
        Some(package) => subject.version = &package.version,
        None => subject.epoch_unknown = true,
    }
}

impl Subject<'_> {
    pub(super) fn epoch_unknown(&self) -> bool {
        self.epoch_unknown
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The module and stream that it belongs to, if it says.
    pub(super) fn module(&self) -> Option<&str> {
        self.members.iter().find_map(|package| package.module.as_deref())
    }

    pub(super) fn is_modular(&self) -> bool {
        self.module().is_some() || is_modular(self.version)
    }

    /// Where it is from, if that is not the distribution.
    pub(super) fn elsewhere(&self, family: Family) -> Option<String> {
        self.members.iter().find_map(|package| elsewhere(family, package)).map(Cow::into_owned)
    }

    /// The subject as a finding shows it.
    pub(super) fn package(&self, elsewhere: Option<String>) -> Package {
        let binary = |package: &&Installed| Binary {
            name: package.name.clone(),
            arch: package.arch.clone(),
            version: package.version.clone(),
        };
        let mut binaries: Vec<Binary> = self.members.iter().map(binary).collect();
        binaries.sort();
        Package {
            source: self.source.as_ref().to_owned(),
            version: self.version.to_owned(),
            binaries,
            kernel: self.boots.clone(),
            elsewhere,
            epoch_unknown: self.epoch_unknown,
        }
    }
}

/// Where a package is from, if not from the distribution: by what the manager knows of its origin,
/// else by the marks that rebuilders leave in versions. A package of unknown origin without such
/// a mark is taken for the distribution's.
fn elsewhere(family: Family, package: &Installed) -> Option<Cow<'_, str>> {
    let own: &[&str] = match family {
        Family::Debian => &["debian", "raspbian"],
        Family::Ubuntu => &["ubuntu", "canonical"],
        Family::Alpine => &["alpine"],
        Family::AlmaLinux => &["almalinux", "alma linux"],
        Family::Rocky => &["rocky"],
        Family::RedHat => &["red hat", "redhat"],
        Family::Suse | Family::OpenSuse => &["suse"],
        Family::OpenEuler => &["openeuler"],
        Family::Mageia => &["mageia"],
        Family::AzureLinux => &["microsoft", "azure linux", "mariner"],
        Family::Arch => &["archlinux.org"],
        Family::Other => &[],
    };
    if let Some(origin) = &package.origin {
        let lower = origin.to_ascii_lowercase();
        if lower.contains("backports") || !own.iter().any(|word| lower.contains(word)) {
            return Some(Cow::Borrowed(origin));
        }
    }
    let marks: &[(&str, &str)] = match family {
        Family::Debian | Family::Ubuntu => &[
            ("~bpo", "backports"),
            ("+deb.sury.org", "deb.sury.org"),
            ("ppa", "a PPA"),
            ("+rpt", "Raspberry Pi"),
            ("fips", "a certified build"),
        ],
        Family::Alpine | Family::Arch | Family::Other => &[],
        _ => &[(".remi", "Remi's repository")],
    };
    let version = package.source_version();
    let mark = marks.iter().find(|(mark, _)| version.contains(mark))?;
    Some(Cow::Borrowed(mark.1))
}
