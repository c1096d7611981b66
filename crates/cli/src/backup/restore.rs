//! `fleetmend restore`: restores an installation from a backup without repeating work done since.
//!
//! The archive is untrusted input: it is verified before anything is written, symbolic links in the
//! target are rejected, and root continues as the owner of the data directory.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use service::audit_anchor;
use service::clock::{Clock, random_u128};
use service::commands::restore::{RestoreSummary, prepare_for_service};
use service::secrets::Secrets;
use store::backup::{SQLITE_FILE, check_integrity, copy_in};
use store::{Db, leases};

use super::archive;
use super::archive::{Manifest, TempDir};
use super::{DATABASE, SECRET_NEXT, SECRET_OLD, SECRETS, SETTINGS, TLS, copy_private};
use crate::installation;
use crate::installation::{
    become_owner, create_private_dir, long_running_options, refuse_link, sqlite_path,
    use_recorded_key,
};
use crate::operator::table::pluralize;
use crate::settings;
use crate::settings::SettingsFile;

/// Restore a backup: the database, the keys, the settings and the certificate.
///
/// The backup is verified before anything is changed. Work done after the backup was taken is not
/// repeated: batches that were unfinished then are canceled, schedules continue from now, and
/// agents that are ahead of the restored database keep their state. Servers that joined after the
/// backup must be enrolled again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend restore --check acme.backup
  fleetmend restore --data-dir /var/lib/fleetmend acme.backup
  fleetmend restore --data-dir /var/lib/fleetmend --replace acme.backup
  fleetmend restore --data-dir D --database postgres://fleetmend@db/fleetmend acme.backup

Stop the service on all replicas before the restore, and start it afterwards.")]
pub(crate) struct Restore {
    /// Backup file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Data directory to restore to; created if it does not exist
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR", required_unless_present = "check")]
    data_dir: Option<PathBuf>,
    /// Database to restore to [default: the one in the settings, or fleetmend.db in the data
    /// directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Replace an existing installation; replaced files are kept under another name
    #[arg(long)]
    replace: bool,
    /// Only verify the backup, and restore nothing
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Restore {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match (&self.data_dir, self.check) {
            (Some(data), false) => self.restore(data).await,
            _ => self.check().await,
        }
    }

    async fn check(&self) -> anyhow::Result<()> {
        let place = std::env::temp_dir().join(format!("fleetmend-check-{:032x}", random_u128()));
        let spool = TempDir::new(place)?;
        let manifest = archive::unpack(&self.file, &spool.0)?;
        let secrets = Secrets::load(&spool.0)?;
        if manifest.engine == "sqlite" {
            let path = spool.0.join(DATABASE).join(SQLITE_FILE);
            refuse_damage(&path, &secrets).await?;
        }
        let Manifest { fleetmend, taken_at, engine, schema_version, parts, .. } = &manifest;
        if self.json {
            return crate::print_line(&serde_json::to_string(&manifest)?);
        }
        let parts = parts.len();
        crate::print_line(&format!(
            "{} is intact: {parts} parts, taken at {taken_at:.0} by fleetmend {fleetmend} from {engine}, schema {schema_version}.",
            self.file.display()
        ))
    }

