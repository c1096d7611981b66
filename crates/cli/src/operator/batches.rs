//! `fleetmend batches`: patches several servers, and controls and shows batches.

use clap::{Args, Subcommand};
use wire::v1::{Batch, BatchWave, BatchWaveState, Decision, Server, Task};

use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::{
    PacingArgs, PatchRequest, StartArgs, UpdateArgs, confirm, options_body, with_name, with_servers,
};
use super::table::{
    Cell, Column, Screen, Tone, full_column, optional_column, pluralize, truncated_column,
};
use super::{Session, UsageError, api_name, batch_view, print, toned_cell, watch};

/// Patch several servers at once.
#[derive(Args)]
pub(crate) struct Batches {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Patch several servers; shows a preview and asks for confirmation
    #[command(after_help = "\
Examples:
  fleetmend batches create web-1 web-2 --security-only --watch
  fleetmend batches create --environment production --all-updates --reboot if_required --canary 2 --max-failures 5%
  fleetmend batches create --all --security-only --wave 1,soak=30 --wave 10%,soak=60 --wave rest,approval
  fleetmend batches create --all --package openssl --name 'openssl everywhere' --yes --json

Name servers by ID or name, or select them with --environment, --os and --tag, which must all match.")]
    Create(Box<Create>),
    /// List batches, newest first
    #[command(after_help = "Example:\n  fleetmend batches list --state running,halted")]
    List {
        /// Filter by state
        #[arg(long, value_delimiter = ',')]
        state: Vec<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show a batch and its result on each server
    #[command(after_help = "Example:\n  fleetmend batches show bat_…")]
    Show {
        /// Batch ID
        batch: String,
    },
    /// Follow a batch until it ends; the exit code is 0 only if it succeeds
    #[command(after_help = "Example:\n  fleetmend batches watch bat_…")]
    Watch {
        /// Batch ID
        batch: String,
    },
    /// Pause a batch: no further servers start, and orders that were not started are withdrawn
    #[command(after_help = "Example:\n  fleetmend batches pause bat_…")]
    Pause {
        /// Batch ID
        batch: String,
    },
    /// Resume a batch that was paused or halted
    #[command(after_help = "Example:\n  fleetmend batches resume bat_…")]
    Resume {
        /// Batch ID
        batch: String,
    },
    /// Approve the wave that waits for it; not for the creator of the batch
    #[command(
        after_help = "Example:\n  fleetmend batches approve bat_… --comment 'staging looks good'"
    )]
    Approve {
        /// Batch ID
        batch: String,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Reject the wave that waits for an approval, which cancels the rest of the batch
    #[command(
        after_help = "Example:\n  fleetmend batches reject bat_… --comment 'nginx is broken'"
    )]
    Reject {
        /// Batch ID
        batch: String,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Cancel a batch; servers that are being patched finish
    #[command(after_help = "Example:\n  fleetmend batches cancel bat_…")]
    Cancel {
        /// Batch ID
        batch: String,
    },
    /// Retry the failed servers in a new batch
    #[command(after_help = "Example:\n  fleetmend batches retry bat_… --watch")]
    Retry {
        /// Batch ID
        batch: String,
        #[command(flatten)]
        start: StartArgs,
    },
    /// Print the package manager's output on one server of a batch
    #[command(after_help = "Example:\n  fleetmend batches log bat_… web-1")]
    Log {
        /// Batch ID
        batch: String,
        /// Server ID or name
        server: String,
    },
}

#[derive(Args)]
struct DecisionArgs {
    /// Comment for the audit log
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    /// Skip the confirmation prompt
    #[arg(long, short)]
    yes: bool,
}

#[derive(Args)]
struct Create {
    /// Server IDs or names
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
    /// Select servers in this environment
    #[arg(long, conflicts_with = "servers")]
    environment: Option<String>,
    /// Select servers with this operating system, such as debian or "debian 12"
    #[arg(long, conflicts_with = "servers")]
    os: Option<String>,
    /// Select servers with this tag; if repeated, servers must have all tags
    #[arg(long, value_name = "TAG", conflicts_with = "servers")]
    tag: Vec<String>,
    /// Select every server of the organization
    #[arg(long, conflicts_with_all = ["servers", "environment", "os", "tag"])]
    all: bool,
    #[command(flatten)]
    update_args: UpdateArgs,
    #[command(flatten)]
    pacing: PacingArgs,
    #[command(flatten)]
    start: StartArgs,
    /// Name of the batch [default: derived from the updates and the servers]
    #[arg(long)]
    name: Option<String>,
}

const COLUMNS: [Column; 8] = [
    full_column("ID"),
    truncated_column("NAME"),
    full_column("STATE"),
    full_column("DONE").align_right(),
    full_column("FAILED").align_right(),
    full_column("SERVERS").align_right(),
    optional_column("ORIGIN"),
    optional_column("CREATED"),
];

