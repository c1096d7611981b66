//! Applies the findings of a package set to one server: considers the running kernel and old code
//! in memory.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use vocab::{Exposure, Installed};

use crate::advisory::Family;

use super::kernel;
use super::kernel::KernelRole;
use super::{Finding, KernelRelease, Unassessed, UnassessedCause};

/// What is running on a server, as far as it affects findings.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeState<'a> {
    pub kernel: RunningKernel<'a>,
    /// The names of packages whose old code is still running.
    pub old_code: &'a BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunningKernel<'a> {
    /// The kernel with this release: `uname -r`.
    Release(&'a str),
    /// A kernel that belongs to the machine below, as in a container. This server cannot fix it.
    Foreign,
    /// The server has not reported it.
    Unknown,
}

/// A finding on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFinding {
    pub finding: Finding,
    pub exposure: Exposure,
}

/// Returns what the `findings` of a package set mean for a server with these `packages`, given the
/// findings `before`. Earlier findings that are not returned are closed.
///
/// A CVE that a newer version removed from disk stays as `fixed_on_disk` while the old code is
/// running. One that disappeared for another reason, such as a withdrawn advisory, is closed.
pub fn apply_runtime_state(
    family: Family,
    before: &[ServerFinding],
    findings: &[Finding],
    packages: &[Installed],
    runtime_state: &RuntimeState<'_>,
) -> Vec<ServerFinding> {
    let kernels = InstalledKernels::from_packages(family, packages);
    let runs = kernels.relevant(runtime_state.kernel);
    let vulnerable: BTreeSet<(&str, &KernelRelease)> = findings
        .iter()
        .filter_map(|finding| Some((finding.cve.as_ref(), finding.package.kernel.as_ref()?)))
        .collect();
    let mut settled = Vec::new();
    for finding in findings {
        let exposure = match &finding.package.kernel {
            None => Exposure::Open,
            Some(boots) if runs.is_some_and(|runs| runs.release == *boots) => {
                match kernels.is_fixed_by_newer(finding, &vulnerable) {
                    true => Exposure::FixedOnDisk,
                    false => Exposure::Open,
                }
            }
            // Installed but not running: it is not exploitable, and booting it would show it.
            Some(_) => continue,
        };
        settled.push(ServerFinding { finding: finding.clone(), exposure });
    }
    let known: BTreeSet<(&str, &str)> = findings
        .iter()
        .map(|finding| (finding.cve.as_ref(), finding.package.source.as_str()))
        .collect();
    let lingering = before.iter().filter(|old| {
        let package = &old.finding.package;
        !known.contains(&(old.finding.cve.as_ref(), package.source.as_str()))
            && !is_on_disk(&old.finding, packages)
            && match &package.kernel {
                Some(boots) => {
                    matches!(runtime_state.kernel, RunningKernel::Release(uname) if boots.matches(uname))
                }
                None => runs_old_code(&old.finding, runtime_state.old_code),
            }
    });
    settled.extend(lingering.map(|old| ServerFinding {
        finding: old.finding.clone(),
        exposure: Exposure::FixedOnDisk,
    }));
    settled
}

/// Returns the running kernel if it belongs to none of the `packages`, so that its CVEs are
/// unknown. `apply_runtime_state` then uses the newest installed kernel instead.
pub fn foreign_kernel(
    family: Family,
    packages: &[Installed],
    kernel: RunningKernel<'_>,
) -> Option<Unassessed> {
    let RunningKernel::Release(uname) = kernel else { return None };
    let is_installed = InstalledKernels::from_packages(family, packages)
        .0
        .iter()
        .any(|image| image.release.matches(uname));
    (!is_installed && family.scheme().is_some()).then(|| Unassessed {
        package: uname.to_owned(),
        version: String::new(),
        reason: UnassessedCause::ForeignKernel,
    })
}

/// Returns the kernel that a reboot would start, if it is newer than the running one.
pub fn kernel_awaiting_boot(
    family: Family,
    packages: &[Installed],
    uname: &str,
) -> Option<KernelRelease> {
    let kernels = InstalledKernels::from_packages(family, packages);
    let runs = kernels.0.iter().find(|kernel| kernel.release.matches(uname))?;
    let newest = kernels.newest(Some(&runs.source))?;
    (newest.compare(runs) == Ordering::Greater).then(|| newest.release.clone())
}

fn is_on_disk(finding: &Finding, packages: &[Installed]) -> bool {
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
struct InstalledKernels(Vec<KernelImage>);

struct KernelImage {
    source: String,
    version: String,
    release: KernelRelease,
    scheme: pkgver::Scheme,
}

impl KernelImage {
    fn compare(&self, other: &KernelImage) -> Ordering {
        self.scheme.compare(&self.version, &other.version)
    }
}

impl InstalledKernels {
    fn from_packages(family: Family, packages: &[Installed]) -> InstalledKernels {
        let Some(scheme) = family.scheme() else { return InstalledKernels(Vec::new()) };
        let image = |package: &Installed| match kernel::kernel_role(family, package) {
            KernelRole::Image(boots) => Some(KernelImage {
                source: kernel::advisory_source(family, package).into_owned(),
                version: package.version.clone(),
                release: boots,
                scheme,
            }),
            KernelRole::None | KernelRole::Companion => None,
        };
        InstalledKernels(packages.iter().filter_map(image).collect())
    }

    /// Returns the kernel whose findings apply to this server: the running one. If the running
    /// kernel is not installed or not known, the one that the next boot would most likely start.
    fn relevant(&self, kernel: RunningKernel<'_>) -> Option<&KernelImage> {
        match kernel {
            RunningKernel::Foreign => None,
            RunningKernel::Unknown => self.newest(None),
            RunningKernel::Release(uname) => self
                .0
                .iter()
                .find(|image| image.release.matches(uname))
                .or_else(|| self.newest(None)),
        }
    }

    fn newest(&self, source: Option<&str>) -> Option<&KernelImage> {
        let wanted = |image: &&KernelImage| source.is_none_or(|source| image.source == source);
        self.0.iter().filter(wanted).max_by(|a, b| a.compare(b))
    }

    /// Whether a newer kernel of the same source package is installed that is not among the
    /// `vulnerable` ones for this CVE.
    fn is_fixed_by_newer(
        &self,
        finding: &Finding,
        flawed: &BTreeSet<(&str, &KernelRelease)>,
    ) -> bool {
        let package = &finding.package;
        self.0.iter().any(|image| {
            image.source == package.source
                && image.scheme.compare(&image.version, &package.version).is_gt()
                && !flawed.contains(&(finding.cve.as_ref(), &image.release))
        })
    }
}
