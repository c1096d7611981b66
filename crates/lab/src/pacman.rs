//! pacman packages, repositories of them, and servers that have them installed.
//!
//! A server is an overlay of the running system, which has pacman, with its own configuration and
//! database. So nothing of Arch is needed, and the running system is not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root::{Root, can_create_roots, new_dir, run_successfully};

#[derive(Debug, Clone)]
pub struct Package {
    name: String,
    version: String,
    info: String,
    files: Vec<(String, String)>,
    script: Option<String>,
}

impl Package {
    /// A package with a single file, `/usr/share/NAME/version`.
    pub fn new(name: &str, version: &str) -> Package {
        let file = (format!("usr/share/{name}/version"), format!("{version}\n"));
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            info: String::new(),
            files: vec![file],
            script: None,
        }
    }

    /// Adds a line to its description: `depend`, `libfoo=1.0`.
    #[must_use]
    pub fn info_line(mut self, key: &str, value: &str) -> Package {
        self.info.push_str(&format!("{key} = {value}\n"));
        self
    }

    #[must_use]
    pub fn file(mut self, path: &str, text: &str) -> Package {
        self.files.push((path.to_owned(), text.to_owned()));
        self
    }

    /// Adds a file that is kept if it was edited.
    #[must_use]
    pub fn configuration(self, path: &str, text: &str) -> Package {
        self.info_line("backup", path).file(path, text)
    }

    /// Adds a script that runs after an upgrade of the package.
    #[must_use]
    pub fn after_upgrade(mut self, commands: &str) -> Package {
        self.script = Some(format!("post_upgrade() {{\n{commands}\n}}\n"));
        self
    }

    /// Builds the package file in this directory.
    fn build(&self, folder: &Path) -> PathBuf {
        let tree = new_dir("package");
        let info = format!(
            "pkgname = {0}\npkgbase = {0}-base\npkgver = {1}\npkgdesc = a test\n\
             url = https://example.invalid\nbuilddate = 1700000000\n\
             packager = Someone <someone@example.invalid>\nsize = 1000\narch = any\n{2}",
            self.name, self.version, self.info
        );
        let mut parts = vec![(".PKGINFO".to_owned(), info)];
        parts.extend(self.script.clone().map(|script| (".INSTALL".to_owned(), script)));
        parts.extend(self.files.iter().cloned());
        for (path, text) in parts {
            let path = tree.join(path);
            fs::create_dir_all(path.parent().expect("a file has a parent"))
                .expect("cannot create directories");
            fs::write(path, text).expect("cannot write to the tmpfs");
        }
        let package = folder.join(format!("{}-{}-any.pkg.tar.gz", self.name, self.version));
        let entries = fs::read_dir(&tree).expect("the directory was just created").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        run_successfully(
            Command::new("bsdtar").arg("-C").arg(&tree).arg("-czf").arg(&package).args(names),
        );
        fs::remove_dir_all(&tree).expect("the directory was just created");
        package
    }
}

/// A repository named `lab`, in this thread's temporary directory.
#[derive(Debug)]
pub struct Repository {
    dir: PathBuf,
}

impl Repository {
    /// A repository with these packages.
    pub fn with(packages: &[Package]) -> Option<Repository> {
        let tools = [
            ("pacman", "pacman-package-manager"),
            ("repo-add", "makepkg"),
            ("bsdtar", "libarchive-tools"),
        ];
        if !can_create_roots() || !crate::has_programs(&tools) {
            return None;
        }
        let repository = Repository { dir: new_dir("repo") };
        repository.add(packages);
        Some(repository)
    }

    /// Adds packages, which replace older ones. Servers see them after their next refresh.
    pub fn add(&self, packages: &[Package]) {
        let files: Vec<PathBuf> = packages.iter().map(|package| package.build(&self.dir)).collect();
        let database = self.dir.join("lab.db.tar.gz");
        run_successfully(Command::new("repo-add").arg("-q").arg(&database).args(files));
        // pacman compares file times in whole seconds, and tests do not wait for the next one.
        let time = format!("@{}", 1_700_000_000 + self.change_count());
        run_successfully(Command::new("touch").args(["-d", &time]).arg(&database));
    }

    /// Removes the file of a package, but keeps its entry in the index.
    pub fn remove_package_file(&self, name: &str, version: &str) {
        let file = self.dir.join(format!("{name}-{version}-any.pkg.tar.gz"));
        fs::remove_file(file).expect("the package was added");
    }

    /// A number that grows with each change.
    fn change_count(&self) -> usize {
        fs::read_dir(&self.dir).map(Iterator::count).unwrap_or(0)
    }
}

/// A server with pacman.
#[derive(Debug)]
pub struct Server {
    root: Root,
}

impl Server {
    /// A server that has these packages of the repository installed.
    pub fn with_installed(repository: &Repository, names: &[&str]) -> Server {
        let mut root = Root::from_dir(Path::new("/"));
        let null = root.path("/dev/null");
        if !null.exists() {
            run_successfully(
                Command::new("mknod").args(["-m", "666"]).arg(null).args(["c", "1", "3"]),
            );
        }
        for used in
            ["/var/lib/pacman", "/var/cache/pacman", "/etc/pacman.d", "/var/cache/fleetmend"]
        {
            let _ = fs::remove_dir_all(root.path(used));
        }
        for needed in ["/var/lib/pacman/local", "/var/lib/pacman/sync", "/var/cache/pacman/pkg"] {
            fs::create_dir_all(root.path(needed)).expect("cannot write to the root");
        }
        root.bind(&repository.dir, "/srv/lab");
        let server = Server { root };
        server.configure("");
        server.root.run_successfully("pacman", &["-Sy", "--noconfirm"]);
        server.root.run_successfully("pacman", &[&["-S", "--noconfirm"], names].concat());
        server
    }

    /// Writes pacman's configuration, with these additional lines.
    pub fn configure(&self, more: &str) {
        let settings = format!(
            "[options]\nArchitecture = auto\nSigLevel = Never\n{more}\n[lab]\nServer = file:///srv/lab\n"
        );
        self.root.write("/etc/pacman.conf", &settings);
    }

    /// Downloads the newest version of a package without installing it.
    pub fn download(&self, name: &str) {
        self.root.run_successfully("pacman", &["-Syw", "--noconfirm", name]);
    }

    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The installed packages, as listed by `pacman -Q`.
    pub fn installed(&self) -> Vec<String> {
        self.root.run_successfully("pacman", &["-Q"]).lines().map(str::to_owned).collect()
    }
}
