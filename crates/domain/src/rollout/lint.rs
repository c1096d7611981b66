//! What must hold of any rollout, whatever happened to it.
//!
//! [`lint`] looks at a rollout between two moves, [`lint_settled`] at one whose plan has been carried
//! out. The simulation asks after every step; so may anyone who suspects a stored rollout. It counts
//! everything anew and takes no short cut, so it is slow and independent of what it checks.

use jiff::Timestamp;

use super::plan::plan;
use super::{Phase, Rollout, Tally, Target, limit};

/// Everything that does not hold, as sentences.
pub fn lint(rollout: &Rollout) -> Vec<String> {
    let mut broken = Vec::new();
    // A macro and not a function, because the sentence is written only when it is needed.
    macro_rules! must {
        ($holds:expr, $($sentence:tt)*) => {
            if !$holds {
                broken.push(format!($($sentence)*));
            }
        };
    }
    let head = rollout.head();
    let limits = rollout.limits();
    let tally = Tally::of(rollout.slots.iter().map(|slot| &slot.target));
    let (good, in_work, unfinished) = (tally.good(), tally.in_work(), tally.unfinished());

    must!(tally == *rollout.tally(), "counted {tally:?}, kept {:?}", rollout.tally());
    must!(*rollout == rebuilt(rollout), "queues differ from those made anew");
    must!(in_work <= limits.parallel, "{in_work} in work, {} allowed", limits.parallel);
    let unproven = !head.canary_waived && tally.succeeded < limits.canary;
    must!(
        !unproven || head.canary_unchanged || tally.succeeded + in_work <= limits.canary,
        "{in_work} in work beyond a canary of {}",
        limits.canary
    );
    must!(
        !head.canary_unchanged || good >= limits.canary,
        "a canary of {} is called unchanged after {good} servers",
        limits.canary
    );
    must!(!head.phase.is_ended() || unfinished == 0, "ended with {unfinished} unfinished");
    must!(head.starts_at <= head.start_by, "closes before it starts");
    must!(head.phase != Phase::Scheduled || in_work == 0, "{in_work} in work before the start");
    for (server, target) in rollout.targets() {
        if let Target::Busy(busy) = target {
            let latest = head.clock.saturating_add(limit(busy.stage)).unwrap_or(Timestamp::MAX);
            must!(busy.by <= latest, "{server} has until {} for {}", busy.by, busy.stage);
        }
    }
    broken
}

/// The same, of a rollout for which every plan up to `now` has been carried out.
pub fn lint_settled(rollout: &Rollout, now: Timestamp) -> Vec<String> {
    let mut broken = lint(rollout);
    let next = plan(rollout, now);
    let ended = rollout.head().phase.is_ended();
    if !next.is_idle() {
        broken.push(format!("settled, and yet there is more to do: {next:?}"));
    }
    if rollout.tally().unfinished() == 0 && !ended {
        broken.push("every target is at an end, the rollout is not".into());
    }
    match next.wake_at {
        Some(at) if at <= now => broken.push(format!("wakes at {at}, which has passed")),
        None if !ended => broken.push("would sleep for ever".into()),
        _ => {}
    }
    broken
}

fn rebuilt(rollout: &Rollout) -> Rollout {
    let mut anew = Rollout::restore(rollout.head().clone(), rollout.targets());
    anew.deaf = rollout.deaf;
    for slot in &rollout.slots {
        anew.notice(slot.server, slot.condition);
    }
    anew
}
