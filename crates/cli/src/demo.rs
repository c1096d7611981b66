//! `fleetmend demo`: a service with a simulated fleet and sample data for every feature.
//!
//! The hosts come from `swarm`: simulated agents that use the real protocol, in this process. The
//! first start creates the past: the fleet enrolls under a clock that is three weeks slow,
//! `history` writes batches and runs since then, `special_servers` adds servers in unusual states,
//! `advisories` creates advisories for its packages, and `daily_stats` the number of open findings
//! on each day. Every start then continues in the present: `batches` keeps a batch in progress.

mod advisories;
mod batches;
mod daily_stats;
mod history;
mod special_servers;

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use server::app::{App, AppParts, Settings};
use service::app::FeedSettings;
use service::auth::enrollment_tokens;
use service::clock::{Clock, random_u128};
use service::commands::feeds;
use service::commands::feeds::ImportRequest;
use service::commands::setup;
use service::secrets::Secrets;
use store::server_list::{self, Filter};
use swarm::behavior::{Behavior, Script};
use swarm::{Config, SavedAgents, SavedError, Swarm};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use vocab::{FailureCode, OrgId, ServerId};

use crate::dev;
use crate::dev::banner;
use crate::listen;
use crate::logs;
use crate::operator::credentials;
use crate::operator::credentials::Credentials;
use crate::serve::shutdown_signal;
use crate::settings;

const ORGANIZATION: &str = "Demo";
/// The length of the simulated past.
const HISTORY_LENGTH: SignedDuration = SignedDuration::from_hours(21 * 24);
/// The file that is written when the past is complete, with its parameters.
const PARAMETERS_FILE: &str = "demo.json";
const FLEET_FILE: &str = "fleet.jsonl";
/// Locked while a demo uses the directory. It is created in an empty directory, so everything next
/// to it belongs to the demo.
const LOCK_FILE: &str = "demo.lock";
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Hosts whose installations fail, so that there are failures to look into.
const FAILING_HOSTS: [(usize, FailureCode); 3] = [
    (3, FailureCode::DiskFull),
    (11, FailureCode::DependencyConflict),
    (20, FailureCode::HookFailed),
];
/// Hosts that are switched off, so that some servers are offline.
const OFFLINE_HOSTS: [usize; 3] = [7, 33, 58];

/// Start a service with a simulated fleet: environments, operating systems, history, schedules,
/// CVEs and a batch in progress.
///
/// Everything is simulated; nothing on this machine is read or changed. The same seed creates the
/// same servers, history and CVEs. Press Ctrl-C to stop; the next start continues with the same
/// fleet, also if the demo was killed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend demo
  fleetmend demo --servers 1000 --seed 7 --data-dir ./try
  fleetmend demo --speed 100")]
pub(crate) struct Demo {
    /// Number of servers
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=5_000))]
    servers: u64,
    /// Seed of the random number generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Speed factor compared to real servers
    #[arg(long, value_name = "X", default_value_t = 10.0)]
    speed: f64,
    /// Directory for the database and all other files [default: ~/.local/share/fleetmend/demo]
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", env = "FLEETMEND_LISTEN", default_value = listen::DEFAULT)]
    listen: String,
    /// Log level (error, warn, info, debug) or a filter such as info,server=debug
    #[arg(long, value_name = "FILTER", env = "FLEETMEND_LOG", default_value = "error")]
    log: String,
}

/// The parameters of the demo in a data directory.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Parameters {
    seed: u64,
    servers: u64,
}

