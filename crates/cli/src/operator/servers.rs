//! `fleetmend servers`: lists, shows, edits, refreshes, patches, releases and removes servers.

mod show;

use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use vocab::Assessment;
use wire::v1::{
    EditServer, EditServers, EditedServers, Refresh, RefreshState, Server, ServerDetail,
};

use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::{
    PatchRequest, StartArgs, UpdateArgs, confirm, options_body, with_name, with_servers,
};
use super::selection::SelectionArgs;
use super::table::{
    Cell, Column, Screen, Tone, full_column, optional_cell, optional_column, pluralize,
    truncated_column,
};
use super::{Session, api_name, print_message, toned_cell};

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// List, show, patch and remove servers.
#[derive(Args)]
pub(crate) struct Servers {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List servers
    #[command(
        after_help = "Examples:\n  fleetmend servers list --status offline\n  fleetmend servers list --environment production --os 'debian 12' --sort security_updates"
    )]
    List(Filter),
    /// Show one server: its properties, pending updates and CVEs
    #[command(
        after_help = "Examples:\n  fleetmend servers show web-1\n  fleetmend servers show web-1 --packages"
    )]
    Show {
        /// Server ID or name
        server: String,
        /// Show every installed package, not only those with a pending update
        #[arg(long)]
        packages: bool,
    },
    /// Ask a server to scan its packages and report now
    #[command(after_help = "Example:\n  fleetmend servers refresh web-1 --watch")]
    Refresh {
        /// Server ID or name
        server: String,
        /// Wait for the result of the scan
        #[arg(long)]
        watch: bool,
    },
    /// Install updates on one server; shows a preview and asks for confirmation
    #[command(after_help = "\
Examples:
  fleetmend servers patch web-1 --security-only --watch
  fleetmend servers patch web-1 --package openssl --reboot if_required
  fleetmend servers patch web-1 --all-updates --dry-run --yes --watch --json")]
    Patch {
        /// Server ID or name
        server: String,
        #[command(flatten)]
        update_args: UpdateArgs,
        #[command(flatten)]
        start: StartArgs,
        /// Name of the batch [default: derived from the updates and the server]
        #[arg(long)]
        name: Option<String>,
    },
    /// Change the environment or the tags of servers, or the name and the notes of one
    #[command(after_help = "\
Examples:
  fleetmend servers edit web-1 --environment staging
  fleetmend servers edit web-1 --add-tag blue --remove-tag green
  fleetmend servers edit web-1 --no-environment
  fleetmend servers edit db-1 --display-name \"Shop database\" --notes \"Ask the shop team before a reboot\"
  fleetmend servers edit --in-environment dev --with-tag web --environment staging")]
    Edit {
        #[command(flatten)]
        selection: SelectionArgs,
        #[command(flatten)]
        changes: EditArgs,
        /// Skip the confirmation prompt for several servers
        #[arg(long, short)]
        yes: bool,
    },
    /// Release a server from quarantine, so that it receives orders again
    #[command(after_help = "Example:\n  fleetmend servers release web-1")]
    Release {
        /// Server ID or name
        server: String,
    },
    /// Remove a server; its agent stays installed but is inactive
    #[command(after_help = "Example:\n  fleetmend servers remove web-1")]
    Remove {
        /// Server ID or name
        server: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Args)]
#[group(required = true, multiple = true)]
struct EditArgs {
    /// New environment
    #[arg(long)]
    environment: Option<String>,
    /// Remove the server from its environment
    #[arg(long, conflicts_with = "environment")]
    no_environment: bool,
    /// Tag to add (repeatable)
    #[arg(long, value_name = "TAG")]
    add_tag: Vec<String>,
    /// Tag to remove (repeatable)
    #[arg(long, value_name = "TAG")]
    remove_tag: Vec<String>,
    /// Name to show instead of the hostname; empty to remove it (one server only)
    #[arg(long, value_name = "NAME")]
    display_name: Option<String>,
    /// Notes about the server; empty to remove them (one server only)
    #[arg(long, value_name = "TEXT")]
    notes: Option<String>,
}

