//! Formats a batch: its state, its properties, and its result on each server.

use vocab::{HealthMode, HealthState};
use wire::v1::{Batch, BatchState, BatchWave, Options, Task, TaskHealth, WaveHealth};

use super::table::{
    Cell, Column, Screen, Tone, empty_cell, format_duration, full_column, optional_cell,
    optional_column, truncated_column,
};
use super::{api_name, toned_cell};

/// The state as the API spells it.
pub(super) fn state(batch: &Batch) -> String {
    api_name(batch.state)
}

/// The properties of a batch, without the results per server.
pub(super) fn format_properties(batch: &Batch, screen: &Screen) -> String {
    let progress = &batch.progress;
    let mut facts = vec![
        ("batch", batch.id.into()),
        ("name", batch.name.as_str().into()),
        ("state", toned_cell(batch.state)),
    ];
    if let Some(why) = &batch.halt_reason {
        let what = match batch.state {
            BatchState::Paused => "paused because",
            _ => "halted because",
        };
        facts.push((what, Cell::new(why.as_str(), Tone::Bad)));
    }
    for warning in &batch.warnings {
        facts.push(("warning", Cell::new(warning.as_str(), Tone::Warning)));
    }
    let mut servers = format!("{}, {}% done", progress.total, progress.percent);
    for (number, what) in [
        (progress.succeeded, "succeeded"),
        (progress.no_change, "unchanged"),
        (progress.failed, "failed"),
        (progress.timed_out, "timed out"),
        (progress.skipped, "skipped"),
        (progress.canceled, "canceled"),
        (progress.waiting, "waiting"),
    ] {
        if number > 0 {
            servers += &format!(", {number} {what}");
        }
    }
    let options = &batch.options;
    let what = match (options.packages.is_empty(), options.security_only) {
        (_, true) => "security updates".to_owned(),
        (true, false) => "all updates".to_owned(),
        (false, false) => {
            options.packages.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }
    };
    facts.extend([
        ("servers", servers.into()),
        (
            "installs",
            if options.dry_run { format!("{what} (dry run)").into() } else { what.into() },
        ),
        ("reboot", api_name(options.reboot).into()),
        ("health", health(options).into()),
        ("origin", api_name(batch.origin).into()),
        ("started by", optional_cell(batch.started_by.as_ref())),
        ("created", screen.time(batch.created_at)),
        ("finished", screen.optional_time(batch.finished_at)),
    ]);
    screen.properties(&facts)
}

/// A batch with the result on each server.
pub(super) fn format_batch(batch: &Batch, screen: &Screen) -> String {
    let mut text = format_properties(batch, screen);
    if batch.waves.len() > 1 {
        text += &screen.heading("Waves");
        text += &screen.table(&WAVE_COLUMNS, &batch.waves.iter().map(wave_row).collect::<Vec<_>>());
    }
    let results = batch.results.as_deref().unwrap_or_default();
    let rows: Vec<Vec<Cell>> = results.iter().map(result_row).collect();
    let columns = [
        truncated_column("SERVER"),
        full_column("STATE"),
        full_column("PACKAGES").align_right(),
        optional_column("REBOOT"),
        optional_column("TOOK"),
        truncated_column("MESSAGE"),
        optional_column("HEALTH"),
    ];
    text += &screen.heading("Servers");
    text += &screen.table(&columns, &rows);
    let total = batch.progress.total as usize;
    if total > results.len() {
        text += &format!("… and {} more\n", total - results.len());
    }
    text
}

const WAVE_COLUMNS: [Column; 7] = [
    full_column("WAVE").align_right(),
    full_column("SERVERS").align_right(),
    full_column("STATE"),
    full_column("DONE").align_right(),
    full_column("FAILED").align_right(),
    truncated_column("THEN"),
    optional_column("HEALTH"),
];

fn wave_row(wave: &BatchWave) -> Vec<Cell> {
    let counts = wave.servers;
    let done = counts.succeeded + counts.no_change;
    let mut then = Vec::new();
    if let Some(by) = &wave.approved_by {
        then.push(format!("approved by {by}"));
    } else if wave.approval {
        then.push("needs an approval".to_owned());
    }
    match wave.soak_until {
        Some(until) => then.push(format!("soaks until {until:.0}")),
        None if wave.soak_minutes > 0 => then.push(format!("soaks {} min", wave.soak_minutes)),
        None => {}
    }
    vec![
        wave.number.into(),
        wave.size.into(),
        toned_cell(wave.state),
        done.into(),
        Cell::from(counts.failed).with_tone(if counts.failed > 0 {
            Tone::Bad
        } else {
            Tone::Plain
        }),
        if then.is_empty() { empty_cell() } else { then.join(", ").into() },
        wave_health_cell(wave.health),
    ]
}

/// `4 healthy, 1 unhealthy`.
fn wave_health_cell(health: WaveHealth) -> Cell {
    let unknown = health.not_measured + health.unknown;
    let parts =
        [(health.healthy, "healthy"), (health.degraded, "unhealthy"), (unknown, "not measured")];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    match (parts.is_empty(), health.degraded) {
        (true, _) => empty_cell(),
        (false, 0) => parts.join(", ").into(),
        (false, _) => Cell::new(parts.join(", "), Tone::Bad),
    }
}

/// What is done about the health of the servers.
pub(super) fn health(options: &Options) -> String {
    match (options.health, options.max_unhealthy.to_string()) {
        (HealthMode::Gate, limit) if limit != "0" => format!("gate, max {limit} unhealthy"),
        (mode, _) => api_name(mode),
    }
}

/// The health of a server since its change. A server that waits is shown only if it has problems:
/// then it is not the change that caused them.
fn health_cell(health: Option<&TaskHealth>) -> Cell {
    match health {
        None => empty_cell(),
        Some(health) => match health.state {
            HealthState::Degraded => {
                let problems: Vec<&str> =
                    health.problems.iter().map(|problem| problem.description.as_str()).collect();
                Cell::new(problems.join(", "), Tone::Bad)
            }
            HealthState::Healthy if health.after_change => "healthy".into(),
            HealthState::NotMeasured if health.after_change => {
                Cell::new("not measured", Tone::Warning)
            }
            HealthState::Healthy | HealthState::NotMeasured => empty_cell(),
        },
    }
}

fn result_row(task: &Task) -> Vec<Cell> {
    let waiting = task.waiting_for.map(|what| format!("waiting for {}", what.description()));
    let state = waiting.map_or_else(|| toned_cell(task.state), Cell::from);
    let Some(result) = &task.result else {
        return vec![
            task.name().into(),
            state,
            empty_cell(),
            empty_cell(),
            empty_cell(),
            empty_cell(),
            health_cell(task.health.as_ref()),
        ];
    };
    let code = result.failure_code.map(api_name);
    let message = result.message.as_ref().map(ToString::to_string);
    let words: Vec<String> = [code, message].into_iter().flatten().collect();
    let reboot = match (result.reboot.done, result.reboot.needed) {
        (true, _) => "done".into(),
        (false, true) => Cell::new("needed", Tone::Warning),
        (false, false) => empty_cell(),
    };
    vec![
        task.name().into(),
        state,
        result.packages.len().into(),
        reboot,
        format_duration(result.duration).into(),
        if words.is_empty() { empty_cell() } else { words.join(": ").into() },
        health_cell(task.health.as_ref()),
    ]
}
