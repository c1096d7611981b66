//! Parser tests. There is no apk in the test environment: the texts are in apk's formats.

use std::fs;

use vocab::FailureCode;
use vocab::listing::Installed;

use super::database::ApkDatabase;
use super::{Apk, parse};
use crate::backend::{Backend as _, BackendError, Choice};
use crate::root::Root;

const INSTALLED: &str = "\
C:Q1abcdefghijklmnopqrstuvwxyz0=
P:musl
V:1.2.4-r2
A:x86_64
S:383152
I:622592
T:the musl c library (libc) implementation
U:https://musl.libc.org/
L:MIT
o:musl
m:Someone <someone@example.invalid>
t:1700000000
c:0000000000000000000000000000000000000000
p:so:libc.musl-x86_64.so.1=1
F:lib
R:ld-musl-x86_64.so.1
a:0:0:755
Z:Q1abcdefghijklmnopqrstuvwxyz0=

C:Q1abcdefghijklmnopqrstuvwxyz1=
P:musl-utils
V:1.2.4-r2
A:x86_64
o:musl
F:etc
F:etc/ld
R:musl.conf
F:usr/bin
R:ldd
f:fs

P:lib-2-compat
V:2-r0
A:x86_64

P:.build
V:0
A:noarch
D:musl
";

fn installed() -> Vec<Installed> {
    vec![
        Installed::new("musl", "1.2.4-r2", "x86_64"),
        Installed::new("musl-utils", "1.2.4-r2", "x86_64"),
        Installed::new("lib-2-compat", "2-r0", "x86_64"),
    ]
}

#[test]
fn packages_are_parsed_with_their_sources() {
    let database = ApkDatabase::parse(INSTALLED, "");
    let seen: Vec<_> = database
        .packages
        .iter()
        .map(|package| (package.name.as_str(), package.version.as_str(), package.origin.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            ("musl", "1.2.4-r2", "musl"),
            ("musl-utils", "1.2.4-r2", "musl"),
            ("lib-2-compat", "2-r0", "lib-2-compat"),
        ]
    );
    assert_eq!(database.packages[1].broken, Some("not all of its files were installed"));
    assert_eq!(database.packages[0].broken, None);
    assert_eq!(database.configuration, ["etc/ld/musl.conf"]);
}

#[test]
fn world_file_pins_versions() {
    let world = "alpine-base\nmusl=1.2.4-r2 musl-utils<1.2.5\nlib~1.2\ntool@edge>=3\n!bad=1\n";
    let database = ApkDatabase::parse("", world);
    let allows = |name: &str, version: &str| database.pin(name).map(|pin| pin.allows(version));
    assert_eq!(allows("musl", "1.2.4-r2"), Some(true));
    assert_eq!(allows("musl", "1.2.4-r3"), Some(false));
    assert_eq!(allows("musl-utils", "1.2.4-r9"), Some(true));
    assert_eq!(allows("musl-utils", "1.2.5-r0"), Some(false));
    assert_eq!(allows("lib", "1.2.9-r1"), Some(true));
    assert_eq!(allows("lib", "1.20-r0"), Some(false));
    assert_eq!(allows("tool", "2-r0"), Some(false));
    assert_eq!((allows("alpine-base", "1"), allows("bad", "1")), (None, None));
    assert!(database.pin("musl").is_some_and(super::database::VersionPin::is_exact));
    assert!(!database.pin("lib").is_some_and(super::database::VersionPin::is_exact));
}

#[test]
fn newest_update_of_each_package_is_listed() {
    let text = "\
WARNING: opening from cache https://example.invalid/APKINDEX.tar.gz: No such file
musl-1.2.4-r3 x86_64 {musl} (MIT) [upgradable from: musl-1.2.4-r2]
musl-1.2.5-r0 x86_64 {musl} (MIT) [upgradable from: musl-1.2.4-r2]
lib-2-compat-3-r0 x86_64 {lib} (MIT AND BSD) [upgradable from: lib-2-compat-2-r0]
other-1-r0 x86_64 {other} (MIT)
";
    let updates = parse::parse_upgradable(text, &installed());
    let seen: Vec<_> = updates
        .iter()
        .map(|update| (update.name.as_str(), update.installed.as_str(), update.candidate.as_str()))
        .collect();
    assert_eq!(seen, [("lib-2-compat", "2-r0", "3-r0"), ("musl", "1.2.4-r2", "1.2.5-r0")]);
    assert!(updates.iter().all(|update| !update.security));
}

