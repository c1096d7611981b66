//! `fleetmend webhooks`: sends events to other systems.

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::Value;
use wire::v1::{
    CreateWebhook, Delivery, EditWebhook, List, RotateWebhook, Webhook, WebhookTest,
    WebhookWithSecret,
};

use super::api::{ApiResponse, Query};
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::confirm;
use super::selection::selector;
use super::table::{
    Cell, Column, Screen, Tone, escape_cell, full_column, optional_cell, optional_column,
    truncated_column,
};
use super::{Session, UsageError, api_name, print, print_message, toned_cell};

/// Send events to other systems.
#[derive(Args)]
pub(crate) struct Webhooks {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a webhook; its signing secret is printed once
    #[command(after_help = "\
Examples:
  fleetmend webhooks create tickets --to https://tickets.example.com/fleetmend --type task.failed
  fleetmend webhooks create chat --to https://hooks.slack.com/services/… --format slack \\
    --type 'batch.*' --type server.offline --environment production")]
    Create(Create),
    /// List webhooks
    #[command(after_help = "Example:\n  fleetmend webhooks list")]
    List,
    /// Show a webhook, and whether its deliveries succeed
    #[command(after_help = "Example:\n  fleetmend webhooks show chat")]
    Show {
        /// Webhook ID or name
        webhook: String,
    },
    /// Change the given properties of a webhook and keep the others
    #[command(after_help = "\
Examples:
  fleetmend webhooks edit chat --type 'batch.*,cve.exploited'
  fleetmend webhooks edit chat --all-servers")]
    Edit(Edit),
    /// Send events again; those that happened while it was disabled are not sent
    #[command(after_help = "Example:\n  fleetmend webhooks enable chat")]
    Enable {
        /// Webhook ID or name
        webhook: String,
    },
    /// Stop sending events
    #[command(after_help = "Example:\n  fleetmend webhooks disable chat")]
    Disable {
        /// Webhook ID or name
        webhook: String,
    },
    /// Send a test event; exits with 1 if the receiver does not accept it
    #[command(after_help = "Example:\n  fleetmend webhooks test chat")]
    Test {
        /// Webhook ID or name
        webhook: String,
    },
    /// List the deliveries of a webhook, newest first
    #[command(after_help = "\
Examples:
  fleetmend webhooks deliveries chat --limit 20
  fleetmend webhooks deliveries chat --state pending,failed")]
    Deliveries(Deliveries),
    /// Send a delivery again, with all of its attempts
    #[command(
        after_help = "Example:\n  fleetmend webhooks redeliver chat dlv_01k9zq3c8efxr9w1m6t5y0b7a2"
    )]
    Redeliver {
        /// Webhook ID or name
        webhook: String,
        /// Delivery ID, from `fleetmend webhooks deliveries`
        delivery: String,
    },
    /// Replace the signing secret; the new one is printed once
    #[command(after_help = "\
Examples:
  fleetmend webhooks rotate tickets
  fleetmend webhooks rotate tickets --overlap-hours 0 --yes")]
    Rotate {
        /// Webhook ID or name
        webhook: String,
        /// How long requests are also signed with the previous secret [default: 24]
        #[arg(long, value_name = "HOURS")]
        overlap_hours: Option<u32>,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
    /// Delete a webhook with its log
    #[command(after_help = "Example:\n  fleetmend webhooks delete chat")]
    Delete {
        /// Webhook ID or name
        webhook: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Args)]
struct Create {
    /// Name of the webhook
    name: String,
    /// Address that events are sent to
    #[arg(long = "to", id = "to", value_name = "URL")]
    url: String,
    /// Type of events, `batch.*` for a group of them, or `*` for all; repeatable
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', required = true)]
    types: Vec<String>,
    /// Format of the requests [default: standard]
    #[arg(long, value_parser = FORMATS)]
    format: Option<String>,
    #[command(flatten)]
    targets: TargetArgs,
    /// Create the webhook disabled
    #[arg(long)]
    disabled: bool,
}

#[derive(Args)]
struct Edit {
    /// Webhook ID or name
    webhook: String,
    /// New name of the webhook
    #[arg(long)]
    name: Option<String>,
    /// Address that events are sent to
    #[arg(long = "to", id = "to", value_name = "URL")]
    url: Option<String>,
    /// Type of events, `batch.*` for a group of them, or `*` for all; repeatable
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Format of the requests
    #[arg(long, value_parser = FORMATS)]
    format: Option<String>,
    #[command(flatten)]
    targets: TargetArgs,
    /// Send the events of all servers
    #[arg(long, conflicts_with_all = ["environment", "os", "tag", "server"])]
    all_servers: bool,
}

const FORMATS: [&str; 3] = ["standard", "slack", "teams"];

/// Events that are not about a server are sent in any case.
#[derive(Args)]
struct TargetArgs {
    /// Only events of servers in this environment
    #[arg(long)]
    environment: Option<String>,
    /// Only events of servers with this operating system, such as debian or "debian 12"
    #[arg(long)]
    os: Option<String>,
    /// Only events of servers with this tag; if repeated, servers must have all tags
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Only events of this server, by ID or name; repeatable
    #[arg(long, value_name = "SERVER")]
    server: Vec<String>,
}

