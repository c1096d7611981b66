//! Each output of the forecast, on small fleets.

use std::collections::BTreeSet;

use vocab::{BatchId, Os, Portion, ServerId, SkipReason, Wave};

use super::*;
use crate::rollout::{ReportedResult, TaskEvent};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A Sunday.
fn now() -> Timestamp {
    at("2026-11-15T12:00Z")
}

fn id(n: usize) -> ServerId {
    ServerId::new(Timestamp::UNIX_EPOCH, n as u128)
}

fn selector(text: &str) -> Selector {
    serde_json::from_str(text).unwrap()
}

/// Servers with one pending update each; the first half is tagged `web`, the rest `db`.
fn fleet(count: usize) -> Fleet {
    let server = |n: usize| Server {
        facts: ServerFacts {
            id: id(n),
            environment: None,
            tags: BTreeSet::from([if n < count.div_ceil(2) { "web" } else { "db" }
                .parse()
                .unwrap()]),
            os: Some(Os::new("debian", "12", "").unwrap()),
        },
        kind: Some(0),
        presence: Presence::always(),
        reboot_required: false,
        quarantined: false,
        refuses_changes: false,
        never_reboot: false,
        limited_hours: false,
    };
    Fleet {
        servers: (0..count).map(server).collect(),
        kinds: vec![Kind { pending: 2, installable: UpdateSet::first(2) }],
        ..Fleet::default()
    }
}

/// Installs everything.
fn order() -> Order {
    Order { installs: BTreeMap::from([(0, UpdateSet::first(2))]), ..Order::default() }
}

fn schedule(cron: &str, targets: &str, pace: Pace) -> Schedule {
    let (cron, timezone): (Cron, Zone) = (Cron::parse(cron).unwrap(), Zone::default());
    Schedule {
        enabled: true,
        next_run_at: crate::schedule::next_after(&cron, &timezone, now()),
        cron,
        timezone,
        targets: selector(targets),
        pace,
        order: order(),
    }
}

fn window(minutes: u32, parallel: u32) -> Pace {
    Pace { window_minutes: Some(minutes), max_parallel: Some(parallel), ..Pace::default() }
}

fn gaps(forecast: &Forecast) -> Vec<Option<GapReason>> {
    forecast.servers.iter().map(|server| server.gap).collect()
}

fn patched_at(forecast: &Forecast, server: usize) -> Option<Timestamp> {
    forecast.servers[server].patch.patched_at()
}

#[test]
fn servers_are_patched_by_the_first_run_that_reaches_them() {
    let mut fleet = fleet(4);
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, window(60, 1))];
    let forecast = forecast(&fleet, now(), 3);
    let times: Vec<_> = (0..4).map(|n| patched_at(&forecast, n).unwrap()).collect();
    let expected = ["03:10", "03:20", "03:30", "03:40"];
    assert_eq!(times, expected.map(|time| at(&format!("2026-11-16T{time}Z"))));
    assert_eq!(gaps(&forecast), [None; 4]);
    let runs: Vec<_> = forecast.runs.iter().map(|run| (run.started, run.installed)).collect();
    assert_eq!(runs, [(4, 4), (4, 0), (4, 0)], "later runs have nothing to install");
    assert_eq!(forecast.runs[1].result, RunResult::Ended(at("2026-11-17T03:04Z")));
    assert_eq!(forecast.short_windows().count(), 0);
    assert_eq!(forecast.days[&jiff::civil::date(2026, 11, 16)].patched, 4);
}

