//! Settings: flags first, then `FLEETMEND_*` variables, then a TOML file, then defaults. Also opens
//! the database with them.
//!
//! clap reads flags and variables. The file is `fleetmend.toml` in the data directory, or the one
//! given with `--config`. Unknown keys in it are an error, because a typo must not silently keep a
//! default.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use service::agent_releases::AgentReleases;
use service::app::{FeedMode, FeedSettings};
use service::auth::root_keys;
use service::auth::root_keys::OpenError;
use service::clock::random_u128;
use service::mail::MailSettings;
use service::secrets::Secrets;
use store::{Db, Options};
use vocab::Role;

use crate::backup::archive::{sync_parent, with_suffix};
use crate::installation::refuse_link;

/// The settings file in the data directory.
pub(crate) const SETTINGS_FILE: &str = "fleetmend.toml";

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
    pub(crate) feeds: Option<Feeds>,
    /// Mirror of the built-in feeds: https://HOST/PATH is fetched from URL/HOST/PATH
    #[arg(long, value_name = "URL", env = "FLEETMEND_FEED_MIRROR")]
    pub(crate) feed_mirror: Option<String>,
    /// Never fetch a vulnerability feed
    #[arg(long, env = "FLEETMEND_OFFLINE", value_parser = BoolishValueParser::new())]
    pub(crate) offline: bool,
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

/// The flags for links and email.
#[derive(Args)]
pub(crate) struct MailArgs {
    /// Address at which people reach the dashboard (https://HOST), for links in events and messages
    #[arg(long, value_name = "URL", env = "FLEETMEND_PUBLIC_URL")]
    pub(crate) public_url: Option<String>,
    /// Mail server for notifications: smtps://USER:PASSWORD@HOST, or smtp:// for STARTTLS
    #[arg(long, value_name = "URL", env = "FLEETMEND_SMTP", hide_env_values = true)]
    pub(crate) smtp: Option<String>,
    /// Sender of notifications [default: user fleetmend at the host of --smtp]
    #[arg(long, value_name = "ADDRESS", env = "FLEETMEND_SMTP_FROM")]
    pub(crate) smtp_from: Option<String>,
}

