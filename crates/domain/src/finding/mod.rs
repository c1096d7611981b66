//! Which known flaws a set of installed packages has, and how each of them was found.
//!
//! Reads its arguments and nothing else. Servers that carry the same packages share one answer:
//! [`Index::judge`] is asked once for a distinct set, and [`settle`] adds what differs from server to
//! server, which is the kernel that runs and the old code that is still in memory. [`touch`] says
//! what has to be judged again when advisories change.
//!
//! | what is installed | is held against |
//! |---|---|
//! | a package of a feed that names sources | its source's name and its source's version |
//! | a package of a feed that names packages | its own name and version |
//! | an image of a kernel | the kernel's source and the image's own version |
//! | what else is built with a kernel: headers, modules, tools | nothing |
//! | a package of a module | advisories for the same stream of it |
//! | a package from elsewhere | the same, but the answer is `unknown` and says why |

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
mod kernels;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod traps;

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

/// The version of the matching rules. Raise it whenever the same advisories and packages give other
/// findings, so that an upgraded service matches everything again.
pub const RULES: i64 = 1;

/// What is known of a set of packages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its flaws, by CVE, source and version.
    pub findings: Vec<Finding>,
    /// The packages that no advisory can be held against, with the reason. They may or may not be
    /// vulnerable.
    #[serde(default, alias = "unjudged")]
    pub unassessed: Vec<Unassessed>,
}

impl Report {
    /// What judging a whole set comes to, from what judging its [groups](touch::groups) came to.
    pub fn of_groups<'a>(groups: impl IntoIterator<Item = &'a Report>) -> Report {
        let mut whole = Report::default();
        for group in groups {
            whole.findings.extend(group.findings.iter().cloned());
            whole.unassessed.extend(group.unassessed.iter().cloned());
        }
        whole.sort();
        whole
    }

    /// Whether there is nothing to say.
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

/// One flaw in one package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The flaw: a CVE, or the id of an advisory that names none.
    pub cve: Arc<str>,
    /// Other ids of the same vulnerability, sorted.
    #[serde(default, skip_serializing_if = "no_aliases")]
    pub aliases: Arc<[Arc<str>]>,
    /// Where it is.
    pub package: Arc<Package>,
    /// What the distribution says of it.
    pub state: FixState,
    /// The version that fixes it, if this release has one.
    pub fixed_version: Option<Arc<str>>,
    /// How bad it is.
    pub severity: Severity,
    /// Who says so.
    pub severity_source: Option<Arc<str>>,
    /// Its CVSS score, whether or not that decided the severity.
    pub cvss: Option<Arc<CvssScore>>,
    /// When it was first published.
    pub published: Option<Timestamp>,
    /// How it was found.
    pub found: Found,
}

/// A source in one version, and what is installed of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// The source package.
    pub source: String,
    /// The version that was compared.
    pub version: String,
    /// What is installed of it, sorted.
    pub binaries: Vec<Binary>,
    /// If it is a kernel: what it calls itself when it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Boots>,
    /// If it is not from the distribution: where it is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<String>,
    /// Whether its epoch is unknown, and versions were compared without.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub epoch_unknown: bool,
}

/// One installed package of a source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binary {
    /// Its name.
    pub name: String,
    /// Its architecture.
    pub arch: String,
    /// Its own version.
    pub version: String,
}

/// How a finding was found. [`Finding::explanation`] puts it into words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The advisory that decided.
    pub advisory: Arc<str>,
    /// What it is about.
    pub ecosystem: Arc<str>,
    /// The name that it was found by.
    pub name: Arc<str>,
    /// What that is the name of.
    pub names: Names,
    /// The versions that it was held against.
    pub span: Arc<Span>,
    /// Whether this is the word of the host's own package manager on a pending update, and of no feed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub told: bool,
}

/// A package that could not be assessed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unassessed {
    /// The source package; for a kernel, the release that `uname -r` prints.
    #[serde(alias = "source")]
    pub package: String,
    /// Its version; empty for a kernel.
    pub version: String,
    /// Why it was not assessed.
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
    /// The reason without its details.
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
    /// How it was found, in words.
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
                "{advisory} for {ecosystem} names the {kind} `{name}`, but does not say in a way \
                 that can be read whether {installed} is affected"
            );
        }
        if let Some(boots) = &self.package.kernel {
            words.push_str(&format!("; this is the kernel {boots}"));
        }
        if self.package.epoch_unknown {
            words.push_str("; epochs were left out, because that of the source is not known");
        }
        if let Some(origin) = &self.package.elsewhere {
            words.push_str(&format!(
                "; but it is from {origin} and not from the distribution, so this is not certain"
            ));
        }
        words
    }
}
