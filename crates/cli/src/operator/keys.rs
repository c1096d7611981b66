//! `fleetmend keys`: creates, lists and revokes API keys.

use clap::{Args, Subcommand};
use wire::v1::{ApiKey, CreateApiKey, CreatedApiKey};

use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::confirm;
use super::table::{Cell, Column, Screen, full_column, optional_column, truncated_column};
use super::tokens::validity;
use super::{Session, api_name, print_message};

/// API keys.
#[derive(Args)]
pub(crate) struct Keys {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a key; it is printed once
    #[command(after_help = "\
Examples:
  fleetmend keys create --name ci --role operator --environment staging
  fleetmend keys create --name dashboards --role viewer --json | jq -r .api_key")]
    Create(Create),
    /// List keys, without their secrets
    #[command(after_help = "Example:\n  fleetmend keys list")]
    List(PageArgs),
    /// Revoke a key
    #[command(after_help = "Example:\n  fleetmend keys revoke ci")]
    Revoke {
        /// Key ID or name
        key: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Args)]
struct Create {
    /// Name of the key
    #[arg(long)]
    name: String,
    /// Role of the key
    #[arg(long, value_parser = ["viewer", "operator", "admin"])]
    role: String,
    /// Environment that the key is limited to; repeatable [default: all]
    #[arg(long)]
    environment: Vec<String>,
    /// Expiry time, such as 2027-01-01T00:00:00Z [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
}

const COLUMNS: [Column; 7] = [
    truncated_column("NAME"),
    full_column("ROLE"),
    full_column("STATE"),
    optional_column("ENVIRONMENTS"),
    full_column("USED"),
    optional_column("CREATED"),
    optional_column("ID"),
];

impl Keys {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::Create(create) => create.run(&session).await,
            Command::List(part) => {
                let listing = ListView { path: &["api-keys"], noun: "keys", columns: &COLUMNS };
                let row = |key: &ApiKey| row(key, &session.screen);
                session.list(listing, &part, Query::default, row).await
            }
            Command::Revoke { key, yes } => {
                let id = session.resolve_key(&key).await?;
                confirm(&format!("Revoke the key {key}?"), yes)?;
                session.api.delete(&["api-keys", &id], None).await?;
                print_message(&format!("Revoked the key {key} ({id})."))
            }
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let body = CreateApiKey {
            name: self.name,
            role: self.role,
            environments: (!self.environment.is_empty()).then_some(self.environment),
            expires_at: self.expires_at,
        };
        let body = session.api.post(&["api-keys"], Some(&body)).await?;
        session.show(&body, |_| Ok(format!("{}\n", body.read::<CreatedApiKey>()?.api_key)))?;
        if session.json { Ok(()) } else { print_message("The key is not shown again.") }
    }
}

fn row(key: &ApiKey, screen: &Screen) -> Vec<Cell> {
    let environments = key.environments.as_ref().map_or("all".to_owned(), |environments| {
        environments.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    });
    vec![
        (&key.name).into(),
        api_name(key.role).into(),
        validity(key.revoked_at, key.expires_at, screen),
        environments.into(),
        screen.optional_time(key.last_used_at),
        screen.time(key.created_at),
        key.id.into(),
    ]
}
