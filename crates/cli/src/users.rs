//! `fleetmend users`: manages dashboard users. Anyone who can read the data directory may use it.

use std::path::Path;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use server::app::App;
use service::ServiceError;
use service::auth::users;
use store::organizations::{self, Organization};
use vocab::Role;

use crate::installation::Installation;
use crate::listen;
use crate::operator::table::{Screen, full_column, truncated_column};
use crate::settings::{Durability, SettingsFile};

/// Invite and manage dashboard users, on the machine where the service runs
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend users create ann@example.org --role admin --data-dir /var/lib/fleetmend
  fleetmend users reset ann@example.org --data-dir /var/lib/fleetmend
  fleetmend users list --data-dir /var/lib/fleetmend")]
pub(crate) struct Users {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a user, and print a one-time link for setting the password
    #[command(after_help = "\
Example:
  fleetmend users create ann@example.org --role admin --data-dir /var/lib/fleetmend")]
    Create {
        /// Sign-in name, such as an email address
        name: String,
        /// Role: viewer, operator or admin
        #[arg(long, default_value = "admin")]
        role: Role,
        /// Organization of the user; required if there is more than one
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Remove a user's password, sign them out, and print a one-time link for setting a new one
    #[command(after_help = "\
Example:
  fleetmend users reset ann@example.org --data-dir /var/lib/fleetmend")]
    Reset {
        /// Sign-in name
        name: String,
        /// Organization of the user; required if several have a user with this name
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// List the users of every organization
    #[command(after_help = "\
Example:
  fleetmend users list --data-dir /var/lib/fleetmend --json")]
    List {
        #[command(flatten)]
        common: CommonArgs,
    },
}

#[derive(Args)]
struct CommonArgs {
    #[command(flatten)]
    installation: Installation,
    /// Address of the service as users reach it, for the link [default: from the service's
    /// settings]
    #[arg(long, value_name = "URL", env = "FLEETMEND_URL")]
    url: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Users {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let place = match &self.command {
            Command::Create { common: place, .. }
            | Command::Reset { common: place, .. }
            | Command::List { common: place } => place,
        };
        let app = place.installation.app(Some(Durability::Full)).await?;
        let done = self.command.execute(&app).await;
        app.db.close().await;
        crate::print_line(&done?)
    }
}

const URL_NOTE: &str = "\n\nIf users reach the service at another address, set it with --url.";

impl CommonArgs {
    /// Formats a one-time link and what it is for.
    fn format_link(&self, name: &str, link: &str, effect: &str) -> anyhow::Result<String> {
        let (service, note) = match &self.url {
            Some(url) => (url.clone(), ""),
            None => {
                let file = SettingsFile::load(None, &self.installation.data_dir)?;
                (listen::service_url(&file), URL_NOTE)
            }
        };
        let url = link_url(&service, link);
        Ok(match self.json {
            true => json!({"name": name, "link": url}).to_string(),
            false => {
                format!("{name} {effect}. The link works once, for 24 hours:\n\n  {url}{note}")
            }
        })
    }
}

/// The URL of a one-time link.
pub(crate) fn link_url(url: &str, link: &str) -> String {
    format!("{}/welcome/{link}", url.trim_end_matches('/'))
}

impl Command {
    async fn execute(self, app: &App) -> anyhow::Result<String> {
        match self {
            Command::Create { name, role, org, common: place } => {
                let org = organization(app, org.as_deref(), &place.installation.data_dir).await?;
                let invited = users::invite(app, &users::local_actor(org.id), &name, role).await;
                let (user, link) = invited.map_err(|error| match error {
                    ServiceError::Conflict { .. } => anyhow::anyhow!(
                        "a user named `{}` already exists: `fleetmend users reset` creates a new link for them",
                        users::normalize_name(&name)
                    ),
                    ServiceError::Invalid(errors) => {
                        let messages: Vec<String> = errors.into_iter().map(|error| error.detail).collect();
                        anyhow::anyhow!("invalid name: {}", messages.join("; "))
                    }
                    other => other.into(),
                })?;
                place.format_link(&user.name, &link, "can set a password here")
            }
            Command::Reset { name, org, common: place } => {
                let name = users::normalize_name(&name);
                let mut found =
                    store::users::all_by_name(&mut *app.db.read().await?, &name).await?;
                if let Some(org) = org.as_deref() {
                    let dir = &place.installation.data_dir;
                    let org = organization(app, Some(org), dir).await?;
                    found.retain(|user| user.org_id == org.id);
                }
                let user = match <[_; 1]>::try_from(found) {
                    Ok([user]) => user,
                    Err(found) if found.is_empty() => {
                        bail!("no user named `{name}`: see `fleetmend users list`")
                    }
                    Err(_) => {
                        bail!(
                            "several organizations have a user named `{name}`: choose one with --org"
                        )
                    }
                };
                let link = users::reset(app, &users::local_actor(user.org_id), &user).await?;
                let effect = "is signed out everywhere and can set a new password here";
                place.format_link(&user.name, &link, effect)
            }
            Command::List { common: place } => list(app, place.json).await,
        }
    }
}

async fn organization(app: &App, named: Option<&str>, dir: &Path) -> anyhow::Result<Organization> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    let found = match (named, all.as_slice()) {
        (Some(name), all) => all.iter().find(|one| one.name == name),
        (None, [one]) => Some(one),
        (None, []) => {
            bail!("no organization in {}: run `fleetmend init` first", dir.display())
        }
        (None, _) => None,
    };
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    let names = names.join(", ");
    found.cloned().with_context(|| match named {
        Some(name) => format!("no organization named `{name}`; choose one of: {names}"),
        None => format!("choose an organization with --org: {names}"),
    })
}

async fn list(app: &App, json: bool) -> anyhow::Result<String> {
    const ALL: store::Page = store::Page { limit: 10_000, offset: 0 };
    let mut reader = app.db.snapshot().await?;
    let mut rows = Vec::new();
    for org in organizations::list(&mut reader).await? {
        let linked = store::identities::list_by_org(&mut reader, org.id).await?;
        for user in store::users::list(&mut reader, org.id, ALL).await?.items {
            let is_linked = linked.iter().any(|identity| identity.user_id == user.id);
            rows.push((org.name.clone(), user, is_linked));
        }
    }
    if json {
        let rows = rows.iter().map(|(org, user, is_linked)| {
            json!({"name": user.name, "role": user.role, "organization": org, "has_password": user.password.is_some(),
                "has_provider": is_linked})
        });
        return Ok(json!(rows.collect::<Vec<_>>()).to_string());
    }
    if rows.is_empty() {
        return Ok("No users. Invite one with `fleetmend users create`.".into());
    }
    let row = |(org, user, is_linked): &(String, store::users::User, bool)| {
        let how = match (is_linked, user.password.is_some()) {
            (true, _) => "identity provider",
            (false, true) => "password",
            (false, false) => "invited",
        };
        vec![(&user.name).into(), user.role.into(), org.into(), how.into()]
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    let columns = [
        truncated_column("NAME"),
        full_column("ROLE"),
        truncated_column("ORGANIZATION"),
        full_column("SIGN-IN"),
    ];
    Ok(Screen::stdout().table(&columns, &rows).trim_end().to_owned())
}