#[test]
fn every_gap_has_its_reason() {
    let mut fleet = fleet(9);
    for (n, server) in fleet.servers.iter_mut().enumerate() {
        server.facts.tags = BTreeSet::from([format!("s{n}").parse().unwrap()]);
    }
    let one =
        |n: usize, cron: &str| schedule(cron, &format!(r#"{{"tags": ["s{n}"]}}"#), window(60, 10));
    fleet.servers[0].quarantined = true;
    fleet.servers[4].refuses_changes = true;
    fleet.servers[7].presence =
        Presence::new(true, now() - SignedDuration::from_hours(24 * 10), now(), None);
    fleet.schedules = vec![
        one(0, "0 3 * * *"),
        Schedule { enabled: false, ..one(2, "0 3 * * *") },
        Schedule { order: Order { dry_run: true, ..order() }, ..one(3, "0 3 * * *") },
        one(4, "0 3 * * *"),
        one(5, "0 3 1 1 *"),
        one(6, "0 3 * * *"),
        one(7, "0 3 * * *"),
        one(8, "0 3 * * *"),
    ];
    fleet.freezes = vec![Freeze {
        targets: selector(r#"{"tags": ["s6"]}"#),
        timing: Timing::OneOff { starts_at: now(), ends_at: at("2027-01-01T00:00Z") },
    }];
    let forecast = forecast(&fleet, now(), 10);
    use GapReason as G;
    let expected = [
        Some(G::Quarantined),
        Some(G::NoSchedule),
        Some(G::Disabled),
        Some(G::DryRun),
        Some(G::HostLimits),
        Some(G::NoRun),
        Some(G::Frozen),
        Some(G::Offline),
        None,
    ];
    assert_eq!(gaps(&forecast), expected);
    for (server, gap) in forecast.servers.iter().zip(expected) {
        let not_patched = gap.map(|gap| PatchOutlook::NotPatched(NotPatched::Gap(gap)));
        assert_eq!(not_patched.is_none(), server.patch.first().is_some());
        assert!(not_patched.is_none_or(|expected| server.patch == expected));
    }
}

/// Six servers of ten minutes each, one at a time, in 35 minutes: four start.
#[test]
fn short_window_says_how_many_servers_are_left_and_by_how_much() {
    let mut fleet = fleet(6);
    fleet.servers[5].presence =
        Presence::new(true, now() - SignedDuration::from_hours(24 * 10), now(), None);
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, window(35, 1))];
    let forecast = forecast(&fleet, now(), 1);
    let left = forecast.runs[0].left.unwrap();
    assert_eq!((left.no_turn, left.offline, left.at), (1, 1, at("2026-11-16T03:35Z")));
    // The fifth server starts at 03:40.
    assert_eq!(left.minutes_short, Some(6));
    assert_eq!(gaps(&forecast)[4..], [Some(GapReason::WindowCloses), Some(GapReason::Offline)]);
    assert_eq!(forecast.short_windows().count(), 1);

    fleet.schedules[0].pace.window_minutes = Some(35 + 5);
    assert_eq!(super::forecast(&fleet, now(), 1).short_windows().count(), 1, "not a minute less");
    fleet.schedules[0].pace.window_minutes = Some(35 + 6);
    let enough = super::forecast(&fleet, now(), 1);
    assert_eq!(enough.short_windows().count(), 0, "the extension is enough");
    assert_eq!(enough.servers[4].gap, None);
}

#[test]
fn servers_left_by_one_run_are_patched_by_the_next() {
    let mut fleet = fleet(6);
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, window(35, 1))];
    let forecast = forecast(&fleet, now(), 2);
    // In the second run, four servers take a minute each before it is their turn.
    assert_eq!(patched_at(&forecast, 4), Some(at("2026-11-17T03:14Z")));
    assert_eq!(patched_at(&forecast, 5), Some(at("2026-11-17T03:24Z")));
    assert!(forecast.runs[0].left.is_some() && forecast.runs[1].left.is_none());
}

