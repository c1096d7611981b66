//! Tests of running kernels and of old code in memory: what is installed is not always what runs.

use std::collections::BTreeSet;

use vocab::Installed;

use super::fixtures::{advisory_for_cve, describe, fixed, packages, report, unfixed};
use super::{
    RunningKernel, RuntimeState, ServerFinding, apply_runtime_state, foreign_kernel,
    kernel_awaiting_boot,
};
use crate::advisory::{Advisory, Family};

const NOTHING: [&str; 0] = [];

fn findings_on_host(
    family: (Family, &str),
    before: &[ServerFinding],
    advisories: &[Advisory],
    host: &[Installed],
    kernel: RunningKernel<'_>,
    old_code: &[&str],
) -> Vec<ServerFinding> {
    let old_code: BTreeSet<String> = old_code.iter().map(|name| (*name).to_owned()).collect();
    let findings = report(family.1, advisories, host).findings;
    apply_runtime_state(
        family.0,
        before,
        &findings,
        host,
        &RuntimeState { kernel, old_code: &old_code },
    )
}

fn describe_all(findings: &[ServerFinding]) -> Vec<String> {
    findings.iter().map(|one| format!("{}: {}", describe(&one.finding), one.exposure)).collect()
}

const DEBIAN: (Family, &str) = (Family::Debian, "Debian:12");

fn debian_kernels() -> Vec<Installed> {
    packages(&[
        "linux-image-6.1.0-17-amd64 6.1.69-1 linux-signed-amd64 6.1.69+1",
        "linux-image-6.1.0-18-amd64 6.1.76-1 linux-signed-amd64 6.1.76+1",
        "linux-image-amd64 6.1.76-1 linux-signed-amd64 6.1.76+1",
        "linux-headers-6.1.0-17-amd64 6.1.69-1 linux 6.1.69-1",
        "linux-libc-dev 6.1.69-1 linux 6.1.69-1",
    ])
}

#[test]
fn only_the_running_kernel_image_counts() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "linux", "6.1.82-1")])];
    let reported = |kernel| {
        describe_all(&findings_on_host(DEBIAN, &[], &advisories, &debian_kernels(), kernel, &[]))
    };
    assert_eq!(
        reported(RunningKernel::Release("6.1.0-18-amd64")),
        ["CVE-2026-0001 linux 6.1.76-1 fixed 6.1.82-1: open"]
    );
    assert_eq!(
        reported(RunningKernel::Release("6.1.0-17-amd64")),
        ["CVE-2026-0001 linux 6.1.69-1 fixed 6.1.82-1: open"]
    );
    let report = report("Debian:12", &advisories, &debian_kernels());
    assert_eq!(report.findings.len(), 2, "one for each image, none for headers or the metapackage");
    assert!(report.findings[0].explanation().ends_with("; this is the kernel 6.1.0-17-amd64"));
}

#[test]
fn installed_but_not_booted_kernel_is_fixed_on_disk() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "linux", "6.1.76-1")])];
    let reported = |kernel| {
        describe_all(&findings_on_host(DEBIAN, &[], &advisories, &debian_kernels(), kernel, &[]))
    };
    assert_eq!(
        reported(RunningKernel::Release("6.1.0-17-amd64")),
        ["CVE-2026-0001 linux 6.1.69-1 fixed 6.1.76-1: fixed_on_disk"]
    );
    assert_eq!(reported(RunningKernel::Release("6.1.0-18-amd64")), NOTHING, "closed by the reboot");
    let waits = |uname| {
        kernel_awaiting_boot(Family::Debian, &debian_kernels(), uname)
            .map(|boots| boots.to_string())
    };
    assert_eq!(waits("6.1.0-17-amd64").as_deref(), Some("6.1.0-18-amd64"));
    assert_eq!(waits("6.1.0-18-amd64"), None);
}

#[test]
fn container_has_no_kernel_findings() {
    let advisories = [advisory_for_cve("DSA-1-1", &[unfixed("Debian:12", "linux")])];
    assert_eq!(
        describe_all(&findings_on_host(
            DEBIAN,
            &[],
            &advisories,
            &debian_kernels(),
            RunningKernel::Foreign,
            &[]
        )),
        NOTHING
    );
    assert_eq!(kernel_awaiting_boot(Family::Debian, &debian_kernels(), "6.8.12-4-pve"), None);
}

