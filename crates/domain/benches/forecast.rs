//! Cost of a forecast over 30 days: `cargo xtask bench forecast`. The goal is 2 s for 10,000
//! servers.
//!
//! Every server is patched every night by one of twenty schedules, each with a window, a limit on
//! parallel tasks and a canary. A tenth of the servers is offline at night, and every weekend is
//! frozen.

use std::collections::{BTreeMap, BTreeSet};

use divan::Bencher;
use divan::counter::ItemsCount;
use domain::forecast::{
    Fleet, Freeze, Kind, Order, Presence, Schedule, Server, UpdateSet, WeekPattern, forecast,
};
use domain::freeze::Timing;
use domain::rollout::Pace;
use domain::schedule::next_after;
use domain::server::ServerFacts;
use jiff::{SignedDuration, Timestamp};
use vocab::{Cron, Os, Portion, RebootPolicy, Selector, ServerId, Zone};

const SIZES: [u32; 3] = [1_000, 10_000, 100_000];
const SCHEDULES: u32 = 20;
const DAYS: u32 = 30;

fn main() {
    divan::main();
}

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().expect("a constant")
}

fn server(number: u32) -> Server {
    let tag = format!("group-{}", number % SCHEDULES);
    let by_day = WeekPattern::new(|hour| (4..22).contains(&(hour % 24)));
    let pattern = number.is_multiple_of(10).then_some(by_day);
    Server {
        facts: ServerFacts {
            id: ServerId::new(now(), u128::from(number)),
            environment: None,
            tags: BTreeSet::from([tag.parse().expect("a constant")]),
            os: Os::new("debian", "12", "").ok(),
        },
        kind: Some((number % 50) as usize),
        presence: Presence::new(false, now(), now(), pattern),
        reboot_required: number.is_multiple_of(7),
        quarantined: false,
        refuses_changes: false,
        never_reboot: false,
        limited_hours: false,
    }
}

fn schedule(number: u32) -> Schedule {
    let cron = Cron::parse(&format!("{} 2 * * *", number % 60)).expect("a constant");
    let timezone: Zone = "Europe/Berlin".parse().expect("a constant");
    let targets = format!(r#"{{"tags": ["group-{number}"]}}"#);
    let targets: Selector = serde_json::from_str(&targets).expect("a constant");
    let installs = (0..50).map(|kind| (kind, UpdateSet::first(40)));
    Schedule {
        enabled: true,
        next_run_at: next_after(&cron, &timezone, now()),
        cron,
        timezone,
        targets,
        pace: Pace {
            max_parallel: Some(50),
            canary: Some(Portion::Count(3)),
            window_minutes: Some(240),
            ..Pace::default()
        },
        order: Order {
            dry_run: false,
            reboot: RebootPolicy::IfRequired,
            installs: installs.collect::<BTreeMap<_, _>>(),
        },
    }
}

fn fleet(size: u32) -> Fleet {
    let weekends = Timing::Recurring {
        cron: Cron::parse("0 0 * * 6").expect("a constant"),
        duration: SignedDuration::from_hours(48),
        timezone: Zone::default(),
    };
    Fleet {
        servers: (0..size).map(server).collect(),
        kinds: vec![Kind { pending: 40, installable: UpdateSet::first(40) }; 50],
        schedules: (0..SCHEDULES).map(schedule).collect(),
        freezes: vec![Freeze { targets: Selector::All, timing: weekends }],
        ..Fleet::default()
    }
}

/// Thirty days. Every night is simulated to its end, or the forecast would be cheap for a wrong
/// reason.
#[divan::bench(args = SIZES, sample_count = 5)]
fn thirty_days(bencher: Bencher, size: u32) {
    let fleet = fleet(size);
    bencher.counter(ItemsCount::new(size)).bench(|| {
        let forecast = forecast(&fleet, now(), DAYS);
        assert!(size > 10_000 || forecast.ended_early.is_none(), "ended early");
        forecast
    });
}
