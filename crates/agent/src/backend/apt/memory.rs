//! What apt said before, for as long as nothing has changed from which it said it.
//!
//! To ask apt takes longer by far than to look at its files from outside. Packages that were asked about once are
//! not asked about again until a list, a source or a preference changes.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vocab::listing::Pending;

use super::policy::Releases;
use super::{Key, status};
use crate::backend::{Choice, Transaction};
use crate::root::Root;

/// What the answers of `apt-cache policy` are made from, but for what is installed.
const LISTS: [&str; 8] = [
    "/var/lib/apt/lists",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/apt/preferences",
    "/etc/apt/preferences.d",
    "/etc/apt/apt.conf",
    "/etc/apt/apt.conf.d",
    "/var/lib/dpkg/arch",
];
/// What is installed, and how apt regards it.
const STATUS: [&str; 3] = [status::PATH, "/var/lib/dpkg/updates", "/var/lib/apt/extended_states"];
/// What is looked for in the lists.
const PHASED: &[u8] = b"\nPhased-Update-Percentage:";
const CHUNK_BYTES: usize = 64 * 1024;

/// How files look from outside: names, numbers, sizes and times. Two that are equal mean that nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Look(u64);

impl Look {
    /// That of apt's lists and settings.
    pub(super) fn at_lists(root: &Root) -> Look {
        Look::at(root, &LISTS)
    }

    /// That of what is installed.
    pub(super) fn at_status(root: &Root) -> Look {
        Look::at(root, &STATUS)
    }

    fn at(root: &Root, paths: &[&str]) -> Look {
        let mut hasher = DefaultHasher::new();
        for path in paths {
            let path = root.path(path);
            let mut files: Vec<_> = fs::read_dir(&path)
                .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
                .unwrap_or_else(|_| vec![path]);
            files.sort_unstable();
            for file in files {
                let Ok(found) = fs::symlink_metadata(&file) else { continue };
                // Of directories inside, such as `partial`, apt says nothing; locks say nothing of content.
                if found.is_dir() || file.ends_with("lock") {
                    continue;
                }
                file.hash(&mut hasher);
                hash_metadata(&found, &mut hasher);
                // The list of a `file:` repository is a link to the repository's own file, which changes in place.
                if found.is_symlink() {
                    match fs::metadata(root.follow(&file)) {
                        Ok(target) => hash_metadata(&target, &mut hasher),
                        Err(_) => "absent".hash(&mut hasher),
                    }
                }
            }
        }
        Look(hasher.finish())
    }
}

fn hash_metadata(found: &fs::Metadata, hasher: &mut DefaultHasher) {
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    (found.dev(), found.ino(), found.size(), times).hash(hasher);
}

/// What is known of an installed version.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Where it came from.
    pub(super) origin: Option<String>,
    /// What would replace it, and whether that is handed out in phases. Holds and what keeps it back are not in it.
    pub(super) update: Option<Box<(Pending, bool)>>,
}

/// What apt said.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Memory {
    /// The lists that all of it is about.
    lists: Option<Look>,
    /// What is behind each source.
    pub(super) releases: Option<Releases>,
    #[serde(with = "pairs")]
    pub(super) packages: BTreeMap<Key, Seen>,
    /// Whether any list hands something out in phases.
    phases: Option<bool>,
    /// What was pending when this was installed.
    pub(super) pending: Option<(Look, Vec<Pending>)>,
    /// What these choices would mean while this is installed.
    #[serde(skip)]
    pub(super) foreseen: Option<(Look, Vec<Choice>, Transaction)>,
    /// Whether it holds something that was not written down.
    #[serde(skip)]
    pub(super) is_new: bool,
}

/// A map by something that is no text, as a list of pairs.
mod pairs {
    use super::{BTreeMap, Deserialize as _, Deserializer, Key, Seen, Serializer};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<Key, Seen>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Key, Seen>, D::Error> {
        Ok(Vec::<(Key, Seen)>::deserialize(from)?.into_iter().collect())
    }
}

impl Memory {
    /// Forgets everything if a list or a setting has changed.
    pub(super) fn wake(&mut self, root: &Root) {
        let lists = Some(Look::at_lists(root));
        if self.lists != lists {
            *self = Memory { lists, ..Memory::default() };
        }
    }

    /// Whether any list hands something out in phases. One that cannot be read from here may.
    pub(super) fn has_phases(&mut self, root: &Root) -> bool {
        *self.phases.get_or_insert_with(|| {
            let entries = fs::read_dir(root.path("/var/lib/apt/lists")).into_iter().flatten();
            let mut files = entries.flatten().map(|entry| entry.path());
            files.any(|file| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let compressed = name.contains("_Packages.");
                compressed
                    || (name.ends_with("_Packages")
                        && mentions(&root.follow(&file)).unwrap_or(true))
            })
        })
    }
}

fn mentions(file: &Path) -> std::io::Result<bool> {
    let mut file = fs::File::open(file)?;
    let finder = memchr::memmem::Finder::new(PHASED);
    let mut bytes = vec![0; CHUNK_BYTES];
    // So much of what was read stays, since the words may lie across two reads.
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
        kept = there.min(PHASED.len() - 1);
        bytes.copy_within(there - kept..there, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_found_wherever_they_lie_in_a_list() {
        let dir = std::env::temp_dir().join(format!("fleetmend-phases-{}", std::process::id()));
        let lists = dir.join("var/lib/apt/lists");
        fs::create_dir_all(&lists).unwrap();
        let root = Root::under(&dir);
        let has = |name: &str, bytes: &[u8]| {
            fs::write(lists.join(name), bytes).unwrap();
            let has = Memory::default().has_phases(&root);
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

    /// As apt does it for a `file:` repository: the list is a link to an absolute path of the managed system.
    #[test]
    fn list_behind_an_absolute_link_looks_different_when_it_changes() {
        let dir = std::env::temp_dir().join(format!("fleetmend-link-{}", std::process::id()));
        let root = Root::under(&dir);
        let lists = dir.join("var/lib/apt/lists");
        fs::create_dir_all(&lists).unwrap();
        fs::create_dir_all(dir.join("repo")).unwrap();
        let name = "_repo_dists_stable_main_binary-amd64_Packages";
        std::os::unix::fs::symlink("/repo/Packages", lists.join(name)).unwrap();
        let absent = Look::at_lists(&root);
        fs::write(dir.join("repo/Packages"), "Version: 1\n").unwrap();
        let first = Look::at_lists(&root);
        assert_ne!(first, absent);
        assert_eq!(Look::at_lists(&root), first);
        assert!(!Memory::default().has_phases(&root), "the list is read inside the root");
        fs::write(dir.join("repo/Packages"), "Version: 10\n").unwrap();
        assert_ne!(Look::at_lists(&root), first);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_changes_looks_different() {
        let dir = std::env::temp_dir().join(format!("fleetmend-look-{}", std::process::id()));
        let root = Root::under(&dir);
        let nothing = Look::at_lists(&root);
        fs::create_dir_all(dir.join("etc/apt/preferences.d")).unwrap();
        assert_eq!(Look::at_lists(&root), nothing);
        fs::write(dir.join("etc/apt/preferences.d/pin"), "a").unwrap();
        let pinned = Look::at_lists(&root);
        assert_ne!(pinned, nothing);
        assert_eq!(Look::at_lists(&root), pinned);
        fs::write(dir.join("etc/apt/preferences.d/pin"), "ab").unwrap();
        assert_ne!(Look::at_lists(&root), pinned);
        fs::remove_dir_all(dir).unwrap();
    }
}
