//! A server fixture for dnf and zypper, and the tests that both share, with the real package
//! manager and a real repository.

#![expect(clippy::unwrap_used, reason = "a test fails where its setup fails")]

use agent::backend::{Backend, BackendError, Change, Choice};
use agent::command::Command;
use lab::root::{CommandOutput, run_command};
use lab::rpm::{Advisory, Manager, Package, Repo, Server};
use vocab::FailureCode;
use vocab::listing::{Installed, Pending};

pub(crate) struct RpmFixture {
    pub(crate) repo: Repo,
    pub(crate) server: Server,
    pub(crate) backend: Box<dyn Backend>,
}

/// The old and new versions of the packages for all tests. The advisory for openssl names -43, and
/// the repository also offers -44.
fn packages() -> (Vec<Package>, Vec<Package>) {
    let one = |name: &str| Package::new(name, "1-1");
    let two = |name: &str| Package::new(name, "2-1");
    let openssl = |release: &str| {
        Package::new("openssl-libs", &format!("1:3.0.1-{release}.el9_0")).source("openssl")
    };
    let bash = |release: &str| {
        Package::new("bash", &format!("5.1.8-{release}.el9"))
            .config("/etc/bash.conf", &format!("setting of {release}"))
    };
    let old = vec![
        bash("4"),
        one("broken"),
        one("eater"),
        one("failing-post"),
        one("failing-pre"),
        one("fighter"),
        kernel("70"),
        one("leaving"),
        one("needy"),
        openssl("41"),
        Package::new("plain", "1.0-1"),
        one("victim"),
        one("waiting"),
    ];
    let new = vec![
        bash("6"),
        two("broken").line("Requires: nowhere"),
        two("eater").line("Obsoletes: victim < 9"),
        Package::new("extra", "1-1"),
        two("failing-post").script("post", "echo the post script fails; exit 3"),
        two("failing-pre").script("pre", "echo the pre script fails; exit 3"),
        two("fighter").line("Conflicts: plain"),
        kernel("162"),
        two("leaving").script("post", "sleep 600 & echo $! > /run/left"),
        two("needy").line("Requires: extra"),
        openssl("43"),
        openssl("44"),
        Package::new("plain", "1.1-1"),
        two("waiting").script("post", "timeout 120 cat /run/gate"),
    ];
    (old, new)
}

/// A kernel, which is installed next to its older versions.
pub(crate) fn kernel(release: &str) -> Package {
    Package::new("kernel-core", &format!("5.14.0-{release}.el9"))
        .line("Provides: installonlypkg(kernel)")
        .line("Provides: multiversion(kernel)")
}

impl RpmFixture {
    pub(crate) fn new(
        manager: Manager,
        backend: fn(agent::root::Root) -> Box<dyn Backend>,
    ) -> Option<RpmFixture> {
        let (old, new) = packages();
        let named =
            |name: &str| new.iter().find(|package| package.nevra().starts_with(name)).unwrap();
        let advisories = [
            Advisory::other("LBA-2024:0003", "bugfix", &[named("bash-")]),
            Advisory::security(
                "LSA-2024:0002",
                "Moderate",
                &["CVE-2024-0001"],
                &[named("kernel-core-")],
            ),
            Advisory::security(
                "LSA-2024:0001",
                "Important",
                &["CVE-2022-3602", "CVE-2022-3786"],
                &[named("openssl-libs-1:3.0.1-43")],
            ),
        ];
        let all: Vec<Package> = old.iter().chain(&new).cloned().collect();
        let repo = Repo::with(&all, &advisories)?;
        let server = Server::with_installed(manager, &repo, &old)?;
        let backend = backend(agent::root::Root::under(server.dir()));
        Some(RpmFixture { repo, server, backend })
    }

    pub(crate) fn installed(&self) -> Vec<Installed> {
        self.backend.installed().unwrap()
    }

