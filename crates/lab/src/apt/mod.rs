//! Debian packages, repositories of them, and servers that have them installed.
//!
//! ```no_run
//! use lab::apt::{Deb, Pocket, Repo, Server};
//! let Some(repo) = Repo::with(&[
//!     (Pocket::Stable, Deb::new("hello", "1.0-1")),
//!     (Pocket::Security, Deb::new("hello", "1.0-1+deb12u1")),
//! ]) else { return };
//! let server = Server::with_installed(&repo, &["hello"]); // 1.0-1 is installed
//! ```

mod deb;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use deb::Deb;
pub use server::Server;

use crate::root::{can_create_roots, new_dir};

/// A pocket of the archive, as in Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pocket {
    /// The release itself.
    Stable,
    /// Updates between releases.
    Updates,
    /// Security updates: label `Debian-Security`, suite `stable-security`.
    Security,
}

impl Pocket {
    pub const ALL: [Pocket; 3] = [Pocket::Stable, Pocket::Updates, Pocket::Security];

    /// Its suite, as used in the sources.
    pub fn suite(self) -> &'static str {
        match self {
            Pocket::Stable => "stable",
            Pocket::Updates => "stable-updates",
            Pocket::Security => "stable-security",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Pocket::Stable | Pocket::Updates => "Debian",
            Pocket::Security => "Debian-Security",
        }
    }
}

/// An archive with three pockets, in this thread's temporary directory.
#[derive(Debug)]
pub struct Repo {
    dir: PathBuf,
}

impl Repo {
    /// An empty archive, published.
    pub fn new() -> Option<Repo> {
        let tools = [("dpkg-deb", "dpkg"), ("apt-ftparchive", "apt-utils")];
        if !can_create_roots() || !crate::has_programs(&tools) {
            return None;
        }
        let repo = Repo { dir: new_dir("repo") };
        Pocket::ALL.iter().for_each(|pocket| repo.publish(*pocket));
        Some(repo)
    }

    /// An archive with these packages, published.
    pub fn with(debs: &[(Pocket, Deb)]) -> Option<Repo> {
        let repo = Repo::new()?;
        repo.add(debs);
        Some(repo)
    }

    /// Adds packages and publishes them. Servers see them after their next update.
    pub fn add(&self, debs: &[(Pocket, Deb)]) {
        for (pocket, deb) in debs {
            deb.build(&self.pool(*pocket));
        }
        for pocket in Pocket::ALL {
            if debs.iter().any(|(of, _)| *of == pocket) {
                self.publish(pocket);
            }
        }
    }

    /// Removes the file of a package and keeps it in the index, as on a mirror in the middle of an
    /// update.
    pub fn remove_package_file(&self, pocket: Pocket, name: &str, version: &str) {
        let start = format!("{name}_{}_", version.replace(':', "%3a"));
        let files = fs::read_dir(self.pool(pocket)).expect("a pocket has a pool");
        let lost = files.flatten().find(|f| f.file_name().to_string_lossy().starts_with(&start));
        fs::remove_file(lost.expect("the package was added").path())
            .expect("cannot write to the tmpfs");
    }

    /// Removes a package from the archive and publishes it again, as when a newer version replaces
    /// it.
    pub fn withdraw(&self, pocket: Pocket, name: &str, version: &str) {
        self.remove_package_file(pocket, name, version);
        self.publish(pocket);
    }

    /// Its directory, for [`crate::root::Root::bind`].
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes `Packages` and `Release` of a pocket.
    pub fn publish(&self, pocket: Pocket) {
        self.publish_until(pocket, None);
    }

    /// Like [`Repo::publish`], valid only until a date: `Thu, 01 Jan 2015 00:00:00 UTC`.
    pub fn publish_until(&self, pocket: Pocket, date: Option<&str>) {
        let suite = pocket.suite();
        let pool = self.pool(pocket);
        fs::create_dir_all(&pool).expect("cannot write to the tmpfs");
        let files = fs::read_dir(&pool).expect("the directory was just created").flatten();
        let foreign = files.map(|f| f.file_name()).any(|f| f.to_string_lossy().contains("_i386."));
        let archs = if foreign { vec![native_arch(), "i386"] } else { vec![native_arch()] };
        for arch in &archs {
            let index = self.dir.join("dists").join(suite).join(format!("main/binary-{arch}"));
            fs::create_dir_all(&index).expect("cannot write to the tmpfs");
            let mut packages = self.ftparchive();
            let packages = packages.args(["--arch", arch, "packages", &format!("pool/{suite}")]);
            fs::write(index.join("Packages"), command_stdout(packages))
                .expect("cannot write to the tmpfs");
        }
        let mut release = self.ftparchive();
        let architectures = format!("all {}", archs.join(" "));
        let fields = [
            ("Origin", "Debian"),
            ("Label", pocket.label()),
            ("Suite", suite),
            ("Codename", suite),
            ("Components", "main"),
            ("Architectures", &architectures),
        ];
        for (name, value) in fields {
            release.arg("-o").arg(format!("APT::FTPArchive::Release::{name}={value}"));
        }
        let mut text = command_stdout(release.args(["release", &format!("dists/{suite}")]));
        if let Some(date) = date {
            text = format!("Valid-Until: {date}\n{text}");
        }
        fs::write(self.dir.join("dists").join(suite).join("Release"), text)
            .expect("cannot write to the tmpfs");
    }

    fn pool(&self, pocket: Pocket) -> PathBuf {
        self.dir.join("pool").join(pocket.suite())
    }

    /// apt-ftparchive without the host's settings.
    fn ftparchive(&self) -> Command {
        let mut command = Command::new("apt-ftparchive");
        command.args(["-q=2", "-o", "Dir::Etc=/nonexistent"]).current_dir(&self.dir);
        command.env("LC_ALL", "C").env("APT_CONFIG", "/dev/null");
        command
    }
}

/// The standard output of a command that must succeed.
fn command_stdout(command: &mut Command) -> String {
    let output = command.output().expect("the program was found before");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("an index is text")
}

/// The native architecture in dpkg's naming.
pub fn native_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
