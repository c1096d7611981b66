//! Until when each agent watches the health of its host. Filled from the database by the
//! dispatcher; every response to a sync contains it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use domain::rollout::{HealthWatch, HealthWatches, TaskStatus};
use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, OrgId, ServerId};

use crate::registry::lock;

/// How long an agent watches after its last sync while the end of the watch is not known.
const OPEN_WATCH: SignedDuration = SignedDuration::from_hours(1);

struct FollowedRollout {
    org: OrgId,
    watches: HealthWatches,
    tasks: BTreeMap<ServerId, TaskStatus>,
}

/// The watches of all open rollouts whose servers may have to watch their health.
#[derive(Default)]
pub(super) struct HealthWatchList(Mutex<BTreeMap<BatchId, FollowedRollout>>);

impl HealthWatchList {
    /// Whether the tasks of this rollout are known.
    pub(super) fn follows(&self, rollout: BatchId) -> bool {
        lock(&self.0).contains_key(&rollout)
    }

    /// Updates the watches of a rollout, and the tasks that changed.
    pub(super) fn update(
        &self,
        rollout: BatchId,
        org: OrgId,
        watches: HealthWatches,
        changed: impl Iterator<Item = (ServerId, TaskStatus)>,
    ) {
        let mut rollouts = lock(&self.0);
        let new = FollowedRollout { org, watches, tasks: BTreeMap::new() };
        let followed = rollouts.entry(rollout).or_insert(new);
        followed.watches = watches;
        followed.tasks.extend(changed);
    }

    pub(super) fn remove(&self, rollout: BatchId) {
        lock(&self.0).remove(&rollout);
    }

    /// Until when this server watches its health; the latest end if several rollouts want it.
    pub(super) fn until(&self, org: OrgId, server: ServerId, now: Timestamp) -> Option<Timestamp> {
        let rollouts = lock(&self.0);
        let of_org = rollouts.values().filter(|rollout| rollout.org == org);
        let ends = of_org.filter_map(|rollout| {
            match rollout.watches.for_task(*rollout.tasks.get(&server)?) {
                HealthWatch::Off => None,
                HealthWatch::Until(until) => Some(until).filter(|until| *until > now),
                HealthWatch::Open => now.checked_add(OPEN_WATCH).ok(),
            }
        });
        ends.max()
    }
}

#[cfg(test)]
mod tests {
    use domain::rollout::{Change, Pace, Rollout};
    use vocab::HealthMode;

    use super::*;

    #[test]
    fn waiting_server_is_watched_until_its_batch_is_gone() {
        let now: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
        let (org, other) = (OrgId::new(now, 1), OrgId::new(now, 2));
        let (server, id) = (ServerId::new(now, 1), BatchId::new(now, 1));
        let pace = Pace { health: HealthMode::Gate, ..Pace::default() };
        let mut rollout = Rollout::new(id, pace, now, [server], now);
        rollout.apply_change(Change::Start, now).unwrap();
        let list = HealthWatchList::default();
        let update = |rollout: &Rollout, started: bool| {
            let mut head = rollout.head().clone();
            head.last_start = started.then_some(now);
            list.update(id, org, head.health_watches(1), rollout.tasks());
        };
        update(&rollout, false);
        assert_eq!(list.until(org, server, now), None);
        update(&rollout, true);
        assert!(list.follows(id));
        assert_eq!(list.until(org, server, now), Some(now + OPEN_WATCH));
        assert_eq!(list.until(other, server, now), None);
        list.remove(id);
        assert_eq!(list.until(org, server, now), None);
    }
}
