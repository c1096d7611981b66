//! Tests with a fake `/proc` and a fake managed system, both directories.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use vocab::listing::{Installed, Pending};
use vocab::{FailureCode, Line, PackageManager};

use super::Host;
use crate::backend::{Backend, BackendError, Choice, Diagnosis, LockHolder, Transaction};
use crate::command::Command;
use crate::root::Root;

/// A fake host made of files, removed when dropped.
struct FakeHost {
    dir: PathBuf,
}

impl FakeHost {
    fn new() -> FakeHost {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleetmend-host-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(dir.join("root")).unwrap();
        fs::create_dir_all(dir.join("proc")).unwrap();
        let fake_host = FakeHost { dir };
        fake_host.proc("sys/kernel/osrelease", "6.1.0-37-amd64\n");
        fake_host.proc("sys/kernel/hostname", "web-1\n");
        fake_host.proc("sys/kernel/random/boot_id", "5b0e0a1c-0000-4000-8000-000000000001\n");
        fake_host.proc("2/comm", "kthreadd\n");
        fake_host
    }

    fn write(&self, part: &str, path: &str, text: &str) {
        let path = self.dir.join(part).join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn root(&self, path: &str, text: &str) {
        self.write("root", path, text);
    }

    fn proc(&self, path: &str, text: &str) {
        self.write("proc", path, text);
    }

    fn link(&self, path: &str, target: &Path) {
        let path = self.dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// A process whose root is the fake one, or another directory.
    fn process(&self, pid: u32, name: &str, root: &Path, group: &str, maps: &str) {
        self.proc(&format!("{pid}/comm"), &format!("{name}\n"));
        self.proc(&format!("{pid}/cgroup"), &format!("0::{group}\n"));
        self.proc(&format!("{pid}/maps"), maps);
        self.link(&format!("proc/{pid}/exe"), Path::new("/usr/sbin/some"));
        self.link(&format!("proc/{pid}/root"), root);
    }

    fn own_root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The host whose managed system is under a directory.
    fn host(&self) -> Host {
        let root = Root::under(&self.own_root());
        Host { root, proc: self.dir.join("proc"), is_running: false }
    }

    /// The host, as if the directory were the running system.
    fn running(&self) -> Host {
        Host { is_running: true, ..self.host() }
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A package manager that only knows its name and why to reboot.
struct StubBackend {
    manager: PackageManager,
    reasons: Result<&'static str, &'static str>,
}

impl Backend for StubBackend {
    fn manager(&self) -> PackageManager {
        self.manager
    }
    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        Ok(Vec::new())
    }
    fn refresh(&self) -> Vec<Command> {
        Vec::new()
    }
    fn pending(&self, _: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        Ok(Vec::new())
    }
    fn resolve(&self, _: &[Choice]) -> Result<Transaction, BackendError> {
        Ok(Transaction::default())
    }
    fn download(&self, _: &[Choice]) -> Vec<Command> {
        Vec::new()
    }
    fn install(&self, _: &[Choice]) -> Vec<Command> {
        Vec::new()
    }
    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        Ok(None)
    }
    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        Ok(Vec::new())
    }
    fn repair(&self) -> Vec<Command> {
        Vec::new()
    }
    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        Ok(Vec::new())
    }
    fn reboot_reasons(&self, kernel: &str) -> Result<Vec<Line>, BackendError> {
        match self.reasons {
            Ok(reason) => Ok(vec![Line::sanitize(&format!("{reason} over `{kernel}`"))]),
            Err(why) => {
                Err(BackendError::Unreadable { what: "/boot".to_owned(), why: why.to_owned() })
            }
        }
    }
    fn diagnose(&self, _: Option<i32>, output: &str) -> Diagnosis {
        Diagnosis { code: FailureCode::InstallFailed, message: Line::sanitize(output) }
    }
}

const APT: StubBackend = StubBackend { manager: PackageManager::Apt, reasons: Ok("linux-image") };

const SSHD: &str = "\
55d0c0a2f000-55d0c0ab4000 r-xp 0002f000 08:01 131 /usr/sbin/sshd (deleted)
7f1b5d000000-7f1b5d155000 r-xp 00026000 08:01 901 /usr/lib/x86_64-linux-gnu/libssl.so.3.0.11 (deleted)
";

#[test]
fn facts_describe_the_host() {
    let fake_host = FakeHost::new();
    fake_host.root("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME=\"Debian 12\"\n");
    fake_host.root("/etc/hostname", "image-7\n");
    let host = fake_host.host();
    let facts = host.facts(&APT);
    assert_eq!((facts.hostname.as_str(), facts.os.to_string().as_str()), ("image-7", "debian 12"));
    assert_eq!(facts.kernel.as_str(), "6.1.0-37-amd64");
    assert_eq!(facts.agent_version.as_str(), env!("CARGO_PKG_VERSION"));
    assert_eq!(host.boot_id().as_str(), "5b0e0a1c-0000-4000-8000-000000000001");
    assert!(!facts.arch.as_str().is_empty() && facts.package_manager == PackageManager::Apt);
    fake_host.root("/etc/hostname", "\n");
    assert_eq!(host.facts(&APT).hostname.as_str(), "web-1");
}

