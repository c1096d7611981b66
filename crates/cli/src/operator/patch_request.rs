//! Starts patch operations: the options, the preview, the confirmation prompt and the request.

mod preview;

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::bail;
use clap::Args;
use serde_json::{Map, Value, json};
use vocab::{HealthMode, Portion, Wave};
use wire::v1::{Batch, OptionsRequest, Preview, WaveRequest};

use super::api::ApiResponse;
use super::table::{Screen, escape_cell, pluralize};
use super::{Session, UsageError, batch_view, print, print_message, watch};
use crate::output;

#[derive(Args, Clone)]
pub(super) struct UpdateArgs {
    /// Update this package; repeatable
    #[arg(long = "package", value_name = "NAME", conflicts_with = "all_updates")]
    packages: Vec<String>,
    /// Install all available updates
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
pub(super) struct PacingArgs {
    /// Minimum time between the starts of two servers
    #[arg(long, value_name = "MINUTES")]
    stagger_minutes: Option<i64>,
    /// Maximum number of servers to patch at the same time
    #[arg(long, value_name = "N")]
    max_parallel: Option<i64>,
    /// Number or percentage of servers to patch first; they must succeed before the others start
    #[arg(long, value_name = "N|%")]
    canary: Option<Portion>,
    /// A wave: its size, and after commas `soak=MINUTES` and `approval`; repeatable
    #[arg(
        long = "wave",
        value_name = "N|%|rest[,soak=MINUTES][,approval]",
        conflicts_with = "canary"
    )]
    waves: Vec<Wave>,
    /// Number or percentage of failed servers at which the batch halts
    #[arg(long, value_name = "N|%")]
    max_failures: Option<Portion>,
    /// Do not start servers later than this after the batch starts
    #[arg(long, value_name = "MINUTES")]
    window_minutes: Option<i64>,
    /// Start on frozen servers too, for this reason (administrators only)
    #[arg(long, value_name = "REASON")]
    override_freeze: Option<String>,
    /// Install exactly the versions of the first wave on the other servers
    #[arg(long)]
    pin_versions: bool,
    /// What to do about the health of the servers: off, report, or gate (halt if a wave is not
    /// healthy)
    #[arg(long, value_name = "MODE")]
    health: Option<HealthMode>,
    /// Number or percentage of the servers of a wave that may become unhealthy, with --health gate
    #[arg(long, value_name = "N|%")]
    max_unhealthy: Option<Portion>,
}

#[derive(Args, Clone)]
pub(super) struct StartArgs {
    /// Skip the confirmation prompt
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Follow the batch until it ends; the exit code is 0 only if it succeeds
    #[arg(long)]
    pub(super) watch: bool,
}

impl UpdateArgs {
    /// Fails if no flag says what to install: omitting all of them must not patch anything.
    pub(super) fn validate(&self) -> Result<(), UsageError> {
        match self.all_updates || self.security_only || !self.packages.is_empty() {
            true => Ok(()),
            false => Err(UsageError(
                "choose what to install: --security-only, --package NAME, or --all-updates"
                    .to_owned(),
            )),
        }
    }

    /// Applies the given flags to existing options.
    pub(super) fn apply_to(
        &self,
        mut options: OptionsRequest,
        pacing: Option<&PacingArgs>,
    ) -> OptionsRequest {
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
        if let Some(pace) = pacing {
            options.stagger_minutes = pace.stagger_minutes.or(options.stagger_minutes);
            options.max_parallel = pace.max_parallel.or(options.max_parallel);
            // Each replaces the other.
            if pace.canary.is_some() {
                options.waves = None;
                options.canary = pace.canary;
            }
            if !pace.waves.is_empty() {
                options.canary = None;
                options.waves = Some(pace.waves.iter().copied().map(WaveRequest::from).collect());
            }
            options.max_failures = pace.max_failures.or(options.max_failures);
            options.window_minutes = pace.window_minutes.or(options.window_minutes);
            options.override_freeze =
                pace.override_freeze.clone().or(options.override_freeze.take());
            options.pin_versions =
                if pace.pin_versions { Some(true) } else { options.pin_versions };
            options.health = pace.health.map(|mode| mode.to_string()).or(options.health.take());
            options.max_unhealthy = pace.max_unhealthy.or(options.max_unhealthy);
        }
        options
    }
}

