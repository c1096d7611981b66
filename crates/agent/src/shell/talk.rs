//! The loop of syncs: tells the server what is new, sends what it wants, hands its orders to the worker.
//!
//! A sync is held open by the server while there is nothing to say. News on this side cut it off; the
//! next one repeats its turn, by which the server knows that it is no copy of this host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use link::{
    Identity, Link, LinkError, ListingKind, OrderRefusal, Rush, Turn, jittered, nonce, verify,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use vocab::{Digest, FailureCode, Line, TaskId};
use wire::agent::{Facts, Order, OrderResult, SyncRequest, SyncResponse};
use wire::v1::Activity;

use super::clock::now;
use super::state::{Contact, State};
use crate::host::Host;
use crate::work::{ScanReport, Worker};

/// The longest that a sync may be held: a proxy that cuts idle requests does so after a minute.
const HOLD_SECONDS_MAX: u32 = 50;
/// The longest wait between two tries to reach the server.
const RECONNECT_MAX: Duration = Duration::from_secs(60);
/// The most bytes of a log that are sent at once.
const LOG_BYTES_MAX: usize = 256 * 1024;

pub(super) struct Talk {
    pub(super) link: Link,
    pub(super) identity: Arc<Identity>,
    pub(super) state: State,
    pub(super) worker: Arc<Worker>,
    pub(super) host: Arc<Host>,
    pub(super) bell: Arc<Notify>,
    /// What the host is, as it was found when the agent started, and when that was: a look at the packages
    /// that was taken before, maybe before a reboot, knows less.
    pub(super) found: (Timestamp, Facts),
    pub(super) memory: Memory,
}

/// What a restart may forget.
pub(super) struct Memory {
    turn: Turn,
    sync_seconds: u32,
    /// What the server knows of this host, as far as we know.
    facts_told: Option<Facts>,
    wanted: Vec<Digest>,
    /// How much of each order's log the server has.
    logs_sent: BTreeMap<TaskId, u64>,
    failures: u32,
    /// Answers in a row that came early and said nothing.
    quiet: u32,
    rush: Rush,
    contact: Contact,
}

impl Memory {
    pub(super) fn new(turn: Turn, contact: Contact) -> Memory {
        Memory {
            turn,
            sync_seconds: 60,
            facts_told: None,
            wanted: Vec::new(),
            logs_sent: BTreeMap::new(),
            failures: 0,
            quiet: 0,
            rush: Rush::new(Instant::now().into_std()),
            contact,
        }
    }
}

/// What comes after a round.
pub(super) enum Next {
    Go,
    /// Something on this side ends the wait too.
    Wait(Duration),
    /// Nothing on this side ends the wait: the server asked to be left alone.
    Leave(Duration),
    /// The server does not know this host any more.
    Removed,
}

impl Talk {
    /// Talks until the server removes this host.
    pub(super) async fn go_on(&mut self) -> anyhow::Result<()> {
        let mut next = Next::Go;
        loop {
            next = match next {
                Next::Go => self.once().await?,
                Next::Wait(time) => {
                    tokio::select! { () = sleep(time) => {} () = self.bell.notified() => {} }
                    Next::Go
                }
                Next::Leave(time) => {
                    sleep(time).await;
                    Next::Go
                }
                Next::Removed => {
                    self.state.set_removed(now())?;
                    return Ok(());
                }
            };
        }
    }

    async fn once(&mut self) -> anyhow::Result<Next> {
        if let Err(error) = self.upload().await {
            return Ok(self.failed(error));
        }
        let report = self.worker.report();
        let scan = report.scan.as_ref();
        let newer = scan.filter(|scan| scan.at >= self.found.0);
        let facts = newer.map_or(&self.found.1, |scan| &scan.facts);
        let request = SyncRequest {
            boot_id: self.host.boot_id(),
            counter: self.memory.turn.counter,
            nonce: self.memory.turn.nonce,
            // Whoever is about to go down needs to know that it was heard.
            hold_seconds: match report.activity {
                Activity::Rebooting => 1,
                _ => HOLD_SECONDS_MAX.min(self.memory.sync_seconds.max(1)),
            },
            facts: (self.memory.facts_told.as_ref() != Some(facts)).then(|| facts.clone()),
            installed: scan.map(|scan| scan.installed),
            pending: scan.map(|scan| scan.pending),
            scanned_at: scan.map(|scan| scan.at),
            activity: report.activity,
            results: report.results.clone(),
            progress: report.progress.clone(),
        };
        self.notes(scan, report.activity);
        let began = Instant::now();
        let (link, identity, bell) = (self.link.clone(), self.identity.clone(), self.bell.clone());
        let sync = link.sync(&identity, &request);
        tokio::pin!(sync);
        loop {
            tokio::select! {
                answer = &mut sync => return match answer {
                    Ok(answer) => self.heard(answer, &request, began.elapsed()),
                    Err(error) => Ok(self.failed(error)),
                },
                // Cut off: what is new is told at once, with the same turn.
                () = bell.notified() => if self.worker.report() != report {
                    return Ok(self.soon());
                // A log that grows is no reason to: it is sent while the sync is held.
                } else if let Err(error) = self.upload().await {
                    return Ok(self.failed(error));
                },
            }
        }
    }

