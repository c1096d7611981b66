//! Parses the output of pacman, and diagnoses its failures.

use vocab::{FailureCode, Line};

use crate::backend::{BackendError, Diagnosis, OfferedVersion};

/// A line of `-Qu`: `name old -> new`, and ` [ignored]` if the administrator ignores the package.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AvailableUpdate {
    pub(super) name: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) ignored: bool,
}

/// A line of `--print-format '%n\t%v\t%r\t%s'`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InstallTarget {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) repository: String,
    /// The remaining download size.
    pub(super) bytes: u64,
}

/// The information that `-Si` prints about a package.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PackageInfo {
    pub(super) name: String,
    pub(super) arch: String,
    pub(super) installed_bytes: i64,
    /// Names that it provides in addition to its own: `name`, `name=version`.
    pub(super) provides: Vec<String>,
    /// Names that it conflicts with: `name`, `name<2`.
    pub(super) conflicts: Vec<String>,
}

fn unexpected_line(what: &str, line: &str) -> BackendError {
    BackendError::Unreadable {
        what: format!("the output of {what}"),
        why: format!("unexpected line `{line}`"),
    }
}

/// Parses `-Qu`.
pub(super) fn parse_updates(text: &str) -> Result<Vec<AvailableUpdate>, BackendError> {
    let read = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, from, to, mark) = match words.as_slice() {
            [name, from, "->", to] => (name, from, to, None),
            [name, from, "->", to, mark] => (name, from, to, Some(*mark)),
            _ => return Err(unexpected_line("pacman -Qu", line)),
        };
        let ignored = mark == Some("[ignored]");
        Ok(AvailableUpdate {
            name: (*name).to_owned(),
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            ignored,
        })
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(read).collect()
}

/// Whether pacman printed an error, not only warnings.
pub(super) fn has_error(stderr: &str) -> bool {
    stderr.lines().any(|line| line.starts_with("error:"))
}

/// Parses the packages that would be installed.
pub(super) fn parse_targets(text: &str) -> Result<Vec<InstallTarget>, BackendError> {
    let read = |line: &str| {
        let [name, version, repository, bytes] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(unexpected_line("pacman --print", line));
        };
        Ok(InstallTarget {
            name: name.to_owned(),
            version: version.to_owned(),
            repository: repository.to_owned(),
            bytes: bytes.parse().map_err(|_| unexpected_line("pacman --print", line))?,
        })
    };
    // Packages that are up to date are mentioned without tabs.
    text.lines().filter(|line| line.contains('\t')).map(read).collect()
}

/// Parses `-Sl`: `core bash 5.2.37-1 [installed]`.
pub(super) fn parse_lists(text: &str) -> Vec<OfferedVersion> {
    let mut offered = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        if let [_, name, version] = words[..] {
            let (name, version) = (name.to_owned(), version.to_owned());
            offered.push(OfferedVersion { name, arch: String::new(), version });
        }
    }
    offered
}

/// Parses `-Si` and `-Qip`, one block per package.
pub(super) fn parse_info(text: &str) -> Vec<PackageInfo> {
    text.split("\n\n")
        .map(|block| {
            let value = |key: &str| {
                block.lines().find_map(|line| {
                    let (name, value) = line.split_once(" : ")?;
                    (name.trim_end() == key).then(|| value.trim().to_owned())
                })
            };
            let values = |key: &str| {
                let text = value(key).filter(|text| text != "None").unwrap_or_default();
                text.split_whitespace().map(str::to_owned).collect()
            };
            PackageInfo {
                provides: values("Provides"),
                conflicts: values("Conflicts With"),
                name: value("Name").unwrap_or_default(),
                arch: value("Architecture").unwrap_or_default(),
                installed_bytes: value("Installed Size").map_or(0, |text| parse_size(&text)),
            }
        })
        .filter(|about| !about.name.is_empty())
        .collect()
}

/// Converts `5.87 MiB` to bytes, rounded up.
fn parse_size(text: &str) -> i64 {
    let (number, unit) = text.split_once(' ').unwrap_or((text, "B"));
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = units.iter().position(|known| *known == unit).unwrap_or(0);
    let number: f64 = number.parse().unwrap_or(0.0);
    let factor = 1_u64 << (10 * power);
    // Package sizes are far below the range in which a float loses precision.
    (number * factor as f64).ceil() as i64
}

/// Phrases that identify a failure, in the order in which they are searched, most specific first.
const SIGNATURES: [(&str, FailureCode); 16] = [
    ("unable to lock database", FailureCode::PkgLockTimeout),
    ("not enough free disk space", FailureCode::DiskFull),
    ("No space left on device", FailureCode::DiskFull),
    ("could not satisfy dependencies", FailureCode::DependencyConflict),
    ("conflicting dependencies", FailureCode::DependencyConflict),
    ("unresolvable package conflicts", FailureCode::DependencyConflict),
    ("breaks dependency", FailureCode::DependencyConflict),
    ("target not found", FailureCode::RepoUnreachable),
    ("failed retrieving file", FailureCode::RepoUnreachable),
    ("failed to synchronize", FailureCode::RepoUnreachable),
    ("failed to update", FailureCode::RepoUnreachable),
    ("download library error", FailureCode::RepoUnreachable),
    // The mirror's files do not match its index, or are not signed by a key that the host trusts.
    ("invalid or corrupted package", FailureCode::RepoUnreachable),
    ("invalid or corrupted database", FailureCode::RepoUnreachable),
    ("could not find or read package", FailureCode::RepoUnreachable),
    ("failed to initialize alpm library", FailureCode::PackageDbBroken),
];

/// Phrases of lines that explain an error. pacman prints them to the other stream, so they may come
/// before or after it.
const EXPLANATIONS: [&str; 4] =
    [" breaks dependency ", " requires ", " are in conflict", " exists in filesystem"];

/// Diagnoses a failure by these phrases, with pacman's own words as the message.
pub(super) fn diagnose(output: &str) -> Diagnosis {
    let code = SIGNATURES.iter().find(|(sign, _)| output.contains(sign)).map(|(_, code)| *code);
    let lines = || output.lines().map(str::trim).filter(|line| !line.is_empty());
    let errors = lines().filter_map(|line| line.strip_prefix("error: "));
    let about = lines().filter(|line| EXPLANATIONS.iter().any(|sign| line.contains(sign)));
    let about = about.map(|line| line.trim_start_matches("error: ").trim_start_matches(":: "));
    let mut details: Vec<&str> = Vec::new();
    for line in errors.chain(about) {
        if !details.contains(&line) {
            details.push(line);
        }
    }
    if details.is_empty() {
        details.push(lines().next_back().unwrap_or("no output"));
    }
    Diagnosis {
        code: code.unwrap_or(FailureCode::InstallFailed),
        message: Line::sanitize(&format!("pacman: {}", details.join("; "))),
    }
}
