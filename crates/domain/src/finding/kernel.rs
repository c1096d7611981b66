//! Kernel packages: which packages are kernels, and which kernel is running.
//!
//! Several kernels may be installed at once, and only the booted one matters. Packages that are
//! built with a kernel, such as headers, modules and tools, are not matched: they would repeat
//! every CVE of the kernel, even on servers that do not run it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::Installed;

use crate::advisory::Family;

use super::version::strip_epoch;

/// The release of a kernel, as `uname -r` prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelRelease(String);

impl KernelRelease {
    /// Whether this is the running kernel.
    pub fn matches(&self, uname: &str) -> bool {
        self.0 == uname
    }
}

impl fmt::Display for KernelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The relation of a package to a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KernelRole {
    /// It is not related to a kernel.
    None,
    /// It is a kernel image.
    Image(KernelRelease),
    /// It was built with a kernel, or only depends on one.
    Companion,
}

pub(super) fn kernel_role(family: Family, package: &Installed) -> KernelRole {
    match family {
        Family::Debian | Family::Ubuntu => deb(family, package),
        Family::AlmaLinux | Family::Rocky | Family::RedHat | Family::OpenEuler => rpm(package),
        Family::Suse | Family::OpenSuse => suse(package),
        Family::Alpine => apk(package),
        Family::Mageia => mageia(package),
        Family::AzureLinux => azure(package),
        Family::Amazon => amazon(package),
        Family::Oracle => oracle(package),
        Family::Arch => arch(package),
        // They have no kernel packages: both are for containers.
        Family::Wolfi | Family::Chainguard | Family::Other => KernelRole::None,
    }
}

/// The source package that advisories name. Signed kernels are built from separate source packages.
pub(super) fn advisory_source(family: Family, package: &Installed) -> Cow<'_, str> {
    let name = package.source();
    let Some(signed) = name.strip_prefix("linux-signed") else { return Cow::Borrowed(name) };
    let rest = signed.strip_prefix('-').unwrap_or(signed);
    let flavor = match family {
        // `linux-signed-amd64`, `linux-signed-6.1-amd64`: the architecture is not part of the name.
        Family::Debian => rest.rsplit_once('-').map_or("", |(flavour, _)| flavour),
        Family::Ubuntu => rest,
        _ => return Cow::Borrowed(name),
    };
    match flavor {
        "" => Cow::Borrowed("linux"),
        flavour => Cow::Owned(format!("linux-{flavour}")),
    }
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

fn deb(family: Family, package: &Installed) -> KernelRole {
    let (name, source) = (package.name.as_str(), package.source());
    let is_kernel_source = match source.strip_prefix("linux") {
        Some("") => true,
        Some(rest) if family == Family::Debian => {
            rest.starts_with("-signed-") || rest.strip_prefix('-').is_some_and(starts_with_digit)
        }
        // Dozens of flavors, each with its own source package, and few other source packages with
        // such a name.
        Some(rest) => {
            rest.starts_with('-')
                && name.starts_with("linux-")
                && !["-base", "-firmware", "-sound-base", "-atm"]
                    .iter()
                    .any(|other| rest.starts_with(other))
        }
        None => false,
    };
    if !is_kernel_source {
        return KernelRole::None;
    }
    let Some(image) = name.strip_prefix("linux-image-") else { return KernelRole::Companion };
    let image = image.strip_prefix("unsigned-").unwrap_or(image);
    let image = image.strip_suffix("-unsigned").unwrap_or(image);
    // `linux-image-amd64` only depends on an image, and `-dbg` cannot be booted.
    match starts_with_digit(image) && !image.ends_with("-dbg") {
        true => KernelRole::Image(KernelRelease(image.to_owned())),
        false => KernelRole::Companion,
    }
}

fn rpm(package: &Installed) -> KernelRole {
    let (name, source) = (package.name.as_str(), package.source());
    let is_kernel_source = source == "kernel"
        || (source.starts_with("kernel-") && source != "kernel-srpm-macros")
        || (name.starts_with("kernel-") && name.ends_with("-core"));
    if !is_kernel_source {
        return KernelRole::None;
    }
    let flavor = match name {
        "kernel" | "kernel-core" => "",
        _ => match name.strip_prefix("kernel-").and_then(|rest| rest.strip_suffix("-core")) {
            // `kernel-modules-core` is not an image.
            Some(flavour) if !flavour.starts_with("modules") && !flavour.contains("-modules") => {
                flavour
            }
            _ => return KernelRole::Companion,
        },
    };
    let base = format!("{}.{}", strip_epoch(&package.version), package.arch);
    let boots = match flavor {
        "" | "uek" => base,
        // Since release 9 the flavor is a suffix; before, it was part of the release.
        "rt" if base.contains(".rt") => base,
        flavour => format!("{base}+{}", flavour.replace('-', "_")),
    };
    KernelRole::Image(KernelRelease(boots))
}

