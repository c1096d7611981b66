//! A private PostgreSQL on a Unix socket in its own directory, removed after use.
//!
//! It never listens on the network and never touches an existing cluster. It exits together with
//! this program, however that ends: normally, by a signal, or by SIGKILL, in which case the kernel
//! signals it that its parent has died. `steps`, `bench` and `cargo xtask postgres` use it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::unistd::{User, geteuid};

use crate::process::{self, Process, Processes, TaskError, WaitResult};
use crate::requirements;
use crate::screen::Screen;
use crate::workspace::directory_entries;

/// The environment variable with the URL for tests and benchmarks.
pub(crate) const URL_VARIABLE: &str = "FLEETMEND_TEST_POSTGRES";

/// Part of the socket's name; PostgreSQL does not listen on this port.
pub(crate) const PORT: u16 = 5432;

/// The superuser role, and the database of the same name.
pub(crate) const SUPERUSER: &str = "postgres";

const PREFIX: &str = "fleetmend-pg-";
/// Maximum path length of a Unix socket address.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Locked by the process that uses the directory.
const LOCK: &str = "lock";
const LOG: &str = "log";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// For tests: losing data in a crash is acceptable.
    Off,
    /// For benchmarks: the results must be valid for a production server.
    On,
}

/// Whether to keep the directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Yes,
    No,
}

/// A running PostgreSQL that accepts connections.
#[must_use = "the caller must call stop()"]
pub(crate) struct Postgres {
    instance_dir: InstanceDir,
    process: Process,
}

impl Postgres {
    /// Starts PostgreSQL and returns when it accepts connections.
    pub(crate) fn start(
        durability: Durability,
        processes: &mut Processes,
    ) -> Result<Postgres, TaskError> {
        let owner = Owner::select()?;
        let base = base_directory(&owner)?;
        remove_abandoned(&base, &owner);
        let instance_dir = InstanceDir::create(&base, &owner)?;
        match launch(&instance_dir, &owner, durability, processes) {
            Ok(process) => Ok(Postgres { instance_dir, process }),
            Err(halt) => {
                let _ = instance_dir.remove();
                Err(halt)
            }
        }
    }

    /// Stops PostgreSQL and removes its directory, or keeps it for inspection.
    pub(crate) fn stop(self, keep: Keep, processes: &mut Processes, screen: &mut Screen) {
        processes.stop(self.process, process::POSTGRES_SHUTDOWN);
        match keep {
            Keep::Yes => {
                screen.line(&format!(
                    "PostgreSQL's directory is {}",
                    self.instance_dir.keep().display()
                ));
            }
            Keep::No => {
                let name = self.directory().display().to_string();
                if let Err(error) = self.instance_dir.remove() {
                    screen.line(&format!("cannot remove {name}: {error}"));
                }
            }
        }
    }

    /// The URL, in the form that both sqlx and libpq accept.
    pub(crate) fn url(&self) -> String {
        let host = percent_encoded(&self.directory().to_string_lossy());
        format!("postgres://{SUPERUSER}@{host}:{PORT}/{SUPERUSER}")
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.instance_dir.directory
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Sets the environment of a child so that it finds this PostgreSQL.
    pub(crate) fn export(&self, child: &mut Command) {
        // Drivers take settings that the URL does not contain from PGOPTIONS, PGSSLMODE and similar
        // variables, and the caller's values refer to another server.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                child.env_remove(name);
            }
        }
        child.env(URL_VARIABLE, self.url());
    }

    /// An error message if PostgreSQL has exited unexpectedly.
    pub(crate) fn unexpected_exit(&self, processes: &mut Processes) -> Option<String> {
        let status = processes.exit_status(self.process)?;
        Some(format!("PostgreSQL exited unexpectedly ({status}){}", self.instance_dir.log_tail()))
    }
}

/// The user that PostgreSQL runs as. It refuses to run as root.
enum Owner {
    CurrentUser,
    OtherUser { name: String, uid: u32, gid: u32 },
}