    /// Goes on at once, unless that has become a habit.
    fn soon(&mut self) -> Next {
        match self.memory.rush.next(Instant::now().into_std()) {
            Duration::ZERO => Next::Go,
            time => Next::Leave(time),
        }
    }

    fn heard(
        &mut self,
        answer: SyncResponse,
        request: &SyncRequest,
        took: Duration,
    ) -> anyhow::Result<Next> {
        self.memory.turn = Turn::after(answer.counter, nonce());
        self.state.set_turn(self.memory.turn)?;
        self.memory.sync_seconds = answer.sync_seconds.clamp(1, 3_600);
        self.memory.failures = 0;
        if request.facts.is_some() {
            self.memory.facts_told.clone_from(&request.facts);
        }
        if answer.wants_facts {
            self.memory.facts_told = None;
        }
        self.worker.told(&request.progress);
        self.arrived();
        for result in request.results.iter().filter(|r| answer.acknowledged.contains(&r.order_id)) {
            say(&ended(result));
        }
        let busy = self.obey(&answer) || answer.wants_facts;
        let held = took.as_secs_f64() > f64::from(request.hold_seconds) / 2.0;
        if busy {
            self.memory.quiet = 0;
            return Ok(self.soon());
        }
        if held {
            self.memory.quiet = 0;
            return Ok(Next::Go);
        }
        // The server did not hold it: it drains, or does not want to. Errors and silence must never
        // make an agent ask more often.
        self.memory.quiet += 1;
        let most = Duration::from_secs(self.memory.sync_seconds.into());
        Ok(Next::Wait(jittered(self.memory.quiet, most, share())))
    }

    /// Hands on what an answer asks for. True if there is something to say at once.
    fn obey(&mut self, answer: &SyncResponse) -> bool {
        self.worker.acknowledge(&answer.acknowledged);
        for id in &answer.withdrawn {
            self.worker.withdraw(*id);
        }
        for envelope in &answer.orders {
            match verify(envelope, &self.identity, answer.server_time) {
                Ok(order) => self.worker.take(by_our_clock(order, answer.server_time, now())),
                // One that was begun goes on; one that was not is answered for.
                Err(OrderRefusal::Expired(order)) => {
                    let why = format!("it was to be begun before {}", order.expires_at);
                    self.worker.refuse(&order, FailureCode::OrderExpired, Line::made_of(&why));
                }
                Err(refusal) => say(&format!("an order was not believed: {refusal}")),
            }
        }
        self.memory.wanted.clone_from(&answer.wanted);
        !answer.acknowledged.is_empty()
            || !answer.orders.is_empty()
            || !answer.withdrawn.is_empty()
            || !answer.wanted.is_empty()
    }

