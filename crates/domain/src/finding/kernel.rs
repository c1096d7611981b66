//! Kernel packages: which packages are kernels, and which kernel is running.
//!
//! Several kernels may be installed at once, and only the booted one matters. Packages that are
//! built with a kernel, such as headers, modules and tools, would report every CVE of the kernel
//! again on servers that do not run it; they are not matched.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::Installed;

use crate::advisory::Family;

use super::version::without_epoch;

/// The release of a kernel, as `uname -r` prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Boots(String);

impl Boots {
    /// Whether this is the running kernel.
    pub fn is(&self, uname: &str) -> bool {
        self.0 == uname
    }
}

impl fmt::Display for Boots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The relation of a package to a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// It is not related to a kernel.
    None,
    /// It is a kernel image.
    Image(Boots),
    /// It was built with a kernel, or only depends on one.
    Beside,
}

pub(super) fn role(family: Family, package: &Installed) -> Role {
    match family {
        Family::Debian | Family::Ubuntu => deb(family, package),
        Family::AlmaLinux | Family::Rocky | Family::RedHat | Family::OpenEuler => rpm(package),
        Family::Suse | Family::OpenSuse => suse(package),
        Family::Alpine => apk(package),
        Family::Mageia => mageia(package),
        Family::AzureLinux => azure(package),
        Family::Arch => arch(package),
        Family::Other => Role::None,
    }
}

/// The source package that advisories name. Signed kernels are built from separate source packages.
pub(super) fn source(family: Family, package: &Installed) -> Cow<'_, str> {
    let said = package.source();
    let Some(signed) = said.strip_prefix("linux-signed") else { return Cow::Borrowed(said) };
    let rest = signed.strip_prefix('-').unwrap_or(signed);
    let flavour = match family {
        // `linux-signed-amd64`, `linux-signed-6.1-amd64`: the architecture is not part of the name.
        Family::Debian => rest.rsplit_once('-').map_or("", |(flavour, _)| flavour),
        Family::Ubuntu => rest,
        _ => return Cow::Borrowed(said),
    };
    match flavour {
        "" => Cow::Borrowed("linux"),
        flavour => Cow::Owned(format!("linux-{flavour}")),
    }
}

fn digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

