//! `fleetmend schedules`: manages recurring patch runs.

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use wire::v1::{OptionsRequest, Run, Schedule, ScheduleRequest};

use super::api::{ApiError, ApiResponse, Query};
use super::batch_view;
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::{
    PacingArgs, PatchRequest, StartArgs, UpdateArgs, ask_confirmation, confirm, is_interactive,
    options_body,
};
use super::selection::selector;
use super::table::{
    Cell, Column, Screen, Tone, empty_cell, escape_cell, full_column, optional_cell,
    optional_column, truncated_column,
};
use super::{Session, UsageError, api_name, print, print_message, toned_cell, watch};

/// The API's error code for targets that match no server.
const NO_SERVERS_MATCH: &str = "no_servers_match";

/// Recurring patch runs.
#[derive(Args)]
pub(crate) struct Schedules {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List schedules
    #[command(after_help = "Example:\n  fleetmend schedules list")]
    List(PageArgs),
    /// Show a schedule and its next runs
    #[command(after_help = "Example:\n  fleetmend schedules show 'Weekly production'")]
    Show {
        /// Schedule ID or name
        schedule: String,
    },
    /// Create a schedule; nothing starts before its next run
    #[command(after_help = "\
Examples:
  fleetmend schedules create --name 'Weekly production' --cron '0 3 * * sun' --timezone Europe/Berlin \\
    --environment production --security-only --reboot if_required --stagger-minutes 5
  fleetmend schedules create --name Nightly --cron @daily --tag web --canary 10% --max-failures 2")]
    Create(ScheduleArgs),
    /// Change the given properties of a schedule and keep the others
    #[command(
        after_help = "Examples:\n  fleetmend schedules update Nightly --cron '30 2 * * *'\n  fleetmend schedules update Nightly --enabled false"
    )]
    Update {
        /// Schedule ID or name
        schedule: String,
        #[command(flatten)]
        content: ScheduleArgs,
    },
    /// Delete a schedule; batches that it started continue
    #[command(after_help = "Example:\n  fleetmend schedules delete Nightly")]
    Delete {
        /// Schedule ID or name
        schedule: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
    /// Run a schedule now; shows a preview and asks for confirmation
    #[command(after_help = "Example:\n  fleetmend schedules run Nightly --watch")]
    Run {
        /// Schedule ID or name
        schedule: String,
        #[command(flatten)]
        start: StartArgs,
    },
    /// List the runs of a schedule, newest first
    #[command(after_help = "Example:\n  fleetmend schedules runs Nightly --limit 10")]
    Runs {
        /// Schedule ID or name
        schedule: String,
        #[command(flatten)]
        page: PageArgs,
    },
}

#[derive(Args)]
struct ScheduleArgs {
    /// Name of the schedule
    #[arg(long)]
    name: Option<String>,
    /// Description of the schedule
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Cron expression: five fields, or a shortcut such as @daily
    #[arg(long)]
    cron: Option<String>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Whether the schedule runs [default: true]
    #[arg(long, value_name = "true|false")]
    enabled: Option<bool>,
    /// Target servers in this environment
    #[arg(long)]
    environment: Option<String>,
    /// Target servers with this operating system, such as debian or "debian 12"
    #[arg(long)]
    os: Option<String>,
    /// Target servers with this tag; if repeated, servers must have all tags
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Target this server, by ID or name; repeatable
    #[arg(long, value_name = "SERVER")]
    server: Vec<String>,
    /// Target every server of the organization
    #[arg(long, conflicts_with_all = ["environment", "os", "tag", "server"])]
    all: bool,
    /// Save the schedule without asking even if no server matches now
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    update_args: UpdateArgs,
    #[command(flatten)]
    pacing: PacingArgs,
}

const COLUMNS: [Column; 8] = [
    truncated_column("NAME"),
    truncated_column("WHEN"),
    optional_column("CRON"),
    optional_column("TIMEZONE"),
    full_column("NEXT RUN"),
    full_column("LAST RUN"),
    truncated_column("TARGETS"),
    optional_column("ID"),
];

const RUN_COLUMNS: [Column; 7] = [
    full_column("SCHEDULED FOR"),
    full_column("STATE"),
    optional_column("TRIGGER"),
    full_column("SERVERS").align_right(),
    full_column("FAILED").align_right(),
    full_column("BATCH"),
    optional_column("FINISHED"),
];

