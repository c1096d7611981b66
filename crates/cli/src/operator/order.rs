//! Starts patch operations: the options, the preview, the confirmation prompt and the request.

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

#[derive(Args, Clone)]
pub(super) struct What {
    /// Update this package; repeatable
    #[arg(long = "package", value_name = "NAME", conflicts_with = "all_updates")]
    packages: Vec<String>,
    /// Install every available update
    #[arg(long)]
    all_updates: bool,
    /// Install only security updates
    #[arg(long)]
    security_only: bool,
    /// Exclude this package, or packages that match this pattern; repeatable
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// When to reboot servers [default: never]
    #[arg(long, value_parser = ["never", "if_required", "always", "services_only"])]
    reboot: Option<String>,
    /// Report what would be installed and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// How the servers of a batch follow each other.
#[derive(Args, Clone)]
pub(super) struct Pace {
    /// Minimum time between the starts of two servers
    #[arg(long, value_name = "MINUTES")]
    stagger_minutes: Option<i64>,
    /// Maximum number of servers to patch at the same time
    #[arg(long, value_name = "N")]
    max_parallel: Option<i64>,
    /// Number or percentage of servers to patch first; they must succeed before the others start
    #[arg(long, value_name = "N|%")]
    canary: Option<Portion>,
    /// Number or percentage of failed servers at which the batch halts
    #[arg(long, value_name = "N|%")]
    max_failures: Option<Portion>,
    /// Do not start servers later than this after the batch starts
    #[arg(long, value_name = "MINUTES")]
    window_minutes: Option<i64>,
}

#[derive(Args, Clone)]
pub(super) struct Start {
    /// Skip the confirmation prompt
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Follow the batch until it ends; the exit code is 0 only if it succeeds
    #[arg(long)]
    pub(super) watch: bool,
}

impl What {
    /// Fails if no flag says what to install: omitting all of them must not patch anything.
    pub(super) fn is_said(&self) -> Result<(), Usage> {
        match self.all_updates || self.security_only || !self.packages.is_empty() {
            true => Ok(()),
            false => Err(Usage(
                "choose what to install: --security-only, --package NAME, or --all-updates"
                    .to_owned(),
            )),
        }
    }

    /// Applies the given flags to existing options.
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

/// A request that starts a patch operation: its path and body.
pub(super) struct Order<'a> {
    pub(super) path: &'a [&'a str],
    /// The request body; none where the API already has the content.
    pub(super) body: Option<Map<String, Value>>,
    /// The body for `POST /v1/preview`.
    pub(super) preview: Map<String, Value>,
}

/// Options as top-level fields of a request body.
pub(super) fn top_level(options: &OptionsRequest) -> anyhow::Result<Map<String, Value>> {
    match serde_json::to_value(options)? {
        Value::Object(map) => Ok(map),
        _ => bail!("options must serialize to an object"),
    }
}

impl Session {
    /// Shows a preview and asks for confirmation, unless `--yes` is given; then sends the request.
    pub(super) async fn start(&self, order: Order<'_>, start: &Start) -> anyhow::Result<Body> {
        if !start.yes {
            self.is_asked(&order.preview).await?;
        }
        Ok(self.api.post(order.path, order.body.as_ref()).await?)
    }

    async fn is_asked(&self, preview: &Map<String, Value>) -> anyhow::Result<()> {
        if !someone_is_there() {
            return Err(Usage(
                "cannot ask for confirmation because this is not a terminal: use --yes to start without it"
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
        let what = if preview.options.dry_run { "Dry run on" } else { "Patch" };
        agreed(&format!("{what} {servers}?"))
    }

    /// Prints the created batch, or follows it until it ends with `--watch`.
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

/// Asks for confirmation before something that cannot be undone.
pub(crate) fn sure(question: &str, yes: bool) -> anyhow::Result<()> {
    match (yes, someone_is_there()) {
        (true, _) => Ok(()),
        (false, true) => agreed(question),
        (false, false) => Err(Usage(format!(
            "{question} Cannot ask for confirmation because this is not a terminal: use --yes"
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
        _ => bail!("canceled; nothing was changed"),
    }
}

/// Adds the server IDs to a request body.
pub(super) fn with_servers(
    mut body: Map<String, Value>,
    server_ids: &[String],
) -> Map<String, Value> {
    body.insert("server_ids".to_owned(), json!(server_ids));
    body
}
