//! Reads pacman's database of installed packages: one directory per package, with `desc` and
//! `files`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::backend::BackendError;

/// The installed packages, and damage in the database.
#[derive(Debug, Default)]
pub(super) struct LocalDatabase {
    pub(super) packages: Vec<InstalledPackage>,
    /// One line per damaged package.
    pub(super) damage: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InstalledPackage {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) arch: String,
    /// The source package, which may build several packages.
    pub(super) base: String,
    pub(super) groups: Vec<String>,
    /// Names that it provides in addition to its own: `name`, `name=version`.
    pub(super) provides: Vec<String>,
    /// Names that it conflicts with: `name`, `name<2`.
    pub(super) conflicts: Vec<String>,
    pub(super) bytes: i64,
    /// Configuration files that are kept if edited, without the leading `/`.
    pub(super) backups: Vec<String>,
}

impl LocalDatabase {
    /// Reads the directory `local`.
    pub(super) fn read(folder: &Path) -> Result<LocalDatabase, BackendError> {
        let unreadable = |error: std::io::Error| BackendError::Unreadable {
            what: folder.display().to_string(),
            why: error.to_string(),
        };
        let mut local = LocalDatabase::default();
        let mut entries = fs::read_dir(folder)
            .map_err(unreadable)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(unreadable)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries.iter().filter(|entry| entry.path().is_dir()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            // A package without files still has a `files` file.
            let text = |file: &str| fs::read_to_string(entry.path().join(file));
            let (desc, files) = (text("desc").unwrap_or_default(), text("files"));
            let package = InstalledPackage::parse(&desc, files.as_deref().unwrap_or_default());
            if package.name.is_empty() || package.version.is_empty() {
                local.damage.push(format!("{name}: its description is missing or truncated"));
                continue;
            }
            if files.is_err() {
                local.damage.push(format!("{name}: its file list is missing"));
            }
            local.packages.push(package);
        }
        local.note_duplicates();
        Ok(local)
    }

    /// An upgrade that is interrupted between adding the new entry and removing the old one leaves
    /// both.
    fn note_duplicates(&mut self) {
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for package in &self.packages {
            versions.entry(&package.name).or_default().push(&package.version);
        }
        let twice = versions.iter().filter(|(_, versions)| versions.len() > 1);
        let lines: Vec<String> = twice
            .map(|(name, versions)| {
                format!("{name}: listed in several versions: {}", versions.join(", "))
            })
            .collect();
        self.damage.extend(lines);
    }
}

impl InstalledPackage {
    fn parse(desc: &str, files: &str) -> InstalledPackage {
        let desc = parse_sections(desc);
        let one = |key: &str| {
            let values = desc.get(key).map_or(&[][..], Vec::as_slice);
            values.first().copied().unwrap_or_default().to_owned()
        };
        let name = one("NAME");
        let base = Some(one("BASE")).filter(|base| !base.is_empty());
        let all = |key: &str| {
            let values = desc.get(key).into_iter().flatten();
            values.map(|value| (*value).to_owned()).collect::<Vec<String>>()
        };
        // The path, a tab, and the checksum of the original file.
        let backups = parse_sections(files).remove("BACKUP").unwrap_or_default().into_iter();
        let backups = backups.map(|line| line.split('\t').next().unwrap_or(line).to_owned());
        InstalledPackage {
            version: one("VERSION"),
            arch: one("ARCH"),
            base: base.unwrap_or_else(|| name.clone()),
            groups: all("GROUPS"),
            provides: all("PROVIDES"),
            conflicts: all("CONFLICTS"),
            bytes: one("SIZE").parse().unwrap_or(0),
            backups: backups.collect(),
            name,
        }
    }
}

/// Parses `%KEY%`, followed by one value per line, up to an empty line.
fn parse_sections(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut key = None;
    for line in text.lines() {
        let heading = line.strip_prefix('%').and_then(|rest| rest.strip_suffix('%'));
        match (heading, key) {
            (Some(heading), None) => key = Some(heading),
            (_, Some(_)) if line.is_empty() => key = None,
            (_, Some(key)) => sections.entry(key).or_default().push(line),
            (None, None) => (),
        }
    }
    sections
}

/// Whether a pattern of `IgnorePkg` matches this name: `*` is any text, `?` one character, `[…]`
/// one of a set.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    crate::backend::glob::matches(pattern, name, 1)
}
