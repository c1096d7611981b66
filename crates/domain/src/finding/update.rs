//! Determines which findings a pending update closes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use pkgver::Scheme;
use vocab::{Exposure, FixState, Installed, Pending};

use crate::advisory::{Family, PackageNameKind};

use super::kernel;
use super::kernel::KernelRole;
use super::version::{VersionRule, strip_epoch};
use super::{Binary, Finding, ServerFinding};

/// Returns the findings of a server that each of its pending updates closes: one list per update,
/// in their order.
///
/// Excludes findings that are fixed on disk, because they no longer need an update, and findings of
/// unknown state, because an update may not fix them.
pub fn closed_findings<'a>(
    family: Family,
    packages: &[Installed],
    findings: &'a [ServerFinding],
    pending: &[Pending],
) -> Vec<Vec<&'a Finding>> {
    let mut named: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    let mut kernels: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    let counts = |one: &&ServerFinding| {
        one.exposure == Exposure::Open
            && one.finding.fixed_version.is_some()
            && one.finding.state != FixState::Unknown
            && !one.finding.state.is_hidden()
    };
    for ServerFinding { finding, .. } in findings.iter().filter(counts) {
        // All architectures of one package are updated together.
        let mut last = None;
        for binary in &finding.package.binaries {
            if last.replace(&binary.name) != Some(&binary.name) {
                named.entry(&binary.name).or_default().push(finding);
            }
        }
        if finding.package.kernel.is_some() {
            kernels.entry(&finding.package.source).or_default().push(finding);
        }
    }
    let closed_by = |update: &Pending| -> Vec<&'a Finding> {
        if let Some(known) = named.get(update.name.as_str()) {
            let closes = |one: &&&Finding| {
                closes(one, family, &update.name, &update.candidate) == Some(true)
            };
            return known.iter().filter(closes).copied().collect();
        }
        let source = updated_kernel_source(family, packages, update);
        let known = source.and_then(|source| kernels.get(source.as_ref()));
        known
            .into_iter()
            .flatten()
            .filter(|one| match family {
                Family::Ubuntu => reaches_fixed_build(one, &update.candidate),
                _ => reaches_fix(one, family, &update.candidate),
            })
            .copied()
            .collect()
    };
    pending.iter().map(closed_by).collect()
}

/// Returns the packages with pending security updates: the package manager marks the update, or the
/// update closes a finding, as `closes` states for each update in order. By name, because all
/// architectures of one package are updated together.
pub fn security_packages(
    pending: &[Pending],
    closes: impl IntoIterator<Item = bool>,
) -> BTreeSet<&str> {
    let each = pending.iter().zip(closes);
    each.filter(|(update, closes)| update.security || *closes)
        .map(|(update, _)| update.name.as_str())
        .collect()
}

/// Returns the source package of the kernel that an update installs: a new kernel has a new package
/// name, and the package that is updated is the metapackage that depends on the newest kernel.
fn updated_kernel_source<'a>(
    family: Family,
    packages: &'a [Installed],
    update: &Pending,
) -> Option<Cow<'a, str>> {
    if !update.name.starts_with("linux-image-") {
        return None;
    }
    let package = packages.iter().find(|package| package.name == update.name)?;
    if kernel::kernel_role(family, package) != KernelRole::Companion {
        return None;
    }
    match family {
        Family::Debian => Some(kernel::advisory_source(family, package)),
        // Ubuntu's metapackages have their own source packages: `linux-meta-aws` depends on what is
        // built from `linux-aws`. A metapackage may be rebuilt for the same kernel as before.
        Family::Ubuntu if kernel_build(&update.candidate)? > kernel_build(&package.version)? => {
            let rest = package.source().strip_prefix("linux-meta")?;
            Some(Cow::Owned(format!("linux{rest}")))
        }
        _ => None,
    }
}

/// Returns the upstream version and build number of an Ubuntu kernel, which the kernel and its
/// metapackage have in common: 5.15.0 and 100 for the kernel `5.15.0-100.110` and its metapackage
/// `5.15.0.100.97`, in later releases `6.8.0-100.100`.
fn kernel_build(version: &str) -> Option<[u64; 4]> {
    let mut numbers = strip_epoch(version).split(['.', '-']).map_while(|part| part.parse().ok());
    let mut next = || numbers.next();
    Some([next()?, next()?, next()?, next()?])
}

fn reaches_fixed_build(finding: &Finding, version: &str) -> bool {
    let fixed = finding.fixed_version.as_deref().and_then(kernel_build);
    kernel_build(version).zip(fixed).is_some_and(|(offered, fixed)| offered >= fixed)
}

