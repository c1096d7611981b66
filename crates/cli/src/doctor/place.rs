//! The data directory: who may read it, whether the keys are there, how much room is left, when it was last backed up.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use jiff::SignedDuration;
use service::secrets::Secrets;

use super::Findings;
use crate::backup::{LAST, Last};
use crate::installation::Installation;

/// Below this a database cannot grow for long.
const FREE_BYTES_MIN: u64 = 512 * 1024 * 1024;
/// An installation that was not backed up for so long would lose as much.
const BACKUP_AGE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) fn look(installation: &Installation, findings: &mut Findings) {
    let data = &installation.data_dir;
    let shown = data.display();
    let found = match fs::metadata(data) {
        Ok(found) if found.is_dir() => found,
        _ => {
            let remedy = format!(
                "run `fleetmend init --data-dir {shown} --org NAME`, or name the right one with --data-dir"
            );
            return findings.problem("data directory", format!("{shown} is not there"), remedy);
        }
    };
    let mode = found.permissions().mode() & 0o777;
    match mode & 0o077 {
        0 => findings.ok("data directory", format!("{shown} is for its owner alone")),
        _ => findings.problem(
            "data directory",
            format!("others than its owner may look into {shown} (mode {mode:04o})"),
            format!("chmod 0700 {shown}"),
        ),
    }
    for name in ["root.key", "root.old.key", "orders.key", "orders.next.key"] {
        key(&data.join(name), found.uid(), findings);
    }
    if let Err(error) = Secrets::load(data) {
        let remedy = "restore it from a backup: without it no agent obeys and no key is recognized";
        findings.problem("keys", error.to_string(), remedy);
    }
    room(data, findings);
    backup(data, findings);
}

fn key(path: &Path, owner: u32, findings: &mut Findings) {
    let shown = path.display();
    let Ok(found) = fs::metadata(path) else { return };
    let mode = found.permissions().mode() & 0o777;
    match (mode & 0o077, found.uid() == owner) {
        (0, true) => findings.ok("keys", format!("{shown} is for its owner alone")),
        (0, false) => findings.problem(
            "keys",
            format!("{shown} does not belong to the owner of its directory"),
            format!("chown --reference={} {shown}", path.with_file_name("").display()),
        ),
        _ => findings.problem(
            "keys",
            format!("others than its owner may read {shown} (mode {mode:04o})"),
            format!("chmod 0600 {shown}; if someone may have read it, every agent has to enrol anew with another one"),
        ),
    }
}

fn room(data: &Path, findings: &mut Findings) {
    let Ok(found) = rustix::fs::statvfs(data) else { return };
    let (free, all) = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize);
    let mib = |bytes: u64| bytes / (1024 * 1024);
    let told = format!("{} MiB of {} are free under {}", mib(free), mib(all), data.display());
    match free < FREE_BYTES_MIN {
        true => findings.problem(
            "disk space",
            told,
            "make room: a full disk stops every write, and the service answers 503",
        ),
        false => findings.ok("disk space", told),
    }
}

fn backup(data: &Path, findings: &mut Findings) {
    let remedy = format!("fleetmend backup --data-dir {} DIR, every night", data.display());
    let last = fs::read(data.join(LAST)).ok();
    let last = last.and_then(|text| serde_json::from_slice::<Last>(&text).ok());
    let Some(Last { at, file }) = last else {
        let told = "no backup was taken with `fleetmend backup` from here";
        return findings.note("backup", told, remedy);
    };
    let told = format!("the last one was taken at {at:.0}, into {}", file.display());
    match findings.now.duration_since(at) > BACKUP_AGE_MAX {
        true => findings.problem("backup", told, remedy),
        false => findings.ok("backup", told),
    }
}
