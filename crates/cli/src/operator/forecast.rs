//! `fleetmend forecast`: what the schedules will do in the next days.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::de::DeserializeOwned;
use wire::v1::{
    Forecast, ForecastChanges, ForecastDifferences, ForecastPlan, ForecastRequest, ForecastServer,
};

use super::Session;
use super::credentials::Connection;
use super::table::{
    Cell, Column, Screen, Tone, empty_cell, escape_cell, full_column, pluralize, truncated_column,
};

/// Forecast what the schedules will do in the next days.
#[derive(Args)]
pub(crate) struct ForecastArgs {
    #[command(flatten)]
    connection: Connection,
    /// Number of days, from 1 to 90
    #[arg(long, default_value_t = 30)]
    days: i64,
    /// Also forecast with the schedule in this JSON file, as in the body of POST /v1/schedules;
    /// repeatable
    #[arg(long, value_name = "FILE")]
    schedule_file: Vec<PathBuf>,
    /// Also forecast with the freeze in this JSON file, as in the body of POST /v1/freezes;
    /// repeatable
    #[arg(long, value_name = "FILE")]
    freeze_file: Vec<PathBuf>,
}

impl ForecastArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        let changes = ForecastChanges {
            schedules: read_all(&self.schedule_file)?,
            freezes: read_all(&self.freeze_file)?,
        };
        let is_empty = changes.schedules.is_none() && changes.freezes.is_none();
        let request =
            ForecastRequest { days: Some(self.days), changes: (!is_empty).then_some(changes) };
        let body = session.api.post(&["forecast"], Some(&request)).await?;
        session.show(&body, |screen| Ok(format_forecast(&body.read()?, screen)))
    }
}

/// Reads the files; `None` if there are none.
fn read_all<T: DeserializeOwned>(files: &[PathBuf]) -> anyhow::Result<Option<Vec<T>>> {
    if files.is_empty() {
        return Ok(None);
    }
    let read = |file: &Path| -> anyhow::Result<T> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a valid request body", file.display()))
    };
    files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<T>>>().map(Some)
}

const GAPS: [Column; 3] = [
    full_column("SERVERS").align_right(),
    truncated_column("REASON"),
    truncated_column("EXAMPLES"),
];
const WINDOWS: [Column; 5] = [
    truncated_column("RUN"),
    full_column("AT"),
    full_column("SERVERS").align_right(),
    full_column("NO TURN").align_right(),
    full_column("MINUTES SHORT").align_right(),
];
const APPROVALS: [Column; 4] = [
    truncated_column("RUN"),
    full_column("SINCE"),
    full_column("WAVE").align_right(),
    full_column("SERVERS").align_right(),
];
const SKIPPED: [Column; 3] =
    [truncated_column("RUN"), full_column("AT"), truncated_column("REASON")];
const DAYS: [Column; 6] = [
    full_column("DATE"),
    full_column("RUNS").align_right(),
    full_column("SKIPPED").align_right(),
    full_column("PATCHED").align_right(),
    full_column("REBOOTS").align_right(),
    full_column("POSSIBLE REBOOTS").align_right(),
];

/// The maximum number of rows of the tables of runs.
const ROWS_MAX: usize = 10;

fn format_forecast(forecast: &Forecast, screen: &Screen) -> String {
    // With changes, their plan is what matters; the differences say what it was before.
    let plan = forecast.with_changes.as_ref().unwrap_or(&forecast.today);
    let mut text = format_totals(forecast, plan, screen);
    if let Some(differences) = &forecast.differences {
        text += &screen.heading("Effect of the changes");
        text += &format_differences(differences, screen);
    }
    text += &format_problems(plan, screen);
    let busy = plan.days.iter().filter(|day| day.runs + day.skipped + day.patched > 0);
    let days: Vec<Vec<Cell>> = busy
        .map(|day| {
            vec![
                day.date.into(),
                day.runs.into(),
                day.skipped.into(),
                day.patched.into(),
                day.reboots.into(),
                day.possible_reboots.into(),
            ]
        })
        .collect();
    if !days.is_empty() {
        text += &screen.heading("Days");
        text += &screen.table(&DAYS, &days);
    }
    text += &screen.heading("Assumptions");
    for assumption in &plan.assumptions {
        text += &format!("- {}\n", escape_cell(assumption.clone()));
    }
    text
}

fn format_totals(forecast: &Forecast, plan: &ForecastPlan, screen: &Screen) -> String {
    let servers = &plan.servers;
    let (certain, possible) = plan.days.iter().fold((0, 0), |(certain, possible), day| {
        (certain + day.reboots, possible + day.possible_reboots)
    });
    let tone = |number: u64| if number > 0 { Tone::Bad } else { Tone::Plain };
    screen.properties(&[
        ("from", screen.time(forecast.from)),
        ("until", screen.time(plan.ended_early_at.unwrap_or(forecast.until))),
        ("servers", servers.total.into()),
        ("up to date", servers.up_to_date.into()),
        ("not scanned", servers.not_scanned.into()),
        ("patched", servers.patched.into()),
        ("partly patched", servers.partly_patched.into()),
        ("not patched", Cell::new(servers.not_patched.to_string(), tone(servers.not_patched))),
        (
            "not covered by a schedule",
            Cell::new(servers.uncovered.to_string(), tone(servers.uncovered)),
        ),
        (
            "windows too short",
            Cell::new(plan.short_windows_total.to_string(), tone(plan.short_windows_total)),
        ),
        ("runs skipped", plan.skipped_total.into()),
        ("reboots", format!("{certain}, and up to {possible} more").into()),
    ])
}

