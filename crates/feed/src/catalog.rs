//! The built-in feeds: which published feed covers which system, and where it is.
//!
//! One table ([`BUILT_IN`]). The service follows the feeds that its servers need
//! ([`needed`]) and offers the others by name. This module does not fetch anything.

use domain::advisory::Ecosystem;
use vocab::Os;

/// A feed that the service knows by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    /// The feed's name in lists and commands.
    pub name: &'static str,
    /// What it is about, in one line for users.
    pub covers: &'static str,
    pub systems: Systems,
    pub url: &'static str,
    /// Further repositories that belong to the feed: a system takes its packages from several.
    /// They are imported together, so that no system is half covered.
    pub more_urls: &'static [&'static str],
    /// The format, as [`crate::FeedKind`] writes it.
    pub kind: &'static str,
    pub refresh_hours: u32,
    /// The terms under which the publisher offers the data.
    pub license: &'static str,
    /// Why it is followed only after an administrator has added it.
    pub opt_in: Option<&'static str>,
}

/// The systems that a feed has data for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Systems {
    /// CVEs of every system.
    Every,
    /// The base ecosystems with these names, and their releases: `Debian` is also `Debian:12`.
    Named(&'static [&'static str]),
}

const OSV_LICENSE_UNSTATED: &str = "no license stated by the publisher; converted by osv.dev";

/// A feed of osv.dev for one ecosystem. `all.zip` has every record of it.
macro_rules! osv {
    ($name:literal, $covers:literal, $path:literal, $license:expr) => {
        BuiltIn {
            name: $name,
            covers: $covers,
            systems: Systems::Named(&[$name]),
            url: concat!("https://osv-vulnerabilities.storage.googleapis.com/", $path, "/all.zip"),
            more_urls: &[],
            kind: "osv",
            refresh_hours: 6,
            license: $license,
            opt_in: None,
        }
    };
}

const RESTRICTIVE_LICENSE: &str = "its license does not allow every use";
const LICENSE_UNSTATED: &str = "no license stated by the publisher";

/// The advisories of a release of Amazon Linux, found through its list of mirrors.
macro_rules! amazon {
    ($release:literal, $path:literal, $more:expr, $opt_in:expr) => {
        BuiltIn {
            name: concat!("Amazon Linux ", $release),
            covers: concat!("Amazon Linux ", $release),
            systems: Systems::Named(&[concat!("Amazon Linux:", $release)]),
            url: concat!("https://cdn.amazonlinux.com/", $path, "/x86_64/mirror.list"),
            more_urls: $more,
            kind: concat!("updateinfo:Amazon Linux:", $release),
            refresh_hours: 6,
            license: LICENSE_UNSTATED,
            opt_in: $opt_in,
        }
    };
}

/// The index of a repository of Oracle Linux.
macro_rules! oracle_repository {
    ($path:literal) => {
        concat!("https://yum.oracle.com/repo/OracleLinux/", $path, "/x86_64/repodata/repomd.xml")
    };
}

/// The advisories of a release of Oracle Linux: of the repositories that a new installation uses.
macro_rules! oracle {
    ($release:literal, $more:expr) => {
        BuiltIn {
            name: concat!("Oracle Linux ", $release),
            covers: concat!("Oracle Linux ", $release),
            systems: Systems::Named(&[concat!("Oracle Linux:", $release)]),
            url: concat!(
                "https://yum.oracle.com/repo/OracleLinux/OL",
                $release,
                "/baseos/latest/x86_64/repodata/repomd.xml"
            ),
            more_urls: $more,
            kind: concat!("updateinfo:Oracle Linux:", $release),
            refresh_hours: 6,
            license: LICENSE_UNSTATED,
            opt_in: None,
        }
    };
}

