//! The order in which the servers of a rollout start.
//!
//! A first wave is only evidence if it installs something, so servers that install something come
//! first, and their operating systems take turns. The caller looks at the servers one by one, in
//! their usual order, until [`StartOrder::is_complete`].

use std::collections::{BTreeMap, BTreeSet};

use vocab::ServerId;

/// The number of servers with something to install that are searched for in addition to the first
/// wave: they replace servers that turn out to have nothing to install or to be offline.
const SPARE: usize = 200;

/// How many servers are searched for further operating systems, once there are enough.
const SYSTEMS_SEARCHED_MAX: usize = 10_000;

/// Collects the servers that come first. `K` identifies an operating system.
#[derive(Debug, Clone)]
pub struct StartOrder<K> {
    /// The size of the first wave.
    canary: usize,
    found: Vec<(K, ServerId)>,
    known: BTreeSet<ServerId>,
    systems: BTreeMap<K, usize>,
}

impl<K: Ord + Clone> StartOrder<K> {
    /// `canary`: the number of servers that go first and must succeed.
    pub fn new(canary: u32) -> StartOrder<K> {
        StartOrder {
            canary: canary as usize,
            found: Vec::new(),
            known: BTreeSet::new(),
            systems: BTreeMap::new(),
        }
    }

    fn has_enough(&self) -> bool {
        self.found.len() >= self.canary + SPARE
    }

    /// Whether the search ends, after this many servers.
    pub fn is_complete(&self, searched: usize) -> bool {
        self.has_enough() && searched >= SYSTEMS_SEARCHED_MAX
    }

    /// Whether it matters if this server would install something. Once there are enough, only
    /// systems that are missing matter.
    pub fn wants(&mut self, system: &K, server: ServerId) -> bool {
        let of_system = *self.systems.entry(system.clone()).or_default();
        (!self.has_enough() || of_system < self.canary) && !self.known.contains(&server)
    }

    /// Adds a server that would install something.
    pub fn add(&mut self, system: K, server: ServerId) {
        *self.systems.entry(system.clone()).or_default() += 1;
        self.known.insert(server);
        self.found.push((system, server));
    }

    /// Returns all servers in the order in which they start, and how many of them, from the first,
    /// are expected to install something. The others keep their order.
    pub fn finish(self, servers: Vec<ServerId>) -> (Vec<ServerId>, u32) {
        let mut ordered = take_turns(self.found);
        let count = u32::try_from(ordered.len()).unwrap_or(u32::MAX);
        ordered.extend(servers.into_iter().filter(|id| !self.known.contains(id)));
        (ordered, count)
    }
}

/// Orders servers so that their operating systems take turns, in the order in which each system and
/// each server appears first.
fn take_turns<K: Ord + Clone>(servers: Vec<(K, ServerId)>) -> Vec<ServerId> {
    let mut systems: BTreeMap<K, (usize, usize)> = BTreeMap::new();
    let mut turns: Vec<(usize, usize, ServerId)> = Vec::with_capacity(servers.len());
    for (system, server) in servers {
        let next = systems.len();
        let (rank, turn) = systems.entry(system).or_insert((next, 0));
        turns.push((*turn, *rank, server));
        *turn += 1;
    }
    turns.sort_unstable_by_key(|(turn, rank, _)| (*turn, *rank));
    turns.into_iter().map(|(_, _, server)| server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn systems_take_turns_in_the_given_order() {
        let id = |n: u128| ServerId::new(Timestamp::UNIX_EPOCH, n);
        let mut order = StartOrder::new(2);
        for (system, n) in
            [("debian", 1), ("debian", 2), ("debian", 3), ("rocky", 4), ("alpine", 5), ("rocky", 6)]
        {
            assert!(order.wants(&system, id(n)));
            order.add(system, id(n));
            assert!(!order.wants(&system, id(n)), "once is enough");
        }
        let all = [9, 1, 2, 3, 4, 5, 6, 8].map(id).to_vec();
        assert_eq!(order.finish(all), ([1, 4, 5, 2, 6, 3, 9, 8].map(id).to_vec(), 6));
    }
}
