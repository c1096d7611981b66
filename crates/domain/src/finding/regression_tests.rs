//! Mistakes that other matchers have made, one test each.

use jiff::Timestamp;
use vocab::{FixState, Severity};

use super::fixtures::{
    CVE, advisory, advisory_for_cve, describe, describe_all, fixed, match_and_describe, package,
    packages, report, unfixed, with_span, with_stance,
};
use super::invalidation::{ChangedNames, group_by_source, lookup_names};
use super::{Suppression, Unassessed, UnassessedCause, closes};
use crate::advisory::{
    CveRating, CvssScore, Ecosystem, Family, PackageNameKind, Rating, Span, SpanEnd,
};

const NOTHING: [&str; 0] = [];

// Which name.

#[test]
fn debian_source_name_matches_all_its_binaries() {
    let advisories =
        [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "openssl", "3.0.11-1~deb12u2")])];
    let host = packages(&[
        "libssl3 3.0.11-1~deb12u1 openssl 3.0.11-1~deb12u1",
        "openssl 3.0.11-1~deb12u1",
        "libssl-doc 1 other 1",
    ]);
    let report = report("Debian:12", &advisories, &host);
    assert_eq!(
        describe_all(&report),
        ["CVE-2026-0001 openssl 3.0.11-1~deb12u1 fixed 3.0.11-1~deb12u2"]
    );
    let binaries: Vec<&str> =
        report.findings[0].package.binaries.iter().map(|binary| binary.name.as_str()).collect();
    assert_eq!(binaries, ["libssl3", "openssl"]);
}

#[test]
fn alpine_matches_by_origin() {
    let advisories =
        [advisory_for_cve("ALPINE-1", &[fixed("Alpine:v3.22", "openssl", "3.5.1-r0")])];
    assert_eq!(
        match_and_describe("Alpine:v3.22", &advisories, &["libssl3 3.5.0-r0 openssl 3.5.0-r0"]),
        ["CVE-2026-0001 openssl 3.5.0-r0 fixed 3.5.1-r0"]
    );
}

#[test]
fn kernel_series_are_compared_separately() {
    let advisories = [
        advisory_for_cve("ALAS2-1", &[fixed("Amazon Linux:2", "kernel", "4.14.200-1.amzn2")]),
        advisory_for_cve("ALASK-1", &[fixed("Amazon Linux:2", "kernel", "5.10.95-1.amzn2")]),
    ];
    let found = |version: &str| {
        let host = format!("kernel {version} kernel {version}");
        match_and_describe("Amazon Linux:2", &advisories, &[&host])
    };
    assert_eq!(found("4.14.210-1.amzn2"), NOTHING, "the fix of another series does not count");
    assert_eq!(
        found("5.10.90-1.amzn2"),
        ["CVE-2026-0001 kernel 5.10.90-1.amzn2 fixed 5.10.95-1.amzn2"]
    );
    assert_eq!(found("5.10.95-1.amzn2"), NOTHING);
}

#[test]
fn certified_and_live_patched_builds_are_compared_separately() {
    let openssl = |version| fixed("Oracle Linux:9", "openssl", version);
    let advisories = [
        advisory_for_cve("ELSA-1", &[openssl("1:3.0.7-28.el9")]),
        advisory_for_cve("ELSA-2", &[openssl("10:3.0.7-28.el9_fips")]),
        advisory_for_cve("ELSA-3", &[openssl("2:3.0.7-28.ksplice1.el9")]),
    ];
    for (version, is_affected) in [
        ("1:3.0.7-27.el9", true),
        ("1:3.0.7-28.el9", false),
        ("10:3.0.7-27.el9_fips", true),
        ("10:3.0.7-28.el9_fips", false),
        ("2:3.0.7-27.ksplice1.el9", true),
        ("2:3.0.7-28.ksplice1.el9", false),
    ] {
        let host = format!("openssl {version} openssl {version}");
        let found = match_and_describe("Oracle Linux:9", &advisories, &[&host]);
        assert_eq!(!found.is_empty(), is_affected, "{version}: {found:?}");
    }
}

#[test]
fn rocky_uses_source_names_and_almalinux_binary_names() {
    let host = ["glibc-common 2.34-83.el9 glibc 2.34-83.el9"];
    let rocky = [advisory_for_cve("RLSA-1", &[fixed("Rocky Linux:9", "glibc", "0:2.34-100.el9")])];
    let found = ["CVE-2026-0001 glibc 2.34-83.el9 fixed 0:2.34-100.el9"];
    assert_eq!(match_and_describe("Rocky Linux:9", &rocky, &host), found);
    let named = |name| [advisory_for_cve("ALSA-1", &[fixed("AlmaLinux:9", name, "2.34-100.el9")])];
    assert_eq!(match_and_describe("AlmaLinux:9", &named("glibc"), &host), NOTHING);
    let found = ["CVE-2026-0001 glibc 2.34-83.el9 fixed 2.34-100.el9"];
    assert_eq!(match_and_describe("AlmaLinux:9", &named("glibc-common"), &host), found);
}

