//! pacman packages, repositories of them, and servers that have them installed.
//!
//! A server is an overlay of the machine's own system, which has pacman, with a configuration and a
//! database of its own. So nothing of Arch is needed, and nothing of the machine is changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root::{Root, must, new_dir, ready};

/// A package to be built.
#[derive(Debug, Clone)]
pub struct Package {
    name: String,
    version: String,
    info: String,
    files: Vec<(String, String)>,
    script: Option<String>,
}

impl Package {
    /// One with a single file, `/usr/share/NAME/version`.
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

    /// With one more line of its description: `depend`, `libfoo=1.0`.
    #[must_use]
    pub fn saying(mut self, key: &str, value: &str) -> Package {
        self.info.push_str(&format!("{key} = {value}\n"));
        self
    }

    /// With one more file.
    #[must_use]
    pub fn file(mut self, path: &str, text: &str) -> Package {
        self.files.push((path.to_owned(), text.to_owned()));
        self
    }

    /// With a file that is kept if someone edited it.
    #[must_use]
    pub fn configuration(self, path: &str, text: &str) -> Package {
        self.saying("backup", path).file(path, text)
    }

    /// With a script that runs after it was upgraded.
    #[must_use]
    pub fn after_upgrade(mut self, commands: &str) -> Package {
        self.script = Some(format!("post_upgrade() {{\n{commands}\n}}\n"));
        self
    }

    /// The package file, in this folder.
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
            fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
            fs::write(path, text).expect("a tmpfs can be written");
        }
        let package = folder.join(format!("{}-{}-any.pkg.tar.gz", self.name, self.version));
        let entries = fs::read_dir(&tree).expect("it was just made").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        must(Command::new("bsdtar").arg("-C").arg(&tree).arg("-czf").arg(&package).args(names));
        fs::remove_dir_all(&tree).expect("it was just made");
        package
    }
}

/// A repository called `lab`, in this thread's workshop.
#[derive(Debug)]
pub struct Repository {
    dir: PathBuf,
}

impl Repository {
    /// One with these packages.
    pub fn with(packages: &[Package]) -> Option<Repository> {
        let tools = [
            ("pacman", "pacman-package-manager"),
            ("repo-add", "makepkg"),
            ("bsdtar", "libarchive-tools"),
        ];
        if !ready() || !crate::has_programs(&tools) {
            return None;
        }
        let repository = Repository { dir: new_dir("repo") };
        repository.add(packages);
        Some(repository)
    }

    /// Adds packages, which replace older ones. Servers see them after they have looked again.
    pub fn add(&self, packages: &[Package]) {
        let files: Vec<PathBuf> = packages.iter().map(|package| package.build(&self.dir)).collect();
        let database = self.dir.join("lab.db.tar.gz");
        must(Command::new("repo-add").arg("-q").arg(&database).args(files));
        // pacman goes by the whole seconds of a file's time, and tests do not wait for the next one.
        let time = format!("@{}", 1_700_000_000 + self.changes());
        must(Command::new("touch").args(["-d", &time]).arg(&database));
    }

    /// Takes the file of a package away and leaves the index as it is.
    pub fn lose(&self, name: &str, version: &str) {
        let file = self.dir.join(format!("{name}-{version}-any.pkg.tar.gz"));
        fs::remove_file(file).expect("it was added");
    }

    /// A number that grows with each change.
    fn changes(&self) -> usize {
        fs::read_dir(&self.dir).map(Iterator::count).unwrap_or(0)
    }
}

/// A server with pacman.
#[derive(Debug)]
pub struct Server {
    root: Root,
}

impl Server {
    /// One that has these packages of the repository.
    pub fn having(repository: &Repository, names: &[&str]) -> Server {
        let mut root = Root::over(Path::new("/"));
        let null = root.path("/dev/null");
        if !null.exists() {
            must(Command::new("mknod").args(["-m", "666"]).arg(null).args(["c", "1", "3"]));
        }
        for used in
            ["/var/lib/pacman", "/var/cache/pacman", "/etc/pacman.d", "/var/cache/fleetmend"]
        {
            let _ = fs::remove_dir_all(root.path(used));
        }
        for needed in ["/var/lib/pacman/local", "/var/lib/pacman/sync", "/var/cache/pacman/pkg"] {
            fs::create_dir_all(root.path(needed)).expect("a root can be written");
        }
        root.bind(&repository.dir, "/srv/lab");
        let server = Server { root };
        server.configure("");
        server.root.must("pacman", &["-Sy", "--noconfirm"]);
        server.root.must("pacman", &[&["-S", "--noconfirm"], names].concat());
        server
    }

    /// Writes pacman's settings anew, with these lines among them.
    pub fn configure(&self, more: &str) {
        let settings = format!(
            "[options]\nArchitecture = auto\nSigLevel = Never\n{more}\n[lab]\nServer = file:///srv/lab\n"
        );
        self.root.write("/etc/pacman.conf", &settings);
    }

    /// Its system.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// What is installed, as `pacman -Q` says it.
    pub fn installed(&self) -> Vec<String> {
        self.root.must("pacman", &["-Q"]).lines().map(str::to_owned).collect()
    }
}
