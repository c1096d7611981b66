//! `fleetmend summary`: key figures of the organization.

use clap::Args;
use wire::v1::FleetSummary;

use super::Session;
use super::credentials::Connection;
use super::table::{Cell, Screen, Tone, pluralize};

/// Show key figures of the organization.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  fleetmend summary\n  fleetmend summary --json | jq .servers.offline"
)]
pub(crate) struct Summary {
    #[command(flatten)]
    connection: Connection,
}

impl Summary {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        let body = session.api.get(&["summary"]).await?;
        session.show(&body, |screen| Ok(format_summary(&body.read()?, screen)))
    }
}

fn format_summary(summary: &FleetSummary, screen: &Screen) -> String {
    let FleetSummary { servers, patches, batches, schedules, counted_at, assessment } = summary;
    let mut fleet =
        format!("{}, {} online", pluralize(servers.total, "server", "servers"), servers.online);
    for (number, words) in [
        (servers.offline, "offline"),
        (servers.reboot_required, "need a reboot"),
        (servers.quarantined, "in quarantine"),
    ] {
        if number > 0 {
            fleet.push_str(&format!(", {number} {words}"));
        }
    }
    let worst = &patches.severity;
    let updates = format!(
        "{}, {} security",
        pluralize(patches.total, "package", "packages"),
        patches.security
    );
    let severities = format!(
        "{} critical, {} high, {} medium, {} low, {} unknown",
        worst.critical, worst.high, worst.medium, worst.low, worst.unknown
    );
    let tone = match worst.critical + worst.high {
        0 => Tone::Plain,
        _ => Tone::Bad,
    };
    let work = format!(
        "{} open: {} running, {} paused, {} halted",
        batches.open, batches.running, batches.paused, batches.halted
    );
    let work_tone = if batches.halted > 0 { Tone::Bad } else { Tone::Plain };
    let mut facts = vec![
        ("servers", fleet.into()),
        ("up to date", servers.up_to_date.into()),
        ("with updates", servers.with_updates.into()),
        ("with security updates", servers.with_security_updates.into()),
        ("pending updates", updates.into()),
        ("by severity", Cell::new(severities, tone)),
        ("batches", Cell::new(work, work_tone)),
        ("schedules", format!("{}, {} enabled", schedules.total, schedules.enabled).into()),
        ("next run", screen.optional_time(schedules.next_run_at)),
        ("updates counted", screen.optional_time(*counted_at)),
    ];
    // States that make the counts above incomplete; listed only if some server is in them.
    let unknown = [
        (assessment.not_scanned, "not scanned", "packages or CVEs not known yet"),
        (servers.stale, "stale", "no recent scan"),
        (assessment.no_feed, "no feed", "no imported feed covers the operating system"),
        (assessment.partial, "partly assessed", "see `fleetmend servers show NAME`"),
    ];
    let shown = unknown.into_iter().filter(|(number, ..)| *number > 0);
    for (place, (number, name, meaning)) in (3..).zip(shown) {
        let text = format!("{}: {meaning}", pluralize(number, "server", "servers"));
        facts.insert(place, (name, Cell::new(text, Tone::Warning)));
    }
    screen.properties(&facts)
}