    /// The pending updates, one line each: name, versions, advisory data, and block reason.
    pub(crate) fn pending(&self) -> Vec<String> {
        let shown = |update: &Pending| {
            let mut line = format!("{} {} -> {}", update.name, update.installed, update.candidate);
            assert_eq!(update.arch, "noarch", "{line}");
            if update.update_type != vocab::UpdateType::Other {
                assert_eq!(update.security, update.update_type == vocab::UpdateType::Security);
                line.push_str(&format!(" {}", update.update_type.as_str()));
            }
            for word in update.severity.iter().copied().map(vocab::Severity::as_str) {
                line.push_str(&format!(" {word}"));
            }
            for word in update.advisories.iter().chain(&update.cves) {
                line.push_str(&format!(" {word}"));
            }
            if let Some(reason) = update.blocked_by {
                line.push_str(&format!(" ({})", reason.as_str()));
            }
            line
        };
        let mut lines: Vec<String> =
            self.backend.pending(&self.installed()).unwrap().iter().map(shown).collect();
        lines.sort();
        lines
    }

    pub(crate) fn choose(&self, name: &str, to: &str) -> Choice {
        let now = self.installed().into_iter().find(|package| package.name == name).unwrap();
        Choice { name: now.name, arch: now.arch, from: now.version, to: to.to_owned() }
    }

    /// The resolved changes, one line each.
    pub(crate) fn resolve(&self, chosen: &[Choice]) -> Vec<String> {
        self.backend.resolve(chosen).unwrap().changes.iter().map(format_change).collect()
    }

    /// Runs the commands, up to the first that fails.
    pub(crate) fn run(&self, commands: &[Command]) -> CommandOutput {
        let mut last = CommandOutput { exit: Some(0), text: String::new() };
        for command in commands {
            last = run_command(&mut command.to_std_command());
            if !command.succeeded_with(last.exit) {
                break;
            }
        }
        last
    }

    /// The difference between the package database and an earlier state of it.
    pub(crate) fn changed_since(&self, before: &[String]) -> Vec<String> {
        let after = self.server.database();
        let gone =
            before.iter().filter(|line| !after.contains(line)).map(|line| format!("-{line}"));
        let come =
            after.iter().filter(|line| !before.contains(line)).map(|line| format!("+{line}"));
        gone.chain(come).collect()
    }
}

fn format_change(change: &Change) -> String {
    let side = |evr: &Option<String>| evr.clone().unwrap_or_else(|| "nothing".to_owned());
    format!("{}.{} {} -> {}", change.name, change.arch, side(&change.from), side(&change.to))
}

/// The list matches rpm's own, with source, origin and holds.
pub(crate) fn check_installed_packages_match_rpm(fixture: &RpmFixture, held: &[&str]) {
    let list = fixture.installed();
    let mut lines: Vec<String> =
        list.iter().map(|p| format!("{} {} {}", p.name, p.version, p.arch)).collect();
    lines.sort();
    assert_eq!(lines, fixture.server.database());
    let find_package = |name: &str| list.iter().find(|package| package.name == name).unwrap();
    let openssl = find_package("openssl-libs");
    assert_eq!((openssl.source(), openssl.source_version()), ("openssl", "1:3.0.1-41.el9_0"));
    assert_eq!(
        (find_package("bash").source(), find_package("bash").origin.as_deref()),
        ("bash", Some("Fleetmend Lab"))
    );
    let kept: Vec<&str> =
        list.iter().filter(|package| package.held).map(|package| package.name.as_str()).collect();
    assert_eq!(kept, held);
}

