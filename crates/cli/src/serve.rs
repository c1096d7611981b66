//! `fleetmend server`: reads the settings, opens the database and runs the service until a signal.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use clap::builder::BoolishValueParser;
use server::app::{App, AppParts, Settings};
use service::audit_anchor;
use service::auth::root_keys;
use service::clock::{Clock, random_u128};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::listen;
use crate::logs;
use crate::logs::Format;
use crate::oidc::Oidc;
use crate::settings;
use crate::settings::{Durability, FeedArgs, MailArgs, SettingsFile};
use crate::tls::Tls;

/// Run the service: the API, the dashboard and the agent endpoint.
///
/// SIGTERM or SIGINT stops it cleanly: it accepts no new connections and finishes current requests
/// within 30 seconds. A changed certificate is loaded within seconds, or immediately at SIGHUP; other
/// settings need a restart. Settings come from flags, then from environment variables, then from
/// `fleetmend.toml` in the data directory (or the --config file), whose keys are the flag names
/// with underscores.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend server --data-dir /var/lib/fleetmend
  fleetmend server --data-dir D --listen 0.0.0.0:7600 --tls-cert cert.pem --tls-key key.pem
  FLEETMEND_DATABASE=postgres://fleetmend@db/fleetmend fleetmend server --data-dir D")]
pub(crate) struct Server {
    /// Data directory created by `fleetmend init`
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    pub(crate) data_dir: PathBuf,
    /// Database address: postgres://…, or the path of a SQLite file [default: fleetmend.db in the
    /// data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Address and port to listen on; port 0 picks a free port [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDRESS", env = "FLEETMEND_LISTEN")]
    pub(crate) listen: Option<String>,
    /// TLS certificate chain in PEM format, the server certificate first
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM format
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,
    /// What an acknowledged write survives [default: process]
    #[arg(long, value_enum, env = "FLEETMEND_DURABILITY")]
    durability: Option<Durability>,
    /// Sustained requests per second for each API key [default: 200]
    #[arg(long, value_name = "N", env = "FLEETMEND_REQUESTS_PER_SECOND")]
    requests_per_second: Option<u32>,
    /// Burst of requests for each API key [default: 2000]
    #[arg(long, value_name = "N", env = "FLEETMEND_REQUESTS_BURST")]
    requests_burst: Option<u32>,
    /// Days without a scan after which a server counts as stale [default: 7]
    #[arg(long, value_name = "DAYS", env = "FLEETMEND_STALE_AFTER_DAYS",
        value_parser = clap::value_parser!(u32).range(1..=3650))]
    stale_after_days: Option<u32>,
    /// Directory with the agents that servers install from this service [default:
    /// /usr/lib/fleetmend/agents]
    #[arg(long, value_name = "DIR", env = "FLEETMEND_AGENT_DIR")]
    agent_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) mail: MailArgs,
    /// Allow webhooks to this host and to link-local addresses
    #[arg(long, env = "FLEETMEND_WEBHOOK_ALLOW_LOCAL", value_parser = BoolishValueParser::new())]
    webhook_allow_local: bool,
    #[command(flatten)]
    pub(crate) feeds: FeedArgs,
    /// Settings file [default: fleetmend.toml in the data directory]
    #[arg(long, value_name = "F", env = "FLEETMEND_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Log level (error, warn, info, debug) or a filter such as info,server=debug
    #[arg(long, value_name = "FILTER", env = "FLEETMEND_LOG", default_value = "info")]
    log: String,
    /// Log format [default: text on a terminal, json otherwise]
    #[arg(long, value_enum, env = "FLEETMEND_LOG_FORMAT")]
    log_format: Option<Format>,
    // Last, because its help heading applies to all flags after it.
    #[command(flatten)]
    oidc: Oidc,
}

