//! Matching: which CVEs affect a set of installed packages, and why.
//!
//! Pure functions of their arguments. Servers with the same packages share one result:
//! [`AdvisoryIndex::match_packages`] runs once for each distinct package set, and
//! [`apply_runtime_state`] adds what differs from server to server, which is the running kernel and
//! the old code that is still in memory. [`invalidation`] determines what must be matched again
//! when advisories change.
//!
//! | installed package | is matched by |
//! |---|---|
//! | from a feed that uses source package names | name and version of its source package |
//! | from a feed that uses binary package names | its own name and version |
//! | a kernel image | the kernel's source package and the image's own version |
//! | built with a kernel: headers, modules, tools | nothing |
//! | part of a module | advisories for the same module stream |
//! | from a third party | the same, but the state is `unknown`, with the reason |

pub mod exposure_counts;
mod index;
pub mod invalidation;
mod kernel;
mod lookup_key;
mod resolve;
mod running_code;
mod runtime_state;
mod suppress;
mod update;
mod vendor_reported;
mod version;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod regression_tests;

pub use index::AdvisoryIndex;
pub use kernel::KernelRelease;
pub use running_code::RunningCode;
pub use runtime_state::{
    RunningKernel, RuntimeState, ServerFinding, apply_runtime_state, foreign_kernel,
    kernel_awaiting_boot,
};
pub use suppress::Suppression;
pub use update::{closed_findings, closes, security_packages};
pub use vendor_reported::{PACKAGE_MANAGER, for_each_vendor_reported, vendor_reported};

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{FixState, Severity, UnassessedReason};

use crate::advisory::{CvssScore, PackageNameKind, Span, SpanEnd};

/// The version of the matching rules. Increase it whenever the same advisories and packages give
/// different findings, so that an upgraded service matches everything again.
pub const RULES_VERSION: i64 = 2;

/// The result of matching a set of packages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchReport {
    /// Findings, sorted by CVE, source package and version.
    pub findings: Vec<Finding>,
    /// Packages that cannot be matched against any advisory, with the reason. They may or may not
    /// be vulnerable.
    #[serde(default, alias = "unjudged")]
    pub unassessed: Vec<Unassessed>,
}

impl MatchReport {
    /// Combines the reports of the [groups](invalidation::group_by_source) of a set into the report
    /// of the whole set.
    pub fn merge<'a>(groups: impl IntoIterator<Item = &'a MatchReport>) -> MatchReport {
        let mut whole = MatchReport::default();
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
        fn key(finding: &Finding) -> (&str, &str, &str, Option<&KernelRelease>) {
            let FindingPackage { source, version, kernel, .. } = finding.package.as_ref();
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
    pub package: Arc<FindingPackage>,
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
    pub found: Evidence,
}

/// A source package in one version, and the packages installed from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingPackage {
    pub source: String,
    /// The version that was compared.
    pub version: String,
    /// The packages installed from it, sorted.
    pub binaries: Vec<Binary>,
    /// The kernel release, if it is a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelRelease>,
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
pub struct Evidence {
    /// The advisory that determined the result.
    pub advisory: Arc<str>,
    /// The ecosystem of the advisory.
    pub ecosystem: Arc<str>,
    /// The package name that matched.
    pub name: Arc<str>,
    /// The kind of that name.
    pub names: PackageNameKind,
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
    pub reason: UnassessedCause,
}

/// Why a package was not assessed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnassessedCause {
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

impl fmt::Display for UnassessedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnassessedCause::ThirdParty(origin) => {
                write!(f, "comes from {origin}; the distribution's advisories do not cover it")
            }
            UnassessedCause::UnknownVersion => f.write_str("has a version that cannot be compared"),
            UnassessedCause::UnknownModule => {
                f.write_str("belongs to a module stream that the advisories do not name")
            }
            UnassessedCause::ForeignKernel => {
                f.write_str("runs, but belongs to no installed package")
            }
        }
    }
}

impl UnassessedCause {
    /// The reason as a code, without details.
    pub const fn code(&self) -> UnassessedReason {
        match self {
            UnassessedCause::ThirdParty(_) => UnassessedReason::ThirdParty,
            UnassessedCause::UnknownVersion => UnassessedReason::UnknownVersion,
            UnassessedCause::UnknownModule => UnassessedReason::UnknownModule,
            UnassessedCause::ForeignKernel => UnassessedReason::ForeignKernel,
        }
    }
}

fn no_aliases(aliases: &Arc<[Arc<str>]>) -> bool {
    aliases.is_empty()
}

impl Finding {
    /// Describes how it was found.
    pub fn explanation(&self) -> String {
        let Evidence { advisory, ecosystem, name, names, span, told } = &self.found;
        if *told {
            return vendor_reported::explanation(self);
        }
        let kind = match names {
            PackageNameKind::Source => "source package",
            PackageNameKind::Binary => "package",
        };
        let installed = &self.package.version;
        let compared = match (&span.end, &span.from) {
            (SpanEnd::Fixed(fixed), _) => {
                format!("{installed} is older than {fixed}, which fixes it")
            }
            (SpanEnd::FixedElsewhere(fixed), _) => {
                format!("{installed} is older than {fixed}, which fixes it only in another release")
            }
            (SpanEnd::Last(last), _) => {
                format!("{installed} is not newer than {last}, the last affected version")
            }
            (SpanEnd::Open, Some(from)) => format!("everything from {from} on is affected"),
            (SpanEnd::Open, None) => "every version is affected".to_owned(),
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
