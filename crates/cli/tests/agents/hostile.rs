//! A compromised control plane: an attacker has the real signing key and sends any order.
//!
//! The service is stopped, and an attacker takes its address with its keys. It sends orders to a
//! real agent on a system with a real package manager. Whatever they say, the only effect is
//! upgrades of installed packages from the host's own repositories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use lab::rpm::Manager;
use reqwest::Method;
use serde_json::json;

use crate::attacker::{Attacker, Names, crafted_orders, id, take_over};
use crate::support::{Fleet, Host, package_changes};

/// Names that some package manager interprets as more than a name.
const MALFORMED: [&str; 39] = [
    "bash-",
    "hello-",
    "hello=0.9",
    "hello=1.0",
    "hello/stable",
    "hello:amd64",
    "hello:i386",
    "hello*",
    "hel?o",
    "?upgradable",
    "?installed",
    "?essential",
    "~U",
    "~i",
    "standard^",
    "task^",
    "h.*",
    "^hello$",
    "/tmp/evil",
    "./evil",
    "../../tmp/evil",
    "file:///tmp/evil",
    "https://evil.invalid/evil",
    "--allow-downgrades",
    "--allow-unauthenticated",
    "-oDPkg::Pre-Invoke::=/tmp/evil.sh",
    "-o",
    "-t=evil",
    "hello -oAPT::Get::AllowUnauthenticated=1",
    "hello;touch /tmp/owned",
    "$(touch /tmp/owned)",
    "`touch /tmp/owned`",
    "hello\n--allow-remove-essential",
    "hello\u{0}evil",
    "",
    " ",
    "dpkg hello",
    "@core",
    "!hello",
];

/// Valid names that no installed package has, although a package manager would match something.
const ABSENT: [&str; 7] = ["ba.h", "hel.o", "absent", "evil", "HELLO", "bash+", "hello.evil"];

/// A host under attack: `hello` and `other` have updates; `evil` is in the repository but not
/// installed; `older` is installed in a newer version than the repository's.
struct Target<'a> {
    root: &'a Path,
    /// Directory whose files are compared: the root, or the upper layer over the system it is based
    /// on.
    files: &'a Path,
    /// Paths that the package manager uses itself.
    ignored: &'a [&'a str],
    /// Additions to [`MALFORMED`] and [`ABSENT`] for this package manager.
    malformed: &'a [&'a str],
    absent: &'a [&'a str],
    /// Each order takes seconds.
    slow: bool,
    /// The version of each package.
    packages: &'a dyn Fn() -> BTreeMap<String, String>,
    /// The versions of `hello` whose script has run.
    runs: &'a dyn Fn() -> Vec<String>,
    /// The new version of `hello`, and the files that differ once it is installed.
    version: &'a str,
    changed: &'a [&'a str],
}

