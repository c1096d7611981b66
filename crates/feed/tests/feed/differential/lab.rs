//! A private dpkg root in which the real dpkg installs packages built with dpkg-deb.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::support::{Folder, has_program};

/// Package, version, and the `Source` field (empty if the package has none).
const PACKAGES: &[(&str, &str, &str)] = &[
    // One source with several binaries, one of them upgraded alone.
    ("libalpha1", "1.0-1", "alpha"),
    ("libalpha-dev", "1.0-1", "alpha"),
    ("alpha-bin", "1.0-1+deb12u1", "alpha"),
    ("beta", "2.0-1", ""),
    // Binaries rebuilt without a new source version.
    ("gamma", "5.9-4+b3", "gamma (5.9-4)"),
    ("gamma-common", "5.9-4", "gamma"),
    // Binaries with versions that differ from the source's.
    ("delta-tools", "2:1.02.185-2", "delta (2.03.16-2)"),
    ("delta2", "2.03.16-2", "delta"),
    ("epsilon", "4:22.0-1", ""),
    ("libepsilon0", "0.22-1", "epsilon (4:22.0-1)"),
    ("zeta", "1:9.2p1-2+deb12u3", ""),
    ("zeta-client", "1:9.2p1-2+deb12u3", "zeta"),
    ("eta", "3.0~rc2-1", ""),
    ("eta-doc", "3.0~rc2-1+b1", "eta (3.0~rc2-1)"),
    ("theta", "2.36-9+deb12u4~bpo11+1", ""),
    ("iota", "20230311", ""),
    ("kappa", "0~20220101+dfsg-3", ""),
    ("libkappa1", "1:0~20220101+dfsg-3", "kappa (0~20220101+dfsg-3)"),
    ("lambda-held", "1.4.2-1", "lambda"),
    ("libstdc-lab++6", "12.2.0-14", "gcc-lab-12"),
    ("local-build", "7.1-2local1", ""),
    ("local-build-data", "7.1-2local1", "local-build"),
    // The kernel.
    ("linux-libc-dev", "6.1.76-1", "linux"),
    ("linux-image-6.1.0-18-amd64-unsigned", "6.1.76-1", "linux"),
    ("linux-image-6.1.0-18-amd64-dbg", "6.1.76-1", "linux"),
    ("linux-image-6.1.0-17-amd64", "6.1.69-1", "linux-signed-amd64 (6.1.69+1)"),
    // Not installed: removed, unpacked only, or only selected.
    ("mu-removed", "1.0-1", "mu"),
    ("alpha-removed", "1.0-1", "alpha"),
    ("beta-unpacked", "1.9-1", "beta"),
];

/// Sources whose installed versions the archive does not have.
pub(crate) const LOCAL_SOURCES: &[&str] = &["local-build"];

/// The status file of a private dpkg root. `None`, with a skip message, if a tool is missing.
pub(crate) fn status() -> Option<&'static str> {
    static STATUS: OnceLock<Option<String>> = OnceLock::new();
    STATUS.get_or_init(install_packages).as_deref()
}

fn install_packages() -> Option<String> {
    if !has_program("dpkg", "dpkg") || !has_program("dpkg-deb", "dpkg") {
        return None;
    }
    let folder = Folder::new("dpkg-root");
    let root = folder.path().join("root");
    for directory in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.join("var/lib/dpkg").join(directory)).unwrap();
    }
    folder.write("root/var/lib/dpkg/status", "");
    folder.write("root/var/lib/dpkg/available", "");
    let debs: Vec<PathBuf> = PACKAGES.iter().map(|package| build(&folder, *package)).collect();
    let (unpacked, installed): (Vec<&PathBuf>, Vec<&PathBuf>) =
        debs.iter().partition(|deb| deb.to_string_lossy().contains("-unpacked"));
    dpkg(&root, &["--install"], &installed, "");
    dpkg(&root, &["--unpack"], &unpacked, "");
    dpkg(&root, &["--remove", "mu-removed", "alpha-removed"], &[], "");
    let available = "Package: beta-wanted\nVersion: 1\nArchitecture: all\nMaintainer: Lab <lab@example.invalid>\nDescription: lab\n";
    dpkg(&root, &["--merge-avail"], &[&folder.write("available", available)], "");
    dpkg(&root, &["--set-selections"], &[], "beta-wanted install\nlambda-held hold\n");
    let status = fs::read_to_string(root.join("var/lib/dpkg/status")).unwrap();
    for state in [
        "install ok installed",
        "hold ok installed",
        "deinstall ok config-files",
        "install ok unpacked",
        "install ok not-installed",
    ] {
        assert!(status.contains(&format!("Status: {state}\n")), "{state}: {status}");
    }
    Some(status)
}

fn build(folder: &Folder, (name, version, source): (&str, &str, &str)) -> PathBuf {
    let mut control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: all\n\
         Maintainer: Lab <lab@example.invalid>\nDescription: lab\n"
    );
    if !source.is_empty() {
        control.push_str(&format!("Source: {source}\n"));
    }
    folder.write(&format!("{name}/DEBIAN/control"), control);
    // A package without configuration files disappears from the database when it is removed.
    folder.write(&format!("{name}/DEBIAN/conffiles"), format!("/etc/{name}\n"));
    folder.write(&format!("{name}/etc/{name}"), name);
    let deb = folder.path().join(format!("{name}.deb"));
    let tree = folder.path().join(name);
    let mut command = Command::new("dpkg-deb");
    run(command.args(["--root-owner-group", "-Znone", "--build"]).arg(&tree).arg(&deb), "");
    deb
}

fn dpkg(root: &Path, arguments: &[&str], files: &[&PathBuf], input: &str) {
    let mut command = Command::new("dpkg");
    command
        .arg(format!("--root={}", root.display()))
        .arg(format!("--log={}", root.join("dpkg.log").display()))
        .args(["--force-not-root", "--force-bad-path", "--force-unsafe-io"])
        .args(arguments)
        .args(files);
    run(&mut command, input);
}

fn run(command: &mut Command, input: &str) {
    command.env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}