#[test]
fn runs_are_skipped_by_freezes_and_by_overlap() {
    let mut fleet = fleet(4);
    // Four servers of ten minutes each take 40 minutes; it runs every half hour.
    fleet.schedules = vec![
        schedule(
            "*/30 3 * * *",
            r#"{"tags": ["web"]}"#,
            Pace { stagger_minutes: 35, ..Pace::default() },
        ),
        schedule("0 3 * * *", r#"{"tags": ["db"]}"#, window(60, 1)),
    ];
    fleet.freezes = vec![Freeze {
        targets: selector(r#"{"tags": ["db"]}"#),
        timing: Timing::Recurring {
            cron: Cron::parse("0 0 * * 1").unwrap(),
            duration: SignedDuration::from_hours(12),
            timezone: Zone::default(),
        },
    }];
    let forecast = forecast(&fleet, now(), 2);
    let skipped: Vec<_> = forecast
        .runs
        .iter()
        .filter_map(|run| match run.result {
            RunResult::Skipped(reason) => Some((run.origin, run.at, reason)),
            _ => None,
        })
        .collect();
    let expected = [
        (Origin::Schedule(1), at("2026-11-16T03:00Z"), SkipReason::Freeze),
        (Origin::Schedule(0), at("2026-11-16T03:30Z"), SkipReason::Overlap),
        (Origin::Schedule(0), at("2026-11-17T03:30Z"), SkipReason::Overlap),
    ];
    assert_eq!(skipped, expected);
    assert_eq!(patched_at(&forecast, 2), Some(at("2026-11-17T03:10Z")));
    assert_eq!(forecast.days[&jiff::civil::date(2026, 11, 16)].skipped, 2);
}

/// A freeze that begins during a run holds the servers that have not started, and a run that
/// overrides freezes ignores it.
#[test]
fn freeze_in_the_middle_of_a_run_delays_its_servers() {
    let mut fleet = fleet(2);
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, window(240, 1))];
    fleet.freezes = vec![Freeze {
        targets: Selector::All,
        timing: Timing::OneOff {
            starts_at: at("2026-11-16T03:05Z"),
            ends_at: at("2026-11-16T05:00Z"),
        },
    }];
    let times = |fleet: &Fleet| {
        let forecast = forecast(fleet, now(), 1);
        (0..2).map(|n| patched_at(&forecast, n).unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(times(&fleet), ["2026-11-16T03:10:00Z", "2026-11-16T05:10:00Z"]);
    fleet.schedules[0].pace.override_freeze = Some("urgent".to_owned());
    assert_eq!(times(&fleet), ["2026-11-16T03:10:00Z", "2026-11-16T03:20:00Z"]);
}

#[test]
fn wave_with_approval_stops_the_run() {
    let mut fleet = fleet(10);
    let waves = vec![
        Wave { size: Some(Portion::percent(20).unwrap()), ..Wave::default() },
        Wave { approval: true, ..Wave::default() },
    ];
    let pace = Pace { waves, ..Pace::default() };
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, pace)];
    let forecast = forecast(&fleet, now(), 4);
    let approval = forecast.runs[0].approval.unwrap();
    assert_eq!((approval.wave, approval.servers), (2, 8));
    assert_eq!(approval.since, at("2026-11-16T03:10Z"));
    assert_eq!(forecast.runs[0].result, RunResult::Open);
    assert_eq!(forecast.runs[1].result, RunResult::Skipped(SkipReason::Overlap));
    let patched = forecast.servers.iter().filter(|one| one.patch.patched_at().is_some()).count();
    assert_eq!(patched, 2);
    assert_eq!(forecast.servers[9].gap, Some(GapReason::Approval));
    assert!(forecast.assumptions.iter().any(|one| one.contains("Nobody approves")));
}

#[test]
fn health_gate_does_not_stop_a_run() {
    let mut fleet = fleet(10);
    let first = Wave { size: Some(Portion::Count(2)), soak_minutes: 30, ..Wave::default() };
    let waves = vec![first, Wave::default()];
    let pace = Pace { waves, health: vocab::HealthMode::Gate, ..Pace::default() };
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, pace)];
    let forecast = forecast(&fleet, now(), 1);
    assert_eq!(patched_at(&forecast, 0), Some(at("2026-11-16T03:10Z")));
    assert_eq!(patched_at(&forecast, 9), Some(at("2026-11-16T03:50Z")));
}

