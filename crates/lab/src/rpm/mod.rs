//! rpm packages, repositories of them with advisories, and servers with dnf or zypper.
//!
//! A server here is a directory with packages in it and no program but a shell: the host's dnf or
//! zypper manages it from outside, as an agent with `--root DIR` does.
//!
//! ```no_run
//! use lab::rpm::{Advisory, Manager, Package, Repo, Server};
//! let (old, new) = (Package::new("hello", "1.0-1"), Package::new("hello", "1.1-1"));
//! let fix = Advisory::security("LSA-2024:1", "Important", &["CVE-2024-1"], &[&new]);
//! let Some(repo) = Repo::with(&[old.clone(), new], &[fix]) else { return };
//! let Some(server) = Server::with_installed(Manager::Dnf, &repo, &[old]) else { return };
//! assert_eq!(server.database(), ["hello 1.0-1 noarch", "shell 1-1 noarch"]);
//! ```

mod package;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use package::Package;

use crate::has_programs;
use crate::root::{can_create_roots, new_dir, run_command, run_successfully};

/// A vendor's advisory about some packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advisory {
    id: String,
    kind: String,
    severity: String,
    cves: Vec<String>,
    package_entries: String,
}

impl Advisory {
    /// An advisory about a vulnerability that is fixed in these versions.
    pub fn security(id: &str, severity: &str, cves: &[&str], fixed: &[&Package]) -> Advisory {
        let cves = cves.iter().map(|cve| (*cve).to_owned()).collect();
        Advisory { severity: severity.to_owned(), cves, ..Advisory::other(id, "security", fixed) }
    }

    /// Another advisory: `bugfix` or `enhancement`.
    pub fn other(id: &str, kind: &str, fixed: &[&Package]) -> Advisory {
        Advisory {
            id: id.to_owned(),
            kind: kind.to_owned(),
            severity: "None".to_owned(),
            cves: Vec::new(),
            package_entries: fixed.iter().map(|package| package.advisory_entry()).collect(),
        }
    }

    fn xml(&self) -> String {
        let Advisory { id, kind, severity, cves, package_entries: listed } = self;
        let reference = |cve: &String| {
            format!(
                "<reference href=\"https://example.invalid\" id=\"{cve}\" type=\"cve\" title=\"{cve}\"/>"
            )
        };
        let references: String = cves.iter().map(reference).collect();
        format!(
            "<update from=\"lab\" status=\"final\" type=\"{kind}\" version=\"1\"><id>{id}</id>\
             <title>{id}</title><issued date=\"2024-01-02 00:00:00\"/><severity>{severity}</severity>\
             <summary>s</summary><description>d</description><references>{references}</references>\
             <pkglist><collection short=\"c\"><name>c</name>{listed}</collection></pkglist></update>"
        )
    }
}

/// A repository in this thread's temporary directory.
#[derive(Debug)]
pub struct Repo {
    dir: PathBuf,
}

impl Repo {
    /// A repository with these packages and advisories, and with the package `shell`, which
    /// provides `/bin/sh`.
    pub fn with(packages: &[Package], advisories: &[Advisory]) -> Option<Repo> {
        let tools =
            [("rpmbuild", "rpm"), ("createrepo_c", "createrepo-c"), ("busybox", "busybox-static")];
        if !can_create_roots() || !has_programs(&tools) {
            return None;
        }
        let repo = Repo { dir: new_dir("rpms") };
        repo.add(&[shell()]);
        repo.publish(packages, advisories);
        Some(repo)
    }

    /// Adds packages, and publishes them with these advisories, which replace earlier ones.
    pub fn publish(&self, packages: &[Package], advisories: &[Advisory]) {
        self.add(packages);
        run_successfully(Command::new("createrepo_c").arg("--quiet").arg(&self.dir));
        let updates: String = advisories.iter().map(Advisory::xml).collect();
        let file = self.dir.join("updateinfo.xml");
        fs::write(&file, format!("<updates>{updates}</updates>"))
            .expect("cannot write to the tmpfs");
        let mut modify = Command::new("modifyrepo_c");
        run_successfully(
            modify.arg("--mdtype=updateinfo").arg(&file).arg(self.dir.join("repodata")),
        );
    }

    /// Removes a package's file, while the lists still name it.
    pub fn remove_package_file(&self, package: &Package) {
        let built = package.build_file();
        let name = built.file_name().expect("a file has a name");
        fs::remove_file(self.dir.join(name)).expect("the package was added before");
    }