/// Every built-in feed.
pub const BUILT_IN: &[BuiltIn] = &[
    osv!("Debian", "Debian, Raspbian, LMDE", "Debian", OSV_LICENSE_UNSTATED),
    // Contains the records of Ubuntu Pro too.
    osv!("Ubuntu", "Ubuntu with Ubuntu Pro, Linux Mint", "Ubuntu", "CC BY-SA 4.0"),
    osv!("Alpine", "Alpine Linux", "Alpine", OSV_LICENSE_UNSTATED),
    osv!("AlmaLinux", "AlmaLinux", "AlmaLinux", "MIT"),
    osv!("Rocky Linux", "Rocky Linux", "Rocky%20Linux", "BSD"),
    osv!("Red Hat", "Red Hat Enterprise Linux", "Red%20Hat", "CC BY 4.0"),
    osv!("SUSE", "SUSE Linux Enterprise, SL Micro", "SUSE", "CC BY 4.0"),
    osv!("openSUSE", "openSUSE Leap, Tumbleweed, MicroOS", "openSUSE", "CC BY 4.0"),
    osv!("openEuler", "openEuler", "openEuler", OSV_LICENSE_UNSTATED),
    osv!("Mageia", "Mageia", "Mageia", OSV_LICENSE_UNSTATED),
    osv!("Azure Linux", "Azure Linux, CBL-Mariner", "Azure%20Linux", OSV_LICENSE_UNSTATED),
    // Newer kernels are in separate repositories.
    amazon!(
        "2",
        "2/core/latest",
        &[
            "https://cdn.amazonlinux.com/2/extras/kernel-5.4/latest/x86_64/mirror.list",
            "https://cdn.amazonlinux.com/2/extras/kernel-5.10/latest/x86_64/mirror.list",
            "https://cdn.amazonlinux.com/2/extras/kernel-5.15/latest/x86_64/mirror.list",
        ],
        Some("it lacks the advisories of most extras")
    ),
    amazon!("2023", "al2023/core/mirrors/latest", &[], None),
    oracle!(
        "8",
        &[
            oracle_repository!("OL8/appstream"),
            oracle_repository!("OL8/UEKR6"),
            oracle_repository!("OL8/UEKR7"),
        ]
    ),
    oracle!(
        "9",
        &[
            oracle_repository!("OL9/appstream"),
            oracle_repository!("OL9/UEKR7"),
            oracle_repository!("OL9/UEKR8"),
        ]
    ),
    oracle!("10", &[oracle_repository!("OL10/appstream"), oracle_repository!("OL10/UEKR8")]),
    BuiltIn {
        name: "Arch Linux",
        covers: "Arch Linux",
        systems: Systems::Named(&["Arch"]),
        url: "https://security.archlinux.org/all.json",
        more_urls: &[],
        kind: "arch",
        refresh_hours: 6,
        license: LICENSE_UNSTATED,
        opt_in: None,
    },
    BuiltIn {
        opt_in: Some(RESTRICTIVE_LICENSE),
        ..osv!("Wolfi", "Wolfi", "Wolfi", "CC BY-NC-ND 4.0; commercial scanners need a license")
    },
    BuiltIn {
        opt_in: Some(RESTRICTIVE_LICENSE),
        ..osv!(
            "Chainguard",
            "Chainguard OS",
            "Chainguard",
            "CC BY-NC-ND 4.0; commercial scanners need a license"
        )
    },
    BuiltIn {
        name: "KEV",
        covers: "CVEs that are known to be exploited (CISA)",
        systems: Systems::Every,
        url: "https://www.cisa.gov/sites/default/files/feeds/known_exploited_vulnerabilities.json",
        more_urls: &[],
        kind: "kev",
        refresh_hours: 6,
        license: "CC0 1.0",
        opt_in: None,
    },
    BuiltIn {
        name: "EPSS",
        covers: "how likely CVEs are to be exploited (FIRST)",
        systems: Systems::Every,
        url: "https://epss.empiricalsecurity.com/epss_scores-current.csv.gz",
        more_urls: &[],
        kind: "epss",
        refresh_hours: 24,
        license: "free to use, with attribution to FIRST",
        opt_in: None,
    },
];

/// Systems that many fleets have and no feed covers, by their id in `/etc/os-release`, with the
/// reason.
pub const UNCOVERED: &[(&str, &str)] = &[
    ("kali", "Kali follows Debian testing, whose package versions no advisory names"),
    ("fedora", "Fedora publishes no feed that lists the fixed versions of a release"),
];

/// The built-in feed with this name. Case does not matter.
pub fn find(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|feed| feed.name.eq_ignore_ascii_case(name))
}

/// The feeds that servers with these systems need, in the order of the table.
pub fn needed(systems: &[Os]) -> Vec<&'static BuiltIn> {
    let bases: Vec<Ecosystem> = systems.iter().filter_map(Ecosystem::for_os).collect();
    let is_needed = |feed: &&BuiltIn| match feed.systems {
        Systems::Every => !systems.is_empty(),
        Systems::Named(_) => bases.iter().any(|base| feed.covers_ecosystem(base)),
    };
    BUILT_IN.iter().filter(is_needed).collect()
}

/// Whether a built-in feed covers this system. If not, its servers stay unassessed unless an
/// operator imports another feed.
pub fn covers_system(os: &Os) -> bool {
    let base = Ecosystem::for_os(os);
    base.is_some_and(|base| BUILT_IN.iter().any(|feed| feed.covers_ecosystem(&base)))
}

/// The address of a built-in feed on a mirror: `https://HOST/PATH` is at `MIRROR/HOST/PATH`.
pub fn mirrored(url: &str, mirror: &str) -> String {
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    format!("{}/{path}", mirror.trim_end_matches('/'))
}

