//! Builds an rpm package once with rpmbuild, and reuses it for every test that needs the same.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root::{build_once, run_successfully};

/// A package to be built: `noarch`, with one file that is named like its version, so that two
/// versions of it can be installed next to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    name: String,
    epoch: String,
    version: String,
    release: String,
    source: String,
    vendor: String,
    preamble: Vec<String>,
    scripts: Vec<(String, String)>,
    config: Option<(String, String)>,
}

impl Package {
    /// A package with a version such as `1:3.0.1-43.el9_0`.
    pub fn new(name: &str, evr: &str) -> Package {
        let (epoch, rest) = evr.split_once(':').unwrap_or(("0", evr));
        let (version, release) = rest.split_once('-').expect("a version has a release");
        Package {
            name: name.to_owned(),
            epoch: epoch.to_owned(),
            version: version.to_owned(),
            release: release.to_owned(),
            source: name.to_owned(),
            vendor: "Fleetmend Lab".to_owned(),
            preamble: Vec::new(),
            scripts: Vec::new(),
            config: None,
        }
    }

    /// Sets a source package with another name.
    #[must_use]
    pub fn source(mut self, name: &str) -> Package {
        self.source = name.to_owned();
        self
    }

    /// Sets who built it. Package managers report this as the origin of the package.
    #[must_use]
    pub fn vendor(mut self, name: &str) -> Package {
        self.vendor = name.to_owned();
        self
    }

    /// Adds a line to its preamble: `Requires: extra`, `Obsoletes: victim < 9`.
    #[must_use]
    pub fn line(mut self, line: &str) -> Package {
        self.preamble.push(line.to_owned());
        self
    }

    /// Adds a script for `/bin/sh`, such as `pre` or `post`.
    #[must_use]
    pub fn script(mut self, when: &str, text: &str) -> Package {
        self.scripts.push((when.to_owned(), text.to_owned()));
        self
    }

    /// Adds a configuration file that is kept if it was edited.
    #[must_use]
    pub fn config(mut self, path: &str, text: &str) -> Package {
        self.config = Some((path.to_owned(), text.to_owned()));
        self
    }

    /// Its full name, as in advisories: `openssl-libs-1:3.0.1-43.el9_0.noarch`.
    pub fn nevra(&self) -> String {
        let Package { name, epoch, version, release, .. } = self;
        format!("{name}-{epoch}:{version}-{release}.noarch")
    }

    /// Its entry in an advisory.
    pub(super) fn advisory_entry(&self) -> String {
        let Package { name, epoch, version, release, .. } = self;
        format!(
            "<package name=\"{name}\" version=\"{version}\" release=\"{release}\" epoch=\"{epoch}\" \
             arch=\"noarch\"><filename>{name}-{version}-{release}.noarch.rpm</filename></package>"
        )
    }

    fn spec(&self) -> String {
        let Package { name, epoch, version, release, source, vendor, .. } = self;
        let head: String = self.preamble.iter().map(|line| format!("{line}\n")).collect();
        // A package that is not named like its source is a subpackage of it.
        let (part, of_part) = match name == source {
            true => (String::new(), String::new()),
            false => (
                format!(
                    "%package -n {name}\nSummary: {name}\n{head}%description -n {name}\nA test.\n"
                ),
                format!(" -n {name}"),
            ),
        };
        let own = if part.is_empty() { head.as_str() } else { "" };
        let mut install = format!("touch %{{buildroot}}/usr/share/{name}/{version}-{release}\n");
        let mut files = format!("/usr/share/{name}/{version}-{release}\n");
        if let Some((path, text)) = &self.config {
            install.push_str(&format!(
                "mkdir -p $(dirname %{{buildroot}}{path})\necho '{text}' > %{{buildroot}}{path}\n"
            ));
            files.push_str(&format!("%config(noreplace) {path}\n"));
        }
        let scripts: String =
            self.scripts.iter().map(|(when, text)| format!("%{when}{of_part}\n{text}\n")).collect();
        format!(
            "Name: {source}\nEpoch: {epoch}\nVersion: {version}\nRelease: {release}\nSummary: {name}\n\
             License: MIT\nVendor: {vendor}\nBuildArch: noarch\n{own}%description\nA test.\n{part}\
             %install\nmkdir -p %{{buildroot}}/usr/share/{name}\n{install}{scripts}\
             %files{of_part}\n{files}"
        )
    }

    /// The package file, which is built if it does not exist yet.
    pub(super) fn build_file(&self) -> PathBuf {
        let spec = self.spec();
        let mut hash = DefaultHasher::new();
        spec.hash(&mut hash);
        let dir = build_once(&format!("rpm-{}-{:016x}", self.name, hash.finish()), |dir| {
            build(dir, &spec);
        });
        let found = fs::read_dir(&dir).expect("cannot access the lab's directory").flatten();
        let file = found.map(|entry| entry.path()).find(|path| path.extension().is_some());
        file.expect("a package was built")
    }
}

/// Builds a spec in `dir`, and leaves only the package there.
fn build(dir: &Path, spec: &str) {
    let work = dir.join("work");
    fs::create_dir(&work).expect("cannot access the lab's directory");
    fs::write(work.join("a.spec"), spec).expect("cannot access the lab's directory");
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["--quiet", "-bb", "--define"]).arg(format!("_topdir {}", work.display()));
    rpmbuild.args(["--define", "_build_id_links none", "--define"]);
    rpmbuild.arg("_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm");
    run_successfully(rpmbuild.arg(work.join("a.spec")).env("LC_ALL", "C"));
    for entry in fs::read_dir(work.join("RPMS")).expect("rpmbuild created it").flatten() {
        fs::rename(entry.path(), dir.join(entry.file_name())).expect("cannot move the package");
    }
    fs::remove_dir_all(&work).expect("cannot access the lab's directory");
}