impl Server {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        logs::start(&self.log, self.log_format).context("invalid --log")?;
        let file = SettingsFile::load(self.config.as_deref(), &self.data_dir)?;
        let tls = self.tls(&file)?;
        let app = self.app(&file, tls.as_ref()).await?;
        let listen = self.listen.or(file.listen).unwrap_or_else(|| listen::DEFAULT.to_owned());
        let listener = listen::bind(&listen).await?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{}", listener.local_addr()?);
        let stop = shutdown_signal()?;
        let hangups = signal(SignalKind::hangup())?;
        tracing::info!(address, database = app.db.engine(), "serving");
        crate::print_line(&format!("fleetmend is listening on {address}"))?;
        let anchored =
            tokio::spawn(audit_anchor::run(app.service().clone(), self.data_dir.clone()));
        let resealing =
            tokio::spawn(root_keys::reseal_in_background(app.service().clone(), self.data_dir));
        let config = tls.as_ref().map(|tls| tls.config.clone());
        let reloading = tokio::spawn(reload(tls, app.service().clone(), hangups));
        server::run(app, listener, config, stop).await;
        anchored.abort();
        resealing.abort();
        reloading.abort();
        Ok(())
    }

    fn tls(&self, file: &SettingsFile) -> anyhow::Result<Option<Tls>> {
        let certificates = self.tls_cert.as_ref().or(file.tls_cert.as_ref());
        let key = self.tls_key.as_ref().or(file.tls_key.as_ref());
        match (certificates, key) {
            (Some(certificates), Some(key)) => Tls::load(certificates, key).map(Some),
            (None, None) => Ok(None),
            _ => bail!("--tls-cert and --tls-key must be used together"),
        }
    }

    async fn app(&self, file: &SettingsFile, tls: Option<&Tls>) -> anyhow::Result<App> {
        let secrets = settings::load_secrets(&self.data_dir)?;
        let usual = settings::default_database_url(&self.data_dir);
        let url = self.database.as_deref().or(file.database.as_deref()).unwrap_or(&usual);
        let durability = self.durability.or(file.durability).unwrap_or_default();
        let (db, secrets) = settings::open_service(url, durability, secrets).await?;
        let organizations = store::organizations::list(&mut *db.read().await?).await?;
        if organizations.is_empty() {
            db.close().await;
            bail!("this database has no organization: run `fleetmend init` for it first");
        }
        let (public_url, mail) = self.mail.settings(file)?;
        let usual = Settings::default();
        let settings = Settings {
            // Two processes with the same replica name would both consider themselves the leader.
            replica: format!("{:032x}", random_u128()),
            requests_per_second: (self.requests_per_second.or(file.requests_per_second))
                .unwrap_or(usual.requests_per_second),
            requests_burst: (self.requests_burst.or(file.requests_burst))
                .unwrap_or(usual.requests_burst),
            stale_after_days: (self.stale_after_days.or(file.stale_after_days))
                .unwrap_or(usual.stale_after_days),
            certificate_sha256: tls.map(|tls| tls.sha256),
            untrusted_public_key: tls.and_then(|tls| tls.untrusted_public_key),
            agents: settings::load_agents(self.agent_dir.as_deref().or(file.agent_dir.as_deref())),
            oidc: self.oidc.config(file, &organizations)?,
            feeds: self.feeds.settings(file)?,
            public_url,
            mail,
            webhook_allow_local: self.webhook_allow_local
                || file.webhook_allow_local.unwrap_or(false),
            data_dir: Some(self.data_dir.clone()),
            ..usual
        };
        Ok(App::new(AppParts { db, clock: Clock::system(), secrets, settings }))
    }
}

/// Loads changed files at SIGHUP and, for the certificate, when they change.
async fn reload(tls: Option<Tls>, app: service::App, mut hangups: Signal) {
    match tls {
        Some(tls) => tls.reload_on_change(app, hangups).await,
        // Without a handler, SIGHUP would end the process.
        None => {
            while hangups.recv().await.is_some() {
                tracing::info!("received SIGHUP; without TLS there is nothing to load again");
            }
        }
    }
}

/// Completes at the first SIGTERM or SIGINT. A second one ends the process immediately.
pub(crate) fn shutdown_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "received a signal, stopping");
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            tracing::warn!("received a second signal, exiting immediately");
            std::process::exit(1);
        });
    })
}
