//! `fleetmend patches`: lists and shows pending updates across the fleet.

use clap::{Args, Subcommand};
use wire::v1::{Patch, PatchDetail};

use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::table::{
    Cell, Column, Screen, Tone, empty_cell, full_column, optional_cell, optional_column,
    truncated_column,
};
use super::{Session, api_name, toned_cell};

/// Pending updates across the fleet.
#[derive(Args)]
pub(crate) struct Patches {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List packages with a pending update on any server, most severe first
    #[command(
        after_help = "Examples:\n  fleetmend patches list --severity critical,high\n  fleetmend patches list --server web-1"
    )]
    List(Filter),
    /// Show one package: versions, CVEs, and the servers with a pending update
    #[command(after_help = "Example:\n  fleetmend patches show openssl")]
    Show {
        /// Package name
        package: String,
    },
}

#[derive(Args)]
struct Filter {
    /// Filter by server ID or name
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,
    /// Filter by severity: critical, high, medium, low, unknown
    #[arg(long, value_delimiter = ',')]
    severity: Vec<String>,
    /// Filter by whether the update fixes a CVE that is known to be exploited (CISA KEV)
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    kev: Option<bool>,
    /// Filter by text in the package name
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Sort order: severity, affected_servers, first_seen or name
    #[arg(long, value_name = "ORDER")]
    sort: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

const COLUMNS: [Column; 7] = [
    truncated_column("PACKAGE"),
    full_column("SEVERITY"),
    optional_column("TYPE"),
    full_column("SERVERS").align_right(),
    truncated_column("UPDATE"),
    optional_column("CVES"),
    optional_column("SINCE"),
];

impl Patches {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(filter) => list(&session, filter).await,
            Command::Show { package } => {
                let body = session.api.get(&["patches", &package]).await?;
                session.show(&body, |screen| Ok(format_patch(&body.read()?, screen)))
            }
        }
    }
}

async fn list(session: &Session, filter: Filter) -> anyhow::Result<()> {
    let server = match &filter.server {
        Some(id_or_name) => Some(session.resolve_server(id_or_name).await?),
        None => None,
    };
    let query = || {
        Query::default()
            .with("server_id", server.as_ref())
            .with("q", filter.search.as_ref())
            .with("kev", filter.kev)
            .with("sort", filter.sort.as_ref())
            .with_all("severity", &filter.severity)
    };
    let listing = ListView { path: &["patches"], noun: "pending updates", columns: &COLUMNS };
    session.list(listing, &filter.page, query, |patch| row(patch, &session.screen)).await
}

fn row(patch: &Patch, screen: &Screen) -> Vec<Cell> {
    vec![
        patch.package_name.as_str().into(),
        severity(patch),
        api_name(patch.update_type).into(),
        patch.affected_servers.into(),
        update(patch),
        cves(patch),
        screen.time(patch.first_seen_at),
    ]
}

fn severity(patch: &Patch) -> Cell {
    match patch.kev {
        true => Cell::new(format!("{} KEV", api_name(patch.severity)), Tone::Critical),
        false => toned_cell(patch.severity),
    }
}

/// The installed and available version on the first operating system, and the number of others.
fn update(patch: &Patch) -> Cell {
    let Some(first) = patch.versions.first() else { return empty_cell() };
    let more = match patch.versions.len() {
        1 => String::new(),
        many => format!(" (+{})", many - 1),
    };
    format!("{} -> {}{more}", first.from, first.to).into()
}

fn cves(patch: &Patch) -> Cell {
    match patch.cves.as_slice() {
        [] => empty_cell(),
        [one] => one.as_str().into(),
        [one, rest @ ..] => format!("{one} (+{})", rest.len()).into(),
    }
}

fn format_patch(detail: &PatchDetail, screen: &Screen) -> String {
    let patch = &detail.patch;
    let mut text = screen.properties(&[
        ("package", patch.package_name.as_str().into()),
        ("severity", severity(patch)),
        ("severity source", optional_cell(patch.severity_source.as_ref())),
        ("type", api_name(patch.update_type).into()),
        ("servers", patch.affected_servers.into()),
        ("first seen", screen.time(patch.first_seen_at)),
    ]);
    let versions: Vec<Vec<Cell>> = (patch.versions.iter())
        .map(|version| vec![(&version.os).into(), (&version.from).into(), (&version.to).into()])
        .collect();
    text += &screen.heading("Versions");
    text += &screen.table(
        &[full_column("OS"), truncated_column("INSTALLED"), truncated_column("AVAILABLE")],
        &versions,
    );
    if !detail.cve_details.is_empty() {
        text += &screen.heading("CVEs");
        let rows: Vec<Vec<Cell>> = (detail.cve_details.iter())
            .map(|cve| {
                vec![
                    (&cve.id).into(),
                    toned_cell(cve.severity),
                    optional_cell(cve.cvss),
                    if cve.kev { Cell::new("KEV", Tone::Critical) } else { empty_cell() },
                    (&cve.url).into(),
                ]
            })
            .collect();
        let columns = [
            full_column("ID"),
            full_column("SEVERITY"),
            optional_column("CVSS").align_right(),
            optional_column("KEV"),
            truncated_column("LINK"),
        ];
        text += &screen.table(&columns, &rows);
    }
    text += &screen.heading("Servers");
    let rows: Vec<Vec<Cell>> = (detail.servers.iter())
        .map(|server| {
            vec![
                server.name().into(),
                toned_cell(server.status),
                optional_cell(server.environment.as_ref()),
                (&server.installed_version).into(),
                (&server.available_version).into(),
                optional_cell(server.blocked_by.map(api_name)),
            ]
        })
        .collect();
    let columns = [
        truncated_column("HOSTNAME"),
        full_column("STATUS"),
        optional_column("ENVIRONMENT"),
        truncated_column("INSTALLED"),
        truncated_column("AVAILABLE"),
        optional_column("BLOCKED BY"),
    ];
    text + &screen.table(&columns, &rows)
}
