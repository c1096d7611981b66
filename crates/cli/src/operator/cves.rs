//! `fleetmend cves`: lists and shows CVEs with the affected servers.

use clap::{Args, Subcommand};
use wire::v1::{CveDetail, CveSummary};

use super::api::Query;
use super::credentials::Connection;
use super::list::{Listing, Part};
use super::screen::{Cell, Column, Screen, Tone, cut, maybe, none, spare, whole};
use super::{Session, toned, word};

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
    #[command(flatten)]
    part: Part,
}

const COLUMNS: [Column; 7] = [
    whole("CVE"),
    whole("SEVERITY"),
    spare("CVSS").number(),
    spare("EPSS").number(),
    whole("SERVERS").number(),
    cut("PACKAGES"),
    spare("PUBLISHED"),
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
                };
                let listing = Listing { path: &["cves"], noun: "CVEs", columns: &COLUMNS };
                session.list(listing, &filter.part, query, |cve| row(cve, &session.screen)).await
            }
            Command::Show { cve } => {
                let body = session.api.get(&["cves", &cve]).await?;
                session.show(&body, |screen| Ok(drawn(&body.read()?, screen)))
            }
        }
    }
}

fn severity(cve: &CveSummary) -> Cell {
    match cve.kev {
        true => Cell::new(format!("{} KEV", word(cve.severity)), Tone::Bad),
        false => toned(cve.severity),
    }
}

fn row(cve: &CveSummary, screen: &Screen) -> Vec<Cell> {
    vec![
        (&cve.id).into(),
        severity(cve),
        maybe(cve.cvss),
        percent(cve.epss),
        cve.affected_servers.into(),
        cve.packages.join(", ").into(),
        screen.maybe_time(cve.published),
    ]
}

fn percent(share: Option<f64>) -> Cell {
    share.map_or_else(none, |share| format!("{:.1}%", share * 100.0).into())
}

fn drawn(detail: &CveDetail, screen: &Screen) -> String {
    let cve = &detail.cve;
    let mut text = screen.facts(&[
        ("CVE", (&cve.id).into()),
        ("severity", severity(cve)),
        ("severity source", maybe(cve.severity_source.as_ref())),
        ("CVSS", maybe(cve.cvss)),
        ("EPSS", percent(cve.epss)),
        ("published", screen.maybe_time(cve.published)),
        ("packages", cve.packages.join(", ").into()),
        ("servers", cve.affected_servers.into()),
        ("suppressed on", cve.suppressed_servers.into()),
        ("link", (&detail.url).into()),
    ]);
    let rows: Vec<Vec<Cell>> = (detail.servers.iter())
        .map(|server| {
            vec![
                (&server.hostname).into(),
                toned(server.status),
                maybe(server.environment.as_ref()),
                (&server.package).into(),
                (&server.installed_version).into(),
                maybe(server.fixed_version.as_ref()),
                word(server.state).into(),
                word(server.fix).into(),
            ]
        })
        .collect();
    let columns = [
        cut("HOSTNAME"),
        whole("STATUS"),
        spare("ENVIRONMENT"),
        cut("PACKAGE"),
        cut("INSTALLED"),
        cut("FIXED IN"),
        whole("STATE"),
        spare("FIX"),
    ];
    text += &screen.heading("Servers");
    text + &screen.table(&columns, &rows)
}
