//! `fleetmend freezes`: manages the times in which nothing starts.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use wire::v1::{Freeze, FreezeRequest};

use super::api::{ApiResponse, Query};
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::confirm;
use super::selection::selector;
use super::table::{
    Cell, Column, Screen, Tone, empty_cell, escape_cell, full_column, optional_column, pluralize,
    truncated_column,
};
use super::{Session, UsageError, print_message};

/// Times in which no task starts.
#[derive(Args)]
pub(crate) struct Freezes {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List freezes
    #[command(after_help = "Example:\n  fleetmend freezes list")]
    List(PageArgs),
    /// Show a freeze and its next periods
    #[command(after_help = "Example:\n  fleetmend freezes show 'Business hours'")]
    Show {
        /// Freeze ID or name
        freeze: String,
    },
    /// Create a freeze: while it is active, no task starts on its servers
    #[command(after_help = "\
Examples:
  fleetmend freezes create --name 'Black Friday' --reason 'Sales peak' --environment production \\
    --from 2026-11-27T00:00:00Z --until 2026-11-30T08:00:00Z
  fleetmend freezes create --name 'Business hours' --reason 'Customers work' --tag web \\
    --cron '0 8 * * mon-fri' --duration 10h --timezone Europe/Berlin
  fleetmend freezes create --name Incident --reason 'Database incident' --all --until 2026-11-16T06:00:00Z")]
    Create(FreezeArgs),
    /// Change the given properties of a freeze and keep the others
    #[command(
        after_help = "Example:\n  fleetmend freezes update 'Black Friday' --until 2026-12-01T08:00:00Z"
    )]
    Update {
        /// Freeze ID or name
        freeze: String,
        #[command(flatten)]
        content: FreezeArgs,
    },
    /// Delete a freeze; what it held back may start immediately
    #[command(after_help = "Example:\n  fleetmend freezes delete 'Black Friday'")]
    Delete {
        /// Freeze ID or name
        freeze: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Args)]
struct FreezeArgs {
    /// Name of the freeze
    #[arg(long)]
    name: Option<String>,
    /// Why nothing may change
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Freeze servers in this environment
    #[arg(long)]
    environment: Option<String>,
    /// Freeze servers with this operating system, such as debian or "debian 12"
    #[arg(long)]
    os: Option<String>,
    /// Freeze servers with this tag; if repeated, servers must have all tags
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Freeze this server, by ID or name; repeatable
    #[arg(long, value_name = "SERVER")]
    server: Vec<String>,
    /// Freeze every server of the organization
    #[arg(long, conflicts_with_all = ["environment", "os", "tag", "server"])]
    all: bool,
    /// Start of a one-off freeze, such as 2026-12-24T12:00:00Z [default: now]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["cron", "duration", "timezone"])]
    from: Option<String>,
    /// End of a one-off freeze
    #[arg(long, value_name = "TIME", conflicts_with_all = ["cron", "duration", "timezone"])]
    until: Option<String>,
    /// When a recurring freeze starts: a cron expression with five fields
    #[arg(long)]
    cron: Option<String>,
    /// How long a recurring freeze lasts each time: minutes, or a number with m, h or d
    #[arg(long, value_name = "DURATION", value_parser = parse_minutes)]
    duration: Option<i64>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
}

/// Parses `90`, `90m`, `10h` or `2d` as minutes.
fn parse_minutes(text: &str) -> Result<i64, String> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'm')) => (&text[..at], 1),
        Some((at, 'h')) => (&text[..at], 60),
        Some((at, 'd')) => (&text[..at], 24 * 60),
        _ => (text, 1),
    };
    let number: Option<i64> = number.parse().ok().filter(|number| *number > 0);
    let minutes = number.and_then(|number| number.checked_mul(factor));
    minutes.ok_or_else(|| "must be a number of minutes, or a number with m, h or d".to_owned())
}

const COLUMNS: [Column; 6] = [
    truncated_column("NAME"),
    full_column("STATE"),
    truncated_column("WHEN"),
    truncated_column("TARGETS"),
    full_column("SERVERS").align_right(),
    optional_column("ID"),
];

