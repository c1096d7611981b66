//! `fleetmend dev`: a running service that manages this machine, with one command.
//!
//! The service and an agent run in this process. The agent is configured through its own flags, as
//! a host administrator would do it: what it must not do is forbidden by its host limits, not by
//! the service. The text printed at startup is in `banner`.

pub(crate) mod banner;

use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::shell::{enroll::Enroll, run::Run, state::StateDir};
use anyhow::{Context as _, bail};
use clap::{Args, Command};
use server::app::{App, AppParts, Settings};
use service::Actor;
use service::app::FeedSettings;
use service::auth::api_keys as keys;
use service::auth::api_keys::NewKey;
use service::auth::enrollment_tokens as tokens;
use service::auth::enrollment_tokens::NewToken;
use service::auth::users;
use service::clock::{Clock, random_u128};
use service::commands::setup;
use service::secrets::Secrets;
use store::StoreError;
use tokio::sync::{oneshot, watch};
use vocab::Role;

use crate::listen;
use crate::logs;
use crate::operator::credentials;
use crate::operator::credentials::Credentials;
use crate::serve::shutdown_signal;
use crate::settings;
use crate::settings::{Durability, FeedArgs, SettingsFile};

const ORGANIZATION: &str = "Development";
/// Name of the user who signs in first.
const FIRST_USER: &str = "admin";
const ENVIRONMENT: &str = "development";
/// Lifetime of the enrollment token that this machine uses.
const TOKEN_LIFETIME: Duration = Duration::from_secs(600);

/// Start a service and an agent on this machine, to try Fleetmend out.
///
/// The first start creates an embedded database, an organization and an admin key; later starts
/// reuse them. Nothing is installed on this machine unless --allow-install is given: without it,
/// the agent's host limits reject every order. Press Ctrl-C to stop.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend dev
  fleetmend dev --listen 127.0.0.1:7601 --data-dir ./try
  sudo fleetmend dev --allow-install")]
pub(crate) struct Dev {
    /// Directory for the database and all other files [default: ~/.local/share/fleetmend/dev]
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", env = "FLEETMEND_LISTEN", default_value = listen::DEFAULT)]
    listen: String,
    /// Allow orders to change this machine, within /etc/fleetmend/limits.toml; requires root
    #[arg(long)]
    allow_install: bool,
    /// Manage the system installed under this directory instead of the running one
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(flatten)]
    feeds: FeedArgs,
    /// Log level (error, warn, info, debug) or a filter such as info,server=debug
    #[arg(long, value_name = "FILTER", env = "FLEETMEND_LOG", default_value = "warn")]
    log: String,
}

