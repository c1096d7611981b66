//! `fleetmend server`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use server::app::{App, Parts, Settings};
use service::audit_anchor;
use service::auth::root_keys;
use service::clock::{Clock, dice};
use tokio::signal::unix::{SignalKind, signal};

use crate::listen;
use crate::logs;
use crate::logs::Format;
use crate::oidc::Oidc;
use crate::settings;
use crate::settings::{Durability, File};
use crate::tls::Tls;

/// Serve the API and the agents.
///
/// SIGTERM or SIGINT ends it cleanly: no new connections, requests under way are finished within 30 seconds.
/// Settings come from flags, then from the environment, then from `fleetmend.toml` in the data
/// directory (or --config), whose keys are the flags with underscores.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend server --data-dir /var/lib/fleetmend
  fleetmend server --data-dir D --listen 0.0.0.0:7600 --tls-cert cert.pem --tls-key key.pem
  FLEETMEND_DATABASE=postgres://fleetmend@db/fleetmend fleetmend server --data-dir D")]
pub(crate) struct Server {
    /// What `fleetmend init` has made
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    data_dir: PathBuf,
    /// postgres://…, or the path of a SQLite file [default: fleetmend.db in the data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDRESS", env = "FLEETMEND_LISTEN")]
    listen: Option<String>,
    /// The certificate to show, and those above it, as PEM
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Its private key, as PEM
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// What an acknowledged write survives [default: process]
    #[arg(long, value_enum, env = "FLEETMEND_DURABILITY")]
    durability: Option<Durability>,
    /// How many requests a key may send in a second, for long [default: 200]
    #[arg(long, value_name = "N", env = "FLEETMEND_REQUESTS_PER_SECOND")]
    requests_per_second: Option<u32>,
    /// How many requests a key may send at once [default: 2000]
    #[arg(long, value_name = "N", env = "FLEETMEND_REQUESTS_BURST")]
    requests_burst: Option<u32>,
    /// After how many days without a scan a server counts as stale [default: 7]
    #[arg(long, value_name = "DAYS", env = "FLEETMEND_STALE_AFTER_DAYS",
        value_parser = clap::value_parser!(u32).range(1..=3650))]
    stale_after_days: Option<u32>,
    /// A file with settings [default: fleetmend.toml in the data directory]
    #[arg(long, value_name = "F", env = "FLEETMEND_CONFIG")]
    config: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, or a filter like info,server=debug
    #[arg(long, value_name = "FILTER", env = "FLEETMEND_LOG", default_value = "info")]
    log: String,
    /// How it is logged [default: text on a terminal, else json]
    #[arg(long, value_enum, env = "FLEETMEND_LOG_FORMAT")]
    log_format: Option<Format>,
    // Last, since its heading goes for all that follows.
    #[command(flatten)]
    oidc: Oidc,
}

impl Server {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        logs::start(&self.log, self.log_format).context("cannot use --log")?;
        let file = File::load(self.config.as_deref(), &self.data_dir)?;
        let tls = self.tls(&file)?;
        let app = self.app(&file, tls.as_ref()).await?;
        let listen = self.listen.or(file.listen).unwrap_or_else(|| listen::DEFAULT.to_owned());
        let listener = listen::bind(&listen).await?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{}", listener.local_addr()?);
        let stop = stop()?;
        tracing::info!(address, database = app.db.engine(), "serving");
        crate::say(&format!("fleetmend serves on {address}"))?;
        let anchored =
            tokio::spawn(audit_anchor::keep(app.service().clone(), self.data_dir.clone()));
        let resealing =
            tokio::spawn(root_keys::keep_resealing(app.service().clone(), self.data_dir));
        server::run(app, listener, tls.map(|tls| tls.config), stop).await;
        anchored.abort();
        resealing.abort();
        Ok(())
    }

    fn tls(&self, file: &File) -> anyhow::Result<Option<Tls>> {
        let certificates = self.tls_cert.as_ref().or(file.tls_cert.as_ref());
        let key = self.tls_key.as_ref().or(file.tls_key.as_ref());
        match (certificates, key) {
            (Some(certificates), Some(key)) => Tls::load(certificates, key).map(Some),
            (None, None) => Ok(None),
            _ => bail!("--tls-cert and --tls-key belong together: give both, or neither"),
        }
    }

    async fn app(&self, file: &File, tls: Option<&Tls>) -> anyhow::Result<App> {
        let secrets = settings::existing(&self.data_dir)?;
        let usual = settings::database_in(&self.data_dir);
        let url = self.database.as_deref().or(file.database.as_deref()).unwrap_or(&usual);
        let durability = self.durability.or(file.durability).unwrap_or_default();
        let (db, secrets) = settings::open_service(url, durability, secrets).await?;
        let organizations = store::organizations::list(&mut *db.read().await?).await?;
        if organizations.is_empty() {
            db.close().await;
            bail!("there is no organization in this database: run `fleetmend init` with it first");
        }
        settings::adopt(&db, &self.data_dir).await?;
        let usual = Settings::default();
        let settings = Settings {
            // Two processes of one name would both believe that they lead.
            replica: format!("{:032x}", dice()),
            requests_per_second: (self.requests_per_second.or(file.requests_per_second))
                .unwrap_or(usual.requests_per_second),
            requests_burst: (self.requests_burst.or(file.requests_burst))
                .unwrap_or(usual.requests_burst),
            stale_after_days: (self.stale_after_days.or(file.stale_after_days))
                .unwrap_or(usual.stale_after_days),
            certificate_sha256: tls.map(|tls| tls.sha256),
            oidc: self.oidc.config(file, &organizations)?,
            ..usual
        };
        Ok(App::new(Parts { db, clock: Clock::system(), secrets, settings }))
    }
}

/// Returns at the first SIGTERM or SIGINT. The second one ends the process there and then.
pub(crate) fn stop() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "asked to end");
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            tracing::warn!("asked to end again: ending without waiting");
            std::process::exit(1);
        });
    })
}
