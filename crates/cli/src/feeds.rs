//! `fleetmend feeds`: adds, imports, updates and lists vulnerability feeds.
//!
//! With `--data-dir` the commands work on the installation's database, otherwise on a running
//! service (`crate::operator::feeds`).

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use service::app::FeedSettings;
use service::clock::Clock;
use service::commands::feeds;
use service::commands::feeds::bundle::{BundleKey, BundleOrigin};
use service::commands::feeds::remote;
use service::commands::feeds::remote::{FetchOptions, UpdateOutcome, UrlImport};
use service::commands::feeds::{
    FeedTransactions, ImportProgress, ImportRequest, ImportSummary, bundle, manage,
};
use service::fetch::Limits;
use service::queries;
use store::Db;
use store::feed_sources::{self, FeedSource};
use wire::v1::{Feed, FeedPhase, FeedProgress, FeedState};

use crate::installation::{Installation, ensure_parent_dir};
use crate::operator::credentials::Connection;
use crate::operator::feeds as operator_feeds;
use crate::operator::patch_request::confirm;
use crate::operator::print;
use crate::operator::table::{
    Cell, Screen, Tone, empty_cell, format_duration, full_column, optional_cell, optional_column,
    pluralize, truncated_column,
};
use crate::output;
use crate::settings::{Durability, SettingsFile, load_secrets};

/// Add, update and inspect vulnerability feeds.
///
/// The service imports the feeds that its servers need on its own. `add`, `update`, `remove` and
/// `status` use the API of a running service; with --data-dir, they use the database.
#[derive(Args)]
pub(crate) struct Feeds {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add a built-in feed by its name, or a feed from a URL
    #[command(after_help = "\
Examples:
  fleetmend feeds add Ubuntu
  fleetmend feeds add https://feeds.example.org/osv/all.zip --name ours --wait

Adding a feed that was removed allows the service to follow it again. docs/feeds.md lists the
built-in feeds.")]
    Add(operator_feeds::Add),
    /// Import feeds: OSV, CSAF, Alpine secdb, the Debian and Arch trackers, updateinfo, KEV, EPSS
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Update feeds from their URLs now
    #[command(after_help = "\
Examples:
  fleetmend feeds update Debian --wait
  fleetmend feeds update --data-dir D
  fleetmend feeds update --data-dir D Debian KEV

A running service does this automatically. If an update fails, the feed keeps its current content.")]
    Update(UpdateArgs),
    /// Stop updating a feed from its URL; its advisories stay
    #[command(after_help = "Example:\n  fleetmend feeds forget --data-dir D Debian")]
    Forget(NameArgs),
    /// Delete a feed with its advisories
    #[command(after_help = "\
Examples:
  fleetmend feeds remove Wolfi
  fleetmend feeds remove --data-dir D old-copy

The service does not follow a removed built-in feed on its own again: `feeds add` allows it. CVEs that appear only in this feed disappear from every server. KEV and EPSS entries stay.")]
    Remove(RemoveArgs),
    /// Write all feeds to one signed file, for an installation without internet access
    #[command(after_help = "\
Example:
  fleetmend feeds export --data-dir D feeds.zst
  fleetmend feeds import --data-dir D feeds.zst --trust KEY     (on the other installation)

KEY is the key that `feeds export` and `feeds key` print.")]
    Export(ExportArgs),
    /// Show the public key that signs the bundles of this installation
    #[command(after_help = "\
Example:
  fleetmend feeds key --data-dir D

Another installation verifies bundles with it: `feeds import --trust KEY`. The key changes when the
root key is rotated.")]
    Key(KeyArgs),
    /// Show every feed with its age and size, and why the last import failed
    #[command(after_help = "\
Examples:
  fleetmend feeds status
  fleetmend feeds status --data-dir /var/lib/fleetmend")]
    Status(FeedTarget),
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  fleetmend feeds import --data-dir D Debian.zip AlmaLinux.zip
  fleetmend feeds import --data-dir D known_exploited_vulnerabilities.json epss_scores.csv.gz
  fleetmend feeds import --data-dir D --release bookworm=12 tracker-list
  fleetmend feeds import --data-dir D --kind updateinfo --release 'Amazon Linux=2023' updateinfo.xml.gz
  fleetmend feeds import --data-dir D https://feeds.example.org/osv/Debian/all.zip
  fleetmend feeds import --data-dir D feeds.zst --trust KEY

A feed that is broken, truncated or empty changes nothing. An older copy of a feed removes nothing. A feed that was
imported from a URL is updated by `feeds update` and automatically by the service.";

/// A feed that exists, so that the command in a message works as printed.
const EXAMPLE_FEED: &str = "https://osv-vulnerabilities.storage.googleapis.com/Debian/all.zip";

/// The longest update interval: an older feed is of little use.
const EVERY_HOURS_MAX: i64 = 24 * 7;

#[derive(Args)]
struct CommonArgs {
    #[command(flatten)]
    installation: Installation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A running service, or the database of an installation.
#[derive(Args)]
struct FeedTarget {
    /// Data directory: use its database instead of the API
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Database address, with --data-dir [default: fleetmend.db in the data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    database: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl FeedTarget {
    /// The installation, if one is named.
    fn installation(&self) -> Option<CommonArgs> {
        let data_dir = self.data_dir.clone()?;
        let installation = Installation { data_dir, database: self.database.clone() };
        Some(CommonArgs { installation, json: self.connection.json })
    }
}

#[derive(Args)]
struct ImportArgs {
    /// Files, directories, URLs (https://…), or bundles written by `feeds export`
    #[arg(required = true, value_name = "FILE|URL")]
    feeds: Vec<String>,
    /// Name of the feed [default: from the file name or URL]. An import replaces only the
    /// advisories of the feed with this name
    #[arg(long)]
    name: Option<String>,
    /// Update interval in hours, for feeds from a URL
    #[arg(long, value_name = "HOURS", default_value_t = remote::DEFAULT_INTERVAL.as_hours(),
        value_parser = clap::value_parser!(i64).range(1..=EVERY_HOURS_MAX))]
    every_hours: i64,
    /// Import once, without automatic updates
    #[arg(long, conflicts_with = "every_hours")]
    once: bool,
    /// Format of the feeds, if it cannot be detected
    #[arg(long, value_enum)]
    kind: Option<FeedFormat>,
    /// Release of a Debian tracker list (bookworm=12) or of updateinfo ('Oracle Linux=9')
    #[arg(long, value_name = "NAME=NUMBER", value_parser = parse_release)]
    release: Option<(String, String)>,
    /// Accept only bundles that this key signed: see `fleetmend feeds key`
    #[arg(long, value_name = "KEY", conflicts_with_all = ["kind", "release", "name"])]
    trust: Option<BundleKey>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args)]
struct KeyArgs {
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args)]
struct NameArgs {
    /// Names of the feeds
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args)]
struct UpdateArgs {
    /// Names of the feeds [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Wait until the feeds are updated; always the case with --data-dir
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    target: FeedTarget,
}

