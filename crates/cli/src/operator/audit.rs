//! `fleetmend audit`: lists, verifies and exports the audit log.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::Value;
use wire::v1::{AuditEntry, AuditEntryList, AuditVerification, VerifyAudit};

use super::api::{PAGE_MAX, Query};
use super::credentials::Connection;
use super::table::{
    Cell, Column, Screen, Table, Tone, full_column, group_thousands, optional_column,
    truncated_column,
};
use super::{Session, print, print_message};

/// Read and verify the audit log.
#[derive(Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List entries, newest first
    #[command(after_help = "\
Examples:
  fleetmend audit list
  fleetmend audit list --action 'batch.*,api_key.create' --since 2026-11-01T00:00:00Z
  fleetmend audit list --actor usr_01k9zq3c8efxr9w1m6t5y0b7a2 --limit 500 --json")]
    List(List),
    /// Verify that no entry was changed or removed
    #[command(after_help = "\
Exits with 1 if an entry was changed or removed.

Examples:
  fleetmend audit verify
  fleetmend audit verify --json | jq .first_invalid")]
    Verify {
        /// Start after this entry, to continue an earlier verification
        #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
        after: u64,
    },
    /// Write entries as CSV, newest first; with --json, as one JSON object per line
    #[command(after_help = "\
Examples:
  fleetmend audit export --output audit.csv
  fleetmend audit export --since 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z > november.csv")]
    Export {
        #[command(flatten)]
        filter: Filter,
        /// File to write; it appears when it is complete [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Filter {
    /// Only entries of the user or key with this ID, or of a part of the service, such as `engine`
    #[arg(long, value_name = "ID")]
    actor: Option<String>,
    /// Actions, separated by commas; `batch.*` is a group of them [default: all]
    #[arg(long = "action", value_name = "ACTION", value_delimiter = ',')]
    actions: Vec<String>,
    /// Only entries about the resource with this ID
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only entries from this time on, such as 2026-11-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only entries before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl Filter {
    fn query(&self) -> Query {
        Query::default()
            .with("actor", self.actor.as_ref())
            .with_all("action", &self.actions)
            .with("subject", self.subject.as_ref())
            .with("since", self.since.as_ref())
            .with("until", self.until.as_ref())
    }
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    filter: Filter,
    /// Only entries before this sequence number
    #[arg(long, value_name = "SEQUENCE")]
    before: Option<u64>,
    /// Maximum number of entries; with --json, up to 500
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
}

const COLUMNS: [Column; 6] = [
    full_column("ENTRY").align_right(),
    full_column("TIME"),
    truncated_column("ACTOR"),
    full_column("ACTION"),
    truncated_column("SUBJECT"),
    optional_column("DETAILS"),
];

impl Audit {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(list) => list.run(&session).await,
            Command::Verify { after } => verify(&session, after).await,
            Command::Export { filter, output } => match output {
                Some(path) => export_to_file(&session, &filter, &path).await,
                None => export(&session, &filter, print).await.map(drop),
            },
        }
    }
}

impl List {
    async fn run(&self, session: &Session) -> anyhow::Result<()> {
        if session.json {
            let query = self.filter.query().with("before", self.before);
            let query = query.with("limit", Some(self.limit));
            let body = session.api.get_with_query(&["audit"], &query).await?;
            print(&format!("{}\n", body.text))?;
            let part: AuditEntryList = body.read()?;
            return print_if_cut(part.meta.next_before);
        }
        let mut table = Table::new(session.screen, &COLUMNS);
        let (mut before, mut left) = (self.before, self.limit);
        loop {
            // The API rejects an invalid limit and says why.
            let query = self.filter.query().with("before", before);
            let query = query.with("limit", Some(left.min(PAGE_MAX)));
            let part: AuditEntryList =
                session.api.get_with_query(&["audit"], &query).await?.read()?;
            let rows: Vec<_> = part.data.iter().map(|entry| row(entry, &session.screen)).collect();
            left = left.saturating_sub(u32::try_from(rows.len()).unwrap_or(u32::MAX));
            before = part.meta.next_before;
            let is_last = before.is_none() || left == 0;
            if !rows.is_empty() {
                print(&table.page(&rows))?;
            } else if is_last && left == self.limit && session.screen.width.is_some() {
                print(&format!("{}\n", session.screen.paint("No entries.", Tone::Faint)))?;
            }
            if is_last {
                return print_if_cut(before);
            }
        }
    }
}

