//! Matching: which CVEs affect a set of installed packages, and why.
//!
//! Pure functions of their arguments. Servers with the same packages share one result:
//! [`Index::judge`] runs once for each distinct package set, and [`settle`] adds what differs from
//! server to server, which is the running kernel and the old code that is still in memory.
//! [`touch`] determines what must be matched again when advisories change.
//!
//! | installed package | is matched by |
//! |---|---|
//! | from a feed that uses source package names | name and version of its source package |
//! | from a feed that uses binary package names | its own name and version |
//! | a kernel image | the kernel's source package and the image's own version |
//! | built with a kernel: headers, modules, tools | nothing |
//! | part of a module | advisories for the same module stream |
//! | from a third party | the same, but the state is `unknown`, with the reason |

mod decide;
mod index;
mod kernel;
mod runs;
mod settle;
mod subject;
mod suppress;
pub mod tally;
mod told;
pub mod touch;
mod update;
mod version;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod regression_tests;

pub use index::Index;
pub use kernel::Boots;
pub use runs::Runs;
pub use settle::{Kernel, Running, Settled, awaits_boot, foreign_kernel, settle};
pub use suppress::Suppression;
pub use told::{PACKAGE_MANAGER, each_told, told};
pub use update::{closed, closes, secured};

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{FixState, Severity, UnassessedReason};

use crate::advisory::{CvssScore, End, Names, Span};

/// The version of the matching rules. Increase it whenever the same advisories and packages give
/// different findings, so that an upgraded service matches everything again.
pub const RULES: i64 = 1;

/// The result of matching a set of packages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Findings, sorted by CVE, source package and version.
    pub findings: Vec<Finding>,
    /// Packages that cannot be matched against any advisory, with the reason. They may or may not
    /// be vulnerable.
    #[serde(default, alias = "unjudged")]
    pub unassessed: Vec<Unassessed>,
}

impl Report {
    /// Combines the reports of the [groups](touch::groups) of a set into the report of the whole
    /// set.
    pub fn of_groups<'a>(groups: impl IntoIterator<Item = &'a Report>) -> Report {
        let mut whole = Report::default();
        for group in groups {
            whole.findings.extend(group.findings.iter().cloned());
            whole.unassessed.extend(group.unassessed.iter().cloned());
        }
        whole.sort();
        whole
    }

    pub fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.unassessed.is_empty()
    }

    fn sort(&mut self) {
        fn key(finding: &Finding) -> (&str, &str, &str, Option<&Boots>) {
            let Package { source, version, kernel, .. } = finding.package.as_ref();
            (&finding.cve, source, version, kernel.as_ref())
        }
        self.findings.sort_by(|a, b| key(a).cmp(&key(b)));
        self.unassessed.sort();
    }
}

/// A CVE in an installed package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The CVE, or the id of an advisory without one.
    pub cve: Arc<str>,
    /// Other ids of the same vulnerability, sorted.
    #[serde(default, skip_serializing_if = "no_aliases")]
    pub aliases: Arc<[Arc<str>]>,
    pub package: Arc<Package>,
    /// The distribution's fix status.
    pub state: FixState,
    /// The version that fixes it, if this release has one.
    pub fixed_version: Option<Arc<str>>,
    pub severity: Severity,
    /// The source of the severity.
    pub severity_source: Option<Arc<str>>,
    /// Its CVSS score, even if it did not determine the severity.
    pub cvss: Option<Arc<CvssScore>>,
    pub published: Option<Timestamp>,
    /// How it was found.
    pub found: Found,
}

/// A source package in one version, and the packages installed from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    pub source: String,
    /// The version that was compared.
    pub version: String,
    /// The packages installed from it, sorted.
    pub binaries: Vec<Binary>,
    /// The kernel release, if it is a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Boots>,
    /// The origin, if it is not from the distribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<String>,
    /// Whether its epoch is unknown, and versions were compared without epochs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub epoch_unknown: bool,
}

