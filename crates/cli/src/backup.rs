//! `fleetmend backup`: writes the whole installation to one file while the service runs.
//!
//! The file format is in `archive`, `fleetmend restore` in `restore`.

pub(crate) mod archive;
pub(crate) mod restore;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::clock::{Clock, random_u128};
use service::secrets::Secrets;
use store::backup::copy_out;

use crate::installation;
use crate::installation::Installation;
use crate::settings;
use crate::settings::SettingsFile;
use archive::{Manifest, TempDir};

/// File in the data directory that records the last backup, for `fleetmend doctor`.
pub(crate) const LAST_BACKUP_FILE: &str = "last-backup.json";
/// Directory of the database's parts in the archive.
const DATABASE: &str = "database";
const SECRETS: [&str; 2] = ["root.key", "orders.key"];
/// Exists only while `orders.key` is being rotated.
const SECRET_NEXT: &str = "orders.next.key";
/// Exists only while `root.key` is being rotated.
const SECRET_OLD: &str = "root.old.key";
const SETTINGS: &str = "fleetmend.toml";
const TLS: [&str; 2] = ["tls/cert.pem", "tls/key.pem"];

/// Write a backup to one file: a consistent snapshot of the database, the keys, the settings and
/// the certificate.
///
/// The service keeps running. The file appears only when it is complete, is readable only by its
/// owner, and is read back and verified before the command ends. Anyone who has it can impersonate
/// this installation: protect it like a private key.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend backup --data-dir /var/lib/fleetmend /srv/backups/
  fleetmend backup --data-dir D acme.backup
  fleetmend restore --check acme.backup
  tar --zstd -tf acme.backup")]
pub(crate) struct Backup {
    #[command(flatten)]
    installation: Installation,
    /// File to write, which must not exist, or a directory for a file named after the current time.
    /// A path that ends in `/` or has no extension is a directory, and is created if it does not
    /// exist
    #[arg(value_name = "FILE|DIR", default_value = ".")]
    to: PathBuf,
    /// Certificate to include, if the settings do not name one
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LastBackup {
    pub(crate) at: Timestamp,
    pub(crate) file: PathBuf,
}

impl Backup {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let now = Clock::system().now();
        if !self.names_directory() {
            return self.write(now, self.to.clone()).await;
        }
        let created = self.create_directory()?;
        let done = self.write(now, self.unused_name(now)).await;
        if done.is_err() && created {
            // Fails if the directory is not empty, which is intended.
            let _ = fs::remove_dir(&self.to);
        }
        done
    }

    /// Whether the target is a directory, existing or not. A name without an extension counts as
    /// one: a nightly backup to a directory that is missing must not write a file in its place,
    /// because the next backup would then fail.
    fn names_directory(&self) -> bool {
        let slash = self.to.as_os_str().as_encoded_bytes().ends_with(b"/");
        self.to.is_dir() || slash || self.to.extension().is_none()
    }

