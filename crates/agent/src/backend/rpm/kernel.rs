//! Whether a newer kernel is installed than the one that runs, from names and versions alone: the
//! managers' own checks are plugins that many hosts do not have.

use vocab::Line;
use vocab::listing::Installed;

/// Whether this is a kernel or a part of one, of which several versions may be installed.
pub(crate) fn is_kernel_package(name: &str) -> bool {
    name == "kernel" || name.starts_with("kernel-") || name.starts_with("kmod-")
}

/// A reason to reboot: the package of the running kernel is installed in a newer version too.
///
/// Where no package has the running kernel, as in a container, there is no reason.
pub(crate) fn newer_than_running(installed: &[Installed], running: &str) -> Option<Line> {
    let kernels = || installed.iter().filter(|package| is_image(&package.name));
    let boots = kernels().find(|package| is_release_of(running, package))?;
    let newest = kernels()
        .filter(|package| package.name == boots.name && package.arch == boots.arch)
        .max_by(|a, b| pkgver::rpm::compare(&a.version, &b.version))?;
    if newest.version == boots.version {
        return None;
    }
    let (name, new, old) = (&newest.name, &newest.version, &boots.version);
    Some(format!("{name} {new} is installed, and {old} is running").into())
}

/// Whether this package holds what is booted. `kernel` itself is an empty package where there is a
/// `kernel-core`, in the same version.
fn is_image(name: &str) -> bool {
    let parts =
        ["-devel", "-headers", "-modules", "-tools", "-extra", "-internal", "-source", "-doc"];
    is_kernel_package(name)
        && !name.starts_with("kmod-")
        && !parts.iter().any(|part| name.contains(part))
}

/// Whether `uname -r` is this package's. Red Hat's is `5.14.0-70.el9.x86_64`, or with `+rt` after it for
/// `kernel-rt-core`; SUSE's is `5.14.21-150500.55.19-default` for `kernel-default` 5.14.21-150500.55.19.1.
fn is_release_of(running: &str, package: &Installed) -> bool {
    let (plain, variant) = running.split_once('+').unwrap_or((running, ""));
    let same_kind = match variant {
        "" => !VARIANTS.iter().any(|variant| package.name.contains(variant)),
        _ => package.name.contains(&format!("-{variant}-")),
    };
    if same_kind && plain == format!("{}.{}", package.version, package.arch) {
        return true;
    }
    running.rsplit_once('-').is_some_and(|(version, flavour)| {
        package.name == format!("kernel-{flavour}")
            && package
                .version
                .strip_prefix(version)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Red Hat's variants of a kernel, which have the version of the usual one.
const VARIANTS: [&str; 4] = ["-rt-", "-debug-", "-64k-", "-16k-"];

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(running: &str, packages: &[(&str, &str)]) -> Option<String> {
        let list: Vec<Installed> = packages
            .iter()
            .map(|(name, version)| Installed::new(name, version, "x86_64"))
            .collect();
        newer_than_running(&list, running).map(|line| line.to_string())
    }

    #[test]
    fn a_kernel_that_was_installed_and_not_booted_is_a_reason() {
        let el9 = [
            ("kernel-core", "5.14.0-70.el9"),
            ("kernel-core", "5.14.0-162.el9"),
            ("kernel-modules", "5.14.0-162.el9"),
            ("bash", "5.1.8-6.el9"),
        ];
        assert_eq!(
            reason("5.14.0-70.el9.x86_64", &el9).as_deref(),
            Some("kernel-core 5.14.0-162.el9 is installed, and 5.14.0-70.el9 is running")
        );
        assert_eq!(reason("5.14.0-162.el9.x86_64", &el9), None);
        assert_eq!(reason("6.1.0-37-amd64", &el9), None, "a container of another kernel");
    }

    #[test]
    fn variants_of_a_kernel_are_compared_with_themselves() {
        let both = [
            ("kernel-core", "5.14.0-162.el9"),
            ("kernel-rt-core", "5.14.0-70.el9"),
            ("kernel-rt-core", "5.14.0-80.el9"),
        ];
        assert_eq!(
            reason("5.14.0-70.el9.x86_64+rt", &both).as_deref(),
            Some("kernel-rt-core 5.14.0-80.el9 is installed, and 5.14.0-70.el9 is running")
        );
        assert_eq!(reason("5.14.0-162.el9.x86_64", &both), None);
    }

    #[test]
    fn the_kernel_of_suse_is_found_by_its_flavour() {
        let sles = [
            ("kernel-default", "5.14.21-150500.55.19.1"),
            ("kernel-default", "5.14.21-150500.55.22.1"),
            ("kernel-azure", "5.14.21-150500.55.99.1"),
        ];
        assert_eq!(
            reason("5.14.21-150500.55.19-default", &sles).as_deref(),
            Some(
                "kernel-default 5.14.21-150500.55.22.1 is installed, and 5.14.21-150500.55.19.1 is running"
            )
        );
        assert_eq!(reason("5.14.21-150500.55.22-default", &sles), None);
        assert_eq!(reason("5.14.21-150500.55.1-default", &sles), None, "55.19 is not 55.1");
    }
}
