//! Formats one server with all its details.

use vocab::{Assessment, Line};
use wire::v1::{AgentUpgradeStatus, Cve, HostLimits, Package, RefreshState, Server, ServerDetail};

use super::{reboot, status};
use crate::operator::table::{
    Cell, Screen, Tone, empty_cell, full_column, optional_cell, optional_column, pluralize,
    truncated_column,
};
use crate::operator::{api_name, toned_cell};

pub(super) fn format_server(detail: &ServerDetail, all_packages: bool, screen: &Screen) -> String {
    let mut text = format_properties(detail, screen);
    let shown: Vec<&Package> = (detail.packages.iter())
        .filter(|package| all_packages || package.available_version.is_some())
        .collect();
    text += &screen.heading(if all_packages { "Packages" } else { "Pending updates" });
    text += &match shown.is_empty() {
        true => "None.\n".to_owned(),
        false => packages(&shown, screen),
    };
    text += &screen.heading("CVEs");
    if !detail.cves.is_empty() {
        text += &cves(&detail.cves, screen);
    }
    text += &match (detail.server.assessment, detail.cves.is_empty()) {
        (Assessment::Assessed, true) => "None known.\n".to_owned(),
        (Assessment::Assessed, false) => String::new(),
        (Assessment::Partial, true) => {
            "None known in the packages that could be assessed.\n".to_owned()
        }
        (Assessment::Partial, false) => {
            "More may exist in packages that could not be assessed (below).\n".to_owned()
        }
        (Assessment::NoFeed, _) => {
            "Not assessed: no imported feed covers this operating system (`fleetmend feeds import --help`).\n"
                .to_owned()
        }
        (Assessment::NotScanned, _) => {
            "Not assessed: the server has not reported its packages, or they are not matched yet.\n"
                .to_owned()
        }
    };
    if let Some(base) = detail.coverage.as_ref().and_then(|coverage| coverage.derived_from.as_ref())
    {
        text += &format!(
            "Matched against the advisories of {base}, which this operating system is based on.\n"
        );
    }
    if let Some(coverage) = detail.coverage.as_ref().filter(|coverage| !coverage.lists_unfixed) {
        text += &format!(
            "The feed of {} does not list CVEs that no update fixes yet.\n",
            coverage.ecosystem
        );
    }
    if !detail.unassessed.is_empty() {
        let rows: Vec<Vec<Cell>> = (detail.unassessed.iter())
            .map(|one| {
                vec![
                    (&one.package).into(),
                    optional_cell(one.version.as_ref()),
                    (&one.detail).into(),
                ]
            })
            .collect();
        text += &screen.heading("Not assessed");
        text += &screen.table(
            &[truncated_column("PACKAGE"), truncated_column("VERSION"), truncated_column("REASON")],
            &rows,
        );
    }
    if !detail.old_code.is_empty() {
        let rows: Vec<Vec<Cell>> = (detail.old_code.iter())
            .map(|old| {
                vec![
                    (&old.process).into(),
                    optional_cell(old.unit.as_ref()),
                    optional_cell(old.package.as_ref()),
                ]
            })
            .collect();
        text += &screen.heading("Needs restart");
        text += &screen.table(
            &[truncated_column("PROCESS"), truncated_column("UNIT"), truncated_column("PACKAGE")],
            &rows,
        );
    }
    text
}

/// The version of the agent.
fn agent(server: &Server) -> Cell {
    let Some(version) = &server.agent_version else { return empty_cell() };
    match server.agent_outdated {
        Some(true) => Cell::new(format!("{version} (outdated)"), Tone::Warning),
        Some(false) | None => version.into(),
    }
}

fn agent_upgrade(upgrade: &AgentUpgradeStatus) -> Cell {
    let tone = match upgrade.state {
        RefreshState::Failed | RefreshState::TimedOut => Tone::Bad,
        RefreshState::Completed => Tone::Good,
        RefreshState::Pending | RefreshState::Canceled => Tone::Plain,
    };
    let state = api_name(upgrade.state).replace('_', " ");
    let message = upgrade.message.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
    Cell::new(format!("to {}: {state}{message}", upgrade.version), tone)
}