fn deb(family: Family, package: &Installed) -> Role {
    let (name, source) = (package.name.as_str(), package.source());
    let kernels = match source.strip_prefix("linux") {
        Some("") => true,
        Some(rest) if family == Family::Debian => {
            rest.starts_with("-signed-") || rest.strip_prefix('-').is_some_and(digit)
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
    if !kernels {
        return Role::None;
    }
    let Some(image) = name.strip_prefix("linux-image-") else { return Role::Beside };
    let image = image.strip_prefix("unsigned-").unwrap_or(image);
    let image = image.strip_suffix("-unsigned").unwrap_or(image);
    // `linux-image-amd64` only depends on an image, and `-dbg` cannot be booted.
    match digit(image) && !image.ends_with("-dbg") {
        true => Role::Image(Boots(image.to_owned())),
        false => Role::Beside,
    }
}

fn rpm(package: &Installed) -> Role {
    let (name, source) = (package.name.as_str(), package.source());
    let kernels = source == "kernel"
        || (source.starts_with("kernel-") && source != "kernel-srpm-macros")
        || (name.starts_with("kernel-") && name.ends_with("-core"));
    if !kernels {
        return Role::None;
    }
    let flavour = match name {
        "kernel" | "kernel-core" => "",
        _ => match name.strip_prefix("kernel-").and_then(|rest| rest.strip_suffix("-core")) {
            // `kernel-modules-core` is not an image.
            Some(flavour) if !flavour.starts_with("modules") && !flavour.contains("-modules") => {
                flavour
            }
            _ => return Role::Beside,
        },
    };
    let base = format!("{}.{}", without_epoch(&package.version), package.arch);
    let boots = match flavour {
        "" | "uek" => base,
        // Since release 9 the flavor is a suffix; before, it was part of the release.
        "rt" if base.contains(".rt") => base,
        flavour => format!("{base}+{}", flavour.replace('-', "_")),
    };
    Role::Image(Boots(boots))
}

fn suse(package: &Installed) -> Role {
    let name = package.name.as_str();
    let source = package.source();
    let kernels = name.starts_with("kernel-")
        && source.starts_with("kernel-")
        && !source.starts_with("kernel-firmware");
    if !kernels {
        return Role::None;
    }
    let flavour = name.trim_start_matches("kernel-").trim_end_matches("-base");
    let version = without_epoch(&package.version);
    // The last number counts rebuilds and is not part of `uname -r`.
    match (
        ["default", "azure", "rt", "preempt", "64kb"].contains(&flavour),
        version.rsplit_once('.'),
    ) {
        (true, Some((build, _))) => Role::Image(Boots(format!("{build}-{flavour}"))),
        _ => Role::Beside,
    }
}

fn apk(package: &Installed) -> Role {
    const FLAVOURS: [&str; 9] =
        ["lts", "virt", "rpi", "rpi2", "rpi4", "edge", "stable", "hardened", "openpax"];
    let flavour = |name: &str| {
        let rest = name.strip_prefix("linux-")?;
        FLAVOURS.into_iter().find(|flavour| *flavour == rest)
    };
    match (flavour(package.source()), flavour(&package.name), package.version.rsplit_once("-r")) {
        (None, None, _) => Role::None,
        (_, Some(flavour), Some((version, build))) => {
            Role::Image(Boots(format!("{version}-{build}-{flavour}")))
        }
        _ => Role::Beside,
    }
}

/// Mageia puts the flavor between version and release: `6.6.22-desktop-1.mga9`.
fn mageia(package: &Installed) -> Role {
    if package.source() != "kernel" {
        return Role::None;
    }
    let flavor = package.name.strip_prefix("kernel-");
    match (flavor, without_epoch(&package.version).split_once('-')) {
        (Some(flavor @ ("desktop" | "server")), Some((version, release))) => {
            Role::Image(Boots(format!("{version}-{flavor}-{release}")))
        }
        _ => Role::Beside,
    }
}

/// Azure Linux's `uname -r` has no architecture: `6.6.57.1-7.azl3`.
fn azure(package: &Installed) -> Role {
    match (package.source(), package.name.as_str()) {
        ("kernel", "kernel") => Role::Image(Boots(without_epoch(&package.version).to_owned())),
        ("kernel", _) => Role::Beside,
        _ => Role::None,
    }
}

/// Arch writes the kernel's local version with a hyphen in `uname -r` and with a dot in the package
/// version, and appends the flavor: `6.12.4.zen1-1` boots as `6.12.4-zen1-1-zen`.
fn arch(package: &Installed) -> Role {
    let flavor = match package.name.as_str() {
        "linux" => "",
        "linux-lts" => "-lts",
        "linux-zen" => "-zen",
        "linux-hardened" => "-hardened",
        name => {
            let built_beside = ["-headers", "-docs"].iter().any(|end| {
                name.strip_suffix(end).is_some_and(|kernel| {
                    ["linux", "linux-lts", "linux-zen", "linux-hardened"].contains(&kernel)
                })
            });
            return if built_beside { Role::Beside } else { Role::None };
        }
    };
    let version = without_epoch(&package.version);
    let local = [".arch", ".zen", ".hardened"].iter().find_map(|mark| version.find(mark));
    let uname = match local {
        Some(at) => format!("{}-{}{flavor}", &version[..at], &version[at + 1..]),
        None => format!("{version}{flavor}"),
    };
    Role::Image(Boots(uname))
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
        ] {
            let package = packages(&[package]).remove(0);
            assert_eq!(role(family, &package), Role::Image(Boots(uname.to_owned())), "{uname}");
        }
        for (family, package, expected) in [
            (Family::Arch, "linux-headers 6.12.4.arch1-1", Role::Beside),
            (Family::Arch, "linux-firmware 20260801-1", Role::None),
            (Family::Arch, "linux-api-headers 6.10-1", Role::None),
            (
                Family::AzureLinux,
                "kernel-devel 6.6.57.1-7.azl3 kernel 6.6.57.1-7.azl3",
                Role::Beside,
            ),
            (
                Family::Mageia,
                "kernel-desktop-devel 6.6.22-1.mga9 kernel 6.6.22-1.mga9",
                Role::Beside,
            ),
            (Family::Mageia, "bash 5.2-1.mga9 bash 5.2-1.mga9", Role::None),
        ] {
            let package = packages(&[package]).remove(0);
            assert_eq!(role(family, &package), expected, "{}", package.name);
        }
    }
}