fn reaches_fix(finding: &Finding, family: Family, version: &str) -> bool {
    let Some((scheme, fixed)) = family.scheme().zip(finding.fixed_version.as_ref()) else {
        return false;
    };
    let epochs = family.writes_epochs() && !finding.package.epoch_unknown;
    VersionRule { scheme, epochs }.compare(version, fixed).is_ge()
}

/// Returns whether installing `candidate` of the package `name` closes a finding. `None` if that is
/// unknown, because a pending update does not report the version of its source package and it
/// cannot be inferred.
///
/// This is also what makes an update a security update: a fix lies between the installed and the
/// offered version, whichever repository offers it.
pub fn closes(finding: &Finding, family: Family, name: &str, candidate: &str) -> Option<bool> {
    let scheme = family.scheme()?;
    let binary = finding.package.binaries.iter().find(|binary| binary.name == name)?;
    let Some(fixed) = &finding.fixed_version else { return Some(false) };
    let rule =
        VersionRule { scheme, epochs: family.writes_epochs() && !finding.package.epoch_unknown };
    let by_source =
        finding.found.names == PackageNameKind::Source && finding.package.kernel.is_none();
    let candidate = match by_source {
        true => source_version(scheme, binary, &finding.package.version, candidate)?,
        false => Cow::Borrowed(candidate),
    };
    Some(rule.compare(&candidate, fixed).is_ge())
}

/// Returns the version of the source package that `candidate` was most likely built from, by
/// applying to the candidate what turns the installed version into its source version.
fn source_version<'a>(
    scheme: Scheme,
    installed: &Binary,
    source: &str,
    candidate: &'a str,
) -> Option<Cow<'a, str>> {
    let plain = |version: &'a str| match scheme {
        Scheme::Deb => strip_rebuild(version),
        _ => version,
    };
    let own = match scheme {
        Scheme::Deb => strip_rebuild(&installed.version),
        _ => installed.version.as_str(),
    };
    if own == source {
        return Some(Cow::Borrowed(plain(candidate)));
    }
    // Some packages have another epoch than their source package.
    (strip_epoch(own) == strip_epoch(source)).then(|| {
        let epoch = source.split_once(':').map_or("0", |(epoch, _)| epoch);
        Cow::Owned(format!("{epoch}:{}", strip_epoch(plain(candidate))))
    })
}