    /// Sends the listings that the server wants, and what logs have grown by.
    async fn upload(&mut self) -> Result<(), LinkError> {
        while let Some(digest) = self.memory.wanted.pop() {
            let scan = self.worker.report().scan;
            let kind = match scan {
                Some(scan) if scan.installed == digest => ListingKind::Packages,
                Some(scan) if scan.pending == digest => ListingKind::Updates,
                // It has been overtaken by a newer look; the next sync says so.
                _ => continue,
            };
            let Some(bytes) = self.worker.listing(digest) else { continue };
            self.link.put_listing(&self.identity, kind, digest, &bytes).await?;
        }
        let logs = self.worker.open_logs();
        self.memory.logs_sent.retain(|id, _| logs.iter().any(|(open, ..)| open == id));
        for (id, length, _) in logs {
            loop {
                let sent = self.memory.logs_sent.get(&id).copied().unwrap_or(0);
                if sent >= length {
                    break;
                }
                let part = self.worker.log_after(id, sent, LOG_BYTES_MAX);
                if part.is_empty() {
                    break;
                }
                let next = sent + part.len() as u64;
                match self.link.send_log(&self.identity, id, sent, part).await {
                    // Refused once, it would be refused again; the log stays on the host.
                    Ok(()) | Err(LinkError::Refused { .. }) => {
                        self.memory.logs_sent.insert(id, next);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn failed(&mut self, error: LinkError) -> Next {
        let memory = &mut self.memory;
        memory.failures = memory.failures.saturating_add(1);
        if memory.contact.trouble.is_none() {
            memory.contact.trouble_since = Some(now());
            say(&explained(&error));
        }
        memory.contact.trouble = Some(Line::made_of(&explained(&error)));
        // Only `status` reads it, so a full disk must not keep the agent from its work.
        let _ = self.state.set_contact(&self.memory.contact);
        let failures = self.memory.failures;
        match error {
            LinkError::Removed => Next::Removed,
            LinkError::Busy { retry_after: Some(least), .. } => {
                Next::Leave(least + jittered(failures, RECONNECT_MAX, share()))
            }
            // What was refused would be refused again.
            LinkError::Refused { .. } | LinkError::Answer(_) => {
                Next::Leave(jittered(u32::MAX, RECONNECT_MAX, share()))
            }
            LinkError::Unreachable(_) | LinkError::Busy { .. } => {
                Next::Leave(jittered(failures, RECONNECT_MAX, share()))
            }
        }
    }

    fn arrived(&mut self) {
        let contact = &mut self.memory.contact;
        if contact.trouble.take().is_some() {
            say("the server answers again");
        }
        contact.trouble_since = None;
        contact.last_sync_at = Some(now());
        let _ = self.state.set_contact(contact);
    }

    fn notes(&mut self, scan: Option<&ScanReport>, activity: Activity) {
        let lines = |digest| {
            self.worker
                .listing(digest)
                .map(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
        };
        let contact = &mut self.memory.contact;
        if let Some(scan) = scan.filter(|scan| contact.last_scan_at != Some(scan.at)) {
            contact.last_scan_at = Some(scan.at);
            (contact.packages, contact.updates) = (lines(scan.installed), lines(scan.pending));
        }
        contact.activity = serde_json::to_value(activity)
            .ok()
            .and_then(|word| word.as_str().map(str::to_owned))
            .unwrap_or_default();
    }
}

/// The order with its end of time on this host's clock, which may be years off: what counts is how long
/// there was left when the server sent it.
fn by_our_clock(mut order: Order, server_time: Timestamp, now: Timestamp) -> Order {
    let ahead: SignedDuration = now.duration_since(server_time);
    let shifted = |at: Timestamp| at.checked_add(ahead).unwrap_or(at);
    (order.issued_at, order.expires_at) = (shifted(order.issued_at), shifted(order.expires_at));
    order
}

/// A result in one line.
fn ended(result: &OrderResult) -> String {
    let outcome = serde_json::to_value(result.outcome).unwrap_or_default();
    let mut text = format!("{}: {}", result.order_id, outcome.as_str().unwrap_or("ended"));
    if !result.packages.is_empty() {
        text.push_str(&format!(", packages: {}", result.packages.len()));
    }
    if let Some(message) = &result.message {
        text.push_str(&format!(": {message}"));
    }
    text
}

/// An error with its causes, in one line.
fn explained(error: &LinkError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

/// For the journal of the host's services, or whoever looks on.
pub(super) fn say(what: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "fleetmend-agent: {what}");
}

/// A number from 0 to 1 that no other host will draw as well.
fn share() -> f64 {
    // The upper 53 bits are all that a number of this kind can hold.
    (nonce() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_as_much_time_left_here_as_it_had_at_the_server() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let order = Order {
            id: "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap(),
            server_id: "srv_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap(),
            issued_at: at("2026-11-15T04:00:00Z"),
            expires_at: at("2026-11-15T05:00:00Z"),
            work: wire::agent::Work::Scan,
        };
        // This host believes that it is 2016.
        let here = at("2016-11-15T04:30:00Z");
        let order = by_our_clock(order, at("2026-11-15T04:10:00Z"), here);
        assert_eq!(order.expires_at, at("2016-11-15T05:20:00Z"));
    }

    #[test]
    fn a_share_lies_between_nothing_and_the_whole() {
        for _ in 0..1_000 {
            assert!((0.0..=1.0).contains(&share()));
        }
    }
}