#[test]
fn binaries_of_one_source_give_one_finding() {
    let affected = ["openssl", "openssl-libs", "openssl-devel"]
        .map(|name| fixed("AlmaLinux:9", name, "1:3.0.7-25.el9"));
    let host = [
        "openssl 1:3.0.7-24.el9 openssl 3.0.7-24.el9",
        "openssl-libs 1:3.0.7-24.el9 openssl 3.0.7-24.el9",
    ];
    let report = report("AlmaLinux:9", &[advisory_for_cve("ALSA-1", &affected)], &packages(&host));
    assert_eq!(
        describe_all(&report),
        ["CVE-2026-0001 openssl 1:3.0.7-24.el9 fixed 1:3.0.7-25.el9"]
    );
    assert_eq!(report.findings[0].package.binaries.len(), 2);
    assert_eq!(report.findings[0].found.names, PackageNameKind::Binary);
}

// Which version.

#[test]
fn source_version_counts_not_that_of_a_rebuild() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "zsh", "5.9-4+b2")])];
    // By its own version the rebuild would appear to be fixed.
    assert_eq!(
        match_and_describe("Debian:12", &advisories, &["zsh 5.9-4+b3 zsh 5.9-4"]),
        ["CVE-2026-0001 zsh 5.9-4 fixed 5.9-4+b2"]
    );
}

#[test]
fn package_epoch_may_differ_from_source_epoch() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "lvm2", "2.03.16-3")])];
    let host = ["libdevmapper1.02.1 2:1.02.185-2 lvm2 2.03.16-2"];
    assert_eq!(
        match_and_describe("Debian:12", &advisories, &host),
        ["CVE-2026-0001 lvm2 2.03.16-2 fixed 2.03.16-3"]
    );
}

// Epochs.

#[test]
fn missing_epoch_is_zero_on_both_sides() {
    let alma = [advisory_for_cve("ALSA-1", &[fixed("AlmaLinux:9", "bash", "5.1.8-9.el9")])];
    for installed in ["5.1.8-9.el9", "0:5.1.8-9.el9", "(none):5.1.8-9.el9"] {
        let host = format!("bash {installed}");
        assert_eq!(match_and_describe("AlmaLinux:9", &alma, &[&host]), NOTHING, "{installed}");
    }
    let rocky = [advisory_for_cve("RLSA-1", &[fixed("Rocky Linux:9", "bash", "0:5.1.8-9.el9")])];
    assert_eq!(match_and_describe("Rocky Linux:9", &rocky, &["bash 5.1.8-9.el9"]), NOTHING);
    assert_eq!(match_and_describe("Rocky Linux:9", &rocky, &["bash (none):5.1.8-8.el9"]).len(), 1);
}

#[test]
fn rpm_source_epoch_comes_from_matching_binary() {
    let advisories =
        [advisory_for_cve("RLSA-1", &[fixed("Rocky Linux:9", "perl", "4:5.32.1-481.el9")])];
    let host = [
        "perl-Errno 1.30-481.el9 perl 5.32.1-481.el9",
        "perl-interpreter 4:5.32.1-481.el9 perl 5.32.1-481.el9",
    ];
    assert_eq!(match_and_describe("Rocky Linux:9", &advisories, &host), NOTHING);
    // The epoch is unknown: it is ignored, and the finding says so.
    let old = packages(&["perl-Errno 1.30-480.el9 perl 5.32.1-480.el9"]);
    let report = report("Rocky Linux:9", &advisories, &old);
    assert_eq!(describe_all(&report), ["CVE-2026-0001 perl 5.32.1-480.el9 fixed 4:5.32.1-481.el9"]);
    assert!(report.findings[0].explanation().contains("epochs were ignored"));
    let alone = ["perl-Errno 1.30-481.el9 perl 5.32.1-481.el9"];
    assert_eq!(match_and_describe("Rocky Linux:9", &advisories, &alone), NOTHING);
}

#[test]
fn epochs_are_ignored_if_feed_has_none() {
    let advisories =
        [advisory_for_cve("OESA-1", &[fixed("openEuler:24.03-LTS", "openssl", "3.0.12-2.oe2403")])];
    let judged = |version| {
        match_and_describe("openEuler:24.03-LTS", &advisories, &[&format!("openssl {version}")])
            .len()
    };
    assert_eq!((judged("1:3.0.12-1.oe2403"), judged("1:3.0.12-2.oe2403")), (1, 0));
}

