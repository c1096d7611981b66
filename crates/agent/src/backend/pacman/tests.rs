//! Parser tests without pacman. Tests with the real pacman are in `tests/pacman.rs`.

use std::fs;
use std::path::PathBuf;

use vocab::FailureCode;

use super::local::{LocalDatabase, matches};
use super::{Pacman, parse, process_with_open_file};
use crate::backend::{Backend as _, BackendError, Choice};
use crate::root::Root;

#[test]
fn updates_are_parsed_with_ignored_marks() {
    let text = "bar 1:2.0-1 -> 1:2.1-1\nlinux 6.9.1.arch1-1 -> 6.9.2.arch1-1 [ignored]\n";
    let updates = parse::parse_updates(text).unwrap();
    assert_eq!((updates[0].name.as_str(), updates[0].to.as_str()), ("bar", "1:2.1-1"));
    assert!(!updates[0].ignored && updates[1].ignored);
    assert!(parse::parse_updates("").unwrap().is_empty());
    let error = parse::parse_updates("warning: something else\n").unwrap_err();
    assert!(matches!(error, BackendError::Unreadable { .. }));
}

#[test]
fn sizes_are_parsed_in_every_unit() {
    let text = "Repository      : core\nName            : glibc\nVersion         : 2.39-1\n\
        Architecture    : x86_64\nInstalled Size  : 47.93 MiB\n\n\
        Repository      : core\nName            : tz\nArchitecture    : any\nInstalled Size  : 4.00 B\n\n";
    let about = parse::parse_info(text);
    assert_eq!(about.len(), 2);
    assert_eq!((about[0].arch.as_str(), about[0].installed_bytes), ("x86_64", 50_258_248));
    assert_eq!((about[1].name.as_str(), about[1].installed_bytes), ("tz", 4));
}

#[test]
fn failure_is_reported_in_pacmans_words() {
    let reported = |text: &str| {
        let diagnosis = parse::diagnose(text);
        (diagnosis.code, diagnosis.message.to_string())
    };
    let (code, message) = reported(
        "resolving dependencies...\nlooking for conflicting packages...\n\
         error: failed to prepare transaction (could not satisfy dependencies)\n\
         :: installing foo (2.0-1) breaks dependency 'foo=1.0' required by bar\n",
    );
    assert_eq!(code, FailureCode::DependencyConflict);
    assert_eq!(
        message,
        "pacman: failed to prepare transaction (could not satisfy dependencies); \
         installing foo (2.0-1) breaks dependency 'foo=1.0' required by bar"
    );
    let (code, message) = reported(
        "error: failed to commit transaction (conflicting files)\n\
         foo: /usr/bin/foo exists in filesystem\nErrors occurred, no packages were upgraded.\n",
    );
    assert_eq!(code, FailureCode::InstallFailed);
    assert!(message.ends_with("; foo: /usr/bin/foo exists in filesystem"), "{message}");
    let lock = "error: failed to init transaction (unable to lock database)\n";
    assert_eq!(reported(lock).0, FailureCode::PkgLockTimeout);
    assert_eq!(
        reported("error: Partition /: not enough free disk space\n").0,
        FailureCode::DiskFull
    );
    assert_eq!(reported("error: target not found: foo=9\n").0, FailureCode::RepoUnreachable);
    assert_eq!(reported(""), (FailureCode::InstallFailed, "pacman: no output".to_owned()));
}

#[test]
fn ignore_patterns_match_like_in_a_shell() {
    for (pattern, name) in [
        ("linux", "linux"),
        ("linux*", "linux-lts"),
        ("l?b", "lib"),
        ("lib[a-c]x", "libbx"),
        ("[", "["),
    ] {
        assert!(matches(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in
        [("linux", "linux-lts"), ("l?b", "lb"), ("lib[!a-c]x", "libbx"), ("", "a")]
    {
        assert!(!matches(pattern, name), "{pattern} {name}");
    }
}

/// A directory that is removed when dropped.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let name = format!("fleetmend-pacman-{}-{name}", std::process::id());
        let folder = TempDir(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).unwrap();
        folder
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn desc(name: &str, version: &str) -> String {
    format!(
        "%NAME%\n{name}\n\n%VERSION%\n{version}\n\n%ARCH%\nany\n\n%GROUPS%\na\nb\n\n%SIZE%\n4\n\n"
    )
}

#[test]
fn interrupted_upgrade_is_reported_as_damage() {
    let folder = TempDir::new("damage");
    folder.write("ALPM_DB_VERSION", "9\n");
    folder.write("ok-1-1/desc", &desc("ok", "1-1"));
    folder.write("ok-1-1/files", "%FILES%\netc/\netc/ok\n\n%BACKUP%\netc/ok\t00ff\n\n");
    assert!(LocalDatabase::read(&folder.0).unwrap().damage.is_empty());
    folder.write("twice-1-1/desc", &desc("twice", "1-1"));
    folder.write("twice-1-1/files", "");
    folder.write("twice-2-1/desc", &desc("twice", "2-1"));
    folder.write("empty-1-1/desc", "");
    let local = LocalDatabase::read(&folder.0).unwrap();
    assert_eq!(
        local.damage,
        [
            "empty-1-1: its description is missing or truncated",
            "twice-2-1: its file list is missing",
            "twice: listed in several versions: 1-1, 2-1",
        ]
    );
    assert_eq!(local.packages[0].backups, ["etc/ok"]);
    assert_eq!(local.packages[0].groups, ["a", "b"]);
    let missing = LocalDatabase::read(&folder.0.join("none")).unwrap_err();
    assert!(
        matches!(missing, BackendError::Unreadable { .. }),
        "a missing database is not an empty one"
    );
}

#[test]
fn kernel_without_modules_requires_a_reboot() {
    let folder = TempDir::new("kernel");
    let pacman = Pacman::new(Root::under(&folder.0));
    let reasons = |running: &str| {
        let reasons = pacman.reboot_reasons(running).unwrap();
        reasons.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(reasons("6.9.1-arch1-1").is_empty(), "a system without a kernel");
    folder.write("usr/lib/modules/6.9.2-arch1-1/modules.order", "");
    fs::create_dir_all(folder.0.join("usr/lib/modules/5.0-left-behind")).unwrap();
    assert_eq!(reasons("6.9.1-arch1-1"), ["running kernel 6.9.1-arch1-1, installed 6.9.2-arch1-1"]);
    assert!(reasons("6.9.2-arch1-1").is_empty());
    assert!(reasons("").is_empty(), "in a container, the kernel is not the system's own");
}

#[test]
fn only_exact_versions_are_requested() {
    let pacman = Pacman::new(Root::running());
    let choice = Choice {
        name: "foo".to_owned(),
        arch: "any".to_owned(),
        from: "1-1".to_owned(),
        to: "1:2-1".to_owned(),
    };
    let chosen = [choice];
    for command in pacman.install(&chosen).iter().chain(&pacman.download(&chosen)) {
        assert_eq!(command.args[command.args.len() - 2..], ["--", "foo=1:2-1"]);
        assert!(command.args.contains(&"--noconfirm".to_owned()));
    }
}

#[test]
fn process_with_open_lock_file_is_the_holder() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = TempDir::new("lock");
    folder.write("db.lck", "");
    let file = fs::File::open(folder.0.join("db.lck")).unwrap();
    let meta = file.metadata().unwrap();
    let proc = std::path::Path::new("/proc");
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(process_with_open_file(proc, (meta.dev(), meta.ino())), Some(own));
    drop(file);
    assert_eq!(process_with_open_file(proc, (meta.dev(), meta.ino())), None);
}