impl Target<'_> {
    fn names(&self) -> Names<'_> {
        Names {
            malformed: MALFORMED.iter().chain(self.malformed).copied().collect(),
            absent: ABSENT.iter().chain(self.absent).copied().collect(),
            combine_absent: self.slow,
        }
    }

    /// Every file with its content, except those that the package manager and the agent use
    /// themselves.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.files.to_owned()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(&dir).unwrap().flatten() {
                let path = entry.path();
                let name = path.strip_prefix(self.files).unwrap().to_string_lossy().into_owned();
                let kind = entry.file_type().unwrap();
                let common = ["proc", "var/cache", "var/log", "var/lib/fleetmend-agent"];
                if common.iter().chain(self.ignored).any(|ignored| *ignored == name) {
                    continue;
                } else if kind.is_dir() {
                    open.push(path);
                } else if kind.is_file() {
                    found.insert(name, std::fs::read(&path).unwrap());
                } else {
                    found.insert(name, Vec::new());
                }
            }
        }
        found
    }

    /// The real service rejects malformed names. Valid names of packages that are not installed
    /// change nothing.
    fn assert_service_rejects_names(&self, fleet: &Fleet, host: &Host) {
        let names = self.names();
        for name in names.malformed {
            for (path, body) in [
                (format!("/v1/servers/{}/patch", host.id), json!({"packages": [name]})),
                ("/v1/batches".to_owned(), json!({"packages": [name], "server_ids": [host.id]})),
            ] {
                let (status, answer) = fleet.request(Method::POST, &path, Some(&body));
                assert_eq!(status, 422, "{name:?}: {answer}");
                let pointer = answer["errors"][0]["pointer"].as_str().unwrap();
                assert!(pointer.contains("/packages"), "{answer}");
            }
        }
        assert_eq!(fleet.get("/v1/batches")["meta"]["total"], 0);
        let (packages, files) = ((self.packages)(), self.files());
        let task = fleet.patch(&host.id, &json!({"packages": names.absent}));
        assert_ne!(task["state"], "succeeded", "{task}");
        assert!(package_changes(&task).is_empty(), "{task}");
        assert_eq!((self.packages)(), packages);
        assert_eq!(changed(&files, &self.files()), [""; 0]);
    }

    /// Runs the whole attack, after the orders through the real service, which need no separate
    /// host.
    fn assert_withstands_attack(&self) {
        let mut fleet = Fleet::new();
        let mut host = Host::joined(&fleet, self.root);
        fleet.wait_for_scan(&host.id);
        self.assert_service_rejects_names(&fleet, &host);
        assert!(host.stop());

        let mut attacker = Attacker::take_signing_key(&mut fleet, &host.id);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let mut orders = crafted_orders(&attacker, boot.trim(), &self.names());
        assert!(orders.len() >= 180, "{} orders", orders.len());
        // A valid order, three times, at the end: once it has a result, all orders were processed.
        let work = json!({"kind": "install", "packages": ["hello"], "boot_id": boot.trim()});
        let (valid, valid_id) = (attacker.order(9_999, &work), id(9_999));
        orders.extend([valid.clone(), valid.clone(), valid.clone()]);
        attacker.orders = orders;
        let attacker = Arc::new(Mutex::new(attacker));
        let (files_before, packages_before) = (self.files(), (self.packages)());
        let _runtime = take_over(&fleet.service.address, attacker.clone());
        host.start();
        let is_answered = || attacker.lock().unwrap().results.contains_key(&valid_id);
        fleet.until_true("the last order is answered", is_answered);
        // Once more, long after its result was acknowledged.
        {
            let mut attacker = attacker.lock().unwrap();
            attacker.results.remove(&valid_id);
            attacker.orders.push(valid);
        }
        fleet.until_true("the same order is answered again", is_answered);

        let mut expected = packages_before;
        expected.insert("hello".to_owned(), self.version.to_owned());
        assert_eq!((self.packages)(), expected);
        assert_eq!((self.runs)(), [self.version], "a replayed order must run once");
        assert_eq!(changed(&files_before, &self.files()), self.changed);
        let attacker = attacker.lock().unwrap();
        for (id, result) in &attacker.results {
            let outcome = result["outcome"].as_str().unwrap();
            if *id == valid_id {
                assert_eq!(outcome, "succeeded", "{result}");
            } else {
                assert_ne!(outcome, "succeeded", "{result}");
                assert_eq!(result["packages"].as_array().map_or(0, Vec::len), 0, "{result}");
            }
        }
        assert!(attacker.results.len() > 120, "{} answers", attacker.results.len());
        let words = host.log_text();
        assert!(words.contains("rejected an order"), "{words}");
    }
}

fn changed(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names.into_iter().filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

/// Parses lines such as `hello 1.0-1 noarch`, by name.
fn by_name(lines: &[String]) -> BTreeMap<String, String> {
    let pair = |line: &String| {
        let (name, version) = line.split_once(' ')?;
        Some((name.to_owned(), version.trim_end_matches(" noarch").to_owned()))
    };
    lines.iter().filter_map(pair).collect()
}

/// The lines of a file on the host; none if it does not exist.
fn lines_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Copies the package `evil` from a repository to where orders look for it, in the root's `/tmp`.
fn copy_evil_package(repository: &Path, root: &Path, name: &str) {
    let found = std::fs::read_dir(repository).unwrap().flatten().map(|entry| entry.path());
    let is_evil = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("evil"))
    };
    let evil = { found }.find(is_evil).unwrap();
    std::fs::create_dir_all(root.join("tmp")).unwrap();
    for name in [name, "evil"] {
        std::fs::copy(&evil, root.join("tmp").join(name)).unwrap();
    }
}

#[test]
fn with_apt_an_attacker_can_only_upgrade_installed_packages() {
    use lab::apt::{Deb, Pocket, Repo, Server};
    let owned = "touch /tmp/owned";
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs()),
        (Pocket::Stable, Deb::new("other", "1.0")),
        (Pocket::Updates, Deb::new("other", "1.1").counts_runs()),
        (Pocket::Stable, Deb::new("older", "2.0")),
        (Pocket::Updates, Deb::new("older", "1.0").script(owned)),
        (Pocket::Updates, Deb::new("evil", "9.9").script(owned)),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other", "older"]) else { return };
    let root = server.root.dir();
    copy_evil_package(&repo.dir().join("pool/stable-updates"), root, "evil.deb");
    Target {
        root,
        files: root,
        ignored: &["repo", "var/lib/apt", "var/lib/dpkg"],
        malformed: &["/tmp/evil.deb", "./evil.deb", "../../tmp/evil.deb", "file:///tmp/evil.deb"],
        absent: &["evil.deb"],
        slow: false,
        packages: &|| server.packages(),
        runs: &|| server.runs("hello"),
        version: "1.1",
        changed: &["usr/share/hello/version"],
    }
    .assert_withstands_attack();
}

