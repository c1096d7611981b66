//! `fleetmend feeds`: what is published about flaws, on the database of this installation.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use service::clock::Clock;
use service::commands::feeds;
use service::commands::feeds::follow;
use service::commands::feeds::follow::{Follow, Updated};
use service::commands::feeds::{Desk, Import, Imported, Step, bundle};
use service::fetch::Limits;
use store::feed_sources::{self, Source};
use store::{Db, Topic};

use crate::installation::{Installation, has_place};
use crate::operator::order::sure;
use crate::operator::print;
use crate::operator::screen::{Cell, Screen, count, cut, maybe, none, spare, whole};
use crate::output;
use crate::settings::Durability;

/// Import and inspect vulnerability feeds.
#[derive(Args)]
pub(crate) struct Feeds {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Import feeds: OSV, CSAF, Alpine's secdb, the trackers of Debian and Arch, KEV, EPSS
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Fetch the feeds that were imported from an address, if their publishers have other copies
    #[command(after_help = "\
Examples:
  fleetmend feeds update --data-dir D
  fleetmend feeds update --data-dir D Debian kev

A service that runs does so by itself. A feed that cannot be had stays as it was.")]
    Update(Named),
    /// Fetch a feed no more; what was imported of it stays
    #[command(after_help = "Example:\n  fleetmend feeds forget --data-dir D Debian")]
    Forget(Named),
    /// Delete a feed with its advisories
    #[command(after_help = "\
Example:
  fleetmend feeds remove --data-dir D old-copy

CVEs that only this feed knows disappear from every server. KEV and EPSS entries stay.")]
    Remove(RemoveArgs),
    /// Write everything that is known of feeds into one file, for an installation that reaches nobody
    #[command(after_help = "\
Example:
  fleetmend feeds export --data-dir D feeds.zst
  fleetmend feeds import --data-dir D feeds.zst      (there)")]
    Export(ExportArgs),
    /// Show every feed with its age and size, and why the last import failed
    #[command(after_help = "Example:\n  fleetmend feeds status --data-dir /var/lib/fleetmend")]
    Status(Place),
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  fleetmend feeds import --data-dir D Debian.zip AlmaLinux.zip
  fleetmend feeds import --data-dir D known_exploited_vulnerabilities.json epss_scores.csv.gz
  fleetmend feeds import --data-dir D --release bookworm=12 tracker-list
  fleetmend feeds import --data-dir D https://feeds.example.org/osv/Debian/all.zip
  fleetmend feeds import --data-dir D feeds.zst

A feed that is broken, cut off or empty changes nothing. An older copy of a feed removes nothing. A feed that was imported
from an address is fetched again by `feeds update` and by the service itself.";

/// The longest time between two fetches: a feed that is older is of little use.
const EVERY_HOURS_MAX: i64 = 24 * 7;

/// Which installation, and how its answer is printed.
#[derive(Args)]
struct Place {
    #[command(flatten)]
    installation: Installation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ImportArgs {
    /// Files, directories, addresses (https://…), or bundles that `feeds export` has made
    #[arg(required = true, value_name = "FILE|URL")]
    feeds: Vec<String>,
    /// Name of the feed [default: after the file or URL]. A feed replaces only its own advisories
    #[arg(long)]
    name: Option<String>,
    /// How often a feed that comes from an address is fetched from now on
    #[arg(long, value_name = "HOURS", default_value_t = follow::EVERY.as_hours(),
        value_parser = clap::value_parser!(i64).range(1..=EVERY_HOURS_MAX))]
    every_hours: i64,
    /// Do not fetch it again
    #[arg(long, conflicts_with = "every_hours")]
    once: bool,
    /// What they hold, if their beginning does not tell
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// The release for which Debian's list is read: its name and its number
    #[arg(long, value_name = "NAME=NUMBER", value_parser = release)]
    release: Option<(String, String)>,
    #[command(flatten)]
    place: Place,
}

