//! Lookup: under which names and in which version the packages of a set are matched.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use vocab::Installed;

use crate::advisory::{Family, PackageNameKind};

use super::kernel;
use super::kernel::{KernelRelease, KernelRole};
use super::version::{epoch, is_modular, strip_epoch};
use super::{Binary, FindingPackage};

/// A hash map with the same iteration order in every process, although nothing depends on it.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// Packages that are matched together: one source package in one version, or one kernel.
#[derive(Debug)]
pub(super) struct LookupUnit<'a> {
    source: Cow<'a, str>,
    /// The names that it is looked up by.
    pub(super) names: Vec<Cow<'a, str>>,
    /// The version that is compared.
    pub(super) version: &'a str,
    epoch_unknown: bool,
    kernel: Option<KernelRelease>,
    members: Vec<&'a Installed>,
}

/// Returns the name that a package is looked up by, and its kernel release if it is a kernel.
/// `None` if it is not looked up at all.
fn lookup_name(
    family: Family,
    name_kind: PackageNameKind,
    package: &Installed,
) -> Option<(Cow<'_, str>, Option<KernelRelease>)> {
    let boots = match kernel::kernel_role(family, package) {
        KernelRole::Companion => return None,
        KernelRole::Image(boots) => Some(boots),
        KernelRole::None => None,
    };
    let name = match name_kind {
        PackageNameKind::Source => kernel::advisory_source(family, package),
        PackageNameKind::Binary => Cow::Borrowed(package.name.as_str()),
    };
    Some((name, boots))
}

/// Returns the names that a package is looked up by; empty if it is not looked up at all. Red Hat
/// and SUSE use source package names in some advisories and binary package names in others.
pub(super) fn lookup_names(
    family: Family,
    package: &Installed,
) -> impl Iterator<Item = Cow<'_, str>> {
    let usual = family.name_kind();
    let other = family.mixes_name_kinds().then(|| usual.other());
    [Some(usual), other]
        .into_iter()
        .flatten()
        .filter_map(move |names| Some(lookup_name(family, names, package)?.0))
}

/// Whether a package is a bootable kernel.
pub(super) fn is_kernel(family: Family, package: &Installed) -> bool {
    matches!(kernel::kernel_role(family, package), KernelRole::Image(_))
}

/// The source package under which a finding in this package is shown.
pub(super) fn source(family: Family, package: &Installed) -> Cow<'_, str> {
    kernel::advisory_source(family, package)
}

