//! Whole systems for tests: overlay mounts of a base that is built once.
//!
//! **Nothing is left behind.** A thread that asks for a root first gets its own mount namespace
//! (`unshare` works on one thread), and in it a tmpfs for everything that its roots write. Threads
//! and processes that it starts afterwards are in the same namespace. When the last of them has
//! ended, for whatever reason, the kernel removes mounts and files; nothing outside ever saw them.
//! So a root is visible only to the thread that created it and to what that thread starts later.
//!
//! Bases are directories under `target/lab` (or under `FLEETMEND_LAB_DIR`), built by mmdebstrap
//! from the host's own package sources and then isolated from the network: they have no sources at
//! all. They contain none of the host's apt and dpkg settings.

use std::fs;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::{has_programs, skip};

/// The Debian release of the bases.
const SUITE: &str = "bookworm";
/// Timeout for building a base; about 40 seconds are usual.
const BASE_SECONDS_MAX: &str = "900";

/// What a root is an overlay of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Debian with apt, and nothing that apt does not need.
    Apt,
    /// Debian with apt, systemd, dbus and curl, to be booted in a container.
    Systemd,
    /// Debian with apt, OpenRC and wget.
    OpenRc,
}

impl Base {
    fn name(self) -> &'static str {
        match self {
            Base::Apt => "apt",
            Base::Systemd => "systemd",
            Base::OpenRc => "openrc",
        }
    }

    fn packages(self) -> &'static str {
        match self {
            Base::Apt => "",
            Base::Systemd => "systemd,systemd-sysv,dbus,curl",
            Base::OpenRc => "openrc,wget",
        }
    }

    /// The directory of this base, which is built if it does not exist yet.
    pub fn dir(self) -> Option<PathBuf> {
        if !can_create_roots() {
            return None;
        }
        let name = format!("base-{SUITE}-{}-2", self.name());
        if !lab_dir().join(&name).is_dir() && !has_programs(&[("mmdebstrap", "mmdebstrap")]) {
            return None;
        }
        Some(build_once(&name, |dir| self.build(dir)))
    }

    fn build(self, dir: &Path) {
        let mut make = Command::new("timeout");
        make.args(["--kill-after=10", BASE_SECONDS_MAX, "mmdebstrap", "--mode=root"]);
        make.args(["--variant=apt", "--quiet"]);
        make.args(host_apt_options().iter().map(|option| format!("--aptopt={option}")));
        if !self.packages().is_empty() {
            make.arg(format!("--include={}", self.packages()));
        }
        let sources = host_sources(dir);
        run_successfully(make.arg(SUITE).arg(dir).args(&sources));
        for file in sources {
            let _ = fs::remove_file(file);
        }
        // From here on, the base has no network access.
        let inside = |path: &str| dir.join(path);
        let _ = fs::remove_dir_all(inside("etc/apt/sources.list.d"));
        let _ = fs::remove_file(inside("etc/apt/apt.conf.d/99mmdebstrap"));
        fs::create_dir_all(inside("etc/apt/sources.list.d"))
            .expect("cannot write to the base system");
        fs::write(inside("etc/apt/sources.list"), "").expect("cannot write to the base system");
        fs::write(inside("etc/resolv.conf"), "").expect("cannot write to the base system");
    }
}

/// Builds a directory under the lab's own once, even if several processes ask at the same time:
/// `make` fills it. An unfinished directory is built again.
pub fn build_once(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let finished = lab_dir().join(name);
    // Building is limited in time, and the lock ends with its process: so our waiting is limited
    // too.
    let lock = fs::File::create(lab_dir().join(format!("{name}.lock"))).expect("a lock file");
    lock.lock().expect("a lock");
    if !finished.is_dir() {
        let unfinished = lab_dir().join(format!("{name}.unfinished"));
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished).expect("cannot write to the build directory");
        make(&unfinished);
        fs::rename(&unfinished, &finished).expect("cannot rename within the directory");
    }
    finished
}

/// Whether roots can be created here; gives this thread its own mounts. Prints why not.
pub fn can_create_roots() -> bool {
    if !nix::unistd::geteuid().is_root() {
        skip("a test system requires root");
        return false;
    }
    thread_temp_dir();
    true
}

/// The directory of this thread's mounts: a tmpfs in its own mount namespace.
pub fn thread_temp_dir() -> PathBuf {
    let dir = lab_dir().join("mounts");
    let sign = dir.join("ours");
    // The file exists if this thread, or the one that started it, was here before.
    if !sign.exists() {
        fs::create_dir_all(&dir).expect("cannot write to the build directory");
        unshare(CloneFlags::CLONE_NEWNS).expect("cannot create a mount namespace");
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
            .expect("cannot make mounts private");
        mount(Some("lab"), &dir, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
            .expect("cannot mount a tmpfs");
        fs::write(sign, "").expect("cannot write to the tmpfs");
    }
    dir
}

/// A new, empty directory in this thread's tmpfs.
pub fn new_dir(kind: &str) -> PathBuf {
    static DIR_COUNT: AtomicU64 = AtomicU64::new(0);
    let number = DIR_COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = thread_temp_dir().join(format!("{kind}-{}-{number}", std::process::id()));
    fs::create_dir_all(&dir).expect("cannot write to the tmpfs");
    dir
}

/// A test system, removed when dropped.
#[derive(Debug)]
pub struct Root {
    side_dir: PathBuf,
    dir: PathBuf,
    mounts: Vec<PathBuf>,
}

/// The exit code and output of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// The exit code; `None` if a signal ended the program.
    pub exit: Option<i32>,
    /// Standard output and standard error.
    pub text: String,
}