/// For dnf and zypper.
fn assert_rpm_host_withstands_attack(manager: Manager) {
    use lab::rpm::{Advisory, Package, Repo, Server};
    let owned = |package: Package| package.script("post", "echo owned > /tmp/owned");
    let old = ["hello", "other"].map(|name| Package::new(name, "1.0-1"));
    let new = ["hello", "other"].map(|name| {
        let script = format!("echo 1.1-1 >> /run/{name}.runs");
        Package::new(name, "1.1-1").script("post", &script)
    });
    let newest = Package::new("older", "2.0-1");
    let fix = Advisory::security("LSA-2024:1", "Important", &["CVE-2024-1"], &[&new[0]]);
    let mut all = [&old[..], &new[..]].concat();
    all.extend([owned(Package::new("older", "1.0-1")), owned(Package::new("evil", "9.9-1"))]);
    let Some(repo) = Repo::with(&all, &[fix]) else { return };
    let installed = [&old[..], &[newest]].concat();
    let Some(server) = Server::with_installed(manager, &repo, &installed) else { return };
    server.write("/etc/os-release", "ID=lab\nVERSION_ID=9\nPRETTY_NAME=\"Lab 9\"\n");
    copy_evil_package(repo.dir(), server.dir(), "evil.rpm");
    Target {
        root: server.dir(),
        files: server.dir(),
        // The last one is where Debian's rpm keeps the database of a system under another root.
        ignored: &["run", "var/lib/dnf", "var/lib/rpm", "var/lib/zypp", "root/.rpmdb"],
        malformed: &[
            "/tmp/evil.rpm",
            "./evil.rpm",
            "file:///tmp/evil.rpm",
            "/usr/share/evil/9.9-1",
            "evil-9.9-1.noarch",
            "hello.noarch",
            "hello-1.0-1.noarch",
            "hello-0:1.1-1.noarch",
            "hello = 1.0",
            "hello<9",
            "@*",
            "package:evil",
            "patch:LSA-2024:1",
            "pattern:evil",
            "lab:evil",
            "+evil",
            "-hello",
            "~hello",
            "--nogpgcheck",
            "--oldpackage",
            "--force-resolution",
            "--plus-repo=file:///tmp",
            "--setopt=reposdir=/tmp",
            "--repofrompath=evil,file:///tmp",
        ],
        absent: &["evil.rpm", "evil-9.9-1", "hello-1.0-1", "hello-1.1-1", "hello-0.9"],
        slow: true,
        packages: &|| by_name(&server.database()),
        runs: &|| lines_of(&server.path("/run/hello.runs")),
        version: "1.1-1",
        changed: &["usr/share/hello/1.0-1", "usr/share/hello/1.1-1"],
    }
    .assert_withstands_attack();
}

#[test]
fn with_dnf_an_attacker_can_only_upgrade_installed_packages() {
    assert_rpm_host_withstands_attack(Manager::Dnf);
}

#[test]
fn with_zypper_an_attacker_can_only_upgrade_installed_packages() {
    assert_rpm_host_withstands_attack(Manager::Zypper);
}

#[test]
fn with_pacman_an_attacker_can_only_upgrade_installed_packages() {
    use lab::pacman::{Package, Repository, Server};
    let names = ["hello", "other", "older"];
    let old = [("hello", "1.0-1"), ("other", "1.0-1"), ("older", "2.0-1")];
    let old = old.map(|(name, version)| Package::new(name, version));
    let Some(repository) = Repository::with(&old) else { return };
    let server = Server::with_installed(&repository, &names);
    repository.add(&[
        Package::new("hello", "1.1-1").after_upgrade("echo 1.1-1 >> /var/log/hello.runs"),
        Package::new("other", "1.1-1"),
        Package::new("older", "1.0-1").after_upgrade("touch /tmp/owned"),
        Package::new("evil", "9.9-1").info_line("group", "evils"),
    ]);
    let root = server.root();
    // The root is an overlay of this machine, whose own packages must not count.
    root.write("/var/lib/dpkg/status", "");
    let _ = std::fs::remove_file(root.path("/var/log/hello.runs"));
    copy_evil_package(&root.path("/srv/lab"), root.dir(), "evil.pkg.tar.gz");
    Target {
        root: root.dir(),
        files: &root.side_dir().join("upper"),
        // pacman runs ldconfig after each transaction.
        ignored: &["var/lib/pacman", "etc/ld.so.cache"],
        malformed: &[
            "/tmp/evil.pkg.tar.gz",
            "file:///tmp/evil.pkg.tar.gz",
            "lab/evil",
            "lab/hello",
            "hello=1.0-1",
            "hello>0",
            "hello<2",
            "-R",
            "-Rns",
            "-U",
            "--overwrite=*",
            "--dbpath=/tmp",
            "--config=/tmp/evil",
        ],
        absent: &["evil.pkg.tar.gz", "evil-9.9-1", "evils", "hello-1.1-1", "hello@lab"],
        slow: true,
        packages: &|| by_name(&server.installed()),
        runs: &|| lines_of(&root.path("/var/log/hello.runs")),
        version: "1.1-1",
        changed: &["usr/share/hello/version"],
    }
    .assert_withstands_attack();
}