impl Owner {
    fn select() -> Result<Owner, TaskError> {
        if !geteuid().is_root() {
            return Ok(Owner::CurrentUser);
        }
        let user = ["postgres", "nobody"]
            .into_iter()
            .filter_map(|name| User::from_name(name).ok().flatten())
            .find(|user| !user.uid.is_root());
        let Some(user) = user else {
            return Err(TaskError::Failed(
                "PostgreSQL refuses to run as root, and neither user `postgres` nor `nobody` exists"
                    .to_owned(),
            ));
        };
        Ok(Owner::OtherUser { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }

    /// A PostgreSQL program that runs as this user and exits when we do.
    ///
    /// `setpriv` makes the settings that would otherwise need unsafe code between fork and exec.
    /// The death signal is tied to the thread that started the child, so that must be the main
    /// thread.
    fn command(&self, program: &Path, directory: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if let Owner::OtherUser { uid, gid, .. } = self {
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
            command.arg("--clear-groups");
        }
        command.arg("--").arg(program).current_dir(directory).env("LC_ALL", "C");
        command
    }
}

/// The directory of one PostgreSQL instance.
struct InstanceDir {
    directory: PathBuf,
    _lock: File,
}

impl InstanceDir {
    fn create(base: &Path, owner: &Owner) -> Result<InstanceDir, TaskError> {
        let directory = create_directory(base)?;
        let failed = |error: io::Error| {
            TaskError::Failed(format!("cannot prepare {}: {error}", directory.display()))
        };
        // Locked before it is renamed, so that no process ever sees an unlocked lock file.
        let unnamed = directory.join("lock.new");
        let lock = File::create_new(&unnamed).map_err(failed)?;
        lock.try_lock().map_err(|error| failed(error.into()))?;
        std::fs::rename(&unnamed, directory.join(LOCK)).map_err(failed)?;
        if let Owner::OtherUser { uid, gid, .. } = owner {
            std::os::unix::fs::chown(&directory, Some(*uid), Some(*gid)).map_err(failed)?;
        }
        Ok(InstanceDir { directory, _lock: lock })
    }

    fn remove(self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.directory)
    }

    /// A directory without a lock file is not treated as abandoned.
    fn keep(self) -> PathBuf {
        let _ = std::fs::remove_file(self.directory.join(LOCK));
        self.directory
    }

    fn log_tail(&self) -> String {
        let bytes = std::fs::read(self.directory.join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        format!("; last lines of its log:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}

fn create_directory(base: &Path) -> Result<PathBuf, TaskError> {
    let own = format!("{PREFIX}{}", std::process::id());
    let mut directory = base.join(&own);
    for attempt in 0..100 {
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            // Kept, or left behind, by an earlier process with the same id.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                directory = base.join(format!("{own}-{attempt}"));
            }
            Err(error) => {
                return Err(TaskError::Failed(format!(
                    "cannot create {}: {error}",
                    directory.display()
                )));
            }
        }
    }
    Err(TaskError::Failed(format!("too many directories named {own} in {}", base.display())))
}

/// Removes directories of runs that were killed with SIGKILL.
fn remove_abandoned(base: &Path, owner: &Owner) {
    let uid = match owner {
        Owner::CurrentUser => geteuid().as_raw(),
        Owner::OtherUser { uid, .. } => *uid,
    };
    for path in directory_entries(base) {
        let named = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        // Any user can create files in a temporary directory.
        let ours = std::fs::symlink_metadata(&path)
            .is_ok_and(|meta| named && meta.is_dir() && meta.uid() == uid);
        // A running process holds the lock, and the kernel releases it when the process dies.
        if ours && File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// A temporary directory that the owner can access and whose path is short enough for a socket.
fn base_directory(owner: &Owner) -> Result<PathBuf, TaskError> {
    let named = std::env::temp_dir();
    let usable = |base: &PathBuf| fits_socket_path(base) && is_accessible(base, owner);
    [named.clone(), PathBuf::from("/tmp")].into_iter().find(usable).ok_or_else(|| {
        TaskError::Failed(format!(
            "no directory for PostgreSQL's socket: its user can access neither {} nor /tmp by a \
             path that is short enough",
            named.display()
        ))
    })
}

fn fits_socket_path(base: &Path) -> bool {
    let longest = base.join(format!("{PREFIX}{}-99", u32::MAX)).join(format!(".s.PGSQL.{PORT}"));
    longest.as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

fn is_accessible(base: &Path, owner: &Owner) -> bool {
    let Owner::OtherUser { uid, .. } = owner else { return base.is_dir() };
    base.ancestors().filter(|path| !path.as_os_str().is_empty()).all(|path| {
        std::fs::metadata(path)
            .is_ok_and(|meta| meta.uid() == *uid || meta.permissions().mode() & 0o001 != 0)
    })
}

fn launch(
    instance_dir: &InstanceDir,
    owner: &Owner,
    durability: Durability,
    processes: &mut Processes,
) -> Result<Process, TaskError> {
    let programs = requirements::postgres_directory()
        .ok_or_else(|| TaskError::Failed("no PostgreSQL server found".to_owned()))?;
    let data = instance_dir.directory.join("data");
    initdb(&programs, &data, instance_dir, owner, processes)?;

    let log = File::create(instance_dir.directory.join(LOG))
        .and_then(|log| log.try_clone().map(|second| (log, second)))
        .map_err(|error| TaskError::Failed(format!("cannot write PostgreSQL's log: {error}")))?;
    let mut server = owner.command(&programs.join("postgres"), &instance_dir.directory);
    server
        .arg("-D")
        .arg(&data)
        .arg("-k")
        .arg(&instance_dir.directory)
        .arg("-p")
        .arg(PORT.to_string());
    for setting in settings(durability) {
        server.args(["-c", setting]);
    }
    let process = processes.start(server.stdin(Stdio::null()).stdout(log.0).stderr(log.1))?;
    match wait_until_ready(instance_dir, process, processes) {
        Ok(()) => Ok(process),
        Err(halt) => {
            processes.stop(process, process::POSTGRES_SHUTDOWN);
            Err(halt)
        }
    }
}

fn initdb(
    programs: &Path,
    data: &Path,
    instance_dir: &InstanceDir,
    owner: &Owner,
    processes: &mut Processes,
) -> Result<(), TaskError> {
    let mut initdb = owner.command(&programs.join("initdb"), &instance_dir.directory);
    initdb.arg("--pgdata").arg(data);
    initdb.args(["--username", SUPERUSER, "--auth", "trust", "--no-sync", "--no-instructions"]);
    initdb.args(["--encoding", "UTF8", "--locale", "C"]);
    let mut output = String::new();
    let status = processes.run_with_lines(&mut initdb, process::TERMINATE_GROUP, &mut |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    if status.success() {
        return Ok(());
    }
    let who = match owner {
        Owner::CurrentUser => String::new(),
        Owner::OtherUser { name, .. } => format!(" as {name}"),
    };
    Err(TaskError::Failed(format!("initdb{who} failed ({status}):\n{output}")))
}

fn settings(durability: Durability) -> &'static [&'static str] {
    match durability {
        Durability::Off => &[
            "listen_addresses=",
            "max_connections=200",
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
        ],
        Durability::On => &["listen_addresses=", "max_connections=200"],
    }
}

/// PostgreSQL writes `ready` to the last line of its pid file when it accepts connections.
fn wait_until_ready(
    instance_dir: &InstanceDir,
    process: Process,
    processes: &mut Processes,
) -> Result<(), TaskError> {
    const PAUSE: Duration = Duration::from_millis(50);
    const PAUSES_MAX: u32 = 1200;
    let pid_file = instance_dir.directory.join("data/postmaster.pid");
    for _ in 0..PAUSES_MAX {
        let answers = std::fs::read_to_string(&pid_file)
            .is_ok_and(|text| text.lines().nth(7).is_some_and(|state| state.trim() == "ready"));
        if answers {
            return Ok(());
        }
        match processes.wait(process, PAUSE) {
            WaitResult::TimedOut => {}
            WaitResult::Interrupted => return Err(TaskError::Interrupted),
            WaitResult::Ended => {
                return Err(TaskError::Failed(format!(
                    "PostgreSQL exited{}",
                    instance_dir.log_tail()
                )));
            }
        }
    }
    Err(TaskError::Failed(format!("PostgreSQL did not become ready{}", instance_dir.log_tail())))
}

/// Encodes everything except letters and digits, so that a path can be used as a host name.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_path_is_percent_encoded_as_host() {
        assert_eq!(percent_encoded("/tmp/fleetmend-pg-7"), "%2Ftmp%2Ffleetmend%2Dpg%2D7");
        assert_eq!(percent_encoded("/tmp/häfen"), "%2Ftmp%2Fh%C3%A4fen");
    }

    #[test]
    fn base_directory_with_too_long_socket_path_is_refused() {
        let spare =
            SOCKET_PATH_BYTES_MAX - format!("/{PREFIX}{}-99/.s.PGSQL.{PORT}", u32::MAX).len();
        assert!(fits_socket_path(Path::new(&"x".repeat(spare))));
        assert!(!fits_socket_path(Path::new(&"x".repeat(spare + 1))));
    }

    #[test]
    fn base_directory_must_be_accessible_to_the_owner() {
        let base = std::env::temp_dir().join(format!("xtask-reach-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&base).unwrap();
        let stranger = Owner::OtherUser { name: "stranger".into(), uid: u32::MAX - 1, gid: 1 };
        let closed = is_accessible(&base, &stranger);
        std::fs::remove_dir(&base).unwrap();
        assert!(!closed);
        assert!(is_accessible(Path::new("/"), &stranger));
    }
}
