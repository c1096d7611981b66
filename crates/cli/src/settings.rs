//! Settings: flags first, then `FLEETMEND_*` variables, then a TOML file, then defaults. Also opens
//! the database with them.
//!
//! clap reads flags and variables. The file is `fleetmend.toml` in the data directory, or the one
//! given with `--config`. Unknown keys in it are an error, because a typo must not silently keep a
//! default.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use service::app::{FeedMode, FeedSettings};
use service::auth::root_keys;
use service::auth::root_keys::OpenError;
use service::secrets::Secrets;
use store::{Db, Options};
use vocab::Role;

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Durability {
    /// An acknowledged write survives a crash of the process
    #[default]
    Process,
    /// An acknowledged write survives a power failure
    Full,
}

/// How the service gets vulnerability feeds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Feeds {
    /// Import the built-in feeds that servers need, and update all feeds
    #[default]
    Auto,
    /// Update only the feeds that were added by an operator
    Manual,
}

/// The flags for vulnerability feeds.
#[derive(Args)]
pub(crate) struct FeedArgs {
    /// Where vulnerability feeds come from [default: auto]
    #[arg(long, value_enum, env = "FLEETMEND_FEEDS")]
    feeds: Option<Feeds>,
    /// Mirror of the built-in feeds: https://HOST/PATH is fetched from URL/HOST/PATH
    #[arg(long, value_name = "URL", env = "FLEETMEND_FEED_MIRROR")]
    feed_mirror: Option<String>,
    /// Never fetch a vulnerability feed
    #[arg(long, env = "FLEETMEND_OFFLINE", value_parser = BoolishValueParser::new())]
    offline: bool,
}

impl FeedArgs {
    /// The settings, with those of the file where no flag or variable is set.
    pub(crate) fn settings(&self, file: &SettingsFile) -> anyhow::Result<FeedSettings> {
        let flags = SettingsFile {
            feeds: self.feeds.or(file.feeds),
            feed_mirror: self.feed_mirror.clone().or_else(|| file.feed_mirror.clone()),
            offline: Some(self.offline || file.offline.unwrap_or(false)),
            ..SettingsFile::default()
        };
        flags.feed_settings()
    }
}

/// The settings file.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingsFile {
    pub(crate) database: Option<String>,
    pub(crate) listen: Option<String>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) durability: Option<Durability>,
    pub(crate) requests_per_second: Option<u32>,
    pub(crate) requests_burst: Option<u32>,
    pub(crate) stale_after_days: Option<u32>,
    pub(crate) feeds: Option<Feeds>,
    pub(crate) feed_mirror: Option<String>,
    pub(crate) offline: Option<bool>,
    pub(crate) oidc_issuer: Option<String>,
    pub(crate) oidc_client_id: Option<String>,
    pub(crate) oidc_client_secret_file: Option<PathBuf>,
    pub(crate) oidc_name: Option<String>,
    pub(crate) oidc_scope: Option<String>,
    pub(crate) oidc_role_claim: Option<String>,
    pub(crate) oidc_role: Option<Vec<String>>,
    pub(crate) oidc_default_role: Option<Role>,
    pub(crate) oidc_org: Option<String>,
}

