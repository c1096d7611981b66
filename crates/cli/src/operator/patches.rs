//! `fleetmend patches`: lists and shows pending updates across the fleet.

use clap::{Args, Subcommand};
use wire::v1::{Patch, PatchDetail};

use super::api::Query;
use super::credentials::Connection;
use super::list::{Listing, Part};
use super::screen::{Cell, Column, Screen, Tone, cut, maybe, none, spare, whole};
use super::{Session, toned, word};

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
    /// Filter by server ID or hostname
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,
    /// Filter by severity: critical, high, medium, low, unknown
    #[arg(long, value_delimiter = ',')]
    severity: Vec<String>,
    #[command(flatten)]
    part: Part,
}

const COLUMNS: [Column; 7] = [
    cut("PACKAGE"),
    whole("SEVERITY"),
    spare("TYPE"),
    whole("SERVERS").number(),
    cut("UPDATE"),
    spare("CVES"),
    spare("SINCE"),
];

impl Patches {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(filter) => list(&session, filter).await,
            Command::Show { package } => {
                let body = session.api.get(&["patches", &package]).await?;
                session.show(&body, |screen| Ok(drawn(&body.read()?, screen)))
            }
        }
    }
}

async fn list(session: &Session, filter: Filter) -> anyhow::Result<()> {
    let server = match &filter.server {
        Some(said) => Some(session.server(said).await?),
        None => None,
    };
    let query = || {
        Query::default().with("server_id", server.as_ref()).with_all("severity", &filter.severity)
    };
    let listing = Listing { path: &["patches"], noun: "pending updates", columns: &COLUMNS };
    session.list(listing, &filter.part, query, |patch| row(patch, &session.screen)).await
}

fn row(patch: &Patch, screen: &Screen) -> Vec<Cell> {
    vec![
        patch.package_name.as_str().into(),
        severity(patch),
        word(patch.update_type).into(),
        patch.affected_servers.into(),
        update(patch),
        cves(patch),
        screen.time(patch.first_seen_at),
    ]
}

fn severity(patch: &Patch) -> Cell {
    match patch.kev {
        true => Cell::new(format!("{} KEV", word(patch.severity)), Tone::Bad),
        false => toned(patch.severity),
    }
}

/// The installed and available version on the first operating system, and the number of others.
fn update(patch: &Patch) -> Cell {
    let Some(first) = patch.versions.first() else { return none() };
    let more = match patch.versions.len() {
        1 => String::new(),
        many => format!(" (+{})", many - 1),
    };
    format!("{} -> {}{more}", first.from, first.to).into()
}

fn cves(patch: &Patch) -> Cell {
    match patch.cves.as_slice() {
        [] => none(),
        [one] => one.as_str().into(),
        [one, rest @ ..] => format!("{one} (+{})", rest.len()).into(),
    }
}

fn drawn(detail: &PatchDetail, screen: &Screen) -> String {
    let patch = &detail.patch;
    let mut text = screen.facts(&[
        ("package", patch.package_name.as_str().into()),
        ("severity", severity(patch)),
        ("severity source", maybe(patch.severity_source.as_ref())),
        ("type", word(patch.update_type).into()),
        ("servers", patch.affected_servers.into()),
        ("first seen", screen.time(patch.first_seen_at)),
    ]);
    let versions: Vec<Vec<Cell>> = (patch.versions.iter())
        .map(|version| vec![(&version.os).into(), (&version.from).into(), (&version.to).into()])
        .collect();
    text += &screen.heading("Versions");
    text += &screen.table(&[whole("OS"), cut("INSTALLED"), cut("AVAILABLE")], &versions);
    if !detail.cve_details.is_empty() {
        text += &screen.heading("CVEs");
        let rows: Vec<Vec<Cell>> = (detail.cve_details.iter())
            .map(|cve| {
                vec![
                    (&cve.id).into(),
                    toned(cve.severity),
                    maybe(cve.cvss),
                    if cve.kev { Cell::new("KEV", Tone::Bad) } else { none() },
                    (&cve.url).into(),
                ]
            })
            .collect();
        let columns =
            [whole("ID"), whole("SEVERITY"), spare("CVSS").number(), spare("KEV"), cut("LINK")];
        text += &screen.table(&columns, &rows);
    }
    text += &screen.heading("Servers");
    let rows: Vec<Vec<Cell>> = (detail.servers.iter())
        .map(|server| {
            vec![
                (&server.hostname).into(),
                toned(server.status),
                maybe(server.environment.as_ref()),
                (&server.installed_version).into(),
                (&server.available_version).into(),
                maybe(server.blocked_by.map(word)),
            ]
        })
        .collect();
    let columns = [
        cut("HOSTNAME"),
        whole("STATUS"),
        spare("ENVIRONMENT"),
        cut("INSTALLED"),
        cut("AVAILABLE"),
        spare("BLOCKED BY"),
    ];
    text + &screen.table(&columns, &rows)
}