impl Demo {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        logs::start(&self.log, Some(logs::Format::Text)).context("invalid --log")?;
        ensure!(self.speed.is_finite() && self.speed > 0.0, "--speed must be a number above 0");
        let listener = listen::bind(&self.listen).await?;
        let dir = self.prepare()?;
        let _lock = lock(&dir)?;
        if !self.is_prepared(&dir)? {
            remove_incomplete(&dir).await?;
            crate::print_line("Creating three weeks of history; the next start is faster.")?;
            self.create_history(&dir).await?;
        }
        let app = open(&dir, Clock::system()).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let key = dev::admin_key(&app, &dir.join(credentials::FILE)).await?;
        let saved_credentials =
            Credentials { url: Some(url.clone()), api_key: Some(key.clone()), ca_cert: None };
        saved_credentials.write(&dir.join(credentials::FILE))?;
        let stop = shutdown_signal()?;
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(server::run(app.clone(), listener, None, async {
            let _ = ended.await;
        }));
        let fleet = self.fleet(&app, &dir, &url).await?;
        batches::start_first(&app).await?;
        let batches = tokio::spawn(batches::keep_running(app.clone()));
        let link = dev::password_link(&app, &url).await?;
        self.print_banner(&dir, &url, &key, link.as_deref())?;
        stop.await;
        batches.abort();
        fleet.stop().await.write(&dir.join(FLEET_FILE))?;
        let _ = end.send(());
        Ok(serving.await?)
    }

    fn prepare(&self) -> anyhow::Result<PathBuf> {
        let Some(dir) = self.data_dir.clone().or_else(credentials::demo_dir) else {
            bail!("no home directory to store files in: set a directory with --data-dir");
        };
        let result = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        result.with_context(|| {
            format!("cannot create {}: set another directory with --data-dir", dir.display())
        })?;
        Ok(dir.canonicalize()?)
    }

    /// Whether this directory already holds the requested demo, complete. Fails if it holds
    /// another demo.
    fn is_prepared(&self, dir: &Path) -> anyhow::Result<bool> {
        let shown = dir.display();
        let wanted = Parameters { seed: self.seed, servers: self.servers };
        match std::fs::read(dir.join(PARAMETERS_FILE)) {
            Ok(text) => {
                let there: Parameters =
                    serde_json::from_slice(&text).with_context(|| format!("cannot use {shown}"))?;
                ensure!(
                    there == wanted,
                    "{shown} holds a demo with {} servers and seed {}: start it with --servers {} --seed {}, or set another directory with --data-dir",
                    there.servers,
                    there.seed,
                    there.servers,
                    there.seed
                );
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot use {shown}")),
        }
    }

    fn nature(&self, speed: f64) -> Behavior {
        Behavior { seed: self.seed, fail: 0.03, crash: 0.005, offline: 0.02, speed }
    }

    /// Enrolls the fleet under a slow clock, then writes its history.
    async fn create_history(&self, dir: &Path) -> anyhow::Result<()> {
        let system = Clock::system();
        let then = Clock::controlled(move || system.now() - HISTORY_LENGTH);
        let app = open(dir, then).await?;
        let (organization, key) = setup::create_organization(&app, ORGANIZATION).await?;
        Credentials { url: None, api_key: Some(key), ca_cert: None }
            .write(&dir.join(credentials::FILE))?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(server::run(app.clone(), listener, None, async {
            let _ = ended.await;
        }));
        let behavior = Behavior { fail: 0.0, crash: 0.0, offline: 0.0, ..self.nature(10_000.0) };
        let fleet =
            Swarm::start(Config { behavior, ..self.config(&app, organization.id, &url).await? })?;
        fleet.wait_until_enrolled().await?;
        wait_for_scans(&app, organization.id, self.servers).await?;
        fleet.stop().await.write(&dir.join(FLEET_FILE))?;
        let _ = end.send(());
        serving.await?;
        let app = open(dir, app.clock.clone()).await?;
        history::write(&app, organization.id, self.seed, Clock::system().now()).await?;
        special_servers::write(&app, organization.id, Clock::system().now()).await?;
        self.import_advisories(&app, dir).await?;
        daily_stats::write(&app, organization.id, self.seed, Clock::system().now()).await?;
        app.db.close().await;
        let mark = Parameters { seed: self.seed, servers: self.servers };
        // Renamed, so that the file is complete if it exists.
        let incomplete = dir.join(format!("{PARAMETERS_FILE}.new"));
        std::fs::write(&incomplete, serde_json::to_vec(&mark)?)?;
        Ok(std::fs::rename(incomplete, dir.join(PARAMETERS_FILE))?)
    }

    async fn import_advisories(&self, app: &App, dir: &Path) -> anyhow::Result<()> {
        let now = Clock::system().now();
        for path in advisories::write(dir, self.seed, self.servers, now)? {
            let import = ImportRequest { path, name: None, kind: None, as_of: None };
            feeds::import(&app.db, import, now, |_| {}).await?;
        }
        Ok(())
    }

    async fn config(&self, app: &App, org: OrgId, url: &str) -> anyhow::Result<Config> {
        let new = enrollment_tokens::NewToken {
            name: "simulated servers".into(),
            environment: None,
            tags: Vec::new(),
            uses_max: None,
            expires_at: None,
        };
        let (_, token) = enrollment_tokens::create(app, &dev::actor(org), new).await?;
        let config = Config::new(url, token.parse()?, self.servers);
        Ok(Config { behavior: self.nature(self.speed), ..config })
    }

    /// Starts the fleet in the state in which it was last stopped. After a kill, the servers have
    /// the packages that they had when the killed process started.
    async fn fleet(&self, app: &App, dir: &Path, url: &str) -> anyhow::Result<Swarm> {
        let file = dir.join(FLEET_FILE);
        let org = organization(app).await?;
        let saved = match SavedAgents::read(&file) {
            Err(SavedError::Unclean { .. }) => {
                let counters = sync_counters(app, org).await?;
                SavedAgents::recover(&file, |server| counters.get(&server).copied())
            }
            saved => saved,
        };
        let saved = saved.context(
            "cannot load the simulated servers: remove the directory to start a new demo",
        )?;
        let saved = saved.context(
            "the simulated servers are missing: remove the directory to start a new demo",
        )?;
        let config = Config { saved: Some(saved), ..self.config(app, org, url).await? };
        SavedAgents::mark_taken(&file)?;
        let fleet = Swarm::start(config)?;
        for (agent, code) in FAILING_HOSTS {
            fleet.script(agent, Script::FailWith(code));
        }
        for agent in OFFLINE_HOSTS {
            fleet.script(agent, Script::Disconnect);
        }
        Ok(fleet)
    }

    fn print_banner(
        &self,
        dir: &Path,
        url: &str,
        key: &str,
        link: Option<&str>,
    ) -> anyhow::Result<()> {
        let (dashboard, once) = banner::dashboard_link(link, url);
        let [servers, patches, cves, batches, runs] = [
            "servers list --environment production",
            "patches list --severity critical,high",
            "cves list",
            "batches list",
            "schedules list",
        ]
        .map(|words| banner::command_line(dir, words));
        crate::print_line(&format!(
            "Fleetmend is running at {url}\n\n  \
               dashboard      {dashboard}\n  \
               API reference  {url}/docs\n  \
               admin key      {key}\n  \
               saved in       {}\n\n\
             {once}{} simulated servers and {} that are switched off, seed {}. All data is invented.\n\
             A batch is always in progress.\n\n\
             Try, in another terminal:\n\n  \
               {servers}\n  \
               {patches}\n  \
               {cves}\n  \
               {batches}\n  \
               {runs}\n\n\
             Press Ctrl-C to stop. The next start keeps all data.\n",
            dir.join(credentials::FILE).display(),
            self.servers,
            special_servers::COUNT,
            self.seed,
        ))
    }
}

