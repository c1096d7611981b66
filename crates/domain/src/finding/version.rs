//! Versions as written by feeds and hosts: which ones can be read, and how they are compared.

use std::cmp::Ordering;

use pkgver::Scheme;

#[derive(Debug, Clone, Copy)]
pub(super) struct VersionRule {
    pub(super) scheme: Scheme,
    /// Whether epochs are compared.
    pub(super) epochs: bool,
}

impl VersionRule {
    pub(super) fn compare(self, a: &str, b: &str) -> Ordering {
        let (a, b) = (strip_none_epoch(a), strip_none_epoch(b));
        match self.epochs {
            true => self.scheme.compare(a, b),
            false => self.scheme.compare(strip_epoch(a), strip_epoch(b)),
        }
    }
}

/// rpm queries print `(none)` for a missing epoch.
fn strip_none_epoch(version: &str) -> &str {
    version.strip_prefix("(none):").unwrap_or(version)
}

/// `1.2-3` for `4:1.2-3`.
pub(super) fn strip_epoch(version: &str) -> &str {
    let version = strip_none_epoch(version);
    match version.split_once(':') {
        Some((epoch, rest)) if epoch.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => version,
    }
}

/// `4` for `4:1.2-3`; 0 without an epoch.
pub(super) fn epoch(version: &str) -> u64 {
    match strip_none_epoch(version).split_once(':') {
        Some((epoch, _)) => epoch.parse().unwrap_or(0),
        None => 0,
    }
}

/// Whether a text can be a version at all. Any two texts can be ordered, but the order is
/// meaningless if one of them is `<unfixed>` or a remark.
pub(super) fn is_readable_version(scheme: Scheme, version: &str) -> bool {
    let rest = strip_epoch(version);
    let extra = match scheme {
        Scheme::Deb => ".+~-:",
        Scheme::Rpm | Scheme::Pacman => "._+~^-:@",
        Scheme::Apk => "._~-",
    };
    let legal = |byte: u8| {
        extra.as_bytes().contains(&byte)
            || byte.is_ascii_digit()
            || byte.is_ascii_lowercase()
            || (byte.is_ascii_uppercase() && scheme != Scheme::Apk)
    };
    let starts = match scheme {
        Scheme::Deb | Scheme::Apk => rest.starts_with(|c: char| c.is_ascii_digit()),
        Scheme::Rpm | Scheme::Pacman => rest.starts_with(|c: char| c.is_ascii_alphanumeric()),
    };
    starts && rest.bytes().all(legal)
}

/// Whether a version belongs to a module: `1.module_el9.1.0+16+91bc168f`, `module+el8.9.0+…`.
pub(super) fn is_modular(version: &str) -> bool {
    module_token(version).is_some()
}

/// The module build that a version was built for: `module_el9.1.0`.
pub(super) fn module_token(version: &str) -> Option<&str> {
    let start = version.find("module_el").or_else(|| version.find("module+el"))?;
    let token = &version[start..];
    // The first plus sign of `module+el` belongs to the token.
    let end = token[7..].find('+').map_or(token.len(), |end| end + 7);
    Some(&token[..end])
}

/// The minor release that an rpm was built for: `el9_2` for `7.76.1-23.el9_2.4`, or the module
/// build. `None` for `el9`, the initial release.
pub(super) fn minor_release(version: &str) -> Option<&str> {
    if let Some(token) = module_token(version) {
        return Some(token);
    }
    let start = version.match_indices("el").map(|(at, _)| at).find(|at| {
        let rest = &version[at + 2..];
        let major = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        major > 0
            && rest[major..]
                .strip_prefix('_')
                .is_some_and(|minor| minor.starts_with(|c: char| c.is_ascii_digit()))
    })?;
    let tag = &version[start..];
    let underscore = tag.find('_')?;
    let minor = &tag[underscore + 1..];
    let digits = minor.len() - minor.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    Some(&tag[..underscore + 1 + digits])
}

/// The series of a kernel: `5.10` for `5.10.130-118.517.amzn2`.
pub(super) fn kernel_series(version: &str) -> &str {
    let version = strip_epoch(version);
    match version.match_indices(['.', '-']).nth(1) {
        Some((end, _)) => &version[..end],
        None => version,
    }
}

