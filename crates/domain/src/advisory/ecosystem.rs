//! Maps ecosystem names in advisories, and the operating systems of servers, to a common base.
//!
//! An ecosystem is OSV's name with the release: `Debian:12`, `Ubuntu:Pro:22.04:LTS`. Several
//! ecosystems can apply to one system: one per repository, or one for subscribers. They share a
//! [`Ecosystem::base`], and matching works on one base at a time. `feed` fills these names in,
//! `finding` matches by them.

use std::fmt;

use pkgver::Scheme;
use serde::{Deserialize, Serialize};
use vocab::Os;

/// An ecosystem name with its release. Unknown names are kept unchanged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ecosystem(String);

/// The publisher of the packages of an ecosystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Debian,
    Ubuntu,
    Alpine,
    AlmaLinux,
    Rocky,
    RedHat,
    Suse,
    OpenSuse,
    OpenEuler,
    Mageia,
    /// Azure Linux, and CBL-Mariner before it.
    AzureLinux,
    Amazon,
    Oracle,
    Arch,
    Wolfi,
    Chainguard,
    /// Any other publisher. Its packages are not matched.
    Other,
}

/// What kind of package the names in an advisory refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageNameKind {
    /// Source packages: one name for all packages built from it.
    Source,
    /// Binary packages: the packages that are installed.
    Binary,
}

/// Who gets the fixes that an ecosystem announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Everyone gets them.
    Open,
    /// Only subscribers get them.
    Subscription,
}

/// Whether a family's feeds list CVEs that have no fix yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnfixedCves {
    /// Yes: no finding means that no known CVE applies.
    Listed,
    /// Only the publisher's CSAF documents do. With other feeds alone, no finding means that
    /// there is no fix to install.
    CsafOnly,
    /// No: no finding means that there is no fix to install.
    NotListed,
}

impl PackageNameKind {
    /// Returns the other kind.
    pub const fn other(self) -> PackageNameKind {
        match self {
            PackageNameKind::Source => PackageNameKind::Binary,
            PackageNameKind::Binary => PackageNameKind::Source,
        }
    }
}

impl Family {
    /// Every publisher whose packages are matched.
    pub const ALL: [Family; 16] = [
        Self::Debian,
        Self::Ubuntu,
        Self::Alpine,
        Self::AlmaLinux,
        Self::Rocky,
        Self::RedHat,
        Self::Suse,
        Self::OpenSuse,
        Self::OpenEuler,
        Self::Mageia,
        Self::AzureLinux,
        Self::Amazon,
        Self::Oracle,
        Self::Arch,
        Self::Wolfi,
        Self::Chainguard,
    ];

