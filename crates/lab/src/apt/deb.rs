//! Builds a Debian package: its content and its maintainer scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::native_arch;
use crate::root::{new_dir, run_successfully};

/// A package to be built. It contains `/usr/share/NAME/version` and the files that are added to it.
#[derive(Debug, Clone)]
pub struct Deb {
    name: String,
    version: String,
    arch: String,
    fields: Vec<(String, String)>,
    conffiles: Vec<(String, String)>,
    files: Vec<(String, Vec<u8>)>,
    postinst: Vec<String>,
    preinst: Vec<String>,
}

impl Deb {
    /// A plain package for the native architecture.
    pub fn new(name: &str, version: &str) -> Deb {
        Deb {
            name: name.to_owned(),
            version: version.to_owned(),
            arch: native_arch().to_owned(),
            fields: Vec::new(),
            conffiles: Vec::new(),
            files: Vec::new(),
            postinst: Vec::new(),
            preinst: Vec::new(),
        }
    }

    /// Sets another architecture, such as `all`.
    #[must_use]
    pub fn arch(mut self, arch: &str) -> Deb {
        arch.clone_into(&mut self.arch);
        self
    }

    /// Adds a field to its control file.
    #[must_use]
    pub fn field(mut self, name: &str, value: &str) -> Deb {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a source with another name or version: `foo (3.0-1)`.
    #[must_use]
    pub fn source(self, source: &str) -> Deb {
        self.field("Source", source)
    }

    /// Adds dependencies: `libnew (>= 2)`.
    #[must_use]
    pub fn depends(self, others: &str) -> Deb {
        self.field("Depends", others)
    }

    /// Conflicts with other packages: its update requires their removal.
    #[must_use]
    pub fn conflicts(self, others: &str) -> Deb {
        self.field("Conflicts", others)
    }

    /// Breaks other packages, or older versions of them.
    #[must_use]
    pub fn breaks(self, others: &str) -> Deb {
        self.field("Breaks", others)
    }

    /// Declares this installed size.
    #[must_use]
    pub fn installed_kilobytes(self, kilobytes: u64) -> Deb {
        self.field("Installed-Size", &kilobytes.to_string())
    }

    /// A metapackage, as distributions have them for kernels.
    #[must_use]
    pub fn meta(self, needs: &str) -> Deb {
        self.depends(needs).field("Section", "metapackages")
    }

    /// Adds a file, such as a library.
    #[must_use]
    pub fn file(mut self, path: &str, bytes: &[u8]) -> Deb {
        self.files.push((path.to_owned(), bytes.to_owned()));
        self
    }

    /// Adds a configuration file that the administrator may edit.
    #[must_use]
    pub fn conffile(mut self, path: &str, text: &str) -> Deb {
        self.conffiles.push((path.to_owned(), text.to_owned()));
        self
    }

    /// Adds shell code to its postinst script, run on `configure`.
    #[must_use]
    pub fn script(mut self, text: &str) -> Deb {
        self.postinst.push(text.to_owned());
        self
    }

    /// Adds shell code to its preinst script, run before unpacking.
    #[must_use]
    pub fn before_unpack(mut self, text: &str) -> Deb {
        self.preinst.push(text.to_owned());
        self
    }

    /// Prompts and waits for an answer for as long as its input is open. At the end of its input it
    /// continues without; the answer is in `/var/lib/NAME.answer`.
    #[must_use]
    pub fn prompts(self) -> Deb {
        let name = self.name.clone();
        self.script(&format!(
            "printf 'Shall {name} go on? '; read answer || answer=none\n\
             echo \"$answer\" > /var/lib/{name}.answer"
        ))
    }

    /// Its script always fails.
    #[must_use]
    pub fn fails_always(self) -> Deb {
        let words = format!("echo 'the script of {} fails' >&2; exit 3", self.name);
        self.script(&words)
    }

    /// Its script fails for as long as this file exists.
    #[must_use]
    pub fn fails_while_exists(self, file: &str) -> Deb {
        let words = format!("if [ -e {file} ]; then echo '{file} is in the way' >&2; exit 3; fi");
        self.script(&words)
    }

    /// Its script leaves a child running that keeps its output open for this many seconds.
    #[must_use]
    pub fn leaves_background_child(self, seconds: u32) -> Deb {
        self.script(&format!("sleep {seconds} &"))
    }

    /// Its script sleeps for this many seconds.
    #[must_use]
    pub fn sleeps(self, seconds: &str) -> Deb {
        self.script(&format!("sleep {seconds}"))
    }

    /// Its script creates the file `started`, and waits until the file `go_on` exists: the test
    /// decides when. The script fails after some minutes, in case the test was killed.
    #[must_use]
    pub fn waits_for_file(self, started: &str, go_on: &str) -> Deb {
        self.script(&format!("touch {started}\n{}", wait_for_script(go_on)))
    }

    /// Its script appends the package version to `/var/log/NAME.runs` each time it runs.
    #[must_use]
    pub fn counts_runs(self) -> Deb {
        let words = format!("echo {} >> /var/log/{}.runs", self.version, self.name);
        self.script(&words)
    }

    /// Its script requests a reboot, as kernels and libraries do on Ubuntu.
    #[must_use]
    pub fn requests_reboot(self) -> Deb {
        let words = format!(
            "echo '*** System restart required ***' > /run/reboot-required\n\
             echo {} >> /run/reboot-required.pkgs",
            self.name
        );
        self.script(&words)
    }

    /// Builds the package into a directory.
    pub(super) fn build(&self, into: &Path) {
        let tree = new_dir("deb");
        let put_bytes = |path: &str, text: &[u8], mode: u32| {
            let path = tree.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().expect("a file has a parent"))
                .and_then(|()| fs::write(&path, text))
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
                .expect("cannot write to the tmpfs");
        };
        let put = |path: &str, text: &str, mode: u32| put_bytes(path, text.as_bytes(), mode);
        put("DEBIAN/control", &self.control(), 0o644);
        put(&format!("usr/share/{}/version", self.name), &format!("{}\n", self.version), 0o644);
        for (path, text) in &self.conffiles {
            put(path, text, 0o644);
        }
        for (path, bytes) in &self.files {
            put_bytes(path, bytes, 0o644);
        }
        if !self.conffiles.is_empty() {
            let list: String = self.conffiles.iter().map(|(path, _)| format!("{path}\n")).collect();
            put("DEBIAN/conffiles", &list, 0o644);
        }
        let script =
            |parts: &[String]| format!("#!/bin/sh\nset -e\n{}\nexit 0\n", parts.join("\n"));
        if !self.postinst.is_empty() {
            let mut parts = vec!["[ \"$1\" = configure ] || exit 0".to_owned()];
            parts.extend(self.postinst.iter().cloned());
            put("DEBIAN/postinst", &script(&parts), 0o755);
        }
        if !self.preinst.is_empty() {
            put("DEBIAN/preinst", &script(&self.preinst), 0o755);
        }
        let mut build = Command::new("dpkg-deb");
        run_successfully(
            build.args(["--root-owner-group", "-Znone", "--build"]).arg(&tree).arg(into),
        );
        let _ = fs::remove_dir_all(&tree);
    }

    fn control(&self) -> String {
        let Deb { name, version, arch, .. } = self;
        let mut text = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {arch}\n\
             Maintainer: Lab <lab@example.invalid>\nDescription: {name} of the lab\n"
        );
        for (field, value) in &self.fields {
            text.push_str(&format!("{field}: {value}\n"));
        }
        text
    }
}

/// Shell code that waits for a file, and gives up after some minutes.
pub(super) fn wait_for_script(file: &str) -> String {
    format!("n=0; until [ -e {file} ]; do n=$((n+1)); [ $n -lt 9000 ] || exit 9; sleep 0.02; done")
}
