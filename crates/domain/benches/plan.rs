//! Cost of planning, and how it grows: `cargo xtask bench`.
//!
//! `whole_rollout` must grow at most linearly with the number of servers, and `one_step`, one
//! report and its consequences, hardly at all.

use divan::Bencher;
use divan::counter::ItemsCount;
use domain::rollout::{Pace, ReportedResult, Rollout, TaskEvent, TaskStatus, plan};
use jiff::Timestamp;
use vocab::{BatchId, Portion, ServerId};

const SIZES: [u32; 3] = [100, 10_000, 100_000];

fn main() {
    divan::main();
}

fn now() -> Timestamp {
    "2026-11-15T02:00:00Z".parse().expect("a constant")
}

fn rollout(size: u32, pace: Pace) -> Rollout {
    let servers = (0..size).map(|number| ServerId::new(now(), u128::from(number)));
    Rollout::new(BatchId::new(now(), 1), pace, now(), servers, now())
}

fn apply_all_plans(rollout: &mut Rollout) {
    loop {
        let next = plan(rollout, now());
        if next.is_idle() {
            return;
        }
        if let Some(change) = next.change {
            rollout.apply_change(change, now()).expect("planned");
        }
        for (server, event) in next.events {
            rollout.apply_event(server, event, now()).expect("planned");
        }
    }
}

/// Restoring a stored rollout.
#[divan::bench(args = SIZES)]
fn restore(bencher: Bencher, size: u32) {
    let stored = rollout(size, Pace::default());
    bencher
        .counter(ItemsCount::new(size))
        .with_inputs(|| (stored.head().clone(), stored.tasks().collect::<Vec<_>>()))
        .bench_values(|(head, targets)| Rollout::restore(head, targets));
}

/// From the first start to the end, with a canary, 50 servers in parallel.
#[divan::bench(args = SIZES, sample_count = 10)]
fn whole_rollout(bencher: Bencher, size: u32) {
    let pace = Pace {
        max_parallel: Some(50),
        canary: Some(Portion::Count(5)),
        max_failures: Some(Portion::percent(5).expect("a percentage")),
        ..Pace::default()
    };
    bencher
        .counter(ItemsCount::new(size))
        .with_inputs(|| rollout(size, pace.clone()))
        .bench_values(|mut rollout| {
            apply_all_plans(&mut rollout);
            for number in 0..size {
                let server = ServerId::new(now(), u128::from(number));
                rollout
                    .apply_event(server, TaskEvent::Reported(ReportedResult::Succeeded), now())
                    .expect("a report is always taken");
                apply_all_plans(&mut rollout);
            }
            assert!(rollout.head().phase.is_ended(), "the rollout ended");
            rollout
        });
}

/// One report, and the start of the next server.
#[divan::bench(args = SIZES)]
fn one_step(bencher: Bencher, size: u32) {
    let mut running = rollout(size, Pace { max_parallel: Some(50), ..Pace::default() });
    apply_all_plans(&mut running);
    let first = ServerId::new(now(), 0);
    let next = ServerId::new(now(), 50);
    bencher.with_inputs(|| running.clone()).bench_local_refs(|rollout| {
        rollout
            .apply_event(first, TaskEvent::Reported(ReportedResult::Succeeded), now())
            .expect("a report is always taken");
        apply_all_plans(rollout);
        assert!(
            matches!(rollout.task_status(next), Some(TaskStatus::Busy(_))),
            "the next one started"
        );
    });
}
