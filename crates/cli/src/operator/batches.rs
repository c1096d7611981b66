//! `fleetmend batches`.

use clap::{Args, Subcommand};
use wire::v1::{Batch, Server, Task};

use super::api::Query;
use super::credentials::Connection;
use super::list::{Listing, Part};
use super::order::{Order, Pace, Start, What, sure, top_level, with_servers};
use super::screen::{Cell, Column, Screen, Tone, count, spare, whole};
use super::{Session, Usage, batch_view, print, toned, watch, word};

/// Patch operations on several servers at once.
#[derive(Args)]
pub(crate) struct Batches {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Patch several servers; shows what would happen and asks
    #[command(after_help = "\
Examples:
  fleetmend batches create web-1 web-2 --security-only --watch
  fleetmend batches create --environment production --all-updates --reboot if_required --canary 2 --max-failures 5%
  fleetmend batches create --all --package openssl --yes --json

Servers are named by id or hostname, or chosen by --environment, --os and --tag, which must all match.")]
    Create(Create),
    /// List batches, the newest first
    #[command(after_help = "Example:\n  fleetmend batches list --state running,halted")]
    List {
        /// Only those in these states
        #[arg(long, value_delimiter = ',')]
        state: Vec<String>,
        #[command(flatten)]
        part: Part,
    },
    /// Show a batch and what came of it on each server
    #[command(after_help = "Example:\n  fleetmend batches show bat_…")]
    Show {
        /// Its id
        batch: String,
    },
    /// Follow a batch to its end; fails unless it succeeds
    #[command(after_help = "Example:\n  fleetmend batches watch bat_…")]
    Watch {
        /// Its id
        batch: String,
    },
    /// Start no further server for now; orders that were not begun are taken back
    #[command(after_help = "Example:\n  fleetmend batches pause bat_…")]
    Pause {
        /// Its id
        batch: String,
    },
    /// Go on with a batch that was paused or that halted
    #[command(after_help = "Example:\n  fleetmend batches resume bat_…")]
    Resume {
        /// Its id
        batch: String,
    },
    /// End a batch; servers in work finish
    #[command(after_help = "Example:\n  fleetmend batches cancel bat_…")]
    Cancel {
        /// Its id
        batch: String,
    },
    /// Try the servers again that failed, in a new batch
    #[command(after_help = "Example:\n  fleetmend batches retry bat_… --watch")]
    Retry {
        /// Its id
        batch: String,
        #[command(flatten)]
        start: Start,
    },
    /// Print what the package manager said on one server of a batch
    #[command(after_help = "Example:\n  fleetmend batches log bat_… web-1")]
    Log {
        /// Its id
        batch: String,
        /// Its id or its hostname
        server: String,
    },
}

#[derive(Args)]
struct Create {
    /// Servers, by id or hostname
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
    /// Every server of this environment
    #[arg(long, conflicts_with = "servers")]
    environment: Option<String>,
    /// Every server with this system: debian, "debian 12"
    #[arg(long, conflicts_with = "servers")]
    os: Option<String>,
    /// Every server with this tag; all of them if given several times
    #[arg(long, value_name = "TAG", conflicts_with = "servers")]
    tag: Vec<String>,
    /// Every server of the organization
    #[arg(long, conflicts_with_all = ["servers", "environment", "os", "tag"])]
    all: bool,
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    start: Start,
}

const COLUMNS: [Column; 7] = [
    whole("ID"),
    whole("STATE"),
    whole("DONE").number(),
    whole("FAILED").number(),
    whole("SERVERS").number(),
    spare("ORIGIN"),
    spare("CREATED"),
];

impl Batches {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::Create(create) => create.run(&session).await,
            Command::List { state, part } => {
                let query = || Query::default().with_all("state", &state);
                let listing = Listing { path: &["batches"], noun: "batches", columns: &COLUMNS };
                session.list(listing, &part, query, |batch| row(batch, &session.screen)).await
            }
            Command::Show { batch } => {
                let body = session.api.get(&["batches", &batch]).await?;
                session.show(&body, |screen| Ok(batch_view::drawn(&body.read()?, screen)))
            }
            Command::Watch { batch } => watch::to_the_end(&session, &batch).await,
            Command::Pause { batch } => steer(&session, &batch, "pause").await,
            Command::Resume { batch } => steer(&session, &batch, "resume").await,
            Command::Cancel { batch } => steer(&session, &batch, "cancel").await,
            Command::Retry { batch, start } => {
                let seen: Batch = session.api.get(&["batches", &batch]).await?.read()?;
                let failed = seen.progress.failed + seen.progress.timed_out;
                let servers = count(failed, "server that failed", "servers that failed");
                sure(&format!("Try {servers} again?"), start.yes)?;
                let none = None::<&()>;
                let body = session.api.post(&["batches", &batch, "retry"], none).await?;
                session.began(&body, &start).await
            }
            Command::Log { batch, server } => log(&session, &batch, &server).await,
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        self.what.is_said()?;
        let servers = self.servers(session).await?;
        let options = self.what.over(Default::default(), Some(&self.pace));
        let body = with_servers(top_level(&options)?, &servers);
        let order = Order { path: &["batches"], preview: body.clone(), body: Some(body) };
        let body = session.start(order, &self.start).await?;
        session.began(&body, &self.start).await
    }

    async fn servers(&self, session: &Session) -> anyhow::Result<Vec<String>> {
        let chosen = self.environment.is_some() || self.os.is_some() || !self.tag.is_empty();
        if !chosen && !self.all && self.servers.is_empty() {
            let said = "say which servers: by name, by --environment, --os or --tag, or --all";
            return Err(Usage(said.to_owned()).into());
        }
        let mut ids = Vec::new();
        for said in &self.servers {
            ids.push(session.server(said).await?);
        }
        if chosen || self.all {
            let query = || {
                Query::default()
                    .with("environment", self.environment.as_ref())
                    .with("os", self.os.as_ref())
                    .with_all("tag", &self.tag)
            };
            let found: Vec<Server> = session.all(&["servers"], query).await?;
            ids.extend(found.iter().map(|server| server.id.to_string()));
        }
        match ids.is_empty() {
            true => anyhow::bail!("no server is like that: nothing was started"),
            false => Ok(ids),
        }
    }
}

async fn steer(session: &Session, batch: &str, how: &str) -> anyhow::Result<()> {
    let body = session.api.post(&["batches", batch, how], None::<&()>).await?;
    session.show(&body, |screen| Ok(batch_view::facts(&body.read()?, screen)))
}

async fn log(session: &Session, batch: &str, server: &str) -> anyhow::Result<()> {
    let tasks: Vec<Task> = session.all(&["batches", batch, "tasks"], Query::default).await?;
    let named =
        |task: &&Task| task.server_id.to_string() == server || task.hostname.to_string() == server;
    let mut found = tasks.iter().filter(named);
    let (Some(task), None) = (found.next(), found.next()) else {
        anyhow::bail!("`{server}` is not the name of one server of {batch}");
    };
    let id = task.id.to_string();
    let body = session.api.get(&["batches", batch, "tasks", &id, "log"]).await?;
    print(&body.text)
}

fn row(batch: &Batch, screen: &Screen) -> Vec<Cell> {
    let progress = &batch.progress;
    let failed = progress.failed + progress.timed_out;
    vec![
        batch.id.into(),
        toned(batch.state),
        format!("{}%", progress.percent).into(),
        Cell::from(failed).toned(if failed > 0 { Tone::Bad } else { Tone::Plain }),
        progress.total.into(),
        word(batch.origin).into(),
        screen.time(batch.created_at),
    ]
}