impl EditArgs {
    /// The request body. Tags are added to and removed from the server's current tags.
    fn body(self, current_tags: &[vocab::Tag]) -> EditServer {
        let changes_tags = !self.add_tag.is_empty() || !self.remove_tag.is_empty();
        let tags = current_tags.iter().map(ToString::to_string).chain(self.add_tag);
        let tags: Vec<String> = tags.filter(|tag| !self.remove_tag.contains(tag)).collect();
        EditServer {
            environment: match self.no_environment {
                true => Some(None),
                false => self.environment.map(Some),
            },
            tags: changes_tags.then_some(Some(tags)),
            display_name: self.display_name.map(none_if_empty),
            notes: self.notes.map(none_if_empty),
        }
    }
}

fn none_if_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[derive(Args, Clone)]
struct Filter {
    /// Filter by status: online or offline
    #[arg(long)]
    status: Option<String>,
    /// Filter by environment
    #[arg(long)]
    environment: Option<String>,
    /// Filter by operating system, such as debian or "debian 12"
    #[arg(long)]
    os: Option<String>,
    /// Filter by tag; if repeated, servers must have all tags
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Filter by text in the hostname or display name
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Filter by whether a reboot is required
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    reboot_required: Option<bool>,
    /// Sort order: hostname, last_seen, security_updates or newest
    #[arg(long, value_name = "ORDER")]
    sort: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

const COLUMNS: [Column; 10] = [
    truncated_column("NAME"),
    full_column("STATUS"),
    optional_column("ENVIRONMENT"),
    optional_column("OS"),
    full_column("UPDATES").align_right(),
    full_column("SECURITY").align_right(),
    optional_column("ASSESSMENT"),
    optional_column("REBOOT"),
    optional_column("SEEN"),
    optional_column("ID"),
];

impl Servers {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(filter) => filter.list(&session).await,
            Command::Show { server, packages } => {
                let id = session.resolve_server(&server).await?;
                let body = session.api.get(&["servers", &id]).await?;
                session
                    .show(&body, |screen| Ok(show::format_server(&body.read()?, packages, screen)))
            }
            Command::Refresh { server, watch } => refresh(&session, &server, watch).await,
            Command::Patch { server, name, update_args: what, start } => {
                what.validate()?;
                let id = session.resolve_server(&server).await?;
                let order = options_body(&what.apply_to(Default::default(), None))?;
                let preview = with_servers(order.clone(), std::slice::from_ref(&id));
                let path = ["servers", &id, "patch"];
                let body = Some(with_name(order, name.as_deref()));
                let order = PatchRequest { path: &path, body, preview };
                let body = session.start(order, &start).await?;
                session.show_started_batch(&body, &start).await
            }
            Command::Edit { selection, changes, yes } => match selection.single() {
                Some(server) => edit(&session, server, changes).await,
                None => edit_many(&session, &selection, changes, yes).await,
            },
            Command::Release { server } => {
                let id = session.resolve_server(&server).await?;
                let body = session.api.post(&["servers", &id, "release"], None::<&()>).await?;
                session.show(&body, |_| Ok(format!("{server} ({id}) receives orders again.\n")))
            }
            Command::Remove { server, yes } => {
                let id = session.resolve_server(&server).await?;
                confirm(
                    &format!("Remove {server} ({id})? Its unfinished tasks are canceled."),
                    yes,
                )?;
                session.api.delete(&["servers", &id], None).await?;
                print_message(&format!(
                    "Removed {server} ({id}). Its agent stays installed but is inactive."
                ))
            }
        }
    }
}

async fn edit(session: &Session, id_or_name: &str, changes: EditArgs) -> anyhow::Result<()> {
    let id = session.resolve_server(id_or_name).await?;
    let seen = session.api.get(&["servers", &id]).await?;
    let server: ServerDetail = seen.read()?;
    let body = changes.body(&server.server.tags);
    // Another change of the tags in between would be lost.
    let etag = body.tags.as_ref().and(seen.etag.as_deref());
    let body = session.api.patch(&["servers", &id], etag, &body).await?;
    session.show(&body, |_| {
        let server: Server = body.read()?;
        let environment = match &server.environment {
            Some(environment) => format!("environment {environment}"),
            None => "no environment".to_owned(),
        };
        let tags: Vec<String> = server.tags.iter().map(ToString::to_string).collect();
        let tags = if tags.is_empty() {
            "no tags".to_owned()
        } else {
            format!("tags {}", tags.join(", "))
        };
        Ok(format!("{} ({id}): {environment}, {tags}.\n", server.name()))
    })
}