#[test]
fn subpackage_epoch_does_not_hide_source_cves() {
    let advisories =
        [advisory_for_cve("RLSA-1", &[fixed("Rocky Linux:9", "httpd", "0:2.4.57-8.el9")])];
    let finding = ["CVE-2026-0001 httpd 2.4.57-5.el9 fixed 0:2.4.57-8.el9"];
    // As sent by an agent of an earlier release, with the epoch of `mod_ssl` on every source
    // package.
    let httpd = "httpd 2.4.57-5.el9 httpd 1:2.4.57-5.el9";
    let core = "httpd-core 2.4.57-5.el9 httpd 1:2.4.57-5.el9";
    let ssl = "mod_ssl 1:2.4.57-5.el9 httpd 1:2.4.57-5.el9";
    for host in [[httpd, ssl], [ssl, httpd], [core, ssl], [ssl, core]] {
        assert_eq!(match_and_describe("Rocky Linux:9", &advisories, &host), finding, "{host:?}");
    }
    // AlmaLinux uses binary names: each is compared by its own epoch, version and release.
    let alma = [advisory_for_cve(
        "ALSA-1",
        &[
            fixed("AlmaLinux:9", "httpd", "2.4.57-8.el9"),
            fixed("AlmaLinux:9", "mod_ssl", "1:2.4.57-8.el9"),
        ],
    )];
    let found = match_and_describe("AlmaLinux:9", &alma, &[httpd, ssl]);
    assert_eq!(found.len(), 2, "{found:?}");
    let updated =
        ["httpd 2.4.57-8.el9 httpd 2.4.57-8.el9", "mod_ssl 1:2.4.57-8.el9 httpd 2.4.57-8.el9"];
    assert_eq!(match_and_describe("AlmaLinux:9", &alma, &updated), NOTHING);
    assert_eq!(match_and_describe("Rocky Linux:9", &advisories, &updated), NOTHING);
}

// Several advisories for one CVE.

#[test]
fn later_subscriber_fix_reopens_finding() {
    let pro = |version| fixed("Ubuntu:Pro:18.04:LTS", "docker.io", version);
    let advisories = [
        advisory_for_cve(
            "UBUNTU-1",
            &[unfixed("Ubuntu:18.04:LTS", "docker.io"), pro("20.10.21-0ubuntu1~18.04.3+esm1")],
        ),
        advisory_for_cve("USN-7161-2", &[pro("20.10.21-0ubuntu1~18.04.3+esm2")]),
    ];
    let judged = |version: &str| {
        match_and_describe("Ubuntu:18.04:LTS", &advisories, &[&format!("docker.io {version}")])
    };
    assert_eq!(
        judged("20.10.21-0ubuntu1~18.04.3+esm1"),
        ["CVE-2026-0001 docker.io 20.10.21-0ubuntu1~18.04.3+esm1 subscription \
          20.10.21-0ubuntu1~18.04.3+esm2"]
    );
    assert_eq!(judged("20.10.21-0ubuntu1~18.04.3+esm2"), NOTHING);
}

#[test]
fn reintroduced_cve_is_found() {
    let again = |end| Span { from: Some("2.0-1".to_owned()), end };
    let first = advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "x", "1.5-1")]);
    for end in [
        SpanEnd::Open,
        SpanEnd::Fixed("2.2-1".to_owned()),
        SpanEnd::Last("2.1-1".to_owned()),
        SpanEnd::FixedElsewhere("3.0-1".to_owned()),
    ] {
        let second =
            advisory_for_cve("DSA-2-1", &[with_span("Debian:12", "x", again(end.clone()))]);
        let advisories = [first.clone(), second];
        let judged = |version: &str| {
            match_and_describe("Debian:12", &advisories, &[&format!("x {version}")])
        };
        assert_eq!(judged("1.4-1").len(), 1, "{end:?}");
        assert_eq!(judged("1.6-1"), NOTHING, "{end:?}");
        assert_eq!(judged("2.1-1").len(), 1, "{end:?}");
    }
}

#[test]
fn highest_fix_wins_in_any_order() {
    let first = advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "curl", "7.88.1-10+deb12u4")]);
    let second = advisory_for_cve("DSA-2-1", &[fixed("Debian:12", "curl", "7.88.1-10+deb12u5")]);
    for advisories in [[first.clone(), second.clone()], [second, first]] {
        for installed in ["7.88.1-10", "7.88.1-10+deb12u4"] {
            assert_eq!(
                match_and_describe("Debian:12", &advisories, &[&format!("curl {installed}")]),
                [format!("CVE-2026-0001 curl {installed} fixed 7.88.1-10+deb12u5")]
            );
        }
        assert_eq!(
            match_and_describe("Debian:12", &advisories, &["curl 7.88.1-10+deb12u5"]),
            NOTHING
        );
    }
}

#[test]
fn spans_of_one_advisory_are_independent() {
    let mut affected = fixed("Debian:12", "x", "1.5-1");
    affected.spans.push(Span { from: Some("2.0-1".to_owned()), end: SpanEnd::Open });
    affected
        .spans
        .push(Span { from: Some("1.8-1".to_owned()), end: SpanEnd::Last("1.9-1".to_owned()) });
    let advisories = [advisory_for_cve("DEBIAN-1", &[affected])];
    let judged =
        |version: &str| match_and_describe("Debian:12", &advisories, &[&format!("x {version}")]);
    assert_eq!(judged("1.4-1"), ["CVE-2026-0001 x 1.4-1 fixed 1.5-1"]);
    assert_eq!(judged("1.6-1"), NOTHING);
    assert_eq!(judged("1.9-1"), ["CVE-2026-0001 x 1.9-1 affected"]);
    assert_eq!(judged("1.9-2"), NOTHING);
    assert_eq!(judged("2.1-1"), ["CVE-2026-0001 x 2.1-1 affected"]);
}

// The distribution's states.

