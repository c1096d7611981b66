//! Finds the package that a file belongs to, or belonged to before an update replaced it.
//!
//! dpkg, pacman and apk store their file lists as text: one pass over those finds the packages of
//! all paths. For rpm, the `rpm` program is run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use vocab::PackageManager;

use crate::command::Command;
use crate::root::Root;

/// Maximum number of paths looked up with rpm; each takes a few milliseconds.
const RPM_QUERIES_MAX: usize = 200;
const RPM_TIMEOUT: Duration = Duration::from_secs(20);

/// The package of each path, if known.
pub(super) fn find_owners<'a>(
    root: &Root,
    manager: PackageManager,
    paths: impl Iterator<Item = &'a str>,
) -> BTreeMap<String, String> {
    let mut lookup = OwnerLookup::default();
    for path in paths {
        lookup.add(path);
    }
    if lookup.spellings.is_empty() {
        return BTreeMap::new();
    }
    match manager {
        PackageManager::Apt => search_dpkg(&root.path("/var/lib/dpkg/info"), &mut lookup),
        PackageManager::Pacman => search_pacman(&root.path("/var/lib/pacman/local"), &mut lookup),
        PackageManager::Apk => search_apk(&root.path("/lib/apk/db/installed"), &mut lookup),
        PackageManager::Dnf | PackageManager::Zypper => search_rpm(root, &mut lookup),
    }
    lookup.into_owners()
}

/// The paths to look up, in every spelling that their package may use.
#[derive(Default)]
struct OwnerLookup {
    /// Each spelling, the paths that it stands for, and its distance from each: 0 is the path
    /// itself.
    spellings: BTreeMap<String, Vec<(String, usize)>>,
    /// The closest match so far.
    owners: BTreeMap<String, (usize, String)>,
}

impl OwnerLookup {
    fn add(&mut self, path: &str) {
        for (distance, spelling) in spellings(path).into_iter().enumerate() {
            let paths = self.spellings.entry(spelling).or_default();
            if !paths.iter().any(|(known, _)| known == path) {
                paths.push((path.to_owned(), distance));
            }
        }
    }

    fn record_owner(&mut self, package: &str, file: &str) {
        for (path, distance) in self.spellings.get(file).into_iter().flatten() {
            let nearer = self.owners.get(path).is_none_or(|(known, _)| distance < known);
            if nearer {
                self.owners.insert(path.clone(), (*distance, package.to_owned()));
            }
        }
    }

    fn into_owners(self) -> BTreeMap<String, String> {
        self.owners.into_iter().map(|(path, (_, package))| (path, package)).collect()
    }
}

/// The spellings that a package may use for this path, closest first. `/lib` may be a link into
/// `/usr`, and the new version of a package contains `libcurl.so.4` but no longer
/// `libcurl.so.4.7.0`.
fn spellings(path: &str) -> Vec<String> {
    let mut stems = vec![path.to_owned()];
    let mut stem = path;
    while let Some((shorter, last)) = stem.rsplit_once('.') {
        let number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        if !number || !shorter.contains(".so") {
            break;
        }
        stem = shorter;
        // `libfoo.so` alone is a link for compilers, and belongs to another package.
        if !stem.ends_with(".so") {
            stems.push(stem.to_owned());
        }
    }
    let other = |path: &String| match path.strip_prefix("/usr") {
        Some(rest) => rest.to_owned(),
        None => format!("/usr{path}"),
    };
    stems.iter().flat_map(|stem| [stem.clone(), other(stem)]).collect()
}

/// `/var/lib/dpkg/info/libc6:amd64.list`: one path per line.
fn search_dpkg(info: &Path, lookup: &mut OwnerLookup) {
    for entry in fs::read_dir(info).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(package) = name.to_str().and_then(|name| name.strip_suffix(".list")) else {
            continue;
        };
        let package = package.split(':').next().unwrap_or(package);
        for_each_line(&entry.path(), |line| lookup.record_owner(package, line));
    }
}