#[test]
fn newest_kernel_counts_if_running_one_is_unknown() {
    let advisories = [advisory_for_cve("DSA-1-1", &[unfixed("Debian:12", "linux")])];
    for kernel in [RunningKernel::Unknown, RunningKernel::Release("6.99-custom")] {
        assert_eq!(
            describe_all(&findings_on_host(
                DEBIAN,
                &[],
                &advisories,
                &debian_kernels(),
                kernel,
                &[]
            )),
            ["CVE-2026-0001 linux 6.1.76-1 affected: open"]
        );
    }
}

#[test]
fn kernel_without_package_is_unassessed() {
    let foreign = |kernel| {
        let found = foreign_kernel(Family::Debian, &debian_kernels(), kernel);
        found.map(|one| format!("{} {}", one.package, one.reason))
    };
    assert_eq!(
        foreign(RunningKernel::Release("6.99-custom")).as_deref(),
        Some("6.99-custom runs, but belongs to no installed package")
    );
    assert_eq!(foreign(RunningKernel::Release("6.1.0-18-amd64")), None);
    assert_eq!(foreign(RunningKernel::Foreign), None, "a container runs its host's kernel");
    assert_eq!(foreign(RunningKernel::Unknown), None);
}

#[test]
fn removed_running_kernel_stays_until_reboot() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "linux", "6.1.76-1")])];
    let mut host = debian_kernels();
    let runs = RunningKernel::Release("6.1.0-17-amd64");
    let before = findings_on_host(DEBIAN, &[], &advisories, &host, runs, &[]);
    host.retain(|package| !package.name.contains("6.1.0-17"));
    let after = findings_on_host(DEBIAN, &before, &advisories, &host, runs, &[]);
    assert_eq!(
        describe_all(&after),
        ["CVE-2026-0001 linux 6.1.69-1 fixed 6.1.76-1: fixed_on_disk"]
    );
    let restarted = RunningKernel::Release("6.1.0-18-amd64");
    assert_eq!(
        describe_all(&findings_on_host(DEBIAN, &after, &advisories, &host, restarted, &[])),
        NOTHING
    );
}

#[test]
fn kernel_packages_of_each_distribution_are_recognized() {
    let arch = |texts: &[&str], arch: &str| {
        let mut packages = packages(texts);
        packages.iter_mut().for_each(|package| package.arch = arch.to_owned());
        packages
    };
    let ubuntu = packages(&[
        "linux-image-5.15.0-91-generic 5.15.0-91.101 linux-signed 5.15.0-91.101",
        "linux-modules-5.15.0-91-generic 5.15.0-91.101 linux 5.15.0-91.101",
        "linux-image-unsigned-5.15.0-1050-aws 5.15.0-1050.55 linux-aws 5.15.0-1050.55",
        "linux-generic 5.15.0.91.88 linux-meta 5.15.0.91.88",
        "linux-firmware 20220329-1 linux-firmware 20220329-1",
    ]);
    let el9 = arch(
        &[
            "kernel 5.14.0-427.el9 kernel 5.14.0-427.el9",
            "kernel-core 5.14.0-427.el9 kernel 5.14.0-427.el9",
            "kernel-modules-core 5.14.0-427.el9 kernel 5.14.0-427.el9",
            "kernel-tools 5.14.0-427.el9 kernel 5.14.0-427.el9",
            "kernel-rt-core 5.14.0-427.el9 kernel 5.14.0-427.el9",
            "bpftool 7.3.0-427.el9 kernel 5.14.0-427.el9",
        ],
        "x86_64",
    );
    let leap = packages(&[
        "kernel-default 5.14.21-150500.55.44.1 kernel-default 5.14.21-150500.55.44.1",
        "kernel-firmware-all 2023-1 kernel-firmware 2023-1",
    ]);
    let alpine =
        packages(&["linux-lts 6.12.38-r0", "linux-lts-dev 6.12.38-r0 linux-lts 6.12.38-r0"]);
    for (family, base, source, host, uname) in [
        (Family::Ubuntu, "Ubuntu:22.04:LTS", "linux", &ubuntu, "5.15.0-91-generic"),
        (Family::Ubuntu, "Ubuntu:22.04:LTS", "linux-aws", &ubuntu, "5.15.0-1050-aws"),
        (Family::Rocky, "Rocky Linux:9", "kernel", &el9, "5.14.0-427.el9.x86_64"),
        (Family::Rocky, "Rocky Linux:9", "kernel", &el9, "5.14.0-427.el9.x86_64+rt"),
        (Family::AlmaLinux, "AlmaLinux:9", "kernel-core", &el9, "5.14.0-427.el9.x86_64"),
        (
            Family::OpenSuse,
            "openSUSE:Leap 15.5",
            "kernel-default",
            &leap,
            "5.14.21-150500.55.44-default",
        ),
        (Family::Alpine, "Alpine:v3.22", "linux-lts", &alpine, "6.12.38-0-lts"),
    ] {
        let advisories = [advisory_for_cve("A-1", &[unfixed(base, source)])];
        let settled = findings_on_host(
            (family, base),
            &[],
            &advisories,
            host,
            RunningKernel::Release(uname),
            &[],
        );
        assert_eq!(settled.len(), 1, "{base} {uname}: {:?}", describe_all(&settled));
        let boots = settled[0].finding.package.kernel.as_ref().unwrap();
        assert!(boots.matches(uname), "{boots} {uname}");
    }
    let firmware = [advisory_for_cve("A-1", &[unfixed("Ubuntu:22.04:LTS", "linux-firmware")])];
    assert_eq!(
        report("Ubuntu:22.04:LTS", &firmware, &ubuntu).findings.len(),
        1,
        "linux-firmware is not a kernel"
    );
    let older = arch(&["kernel 3.10.0-1160.el7 kernel 3.10.0-1160.el7"], "x86_64");
    let advisories = [advisory_for_cve("A-1", &[unfixed("AlmaLinux:9", "kernel")])];
    assert_eq!(
        report("AlmaLinux:9", &advisories, &older).findings.len(),
        1,
        "there is no separate image"
    );
    assert_eq!(
        report("AlmaLinux:9", &advisories, &el9).findings.len(),
        0,
        "the image is a separate package"
    );
}

