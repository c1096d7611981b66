//! Planners that decide wrongly, for tests of the simulation.
//!
//! Each has one mistake: it lies to the real planner about the rollout, or changes its plan.

use jiff::{SignedDuration, Timestamp};

use vocab::HealthMode;

use super::{
    Change, HaltReason, Phase, Plan, Rollout, RolloutOutcome, ServerCondition, TaskEvent, plan,
};

/// A planner.
pub(crate) type Planner = fn(&Rollout, Timestamp) -> Plan;

fn mins(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

/// The plan for a rollout that differs from the real one.
fn lie(rollout: &Rollout, now: Timestamp, change: impl FnOnce(&mut Rollout)) -> Plan {
    let mut other = rollout.clone();
    change(&mut other);
    plan(&other, now)
}

/// The plan with a different change of the rollout.
fn swap(rollout: &Rollout, now: Timestamp, with: impl Fn(Change) -> Option<Change>) -> Plan {
    let mut next = plan(rollout, now);
    if let Some(change) = next.change {
        next.change = with(change);
    }
    next
}

/// The plan with different events.
fn edit(
    rollout: &Rollout,
    now: Timestamp,
    with: impl Fn(&mut Vec<(vocab::ServerId, TaskEvent)>),
) -> Plan {
    let mut next = plan(rollout, now);
    if !next.events.is_empty() {
        with(&mut next.events);
    }
    next
}

fn offers(events: &[(vocab::ServerId, TaskEvent)]) -> bool {
    matches!(events.first(), Some((_, TaskEvent::Offered { .. })))
}

/// The idle plan with a different time to wake up.
fn wake(
    rollout: &Rollout,
    now: Timestamp,
    with: impl FnOnce(Option<Timestamp>) -> Option<Timestamp>,
) -> Plan {
    let mut next = plan(rollout, now);
    if next.is_idle() {
        next.wake_at = with(next.wake_at);
    }
    next
}

/// Makes every server of the rollout available that this accepts.
fn free(rollout: &mut Rollout, accept: impl Fn(&ServerCondition) -> bool) {
    let tasks = rollout.tasks.iter().map(|task| (task.server, task.condition));
    for (server, condition) in tasks.collect::<Vec<_>>() {
        if accept(&condition) {
            rollout.set_condition(server, ServerCondition::FREE);
        }
    }
}

/// The faults, each with what the planner does wrong.
pub(crate) const FAULTS: &[(&str, Planner)] = &[
    // Servers that must not start.
    ("starts offline servers", |r, now| lie(r, now, |r| free(r, |c| !c.online))),
    ("starts servers that are busy elsewhere", |r, now| {
        lie(r, now, |r| free(r, |c| c.busy_in.is_some()))
    }),
    ("starts servers whose agents work", |r, now| lie(r, now, |r| free(r, |c| c.agent_busy))),
    ("starts frozen servers", |r, now| lie(r, now, |r| free(r, |c| c.frozen_until.is_some()))),
    ("ends every freeze ten minutes early", |r, now| {
        lie(r, now, |r| r.end_freezes(now + mins(10)))
    }),
    ("never ends a freeze", |r, now| wake(r, now, |at| at.filter(|_| r.frozen.is_empty()))),
    ("sleeps a minute into the end of a freeze", |r, now| {
        wake(r, now, |at| at.map(|at| if r.frozen.is_empty() { at } else { at + mins(1) }))
    }),
    ("starts servers without a proven version", |r, now| lie(r, now, |r| free(r, |c| c.unproven))),
    ("skips servers before the first wave has passed", |r, now| {
        let mut next = plan(r, now);
        let waiting = r.tasks().find(|(_, status)| *status == super::TaskStatus::Waiting);
        if let (true, true, Some((server, _))) =
            (r.head.pace.pin_versions, r.head.waves.current == 0 && next.is_idle(), waiting)
            && r.head.phase == Phase::Running
        {
            next.events.push((server, TaskEvent::VersionUnproven));
        }
        next
    }),
    ("lets servers without a proven version wait", |r, now| lie(r, now, |r| r.unproven.clear())),
    // Pace.
    ("starts one server too many in parallel", |r, now| {
        lie(r, now, |r| r.limits.parallel = r.limits.parallel.saturating_add(1))
    }),
    ("ignores max_parallel", |r, now| lie(r, now, |r| r.limits.parallel = u32::MAX)),
    ("starts one server too few in parallel", |r, now| {
        lie(r, now, |r| r.limits.parallel = r.limits.parallel.saturating_sub(1))
    }),
    ("ignores the stagger", |r, now| lie(r, now, |r| r.limits.stagger = SignedDuration::ZERO)),
    ("halves the stagger", |r, now| lie(r, now, |r| r.limits.stagger /= 2)),
    ("doubles the stagger", |r, now| lie(r, now, |r| r.limits.stagger *= 2)),
    ("forgets the last start", |r, now| lie(r, now, |r| r.head.last_start = None)),
    ("starts the last servers first", |r, now| {
        lie(r, now, |r| {
            let ready: Vec<u32> = r.ready.iter().copied().collect();
            if let (Some(last), true) = (ready.last(), ready.len() > 1) {
                r.ready = [*last].into();
            }
        })
    }),
    ("starts one server fewer than it may", |r, now| {
        let mut next = plan(r, now);
        if offers(&next.events) {
            next.events.pop();
        }
        if next.change.is_none() && next.events.is_empty() {
            next.wake_at = Some(r.head.start_by);
        }
        next
    }),
    ("starts a server twice", |r, now| {
        edit(r, now, |events| {
            if offers(events) {
                events.push(events[0]);
            }
        })
    }),
    // Canary.
    ("ignores the canary", |r, now| lie(r, now, |r| r.limits.canary = 0)),
    ("takes a canary more than it needs", |r, now| {
        lie(r, now, |r| r.limits.canary += u32::from(r.limits.canary > 0))
    }),
    ("takes a canary less than it needs", |r, now| {
        lie(r, now, |r| r.limits.canary = r.limits.canary.saturating_sub(1))
    }),
    ("believes that the canary was waived", |r, now| lie(r, now, |r| r.head.canary_waived = true)),
    ("forgets that the canary was waived", |r, now| lie(r, now, |r| r.head.canary_waived = false)),
    ("believes that the canary had nothing to install", |r, now| {
        lie(r, now, |r| r.head.canary_unchanged = true)
    }),
    ("replaces canaries by any server", |r, now| lie(r, now, |r| r.head.expected = None)),
    ("never replaces a canary", |r, now| lie(r, now, |r| r.head.expected = Some(0))),
    ("counts servers without a change as canaries", |r, now| {
        lie(r, now, |r| {
            let unchanged = std::mem::take(&mut r.counts.no_change);
            r.counts.succeeded += unchanged;
        })
    }),
    ("counts failed servers as canaries", |r, now| {
        lie(r, now, |r| {
            let failed = std::mem::take(&mut r.counts.failed);
            r.counts.succeeded += failed;
        })
    }),
    ("waits for a canary that cannot succeed", |r, now| {
        swap(r, now, |change| (change != Change::CanaryUnchanged).then_some(change))
    }),
    // Failures.
    ("never halts for a failed canary", |r, now| {
        swap(r, now, |change| (change != Change::Halt(HaltReason::CanaryFailed)).then_some(change))
    }),
    ("never halts for too many failures", |r, now| lie(r, now, |r| r.limits.failures = u32::MAX)),
    ("halts one failure late", |r, now| {
        lie(r, now, |r| r.limits.failures = r.limits.failures.saturating_add(1))
    }),
    ("halts one failure early", |r, now| {
        lie(r, now, |r| r.limits.failures = r.limits.failures.saturating_sub(1).max(1))
    }),
    ("halts for failures that a user accepted", |r, now| lie(r, now, |r| r.head.forgiven = 0)),
    ("accepts one failure by itself", |r, now| lie(r, now, |r| r.head.forgiven += 1)),
    ("does not count timeouts as failures", |r, now| {
        lie(r, now, |r| {
            let lost = std::mem::take(&mut r.counts.timed_out);
            r.counts.not_applicable += lost;
        })
    }),
    ("counts servers without a change as failures", |r, now| {
        lie(r, now, |r| {
            let unchanged = std::mem::take(&mut r.counts.no_change);
            r.counts.failed += unchanged;
        })
    }),
    // Times.
    ("starts a minute early", |r, now| lie(r, now, |r| r.head.starts_at -= mins(1))),
    ("starts a minute late", |r, now| lie(r, now, |r| r.head.starts_at += mins(1))),
    ("closes the window a minute early", |r, now| lie(r, now, |r| r.head.start_by -= mins(1))),
    ("closes the window a minute late", |r, now| lie(r, now, |r| r.head.start_by += mins(1))),
    ("never closes the window", |r, now| {
        edit(r, now, |events| events.retain(|(_, event)| *event != TaskEvent::WindowClosed))
    }),
    ("never times out a task", |r, now| lie(r, now, |r| r.deadlines.clear())),
    ("times out tasks a minute early", |r, now| {
        lie(r, now, |r| {
            r.deadlines = r.deadlines.iter().map(|(by, place)| (*by - mins(1), *place)).collect();
        })
    }),
    ("ignores the grace period", |r, now| lie(r, now, |r| r.grace_period = None)),
    ("sleeps a minute too long", |r, now| wake(r, now, |at| at.map(|at| at + mins(1)))),
    ("never wakes up", |r, now| wake(r, now, |_| None)),
    ("wakes up only for the window", |r, now| {
        wake(r, now, |at| at.map(|at| at.max(r.head.start_by)))
    }),
    // Users.
    ("starts servers of a paused rollout", |r, now| {
        lie(r, now, |r| {
            if r.head.phase == Phase::Paused {
                r.head.phase = Phase::Running;
            }
        })
    }),
    ("starts servers of a halted rollout", |r, now| {
        lie(r, now, |r| {
            if matches!(r.head.phase, Phase::Halted(_)) {
                r.head.phase = Phase::Running;
                r.head.forgiven = u32::MAX;
                r.head.canary_waived = true;
            }
        })
    }),
    ("lets canceled servers wait", |r, now| {
        lie(r, now, |r| {
            if r.head.phase == Phase::Canceling {
                r.head.phase = Phase::Paused;
            }
        })
    }),
    ("reports every end as a success", |r, now| {
        swap(r, now, |change| match change {
            Change::End(_) => Some(Change::End(RolloutOutcome::Succeeded)),
            other => Some(other),
        })
    }),
    ("reports every end as canceled", |r, now| {
        swap(r, now, |change| match change {
            Change::End(_) => Some(Change::End(RolloutOutcome::Canceled)),
            other => Some(other),
        })
    }),
    ("never ends", |r, now| {
        swap(r, now, |change| (!matches!(change, Change::End(_))).then_some(change))
    }),
    // Waves.
    ("ignores waves", |r, now| {
        lie(r, now, |r| {
            let all = r.tasks.len() as u32;
            r.limits.waves.truncate(1);
            r.limits.waves[0].servers = all;
            r.limits.canary = 0;
        })
    }),
    ("starts one server too many in each wave", |r, now| {
        lie(r, now, |r| r.limits.waves.iter_mut().for_each(|wave| wave.servers += 1))
    }),
    ("starts one server too few in each wave", |r, now| {
        lie(r, now, |r| {
            let shrink = |servers: u32| servers.saturating_sub(1).max(1);
            r.limits.waves.iter_mut().for_each(|wave| wave.servers = shrink(wave.servers));
        })
    }),
    ("opens a wave while servers of the last one are in progress", |r, now| {
        lie(r, now, |r| {
            if r.head.waves.ended_at.is_none() && r.counts.in_progress() > 0 {
                let busy: u32 = r.counts.busy.iter().sum();
                r.counts.busy = Default::default();
                r.counts.not_applicable += busy;
            }
        })
    }),
    ("skips every soak", |r, now| {
        lie(r, now, |r| {
            r.limits.waves.iter_mut().for_each(|wave| wave.soak = SignedDuration::ZERO);
        })
    }),
    ("ends every soak a minute early", |r, now| {
        lie(r, now, |r| {
            r.limits.waves.iter_mut().for_each(|wave| {
                wave.soak = (wave.soak - mins(1)).max(SignedDuration::from_secs(1));
            });
        })
    }),
    ("soaks a minute too long", |r, now| {
        lie(r, now, |r| {
            let longer = |soak: SignedDuration| if soak.is_zero() { soak } else { soak + mins(1) };
            r.limits.waves.iter_mut().for_each(|wave| wave.soak = longer(wave.soak));
        })
    }),
    ("begins the soak again and again", |r, now| lie(r, now, |r| r.head.waves.ended_at = None)),
    ("never opens the next wave", |r, now| {
        swap(r, now, |change| (change != Change::NextWave).then_some(change))
    }),
    ("starts servers while a wave soaks", |r, now| {
        lie(r, now, |r| {
            if r.head.waves.ended_at.is_some() {
                r.head.waves.ended_at = None;
                r.head.waves.current = u32::MAX;
            }
        })
    }),
    ("soaks waves that changed nothing", |r, now| {
        lie(r, now, |r| {
            r.wave_counts.iter_mut().for_each(|counts| counts.succeeded += counts.no_change);
        })
    }),
    ("numbers the waves from two", |r, now| {
        edit(r, now, |events| {
            for (_, event) in events {
                if let TaskEvent::Offered { wave } = event {
                    *wave += 1;
                }
            }
        })
    }),
    ("counts servers of earlier waves", |r, now| {
        lie(r, now, |r| {
            let all = r.counts;
            r.wave_counts.iter_mut().for_each(|counts| *counts = all);
        })
    }),
    // Approval.
    ("needs no approval", |r, now| {
        lie(r, now, |r| r.limits.waves.iter_mut().for_each(|wave| wave.approval = false))
    }),
    ("asks for every approval again", |r, now| lie(r, now, |r| r.head.waves.approvals.clear())),
    ("asks for approvals that nobody wants", |r, now| {
        lie(r, now, |r| r.limits.waves.iter_mut().for_each(|wave| wave.approval = true))
    }),
    ("approves by itself", |r, now| {
        swap(r, now, |change| match change {
            Change::AskApproval => Some(Change::Approve),
            other => Some(other),
        })
    }),
    ("starts servers that wait for an approval", |r, now| {
        lie(r, now, |r| {
            if r.head.phase == Phase::AwaitingApproval {
                r.head.phase = Phase::Running;
                r.limits.waves.iter_mut().for_each(|wave| wave.approval = false);
            }
        })
    }),
    ("keeps waiting servers of a rejected wave", |r, now| {
        edit(r, now, |events| events.retain(|(_, event)| *event != TaskEvent::Canceled))
    }),
    // Health.
    ("ignores the health of servers", |r, now| {
        lie(r, now, |r| r.head.pace.health = HealthMode::Report)
    }),
    ("gates without being asked to", |r, now| {
        lie(r, now, |r| r.head.pace.health = HealthMode::Gate)
    }),
    ("tolerates one unhealthy server too many", |r, now| {
        lie(r, now, |r| r.limits.waves.iter_mut().for_each(|wave| wave.unhealthy += 1))
    }),
    ("tolerates one unhealthy server too few", |r, now| {
        lie(r, now, |r| {
            r.limits
                .waves
                .iter_mut()
                .for_each(|wave| wave.unhealthy = wave.unhealthy.saturating_sub(1));
        })
    }),
    ("halts for health that a user accepted", |r, now| {
        lie(r, now, |r| r.head.health.forgiven.clear())
    }),
    ("accepts an unhealthy server by itself", |r, now| {
        lie(r, now, |r| {
            let waves = r.wave_health.len();
            r.head.health.forgiven.resize(waves, 0);
            r.head.health.forgiven.iter_mut().for_each(|forgiven| *forgiven += 1);
        })
    }),
    ("blames the change without waiting for others", |r, now| {
        lie(r, now, |r| {
            r.head.health.exceeded_at = Some(now - mins(6));
            r.grace_period = None;
        })
    }),
    ("blames the change a minute early", |r, now| {
        lie(r, now, |r| {
            r.head.health.exceeded_at = r.head.health.exceeded_at.map(|since| since - mins(1));
        })
    }),
    ("compares a minute too long", |r, now| {
        lie(r, now, |r| {
            r.head.health.exceeded_at = r.head.health.exceeded_at.map(|since| since + mins(1));
        })
    }),
    ("compares with no other servers", |r, now| lie(r, now, |r| r.control.problems.clear())),
    ("compares with servers that do not exist", |r, now| lie(r, now, |r| r.control.servers += 40)),
    ("lets a single server excuse the change", |r, now| {
        lie(r, now, |r| r.control.servers = r.control.servers.min(1))
    }),
    ("excuses the change for any other problem", |r, now| {
        lie(r, now, |r| {
            if !r.control.problems.is_empty() {
                let problems = r.tasks.iter().filter_map(|task| task.health.clone());
                let problems = problems.flat_map(|health| health.problems.clone());
                r.control.problems = problems.map(|problem| (problem, u32::MAX)).collect();
            }
        })
    }),
    ("never blames the change", |r, now| {
        swap(r, now, |change| {
            let blames = matches!(change, Change::Halt(HaltReason::HealthDegraded { .. }));
            (!blames).then_some(change)
        })
    }),
    ("never pauses for a fleet-wide problem", |r, now| {
        swap(r, now, |change| match change {
            Change::Halt(HaltReason::FleetWideDegradation { wave }) => {
                Some(Change::Halt(HaltReason::HealthDegraded { wave }))
            }
            other => Some(other),
        })
    }),
    ("calls every bad change a fleet-wide problem", |r, now| {
        swap(r, now, |change| match change {
            Change::Halt(HaltReason::HealthDegraded { wave }) => {
                Some(Change::Halt(HaltReason::FleetWideDegradation { wave }))
            }
            other => Some(other),
        })
    }),
    ("names another wave", |r, now| {
        swap(r, now, |change| match change {
            Change::Halt(HaltReason::HealthDegraded { wave }) => {
                Some(Change::Halt(HaltReason::HealthDegraded { wave: wave + 1 }))
            }
            other => Some(other),
        })
    }),
    ("never finds its servers healthy again", |r, now| {
        swap(r, now, |change| (change != Change::HealthRecovered).then_some(change))
    }),
    ("starts servers while their health is judged", |r, now| {
        lie(r, now, |r| {
            if r.head.health.exceeded_at.is_some() {
                r.head.pace.health = HealthMode::Report;
                r.head.health.exceeded_at = None;
            }
        })
    }),
    ("sleeps while the health is judged", |r, now| {
        wake(r, now, |at| match r.head.health.exceeded_at {
            Some(_) => at.map(|at| at + mins(1)),
            None => at,
        })
    }),
    ("takes silence for health", |r, now| {
        lie(r, now, |r| {
            r.wave_health.iter_mut().for_each(|counts| {
                (counts.healthy_soaked, counts.degraded_soaked) = (counts.healthy, counts.degraded);
            });
        })
    }),
    ("takes what was not measured for healthy", |r, now| {
        lie(r, now, |r| {
            r.wave_health.iter_mut().for_each(|counts| {
                counts.healthy += counts.not_measured;
                counts.healthy_soaked += counts.not_measured;
            });
        })
    }),
    ("passes waves of unknown health", |r, now| {
        lie(r, now, |r| r.head.health.unknown_waived = true)
    }),
    ("halts for unknown health that a user accepted", |r, now| {
        lie(r, now, |r| r.head.health.unknown_waived = false)
    }),
    ("waits forever for the last reports", |r, now| {
        swap(r, now, |change| {
            let unknown = matches!(change, Change::Halt(HaltReason::HealthUnknown { .. }));
            (!unknown).then_some(change)
        })
    }),
    ("does not wait for the last reports", |r, now| {
        lie(r, now, |r| {
            let soak = |index: usize| r.limits.waves.get(index).map(|wave| wave.soak);
            let over = r.head.waves.ended_at.zip(soak(r.head.waves.current as usize));
            if let Some((ended_at, soak)) = over
                && ended_at + soak <= now
            {
                r.head.waves.ended_at = Some(ended_at - mins(15));
            }
        })
    }),
    ("waits a minute too long for the last reports", |r, now| {
        lie(r, now, |r| {
            let soak = |index: usize| r.limits.waves.get(index).map(|wave| wave.soak);
            let over = r.head.waves.ended_at.zip(soak(r.head.waves.current as usize));
            if let Some((ended_at, soak)) = over
                && ended_at + soak + mins(1) <= now
            {
                r.head.waves.ended_at = Some(ended_at + mins(1));
            }
        })
    }),
    ("demands health of waves that changed nothing", |r, now| {
        lie(r, now, |r| {
            r.wave_counts.iter_mut().for_each(|counts| {
                counts.succeeded += std::mem::take(&mut counts.no_change);
            });
        })
    }),
    ("judges the last reports of other waves", |r, now| {
        lie(r, now, |r| {
            let all = r.wave_health.clone();
            for counts in &all {
                let current = r.head.waves.current as usize;
                if let Some(into) = r.wave_health.get_mut(current) {
                    into.healthy += counts.healthy;
                    into.healthy_soaked += counts.healthy_soaked;
                }
            }
        })
    }),
];