    /// The first part of the names of its ecosystems: `Red Hat` of `Red Hat:9`. Empty for
    /// [`Family::Other`], which has many.
    pub const fn ecosystem_name(self) -> &'static str {
        match self {
            Self::Debian => "Debian",
            Self::Ubuntu => "Ubuntu",
            Self::Alpine => "Alpine",
            Self::AlmaLinux => "AlmaLinux",
            Self::Rocky => "Rocky Linux",
            Self::RedHat => "Red Hat",
            Self::Suse => "SUSE",
            Self::OpenSuse => "openSUSE",
            Self::OpenEuler => "openEuler",
            Self::Mageia => "Mageia",
            Self::AzureLinux => "Azure Linux",
            Self::Amazon => "Amazon Linux",
            Self::Oracle => "Oracle Linux",
            Self::Arch => "Arch",
            Self::Wolfi => "Wolfi",
            Self::Chainguard => "Chainguard",
            Self::Other => "",
        }
    }

    /// Whether some of its advisories use the other kind of package name than
    /// [`Family::name_kind`].
    pub const fn mixes_name_kinds(self) -> bool {
        matches!(self, Self::RedHat | Self::Suse | Self::OpenSuse)
    }

    /// Whether it maintains several minor releases at once, each with its own fixes: `el9_2` and
    /// `el9_4`. A fix for one says nothing about the others.
    pub const fn has_minor_streams(self) -> bool {
        matches!(self, Self::RedHat)
    }

    /// Whether its advisories name packages of parallel streams that have the same package name:
    /// kernels of several series, and certified or live-patched builds. A fix for one stream says
    /// nothing about the others.
    pub const fn has_parallel_builds(self) -> bool {
        matches!(self, Self::Amazon | Self::Oracle)
    }

    /// The kind of package names in its advisories, unless an advisory says otherwise
    /// ([`Affected::name_kind`](super::Affected::name_kind)). The package format does not determine
    /// it: Rocky and AlmaLinux rebuild the same system and differ in it.
    pub const fn name_kind(self) -> PackageNameKind {
        match self {
            Self::AlmaLinux
            | Self::RedHat
            | Self::Amazon
            | Self::Oracle
            | Self::Arch
            | Self::Other => PackageNameKind::Binary,
            Self::Debian
            | Self::Ubuntu
            | Self::Alpine
            | Self::Rocky
            | Self::Suse
            | Self::OpenSuse
            | Self::OpenEuler
            | Self::Mageia
            | Self::AzureLinux
            | Self::Wolfi
            | Self::Chainguard => PackageNameKind::Source,
        }
    }

    /// The version scheme of its packages, if known.
    pub const fn scheme(self) -> Option<Scheme> {
        match self {
            Self::Debian | Self::Ubuntu => Some(Scheme::Deb),
            Self::Alpine | Self::Wolfi | Self::Chainguard => Some(Scheme::Apk),
            Self::AlmaLinux
            | Self::Rocky
            | Self::RedHat
            | Self::Suse
            | Self::OpenSuse
            | Self::OpenEuler
            | Self::Mageia
            | Self::AzureLinux
            | Self::Amazon
            | Self::Oracle => Some(Scheme::Rpm),
            Self::Arch => Some(Scheme::Pacman),
            Self::Other => None,
        }
    }

    /// Whether its advisories write epochs. If not, a missing epoch is unknown rather than 0, and
    /// versions are compared without epochs.
    pub const fn writes_epochs(self) -> bool {
        !matches!(self, Self::OpenEuler | Self::Mageia | Self::AzureLinux)
    }

    /// Whether its feeds list CVEs that have no fix yet.
    pub const fn unfixed_cves(self) -> UnfixedCves {
        match self {
            // Debian's and Ubuntu's OSV records and Debian's tracker name every open CVE; Arch's
            // tracker has groups with the status `Vulnerable`.
            Self::Debian | Self::Ubuntu | Self::Arch => UnfixedCves::Listed,
            Self::RedHat | Self::Suse | Self::OpenSuse => UnfixedCves::CsafOnly,
            Self::Alpine
            | Self::AlmaLinux
            | Self::Rocky
            | Self::OpenEuler
            | Self::Mageia
            | Self::AzureLinux
            | Self::Amazon
            | Self::Oracle
            | Self::Wolfi
            | Self::Chainguard
            | Self::Other => UnfixedCves::NotListed,
        }
    }

    /// Whether every feed of this family lists CVEs that have no fix yet. If not, the UI must say
    /// that "no findings" means "nothing to install".
    pub const fn lists_unfixed(self) -> bool {
        matches!(self.unfixed_cves(), UnfixedCves::Listed)
    }

    /// The name of the publisher as the source of a severity.
    pub const fn source_name(self) -> &'static str {
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
            Self::Mageia => "mageia",
            Self::AzureLinux => "azurelinux",
            Self::Amazon => "amazon",
            Self::Oracle => "oracle",
            Self::Arch => "arch",
            Self::Wolfi => "wolfi",
            Self::Chainguard => "chainguard",
            Self::Other => "vendor",
        }
    }
}

impl Ecosystem {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn family(&self) -> Family {
        let name = self.0.split(':').next().unwrap_or_default();
        let known = Family::ALL.into_iter().find(|family| family.ecosystem_name() == name);
        known.unwrap_or(Family::Other)
    }

