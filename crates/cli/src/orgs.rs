//! `fleetmend orgs`: several isolated organizations in one installation.

use anyhow::{anyhow, ensure};
use clap::{Args, Subcommand};
use serde_json::json;
use server::app::App;
use service::ServiceError;
use service::commands::organizations as commands;
use service::commands::organizations::OrganizationContents;
use service::commands::setup;
use store::StoreError;
use store::organizations::{self, Organization};

use crate::installation::Installation;
use crate::operator::table::{Screen, full_column, optional_column, pluralize, truncated_column};
use crate::operator::{confirm, print};

/// Create, list and remove organizations. They share the service and cannot see each other's data.
#[derive(Args)]
pub(crate) struct Orgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create an organization and its first admin key, which is printed once
    #[command(
        after_help = "Example:\n  fleetmend orgs create --data-dir /var/lib/fleetmend \"Acme Labs\""
    )]
    Create(NameArgs),
    /// List organizations with their servers, schedules and keys
    #[command(after_help = "Example:\n  fleetmend orgs list --data-dir /var/lib/fleetmend --json")]
    List(CommonArgs),
    /// Remove an organization: its keys are revoked, its servers removed, its schedules stopped
    ///
    /// The audit log and the history stay in the database. The only way to undo this is to restore
    /// a backup.
    #[command(
        after_help = "Example:\n  fleetmend orgs remove --data-dir /var/lib/fleetmend \"Acme Labs\""
    )]
    Remove(Remove),
}

#[derive(Args)]
struct CommonArgs {
    #[command(flatten)]
    installation: Installation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct NameArgs {
    /// Name of the organization
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args)]
struct Remove {
    #[command(flatten)]
    name_args: NameArgs,
    /// Skip the confirmation prompt
    #[arg(long, short)]
    yes: bool,
}

impl Orgs {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let installation = match &self.command {
            Command::Create(named) => &named.common.installation,
            Command::List(every) => &every.installation,
            Command::Remove(remove) => &remove.name_args.common.installation,
        };
        let app = installation.app(None).await?;
        let done = match &self.command {
            Command::Create(named) => create(&app, named).await,
            Command::List(every) => list(&app, every.json).await,
            Command::Remove(remove) => remove.run(&app).await,
        };
        app.db.close().await;
        done
    }
}

/// Trims and validates an organization's name.
pub(crate) fn validate_name(name: &str) -> anyhow::Result<&str> {
    let name = name.trim();
    let plain =
        !name.is_empty() && name.chars().count() <= 200 && !name.chars().any(char::is_control);
    ensure!(
        plain,
        "an organization's name must be 1 to 200 characters, without control characters"
    );
    Ok(name)
}

async fn create(app: &App, name_args: &NameArgs) -> anyhow::Result<()> {
    let name = validate_name(&name_args.name)?;
    let created = setup::create_organization(app, name).await.map_err(|error| match error {
        ServiceError::Conflict { .. } => {
            anyhow!("an organization named `{name}` already exists: see `fleetmend orgs list`")
        }
        other => other.into(),
    });
    let (organization, api_key) = created?;
    let id = organization.id.to_string();
    if name_args.common.json {
        return crate::print_line(
            &json!({"organization": organization_json(&organization), "api_key": api_key})
                .to_string(),
        );
    }
    crate::print_line(&format!(
        "Created organization `{name}` ({id}).\n\nIts first admin key, which is shown only once:\n\n  {api_key}"
    ))
}

fn organization_json(organization: &Organization) -> serde_json::Value {
    json!({"id": organization.id.to_string(), "name": organization.name,
        "created_at": organization.created_at.to_string()})
}

async fn list(app: &App, as_json: bool) -> anyhow::Result<()> {
    let mut reader = app.db.read().await?;
    let mut rows = Vec::new();
    for organization in organizations::list(&mut reader).await? {
        let has = commands::contents(&mut reader, organization.id).await?;
        rows.push((organization, has));
    }
    if as_json {
        let data = rows.iter().map(|(organization, has)| {
            let mut row = organization_json(organization);
            row["servers"] = json!(has.servers);
            row["schedules"] = json!(has.schedules);
            row["api_keys"] = json!(has.keys);
            row
        });
        return crate::print_line(&json!({"data": data.collect::<Vec<_>>()}).to_string());
    }
    let screen = Screen::stdout();
    let columns = [
        truncated_column("ORGANIZATION"),
        full_column("ID"),
        full_column("SERVERS").align_right(),
        optional_column("SCHEDULES").align_right(),
        optional_column("KEYS").align_right(),
        optional_column("SINCE"),
    ];
    let row = |(organization, has): &(Organization, OrganizationContents)| {
        vec![
            (&organization.name).into(),
            organization.id.into(),
            has.servers.into(),
            has.schedules.into(),
            has.keys.into(),
            screen.time(organization.created_at),
        ]
    };
    print(&screen.table(&columns, &rows.iter().map(row).collect::<Vec<_>>()))
}

impl Remove {
    async fn run(&self, app: &App) -> anyhow::Result<()> {
        let name = self.name_args.name.trim();
        let mut reader = app.db.read().await?;
        let found = match name.parse() {
            Ok(id) => organizations::get(&mut reader, id).await,
            Err(_) => organizations::by_name(&mut reader, name).await,
        };
        let organization = found.map_err(|error| match error {
            StoreError::NotFound { .. } => {
                anyhow!("no organization named `{name}`: see `fleetmend orgs list`")
            }
            other => other.into(),
        })?;
        let OrganizationContents { servers, schedules, open_batches, keys, tokens } =
            commands::contents(&mut reader, organization.id).await?;
        drop(reader);
        let name = &organization.name;
        confirm(
            &format!(
                "Removing `{name}` removes {}, cancels {}, stops {}, and revokes {} and {}. \
                 The only way to undo this is to restore a backup. Remove it?",
                pluralize(servers, "server", "servers"),
                pluralize(open_batches, "batch", "batches"),
                pluralize(schedules, "schedule", "schedules"),
                pluralize(keys, "key", "keys"),
                pluralize(tokens, "token", "tokens"),
            ),
            self.yes,
        )?;
        commands::remove(app, &organization).await?;
        match self.name_args.common.json {
            true => crate::print_line(
                &json!({"organization": organization_json(&organization), "servers": servers})
                    .to_string(),
            ),
            false => crate::print_line(&format!(
                "Removed `{name}` with {}.",
                pluralize(servers, "server", "servers")
            )),
        }
    }
}