/// Groups a package set for lookup by this kind of names, in the order of its packages.
pub(super) fn lookup_units(
    family: Family,
    name_kind: PackageNameKind,
    packages: &[Installed],
) -> Vec<LookupUnit<'_>> {
    let by_rpm_source =
        name_kind == PackageNameKind::Source && family.scheme() == Some(pkgver::Scheme::Rpm);
    let mut indexes: Map<(Cow<'_, str>, &str, Option<KernelRelease>), usize> = Map::default();
    let mut subjects: Vec<LookupUnit<'_>> = Vec::new();
    for package in packages {
        let Some((name, boots)) = lookup_name(family, name_kind, package) else { continue };
        if boots.is_some() && has_core_package(package, packages) {
            continue;
        }
        let source = kernel::advisory_source(family, package);
        let version = match (name_kind, &boots) {
            // The epoch is determined below, from all binaries together.
            (PackageNameKind::Source, None) if by_rpm_source => {
                strip_epoch(package.source_version())
            }
            (PackageNameKind::Source, None) => package.source_version(),
            _ => &package.version,
        };
        let place = *indexes.entry((source.clone(), version, boots.clone())).or_insert_with(|| {
            subjects.push(LookupUnit {
                source,
                names: Vec::new(),
                version,
                epoch_unknown: false,
                kernel: boots,
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
    if by_rpm_source {
        let sources = subjects.iter_mut().filter(|subject| subject.kernel.is_none());
        sources.for_each(find_epoch);
    }
    subjects
}

/// Whether a package called `kernel` only represents the image in a separate package.
fn has_core_package(package: &Installed, packages: &[Installed]) -> bool {
    let Some(flavour) = package.name.strip_prefix("kernel") else { return false };
    if package.name.ends_with("-core") {
        return false;
    }
    let core = format!("kernel{flavour}-core");
    packages.iter().any(|other| other.name == core && other.version == package.version)
}

/// Determines the epoch of an rpm source package, which rpm does not record.
///
/// A binary package with the source's version and release usually has its epoch too, but a
/// subpackage may set its own: `mod_ssl` has epoch 1, `httpd` and their source have 0. So the
/// binary package with the name of the source decides. Without one, the lowest epoch is used,
/// because an epoch that is too high would hide every fix. If no binary package has the source's
/// version, epochs are ignored in comparisons.
fn find_epoch(lookup_unit: &mut LookupUnit<'_>) {
    let same_version = |package: &&&Installed| strip_epoch(&package.version) == lookup_unit.version;
    let named = |package: &&&Installed| package.name == lookup_unit.source;
    let candidates = || lookup_unit.members.iter().filter(same_version);
    let lowest = || candidates().min_by_key(|package| epoch(&package.version));
    match candidates().find(named).or_else(lowest) {
        Some(package) => lookup_unit.version = &package.version,
        None => lookup_unit.epoch_unknown = true,
    }
}

impl<'a> LookupUnit<'a> {
    pub(super) fn epoch_unknown(&self) -> bool {
        self.epoch_unknown
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn members(&self) -> &[&'a Installed] {
        &self.members
    }

    /// Module and stream, if known.
    pub(super) fn module(&self) -> Option<&str> {
        self.members.iter().find_map(|package| package.module.as_deref())
    }

    pub(super) fn is_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    pub(super) fn is_modular(&self) -> bool {
        self.module().is_some() || is_modular(self.version)
    }

    /// Its origin, if that is not the distribution.
    pub(super) fn third_party(&self, family: Family) -> Option<String> {
        self.members.iter().find_map(|package| third_party(family, package)).map(str::to_owned)
    }

    /// The package as shown in a finding.
    pub(super) fn package(&self, elsewhere: Option<String>) -> FindingPackage {
        let binary = |package: &&Installed| Binary {
            name: package.name.clone(),
            arch: package.arch.clone(),
            version: package.version.clone(),
        };
        let mut binaries: Vec<Binary> = self.members.iter().map(binary).collect();
        binaries.sort();
        FindingPackage {
            source: self.source.as_ref().to_owned(),
            version: self.version.to_owned(),
            binaries,
            kernel: self.kernel.clone(),
            elsewhere,
            epoch_unknown: self.epoch_unknown,
        }
    }
}

/// Returns the origin of a third-party package: from the package manager, otherwise from the marks
/// that rebuilders leave in versions. A package of unknown origin without such a mark is treated as
/// the distribution's, so that its CVEs are reported.
fn third_party(family: Family, package: &Installed) -> Option<&str> {
    if let Some(origin) = package.origin.as_deref()
        && !is_distribution(family, origin)
    {
        return Some(origin);
    }
    let marks: &[(&str, &str)] = match family {
        Family::Debian | Family::Ubuntu => &[
            ("~bpo", "backports"),
            ("+deb.sury.org", "deb.sury.org"),
            ("ppa", "a PPA"),
            ("+rpt", "Raspberry Pi"),
            ("fips", "a certified build"),
        ],
        Family::Alpine | Family::Arch | Family::Wolfi | Family::Chainguard | Family::Other => &[],
        _ => &[(".remi", "Remi's repository")],
    };
    let version = package.source_version();
    marks.iter().find(|(mark, _)| version.contains(mark)).map(|(_, origin)| *origin)
}

/// Whether an origin is the distribution itself. The whole name is compared:
/// `LP-PPA-ubuntu-toolchain-r-test` is not Ubuntu, and `obs://build.opensuse.org/server:php` is not
/// SUSE.
fn is_distribution(family: Family, origin: &str) -> bool {
    let own: &[&str] = match family {
        Family::Debian => &["Debian", "Raspbian"],
        Family::Ubuntu => &["Ubuntu", "UbuntuESM", "UbuntuESMApps"],
        // Agents of earlier releases sent the maintainer, `Name <address>`, which says nothing
        // about the origin.
        Family::Alpine if origin.contains('<') => return true,
        Family::Alpine => &["Alpine Linux"],
        Family::AlmaLinux => &["AlmaLinux", "AlmaLinux OS Foundation"],
        Family::Rocky => &["Rocky Enterprise Software Foundation", "Rocky Linux", "Rocky"],
        Family::RedHat => &["Red Hat, Inc."],
        // Leap is built from SUSE's own packages and the community's.
        Family::Suse | Family::OpenSuse => &[
            "SUSE LLC",
            "SUSE LINUX GmbH, Nuernberg, Germany",
            "SUSE LINUX Products GmbH, Nuernberg, Germany",
            "openSUSE",
        ],
        Family::OpenEuler => &["http://openeuler.org", "https://openeuler.org", "openEuler"],
        Family::Mageia => &["Mageia.Org"],
        Family::AzureLinux => &["Microsoft Corporation"],
        Family::Amazon => &["Amazon Linux", "Amazon.com", "Amazon AWS"],
        Family::Oracle => &["Oracle America"],
        // pacman records no repository; earlier agents sent the packager.
        Family::Arch => return true,
        // Their agents report the name of a signing key, which says nothing about the repository.
        Family::Wolfi | Family::Chainguard => return true,
        Family::Other => &[],
    };
    // `SUSE LLC <https://www.suse.com/>`: the address after the name has changed over the years.
    let name = origin.split(" <").next().unwrap_or(origin).trim();
    own.iter().any(|known| known.eq_ignore_ascii_case(name))
}