    /// The ecosystem whose advisories apply to a system of this release, and who gets the fixes.
    ///
    /// | ecosystem | base |
    /// |---|---|
    /// | `Ubuntu:Pro:22.04:LTS` | `Ubuntu:22.04:LTS`, for subscribers |
    /// | `Red Hat:enterprise_linux:9::appstream` | `Red Hat:9` |
    /// | `Red Hat:rhel_eus:9.2::baseos` (also AUS, TUS, E4S, ELS) | `Red Hat:9`, for subscribers |
    /// | `SUSE:Linux Enterprise Module for Basesystem 15 SP5` | `SUSE:15 SP5` |
    /// | `SUSE:Linux Enterprise Server 15 SP3-LTSS` (also ESPOS, for SAP) | `SUSE:15 SP3`, for subscribers |
    /// | `SUSE:Linux Enterprise Server 16.0` | `SUSE:16.0` |
    /// | `SUSE:Linux Enterprise Micro 5.5`, `SUSE:Linux Micro 6.0` | `SUSE:Micro 5.5`, `SUSE:Micro 6.0` |
    /// | any other | itself |
    ///
    /// Ubuntu's certified builds (`Ubuntu:Pro:FIPS:…`) have their own versions and are not merged.
    pub fn base(&self) -> (Ecosystem, Channel) {
        let known = match self.family() {
            Family::Ubuntu => ubuntu_base(&self.0),
            Family::RedHat => red_hat_base(&self.0),
            Family::Suse => suse_base(&self.0),
            _ => None,
        };
        known.unwrap_or_else(|| (self.clone(), Channel::Open))
    }

    /// The ecosystem whose advisories apply to a system. `None` if no supported feed covers the
    /// system: it must be shown as not assessed, never as free of findings.
    ///
    /// Kali is not covered: it follows Debian testing with its own packages, and no Debian release
    /// has those versions.
    pub fn for_os(os: &Os) -> Option<Ecosystem> {
        let version = os.version();
        let mut parts = version.split('.');
        let major = parts.next().filter(|part| is_number(part));
        let minor = parts.next().filter(|part| is_number(part));
        let name = match os.id() {
            "arch" => "Arch".to_owned(),
            // Their versions are dates, which no advisory names.
            "wolfi" => "Wolfi".to_owned(),
            "chainguard" => "Chainguard".to_owned(),
            // The version of a rolling release is a date, which no advisory names.
            "opensuse-tumbleweed" | "opensuse-microos" => "openSUSE:Tumbleweed".to_owned(),
            "debian" => format!("Debian:{}", major?),
            "ubuntu" => ubuntu(major?, minor?),
            "alpine" => format!("Alpine:v{}.{}", major?, minor?),
            "almalinux" => format!("AlmaLinux:{}", major?),
            "rocky" => format!("Rocky Linux:{}", major?),
            "rhel" => format!("Red Hat:{}", major?),
            "sles" | "sled" | "sles_sap" | "sle_hpc" => sles(major?, minor),
            "sle-micro" | "sl-micro" | "suse-microos" => {
                format!("SUSE:Micro {}.{}", major?, minor?)
            }
            "opensuse-leap" => format!("openSUSE:Leap {}.{}", major?, minor?),
            "opensuse-leap-micro" => format!("openSUSE:Leap Micro {}.{}", major?, minor?),
            "openeuler" => format!("openEuler:{}.{}{}", major?, minor?, euler_suffix(os)),
            "mageia" => format!("Mageia:{}", major?),
            // CBL-Mariner 2 was renamed to Azure Linux 3, and OSV uses the new name for both.
            "azurelinux" | "mariner" => format!("Azure Linux:{}", major?),
            "amzn" => format!("Amazon Linux:{}", major?),
            "ol" => format!("Oracle Linux:{}", major?),
            _ => match UpstreamRelease::from_os(os)? {
                UpstreamRelease::Debian(major) => format!("Debian:{major}"),
                UpstreamRelease::Ubuntu(major, minor) => ubuntu(major, minor),
            },
        };
        Some(Ecosystem(name))
    }