impl Root {
    /// A fresh root of a base.
    pub fn from_base(base: Base) -> Option<Root> {
        Some(Root::from_dir(&base.dir()?))
    }

    /// A fresh root of any directory that contains a system. [`can_create_roots`] must have
    /// returned true.
    pub fn from_dir(base: &Path) -> Root {
        let home = new_dir("root");
        let dir = home.join("root");
        for part in ["upper", "work", "root"] {
            fs::create_dir(home.join(part)).expect("cannot write to the tmpfs");
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={},volatile",
            base.display(),
            home.join("upper").display(),
            home.join("work").display()
        );
        let mut root = Root { side_dir: home, dir: dir.clone(), mounts: Vec::new() };
        mount(Some("lab"), &dir, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .expect("cannot mount the overlay");
        root.mounts.push(dir.clone());
        let proc = dir.join("proc");
        mount(Some("proc"), &proc, Some("proc"), MsFlags::empty(), None::<&str>)
            .expect("cannot mount proc");
        root.mounts.push(proc);
        root
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A directory next to the root, for files that belong to the test but must not be in the root.
    pub fn side_dir(&self) -> &Path {
        &self.side_dir
    }

    pub fn path(&self, inside: &str) -> PathBuf {
        self.dir.join(inside.trim_start_matches('/'))
    }

    pub fn read(&self, inside: &str) -> String {
        fs::read_to_string(self.path(inside)).unwrap_or_else(|e| panic!("{inside}: {e}"))
    }

    /// Writes a file inside it, and creates its parent directories.
    pub fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("a file has a parent"))
            .expect("cannot create directories");
        fs::write(path, text).unwrap_or_else(|e| panic!("{inside}: {e}"));
    }

    /// Mounts a directory of the host in it, read-only.
    pub fn bind(&mut self, ours: &Path, inside: &str) {
        let place = self.path(inside);
        fs::create_dir_all(&place).expect("cannot write to the root");
        let nothing = None::<&str>;
        let bind = MsFlags::MS_BIND;
        mount(Some(ours), &place, nothing, bind, nothing).expect("cannot bind-mount the directory");
        let read_only = bind | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(nothing, &place, nothing, read_only, nothing)
            .expect("cannot make the bind mount read-only");
        self.mounts.push(place);
    }