impl Dev {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        logs::start(&self.log, Some(logs::Format::Text)).context("invalid --log")?;
        let dir = self.prepare()?;
        let feeds = self.feeds.settings(&SettingsFile::default())?;
        let app = open_app(&dir, feeds).await?;
        let listener = listen::bind(&self.listen).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let key = admin_key(&app, &dir.join(credentials::FILE)).await?;
        let saved_credentials =
            Credentials { url: Some(url.clone()), api_key: Some(key.clone()), ca_cert: None };
        saved_credentials.write(&dir.join(credentials::FILE))?;
        let stop = shutdown_signal()?;
        // When one ends, the other ends too: the agent failed to start, or the user stopped the
        // service.
        let (end, ending) = watch::channel(false);
        let ended = || async {
            let _ = ending.clone().wait_for(|ended| *ended).await;
        };
        let serving = async {
            let stop = async {
                tokio::select! { () = stop => {} () = ended() => {} }
                end.send_replace(true);
            };
            server::run(app.clone(), listener, None, stop).await;
        };
        let observing = async {
            tokio::select! {
                observed = self.run_agent(&app, &dir, &url, &key) => {
                    if observed.is_err() {
                        end.send_replace(true);
                    }
                    observed
                }
                () = ended() => Ok(()),
            }
        };
        tokio::join!(serving, observing).1
    }

    /// Checks everything that can be checked before anything is created.
    fn prepare(&self) -> anyhow::Result<PathBuf> {
        let root = agent::shell::resolve_root(self.root.as_deref())?;
        agent::backend::detect(&root).context(
            "cannot manage this machine; to run the service without an agent, use `fleetmend init` and `fleetmend server`",
        )?;
        if self.allow_install && !rustix::process::geteuid().is_root() {
            bail!(
                "--allow-install requires root, as package managers do: start it with sudo, or omit the flag"
            );
        }
        let Some(dir) = self.data_dir.clone().or_else(credentials::dev_dir) else {
            bail!("no home directory to store files in: set a directory with --data-dir");
        };
        let shown = dir.display().to_string();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).with_context(|| {
            format!("cannot create {shown}: set another directory with --data-dir")
        })?;
        let dir = dir.canonicalize().with_context(|| format!("cannot use {shown}"))?;
        let owner = std::fs::metadata(&dir)?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            bail!(
                "{shown} belongs to another user, who started `fleetmend dev` there: start it as that \
                 user, or set another directory with --data-dir"
            );
        }
        if StateDir::open(&agent_dir(&dir))?.is_locked() {
            bail!(
                "`fleetmend dev` is already running with {shown}: stop it first, or set another directory with --data-dir"
            );
        }
        Ok(dir)
    }

    /// Enrolls this machine unless it is enrolled, then runs the agent until it stops.
    async fn run_agent(&self, app: &App, dir: &Path, url: &str, key: &str) -> anyhow::Result<()> {
        let agent_dir = agent_dir(dir);
        let state = StateDir::open(&agent_dir)?;
        if state.enrollment()?.is_none() || state.removed_at()?.is_some() {
            let token = create_enrollment_token(app).await?;
            let mut flags = self.flags(&agent_dir);
            let joining = ["--server", url, "--token", &token, "--environment", ENVIRONMENT];
            flags.extend(joining.map(OsString::from));
            parse_flags::<Enroll>(flags)?.run().await.context("cannot enroll this machine")?;
        }
        let server = state.enrollment()?.context("this machine is not enrolled")?.server_id;
        let mut flags = self.flags(&agent_dir);
        flags.extend(["--server", url, "--look-first"].map(OsString::from));
        if !self.allow_install {
            let limits = agent_dir.join("limits.toml");
            std::fs::write(&limits, LIMITS)?;
            flags.extend(["--limits".into(), limits.into_os_string()]);
        }
        let agent = parse_flags::<Run>(flags)?;
        let link = password_link(app, url).await?;
        let link = link.as_deref();
        let banner = banner::Banner { dir, url, key, link, allow_install: self.allow_install };
        banner.print()?;
        let first_look = async {
            let seen = banner.wait_for_first_scan(&server.to_string()).await;
            // This only prints a status line; failing to print it is no reason to stop.
            let _ = seen;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // The server was removed from the fleet: the service keeps running, and the next start
            // enrolls this machine again.
            result = run_agent_thread(agent) => crate::print_line(&result?),
            () = first_look => Ok(()),
        }
    }

    fn flags(&self, agent_dir: &Path) -> Vec<OsString> {
        let mut flags = vec!["--state-dir".into(), agent_dir.as_os_str().to_owned()];
        if let Some(root) = &self.root {
            flags.extend(["--root".into(), root.as_os_str().to_owned()]);
        }
        flags
    }
}

/// Runs the agent on its own thread, so that stopping `dev` does not wait for a package scan. The
/// agent tolerates being killed at any point, and a running package manager continues without it.
async fn run_agent_thread(agent: Run) -> anyhow::Result<String> {
    let (tell, told) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("agent".to_owned()).spawn(move || {
        // The receiver is gone if `dev` has ended.
        let _ = tell.send(runtime.block_on(agent.run()));
    })?;
    told.await.context("the agent ended without a result")?
}

/// The agent's host limits without `--allow-install`.
const LIMITS: &str = "\
# Written by `fleetmend dev` at every start without --allow-install.
frozen = true
";

