//! `fleetmend cves`: lists and shows CVEs with the affected servers.

use clap::{Args, Subcommand};
use wire::v1::{CveDetail, CveSummary};

use super::api::Query;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::table::{
    Cell, Column, Screen, Tone, empty_cell, full_column, optional_cell, optional_column,
    truncated_column,
};
use super::{Session, api_name, toned_cell};

/// CVEs and the servers they affect.
#[derive(Args)]
pub(crate) struct Cves {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the CVEs that affect any server, most severe first
    #[command(
        after_help = "Examples:\n  fleetmend cves list --severity critical --kev true\n  fleetmend cves list --search 2026-12"
    )]
    List(Filter),
    /// Show one CVE and every affected server
    #[command(after_help = "Example:\n  fleetmend cves show CVE-2026-1234")]
    Show {
        /// CVE ID
        cve: String,
    },
}

#[derive(Args)]
struct Filter {
    /// Filter by severity: critical, high, medium, low, unknown
    #[arg(long, value_delimiter = ',')]
    severity: Vec<String>,
    /// Filter by whether the CVE is known to be exploited (CISA KEV)
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    kev: Option<bool>,
    /// Filter by whether the CVE is suppressed on every affected server
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    suppressed: Option<bool>,
    /// Filter by text in the CVE ID, such as 2026-12
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Sort order: severity, affected_servers, published or id
    #[arg(long, value_name = "ORDER")]
    sort: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

const COLUMNS: [Column; 7] = [
    full_column("CVE"),
    full_column("SEVERITY"),
    optional_column("CVSS").align_right(),
    optional_column("EPSS").align_right(),
    full_column("SERVERS").align_right(),
    truncated_column("PACKAGES"),
    optional_column("PUBLISHED"),
];

impl Cves {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(filter) => {
                let query = || {
                    Query::default()
                        .with_all("severity", &filter.severity)
                        .with("kev", filter.kev)
                        .with("suppressed", filter.suppressed)
                        .with("q", filter.search.as_ref())
                        .with("sort", filter.sort.as_ref())
                };
                let listing = ListView { path: &["cves"], noun: "CVEs", columns: &COLUMNS };
                session.list(listing, &filter.page, query, |cve| row(cve, &session.screen)).await
            }
            Command::Show { cve } => {
                let body = session.api.get(&["cves", &cve]).await?;
                session.show(&body, |screen| Ok(format_cve(&body.read()?, screen)))
            }
        }
    }
}

fn severity(cve: &CveSummary) -> Cell {
    match cve.kev {
        true => Cell::new(format!("{} KEV", api_name(cve.severity)), Tone::Critical),
        false => toned_cell(cve.severity),
    }
}

fn row(cve: &CveSummary, screen: &Screen) -> Vec<Cell> {
    vec![
        (&cve.id).into(),
        severity(cve),
        optional_cell(cve.cvss),
        percent(cve.epss),
        cve.affected_servers.into(),
        cve.packages.join(", ").into(),
        screen.optional_time(cve.published),
    ]
}

fn percent(share: Option<f64>) -> Cell {
    share.map_or_else(empty_cell, |share| format!("{:.1}%", share * 100.0).into())
}

fn kev(detail: &CveDetail) -> String {
    let Some(entry) = &detail.kev_entry else { return "no".to_owned() };
    let due = entry.due.map_or_else(String::new, |due| format!(", to be fixed by {due}"));
    let ransomware = if entry.ransomware { ", by ransomware too" } else { "" };
    format!("since {}{due}{ransomware}", entry.added)
}

fn environments(detail: &CveDetail) -> String {
    let counts = detail.environments.iter().map(|one| {
        let name = one.environment.as_ref().map_or("none", |name| name.as_str());
        let suppressed = if one.suppressed { " suppressed" } else { "" };
        format!("{name}: {}{suppressed}", one.servers)
    });
    counts.collect::<Vec<_>>().join(", ")
}

fn fixes(detail: &CveDetail) -> String {
    let names: Vec<&str> = detail.fixed_by.iter().map(|fix| fix.package_name.as_str()).collect();
    if names.is_empty() { "no pending update".to_owned() } else { names.join(", ") }
}

fn format_cve(detail: &CveDetail, screen: &Screen) -> String {
    let cve = &detail.cve;
    let mut text = screen.properties(&[
        ("CVE", (&cve.id).into()),
        ("severity", severity(cve)),
        ("severity source", optional_cell(cve.severity_source.as_ref())),
        ("known exploited", kev(detail).into()),
        ("CVSS", optional_cell(cve.cvss)),
        ("CVSS vector", optional_cell(detail.cvss_vector.as_ref())),
        ("EPSS", percent(cve.epss)),
        ("EPSS percentile", percent(detail.epss_percentile)),
        ("published", screen.optional_time(cve.published)),
        ("packages", cve.packages.join(", ").into()),
        ("servers", cve.affected_servers.into()),
        ("environments", environments(detail).into()),
        ("suppressed on", cve.suppressed_servers.into()),
        ("fixed by", fixes(detail).into()),
        ("patchable", detail.patchable_servers.into()),
        ("link", (&detail.url).into()),
    ]);
    if let Some(description) = &detail.description {
        text += &screen.heading("Description");
        text += &format!("{description}\n");
    }
    let rows: Vec<Vec<Cell>> = (detail.servers.iter())
        .map(|server| {
            vec![
                server.name().into(),
                toned_cell(server.status),
                optional_cell(server.environment.as_ref()),
                (&server.package).into(),
                (&server.installed_version).into(),
                optional_cell(server.fixed_version.as_ref()),
                api_name(server.state).into(),
                api_name(server.fix).into(),
            ]
        })
        .collect();
    let columns = [
        truncated_column("HOSTNAME"),
        full_column("STATUS"),
        optional_column("ENVIRONMENT"),
        truncated_column("PACKAGE"),
        truncated_column("INSTALLED"),
        truncated_column("FIXED IN"),
        full_column("STATE"),
        optional_column("FIX"),
    ];
    text += &screen.heading("Servers");
    text + &screen.table(&columns, &rows)
}
