//! pacman's package cache: older versions that this host has downloaded before.
//!
//! A cached file is used only if root owns it and no other user can write to it, and only if its
//! signature can be checked again wherever the configuration asks for signatures.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use crate::backend::OfferedVersion;
use crate::root::Root;

/// Maximum number of files in a cache directory that are considered.
const FILES_MAX: usize = 200_000;

/// A package file in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CachedPackage {
    pub(super) offer: OfferedVersion,
    /// The path inside the root.
    pub(super) path: String,
}

/// What the configuration requires of package signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signatures {
    /// No repository uses them.
    Unused,
    /// A cached file needs a signature next to it, which pacman checks.
    Required,
    /// pacman does not check the signatures of local files.
    Unchecked,
}

impl Signatures {
    /// Parses the output of `pacman-conf`.
    pub(super) fn parse(configuration: &str) -> Signatures {
        let values = |key: &str| -> Vec<&str> {
            configuration
                .lines()
                .filter_map(|line| line.split_once('='))
                .filter(|(name, _)| name.trim() == key)
                .map(|(_, value)| value.trim())
                .collect()
        };
        let levels = values("SigLevel");
        let is_checked = |level: &&str| level.starts_with("Package") && *level != "PackageNever";
        let unused = levels.contains(&"PackageNever") && !levels.iter().any(is_checked);
        match (unused, values("LocalFileSigLevel").contains(&"PackageNever")) {
            (true, _) => Signatures::Unused,
            (false, true) => Signatures::Unchecked,
            (false, false) => Signatures::Required,
        }
    }
}

/// The usable package files of these names in the cache directories.
pub(super) fn packages(
    root: &Root,
    dirs: &[String],
    signatures: Signatures,
    is_named: impl Fn(&str) -> bool,
) -> Vec<CachedPackage> {
    if signatures == Signatures::Unchecked {
        return Vec::new();
    }
    let mut found: Vec<CachedPackage> = Vec::new();
    for dir in dirs.iter().filter(|dir| is_roots_own(root, dir, fs::Metadata::is_dir)) {
        let entries = fs::read_dir(root.path(dir)).into_iter().flatten().flatten();
        for entry in entries.take(FILES_MAX) {
            let file = entry.file_name().to_string_lossy().into_owned();
            let Some(offer) = parse_file_name(&file).filter(|offer| is_named(&offer.name)) else {
                continue;
            };
            let path = format!("{}/{file}", dir.trim_end_matches('/'));
            let signed = || is_roots_own(root, &format!("{path}.sig"), fs::Metadata::is_file);
            let usable = is_roots_own(root, &path, fs::Metadata::is_file)
                && (signatures == Signatures::Unused || signed());
            if usable && !found.iter().any(|known| known.offer == offer) {
                found.push(CachedPackage { offer, path });
            }
        }
    }
    found
}

/// `openssl-libs-1:3.0.1-2-x86_64.pkg.tar.zst`: version and release contain no hyphen.
fn parse_file_name(file: &str) -> Option<OfferedVersion> {
    let (stem, compression) = file.split_once(".pkg.tar")?;
    if compression.matches('.').count() > 1 || compression.ends_with(".sig") {
        return None;
    }
    let (rest, arch) = stem.rsplit_once('-')?;
    let (rest, release) = rest.rsplit_once('-')?;
    let (name, version) = rest.rsplit_once('-')?;
    if [name, version, release, arch].iter().any(|part| part.is_empty()) {
        return None;
    }
    let version = format!("{version}-{release}");
    Some(OfferedVersion { name: name.to_owned(), arch: arch.to_owned(), version })
}

/// Whether this is not a link, is owned by root and cannot be written by others.
fn is_roots_own(root: &Root, inside: &str, is_kind: impl Fn(&fs::Metadata) -> bool) -> bool {
    fs::symlink_metadata(root.entry(inside))
        .is_ok_and(|found| is_kind(&found) && found.uid() == 0 && found.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_contain_name_version_and_architecture() {
        let parsed = |file: &str| {
            parse_file_name(file).map(|o| format!("{} {} {}", o.name, o.version, o.arch))
        };
        assert_eq!(parsed("gtk-3-1:3.2-4-x86_64.pkg.tar.zst").unwrap(), "gtk-3 1:3.2-4 x86_64");
        assert_eq!(parsed("app-1.0-1-any.pkg.tar").unwrap(), "app 1.0-1 any");
        for other in [
            "app-1.0-1-any.pkg.tar.zst.sig",
            "app-1.0-1-any.pkg.tar.zst.part",
            "app-1.0-any.pkg.tar.zst",
            "-1-1-any.pkg.tar.zst",
            "notes.txt",
        ] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn unsigned_files_count_only_if_no_repository_uses_signatures() {
        let never = "[options]\nSigLevel = PackageNever\nSigLevel = DatabaseNever\n";
        assert_eq!(Signatures::parse(never), Signatures::Unused);
        let strict = format!("{never}[core]\nSigLevel = PackageRequired\n");
        assert_eq!(Signatures::parse(&strict), Signatures::Required);
        assert_eq!(Signatures::parse(""), Signatures::Required);
        let unchecked = "SigLevel = PackageRequired\nLocalFileSigLevel = PackageNever\n";
        assert_eq!(Signatures::parse(unchecked), Signatures::Unchecked);
    }
}