fn suse(package: &Installed) -> KernelRole {
    let name = package.name.as_str();
    let source = package.source();
    let is_kernel_source = name.starts_with("kernel-")
        && source.starts_with("kernel-")
        && !source.starts_with("kernel-firmware");
    if !is_kernel_source {
        return KernelRole::None;
    }
    let flavor = name.trim_start_matches("kernel-").trim_end_matches("-base");
    let version = strip_epoch(&package.version);
    // The last number counts rebuilds and is not part of `uname -r`.
    match (
        ["default", "azure", "rt", "preempt", "64kb"].contains(&flavor),
        version.rsplit_once('.'),
    ) {
        (true, Some((build, _))) => KernelRole::Image(KernelRelease(format!("{build}-{flavor}"))),
        _ => KernelRole::Companion,
    }
}

fn apk(package: &Installed) -> KernelRole {
    const FLAVORS: [&str; 9] =
        ["lts", "virt", "rpi", "rpi2", "rpi4", "edge", "stable", "hardened", "openpax"];
    let flavor = |name: &str| {
        let rest = name.strip_prefix("linux-")?;
        FLAVORS.into_iter().find(|flavor| *flavor == rest)
    };
    match (flavor(package.source()), flavor(&package.name), package.version.rsplit_once("-r")) {
        (None, None, _) => KernelRole::None,
        (_, Some(flavour), Some((version, build))) => {
            KernelRole::Image(KernelRelease(format!("{version}-{build}-{flavour}")))
        }
        _ => KernelRole::Companion,
    }
}

/// Mageia puts the flavor between version and release: `6.6.22-desktop-1.mga9`.
fn mageia(package: &Installed) -> KernelRole {
    if package.source() != "kernel" {
        return KernelRole::None;
    }
    let flavor = package.name.strip_prefix("kernel-");
    match (flavor, strip_epoch(&package.version).split_once('-')) {
        (Some(flavor @ ("desktop" | "server")), Some((version, release))) => {
            KernelRole::Image(KernelRelease(format!("{version}-{flavor}-{release}")))
        }
        _ => KernelRole::Companion,
    }
}

/// Azure Linux's `uname -r` has no architecture: `6.6.57.1-7.azl3`.
fn azure(package: &Installed) -> KernelRole {
    match (package.source(), package.name.as_str()) {
        ("kernel", "kernel") => {
            KernelRole::Image(KernelRelease(strip_epoch(&package.version).to_owned()))
        }
        ("kernel", _) => KernelRole::Companion,
        _ => KernelRole::None,
    }
}

/// Amazon Linux names kernels of a newer series after it: `kernel6.12`, built from a source package
/// of the same name.
fn amazon(package: &Installed) -> KernelRole {
    let (name, source) = (package.name.as_str(), package.source());
    let is_kernel_source = source
        .strip_prefix("kernel")
        .is_some_and(|rest| rest.is_empty() || starts_with_digit(rest));
    match is_kernel_source {
        true if name == source => KernelRole::Image(rpm_release(package)),
        true => KernelRole::Companion,
        false => KernelRole::None,
    }
}

/// As Red Hat's kernels. Until the fifth series, `kernel-uek` itself is the image; since then,
/// `kernel-uek-core` is.
fn oracle(package: &Installed) -> KernelRole {
    match package.name.as_str() {
        "kernel-uek" => KernelRole::Image(rpm_release(package)),
        _ => rpm(package),
    }
}

fn rpm_release(package: &Installed) -> KernelRelease {
    KernelRelease(format!("{}.{}", strip_epoch(&package.version), package.arch))
}