/// A request that starts a patch operation: its path and body.
pub(super) struct PatchRequest<'a> {
    pub(super) path: &'a [&'a str],
    /// The request body; none where the API already has the content.
    pub(super) body: Option<Map<String, Value>>,
    /// The body for `POST /v1/preview`.
    pub(super) preview: Map<String, Value>,
}

/// Options as top-level fields of a request body.
pub(super) fn options_body(options: &OptionsRequest) -> anyhow::Result<Map<String, Value>> {
    match serde_json::to_value(options)? {
        Value::Object(map) => Ok(map),
        _ => bail!("options must serialize to an object"),
    }
}

impl Session {
    /// Shows a preview and asks for confirmation, unless `--yes` is given; then sends the request.
    pub(super) async fn start(
        &self,
        order: PatchRequest<'_>,
        start: &StartArgs,
    ) -> anyhow::Result<ApiResponse> {
        if !start.yes {
            self.preview_and_confirm(&order.preview).await?;
        }
        Ok(self.api.post(order.path, order.body.as_ref()).await?)
    }

    async fn preview_and_confirm(&self, preview: &Map<String, Value>) -> anyhow::Result<()> {
        if !is_interactive() {
            return Err(UsageError(
                "cannot ask for confirmation because this is not a terminal: use --yes to start without it"
                    .to_owned(),
            )
            .into());
        }
        let preview: Preview = self.api.post(&["preview"], Some(preview)).await?.read()?;
        if preview.total == 0 {
            let reasons = preview.warnings.join(" ");
            let reason = if reasons.is_empty() { "No server matches.".into() } else { reasons };
            bail!("{} Nothing was started.", escape_cell(reason));
        }
        let screen = Screen::stderr();
        print_message(&preview::format_preview(&preview, &screen))?;
        let servers = pluralize(preview.total, "server", "servers");
        let what = if preview.options.dry_run { "Dry run on" } else { "Patch" };
        ask_confirmation(&format!("{what} {servers}?"))
    }

    /// Prints the created batch, or follows it until it ends with `--watch`.
    pub(super) async fn show_started_batch(
        &self,
        body: &ApiResponse,
        start: &StartArgs,
    ) -> anyhow::Result<()> {
        let batch: Batch = body.read()?;
        let id = batch.id.to_string();
        if start.watch {
            return watch::watch_batch(self, &id).await;
        }
        if self.json {
            return print(&format!("{}\n", body.text));
        }
        for warning in &batch.warnings {
            print_message(&format!("warning: {warning}"))?;
        }
        print(&format!(
            "{id}: {} for {}\nFollow it with `fleetmend batches watch {id}`.\n",
            batch_view::state(&batch),
            pluralize(batch.progress.total, "server", "servers")
        ))
    }
}

/// Asks for confirmation before something that cannot be undone.
pub(crate) fn confirm(question: &str, yes: bool) -> anyhow::Result<()> {
    match (yes, is_interactive()) {
        (true, _) => Ok(()),
        (false, true) => ask_confirmation(question),
        (false, false) => Err(UsageError(format!(
            "{question} Cannot ask for confirmation because this is not a terminal: use --yes"
        ))
        .into()),
    }
}

pub(super) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

pub(super) fn ask_confirmation(question: &str) -> anyhow::Result<()> {
    output::err(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("canceled; nothing was changed"),
    }
}

/// A request body with the name of the batch, if one was given.
pub(super) fn with_name(mut body: Map<String, Value>, name: Option<&str>) -> Map<String, Value> {
    body.extend(name.map(|name| ("name".to_owned(), json!(name))));
    body
}

/// Adds the server IDs to a request body.
pub(super) fn with_servers(
    mut body: Map<String, Value>,
    server_ids: &[String],
) -> Map<String, Value> {
    body.insert("server_ids".to_owned(), json!(server_ids));
    body
}