#[derive(Args)]
struct Deliveries {
    /// Webhook ID or name
    webhook: String,
    /// Filter by state, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = ["pending", "delivered", "failed"])]
    state: Vec<String>,
    #[command(flatten)]
    page: PageArgs,
}

const COLUMNS: [Column; 8] = [
    truncated_column("NAME"),
    full_column("STATE"),
    full_column("PENDING").align_right(),
    truncated_column("SENT TO"),
    truncated_column("TYPES"),
    optional_column("FORMAT"),
    optional_column("SERVERS"),
    optional_column("ID"),
];

const DELIVERY_COLUMNS: [Column; 9] = [
    optional_column("QUEUED"),
    full_column("TYPE"),
    truncated_column("SUBJECT"),
    full_column("STATE"),
    full_column("ATTEMPTS").align_right(),
    full_column("NEXT"),
    optional_column("STATUS"),
    truncated_column("ERROR"),
    full_column("ID"),
];

impl Webhooks {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::Create(create) => create.run(&session).await,
            Command::List => list(&session).await,
            Command::Show { webhook } => {
                let id = session.resolve_webhook(&webhook).await?;
                show(&session, &session.api.get(&["webhooks", &id]).await?)
            }
            Command::Edit(edit) => edit.run(&session).await,
            Command::Enable { webhook } => set_enabled(&session, &webhook, true).await,
            Command::Disable { webhook } => set_enabled(&session, &webhook, false).await,
            Command::Test { webhook } => test(&session, &webhook).await,
            Command::Deliveries(deliveries) => deliveries.run(&session).await,
            Command::Redeliver { webhook, delivery } => {
                let id = session.resolve_webhook(&webhook).await?;
                let path = ["webhooks", &id, "deliveries", &delivery, "redeliver"];
                let body = session.api.post(&path, None::<&()>).await?;
                let queued: Delivery = body.read()?;
                finish(&session, &body, &format!("{} is sent again now.", queued.event_type))
            }
            Command::Rotate { webhook, overlap_hours, yes } => {
                let id = session.resolve_webhook(&webhook).await?;
                confirm(&format!("Replace the signing secret of {webhook}?"), yes)?;
                let request = RotateWebhook { overlap_hours };
                let path = ["webhooks", &id, "rotate"];
                show_secret(&session, &session.api.post(&path, Some(&request)).await?)
            }
            Command::Delete { webhook, yes } => {
                let id = session.resolve_webhook(&webhook).await?;
                let seen = session.api.get(&["webhooks", &id]).await?;
                let name = escape_cell(seen.read::<Webhook>()?.name);
                confirm(&format!("Delete the webhook `{name}` with its log?"), yes)?;
                session.api.delete(&["webhooks", &id], seen.etag.as_deref()).await?;
                print_message(&format!("Deleted the webhook `{name}`."))
            }
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let body = CreateWebhook {
            targets: self.targets.selector(session).await?,
            name: self.name,
            url: self.url,
            types: self.types,
            format: self.format,
            enabled: self.disabled.then_some(false),
        };
        show_secret(session, &session.api.post(&["webhooks"], Some(&body)).await?)
    }
}

impl Edit {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let targets = match self.all_servers {
            true => Some(None),
            false => self.targets.selector(session).await?.map(Some),
        };
        let change = EditWebhook {
            name: self.name,
            url: self.url,
            types: (!self.types.is_empty()).then_some(self.types),
            targets,
            format: self.format,
            enabled: None,
        };
        if change == EditWebhook::default() {
            let text = "nothing to change: set at least one property, such as --type";
            return Err(UsageError(text.to_owned()).into());
        }
        let id = session.resolve_webhook(&self.webhook).await?;
        show(session, &session.api.patch(&["webhooks", &id], None, &change).await?)
    }
}

impl TargetArgs {
    async fn selector(&self, session: &Session) -> anyhow::Result<Option<Value>> {
        selector(session, self.environment.as_ref(), self.os.as_ref(), &self.tag, &self.server)
            .await
    }
}

impl Deliveries {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let id = session.resolve_webhook(&self.webhook).await?;
        let path = ["webhooks", &id, "deliveries"];
        let listing = ListView { path: &path, noun: "deliveries", columns: &DELIVERY_COLUMNS };
        let query = || Query::default().with_all("state", &self.state);
        session.list(listing, &self.page, query, |one| delivery_row(one, &session.screen)).await
    }
}

/// The API returns all webhooks on one page.
async fn list(session: &Session) -> anyhow::Result<()> {
    let body = session.api.get(&["webhooks"]).await?;
    let all = body.read::<List<Webhook>>()?.data;
    session.show(&body, |screen| {
        if all.is_empty() && screen.width.is_some() {
            return Ok(format!("{}\n", screen.paint("No webhooks.", Tone::Faint)));
        }
        let rows: Vec<_> = all.iter().map(|webhook| row(webhook, screen)).collect();
        Ok(screen.table(&COLUMNS, &rows))
    })
}

