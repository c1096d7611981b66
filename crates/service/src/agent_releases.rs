//! The agents that this service carries, so that servers can install and upgrade theirs from it.
//!
//! A release is a program file in the directory of agents; its architecture and version are read
//! from the file itself. Files are read and hashed when the service starts, and again before they are
//! sent: a file that has changed since is not sent.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use wire::agent::is_older_version;

/// The largest program that is read. Agents have a few MiB.
const PROGRAM_BYTES_MAX: u64 = 128 << 20;
const SIGNATURE_BYTES_MAX: u64 = 1024;
/// The most files that are looked at.
const FILES_MAX: usize = 64;
/// How the agent's program announces its version; see `agent::version`.
const RELEASE_PREFIX: &[u8] = b"fleetmend-agent release ";
const RELEASE_SUFFIX: &str = " (end of release)";
const VERSION_CHARS_MAX: usize = 32;

/// The architectures that agents are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    pub const ALL: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];

    /// The name that `uname -m` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64 => "aarch64",
        }
    }

    /// Reads the architecture of a 64-bit little-endian ELF program.
    fn of_program(bytes: &[u8]) -> Option<Architecture> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        match bytes.get(18..20)? {
            [62, 0] => Some(Architecture::X86_64),
            [183, 0] => Some(Architecture::Aarch64),
            _ => None,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Architecture {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Architecture::ALL.into_iter().find(|known| known.as_str() == text).ok_or(())
    }
}

/// What is announced about a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRelease {
    pub architecture: Architecture,
    pub version: String,
    /// The SHA-256 digest of the program, in lowercase hexadecimal.
    pub sha256: String,
    pub size_bytes: u64,
    /// The publisher's signature, from the file `NAME.sig`. Agents accept no upgrade without it.
    pub signature: Option<String>,
}

/// The releases of this service. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct AgentReleases(Arc<Vec<Carried>>);

#[derive(Debug)]
struct Carried {
    release: AgentRelease,
    path: PathBuf,
    /// The program while it is being sent. All downloads share one copy.
    program: Mutex<Weak<Vec<u8>>>,
}

impl AgentReleases {
    /// Reads the programs in a directory. If it has several for an architecture, the newest version
    /// is used. Files that are not agents are ignored.
    pub fn load(dir: &Path) -> AgentReleases {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("fleetmend-agent") && path.is_file()
            })
            .take(FILES_MAX)
            .collect();
        paths.sort();
        let mut carried: Vec<Carried> = Vec::new();
        for path in paths {
            let Some(bytes) = read(&path) else { continue };
            let Some(mut release) = describe(&bytes) else { continue };
            release.signature = read_signature(&path);
            let new = Carried { release, path, program: Mutex::default() };
            let same =
                |known: &&mut Carried| known.release.architecture == new.release.architecture;
            match carried.iter_mut().find(same) {
                None => carried.push(new),
                Some(known) if is_older_version(&known.release.version, &new.release.version) => {
                    *known = new;
                }
                Some(_) => {}
            }
        }
        carried.sort_by_key(|known| known.release.architecture);
        AgentReleases(Arc::new(carried))
    }

    pub fn list(&self) -> impl Iterator<Item = &AgentRelease> {
        self.0.iter().map(|carried| &carried.release)
    }

    pub fn get(&self, architecture: Architecture) -> Option<&AgentRelease> {
        self.list().find(|release| release.architecture == architecture)
    }

    /// The program of a release; `None` if there is none, or if its file was changed after the
    /// service started. Reads a file, so it blocks.
    pub fn program(&self, architecture: Architecture) -> Option<Arc<Vec<u8>>> {
        let carried = self.0.iter().find(|carried| carried.release.architecture == architecture)?;
        let mut shared = carried.program.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = shared.upgrade() {
            return Some(program);
        }
        let bytes = read(&carried.path)?;
        if sha256(&bytes) != carried.release.sha256 {
            return None;
        }
        let program = Arc::new(bytes);
        *shared = Arc::downgrade(&program);
        Some(program)
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(PROGRAM_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= PROGRAM_BYTES_MAX).then_some(bytes)
}

fn describe(bytes: &[u8]) -> Option<AgentRelease> {
    Some(AgentRelease {
        architecture: Architecture::of_program(bytes)?,
        version: version(bytes)?,
        sha256: sha256(bytes),
        size_bytes: bytes.len() as u64,
        signature: None,
    })
}