/// An installed package of a source package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binary {
    pub name: String,
    pub arch: String,
    pub version: String,
}

/// How a finding was found. [`Finding::explanation`] describes it in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The advisory that decided.
    pub advisory: Arc<str>,
    /// The ecosystem of the advisory.
    pub ecosystem: Arc<str>,
    /// The package name that matched.
    pub name: Arc<str>,
    /// The kind of that name.
    pub names: Names,
    /// The version span that it was compared with.
    pub span: Arc<Span>,
    /// Whether the host's own package manager reported it for a pending update, and no feed did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub told: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unassessed {
    /// The source package; for a kernel, the release that `uname -r` prints.
    #[serde(alias = "source")]
    pub package: String,
    pub version: String,
    #[serde(alias = "why")]
    pub reason: Reason,
}

/// Why a package was not assessed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It comes from this origin, which the distribution's advisories do not cover.
    #[serde(alias = "elsewhere")]
    ThirdParty(String),
    /// Its version does not follow the distribution's rules.
    #[serde(alias = "unreadable_version")]
    UnknownVersion,
    /// It belongs to a module, and the advisories do not name a stream.
    #[serde(alias = "module_unknown")]
    UnknownModule,
    /// The running kernel is not among the installed packages.
    ForeignKernel,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::ThirdParty(origin) => {
                write!(f, "comes from {origin}; the distribution's advisories do not cover it")
            }
            Reason::UnknownVersion => f.write_str("has a version that cannot be compared"),
            Reason::UnknownModule => {
                f.write_str("belongs to a module stream that the advisories do not name")
            }
            Reason::ForeignKernel => f.write_str("runs, but belongs to no installed package"),
        }
    }
}

impl Reason {
    /// The reason as a code, without details.
    pub const fn code(&self) -> UnassessedReason {
        match self {
            Reason::ThirdParty(_) => UnassessedReason::ThirdParty,
            Reason::UnknownVersion => UnassessedReason::UnknownVersion,
            Reason::UnknownModule => UnassessedReason::UnknownModule,
            Reason::ForeignKernel => UnassessedReason::ForeignKernel,
        }
    }
}

fn no_aliases(aliases: &Arc<[Arc<str>]>) -> bool {
    aliases.is_empty()
}

impl Finding {
    /// Describes how it was found.
    pub fn explanation(&self) -> String {
        let Found { advisory, ecosystem, name, names, span, told } = &self.found;
        if *told {
            return told::explanation(self);
        }
        let kind = match names {
            Names::Source => "source package",
            Names::Binary => "package",
        };
        let installed = &self.package.version;
        let compared = match (&span.end, &span.from) {
            (End::Fixed(fixed), _) => format!("{installed} is older than {fixed}, which fixes it"),
            (End::FixedElsewhere(fixed), _) => {
                format!("{installed} is older than {fixed}, which fixes it in another release only")
            }
            (End::Last(last), _) => {
                format!("{installed} is not newer than {last}, the last affected version")
            }
            (End::Open, Some(from)) => format!("everything from {from} on is affected"),
            (End::Open, None) => "every version is affected".to_owned(),
        };
        let mut words = format!("{advisory} for {ecosystem} names the {kind} `{name}`: {compared}");
        if self.state == FixState::Unknown && self.package.elsewhere.is_none() {
            words = format!(
                "{advisory} for {ecosystem} names the {kind} `{name}`, but its \
                 version range cannot be read, so it is unknown whether {installed} is affected"
            );
        }
        if let Some(boots) = &self.package.kernel {
            words.push_str(&format!("; this is the kernel {boots}"));
        }
        if self.package.epoch_unknown {
            words.push_str(
                "; epochs were ignored, because the epoch of the source package is unknown",
            );
        }
        if let Some(origin) = &self.package.elsewhere {
            words.push_str(&format!(
                "; but the package comes from {origin} and not from the distribution, so this is uncertain"
            ));
        }
        words
    }
}
