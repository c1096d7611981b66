//! `fleetmend compliance`: shows which servers comply with which policy, and writes and verifies
//! signed reports.

mod report;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use vocab::ComplianceState;
use wire::v1::{Compliance as Row, ServerCompliance, SignedReport};

use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::table::{
    Cell, Column, Tone, full_column, optional_cell, optional_column, truncated_column,
};
use super::{Session, print, print_message, toned_cell};

/// Which servers comply with which policy.
#[derive(Args)]
pub(crate) struct Compliance {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Count servers by policy and environment
    #[command(
        after_help = "Examples:\n  fleetmend compliance show\n  fleetmend compliance show --policy Baseline --environment production"
    )]
    Show {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        part: PageArgs,
    },
    /// List the servers of a policy, the earliest due date first
    #[command(
        after_help = "Examples:\n  fleetmend compliance servers Baseline --state breaching\n  fleetmend compliance servers Baseline --environment production --json"
    )]
    Servers {
        #[command(flatten)]
        connection: Connection,
        /// Policy ID or name
        policy: String,
        /// Only servers in this environment
        #[arg(long)]
        environment: Option<String>,
        /// Only servers in this state
        #[arg(long, value_name = "STATE", value_parser = parse_state)]
        state: Option<ComplianceState>,
        #[command(flatten)]
        part: PageArgs,
    },
    /// Show where a server stands with each policy
    #[command(after_help = "Example:\n  fleetmend compliance server web-1")]
    Server {
        #[command(flatten)]
        connection: Connection,
        /// Server ID or name
        server: String,
    },
    /// Write a signed report: scope, rules, figures, and exceptions with their reasons
    #[command(after_help = "\
Examples:
  fleetmend compliance report --html report.html
  fleetmend compliance report --policy Baseline --environment production > report.json

The report is signed with a key of the installation. Give a reader the public key, which is printed,
in another way than the report; `fleetmend compliance verify` checks a report with it.")]
    Report {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        filter: FilterArgs,
        /// Write a page to read and print instead of JSON
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Verify a report: its signature, and that a page shows what was signed
    #[command(
        after_help = "Example:\n  fleetmend compliance verify report.html --trust 4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS"
    )]
    Verify {
        /// Report, as a page or JSON
        file: PathBuf,
        /// Accept only reports that this key signed
        #[arg(long, value_name = "KEY")]
        trust: Option<String>,
    },
}

#[derive(Args)]
struct FilterArgs {
    /// Only this policy, by ID or name
    #[arg(long)]
    policy: Option<String>,
    /// Only servers in this environment
    #[arg(long)]
    environment: Option<String>,
}

fn parse_state(text: &str) -> Result<ComplianceState, String> {
    text.parse().map_err(|error: vocab::WordError| error.to_string())
}

const COUNT_COLUMNS: [Column; 8] = [
    truncated_column("POLICY"),
    truncated_column("ENVIRONMENT"),
    full_column("SERVERS").align_right(),
    full_column("COMPLIANT").align_right(),
    full_column("DUE SOON").align_right(),
    full_column("BREACHING").align_right(),
    full_column("UNKNOWN").align_right(),
    optional_column("OLDEST BREACH"),
];

const SERVER_COLUMNS: [Column; 7] = [
    truncated_column("SERVER"),
    truncated_column("ENVIRONMENT"),
    truncated_column("POLICY"),
    full_column("STATE"),
    full_column("DUE"),
    full_column("OVERDUE").align_right(),
    optional_column("ID"),
];

impl Compliance {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Show { connection, filter, part } => {
                let session = Session::open(&connection)?;
                let policy = filter.policy(&session).await?;
                let listing =
                    ListView { path: &["compliance"], noun: "policies", columns: &COUNT_COLUMNS };
                let query = || filter.query(policy.as_ref());
                session.list(listing, &part, query, |row| count_row(row, &session)).await
            }
            Command::Servers { connection, policy, environment, state, part } => {
                let session = Session::open(&connection)?;
                let policy = session.resolve_policy(&policy).await?;
                let path = ["compliance", "servers"];
                let listing = ListView { path: &path, noun: "servers", columns: &SERVER_COLUMNS };
                let query = || {
                    Query::default()
                        .with("policy", Some(&policy))
                        .with("environment", environment.as_ref())
                        .with("state", state.map(ComplianceState::as_str))
                };
                session.list(listing, &part, query, |row| server_row(row, &session)).await
            }
            Command::Server { connection, server } => {
                let session = Session::open(&connection)?;
                let id = session.resolve_server(&server).await?;
                let body = session.api.get(&["servers", &id, "compliance"]).await?;
                session.show(&body, |screen| {
                    let list: wire::v1::List<ServerCompliance> = body.read()?;
                    if list.data.is_empty() {
                        let line = screen.paint("No policy applies to this server.", Tone::Faint);
                        return Ok(format!("{line}\n"));
                    }
                    let rows: Vec<Vec<Cell>> =
                        list.data.iter().map(|row| server_row(row, &session)).collect();
                    Ok(screen.table(&SERVER_COLUMNS, &rows))
                })
            }
            Command::Report { connection, filter, html } => {
                let session = Session::open(&connection)?;
                let policy = filter.policy(&session).await?;
                let query = filter.query(policy.as_ref());
                let body = session.api.get_with_query(&["compliance", "report"], &query).await?;
                let signed: SignedReport = body.read()?;
                match html {
                    Some(path) => {
                        let page = report::to_html(&signed)?;
                        std::fs::write(&path, page)
                            .with_context(|| format!("cannot write {}", path.display()))?;
                        print_message(&format!("Wrote {}.", path.display()))?;
                    }
                    None => print(&format!("{}\n", body.text))?,
                }
                print_message(&format!(
                    "Signed. To verify it: fleetmend compliance verify FILE --trust {}",
                    signed.key
                ))
            }
            Command::Verify { file, trust } => {
                let text = std::fs::read_to_string(&file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                let verified = report::verify(&text, trust.as_deref())
                    .with_context(|| format!("{} is not verified", file.display()))?;
                print(&verified)
            }
        }
    }
}

impl FilterArgs {
    async fn policy(&self, session: &Session) -> anyhow::Result<Option<String>> {
        Ok(match &self.policy {
            Some(policy) => Some(session.resolve_policy(policy).await?),
            None => None,
        })
    }

    fn query(&self, policy: Option<&String>) -> Query {
        Query::default().with("policy", policy).with("environment", self.environment.as_ref())
    }
}

fn count_row(row: &Row, session: &Session) -> Vec<Cell> {
    let toned = |number: u64, tone: Tone| match number {
        0 => Cell::new("0", Tone::Plain),
        _ => Cell::new(number.to_string(), tone),
    };
    vec![
        (&row.policy).into(),
        optional_cell(row.environment.as_ref()),
        row.servers.into(),
        row.compliant.into(),
        toned(row.due_soon, Tone::Warning),
        toned(row.breaching, Tone::Bad),
        toned(row.unknown, Tone::Faint),
        session.screen.optional_time(row.oldest_breach_at),
    ]
}

fn server_row(row: &ServerCompliance, session: &Session) -> Vec<Cell> {
    let state = match row.unknown_reason {
        Some(why) => Cell::new(format!("{} ({})", row.state, why), Tone::Faint),
        None => toned_cell(row.state),
    };
    vec![
        row.server_name().into(),
        optional_cell(row.environment.as_ref()),
        (&row.policy).into(),
        state,
        session.screen.optional_time(row.due_at),
        row.overdue.into(),
        row.server_id.into(),
    ]
}
