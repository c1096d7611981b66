//! What is to be done, and the question before it is: what an order says, what it would do, whether to start it.

mod outlook;

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::bail;
use clap::Args;
use serde_json::{Map, Value, json};
use vocab::Portion;
use wire::v1::{Batch, OptionsRequest, Preview};

use super::api::Body;
use super::screen::{Screen, count, harmless};
use super::{Session, Usage, batch_view, print, tell, watch};
use crate::output;

/// What is installed.
#[derive(Args, Clone)]
pub(super) struct What {
    /// Update this package; may be given several times
    #[arg(long = "package", value_name = "NAME", conflicts_with = "all_updates")]
    packages: Vec<String>,
    /// Install every available update
    #[arg(long)]
    all_updates: bool,
    /// Install only security updates
    #[arg(long)]
    security_only: bool,
    /// Exclude this package, or packages that match the pattern; can be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Whether servers may be rebooted [default: never]
    #[arg(long, value_parser = ["never", "if_required", "always", "services_only"])]
    reboot: Option<String>,
    /// Report what would be installed and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// How servers follow each other.
#[derive(Args, Clone)]
pub(super) struct Pace {
    /// The least time between two servers' starts
    #[arg(long, value_name = "MINUTES")]
    stagger_minutes: Option<i64>,
    /// How many servers may be in work at once
    #[arg(long, value_name = "N")]
    max_parallel: Option<i64>,
    /// How many servers, or "10%", go first and must succeed
    #[arg(long, value_name = "N|%")]
    canary: Option<Portion>,
    /// At how many failed servers, or "5%", it halts by itself
    #[arg(long, value_name = "N|%")]
    max_failures: Option<Portion>,
    /// No server starts later than this after the start
    #[arg(long, value_name = "MINUTES")]
    window_minutes: Option<i64>,
}

/// How it is started.
#[derive(Args, Clone)]
pub(super) struct Start {
    /// Start without being asked
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Follow it to its end; fails unless it succeeds
    #[arg(long)]
    pub(super) watch: bool,
}

impl What {
    /// Nothing is patched by omission.
    pub(super) fn is_said(&self) -> Result<(), Usage> {
        match self.all_updates || self.security_only || !self.packages.is_empty() {
            true => Ok(()),
            false => Err(Usage(
                "say what to install: --security-only, --package NAME, or --all-updates".to_owned(),
            )),
        }
    }

    /// Lays what was said over what was there.
    pub(super) fn over(&self, mut options: OptionsRequest, pace: Option<&Pace>) -> OptionsRequest {
        if self.all_updates || !self.packages.is_empty() {
            options.packages = Some(self.packages.clone());
        }
        if self.all_updates || self.security_only {
            options.security_only = Some(self.security_only);
        }
        if !self.exclude.is_empty() {
            options.exclude = Some(self.exclude.clone());
        }
        options.reboot = self.reboot.clone().or(options.reboot);
        options.dry_run = if self.dry_run { Some(true) } else { options.dry_run };
        if let Some(pace) = pace {
            options.stagger_minutes = pace.stagger_minutes.or(options.stagger_minutes);
            options.max_parallel = pace.max_parallel.or(options.max_parallel);
            options.canary = pace.canary.or(options.canary);
            options.max_failures = pace.max_failures.or(options.max_failures);
            options.window_minutes = pace.window_minutes.or(options.window_minutes);
        }
        options
    }
}

/// An order: where it is sent, and what it says.
pub(super) struct Order<'a> {
    pub(super) path: &'a [&'a str],
    /// The body; none where the API already knows it.
    pub(super) body: Option<Map<String, Value>>,
    /// The same as `POST /v1/preview` takes it.
    pub(super) preview: Map<String, Value>,
}

/// Options at the top level of a body, where an order has them.
pub(super) fn top_level(options: &OptionsRequest) -> anyhow::Result<Map<String, Value>> {
    match serde_json::to_value(options)? {
        Value::Object(map) => Ok(map),
        _ => bail!("options are an object"),
    }
}

impl Session {
    /// Shows what an order would do and asks, unless that was answered already; then sends it.
    pub(super) async fn start(&self, order: Order<'_>, start: &Start) -> anyhow::Result<Body> {
        if !start.yes {
            self.is_asked(&order.preview).await?;
        }
        Ok(self.api.post(order.path, order.body.as_ref()).await?)
    }

    async fn is_asked(&self, preview: &Map<String, Value>) -> anyhow::Result<()> {
        if !someone_is_there() {
            return Err(Usage(
                "nobody can be asked here, since this is no terminal: say --yes to start it without a question"
                    .to_owned(),
            )
            .into());
        }
        let preview: Preview = self.api.post(&["preview"], Some(preview)).await?.read()?;
        if preview.total == 0 {
            let reasons = preview.warnings.join(" ");
            let reason = if reasons.is_empty() { "No server matches.".into() } else { reasons };
            bail!("{} Nothing was started.", harmless(reason));
        }
        let screen = Screen::stderr();
        tell(&outlook::drawn(&preview, &screen))?;
        let servers = count(preview.total, "server", "servers");
        let what = if preview.options.dry_run { "Try it on" } else { "Patch" };
        agreed(&format!("{what} {servers}?"))
    }

    /// Shows what came of an order that makes a batch, following it first if that was asked.
    pub(super) async fn began(&self, body: &Body, start: &Start) -> anyhow::Result<()> {
        let batch: Batch = body.read()?;
        let id = batch.id.to_string();
        if start.watch {
            return watch::to_the_end(self, &id).await;
        }
        if self.json {
            return print(&format!("{}\n", body.text));
        }
        for warning in &batch.warnings {
            tell(&format!("warning: {warning}"))?;
        }
        print(&format!(
            "{id}: {} for {}\nFollow it with `fleetmend batches watch {id}`.\n",
            batch_view::state(&batch),
            count(batch.progress.total, "server", "servers")
        ))
    }
}

/// Asks before something that cannot be taken back.
pub(crate) fn sure(question: &str, yes: bool) -> anyhow::Result<()> {
    match (yes, someone_is_there()) {
        (true, _) => Ok(()),
        (false, true) => agreed(question),
        (false, false) => Err(Usage(format!(
            "{question} Nobody can be asked here, since this is no terminal: say --yes"
        ))
        .into()),
    }
}

pub(super) fn someone_is_there() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

pub(super) fn agreed(question: &str) -> anyhow::Result<()> {
    output::err(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing was done"),
    }
}

/// The servers as an order names them.
pub(super) fn with_servers(
    mut body: Map<String, Value>,
    server_ids: &[String],
) -> Map<String, Value> {
    body.insert("server_ids".to_owned(), json!(server_ids));
    body
}
