//! Records what really happened on the hosts, and checks every reported result against it.
//!
//! An order must take effect at most once, whatever is repeated, retried or restored, and its
//! result must state what happened. The ledger does not trust the simulation for this: it compares
//! the package sets before and after on its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use vocab::listing::Installed;
use vocab::{Digest, TaskId};
use wire::agent::{OrderResult, Outcome, PackageMove};

/// Maximum violations that are kept. The first ones are the most useful.
const VIOLATIONS_MAX: usize = 1_000;

/// Everything that happened, by order.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<LedgerState>);

#[derive(Debug, Default)]
struct LedgerState {
    accounts: HashMap<TaskId, OrderEntry>,
    violations: Vec<Violation>,
}

#[derive(Debug, Default)]
struct OrderEntry {
    agent: u64,
    plan: bool,
    started: bool,
    span: Option<(Timestamp, Option<Timestamp>)>,
    /// Part of the order was carried out before this ledger existed.
    started_earlier: bool,
    moves: Vec<PackageMove>,
    changes: u32,
    boots: u32,
    reported: Option<Digest>,
}

/// The time during which a host worked on an order, by the host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkSpan {
    /// The agent's index in the fleet.
    pub agent: u64,
    pub order: TaskId,
    pub began: Timestamp,
    /// When the agent finished or dropped the order.
    pub ended: Option<Timestamp>,
}

/// Something that must never happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The agent's index in the fleet.
    pub agent: u64,
    pub order: TaskId,
    pub what: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {}, order {}: {}", self.agent, self.order, self.what)
    }
}

impl Ledger {
    /// Records that an order was started.
    pub fn order_started(&self, agent: u64, order: TaskId, plan: bool, at: Timestamp) {
        self.update_entry(agent, order, |account| {
            let again = std::mem::replace(&mut account.started, true);
            account.plan = plan;
            account.span.get_or_insert((at, None));
            again.then_some("the order was started twice")
        });
    }

    /// Records that a restored agent may have acted on this order or reported it earlier.
    pub fn order_resumed(&self, agent: u64, order: TaskId) {
        self.update_entry(agent, order, |account| {
            (account.started_earlier, account.started) = (true, true);
            None
        });
    }

    /// Records that the packages of a host changed for an order.
    pub fn packages_changed(
        &self,
        agent: u64,
        order: TaskId,
        before: &[Installed],
        after: &[Installed],
    ) {
        let moves = package_changes(before, after);
        self.update_entry(agent, order, |account| {
            account.changes += 1;
            account.moves.extend(moves);
            match account {
                OrderEntry { changes: 2.., .. } => Some("the order changed packages twice"),
                OrderEntry { reported: Some(_), .. } => {
                    Some("the order changed packages after its result")
                }
                OrderEntry { plan: true, .. } => Some("a plan changed packages"),
                _ => None,
            }
        });
    }

    /// Records that a host booted for an order.
    pub fn host_booted(&self, agent: u64, order: TaskId) {
        self.update_entry(agent, order, |account| {
            account.boots += 1;
            match account {
                OrderEntry { boots: 2.., .. } => Some("the order rebooted the host twice"),
                OrderEntry { reported: Some(_), .. } => {
                    Some("the order rebooted the host after its result")
                }
                _ => None,
            }
        });
    }

    /// Records that a result is about to be sent, and checks it.
    pub fn result_reported(&self, agent: u64, result: &OrderResult) {
        // An order that was withdrawn or refused has a result without having started.
        let bytes = serde_json::to_vec(result).unwrap_or_default();
        let digest = Digest::compute(&bytes);
        self.update_entry(agent, result.order_id, |account| {
            if let Some((_, ended)) = &mut account.span {
                ended.get_or_insert(result.finished_at);
            }
            match account.reported.replace(digest) {
                Some(before) if before != digest => Some("the result changed"),
                Some(_) => None,
                None if account.started_earlier => None,
                None => account.contradiction(result),
            }
        });
    }

    /// The work of all hosts since this ledger was created, earliest first.
    pub fn spans(&self) -> Vec<WorkSpan> {
        let state = self.lock();
        let spans = state.accounts.iter().filter_map(|(order, account)| {
            let (began, ended) = account.span?;
            Some(WorkSpan { agent: account.agent, order: *order, began, ended })
        });
        let mut spans: Vec<_> = spans.collect();
        spans.sort_unstable_by_key(|span| (span.began, span.order));
        spans
    }

    /// All violations so far. Empty if there are none.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Number of orders that had an effect.
    pub fn orders_with_effects(&self) -> usize {
        let state = self.lock();
        state.accounts.values().filter(|account| account.changes + account.boots > 0).count()
    }