#[derive(Args)]
struct RemoveArgs {
    /// Name of the feed
    #[arg(value_name = "NAME")]
    name: String,
    /// Skip the confirmation prompt
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    target: FeedTarget,
}

#[derive(Args)]
struct ExportArgs {
    /// Output file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FeedFormat {
    /// Advisories in the OSV format
    Osv,
    /// CSAF documents from Red Hat or SUSE
    Csaf,
    /// Arch Linux security tracker
    Arch,
    /// Alpine secdb
    Secdb,
    /// Advisories of a repository of rpm packages (Amazon Linux, Oracle Linux), with --release
    Updateinfo,
    /// Known exploited vulnerabilities (CISA KEV)
    Kev,
    /// Exploit prediction scores (EPSS)
    Epss,
}

fn parse_release(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, number)) if !name.is_empty() && !number.is_empty() => {
            Ok((name.to_owned(), number.to_owned()))
        }
        _ => Err("use NAME=NUMBER, such as bookworm=12".to_owned()),
    }
}

impl CommonArgs {
    async fn open(&self) -> anyhow::Result<Db> {
        Ok(self.installation.open(Some(Durability::Process)).await?.0)
    }

    /// The settings of the installation's service.
    fn feed_settings(&self) -> anyhow::Result<FeedSettings> {
        SettingsFile::load(None, &self.installation.data_dir)?.feed_settings()
    }

