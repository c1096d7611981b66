//! The database that `fleetmend migrate --to` copies to. It appears when the copy is complete.
//!
//! PostgreSQL does this with a transaction. A SQLite file is written under another name, which is
//! locked meanwhile; a file that an interrupted copy left behind is written again.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use rustix::fs::{FlockOperation, flock};
use service::secrets::Secrets;
use store::{Db, Durability};

use crate::backup::archive::{sync_parent, with_suffix};
use crate::installation::{ensure_parent_dir, long_running_options, refuse_link, sqlite_path};

pub(super) struct Target {
    pub(super) db: Db,
    file: Option<NewFile>,
}

impl Target {
    pub(super) async fn open(url: &str, secrets: &Secrets) -> anyhow::Result<Target> {
        let path = sqlite_path(url);
        ensure!(
            path.is_none_or(|path| !path.to_string_lossy().contains("://")),
            "--to must be postgres://… or sqlite: and the path of a new file"
        );
        let file = path.map(NewFile::create).transpose()?;
        let url = match &file {
            Some(file) => format!("sqlite:{}", file.unfinished.display()),
            None => url.to_owned(),
        };
        let mut options = long_running_options(&url, secrets);
        options.durability = Durability::Full;
        let db = Db::open_without_migrating(&options).await;
        Ok(Target { db: db.context("cannot open the target database")?, file })
    }

    /// Closes the database, and puts a file in place.
    pub(super) async fn finish(self) -> anyhow::Result<()> {
        self.db.close().await;
        self.file.map_or(Ok(()), NewFile::rename)
    }

    /// Closes the database, and deletes an unfinished file.
    pub(super) async fn discard(self) {
        self.db.close().await;
    }
}

/// A SQLite file that is not complete yet, deleted on drop.
struct NewFile {
    path: PathBuf,
    unfinished: PathBuf,
    _lock: fs::File,
}

impl NewFile {
    fn create(path: &Path) -> anyhow::Result<NewFile> {
        ensure_parent_dir(path)?;
        let unfinished = with_suffix(path, ".unfinished");
        for part in ["", "-wal", "-shm"] {
            refuse_link(&with_suffix(&unfinished, part))?;
        }
        let shown = unfinished.display();
        let mut options = fs::File::options();
        let lock = options.write(true).create(true).truncate(false).mode(0o600).open(&unfinished);
        let lock = lock.with_context(|| format!("cannot create {shown}"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("{shown} is locked: another copy to this file is running"))?;
        let file = NewFile { path: path.to_owned(), unfinished, _lock: lock };
        // Checked under the lock: another copy may just have finished.
        let exists = path.symlink_metadata().is_ok();
        ensure!(
            !exists,
            "{} already exists and was not changed: choose another path, or move the file away",
            path.display()
        );
        file.remove_logs();
        // What an interrupted copy left behind.
        file._lock
            .set_len(0)
            .with_context(|| format!("cannot write {}", file.unfinished.display()))?;
        Ok(file)
    }

    fn remove_logs(&self) {
        for part in ["-wal", "-shm"] {
            let _ = fs::remove_file(with_suffix(&self.unfinished, part));
        }
    }

    fn rename(self) -> anyhow::Result<()> {
        let wal = with_suffix(&self.unfinished, "-wal");
        ensure!(!wal.exists(), "the new database is still open");
        fs::rename(&self.unfinished, &self.path)
            .with_context(|| format!("cannot create {}", self.path.display()))?;
        Ok(sync_parent(&self.path)?)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.unfinished);
        self.remove_logs();
    }
}