/// A system in a directory or in a container does not run the kernel that its packages install.
#[test]
fn foreign_kernel_is_no_reason_to_reboot() {
    let fake_host = FakeHost::new();
    let facts = fake_host.host().facts(&APT);
    assert_eq!(facts.reboot_reasons, [Line::from("linux-image over ``")]);
    let own = fake_host.running().facts(&APT);
    assert_eq!(own.reboot_reasons, [Line::from("linux-image over `6.1.0-37-amd64`")]);
    assert!(own.reboot_required);
    fake_host.root("/run/systemd/container", "lxc\n");
    let contained = fake_host.running().facts(&APT);
    assert_eq!(contained.reboot_reasons, facts.reboot_reasons);
    let unreadable = StubBackend { manager: PackageManager::Apt, reasons: Err("denied") };
    let facts = fake_host.host().facts(&unreadable);
    assert!(!facts.reboot_required, "a failed check does not require a reboot");
    assert_eq!(
        facts.reboot_reasons,
        [Line::from("cannot determine whether a reboot is needed: cannot read /boot: denied")]
    );
}

#[test]
fn outdated_code_is_listed_by_package_and_service() {
    let fake_host = FakeHost::new();
    let own = fake_host.own_root();
    fake_host.root("/var/lib/dpkg/info/openssh-server.list", "/.\n/usr/sbin/sshd\n");
    fake_host
        .root("/var/lib/dpkg/info/libssl3:amd64.list", "/usr/lib/x86_64-linux-gnu/libssl.so.3\n");
    fake_host.process(700, "sshd", &own, "/system.slice/ssh.service", SSHD);
    fake_host.process(701, "sshd", &own, "/system.slice/ssh.service", SSHD);
    fake_host.process(702, "bash", &own, "/user.slice/session-1.scope", &own_path(&own, SSHD));
    fake_host.process(703, "sound", &own, "/system.slice/sound.service", "");
    let elsewhere = fake_host.dir.join("container");
    fs::create_dir_all(&elsewhere).unwrap();
    fake_host.process(704, "sshd", &elsewhere, "/system.slice/ssh.service", SSHD);
    fake_host.proc("705/comm", "kworker\n");
    let seen: Vec<String> = fake_host
        .host()
        .outdated_processes(&APT)
        .iter()
        .map(|old| {
            let text =
                |line: &Option<Line>| line.as_ref().map_or("-", |line| line.as_str()).to_owned();
            format!("{} {} {}", text(&old.package), text(&old.unit), old.process)
        })
        .collect();
    assert_eq!(
        seen,
        [
            "libssl3 - bash",
            "libssl3 ssh.service sshd",
            "openssh-server - bash",
            "openssh-server ssh.service sshd",
        ]
    );
}

/// The same mappings as seen from outside a chroot.
fn own_path(root: &Path, maps: &str) -> String {
    maps.replace(" /usr/", &format!(" {}/usr/", root.display()))
}

#[test]
fn every_package_manager_finds_the_owner_of_a_file() {
    let fake_host = FakeHost::new();
    fake_host.process(700, "sshd", &fake_host.own_root(), "/system.slice/sshd.service", SSHD);
    fake_host.root("/var/lib/pacman/local/openssh-9.6p1-1/files", "%FILES%\nusr/\nusr/sbin/sshd\n");
    fake_host
        .root("/lib/apk/db/installed", "P:openssh-server\nV:9.6\nF:usr/sbin\nR:sshd\nZ:Q1\n\n");
    for (manager, package) in
        [(PackageManager::Pacman, "openssh"), (PackageManager::Apk, "openssh-server")]
    {
        let old = fake_host.host().outdated_processes(&StubBackend { manager, reasons: Ok("") });
        assert_eq!(old.len(), 1, "{manager}: the library without a package is not listed");
        assert_eq!(old[0].package, Some(Line::from(package)), "{manager}");
    }
    let old = fake_host
        .host()
        .outdated_processes(&StubBackend { manager: PackageManager::Apt, reasons: Ok("") });
    assert_eq!(
        (old.len(), &old[0].package),
        (1, &None),
        "a process without a known package is still listed"
    );
}

#[test]
fn containers_are_detected_by_their_marks() {
    let mark = |plant: &dyn Fn(&FakeHost)| {
        let fake_host = FakeHost::new();
        fake_host.proc("1/environ", "HOME=/\0");
        fake_host.proc("1/cgroup", "0::/init.scope\n");
        plant(&fake_host);
        fake_host.host().container().map(|kind| kind.to_string())
    };
    assert_eq!(mark(&|_| ()), None);
    let some = |kind: &str| Some(kind.to_owned());
    assert_eq!(mark(&|on| on.root("/run/systemd/container", "lxc\n")), some("lxc"));
    assert_eq!(mark(&|on| on.proc("1/environ", "A=1\0container=lxc\0")), some("lxc"));
    assert_eq!(mark(&|on| on.root("/.dockerenv", "")), some("docker"));
    assert_eq!(mark(&|on| on.root("/run/.containerenv", "")), some("podman"));
    assert_eq!(mark(&|on| on.proc("1/cgroup", "1:cpu:/docker/0ab1\n")), some("docker"));
    assert_eq!(mark(&|on| on.proc("2/comm", "sh\n")), some("a PID namespace"));
}