#[test]
fn each_fix_state_is_distinguished() {
    for (said, shown) in [
        (FixState::Affected, "affected"),
        (FixState::Deferred, "deferred"),
        (FixState::WontFix, "wont_fix"),
        (FixState::Unimportant, "unimportant"),
        (FixState::EndOfLife, "end_of_life"),
        (FixState::Unknown, "unknown"),
    ] {
        let advisories =
            [advisory_for_cve("DEBIAN-1", &[with_stance(unfixed("Debian:12", "tar"), said)])];
        assert_eq!(
            match_and_describe("Debian:12", &advisories, &["tar 1.34-1"]),
            [format!("CVE-2026-0001 tar 1.34-1 {shown}")]
        );
    }
}

#[test]
fn not_affected_overrides_other_statements() {
    let advisories = [
        advisory_for_cve(
            "DEBIAN-1",
            &[with_stance(unfixed("Debian:12", "xz-utils"), FixState::NotAffected)],
        ),
        advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "xz-utils", "5.6.1-1")]),
    ];
    assert_eq!(match_and_describe("Debian:12", &advisories, &["xz-utils 5.4.1-0.2"]), NOTHING);
}

#[test]
fn deferral_is_stale_once_fix_is_installed() {
    let advisories = [
        advisory_for_cve(
            "DEBIAN-1",
            &[with_stance(unfixed("Debian:12", "perl"), FixState::Deferred)],
        ),
        advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "perl", "5.36.0-7+deb12u3")]),
    ];
    assert_eq!(
        match_and_describe("Debian:12", &advisories, &["perl 5.36.0-7"]),
        ["CVE-2026-0001 perl 5.36.0-7 fixed 5.36.0-7+deb12u3"]
    );
    assert_eq!(match_and_describe("Debian:12", &advisories, &["perl 5.36.0-7+deb12u3"]), NOTHING);
}

#[test]
fn fix_in_another_release_is_not_offered() {
    let span = Span { from: None, end: SpanEnd::FixedElsewhere("1:1.3-2".to_owned()) };
    let advisories = [advisory_for_cve("DEBIAN-1", &[with_span("Debian:12", "zlib", span)])];
    let host = packages(&["zlib1g 1:1.2.13-1 zlib 1:1.2.13-1"]);
    let report = report("Debian:12", &advisories, &host);
    assert_eq!(describe_all(&report), ["CVE-2026-0001 zlib 1:1.2.13-1 affected"]);
    assert_eq!(
        report.findings[0].explanation(),
        "DEBIAN-1 for Debian:12 names the source package `zlib`: 1:1.2.13-1 is older than 1:1.3-2, \
         which fixes it only in another release"
    );
    assert_eq!(match_and_describe("Debian:12", &advisories, &["zlib 1:1.3-2"]), NOTHING);
}

#[test]
fn fix_in_version_zero_means_never_affected() {
    let mut advisories = vec![advisory_for_cve("ALPINE-1", &[fixed("Alpine:v3.22", "lua", "0")])];
    assert_eq!(match_and_describe("Alpine:v3.22", &advisories, &["lua 5.4.7-r0"]), NOTHING);
    // It does not override another statement.
    advisories.push(advisory_for_cve("ALPINE-2", &[fixed("Alpine:v3.22", "lua", "5.4.8-r0")]));
    assert_eq!(match_and_describe("Alpine:v3.22", &advisories, &["lua 5.4.7-r0"]).len(), 1);
}

#[test]
fn finding_can_be_suppressed_until_a_date() {
    let advisories = [advisory_for_cve("DEBIAN-1", &[unfixed("Debian:12", "zlib")])];
    let report = report("Debian:12", &advisories, &packages(&["zlib 1:1.2.13-1"]));
    let time = |text: &str| text.parse::<Timestamp>().unwrap();
    let suppression = Suppression {
        cve: CVE.to_owned(),
        source: Some("zlib".to_owned()),
        reason: "MiniZip is not built".to_owned(),
        until: Some(time("2027-01-01T00:00:00Z")),
    };
    let covers =
        |suppression: &Suppression, now| suppression.covers(&report.findings[0], time(now));
    assert!(covers(&suppression, "2026-12-31T23:59:59Z"));
    assert!(!covers(&suppression, "2027-01-01T00:00:00Z"));
    let other = Suppression { source: Some("minizip".to_owned()), ..suppression };
    assert!(!covers(&other, "2026-12-31T00:00:00Z"));
}

// Modules.

