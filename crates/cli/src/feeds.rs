//! `fleetmend feeds`: what is published about flaws, on the database of this installation.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use server::clock::Clock;
use server::service::feeds::{self, Import, Imported, Step};
use store::Db;

use crate::settings::{self, Durability, File};

/// Take in what is published about flaws, and see what is there.
#[derive(Args)]
pub(crate) struct Feeds {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Take feeds in: advisories in OSV's form, Alpine's secdb, Debian's tracker, KEV, EPSS
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Show every feed with its age and size, and why the last import failed
    #[command(after_help = "Example:\n  fleetmend feeds status --data-dir /var/lib/fleetmend")]
    Status(Installation),
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  fleetmend feeds import --data-dir D Debian.zip AlmaLinux.zip
  fleetmend feeds import --data-dir D known_exploited_vulnerabilities.json epss_scores.csv.gz
  fleetmend feeds import --data-dir D --release bookworm=12 tracker-list

A feed that is broken, cut off or empty changes nothing. An older copy of a feed removes nothing.";

/// Which installation.
#[derive(Args)]
struct Installation {
    /// Where the secrets are kept, and the database unless another one is named
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    data_dir: PathBuf,
    /// postgres://…, or the path of a SQLite file [default: fleetmend.db in the data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ImportArgs {
    /// Files or directories
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What they hold, if their beginning does not tell
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// The release for which Debian's list is read: its name and its number
    #[arg(long, value_name = "NAME=NUMBER", value_parser = release)]
    release: Option<(String, String)>,
    #[command(flatten)]
    installation: Installation,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Advisories in OSV's form
    Osv,
    /// Alpine's fixes
    Secdb,
    /// Known exploited vulnerabilities
    Kev,
    /// Estimates of exploitation
    Epss,
}

fn release(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, number)) if !name.is_empty() && !number.is_empty() => {
            Ok((name.to_owned(), number.to_owned()))
        }
        _ => Err("a release is written as its name and its number: bookworm=12".to_owned()),
    }
}

impl Installation {
    async fn open(&self) -> anyhow::Result<Db> {
        let file = File::load(None, &self.data_dir)?;
        let secrets = settings::existing(&self.data_dir)?;
        let url = self.database.clone().or(file.database);
        let url = url.unwrap_or_else(|| settings::database_in(&self.data_dir));
        settings::open(&url, Durability::Process, &secrets).await
    }
}

impl Feeds {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Import(import) => import.run().await,
            Command::Status(installation) => status(&installation).await,
        }
    }
}

impl ImportArgs {
    async fn run(self) -> anyhow::Result<()> {
        let db = self.installation.open().await?;
        let kind = match (self.kind, self.release) {
            (None, None) => None,
            (None, Some((codename, version))) => {
                Some(feed::Kind::DebianTracker { codename, version })
            }
            (Some(Kind::Osv), None) => Some(feed::Kind::Osv),
            (Some(Kind::Secdb), None) => Some(feed::Kind::Secdb),
            (Some(Kind::Kev), None) => Some(feed::Kind::Kev),
            (Some(Kind::Epss), None) => Some(feed::Kind::Epss),
            (Some(_), Some(_)) => {
                bail!("--release is for Debian's list, which has no other --kind")
            }
        };
        let mut failed = 0;
        for path in self.files {
            let shown = path.display().to_string();
            let import = Import { path, kind: kind.clone(), as_of: None };
            let bar = Bar::new(&shown);
            let done =
                feeds::import(&db, import, Clock::system().now(), move |step| bar.show(step));
            let done = done.await.with_context(|| format!("{shown} was not imported"));
            match done {
                Ok(imported) => tell(&imported, self.installation.json)?,
                Err(error) => {
                    failed += 1;
                    writeln!(std::io::stderr(), "fleetmend: {error:#}")?;
                }
            }
        }
        db.close().await;
        match failed {
            0 => Ok(()),
            1 => bail!("one feed was not imported, and nothing of it was applied"),
            _ => bail!("{failed} feeds were not imported, and nothing of them was applied"),
        }
    }
}

fn tell(imported: &Imported, as_json: bool) -> anyhow::Result<()> {
    let Imported { name, kind, records, changed } = imported;
    match as_json {
        true => crate::say(
            &json!({"name": name, "kind": kind, "records": records, "changed": changed})
                .to_string(),
        ),
        false => crate::say(&format!("{name} ({kind}): {records} records, {changed} of them new")),
    }
}

async fn status(installation: &Installation) -> anyhow::Result<()> {
    let db = installation.open().await?;
    let all = store::feeds::list(&mut *db.read().await?).await?;
    db.close().await;
    if installation.json {
        let feeds: Vec<_> = all
            .iter()
            .map(|feed| {
                json!({"name": feed.name, "kind": feed.kind, "source": feed.source,
                    "records": feed.records, "size_bytes": feed.size_bytes,
                    "as_of": feed.as_of.map(|time| time.to_string()),
                    "imported_at": feed.imported_at.map(|time| time.to_string()),
                    "last_error": feed.last_error})
            })
            .collect();
        return crate::say(&json!({"feeds": feeds}).to_string());
    }
    if all.is_empty() {
        return crate::say(
            "No feed was imported yet: CVEs cannot be matched. See `fleetmend feeds import --help`.",
        );
    }
    for feed in all {
        let when = match feed.imported_at {
            Some(at) => format!("imported {at:.0}, {} records", feed.records),
            None => "never imported".to_owned(),
        };
        let as_of = feed.as_of.map(|at| format!(", as of {at:.0}")).unwrap_or_default();
        crate::say(&format!("{} ({}): {when}{as_of}", feed.name, feed.kind))?;
        if let Some(error) = feed.last_error {
            crate::say(&format!("  the last import failed at {:.0}: {error}", feed.tried_at))?;
        }
    }
    Ok(())
}

/// A line that shows how far an import is, on a terminal only.
struct Bar {
    what: Option<String>,
}

impl Bar {
    fn new(what: &str) -> Bar {
        Bar { what: std::io::stderr().is_terminal().then(|| what.to_owned()) }
    }

    fn show(&self, step: Step) {
        let Some(what) = &self.what else { return };
        let (word, at) = match step {
            Step::Checking(at) => ("checking", at),
            Step::Applying(at) => ("importing", at),
        };
        let percent = (at.bytes * 100).checked_div(at.total).unwrap_or(100);
        let filled = usize::try_from(percent / 5).unwrap_or(20).min(20);
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(20 - filled));
        // A line that cannot be written is not worth an import.
        let _ = write!(std::io::stderr(), "\r\x1b[K{what}: {word} [{bar}] {percent}%");
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.what.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