    async fn restore(&self, data: &Path) -> anyhow::Result<()> {
        create_private_dir(data)?;
        let file = fs::File::open(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        become_owner(data)?;
        // In the data directory, so that the finished files can be moved into place by renaming.
        let spool = TempDir::new(data.join(format!(".restoring-{:08x}", random_u128() as u32)))?;
        let manifest = archive::unpack_open(file, &spool.0).with_context(|| {
            let shown = self.file.display();
            format!("{shown} is not a complete fleetmend backup; nothing was changed")
        })?;
        let secrets = Secrets::load(&spool.0)?;
        let url = self.url(&manifest, &spool.0, data)?;
        refuse_links(data, &url)?;
        self.refuse_other_keys(data, &spool.0)?;
        let now = Clock::system().now();
        let settled = match sqlite_path(&url) {
            Some(path) => {
                self.refuse_database_in_use(&url, path.exists(), now).await?;
                let new = spool.0.join(DATABASE).join(SQLITE_FILE);
                let settled = prepare_database(&new, &spool.0, &secrets, &manifest, now).await?;
                self.install_files(&manifest, &spool.0, data)?;
                replace_sqlite(&new, path, now)?;
                settled
            }
            None => {
                self.refuse_database_in_use(&url, true, now).await?;
                let db = installation::open_as_is(&url, &secrets).await?;
                let copied = copy_in(&db, &spool.0.join(DATABASE), manifest.schema_version).await;
                let mut tx = copied.context("cannot write to the database; it was not changed")?;
                use_recorded_key(&mut tx, &spool.0).await?;
                let settled = prepare_for_service(&mut tx, manifest.taken_at, now).await?;
                self.install_files(&manifest, &spool.0, data)?;
                tx.commit().await.context("cannot write to the database; it was not changed")?;
                db.close().await;
                settled
            }
        };
        self.print_result(&manifest, settled, data)
    }

    /// The address of the target database, which must have the same engine as the backup.
    fn url(&self, manifest: &Manifest, spool: &Path, data: &Path) -> anyhow::Result<String> {
        let here = SettingsFile::load(None, data)?.database;
        let there = SettingsFile::load(None, spool)?.database;
        if let (None, None, Some(url)) = (&self.database, &here, &there) {
            refuse_outside(url, data)?;
        }
        let named = self.database.clone().or(here).or(there);
        let url = match (named, manifest.engine.as_str()) {
            (Some(url), _) => url,
            (None, "sqlite") => settings::default_database_url(data),
            (None, _) => bail!(
                "this is a backup of a PostgreSQL database: set an empty one with --database postgres://…"
            ),
        };
        let engine = if sqlite_path(&url).is_some() { "sqlite" } else { "postgres" };
        ensure!(
            engine == manifest.engine,
            "this is a backup of a {} database, but the target database is {engine}: set a matching one with --database",
            manifest.engine
        );
        Ok(url)
    }

    fn refuse_other_keys(&self, data: &Path, spool: &Path) -> anyhow::Result<()> {
        for secret in SECRETS {
            let there = data.join(secret);
            let same = there.exists() && read(&there)? == read(&spool.join(secret))?;
            ensure!(
                same || !there.exists() || self.replace,
                "{} holds the keys of another installation and was not changed; use --replace to replace it with the backup",
                data.display()
            );
        }
        Ok(())
    }

    /// Rejects a database that is in use, or that has content without `--replace`.
    async fn refuse_database_in_use(
        &self,
        url: &str,
        exists: bool,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        if !exists {
            return Ok(());
        }
        // The seal does not matter here: nothing is written.
        let look = async {
            let db = Db::open_without_migrating(&store::Options::new(
                url,
                store::audit::Seal::new(|_, _, _| Vec::new()),
            ))
            .await?;
            let found = async {
                if db.schema_version().await? == 0 {
                    return Ok(None);
                }
                Ok(Some(leases::get(&mut *db.read().await?, "engine").await?))
            };
            let found = found.await;
            db.close().await;
            found
        };
        let found: store::Result<_> = look.await;
        match found {
            Ok(None) => return Ok(()),
            Ok(Some(Some(lease))) if lease.until > now => bail!(
                "a service is using this database, or was a few seconds ago: stop it on all replicas and try again"
            ),
            Ok(Some(_)) => {}
            // An unreadable database is often the reason for a restore. An unreachable one cannot
            // be restored to.
            Err(_) if sqlite_path(url).is_some() => {}
            Err(error) => return Err(error).context("cannot open the database"),
        }
        ensure!(
            self.replace,
            "the database already exists and was not changed; use --replace to replace it with the backup"
        );
        Ok(())
    }

    /// Puts keys, settings and the certificate in place. Replaced files are kept next to them.
    fn install_files(&self, manifest: &Manifest, spool: &Path, data: &Path) -> anyhow::Result<()> {
        audit_anchor::reset(data)?;
        let listed = |name: &&str| manifest.has(name);
        let settings =
            [SETTINGS].into_iter().filter(listed).filter(|name| !data.join(name).exists());
        // A new key that is not in the backup stays if it belongs to the same `orders.key`: agents
        // may already trust it.
        let next = data.join(SECRET_NEXT);
        let same = |name: &str| read(&data.join(name)).ok() == read(&spool.join(name)).ok();
        if !manifest.has(SECRET_NEXT) && next.exists() && !same(SECRETS[1]) {
            let renamed = archive::with_suffix(&next, &previous_suffix(Clock::system().now()));
            fs::rename(&next, &renamed)
                .with_context(|| format!("cannot move {}", next.display()))?;
        }
        // An old key that is not in the backup belongs to another rotation.
        let old = data.join(SECRET_OLD);
        if !manifest.has(SECRET_OLD) && old.exists() {
            let renamed = archive::with_suffix(&old, &previous_suffix(Clock::system().now()));
            fs::rename(&old, &renamed).with_context(|| format!("cannot move {}", old.display()))?;
        }
        let next = [SECRET_NEXT, SECRET_OLD].into_iter().filter(listed);
        let names = next.chain(SECRETS).chain(settings).chain(TLS.into_iter().filter(listed));
        for name in names {
            let to = data.join(name);
            if let Some(parent) = to.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            }
            install_file(&spool.join(name), &to)?;
        }
        Ok(())
    }