#[test]
fn module_streams_are_never_compared() {
    let with_module = |stream: Option<&str>| {
        let version = "1:18.14.2-3.module_el9.2.0+30+e3312493";
        let mut affected = fixed("AlmaLinux:9", "nodejs", version);
        affected.modules = stream.map(str::to_owned).into_iter().collect();
        [advisory_for_cve("ALSA-1", &[affected])]
    };
    let installed = |version: &str, module: Option<&str>| {
        let mut package = package(&format!("nodejs {version}"));
        package.module = module.map(str::to_owned);
        vec![package]
    };
    let count = |advisories: &[_], host: &[_]| {
        let report = report("AlmaLinux:9", advisories, host);
        (report.findings.len(), report.unassessed.len())
    };
    let eighteen = with_module(Some("nodejs:18"));
    let old = "1:18.12.1-1.module_el9.1.0+16+91bc168f";
    assert_eq!(count(&eighteen, &installed(old, Some("nodejs:18"))), (1, 0));
    assert_eq!(count(&eighteen, &installed(old, Some("nodejs:18:9020:rhel9"))), (1, 0));
    // Another stream, and no stream at all: neither is older or newer than this one.
    let sixteen = "1:16.20.2-1.module_el9.2.0+40+aaaa";
    assert_eq!(count(&eighteen, &installed(sixteen, Some("nodejs:16"))), (0, 0));
    assert_eq!(count(&eighteen, &installed("1:16.20.2-1.el9", None)), (0, 0));
    let plain = [advisory_for_cve("ALSA-2", &[fixed("AlmaLinux:9", "nodejs", "1:16.20.2-8.el9")])];
    assert_eq!(count(&plain, &installed(sixteen, Some("nodejs:16"))), (0, 0));
    // Without a stream name the same module build decides; otherwise the package is unassessed.
    let unnamed = with_module(None);
    let same = "1:18.14.2-2.module_el9.2.0+29+de583a0b";
    assert_eq!(count(&unnamed, &installed(same, Some("nodejs:18"))), (1, 0));
    assert_eq!(count(&unnamed, &installed(old, Some("nodejs:18"))), (0, 1));
}

#[test]
fn advisory_for_two_streams_applies_to_both() {
    let fix = "7.0.0-13.module+el8.6.0+14480+c0a3aa0f";
    let installed = |module: &str| {
        let mut package = package("libvirt 7.0.0-11.module+el8.5.0+13000+aaaaaaaa");
        package.module = Some(module.to_owned());
        vec![package]
    };
    let mut affected = fixed("Red Hat:8", "libvirt", fix);
    affected.modules = vec!["virt:rhel".to_owned(), "virt-devel:rhel".to_owned()];
    let advisories = [advisory_for_cve("RHSA-2022:0886", &[affected])];
    for module in ["virt:rhel", "virt-devel:rhel"] {
        assert_eq!(report("Red Hat:8", &advisories, &installed(module)).findings.len(), 1);
    }
    assert!(report("Red Hat:8", &advisories, &installed("virt:av")).is_empty());
}

#[test]
fn red_hat_mixes_source_and_binary_names() {
    let by = |mut affected: crate::advisory::Affected, names| {
        affected.names = Some(names);
        affected
    };
    // As in CSAF: no fix for the source package `curl`, and a fix for the binary package `libcurl`
    // for another CVE.
    let unfixed =
        advisory("VEX-1", &["CVE-1"], &[by(unfixed("Red Hat:9", "curl"), PackageNameKind::Source)]);
    let fixed_binary =
        advisory("VEX-2", &["CVE-2"], &[fixed("Red Hat:9", "libcurl", "7.76.1-26.el9_3.2")]);
    let host = ["libcurl 7.76.1-23.el9 curl 7.76.1-23.el9"];
    let known = [unfixed.clone(), fixed_binary];
    assert_eq!(
        match_and_describe("Red Hat:9", &known, &host),
        ["CVE-1 curl 7.76.1-23.el9 affected", "CVE-2 curl 7.76.1-23.el9 fixed 7.76.1-26.el9_3.2"]
    );
    // Both kinds of names for one CVE give one finding; an installed fix by either name closes it.
    let also =
        advisory("RHSA-1", &["CVE-1"], &[fixed("Red Hat:9", "libcurl", "7.76.1-26.el9_3.2")]);
    let both = [unfixed, also];
    assert_eq!(
        match_and_describe("Red Hat:9", &both, &host),
        ["CVE-1 curl 7.76.1-23.el9 fixed 7.76.1-26.el9_3.2"]
    );
    let updated = ["libcurl 7.76.1-26.el9_3.2 curl 7.76.1-26.el9_3.2"];
    assert_eq!(match_and_describe("Red Hat:9", &both, &updated), NOTHING);
    let base = Ecosystem::new("Red Hat:9");
    let groups = group_by_source(&base, &packages(&host));
    assert_eq!(
        groups[0].names,
        ["curl", "libcurl"],
        "a change of either name invalidates the group"
    );
}

#[test]
fn red_hat_minor_releases_are_fixed_separately() {
    let eus = |minor: &str| format!("Red Hat:rhel_eus:{minor}::appstream");
    let judged = |advisories: &[_], name: &str, version: &str| {
        match_and_describe("Red Hat:9", advisories, &[&format!("{name} {version}")]).len()
    };
    let curl = [advisory_for_cve(
        "RHSA-1",
        &[
            fixed("Red Hat:enterprise_linux:9::baseos", "libcurl", "7.76.1-26.el9_3.2"),
            fixed(&eus("9.2"), "libcurl", "7.76.1-23.el9_2.4"),
            fixed(&eus("9.0"), "libcurl", "7.76.1-14.el9_0.9"),
        ],
    )];
    for (version, expected) in [
        ("7.76.1-23.el9_2.4", 0),
        ("7.76.1-14.el9_0.9", 0),
        ("7.76.1-26.el9_3.2", 0),
        ("7.76.1-29.el9_4.1", 0),
        ("7.76.1-23.el9_2.3", 1),
        ("7.76.1-14.el9_0.8", 1),
        ("7.76.1-26.el9_3.1", 1),
        ("7.76.1-14.el9", 1),
    ] {
        assert_eq!(judged(&curl, "libcurl", version), expected, "{version}");
    }
    // A subscribers' fix for 9.0 does not close what is unfixed in 9.2.
    let mut affected = unfixed("Red Hat:9", "samba");
    affected.names = Some(PackageNameKind::Source);
    let samba =
        [advisory_for_cve("VEX-1", &[affected, fixed(&eus("9.0"), "samba", "4.15.5-111.el9_0")])];
    assert_eq!(judged(&samba, "samba", "4.17.5-102.el9_2"), 1);
    assert_eq!(judged(&samba, "samba", "4.15.5-111.el9_0"), 0);
}

