//! Detects the environment of the agent: a physical or virtual machine, a container, or a chroot.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use vocab::Line;

use crate::root::Root;

/// The container type, detected by the usual marks.
pub(super) fn container(root: &Root, proc: &Path) -> Option<Line> {
    let text = |path: &str| fs::read_to_string(root.path(path)).ok();
    // systemd as PID 1 writes the container type here.
    if let Some(kind) = text("/run/systemd/container").filter(|kind| !kind.trim().is_empty()) {
        return Some(Line::sanitize(&kind));
    }
    let environment = fs::read(proc.join("1/environ")).unwrap_or_default();
    let variable =
        environment.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(b"container="));
    if let Some(kind) = variable.filter(|kind| !kind.is_empty()) {
        return Some(Line::sanitize(&String::from_utf8_lossy(kind)));
    }
    if root.path("/.dockerenv").exists() {
        return Some(Line::from("docker"));
    }
    if root.path("/run/.containerenv").exists() {
        return Some(Line::from("podman"));
    }
    let group = fs::read_to_string(proc.join("1/cgroup")).unwrap_or_default();
    let named = ["lxc", "docker", "kubepods", "machine.slice"];
    if let Some(kind) = named.iter().find(|kind| group.contains(&format!("/{kind}"))) {
        return Some(Line::from(*kind));
    }
    // Outside containers, process 2 is a kernel thread. A PID namespace hides it.
    let second = fs::read_to_string(proc.join("2/comm")).unwrap_or_default();
    (proc.join("1").exists() && second.trim() != "kthreadd").then(|| Line::from("a PID namespace"))
}

pub(super) fn has_systemd(root: &Root) -> bool {
    root.path("/run/systemd/system").is_dir()
}

/// Names of PID 1 for init systems other than systemd.
const OTHER_INITS: [&str; 5] = ["init", "openrc-init", "runit", "s6-svscan", "dinit"];

/// Whether the running system can be rebooted from here, or why not. A check that fails counts as a
/// reason.
pub(super) fn check_reboot_allowed(
    root: &Root,
    proc: &Path,
    in_container: bool,
) -> Result<(), Line> {
    if let Some(kind) = container(root, proc) {
        if !in_container {
            let why = format!(
                "this is a container ({kind}), and `reboot_in_container` is not set in limits.toml"
            );
            return Err(Line::sanitize(&why));
        }
        if !has_systemd(root) {
            return Err(Line::sanitize(&format!("this is a container ({kind}) without systemd")));
        }
    }
    check_not_chroot(root.dir(), proc)?;
    let first = fs::read_to_string(proc.join("1/comm")).unwrap_or_default();
    if has_systemd(root) || OTHER_INITS.contains(&first.trim()) {
        return Ok(());
    }
    Err(Line::sanitize(&format!("process 1 (`{}`) is not a supported init system", first.trim())))
}

/// In a chroot, process 1 has another root directory than the agent. The files there may be those
/// of a full system, but that system is not the running one.
fn check_not_chroot(dir: &Path, proc: &Path) -> Result<(), Line> {
    let unknown = |error: std::io::Error| {
        Line::sanitize(&format!("cannot determine whether the agent runs in a chroot: {error}"))
    };
    let first = fs::metadata(proc.join("1/root")).map_err(unknown)?;
    let own = fs::metadata(dir).map_err(unknown)?;
    match (first.dev(), first.ino()) == (own.dev(), own.ino()) {
        true => Ok(()),
        false => Err(Line::from("the agent runs in a chroot")),
    }
}
