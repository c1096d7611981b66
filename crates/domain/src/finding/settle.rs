//! Applies the findings of a package set to one server: considers the running kernel and old code
//! in memory.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use vocab::{Exposure, Installed};

use crate::advisory::Family;

use super::kernel;
use super::kernel::Role;
use super::{Boots, Finding, Reason, Unassessed};

/// What is running on a server, as far as it affects findings.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    pub kernel: Kernel<'a>,
    /// The names of packages whose old code is still running.
    pub old_code: &'a BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel<'a> {
    /// The kernel with this release: `uname -r`.
    Release(&'a str),
    /// A kernel that belongs to the machine below, as in a container. This server cannot fix it.
    Foreign,
    /// The server has not reported it.
    Unknown,
}

/// A finding on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    pub finding: Finding,
    pub exposure: Exposure,
}

/// Returns what the `findings` of a package set mean for a server with these `packages`, given the
/// findings `before`. Earlier findings that are not returned are closed.
///
/// A CVE that a newer version removed from disk stays as `fixed_on_disk` while the old code is
/// running. One that disappeared for another reason, such as a withdrawn advisory, is closed.
pub fn settle(
    family: Family,
    before: &[Settled],
    findings: &[Finding],
    packages: &[Installed],
    running: &Running<'_>,
) -> Vec<Settled> {
    let kernels = Kernels::of(family, packages);
    let runs = kernels.that_counts(running.kernel);
    let flawed: BTreeSet<(&str, &Boots)> = findings
        .iter()
        .filter_map(|finding| Some((finding.cve.as_ref(), finding.package.kernel.as_ref()?)))
        .collect();
    let mut settled = Vec::new();
    for finding in findings {
        let exposure = match &finding.package.kernel {
            None => Exposure::Open,
            Some(boots) if runs.is_some_and(|runs| runs.boots == *boots) => {
                match kernels.mended_by_another(finding, &flawed) {
                    true => Exposure::FixedOnDisk,
                    false => Exposure::Open,
                }
            }
            // Installed but not running: it is not exploitable, and booting it would show it.
            Some(_) => continue,
        };
        settled.push(Settled { finding: finding.clone(), exposure });
    }
    let known: BTreeSet<(&str, &str)> = findings
        .iter()
        .map(|finding| (finding.cve.as_ref(), finding.package.source.as_str()))
        .collect();
    let lingering = before.iter().filter(|old| {
        let package = &old.finding.package;
        !known.contains(&(old.finding.cve.as_ref(), package.source.as_str()))
            && !on_disk(&old.finding, packages)
            && match &package.kernel {
                Some(boots) => matches!(running.kernel, Kernel::Release(uname) if boots.is(uname)),
                None => runs_old_code(&old.finding, running.old_code),
            }
    });
    settled.extend(
        lingering
            .map(|old| Settled { finding: old.finding.clone(), exposure: Exposure::FixedOnDisk }),
    );
    settled
}

/// Returns the running kernel if it belongs to none of the `packages`, so that its CVEs are
/// unknown. `apply_runtime_state` then uses the newest installed kernel instead.
pub fn foreign_kernel(
    family: Family,
    packages: &[Installed],
    kernel: Kernel<'_>,
) -> Option<Unassessed> {
    let Kernel::Release(uname) = kernel else { return None };
    let is_installed = Kernels::of(family, packages).0.iter().any(|image| image.boots.is(uname));
    (!is_installed && family.scheme().is_some()).then(|| Unassessed {
        package: uname.to_owned(),
        version: String::new(),
        reason: Reason::ForeignKernel,
    })
}

/// Returns the kernel that a reboot would start, if it is newer than the running one.
pub fn awaits_boot(family: Family, packages: &[Installed], uname: &str) -> Option<Boots> {
    let kernels = Kernels::of(family, packages);
    let runs = kernels.0.iter().find(|kernel| kernel.boots.is(uname))?;
    let newest = kernels.newest(Some(&runs.source))?;
    (newest.order(runs) == Ordering::Greater).then(|| newest.boots.clone())
}

fn on_disk(finding: &Finding, packages: &[Installed]) -> bool {
    finding.package.binaries.iter().any(|binary| {
        packages.iter().any(|package| {
            package.name == binary.name
                && package.version == binary.version
                && package.arch == binary.arch
        })
    })
}

fn runs_old_code(finding: &Finding, old_code: &BTreeSet<String>) -> bool {
    old_code.contains(&finding.package.source)
        || finding.package.binaries.iter().any(|binary| old_code.contains(&binary.name))
}

/// The kernels of a package set.
struct Kernels(Vec<Image>);

struct Image {
    source: String,
    version: String,
    boots: Boots,
    scheme: pkgver::Scheme,
}

impl Image {
    fn order(&self, other: &Image) -> Ordering {
        self.scheme.compare(&self.version, &other.version)
    }
}

impl Kernels {
    fn of(family: Family, packages: &[Installed]) -> Kernels {
        let Some(scheme) = family.scheme() else { return Kernels(Vec::new()) };
        let image = |package: &Installed| match kernel::role(family, package) {
            Role::Image(boots) => Some(Image {
                source: kernel::source(family, package).into_owned(),
                version: package.version.clone(),
                boots,
                scheme,
            }),
            Role::None | Role::Beside => None,
        };
        Kernels(packages.iter().filter_map(image).collect())
    }

    /// Returns the kernel whose findings apply to this server: the running one. If the running
    /// kernel is not installed or not known, the one that the next boot would most likely start.
    fn that_counts(&self, kernel: Kernel<'_>) -> Option<&Image> {
        match kernel {
            Kernel::Foreign => None,
            Kernel::Unknown => self.newest(None),
            Kernel::Release(uname) => {
                self.0.iter().find(|image| image.boots.is(uname)).or_else(|| self.newest(None))
            }
        }
    }

    fn newest(&self, source: Option<&str>) -> Option<&Image> {
        let wanted = |image: &&Image| source.is_none_or(|source| image.source == source);
        self.0.iter().filter(wanted).max_by(|a, b| a.order(b))
    }

    /// Whether a newer kernel of the same source package is installed that is not among the
    /// `vulnerable` ones for this CVE.
    fn mended_by_another(&self, finding: &Finding, flawed: &BTreeSet<(&str, &Boots)>) -> bool {
        let package = &finding.package;
        self.0.iter().any(|image| {
            image.source == package.source
                && image.scheme.compare(&image.version, &package.version).is_gt()
                && !flawed.contains(&(finding.cve.as_ref(), &image.boots))
        })
    }
}