// Subscriptions.

#[test]
fn subscriber_only_fix_has_its_own_state() {
    let pro = |version| fixed("Ubuntu:Pro:22.04:LTS", "redis", version);
    let esm = [advisory_for_cve(
        "UBUNTU-1",
        &[unfixed("Ubuntu:22.04:LTS", "redis"), pro("5:6.0.16-1ubuntu1+esm1")],
    )];
    let base = "Ubuntu:22.04:LTS";
    assert_eq!(
        match_and_describe(base, &esm, &["redis 5:6.0.16-1ubuntu1"]),
        ["CVE-2026-0001 redis 5:6.0.16-1ubuntu1 subscription 5:6.0.16-1ubuntu1+esm1"]
    );
    assert_eq!(match_and_describe(base, &esm, &["redis 5:6.0.16-1ubuntu1+esm1"]), NOTHING);
    // If there is a fix for everyone, the subscribers' fix adds nothing.
    let both = [advisory_for_cve(
        "UBUNTU-1",
        &[fixed(base, "redis", "5:6.0.16-1ubuntu1.1"), pro("5:6.0.16-1ubuntu1.1+esm1")],
    )];
    assert_eq!(match_and_describe(base, &both, &["redis 5:6.0.16-1ubuntu1.1"]), NOTHING);
    assert_eq!(
        match_and_describe(base, &both, &["redis 5:6.0.16-1ubuntu1"]),
        ["CVE-2026-0001 redis 5:6.0.16-1ubuntu1 fixed 5:6.0.16-1ubuntu1.1"]
    );
    let only = [advisory_for_cve("USN-1-1", &[pro("5:6.0.16-1ubuntu1+esm1")])];
    assert!(
        match_and_describe(base, &only, &["redis 5:6.0.16-1ubuntu1"])[0].contains("subscription")
    );
}

// Third-party packages.

#[test]
fn third_party_package_is_marked_uncertain() {
    let advisories =
        [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "php8.2", "8.2.20-1~deb12u1")])];
    let from = |version: &str, origin: Option<&str>| {
        let mut package = package(&format!("php8.2 {version}"));
        package.origin = origin.map(str::to_owned);
        report("Debian:12", &advisories, &[package])
    };
    let own = from("8.2.18-1~deb12u1", Some("Debian"));
    assert_eq!((own.findings[0].state, own.unassessed.len()), (FixState::Fixed, 0));
    let unknown_origin = from("8.2.18-1~deb12u1", None);
    assert_eq!(unknown_origin.findings[0].state, FixState::Fixed);
    let sury = from("8.2.18-1+0~20240101.1+debian12~1.gbp", Some("deb.sury.org"));
    assert_eq!(sury.findings[0].state, FixState::Unknown);
    assert!(sury.findings[0].explanation().ends_with(
        "; but the package comes from deb.sury.org and not from the distribution, so this is uncertain"
    ));
    // It appears to be fixed, but that is not certain: it is unassessed, not clean.
    for (version, origin, shown) in [
        ("8.4.1-1+0~2024+debian12~1.gbp", Some("deb.sury.org"), "deb.sury.org"),
        ("8.4.1-1~bpo12+1", None, "backports"),
        ("8.4.1-1~bpo12+1", Some("Debian Backports"), "Debian Backports"),
        ("9:8.4.1-1+rpt1", None, "Raspberry Pi"),
    ] {
        let report = from(version, origin);
        assert_eq!(report.findings, [], "{version}");
        assert_eq!(
            report.unassessed[0].reason,
            UnassessedCause::ThirdParty(shown.to_owned()),
            "{version}"
        );
    }
}

