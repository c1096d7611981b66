//! `fleetmend restore`: an installation as it was, and nothing that it did since done again.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use nix::unistd::{self, Gid, Uid};
use serde_json::json;
use service::auth::root_keys;
use service::clock::{Clock, dice};
use service::commands::restore::{Settled, settle};
use service::commands::setup;
use service::secrets::Secrets;
use service::{audit_anchor, integrity};
use store::backup::{SQLITE_FILE, copy_in, damage};
use store::{Db, Tx, leases};

use super::archive;
use super::archive::{Manifest, Spool};
use super::{DATABASE, SECRET_NEXT, SECRET_OLD, SECRETS, SETTINGS, TLS, keep};
use crate::installation;
use crate::installation::{make_dir, patient, sqlite_path};
use crate::operator::screen::count;
use crate::settings;
use crate::settings::File;

/// Bring a backup back: the database, the keys, the settings, the certificate.
///
/// The backup is checked before anything is touched. What the installation did after the backup was taken is not done again:
/// batches that were unfinished then are called off, schedules go on from now, and agents that know more than the
/// restored database are believed. Servers that joined after the backup have to be enrolled anew.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend restore --check acme.backup
  fleetmend restore --data-dir /var/lib/fleetmend acme.backup
  fleetmend restore --data-dir /var/lib/fleetmend --replace acme.backup
  fleetmend restore --data-dir D --database postgres://fleetmend@db/fleetmend acme.backup