fn agent_dir(dir: &Path) -> PathBuf {
    dir.join("agent")
}

/// Parses flags for one of the agent's commands, as the agent's own binary would.
fn parse_flags<T: Args>(flags: Vec<OsString>) -> anyhow::Result<T> {
    let command = T::augment_args(Command::new("fleetmend-agent").no_binary_name(true));
    Ok(T::from_arg_matches(&command.try_get_matches_from(flags)?)?)
}

/// Opens the service on the embedded database.
async fn open_app(dir: &Path, feeds: FeedSettings) -> anyhow::Result<App> {
    let secrets = Secrets::create(dir)?;
    let url = settings::default_database_url(dir);
    let opened = settings::open_service(&url, Durability::Process, secrets).await;
    let (db, secrets) = opened.map_err(|error| {
        let other_version = matches!(
            error.downcast_ref::<StoreError>(),
            Some(StoreError::NewerDatabase { .. } | StoreError::MigrationChanged { .. })
        );
        match other_version {
            true => error.context(format!(
                "{} was created by another version of fleetmend: use that version, or start over in another \
                 directory with --data-dir",
                dir.display()
            )),
            false => error,
        }
    })?;
    // Two processes with the same replica name would both consider themselves the leader.
    let settings = Settings {
        replica: format!("{:032x}", random_u128()),
        feeds,
        agents: settings::load_built_agents(),
        // To try webhooks with a receiver on this host.
        webhook_allow_local: true,
        ..Settings::default()
    };
    Ok(App::new(AppParts { db, clock: Clock::system(), secrets, settings }))
}

/// The admin key created at the first start, or a new one if that key was lost or revoked.
pub(crate) async fn admin_key(app: &App, file: &Path) -> anyhow::Result<String> {
    let organizations = store::organizations::list(&mut *app.db.read().await?).await?;
    let Some(organization) = organizations.first() else {
        return Ok(setup::create_organization(app, ORGANIZATION).await?.1);
    };
    let kept = if file.exists() { Credentials::read(file)?.api_key } else { None };
    if let Some(kept) = kept
        && app.api_keys().authenticate(app, &kept).await.is_ok_and(|key| key.role == Role::Admin)
    {
        return Ok(kept);
    }
    let new = NewKey {
        name: "created by fleetmend dev".into(),
        role: Role::Admin,
        environments: None,
        expires_at: None,
    };
    let actor = actor(organization.id);
    Ok(keys::create(app, &actor, new).await?.1)
}

pub(crate) fn actor(org: vocab::OrgId) -> Actor {
    Actor { org, id: "dev".into(), role: Role::Admin }
}

/// The link for setting the first password, or none once any user has a password.
pub(crate) async fn password_link(app: &App, url: &str) -> anyhow::Result<Option<String>> {
    let organizations = store::organizations::list(&mut *app.db.read().await?).await?;
    let organization = organizations.first().context("no organization exists")?;
    let all = store::Page { limit: 100, offset: 0 };
    let people = store::users::list(&mut *app.db.read().await?, organization.id, all).await?.items;
    if people.iter().any(|user| user.password.is_some()) {
        return Ok(None);
    }
    let actor = actor(organization.id);
    let token = match people.iter().find(|user| user.name == FIRST_USER) {
        Some(user) => users::reset(app, &actor, user).await?,
        None => users::invite(app, &actor, FIRST_USER, Role::Admin).await?.1,
    };
    Ok(Some(crate::users::link_url(url, &token)))
}

/// An enrollment token for this machine only.
async fn create_enrollment_token(app: &App) -> anyhow::Result<String> {
    let organizations = store::organizations::list(&mut *app.db.read().await?).await?;
    let organization = organizations.first().context("no organization exists")?;
    let ends = app.clock.now() + TOKEN_LIFETIME;
    let new = NewToken {
        name: "this machine".into(),
        environment: None,
        tags: Vec::new(),
        uses_max: Some(1),
        expires_at: Some(ends),
    };
    Ok(tokens::create(app, &actor(organization.id), new).await?.1)
}