    fn update_entry(
        &self,
        agent: u64,
        order: TaskId,
        enter: impl FnOnce(&mut OrderEntry) -> Option<&'static str>,
    ) {
        let mut state = self.lock();
        let account = state
            .accounts
            .entry(order)
            .or_insert_with(|| OrderEntry { agent, ..OrderEntry::default() });
        let foreign = (account.agent != agent).then_some("two agents received the order");
        if let Some(what) = enter(account).or(foreign)
            && state.violations.len() < VIOLATIONS_MAX
        {
            state.violations.push(Violation { agent, order, what });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OrderEntry {
    fn contradiction(&self, result: &OrderResult) -> Option<&'static str> {
        let mut reported = result.packages.clone();
        reported.sort_by(|a, b| (&a.name, &a.arch).cmp(&(&b.name, &b.arch)));
        if !self.plan && reported != self.moves {
            return Some("the result does not match the package changes");
        }
        if result.reboot_seconds.is_some() != (self.boots > 0) {
            return Some("the result reports a reboot that did not happen, or omits one that did");
        }
        let nothing = self.changes == 0 && self.boots == 0;
        match result.outcome {
            Outcome::NoChange | Outcome::Skipped | Outcome::Withdrawn if !nothing => {
                Some("the result claims that nothing was done")
            }
            Outcome::Failed if result.failure_code.is_none() => {
                Some("the failed result has no failure code")
            }
            Outcome::Succeeded if !self.started => {
                Some("the order succeeded without having started")
            }
            _ => None,
        }
    }
}

/// The package changes between two lists, by name. Both lists are sorted, as inventories are.
pub(crate) fn package_changes(before: &[Installed], after: &[Installed]) -> Vec<PackageMove> {
    let key = |package: &Installed| (package.name.clone(), package.arch.clone());
    let old: HashMap<_, _> = before.iter().map(|package| (key(package), package)).collect();
    let new: HashMap<_, _> = after.iter().map(|package| (key(package), package)).collect();
    let moved = |installed: &Installed, from: Option<&str>, to: Option<&str>| PackageMove {
        name: installed.name.as_str().into(),
        arch: installed.arch.as_str().into(),
        from: from.map(Into::into),
        to: to.map(Into::into),
    };
    let gone = before.iter().filter(|package| !new.contains_key(&key(package)));
    let mut moves: Vec<_> =
        gone.map(|package| moved(package, Some(&package.version), None)).collect();
    moves.extend(after.iter().filter_map(|package| {
        let from = old.get(&key(package)).map(|package| package.version.as_str());
        (from != Some(&package.version)).then(|| moved(package, from, Some(&package.version)))
    }));
    moves.sort_by(|a, b| (&a.name, &a.arch).cmp(&(&b.name, &b.arch)));
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw";

    fn list(bash: &str) -> Vec<Installed> {
        vec![Installed::new("bash", bash, "amd64"), Installed::new("zsh", "5", "amd64")]
    }

    fn at() -> Timestamp {
        "2026-11-15T04:00:00Z".parse().unwrap()
    }

    fn result(outcome: Outcome, packages: Vec<PackageMove>) -> OrderResult {
        let at = at();
        OrderResult {
            order_id: ORDER.parse().unwrap(),
            outcome,
            failure_code: None,
            message: None,
            packages,
            reboot_needed: false,
            reboot_seconds: None,
            exit: None,
            set_aside: Vec::new(),
            restarted: Vec::new(),
            notes: Vec::new(),
            newer_available: Vec::new(),
            health: None,
            started_at: at,
            finished_at: at,
        }
    }

    fn violation_texts(ledger: &Ledger) -> Vec<&'static str> {
        ledger.violations().into_iter().map(|violation| violation.what).collect()
    }

    fn patched() -> Ledger {
        let ledger = Ledger::default();
        ledger.order_started(1, ORDER.parse().unwrap(), false, at());
        ledger.packages_changed(1, ORDER.parse().unwrap(), &list("1"), &list("2"));
        ledger
    }

    #[test]
    fn correct_result_can_be_reported_repeatedly() {
        let ledger = patched();
        let truth = result(Outcome::Succeeded, package_changes(&list("1"), &list("2")));
        ledger.result_reported(1, &truth);
        ledger.result_reported(1, &truth);
        assert_eq!(violation_texts(&ledger), Vec::<&str>::new());
        assert_eq!(ledger.orders_with_effects(), 1);
    }

    #[test]
    fn repeated_or_late_effects_are_violations() {
        let order = ORDER.parse().unwrap();
        let ledger = patched();
        ledger.packages_changed(1, order, &list("2"), &list("3"));
        assert_eq!(violation_texts(&ledger), ["the order changed packages twice"]);
        let ledger = patched();
        ledger.order_started(1, order, false, at());
        ledger.host_booted(1, order);
        ledger.host_booted(1, order);
        assert_eq!(
            violation_texts(&ledger),
            ["the order was started twice", "the order rebooted the host twice"]
        );
        let ledger = patched();
        ledger.result_reported(
            1,
            &result(Outcome::Succeeded, package_changes(&list("1"), &list("2"))),
        );
        ledger.host_booted(1, order);
        ledger.order_started(2, order, false, at());
        assert_eq!(
            violation_texts(&ledger),
            ["the order rebooted the host after its result", "the order was started twice"]
        );
    }

    #[test]
    fn incorrect_results_are_violations() {
        let truth = package_changes(&list("1"), &list("2"));
        let report = |outcome, packages| {
            let ledger = patched();
            ledger.result_reported(1, &result(outcome, packages));
            violation_texts(&ledger)
        };
        assert_eq!(
            report(Outcome::Succeeded, vec![]),
            ["the result does not match the package changes"]
        );
        assert_eq!(
            report(Outcome::NoChange, truth.clone()),
            ["the result claims that nothing was done"]
        );
        assert_eq!(
            report(Outcome::Failed, truth.clone()),
            ["the failed result has no failure code"]
        );
        let ledger = patched();
        ledger.result_reported(1, &result(Outcome::Succeeded, truth.clone()));
        ledger.result_reported(
            1,
            &OrderResult { exit: Some(1), ..result(Outcome::Succeeded, truth) },
        );
        assert_eq!(violation_texts(&ledger), ["the result changed"]);
    }
}