    /// How feeds are fetched. Fails if the installation is set to offline.
    fn fetch_options(&self) -> anyhow::Result<FetchOptions> {
        let FeedSettings { offline, mirror, .. } = self.feed_settings()?;
        if offline {
            bail!(
                "this installation is set to `offline` in fleetmend.toml and fetches no feeds: \
                 import files instead"
            );
        }
        Ok(FetchOptions { limits: Limits::default(), mirror })
    }
}

impl Feeds {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Add(add) => add.run().await,
            Command::Import(import) => import.run().await,
            Command::Update(update) => match update.target.installation() {
                Some(common) => NameArgs { names: update.names, common }.update().await,
                None => {
                    let UpdateArgs { names, wait, target } = update;
                    operator_feeds::update(&target.connection, &names, wait).await
                }
            },
            Command::Forget(named) => named.forget().await,
            Command::Remove(remove) => remove.run().await,
            Command::Export(export) => export.run().await,
            Command::Key(key) => key.run(),
            Command::Status(target) => match target.installation() {
                Some(common) => status(&common).await,
                None => operator_feeds::status(&target.connection).await,
            },
        }
    }
}

impl ImportArgs {
    async fn run(self) -> anyhow::Result<()> {
        if self.name.is_some() && self.feeds.len() > 1 {
            bail!("--name can be used with one feed only");
        }
        let kind = self.kind()?;
        let db = self.common.open().await?;
        let mut failed = 0;
        for feed in &self.feeds {
            let bar = ProgressBar::new(feed);
            let now = Clock::system().now();
            let progress = move |step| bar.show(step);
            let is_address = feed.starts_with("https://") || feed.starts_with("http://");
            // A mistyped file name is not a feed, so no import failure is recorded for it.
            if !is_address && !Path::new(feed).exists() {
                failed += 1;
                output::err(&format!(
                    "fleetmend: {feed} was not imported: the file does not exist\n"
                ))?;
                continue;
            }
            let is_bundle = !is_address && kind.is_none() && bundle::is_bundle(Path::new(feed));
            if self.trust.is_some() && !is_bundle {
                failed += 1;
                output::err(&format!(
                    "fleetmend: {feed} was not imported: --trust is for bundles, and this is not one\n"
                ))?;
                continue;
            }
            let done = match is_address {
                _ if is_bundle => {
                    let (transactions, path) = (FeedTransactions::new(&db), Path::new(feed));
                    bundle::import(&transactions, path, self.trust.as_ref(), now, progress).await
                }
                true => {
                    let wanted = UrlImport {
                        url: feed.clone(),
                        name: self.name.clone(),
                        kind: kind.clone(),
                        interval: (!self.once)
                            .then(|| jiff::SignedDuration::from_hours(self.every_hours)),
                    };
                    remote::import_url(&db, wanted, self.common.fetch_options()?, now, progress)
                        .await
                }
                false => {
                    let (name, kind) = (self.name.clone(), kind.clone());
                    let import = ImportRequest { path: feed.into(), name, kind, as_of: None };
                    feeds::import(&db, import, now, progress).await
                }
            };
            match done.with_context(|| format!("{feed} was not imported")) {
                Ok(imported) => {
                    manage::record_import(&db, &imported, feed, now).await?;
                    print_import(&imported, self.common.json)?;
                    if let Some(origin) = &imported.bundle {
                        output::err(&describe_origin(origin, self.trust.is_some()))?;
                    }
                }
                Err(error) => {
                    failed += 1;
                    output::err(&format!("fleetmend: {error:#}\n"))?;
                }
            }
        }
        db.close().await;
        check_failures(failed, "imported")
    }

    fn kind(&self) -> anyhow::Result<Option<feed::FeedKind>> {
        Ok(match (self.kind, self.release.clone()) {
            (None, None) => None,
            (None, Some((codename, version))) => {
                Some(feed::FeedKind::DebianTracker { codename, version })
            }
            (Some(FeedFormat::Osv), None) => Some(feed::FeedKind::Osv),
            (Some(FeedFormat::Csaf), None) => Some(feed::FeedKind::Csaf),
            (Some(FeedFormat::Arch), None) => Some(feed::FeedKind::Arch),
            (Some(FeedFormat::Secdb), None) => Some(feed::FeedKind::Secdb),
            (Some(FeedFormat::Updateinfo), Some((name, release))) => {
                Some(feed::FeedKind::Updateinfo { ecosystem: format!("{name}:{release}") })
            }
            (Some(FeedFormat::Updateinfo), None) => {
                bail!(
                    "updateinfo does not name its release: add --release, for example --release \
                     'Amazon Linux=2023' or --release 'Oracle Linux=9'"
                )
            }
            (Some(FeedFormat::Kev), None) => Some(feed::FeedKind::Kev),
            (Some(FeedFormat::Epss), None) => Some(feed::FeedKind::Epss),
            (Some(_), Some(_)) => {
                bail!(
                    "--release is for the Debian tracker list, without --kind, and for --kind updateinfo"
                )
            }
        })
    }
}