/// A stand-in for apk, which Debian does not have. It prints what apk prints, upgrades `hello` and
/// `other`, and does what an attacker wants when given any other name.
const APK: &str = r#"#!/bin/sh
echo "$*" >> /var/log/apk.calls
installed=/usr/lib/apk/db/installed
simulate= names=
for word in "$@"; do
    [ "$names" ] && names="$names
$word"
    [ "$word" = --simulate ] && simulate=1
    [ "$word" = -- ] && names=--
done
case "$1" in
list)
    for name in hello other; do
        grep -A1 "^P:$name$" $installed | grep -q "^V:1.0-r0$" &&
            echo "$name-1.1-r0 x86_64 {$name} (MIT) [upgradable from: $name-1.0-r0]"
    done
    ;;
fix)
    echo "$names" | while read -r name; do
        case "$name" in
        --) ;;
        hello | other)
            grep -A1 "^P:$name$" $installed | grep -q "^V:1.0-r0$" || continue
            echo "(1/1) Upgrading $name (1.0-r0 -> 1.1-r0)"
            [ "$simulate" ] && continue
            sed -i "/^P:$name$/{n;s/.*/V:1.1-r0/}" $installed
            echo 1.1-r0 >> "/var/log/$name.runs"
            ;;
        *) touch /tmp/owned ;;
        esac
    done
    ;;
esac
exit 0
"#;

#[test]
fn with_apk_an_attacker_can_only_upgrade_installed_packages() {
    use std::os::unix::fs::PermissionsExt as _;
    if !lab::root::can_create_roots() {
        return;
    }
    let root = lab::root::Root::from_dir(Path::new("/"));
    // The root is an overlay of this machine, whose own packages must not count.
    root.write("/var/lib/dpkg/status", "");
    let versions = [("hello", "1.0-r0"), ("older", "2.0-r0"), ("other", "1.0-r0")];
    let listed = versions.map(|(name, version)| format!("P:{name}\nV:{version}\nA:x86_64\n\n"));
    let database = "/usr/lib/apk/db/installed";
    root.write(database, &listed.concat());
    root.write("/etc/os-release", "ID=alpine\nVERSION_ID=3.22.0\nPRETTY_NAME=\"Lab\"\n");
    root.write("/usr/bin/apk", APK);
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(root.path("/usr/bin/apk"), executable).unwrap();
    for log in ["apk.calls", "hello.runs", "other.runs"] {
        root.write(&format!("/var/log/{log}"), "");
    }
    let packages = || {
        let text = root.read(database);
        let read_block = |block: &str| {
            let field = |key: &str| block.lines().find_map(|line| line.strip_prefix(key));
            Some((field("P:")?.to_owned(), field("V:")?.to_owned()))
        };
        text.split("\n\n").filter_map(read_block).collect()
    };
    Target {
        root: root.dir(),
        files: &root.side_dir().join("upper"),
        ignored: &["usr/lib/apk/db"],
        malformed: &[
            "hello=1.0-r0",
            "hello>0",
            "hello~1",
            "evil=9.9",
            ".evil",
            "/tmp/evil.apk",
            "--allow-untrusted",
            "--repository=/tmp",
            "--root=/",
        ],
        absent: &["evil.apk", "evil-9.9-r0", "hello-1.1-r0", "hello@edge"],
        slow: false,
        packages: &packages,
        runs: &|| lines_of(&root.path("/var/log/hello.runs")),
        version: "1.1-r0",
        changed: &[],
    }
    .assert_withstands_attack();
    assert!(!root.path("/tmp/owned").exists(), "{}", root.read("/var/log/apk.calls"));
    let calls = root.read("/var/log/apk.calls");
    assert!(calls.lines().any(|call| call.ends_with("--upgrade -- hello")), "{calls}");
    let named = calls.lines().filter_map(|call| call.split_once(" -- "));
    let names: BTreeSet<&str> = named.flat_map(|(_, names)| names.split(' ')).collect();
    assert_eq!(names, BTreeSet::from(["hello", "other"]), "{calls}");
}
