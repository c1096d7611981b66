//! Tests on real CSAF documents and Arch tracker groups, from the directory `more` next to the
//! other real feeds (see `real`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use domain::advisory::{Advisory, Affected, Channel, PackageNameKind, Rating, SpanEnd};
use feed::{FeedError, FeedKind};
use vocab::{FixState, Severity};

use crate::real::folder;
use crate::support::{advisories, check};

fn csaf_directory() -> Option<PathBuf> {
    let folder = folder()?.join("more");
    if !folder.is_dir() {
        println!("skipped: {} does not exist", folder.display());
        return None;
    }
    Some(folder)
}

fn read_one(folder: &Path, name: &str) -> Advisory {
    let mut all = advisories(&folder.join(name), FeedKind::Csaf);
    assert_eq!(all.len(), 1, "{name}");
    all.remove(0)
}

/// A document's statement about one package of an ecosystem.
#[track_caller]
fn find<'a>(
    advisory: &'a Advisory,
    ecosystem: &str,
    package: &str,
    name_kind: PackageNameKind,
) -> &'a Affected {
    let is_it = |one: &&Affected| {
        one.ecosystem.as_str() == ecosystem
            && one.package == package
            && one.name_kind() == name_kind
    };
    advisory.affected.iter().find(is_it).unwrap_or_else(|| {
        let all: Vec<String> = advisory
            .affected
            .iter()
            .map(|one| format!("{} {} {:?}", one.ecosystem, one.package, one.name_kind()))
            .collect();
        panic!("{ecosystem} {package} is not in {all:#?}")
    })
}