/// Arch writes the kernel's local version with a hyphen in `uname -r` and with a dot in the package
/// version, and appends the flavor: `6.12.4.zen1-1` boots as `6.12.4-zen1-1-zen`.
fn arch(package: &Installed) -> KernelRole {
    let flavor = match package.name.as_str() {
        "linux" => "",
        "linux-lts" => "-lts",
        "linux-zen" => "-zen",
        "linux-hardened" => "-hardened",
        name => {
            let is_companion = ["-headers", "-docs"].iter().any(|end| {
                name.strip_suffix(end).is_some_and(|kernel| {
                    ["linux", "linux-lts", "linux-zen", "linux-hardened"].contains(&kernel)
                })
            });
            return if is_companion { KernelRole::Companion } else { KernelRole::None };
        }
    };
    let version = strip_epoch(&package.version);
    let local = [".arch", ".zen", ".hardened"].iter().find_map(|mark| version.find(mark));
    let uname = match local {
        Some(at) => format!("{}-{}{flavor}", &version[..at], &version[at + 1..]),
        None => format!("{version}{flavor}"),
    };
    KernelRole::Image(KernelRelease(uname))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::packages;
    use super::*;

    #[test]
    fn kernel_release_matches_uname() {
        for (family, package, uname) in [
            (Family::Arch, "linux 6.12.4.arch1-1", "6.12.4-arch1-1"),
            (Family::Arch, "linux-zen 6.12.4.zen1-1", "6.12.4-zen1-1-zen"),
            (Family::Arch, "linux-hardened 6.11.11.hardened1-1", "6.11.11-hardened1-1-hardened"),
            (Family::Arch, "linux-lts 6.6.64-1", "6.6.64-1-lts"),
            (
                Family::AzureLinux,
                "kernel 6.6.57.1-7.azl3 kernel 6.6.57.1-7.azl3",
                "6.6.57.1-7.azl3",
            ),
            (
                Family::Mageia,
                "kernel-desktop 6.6.22-1.mga9 kernel 6.6.22-1.mga9",
                "6.6.22-desktop-1.mga9",
            ),
            (
                Family::Amazon,
                "kernel 4.14.336-257.562.amzn2 kernel 4.14.336-257.562.amzn2",
                "4.14.336-257.562.amzn2.amd64",
            ),
            (
                Family::Amazon,
                "kernel6.12 6.12.22-27.96.amzn2023 kernel6.12 6.12.22-27.96.amzn2023",
                "6.12.22-27.96.amzn2023.amd64",
            ),
            (
                Family::Oracle,
                "kernel-uek 5.4.17-2136.1.el8uek kernel-uek 5.4.17-2136.1.el8uek",
                "5.4.17-2136.1.el8uek.amd64",
            ),
            (
                Family::Oracle,
                "kernel-core 5.14.0-427.el9 kernel 5.14.0-427.el9",
                "5.14.0-427.el9.amd64",
            ),
        ] {
            let package = packages(&[package]).remove(0);
            assert_eq!(
                kernel_role(family, &package),
                KernelRole::Image(KernelRelease(uname.to_owned())),
                "{uname}"
            );
        }
        for (family, package, expected) in [
            (Family::Arch, "linux-headers 6.12.4.arch1-1", KernelRole::Companion),
            (Family::Arch, "linux-firmware 20260801-1", KernelRole::None),
            (Family::Arch, "linux-api-headers 6.10-1", KernelRole::None),
            (
                Family::AzureLinux,
                "kernel-devel 6.6.57.1-7.azl3 kernel 6.6.57.1-7.azl3",
                KernelRole::Companion,
            ),
            (
                Family::Mageia,
                "kernel-desktop-devel 6.6.22-1.mga9 kernel 6.6.22-1.mga9",
                KernelRole::Companion,
            ),
            (Family::Mageia, "bash 5.2-1.mga9 bash 5.2-1.mga9", KernelRole::None),
            (
                Family::Amazon,
                "kernel6.12-devel 6.12.22-1.amzn2023 kernel6.12 6.12.22-1.amzn2023",
                KernelRole::Companion,
            ),
            (
                Family::Amazon,
                "kernel-livepatch-6.1.1 1.0-1.amzn2023 kernel-livepatch-6.1.1 1.0-1.amzn2023",
                KernelRole::None,
            ),
            (
                Family::Oracle,
                "kernel-uek-devel 5.4.17-1.el8uek kernel-uek 5.4.17-1.el8uek",
                KernelRole::Companion,
            ),
        ] {
            let package = packages(&[package]).remove(0);
            assert_eq!(kernel_role(family, &package), expected, "{}", package.name);
        }
    }
}