impl Freezes {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(part) => {
                let listing = ListView { path: &["freezes"], noun: "freezes", columns: &COLUMNS };
                let row = |freeze: &Freeze| row(freeze, &session.screen);
                session.list(listing, &part, Query::default, row).await
            }
            Command::Show { freeze } => {
                let id = session.resolve_freeze(&freeze).await?;
                show_freeze(&session, &session.api.get(&["freezes", &id]).await?)
            }
            Command::Create(content) => {
                let request = content.request(&session, None).await?;
                show_freeze(&session, &session.api.post(&["freezes"], Some(&request)).await?)
            }
            Command::Update { freeze, content } => {
                let id = session.resolve_freeze(&freeze).await?;
                let seen = session.api.get(&["freezes", &id]).await?;
                let request = content.request(&session, Some(seen.read()?)).await?;
                let path = ["freezes", &*id];
                let saved = session.api.put(&path, seen.etag.as_deref(), &request).await?;
                show_freeze(&session, &saved)
            }
            Command::Delete { freeze, yes } => {
                let id = session.resolve_freeze(&freeze).await?;
                let seen = session.api.get(&["freezes", &id]).await?;
                let freeze = seen.read::<Freeze>()?;
                let name = escape_cell(freeze.name);
                let effect = match freeze.active {
                    true => {
                        let servers = pluralize(freeze.servers, "server", "servers");
                        format!(" It freezes {servers} now; what is waiting may start.")
                    }
                    false => String::new(),
                };
                confirm(&format!("Delete the freeze `{name}`?{effect}"), yes)?;
                session.api.delete(&["freezes", &id], seen.etag.as_deref()).await?;
                print_message(&format!("Deleted the freeze `{name}`."))
            }
        }
    }
}

impl FreezeArgs {
    /// The complete request: the given flags applied to the existing freeze, if any.
    async fn request(
        &self,
        session: &Session,
        seen: Option<Freeze>,
    ) -> anyhow::Result<FreezeRequest> {
        let mut request = match seen {
            Some(seen) => FreezeRequest {
                name: seen.name,
                reason: seen.reason,
                targets: serde_json::to_value(seen.targets)?,
                starts_at: seen.starts_at.map(|at| at.to_string()),
                ends_at: seen.ends_at.map(|at| at.to_string()),
                cron: seen.cron.map(|cron| cron.to_string()),
                duration_minutes: seen.duration_minutes.map(i64::from),
                timezone: seen.timezone.map(|zone| zone.to_string()),
            },
            None => {
                let (Some(name), Some(reason)) = (self.name.clone(), self.reason.clone()) else {
                    let message = "a freeze needs --name and --reason";
                    return Err(UsageError(message.to_owned()).into());
                };
                if self.until.is_none() && (self.cron.is_none() || self.duration.is_none()) {
                    let message = "a freeze needs --until, or --cron and --duration";
                    return Err(UsageError(message.to_owned()).into());
                }
                FreezeRequest {
                    name,
                    reason,
                    targets: Value::Object(Map::new()),
                    starts_at: None,
                    ends_at: None,
                    cron: None,
                    duration_minutes: None,
                    timezone: None,
                }
            }
        };
        // Times of the other kind turn a recurring freeze into a one-off one, and vice versa.
        if self.from.is_some() || self.until.is_some() {
            (request.cron, request.duration_minutes, request.timezone) = (None, None, None);
        }
        if self.cron.is_some() || self.duration.is_some() || self.timezone.is_some() {
            (request.starts_at, request.ends_at) = (None, None);
        }
        request.name = self.name.clone().unwrap_or(request.name);
        request.reason = self.reason.clone().unwrap_or(request.reason);
        request.starts_at = self.from.clone().or(request.starts_at);
        request.ends_at = self.until.clone().or(request.ends_at);
        request.cron = self.cron.clone().or(request.cron);
        request.duration_minutes = self.duration.or(request.duration_minutes);
        request.timezone = self.timezone.clone().or(request.timezone);
        let targets = match self.all {
            true => Some(json!({"all": true})),
            false => {
                let (environment, os) = (self.environment.as_ref(), self.os.as_ref());
                selector(session, environment, os, &self.tag, &self.server).await?
            }
        };
        request.targets = targets.unwrap_or(request.targets);
        Ok(request)
    }
}