Stop the service before, all replicas of it, and start it after.")]
pub(crate) struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to; made if it is not there
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR", required_unless_present = "check")]
    data_dir: Option<PathBuf>,
    /// The database to write into [default: what the settings say, or fleetmend.db in the data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Put it in the place of an installation that is there; what was a file is kept beside it
    #[arg(long)]
    replace: bool,
    /// Only look whether the backup is whole, and restore nothing
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
        let place = std::env::temp_dir().join(format!("fleetmend-check-{:032x}", dice()));
        let spool = Spool::new(place)?;
        let manifest = archive::unpack(&self.file, &spool.0)?;
        let secrets = Secrets::load(&spool.0)?;
        if manifest.engine == "sqlite" {
            let path = spool.0.join(DATABASE).join(SQLITE_FILE);
            refuse_damage(&path, &secrets).await?;
        }
        let Manifest { fleetmend, taken_at, engine, schema_version, parts, .. } = &manifest;
        if self.json {
            return crate::say(&serde_json::to_string(&manifest)?);
        }
        let parts = parts.len();
        crate::say(&format!(
            "{} is whole: {parts} parts, taken at {taken_at:.0} by fleetmend {fleetmend} from {engine}, schema {schema_version}.",
            self.file.display()
        ))
    }

    async fn restore(&self, data: &Path) -> anyhow::Result<()> {
        make_dir(data)?;
        let file = fs::File::open(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        become_owner(data)?;
        // Beside its place, so that what is ready is put there by renaming it.
        let spool = Spool::new(data.join(format!(".restoring-{:08x}", dice() as u32)))?;
        let manifest = archive::unpack_open(file, &spool.0).with_context(|| {
            let shown = self.file.display();
            format!("{shown} is not a whole backup of fleetmend; nothing was changed")
        })?;
        let secrets = Secrets::load(&spool.0)?;
        let url = self.url(&manifest, &spool.0, data)?;
        refuse_links(data, &url)?;
        self.refuse_other_keys(data, &spool.0)?;
        let now = Clock::system().now();
        let settled = match sqlite_path(&url) {
            Some(path) => {
                self.refuse_used(&url, path.exists(), now).await?;
                let new = spool.0.join(DATABASE).join(SQLITE_FILE);
                let settled = settled_file(&new, &spool.0, &secrets, &manifest, now).await?;
                self.place_files(&manifest, &spool.0, data)?;
                replace_sqlite(&new, path, now)?;
                settled
            }
            None => {
                self.refuse_used(&url, true, now).await?;
                let db = installation::open_as_is(&url, &secrets).await?;
                let copied = copy_in(&db, &spool.0.join(DATABASE), manifest.schema_version).await;
                let mut tx = copied.context("the database took nothing of it")?;
                use_recorded_key(&mut tx, &spool.0).await?;
                let settled = settle(&mut tx, manifest.taken_at, now).await?;
                self.place_files(&manifest, &spool.0, data)?;
                tx.commit().await.context("the database took nothing of it")?;
                db.close().await;
                settled
            }
        };
        self.tell(&manifest, settled, data)
    }

    /// Where the database goes, which must be of the kind that it came from.
    fn url(&self, manifest: &Manifest, spool: &Path, data: &Path) -> anyhow::Result<String> {
        let here = File::load(None, data)?.database;
        let there = File::load(None, spool)?.database;
        if let (None, None, Some(url)) = (&self.database, &here, &there) {
            refuse_outside(url, data)?;
        }
        let named = self.database.clone().or(here).or(there);
        let url = match (named, manifest.engine.as_str()) {
            (Some(url), _) => url,
            (None, "sqlite") => settings::database_in(data),
            (None, _) => bail!(
                "this backup is of a PostgreSQL database: name an empty one with --database postgres://…"
            ),
        };
        let engine = if sqlite_path(&url).is_some() { "sqlite" } else { "postgres" };
        ensure!(
            engine == manifest.engine,
            "this backup is of {}, and the database that is named is {engine}: name one of the same kind with --database",
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
                "{} holds the keys of another installation, and was left as it is; --replace puts the backup in its place",
                data.display()
            );
        }
        Ok(())
    }

    /// A database that is in use, or that holds something and was not given up.
    async fn refuse_used(&self, url: &str, exists: bool, now: Timestamp) -> anyhow::Result<()> {
        if !exists {
            return Ok(());
        }
        // Its own seal is of no use for looking: nothing is written.
        let look = async {
            let db = Db::open_as_is(&store::Options::new(
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
                "a service is at work with this database, or was a few seconds ago: stop it, all replicas of it, and try again"
            ),
            Ok(Some(_)) => {}
            // What cannot be read is often why somebody restores; what cannot be reached is no place to restore to.
            Err(_) if sqlite_path(url).is_some() => {}
            Err(error) => return Err(error).context("cannot open the database"),
        }
        ensure!(
            self.replace,
            "there is a database already, and it was left as it is; --replace puts the backup in its place"
        );
        Ok(())
    }

    /// Keys, settings and the certificate. What they replace is kept beside them.
    fn place_files(&self, manifest: &Manifest, spool: &Path, data: &Path) -> anyhow::Result<()> {
        integrity::mark(data)?;
        audit_anchor::reset(data)?;
        let listed = |name: &&str| manifest.has(name);
        let settings =
            [SETTINGS].into_iter().filter(listed).filter(|name| !data.join(name).exists());
        // A new key that is not in the backup stays if it belongs to the same `orders.key`: agents may
        // trust it already.
        let next = data.join(SECRET_NEXT);
        let same = |name: &str| read(&data.join(name)).ok() == read(&spool.join(name)).ok();
        if !manifest.has(SECRET_NEXT) && next.exists() && !same(SECRETS[1]) {
            let aside = archive::with_suffix(&next, &before(Clock::system().now()));
            fs::rename(&next, &aside).with_context(|| format!("cannot move {}", next.display()))?;
        }
        // An old key that is not in the backup belongs to another rotation.
        let old = data.join(SECRET_OLD);
        if !manifest.has(SECRET_OLD) && old.exists() {
            let aside = archive::with_suffix(&old, &before(Clock::system().now()));
            fs::rename(&old, &aside).with_context(|| format!("cannot move {}", old.display()))?;
        }
        let next = [SECRET_NEXT, SECRET_OLD].into_iter().filter(listed);
        let names = next.chain(SECRETS).chain(settings).chain(TLS.into_iter().filter(listed));
        for name in names {
            let to = data.join(name);
            if let Some(parent) = to.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            }
            place(&spool.join(name), &to)?;
        }
        Ok(())
    }

    fn tell(&self, manifest: &Manifest, settled: Settled, data: &Path) -> anyhow::Result<()> {
        let Settled { epoch, batches, schedules } = settled;
        let taken_at = manifest.taken_at;
        if self.json {
            let told = json!({"taken_at": taken_at, "epoch": epoch, "batches_canceled": batches,
                "schedules_passed_over": schedules, "engine": manifest.engine});
            return crate::say(&told.to_string());
        }
        let shown = data.display();
        let mut said = format!(
            "{shown} is as it was at {taken_at:.0}. This is epoch {epoch}: what was done since is not done again.\n\
             Called off: {}. Passed over what was due since, and gone on from now: {}.\n",
            count(batches, "unfinished batch", "unfinished batches"),
            count(schedules, "schedule", "schedules"),
        );
        for (was, name) in manifest.tls.iter().flatten().zip(TLS) {
            let now = data.join(name);
            if now != *was {
                said += &format!(
                    "{} was {} then: name it in the settings.\n",
                    now.display(),
                    was.display()
                );
            }
        }
        crate::say(&format!("{said}Start the service:\n\n  fleetmend server --data-dir {shown}"))
    }
}

/// Continues as the owner of the data directory, if root runs this for somebody else.
///
/// The owner may change the directory at any time. Whatever is planted in it, the restore can then write no more than
/// its owner could, and what it creates belongs to the owner from the start.
fn become_owner(data: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(data)?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
    // For all threads, unlike the calls of rustix.
    unistd::setgroups(&[gid])
        .and_then(|()| unistd::setresgid(gid, gid, gid))
        .and_then(|()| unistd::setresuid(uid, uid, uid))
        .with_context(|| format!("cannot become the owner of {}", data.display()))
}

