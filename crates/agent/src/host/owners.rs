//! Which package a file belongs to, or belonged to before an update replaced it.
//!
//! dpkg, pacman and apk write down their files as text: one pass over that answers for all paths at
//! once. rpm has to be asked.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use vocab::PackageManager;

use crate::command::Command;
use crate::root::Root;

/// How many paths rpm is asked for; each costs some milliseconds.
const ASKED_MAX: usize = 200;
const PATIENCE: Duration = Duration::from_secs(20);

/// The package of each path, where one is known.
pub(super) fn of<'a>(
    root: &Root,
    manager: PackageManager,
    paths: impl Iterator<Item = &'a str>,
) -> BTreeMap<String, String> {
    let mut wanted = Wanted::default();
    for path in paths {
        wanted.add(path);
    }
    if wanted.spellings.is_empty() {
        return BTreeMap::new();
    }
    match manager {
        PackageManager::Apt => dpkg(&root.path("/var/lib/dpkg/info"), &mut wanted),
        PackageManager::Pacman => pacman(&root.path("/var/lib/pacman/local"), &mut wanted),
        PackageManager::Apk => apk(&root.path("/lib/apk/db/installed"), &mut wanted),
        PackageManager::Dnf | PackageManager::Zypper => rpm(root, &mut wanted),
    }
    wanted.found()
}

/// The paths that are asked for, under every name by which their package may know them.
#[derive(Default)]
struct Wanted {
    /// What a package may have written down, the paths that it would answer for, and how near it is
    /// to each: 0 is the path itself.
    spellings: BTreeMap<String, Vec<(String, usize)>>,
    /// The nearest answer so far.
    owners: BTreeMap<String, (usize, String)>,
}

impl Wanted {
    fn add(&mut self, path: &str) {
        for (distance, spelling) in spellings(path).into_iter().enumerate() {
            let paths = self.spellings.entry(spelling).or_default();
            if !paths.iter().any(|(known, _)| known == path) {
                paths.push((path.to_owned(), distance));
            }
        }
    }

    fn owns(&mut self, package: &str, file: &str) {
        for (path, distance) in self.spellings.get(file).into_iter().flatten() {
            let nearer = self.owners.get(path).is_none_or(|(known, _)| distance < known);
            if nearer {
                self.owners.insert(path.clone(), (*distance, package.to_owned()));
            }
        }
    }

    fn found(self) -> BTreeMap<String, String> {
        self.owners.into_iter().map(|(path, (_, package))| (path, package)).collect()
    }
}

/// How a package may have written this path down, the nearest first. `/lib` may be a link into `/usr`;
/// and of `libcurl.so.4.7.0` the new version of its package knows nothing, but of `libcurl.so.4`.
fn spellings(path: &str) -> Vec<String> {
    let mut stems = vec![path.to_owned()];
    let mut stem = path;
    while let Some((shorter, last)) = stem.rsplit_once('.') {
        let number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        if !number || !shorter.contains(".so") {
            break;
        }
        stem = shorter;
        // `libfoo.so` alone is a link for compilers, of another package.
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

/// `/var/lib/dpkg/info/libc6:amd64.list`: one path a line.
fn dpkg(info: &Path, wanted: &mut Wanted) {
    for entry in fs::read_dir(info).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(package) = name.to_str().and_then(|name| name.strip_suffix(".list")) else {
            continue;
        };
        let package = package.split(':').next().unwrap_or(package);
        for_lines(&entry.path(), |line| wanted.owns(package, line));
    }
}

/// `/var/lib/pacman/local/NAME-VERSION-RELEASE/files`: `%FILES%`, then paths without their first `/`.
fn pacman(local: &Path, wanted: &mut Wanted) {
    for entry in fs::read_dir(local).into_iter().flatten().filter_map(Result::ok) {
        let folder = entry.file_name();
        let Some(package) = folder.to_str().and_then(|name| name.rsplitn(3, '-').nth(2)) else {
            continue;
        };
        for_lines(&entry.path().join("files"), |line| wanted.owns(package, &format!("/{line}")));
    }
}

/// `/lib/apk/db/installed`: `P:` a package, `F:` a folder of it, `R:` a file in that.
fn apk(installed: &Path, wanted: &mut Wanted) {
    let (mut package, mut folder) = (String::new(), String::new());
    for_lines(installed, |line| match line.split_once(':') {
        Some(("P", name)) => name.clone_into(&mut package),
        Some(("F", path)) => path.clone_into(&mut folder),
        Some(("R", file)) => wanted.owns(&package, &format!("/{folder}/{file}")),
        _ => (),
    });
}

/// rpm answers in the order of its questions but with any number of lines for each, so each is asked alone.
fn rpm(root: &Root, wanted: &mut Wanted) {
    let spellings: Vec<String> = wanted.spellings.keys().take(ASKED_MAX).cloned().collect();
    for path in spellings {
        let question = program(root).args(["-qf", "--qf", "%{NAME}\\n", "--", &path]);
        // If rpm does not answer once, it does not answer for the rest.
        let Ok(answer) = question.ask(PATIENCE) else { return };
        if answer.exit == Some(0)
            && let Some(package) = answer.stdout.lines().next()
        {
            wanted.owns(package, &path);
        }
    }
}

/// The system's own rpm, or, for one under a directory that has none, the machine's.
fn program(root: &Root) -> Command {
    if root.is_running_system() || root.has_program("rpm") {
        return root.inside("rpm");
    }
    Command::new("rpm").arg("--root").arg(&root.dir().to_string_lossy())
}

/// Each line of a file that is text; what cannot be read is passed over.
fn for_lines(path: &Path, mut each: impl FnMut(&str)) {
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

    fn asked(paths: &[&str]) -> Wanted {
        let mut wanted = Wanted::default();
        paths.iter().for_each(|path| wanted.add(path));
        wanted
    }

    #[test]
    fn a_library_is_known_by_its_soname_when_its_own_file_is_gone() {
        let curl = "/usr/lib/x86_64-linux-gnu/libcurl.so.4.7.0";
        let mut wanted = asked(&[curl, "/usr/sbin/sshd"]);
        wanted.owns("libcurl4-dev", "/usr/lib/x86_64-linux-gnu/libcurl.so");
        wanted.owns("libcurl4", "/usr/lib/x86_64-linux-gnu/libcurl.so.4");
        wanted.owns("other", "/usr/sbin/ssh");
        let found = wanted.found();
        assert_eq!(found.get(curl).map(String::as_str), Some("libcurl4"));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn the_nearest_name_wins_and_a_merged_usr_is_seen_through() {
        let mut wanted = asked(&["/usr/lib/libc.so.6"]);
        wanted.owns("libc6", "/lib/libc.so.6");
        assert_eq!(wanted.found().into_values().collect::<Vec<_>>(), ["libc6"]);
        let mut wanted = asked(&["/lib/libz.so.1.2"]);
        wanted.owns("by-soname", "/lib/libz.so.1");
        wanted.owns("exact", "/lib/libz.so.1.2");
        wanted.owns("merged", "/usr/lib/libz.so.1.2");
        assert_eq!(wanted.found().into_values().collect::<Vec<_>>(), ["exact"]);
    }

    #[test]
    fn a_version_is_cut_off_libraries_only() {
        assert_eq!(spellings("/usr/bin/python3.11"), ["/usr/bin/python3.11", "/bin/python3.11"]);
        assert_eq!(
            spellings("/lib/a.so.1.2"),
            ["/lib/a.so.1.2", "/usr/lib/a.so.1.2", "/lib/a.so.1", "/usr/lib/a.so.1"]
        );
    }
}
