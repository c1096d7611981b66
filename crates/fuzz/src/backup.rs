//! Backups as `fleetmend restore` unpacks them.

const DATABASE: &str = "database";
const SECRETS: [&str; 2] = ["root.key", "orders.key"];
const SECRET_NEXT: &str = "orders.next.key";
const SECRET_OLD: &str = "root.old.key";
const SETTINGS: &str = "fleetmend.toml";
const TLS: [&str; 2] = ["tls/cert.pem", "tls/key.pem"];

// The command line is a program and no library; this part of it needs nothing else of it.
#[path = "../../cli/src/backup/archive.rs"]
#[allow(dead_code, reason = "only reading is fuzzed")]
mod archive;

/// Unpacks an input, and looks at what is there afterwards.
pub(crate) fn run(input: &[u8]) {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let id = format!("{:?}-{}", std::thread::current().id(), std::process::id());
    let folder = folder.join(format!("fleetmend-fuzz-backup-{id}"));
    let _ = std::fs::remove_dir_all(&folder);
    let spool = archive::Spool::new(folder).expect("a directory can be made");
    let _ = archive::unpack_tar(input, input.len() as u64, &spool.0);
    let _ = archive::unpack_stream(input, input.len() as u64, &spool.0);
    let mut folders = vec![spool.0.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("it is there") {
            let path = entry.expect("it can be listed").path();
            let about = path.symlink_metadata().expect("it is there");
            assert!(about.is_dir() || about.is_file(), "{}", path.display());
            folders.extend(about.is_dir().then_some(path));
        }
    }
}
