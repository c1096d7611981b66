//! The loop of syncs: tells the server what is new, sends what it wants, hands its orders to the worker.
//!
//! A sync is held open by the server while there is nothing to say. News on this side cut it off; the
//! next one repeats its turn, by which the server knows that it is no copy of this host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_client::{
    AgentClient, ClientError, Identity, ListingKind, OrderRefusal, SyncThrottle, Turn, jittered,
    nonce, public_keys, verify,
};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use vocab::{Digest, FailureCode, Line, TaskId};
use wire::agent::{Facts, OrderResult, SyncRequest, SyncResponse};
use wire::v1::Activity;

use super::clock::now;
use super::state::{Contact, State};
use crate::host::Host;
use crate::output::note;
use crate::work::{ScanReport, Worker};

/// The longest that a sync may be held: a proxy that cuts idle requests does so after a minute.
const HOLD_SECONDS_MAX: u32 = 50;
/// The longest wait between two tries to reach the server.
const RECONNECT_MAX: Duration = Duration::from_secs(60);
/// The most bytes of a log that are sent at once.
const LOG_BYTES_MAX: usize = 256 * 1024;

pub(super) struct Talk {
    pub(super) link: AgentClient,
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
    rush: SyncThrottle,
    contact: Contact,
    /// Whether it is on disk that the server signs its answers.
    signing_saved: bool,
    /// Whether the log says that answers come without a valid signature, since the last good one.
    unproven_logged: bool,
}

