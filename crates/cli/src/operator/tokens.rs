//! `fleetmend tokens`: creates, lists and revokes enrollment tokens.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use wire::v1::{CreateEnrollmentToken, CreatedEnrollmentToken, EnrollmentToken};

use super::Session;
use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::confirm;
use super::print_message;
use super::table::{
    Cell, Column, Screen, Tone, empty_cell, full_column, optional_cell, optional_column,
    truncated_column,
};

/// Manage enrollment tokens, which servers use to join.
#[derive(Args)]
pub(crate) struct Tokens {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a token; it is printed once
    #[command(after_help = "\
Examples:
  fleetmend tokens create --name 'web image' --environment production --tag web
  fleetmend tokens create --max-uses 1 --expires-at 2027-01-01T00:00:00Z --json | jq -r .token")]
    Create(Create),
    /// List tokens, without their secrets
    #[command(after_help = "Example:\n  fleetmend tokens list")]
    List(PageArgs),
    /// Revoke a token; servers that enrolled with it stay
    #[command(after_help = "Example:\n  fleetmend tokens revoke 'web image'")]
    Revoke {
        /// Token ID or name
        token: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Args)]
struct Create {
    /// Name of the token
    #[arg(long)]
    name: Option<String>,
    /// Environment of servers that enroll with the token
    #[arg(long)]
    environment: Option<String>,
    /// Tag for servers that enroll with the token; repeatable
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Maximum number of servers that can enroll with the token [default: no limit]
    #[arg(long, value_name = "N")]
    max_uses: Option<i64>,
    /// Expiry time, such as 2027-01-01T00:00:00Z [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
}

const COLUMNS: [Column; 7] = [
    truncated_column("NAME"),
    full_column("STATE"),
    full_column("USES").align_right(),
    optional_column("ENVIRONMENT"),
    optional_column("TAGS"),
    full_column("CREATED"),
    optional_column("ID"),
];

impl Tokens {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::Create(create) => create.run(&session).await,
            Command::List(part) => {
                let path = ["enrollment-tokens"];
                let listing = ListView { path: &path, noun: "tokens", columns: &COLUMNS };
                let row = |token: &EnrollmentToken| row(token, &session.screen);
                session.list(listing, &part, Query::default, row).await
            }
            Command::Revoke { token, yes } => {
                let id = session.resolve_token(&token).await?;
                confirm(&format!("Revoke the token {token}?"), yes)?;
                session.api.delete(&["enrollment-tokens", &id], None).await?;
                print_message(&format!("Revoked the token {token} ({id})."))
            }
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let body = CreateEnrollmentToken {
            name: self.name,
            environment: self.environment,
            tags: (!self.tag.is_empty()).then_some(self.tag),
            max_uses: self.max_uses,
            expires_at: self.expires_at,
        };
        let body = session.api.post(&["enrollment-tokens"], Some(&body)).await?;
        let CreatedEnrollmentToken { token, install_command, .. } = body.read()?;
        session.show(&body, |_| Ok(format!("{token}\n")))?;
        if session.json {
            return Ok(());
        }
        let url = session.api.url();
        print_message(&match install_command {
            Some(command) => format!(
                "The token is not shown again. To install the agent on a server and enroll it, run \
                 there:\n  {command}"
            ),
            None => format!(
                "The token is not shown again. On the server to enroll, run as root:\n  \
                 fleetmend-agent enroll --server {url} --token {token}"
            ),
        })
    }
}

fn row(token: &EnrollmentToken, screen: &Screen) -> Vec<Cell> {
    let uses = match token.max_uses {
        Some(max) => format!("{}/{max}", token.uses),
        None => token.uses.to_string(),
    };
    let tags: Vec<String> = token.tags.iter().map(ToString::to_string).collect();
    vec![
        (&token.name).into(),
        validity(token.revoked_at, token.expires_at, screen),
        uses.into(),
        optional_cell(token.environment.as_ref()),
        if tags.is_empty() { empty_cell() } else { tags.join(", ").into() },
        screen.time(token.created_at),
        token.id.into(),
    ]
}

/// Whether a credential is still valid.
pub(super) fn validity(
    revoked_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    screen: &Screen,
) -> Cell {
    match (revoked_at, expires_at) {
        (Some(_), _) => Cell::new("revoked", Tone::Faint),
        (None, Some(end)) if end <= screen.now => Cell::new("expired", Tone::Faint),
        (None, Some(end)) => format!("expires {}", screen.time(end).text()).into(),
        (None, None) => Cell::new("valid", Tone::Good),
    }
}
