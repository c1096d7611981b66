//! Detects whether a newer kernel than the running one is installed, from names and versions alone:
//! the package managers' own checks are plugins that many hosts do not have.

use vocab::Line;
use vocab::listing::Installed;

/// Whether this is a kernel package, of which several versions may be installed.
pub(crate) fn is_kernel_package(name: &str) -> bool {
    name == "kernel" || name.starts_with("kernel-") || name.starts_with("kmod-")
}

/// A reason to reboot: the package of the running kernel is also installed in a newer version.
///
/// `None` if no package contains the running kernel, as in a container.
pub(crate) fn newer_kernel_reason(installed: &[Installed], running: &str) -> Option<Line> {
    let kernels = || installed.iter().filter(|package| is_image(&package.name));
    let boots = kernels().find(|package| provides_release(running, package))?;
    let newest = kernels()
        .filter(|package| package.name == boots.name && package.arch == boots.arch)
        .max_by(|a, b| pkgver::rpm::compare(&a.version, &b.version))?;
    if newest.version == boots.version {
        return None;
    }
    let (name, new, old) = (&newest.name, &newest.version, &boots.version);
    Some(format!("{name} {new} is installed, but {old} is running").into())
}

/// Whether this package contains a bootable kernel. Where there is a `kernel-core`, `kernel` is an
/// empty package with the same version.
fn is_image(name: &str) -> bool {
    let parts =
        ["-devel", "-headers", "-modules", "-tools", "-extra", "-internal", "-source", "-doc"];
    is_kernel_package(name)
        && !name.starts_with("kmod-")
        && !parts.iter().any(|part| name.contains(part))
}

/// Whether `uname -r` belongs to this package. Red Hat's is `5.14.0-70.el9.x86_64`, with `+rt`
/// appended for `kernel-rt-core`; SUSE's is `5.14.21-150500.55.19-default` for `kernel-default`
/// 5.14.21-150500.55.19.1.
fn provides_release(running: &str, package: &Installed) -> bool {
    let (plain, variant) = running.split_once('+').unwrap_or((running, ""));
    let same_kind = match variant {
        "" => !VARIANTS.iter().any(|variant| package.name.contains(variant)),
        _ => package.name.contains(&format!("-{variant}-")),
    };
    if same_kind && plain == format!("{}.{}", package.version, package.arch) {
        return true;
    }
    running.rsplit_once('-').is_some_and(|(version, flavor)| {
        package.name == format!("kernel-{flavor}")
            && package
                .version
                .strip_prefix(version)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Red Hat's kernel variants, which have the same version as the standard kernel.
const VARIANTS: [&str; 4] = ["-rt-", "-debug-", "-64k-", "-16k-"];

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(running: &str, packages: &[(&str, &str)]) -> Option<String> {
        let list: Vec<Installed> = packages
            .iter()
            .map(|(name, version)| Installed::new(name, version, "x86_64"))
            .collect();
        newer_kernel_reason(&list, running).map(|line| line.to_string())
    }

    #[test]
    fn installed_newer_kernel_requires_a_reboot() {
        let el9 = [
            ("kernel-core", "5.14.0-70.el9"),
            ("kernel-core", "5.14.0-162.el9"),
            ("kernel-modules", "5.14.0-162.el9"),
            ("bash", "5.1.8-6.el9"),
        ];
        assert_eq!(
            reason("5.14.0-70.el9.x86_64", &el9).as_deref(),
            Some("kernel-core 5.14.0-162.el9 is installed, but 5.14.0-70.el9 is running")
        );
        assert_eq!(reason("5.14.0-162.el9.x86_64", &el9), None);
        assert_eq!(reason("6.1.0-37-amd64", &el9), None, "a container on a foreign kernel");
    }

    #[test]
    fn kernel_variants_are_compared_separately() {
        let both = [
            ("kernel-core", "5.14.0-162.el9"),
            ("kernel-rt-core", "5.14.0-70.el9"),
            ("kernel-rt-core", "5.14.0-80.el9"),
        ];
        assert_eq!(
            reason("5.14.0-70.el9.x86_64+rt", &both).as_deref(),
            Some("kernel-rt-core 5.14.0-80.el9 is installed, but 5.14.0-70.el9 is running")
        );
        assert_eq!(reason("5.14.0-162.el9.x86_64", &both), None);
    }

    #[test]
    fn suse_kernel_is_found_by_its_flavor() {
        let sles = [
            ("kernel-default", "5.14.21-150500.55.19.1"),
            ("kernel-default", "5.14.21-150500.55.22.1"),
            ("kernel-azure", "5.14.21-150500.55.99.1"),
        ];
        assert_eq!(
            reason("5.14.21-150500.55.19-default", &sles).as_deref(),
            Some(
                "kernel-default 5.14.21-150500.55.22.1 is installed, but 5.14.21-150500.55.19.1 is running"
            )
        );
        assert_eq!(reason("5.14.21-150500.55.22-default", &sles), None);
        assert_eq!(reason("5.14.21-150500.55.1-default", &sles), None, "55.19 is not 55.1");
    }
}
