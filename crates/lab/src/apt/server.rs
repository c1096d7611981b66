//! A Debian server: a root of its own that takes its packages from a lab's archive.

use std::collections::BTreeMap;
use std::process::Command;

use super::{Pocket, Repo};
use crate::root::{Base, Root};

/// A Debian system with an archive of ours and no other.
#[derive(Debug)]
pub struct Server {
    /// The system itself.
    pub root: Root,
}

impl Server {
    /// A fresh one that knows no pocket yet.
    pub fn new(repo: &Repo) -> Option<Server> {
        Server::of(Base::Apt, repo)
    }

    /// The same of another base.
    pub fn of(base: Base, repo: &Repo) -> Option<Server> {
        let mut root = Root::of(base)?;
        root.bind(repo.dir(), "/repo");
        Some(Server { root })
    }

    /// One that has these packages of the release installed, and then learned of every pocket.
    pub fn having(repo: &Repo, packages: &[&str]) -> Option<Server> {
        let server = Server::new(repo)?;
        server.sources(&[Pocket::Stable]);
        server.update();
        server.install(packages);
        server.sources(&Pocket::ALL);
        server.update();
        Some(server)
    }

    /// Takes its packages from these pockets. Files are copied, so that there is something to fetch.
    pub fn sources(&self, pockets: &[Pocket]) {
        let line = |p: &Pocket| format!("deb [trusted=yes] copy:/repo {} main\n", p.suite());
        let text: String = pockets.iter().map(line).collect();
        self.root.write("/etc/apt/sources.list", &text);
    }

    /// Brings its lists up to date.
    pub fn update(&self) {
        self.root.must("apt-get", &["-qq", "update"]);
    }

    /// Installs packages, each as apt-get takes it: `hello` or `hello=1.0-1`.
    pub fn install(&self, packages: &[&str]) {
        let options = ["-qq", "--yes", "--no-install-recommends", "install"];
        self.root.must("apt-get", &[&options, packages].concat());
    }

    /// Holds a package at its version.
    pub fn hold(&self, name: &str) {
        self.root.must("apt-mark", &["hold", name]);
    }

    /// The version of each package that dpkg knows, with its status if that is not `ii`:
    /// `1.0-1`, `1.0-2 (iF)`.
    pub fn packages(&self) -> BTreeMap<String, String> {
        let format = "-f=${Package}\\t${Version}\\t${db:Status-Abbrev}\\n";
        let listing = self.root.must("dpkg-query", &["-W", format]);
        let mut packages = BTreeMap::new();
        for line in listing.lines() {
            let mut parts = line.split('\t');
            let (Some(name), Some(version), Some(status)) =
                (parts.next(), parts.next(), parts.next())
            else {
                panic!("dpkg-query said {line}");
            };
            let status = status.trim();
            let shown = match status {
                "ii" | "hi" => version.to_owned(),
                _ => format!("{version} ({status})"),
            };
            packages.insert(name.to_owned(), shown);
        }
        packages
    }

    /// The version of one package, as [`Server::packages`] shows it; nothing if dpkg does not know it.
    pub fn version(&self, name: &str) -> Option<String> {
        self.packages().remove(name)
    }

    /// How often the script of a package ran that counts its runs, by version.
    pub fn runs(&self, name: &str) -> Vec<String> {
        let file = self.root.path(&format!("/var/log/{name}.runs"));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a file is there, such as the one that [`super::Deb::waits`] makes when it begins.
    #[track_caller]
    pub fn wait_for(&self, file: &str) {
        self.root.must("sh", &["-c", &super::deb::wait_for(file)]);
    }

    /// A program inside it, ready to be started.
    pub fn command(&self, program: &str) -> Command {
        self.root.command(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apt::Deb;

    #[test]
    fn a_server_has_the_release_installed_and_its_updates_pending() {
        let repo = Repo::with(&[
            (Pocket::Stable, Deb::new("hello", "1:1.0-1").source("greetings (3.0-1)")),
            (Pocket::Security, Deb::new("hello", "1:1.0-1+deb12u1").counts_runs()),
            (Pocket::Updates, Deb::new("other", "2")),
        ]);
        let Some(repo) = repo else { return };
        let Some(server) = Server::having(&repo, &["hello"]) else { return };
        assert_eq!(server.version("hello").as_deref(), Some("1:1.0-1"));
        assert_eq!(server.version("other"), None);
        server.hold("hello");
        assert!(server.root.must("apt-mark", &["showhold"]).contains("hello"));
        server.root.must("apt-get", &["-qq", "--yes", "upgrade"]);
        assert_eq!(server.version("hello").as_deref(), Some("1:1.0-1"));
        server.root.must("apt-mark", &["unhold", "hello"]);
        server.root.must("apt-get", &["-qq", "--yes", "upgrade"]);
        assert_eq!(server.version("hello").as_deref(), Some("1:1.0-1+deb12u1"));
        assert_eq!(server.runs("hello"), ["1:1.0-1+deb12u1"]);
    }

    #[test]
    fn a_failing_script_leaves_its_package_half_configured_until_what_was_in_the_way_is_gone() {
        let repo = Repo::with(&[
            (Pocket::Stable, Deb::new("moody", "1")),
            (Pocket::Updates, Deb::new("moody", "2").fails_while_there_is("/etc/in-the-way")),
        ]);
        let Some(repo) = repo else { return };
        let Some(server) = Server::having(&repo, &["moody"]) else { return };
        server.root.write("/etc/in-the-way", "");
        let said = server.root.run("apt-get", &["-qq", "--yes", "upgrade"]);
        assert_eq!(said.exit, Some(100), "{}", said.text);
        assert_eq!(server.version("moody").as_deref(), Some("2 (iF)"));
        server.root.must("rm", &["/etc/in-the-way"]);
        server.root.must("dpkg", &["--configure", "-a"]);
        assert_eq!(server.version("moody").as_deref(), Some("2"));
    }
}