    /// Creates the target directory, readable only by its owner. Returns whether it was missing.
    fn create_directory(&self) -> anyhow::Result<bool> {
        let shown = self.to.display();
        if self.to.is_dir() {
            return Ok(false);
        }
        // Before anything is created: without an installation there is nothing to back up.
        settings::load_secrets(&self.installation.data_dir)?;
        // Without the trailing slash, with which an existing file would not be found.
        let path: PathBuf = self.to.components().collect();
        ensure!(
            !path.exists(),
            "{} exists but is not a directory: move it away first (it may be a backup), \
             or choose another directory",
            path.display()
        );
        installation::ensure_parent_dir(&path)?;
        let created = fs::DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("cannot create the directory {shown}"))?;
        Ok(true)
    }

    /// A file in the target directory that does not exist yet, named after the time.
    fn unused_name(&self, now: Timestamp) -> PathBuf {
        let stem = format!("fleetmend-{}", now.strftime("%Y%m%dT%H%M%SZ"));
        let mut file = self.to.join(format!("{stem}.backup"));
        let mut number = 2;
        while file.exists() {
            file = self.to.join(format!("{stem}-{number}.backup"));
            number += 1;
        }
        file
    }

    /// Writes the backup to `file` and verifies it.
    async fn write(&self, now: Timestamp, file: PathBuf) -> anyhow::Result<()> {
        let shown = file.display();
        ensure!(!file.exists(), "{shown} already exists and was not changed: choose another name");
        installation::ensure_parent_dir(&file)?;
        let spool =
            TempDir::new(archive::with_suffix(&file, &format!(".{:08x}", random_u128() as u32)))?;
        let manifest = self.collect_files(&spool.0, now).await?;
        let names = relative_paths(&spool.0)?;
        let manifest = archive::pack(&spool.0, &names, manifest, &file)?;
        drop(spool);
        // A backup that was not read back is not verified.
        let check =
            TempDir::new(archive::with_suffix(&file, &format!(".{:08x}", random_u128() as u32)))?;
        archive::unpack(&file, &check.0)?;
        drop(check);
        self.record_last_backup(now, &file);
        let bytes = fs::metadata(&file)?.len();
        if self.json {
            let made = json!({"file": file, "bytes": bytes, "taken_at": manifest.taken_at,
                "engine": manifest.engine, "schema_version": manifest.schema_version,
                "parts": manifest.parts});
            return crate::print_line(&made.to_string());
        }
        crate::print_line(&format!(
            "Wrote {}, as of {now:.0}: {} parts, {bytes} bytes, read back and verified.\n\
             Anyone who has it can impersonate this installation. Store it on another machine with restricted access.",
            file.display(),
            manifest.parts.len(),
        ))
    }

    /// Copies everything into one directory.
    async fn collect_files(&self, dir: &Path, now: Timestamp) -> anyhow::Result<Manifest> {
        let data = &self.installation.data_dir;
        let settings = SettingsFile::load(None, data)?;
        let secrets = settings::load_secrets(data)?;
        // Before `orders.key`: if the old key is retired in between, the backup has the new key
        // twice instead of not at all.
        if secrets.next_orders_key().is_some() {
            match copy_private(&data.join(SECRET_NEXT), &dir.join(SECRET_NEXT)) {
                Err(_) if !data.join(SECRET_NEXT).exists() => {}
                kept => kept?,
            }
        }
        for secret in SECRETS {
            copy_private(&data.join(secret), &dir.join(secret))?;
        }
        // After `root.key`, which becomes the old key when it is rotated.
        if data.join(SECRET_OLD).exists() {
            copy_private(&data.join(SECRET_OLD), &dir.join(SECRET_OLD))?;
        }
        if data.join(SETTINGS).exists() {
            copy_private(&data.join(SETTINGS), &dir.join(SETTINGS))?;
        }
        let cert = self.tls_cert.clone().or_else(|| settings.tls_cert.clone());
        let key = self.tls_key.clone().or_else(|| settings.tls_key.clone());
        let tls = cert.zip(key).map(|(cert, key)| [cert, key]);
        for (from, name) in tls.iter().flatten().zip(TLS) {
            copy_private(from, &dir.join(name))?;
        }
        let db = installation::open_as_is(&self.installation.url(&settings), &secrets).await?;
        let database = dir.join(DATABASE);
        fs::DirBuilder::new().mode(0o700).create(&database)?;
        let copied = copy_out(&db, &database).await;
        let engine = db.engine();
        db.close().await;
        let copied = copied.context("cannot copy the database")?;
        let (kept, now_there) = (Secrets::load(dir)?, Secrets::load(data)?);
        ensure!(
            kept.root_key_id() == now_there.root_key_id(),
            "root.key was rotated during the backup: try again"
        );
        if copied.schema_version == 0 {
            bail!("this database is empty: run `fleetmend init` for it first");
        }
        Ok(Manifest { tls, ..Manifest::new(engine, copied.schema_version, now) })
    }

    /// Records the backup for `fleetmend doctor`. Failing to record it does not fail the backup.
    fn record_last_backup(&self, now: Timestamp, file: &Path) {
        let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let noted = serde_json::to_vec(&LastBackup { at: now, file }).unwrap_or_default();
        let path = self.installation.data_dir.join(LAST_BACKUP_FILE);
        let new = archive::with_suffix(&path, &format!(".{:08x}", random_u128() as u32));
        // Not written in place: the owner of the directory may have put a symbolic link there, and
        // this process may be root.
        let written = fs::File::create_new(&new).and_then(|mut to| to.write_all(&noted));
        if written.and_then(|()| fs::rename(&new, &path)).is_err() {
            let _ = fs::remove_file(&new);
        }
    }
}

/// Copies a file; only its owner can read the copy.
fn copy_private(from: &Path, to: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot copy {}", from.display());
    if let Some(parent) = to.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).with_context(failed)?;
    }
    let mut source = fs::File::open(from).with_context(failed)?;
    let mut copy = fs::File::options().write(true).create_new(true).mode(0o600).open(to)?;
    std::io::copy(&mut source, &mut copy).with_context(failed)?;
    Ok(copy.sync_all()?)
}

/// The relative path of every file below `dir`.
fn relative_paths(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for found in fs::read_dir(dir.join(&folder))? {
            let found = found?;
            let name = folder.join(found.file_name());
            match found.file_type()?.is_dir() {
                true => folders.push(name),
                false => names.push(name.to_string_lossy().into_owned()),
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}