/// Locks the directory for this process. Fails if another demo uses it, or if it holds anything
/// else.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let shown = dir.display();
    let path = dir.join(LOCK_FILE);
    let is_demo = path.exists() || dir.join(PARAMETERS_FILE).exists();
    ensure!(
        is_demo || std::fs::read_dir(dir)?.next().is_none(),
        "{shown} is not empty and does not hold a demo: remove it, or set another directory with --data-dir"
    );
    let file = File::create(&path).with_context(|| format!("cannot write to {shown}"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "a demo is already running in {shown}: stop it, or set another directory with --data-dir"
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Removes a demo whose creation was interrupted, but never another installation.
async fn remove_incomplete(dir: &Path) -> anyhow::Result<()> {
    let shown = dir.display();
    let entries: Vec<_> = std::fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    let leftover: Vec<_> =
        entries.into_iter().filter(|entry| entry.file_name() != LOCK_FILE).collect();
    if leftover.is_empty() {
        return Ok(());
    }
    let unusable = || format!("cannot use the incomplete demo in {shown}: remove the directory");
    let app = open(dir, Clock::system()).await.with_context(unusable)?;
    let organizations = store::organizations::list(&mut *app.db.read().await?).await?;
    app.db.close().await;
    ensure!(
        organizations.iter().all(|organization| organization.name == ORGANIZATION),
        "{shown} holds an installation that is not a demo: set another directory with --data-dir"
    );
    for entry in leftover {
        let removed = match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path()),
            false => std::fs::remove_file(entry.path()),
        };
        match removed {
            // Closing the database may have removed a file.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(unusable);
            }
            _ => {}
        }
    }
    Ok(())
}

/// The last sync counter of every server that the service has stored.
async fn sync_counters(app: &App, org: OrgId) -> anyhow::Result<HashMap<ServerId, u64>> {
    let mut reader = app.db.read().await?;
    let ids = server_list::ids(&mut reader, org, &Filter::default()).await?;
    let all = store::servers::get_all(&mut reader, &ids).await?;
    Ok(all.into_iter().map(|server| (server.id, server.counter.unsigned_abs())).collect())
}

async fn open(dir: &Path, clock: Clock) -> anyhow::Result<App> {
    let secrets = Secrets::create(dir)?;
    let url = settings::default_database_url(dir);
    let (db, secrets) = settings::open_demo(&url, secrets).await?;
    // The demo creates its own advisories.
    let feeds = FeedSettings { offline: true, ..FeedSettings::default() };
    let replica = format!("{:032x}", random_u128());
    let settings = Settings { replica, feeds, ..Settings::default() };
    Ok(App::new(AppParts { db, clock, secrets, settings }))
}

async fn organization(app: &App) -> anyhow::Result<OrgId> {
    let organizations = store::organizations::list(&mut *app.db.read().await?).await?;
    Ok(organizations.first().context("no organization exists")?.id)
}

async fn wait_for_scans(app: &App, org: OrgId, servers: u64) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let mut reader = app.db.read().await?;
        let ids = server_list::ids(&mut reader, org, &Filter::default()).await?;
        let all = store::servers::get_all(&mut reader, &ids).await?;
        let looked =
            all.iter().filter(|server| server.last_scan_at.is_some() && server.packages > 0);
        if looked.count() as u64 >= servers {
            return Ok(());
        }
    }
}