#[test]
fn simulation_is_parsed_and_purge_is_a_removal() {
    let text = "\
(1/4) Upgrading musl (1.2.4-r2 -> 1.2.5-r0)
(2/4) Installing extra@edge (1-r0)
(3/4) Purging lib-2-compat (2-r0)
(4/4) Reinstalling musl-utils (1.2.4-r2)
Executing busybox-1.36.1-r15.trigger
OK: 8 MiB in 15 packages
";
    let transaction = parse::parse_transaction(text, &installed()).unwrap();
    let seen: Vec<_> = transaction
        .changes
        .iter()
        .map(|change| (change.name.as_str(), change.from.as_deref(), change.to.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            ("extra", None, Some("1-r0")),
            ("lib-2-compat", Some("2-r0"), None),
            ("musl", Some("1.2.4-r2"), Some("1.2.5-r0")),
        ]
    );
    let error = parse::parse_transaction("(1/1) Transmuting musl (1)\n", &installed()).unwrap_err();
    assert!(matches!(error, BackendError::Unreadable { .. }), "unknown actions are not skipped");
    assert!(
        parse::parse_transaction("OK: 8 MiB in 15 packages\n", &[]).unwrap().changes.is_empty()
    );
}

#[test]
fn failure_is_reported_in_apks_words() {
    let reported = |text: &str| {
        let diagnosis = parse::diagnose(text);
        (diagnosis.code, diagnosis.message.to_string())
    };
    let (code, message) = reported(
        "ERROR: unable to select packages:\n  musl-1.2.5-r0:\n    breaks: world[musl=1.2.4-r2]\n",
    );
    assert_eq!(code, FailureCode::DependencyConflict);
    assert_eq!(
        message,
        "apk: unable to select packages: musl-1.2.5-r0: breaks: world[musl=1.2.4-r2]"
    );
    let lock = "ERROR: Unable to lock database: Resource temporarily unavailable\n";
    assert_eq!(reported(lock).0, FailureCode::PkgLockTimeout);
    let gone = "ERROR: musl-1.2.5-r0: package mentioned in index not found (try 'apk update')\n";
    assert_eq!(reported(gone).0, FailureCode::RepoUnreachable);
    let net = "WARNING: fetching https://example.invalid/main: temporary error (try again later)\n";
    assert_eq!(reported(net).0, FailureCode::RepoUnreachable);
    let script = "ERROR: musl-1.2.5-r0.post-upgrade: script exited with error 1\n";
    assert_eq!(reported(script).0, FailureCode::InstallFailed);
}

#[test]
fn lock_holder_is_found_in_proc_locks() {
    let locks = "\
1: POSIX  ADVISORY  READ  700 08:01:131 0 EOF
2: FLOCK  ADVISORY  WRITE 812 08:01:131 0 EOF
2: -> FLOCK  ADVISORY  WRITE 813 08:01:131 0 EOF
3: FLOCK  ADVISORY  WRITE 900 08:01:132 0 EOF
";
    assert_eq!(parse::lock_owner(locks, 131), Some(812));
    assert_eq!(parse::lock_owner(locks, 133), None);
}

/// The files of a system without its apk.
#[test]
fn system_is_read_from_its_files() {
    let dir = std::env::temp_dir().join(format!("fleetmend-apk-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let root = Root::under(&dir);
    let apk = Apk::new(root.clone());
    assert!(apk.installed().is_err(), "a missing database is not an empty one");
    write("usr/lib/apk/db/installed", INSTALLED);
    write("etc/apk/world", "musl=1.2.4-r2\nmusl-utils<2\n");
    write("sbin/apk", "");
    write("etc/ld/musl.conf.apk-new", "");
    let held: Vec<bool> = apk.installed().unwrap().iter().map(|package| package.held).collect();
    assert_eq!(held, [true, false, false]);
    assert_eq!(
        apk.damage().unwrap()[0].as_str(),
        "musl-utils 1.2.4-r2: not all of its files were installed"
    );
    assert_eq!(
        apk.new_config_files().unwrap(),
        [std::path::Path::new("/etc/ld/musl.conf.apk-new")]
    );
    assert!(Apk::manages(&root) && apk.lock_holder().unwrap().is_none());
    let choice = Choice {
        name: "musl".to_owned(),
        arch: String::new(),
        from: "1.2.4-r2".to_owned(),
        to: "1.2.5-r0".to_owned(),
    };
    let install = apk.install(&[choice]);
    assert_eq!(install[0].args[install[0].args.len() - 3..], ["--upgrade", "--", "musl"]);
    fs::remove_dir_all(&dir).unwrap();
}