/// Feeds by their names.
#[derive(Args)]
struct Named {
    /// Which feeds
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
struct RemoveArgs {
    /// Which feed
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
struct ExportArgs {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Advisories in OSV's form
    Osv,
    /// CSAF documents of Red Hat or SUSE
    Csaf,
    /// Arch Linux's security tracker
    Arch,
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

impl Place {
    async fn open(&self) -> anyhow::Result<Db> {
        Ok(self.installation.open(Some(Durability::Process)).await?.0)
    }
}

impl Feeds {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Import(import) => import.run().await,
            Command::Update(named) => named.update().await,
            Command::Forget(named) => named.forget().await,
            Command::Remove(remove) => remove.run().await,
            Command::Export(export) => export.run().await,
            Command::Status(place) => status(&place).await,
        }
    }
}

impl ImportArgs {
    async fn run(self) -> anyhow::Result<()> {
        if self.name.is_some() && self.feeds.len() > 1 {
            bail!("--name is for one feed");
        }
        let kind = self.kind()?;
        let db = self.place.open().await?;
        let mut failed = 0;
        for feed in &self.feeds {
            let bar = Bar::new(feed);
            let now = Clock::system().now();
            let progress = move |step| bar.show(step);
            let is_address = feed.starts_with("https://") || feed.starts_with("http://");
            // A mistyped name is no feed, and none is kept in mind for it.
            if !is_address && !Path::new(feed).exists() {
                failed += 1;
                output::err(&format!("fleetmend: {feed} was not imported: it is not there\n"))?;
                continue;
            }
            let done = match is_address {
                true => {
                    let wanted = Follow {
                        url: feed.clone(),
                        name: self.name.clone(),
                        kind: kind.clone(),
                        every: (!self.once)
                            .then(|| jiff::SignedDuration::from_hours(self.every_hours)),
                    };
                    follow::import_url(&db, wanted, Limits::default(), now, progress).await
                }
                false => {
                    let (name, kind) = (self.name.clone(), kind.clone());
                    let import = Import { path: feed.into(), name, kind, as_of: None };
                    feeds::import(&db, import, now, progress).await
                }
            };
            match done.with_context(|| format!("{feed} was not imported")) {
                Ok(imported) => tell(&imported, self.place.json)?,
                Err(error) => {
                    failed += 1;
                    output::err(&format!("fleetmend: {error:#}\n"))?;
                }
            }
        }
        db.close().await;
        all_done(failed, "imported")
    }

    fn kind(&self) -> anyhow::Result<Option<feed::Kind>> {
        Ok(match (self.kind, self.release.clone()) {
            (None, None) => None,
            (None, Some((codename, version))) => {
                Some(feed::Kind::DebianTracker { codename, version })
            }
            (Some(Kind::Osv), None) => Some(feed::Kind::Osv),
            (Some(Kind::Csaf), None) => Some(feed::Kind::Csaf),
            (Some(Kind::Arch), None) => Some(feed::Kind::Arch),
            (Some(Kind::Secdb), None) => Some(feed::Kind::Secdb),
            (Some(Kind::Kev), None) => Some(feed::Kind::Kev),
            (Some(Kind::Epss), None) => Some(feed::Kind::Epss),
            (Some(_), Some(_)) => {
                bail!("--release is for Debian's list, which has no other --kind")
            }
        })
    }
}

fn all_done(failed: u32, what: &str) -> anyhow::Result<()> {
    match failed {
        0 => Ok(()),
        1 => bail!("one feed was not {what}, and nothing of it was applied"),
        _ => bail!("{failed} feeds were not {what}, and nothing of them was applied"),
    }
}

impl Named {
    async fn update(self) -> anyhow::Result<()> {
        let db = self.place.open().await?;
        let mut sources = feed_sources::list(&mut *db.read().await?).await?;
        for name in &self.names {
            if !sources.iter().any(|source| source.name == *name) {
                bail!("no feed `{name}` is fetched from an address: see `fleetmend feeds status`");
            }
        }
        sources.retain(|source| self.names.is_empty() || self.names.contains(&source.name));
        if sources.is_empty() && !self.place.json {
            crate::say(
                "No feed was imported from an address yet: see `fleetmend feeds import --help`.",
            )?;
        }
        let mut failed = 0;
        for source in sources {
            let done = self.update_one(&db, &source).await;
            match done.with_context(|| format!("{} was not updated", source.name)) {
                Ok(Updated::Imported(imported)) => tell(&imported, self.place.json)?,
                Ok(Updated::Unchanged { name }) if self.place.json => {
                    crate::say(&json!({"name": name, "changed": 0}).to_string())?;
                }
                Ok(Updated::Unchanged { name }) => crate::say(&format!("{name}: unchanged"))?,
                Err(error) => {
                    failed += 1;
                    output::err(&format!("fleetmend: {error:#}\n"))?;
                }
            }
        }
        db.close().await;
        all_done(failed, "updated")
    }

    async fn update_one(&self, db: &Db, source: &Source) -> Result<Updated, feeds::ImportError> {
        let bar = Bar::new(&source.name);
        let now = Clock::system().now();
        let progress = move |step| bar.show(step);
        follow::update(&Desk::new(db), source, Limits::default(), now, progress).await
    }

