//! A cache of apt's query results, valid until apt's lists or settings change.
//!
//! A query to apt takes much longer than checking the metadata of its files. A package is queried
//! once, and again only after a list, a source or a preference has changed.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vocab::listing::Pending;

use super::policy::Releases;
use super::{PackageKey, status};
use crate::backend::{Choice, Transaction};
use crate::root::Root;

/// The inputs of `apt-cache policy`, apart from the installed packages.
const LIST_PATHS: [&str; 8] = [
    "/var/lib/apt/lists",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/apt/preferences",
    "/etc/apt/preferences.d",
    "/etc/apt/apt.conf",
    "/etc/apt/apt.conf.d",
    "/var/lib/dpkg/arch",
];
/// The installed packages, and apt's state about them.
const STATUS_PATHS: [&str; 3] =
    [status::PATH, "/var/lib/dpkg/updates", "/var/lib/apt/extended_states"];
/// The field to search for in the lists.
const PHASED_FIELD: &[u8] = b"\nPhased-Update-Percentage:";
const CHUNK_BYTES: usize = 64 * 1024;

/// A fingerprint of files: names, inodes, sizes and times. Equal fingerprints mean that nothing
/// changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    /// Of apt's lists and settings.
    pub(super) fn from_lists(root: &Root) -> Fingerprint {
        Fingerprint::from_paths(root, &LIST_PATHS)
    }

    /// Of the installed packages.
    pub(super) fn from_status(root: &Root) -> Fingerprint {
        Fingerprint::from_paths(root, &STATUS_PATHS)
    }

    fn from_paths(root: &Root, paths: &[&str]) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        for path in paths {
            let path = root.path(path);
            let mut files: Vec<_> = fs::read_dir(&path)
                .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
                .unwrap_or_else(|_| vec![path]);
            files.sort_unstable();
            for file in files {
                let Ok(found) = fs::symlink_metadata(&file) else { continue };
                // Subdirectories, such as `partial`, and lock files do not affect apt's output.
                if found.is_dir() || file.ends_with("lock") {
                    continue;
                }
                file.hash(&mut hasher);
                hash_metadata(&found, &mut hasher);
                // The list of a `file:` repository is a link to the repository's own file, which
                // may change in place.
                if found.is_symlink() {
                    match fs::metadata(root.follow(&file)) {
                        Ok(target) => hash_metadata(&target, &mut hasher),
                        Err(_) => "absent".hash(&mut hasher),
                    }
                }
            }
        }
        Fingerprint(hasher.finish())
    }
}

fn hash_metadata(found: &fs::Metadata, hasher: &mut DefaultHasher) {
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    (found.dev(), found.ino(), found.size(), times).hash(hasher);
}

/// What is known of an installed version.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CachedPackage {
    pub(super) origin: Option<String>,
    /// Its update, and whether that is phased. Holds and other blocks are not included.
    pub(super) update: Option<Box<(Pending, bool)>>,
}

/// The cached query results.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct QueryCache {
    /// The lists that the results are based on.
    lists: Option<Fingerprint>,
    /// The release of each source.
    pub(super) releases: Option<Releases>,
    #[serde(with = "pairs")]
    pub(super) packages: BTreeMap<PackageKey, CachedPackage>,
    /// Whether any list contains phased updates.
    phases: Option<bool>,
    /// The pending updates for these installed packages.
    pub(super) pending: Option<(Fingerprint, Vec<Pending>)>,
    /// The transaction for these choices, while these packages are installed.
    #[serde(skip)]
    pub(super) previewed: Option<(Fingerprint, Vec<Choice>, Transaction)>,
    /// Whether the cache contains results that are not on disk yet.
    #[serde(skip)]
    pub(super) is_dirty: bool,
}

/// Serializes a map whose keys are not strings as a list of pairs.
mod pairs {
    use super::{BTreeMap, CachedPackage, Deserialize as _, Deserializer, PackageKey, Serializer};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<PackageKey, CachedPackage>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<PackageKey, CachedPackage>, D::Error> {
        Ok(Vec::<(PackageKey, CachedPackage)>::deserialize(from)?.into_iter().collect())
    }
}

impl QueryCache {
    /// Empties the cache if a list or a setting has changed.
    pub(super) fn invalidate_if_changed(&mut self, root: &Root) {
        let lists = Some(Fingerprint::from_lists(root));
        if self.lists != lists {
            *self = QueryCache { lists, ..QueryCache::default() };
        }
    }

