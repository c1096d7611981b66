//! Converts a forecast to what the API returns. Lists are cut, counts are not.

use std::collections::BTreeMap;

use domain::forecast::{Day, GapReason, Install, NotPatched, Origin, PatchOutlook, Run, RunResult};
use jiff::civil::Date;
use wire::v1::{
    ForecastApproval, ForecastDay, ForecastDayDifference, ForecastDifferences, ForecastGap,
    ForecastGapReason, ForecastOutlook, ForecastPatch, ForecastPlan, ForecastRun, ForecastServer,
    ForecastServerList, ForecastServers, ForecastShortWindow, ForecastSkipped,
};

use super::{Differences, Fleet, Forecast, Line, Names};

/// The maximum number of runs, and of servers per reason.
const LISTED_MAX: usize = 100;
/// The maximum number of servers whose patch outlook is listed.
const PATCHES_MAX: usize = 500;

pub(super) fn to_wire(
    names: &Names,
    fleet: &Fleet,
    today: &Forecast,
    changed: Option<&(Forecast, Differences)>,
) -> wire::v1::Forecast {
    wire::v1::Forecast {
        from: today.from,
        until: today.until,
        today: plan(names, fleet, today),
        with_changes: changed.map(|(after, _)| plan(names, fleet, after)),
        differences: changed.map(|(_, differences)| to_differences(names, differences)),
    }
}

fn plan(names: &Names, fleet: &Fleet, forecast: &Forecast) -> ForecastPlan {
    let short = || forecast.short_windows();
    let skipped = || {
        forecast.runs.iter().filter_map(|run| match run.result {
            RunResult::Skipped(reason) => Some((run, reason)),
            RunResult::Ended(_) | RunResult::Open => None,
        })
    };
    let approvals = forecast.runs.iter().filter_map(|run| Some((run, run.approval?)));
    ForecastPlan {
        assumptions: forecast.assumptions.clone(),
        ended_early_at: forecast.ended_early,
        servers: counts(forecast),
        gaps: gaps(names, forecast),
        short_windows: short()
            .take(LISTED_MAX)
            .filter_map(|run| short_window(names, run))
            .collect(),
        short_windows_total: short().count() as u64,
        approvals: approvals
            .take(LISTED_MAX)
            .map(|(run, approval)| ForecastApproval {
                run: to_run(names, run),
                since: approval.since,
                wave: approval.wave,
                servers: approval.servers,
            })
            .collect(),
        skipped: skipped()
            .take(LISTED_MAX)
            .map(|(run, reason)| ForecastSkipped { run: to_run(names, run), reason })
            .collect(),
        skipped_total: skipped().count() as u64,
        days: days(forecast),
        patches: patches(names, fleet, forecast),
    }
}

fn counts(forecast: &Forecast) -> ForecastServers {
    let mut counts = ForecastServers::default();
    for server in &forecast.servers {
        counts.total += 1;
        counts.uncovered += u64::from(server.gap.is_some());
        *match server.patch {
            PatchOutlook::UpToDate => &mut counts.up_to_date,
            PatchOutlook::NotScanned => &mut counts.not_scanned,
            PatchOutlook::Patched { .. } => &mut counts.patched,
            PatchOutlook::Partly { .. } => &mut counts.partly_patched,
            PatchOutlook::NotPatched(_) => &mut counts.not_patched,
        } += 1;
    }
    counts
}

fn gaps(names: &Names, forecast: &Forecast) -> Vec<ForecastGap> {
    let mut by_reason: BTreeMap<GapReason, Vec<usize>> = BTreeMap::new();
    for (number, server) in forecast.servers.iter().enumerate() {
        if let Some(reason) = server.gap {
            by_reason.entry(reason).or_default().push(number);
        }
    }
    let gap = |(reason, servers): (GapReason, Vec<usize>)| {
        let ForecastServerList { total, servers } = server_list(names, &servers);
        ForecastGap {
            reason: to_gap_reason(reason),
            detail: Line::sanitize(describe_gap(reason)),
            total,
            servers,
        }
    };
    by_reason.into_iter().map(gap).collect()
}

fn to_gap_reason(reason: GapReason) -> ForecastGapReason {
    match reason {
        GapReason::Quarantined => ForecastGapReason::Quarantined,
        GapReason::NoSchedule => ForecastGapReason::NoSchedule,
        GapReason::Disabled => ForecastGapReason::Disabled,
        GapReason::DryRun => ForecastGapReason::DryRun,
        GapReason::HostLimits => ForecastGapReason::HostLimits,
        GapReason::NoRun => ForecastGapReason::NoRun,
        GapReason::Frozen => ForecastGapReason::Frozen,
        GapReason::Offline => ForecastGapReason::Offline,
        GapReason::Approval => ForecastGapReason::Approval,
        GapReason::WindowCloses => ForecastGapReason::WindowCloses,
        GapReason::Overlap => ForecastGapReason::Overlap,
        GapReason::Waiting => ForecastGapReason::Waiting,
    }
}

fn describe_gap(reason: GapReason) -> &'static str {
    match reason {
        GapReason::Quarantined => "The server is in quarantine and gets no orders.",
        GapReason::NoSchedule => "No schedule selects the server.",
        GapReason::Disabled => "Only disabled schedules select the server.",
        GapReason::DryRun => "Only schedules with `dry_run` select the server.",
        GapReason::HostLimits => "The host's limits reject every change.",
        GapReason::NoRun => "The schedules that select the server do not run in this period.",
        GapReason::Frozen => "The server is frozen at every run.",
        GapReason::Offline => "The server is expected to be offline at every run.",
        GapReason::Approval => "Every run waits for an approval before it is the server's turn.",
        GapReason::WindowCloses => "The window of every run closes before it is the server's turn.",
        GapReason::Overlap => "Every run is skipped because the previous one has not ended.",
        GapReason::Waiting => "No run reaches the server in this period.",
    }
}

