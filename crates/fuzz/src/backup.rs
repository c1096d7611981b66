//! Fuzzes the unpacking of backups, as `fleetmend restore` does it.

const DATABASE: &str = "database";
const SECRETS: [&str; 2] = ["root.key", "orders.key"];
const SECRET_NEXT: &str = "orders.next.key";
const SECRET_OLD: &str = "root.old.key";
const SETTINGS: &str = "fleetmend.toml";
const TLS: [&str; 2] = ["tls/cert.pem", "tls/key.pem"];

// The command line is a program, not a library. This module of it has no other dependencies on it.
#[path = "../../cli/src/backup/archive.rs"]
#[allow(dead_code, reason = "only reading is fuzzed")]
mod archive;

/// Unpacks an input, and checks that only files and directories were created.
pub(crate) fn run(input: &[u8]) {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let id = format!("{:?}-{}", std::thread::current().id(), std::process::id());
    let folder = folder.join(format!("fleetmend-fuzz-backup-{id}"));
    let _ = std::fs::remove_dir_all(&folder);
    let spool = archive::TempDir::new(folder).expect("create a temporary directory");
    let _ = archive::unpack_tar(input, input.len() as u64, &spool.0);
    let _ = archive::unpack_stream(input, input.len() as u64, &spool.0);
    let mut folders = vec![spool.0.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("read the directory") {
            let path = entry.expect("read the directory entry").path();
            let about = path.symlink_metadata().expect("read the metadata");
            assert!(about.is_dir() || about.is_file(), "{}", path.display());
            folders.extend(about.is_dir().then_some(path));
        }
    }
}
