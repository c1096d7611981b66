//! `fleetmend orgs`: several organizations in one installation that never see each other.

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use serde_json::json;
use server::app::App;
use server::service::organizations::{self as service, Holdings};
use server::service::setup;
use store::organizations::{self, Organization};

use crate::installation::Installation;
use crate::operator::sure;

/// Make, list and remove organizations. They share the service and never see each other.
#[derive(Args)]
pub(crate) struct Orgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make an organization and its first admin key, which is printed once
    #[command(
        after_help = "Example:\n  fleetmend orgs create --data-dir /var/lib/fleetmend \"Acme Labs\""
    )]
    Create(Named),
    /// List organizations, with what they have
    #[command(after_help = "Example:\n  fleetmend orgs list --data-dir /var/lib/fleetmend --json")]
    List(Every),
    /// Remove an organization: its keys are revoked, its servers removed, its schedules stopped
    ///
    /// Its audit log and its history stay in the database. There is no way back but to restore a backup.
    #[command(
        after_help = "Example:\n  fleetmend orgs remove --data-dir /var/lib/fleetmend \"Acme Labs\""
    )]
    Remove(Remove),
}

#[derive(Args)]
struct Every {
    #[command(flatten)]
    installation: Installation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Named {
    /// What it is called
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    every: Every,
}

#[derive(Args)]
struct Remove {
    #[command(flatten)]
    named: Named,
    /// Remove it without being asked
    #[arg(long, short)]
    yes: bool,
}

impl Orgs {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let installation = match &self.command {
            Command::Create(named) => &named.every.installation,
            Command::List(every) => &every.installation,
            Command::Remove(remove) => &remove.named.every.installation,
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

/// An organization's name, as it may be.
pub(crate) fn plain_name(name: &str) -> anyhow::Result<&str> {
    let name = name.trim();
    let plain =
        !name.is_empty() && name.chars().count() <= 200 && !name.chars().any(char::is_control);
    ensure!(plain, "an organization's name has 1 to 200 characters on one line");
    Ok(name)
}

async fn create(app: &App, named: &Named) -> anyhow::Result<()> {
    let name = plain_name(&named.name)?;
    let (organization, api_key) = setup::organization(app, name).await?;
    let id = organization.id.to_string();
    if named.every.json {
        return crate::say(
            &json!({"organization": told(&organization), "api_key": api_key}).to_string(),
        );
    }
    crate::say(&format!(
        "The organization `{name}` ({id}) is made.\n\nIts first admin key, shown this once:\n\n  {api_key}"
    ))
}

fn told(organization: &Organization) -> serde_json::Value {
    json!({"id": organization.id.to_string(), "name": organization.name,
        "created_at": organization.created_at.to_string()})
}

async fn list(app: &App, as_json: bool) -> anyhow::Result<()> {
    let mut reader = app.db.read().await?;
    let mut rows = Vec::new();
    for organization in organizations::list(&mut reader).await? {
        let has = service::holdings(&mut reader, organization.id).await?;
        rows.push((organization, has));
    }
    if as_json {
        let data = rows.iter().map(|(organization, has)| {
            let mut row = told(organization);
            row["servers"] = json!(has.servers);
            row["schedules"] = json!(has.schedules);
            row["api_keys"] = json!(has.keys);
            row
        });
        return crate::say(&json!({"data": data.collect::<Vec<_>>()}).to_string());
    }
    let named = |(organization, _): &(Organization, Holdings)| organization.name.chars().count();
    let width = rows.iter().map(named).max().unwrap_or_default();
    rows.iter().try_for_each(|(organization, has)| {
        let Organization { id, name, created_at, .. } = organization;
        let servers = has.servers;
        crate::say(&format!("{name:width$}  {id}  since {created_at:.0}  servers: {servers}"))
    })
}

impl Remove {
    async fn run(&self, app: &App) -> anyhow::Result<()> {
        let name = self.named.name.trim();
        let mut reader = app.db.read().await?;
        let found = match name.parse() {
            Ok(id) => organizations::get(&mut reader, id).await,
            Err(_) => organizations::by_name(&mut reader, name).await,
        };
        let organization = found.context("`fleetmend orgs list` shows those that are there")?;
        let Holdings { servers, schedules, open_batches, keys, tokens } =
            service::holdings(&mut reader, organization.id).await?;
        drop(reader);
        let name = &organization.name;
        sure(
            &format!(
                "Removing `{name}` removes {servers} servers, calls off {open_batches} batches, stops {schedules} schedules, \
                 and revokes {keys} keys and {tokens} tokens. There is no way back but a backup. Remove it?"
            ),
            self.yes,
        )?;
        service::remove(app, &organization).await?;
        match self.named.every.json {
            true => crate::say(
                &json!({"organization": told(&organization), "servers": servers}).to_string(),
            ),
            false => crate::say(&format!("`{name}` is removed, with {servers} servers.")),
        }
    }
}