    /// Removes a package, and publishes the rest without advisories.
    pub fn withdraw(&self, package: &Package) {
        self.remove_package_file(package);
        self.publish(&[], &[]);
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn add(&self, packages: &[Package]) {
        for package in packages {
            let built = package.build_file();
            let name = built.file_name().expect("a file has a name");
            fs::copy(&built, self.dir.join(name)).expect("cannot write to the tmpfs");
        }
    }
}

/// The package that provides the shell for scripts.
fn shell() -> Package {
    Package::new("shell", "1-1").line("Provides: /bin/sh")
}

/// The package manager of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    /// dnf, in the generation that the host has.
    Dnf,
    Zypper,
}

/// A test system, removed when dropped.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
}

impl Server {
    /// A server that has these packages installed, the repository configured, and fresh package
    /// lists.
    pub fn with_installed(manager: Manager, repo: &Repo, packages: &[Package]) -> Option<Server> {
        let (program, package) = match manager {
            Manager::Dnf => ("dnf", "dnf"),
            Manager::Zypper => ("zypper", "zypper"),
        };
        if !has_programs(&[(program, package)]) {
            return None;
        }
        let server = Server { dir: new_dir("server") };
        let settings = format!(
            "[lab]\nname=lab\nbaseurl=file://{}\nenabled=1\ngpgcheck=0\nautorefresh=0\n",
            repo.dir.display()
        );
        match manager {
            Manager::Dnf => {
                server.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=0\n");
                server.write("/etc/yum.repos.d/lab.repo", &settings);
            }
            Manager::Zypper => server.write("/etc/zypp/repos.d/lab.repo", &settings),
        }
        if !server.install_shell() {
            crate::skip("busybox needs libraries (Debian package busybox-static)");
            return None;
        }
        let mut rpm = server.rpm();
        rpm.args(["-i", "--force-debian"]).arg(shell().build_file());
        run_successfully(rpm.args(packages.iter().map(Package::build_file)));
        match manager {
            Manager::Dnf => run_successfully(
                server
                    .program("dnf")
                    .arg("--installroot")
                    .arg(&server.dir)
                    .args(["-q", "makecache"]),
            ),
            Manager::Zypper => run_successfully(
                server.program("zypper").arg("--root").arg(&server.dir).args(["-n", "refresh"]),
            ),
        };
        Some(server)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
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

    /// Its package database, as listed by rpm: `openssl-libs 1:3.0.1-43.el9_0 noarch`, sorted.
    pub fn database(&self) -> Vec<String> {
        let output =
            run_successfully(self.rpm().args(["-qa", "--qf", "%{NAME} %{EVR} %{ARCH}\\n"]));
        // rpm prints an explicit epoch, even 0.
        let mut list: Vec<String> = output.lines().map(|line| line.replace(" 0:", " ")).collect();
        list.sort();
        list
    }

    /// Installs a package next to its installed version, as an interrupted upgrade leaves it.
    pub fn install_alongside(&self, package: &Package) {
        run_successfully(
            self.rpm()
                .args(["-i", "--oldpackage", "--replacefiles", "--nodeps", "--force-debian"])
                .arg(package.build_file()),
        );
    }

    /// rpm for this server.
    pub fn rpm(&self) -> Command {
        let mut rpm = self.program("rpm");
        rpm.arg("--root").arg(&self.dir);
        rpm
    }

    /// A program of the host, in the environment that the agent gives to programs.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env_clear().env("LC_ALL", "C").env("HOME", "/root").current_dir("/");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    /// Installs a shell; returns whether scripts can run now. There are no libraries, so the shell
    /// must be static.
    fn install_shell(&self) -> bool {
        let busybox = self.path("/bin/busybox");
        for dir in ["/bin", "/run", "/tmp", "/dev"] {
            fs::create_dir_all(self.path(dir)).expect("cannot write to the tmpfs");
        }
        let of_host =
            ["/usr/bin/busybox", "/bin/busybox"].iter().find(|path| Path::new(path).is_file());
        fs::copy(of_host.expect("busybox is not installed"), &busybox)
            .expect("cannot write to the tmpfs");
        for name in ["sh", "sleep", "echo", "cat", "timeout"] {
            std::os::unix::fs::symlink("busybox", self.path("/bin").join(name)).expect("a link");
        }
        // Without it the shell cannot start background jobs.
        run_successfully(self.program("mknod").arg(self.path("/dev/null")).args(["c", "1", "3"]));
        let mut trial = self.program("chroot");
        run_command(trial.arg(&self.dir).args(["/bin/sh", "-c", "true"])).exit == Some(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