impl Batches {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::Create(create) => create.run(&session).await,
            Command::List { state, page: part } => {
                let query = || Query::default().with_all("state", &state);
                let listing = ListView { path: &["batches"], noun: "batches", columns: &COLUMNS };
                session.list(listing, &part, query, |batch| row(batch, &session.screen)).await
            }
            Command::Show { batch } => {
                let body = session.api.get(&["batches", &batch]).await?;
                session.show(&body, |screen| Ok(batch_view::format_batch(&body.read()?, screen)))
            }
            Command::Watch { batch } => watch::watch_batch(&session, &batch).await,
            Command::Pause { batch } => control_batch(&session, &batch, "pause").await,
            Command::Resume { batch } => control_batch(&session, &batch, "resume").await,
            Command::Approve { batch, decision } => {
                decide(&session, &batch, "approve", decision).await
            }
            Command::Reject { batch, decision } => {
                decide(&session, &batch, "reject", decision).await
            }
            Command::Cancel { batch } => control_batch(&session, &batch, "cancel").await,
            Command::Retry { batch, start } => {
                let seen: Batch = session.api.get(&["batches", &batch]).await?.read()?;
                let failed = seen.progress.failed + seen.progress.timed_out;
                let servers = pluralize(failed, "failed server", "failed servers");
                confirm(&format!("Retry {servers}?"), start.yes)?;
                let none = None::<&()>;
                let body = session.api.post(&["batches", &batch, "retry"], none).await?;
                session.show_started_batch(&body, &start).await
            }
            Command::Log { batch, server } => log(&session, &batch, &server).await,
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        self.update_args.validate()?;
        let servers = self.servers(session).await?;
        let options = self.update_args.apply_to(Default::default(), Some(&self.pacing));
        let preview = with_servers(options_body(&options)?, &servers);
        let body = Some(with_name(preview.clone(), self.name.as_deref()));
        let order = PatchRequest { path: &["batches"], preview, body };
        let body = session.start(order, &self.start).await?;
        session.show_started_batch(&body, &self.start).await
    }

    async fn servers(&self, session: &Session) -> anyhow::Result<Vec<String>> {
        let chosen = self.environment.is_some() || self.os.is_some() || !self.tag.is_empty();
        if !chosen && !self.all && self.servers.is_empty() {
            let usage = "select servers: by name, with --environment, --os or --tag, or with --all";
            return Err(UsageError(usage.to_owned()).into());
        }
        let mut ids = Vec::new();
        for id_or_name in &self.servers {
            ids.push(session.resolve_server(id_or_name).await?);
        }
        if chosen || self.all {
            let query = || {
                Query::default()
                    .with("environment", self.environment.as_ref())
                    .with("os", self.os.as_ref())
                    .with_all("tag", &self.tag)
            };
            let found: Vec<Server> = session.read_all(&["servers"], query).await?;
            ids.extend(found.iter().map(|server| server.id.to_string()));
        }
        match ids.is_empty() {
            true => anyhow::bail!("no server matches; nothing was started"),
            false => Ok(ids),
        }
    }
}

async fn control_batch(session: &Session, batch: &str, action: &str) -> anyhow::Result<()> {
    let body = session.api.post(&["batches", batch, action], None::<&()>).await?;
    session.show(&body, |screen| Ok(batch_view::format_properties(&body.read()?, screen)))
}

/// Approves or rejects the wave that waits for an approval.
async fn decide(
    session: &Session,
    batch: &str,
    action: &str,
    decision: DecisionArgs,
) -> anyhow::Result<()> {
    let seen: Batch = session.api.get(&["batches", batch]).await?.read()?;
    let waits = |wave: &&BatchWave| wave.state == BatchWaveState::AwaitingApproval;
    let wave = seen.waves.iter().find(waits);
    if let Some(wave) = wave {
        let left = pluralize(seen.progress.waiting, "server waits", "servers wait");
        let question = match action {
            "approve" => format!("Approve wave {} of \"{}\"? {left}.", wave.number, seen.name),
            _ => format!("Reject wave {} and cancel \"{}\"? {left}.", wave.number, seen.name),
        };
        confirm(&question, decision.yes)?;
    }
    let body = Decision { comment: decision.comment, wave: wave.map(|wave| wave.number) };
    let body = session.api.post(&["batches", batch, action], Some(&body)).await?;
    session.show(&body, |screen| Ok(batch_view::format_properties(&body.read()?, screen)))
}

async fn log(session: &Session, batch: &str, server: &str) -> anyhow::Result<()> {
    let tasks: Vec<Task> = session.read_all(&["batches", batch, "tasks"], Query::default).await?;
    let named = |task: &&Task| {
        task.server_id.to_string() == server
            || task.hostname.as_str() == server
            || task.name() == server
    };
    let mut found = tasks.iter().filter(named);
    let (Some(task), None) = (found.next(), found.next()) else {
        anyhow::bail!("`{server}` does not identify exactly one server in {batch}");
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
        batch.name.as_str().into(),
        toned_cell(batch.state),
        format!("{}%", progress.percent).into(),
        Cell::from(failed).with_tone(if failed > 0 { Tone::Bad } else { Tone::Plain }),
        progress.total.into(),
        api_name(batch.origin).into(),
        screen.time(batch.created_at),
    ]
}
