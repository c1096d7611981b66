//! Package names in the notation of rpm, dnf and zypper: name, epoch, version, release,
//! architecture.

/// Epoch, version and release in one string. Epoch 0 is omitted, as in rpm, dnf and zypper: the
/// same version is then always the same text.
pub(crate) fn evr(epoch: &str, version: &str, release: &str) -> String {
    match epoch {
        "" | "0" | "(none)" => format!("{version}-{release}"),
        _ => format!("{epoch}:{version}-{release}"),
    }
}

/// Splits a version into its epoch and the rest.
pub(crate) fn split_epoch(evr: &str) -> (&str, &str) {
    match evr.split_once(':') {
        Some((epoch, rest)) if epoch.bytes().all(|byte| byte.is_ascii_digit()) => (epoch, rest),
        _ => ("0", evr),
    }
}

/// The same version without epoch 0.
pub(crate) fn without_zero_epoch(evr: &str) -> &str {
    match split_epoch(evr) {
        ("" | "0", rest) => rest,
        _ => evr,
    }
}

/// A fully qualified package version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nevra {
    pub(crate) name: String,
    /// Without epoch 0.
    pub(crate) evr: String,
    pub(crate) arch: String,
}

impl Nevra {
    /// Parses `openssl-libs-1:3.0.1-43.el9_0.noarch`. Neither version nor release contains a
    /// hyphen, so the last two hyphens separate them from the name.
    pub(crate) fn parse(text: &str) -> Option<Nevra> {
        let (rest, arch) = text.rsplit_once('.')?;
        let (rest, release) = rest.rsplit_once('-')?;
        let (name, version) = rest.rsplit_once('-')?;
        if [name, version, release, arch].iter().any(|part| part.is_empty()) {
            return None;
        }
        let (epoch, version) = split_epoch(version);
        let evr = evr(epoch, version, release);
        Some(Nevra { name: name.to_owned(), evr, arch: arch.to_owned() })
    }
}

/// The name and version of a source package, from its file name. The file name never contains the
/// epoch.
pub(crate) fn parse_source_file(file: &str) -> Option<(&str, &str)> {
    let stem = file.strip_suffix(".src.rpm").or_else(|| file.strip_suffix(".nosrc.rpm"))?;
    let (rest, _release) = stem.rsplit_once('-')?;
    let (name, _version) = rest.rsplit_once('-')?;
    (!name.is_empty()).then(|| (name, &stem[name.len() + 1..]))
}

/// Whether a name or a version contains only characters that rpm allows. Both dnf and zypper accept
/// more than names as arguments: globs, groups, files, capabilities.
pub(crate) fn is_plain_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._+~^-:".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_name_is_split_at_its_last_hyphens() {
        let parsed = Nevra::parse("openssl-libs-1:3.0.1-43.el9_0.noarch").unwrap();
        let parts = (parsed.name.as_str(), parsed.evr.as_str(), parsed.arch.as_str());
        assert_eq!(parts, ("openssl-libs", "1:3.0.1-43.el9_0", "noarch"));
        assert_eq!(Nevra::parse("bash-0:5.1.8-6.el9.x86_64").unwrap().evr, "5.1.8-6.el9");
        for odd in ["", "bash", "bash.noarch", "bash-1.noarch", "-1-2.noarch", "a-1-2."] {
            assert_eq!(Nevra::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn source_is_parsed_from_its_file_name() {
        assert_eq!(
            parse_source_file("openssl-3.0.1-43.el9_0.src.rpm"),
            Some(("openssl", "3.0.1-43.el9_0"))
        );
        assert_eq!(parse_source_file("nvidia-x-1-2.nosrc.rpm"), Some(("nvidia-x", "1-2")));
        for odd in ["(none)", "", "a.src.rpm", "-1-2.src.rpm"] {
            assert_eq!(parse_source_file(odd), None, "{odd}");
        }
    }

    #[test]
    fn special_arguments_are_not_plain_words() {
        for word in ["bash", "gtk2", "libstdc++", "_x", "1:3.0.1-43.el9_0", "2.0~rc1^git"] {
            assert!(is_plain_name(word), "{word}");
        }
        for odd in
            ["", "-y", "@core", "ba*", "/tmp/x.rpm", "a b", "bash=1", "!bash", "b[a]sh", "a\n"]
        {
            assert!(!is_plain_name(odd), "{odd}");
        }
    }
}
