//! Whose packages an advisory is about, and which of that a server's system is.
//!
//! An ecosystem is OSV's word with its release: `Debian:12`, `Ubuntu:Pro:22.04:LTS`. Several of them
//! may concern one system: what subscribers get, or the repositories of one release. They share a
//! [`Ecosystem::base`], and matching is done for one base at a time.

use std::fmt;

use pkgver::Scheme;
use serde::{Deserialize, Serialize};
use vocab::Os;

/// An ecosystem as OSV writes it, release and all. Any text will do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ecosystem(String);

/// Who publishes the packages of an ecosystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Debian.
    Debian,
    /// Ubuntu.
    Ubuntu,
    /// Alpine.
    Alpine,
    /// AlmaLinux.
    AlmaLinux,
    /// Rocky Linux.
    Rocky,
    /// Red Hat.
    RedHat,
    /// SUSE Linux Enterprise.
    Suse,
    /// openSUSE.
    OpenSuse,
    /// openEuler.
    OpenEuler,
    /// Someone else, whose packages are not matched.
    Other,
}

/// What the names in an ecosystem's advisories are names of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Names {
    /// Source packages: one name for everything that is built from it.
    Source,
    /// The packages that are installed.
    Binary,
}

/// Who gets what an ecosystem announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Everyone.
    Open,
    /// Subscribers.
    Subscription,
}

impl Family {
    /// What the names in its advisories are names of. Rocky and AlmaLinux rebuild the same system and
    /// differ in this: it cannot be guessed from the kind of package.
    pub const fn names(self) -> Names {
        match self {
            Self::AlmaLinux | Self::RedHat | Self::Other => Names::Binary,
            Self::Debian
            | Self::Ubuntu
            | Self::Alpine
            | Self::Rocky
            | Self::Suse
            | Self::OpenSuse
            | Self::OpenEuler => Names::Source,
        }
    }

    /// Whose rules order its versions; none where that is not known.
    pub const fn scheme(self) -> Option<Scheme> {
        match self {
            Self::Debian | Self::Ubuntu => Some(Scheme::Deb),
            Self::Alpine => Some(Scheme::Apk),
            Self::AlmaLinux
            | Self::Rocky
            | Self::RedHat
            | Self::Suse
            | Self::OpenSuse
            | Self::OpenEuler => Some(Scheme::Rpm),
            Self::Other => None,
        }
    }

    /// Whether its advisories write epochs. Where they do not, a missing one says nothing, and
    /// versions are compared without.
    pub const fn writes_epochs(self) -> bool {
        !matches!(self, Self::OpenEuler)
    }

    /// Whether its advisories also speak of flaws that nothing fixes yet. Where they do not, no
    /// finding means no fix to install, not no flaw, and whoever shows it must say so.
    pub const fn lists_unfixed(self) -> bool {
        matches!(self, Self::Debian | Self::Ubuntu)
    }

    /// What its word on a severity is signed with.
    pub const fn signature(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Ubuntu => "ubuntu",
            Self::Alpine => "alpine",
            Self::AlmaLinux => "almalinux",
            Self::Rocky => "rocky",
            Self::RedHat => "redhat",
            Self::Suse => "suse",
            Self::OpenSuse => "opensuse",
            Self::OpenEuler => "openeuler",
            Self::Other => "vendor",
        }
    }
}

impl Ecosystem {
    /// The ecosystem of this name.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Who publishes it.
    pub fn family(&self) -> Family {
        match self.0.split(':').next().unwrap_or_default() {
            "Debian" => Family::Debian,
            "Ubuntu" => Family::Ubuntu,
            "Alpine" => Family::Alpine,
            "AlmaLinux" => Family::AlmaLinux,
            "Rocky Linux" => Family::Rocky,
            "Red Hat" => Family::RedHat,
            "SUSE" => Family::Suse,
            "openSUSE" => Family::OpenSuse,
            "openEuler" => Family::OpenEuler,
            _ => Family::Other,
        }
    }

    /// The ecosystem that a system of this release is matched by, and who gets its fixes.
    ///
    /// | ecosystem | base |
    /// |---|---|
    /// | `Ubuntu:Pro:22.04:LTS` | `Ubuntu:22.04:LTS`, for subscribers |
    /// | `Red Hat:enterprise_linux:9::appstream` | `Red Hat:9` |
    /// | `SUSE:Linux Enterprise Module for Basesystem 15 SP5` | `SUSE:15 SP5` |
    /// | `SUSE:Linux Enterprise Server 15 SP3-LTSS` | `SUSE:15 SP3`, for subscribers |
    /// | any other | itself |
    ///
    /// Ubuntu's certified builds (`Ubuntu:Pro:FIPS:…`) have versions of their own and stay apart.
    pub fn base(&self) -> (Ecosystem, Channel) {
        let open = |base: String| (Ecosystem(base), Channel::Open);
        match self.family() {
            Family::Ubuntu => match self.0.strip_prefix("Ubuntu:Pro:") {
                Some(release) if release.starts_with(|c: char| c.is_ascii_digit()) => {
                    (Ecosystem(format!("Ubuntu:{release}")), Channel::Subscription)
                }
                _ => open(self.0.clone()),
            },
            Family::RedHat => match self.0.split(':').nth(2) {
                Some(release) if self.0.starts_with("Red Hat:enterprise_linux:") => {
                    let major = release.split('.').next().unwrap_or(release);
                    open(format!("Red Hat:{major}"))
                }
                _ => open(self.0.clone()),
            },
            Family::Suse => suse_base(&self.0).unwrap_or_else(|| open(self.0.clone())),
            _ => open(self.0.clone()),
        }
    }

