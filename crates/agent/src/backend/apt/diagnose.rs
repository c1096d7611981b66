//! Diagnoses failures of apt-get and dpkg: a code for programs, apt's own words for people.

use vocab::{FailureCode, Line};

use crate::backend::Diagnosis;

/// Phrases that identify a failure, most reliable first: a script that failed for lack of space is
/// a full disk, and a lock that was not acquired explains all later errors.
const SIGNATURES: [(FailureCode, &[&str]); 5] = [
    (
        FailureCode::PkgLockTimeout,
        &[
            "Could not get lock",
            "Unable to acquire the dpkg frontend lock",
            "Unable to lock ",
            "dpkg frontend lock was locked by",
            "dpkg database lock was locked by",
            "status database is locked by another process",
        ],
    ),
    (
        FailureCode::DiskFull,
        &["No space left on device", "You don't have enough free space in", "Disk quota exceeded"],
    ),
    (
        FailureCode::PackageDbBroken,
        &[
            "dpkg was interrupted",
            "parsing file '/var/lib/dpkg/",
            "The package lists or status file could not be parsed",
            "unrecoverable fatal error",
        ],
    ),
    (
        FailureCode::DependencyConflict,
        &[
            "unmet dependencies",
            "Unmet dependencies",
            "you have held broken packages",
            "remove is disabled",
            "Packages were downgraded and -y",
            "Held packages were changed and -y",
            "Essential packages were removed",
            "' was not found",
        ],
    ),
    (
        FailureCode::RepoUnreachable,
        &[
            "Failed to fetch",
            "Unable to fetch some archives",
            "Some index files failed to download",
            "Temporary failure resolving",
            "Could not resolve",
            "Could not connect",
            " is expired ",
            " is not valid yet",
            "Hash Sum mismatch",
            "NO_PUBKEY",
            " is not signed",
            "does not have a Release file",
            "no longer has a Release file",
            "changed its 'Suite' value",
        ],
    ),
];

/// Diagnoses a command by its exit code and the end of its output.
pub(super) fn diagnose(exit: Option<i32>, output: &str) -> Diagnosis {
    for (code, signs) in SIGNATURES {
        let is_sign =
            |line: &&str| is_manager_line(line) && signs.iter().any(|sign| line.contains(sign));
        if let Some(line) = output.lines().find(is_sign) {
            return Diagnosis { code, message: failure_message(code, line, output) };
        }
    }
    let message = failed_script_message(output).or_else(|| error_line(output)).unwrap_or_else(
        || match exit {
            Some(exit) => format!("apt-get failed with exit code {exit} and no output").into(),
            None => "apt-get was killed by a signal".into(),
        },
    );
    Diagnosis { code: FailureCode::InstallFailed, message }
}

/// Whether apt-get or dpkg wrote this line, as far as one can tell: a maintainer script may print
/// anything, and its own "could not connect" says nothing about our repositories.
fn is_manager_line(line: &str) -> bool {
    ["E: ", "W: ", "dpkg: ", " ", "The following "].iter().any(|start| line.starts_with(start))
}

fn failure_message(code: FailureCode, line: &str, output: &str) -> Line {
    match code {
        FailureCode::DependencyConflict => conflict_message(output),
        // apt-get prints the holder while it waits, not when it gives up. The waiting message alone
        // proves nothing: apt-get may have acquired the lock later and failed for another reason.
        FailureCode::PkgLockTimeout => {
            let waited = output.lines().rev().find(|line| line.contains("It is held by process"));
            let words = waited.unwrap_or(line).trim_start_matches("Waiting for cache lock: ");
            Line::sanitize(words.trim_start_matches("E: ").trim_end_matches("..."))
        }
        _ => Line::sanitize(line.trim_start_matches("E: ").trim_start_matches("W: ")),
    }
}

/// A conflict in the resolver's own words: what would be removed, or which dependencies are unmet.
pub(super) fn conflict_message(output: &str) -> Line {
    let listed = |heading: &str| {
        let after = output.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
        let items: Vec<&str> =
            after.take_while(|line| line.starts_with(' ')).map(str::trim).collect();
        (!items.is_empty()).then(|| items.join(" "))
    };
    let unmet = listed("The following packages have unmet dependencies");
    let removed = listed("The following packages will be REMOVED");
    let downgraded = listed("The following packages will be DOWNGRADED");
    let held = listed("The following held packages will be changed");
    let words = match (unmet, removed, downgraded, held) {
        (Some(unmet), ..) => Some(format!("unmet dependencies: {unmet}")),
        (_, Some(removed), ..) => Some(format!("the update would remove {removed}")),
        (_, _, Some(down), _) => Some(format!("the update would downgrade {down}")),
        (.., Some(held)) => Some(format!("the update would change {held}, which is held")),
        _ => None,
    };
    words.map(Line::from).or_else(|| error_line(output)).unwrap_or_else(|| "no reason given".into())
}