/// `/var/lib/pacman/local/NAME-VERSION-RELEASE/files`: `%FILES%`, then paths without the leading
/// `/`.
fn search_pacman(local: &Path, lookup: &mut OwnerLookup) {
    for entry in fs::read_dir(local).into_iter().flatten().filter_map(Result::ok) {
        let folder = entry.file_name();
        let Some(package) = folder.to_str().and_then(|name| name.rsplitn(3, '-').nth(2)) else {
            continue;
        };
        for_each_line(&entry.path().join("files"), |line| {
            lookup.record_owner(package, &format!("/{line}"));
        });
    }
}

/// `/lib/apk/db/installed`: `P:` a package, `F:` one of its directories, `R:` a file in it.
fn search_apk(installed: &Path, lookup: &mut OwnerLookup) {
    let (mut package, mut folder) = (String::new(), String::new());
    for_each_line(installed, |line| match line.split_once(':') {
        Some(("P", name)) => name.clone_into(&mut package),
        Some(("F", path)) => path.clone_into(&mut folder),
        Some(("R", file)) => lookup.record_owner(&package, &format!("/{folder}/{file}")),
        _ => (),
    });
}

/// One query per path: rpm prints any number of lines for each path, so a combined output would be
/// ambiguous.
fn search_rpm(root: &Root, lookup: &mut OwnerLookup) {
    let spellings: Vec<String> = lookup.spellings.keys().take(RPM_QUERIES_MAX).cloned().collect();
    for path in spellings {
        let question = rpm_command(root).args(["-qf", "--qf", "%{NAME}\\n", "--", &path]);
        // If one query fails, the others would fail too.
        let Ok(answer) = question.query(RPM_TIMEOUT) else { return };
        if answer.exit == Some(0)
            && let Some(package) = answer.stdout.lines().next()
        {
            lookup.record_owner(package, &path);
        }
    }
}

/// The managed system's own rpm; for a system under a directory without one, the running system's.
fn rpm_command(root: &Root) -> Command {
    if root.is_running_system() || root.has_program("rpm") {
        return root.command("rpm");
    }
    Command::new("rpm").arg("--root").arg(&root.dir().to_string_lossy())
}

/// Calls `each` for each line that is valid text. Unreadable files are skipped.
fn for_each_line(path: &Path, mut each: impl FnMut(&str)) {
    let Ok(file) = File::open(path) else { return };
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => (),
        }
        if let Ok(text) = std::str::from_utf8(&line) {
            each(text.trim_end_matches('\n'));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup_for(paths: &[&str]) -> OwnerLookup {
        let mut lookup = OwnerLookup::default();
        paths.iter().for_each(|path| lookup.add(path));
        lookup
    }

    #[test]
    fn deleted_library_is_found_by_its_soname() {
        let curl = "/usr/lib/x86_64-linux-gnu/libcurl.so.4.7.0";
        let mut wanted = lookup_for(&[curl, "/usr/sbin/sshd"]);
        wanted.record_owner("libcurl4-dev", "/usr/lib/x86_64-linux-gnu/libcurl.so");
        wanted.record_owner("libcurl4", "/usr/lib/x86_64-linux-gnu/libcurl.so.4");
        wanted.record_owner("other", "/usr/sbin/ssh");
        let found = wanted.into_owners();
        assert_eq!(found.get(curl).map(String::as_str), Some("libcurl4"));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn closest_spelling_wins_and_merged_usr_is_handled() {
        let mut wanted = lookup_for(&["/usr/lib/libc.so.6"]);
        wanted.record_owner("libc6", "/lib/libc.so.6");
        assert_eq!(wanted.into_owners().into_values().collect::<Vec<_>>(), ["libc6"]);
        let mut wanted = lookup_for(&["/lib/libz.so.1.2"]);
        wanted.record_owner("by-soname", "/lib/libz.so.1");
        wanted.record_owner("exact", "/lib/libz.so.1.2");
        wanted.record_owner("merged", "/usr/lib/libz.so.1.2");
        assert_eq!(wanted.into_owners().into_values().collect::<Vec<_>>(), ["exact"]);
    }

    #[test]
    fn versions_are_stripped_from_libraries_only() {
        assert_eq!(spellings("/usr/bin/python3.11"), ["/usr/bin/python3.11", "/bin/python3.11"]);
        assert_eq!(
            spellings("/lib/a.so.1.2"),
            ["/lib/a.so.1.2", "/usr/lib/a.so.1.2", "/lib/a.so.1", "/usr/lib/a.so.1"]
        );
    }
}