fn show_freeze(session: &Session, body: &ApiResponse) -> anyhow::Result<()> {
    session.show(body, |screen| Ok(format_freeze(&body.read()?, screen)))
}

fn state(freeze: &Freeze, screen: &Screen) -> Cell {
    match (freeze.active_until, freeze.next.first()) {
        (Some(until), _) => {
            Cell::new(format!("active until {}", screen.time(until).text()), Tone::Warning)
        }
        (None, Some(next)) => format!("starts {}", screen.time(next.starts_at).text()).into(),
        (None, None) => Cell::new("ended", Tone::Faint),
    }
}

fn when(freeze: &Freeze) -> String {
    match (freeze.starts_at, freeze.ends_at, &freeze.cron, freeze.duration_minutes) {
        (Some(starts_at), Some(ends_at), ..) => format!("{starts_at:.0} to {ends_at:.0}"),
        (_, _, Some(cron), Some(minutes)) => {
            format!("{}, for {}", cron.describe(), format_minutes(minutes))
        }
        _ => String::new(),
    }
}

/// A duration of whole minutes, such as `1 h 30 min`.
fn format_minutes(minutes: u32) -> String {
    let parts = [(minutes / 1_440, "d"), (minutes / 60 % 24, "h"), (minutes % 60, "min")];
    let shown = parts.into_iter().filter(|(count, _)| *count > 0);
    shown.map(|(count, unit)| format!("{count} {unit}")).collect::<Vec<_>>().join(" ")
}

fn row(freeze: &Freeze, screen: &Screen) -> Vec<Cell> {
    vec![
        (&freeze.name).into(),
        state(freeze, screen),
        when(freeze).into(),
        (&freeze.targets).into(),
        freeze.servers.into(),
        freeze.id.into(),
    ]
}

fn format_freeze(freeze: &Freeze, screen: &Screen) -> String {
    let mut properties: Vec<(&str, Cell)> = vec![
        ("freeze", (&freeze.name).into()),
        ("id", freeze.id.into()),
        ("reason", (&freeze.reason).into()),
        ("state", state(freeze, screen)),
        ("when", when(freeze).into()),
    ];
    if let (Some(cron), Some(zone)) = (&freeze.cron, &freeze.timezone) {
        properties.push(("cron", cron.into()));
        properties.push(("timezone", zone.into()));
    }
    properties.push(("targets", (&freeze.targets).into()));
    let servers = match freeze.servers {
        0 => empty_cell(),
        servers => servers.into(),
    };
    properties.push(("servers", servers));
    let mut text = screen.properties(&properties);
    if freeze.cron.is_some() && !freeze.next.is_empty() {
        text += &screen.heading("Next periods");
        for period in &freeze.next {
            text += &format!("{:.0} to {:.0}\n", period.starts_at, period.ends_at);
        }
    }
    for warning in &freeze.warnings {
        text += &format!("{}\n", screen.paint(&format!("Warning: {warning}"), Tone::Warning));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_shown_with_all_its_units() {
        let shown = [90, 600, 2_880, 43_200, 1_441].map(format_minutes);
        assert_eq!(shown, ["1 h 30 min", "10 h", "2 d", "30 d", "1 d 1 min"]);
    }

    #[test]
    fn durations_are_minutes_or_have_a_unit() {
        for (text, minutes) in [("90", 90), ("90m", 90), ("10h", 600), ("2d", 2_880)] {
            assert_eq!(parse_minutes(text), Ok(minutes));
        }
        for wrong in ["", "h", "0", "-5", "1.5h", "5x", "9223372036854775807d", "1 h"] {
            assert!(parse_minutes(wrong).is_err(), "{wrong}");
        }
    }
}
