//! Diagnoses failures of rpm, dnf and zypper by their output.

use vocab::{FailureCode, Line};

use crate::backend::Diagnosis;

/// Phrases that identify a failure, in the order in which they are searched: a full disk breaks
/// downloads, and an unreachable repository breaks dependencies.
pub(crate) const SIGNATURES: &[(FailureCode, &[&str])] = &[
    (
        FailureCode::PkgLockTimeout,
        &[
            "already locked by",
            "Failed to obtain",
            "can't create transaction lock",
            "System management is locked",
        ],
    ),
    (
        FailureCode::DiskFull,
        &["No space left on device", "more space needed on", "not enough free", "Not enough space"],
    ),
    (
        FailureCode::PackageDbBroken,
        &[
            "cannot open Packages",
            "rpmdb open failed",
            "database disk image is malformed",
            "Failed to open the RPM database",
            "The RPM database",
        ],
    ),
    (
        FailureCode::RepoUnreachable,
        &[
            "Failed to download",
            "Cannot download",
            "Error downloading packages",
            "Could not resolve host",
            "Curl error",
            "No more mirrors to try",
            "Status code: 40",
            "Status code: 50",
            "Cache-only enabled but no cache",
            "Download (curl) error",
            "Valid metadata not found",
            "Failed to retrieve new repository metadata",
            "not found on medium",
            "incorrect checksum",
            "Problem retrieving files",
            "Could not refresh the repositories",
        ],
    ),
    (
        FailureCode::DependencyConflict,
        &[
            "Problem: ",
            "Problem 1: ",
            "nothing provides",
            "conflicts with",
            "No match for argument",
            "available, but not installed",
            "matches only",
            "No packages marked for",
            "not found in package names",
            "No provider of",
        ],
    ),
    // The specific error is printed before the general one.
    (
        FailureCode::InstallFailed,
        &["scriptlet failed", "Error in ", "GPG check FAILED", "Signature verification failed"],
    ),
    (FailureCode::InstallFailed, &["Transaction failed", "Error: "]),
];

/// The first phrase that is found determines the diagnosis; its line is the message.
pub(crate) fn from_output(said: &str) -> Option<Diagnosis> {
    SIGNATURES.iter().find_map(|(code, signs)| {
        let mut lines = said.lines();
        let line = lines.find(|line| signs.iter().any(|sign| line.contains(sign)))?;
        // A resolver prints its reasons in the lines below.
        let reasons = lines.map(str::trim).take_while(|line| line.starts_with("- "));
        let mut message = line.trim().to_owned();
        if *code == FailureCode::DependencyConflict {
            for reason in reasons {
                message.push_str("; ");
                message.push_str(reason.trim_start_matches("- "));
            }
        }
        Some(Diagnosis { code: *code, message: Line::from(message) })
    })
}

/// The last line with an error, or else the last line.
pub(crate) fn last_error_line(said: &str) -> Line {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let complains = |line: &&str| {
        let line = line.to_ascii_lowercase();
        line.starts_with("error") || line.contains("failed")
    };
    lines().rfind(complains).or_else(|| lines().next_back()).unwrap_or("no output").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis_of(said: &str) -> (FailureCode, String) {
        let diagnosis = from_output(said).unwrap();
        (diagnosis.code, diagnosis.message.to_string())
    }

    #[test]
    fn conflict_is_reported_in_the_resolvers_words() {
        let output = "Error: \n Problem: problem with installed package plain-1.0-1.noarch\n  \
                    - package fighter-2-1.noarch conflicts with plain provided by plain-1.0-1.noarch\n\
                    (try to add '--allowerasing')\n";
        assert_eq!(
            diagnosis_of(output),
            (
                FailureCode::DependencyConflict,
                "Problem: problem with installed package plain-1.0-1.noarch; package \
                 fighter-2-1.noarch conflicts with plain provided by plain-1.0-1.noarch"
                    .to_owned()
            )
        );
    }

    #[test]
    fn cause_is_found_before_its_consequences() {
        let output =
            "Curl error (23): No space left on device\nError: Failed to download metadata\n";
        assert_eq!(diagnosis_of(output).0, FailureCode::DiskFull);
        let output =
            "Error: Failed to download metadata for repo 'base': Cannot download repomd.xml\n";
        assert_eq!(diagnosis_of(output).0, FailureCode::RepoUnreachable);
        assert_eq!(
            diagnosis_of("Error: metadata already locked by 812\n").0,
            FailureCode::PkgLockTimeout
        );
        let output = "error: cannot open Packages database in /var/lib/rpm\n";
        assert_eq!(diagnosis_of(output).0, FailureCode::PackageDbBroken);
        let output = "warning: %post(failing-2-1.noarch) scriptlet failed, exit status 3\n";
        assert_eq!(diagnosis_of(output).0, FailureCode::InstallFailed);
        assert_eq!(from_output("Complete!\n"), None);
    }

    #[test]
    fn last_error_line_is_preferred() {
        assert_eq!(last_error_line("a\nerror: b\nc\n").as_str(), "error: b");
        assert_eq!(last_error_line("a\nb\n\n").as_str(), "b");
        assert_eq!(last_error_line("").as_str(), "no output");
    }
}
