//! Parses the output of apk, and diagnoses its failures.

use std::collections::BTreeMap;

use pkgver::Scheme;
use vocab::listing::{Installed, Pending};
use vocab::{FailureCode, Line};

use crate::backend::{BackendError, Change, Diagnosis, Transaction};

/// The updates listed by `apk list --upgradable`, the newest of each package:
/// `busybox-1.36.1-r19 x86_64 {busybox} (GPL-2.0-only) [upgradable from: busybox-1.36.1-r15]`.
pub(super) fn parse_upgradable(text: &str, installed: &[Installed]) -> Vec<Pending> {
    let versions: BTreeMap<&str, &Installed> =
        installed.iter().map(|package| (package.name.as_str(), package)).collect();
    let mut newest: BTreeMap<&str, Pending> = BTreeMap::new();
    for line in text.lines() {
        let Some((offer, from)) = line.split_once("[upgradable from: ") else { continue };
        let mut words = offer.split_whitespace();
        let (Some(offered), Some(arch)) = (words.next(), words.next()) else { continue };
        // A name may contain what looks like a version. The installed package tells where the name
        // ends.
        let from = from.trim_end().trim_end_matches(']');
        let package = versions.values().find(|package| {
            from.strip_prefix(&package.name)
                .is_some_and(|rest| rest.strip_prefix('-') == Some(package.version.as_str()))
        });
        let Some(package) = package else { continue };
        let rest = offered.strip_prefix(&package.name);
        let Some(candidate) = rest.and_then(|rest| rest.strip_prefix('-')) else { continue };
        let update = Pending::new(&package.name, arch, &package.version, candidate);
        let newer = newest
            .get(package.name.as_str())
            .is_none_or(|known| Scheme::Apk.compare(candidate, &known.candidate).is_gt());
        if newer {
            newest.insert(&package.name, update);
        }
    }
    newest.into_values().collect()
}

/// The changes that `--simulate` prints.
pub(super) fn parse_transaction(
    text: &str,
    installed: &[Installed],
) -> Result<Transaction, BackendError> {
    let mut transaction = Transaction::default();
    for line in text.lines().map(str::trim) {
        let Some(step) = line.strip_prefix('(').and_then(|rest| rest.split_once(") ")) else {
            continue;
        };
        let is_counted = step.0.split('/').all(|part| part.trim().parse::<u32>().is_ok());
        if !is_counted {
            continue;
        }
        let change = parse_change(step.1, installed).ok_or_else(|| BackendError::Unreadable {
            what: "the output of apk --simulate".to_owned(),
            why: format!("unexpected line `{line}`"),
        })?;
        // Reinstalling the same version changes nothing.
        if change.from != change.to {
            transaction.changes.push(change);
        }
    }
    transaction.changes.sort();
    Ok(transaction)
}

/// `Upgrading musl (1.2.4-r2 -> 1.2.4-r3)`, `Installing foo@edge (1-r0)`, `Purging bar (1-r0)`.
fn parse_change(step: &str, installed: &[Installed]) -> Option<Change> {
    let (verb, rest) = step.split_once(' ')?;
    let (name, versions) = rest.split_once(" (")?;
    let name = name.split('@').next()?;
    let versions = versions.trim_end().strip_suffix(')')?;
    let (from, to) = match versions.split_once(" -> ") {
        Some((from, to)) => (Some(from), Some(to)),
        None => match verb {
            "Installing" => (None, Some(versions)),
            "Purging" | "Deleting" => (Some(versions), None),
            "Reinstalling" | "Replacing" => (Some(versions), Some(versions)),
            _ => return None,
        },
    };
    let arch = installed.iter().find(|package| package.name == name);
    Some(Change {
        name: name.to_owned(),
        arch: arch.map(|package| package.arch.clone()).unwrap_or_default(),
        from: from.map(str::to_owned),
        to: to.map(str::to_owned),
    })
}

/// The process that holds the lock on this inode, from `/proc/locks`:
/// `1: FLOCK  ADVISORY  WRITE 812 08:01:131 0 EOF`.
pub(super) fn lock_owner(locks: &str, inode: u64) -> Option<i32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A line with an arrow is a process that waits.
        let [_, "FLOCK" | "POSIX" | "OFDLCK", _, "WRITE", pid, file, ..] = words[..] else {
            return None;
        };
        let locked: u64 = file.rsplit(':').next()?.parse().ok()?;
        (locked == inode).then(|| pid.parse().ok()).flatten()
    })
}

/// Phrases that identify a failure, in the order in which they are searched.
const SIGNATURES: [(&str, FailureCode); 12] = [
    ("Unable to lock database", FailureCode::PkgLockTimeout),
    ("No space left on device", FailureCode::DiskFull),
    ("unable to select packages", FailureCode::DependencyConflict),
    ("unsatisfiable constraints", FailureCode::DependencyConflict),
    ("package mentioned in index not found", FailureCode::RepoUnreachable),
    ("temporary error", FailureCode::RepoUnreachable),
    ("network error", FailureCode::RepoUnreachable),
    ("DNS", FailureCode::RepoUnreachable),
    ("UNTRUSTED signature", FailureCode::RepoUnreachable),
    ("BAD signature", FailureCode::RepoUnreachable),
    ("fetching ", FailureCode::RepoUnreachable),
    ("Unable to read database", FailureCode::PackageDbBroken),
];

/// Diagnoses a failure by these phrases, with apk's own words as the message.
pub(super) fn diagnose(output: &str) -> Diagnosis {
    let code = SIGNATURES.iter().find(|(sign, _)| output.contains(sign)).map(|(_, code)| *code);
    let lines: Vec<&str> =
        output.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let mut details: Vec<&str> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("ERROR: ") || line.starts_with("WARNING: fetching ") {
            details.push(line.trim_start_matches("ERROR: ").trim_start_matches("WARNING: "));
            // Indented lines below an error are its details.
            details.extend(
                lines[at + 1..]
                    .iter()
                    .take_while(|line| line.starts_with(' '))
                    .map(|line| line.trim()),
            );
        }
    }
    if details.is_empty() {
        details.push(lines.last().unwrap_or(&"no output"));
    }
    Diagnosis {
        code: code.unwrap_or(FailureCode::InstallFailed),
        message: Line::sanitize(&format!("apk: {}", details.join(" "))),
    }
}
