//! Benchmark 10: ten thousand schedules that are due at the same time.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::schedules::{self, Schedule};
use vocab::{OrgId, ScheduleId, Selector};

use crate::installation::{Engine, Installation};
use crate::table::{Line, Table, Target, print_figure};
use crate::{fleet, now};

const SCHEDULES: u64 = 10_000;
const SERVERS: u64 = 1_000;

pub(crate) async fn measure_schedules(engine: Engine, table: &mut Table) {
    let installation = Installation::new(engine, "schedules").await;
    fleet::fill(&installation, SERVERS).await;
    let due = full_minute();
    add(&installation, due).await;
    installation.analyze().await;
    fleet::mark_all_seen(&installation, SERVERS).await;
    let service = installation.serve();
    let left = due.duration_since(now()).try_into().unwrap_or(Duration::ZERO);
    assert!(left > Duration::from_secs(10), "the service needs time to become the leader");
    tokio::time::sleep(left).await;
    // Measured by a separate connection, which sees only committed rows.
    let late = lateness_p99(&installation, due, "select count(*) from runs").await;
    let with_batch = "select count(*) from runs join rollouts on rollouts.id = runs.batch_id";
    let whole = lateness_p99(&installation, due, with_batch).await;
    let once = "select count(*) from (select schedule_id from runs group by schedule_id) once";
    assert_eq!(
        installation.number(once).await,
        SCHEDULES as i64,
        "each schedule must run exactly once"
    );
    assert_eq!(installation.number("select count(*) from runs").await, SCHEDULES as i64);
    assert_eq!(installation.number("select count(*) from rollouts").await, SCHEDULES as i64);
    for (what, late, target) in [
        ("p99 lateness of 10,000 schedules, one server each", late, Target::Most(250.0)),
        ("  until their batches exist", whole, Target::None),
    ] {
        print_figure(what, engine, SERVERS, late, "ms");
        let (engine, figures) = (engine.name(), &[(SCHEDULES, late)]);
        table.add_line(&Line { row: 10, what, engine, unit: "ms", figures, target });
    }
    drop(service);
    installation.remove().await;
}

/// When 99 percent were counted, in milliseconds after the due time.
async fn lateness_p99(installation: &Installation, due: Timestamp, count: &'static str) -> f64 {
    let share = SCHEDULES as i64 * 99 / 100;
    let (mut eyes, mut late) = (installation.read_connection().await, None);
    loop {
        let counted = eyes.number(count).await;
        let now = now().duration_since(due).as_secs_f64() * 1e3;
        assert!(now < 120_000.0, "{counted} of {SCHEDULES} in two minutes: {count}");
        if counted >= share {
            late.get_or_insert(now);
        }
        match late {
            Some(late) if counted >= SCHEDULES as i64 => return late,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// The next full minute that leaves time for the preparations.
fn full_minute() -> Timestamp {
    let soon = now() + SignedDuration::from_secs(40);
    Timestamp::from_second((soon.as_second() / 60 + 1) * 60).unwrap()
}

async fn add(installation: &Installation, due: Timestamp) {
    let db = installation.db().await;
    let all: Vec<u64> = (0..SCHEDULES).collect();
    for some in all.chunks(1_000) {
        let mut tx = db.begin().await.unwrap();
        for nth in some {
            schedules::create(&mut tx, &schedule(installation.org, *nth, due)).await.unwrap();
        }
        tx.commit().await.unwrap();
    }
    db.close().await;
}

fn schedule(org_id: OrgId, nth: u64, due: Timestamp) -> Schedule {
    let at = due.to_zoned(TimeZone::UTC);
    let cron = format!("{} {} {} {} *", at.minute(), at.hour(), at.day(), at.month());
    let server = fleet::id(nth % SERVERS);
    Schedule {
        id: ScheduleId::new(due, u128::from(nth)),
        org_id,
        name: format!("schedule {nth}"),
        description: String::new(),
        enabled: true,
        cron: cron.parse().unwrap(),
        timezone: "UTC".parse().unwrap(),
        targets: Selector::parse(&json!({"server_ids": [server]})).unwrap(),
        options: json!({}),
        next_run_at: Some(due),
        created_at: now(),
        updated_at: now(),
        generation: 1,
        seal: store::seals::SealCode::default(),
    }
}