    async fn forget(self) -> anyhow::Result<()> {
        if self.names.is_empty() {
            bail!("say which feed: see `fleetmend feeds status`");
        }
        let db = self.place.open().await?;
        for name in &self.names {
            let mut tx = db.begin().await?;
            let known = feed_sources::forget(&mut tx, name).await?;
            tx.ring(Topic::Feeds);
            tx.commit().await?;
            if !known {
                bail!("no feed `{name}` is fetched from an address: see `fleetmend feeds status`");
            }
            if !self.place.json {
                crate::say(&format!("{name} is fetched no more; what was imported of it stays"))?;
            }
        }
        db.close().await;
        Ok(())
    }
}

impl RemoveArgs {
    async fn run(self) -> anyhow::Result<()> {
        let db = self.place.open().await?;
        sure(&format!("Delete the feed `{}` with its advisories?", self.name), self.yes)?;
        let removed = feeds::remove(&db, &self.name).await?;
        db.close().await;
        let Some(advisories) = removed else {
            bail!("there is no feed `{}`: see `fleetmend feeds status`", self.name);
        };
        match self.place.json {
            true => crate::say(&json!({"name": self.name, "advisories": advisories}).to_string()),
            false => crate::say(&format!(
                "{} deleted with {}",
                self.name,
                count(advisories, "advisory", "advisories")
            )),
        }
    }
}

impl ExportArgs {
    async fn run(self) -> anyhow::Result<()> {
        let db = self.place.open().await?;
        has_place(&self.file)?;
        let exported = bundle::export(&db, &self.file, Clock::system().now()).await?;
        db.close().await;
        let bundle::Exported { feeds, records, size_bytes } = exported;
        let file = self.file.display();
        match self.place.json {
            true => crate::say(
                &json!({"file": file.to_string(), "feeds": feeds, "records": records, "size_bytes": size_bytes})
                    .to_string(),
            ),
            false => crate::say(&format!(
                "{file}: {} of {}, {}",
                count(records, "record", "records"),
                count(feeds, "feed", "feeds"),
                size(size_bytes)
            )),
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
        false => crate::say(&format!(
            "{name} ({kind}): {}, {changed} of them new",
            count(*records, "record", "records")
        )),
    }
}

async fn status(place: &Place) -> anyhow::Result<()> {
    let db = place.open().await?;
    let mut reader = db.read().await?;
    let all = store::feeds::list(&mut reader).await?;
    let sources = feed_sources::list(&mut reader).await?;
    drop(reader);
    db.close().await;
    let now = Clock::system().now();
    let rows: Vec<Row> = all
        .into_iter()
        .map(|feed| {
            let source = sources.iter().find(|source| source.name == feed.name).cloned();
            let since = feed.as_of.or(feed.imported_at);
            let age_seconds = since.map(|time| now.duration_since(time).as_secs().max(0));
            Row { feed, source, age_seconds }
        })
        .collect();
    if place.json {
        let feeds: Vec<_> = rows.iter().map(Row::json).collect();
        return crate::say(&json!({"feeds": feeds}).to_string());
    }
    if rows.is_empty() {
        return crate::say(
            "No feed was imported yet: CVEs cannot be matched. See `fleetmend feeds import --help`.",
        );
    }
    table(&rows)
}

/// A feed as it is shown.
struct Row {
    feed: store::feeds::Feed,
    source: Option<Source>,
    age_seconds: Option<i64>,
}

impl Row {
    /// As `GET /v1/feeds` has it.
    fn json(&self) -> serde_json::Value {
        let Row { feed, source, age_seconds } = self;
        let time = |time: Option<jiff::Timestamp>| time.map(|time| time.to_string());
        json!({"name": feed.name, "kind": feed.kind, "source": feed.source,
            "records": feed.records, "size_bytes": feed.size_bytes,
            "as_of": time(feed.as_of), "imported_at": time(feed.imported_at),
            "checked_at": time(feed.checked_at), "age_seconds": age_seconds,
            "next_update_at": time(source.as_ref().map(|source| source.next_at)),
            "failures": source.as_ref().map_or(0, |source| source.failures),
            "last_error": feed.last_error})
    }

    fn cells(&self, screen: &Screen) -> Vec<Cell> {
        let Row { feed, source, .. } = self;
        let (records, bytes) = match feed.imported_at {
            Some(_) => (feed.records.into(), size(feed.size_bytes).into()),
            None => (none(), none()),
        };
        let as_of = feed.as_of.or(feed.imported_at);
        let as_of = as_of.map_or_else(|| "never imported".into(), |at| screen.time(at));
        let next = source.as_ref().map(|source| screen.time(source.next_at));
        let next = next.unwrap_or_else(|| "by hand".into());
        let mut cells = vec![(&feed.name).into(), (&feed.kind).into(), records, bytes, as_of, next];
        if screen.width.is_none() {
            cells.push(maybe(feed.last_error.as_ref()));
        }
        cells
    }
}

/// A table; why an import failed is in it for programs, and below it for people.
fn table(rows: &[Row]) -> anyhow::Result<()> {
    let screen = Screen::stdout();
    let mut columns = vec![
        cut("FEED"),
        whole("KIND"),
        whole("RECORDS").number(),
        spare("SIZE").number(),
        whole("AS OF"),
        spare("NEXT UPDATE"),
    ];
    if screen.width.is_none() {
        columns.push(whole("LAST ERROR"));
    }
    let cells: Vec<_> = rows.iter().map(|row| row.cells(&screen)).collect();
    print(&screen.table(&columns, &cells))?;
    for feed in rows.iter().map(|row| &row.feed).filter(|_| screen.width.is_some()) {
        if let Some(error) = &feed.last_error {
            crate::say(&format!("{} failed at {:.0}: {error}", feed.name, feed.tried_at))?;
        }
    }
    Ok(())
}

/// Bytes as a person says them.
fn size(bytes: u64) -> String {
    match bytes {
        ..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
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
        let line = format!("{}{what}: {word} [{bar}] {percent}%", output::fresh_line());
        let _ = output::err(&line);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.what.is_some() {
            let _ = output::err(&output::fresh_line());
        }
    }
}