/// Builds that exist beside the ordinary one and have their own versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BuildFlavor {
    Ordinary,
    /// A certified build: `10:3.0.7-27.0.3.el9_fips`.
    Fips,
    /// A build that Ksplice can patch while it runs: `2:2.28-225.0.4.ksplice1.el8`.
    Ksplice,
}

pub(super) fn build_flavor(version: &str) -> BuildFlavor {
    match version {
        _ if version.contains(".ksplice") => BuildFlavor::Ksplice,
        _ if version.contains("_fips") => BuildFlavor::Fips,
        _ => BuildFlavor::Ordinary,
    }
}

/// `nodejs:18` for `nodejs:18:9020020230327120022:rhel9`.
pub(super) fn module_stream(label: &str) -> &str {
    match label.match_indices(':').nth(1) {
        Some((end, _)) => &label[..end],
        None => label,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_versions_are_not_readable() {
        for (scheme, good) in [
            (Scheme::Deb, "1:9.2p1-2+deb12u3"),
            (Scheme::Deb, "2.36-9+deb12u4~bpo11+1"),
            (Scheme::Rpm, "0:4.18.0-553.30.1.el8_10"),
            (Scheme::Rpm, "(none):1.0-1"),
            (Scheme::Rpm, "1:18.12.1-1.module_el9.1.0+16+91bc168f"),
            (Scheme::Apk, "2.4.68_git20240101-r0"),
        ] {
            assert!(is_readable_version(scheme, good), "{good}");
        }
        for scheme in [Scheme::Deb, Scheme::Rpm, Scheme::Apk] {
            for bad in ["", "<unfixed>", "see notes", "1.0 (maybe)", "ü1", "-", "?"] {
                assert!(!is_readable_version(scheme, bad), "{scheme} {bad:?}");
            }
        }
    }

    #[test]
    fn missing_epoch_is_zero_in_any_spelling() {
        let rule = VersionRule { scheme: Scheme::Rpm, epochs: true };
        for (a, b) in [("(none):1.0-1", "0:1.0-1"), ("1.0-1", "0:1.0-1"), ("1.0-1", "(none):1.0-1")]
        {
            assert_eq!(rule.compare(a, b), Ordering::Equal, "{a} {b}");
        }
        assert_eq!(rule.compare("9-1", "1:1-1"), Ordering::Less);
        let without = VersionRule { epochs: false, ..rule };
        assert_eq!(without.compare("9-1", "1:1-1"), Ordering::Greater);
    }

    #[test]
    fn module_build_and_minor_release_are_extracted() {
        assert_eq!(module_token("1-1.module_el9.1.0+16+91bc168f"), Some("module_el9.1.0"));
        assert_eq!(module_token("1-1.module+el8.9.0+1607+4ba12bea"), Some("module+el8.9.0"));
        assert_eq!(module_token("1-1.el9"), None);
        assert_eq!(module_stream("nodejs:18:9020020230327120022:rhel9"), "nodejs:18");
        assert_eq!(module_stream("nodejs:18"), "nodejs:18");
        assert_eq!(minor_release("7.76.1-23.el9_2.4"), Some("el9_2"));
        assert_eq!(minor_release("1:3.6.8-67.el8_10"), Some("el8_10"));
        assert_eq!(minor_release("4.18.0-5.module+el8.10.0+1+a"), Some("module+el8.10.0"));
        assert_eq!(minor_release("5.1.8-6.el9"), None);
        assert_eq!(minor_release("1-1.elrepo_1"), None);
    }

    #[test]
    fn series_and_flavor_are_extracted() {
        assert_eq!(kernel_series("4.14.336-257.562.amzn2"), "4.14");
        assert_eq!(kernel_series("0:5.10-1"), "5.10");
        assert_eq!(kernel_series("6"), "6");
        assert_eq!(build_flavor("2:2.28-225.0.4.ksplice1.el8_8.6"), BuildFlavor::Ksplice);
        assert_eq!(build_flavor("10:3.0.7-27.0.3.el9_fips"), BuildFlavor::Fips);
        assert_eq!(build_flavor("1:3.0.7-27.0.3.el9"), BuildFlavor::Ordinary);
    }
}
