//! Checks the data directory: permissions, key files, disk space, and the age of the last backup.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use jiff::SignedDuration;
use service::secrets::Secrets;

use super::Findings;
use crate::backup::{LAST_BACKUP_FILE, LastBackup};
use crate::installation::Installation;

/// Less free space than this and the database cannot grow for long.
const FREE_BYTES_MIN: u64 = 512 * 1024 * 1024;
/// The oldest acceptable backup: restoring it loses everything since.
const BACKUP_AGE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) fn check(installation: &Installation, findings: &mut Findings) {
    let data = &installation.data_dir;
    let shown = data.display();
    let found = match fs::metadata(data) {
        Ok(found) if found.is_dir() => found,
        _ => {
            let remedy = format!(
                "run `fleetmend init --data-dir {shown} --org NAME`, or set the right directory with --data-dir"
            );
            return findings.problem("data directory", format!("{shown} does not exist"), remedy);
        }
    };
    let mode = found.permissions().mode() & 0o777;
    match mode & 0o077 {
        0 => findings.ok("data directory", format!("only the owner can access {shown}")),
        _ => findings.problem(
            "data directory",
            format!("users other than the owner can access {shown} (mode {mode:04o})"),
            format!("chmod 0700 {shown}"),
        ),
    }
    for name in ["root.key", "root.old.key", "orders.key", "orders.next.key"] {
        check_key_file(&data.join(name), found.uid(), findings);
    }
    if let Err(error) = Secrets::load(data) {
        let remedy = "restore the keys from a backup: without them agents reject every order and no API key is accepted";
        findings.problem("keys", error.to_string(), remedy);
    }
    check_disk_space(data, findings);
    check_last_backup(data, findings);
}

fn check_key_file(path: &Path, owner: u32, findings: &mut Findings) {
    let shown = path.display();
    let Ok(found) = fs::metadata(path) else { return };
    let mode = found.permissions().mode() & 0o777;
    match (mode & 0o077, found.uid() == owner) {
        (0, true) => findings.ok("keys", format!("only the owner can read {shown}")),
        (0, false) => findings.problem(
            "keys",
            format!("{shown} and its directory have different owners"),
            format!("chown --reference={} {shown}", path.with_file_name("").display()),
        ),
        _ => findings.problem(
            "keys",
            format!("users other than the owner can read {shown} (mode {mode:04o})"),
            format!("chmod 0600 {shown}; if someone may have read the key, every agent must enroll again with a new one"),
        ),
    }
}

fn check_disk_space(data: &Path, findings: &mut Findings) {
    let Ok(found) = rustix::fs::statvfs(data) else { return };
    let (free, all) = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize);
    let mib = |bytes: u64| bytes / (1024 * 1024);
    let message = format!("{} MiB of {} MiB free in {}", mib(free), mib(all), data.display());
    match free < FREE_BYTES_MIN {
        true => findings.problem(
            "disk space",
            message,
            "free some space: on a full disk every write fails and the service responds with 503",
        ),
        false => findings.ok("disk space", message),
    }
}

fn check_last_backup(data: &Path, findings: &mut Findings) {
    let remedy = format!("run `fleetmend backup --data-dir {} DIR` every night", data.display());
    let last = fs::read(data.join(LAST_BACKUP_FILE)).ok();
    let last = last.and_then(|text| serde_json::from_slice::<LastBackup>(&text).ok());
    let Some(LastBackup { at, file }) = last else {
        let message = "`fleetmend backup` has not been run for this data directory";
        return findings.note("backup", message, remedy);
    };
    let message = format!("the last backup was taken at {at:.0}: {}", file.display());
    match findings.now.duration_since(at) > BACKUP_AGE_MAX {
        true => findings.problem("backup", message, remedy),
        false => findings.ok("backup", message),
    }
}