#[test]
fn backported_kernel_is_unassessed() {
    let advisories = [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "linux", "6.1.82-1")])];
    let host = packages(&[
        "linux-image-6.6.13+bpo-amd64 6.6.13-1~bpo12+1 linux-signed-amd64 6.6.13+1~bpo12+1",
    ]);
    let report = report("Debian:12", &advisories, &host);
    assert_eq!((report.findings.len(), report.unassessed.len()), (0, 1));
}

// Old code of other packages.

#[test]
fn library_is_fixed_on_disk_until_restart() {
    let advisories =
        [advisory_for_cve("DSA-1-1", &[fixed("Debian:12", "openssl", "3.0.11-1~deb12u2")])];
    let old = packages(&["libssl3 3.0.11-1~deb12u1 openssl 3.0.11-1~deb12u1"]);
    let new = packages(&["libssl3 3.0.11-1~deb12u2 openssl 3.0.11-1~deb12u2"]);
    let at = |before: &[ServerFinding], host: &[Installed], old_code: &[&str]| {
        findings_on_host(DEBIAN, before, &advisories, host, RunningKernel::Unknown, old_code)
    };
    let open = at(&[], &old, &[]);
    assert_eq!(
        describe_all(&open),
        ["CVE-2026-0001 openssl 3.0.11-1~deb12u1 fixed 3.0.11-1~deb12u2: open"]
    );
    let on_disk = at(&open, &new, &["libssl3"]);
    assert_eq!(
        describe_all(&on_disk),
        ["CVE-2026-0001 openssl 3.0.11-1~deb12u1 fixed 3.0.11-1~deb12u2: fixed_on_disk"]
    );
    assert_eq!(at(&on_disk, &new, &["libssl3"]), on_disk, "no change until the restart");
    assert_eq!(describe_all(&at(&on_disk, &new, &[])), NOTHING);
    assert_eq!(describe_all(&at(&open, &new, &["other"])), NOTHING, "no process ran it");
    assert_eq!(
        describe_all(&at(&on_disk, &old, &["libssl3"])),
        describe_all(&open),
        "a downgrade reopens it"
    );
}

#[test]
fn withdrawn_cve_does_not_linger() {
    let advisories = [advisory_for_cve("DSA-1-1", &[unfixed("Debian:12", "openssl")])];
    let host = packages(&["openssl 3.0.11-1"]);
    let open = findings_on_host(DEBIAN, &[], &advisories, &host, RunningKernel::Unknown, &[]);
    assert_eq!(open.len(), 1);
    // The advisory is withdrawn, nothing is installed, and old code of another update is running.
    assert_eq!(
        describe_all(&findings_on_host(
            DEBIAN,
            &open,
            &[],
            &host,
            RunningKernel::Unknown,
            &["openssl"]
        )),
        NOTHING
    );
}