#[test]
fn container_reboots_only_if_the_administrator_allows_it() {
    let fake_host = FakeHost::new();
    let check =
        |allowed| fake_host.running().check_reboot_allowed(allowed).map_err(|why| why.to_string());

    let under = fake_host.host().check_reboot_allowed(true).unwrap_err();
    assert!(under.as_str().ends_with("is not the running one"), "{under}");
    assert!(check(true).unwrap_err().contains("cannot determine"));
    fake_host.link("proc/1/root", Path::new("/"));
    assert_eq!(check(true).unwrap_err(), "the agent runs in a chroot");
    fs::remove_file(fake_host.dir.join("proc/1/root")).unwrap();
    fake_host.link("proc/1/root", &fake_host.own_root());

    fake_host.proc("1/comm", "nginx\n");
    assert_eq!(check(true).unwrap_err(), "process 1 (`nginx`) is not a supported init system");
    fake_host.proc("1/comm", "init\n");
    assert_eq!(check(false), Ok(()), "sysvinit, OpenRC");

    fake_host.proc("1/environ", "container=lxc\0");
    assert!(check(false).unwrap_err().contains("`reboot_in_container`"));
    assert!(check(true).unwrap_err().ends_with("without systemd"));
    fs::create_dir_all(fake_host.own_root().join("run/systemd/system")).unwrap();
    assert!(check(false).is_err(), "systemd in a container does not allow a reboot");
    assert_eq!(check(true), Ok(()), "a system container whose administrator allows it");
}

#[test]
fn free_space_is_that_of_the_containing_file_system() {
    let fake_host = FakeHost::new();
    let host = fake_host.host();
    assert!(host.free_bytes("/var/cache/not/there/yet").is_some());
    assert_eq!(Host::new(Root::under(Path::new("/no/such/root"))).free_bytes("/var"), None);
}

#[test]
fn only_updaters_that_install_automatically_are_listed() {
    let fake_host = FakeHost::new();
    let wants = "root/etc/systemd/system/timers.target.wants";
    let enable = |unit: &str| fake_host.link(&format!("{wants}/{unit}"), Path::new("/lib/x"));
    let named = || {
        let facts = fake_host.host().facts(&APT);
        facts.other_updaters.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    fake_host.root("/usr/bin/unattended-upgrade", "");
    fake_host.root("/lib/systemd/system/x.service", "");
    enable("apt-daily-upgrade.timer");
    assert!(named().is_empty(), "installed, but not enabled");
    fake_host
        .root("/etc/apt/apt.conf.d/20auto-upgrades", "APT::Periodic::Unattended-Upgrade \"1\";");
    assert_eq!(named(), ["unattended-upgrades"]);
    fake_host.root("/etc/apt/apt.conf.d/99off", "APT::Periodic::Enable \"0\";");
    assert!(named().is_empty());

    enable("dnf-automatic.timer");
    fake_host
        .root("/etc/dnf/automatic.conf", "[commands]\n#apply_updates = yes\napply_updates = no\n");
    assert!(named().is_empty(), "it only checks for updates");
    fake_host.root("/etc/dnf/automatic.conf", "[commands]\napply_updates = yes\n");
    enable("transactional-update.timer");
    assert_eq!(named(), ["dnf-automatic", "transactional-update"]);
    fake_host.link("root/etc/systemd/system/transactional-update.timer", Path::new("/dev/null"));
    assert_eq!(named(), ["dnf-automatic"], "a masked unit never starts");
    fake_host.link("root/system-update", Path::new("/var/lib/PackageKit"));
    assert_eq!(named(), ["dnf-automatic", "an offline update prepared for the next boot"]);
}

#[test]
fn commands_match_the_init_system() {
    let fake_host = FakeHost::new();
    let host = fake_host.host();
    assert_eq!(host.reboot_command(), Command::new("reboot"));
    fake_host.root("/usr/sbin/shutdown", "");
    assert_eq!(host.reboot_command(), Command::new("shutdown").args(["-r", "now"]));
    fs::create_dir_all(fake_host.own_root().join("run/systemd/system")).unwrap();
    assert_eq!(host.reboot_command(), Command::new("systemctl").arg("reboot"));
    let restart = host.restart_command("ssh.service");
    assert_eq!(restart.args[2..], ["try-restart", "--", "ssh.service"]);
    assert_eq!(
        host.notify_users_command("now"),
        None,
        "a system under a directory has no logged-in users"
    );
}
