//! Records what really happened on the hosts, and checks every reported result against it.
//!
//! An order must take effect at most once, whatever is repeated, retried or restored, and its
//! result must state what happened. The ledger does not trust the simulation for this: it compares
//! the package lists before and after on its own.

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
pub struct Ledger(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    accounts: HashMap<TaskId, Account>,
    violations: Vec<Violation>,
}

#[derive(Debug, Default)]
struct Account {
    agent: u64,
    plan: bool,
    begun: bool,
    span: Option<(Timestamp, Option<Timestamp>)>,
    /// Part of the order was carried out before this ledger existed.
    older: bool,
    moves: Vec<PackageMove>,
    changes: u32,
    boots: u32,
    told: Option<Digest>,
}

/// The time during which a host worked on an order, by the host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
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
    pub fn began(&self, agent: u64, order: TaskId, plan: bool, at: Timestamp) {
        self.with(agent, order, |account| {
            let again = std::mem::replace(&mut account.begun, true);
            account.plan = plan;
            account.span.get_or_insert((at, None));
            again.then_some("the order was started twice")
        });
    }

    /// Records that a restored agent may have acted on this order or reported it earlier.
    pub fn remembered(&self, agent: u64, order: TaskId) {
        self.with(agent, order, |account| {
            (account.older, account.begun) = (true, true);
            None
        });
    }

    /// Records that the packages of a host changed for an order.
    pub fn changed(&self, agent: u64, order: TaskId, before: &[Installed], after: &[Installed]) {
        let moves = difference(before, after);
        self.with(agent, order, |account| {
            account.changes += 1;
            account.moves.extend(moves);
            match account {
                Account { changes: 2.., .. } => Some("the order changed packages twice"),
                Account { told: Some(_), .. } => {
                    Some("the order changed packages after its result")
                }
                Account { plan: true, .. } => Some("a plan changed packages"),
                _ => None,
            }
        });
    }

    /// Records that a host booted for an order.
    pub fn booted(&self, agent: u64, order: TaskId) {
        self.with(agent, order, |account| {
            account.boots += 1;
            match account {
                Account { boots: 2.., .. } => Some("the order rebooted the host twice"),
                Account { told: Some(_), .. } => {
                    Some("the order rebooted the host after its result")
                }
                _ => None,
            }
        });
    }

    /// Records that a result is about to be sent, and checks it.
    pub fn told(&self, agent: u64, result: &OrderResult) {
        // An order that was withdrawn or refused has a result without having started.
        let bytes = serde_json::to_vec(result).unwrap_or_default();
        let digest = Digest::of(&bytes);
        self.with(agent, result.order_id, |account| {
            if let Some((_, ended)) = &mut account.span {
                ended.get_or_insert(result.finished_at);
            }
            match account.told.replace(digest) {
                Some(before) if before != digest => Some("the result changed"),
                Some(_) => None,
                None if account.older => None,
                None => account.contradiction(result),
            }
        });
    }

    /// The work of all hosts since this ledger was created, earliest first.
    pub fn spans(&self) -> Vec<Span> {
        let book = self.lock();
        let spans = book.accounts.iter().filter_map(|(order, account)| {
            let (began, ended) = account.span?;
            Some(Span { agent: account.agent, order: *order, began, ended })
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
    pub fn effects(&self) -> usize {
        let book = self.lock();
        book.accounts.values().filter(|account| account.changes + account.boots > 0).count()
    }

    fn with(
        &self,
        agent: u64,
        order: TaskId,
        enter: impl FnOnce(&mut Account) -> Option<&'static str>,
    ) {
        let mut book = self.lock();
        let account =
            book.accounts.entry(order).or_insert_with(|| Account { agent, ..Account::default() });
        let foreign = (account.agent != agent).then_some("two agents received the order");
        if let Some(what) = enter(account).or(foreign)
            && book.violations.len() < VIOLATIONS_MAX
        {
            book.violations.push(Violation { agent, order, what });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    fn contradiction(&self, result: &OrderResult) -> Option<&'static str> {
        let mut told = result.packages.clone();
        told.sort_by(|a, b| (&a.name, &a.arch).cmp(&(&b.name, &b.arch)));
        if !self.plan && told != self.moves {
            return Some("the result does not match the package changes");
        }
        if result.reboot_seconds.is_some() != (self.boots > 0) {
            return Some("the result does not match the reboots");
        }
        let nothing = self.changes == 0 && self.boots == 0;
        match result.outcome {
            Outcome::NoChange | Outcome::Skipped | Outcome::Withdrawn if !nothing => {
                Some("the result claims that nothing was done")
            }
            Outcome::Failed if result.failure_code.is_none() => {
                Some("the failed result has no failure code")
            }
            Outcome::Succeeded if !self.begun => Some("the order succeeded without having started"),
            _ => None,
        }
    }
}

/// The package changes between two lists, by name. Both lists are sorted, as inventories are.
pub(crate) fn difference(before: &[Installed], after: &[Installed]) -> Vec<PackageMove> {
    let key = |package: &Installed| (package.name.clone(), package.arch.clone());
    let old: HashMap<_, _> = before.iter().map(|package| (key(package), package)).collect();
    let new: HashMap<_, _> = after.iter().map(|package| (key(package), package)).collect();
    let moved = |of: &Installed, from: Option<&str>, to: Option<&str>| PackageMove {
        name: of.name.as_str().into(),
        arch: of.arch.as_str().into(),
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
            started_at: at,
            finished_at: at,
        }
    }

    fn whats(ledger: &Ledger) -> Vec<&'static str> {
        ledger.violations().into_iter().map(|violation| violation.what).collect()
    }

    fn patched() -> Ledger {
        let ledger = Ledger::default();
        ledger.began(1, ORDER.parse().unwrap(), false, at());
        ledger.changed(1, ORDER.parse().unwrap(), &list("1"), &list("2"));
        ledger
    }

    #[test]
    fn correct_result_can_be_reported_repeatedly() {
        let ledger = patched();
        let truth = result(Outcome::Succeeded, difference(&list("1"), &list("2")));
        ledger.told(1, &truth);
        ledger.told(1, &truth);
        assert_eq!(whats(&ledger), Vec::<&str>::new());
        assert_eq!(ledger.effects(), 1);
    }

    #[test]
    fn repeated_or_late_effects_are_violations() {
        let order = ORDER.parse().unwrap();
        let ledger = patched();
        ledger.changed(1, order, &list("2"), &list("3"));
        assert_eq!(whats(&ledger), ["the order changed packages twice"]);
        let ledger = patched();
        ledger.began(1, order, false, at());
        ledger.booted(1, order);
        ledger.booted(1, order);
        assert_eq!(
            whats(&ledger),
            ["the order was started twice", "the order rebooted the host twice"]
        );
        let ledger = patched();
        ledger.told(1, &result(Outcome::Succeeded, difference(&list("1"), &list("2"))));
        ledger.booted(1, order);
        ledger.began(2, order, false, at());
        assert_eq!(
            whats(&ledger),
            ["the order rebooted the host after its result", "the order was started twice"]
        );
    }

    #[test]
    fn incorrect_results_are_violations() {
        let truth = difference(&list("1"), &list("2"));
        let told = |outcome, packages| {
            let ledger = patched();
            ledger.told(1, &result(outcome, packages));
            whats(&ledger)
        };
        assert_eq!(
            told(Outcome::Succeeded, vec![]),
            ["the result does not match the package changes"]
        );
        assert_eq!(
            told(Outcome::NoChange, truth.clone()),
            ["the result claims that nothing was done"]
        );
        assert_eq!(told(Outcome::Failed, truth.clone()), ["the failed result has no failure code"]);
        let ledger = patched();
        ledger.told(1, &result(Outcome::Succeeded, truth.clone()));
        ledger.told(1, &OrderResult { exit: Some(1), ..result(Outcome::Succeeded, truth) });
        assert_eq!(whats(&ledger), ["the result changed"]);
    }
}