/// What an operator must know about an imported bundle, one sentence per line.
fn describe_origin(origin: &BundleOrigin, is_trusted: bool) -> String {
    let mut text = match &origin.signer {
        Some(_) if is_trusted => String::new(),
        Some(signer) => format!(
            "warning: nobody checked who signed this bundle. It is signed with the key {signer}. To \
             accept only bundles of an installation that you know, add --trust with its key.\n"
        ),
        None => {
            "warning: this bundle is not signed, so anyone could have changed it. Export it again \
             with this release, and import it with --trust.\n"
                .to_owned()
        }
    };
    if let Some(newer) = origin.older_than {
        text += &format!(
            "warning: this bundle is older than one that was imported before, which was exported at \
             {newer}. Newer data was kept.\n"
        );
    }
    text
}

fn check_failures(failed: u32, what: &str) -> anyhow::Result<()> {
    match failed {
        0 => Ok(()),
        1 => bail!("one feed was not {what}; no part of it was applied"),
        _ => bail!("{failed} feeds were not {what}; no part of them was applied"),
    }
}

impl NameArgs {
    async fn update(self) -> anyhow::Result<()> {
        let options = self.common.fetch_options()?;
        let db = self.common.open().await?;
        let mut sources = feed_sources::list(&mut *db.read().await?).await?;
        for name in &self.names {
            if !sources.iter().any(|source| source.name == *name) {
                bail!("no feed named `{name}` is updated from a URL: see `fleetmend feeds status`");
            }
        }
        sources.retain(|source| self.names.is_empty() || self.names.contains(&source.name));
        if sources.is_empty() {
            let text = nothing_to_update(&self.common.installation.data_dir);
            match self.common.json {
                true => output::err(&format!("{text}\n"))?,
                false => crate::print_line(&text)?,
            }
        }
        let mut failed = 0;
        for source in sources {
            manage::record_update(&db, &source.name, Clock::system().now()).await?;
            let done = self.update_one(&db, &source, options.clone()).await;
            match done.with_context(|| format!("{} was not updated", source.name)) {
                Ok(UpdateOutcome::Imported(imported)) => print_import(&imported, self.common.json)?,
                Ok(UpdateOutcome::Unchanged { name }) if self.common.json => {
                    crate::print_line(&json!({"name": name, "changed": 0}).to_string())?;
                }
                Ok(UpdateOutcome::Unchanged { name }) => {
                    crate::print_line(&format!("{name}: unchanged"))?;
                }
                Err(error) => {
                    failed += 1;
                    output::err(&format!("fleetmend: {error:#}\n"))?;
                }
            }
        }
        db.close().await;
        check_failures(failed, "updated")
    }

    async fn update_one(
        &self,
        db: &Db,
        source: &FeedSource,
        options: FetchOptions,
    ) -> Result<UpdateOutcome, feeds::ImportError> {
        let bar = ProgressBar::new(&source.name);
        let now = Clock::system().now();
        let progress = move |step| bar.show(step);
        remote::update(&FeedTransactions::new(db), source, options, now, progress).await
    }

    async fn forget(self) -> anyhow::Result<()> {
        if self.names.is_empty() {
            bail!("name at least one feed: see `fleetmend feeds status`");
        }
        let db = self.common.open().await?;
        for name in &self.names {
            if !manage::forget(&db, name, Clock::system().now()).await? {
                bail!("no feed named `{name}` is updated from a URL: see `fleetmend feeds status`");
            }
            if !self.common.json {
                crate::print_line(&format!("{name} is no longer updated; its advisories stay"))?;
            }
        }
        db.close().await;
        Ok(())
    }
}