#[test]
fn distribution_is_recognized_by_exact_name() {
    for (base, own, foreign) in [
        ("Debian:12", "Debian", "Debian Backports"),
        ("Ubuntu:22.04:LTS", "Ubuntu", "LP-PPA-ubuntu-toolchain-r-test"),
        ("Ubuntu:22.04:LTS", "UbuntuESMApps", "UbuntuFIPS"),
        ("Alpine:v3.18", "Alpine Linux", "nginx_signing"),
        ("AlmaLinux:9", "AlmaLinux", "Fedora Project"),
        ("Rocky Linux:9", "Rocky Enterprise Software Foundation", "Rocky Mountain Packages"),
        ("Red Hat:9", "Red Hat, Inc.", "Red Hat fans"),
        ("SUSE:15 SP5", "SUSE LLC <https://www.suse.com/>", "obs://build.opensuse.org/server:php"),
        ("openSUSE:Leap 15.6", "openSUSE", "obs://build.suse.de/home:me"),
        ("openEuler:24.03-LTS", "http://openeuler.org", "http://openeuler.org.example"),
    ] {
        let from = |origin: &str| {
            let mut package = package("nginx 1.0-1");
            package.origin = Some(origin.to_owned());
            report(base, &[advisory_for_cve("A-1", &[unfixed(base, "nginx")])], &[package])
        };
        assert_eq!(from(own).unassessed, [], "{base} {own}");
        assert_eq!(from(own).findings[0].state, FixState::Affected, "{base} {own}");
        let report = from(foreign);
        assert_eq!(report.findings[0].state, FixState::Unknown, "{base} {foreign}");
        assert_eq!(report.unassessed[0].reason, UnassessedCause::ThirdParty(foreign.to_owned()));
    }
    // Earlier agents sent Alpine's maintainers.
    let mut musl = package("musl 1.2.4-r2");
    musl.origin = Some("Timo <timo@example.invalid>".to_owned());
    let advisories = [advisory_for_cve("ALPINE-1", &[fixed("Alpine:v3.18", "musl", "1.2.4-r3")])];
    assert_eq!(report("Alpine:v3.18", &advisories, &[musl]).findings[0].state, FixState::Fixed);
}

#[test]
fn third_party_package_without_advisory_is_unassessed() {
    let mut docker = package("docker-ce 5:27.0-1");
    docker.origin = Some("Docker".to_owned());
    let report = report("Debian:12", &[], &[docker, package("bash 5.2-1")]);
    let reason = UnassessedCause::ThirdParty("Docker".to_owned());
    let (package, version) = ("docker-ce".to_owned(), "5:27.0-1".to_owned());
    assert_eq!(report.unassessed, [Unassessed { package, version, reason }]);
}

// The ecosystem of each entry.

#[test]
fn only_entries_of_the_same_release_count() {
    let advisories = [advisory_for_cve(
        "ALSA-1",
        &[fixed("AlmaLinux:8", "bash", "4.4-9.el8"), fixed("AlmaLinux:9", "bash", "5.1-9.el9")],
    )];
    assert_eq!(
        match_and_describe("AlmaLinux:9", &advisories, &["bash 5.1-8.el9"]),
        ["CVE-2026-0001 bash 5.1-8.el9 fixed 5.1-9.el9"]
    );
    let flood =
        [advisory_for_cve("DEBIAN-1", &[unfixed("Debian", "bash"), unfixed("Debian:13", "bash")])];
    assert_eq!(match_and_describe("Debian:12", &flood, &["bash 5.1-8"]), NOTHING);
    let fips = [advisory_for_cve("USN-1-1", &[fixed("Ubuntu:Pro:FIPS:22.04:LTS", "openssl", "9")])];
    assert_eq!(match_and_describe("Ubuntu:22.04:LTS", &fips, &["openssl 3.0.2-0ubuntu1"]), NOTHING);
}

#[test]
fn withdrawn_advisory_matches_nothing() {
    let mut advisory = advisory_for_cve("DSA-1-1", &[unfixed("Debian:12", "bash")]);
    advisory.withdrawn = Some(Timestamp::UNIX_EPOCH);
    assert_eq!(match_and_describe("Debian:12", &[advisory], &["bash 5.1-8"]), NOTHING);
}

// Severity.

#[test]
fn severity_prefers_distribution_then_cvss() {
    let vector = "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H";
    let score = Rating::Cvss(CvssScore::parse(vector).unwrap());
    let word = |severity| Rating::Word(severity);
    let severity = |ratings: &[(Option<&str>, Rating)], urgency: Option<Severity>| {
        let mut affected = unfixed("Ubuntu:22.04:LTS", "curl");
        affected.severity = urgency;
        let mut state = advisory("USN-1-1", &[CVE, "CVE-2026-0002"], &[affected]);
        state.ratings = ratings
            .iter()
            .map(|(flaw, rating)| CveRating {
                flaw: flaw.map(str::to_owned),
                rating: rating.clone(),
            })
            .collect();
        let report = report("Ubuntu:22.04:LTS", &[state], &packages(&["curl 7.81.0-1"]));
        let source = report.findings[0].severity_source.as_deref().unwrap_or("none").to_owned();
        format!("{} by {source}", report.findings[0].severity)
    };
    assert_eq!(severity(&[], None), "unknown by none");
    assert_eq!(severity(&[(None, score.clone())], None), "critical by cvss:3.1");
    let both = [(None, score.clone()), (None, word(Severity::Medium))];
    assert_eq!(severity(&both, None), "medium by ubuntu");
    let each = [(Some(CVE), word(Severity::Low)), (Some("CVE-2026-0002"), word(Severity::High))];
    assert_eq!(severity(&each, None), "low by ubuntu");
    assert_eq!(severity(&[(None, score)], Some(Severity::High)), "high by ubuntu");
}

// Unreadable versions.

