//! Atomic and durable file operations: after a crash, a file has its old content or its new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes a file so that a reader finds the old content or the new, even after a power failure.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    clear_directory(temporary)?;
    let mut file = File::create(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    sync_directory_of(path)
}

/// Moves the file or directory at `path` to `NAME.damaged`, for a person to inspect. Replaces an
/// earlier `NAME.damaged`. Does nothing if `path` does not exist.
pub(crate) fn move_aside(path: &Path) -> io::Result<()> {
    let mut renamed = path.as_os_str().to_owned();
    renamed.push(".damaged");
    let renamed = Path::new(&renamed);
    match fs::symlink_metadata(renamed) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(renamed)?,
        Ok(_) => fs::remove_file(renamed)?,
        Err(_) => {}
    }
    match fs::rename(path, renamed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_directory_of(path),
    }
}

/// Moves a directory aside that is in the way of a file.
fn clear_directory(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => move_aside(path),
        _ => Ok(()),
    }
}

/// Creates one of the agent's directories. Anything else with this name is renamed.
pub(crate) fn ensure_directory(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => move_aside(path)?,
        Err(_) => {}
    }
    create_directory(path)
}

/// Reserves disk space for a file that must be written even if the disk is full later: see
/// [`write_into_reserved`].
pub(crate) fn reserve_space(path: &Path, bytes: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&vec![b' '; bytes])?;
    file.sync_all()
}

/// Writes a file like [`write`], but into the space that [`reserve_space`] has reserved: overwrites
/// the file `reserved` and renames it to `path`.
pub(crate) fn write_into_reserved(reserved: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(reserved)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()?;
    fs::rename(reserved, path)?;
    sync_directory_of(path)
}

/// Whether the disk or a quota is full.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Like [`write`], for a value serialized as JSON.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write(path, &serde_json::to_vec(value)?)
}

/// Reads JSON; `None` if the file does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a directory that still exists after a power failure.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    sync_directory_of(path)
}

/// Flushes the directory entry of `path` to disk.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// The length of a file; 0 if it does not exist.
pub(crate) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// At most `max` bytes of a file from `offset`; empty if the file cannot be read.
pub(crate) fn read_range(path: &Path, offset: u64, max: u64) -> Vec<u8> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().unwrap_or_default()
}

/// At most the last `max` bytes of a file, as text.
pub(crate) fn tail(path: &Path, max: u64) -> String {
    let from = length(path).saturating_sub(max);
    String::from_utf8_lossy(&read_range(path, from, max)).into_owned()
}