impl MailArgs {
    /// The settings, with those of the file where no flag or variable is set.
    pub(crate) fn settings(
        &self,
        file: &SettingsFile,
    ) -> anyhow::Result<(Option<String>, Option<MailSettings>)> {
        let flags = SettingsFile {
            public_url: self.public_url.clone().or_else(|| file.public_url.clone()),
            smtp: self.smtp.clone().or_else(|| file.smtp.clone()),
            smtp_from: self.smtp_from.clone().or_else(|| file.smtp_from.clone()),
            ..SettingsFile::default()
        };
        Ok((public_url(flags.public_url.as_deref())?, flags.mail()?))
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
    pub(crate) agent_dir: Option<PathBuf>,
    pub(crate) public_url: Option<String>,
    pub(crate) smtp: Option<String>,
    pub(crate) smtp_from: Option<String>,
    pub(crate) webhook_allow_local: Option<bool>,
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
        let usual = data_dir.join(SETTINGS_FILE);
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

impl SettingsFile {
    /// How the service sends email; `None` if it does not.
    pub(crate) fn mail(&self) -> anyhow::Result<Option<MailSettings>> {
        let Some(smtp) = &self.smtp else { return Ok(None) };
        ensure!(
            self.public_url.is_some(),
            "email (--smtp) also needs --public-url, because messages contain links to the dashboard"
        );
        match MailSettings::parse(smtp, self.smtp_from.as_deref()) {
            Ok(settings) => Ok(Some(settings)),
            Err(wrong) => bail!("invalid mail server (--smtp): {wrong}"),
        }
    }
}

/// Checks the address of the dashboard. Returns it without a slash at the end.
pub(crate) fn public_url(text: Option<&str>) -> anyhow::Result<Option<String>> {
    let Some(text) = text else { return Ok(None) };
    let url = service::fetch::parse_url(text).context("invalid address (--public-url)")?;
    ensure!(
        url.query().is_none() && url.fragment().is_none() && url.path() == "/",
        "invalid address (--public-url): `{text}` must have no path, such as https://patch.example.com"
    );
    Ok(Some(url.to_string().trim_end_matches('/').to_owned()))
}

/// Where the packages of the service put the agents that servers install from it.
const PACKAGED_AGENTS: &str = "/usr/lib/fleetmend/agents";

/// Loads the agents of this service: from the given directory, or those of the package.
pub(crate) fn load_agents(named: Option<&Path>) -> AgentReleases {
    AgentReleases::load(named.unwrap_or(Path::new(PACKAGED_AGENTS)))
}

/// Loads the agent that was built together with this program.
pub(crate) fn load_built_agents() -> AgentReleases {
    let program = std::env::current_exe().unwrap_or_default();
    program.parent().map(AgentReleases::load).unwrap_or_default()
}

/// Writes the address of the database to the settings file in the data directory. Everything else
/// in the file stays unchanged. The file is created if it does not exist; then only its owner can
/// read it.
pub(crate) fn write_database(data_dir: &Path, url: &str) -> anyhow::Result<()> {
    let path = data_dir.join(SETTINGS_FILE);
    refuse_link(&path)?;
    let old = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let text = with_database(&old, url)
        .with_context(|| format!("cannot change the settings in {}", path.display()))?;
    let mode = std::fs::metadata(&path).map_or(0o600, |found| found.permissions().mode());
    let new = with_suffix(&path, &format!(".{:08x}", random_u128() as u32));
    let written = || -> std::io::Result<()> {
        let mut options = std::fs::File::options();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(std::fs::Permissions::from_mode(mode & 0o777))?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        sync_parent(&path)
    };
    written()
        .inspect_err(|_| drop(std::fs::remove_file(&new)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The text of a settings file with another database.
fn with_database(text: &str, url: &str) -> anyhow::Result<String> {
    let old: SettingsFile = toml::from_str(text)?;
    // A JSON string is also a TOML string.
    let line = format!("database = {}", serde_json::to_string(url)?);
    let is_setting = |line: &&str| {
        let rest = line.trim_start().strip_prefix("database");
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let new = match text.lines().any(|line| is_setting(&line)) {
        true => {
            let replace = |old| if is_setting(&old) { line.as_str() } else { old };
            text.lines().map(replace).flat_map(|line| [line, "\n"]).collect()
        }
        false => format!("{line}\n{text}"),
    };
    let read: SettingsFile = toml::from_str(&new)?;
    ensure!(
        read == SettingsFile { database: Some(url.to_owned()), ..old },
        "the setting `database` cannot be replaced: edit the file"
    );
    Ok(new)
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
    Db::open(&database_options(url, durability, secrets)).await.context("cannot open the database")
}

/// Opens the database for a service. A service is the first to use a rotated root key.
pub(crate) async fn open_service(
    url: &str,
    durability: Durability,
    secrets: Secrets,
) -> anyhow::Result<(Db, Secrets)> {
    open_with_timeout(url, durability, secrets, None).await
}

/// Opens the database for the service of a demo. It writes its history in large transactions, and a
/// loaded machine may be slower than a service can wait.
pub(crate) async fn open_demo(url: &str, secrets: Secrets) -> anyhow::Result<(Db, Secrets)> {
    open_with_timeout(url, Durability::Process, secrets, Some(COMMAND_TIMEOUT)).await
}

async fn open_with_timeout(
    url: &str,
    durability: Durability,
    secrets: Secrets,
    timeout: Option<Duration>,
) -> anyhow::Result<(Db, Secrets)> {
    let now = service::clock::Clock::system().now();
    let open = async |secrets: &Secrets| {
        let options = database_options(url, durability, secrets);
        Db::open(&Options { timeout: timeout.unwrap_or(options.timeout), ..options }).await
    };
    root_keys::open_database(secrets, now, open).await.map_err(open_error)
}

/// How long a command waits until the service lets it write. A busy service may take longer than the
/// two seconds after which it answers a request with 503.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens the database for a command, with the root key that the service uses.
pub(crate) async fn open_command(
    url: &str,
    durability: Durability,
    secrets: Secrets,
) -> anyhow::Result<(Db, Secrets)> {
    let open = async |secrets: &Secrets| {
        let options = database_options(url, durability, secrets);
        Db::open(&Options { timeout: COMMAND_TIMEOUT, ..options }).await
    };
    root_keys::open_command(secrets, open).await.map_err(open_error)
}

fn open_error(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Store(error) => anyhow::Error::from(error).context("cannot open the database"),
        OpenError::KeyMismatch(unfit) => unfit.into(),
    }
}

fn database_options(url: &str, durability: Durability, secrets: &Secrets) -> Options {
    let mut options = Options::new(url, service::commands::setup::seal(secrets));
    options.durability = match durability {
        Durability::Process => store::Durability::Process,
        Durability::Full => store::Durability::Full,
    };
    options
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
    fn only_the_database_is_replaced_in_the_file() {
        let url = "postgres://f:a\"b@db/f";
        let line = "database = \"postgres://f:a\\\"b@db/f\"\n";
        for (old, new) in [
            ("", line.to_owned()),
            ("# mine\nlisten = \"x\"\n", format!("{line}# mine\nlisten = \"x\"\n")),
            (
                "# database = 1\nlisten = \"x\"\n  database=\"sqlite:x\" # old\ntls_key = \"k\"",
                format!("# database = 1\nlisten = \"x\"\n{line}tls_key = \"k\"\n"),
            ),
        ] {
            assert_eq!(with_database(old, url).unwrap(), new);
        }
        let multiline = "database = \"\"\"\nsqlite:x\"\"\"\n";
        assert!(with_database(multiline, url).is_err());
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
    fn public_url_is_an_address_without_a_path() {
        let url = public_url(Some("https://patch.example.org:8443/")).unwrap();
        assert_eq!(url.as_deref(), Some("https://patch.example.org:8443"));
        for bad in ["patch.example.org", "https://patch.example.org/x", "https://a:b@c", "ftp://c"]
        {
            assert!(public_url(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_setting_can_be_set_in_the_file() {
        let text = "database = \"sqlite:x\"\nlisten = \"[::1]:1\"\ntls_cert = \"c\"\ntls_key = \"k\"\n\
                    durability = \"full\"\nrequests_per_second = 1\nrequests_burst = 2\nstale_after_days = 3\n\
                    agent_dir = \"a\"\npublic_url = \"https://patch.example.org\"\nwebhook_allow_local = true\n\
                    smtp = \"smtps://u:p@mail.example.org\"\nsmtp_from = \"ops@example.org\"\n\
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
        let mail = file.mail().unwrap().unwrap();
        assert_eq!(mail.describe(), "mail.example.org:465, from ops@example.org");
    }

    #[test]
    fn email_needs_the_address_of_the_dashboard() {
        let file: SettingsFile =
            toml::from_str("smtp = \"smtps://u:hunter2@mail.example.org\"").unwrap();
        let error = format!("{:#}", file.mail().unwrap_err());
        assert!(error.contains("--public-url") && !error.contains("hunter2"), "{error}");
        assert!(SettingsFile::default().mail().unwrap().is_none());
    }
}
