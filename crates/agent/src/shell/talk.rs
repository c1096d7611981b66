//! The sync loop: reports changes to the server, uploads what it requests, passes its orders to the
//! worker.
//!
//! The server holds a sync open while it has nothing to send. A change on this host aborts the held
//! sync; the next one repeats its sync counter, which tells the server that it is not a clone of
//! this host.

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

/// Maximum time that a sync is held open. Proxies that cut idle requests do so after a minute.
const HOLD_SECONDS_MAX: u32 = 50;
/// Maximum delay between two attempts to reach the server.
const RECONNECT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of log bytes per request.
const LOG_BYTES_MAX: usize = 256 * 1024;

pub(super) struct Talk {
    pub(super) link: AgentClient,
    pub(super) identity: Arc<Identity>,
    pub(super) state: State,
    pub(super) worker: Arc<Worker>,
    pub(super) host: Arc<Host>,
    pub(super) bell: Arc<Notify>,
    /// The host's facts and when they were collected, at agent startup. A scan report from before
    /// that, possibly from before a reboot, is older.
    pub(super) found: (Timestamp, Facts),
    pub(super) memory: Memory,
}

/// State that may be lost on a restart.
pub(super) struct Memory {
    turn: Turn,
    sync_seconds: u32,
    /// The facts that the server has, as far as the agent knows.
    facts_told: Option<Facts>,
    wanted: Vec<Digest>,
    /// How many bytes of each order's log the server has.
    logs_sent: BTreeMap<TaskId, u64>,
    failures: u32,
    /// Consecutive responses that came early and contained nothing.
    quiet: u32,
    rush: SyncThrottle,
    contact: Contact,
    /// Whether it is stored on disk that the server signs its responses.
    signing_saved: bool,
    /// Whether the unverified responses since the last valid one are already logged.
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

/// What to do after a sync.
pub(super) enum Next {
    Go,
    /// Wait, unless something changes on this host.
    Wait(Duration),
    /// Wait, whatever changes on this host: the server asked for a pause.
    Leave(Duration),
    /// The server has removed this host.
    Removed,
}

impl Talk {
    /// Syncs until the server removes this host.
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
            // Before a reboot, a short hold lets the host know in time that its report has arrived.
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
                // Abort the held sync: report the change at once, with the same sync counter.
                () = bell.notified() => if self.worker.report() != report {
                    return Ok(self.soon());
                // A growing log does not abort the sync; the new part is uploaded while the sync is
                // held.
                } else if let Err(error) = self.upload().await {
                    return Ok(self.failed(error));
                },
            }
        }
    }

    /// Syncs at once, unless that happens too often.
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
        // The server did not hold the sync: it is shutting down, or declines to. Errors and early
        // empty responses must never make an agent sync more often.
        self.memory.quiet += 1;
        let most = Duration::from_secs(self.memory.sync_seconds.into());
        Ok(Next::Wait(jittered(self.memory.quiet, most, share())))
    }

    /// Trusts exactly the keys that a response announces. They are stored on disk before the server
    /// learns of it, because from then on it may sign with only the new key. Returns whether
    /// anything changed.
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
            "the server rotated its signing key: trusted before: {}; trusted now: {}",
            before.join(", "),
            after.join(", ")
        ));
        Ok(true)
    }

    /// Uses the tag that a response contains. It is stored on disk before it is used, because from
    /// then on the server may accept only this one. Returns whether anything changed.
    fn renew_tag(&mut self, answer: &SyncResponse) -> anyhow::Result<bool> {
        let Some(tag) = &answer.renewed_tag else { return Ok(false) };
        if *tag == self.identity.tag.get() {
            return Ok(false);
        }
        self.state.set_tag(tag)?;
        self.identity.tag.replace(tag);
        note("the server renewed the tag of this host's identity");
        Ok(true)
    }

    /// Acts on a response. Returns whether the next sync has something to report at once.
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
                // An order that has already started continues; one that has not is reported as
                // failed.
                Err(OrderRefusal::Expired(order)) => {
                    let why = format!("the order had to start before {}", order.expires_at);
                    self.worker.refuse(&order, FailureCode::OrderExpired, Line::made_of(&why));
                }
                Err(OrderRefusal::ValidTooLong(order)) => {
                    let why = "the order is valid for more than 31 days";
                    self.worker.refuse(&order, FailureCode::RejectedByAgent, why.into());
                }
                Err(refusal) => note(&format!("rejected an order: {refusal}")),
            }
        }
        self.memory.wanted.clone_from(&answer.wanted);
        !answer.acknowledged.is_empty()
            || !answer.orders.is_empty()
            || !answer.withdrawn.is_empty()
            || !answer.unreported.is_empty()
            || !answer.wanted.is_empty()
    }

    /// Uploads the listings that the server requested, and new log output.
    async fn upload(&mut self) -> Result<(), ClientError> {
        while let Some(digest) = self.memory.wanted.pop() {
            let scan = self.worker.report().scan;
            let kind = match scan {
                Some(scan) if scan.installed == digest => ListingKind::Packages,
                Some(scan) if scan.pending == digest => ListingKind::Updates,
                // A newer scan has replaced it; the next sync reports that one.
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
                    // The server would reject it again. The log stays on the host.
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
        // Only `status` reads this, so a full disk must not stop the agent.
        let _ = self.state.set_contact(&self.memory.contact);
        let failures = self.memory.failures;
        match error {
            ClientError::Removed => Next::Removed,
            ClientError::Busy { retry_after: Some(least), .. } => {
                Next::Leave(least + jittered(failures, RECONNECT_MAX, share()))
            }
            // The server would reject the same request again.
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
            note("the server is reachable again");
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

/// Formats a result as one log line.
fn ended(result: &OrderResult) -> String {
    let outcome = serde_json::to_value(result.outcome).unwrap_or_default();
    let mut text = format!("{}: {}", result.order_id, outcome.as_str().unwrap_or("finished"));
    if !result.packages.is_empty() {
        text.push_str(&format!(", packages: {}", result.packages.len()));
    }
    if let Some(message) = &result.message {
        text.push_str(&format!(": {message}"));
    }
    text
}

/// Formats an error and its causes as one line.
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

/// A random number from 0 to 1, different on every host.
fn share() -> f64 {
    // An `f64` holds 53 significant bits.
    (nonce() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_fraction_lies_between_0_and_1() {
        for _ in 0..1_000 {
            assert!((0.0..=1.0).contains(&share()));
        }
    }
}