#[test]
fn reboots_are_counted_per_local_night() {
    let mut fleet = fleet(4);
    fleet.servers[1].reboot_required = true;
    fleet.servers[3].never_reboot = true;
    let mut nightly = schedule("30 23 * * *", r#"{"all": true}"#, window(120, 10));
    nightly.timezone = "America/New_York".parse().unwrap();
    nightly.next_run_at = Some(at("2026-11-16T04:30Z"));
    nightly.order.reboot = RebootPolicy::IfRequired;
    fleet.schedules = vec![nightly];
    let if_required = forecast(&fleet, now(), 2);
    // 23:40 in New York.
    let night = if_required.days[&jiff::civil::date(2026, 11, 15)];
    assert_eq!(night.reboots, Reboots { certain: 1, possible: 2 });
    assert_eq!(if_required.reboots(), night.reboots, "nothing is left for the second night");

    fleet.schedules[0].order.reboot = RebootPolicy::Always;
    let always = forecast(&fleet, now(), 2);
    let nights: Vec<_> = always.days.values().map(|day| day.reboots.certain).collect();
    assert_eq!(nights, [3, 3]);
    fleet.schedules[0].order.reboot = RebootPolicy::ServicesOnly;
    assert_eq!(forecast(&fleet, now(), 2).reboots(), Reboots::default());
}

#[test]
fn partial_orders_leave_updates() {
    let mut fleet = fleet(2);
    let mut security = schedule("0 3 * * *", r#"{"all": true}"#, window(60, 10));
    security.order.installs = BTreeMap::from([(0, [1].into_iter().collect())]);
    fleet.kinds.push(Kind { pending: 1, installable: UpdateSet::default() });
    fleet.kinds.push(Kind { pending: 3, installable: UpdateSet::first(3) });
    fleet.kinds.push(Kind::default());
    fleet.schedules = vec![security];
    for kind in [Some(1), Some(2), Some(3), None] {
        fleet.servers.push(Server { kind, ..fleet.servers[1].clone() });
        let n = fleet.servers.len() - 1;
        fleet.servers[n].facts.id = id(n);
    }
    let forecast = forecast(&fleet, now(), 2);
    let outlook: Vec<_> = forecast.servers.iter().map(|server| server.patch).collect();
    let install = Install { run: 0, at: at("2026-11-16T03:10Z") };
    let partly = PatchOutlook::Partly { first: install, last: install, left: 1 };
    let expected = [
        partly,
        partly,
        PatchOutlook::NotPatched(NotPatched::Blocked),
        PatchOutlook::NotPatched(NotPatched::NotSelected),
        PatchOutlook::UpToDate,
        PatchOutlook::NotScanned,
    ];
    assert_eq!(outlook, expected);
    assert_eq!(gaps(&forecast), [None; 6], "a schedule covers all of them");
}

#[test]
fn servers_are_patched_when_they_are_usually_online() {
    let mut fleet = fleet(2);
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, window(240, 10))];
    // Online from 05:00 to 20:00 UTC.
    let day = WeekPattern::new(|hour| (5..20).contains(&(hour % 24)));
    fleet.servers[0].presence = Presence::new(false, now(), now(), Some(day));
    // Offline since the morning, usually always online.
    fleet.servers[1].presence = Presence::new(true, at("2026-11-15T08:00Z"), now(), None);
    let forecast = forecast(&fleet, now(), 1);
    assert_eq!(patched_at(&forecast, 0), Some(at("2026-11-16T05:10Z")));
    assert_eq!(patched_at(&forecast, 1), Some(at("2026-11-16T03:10Z")));
    let text = forecast.assumptions.join("\n");
    assert!(text.contains("1 servers are offline at certain hours"), "{text}");
    assert!(text.contains("1 servers are offline now"), "{text}");
}