/// In httpd, `mod_ssl` sets its own epoch, and the source has none.
pub(crate) fn subpackage_epoch_is_not_the_source_epoch(
    manager: Manager,
    backend: fn(agent::root::Root) -> Box<dyn Backend>,
) {
    let part = |name: &str| Package::new(name, "2.4.57-5.el9").source("httpd");
    let mod_ssl = part("mod_ssl").line("Epoch: 1");
    for packages in [[part("httpd"), mod_ssl.clone()], [mod_ssl, part("httpd-core")]] {
        let Some(repo) = Repo::with(&packages, &[]) else { return };
        let Some(server) = Server::with_installed(manager, &repo, &packages) else { return };
        assert!(server.database().contains(&"mod_ssl 1:2.4.57-5.el9 noarch".to_owned()));
        let installed = backend(agent::root::Root::under(server.dir())).installed().unwrap();
        let of_httpd = installed.iter().filter(|package| package.source() == "httpd");
        let versions: Vec<&str> = of_httpd.map(Installed::source_version).collect();
        assert_eq!(versions, ["2.4.57-5.el9"; 2]);
    }
}

/// Exactly the chosen versions are installed, with their dependencies and nothing else; an edited
/// file is kept, and the new one is stored next to it. Afterwards the updates are no longer
/// pending.
pub(crate) fn installation_matches_the_resolved_transaction(fixture: &RpmFixture) {
    fixture.server.write("/etc/bash.conf", "edited by hand\n");
    let before = fixture.server.database();
    // -43 is chosen, although -44 is available too.
    let chosen = [
        fixture.choose("openssl-libs", "1:3.0.1-43.el9_0"),
        fixture.choose("bash", "5.1.8-6.el9"),
        fixture.choose("needy", "2-1"),
    ];
    let resolved = [
        "bash.noarch 5.1.8-4.el9 -> 5.1.8-6.el9",
        "extra.noarch nothing -> 1-1",
        "needy.noarch 1-1 -> 2-1",
        "openssl-libs.noarch 1:3.0.1-41.el9_0 -> 1:3.0.1-43.el9_0",
    ];
    assert_eq!(fixture.resolve(&chosen), resolved);
    let fetched = fixture.run(&fixture.backend.download(&chosen));
    assert_eq!(fetched.exit, Some(0), "{}", fetched.text);
    assert_eq!(fixture.server.database(), before, "a download changes nothing");
    let done = fixture.run(&fixture.backend.install(&chosen));
    assert_eq!(done.exit, Some(0), "{}", done.text);
    assert_eq!(
        fixture.changed_since(&before),
        [
            "-bash 5.1.8-4.el9 noarch",
            "-needy 1-1 noarch",
            "-openssl-libs 1:3.0.1-41.el9_0 noarch",
            "+bash 5.1.8-6.el9 noarch",
            "+extra 1-1 noarch",
            "+needy 2-1 noarch",
            "+openssl-libs 1:3.0.1-43.el9_0 noarch",
        ]
    );
    assert_eq!(fixture.server.read("/etc/bash.conf"), "edited by hand\n");
    let new_files = fixture.backend.new_config_files().unwrap();
    assert_eq!(new_files, [std::path::PathBuf::from("/etc/bash.conf.rpmnew")]);
    let left = fixture.pending();
    assert!(
        left.contains(&"openssl-libs 1:3.0.1-43.el9_0 -> 1:3.0.1-44.el9_0".to_owned()),
        "{left:?}"
    );
    assert!(!left.iter().any(|line| line.starts_with("bash ")), "{left:?}");
    assert_eq!(fixture.backend.damage().unwrap(), Vec::<vocab::Line>::new());
}

