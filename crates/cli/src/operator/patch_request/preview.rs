//! Formats the preview of a patch operation: servers, packages, start times and reboots.

use std::collections::BTreeMap;

use wire::v1::{Preview, PreviewReboots, PreviewServer, RebootOutlook};

use crate::operator::table::{
    Cell, Screen, Tone, empty_cell, escape_cell, full_column, optional_cell, optional_column,
    pluralize, truncated_column,
};
use crate::operator::{api_name, toned_cell};

/// Rows to show; enough to decide by.
const ROWS_MAX: usize = 20;
/// Number of servers to name for each host limit.
const NAMES_MAX: usize = 5;

pub(super) fn format_preview(preview: &Preview, screen: &Screen) -> String {
    let mut text = servers(preview, screen);
    text += &packages(preview, screen);
    text += &blocked(preview);
    text += &host_limits(preview);
    text += &plan(preview, screen);
    if let (Some(first), Some(last)) = (preview.first_start_at, preview.last_start_at)
        && first != last
    {
        let (first, last) = (screen.time(first), screen.time(last));
        text += &format!("\nThe first server starts {}, the last {}.\n", first.text(), last.text());
    }
    for (number, words) in [
        (preview.offline, "offline and will start when they come online"),
        (preview.beyond_window, "skipped because the window closes before they can start"),
    ] {
        if number > 0 {
            let line = format!("{} {words}.", pluralize(number, "server is", "servers are"));
            text += &format!("{}\n", screen.paint(&line, Tone::Warning));
        }
    }
    for warning in &preview.warnings {
        text += &format!("{}\n", screen.paint(&format!("Warning: {warning}"), Tone::Warning));
    }
    text
}

/// Waves, pins, reboots, freezes and the expected duration.
fn plan(preview: &Preview, screen: &Screen) -> String {
    let mut text = String::new();
    if preview.waves.len() > 1 {
        text += "\n";
        for wave in &preview.waves {
            text += &format!("Wave {}: {}", wave.number, pluralize(wave.size, "server", "servers"));
            if let Some(count) = wave.with_updates {
                text += &format!(", {count} with updates");
            }
            if wave.soak_minutes > 0 {
                text += &format!(", then {} min of soak", wave.soak_minutes);
            }
            text += if wave.approval { ", after an approval\n" } else { "\n" };
        }
        if preview.options.pin_versions {
            text += "Later waves install exactly the versions of the first one.\n";
        }
    }
    let mut outlook = String::new();
    let reboots = preview.reboots;
    if reboots.certain + reboots.possible > 0 {
        let PreviewReboots { certain, possible } = reboots;
        outlook += &format!("Reboots: {certain} certain, {possible} if the updates require it.\n");
    }
    if let Some(minutes) = preview.expected_minutes {
        outlook += &format!("Expected duration: {minutes} min (from past batches)\n");
    }
    if !outlook.is_empty() {
        text += &format!("\n{outlook}");
    }
    for freeze in &preview.freezes {
        let until = screen.time(freeze.ends_at);
        let line = format!(
            "Frozen by \"{}\" until {}: {}.",
            escape_cell(freeze.name.clone()),
            until.text(),
            pluralize(freeze.servers, "server", "servers")
        );
        text += &format!("{}\n", screen.paint(&line, Tone::Warning));
    }
    text
}

fn servers(preview: &Preview, screen: &Screen) -> String {
    let rows: Vec<Vec<Cell>> =
        preview.servers.iter().take(ROWS_MAX).map(|s| row(s, screen)).collect();
    let columns = [
        truncated_column("SERVER"),
        full_column("STATUS"),
        optional_column("ENVIRONMENT"),
        full_column("STARTS"),
        full_column("UPDATES").align_right(),
        full_column("SECURITY").align_right(),
        full_column("REBOOT"),
    ];
    let mut text = screen.table(&columns, &rows);
    let total = preview.total as usize;
    if total > rows.len() {
        text += &format!("… and {} more\n", total - rows.len());
    }
    text
}

fn row(server: &PreviewServer, screen: &Screen) -> Vec<Cell> {
    // A start time that passed while the preview was prepared means now.
    let starts_at = server.starts_at.map(|at| at.max(screen.now));
    let starts = match (starts_at, server.canary) {
        (None, _) => Cell::new("never", Tone::Warning),
        (Some(at), true) => format!("{}, canary", screen.time(at).text()).into(),
        (Some(at), false) => match server.waits_for.first() {
            Some(what) => {
                format!("{}, waiting for {}", screen.time(at).text(), what.description()).into()
            }
            None => screen.time(at),
        },
    };
    let security = server.updates.iter().filter(|update| update.security).count();
    vec![
        server.name().into(),
        toned_cell(server.status),
        optional_cell(server.environment.as_ref()),
        starts,
        server.updates.len().into(),
        security.into(),
        match server.reboot {
            RebootOutlook::No => empty_cell(),
            RebootOutlook::Possible => Cell::new("if required", Tone::Warning),
            RebootOutlook::Certain => Cell::new("yes", Tone::Bad),
        },
    ]
}

/// Each package once: security updates first, then by number of servers.
fn packages(preview: &Preview, screen: &Screen) -> String {
    let mut found: BTreeMap<(&str, &str, &str, bool), usize> = BTreeMap::new();
    for update in preview.servers.iter().flat_map(|server| &server.updates) {
        *found.entry((&update.name, &update.from, &update.to, update.security)).or_default() += 1;
    }
    if found.is_empty() {
        return "\nAs of the last scans, there is nothing to install.\n".to_owned();
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|((name, _, _, security), servers)| (!security, usize::MAX - servers, *name));
    let rows: Vec<Vec<Cell>> = (found.iter().take(ROWS_MAX))
        .map(|((name, from, to, security), servers)| {
            let security = if *security { Cell::new("yes", Tone::Bad) } else { empty_cell() };
            vec![(*name).into(), (*from).into(), (*to).into(), security, (*servers).into()]
        })
        .collect();
    let columns = [
        truncated_column("PACKAGE"),
        truncated_column("FROM"),
        truncated_column("TO"),
        full_column("SECURITY"),
        full_column("SERVERS").align_right(),
    ];
    let mut text = format!("\n{}", screen.table(&columns, &rows));
    if found.len() > rows.len() {
        text += &format!("… and {} more\n", found.len() - rows.len());
    }
    text
}

/// Each host limit, with the servers that have it.
fn host_limits(preview: &Preview) -> String {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for server in &preview.servers {
        for limit in &server.host_limits {
            found.entry(limit).or_default().push(server.name());
        }
    }
    let mut text = String::new();
    for (limit, names) in found.iter().take(ROWS_MAX) {
        let shown = names.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
        let more = match names.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text += &format!("\nHost limit on {shown}{more}: {limit}\n");
    }
    text
}

fn blocked(preview: &Preview) -> String {
    let mut found: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for update in preview.servers.iter().flat_map(|server| &server.blocked) {
        let why = update.blocked_by.map(api_name).unwrap_or_default();
        *found.entry((&update.name, why)).or_default() += 1;
    }
    if found.is_empty() {
        return String::new();
    }
    let shown: Vec<String> =
        found.keys().take(ROWS_MAX).map(|(name, why)| format!("{name} ({why})")).collect();
    let more = if found.len() > ROWS_MAX { ", …" } else { "" };
    format!("\nNot installed: {}{more}\n", shown.join(", "))
}