#[test]
fn open_batches_continue_and_block_their_servers() {
    let mut fleet = fleet(3);
    let start = now() - SignedDuration::from_mins(4);
    let pace = Pace { max_parallel: Some(1), ..Pace::default() };
    let mut rollout = Rollout::new(BatchId::new(start, 7), pace, start, (0..2).map(id), start);
    rollout.apply_change(crate::rollout::Change::Start, start).unwrap();
    rollout.apply_event(id(0), TaskEvent::Offered { wave: 1 }, start).unwrap();
    fleet.batches = vec![Batch { schedule: Some(0), order: order(), rollout: rollout.clone() }];
    // The run that is open keeps the schedule from starting another.
    fleet.schedules = vec![schedule("5 12 * * *", r#"{"all": true}"#, window(600, 10))];
    let open = forecast(&fleet, now(), 1);
    assert_eq!(patched_at(&open, 0), Some(at("2026-11-15T12:06Z")), "six minutes are left");
    assert_eq!(patched_at(&open, 1), Some(at("2026-11-15T12:16Z")));
    assert_eq!(open.runs[0].result, RunResult::Ended(at("2026-11-15T12:16Z")));
    assert_eq!(open.runs[1].result, RunResult::Skipped(SkipReason::Overlap));
    assert_eq!(patched_at(&open, 2), None);

    // Another batch holds its server until then.
    fleet.batches[0].schedule = None;
    let other = forecast(&fleet, now(), 1);
    assert_eq!(other.runs[1].at, at("2026-11-15T12:05Z"));
    assert_eq!(patched_at(&other, 2), Some(at("2026-11-15T12:15Z")));
    assert_eq!(patched_at(&other, 0), Some(at("2026-11-15T12:06Z")));

    // A batch that ends is reported like any other; a paused one stays as it is.
    rollout.apply_event(id(0), TaskEvent::Reported(ReportedResult::NoChange), now()).unwrap();
    rollout.apply_change(crate::rollout::Change::Pause, now()).unwrap();
    fleet.batches = vec![Batch { schedule: None, order: order(), rollout }];
    fleet.schedules.clear();
    let paused = forecast(&fleet, now(), 1);
    assert_eq!(paused.runs[0].result, RunResult::Open);
    assert_eq!(paused.runs[0].started, 0);
}

#[test]
fn canary_starts_with_servers_that_install_something() {
    let mut fleet = fleet(3);
    fleet.kinds.push(Kind::default());
    fleet.servers[0].kind = Some(1);
    let pace = Pace { canary: Some(Portion::Count(1)), ..window(600, 10) };
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, pace)];
    let forecast = forecast(&fleet, now(), 1);
    assert_eq!(patched_at(&forecast, 1), Some(at("2026-11-16T03:10Z")), "the canary");
    assert_eq!(patched_at(&forecast, 2), Some(at("2026-11-16T03:20Z")));
}

#[test]
fn long_tasks_do_not_time_out() {
    let mut fleet = fleet(1);
    let sample =
        Sample { server: id(0), os: None, changed: true, duration: SignedDuration::from_mins(275) };
    fleet.durations = Durations::measure(&[sample.clone(), sample.clone(), sample]);
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"all": true}"#, window(60, 1))];
    let forecast = forecast(&fleet, now(), 1);
    assert_eq!(patched_at(&forecast, 0), Some(at("2026-11-16T07:35Z")));
}

#[test]
fn comparison_shows_the_effect_of_a_new_schedule_and_a_new_freeze() {
    let mut fleet = fleet(4);
    fleet.schedules = vec![schedule("0 3 * * *", r#"{"tags": ["web"]}"#, window(60, 10))];
    let before = forecast(&fleet, now(), 2);
    fleet.schedules.push(schedule("0 2 * * *", r#"{"all": true}"#, window(60, 10)));
    let after = forecast(&fleet, now(), 2);
    let differences = compare(&before, &after);
    assert_eq!(differences.covered, [2, 3]);
    assert_eq!((differences.patched, differences.earlier), (vec![2, 3], vec![0, 1]));
    assert!(differences.later.is_empty() && differences.uncovered.is_empty());
    assert_eq!(differences.days.len(), 2);
    let back = compare(&after, &before);
    assert_eq!(
        (back.uncovered, back.not_patched, back.later),
        (vec![2, 3], vec![2, 3], vec![0, 1])
    );
    assert_eq!(compare(&after, &after), Differences::default());
}

/// A schedule that runs every minute over many servers must not make a forecast endless.
#[test]
fn forecast_of_too_many_runs_ends_early_and_says_so() {
    let mut fleet = fleet(2);
    let every_minute = schedule("* * * * *", r#"{"all": true}"#, Pace::default());
    fleet.schedules = vec![every_minute];
    let forecast = forecast(&fleet, now(), 90);
    let ended = forecast.ended_early.unwrap();
    assert!(forecast.runs.len() <= RUNS_MAX && ended > now() + SignedDuration::from_hours(100));
    assert!(forecast.assumptions.iter().any(|one| one.contains("ends early")));
}

#[test]
fn days_are_bounded() {
    let days = |days| {
        let forecast = forecast(&fleet(1), now(), days);
        forecast.until.duration_since(forecast.from).as_hours() / 24
    };
    assert_eq!((days(0), days(90), days(1_000)), (1, 90, 90));
}
