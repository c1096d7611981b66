//! Which installation a command works on: a data directory, and a database that may be elsewhere.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use server::app::{App, Parts, Settings};
use service::clock::Clock;
use service::commands::setup;
use service::secrets::Secrets;
use store::{Db, Options};

use crate::settings;
use crate::settings::{Durability, File};

/// Which installation.
#[derive(Args)]
pub(crate) struct Installation {
    /// Where the secrets are kept, and the database unless another one is named
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    pub(crate) data_dir: PathBuf,
    /// postgres://…, or the path of a SQLite file [default: fleetmend.db in the data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
}

impl Installation {
    /// The address of the database: named here, or in the settings, or the usual one.
    pub(crate) fn url(&self, file: &File) -> String {
        let named = self.database.clone().or_else(|| file.database.clone());
        named.unwrap_or_else(|| settings::database_in(&self.data_dir))
    }

    /// The database with its tables as they are, for what must not change them.
    pub(crate) async fn open_as_is(&self) -> anyhow::Result<Db> {
        let file = File::load(None, &self.data_dir)?;
        let secrets = settings::existing(&self.data_dir)?;
        open_as_is(&self.url(&file), &secrets).await
    }

    /// The database and the secrets that go with it. How durable is for the settings to say, unless the command knows better.
    pub(crate) async fn open(
        &self,
        durability: Option<Durability>,
    ) -> anyhow::Result<(Db, Secrets)> {
        let file = File::load(None, &self.data_dir)?;
        let secrets = settings::existing(&self.data_dir)?;
        let durability = durability.or(file.durability).unwrap_or_default();
        settings::open_command(&self.url(&file), durability, secrets).await
    }

    /// The service's rooms without its doors.
    pub(crate) async fn app(&self, durability: Option<Durability>) -> anyhow::Result<App> {
        let (db, secrets) = self.open(durability).await?;
        Ok(App::new(Parts { db, clock: Clock::system(), secrets, settings: Settings::default() }))
    }
}

/// Opens a database that is there, with the patience that a copy of all of it needs.
pub(crate) async fn open_as_is(url: &str, secrets: &Secrets) -> anyhow::Result<Db> {
    let options = patient(url, secrets);
    Db::open_as_is(&options).await.context("cannot open the database")
}

/// How a database is opened for work that takes as long as it takes.
pub(crate) fn patient(url: &str, secrets: &Secrets) -> Options {
    let hours = std::time::Duration::from_secs(6 * 3_600);
    Options { patience: hours, ..Options::new(url, setup::seal(secrets)) }
}

/// The path of a SQLite file, if that is what an address names.
pub(crate) fn sqlite_path(url: &str) -> Option<&Path> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return None;
    }
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
}

/// Makes a directory for its owner alone, and those above it, unless it is there.
pub(crate) fn make_dir(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    ensure!(!path.exists() || path.is_dir(), "{shown} is a file, and should be a directory");
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot make {shown}"))
}

/// Refuses a file that could not be written for want of its directory, before any work is done.
pub(crate) fn has_place(file: &Path) -> anyhow::Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        bail!("there is no directory {}: make it first, or name another", parent.display());
    }
    Ok(())
}
