//! Compares our matcher with debsecan, Debian's own matcher: for the same advisories and packages
//! both must find the same CVEs in the same packages.
//!
//! One intended difference is excluded from the comparison: the kernel. debsecan treats every
//! package built from `linux` as the kernel, including headers, whether it runs or not. We count
//! only images.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use domain::advisory::{Advisory, Ecosystem, SpanEnd};
use domain::finding::AdvisoryIndex;
use feed::FeedKind;
use vocab::Installed;

use crate::real;
use crate::support::{Folder, advisories, has_program};

/// The dpkg status file of this machine.
pub(crate) fn status() -> Option<String> {
    match std::fs::read_to_string("/var/lib/dpkg/status") {
        Ok(text) => Some(text),
        Err(error) => {
            println!("skipped: no dpkg status file on this machine: {error}");
            None
        }
    }
}

/// The packages that a dpkg status lists as installed.
pub(crate) fn installed(status: &str) -> Vec<Installed> {
    let package = |stanza: &str| {
        let field = |name: &str| {
            let value = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.unwrap_or_default()
        };
        if !field("Status").ends_with(" installed") {
            return None;
        }
        let version = field("Version");
        let (source, source_version) = match field("Source").split_once(" (") {
            Some((source, version)) => (source, version.trim_end_matches(')')),
            None if field("Source").is_empty() => (field("Package"), version),
            None => (field("Source"), version),
        };
        let package = Installed::new(field("Package"), version, field("Architecture"));
        Some(package.with_source(source, source_version))
    };
    status.split("\n\n").filter_map(package).collect()
}

/// Converts advisories to debsecan's data format: for each source package and CVE, the version that
/// fixes it. Bugs that Debian calls unimportant, and those that never affected the release, are not
/// in it.
fn debsecan_data(feed: &[Advisory]) -> String {
    let mut ends: BTreeMap<(&str, &str), Option<&str>> = BTreeMap::new();
    let mut never: BTreeSet<(&str, &str)> = BTreeSet::new();
    for advisory in feed {
        for cve in &advisory.flaws {
            for affected in &advisory.affected {
                let key = (cve.as_str(), affected.package.as_str());
                if affected.stance.is_some_and(vocab::FixState::is_hidden) {
                    never.insert(key);
                }
                for span in &affected.spans {
                    let end = match &span.end {
                        SpanEnd::Fixed(version) | SpanEnd::FixedElsewhere(version) => {
                            Some(version.as_str())
                        }
                        _ => None,
                    };
                    let known = ends.entry(key).or_insert(end);
                    if let (Some(one), Some(other)) = (*known, end)
                        && pkgver::deb::compare(one, other).is_lt()
                    {
                        *known = end;
                    }
                }
            }
        }
    }
    ends.retain(|key, _| !never.contains(key));
    let cves: BTreeSet<&str> = ends.keys().map(|(cve, _)| *cve).collect();
    let number: BTreeMap<&str, usize> = cves.iter().copied().zip(0..).collect();
    let mut text = "VERSION 1\n".to_owned();
    text.extend(cves.iter().map(|cve| format!("{cve},,\n")));
    text.push('\n');
    for ((cve, source), end) in &ends {
        text.push_str(&format!("{source},{},S ?F,{},\n", number[cve], end.unwrap_or_default()));
    }
    text.push_str("\n\n");
    text
}