/// `dpkg: error processing package NAME (--configure):` and the next line, which contains the
/// reason.
fn failed_script_message(output: &str) -> Option<Line> {
    let mut lines = output.lines();
    let start = "dpkg: error processing ";
    let package = lines.find_map(|line| line.strip_prefix(start))?;
    let package = package.trim_start_matches("package ").trim_start_matches("archive ");
    let name = package.split(' ').next().unwrap_or(package);
    let why = lines.next().unwrap_or_default().trim();
    Some(Line::sanitize(&format!("{name}: {why}")))
}

/// The first line that apt-get marks as an error, or else the last line of output.
fn error_line(output: &str) -> Option<Line> {
    let error = output.lines().find_map(|line| line.strip_prefix("E: "));
    let last = || output.lines().rev().find(|line| !line.trim().is_empty());
    error.or_else(last).map(Line::sanitize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_diagnosis(output: &str, code: FailureCode, message: &str) {
        let diagnosis = diagnose(Some(100), output);
        assert_eq!((diagnosis.code, diagnosis.message.as_str()), (code, message));
    }

    #[test]
    fn lock_failure_names_the_holder() {
        assert_diagnosis(
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)\n\
             E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?\n",
            FailureCode::PkgLockTimeout,
            "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)",
        );
    }

    #[test]
    fn lock_acquired_after_waiting_is_not_blamed() {
        let waited = "Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend. \
                      It is held by process 812 (unattended-upgr)...\n";
        assert_diagnosis(
            &format!(
                "{waited}E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?\n"
            ),
            FailureCode::PkgLockTimeout,
            "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)",
        );
        assert_diagnosis(
            &format!("{waited}E: Sub-process /usr/bin/dpkg returned an error code (1)\n"),
            FailureCode::InstallFailed,
            "Sub-process /usr/bin/dpkg returned an error code (1)",
        );
    }

    #[test]
    fn stale_or_partial_mirror_is_an_unreachable_repository() {
        assert_diagnosis(
            "Err:1 http://deb.example/debian bookworm/main amd64 curl amd64 7.88\n  404  Not Found [IP: 192.0.2.1 80]\n\
             E: Failed to fetch http://deb.example/curl_7.88_amd64.deb  404  Not Found [IP: 192.0.2.1 80]\n\
             E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?\n",
            FailureCode::RepoUnreachable,
            "Failed to fetch http://deb.example/curl_7.88_amd64.deb  404  Not Found [IP: 192.0.2.1 80]",
        );
        assert_diagnosis(
            "Reading package lists...\nE: Release file for copy:/repo/dists/stable-security/Release is expired (invalid since 4336d).\n",
            FailureCode::RepoUnreachable,
            "Release file for copy:/repo/dists/stable-security/Release is expired (invalid since 4336d).",
        );
    }

    #[test]
    fn conflict_is_reported_in_the_resolvers_words() {
        assert_diagnosis(
            "The following packages have unmet dependencies:\n \
             broken : Depends: nosuch (>= 4) but it is not installable\n\
             E: Unable to correct problems, you have held broken packages.\n",
            FailureCode::DependencyConflict,
            "unmet dependencies: broken : Depends: nosuch (>= 4) but it is not installable",
        );
        assert_diagnosis(
            "The following packages will be REMOVED:\n  victim other\n\
             The following packages will be upgraded:\n  eater\n\
             E: Packages need to be removed but remove is disabled.\n",
            FailureCode::DependencyConflict,
            "the update would remove victim other",
        );
    }

    #[test]
    fn failed_script_names_its_package_unless_the_disk_is_full() {
        assert_diagnosis(
            "Setting up moody (2) ...\nthe script of moody fails\n\
             dpkg: error processing package moody (--configure):\n \
             installed moody package post-installation script subprocess returned error exit status 3\n\
             Errors were encountered while processing:\n moody\n\
             E: Sub-process /usr/bin/dpkg returned an error code (1)\n",
            FailureCode::InstallFailed,
            "moody: installed moody package post-installation script subprocess returned error exit status 3",
        );
        assert_diagnosis(
            "dpkg: error processing archive /var/cache/apt/archives/big_2_amd64.deb (--unpack):\n \
             cannot copy extracted data for './usr/big' to '/usr/big.dpkg-new': failed to write (No space left on device)\n",
            FailureCode::DiskFull,
            "cannot copy extracted data for './usr/big' to '/usr/big.dpkg-new': failed to write (No space left on device)",
        );
        assert_diagnosis(
            "E: You don't have enough free space in /var/cache/apt/archives/.\n",
            FailureCode::DiskFull,
            "You don't have enough free space in /var/cache/apt/archives/.",
        );
    }

    #[test]
    fn errors_printed_by_scripts_are_not_attributed_to_apt() {
        assert_diagnosis(
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.\n",
            FailureCode::PackageDbBroken,
            "dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.",
        );
        assert_diagnosis(
            "Could not connect to the database\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n",
            FailureCode::InstallFailed,
            "Sub-process /usr/bin/dpkg returned an error code (1)",
        );
        assert_diagnosis(
            "",
            FailureCode::InstallFailed,
            "apt-get failed with exit code 100 and no output",
        );
        assert_eq!(diagnose(None, "").message.as_str(), "apt-get was killed by a signal");
    }
}