    /// The release that a derived system takes its packages from, for display: `Ubuntu 22.04` for
    /// Linux Mint 21. `None` for a system that has its own advisories.
    pub fn derived_from(os: &Os) -> Option<String> {
        UpstreamRelease::from_os(os).map(|base| match base {
            UpstreamRelease::Debian(major) => format!("Debian {major}"),
            UpstreamRelease::Ubuntu(major, minor) => format!("Ubuntu {major}.{minor}"),
        })
    }
}

/// A release whose packages another distribution ships.
enum UpstreamRelease<'a> {
    Debian(&'a str),
    Ubuntu(&'a str, &'a str),
}

impl<'a> UpstreamRelease<'a> {
    fn from_os(os: &'a Os) -> Option<UpstreamRelease<'a>> {
        let major = os.version().split('.').next().filter(|part| is_number(part))?;
        match os.id() {
            "raspbian" => Some(UpstreamRelease::Debian(major)),
            // LMDE has Mint's id, but its own numbers.
            "linuxmint" if !os.name().starts_with("LMDE") => match major {
                "20" => Some(UpstreamRelease::Ubuntu("20", "04")),
                "21" => Some(UpstreamRelease::Ubuntu("22", "04")),
                "22" => Some(UpstreamRelease::Ubuntu("24", "04")),
                _ => None,
            },
            "linuxmint" | "lmde" => match major {
                "5" => Some(UpstreamRelease::Debian("11")),
                "6" => Some(UpstreamRelease::Debian("12")),
                "7" => Some(UpstreamRelease::Debian("13")),
                _ => None,
            },
            _ => None,
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn ubuntu(major: &str, minor: &str) -> String {
    // A long-term release comes in April of every even year.
    let even = major.ends_with(['0', '2', '4', '6', '8']);
    let lts = if even && minor == "04" { ":LTS" } else { "" };
    format!("Ubuntu:{major}.{minor}{lts}")
}

/// Service packs ended with SLES 15: the releases of SLES 16 are 16.0, 16.1, and so on.
fn sles(major: &str, minor: Option<&str>) -> String {
    let has_packs = matches!(major, "10" | "11" | "12" | "15");
    match minor {
        Some(pack) if has_packs && pack != "0" => format!("SUSE:{major} SP{pack}"),
        _ if has_packs => format!("SUSE:{major}"),
        minor => format!("SUSE:{major}.{}", minor.unwrap_or("0")),
    }
}

/// `-LTS-SP1` from `openEuler 24.03 (LTS-SP1)` or `openEuler 24.03 LTS SP1`: the version alone does
/// not distinguish them.
fn euler_suffix(os: &Os) -> String {
    let rest = os.name().split_once(os.version()).map_or("", |(_, rest)| rest);
    let rest = rest.trim_matches(|c: char| c.is_whitespace() || "()-".contains(c));
    let words: Vec<&str> = rest.split([' ', '-']).collect();
    match words.first() {
        Some(&"LTS") => format!("-{}", words.join("-")),
        _ => String::new(),
    }
}

fn ubuntu_base(text: &str) -> Option<(Ecosystem, Channel)> {
    let release = text.strip_prefix("Ubuntu:Pro:")?;
    release
        .starts_with(|c: char| c.is_ascii_digit())
        .then(|| (Ecosystem(format!("Ubuntu:{release}")), Channel::Subscription))
}

/// Ecosystems of Red Hat are the end of a CPE: `enterprise_linux:9::appstream`.
fn red_hat_base(text: &str) -> Option<(Ecosystem, Channel)> {
    let mut fields = text.split(':').skip(1);
    let (product, release) = (fields.next()?, fields.next()?);
    let major = release.split('.').next().filter(|major| is_number(major))?;
    let channel = match product {
        "enterprise_linux" => Channel::Open,
        _ => {
            let stream = ["rhel_", "enterprise_linux_"]
                .iter()
                .find_map(|start| product.strip_prefix(start))?;
            let sold = ["eus", "aus", "tus", "e4s", "els", "eus_long_life", "mission_critical"];
            sold.contains(&stream).then_some(Channel::Subscription)?
        }
    };
    Some((Ecosystem(format!("Red Hat:{major}")), channel))
}

/// Ecosystems of SUSE are product names: `Linux Enterprise Module for Basesystem 15 SP5`.
fn suse_base(text: &str) -> Option<(Ecosystem, Channel)> {
    let product = text.strip_prefix("SUSE:")?;
    if !["Linux Enterprise ", "Linux Micro ", "Package Hub "].iter().any(|p| product.starts_with(p))
    {
        return None;
    }
    let sold = ["LTSS", "ESPOS", "Teradata", "TERADATA", "for SAP"];
    let channel = match sold.iter().any(|word| product.contains(word)) {
        true => Channel::Subscription,
        false => Channel::Open,
    };
    // The release is the last number, followed by the service pack: `15 SP3-LTSS`, `11 SP1 LTSS`.
    let words: Vec<&str> = product
        .split(' ')
        .map(|word| word.split_once('-').map_or(word, |(word, _)| word))
        .collect();
    let is_release = |word: &str| word.split('.').all(is_number);
    let at = words.iter().rposition(|word| is_release(word))?;
    let release = words[at];
    let pack = words.get(at + 1).filter(|word| word.strip_prefix("SP").is_some_and(is_number));
    let base = match pack {
        _ if words.contains(&"Micro") => format!("SUSE:Micro {release}"),
        Some(pack) => format!("SUSE:{release} {pack}"),
        None => format!("SUSE:{release}"),
    };
    Some((Ecosystem(base), channel))
}

impl fmt::Display for Ecosystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(id: &str, version: &str, name: &str) -> Os {
        Os::new(id, version, name).unwrap()
    }

    #[test]
    fn systems_are_matched_by_their_release() {
        for (id, version, name, base) in [
            ("debian", "12", "", "Debian:12"),
            ("debian", "12.5", "", "Debian:12"),
            ("ubuntu", "22.04", "", "Ubuntu:22.04:LTS"),
            ("ubuntu", "23.10", "", "Ubuntu:23.10"),
            ("ubuntu", "25.04", "", "Ubuntu:25.04"),
            ("alpine", "3.22.1", "", "Alpine:v3.22"),
            ("almalinux", "9.4", "", "AlmaLinux:9"),
            ("rocky", "8.10", "", "Rocky Linux:8"),
            ("rhel", "9.4", "", "Red Hat:9"),
            ("rhel", "10.0", "", "Red Hat:10"),
            ("sles", "15", "", "SUSE:15"),
            ("sles", "15.0", "", "SUSE:15"),
            ("sles", "15.5", "", "SUSE:15 SP5"),
            ("sles_sap", "12.5", "", "SUSE:12 SP5"),
            ("sles", "16.0", "", "SUSE:16.0"),
            ("sles", "16.1", "", "SUSE:16.1"),
            ("suse-microos", "5.2", "", "SUSE:Micro 5.2"),
            ("sle-micro", "5.5", "", "SUSE:Micro 5.5"),
            ("sl-micro", "6.0", "", "SUSE:Micro 6.0"),
            ("opensuse-leap", "15.6", "", "openSUSE:Leap 15.6"),
            ("opensuse-leap", "16.0", "", "openSUSE:Leap 16.0"),
            ("opensuse-leap-micro", "5.5", "", "openSUSE:Leap Micro 5.5"),
            ("opensuse-tumbleweed", "20260818", "", "openSUSE:Tumbleweed"),
            ("opensuse-microos", "20260818", "", "openSUSE:Tumbleweed"),
            ("openeuler", "22.03", "openEuler 22.03 LTS", "openEuler:22.03-LTS"),
            ("openeuler", "22.03", "openEuler 22.03 (LTS)", "openEuler:22.03-LTS"),
            ("openeuler", "22.03", "openEuler 22.03 (LTS-SP4)", "openEuler:22.03-LTS-SP4"),
            ("openeuler", "22.03", "openEuler 22.03 LTS SP4", "openEuler:22.03-LTS-SP4"),
            ("openeuler", "22.03", "openEuler 22.03-LTS-SP4", "openEuler:22.03-LTS-SP4"),
            ("openeuler", "24.03", "openEuler 24.03 (LTS-SP1)", "openEuler:24.03-LTS-SP1"),
            ("openeuler", "23.09", "openEuler 23.09", "openEuler:23.09"),
            ("mageia", "9", "", "Mageia:9"),
            ("azurelinux", "3.0", "", "Azure Linux:3"),
            ("mariner", "2.0", "", "Azure Linux:2"),
            ("amzn", "2", "Amazon Linux 2", "Amazon Linux:2"),
            ("amzn", "2023", "Amazon Linux 2023.9.20251117", "Amazon Linux:2023"),
            ("ol", "9.4", "Oracle Linux Server 9.4", "Oracle Linux:9"),
            ("arch", "", "Arch Linux", "Arch"),
            ("wolfi", "20230201", "Wolfi", "Wolfi"),
            ("chainguard", "20230214", "Chainguard", "Chainguard"),
        ] {
            let os = os(id, version, name);
            let found = Ecosystem::for_os(&os);
            assert_eq!(found, Some(Ecosystem::new(base)), "{id} {version} {name}");
            assert_eq!(Ecosystem::derived_from(&os), None, "{id} {version} {name}");
            assert_eq!(Ecosystem::new(base).base(), (Ecosystem::new(base), Channel::Open));
            assert!(Ecosystem::new(base).family().scheme().is_some(), "{base}");
        }
    }

    #[test]
    fn derived_systems_are_matched_by_their_base() {
        for (id, version, name, base, shown) in [
            ("raspbian", "12", "", "Debian:12", "Debian 12"),
            ("linuxmint", "20.3", "Linux Mint 20.3", "Ubuntu:20.04:LTS", "Ubuntu 20.04"),
            ("linuxmint", "21.3", "Linux Mint 21.3", "Ubuntu:22.04:LTS", "Ubuntu 22.04"),
            ("linuxmint", "22", "Linux Mint 22", "Ubuntu:24.04:LTS", "Ubuntu 24.04"),
            ("linuxmint", "6", "LMDE 6 (faye)", "Debian:12", "Debian 12"),
            ("lmde", "5", "", "Debian:11", "Debian 11"),
        ] {
            let os = os(id, version, name);
            assert_eq!(Ecosystem::for_os(&os), Some(Ecosystem::new(base)), "{id} {version}");
            assert_eq!(Ecosystem::derived_from(&os).as_deref(), Some(shown), "{id} {version}");
        }
    }

    #[test]
    fn systems_without_a_feed_have_no_base() {
        for (id, version, name) in [
            ("debian", "", ""),
            ("debian", "forky/sid", ""),
            ("ubuntu", "22", ""),
            ("linuxmint", "99", "Linux Mint 99"),
            ("linuxmint", "6", "Linux Mint 6"),
            ("kali", "2026.3", "Kali GNU/Linux Rolling"),
            ("fedora", "42", ""),
            ("amzn", "", ""),
            ("ol", "", ""),
        ] {
            let Ok(os) = Os::new(id, version, name) else { continue };
            assert_eq!(Ecosystem::for_os(&os), None, "{id} {version}");
            assert_eq!(Ecosystem::derived_from(&os), None, "{id} {version}");
        }
    }

    #[test]
    fn ecosystems_of_one_release_share_a_base() {
        use Channel::{Open, Subscription};
        for (text, base, channel) in [
            ("Debian:12", "Debian:12", Open),
            ("Ubuntu:22.04:LTS", "Ubuntu:22.04:LTS", Open),
            ("Ubuntu:Pro:22.04:LTS", "Ubuntu:22.04:LTS", Subscription),
            ("Ubuntu:Pro:FIPS:20.04:LTS", "Ubuntu:Pro:FIPS:20.04:LTS", Open),
            ("Red Hat:9", "Red Hat:9", Open),
            ("Red Hat:enterprise_linux:9::appstream", "Red Hat:9", Open),
            ("Red Hat:enterprise_linux:10.0", "Red Hat:10", Open),
            ("Red Hat:rhel_eus:9.2::baseos", "Red Hat:9", Subscription),
            ("Red Hat:rhel_aus:8.4", "Red Hat:8", Subscription),
            ("Red Hat:rhel_tus:8.6::appstream", "Red Hat:8", Subscription),
            ("Red Hat:rhel_e4s:9.0::appstream", "Red Hat:9", Subscription),
            ("Red Hat:rhel_els:7", "Red Hat:7", Subscription),
            ("Red Hat:enterprise_linux_eus:10.0", "Red Hat:10", Subscription),
            ("Red Hat:rhel_dotnet:6.0::el7", "Red Hat:rhel_dotnet:6.0::el7", Open),
            ("Red Hat:ocp_tools:4.15::el9", "Red Hat:ocp_tools:4.15::el9", Open),
            ("SUSE:Linux Enterprise Server 15 SP5", "SUSE:15 SP5", Open),
            ("SUSE:Linux Enterprise Module for Basesystem 15 SP5", "SUSE:15 SP5", Open),
            ("SUSE:Linux Enterprise Module for Python 3 15 SP5", "SUSE:15 SP5", Open),
            ("SUSE:Linux Enterprise Server 15", "SUSE:15", Open),
            ("SUSE:Linux Enterprise Server 15-LTSS", "SUSE:15", Subscription),
            ("SUSE:Linux Enterprise Server 15 SP3-LTSS", "SUSE:15 SP3", Subscription),
            ("SUSE:Linux Enterprise Server 11 SP1 LTSS", "SUSE:11 SP1", Subscription),
            (
                "SUSE:Linux Enterprise High Performance Computing 15 SP3-ESPOS",
                "SUSE:15 SP3",
                Subscription,
            ),
            (
                "SUSE:Linux Enterprise Server for SAP Applications 15 SP3",
                "SUSE:15 SP3",
                Subscription,
            ),
            ("SUSE:Linux Enterprise Server 16.0", "SUSE:16.0", Open),
            ("SUSE:Linux Enterprise Server for SAP applications 16.0", "SUSE:16.0", Subscription),
            ("SUSE:Linux Enterprise Micro 5.5", "SUSE:Micro 5.5", Open),
            ("SUSE:Linux Enterprise Micro for Rancher 5.3", "SUSE:Micro 5.3", Open),
            ("SUSE:Linux Enterprise Micro 6.0", "SUSE:Micro 6.0", Open),
            ("SUSE:Linux Micro 6.0", "SUSE:Micro 6.0", Open),
            ("SUSE:Linux Micro", "SUSE:Linux Micro", Open),
            ("SUSE:Package Hub 12", "SUSE:12", Open),
            ("SUSE:Manager Server 4.2", "SUSE:Manager Server 4.2", Open),
            ("SUSE:OpenStack Cloud 9", "SUSE:OpenStack Cloud 9", Open),
            ("openSUSE:Tumbleweed", "openSUSE:Tumbleweed", Open),
            ("Debian", "Debian", Open),
            ("Something New:7", "Something New:7", Open),
            ("", "", Open),
        ] {
            assert_eq!(Ecosystem::new(text).base(), (Ecosystem::new(base), channel), "{text}");
        }
    }

    #[test]
    fn rebuilds_of_one_system_use_different_name_kinds() {
        assert_eq!(Ecosystem::new("Rocky Linux:9").family().name_kind(), PackageNameKind::Source);
        assert_eq!(Ecosystem::new("AlmaLinux:9").family().name_kind(), PackageNameKind::Binary);
    }

    #[test]
    fn only_feeds_with_unfixed_cves_claim_to_list_them() {
        for (family, unfixed) in [
            (Family::Debian, UnfixedCves::Listed),
            (Family::Ubuntu, UnfixedCves::Listed),
            (Family::Arch, UnfixedCves::Listed),
            (Family::RedHat, UnfixedCves::CsafOnly),
            (Family::Suse, UnfixedCves::CsafOnly),
            (Family::Alpine, UnfixedCves::NotListed),
            (Family::Rocky, UnfixedCves::NotListed),
        ] {
            assert_eq!(family.unfixed_cves(), unfixed, "{family:?}");
            assert_eq!(family.lists_unfixed(), unfixed == UnfixedCves::Listed, "{family:?}");
        }
    }
}