impl Memory {
    pub(super) fn new(turn: Turn, contact: Contact, signing_saved: bool) -> Memory {
        Memory {
            turn,
            sync_seconds: 60,
            facts_told: None,
            wanted: Vec::new(),
            logs_sent: BTreeMap::new(),
            failures: 0,
            quiet: 0,
            rush: SyncThrottle::new(Instant::now().into_std()),
            contact,
            signing_saved,
            unproven_logged: false,
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
        let trusted_keys = self.identity.orders_keys.ids();
        let facts = Facts {
            limits: Some(self.worker.limits()),
            trusted_keys: trusted_keys.into_iter().map(Line::from).collect(),
            ..facts.clone()
        };
        let request = SyncRequest {
            boot_id: self.host.boot_id(),
            counter: self.memory.turn.counter,
            nonce: self.memory.turn.nonce,
            // Whoever is about to go down needs to know that it was heard.
            hold_seconds: match report.activity {
                Activity::Rebooting => 1,
                _ => HOLD_SECONDS_MAX.min(self.memory.sync_seconds.max(1)),
            },
            facts: (self.memory.facts_told.as_ref() != Some(&facts)).then_some(facts),
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
        if self.identity.signs_answers() && !self.memory.signing_saved {
            self.state.set_signs_answers()?;
            self.memory.signing_saved = true;
        }
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
            note(&ended(result));
        }
        let rekeyed = self.trust(&answer)? | self.renew_tag(&answer)?;
        let busy = self.obey(&answer) || answer.wants_facts || rekeyed;
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

    /// Trusts the keys that an answer announces, and no others. They are on disk before the server
    /// is told so: it may then sign with the new one only. True if there was a change.
    fn trust(&mut self, answer: &SyncResponse) -> anyhow::Result<bool> {
        let Some(keys) = public_keys(&answer.orders_keys) else { return Ok(false) };
        let before = self.identity.orders_keys.ids();
        if keys == self.identity.orders_keys.keys() {
            return Ok(false);
        }
        self.state.set_trusted_keys(&keys)?;
        self.identity.orders_keys.replace(keys);
        let after = self.identity.orders_keys.ids();
        note(&format!(
            "the server changes its key for orders: trusted before {}, now {}",
            before.join(", "),
            after.join(", ")
        ));
        Ok(true)
    }

    /// Uses the tag that an answer brings. It is on disk before it is used: the server may then accept
    /// this one only. True if there was a change.
    fn renew_tag(&mut self, answer: &SyncResponse) -> anyhow::Result<bool> {
        let Some(tag) = &answer.renewed_tag else { return Ok(false) };
        if *tag == self.identity.tag.get() {
            return Ok(false);
        }
        self.state.set_tag(tag)?;
        self.identity.tag.replace(tag);
        note("the server changes the key behind this host's identity: it was renewed");
        Ok(true)
    }

    /// Hands on what an answer asks for. True if there is something to say at once.
    fn obey(&mut self, answer: &SyncResponse) -> bool {
        self.worker.set_server_time(answer.server_time);
        self.worker.acknowledge(&answer.acknowledged);
        for id in &answer.withdrawn {
            self.worker.withdraw(*id);
        }
        if !answer.unreported.is_empty() {
            self.worker.inquire(&answer.unreported);
        }
        for envelope in &answer.orders {
            match verify(envelope, &self.identity, answer.server_time) {
                Ok(order) => self.worker.take(order),
                // One that was begun goes on; one that was not is answered for.
                Err(OrderRefusal::Expired(order)) => {
                    let why = format!("it was to be begun before {}", order.expires_at);
                    self.worker.refuse(&order, FailureCode::OrderExpired, Line::made_of(&why));
                }
                Err(OrderRefusal::ValidTooLong(order)) => {
                    let why = "the order is valid for more than 31 days";
                    self.worker.refuse(&order, FailureCode::RejectedByAgent, why.into());
                }
                Err(refusal) => note(&format!("an order was rejected: {refusal}")),
            }
        }
        self.memory.wanted.clone_from(&answer.wanted);
        !answer.acknowledged.is_empty()
            || !answer.orders.is_empty()
            || !answer.withdrawn.is_empty()
            || !answer.unreported.is_empty()
            || !answer.wanted.is_empty()
    }

    /// Sends the listings that the server wants, and what logs have grown by.
    async fn upload(&mut self) -> Result<(), ClientError> {
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
                    Ok(()) | Err(ClientError::Refused { .. }) => {
                        self.memory.logs_sent.insert(id, next);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn failed(&mut self, error: ClientError) -> Next {
        let memory = &mut self.memory;
        memory.failures = memory.failures.saturating_add(1);
        if memory.contact.trouble.is_none() {
            memory.contact.trouble_since = Some(now());
            note(&explained(&error));
        } else if matches!(error, ClientError::Unproven { .. }) && !memory.unproven_logged {
            note(&explained(&error));
        }
        memory.unproven_logged |= matches!(error, ClientError::Unproven { .. });
        memory.contact.trouble = Some(Line::made_of(&explained(&error)));
        // Only `status` reads it, so a full disk must not keep the agent from its work.
        let _ = self.state.set_contact(&self.memory.contact);
        let failures = self.memory.failures;
        match error {
            ClientError::Removed => Next::Removed,
            ClientError::Busy { retry_after: Some(least), .. } => {
                Next::Leave(least + jittered(failures, RECONNECT_MAX, share()))
            }
            // What was refused would be refused again.
            ClientError::Refused { .. } | ClientError::Answer(_) => {
                Next::Leave(jittered(u32::MAX, RECONNECT_MAX, share()))
            }
            ClientError::Unreachable(_)
            | ClientError::Busy { .. }
            | ClientError::Unproven { .. } => {
                Next::Leave(jittered(failures, RECONNECT_MAX, share()))
            }
        }
    }

    fn arrived(&mut self) {
        let contact = &mut self.memory.contact;
        if contact.trouble.take().is_some() {
            note("the server answers again");
        }
        contact.trouble_since = None;
        self.memory.unproven_logged = false;
        let contact = &mut self.memory.contact;
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
fn explained(error: &ClientError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
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
    fn a_share_lies_between_nothing_and_the_whole() {
        for _ in 0..1_000 {
            assert!((0.0..=1.0).contains(&share()));
        }
    }
}
