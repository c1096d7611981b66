//! `fleetmend dev` on the machine that runs the test: what a new user sees in the first two
//! minutes.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Output, Stdio};

use lab::apt::{Deb, Pocket, Repo, Server};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Dir, fleetmend};

/// A running `fleetmend dev`, killed on drop.
struct Dev {
    child: Child,
    stdout_lines: std::io::Lines<BufReader<ChildStdout>>,
    printed: Vec<String>,
    url: String,
}

impl Dev {
    /// As root, the agent refreshes package lists. [`isolate_network`] keeps it off the network,
    /// since a test talks to its own machine only. Without root nothing is fetched.
    fn start(data: &Path, more: &[&str]) -> Dev {
        let args = ["dev", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
        let mut child = fleetmend(&[&args[..], more].concat())
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let message = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut dev = Dev { child, stdout_lines: message, printed: Vec::new(), url: String::new() };
        let first = dev.until("Fleetmend is running at ");
        first.rsplit(' ').next().unwrap().clone_into(&mut dev.url);
        dev
    }

    /// Reads lines until one contains this text.
    fn until(&mut self, part: &str) -> String {
        for line in self.stdout_lines.by_ref() {
            let line = line.unwrap();
            self.printed.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
        panic!("it ended before it printed `{part}`: {:#?}", self.printed);
    }

    /// The last word of the line that starts with `name`.
    fn value_after(&self, name: &str) -> &str {
        let line = self.printed.iter().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap()
    }

    fn end(mut self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGINT).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Isolates the network, since the agent refreshes package lists as root.
pub(crate) fn isolate_network() {
    if rustix::process::geteuid().is_root() {
        lab::network::isolate();
    }
}

/// Runs a command line from the banner.
fn run_pasted(line: &str) -> Output {
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    fleetmend(&words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Number of packages that this machine's dpkg lists; none if there is no dpkg.
pub(crate) fn installed_package_count() -> Option<usize> {
    let listed = std::process::Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}\n"])
        .output()
        .ok()?;
    let listed = text(&listed.stdout);
    Some(listed.lines().filter(|status| *status == "installed").count()).filter(|count| *count > 0)
}

#[test]
fn dev_lists_this_machines_packages_and_restarts() {
    isolate_network();
    let Some(installed) = installed_package_count() else {
        let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some();
        assert!(!required, "this machine has no dpkg");
        println!("skipped: this machine has no dpkg to compare with");
        return;
    };
    let dir = Dir::new();
    let mut dev = Dev::start(&dir.data(), &[]);
    dev.until("Press Ctrl-C to stop");
    let key = dev.value_after("admin key").to_owned();
    assert!(
        dev.value_after("dashboard").starts_with(&format!("{}/welcome/", dev.url)),
        "{:?}",
        dev.printed
    );
    let file = dir.data().join("credentials.toml");
    assert_eq!(dev.value_after("saved in"), file.canonicalize().unwrap().to_str().unwrap());
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let seen = dev.until("packages,");
    let tried: Vec<Output> = dev
        .printed
        .iter()
        .filter(|line| line.contains("--credentials"))
        .map(|l| run_pasted(l))
        .collect();
    assert_eq!(tried.len(), 3);
    for output in &tried {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let listed = ["servers", "list", "--json", "--credentials", file.to_str().unwrap()];
    let listed = fleetmend(&listed).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["meta"]["total"], 1);
    let server = &listed["data"][0];
    assert_eq!(server["summary"]["packages"], installed, "{seen}");
    assert_eq!(server["environment"], "development");
    let id = server["id"].as_str().unwrap().to_owned();
    dev.end();

    let mut again = Dev::start(&dir.data(), &[]);
    again.until("packages,");
    assert_eq!(again.value_after("admin key"), key);
    let shown = fleetmend(&["servers", "show", &id, "--json"])
        .env("FLEETMEND_URL", &again.url)
        .env("FLEETMEND_API_KEY", &key)
        .output()
        .unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["packages"].as_array().unwrap().len(), installed);
    let total = fleetmend(&["summary", "--json"])
        .env("FLEETMEND_URL", &again.url)
        .env("FLEETMEND_API_KEY", &key)
        .output()
        .unwrap();
    let total: Value = serde_json::from_slice(&total.stdout).unwrap();
    assert_eq!(total["servers"]["total"], 1, "a second start must not enroll a second server");
    again.end();
}

/// If the credentials file is lost or the key was revoked, the next start creates a new key in the
/// same organization.
#[test]
fn lost_or_revoked_key_is_replaced() {
    isolate_network();
    let dir = Dir::new();
    let file = dir.data().join("credentials.toml");
    let file = file.to_str().unwrap();
    let started = || {
        let mut dev = Dev::start(&dir.data(), &[]);
        dev.until("Press Ctrl-C to stop");
        let key = dev.value_after("admin key").to_owned();
        (dev, key)
    };
    let (dev, first) = started();
    let other = ["keys", "create", "--name", "other", "--role", "admin", "--credentials", file];
    assert!(fleetmend(&other).output().unwrap().status.success());
    let revoked = ["keys", "revoke", "first admin key", "--yes", "--credentials", file];
    let revoked = fleetmend(&revoked).output().unwrap();
    assert!(revoked.status.success(), "{}", text(&revoked.stderr));
    dev.end();
    let (dev, second) = started();
    assert_ne!(first, second);
    dev.end();
    std::fs::remove_file(file).unwrap();
    let (dev, third) = started();
    assert!(third != first && third != second);
    let listed = fleetmend(&["keys", "list", "--credentials", file]).output().unwrap();
    let listed = text(&listed.stdout);
    assert_eq!(listed.lines().count(), 5, "{listed}");
    dev.end();
}

/// The service keeps running without the machine; the next start of `dev` enrolls it again.
#[test]
fn removed_machine_enrolls_again_at_the_next_start() {
    isolate_network();
    let dir = Dir::new();
    let file = dir.data().join("credentials.toml");
    let says = |args: &[&str]| {
        let output = fleetmend(&[args, &["--credentials", file.to_str().unwrap()]].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let only = || {
        let listed: Value = serde_json::from_str(&says(&["servers", "list", "--json"])).unwrap();
        assert_eq!(listed["meta"]["total"], 1, "{listed}");
        listed["data"][0]["id"].as_str().unwrap().to_owned()
    };
    let mut dev = Dev::start(&dir.data(), &[]);
    let first = only();
    says(&["servers", "remove", &first, "--yes"]);
    dev.until("removed this host");
    assert!(says(&["summary"]).contains("0 servers"));
    dev.end();
    let dev = Dev::start(&dir.data(), &[]);
    assert_ne!(only(), first);
    dev.end();
}

#[test]
fn startup_errors_include_advice() {
    let dir = Dir::new();
    let refused = |args: &[&str]| {
        let output = fleetmend(&[&["dev"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    let data = dir.data();
    let data = data.to_str().unwrap();

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    let message = refused(&["--data-dir", data, "--listen", &taken.1]);
    assert!(
        message.contains("another program is listening on") && message.contains("--listen"),
        "{message}"
    );

    let bare = dir.0.join("bare");
    std::fs::create_dir(&bare).unwrap();
    let message = refused(&["--data-dir", data, "--root", bare.to_str().unwrap()]);
    assert!(
        message.contains("no supported package manager found")
            && message.contains("fleetmend server"),
        "{message}"
    );

    let message = refused(&[]);
    assert!(message.contains("no home directory") && message.contains("--data-dir"), "{message}");
}

#[tokio::test]
async fn data_directory_of_another_version_is_rejected() {
    isolate_network();
    let dir = Dir::new();
    Dev::start(&dir.data(), &[]).end();
    let database = dir.data().join("fleetmend.db");
    let pool = sqlx::SqlitePool::connect(&format!("sqlite:{}", database.display())).await.unwrap();
    sqlx::query(
        "insert into schema_migrations (version, name, checksum) values (9999, 'later', x'00')",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;
    let data = dir.data();
    let args = ["dev", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let output = fleetmend(&args).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("created by another version") && message.contains("--data-dir"),
        "{message}"
    );
}

#[test]
fn second_dev_with_the_same_data_directory_is_rejected() {
    isolate_network();
    let dir = Dir::new();
    let mut dev = Dev::start(&dir.data(), &[]);
    dev.until("packages,");
    let data = dir.data();
    let args = ["dev", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let output = fleetmend(&args).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("is already running with"), "{message}");
    dev.end();
}

/// The agent rejects the order, not the service: the service accepts and sends it.
#[test]
fn nothing_is_installed_without_allow_install() {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1")),
    ]);
    let Some(server) = repo.and_then(|repo| Server::with_installed(&repo, &["hello"])) else {
        return;
    };
    let dir = Dir::new();
    let root = server.root.dir().to_str().unwrap();
    let file = dir.data().join("credentials.toml");
    let order = |dev: &mut Dev| {
        dev.until("packages,");
        let listed = ["servers", "list", "--credentials", file.to_str().unwrap()];
        let listed = text(&fleetmend(&listed).output().unwrap().stdout);
        let id = listed.trim().rsplit('\t').next().unwrap().to_owned();
        let order = ["servers", "patch", &id, "--package", "hello", "--yes", "--watch"];
        fleetmend(&[&order[..], &["--credentials", file.to_str().unwrap()]].concat())
            .output()
            .unwrap()
    };
    let mut dev = Dev::start(&dir.data(), &["--root", root]);
    let refused = order(&mut dev);
    assert_eq!(refused.status.code(), Some(1));
    let message = text(&refused.stderr);
    assert!(message.contains("rejected_by_agent") && message.contains("limits.toml"), "{message}");
    assert_eq!(server.version("hello").unwrap(), "1.0");
    dev.end();

    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut dev = Dev::start(&dir.data(), &["--root", root, "--allow-install"]);
    let done = order(&mut dev);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(server.version("hello").unwrap(), "1.1");
    dev.end();
}