fn fixes(affected: &Affected) -> Vec<&str> {
    affected
        .spans
        .iter()
        .map(|span| match &span.end {
            SpanEnd::Fixed(version) => version.as_str(),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn every_real_csaf_document_is_read_and_recognized() {
    let Some(more) = csaf_directory() else { return };
    for (part, expected, with_packages) in [("redhat-vex", 19, 18), ("suse-csaf", 15, 14)] {
        let path = more.join(part);
        assert_eq!(feed::sniff(&path).unwrap().kind, Some(FeedKind::Csaf), "{part}");
        let all = advisories(&path, FeedKind::Csaf);
        let full = all.iter().filter(|one| !one.affected.is_empty()).count();
        let packages: usize = all.iter().map(|one| one.affected.len()).sum();
        println!("{part}: {} records, {full} with packages, {packages} statements", all.len());
        assert_eq!((all.len(), full), (expected, with_packages), "{part}");
        for affected in all.iter().flat_map(|one| &one.affected) {
            let (base, _) = affected.ecosystem.base();
            assert!(base.family().scheme().is_some(), "{}", affected.ecosystem);
            let odd = |c: char| c.is_whitespace() || ":/".contains(c);
            assert!(!affected.package.contains(odd), "{}", affected.package);
            for span in &affected.spans {
                let (SpanEnd::Fixed(version) | SpanEnd::FixedElsewhere(version)) = &span.end else {
                    continue;
                };
                let (_, release) = version.rsplit_once('-').expect("version and release");
                assert!(!release.ends_with("x86_64") && !version.contains('%'), "{version}");
            }
        }
    }
}

#[test]
fn real_red_hat_documents_are_interpreted_correctly() {
    let Some(more) = csaf_directory() else { return };
    let vex = more.join("redhat-vex");

    let curl = read_one(&vex, "cve-2023-38545.json.gz");
    assert_eq!(curl.id, "redhat-vex:CVE-2023-38545");
    let main = find(&curl, "Red Hat:9", "libcurl", PackageNameKind::Binary);
    assert_eq!(fixes(main), ["7.76.1-23.el9_2.4", "7.76.1-26.el9_3.2"]);
    assert_eq!(main.severity, Some(Severity::High));
    let eus = find(&curl, "Red Hat:rhel_eus:9.0", "libcurl", PackageNameKind::Binary);
    assert_eq!(fixes(eus), ["7.76.1-14.el9_0.9"]);
    assert_eq!(eus.ecosystem.base().1, Channel::Subscription);
    let old = find(&curl, "Red Hat:7", "curl", PackageNameKind::Binary);
    assert_eq!(old.stance, Some(FixState::NotAffected));

    let openssl = read_one(&vex, "cve-2023-6237.json.gz");
    let fixed = find(&openssl, "Red Hat:9", "openssl-libs", PackageNameKind::Binary);
    assert_eq!(fixes(fixed), ["1:3.0.7-27.el9"], "with the epoch");
    let edk2 = find(&openssl, "Red Hat:9", "edk2", PackageNameKind::Source);
    assert_eq!((edk2.stance, edk2.severity), (Some(FixState::Affected), Some(Severity::Low)));

    let samba = read_one(&vex, "cve-2023-3961.json.gz");
    let stance = |ecosystem| find(&samba, ecosystem, "samba", PackageNameKind::Source).stance;
    assert_eq!(stance("Red Hat:6"), Some(FixState::EndOfLife));
    assert_eq!(stance("Red Hat:9"), Some(FixState::Affected));
    let eus = find(&samba, "Red Hat:rhel_eus:9.0", "samba", PackageNameKind::Binary);
    assert_eq!(fixes(eus), ["4.15.5-111.el9_0"]);

    let kernel = read_one(&vex, "cve-2023-0045.json.gz");
    let stances = ["Red Hat:7", "Red Hat:8", "Red Hat:9"]
        .map(|release| find(&kernel, release, "kernel", PackageNameKind::Source).stance);
    let will_not_fix = Some(FixState::WontFix);
    assert_eq!(stances, [Some(FixState::NotAffected), will_not_fix, will_not_fix]);
    let realtime = find(&kernel, "Red Hat:9", "kernel-rt", PackageNameKind::Source);
    assert_eq!(realtime.stance, Some(FixState::Affected));

    let deferred = read_one(&vex, "reserialised-cve-2026-11611.json.gz");
    let libs = find(&deferred, "Red Hat:10", "389-ds-base-libs", PackageNameKind::Binary);
    assert_eq!(libs.stance, Some(FixState::Deferred));
    let source = find(&deferred, "Red Hat:10", "389-ds-base", PackageNameKind::Source);
    assert_eq!(source.stance, Some(FixState::Deferred));
    assert!(deferred.ratings.iter().any(|one| matches!(one.rating, Rating::Cvss(_))));

    let postgresql = read_one(&vex, "cve-2024-7348.json.gz");
    let modules: BTreeSet<_> = postgresql
        .affected
        .iter()
        .filter(|one| one.package == "postgresql-server" && one.ecosystem.as_str() == "Red Hat:8")
        .flat_map(|one| one.modules.iter().map(String::as_str))
        .collect();
    let expected = ["postgresql:12", "postgresql:13", "postgresql:15", "postgresql:16"];
    assert_eq!(modules, BTreeSet::from(expected));

    let newer = read_one(&vex, "reserialised-v2-cve-2024-6923.json.gz");
    let python = find(&newer, "Red Hat:8", "python3", PackageNameKind::Source);
    assert_eq!(fixes(python), ["3.6.8-67.el8_10"]);
    assert!(
        newer.affected.iter().all(|one| one.package != "python39" || one.spans.is_empty()),
        "a module build is not a package version"
    );
    assert_eq!(read_one(&vex, "reserialised-cve-2024-0001.json.gz").affected, []);
}

#[test]
fn real_suse_documents_are_interpreted_correctly() {
    let Some(more) = csaf_directory() else { return };
    let csaf = more.join("suse-csaf");

    let krb5 = read_one(&csaf, "vex-subset-cve-2010-1323.json.gz");
    let client = find(&krb5, "SUSE:Linux Enterprise Server 15", "krb5", PackageNameKind::Source);
    assert_eq!(fixes(client), ["1.15.2-4.25"]);

    let samba = read_one(&csaf, "vex-cve-2023-5568.json.gz");
    let rolling = find(&samba, "openSUSE:Tumbleweed", "ctdb", PackageNameKind::Binary);
    assert_eq!(fixes(rolling), ["4.19.2+git.322.7e9201cef5-1.1"]);
    let micro = find(
        &samba,
        "SUSE:Linux Enterprise Micro 6.0",
        "samba-client-libs",
        PackageNameKind::Binary,
    );
    assert_eq!(fixes(micro), ["4.19.4+git.339.acf1ccaa02-1.22"]);
    assert_eq!(micro.ecosystem.base().0.as_str(), "SUSE:Micro 6.0");

    let openssl = read_one(&csaf, "vex-subset-cve-2002-20001.json.gz");
    let hmac = find(
        &openssl,
        "SUSE:Linux Enterprise Server 12 SP5",
        "openssl-1_1",
        PackageNameKind::Source,
    );
    assert_eq!(hmac.stance, Some(FixState::WontFix));
    assert_eq!(read_one(&csaf, "vex-cve-1999-0003.json.gz").affected, []);
}

#[test]
fn real_csaf_documents_of_other_publishers_are_refused() {
    let Some(more) = csaf_directory() else { return };
    let path = more.join("azure/msrc-vex-cve-2025-26465.json.gz");
    let error =
        check(&path, FeedKind::Csaf).expect_err("Microsoft's product ids are not supported");
    assert!(matches!(error, FeedError::InvalidRecord { .. }), "{error}");
}

#[test]
fn real_arch_groups_are_interpreted_correctly() {
    let Some(more) = csaf_directory() else { return };
    let path = more.join("arch-avg-sample.json.gz");
    assert_eq!(feed::sniff(&path).unwrap().kind, Some(FeedKind::Arch));
    let all = advisories(&path, FeedKind::Arch);
    assert_eq!(all.len(), 86);
    let count = |stance| all.iter().filter(|one| one.affected[0].stance == stance).count();
    assert_eq!(count(Some(FixState::NotAffected)), 7);
    assert_eq!(count(Some(FixState::Unknown)), 5);
    let ends = |is: fn(&SpanEnd) -> bool| {
        let plain = all.iter().filter(|one| one.affected[0].stance.is_none());
        plain.filter(|one| one.affected[0].spans.iter().any(|span| is(&span.end))).count()
    };
    assert_eq!(ends(|end| matches!(end, SpanEnd::Fixed(_))), 68);
    assert_eq!(ends(|end| matches!(end, SpanEnd::FixedElsewhere(_))), 1, "AVG-2690");
    assert_eq!(ends(|end| matches!(end, SpanEnd::Open)), 5);
    let glibc = all.iter().find(|one| one.id == "AVG-2833").unwrap();
    let packages: Vec<&str> = glibc.affected.iter().map(|one| one.package.as_str()).collect();
    assert_eq!(packages, ["glibc", "lib32-glibc"]);
}