/// An unresolvable choice is reported in the resolver's words, a removal shows up in the
/// transaction, and neither changes anything.
pub(crate) fn conflicts_and_removals_are_detected_before_installing(fixture: &RpmFixture) {
    let before = fixture.server.database();
    let refused = |name: &str, to: &str| match fixture.backend.resolve(&[fixture.choose(name, to)])
    {
        Err(BackendError::Conflict(words)) => words.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    let words = refused("fighter", "2-1");
    assert!(words.contains("conflicts with plain provided by plain"), "{words}");
    let words = refused("broken", "2-1");
    assert!(words.contains("nothing provides nowhere needed by broken-2-1.noarch"), "{words}");
    let words = refused("bash", "9-9");
    assert!(words.contains("bash"), "{words}");
    assert_eq!(
        fixture.resolve(&[fixture.choose("eater", "2-1")]),
        ["eater.noarch 1-1 -> 2-1", "victim.noarch 1-1 -> nothing"]
    );
    // A package that is not installed is never installed, even if the repository has it.
    let stranger = Choice { name: "extra".to_owned(), ..fixture.choose("needy", "1-1") };
    assert!(matches!(fixture.backend.resolve(&[stranger]), Err(BackendError::Conflict(_))));
    assert_eq!(fixture.server.database(), before);
}

/// Two at once: the holder is named while it runs, and the second installation reports the lock.
pub(crate) fn lock_holder_is_named(fixture: &RpmFixture) {
    assert_eq!(fixture.backend.lock_holder().unwrap(), None);
    let gate = fixture.server.path("/run/gate");
    make_fifo(&gate);
    let [.., command] = &fixture.backend.install(&[fixture.choose("waiting", "2-1")])[..] else {
        panic!("there is at least one command")
    };
    let mut first = command.to_std_command();
    first.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut first = first.spawn().unwrap();
    let gate = ScriptGate::wait_for_script(&gate);
    let holder = fixture.backend.lock_holder().unwrap().expect("the lock is held");
    assert!(holder.pid.is_some(), "{holder:?}");
    let second = fixture.run(&fixture.backend.install(&[fixture.choose("plain", "1.1-1")]));
    assert_ne!(second.exit, Some(0), "{}", second.text);
    let diagnosis = fixture.backend.diagnose(second.exit, &second.text);
    assert_eq!(diagnosis.code, FailureCode::PkgLockTimeout, "{}", second.text);
    gate.open();
    assert!(first.wait().unwrap().success());
    assert_eq!(fixture.backend.lock_holder().unwrap(), None);
}

fn make_fifo(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Waits until a script reads from a fifo, with a timeout for both: `tee` opens the fifo, which
/// blocks until the script reads from it, and `timeout` ends it if that never happens.
struct ScriptGate {
    tee: std::process::Child,
}

impl ScriptGate {
    fn wait_for_script(fifo: &std::path::Path) -> ScriptGate {
        use std::io::{BufRead as _, Write as _};
        let mut keeper = std::process::Command::new("timeout")
            .args(["120", "tee"])
            .arg(fifo)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        keeper.stdin.as_mut().unwrap().write_all(b"reached\n").unwrap();
        let mut line = String::new();
        std::io::BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "reached\n", "no script read from the fifo");
        ScriptGate { tee: keeper }
    }

    fn open(mut self) {
        drop(self.tee.stdin.take());
        self.tee.wait().unwrap();
    }
}

/// The command ends when the package manager ends, whatever a script left running.
pub(crate) fn background_child_of_a_script_does_not_delay_the_command(fixture: &RpmFixture) {
    let before = fixture.server.database();
    let done = fixture.run(&fixture.backend.install(&[fixture.choose("leaving", "2-1")]));
    let child: i32 = fixture.server.read("/run/left").trim().parse().unwrap();
    let alive = std::path::Path::new(&format!("/proc/{child}")).exists();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    assert!(alive, "the child outlives the package manager");
    assert_eq!(done.exit, Some(0), "{}", done.text);
    assert_eq!(fixture.changed_since(&before), ["-leaving 1-1 noarch", "+leaving 2-1 noarch"]);
}

/// An interrupted upgrade is detected, and repaired without losing anything.
pub(crate) fn duplicate_package_is_damage_and_is_repaired(fixture: &RpmFixture) {
    let (_, new) = packages();
    let named = |name: &str| new.iter().find(|package| package.nevra().starts_with(name)).unwrap();
    fixture.server.install_alongside(named("plain-"));
    // A kernel is installed next to the older one anyway.
    fixture.server.install_alongside(named("kernel-core-"));
    let damage = fixture.backend.damage().unwrap();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(damage[0].as_str(), "plain.noarch is installed in several versions: 1.0-1, 1.1-1");
    let before = fixture.server.database();
    let done = fixture.run(&fixture.backend.repair());
    assert_eq!(done.exit, Some(0), "{}", done.text);
    assert_eq!(fixture.changed_since(&before), ["-plain 1.0-1 noarch"]);
    assert_eq!(fixture.backend.damage().unwrap(), Vec::<vocab::Line>::new());
    assert_eq!(fixture.backend.repair(), [], "there is nothing to repair");
    let reasons = fixture.backend.reboot_reasons("5.14.0-70.el9.noarch").unwrap();
    let words: Vec<&str> = reasons.iter().map(vocab::Line::as_str).collect();
    assert_eq!(words, ["kernel-core 5.14.0-162.el9 is installed, but 5.14.0-70.el9 is running"]);
}

/// All processes are killed in the middle of a script: the damage is detected and repaired, and the
/// script runs to its end.
pub(crate) fn killed_installation_is_repaired(fixture: &RpmFixture) {
    use std::os::unix::process::CommandExt as _;
    let gate = fixture.server.path("/run/gate");
    make_fifo(&gate);
    let before = fixture.server.database();
    let order = fixture.backend.install(&[fixture.choose("waiting", "2-1")]);
    let mut manager = order.last().unwrap().to_std_command();
    manager
        .process_group(0)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut manager = manager.spawn().unwrap();
    let reached = ScriptGate::wait_for_script(&gate);
    let group = rustix::process::Pid::from_raw(i32::try_from(manager.id()).unwrap()).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    assert!(!manager.wait().unwrap().success());
    reached.open();
    assert_eq!(
        fixture.changed_since(&before),
        ["+waiting 2-1 noarch"],
        "both versions are installed"
    );
    let damage = fixture.backend.damage().unwrap();
    assert_eq!(damage[0].as_str(), "waiting.noarch is installed in several versions: 1-1, 2-1");
    std::fs::remove_file(&gate).unwrap();
    fixture.server.write("/run/gate", "the script has run\n");
    let done = fixture.run(&fixture.backend.repair());
    assert_eq!(done.exit, Some(0), "{}", done.text);
    assert!(done.text.contains("the script has run"), "{}", done.text);
    assert_eq!(fixture.changed_since(&before), ["-waiting 1-1 noarch", "+waiting 2-1 noarch"]);
    assert_eq!(fixture.backend.damage().unwrap(), Vec::<vocab::Line>::new());
}

/// A repository whose lists name a package that it no longer has, and one that is gone.
pub(crate) fn repository_failure_is_not_a_package_failure(fixture: &RpmFixture) {
    let (_, new) = packages();
    let plain = new.iter().find(|package| package.nevra().starts_with("plain-")).unwrap();
    fixture.repo.remove_package_file(plain);
    let before = fixture.server.database();
    let fetched = fixture.run(&fixture.backend.download(&[fixture.choose("plain", "1.1-1")]));
    assert_ne!(fetched.exit, Some(0), "{}", fetched.text);
    let diagnosis = fixture.backend.diagnose(fetched.exit, &fetched.text);
    assert_eq!(diagnosis.code, FailureCode::RepoUnreachable, "{}", fetched.text);
    std::fs::remove_dir_all(fixture.repo.dir()).unwrap();
    let refreshed = fixture.run(&fixture.backend.refresh());
    assert_ne!(refreshed.exit, Some(0), "{}", refreshed.text);
    let diagnosis = fixture.backend.diagnose(refreshed.exit, &refreshed.text);
    assert_eq!(diagnosis.code, FailureCode::RepoUnreachable, "{}", refreshed.text);
    assert_eq!(fixture.server.database(), before);
}