/// What `feeds update` says if no feed was imported from a URL, as on a new installation.
fn nothing_to_update(data_dir: &Path) -> String {
    let data_dir = data_dir.display();
    format!(
        "Nothing to update: no feed was imported from a URL. Add a feed, for example:\n  \
           fleetmend feeds import --data-dir {data_dir} {EXAMPLE_FEED}\n\
         docs/feeds.md lists the feeds for each system."
    )
}

impl RemoveArgs {
    async fn run(self) -> anyhow::Result<()> {
        let Some(common) = self.target.installation() else {
            return operator_feeds::remove(&self.target.connection, &self.name, self.yes).await;
        };
        let db = common.open().await?;
        confirm(&format!("Delete the feed `{}` with its advisories?", self.name), self.yes)?;
        let removed = manage::remove_now(&db, &self.name, Clock::system().now()).await?;
        db.close().await;
        let Some(advisories) = removed else {
            bail!("no feed named `{}`: see `fleetmend feeds status`", self.name);
        };
        match common.json {
            true => {
                crate::print_line(&json!({"name": self.name, "advisories": advisories}).to_string())
            }
            false => crate::print_line(&format!(
                "Deleted the feed `{}` and its {}.",
                self.name,
                pluralize(advisories, "advisory", "advisories")
            )),
        }
    }
}

impl ExportArgs {
    async fn run(self) -> anyhow::Result<()> {
        let (db, secrets) = self.common.installation.open(Some(Durability::Process)).await?;
        ensure_parent_dir(&self.file)?;
        let key = secrets.bundle_key();
        let exported = bundle::export(&db, &key, &self.file, Clock::system().now()).await?;
        db.close().await;
        let bundle::ExportSummary { feeds, records, size_bytes } = exported;
        let (file, key) = (self.file.display(), key.public_key());
        match self.common.json {
            true => crate::print_line(
                &json!({"file": file.to_string(), "feeds": feeds, "records": records,
                    "size_bytes": size_bytes, "key": key})
                .to_string(),
            ),
            false => crate::print_line(&format!(
                "{file}: {} from {}, {}\nSigned. To verify it on the other installation, add: --trust {key}",
                pluralize(records, "record", "records"),
                pluralize(feeds, "feed", "feeds"),
                format_bytes(size_bytes)
            )),
        }
    }
}

impl KeyArgs {
    fn run(self) -> anyhow::Result<()> {
        let secrets = load_secrets(&self.common.installation.data_dir)?;
        let key = secrets.bundle_key().public_key();
        match self.common.json {
            true => crate::print_line(&json!({"key": key}).to_string()),
            false => crate::print_line(&key),
        }
    }
}

fn print_import(summary: &ImportSummary, as_json: bool) -> anyhow::Result<()> {
    let ImportSummary { name, kind, records, changed, bundle } = summary;
    match as_json {
        true => {
            let mut shown =
                json!({"name": name, "kind": kind, "records": records, "changed": changed});
            if let Some(BundleOrigin { signer, older_than }) = bundle {
                shown["signed_by"] = json!(signer.as_ref().map(ToString::to_string));
                shown["older_than"] = json!(older_than);
            }
            crate::print_line(&shown.to_string())
        }
        false => crate::print_line(&format!(
            "{name} ({kind}): {}, {changed} new or changed",
            pluralize(*records, "record", "records")
        )),
    }
}

async fn status(common: &CommonArgs) -> anyhow::Result<()> {
    let settings = common.feed_settings()?;
    let db = common.open().await?;
    let mut reader = db.read().await?;
    let all = queries::feeds::read(&mut reader, &settings, Clock::system().now()).await?;
    drop(reader);
    db.close().await;
    match common.json {
        true => crate::print_line(&json!({"feeds": all}).to_string()),
        false if all.is_empty() => crate::print_line(
            "No feeds imported yet: the service imports them when the first server enrolls. See docs/feeds.md.",
        ),
        false => print_feeds(&all),
    }
}

fn row(feed: &Feed, screen: &Screen) -> Vec<Cell> {
    let (records, bytes) = match feed.imported_at {
        Some(_) => (feed.records.into(), format_bytes(feed.size_bytes).into()),
        None => (empty_cell(), empty_cell()),
    };
    let as_of = feed.as_of.or(feed.imported_at);
    let as_of = as_of.map_or_else(|| "never imported".into(), |at| screen.time(at));
    let next = feed.next_update_at.map_or_else(|| "never".into(), |at| screen.time(at));
    let mut cells = vec![
        (&feed.name).into(),
        (&feed.kind).into(),
        state_cell(feed),
        records,
        bytes,
        as_of,
        next,
    ];
    if screen.width.is_none() {
        cells.push(optional_cell(feed.last_error.as_ref()));
    }
    cells
}