fn describe_not_patched(reason: NotPatched) -> &'static str {
    match reason {
        NotPatched::Gap(gap) => describe_gap(gap),
        NotPatched::Blocked => "The host blocks every pending update.",
        NotPatched::NotSelected => "No schedule selects the pending updates.",
    }
}

fn short_window(names: &Names, run: &Run) -> Option<ForecastShortWindow> {
    let left = run.left?;
    Some(ForecastShortWindow {
        run: to_run(names, run),
        closes_at: left.at,
        servers: run.servers,
        no_turn: left.no_turn,
        offline: left.offline,
        frozen: left.frozen,
        minutes_short: left.minutes_short,
    })
}

fn to_run(names: &Names, run: &Run) -> ForecastRun {
    let (name, schedule_id, batch_id) = match run.origin {
        Origin::Schedule(number) => {
            let (id, name) = &names.schedules[number];
            (name.clone(), *id, None)
        }
        Origin::Batch(number) => {
            let (id, schedule, name) = &names.batches[number];
            (name.clone(), *schedule, Some(*id))
        }
    };
    ForecastRun { name, schedule_id, batch_id, at: run.at }
}

/// Every day of the forecast, also those on which nothing happens.
fn days(forecast: &Forecast) -> Vec<ForecastDay> {
    let utc = |at| jiff::tz::TimeZone::UTC.to_datetime(at).date();
    let mut all: BTreeMap<Date, Day> = forecast.days.clone();
    let end = forecast.ended_early.unwrap_or(forecast.until);
    let dates = utc(forecast.from).series(jiff::Span::new().days(1));
    for date in dates.take_while(|date| *date <= utc(end)) {
        all.entry(date).or_default();
    }
    all.into_iter().map(|(date, day)| to_day(date, day)).collect()
}

fn to_day(date: Date, day: Day) -> ForecastDay {
    ForecastDay {
        date,
        runs: day.runs,
        skipped: day.skipped,
        reboots: day.reboots.certain,
        possible_reboots: day.reboots.possible,
        patched: day.patched,
    }
}

fn patches(names: &Names, fleet: &Fleet, forecast: &Forecast) -> Vec<ForecastPatch> {
    let run = |install: Install| forecast.runs.get(install.run).map(|run| to_run(names, run));
    let mut found: Vec<ForecastPatch> = Vec::new();
    for (number, server) in forecast.servers.iter().enumerate() {
        let pending = fleet.servers[number].kind.and_then(|kind| fleet.kinds.get(kind));
        let patch = |outlook, install: Option<(Install, Install)>, left| ForecastPatch {
            server: to_server(names, number),
            outlook,
            reason: None,
            run: install.and_then(|(first, _)| run(first)),
            first_at: install.map(|(first, _)| first.at),
            last_at: install.map(|(_, last)| last.at),
            left,
        };
        found.push(match server.patch {
            PatchOutlook::UpToDate | PatchOutlook::NotScanned => continue,
            PatchOutlook::Patched { first, last } => {
                patch(ForecastOutlook::Patched, Some((first, last)), 0)
            }
            PatchOutlook::Partly { first, last, left } => {
                patch(ForecastOutlook::PartlyPatched, Some((first, last)), left)
            }
            PatchOutlook::NotPatched(reason) => {
                let reason = Some(Line::sanitize(describe_not_patched(reason)));
                let left = pending.map_or(0, |kind| kind.pending);
                ForecastPatch { reason, ..patch(ForecastOutlook::NotPatched, None, left) }
            }
        });
    }
    let rank = |patch: &ForecastPatch| match patch.outlook {
        ForecastOutlook::NotPatched => 0,
        ForecastOutlook::PartlyPatched => 1,
        ForecastOutlook::Patched => 2,
    };
    // Stable, so that servers stay sorted by name.
    found.sort_by_key(|patch| (rank(patch), std::cmp::Reverse(patch.last_at)));
    found.truncate(PATCHES_MAX);
    found
}

fn to_server(names: &Names, number: usize) -> ForecastServer {
    let (server_id, hostname, display_name) = &names.servers[number];
    ForecastServer {
        server_id: *server_id,
        hostname: hostname.clone(),
        display_name: display_name.clone(),
    }
}

fn server_list(names: &Names, servers: &[usize]) -> ForecastServerList {
    ForecastServerList {
        total: servers.len() as u64,
        servers: servers.iter().take(LISTED_MAX).map(|one| to_server(names, *one)).collect(),
    }
}

fn to_differences(names: &Names, differences: &Differences) -> ForecastDifferences {
    let list = |servers: &[usize]| server_list(names, servers);
    ForecastDifferences {
        covered: list(&differences.covered),
        uncovered: list(&differences.uncovered),
        patched: list(&differences.patched),
        not_patched: list(&differences.not_patched),
        earlier: list(&differences.earlier),
        later: list(&differences.later),
        days: differences
            .days
            .iter()
            .map(|day| ForecastDayDifference {
                today: to_day(day.date, day.before),
                with_changes: to_day(day.date, day.after),
            })
            .collect(),
    }
}