impl SettingsFile {
    /// Loads the file given by `named`, which must exist, or the one in the data directory, which
    /// is optional.
    pub(crate) fn load(named: Option<&Path>, data_dir: &Path) -> anyhow::Result<SettingsFile> {
        let usual = data_dir.join("fleetmend.toml");
        let path = named.unwrap_or(&usual);
        if named.is_none() && !path.exists() {
            return Ok(SettingsFile::default());
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the settings in {}", path.display()))?;
        toml::from_str(&text)
            .with_context(|| format!("cannot use the settings in {}", path.display()))
    }

    /// How the service gets vulnerability feeds.
    pub(crate) fn feed_settings(&self) -> anyhow::Result<FeedSettings> {
        if let Some(mirror) = &self.feed_mirror {
            service::fetch::parse_url(mirror).context("invalid feed mirror (--feed-mirror)")?;
        }
        Ok(FeedSettings {
            mode: match self.feeds.unwrap_or_default() {
                Feeds::Auto => FeedMode::Auto,
                Feeds::Manual => FeedMode::Manual,
            },
            offline: self.offline.unwrap_or(false),
            mirror: self.feed_mirror.clone(),
        })
    }
}

/// The default database of a data directory.
pub(crate) fn default_database_url(data_dir: &Path) -> String {
    format!("sqlite:{}", data_dir.join("fleetmend.db").display())
}

/// Opens the database. Errors never contain its address, which may include a password.
pub(crate) async fn open(
    url: &str,
    durability: Durability,
    secrets: &Secrets,
) -> anyhow::Result<Db> {
    connect(url, durability, secrets).await.context("cannot open the database")
}

/// Opens the database for a service. A service is the first to use a rotated root key.
pub(crate) async fn open_service(
    url: &str,
    durability: Durability,
    secrets: Secrets,
) -> anyhow::Result<(Db, Secrets)> {
    let now = service::clock::Clock::system().now();
    let open = async |secrets: &Secrets| connect(url, durability, secrets).await;
    root_keys::open_database(secrets, now, open).await.map_err(open_error)
}

/// Opens the database for a command, with the root key that the service uses.
pub(crate) async fn open_command(
    url: &str,
    durability: Durability,
    secrets: Secrets,
) -> anyhow::Result<(Db, Secrets)> {
    let open = async |secrets: &Secrets| connect(url, durability, secrets).await;
    root_keys::open_command(secrets, open).await.map_err(open_error)
}

fn open_error(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Store(error) => anyhow::Error::from(error).context("cannot open the database"),
        OpenError::KeyMismatch(unfit) => unfit.into(),
    }
}

async fn connect(url: &str, durability: Durability, secrets: &Secrets) -> store::Result<Db> {
    let mut options = Options::new(url, service::commands::setup::seal(secrets));
    options.durability = match durability {
        Durability::Process => store::Durability::Process,
        Durability::Full => store::Durability::Full,
    };
    Db::open(&options).await
}

/// Loads the secrets of a data directory that `fleetmend init` created.
pub(crate) fn load_secrets(data_dir: &Path) -> anyhow::Result<Secrets> {
    if !data_dir.join("root.key").exists() {
        let dir = data_dir.display();
        bail!(
            "{dir} is not a Fleetmend data directory: set the right one with --data-dir, \
             or run `fleetmend init --data-dir {dir} --org NAME` first"
        );
    }
    Ok(Secrets::load(data_dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_key_in_file_is_rejected_by_name() {
        let error =
            toml::from_str::<SettingsFile>("listne = \"127.0.0.1:1\"").unwrap_err().to_string();
        assert!(error.contains("listne") && error.contains("listen"), "{error}");
    }

    #[test]
    fn feeds_are_automatic_by_default() {
        let feeds = SettingsFile::default().feed_settings().unwrap();
        assert_eq!((feeds.mode, feeds.offline, feeds.mirror), (FeedMode::Auto, false, None));
        let file: SettingsFile = toml::from_str("feed_mirror = \"mirror\"").unwrap();
        let error = format!("{:#}", file.feed_settings().unwrap_err());
        assert!(error.contains("--feed-mirror") && error.contains("`mirror`"), "{error}");
    }

    #[test]
    fn every_setting_can_be_set_in_the_file() {
        let text = "database = \"sqlite:x\"\nlisten = \"[::1]:1\"\ntls_cert = \"c\"\ntls_key = \"k\"\n\
                    durability = \"full\"\nrequests_per_second = 1\nrequests_burst = 2\nstale_after_days = 3\n\
                    feeds = \"manual\"\nfeed_mirror = \"https://mirror.example.org\"\noffline = true\n\
                    oidc_issuer = \"https://id.example.org\"\noidc_client_id = \"i\"\noidc_client_secret_file = \"s\"\n\
                    oidc_name = \"Example\"\noidc_scope = \"openid\"\noidc_role_claim = \"groups\"\n\
                    oidc_role = [\"admin=ops\"]\noidc_default_role = \"viewer\"\noidc_org = \"Acme\"\n";
        let file: SettingsFile = toml::from_str(text).unwrap();
        assert_eq!(file.durability, Some(Durability::Full));
        assert_eq!(file.requests_burst, Some(2));
        assert_eq!(file.stale_after_days, Some(3));
        let feeds = file.feed_settings().unwrap();
        assert_eq!((feeds.mode, feeds.offline), (FeedMode::Manual, true));
        assert_eq!(feeds.mirror.as_deref(), Some("https://mirror.example.org"));
        assert_eq!(file.oidc_default_role, Some(Role::Viewer));
    }
}