/// Runs debsecan on this data and returns `CVE package` for each finding. `None` if it is not
/// installed.
pub(crate) fn run(folder: &Folder, data: &str, status: &Path) -> Option<BTreeSet<String>> {
    if !has_program("debsecan", "debsecan") {
        return None;
    }
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(data.as_bytes()).unwrap();
    folder.write("data/bookworm", packed.finish().unwrap());
    let nothing = folder.write("nothing", "");
    let output = Command::new("debsecan")
        .args(["--suite", "bookworm", "--format", "simple", "--config"])
        .arg(&nothing)
        .arg("--whitelist")
        .arg(folder.path().join("no-whitelist"))
        .arg("--source")
        .arg(format!("file://{}", folder.path().join("data").display()))
        .arg("--status")
        .arg(status)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

pub(crate) fn our_findings(feed: &[Advisory], packages: &[Installed]) -> BTreeSet<String> {
    let report = AdvisoryIndex::new(&Ecosystem::new("Debian:12"), feed).match_packages(packages);
    let findings = report.findings.iter().filter(|finding| !finding.state.is_hidden());
    findings
        .flat_map(|finding| {
            let binaries = finding.package.binaries.iter();
            binaries.map(move |binary| format!("{} {}", finding.cve, binary.name))
        })
        .collect()
}

/// Compares both results and returns the number of CVEs that they agree on.
fn assert_agreement(test: &str, feed: &[Advisory], status: &str) -> Option<usize> {
    let folder = Folder::new(test);
    let path = folder.write("status", status);
    let packages = installed(status);
    let kernels: BTreeSet<&str> = packages
        .iter()
        .filter(|package| {
            package.source() == "linux" || package.source().starts_with("linux-signed")
        })
        .map(|package| package.name.as_str())
        .collect();
    let without_kernel = |found: BTreeSet<String>| -> BTreeSet<String> {
        let package = |line: &String| line.split_once(' ').map(|(_, name)| name.to_owned());
        let keep = |line: &String| !kernels.contains(package(line).unwrap_or_default().as_str());
        found.into_iter().filter(keep).collect()
    };
    let theirs = run(&folder, &debsecan_data(feed), &path)?;
    let all = theirs.len();
    let (theirs, ours) = (without_kernel(theirs), without_kernel(our_findings(feed, &packages)));
    println!(
        "{test}: debsecan reports {all} findings, {} of them outside the kernel",
        theirs.len()
    );
    let missed: Vec<_> = theirs.difference(&ours).take(20).collect();
    let too_many: Vec<_> = ours.difference(&theirs).take(20).collect();
    assert!(missed.is_empty() && too_many.is_empty(), "missed {missed:?}, surplus {too_many:?}");
    Some(theirs.len())
}

const LIST: &str = "\
CVE-2026-0001 (x)
\t- openssl 3.0.11-1~deb12u2
\t- zsh 5.9-4+b2
\t- lvm2 2.03.16-3
CVE-2026-0002 (x)
\t- openssl <unfixed>
\t- curl 7.88.1-10+deb12u4
\t[bookworm] - curl 7.88.1-10+deb12u5
CVE-2026-0003 (x)
\t- openssl <unfixed> (unimportant)
\t- zsh 9
\t[bookworm] - zsh <not-affected> (introduced later)
\t- lvm2 9
\t[bookworm] - lvm2 <no-dsa> (Minor issue)
\t- linux 6.1.82-1
";

const STATUS: &str = "\
Package: libssl3
Status: install ok installed
Architecture: amd64
Source: openssl
Version: 3.0.11-1~deb12u1

Package: zsh
Status: install ok installed
Architecture: amd64
Source: zsh (5.9-4)
Version: 5.9-4+b3

Package: dmsetup
Status: install ok installed
Architecture: amd64
Source: lvm2 (2.03.16-2)
Version: 2:1.02.185-2

Package: curl
Status: install ok installed
Architecture: amd64
Version: 7.88.1-10+deb12u4

Package: libcurl4
Status: deinstall ok config-files
Architecture: amd64
Source: curl
Version: 7.88.1-10

Package: linux-libc-dev
Status: install ok installed
Architecture: amd64
Source: linux
Version: 6.1.76-1
";

#[test]
fn debsecan_agrees_on_synthetic_packages() {
    let folder = Folder::new("debsecan-list");
    let kind =
        FeedKind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() };
    let feed = advisories(&folder.write("list", LIST), kind);
    let expected = [
        "CVE-2026-0001 dmsetup",
        "CVE-2026-0001 libssl3",
        "CVE-2026-0001 zsh",
        "CVE-2026-0002 curl",
        "CVE-2026-0002 libssl3",
        "CVE-2026-0003 dmsetup",
    ];
    assert!(
        our_findings(&feed, &installed(STATUS)).iter().eq(expected),
        "our findings match the list"
    );
    if let Some(found) = assert_agreement("by hand", &feed, STATUS) {
        assert_eq!(found, expected.len());
    }
}

#[test]
fn debsecan_agrees_on_local_packages_and_real_advisories() {
    let Some(folder) = real::folder() else { return };
    let Some(status) = status() else { return };
    let kind =
        FeedKind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() };
    let advisories_feed =
        advisories(&folder.join("debian12-advisories.osv.jsonl.gz"), FeedKind::Osv);
    let tracker = advisories(&folder.join("debian12-tracker-sample.list"), kind);
    assert_agreement("advisories", &advisories_feed, &status);
    assert_agreement("tracker", &tracker, &status);
    // An outdated machine: the same packages, all of them older than any fix.
    let old: String = status
        .lines()
        .map(|line| match line.split_once(": ") {
            Some(("Version", _)) => "Version: 0~1\n".to_owned(),
            Some(("Source", source)) => {
                format!("Source: {}\n", source.split(' ').next().unwrap_or_default())
            }
            _ => format!("{line}\n"),
        })
        .collect();
    if let Some(found) = assert_agreement("old", &advisories_feed, &old) {
        assert!(found > 500, "{found}");
    }
}