#[test]
fn unreadable_version_gives_unknown_finding() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "bash", "see notes")])];
    let found = report("Debian:12", &advisories, &packages(&["bash 5.2-1"]));
    assert_eq!(describe_all(&found), ["CVE-2026-0001 bash 5.2-1 unknown"]);
    assert_eq!(
        found.findings[0].explanation(),
        "DSA-1-1 for Debian:12 names the source package `bash`, but its version range cannot be \
         read, so it is unknown whether 5.2-1 is affected"
    );
    let nothing_said =
        [advisory_for_cve("DSA-1-1", &[crate::advisory::Affected::new("Debian:12", "bash")])];
    assert_eq!(
        match_and_describe("Debian:12", &nothing_said, &["bash 5.2-1"]),
        ["CVE-2026-0001 bash 5.2-1 unknown"]
    );
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "bash", "5.2-2")])];
    let odd = report("Debian:12", &advisories, &packages(&["bash <none>"]));
    assert_eq!(
        (odd.findings.len(), &odd.unassessed[0].reason),
        (0, &UnassessedCause::UnknownVersion)
    );
}

#[test]
fn family_without_unfixed_cves_says_so() {
    assert!(!Family::Alpine.lists_unfixed() && Family::Debian.lists_unfixed());
}

// Explanations, updates that close findings, and invalidation.

#[test]
fn finding_explains_how_it_was_found() {
    let advisories =
        [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "curl", "7.88.1-10+deb12u5")])];
    let report = report("Debian:12", &advisories, &packages(&["curl 7.88.1-10"]));
    assert_eq!(
        report.findings[0].explanation(),
        "DSA-1-1 for Debian:12 names the source package `curl`: 7.88.1-10 is older than \
         7.88.1-10+deb12u5, which fixes it"
    );
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<super::MatchReport>(&text).unwrap(), report);
}

#[test]
fn update_closes_findings_it_fixes() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "lvm2", "2.03.16-3")])];
    let closing = |host: &str, name: &str, candidate: &str| {
        let report = report("Debian:12", &advisories, &packages(&[host]));
        assert_eq!(report.findings.len(), 1, "{}", describe(&report.findings[0]));
        closes(&report.findings[0], Family::Debian, name, candidate)
    };
    let host = "lvm2 2.03.16-2+b1 lvm2 2.03.16-2";
    assert_eq!(closing(host, "lvm2", "2.03.16-2+b9"), Some(false));
    assert_eq!(closing(host, "lvm2", "2.03.16-3"), Some(true));
    assert_eq!(closing(host, "lvm2", "2.03.22-1"), Some(true));
    assert_eq!(closing(host, "other", "2.03.22-1"), None);
    let other_epoch = "liblvm 2:2.03.16-2 lvm2 2.03.16-2";
    assert_eq!(closing(other_epoch, "liblvm", "2:2.03.16-2+b1"), Some(false));
    assert_eq!(closing(other_epoch, "liblvm", "2:2.03.16-3"), Some(true));
    let unlike = "libdevmapper1.02.1 2:1.02.185-2 lvm2 2.03.16-2";
    assert_eq!(closing(unlike, "libdevmapper1.02.1", "2:1.02.185-3"), None);
}

#[test]
fn change_invalidates_only_sets_with_its_names() {
    let base = Ecosystem::new("Ubuntu:22.04:LTS");
    let before = advisory_for_cve(
        "USN-1-1",
        &[fixed("Ubuntu:22.04:LTS", "curl", "1"), fixed("Ubuntu:24.04:LTS", "x", "1")],
    );
    let mut after = before.clone();
    after.affected.push(fixed("Ubuntu:Pro:22.04:LTS", "linux-aws", "2"));
    let touched = |before, after| {
        let mut changed_names = ChangedNames::default();
        changed_names.record(before, after);
        changed_names
    };
    assert_eq!(touched(Some(&before), Some(&before)), ChangedNames::default());
    let one = touched(Some(&before), Some(&after));
    assert_eq!(one.names(&base).collect::<Vec<_>>(), ["linux-aws"]);
    let all = touched(None, Some(&after));
    assert_eq!(all.names(&base).collect::<Vec<_>>(), ["curl", "linux-aws"]);
    assert_eq!(touched(Some(&after), None), all);
    let mut worse = after.clone();
    worse.ratings.push(CveRating { flaw: None, rating: Rating::Word(Severity::High) });
    assert_eq!(touched(Some(&after), Some(&worse)), all);

    let aws = packages(&[
        "linux-image-5.15.0-1-aws 5.15.0-1.1 linux-signed-aws 5.15.0-1.1",
        "libcurl4 1-1 curl 1-1",
    ]);
    assert!(
        lookup_names(&base, &aws).iter().eq(["curl", "linux-aws"]),
        "the lookup names of the set"
    );
    let by_source = group_by_source(&base, &aws);
    let named: Vec<&[String]> = by_source.iter().map(|group| group.names.as_slice()).collect();
    assert_eq!(named, [["curl"], ["linux-aws"]], "one group per source package");
    assert_ne!(by_source[0].digest(), by_source[1].digest());
    let mut held = aws.clone();
    held.iter_mut().for_each(|package| package.held = true);
    assert_eq!(
        group_by_source(&base, &held),
        by_source,
        "holding a package does not affect findings"
    );
    assert_eq!(one.names(&Ecosystem::new("Ubuntu:24.04:LTS")).count(), 0);
}