async fn edit_many(
    session: &Session,
    selection: &SelectionArgs,
    changes: EditArgs,
    yes: bool,
) -> anyhow::Result<()> {
    if changes.display_name.is_some() || changes.notes.is_some() {
        bail!("--display-name and --notes change one server: name only that one");
    }
    let (targets, shown) = selection.targets(session).await?;
    confirm(&format!("Change {shown}?"), yes)?;
    let environment = match changes.no_environment {
        true => Some(None),
        false => changes.environment.map(Some),
    };
    let (add_tags, remove_tags) = (changes.add_tag, changes.remove_tag);
    let body = EditServers { targets, environment, add_tags, remove_tags };
    let body = session.api.post(&["servers", "edit"], Some(&body)).await?;
    session.show(&body, |_| {
        let EditedServers { matched, changed } = body.read()?;
        let servers = pluralize(matched, "server", "servers");
        Ok(format!("Changed {changed} of {servers}.\n"))
    })
}

async fn refresh(session: &Session, id_or_name: &str, watch: bool) -> anyhow::Result<()> {
    let id = session.resolve_server(id_or_name).await?;
    let mut body = session.api.post(&["servers", &id, "refresh"], None::<&()>).await?;
    let location = body.location.clone();
    let mut refresh: Refresh = body.read()?;
    while watch && refresh.state == RefreshState::Pending {
        let Some(location) = &location else { break };
        tokio::time::sleep(POLL_INTERVAL).await;
        body = session.api.follow(location).await?;
        refresh = body.read()?;
    }
    session.show(&body, |_| {
        let why = refresh.message.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        Ok(format!("{id_or_name}: {}{why}\n", api_name(refresh.state)))
    })?;
    match refresh.state {
        RefreshState::Completed => Ok(()),
        RefreshState::Pending if !watch => Ok(()),
        state => anyhow::bail!("no scan result was received: {}", api_name(state)),
    }
}

impl Filter {
    async fn list(&self, session: &Session) -> anyhow::Result<()> {
        let query = || {
            Query::default()
                .with("status", self.status.as_ref())
                .with("environment", self.environment.as_ref())
                .with("os", self.os.as_ref())
                .with_all("tag", &self.tag)
                .with("q", self.search.as_ref())
                .with("reboot_required", self.reboot_required)
                .with("sort", self.sort.as_ref())
        };
        let listing = ListView { path: &["servers"], noun: "servers", columns: &COLUMNS };
        session.list(listing, &self.page, query, |server| row(server, &session.screen)).await
    }
}

fn row(server: &Server, screen: &Screen) -> Vec<Cell> {
    let security = server.summary.security_updates;
    let (updates, security) = match server.last_scan_at {
        // Unknown; a zero would read as "up to date".
        None => (Cell::new("?", Tone::Warning), Cell::new("?", Tone::Warning)),
        Some(_) => {
            let tone = if security > 0 { Tone::Bad } else { Tone::Plain };
            (server.summary.updates.into(), Cell::from(security).with_tone(tone))
        }
    };
    let assessment = match (server.stale, server.assessment) {
        (true, _) => Cell::new("stale", Tone::Warning),
        (false, Assessment::Assessed) => api_name(server.assessment).into(),
        (false, _) => Cell::new(api_name(server.assessment).replace('_', " "), Tone::Warning),
    };
    vec![
        server.name().into(),
        status(server),
        optional_cell(server.environment.as_ref()),
        optional_cell(server.os.as_ref()),
        updates,
        security,
        assessment,
        reboot(server),
        screen.optional_time(server.last_seen_at),
        server.id.into(),
    ]
}

/// The activity, if there is one: it says more than the status.
fn status(server: &Server) -> Cell {
    use wire::v1::Activity;
    match (&server.quarantine, server.activity, server.status) {
        (Some(_), ..) => Cell::new("quarantine", Tone::Bad),
        (None, Activity::Idle, status) | (None, _, status @ vocab::Status::Offline) => {
            toned_cell(status)
        }
        (None, activity, _) => Cell::new(api_name(activity), Tone::Warning),
    }
}

fn reboot(server: &Server) -> Cell {
    match server.reboot_required {
        true => Cell::new("required", Tone::Warning),
        false => super::table::empty_cell(),
    }
}