fn format_problems(plan: &ForecastPlan, screen: &Screen) -> String {
    let mut text = String::new();
    let mut section = |title: &str, columns: &[Column], rows: Vec<Vec<Cell>>| {
        if !rows.is_empty() {
            text += &screen.heading(title);
            text += &screen.table(columns, &rows);
        }
    };
    let gaps = plan.gaps.iter().map(|gap| {
        vec![gap.total.into(), (&gap.detail).into(), names(&gap.servers, gap.total).into()]
    });
    section("Servers that no schedule covers", &GAPS, gaps.collect());
    let windows = plan.short_windows.iter().take(ROWS_MAX).map(|window| {
        vec![
            (&window.run.name).into(),
            screen.time(window.run.at),
            window.servers.into(),
            window.no_turn.into(),
            window.minutes_short.map_or_else(empty_cell, Into::into),
        ]
    });
    section("Windows that close too early", &WINDOWS, windows.collect());
    let approvals = plan.approvals.iter().take(ROWS_MAX).map(|approval| {
        vec![
            (&approval.run.name).into(),
            screen.time(approval.since),
            approval.wave.into(),
            approval.servers.into(),
        ]
    });
    section("Runs that wait for an approval", &APPROVALS, approvals.collect());
    let skipped = plan.skipped.iter().take(ROWS_MAX).map(|skipped| {
        vec![
            (&skipped.run.name).into(),
            screen.time(skipped.run.at),
            skipped.reason.description().into(),
        ]
    });
    section("Runs that do not start", &SKIPPED, skipped.collect());
    text
}

fn format_differences(differences: &ForecastDifferences, screen: &Screen) -> String {
    let servers = |total: u64| Cell::from(pluralize(total, "server", "servers"));
    screen.properties(&[
        ("newly covered", servers(differences.covered.total)),
        ("no longer covered", servers(differences.uncovered.total)),
        ("newly patched", servers(differences.patched.total)),
        ("no longer patched", servers(differences.not_patched.total)),
        ("patched earlier", servers(differences.earlier.total)),
        ("patched later", servers(differences.later.total)),
    ])
}

/// The names of the first servers.
fn names(servers: &[ForecastServer], total: u64) -> String {
    const NAMED: usize = 3;
    let name = |server: &ForecastServer| match &server.display_name {
        Some(name) => name.to_string(),
        None => server.hostname.to_string(),
    };
    let mut text = servers.iter().take(NAMED).map(name).collect::<Vec<_>>().join(", ");
    let more = total.saturating_sub(servers.len().min(NAMED) as u64);
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn server(name: &str) -> serde_json::Value {
        json!({"server_id": "srv_01jcqk3m8ye0fr5cq0k6s8v2xw", "hostname": name, "display_name": null})
    }

    fn plan() -> serde_json::Value {
        let run = json!({"name": "Nightly", "schedule_id": null, "batch_id": null, "at": "2026-11-16T03:00:00Z"});
        json!({
            "assumptions": ["Nothing fails."],
            "ended_early_at": null,
            "servers": {"total": 9, "up_to_date": 1, "not_scanned": 0, "patched": 5, "partly_patched": 0,
                "not_patched": 3, "uncovered": 4},
            "gaps": [{"reason": "no_schedule", "detail": "No schedule selects the server.", "total": 4,
                "servers": [server("db-1"), server("db-2"), server("db-3"), server("db-4")]}],
            "short_windows": [{"run": run, "closes_at": "2026-11-16T04:00:00Z", "servers": 5, "no_turn": 2,
                "offline": 0, "frozen": 0, "minutes_short": 25}],
            "short_windows_total": 1,
            "approvals": [],
            "skipped": [{"run": run, "reason": "freeze"}],
            "skipped_total": 1,
            "days": [
                {"date": "2026-11-15", "runs": 0, "skipped": 0, "reboots": 0, "possible_reboots": 0, "patched": 0},
                {"date": "2026-11-16", "runs": 1, "skipped": 1, "reboots": 2, "possible_reboots": 3, "patched": 5},
            ],
            "patches": [],
        })
    }

    #[test]
    fn forecast_lists_gaps_windows_and_days_and_always_its_assumptions() {
        let list = json!({"total": 0, "servers": []});
        let forecast = json!({"from": "2026-11-15T04:00:00Z", "until": "2026-12-15T04:00:00Z", "today": plan(),
            "with_changes": plan(), "differences": {"covered": {"total": 1, "servers": [server("db-1")]},
            "uncovered": list, "patched": list, "not_patched": list, "earlier": list, "later": list, "days": []}});
        let forecast: Forecast = serde_json::from_value(forecast).unwrap();
        let now = forecast.from;
        let screen = Screen { width: None, height: 24, color: false, now };
        let text = format_forecast(&forecast, &screen);
        for line in [
            "not covered by a schedule\t4\n",
            "reboots\t2, and up to 3 more\n",
            "newly covered\t1 server\n",
            "4\tNo schedule selects the server.\tdb-1, db-2, db-3 and 1 more\n",
            "Nightly\t2026-11-16T03:00:00Z\t5\t2\t25\n",
            "Nightly\t2026-11-16T03:00:00Z\tall servers were frozen\n",
            "2026-11-16\t1\t1\t5\t2\t3\n",
            "- Nothing fails.\n",
        ] {
            assert!(text.contains(line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("2026-11-15\t"), "a day on which nothing happens:\n{text}");
    }

    #[test]
    fn unreadable_file_is_named_in_the_error() {
        let missing = [PathBuf::from("/nonexistent/schedule.json")];
        let error = read_all::<wire::v1::ScheduleRequest>(&missing).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nonexistent/schedule.json");
        assert!(read_all::<wire::v1::ScheduleRequest>(&[]).unwrap().is_none());
    }
}