    /// The base that a system is matched by. None where nobody publishes advisories that we
    /// understand: such a server must be shown as not checked, never as clean.
    pub fn of(os: &Os) -> Option<Ecosystem> {
        let version = os.version();
        let mut parts = version.split('.');
        let major = parts.next().filter(|part| number(part))?;
        let minor = parts.next().filter(|part| number(part));
        let name = match os.id() {
            "debian" | "raspbian" => format!("Debian:{major}"),
            "ubuntu" => {
                let minor = minor?;
                // A long-term release comes in April of every even year.
                let even = major.ends_with(['0', '2', '4', '6', '8']);
                let lts = if even && minor == "04" { ":LTS" } else { "" };
                format!("Ubuntu:{major}.{minor}{lts}")
            }
            "alpine" => format!("Alpine:v{major}.{}", minor?),
            "almalinux" => format!("AlmaLinux:{major}"),
            "rocky" => format!("Rocky Linux:{major}"),
            "rhel" => format!("Red Hat:{major}"),
            "sles" | "sled" | "sles_sap" => match minor {
                Some(pack) if pack != "0" => format!("SUSE:{major} SP{pack}"),
                _ => format!("SUSE:{major}"),
            },
            "opensuse-leap" => format!("openSUSE:Leap {major}.{}", minor?),
            "openeuler" => format!("openEuler:{version}{}", service_pack(os.name())),
            _ => return None,
        };
        Some(Ecosystem(name))
    }
}

fn number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `15 SP5` out of `SUSE:Linux Enterprise Module for Basesystem 15 SP5`.
fn suse_base(text: &str) -> Option<(Ecosystem, Channel)> {
    let (text, channel) = match text.strip_suffix("-LTSS") {
        Some(text) => (text, Channel::Subscription),
        None => (text, Channel::Open),
    };
    let mut words = text.rsplit(' ');
    let last = words.next()?;
    let release = match last.strip_prefix("SP") {
        Some(pack) if number(pack) => {
            let major = words.next().filter(|word| number(word))?;
            format!("{major} {last}")
        }
        _ if number(last) => last.to_owned(),
        _ => return None,
    };
    Some((Ecosystem(format!("SUSE:{release}")), channel))
}

/// `-LTS-SP1` out of `openEuler 24.03 (LTS-SP1)`: the version alone does not tell them apart.
fn service_pack(name: &str) -> String {
    match name.split_once('(').and_then(|(_, rest)| rest.split_once(')')) {
        Some((pack, _)) => format!("-{pack}"),
        None => String::new(),
    }
}

impl fmt::Display for Ecosystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: &str, version: &str, name: &str) -> Option<String> {
        Ecosystem::of(&Os::new(id, version, name).unwrap()).map(|base| base.0)
    }

    #[test]
    fn a_system_is_matched_by_its_own_release() {
        for (id, version, base) in [
            ("debian", "12", "Debian:12"),
            ("debian", "12.5", "Debian:12"),
            ("raspbian", "12", "Debian:12"),
            ("ubuntu", "22.04", "Ubuntu:22.04:LTS"),
            ("ubuntu", "23.10", "Ubuntu:23.10"),
            ("ubuntu", "25.04", "Ubuntu:25.04"),
            ("alpine", "3.22.1", "Alpine:v3.22"),
            ("almalinux", "9.4", "AlmaLinux:9"),
            ("rocky", "8.10", "Rocky Linux:8"),
            ("rhel", "9.4", "Red Hat:9"),
            ("sles", "15.5", "SUSE:15 SP5"),
            ("opensuse-leap", "15.6", "openSUSE:Leap 15.6"),
        ] {
            assert_eq!(of(id, version, "").as_deref(), Some(base), "{id} {version}");
        }
        assert_eq!(
            of("openeuler", "24.03", "openEuler 24.03 (LTS-SP1)").as_deref(),
            Some("openEuler:24.03-LTS-SP1")
        );
    }

    #[test]
    fn a_system_that_nobody_publishes_for_has_none() {
        for (id, version) in [("debian", ""), ("arch", ""), ("linuxmint", "21"), ("fedora", "42")] {
            assert_eq!(of(id, version, ""), None, "{id} {version}");
        }
    }

    #[test]
    fn what_concerns_one_release_has_one_base() {
        use Channel::{Open, Subscription};
        for (text, base, channel) in [
            ("Debian:12", "Debian:12", Open),
            ("Ubuntu:22.04:LTS", "Ubuntu:22.04:LTS", Open),
            ("Ubuntu:Pro:22.04:LTS", "Ubuntu:22.04:LTS", Subscription),
            ("Ubuntu:Pro:FIPS:20.04:LTS", "Ubuntu:Pro:FIPS:20.04:LTS", Open),
            ("Red Hat:enterprise_linux:9::appstream", "Red Hat:9", Open),
            ("Red Hat:rhel_eus:9.2::baseos", "Red Hat:rhel_eus:9.2::baseos", Open),
            ("SUSE:Linux Enterprise Module for Basesystem 15 SP5", "SUSE:15 SP5", Open),
            ("SUSE:Linux Enterprise Server 15 SP3-LTSS", "SUSE:15 SP3", Subscription),
            ("SUSE:Linux Micro", "SUSE:Linux Micro", Open),
            ("Debian", "Debian", Open),
            ("Something New:7", "Something New:7", Open),
            ("", "", Open),
        ] {
            assert_eq!(Ecosystem::new(text).base(), (Ecosystem::new(base), channel), "{text}");
        }
    }

    #[test]
    fn two_rebuilds_of_one_system_name_different_things() {
        assert_eq!(Ecosystem::new("Rocky Linux:9").family().names(), Names::Source);
        assert_eq!(Ecosystem::new("AlmaLinux:9").family().names(), Names::Binary);
    }
}