    /// Mounts a tmpfs of this size in it: a small file system that a test can fill.
    pub fn small_disk(&mut self, inside: &str, bytes: u64) {
        let place = self.path(inside);
        fs::create_dir_all(&place).expect("cannot write to the root");
        let options = format!("size={bytes},mode=755");
        mount(Some("lab"), &place, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .expect("cannot mount a tmpfs");
        self.mounts.push(place);
    }

    /// A program inside it, with a clean environment and no input, ready to be started.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.dir).arg(program).env_clear().stdin(Stdio::null()).current_dir("/");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Runs a program inside it to its end.
    pub fn run(&self, program: &str, args: &[&str]) -> CommandOutput {
        run_command(self.command(program).args(args))
    }

    /// Runs a program inside it that must succeed, and returns its output.
    #[track_caller]
    pub fn run_successfully(&self, program: &str, args: &[&str]) -> String {
        run_successfully(self.command(program).args(args))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // Programs that still run in it keep their open files. The directory is only deleted once
        // nothing of ours is mounted below it.
        let gone = |place: &PathBuf| umount2(place, MntFlags::MNT_DETACH).is_ok();
        if self.mounts.iter().rev().all(gone) {
            let _ = fs::remove_dir_all(&self.side_dir);
        }
    }
}

/// Runs a command to its end. Its output goes to a file: a child that it leaves behind may keep its
/// output open forever.
pub fn run_command(command: &mut Command) -> CommandOutput {
    static COMMAND_COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COMMAND_COUNT.fetch_add(1, Ordering::Relaxed);
    let path = thread_temp_dir().join(format!("output-{}-{number}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let options = options.create_new(true).read(true).append(true);
    let mut file = options.open(&path).expect("cannot write to the tmpfs");
    let _ = fs::remove_file(&path);
    let copy = || file.try_clone().expect("cannot open the file again");
    let status = command.stdin(Stdio::null()).stdout(copy()).stderr(copy()).status();
    let status = status.unwrap_or_else(|e| panic!("{}: {e}", command_line(command)));
    file.seek(SeekFrom::Start(0)).expect("cannot rewind the file");
    let text =
        std::io::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", command_line(command)));
    CommandOutput { exit: status.code(), text }
}

/// Runs a command that must succeed, and returns its output.
#[track_caller]
pub fn run_successfully(command: &mut Command) -> String {
    let CommandOutput { exit, text } = run_command(command);
    assert_eq!(exit, Some(0), "{}:\n{text}", command_line(command));
    text
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Where bases and mount points are: next to cargo's build output.
fn lab_dir() -> PathBuf {
    let ours = || {
        let program = std::env::current_exe().expect("a test is a program");
        let target = program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
        target.expect("tests are built by cargo").join("lab")
    };
    let dir = std::env::var_os("FLEETMEND_LAB_DIR").map_or_else(ours, PathBuf::from);
    fs::create_dir_all(&dir).expect("cannot write to the build directory");
    dir.canonicalize().expect("the directory was just created")
}

/// The apt settings that are needed to reach the host's sources.
fn host_apt_options() -> Vec<String> {
    const NEEDED: [&str; 3] =
        ["Acquire::http::Proxy ", "Acquire::https::Proxy ", "Acquire::Check-Valid-Until "];
    let dump = run_command(Command::new("apt-config").arg("dump"));
    let needed = |line: &&str| NEEDED.iter().any(|name| line.starts_with(name));
    dump.text.lines().filter(needed).map(str::to_owned).collect()
}

/// The host's own sources of this release, as files for mmdebstrap. Others are left out; without
/// any, mmdebstrap uses Debian's.
fn host_sources(beside: &Path) -> Vec<PathBuf> {
    let etc = Path::new("/etc/apt");
    let mut files: Vec<PathBuf> = vec![etc.join("sources.list")];
    let parts = fs::read_dir(etc.join("sources.list.d")).into_iter().flatten().flatten();
    files.extend(parts.map(|part| part.path()));
    let (mut lines, mut stanzas) = (String::new(), String::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if file.extension().is_some_and(|is| is == "sources") {
            for stanza in text.split("\n\n").filter(|stanza| names_our_suite(stanza)) {
                stanzas.push_str(&format!("{}\n\n", stanza.trim()));
            }
        } else {
            let debs = text.lines().filter(|line| line.starts_with("deb "));
            lines.extend(debs.filter(|line| names_our_suite(line)).map(|line| format!("{line}\n")));
        }
    }
    let mut written = Vec::new();
    for (text, kind) in [(lines, "list"), (stanzas, "sources")] {
        if !text.is_empty() {
            let file = beside.with_extension(kind);
            fs::write(&file, text).expect("cannot write to the build directory");
            written.push(file);
        }
    }
    written
}

/// Whether a source, in either notation, names a suite of our release.
fn names_our_suite(source: &str) -> bool {
    let active = source.lines().filter(|line| !line.starts_with('#'));
    active.flat_map(str::split_whitespace).any(|word| {
        word.strip_prefix(SUITE).is_some_and(|rest| ["", "-updates", "-security"].contains(&rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_the_release_are_copied_from_the_host() {
        assert!(names_our_suite("deb http://archive.example/debian bookworm main"));
        assert!(names_our_suite("Types: deb\nSuites: bookworm-security\nComponents: main"));
        assert!(!names_our_suite("deb https://packages.example/apt cloud-sdk-bookworm main"));
        assert!(!names_our_suite("Types: deb\n# bookworm\nSuites: nodistro"));
    }

    #[test]
    fn roots_are_isolated_and_leave_nothing_behind() {
        let Some(one) = Root::from_base(Base::Apt) else { return };
        let Some(two) = Root::from_base(Base::Apt) else { return };
        one.write("/etc/hostname", "one\n");
        two.write("/etc/hostname", "two\n");
        assert_eq!(one.run_successfully("cat", &["/etc/hostname"]), "one\n");
        assert_eq!(two.run_successfully("cat", &["/etc/hostname"]), "two\n");
        assert_eq!(one.run("false", &[]).exit, Some(1));
        let homes = [one.side_dir.clone(), two.side_dir.clone()];
        drop((one, two));
        assert_eq!(homes.map(|home| home.exists()), [false, false]);
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        assert_eq!(mounts.lines().filter(|line| line.starts_with("lab ")).count(), 1, "{mounts}");
    }

    #[test]
    fn mounts_of_one_thread_are_invisible_to_others() {
        let Some(root) = Root::from_base(Base::Apt) else { return };
        let seen = |mounts: &str| {
            let mounts = fs::read_to_string(mounts).unwrap();
            mounts.contains(&*root.dir().to_string_lossy())
        };
        assert!(seen("/proc/thread-self/mounts"));
        // The process's first thread runs no test that mounts, unless it runs them all.
        if std::thread::current().name() != Some("main") {
            assert!(!seen("/proc/self/mounts"));
        }
    }
}