/// The signature in the file next to a program.
fn read_signature(program: &Path) -> Option<String> {
    let mut path = program.as_os_str().to_owned();
    path.push(".sig");
    let mut text = String::new();
    File::open(Path::new(&path)).ok()?.take(SIGNATURE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Finds the version that an agent's program announces.
fn version(bytes: &[u8]) -> Option<String> {
    let mut rest = bytes;
    loop {
        let at = find(rest, RELEASE_PREFIX)?;
        rest = &rest[at + RELEASE_PREFIX.len()..];
        let text = &rest[..rest.len().min(VERSION_CHARS_MAX + RELEASE_SUFFIX.len())];
        let Some(end) = find(text, RELEASE_SUFFIX.as_bytes()) else { continue };
        let found = std::str::from_utf8(&text[..end]).unwrap_or_default();
        let valid = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
        if found.starts_with(|c: char| c.is_ascii_digit()) && found.chars().all(valid) {
            return Some(found.to_owned());
        }
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let first = *pattern.first()?;
    let mut from = 0;
    loop {
        from += bytes.get(from..)?.iter().position(|byte| *byte == first)?;
        if bytes[from..].starts_with(pattern) {
            return Some(from);
        }
        from += 1;
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(machine: u8, text: &str) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64, 0);
        bytes[18] = machine;
        // The prefix alone occurs in the code that looks for it.
        bytes.extend(b"fleetmend-agent release \0fleetmend-agent release x y");
        bytes.extend(text.as_bytes());
        bytes.push(0);
        bytes
    }

    fn release(version: &str) -> String {
        format!("fleetmend-agent release {version} (end of release)")
    }

    #[test]
    fn architecture_and_version_are_read_from_the_program() {
        let found = describe(&program(62, &release("1.2.3-rc.1"))).unwrap();
        assert_eq!((found.architecture, &*found.version), (Architecture::X86_64, "1.2.3-rc.1"));
        assert_eq!(found.sha256, sha256(&program(62, &release("1.2.3-rc.1"))));
        let other = describe(&program(183, &release("0.1.0"))).unwrap();
        assert_eq!(other.architecture, Architecture::Aarch64);
        assert_eq!(describe(&program(40, &release("0.1.0"))), None);
        for invalid in ["", "fleetmend-agent release 1.0", &release("'; rm"), &release("v1")] {
            assert_eq!(describe(&program(62, invalid)), None, "{invalid}");
        }
        assert_eq!(describe(b"#!/bin/sh\nfleetmend-agent release 1.0 (end of release)"), None);
        assert_eq!(describe(b""), None);
    }

    #[test]
    fn versions_are_ordered_by_number() {
        for (older, newer) in
            [("0.9.0", "0.10.0"), ("1.0.0-rc.1", "1.0.0"), ("0.1.0", "0.1.1"), ("", "0.1.0")]
        {
            assert!(
                is_older_version(older, newer) && !is_older_version(newer, older),
                "{older} {newer}"
            );
        }
        assert!(!is_older_version("0.1.0", "0.1.0"));
    }

    #[test]
    fn newest_program_of_each_architecture_is_carried_and_a_changed_one_is_not_sent() {
        let dir = std::env::temp_dir().join(format!("fleetmend-releases-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).unwrap();
        write("fleetmend-agent-a", &program(62, &release("0.10.0")));
        write("fleetmend-agent-b", &program(62, &release("0.9.0")));
        write("fleetmend-agent-c", &program(183, &release("0.9.0")));
        write("fleetmend-agent.txt", b"not a program");
        write("other", &program(62, &release("9.0.0")));
        let releases = AgentReleases::load(&dir);
        let known =
            releases.list().map(|known| format!("{} {}", known.architecture, known.version));
        assert_eq!(known.collect::<Vec<_>>(), ["x86_64 0.10.0", "aarch64 0.9.0"]);
        let first = releases.program(Architecture::X86_64).unwrap();
        let second = releases.program(Architecture::X86_64).unwrap();
        assert!(Arc::ptr_eq(&first, &second), "downloads share one copy");
        drop((first, second));
        write("fleetmend-agent-a", &program(62, &release("0.11.0")));
        assert_eq!(releases.program(Architecture::X86_64), None);
        assert!(AgentReleases::load(&dir.join("missing")).list().next().is_none());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
