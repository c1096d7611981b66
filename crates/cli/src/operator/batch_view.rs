//! Formats a batch: its state, its properties, and its result on each server.

use wire::v1::{Batch, Task};

use super::screen::{Cell, Screen, Tone, cut, maybe, none, span, spare, whole};
use super::{toned, word};

/// The state as the API spells it.
pub(super) fn state(batch: &Batch) -> String {
    word(batch.state)
}

/// The properties of a batch, without the results per server.
pub(super) fn facts(batch: &Batch, screen: &Screen) -> String {
    let progress = &batch.progress;
    let mut facts = vec![("batch", batch.id.into()), ("state", toned(batch.state))];
    if let Some(why) = &batch.halt_reason {
        facts.push(("halted because", Cell::new(why.as_str(), Tone::Bad)));
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
        ("reboot", word(options.reboot).into()),
        ("origin", word(batch.origin).into()),
        ("started by", maybe(batch.started_by.as_ref())),
        ("created", screen.time(batch.created_at)),
        ("finished", screen.maybe_time(batch.finished_at)),
    ]);
    screen.facts(&facts)
}

/// A batch with the result on each server.
pub(super) fn drawn(batch: &Batch, screen: &Screen) -> String {
    let mut text = facts(batch, screen);
    let results = batch.results.as_deref().unwrap_or_default();
    let rows: Vec<Vec<Cell>> = results.iter().map(result_row).collect();
    let columns = [
        cut("SERVER"),
        whole("STATE"),
        whole("PACKAGES").number(),
        spare("REBOOT"),
        spare("TOOK"),
        cut("MESSAGE"),
    ];
    text += &screen.heading("Servers");
    text += &screen.table(&columns, &rows);
    let total = batch.progress.total as usize;
    if total > results.len() {
        text += &format!("… and {} more\n", total - results.len());
    }
    text
}

fn result_row(task: &Task) -> Vec<Cell> {
    let waiting = task.waiting_for.map(|what| format!("waiting ({})", word(what)));
    let state = waiting.map_or_else(|| toned(task.state), Cell::from);
    let Some(result) = &task.result else {
        return vec![(&task.hostname).into(), state, none(), none(), none(), none()];
    };
    let code = result.failure_code.map(word);
    let message = result.message.as_ref().map(ToString::to_string);
    let words: Vec<String> = [code, message].into_iter().flatten().collect();
    let reboot = match (result.reboot.done, result.reboot.needed) {
        (true, _) => "done".into(),
        (false, true) => Cell::new("needed", Tone::Warning),
        (false, false) => none(),
    };
    vec![
        (&task.hostname).into(),
        state,
        result.packages.len().into(),
        reboot,
        span(result.duration).into(),
        if words.is_empty() { none() } else { words.join(": ").into() },
    ]
}