    fn print_result(
        &self,
        manifest: &Manifest,
        summary: RestoreSummary,
        data: &Path,
    ) -> anyhow::Result<()> {
        let RestoreSummary { epoch, batches, schedules } = summary;
        let taken_at = manifest.taken_at;
        if self.json {
            let detail = json!({"taken_at": taken_at, "epoch": epoch, "batches_canceled": batches,
                "schedules_passed_over": schedules, "engine": manifest.engine});
            return crate::print_line(&detail.to_string());
        }
        let shown = data.display();
        let mut text = format!(
            "Restored {shown} as of {taken_at:.0} (epoch {epoch}). Work done since is not repeated.\n\
             Canceled: {}. Continuing from now, without the runs missed since: {}.\n",
            pluralize(batches, "unfinished batch", "unfinished batches"),
            pluralize(schedules, "schedule", "schedules"),
        );
        for (was, name) in manifest.tls.iter().flatten().zip(TLS) {
            let now = data.join(name);
            if now != *was {
                text += &format!(
                    "{} was at {} before: update its path in the settings.\n",
                    now.display(),
                    was.display()
                );
            }
        }
        text += &installation::start_hint(data, self.database.as_deref());
        crate::print_line(&text)
    }
}

/// Rejects a database file that only the settings in the backup name, unless it is below the data
/// directory.
fn refuse_outside(url: &str, data: &Path) -> anyhow::Result<()> {
    let Some(path) = sqlite_path(url) else { return Ok(()) };
    let below = path.strip_prefix(data).is_ok_and(|rest| {
        rest.components().all(|part| matches!(part, Component::Normal(_)))
            && rest.components().next().is_some()
    });
    ensure!(
        below,
        "the settings in the backup put the database at {}, outside {}: set it with --database if that is intended",
        path.display(),
        data.display()
    );
    let mut parents = path.ancestors().skip(1).take_while(|parent| *parent != data);
    parents.try_for_each(refuse_link)
}

/// Rejects symbolic links at every path that the restore would write to, before it writes to any.
fn refuse_links(data: &Path, url: &str) -> anyhow::Result<()> {
    for name in SECRETS.into_iter().chain([SECRET_NEXT, SECRET_OLD, SETTINGS]).chain(TLS) {
        let path = data.join(name);
        path.parent().filter(|parent| *parent != data).map_or(Ok(()), refuse_link)?;
        refuse_link(&path)?;
    }
    let Some(path) = sqlite_path(url) else { return Ok(()) };
    ["", "-wal", "-shm"].iter().try_for_each(|part| refuse_link(&archive::with_suffix(path, part)))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

async fn refuse_damage(path: &Path, secrets: &Secrets) -> anyhow::Result<()> {
    let db = installation::open_as_is(&format!("sqlite:{}", path.display()), secrets).await?;
    let damage = check_integrity(&db).await;
    db.close().await;
    let damage = damage.context("the database in the backup cannot be read")?;
    ensure!(damage.is_empty(), "the database in the backup is damaged: {}", damage.join("; "));
    Ok(())
}

/// Migrates the backup's database file and settles its open work, before it is moved into place.
async fn prepare_database(
    path: &Path,
    spool: &Path,
    secrets: &Secrets,
    manifest: &Manifest,
    now: Timestamp,
) -> anyhow::Result<RestoreSummary> {
    refuse_damage(path, secrets).await?;
    let mut options = long_running_options(&format!("sqlite:{}", path.display()), secrets);
    options.durability = store::Durability::Full;
    let db = Db::open(&options).await.context("cannot use the database in the backup")?;
    let settled = async {
        let mut tx = db.begin().await?;
        use_recorded_key(&mut tx, spool).await?;
        let settled = prepare_for_service(&mut tx, manifest.taken_at, now).await?;
        tx.commit().await?;
        Ok::<_, anyhow::Error>(settled)
    };
    let settled = settled.await;
    db.close().await;
    settled.context("cannot use the database in the backup")
}

/// Moves a database into place. The previous one is kept next to it, with its write-ahead log.
fn replace_sqlite(new: &Path, path: &Path, now: Timestamp) -> anyhow::Result<()> {
    let before = archive::with_suffix(path, &previous_suffix(now));
    for log in ["-wal", "-shm"] {
        ensure!(!archive::with_suffix(new, log).exists(), "the restored database is still open");
    }
    for part in ["-shm", "-wal", ""] {
        let (from, to) = (archive::with_suffix(path, part), archive::with_suffix(&before, part));
        if from.exists() {
            ensure!(!to.exists(), "{} already exists: wait a second and try again", to.display());
            fs::rename(&from, &to).with_context(|| format!("cannot move {}", from.display()))?;
        }
    }
    fs::rename(new, path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(archive::sync_parent(path)?)
}

fn previous_suffix(now: Timestamp) -> String {
    format!(".before-{}", now.strftime("%Y%m%dT%H%M%SZ"))
}

/// Moves a file into place. A different file that was there is kept under another name.
fn install_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    refuse_link(to)?;
    if to.exists() {
        ensure!(to.is_file(), "{} is not a regular file", to.display());
        if read(to)? == read(from)? {
            return Ok(());
        }
        let renamed = archive::with_suffix(to, &previous_suffix(Clock::system().now()));
        fs::rename(to, &renamed).with_context(|| format!("cannot move {}", to.display()))?;
    }
    copy_private(from, to)?;
    Ok(archive::sync_parent(to)?)
}