impl BuiltIn {
    /// The addresses of all its files or repositories.
    pub fn urls(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.url).chain(self.more_urls.iter().copied())
    }

    /// The format without its release: `updateinfo`.
    pub fn format(&self) -> &'static str {
        self.kind.split(':').next().unwrap_or(self.kind)
    }

    /// Whether it has advisories for this base ecosystem ([`Ecosystem::base`]).
    pub fn covers_ecosystem(&self, base: &Ecosystem) -> bool {
        let matches = |name: &str| {
            base.as_str()
                .strip_prefix(name)
                .is_some_and(|rest| matches!(rest.chars().next(), None | Some(':')))
        };
        match self.systems {
            Systems::Every => false,
            Systems::Named(names) => names.iter().any(|name| matches(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::FeedKind;
    use domain::advisory::Family;

    fn os(text: &str) -> Os {
        let (id, version) = text.split_once(' ').unwrap_or((text, ""));
        Os::new(id, version, "").unwrap()
    }

    fn names(systems: &[&str]) -> Vec<&'static str> {
        let systems: Vec<Os> = systems.iter().map(|text| os(text)).collect();
        needed(&systems).into_iter().map(|feed| feed.name).collect()
    }

    #[test]
    fn every_feed_is_complete_and_has_a_unique_name_and_url() {
        let mut seen = BTreeSet::new();
        for feed in BUILT_IN {
            let name = feed.name;
            assert!(seen.insert(name.to_lowercase()), "{name} is there twice");
            assert!(feed.kind.parse::<FeedKind>().is_ok(), "{name}: unknown kind {}", feed.kind);
            assert!((1..=24 * 7).contains(&feed.refresh_hours), "{name}");
            assert!(!feed.license.is_empty() && !feed.covers.is_empty(), "{name}");
            for url in feed.urls() {
                assert!(seen.insert(url.to_owned()), "{url} is there twice");
                let rest =
                    url.strip_prefix("https://").unwrap_or_else(|| panic!("{url}: not https"));
                let (host, path) = rest.split_once('/').unwrap();
                assert!(host.contains('.') && !path.is_empty(), "{url}");
                let plain = |c: char| c.is_ascii_alphanumeric() || "/._-%".contains(c);
                assert!(rest.chars().all(plain), "{url}: must be percent-encoded");
                let is_updateinfo = feed.format() == "updateinfo";
                assert_eq!(crate::repomd::is_repository_url(url), is_updateinfo, "{url}");
            }
            assert!(feed.more_urls.is_empty() || feed.format() == "updateinfo", "{name}");
            assert_eq!(find(&name.to_uppercase()), Some(feed));
        }
    }

    #[test]
    fn every_system_of_the_matcher_has_a_feed() {
        for family in Family::ALL {
            let name = family.ecosystem_name();
            let of_family =
                |names: &[&str]| names.iter().any(|one| one.split(':').next() == Some(name));
            let is_covered = BUILT_IN.iter().any(|feed| match feed.systems {
                Systems::Every => false,
                Systems::Named(names) => of_family(names),
            });
            assert!(is_covered, "{name}");
            assert_eq!(Ecosystem::new(name).family(), family, "{name}");
        }
        for feed in BUILT_IN {
            let Systems::Named(names) = feed.systems else { continue };
            for name in names {
                assert_ne!(Ecosystem::new(name).family(), Family::Other, "{name} is not matched");
            }
        }
    }

    #[test]
    fn uncovered_systems_have_no_feed() {
        for (id, _) in UNCOVERED {
            assert!(!covers_system(&os(&format!("{id} 42"))), "{id}");
        }
        assert!(covers_system(&os("debian 12")) && !covers_system(&os("debian")));
    }

    #[test]
    fn feeds_are_needed_by_the_systems_of_servers() {
        assert_eq!(names(&[]), [""; 0]);
        assert_eq!(names(&["fedora 42"]), ["KEV", "EPSS"]);
        assert_eq!(names(&["debian 12", "debian 13"]), ["Debian", "KEV", "EPSS"]);
        assert_eq!(names(&["raspbian 12"]), ["Debian", "KEV", "EPSS"]);
        assert_eq!(names(&["linuxmint 22"]), ["Ubuntu", "KEV", "EPSS"]);
        assert_eq!(names(&["amzn 2"]), ["Amazon Linux 2", "KEV", "EPSS"]);
        assert_eq!(names(&["amzn 2023"]), ["Amazon Linux 2023", "KEV", "EPSS"]);
        assert_eq!(names(&["amzn 2018.03"]), ["KEV", "EPSS"]);
        assert_eq!(names(&["ol 9.4", "ol 7.9"]), ["Oracle Linux 9", "KEV", "EPSS"]);
        assert_eq!(
            names(&["arch", "rhel 9.4", "opensuse-leap 15.6"]),
            ["Red Hat", "openSUSE", "Arch Linux", "KEV", "EPSS"]
        );
    }

    #[test]
    fn restrictive_and_incomplete_feeds_are_opt_in() {
        let opt_in = BUILT_IN.iter().filter(|feed| feed.opt_in.is_some());
        let names: Vec<_> = opt_in.map(|feed| feed.name).collect();
        assert_eq!(names, ["Amazon Linux 2", "Wolfi", "Chainguard"]);
        for feed in BUILT_IN.iter().filter(|feed| feed.license.contains("-NC")) {
            assert_eq!(feed.opt_in, Some(RESTRICTIVE_LICENSE), "{}", feed.name);
        }
    }

    #[test]
    fn mirror_keeps_host_and_path() {
        let at = |mirror| mirrored("https://feeds.test/Red%20Hat/all.zip", mirror);
        assert_eq!(at("http://m.test"), "http://m.test/feeds.test/Red%20Hat/all.zip");
        assert_eq!(at("https://m.test/x/"), "https://m.test/x/feeds.test/Red%20Hat/all.zip");
    }
}
