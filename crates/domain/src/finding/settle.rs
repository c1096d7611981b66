//! What a set's findings mean for one server that carries it: which kernel runs, and which old code.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use vocab::{Exposure, Installed};

use crate::advisory::Family;

use super::kernel;
use super::kernel::Role;
use super::{Boots, Finding, Reason, Unassessed};

/// What runs on a server, as far as its packages' flaws are concerned.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    /// The kernel.
    pub kernel: Kernel<'a>,
    /// The names of packages whose old code still runs.
    pub old_code: &'a BTreeSet<String>,
}

/// Which kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel<'a> {
    /// The one that calls itself so: `uname -r`.
    Release(&'a str),
    /// One that belongs to the machine below, as in a container. It is not this server's to mend.
    Foreign,
    /// The server has not said.
    Unknown,
}

/// A finding, and what it means for this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The finding.
    pub finding: Finding,
    /// What it means.
    pub exposure: Exposure,
}

/// What the `findings` of a set mean for a server that carries its `packages`, after what was true
/// `before`. What is neither in the answer nor new is closed.
///
/// A flaw that a newer version took off the disk stays as `fixed_on_disk` while the old code runs.
/// One that is gone for another reason, such as an advisory that was taken back, is simply gone.
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
            // Installed, but not what runs: it does no harm, and booting it would show.
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

/// The running kernel, if it belongs to none of the `packages`, so that nobody knows its CVEs. `settle`
/// then judges the newest installed kernel instead.
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

/// The kernel that a restart would bring, if that is not the one that runs.
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

/// The kernels of a set.
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

    /// The one whose flaws are this server's: the one that runs. Where what runs is not installed,
    /// or not known, the one that the next start would most likely bring.
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

    /// Whether a newer kernel of the same source is installed that does not have this flaw, as those that are `flawed` do.
    fn mended_by_another(&self, finding: &Finding, flawed: &BTreeSet<(&str, &Boots)>) -> bool {
        let package = &finding.package;
        self.0.iter().any(|image| {
            image.source == package.source
                && image.scheme.compare(&image.version, &package.version).is_gt()
                && !flawed.contains(&(finding.cve.as_ref(), &image.boots))
        })
    }
}