    /// Whether any list contains phased updates. A compressed or unreadable list may.
    pub(super) fn has_phases(&mut self, root: &Root) -> bool {
        *self.phases.get_or_insert_with(|| {
            let entries = fs::read_dir(root.path("/var/lib/apt/lists")).into_iter().flatten();
            let mut files = entries.flatten().map(|entry| entry.path());
            files.any(|file| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let compressed = name.contains("_Packages.");
                compressed
                    || (name.ends_with("_Packages")
                        && mentions_phasing(&root.follow(&file)).unwrap_or(true))
            })
        })
    }
}

fn mentions_phasing(file: &Path) -> std::io::Result<bool> {
    let mut file = fs::File::open(file)?;
    let finder = memchr::memmem::Finder::new(PHASED_FIELD);
    let mut bytes = vec![0; CHUNK_BYTES];
    // The end of each chunk is kept, because the text may span two reads.
    let mut kept = 0;
    loop {
        let more = file.read(&mut bytes[kept..])?;
        if more == 0 {
            return Ok(false);
        }
        let there = kept + more;
        if finder.find(&bytes[..there]).is_some() {
            return Ok(true);
        }
        kept = there.min(PHASED_FIELD.len() - 1);
        bytes.copy_within(there - kept..there, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phased_updates_are_found_at_any_offset() {
        let dir = std::env::temp_dir().join(format!("fleetmend-phases-{}", std::process::id()));
        let lists = dir.join("var/lib/apt/lists");
        fs::create_dir_all(&lists).unwrap();
        let root = Root::under(&dir);
        let has = |name: &str, bytes: &[u8]| {
            fs::write(lists.join(name), bytes).unwrap();
            let has = QueryCache::default().has_phases(&root);
            fs::remove_file(lists.join(name)).unwrap();
            has
        };
        assert!(!has("x_main_binary-amd64_Packages", b"Package: a\nVersion: 1\n"));
        assert!(has("x_main_binary-amd64_Packages.lz4", b""));
        for before in [0, 1, CHUNK_BYTES - 30, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES] {
            let mut list = vec![b'x'; before];
            list.extend(b"\nPhased-Update-Percentage: 10\n");
            assert!(has("x_main_binary-amd64_Packages", &list), "after {before} bytes");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    /// As apt does for a `file:` repository: the list is a link to an absolute path of the managed
    /// system.
    #[test]
    fn fingerprint_follows_absolute_links_inside_the_root() {
        let dir = std::env::temp_dir().join(format!("fleetmend-link-{}", std::process::id()));
        let root = Root::under(&dir);
        let lists = dir.join("var/lib/apt/lists");
        fs::create_dir_all(&lists).unwrap();
        fs::create_dir_all(dir.join("repo")).unwrap();
        let name = "_repo_dists_stable_main_binary-amd64_Packages";
        std::os::unix::fs::symlink("/repo/Packages", lists.join(name)).unwrap();
        let absent = Fingerprint::from_lists(&root);
        fs::write(dir.join("repo/Packages"), "Version: 1\n").unwrap();
        let first = Fingerprint::from_lists(&root);
        assert_ne!(first, absent);
        assert_eq!(Fingerprint::from_lists(&root), first);
        assert!(!QueryCache::default().has_phases(&root), "the list is read inside the root");
        fs::write(dir.join("repo/Packages"), "Version: 10\n").unwrap();
        assert_ne!(Fingerprint::from_lists(&root), first);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn fingerprint_changes_with_a_file() {
        let dir = std::env::temp_dir().join(format!("fleetmend-look-{}", std::process::id()));
        let root = Root::under(&dir);
        let nothing = Fingerprint::from_lists(&root);
        fs::create_dir_all(dir.join("etc/apt/preferences.d")).unwrap();
        assert_eq!(Fingerprint::from_lists(&root), nothing);
        fs::write(dir.join("etc/apt/preferences.d/pin"), "a").unwrap();
        let pinned = Fingerprint::from_lists(&root);
        assert_ne!(pinned, nothing);
        assert_eq!(Fingerprint::from_lists(&root), pinned);
        fs::write(dir.join("etc/apt/preferences.d/pin"), "ab").unwrap();
        assert_ne!(Fingerprint::from_lists(&root), pinned);
        fs::remove_dir_all(dir).unwrap();
    }
}