/// `1.2-3` for `1.2-3+b1`: a rebuild of the same source.
fn strip_rebuild(version: &str) -> &str {
    match version.rsplit_once("+b") {
        Some((rest, count)) if !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()) => {
            rest
        }
        _ => version,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{advisory, fixed, packages, report, unfixed, with_stance};
    use super::super::{RunningKernel, RuntimeState, apply_runtime_state};
    use super::*;
    use crate::advisory::{Advisory, Ecosystem};

    fn closed_cves(
        advisories: &[Advisory],
        host: &[&str],
        kernel: &str,
        pending: &[(&str, &str)],
    ) -> Vec<Vec<String>> {
        closed_cves_on("Debian:12", advisories, host, kernel, pending)
    }

    fn closed_cves_on(
        base: &str,
        advisories: &[Advisory],
        host: &[&str],
        kernel: &str,
        pending: &[(&str, &str)],
    ) -> Vec<Vec<String>> {
        let host = packages(host);
        let findings = report(base, advisories, &host).findings;
        let old_code = BTreeSet::new();
        let runtime_state =
            RuntimeState { kernel: RunningKernel::Release(kernel), old_code: &old_code };
        let family = Ecosystem::new(base).family();
        let settled = apply_runtime_state(family, &[], &findings, &host, &runtime_state);
        let update = |(name, to): &(&str, &str)| Pending::new(name, "amd64", "", to);
        let pending: Vec<Pending> = pending.iter().map(update).collect();
        let closed = closed_findings(family, &host, &settled, &pending);
        let ids = |some: &Vec<&Finding>| some.iter().map(|one| one.cve.to_string()).collect();
        closed.iter().map(ids).collect()
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn update_closes_only_cves_fixed_in_its_version() {
        let advisories = [
            advisory("DSA-1", &["CVE-1"], &[fixed("Debian:12", "curl", "7.88.1-10+deb12u4")]),
            advisory("DSA-2", &["CVE-2"], &[fixed("Debian:12", "curl", "7.88.1-10+deb12u9")]),
            advisory("DSA-3", &["CVE-3"], &[unfixed("Debian:12", "curl")]),
        ];
        let host = ["curl 7.88.1-10", "libcurl4 7.88.1-10 curl 7.88.1-10", "vim 9.0"];
        let pending =
            [("curl", "7.88.1-10+deb12u5"), ("libcurl4", "7.88.1-10+deb12u9"), ("vim", "9.1")];
        let closed = closed_cves(&advisories, &host, "6.1.0-18-amd64", &pending);
        assert_eq!(closed[0], ["CVE-1"]);
        assert_eq!(closed[1], ["CVE-1", "CVE-2"]);
        assert_eq!(closed[2], NONE);
    }

    #[test]
    fn harmless_and_unassessed_findings_are_not_closed() {
        let harmless = with_stance(fixed("Debian:12", "vim", "9.1"), FixState::Unimportant);
        let advisories = [
            advisory("DSA-1", &["CVE-1"], &[harmless]),
            advisory("DSA-2", &["CVE-2"], &[fixed("Debian:12", "php", "8.2")]),
        ];
        let host = ["vim 9.0", "php 8.1+deb.sury.org~1"];
        let closed = closed_cves(&advisories, &host, "", &[("vim", "9.1"), ("php", "8.3")]);
        assert_eq!(closed, [Vec::<String>::new(), Vec::new()]);
    }

    #[test]
    fn kernel_metapackage_update_closes_running_kernel_cves() {
        let advisories = [
            advisory("DSA-1", &["CVE-1"], &[fixed("Debian:12", "linux", "6.1.76-1")]),
            advisory("DSA-2", &["CVE-2"], &[fixed("Debian:12", "linux", "6.1.82-1")]),
        ];
        let host = [
            "linux-image-6.1.0-17-amd64 6.1.69-1 linux-signed-amd64 6.1.69+1",
            "linux-image-6.1.0-18-amd64 6.1.76-1 linux-signed-amd64 6.1.76+1",
            "linux-image-amd64 6.1.76-1 linux-signed-amd64 6.1.76+1",
            "linux-headers-amd64 6.1.76-1 linux-signed-amd64 6.1.76+1",
        ];
        let pending = [("linux-image-amd64", "6.1.85-1"), ("linux-headers-amd64", "6.1.85-1")];
        let by = |kernel| closed_cves(&advisories, &host, kernel, &pending);
        assert_eq!(by("6.1.0-18-amd64"), [vec!["CVE-2".to_owned()], Vec::new()]);
        let old = by("6.1.0-17-amd64");
        assert_eq!(old[0], ["CVE-2"], "the other is fixed on disk and waits for a reboot");
        let earlier = [("linux-image-amd64", "6.1.80-1")];
        assert_eq!(closed_cves(&advisories, &host, "6.1.0-18-amd64", &earlier)[0], NONE);
    }

    #[test]
    fn ubuntu_metapackage_closes_cves_of_its_kernel_build() {
        const BASE: &str = "Ubuntu:22.04:LTS";
        let advisories = [
            advisory("USN-1-1", &["CVE-1"], &[fixed(BASE, "linux", "5.15.0-100.110")]),
            advisory("USN-2-1", &["CVE-2"], &[fixed(BASE, "linux", "5.15.0-105.115")]),
            advisory("USN-3-1", &["CVE-3"], &[fixed(BASE, "linux-aws", "5.15.0-1.1")]),
        ];
        let host = [
            "linux-image-5.15.0-97-generic 5.15.0-97.107 linux-signed 5.15.0-97.107",
            "linux-image-generic 5.15.0.97.94 linux-meta 5.15.0.97.94",
        ];
        let by = |to| {
            let pending = [("linux-image-generic", to)];
            closed_cves_on(BASE, &advisories, &host, "5.15.0-97-generic", &pending).remove(0)
        };
        assert_eq!(by("5.15.0.100.97"), ["CVE-1"]);
        assert_eq!(by("5.15.0.106.104"), ["CVE-1", "CVE-2"]);
        assert_eq!(by("5.15.0.99.96"), NONE);
        assert_eq!(by("5.15.0.97.95"), NONE, "rebuilt for the same kernel");
        let aws = [
            "linux-image-6.8.0-1020-aws 6.8.0-1020.22 linux-signed-aws 6.8.0-1020.22",
            "linux-image-aws 6.8.0-1020.22 linux-meta-aws 6.8.0-1020.22",
        ];
        let later = [advisory("USN-4-1", &["CVE-4"], &[fixed(BASE, "linux-aws", "6.8.0-1021.23")])];
        let pending = [("linux-image-aws", "6.8.0-1021.23")];
        let closed = closed_cves_on(BASE, &later, &aws, "6.8.0-1020-aws", &pending);
        assert_eq!(closed, [["CVE-4"]]);
    }
}