fn state_cell(feed: &Feed) -> Cell {
    let (word, tone) = match feed.state {
        FeedState::Waiting => ("waiting", Tone::Plain),
        FeedState::Importing => ("importing", Tone::Plain),
        FeedState::Current => ("current", Tone::Good),
        FeedState::Failed => ("failed", Tone::Bad),
        FeedState::Offline => ("offline", Tone::Faint),
        FeedState::Unused => ("unused", Tone::Faint),
        FeedState::Manual => ("manual", Tone::Faint),
    };
    match &feed.progress {
        Some(progress) => Cell::new(describe_progress(progress), tone),
        None => Cell::new(word, tone),
    }
}

/// How far an import is: `importing 41%, about 3 min left`.
pub(crate) fn describe_progress(progress: &FeedProgress) -> String {
    let phase = match progress.phase {
        FeedPhase::Downloading => "downloading",
        FeedPhase::Checking => "checking",
        FeedPhase::Importing => "importing",
    };
    let done = match (progress.percent, progress.total_records) {
        (Some(percent), Some(total)) => {
            format!("{phase} {percent}%, {} of {total} records", progress.records)
        }
        (Some(percent), None) => {
            let total = progress.total_bytes.unwrap_or(progress.bytes);
            format!("{phase} {percent}% of {}", format_bytes(total))
        }
        (None, _) if progress.bytes > 0 => format!("{phase} {}", format_bytes(progress.bytes)),
        (None, _) => phase.to_owned(),
    };
    match progress.estimated_seconds_left {
        Some(left) => format!("{done}, about {} left", format_duration(left)),
        None => done,
    }
}

/// Prints the table. The last error is a column for programs, and below the table on a terminal.
pub(crate) fn print_feeds(feeds: &[Feed]) -> anyhow::Result<()> {
    let screen = Screen::stdout();
    let mut columns = vec![
        truncated_column("FEED"),
        full_column("KIND"),
        full_column("STATE"),
        full_column("RECORDS").align_right(),
        optional_column("SIZE").align_right(),
        full_column("AS OF"),
        optional_column("NEXT UPDATE"),
    ];
    if screen.width.is_none() {
        columns.push(full_column("LAST ERROR"));
    }
    let cells: Vec<_> = feeds.iter().map(|feed| row(feed, &screen)).collect();
    print(&screen.table(&columns, &cells))?;
    for feed in feeds.iter().filter(|_| screen.width.is_some()) {
        if let Some(error) = &feed.last_error {
            crate::print_line(&format!("{} failed: {error}", feed.name))?;
        }
    }
    Ok(())
}

/// Formats a number of bytes.
fn format_bytes(bytes: u64) -> String {
    match bytes {
        ..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// A progress bar, shown only on a terminal.
struct ProgressBar {
    what: Option<String>,
}

impl ProgressBar {
    fn new(what: &str) -> ProgressBar {
        ProgressBar { what: std::io::stderr().is_terminal().then(|| what.to_owned()) }
    }

    fn show(&self, step: ImportProgress) {
        let Some(what) = &self.what else { return };
        let word = match step.phase() {
            FeedPhase::Downloading => "downloading",
            FeedPhase::Checking => "checking",
            FeedPhase::Importing => "importing",
        };
        let shown = match (step.percent(), step) {
            (Some(percent), _) => {
                let filled = usize::from(percent / 5).min(20);
                let bar = format!("{}{}", "#".repeat(filled), ".".repeat(20 - filled));
                format!("{word} [{bar}] {percent}%")
            }
            (None, ImportProgress::Downloading { bytes, .. }) => {
                format!("{word} {}", format_bytes(bytes))
            }
            (None, _) => word.to_owned(),
        };
        // An import does not fail because its progress cannot be shown.
        let _ = output::err(&format!("{}{what}: {shown}", output::clear_line()));
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.what.is_some() {
            let _ = output::err(&output::clear_line());
        }
    }
}