async fn set_enabled(session: &Session, id_or_name: &str, enabled: bool) -> anyhow::Result<()> {
    let id = session.resolve_webhook(id_or_name).await?;
    let change = EditWebhook { enabled: Some(enabled), ..EditWebhook::default() };
    let body = session.api.patch(&["webhooks", &id], None, &change).await?;
    let name = escape_cell(body.read::<Webhook>()?.name);
    finish(
        session,
        &body,
        &match enabled {
            true => format!("Enabled {name}. Events from now on are sent."),
            false => format!("Disabled {name}."),
        },
    )
}

async fn test(session: &Session, id_or_name: &str) -> anyhow::Result<()> {
    let id = session.resolve_webhook(id_or_name).await?;
    let body = session.api.post(&["webhooks", &id, "test"], None::<&()>).await?;
    let result: WebhookTest = body.read()?;
    if session.json {
        print(&format!("{}\n", body.text))?;
    }
    let response = result.response_body.as_deref().map(str::trim).filter(|text| !text.is_empty());
    if !result.delivered {
        let error = result.error.unwrap_or_default();
        let said = response.map(|text| format!("\n  Response: {}", escape_cell(text.to_owned())));
        bail!("the test was not accepted: {}{}", escape_cell(error), said.unwrap_or_default());
    }
    match session.json {
        true => Ok(()),
        false => print_message(&format!(
            "The receiver accepted the test with status {}.",
            result.response_status.unwrap_or_default(),
        )),
    }
}

/// Prints a result: the response with `--json`, otherwise a message.
fn finish(session: &Session, body: &ApiResponse, message: &str) -> anyhow::Result<()> {
    match session.json {
        true => print(&format!("{}\n", body.text)),
        false => print_message(message),
    }
}

/// Prints the signing secret.
fn show_secret(session: &Session, body: &ApiResponse) -> anyhow::Result<()> {
    session.show(body, |_| Ok(format!("{}\n", body.read::<WebhookWithSecret>()?.secret)))?;
    if session.json {
        return Ok(());
    }
    let WebhookWithSecret { webhook, .. } = body.read()?;
    let overlap = webhook.old_secret_until.map(|until| {
        format!(" Until {until:.0}, requests are also signed with the previous secret.")
    });
    print_message(&format!(
        "The signing secret is not shown again.{} To send a test event, run:\n  \
         fleetmend webhooks test {}",
        overlap.unwrap_or_default(),
        webhook.id,
    ))
}

fn show(session: &Session, body: &ApiResponse) -> anyhow::Result<()> {
    session.show(body, |screen| Ok(format_webhook(&body.read()?, screen)))
}

fn state(webhook: &Webhook, screen: &Screen) -> Cell {
    match (webhook.enabled, webhook.failing_since) {
        (false, _) => Cell::new("disabled", Tone::Faint),
        (true, None) => Cell::new("enabled", Tone::Good),
        (true, Some(since)) => {
            Cell::new(format!("failing since {}", screen.time(since).text()), Tone::Bad)
        }
    }
}

fn servers(webhook: &Webhook) -> Cell {
    webhook.targets.as_ref().map_or_else(|| "all servers".into(), Cell::from)
}

fn row(webhook: &Webhook, screen: &Screen) -> Vec<Cell> {
    vec![
        (&webhook.name).into(),
        state(webhook, screen),
        webhook.pending.into(),
        webhook.origin().into(),
        webhook.types.join(", ").into(),
        api_name(webhook.format).into(),
        servers(webhook),
        webhook.id.into(),
    ]
}

fn delivery_row(delivery: &Delivery, screen: &Screen) -> Vec<Cell> {
    vec![
        screen.time(delivery.created_at),
        (&delivery.event_type).into(),
        (&delivery.subject_name).into(),
        toned_cell(delivery.state),
        delivery.attempts.into(),
        screen.optional_time(delivery.next_attempt_at),
        optional_cell(delivery.response_status),
        optional_cell(delivery.error.as_ref()),
        delivery.id.into(),
    ]
}

fn format_webhook(webhook: &Webhook, screen: &Screen) -> String {
    let mut properties = vec![
        ("webhook", (&webhook.name).into()),
        ("id", webhook.id.into()),
        ("state", state(webhook, screen)),
        ("pending", webhook.pending.into()),
        ("url", (&webhook.url).into()),
        ("format", api_name(webhook.format).into()),
        ("types", webhook.types.join(", ").into()),
        ("servers", servers(webhook)),
        ("previous secret until", screen.optional_time(webhook.old_secret_until)),
        ("created", screen.time(webhook.created_at)),
        ("created by", (&webhook.created_by).into()),
    ];
    if let Some(reason) = &webhook.disabled_reason {
        properties.insert(3, ("reason", reason.into()));
    }
    screen.properties(&properties)
}