impl Schedules {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(part) => {
                let listing =
                    ListView { path: &["schedules"], noun: "schedules", columns: &COLUMNS };
                let row = |schedule: &Schedule| row(schedule, &session.screen);
                session.list(listing, &part, Query::default, row).await
            }
            Command::Show { schedule } => {
                let id = session.resolve_schedule(&schedule).await?;
                show_schedule(&session, &session.api.get(&["schedules", &id]).await?)
            }
            Command::Create(content) => {
                let request = content.request(&session, None).await?;
                let send = async |body: &ScheduleRequest| {
                    session.api.post(&["schedules"], Some(body)).await
                };
                show_schedule(&session, &confirm_empty(request, "Create it anyway?", send).await?)
            }
            Command::Update { schedule, content } => {
                let id = session.resolve_schedule(&schedule).await?;
                let seen = session.api.get(&["schedules", &id]).await?;
                let request = content.request(&session, Some(seen.read()?)).await?;
                let path = ["schedules", &id];
                let send = async |body: &ScheduleRequest| {
                    session.api.put(&path, seen.etag.as_deref(), body).await
                };
                show_schedule(&session, &confirm_empty(request, "Save it anyway?", send).await?)
            }
            Command::Delete { schedule, yes } => {
                let id = session.resolve_schedule(&schedule).await?;
                let seen = session.api.get(&["schedules", &id]).await?;
                let name = escape_cell(seen.read::<Schedule>()?.name);
                confirm(&format!("Delete the schedule `{name}`?"), yes)?;
                session.api.delete(&["schedules", &id], seen.etag.as_deref()).await?;
                print_message(&format!("Deleted the schedule `{name}`."))
            }
            Command::Run { schedule, start } => run_now(&session, &schedule, &start).await,
            Command::Runs { schedule, page: part } => {
                let id = session.resolve_schedule(&schedule).await?;
                let path = ["schedules", &id, "runs"];
                let listing = ListView { path: &path, noun: "runs", columns: &RUN_COLUMNS };
                let row = |run: &Run| run_row(run, &session.screen);
                session.list(listing, &part, Query::default, row).await
            }
        }
    }
}

impl ScheduleArgs {
    /// The complete request: the given flags applied to the existing schedule, if any.
    async fn request(
        &self,
        session: &Session,
        seen: Option<Schedule>,
    ) -> anyhow::Result<ScheduleRequest> {
        let mut request = match seen {
            Some(seen) => ScheduleRequest {
                name: seen.name,
                description: Some(seen.description),
                enabled: Some(seen.enabled),
                cron: seen.cron.to_string(),
                timezone: Some(seen.timezone.to_string()),
                targets: serde_json::to_value(seen.targets)?,
                options: Some(serde_json::from_value(serde_json::to_value(seen.options)?)?),
                allow_empty: None,
            },
            None => {
                let (Some(name), Some(cron)) = (self.name.clone(), self.cron.clone()) else {
                    return Err(UsageError("a schedule needs --name and --cron".to_owned()).into());
                };
                let targets = Value::Object(Map::new());
                ScheduleRequest {
                    name,
                    cron,
                    targets,
                    description: None,
                    enabled: None,
                    timezone: None,
                    options: None,
                    allow_empty: None,
                }
            }
        };
        request.name = self.name.clone().unwrap_or(request.name);
        request.cron = self.cron.clone().unwrap_or(request.cron);
        request.description = self.description.clone().or(request.description);
        request.timezone = self.timezone.clone().or(request.timezone);
        request.enabled = self.enabled.or(request.enabled);
        request.targets = self.targets(session).await?.unwrap_or(request.targets);
        let before = request.options.unwrap_or_default();
        request.options = Some(self.update_args.apply_to(before, Some(&self.pacing)));
        request.allow_empty = self.allow_empty.then_some(true);
        Ok(request)
    }

    /// The targets from the flags; none if no target flag was given.
    async fn targets(&self, session: &Session) -> anyhow::Result<Option<Value>> {
        if self.all {
            return Ok(Some(json!({"all": true})));
        }
        selector(session, self.environment.as_ref(), self.os.as_ref(), &self.tag, &self.server)
            .await
    }
}

/// Sends a schedule. If the API rejects it because no server matches, asks on a terminal whether to
/// save it anyway; otherwise the error says how to.
async fn confirm_empty(
    mut request: ScheduleRequest,
    question: &str,
    send: impl AsyncFn(&ScheduleRequest) -> Result<ApiResponse, ApiError>,
) -> anyhow::Result<ApiResponse> {
    let refusal = match send(&request).await {
        Err(refusal) if refusal.has_error(NO_SERVERS_MATCH) => refusal,
        done => return Ok(done?),
    };
    if !is_interactive() {
        bail!(
            "{refusal}\n  Correct the targets, or use --allow-empty to save the schedule anyway."
        );
    }
    for reason in refusal.details(NO_SERVERS_MATCH) {
        print_message(&format!("Warning: {}", escape_cell(reason.to_owned())))?;
    }
    ask_confirmation(question)?;
    request.allow_empty = Some(true);
    Ok(send(&request).await?)
}

