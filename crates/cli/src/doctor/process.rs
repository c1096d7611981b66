//! Finds the process of the running service, and the flags that it was started with.
//!
//! The flags may be in a unit file, a drop-in, a container or a script. The command line of the
//! process is the same in all of these cases, and it is what the service really runs with.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;

use super::Findings;
use crate::serve::Server;
use crate::{Command, Fleetmend};

/// The process of the service.
pub(super) enum ServiceProcess {
    /// It was started with these flags.
    Found { id: u32, flags: Box<Server> },
    /// Its flags are not those of this release.
    Unreadable { id: u32, reason: String },
    /// None is visible to this user: the service is not running, runs elsewhere, or is hidden.
    NotFound,
}

impl ServiceProcess {
    /// The service that runs on this data directory.
    pub(super) fn find(data_dir: &Path) -> ServiceProcess {
        let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut unreadable = ServiceProcess::NotFound;
        for id in ids {
            let Ok(line) = fs::read(format!("/proc/{id}/cmdline")) else { continue };
            let Some(words) = service_words(&line) else { continue };
            match parse_flags(&words) {
                Ok(flags) if is_same(&in_process(id, &flags.data_dir), data_dir) => {
                    return ServiceProcess::Found { id, flags: Box::new(flags) };
                }
                Ok(_) => {}
                Err(reason) if words.iter().any(|word| names(word, data_dir)) => {
                    unreadable = ServiceProcess::Unreadable { id, reason };
                }
                Err(_) => {}
            }
        }
        unreadable
    }

    /// Reports flags that are not known. `serving` is whether something accepts connections at the
    /// address of the service.
    pub(super) fn check(&self, serving: bool, findings: &mut Findings) {
        let detail = match self {
            ServiceProcess::Unreadable { id, reason } => {
                format!("cannot read the flags of the running service (process {id}): {reason}")
            }
            ServiceProcess::NotFound if serving => {
                "cannot read the flags of the running service: no process of a service with this \
                 data directory is visible to this user"
                    .to_owned()
            }
            ServiceProcess::NotFound | ServiceProcess::Found { .. } => return,
        };
        let remedy = "pass the flags that the service was started with to `fleetmend doctor` too, or \
                      run it as root on the machine of the service; otherwise settings above may be \
                      wrong";
        findings.note("settings", detail, remedy);
    }
}

/// The words of a command line, if it is that of a service.
fn service_words(line: &[u8]) -> Option<Vec<String>> {
    let text = String::from_utf8(line.to_vec()).ok()?;
    let words: Vec<String> = text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    let program = Path::new(words.first()?).file_name()?;
    (program == "fleetmend" && words.get(1)? == "server").then_some(words)
}

fn parse_flags(words: &[String]) -> Result<Server, String> {
    match Fleetmend::try_parse_from(words) {
        Ok(Fleetmend { command: Command::Server(flags) }) => Ok(flags),
        Ok(_) => Err("it is not a service".to_owned()),
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
    }
}

/// Whether a word of a command line names the data directory.
fn names(word: &str, data_dir: &Path) -> bool {
    Path::new(word.strip_prefix("--data-dir=").unwrap_or(word)) == data_dir
}

/// A path as the process sees it.
fn in_process(id: u32, path: &Path) -> PathBuf {
    let working_dir = fs::read_link(format!("/proc/{id}/cwd")).unwrap_or_default();
    working_dir.join(path)
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_command_line_of_a_service_is_read() {
        let words = service_words(b"/usr/bin/fleetmend\0server\0--data-dir\0/d\0").unwrap();
        assert_eq!(words, ["/usr/bin/fleetmend", "server", "--data-dir", "/d"]);
        assert_eq!(parse_flags(&words).unwrap().data_dir, Path::new("/d"));
        for other in [
            &b"fleetmend\0doctor\0--data-dir\0/d\0"[..],
            b"/bin/sh\0server\0",
            b"fleetmend\0",
            b"",
            b"fleetmend\0server\0\xff",
        ] {
            assert_eq!(service_words(other), None, "{other:?}");
        }
    }

    #[test]
    fn unknown_flags_are_reported_by_name() {
        let words = ["fleetmend", "server", "--data-dir", "/d", "--later"].map(str::to_owned);
        let Err(reason) = parse_flags(&words) else { panic!("the flag is unknown") };
        assert!(reason.contains("--later"), "{reason}");
        assert!(names(&words[3], Path::new("/d")) && names("--data-dir=/d", Path::new("/d")));
    }
}
