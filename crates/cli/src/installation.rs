//! The installation a command works on: a data directory, and a database that may be elsewhere.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use nix::unistd::{self, Gid, Uid};
use server::app::{App, AppParts, Settings};
use service::auth::root_keys;
use service::clock::Clock;
use service::commands::setup;
use service::secrets::Secrets;
use store::{Db, Options, Tx};

use crate::settings;
use crate::settings::{Durability, SettingsFile};

/// The variable with the database's address.
pub(crate) const DATABASE_VARIABLE: &str = "FLEETMEND_DATABASE";

#[derive(Args)]
pub(crate) struct Installation {
    /// Directory for the secrets, and for the database unless --database is set
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    pub(crate) data_dir: PathBuf,
    /// Database address: postgres://…, or the path of a SQLite file [default: fleetmend.db in the
    /// data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
}

impl Installation {
    /// The database's address: from the flag, else from the settings file, else the default.
    pub(crate) fn url(&self, file: &SettingsFile) -> String {
        let named = self.database.clone().or_else(|| file.database.clone());
        named.unwrap_or_else(|| settings::default_database_url(&self.data_dir))
    }

    /// Opens the database without migrating it, for commands that must not change the schema.
    pub(crate) async fn open_as_is(&self) -> anyhow::Result<Db> {
        let file = SettingsFile::load(None, &self.data_dir)?;
        let secrets = settings::load_secrets(&self.data_dir)?;
        open_as_is(&self.url(&file), &secrets).await
    }

    /// Opens the database together with its secrets. The settings file determines durability unless
    /// the command passes one.
    pub(crate) async fn open(
        &self,
        durability: Option<Durability>,
    ) -> anyhow::Result<(Db, Secrets)> {
        let file = SettingsFile::load(None, &self.data_dir)?;
        let secrets = settings::load_secrets(&self.data_dir)?;
        let durability = durability.or(file.durability).unwrap_or_default();
        settings::open_command(&self.url(&file), durability, secrets).await
    }

    /// The application without its network listeners.
    pub(crate) async fn app(&self, durability: Option<Durability>) -> anyhow::Result<App> {
        let (db, secrets) = self.open(durability).await?;
        Ok(App::new(AppParts {
            db,
            clock: Clock::system(),
            secrets,
            settings: Settings::default(),
        }))
    }
}

/// Opens an existing database without migrating it, with a timeout long enough to copy all of it.
pub(crate) async fn open_as_is(url: &str, secrets: &Secrets) -> anyhow::Result<Db> {
    let options = long_running_options(url, secrets);
    Db::open_without_migrating(&options).await.context("cannot open the database")
}

/// Database options for work of any length: the timeout is six hours.
pub(crate) fn long_running_options(url: &str, secrets: &Secrets) -> Options {
    let hours = std::time::Duration::from_secs(6 * 3_600);
    Options { timeout: hours, ..Options::new(url, setup::seal(secrets)) }
}

/// The next step after `init` or `restore`. `database` is the address that the command was given, by
/// flag or by variable.
pub(crate) fn start_hint(data_dir: &Path, database: Option<&str>) -> String {
    let variable = match is_from_variable(database) {
        true => format!(", with the same {DATABASE_VARIABLE}"),
        false => String::new(),
    };
    format!("Start the service{variable}:\n\n  {}", server_command(data_dir, database))
}

/// The command that starts the service on this database.
pub(crate) fn server_command(data_dir: &Path, database: Option<&str>) -> String {
    let dir = shell_quote(&data_dir.display().to_string());
    let command = format!("fleetmend server --data-dir {dir}");
    match database.filter(|_| !is_from_variable(database)) {
        Some(database) => format!("{command} --database {}", shell_quote(database)),
        None => command,
    }
}

/// An address from the variable is not printed: the variable is there to keep a password secret.
fn is_from_variable(database: Option<&str>) -> bool {
    database.is_some() && std::env::var(DATABASE_VARIABLE).ok().as_deref() == database
}

/// Quotes text for a shell if necessary.
pub(crate) fn shell_quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The path of the SQLite file if the address names one.
pub(crate) fn sqlite_path(url: &str) -> Option<&Path> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return None;
    }
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
}

/// Creates a directory that only its owner can access, and its parents. Succeeds if the directory
/// already exists.
pub(crate) fn create_private_dir(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    ensure!(!path.exists() || path.is_dir(), "{shown} exists but is not a directory");
    let result = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    result.with_context(|| format!("cannot create {shown}"))
}

/// Fails early if the directory of an output file does not exist, before any work is done.
pub(crate) fn ensure_parent_dir(file: &Path) -> anyhow::Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        bail!(
            "the directory {} does not exist: create it first, or choose another",
            parent.display()
        );
    }
    Ok(())
}

/// Continues as the owner of the data directory if root runs this for another user.
///
/// The owner may change the directory at any time. As the owner, the command can write no more than
/// the owner could, whatever is planted in the directory, and everything it creates belongs to the
/// owner from the start.
pub(crate) fn become_owner(data: &Path) -> anyhow::Result<()> {
    let owner = std::fs::metadata(data)?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
    // These calls apply to all threads, unlike those of rustix.
    unistd::setgroups(&[gid])
        .and_then(|()| unistd::setresgid(gid, gid, gid))
        .and_then(|()| unistd::setresuid(uid, uid, uid))
        .with_context(|| format!("cannot become the owner of {}", data.display()))
}

/// Rejects a symbolic link at a path that a command would write to.
pub(crate) fn refuse_link(path: &Path) -> anyhow::Result<()> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    ensure!(!is_link, "{} is a symbolic link; remove it and try again", path.display());
    Ok(())
}

/// Seals with the root key that the service last used on this database: the key may have been
/// rotated without a service having started since. `keys` is the directory of the key files.
pub(crate) async fn use_recorded_key(tx: &mut Tx, keys: &Path) -> anyhow::Result<()> {
    let recorded = store::root_keys::get(tx).await?;
    let secrets = Secrets::load(keys)?;
    let fit = root_keys::compare_keys(recorded.as_ref(), &secrets)
        .context("the key files do not match the database")?;
    tx.use_seal(setup::seal(&root_keys::select_recorded(fit, secrets)));
    Ok(())
}
