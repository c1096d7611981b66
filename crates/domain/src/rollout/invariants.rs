//! Invariants that hold for every rollout, whatever happened to it.
//!
//! [`check_invariants`] checks a rollout between two events, [`check_settled`] one whose plan has
//! been carried out. The simulation runs them after every step; they also help to examine a
//! suspicious stored rollout. They recompute everything, so they are slow and independent of the
//! code that they check.

use jiff::Timestamp;
use vocab::HealthMode;

use super::plan::plan;
use super::wave;
use super::{Phase, Rollout, TaskCounts, TaskStatus, stage_limit};

/// Returns every violated invariant, as a sentence.
pub fn check_invariants(rollout: &Rollout) -> Vec<String> {
    let mut violations = Vec::new();
    // A macro and not a function, so that the message is formatted only when it is needed.
    macro_rules! must {
        ($holds:expr, $($sentence:tt)*) => {
            if !$holds {
                violations.push(format!($($sentence)*));
            }
        };
    }
    let head = rollout.head();
    let limits = rollout.limits();
    let tally = TaskCounts::from_tasks(rollout.tasks.iter().map(|slot| &slot.status));
    let (good, in_work, unfinished) = (tally.successes(), tally.in_progress(), tally.unfinished());

    must!(tally == *rollout.counts(), "counts are {:?}, but should be {tally:?}", rollout.counts());
    must!(*rollout == rebuild(rollout), "queues differ from rebuilt ones");
    must!(in_work <= limits.parallel, "{in_work} tasks in progress, {} allowed", limits.parallel);
    let unproven = !head.canary_waived && tally.succeeded < limits.canary;
    must!(
        !unproven || head.canary_unchanged || tally.succeeded + in_work <= limits.canary,
        "{in_work} tasks in progress, beyond the canary of {}",
        limits.canary
    );
    must!(
        !head.canary_unchanged || good >= limits.canary,
        "canary_unchanged is set after {good} successful servers, fewer than the canary of {}",
        limits.canary
    );
    let (wave, is_last) = wave::current_wave(&head.waves, limits);
    let in_wave = wave::started(&rollout.wave_counts(head.waves.current));
    must!(
        (head.waves.current as usize) < limits.waves().len(),
        "is in wave {} of {}",
        head.waves.number(),
        limits.waves().len()
    );
    must!(
        is_last || head.waves.current == 0 || in_wave <= wave.servers,
        "{in_wave} servers started in wave {}, which has {}",
        head.waves.number(),
        wave.servers
    );
    must!(
        head.waves.ended_at.is_none() || in_work == 0,
        "{in_work} tasks in progress while the wave soaks"
    );
    must!(
        head.phase != Phase::AwaitingApproval || (wave.approval && in_wave == 0),
        "waits for the approval of a wave that has begun or needs none"
    );
    must!(
        head.health.exceeded_at.is_none() || head.pace.health == HealthMode::Gate,
        "judges the health of its servers although it does not gate"
    );
    must!(!head.phase.is_ended() || unfinished == 0, "ended with {unfinished} unfinished tasks");
    must!(head.starts_at <= head.start_by, "the window closes before the start");
    must!(
        head.phase != Phase::Scheduled || in_work == 0,
        "{in_work} tasks in progress before the start"
    );
    for (server, target) in rollout.tasks() {
        if let TaskStatus::Busy(busy) = target {
            let latest =
                head.clock.saturating_add(stage_limit(busy.stage)).unwrap_or(Timestamp::MAX);
            must!(
                busy.by <= latest,
                "{server} has a deadline of {} for {}, which is too late",
                busy.by,
                busy.stage
            );
        }
    }
    violations
}

/// Checks a rollout after every plan up to `now` was carried out.
pub fn check_settled(rollout: &Rollout, now: Timestamp) -> Vec<String> {
    let mut violations = check_invariants(rollout);
    let next = plan(rollout, now);
    let ended = rollout.head().phase.is_ended();
    if !next.is_idle() {
        violations.push(format!("settled, but there is more to do: {next:?}"));
    }
    if rollout.counts().unfinished() == 0 && !ended {
        violations.push("every task has ended, but the rollout has not".into());
    }
    match next.wake_at {
        Some(at) if at <= now => violations.push(format!("wake-up time {at} has passed")),
        None if !ended => violations.push("has no wake-up time and would never end".into()),
        _ => {}
    }
    violations
}

fn rebuild(rollout: &Rollout) -> Rollout {
    let mut rebuilt = Rollout::restore(rollout.head().clone(), rollout.tasks());
    rebuilt.grace_period = rollout.grace_period;
    for slot in &rollout.tasks {
        rebuilt.set_condition(slot.server, slot.condition);
        rebuilt.set_health(slot.server, slot.health.clone());
    }
    rebuilt
}