/// Refuses a database file that only the settings in the backup name, unless it is below the data directory.
fn refuse_outside(url: &str, data: &Path) -> anyhow::Result<()> {
    let Some(path) = sqlite_path(url) else { return Ok(()) };
    let below = path.strip_prefix(data).is_ok_and(|rest| {
        rest.components().all(|part| matches!(part, Component::Normal(_)))
            && rest.components().next().is_some()
    });
    ensure!(
        below,
        "the settings in the backup put the database at {}, outside of {}: name it with --database if that is what you want",
        path.display(),
        data.display()
    );
    let mut parents = path.ancestors().skip(1).take_while(|parent| *parent != data);
    parents.try_for_each(refuse_link)
}

/// Refuses symbolic links in all places that the restore would write to, before it writes to any.
fn refuse_links(data: &Path, url: &str) -> anyhow::Result<()> {
    for name in SECRETS.into_iter().chain([SECRET_NEXT, SECRET_OLD, SETTINGS]).chain(TLS) {
        let path = data.join(name);
        path.parent().filter(|parent| *parent != data).map_or(Ok(()), refuse_link)?;
        refuse_link(&path)?;
    }
    let Some(path) = sqlite_path(url) else { return Ok(()) };
    ["", "-wal", "-shm"].iter().try_for_each(|part| refuse_link(&archive::with_suffix(path, part)))
}

/// Refuses a symbolic link where the restore would write.
fn refuse_link(path: &Path) -> anyhow::Result<()> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    ensure!(!is_link, "{} is a symbolic link; remove it and try again", path.display());
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

async fn refuse_damage(path: &Path, secrets: &Secrets) -> anyhow::Result<()> {
    let db = installation::open_as_is(&format!("sqlite:{}", path.display()), secrets).await?;
    let damage = damage(&db).await;
    db.close().await;
    let damage = damage.context("the database in the backup cannot be read")?;
    ensure!(damage.is_empty(), "the database in the backup is damaged: {}", damage.join("; "));
    Ok(())
}

/// Seals with the root key that the service used when the backup was taken: the key may have been
/// rotated, and no service been started since.
async fn use_recorded_key(tx: &mut Tx, spool: &Path) -> anyhow::Result<()> {
    let recorded = store::root_keys::recorded(tx).await?;
    let secrets = Secrets::load(spool)?;
    let fit = root_keys::fit(recorded.as_ref(), &secrets)
        .context("the keys in the backup are not those of its database")?;
    tx.use_seal(setup::seal(&root_keys::as_recorded(fit, secrets)));
    Ok(())
}

/// The file of the backup, made fit to be served while nobody can see it.
async fn settled_file(
    path: &Path,
    spool: &Path,
    secrets: &Secrets,
    manifest: &Manifest,
    now: Timestamp,
) -> anyhow::Result<Settled> {
    refuse_damage(path, secrets).await?;
    let mut options = patient(&format!("sqlite:{}", path.display()), secrets);
    options.durability = store::Durability::Full;
    let db = Db::open(&options).await.context("cannot use the database in the backup")?;
    let settled = async {
        let mut tx = db.begin().await?;
        use_recorded_key(&mut tx, spool).await?;
        let settled = settle(&mut tx, manifest.taken_at, now).await?;
        tx.commit().await?;
        Ok::<_, anyhow::Error>(settled)
    };
    let settled = settled.await;
    db.close().await;
    settled.context("cannot use the database in the backup")
}

/// Puts a database into its place. The one that was there is kept beside it, with its log.
fn replace_sqlite(new: &Path, path: &Path, now: Timestamp) -> anyhow::Result<()> {
    let before = archive::with_suffix(path, &before(now));
    for log in ["-wal", "-shm"] {
        ensure!(!archive::with_suffix(new, log).exists(), "the new database was not closed");
    }
    for part in ["-shm", "-wal", ""] {
        let (from, to) = (archive::with_suffix(path, part), archive::with_suffix(&before, part));
        if from.exists() {
            ensure!(!to.exists(), "{} is there already: wait a second and try again", to.display());
            fs::rename(&from, &to).with_context(|| format!("cannot move {}", from.display()))?;
        }
    }
    fs::rename(new, path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(archive::sync_parent(path)?)
}

fn before(now: Timestamp) -> String {
    format!(".before-{}", now.strftime("%Y%m%dT%H%M%SZ"))
}

/// Puts a file into its place, and keeps another one that was there.
fn place(from: &Path, to: &Path) -> anyhow::Result<()> {
    refuse_link(to)?;
    if to.exists() {
        ensure!(to.is_file(), "{} is not a regular file", to.display());
        if read(to)? == read(from)? {
            return Ok(());
        }
        let aside = archive::with_suffix(to, &before(Clock::system().now()));
        fs::rename(to, &aside).with_context(|| format!("cannot move {}", to.display()))?;
    }
    keep(from, to)?;
    Ok(archive::sync_parent(to)?)
}