fn print_if_cut(before: Option<u64>) -> anyhow::Result<()> {
    match before {
        Some(before) => {
            print_message(&format!("There may be older entries; use --before {before}."))
        }
        None => Ok(()),
    }
}

fn row(entry: &AuditEntry, screen: &Screen) -> Vec<Cell> {
    let plain = |text: &str| Cell::new(text, Tone::Plain);
    let subject = entry.subject.name.as_ref().unwrap_or(&entry.subject.id);
    let details = match entry.details.is_empty() {
        true => String::new(),
        false => Value::Object(entry.details.clone()).to_string(),
    };
    vec![
        plain(&entry.sequence.to_string()),
        screen.time(entry.at),
        plain(entry.actor.name.as_ref().unwrap_or(&entry.actor.id)),
        plain(&entry.action),
        plain(subject),
        Cell::new(details, Tone::Faint),
    ]
}

/// Verifies the log in parts, and reports the whole.
async fn verify(session: &Session, after: u64) -> anyhow::Result<()> {
    let mut entries = 0;
    let mut position = after;
    let result = loop {
        let body = VerifyAudit { after: Some(i64::try_from(position)?), limit: None };
        let part = session.api.post(&["audit", "verify"], Some(&body)).await?;
        let part: AuditVerification = part.read()?;
        entries += part.entries;
        if part.complete || !part.valid || part.verified_to <= position {
            break AuditVerification { entries, ..part };
        }
        position = part.verified_to;
        let [done, all] = [part.verified_to, part.latest].map(group_thousands);
        print_message(&format!("Verified {done} of {all} entries."))?;
    };
    match session.json {
        true => print(&format!("{}\n", serde_json::to_string(&result)?))?,
        false => {
            let tone = if result.valid { Tone::Good } else { Tone::Bad };
            let word = if result.valid { "valid" } else { "not valid" };
            let fields = [
                ("result", Cell::new(word, tone)),
                ("entries", Cell::new(group_thousands(result.entries), Tone::Plain)),
                ("detail", Cell::new(result.detail.clone(), Tone::Plain)),
            ];
            print(&session.screen.properties(&fields))?;
        }
    }
    anyhow::ensure!(
        result.valid,
        "the audit log was changed: see \"The audit log\" in docs/security.md"
    );
    Ok(())
}

/// Exports to a file, which appears when it is complete.
async fn export_to_file(session: &Session, filter: &Filter, path: &Path) -> anyhow::Result<()> {
    let mut name = path.file_name().context("--output: not a file name")?.to_owned();
    name.push(".part");
    let partial = path.with_file_name(name);
    let cannot = || format!("cannot write {}", partial.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file: File = options.open(&partial).with_context(cannot)?;
    let written = export(session, filter, |text| Ok(file.write_all(text.as_bytes())?)).await;
    let written = match written {
        Ok(entries) => file.sync_all().and_then(|()| fs::rename(&partial, path)).map(|()| entries),
        Err(error) => {
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
    };
    let bytes = written.with_context(cannot)?;
    print_message(&format!("Wrote {} ({} bytes).", path.display(), group_thousands(bytes)))
}

/// Passes the entries to `write` in whole lines. Returns the number of bytes.
async fn export(
    session: &Session,
    filter: &Filter,
    mut write: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let mut bytes = 0;
    let mut write = |text: &str| {
        bytes += text.len() as u64;
        write(text)
    };
    if !session.json {
        let mut download = session.api.download(&["audit.csv"], &filter.query()).await?;
        while let Some(lines) = download.next_lines().await? {
            write(&lines)?;
        }
        return Ok(bytes);
    }
    let mut before = None;
    loop {
        let query = filter.query().with("before", before).with("limit", Some(PAGE_MAX));
        let part: AuditEntryList = session.api.get_with_query(&["audit"], &query).await?.read()?;
        for entry in &part.data {
            write(&format!("{}\n", serde_json::to_string(entry)?))?;
        }
        match part.meta.next_before {
            Some(next) => before = Some(next),
            None => return Ok(bytes),
        }
    }
}