fn format_properties(detail: &ServerDetail, screen: &Screen) -> String {
    let server = &detail.server;
    let joined = |lines: Vec<String>| match lines.is_empty() {
        true => empty_cell(),
        false => lines.join(", ").into(),
    };
    let name = server.display_name.as_ref().map(|name| ("name", Cell::from(name.as_str())));
    let mut facts: Vec<_> = name.into_iter().collect();
    facts.extend([
        ("hostname", (&server.hostname).into()),
        ("id", server.id.into()),
        ("status", status(server)),
        ("environment", optional_cell(server.environment.as_ref())),
        ("tags", joined(server.tags.iter().map(ToString::to_string).collect())),
        ("os", optional_cell(server.os.as_ref())),
        ("kernel", optional_cell(server.kernel.as_ref())),
        ("arch", optional_cell(server.arch.as_ref())),
        ("package manager", optional_cell(server.package_manager.map(api_name))),
        ("agent", agent(server)),
        ("last seen", screen.optional_time(server.last_seen_at)),
        ("last scan", last_scan(server, screen)),
        ("assessment", assessment(server)),
        ("enrolled", screen.time(server.enrolled_at)),
        ("packages", totals(detail)),
        ("reboot", reboot(server)),
    ]);
    if !server.notes.is_empty() {
        facts.push(("notes", Line::sanitize(&server.notes).as_str().into()));
    }
    if let Some(upgrade) = &detail.agent_upgrade {
        facts.push(("agent upgrade", agent_upgrade(upgrade)));
    }
    if !server.reboot_reasons.is_empty() {
        facts.push((
            "reboot reasons",
            joined(server.reboot_reasons.iter().map(ToString::to_string).collect()),
        ));
    }
    if !server.other_updaters.is_empty() {
        let others = server.other_updaters.iter().map(ToString::to_string).collect();
        facts.push(("other updaters", joined(others).with_tone(Tone::Warning)));
    }
    let limits = server.limits.as_ref().map(HostLimits::describe).unwrap_or_default();
    if !limits.is_empty() {
        facts.push(("host limits", joined(limits).with_tone(Tone::Warning)));
    }
    if let Some(why) = &server.quarantine {
        facts.push(("quarantine", Cell::new(why.to_string(), Tone::Bad)));
    }
    screen.properties(&facts)
}

fn last_scan(server: &Server, screen: &Screen) -> Cell {
    match (server.last_scan_at, server.stale) {
        (None, _) => Cell::new("never", Tone::Warning),
        (Some(_), true) => screen.optional_time(server.last_scan_at).with_tone(Tone::Warning),
        (Some(_), false) => screen.optional_time(server.last_scan_at),
    }
}

fn assessment(server: &Server) -> Cell {
    let text = match (server.assessment, server.summary.unassessed) {
        (Assessment::Partial, number) => {
            format!("partial: {} not assessed", pluralize(number, "package", "packages"))
        }
        (state, _) => state.to_string().replace('_', " "),
    };
    let is_known = server.assessment == Assessment::Assessed;
    Cell::new(text, if is_known { Tone::Plain } else { Tone::Warning })
}

fn totals(detail: &ServerDetail) -> Cell {
    let summary = &detail.server.summary;
    let text = format!(
        "{}, {} pending, {} security",
        summary.packages,
        pluralize(summary.updates, "update", "updates"),
        summary.security_updates
    );
    Cell::new(text, if summary.security_updates > 0 { Tone::Bad } else { Tone::Plain })
}

fn packages(packages: &[&Package], screen: &Screen) -> String {
    let rows: Vec<Vec<Cell>> = (packages.iter())
        .map(|package| {
            let security = package.security && package.available_version.is_some();
            vec![
                (&package.name).into(),
                (&package.version).into(),
                optional_cell(package.available_version.as_ref()),
                if security { Cell::new("yes", Tone::Bad) } else { empty_cell() },
                match (package.blocked_by, package.held) {
                    (Some(why), _) => Cell::new(api_name(why), Tone::Warning),
                    (None, true) => Cell::new("held", Tone::Warning),
                    (None, false) => empty_cell(),
                },
            ]
        })
        .collect();
    let columns = [
        truncated_column("PACKAGE"),
        truncated_column("INSTALLED"),
        truncated_column("AVAILABLE"),
        full_column("SECURITY"),
        optional_column("BLOCKED BY"),
    ];
    screen.table(&columns, &rows)
}

fn cves(cves: &[Cve], screen: &Screen) -> String {
    let rows: Vec<Vec<Cell>> = (cves.iter())
        .map(|cve| {
            vec![
                (&cve.id).into(),
                match cve.kev {
                    true => Cell::new(format!("{} KEV", api_name(cve.severity)), Tone::Bad),
                    false => toned_cell(cve.severity),
                },
                (&cve.package).into(),
                (&cve.installed_version).into(),
                optional_cell(cve.fixed_version.as_ref()),
                api_name(cve.state).into(),
            ]
        })
        .collect();
    let columns = [
        full_column("CVE"),
        full_column("SEVERITY"),
        truncated_column("PACKAGE"),
        truncated_column("INSTALLED"),
        truncated_column("FIXED IN"),
        optional_column("STATE"),
    ];
    screen.table(&columns, &rows)
}