async fn run_now(session: &Session, id_or_name: &str, start: &StartArgs) -> anyhow::Result<()> {
    let id = session.resolve_schedule(id_or_name).await?;
    let seen: Schedule = session.api.get(&["schedules", &id]).await?.read()?;
    let options: OptionsRequest = serde_json::from_value(serde_json::to_value(&seen.options)?)?;
    let mut preview = options_body(&options)?;
    preview.insert("targets".to_owned(), serde_json::to_value(&seen.targets)?);
    let order = PatchRequest { path: &["schedules", &id, "run"], body: None, preview };
    let body = session.start(order, start).await?;
    let run: Run = body.read()?;
    if let Some(why) = run.skip_reason {
        if session.json {
            print(&format!("{}\n", body.text))?;
        }
        bail!("Skipped: {}. Nothing was started.", why.description());
    }
    if start.watch
        && let Some(batch) = run.batch_id
    {
        return watch::watch_batch(session, &batch.to_string()).await;
    }
    session.show(&body, |_| {
        let batch =
            run.batch_id.map(|id| format!("\nFollow it with `fleetmend batches watch {id}`."));
        Ok(format!("{}: {}{}\n", run.id, api_name(run.state), batch.unwrap_or_default()))
    })
}

fn show_schedule(session: &Session, body: &ApiResponse) -> anyhow::Result<()> {
    session.show(body, |screen| Ok(format_schedule(&body.read()?, screen)))
}

fn row(schedule: &Schedule, screen: &Screen) -> Vec<Cell> {
    let next = match schedule.enabled {
        true => screen.optional_time(schedule.next_runs.first().copied()),
        false => Cell::new("disabled", Tone::Faint),
    };
    vec![
        (&schedule.name).into(),
        schedule.cron.describe().into(),
        (&schedule.cron).into(),
        (&schedule.timezone).into(),
        next,
        schedule.last_run.as_ref().map_or_else(empty_cell, |run| toned_cell(run.state)),
        (&schedule.targets).into(),
        schedule.id.into(),
    ]
}

fn run_row(run: &Run, screen: &Screen) -> Vec<Cell> {
    let state = match run.skip_reason {
        Some(why) => {
            Cell::new(format!("skipped ({})", api_name(why).replace('_', " ")), Tone::Faint)
        }
        None => toned_cell(run.state),
    };
    let failed = run.progress.map(|progress| progress.failed + progress.timed_out);
    vec![
        screen.time(run.scheduled_for),
        state,
        api_name(run.trigger).into(),
        optional_cell(run.progress.map(|progress| progress.total)),
        optional_cell(failed).with_tone(if failed.unwrap_or(0) > 0 {
            Tone::Bad
        } else {
            Tone::Plain
        }),
        optional_cell(run.batch_id),
        screen.optional_time(run.finished_at),
    ]
}

fn format_schedule(schedule: &Schedule, screen: &Screen) -> String {
    let options = &schedule.options;
    let what = match (options.packages.is_empty(), options.security_only) {
        (_, true) => "security updates".to_owned(),
        (true, false) => "all updates".to_owned(),
        (false, false) => format!("{} packages", options.packages.len()),
    };
    let enabled = match schedule.enabled {
        true => Cell::new("yes", Tone::Good),
        false => Cell::new("no", Tone::Warning),
    };
    let waves: Vec<String> = options.waves.iter().map(ToString::to_string).collect();
    let mut text = screen.properties(&[
        ("schedule", (&schedule.name).into()),
        ("id", schedule.id.into()),
        ("description", (&schedule.description).into()),
        ("enabled", enabled),
        ("runs", schedule.cron.describe().into()),
        ("cron", (&schedule.cron).into()),
        ("timezone", (&schedule.timezone).into()),
        ("targets", (&schedule.targets).into()),
        ("installs", what.into()),
        ("reboot", api_name(options.reboot).into()),
        ("stagger", format!("{} min", options.stagger_minutes).into()),
        ("canary", options.canary.into()),
        ("waves", optional_cell((!options.waves.is_empty()).then(|| waves.join(" ")))),
        ("max parallel", optional_cell(options.max_parallel)),
        ("max failures", optional_cell(options.max_failures)),
        ("health", batch_view::health(options).into()),
        ("window", optional_cell(options.window_minutes.map(|minutes| format!("{minutes} min")))),
        (
            "last run",
            schedule.last_run.as_ref().map_or_else(empty_cell, |run| toned_cell(run.state)),
        ),
    ]);
    if !schedule.next_runs.is_empty() {
        text += &screen.heading("Next runs");
        for at in &schedule.next_runs {
            text += &match screen.width {
                Some(_) => format!("{at:.0}  {}\n", super::table::relative_time(*at, screen.now)),
                None => format!("{at:.0}\n"),
            };
        }
    }
    for warning in &schedule.warnings {
        text += &format!("{}\n", screen.paint(&format!("Warning: {warning}"), Tone::Warning));
    }
    text
}
