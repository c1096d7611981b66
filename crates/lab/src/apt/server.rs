//! A Debian server: its own root, with packages from a test archive.

use std::collections::BTreeMap;
use std::process::Command;

use super::{Pocket, Repo};
use crate::root::{Base, Root};

/// A Debian system with a test archive as its only source.
#[derive(Debug)]
pub struct Server {
    pub root: Root,
}

impl Server {
    /// A fresh server without any configured pocket.
    pub fn new(repo: &Repo) -> Option<Server> {
        Server::with_base(Base::Apt, repo)
    }

    /// Like [`Server::new`], with another base.
    pub fn with_base(base: Base, repo: &Repo) -> Option<Server> {
        let mut root = Root::from_base(base)?;
        root.bind(repo.dir(), "/repo");
        Some(Server { root })
    }

    /// A server that has these packages of the release installed and all pockets configured.
    pub fn with_installed(repo: &Repo, packages: &[&str]) -> Option<Server> {
        let server = Server::new(repo)?;
        server.sources(&[Pocket::Stable]);
        server.update();
        server.install(packages);
        server.sources(&Pocket::ALL);
        server.update();
        Some(server)
    }

    /// Configures these pockets as sources. The `copy:` method makes apt really download the files.
    pub fn sources(&self, pockets: &[Pocket]) {
        let line = |p: &Pocket| format!("deb [trusted=yes] copy:/repo {} main\n", p.suite());
        let text: String = pockets.iter().map(line).collect();
        self.root.write("/etc/apt/sources.list", &text);
    }

    /// Refreshes the package lists.
    pub fn update(&self) {
        self.root.run_successfully("apt-get", &["-qq", "update"]);
    }

    /// Installs packages, in apt-get's notation: `hello` or `hello=1.0-1`.
    pub fn install(&self, packages: &[&str]) {
        let options = ["-qq", "--yes", "--no-install-recommends", "install"];
        self.root.run_successfully("apt-get", &[&options, packages].concat());
    }

    /// Holds a package at its version.
    pub fn hold(&self, name: &str) {
        self.root.run_successfully("apt-mark", &["hold", name]);
    }

    /// The version of each package that dpkg knows, with its status if that is not `ii`: `1.0-1`,
    /// `1.0-2 (iF)`.
    pub fn packages(&self) -> BTreeMap<String, String> {
        let format = "-f=${Package}\\t${Version}\\t${db:Status-Abbrev}\\n";
        let listing = self.root.run_successfully("dpkg-query", &["-W", format]);
        let mut packages = BTreeMap::new();
        for line in listing.lines() {
            let mut parts = line.split('\t');
            let (Some(name), Some(version), Some(status)) =
                (parts.next(), parts.next(), parts.next())
            else {
                panic!("unexpected output of dpkg-query: {line}");
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

    /// The version of one package, as in [`Server::packages`]; `None` if dpkg does not know it.
    pub fn version(&self, name: &str) -> Option<String> {
        self.packages().remove(name)
    }

    /// The versions recorded by [`super::Deb::counts_runs`], one per run of the script.
    pub fn runs(&self, name: &str) -> Vec<String> {
        let file = self.root.path(&format!("/var/log/{name}.runs"));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a file exists, such as the one that [`super::Deb::waits_for_file`] creates when
    /// it starts.
    #[track_caller]
    pub fn wait_for(&self, file: &str) {
        self.root.run_successfully("sh", &["-c", &super::deb::wait_for_script(file)]);
    }

    /// A program inside the server, ready to be started.
    pub fn command(&self, program: &str) -> Command {
        self.root.command(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apt::Deb;

    #[test]
    fn server_has_release_installed_and_updates_pending() {
        let repo = Repo::with(&[
            (Pocket::Stable, Deb::new("hello", "1:1.0-1").source("greetings (3.0-1)")),
            (Pocket::Security, Deb::new("hello", "1:1.0-1+deb12u1").counts_runs()),
            (Pocket::Updates, Deb::new("other", "2")),
        ]);
        let Some(repo) = repo else { return };
        let Some(server) = Server::with_installed(&repo, &["hello"]) else { return };
        assert_eq!(server.version("hello").as_deref(), Some("1:1.0-1"));
        assert_eq!(server.version("other"), None);
        server.hold("hello");
        assert!(server.root.run_successfully("apt-mark", &["showhold"]).contains("hello"));
        server.root.run_successfully("apt-get", &["-qq", "--yes", "upgrade"]);
        assert_eq!(server.version("hello").as_deref(), Some("1:1.0-1"));
        server.root.run_successfully("apt-mark", &["unhold", "hello"]);
        server.root.run_successfully("apt-get", &["-qq", "--yes", "upgrade"]);
        assert_eq!(server.version("hello").as_deref(), Some("1:1.0-1+deb12u1"));
        assert_eq!(server.runs("hello"), ["1:1.0-1+deb12u1"]);
    }

    #[test]
    fn failing_script_leaves_its_package_half_configured() {
        let repo = Repo::with(&[
            (Pocket::Stable, Deb::new("moody", "1")),
            (Pocket::Updates, Deb::new("moody", "2").fails_while_exists("/etc/in-the-way")),
        ]);
        let Some(repo) = repo else { return };
        let Some(server) = Server::with_installed(&repo, &["moody"]) else { return };
        server.root.write("/etc/in-the-way", "");
        let output = server.root.run("apt-get", &["-qq", "--yes", "upgrade"]);
        assert_eq!(output.exit, Some(100), "{}", output.text);
        assert_eq!(server.version("moody").as_deref(), Some("2 (iF)"));
        server.root.run_successfully("rm", &["/etc/in-the-way"]);
        server.root.run_successfully("dpkg", &["--configure", "-a"]);
        assert_eq!(server.version("moody").as_deref(), Some("2"));
    }
}
