//! `fleetmend suppressions`: hides CVEs that do not matter, with a reason.

use clap::{Args, Subcommand};
use wire::v1::{CreateSuppression, Suppression};

use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::confirm;
use super::table::{
    Cell, Column, Screen, Tone, full_column, optional_cell, optional_column, truncated_column,
};
use super::{Session, print_message};

/// Suppress CVEs that do not matter, with a reason.
#[derive(Args)]
pub(crate) struct Suppressions {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List suppressions, newest first
    #[command(after_help = "Example:\n  fleetmend suppressions list --cve CVE-2026-1234")]
    List(Filter),
    /// Suppress a CVE: it stays in every list but is counted separately
    #[command(after_help = "\
Examples:
  fleetmend suppressions create CVE-2023-45853 --package zlib --reason 'the vulnerable code is not built'
  fleetmend suppressions create CVE-2026-1234 --environment staging --reason 'not reachable' --expires-at 2027-01-01T00:00:00Z")]
    Create(Create),
    /// Remove a suppression: the CVE counts again
    #[command(
        after_help = "Example:\n  fleetmend suppressions remove sup_01k9zq3c8efxr9w1m6t5y0b7a2"
    )]
    Remove {
        /// Suppression ID
        id: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Args)]
struct Filter {
    /// Filter by CVE
    #[arg(long)]
    cve: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Args)]
struct Create {
    /// CVE ID
    cve: String,
    /// Why the CVE does not matter
    #[arg(long)]
    reason: String,
    /// Source package to suppress the CVE in [default: all affected packages]
    #[arg(long)]
    package: Option<String>,
    /// Environment to suppress the CVE in [default: all servers]
    #[arg(long)]
    environment: Option<String>,
    /// Expiry time, such as 2027-01-01T00:00:00Z [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
}

const COLUMNS: [Column; 7] = [
    full_column("CVE"),
    full_column("STATE"),
    optional_column("PACKAGE"),
    optional_column("ENVIRONMENT"),
    truncated_column("REASON"),
    optional_column("CREATED"),
    full_column("ID"),
];

impl Suppressions {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(filter) => {
                let path = ["suppressions"];
                let listing = ListView { path: &path, noun: "suppressions", columns: &COLUMNS };
                let query = || Query::default().with("cve", filter.cve.as_ref());
                session.list(listing, &filter.page, query, |one| row(one, &session.screen)).await
            }
            Command::Create(create) => create.run(&session).await,
            Command::Remove { id, yes } => {
                let body = session.api.get(&["suppressions", &id]).await?;
                let cve = body.read::<Suppression>()?.cve;
                confirm(&format!("Remove the suppression of {cve}?"), yes)?;
                session.api.delete(&["suppressions", &id], None).await?;
                print_message(&format!("Removed the suppression of {cve} ({id})."))
            }
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let body = CreateSuppression {
            cve: self.cve,
            package: self.package,
            environment: self.environment,
            reason: self.reason,
            expires_at: self.expires_at,
        };
        let body = session.api.post(&["suppressions"], Some(&body)).await?;
        let created = body.read::<Suppression>()?;
        session.show(&body, |_| Ok(format!("{}\n", created.id)))?;
        match session.json {
            true => Ok(()),
            false => print_message(&format!("Suppressed {}.", created.cve)),
        }
    }
}

fn row(one: &Suppression, screen: &Screen) -> Vec<Cell> {
    let state = match (one.active, one.expires_at) {
        (false, _) => Cell::new("expired", Tone::Faint),
        (true, Some(end)) => format!("expires {}", screen.time(end).text()).into(),
        (true, None) => "active".into(),
    };
    vec![
        (&one.cve).into(),
        state,
        optional_cell(one.package.as_ref()),
        optional_cell(one.environment.as_ref()),
        (&one.reason).into(),
        screen.time(one.created_at),
        one.id.into(),
    ]
}
