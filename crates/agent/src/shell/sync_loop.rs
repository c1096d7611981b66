//! The sync loop: reports changes to the service, uploads what it requests, passes its orders to
//! the worker.
//!
//! The service holds a sync open while it has nothing to send. A change on this host aborts the
//! held sync; the next one repeats its sync counter, which tells the service that it is not a clone
//! of this host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_client::{
    AgentClient, ClientError, Identity, ListingKind, OrderRefusal, SyncCounter, SyncThrottle,
    backoff_with_jitter, nonce, public_keys, verify_order,
};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use vocab::{Digest, FailureCode, Line, TaskId};
use wire::agent::{Facts, OrderResult, SyncRequest, SyncResponse};
use wire::v1::Activity;

use super::clock::now;
use super::state::{ContactStatus, StateDir};
use crate::host::Host;
use crate::output::note;
use crate::work::{ScanReport, Worker};

/// Maximum time that a sync is held open. Proxies that cut idle requests do so after a minute.
const HOLD_SECONDS_MAX: u32 = 50;
/// Maximum delay between two attempts to reach the service.
const RECONNECT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of log bytes per request.
const LOG_BYTES_MAX: usize = 256 * 1024;

pub(super) struct SyncLoop {
    pub(super) client: AgentClient,
    pub(super) identity: Arc<Identity>,
    pub(super) state: StateDir,
    pub(super) worker: Arc<Worker>,
    pub(super) host: Arc<Host>,
    pub(super) wakeup: Arc<Notify>,
    /// The host's facts and when they were collected, at agent startup. A scan report from before
    /// that, possibly from before a reboot, is older.
    pub(super) startup_facts: (Timestamp, Facts),
    pub(super) sync_state: SyncState,
}

/// State that may be lost on a restart.
pub(super) struct SyncState {
    sync_counter: SyncCounter,
    sync_seconds: u32,
    /// The facts that the service has, as far as the agent knows.
    facts_reported: Option<Facts>,
    /// How many seconds a watch of the host's health was to last at the last response.
    watch_seconds: Option<u32>,
    wanted: Vec<Digest>,
    /// How many bytes of each order's log the service has.
    logs_sent: BTreeMap<TaskId, u64>,
    failures: u32,
    /// Consecutive responses that came early and contained nothing.
    empty_responses: u32,
    throttle: SyncThrottle,
    contact: ContactStatus,
    /// Whether the service has responded since the agent started.
    connected: bool,
    /// Whether it is stored on disk that the service signs its responses.
    signing_saved: bool,
    /// Whether the unverified responses since the last valid one are already logged.
    unverified_logged: bool,
}

impl SyncState {
    pub(super) fn new(
        counter: SyncCounter,
        contact: ContactStatus,
        signing_saved: bool,
    ) -> SyncState {
        SyncState {
            sync_counter: counter,
            sync_seconds: 60,
            facts_reported: None,
            watch_seconds: None,
            wanted: Vec::new(),
            logs_sent: BTreeMap::new(),
            failures: 0,
            empty_responses: 0,
            throttle: SyncThrottle::new(Instant::now().into_std()),
            contact,
            connected: false,
            signing_saved,
            unverified_logged: false,
        }
    }
}

/// What to do after a sync.
pub(super) enum NextStep {
    SyncNow,
    /// Wait, unless something changes on this host.
    WaitForChange(Duration),
    /// Wait, even if something changes on this host: the service asked for a pause.
    Pause(Duration),
    /// The service has removed this host.
    Removed,
}

impl SyncLoop {
    /// Syncs until the service removes this host.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        let mut next = NextStep::SyncNow;
        loop {
            next = match next {
                NextStep::SyncNow => self.sync_once().await?,
                NextStep::WaitForChange(time) => {
                    tokio::select! { () = sleep(time) => {} () = self.wakeup.notified() => {} }
                    NextStep::SyncNow
                }
                NextStep::Pause(time) => {
                    sleep(time).await;
                    NextStep::SyncNow
                }
                NextStep::Removed => {
                    self.state.set_removed(now())?;
                    return Ok(());
                }
            };
        }
    }

    async fn sync_once(&mut self) -> anyhow::Result<NextStep> {
        if let Err(error) = self.upload().await {
            return Ok(self.handle_error(error));
        }
        let report = self.worker.report();
        let scan = report.scan.as_ref();
        let newer = scan.filter(|scan| scan.at >= self.startup_facts.0);
        let facts = newer.map_or(&self.startup_facts.1, |scan| &scan.facts);
        let trusted_keys = self.identity.orders_keys.ids();
        let facts = Facts {
            limits: Some(self.worker.limits()),
            trusted_keys: trusted_keys.into_iter().map(Line::from).collect(),
            ..facts.clone()
        };
        let request = SyncRequest {
            boot_id: self.host.boot_id(),
            counter: self.sync_state.sync_counter.counter,
            nonce: self.sync_state.sync_counter.nonce,
            // Before a reboot, a short hold lets the host know in time that its report has arrived.
            // After a start, it lets `status` know soon that the service responds.
            hold_seconds: match report.activity {
                Activity::Rebooting => 1,
                _ if !self.sync_state.connected => 1,
                _ => HOLD_SECONDS_MAX
                    .min(self.sync_state.sync_seconds.max(1))
                    // The end of a watch is measured on time.
                    .min(self.sync_state.watch_seconds.unwrap_or(u32::MAX)),
            },
            facts: (self.sync_state.facts_reported.as_ref() != Some(&facts)).then_some(facts),
            installed: scan.map(|scan| scan.installed),
            pending: scan.map(|scan| scan.pending),
            scanned_at: scan.map(|scan| scan.at),
            activity: report.activity,
            results: report.results.clone(),
            progress: report.progress.clone(),
            health: report.health.clone(),
        };
        self.update_contact(scan, report.activity);
        let began = Instant::now();
        let (link, identity, bell) =
            (self.client.clone(), self.identity.clone(), self.wakeup.clone());
        let sync = link.sync(&identity, &request);
        tokio::pin!(sync);
        loop {
            tokio::select! {
                answer = &mut sync => return match answer {
                    Ok(answer) => self.handle_response(answer, &request, began.elapsed()),
                    Err(error) => Ok(self.handle_error(error)),
                },
                // Abort the held sync: report the change immediately, with the same sync counter.
                () = bell.notified() => if self.worker.report() != report {
                    return Ok(self.sync_again());
                // A growing log does not abort the sync; the new part is uploaded while the sync is
                // held.
                } else if let Err(error) = self.upload().await {
                    return Ok(self.handle_error(error));
                },
            }
        }
    }

    /// Syncs immediately, unless that happens too often.
    fn sync_again(&mut self) -> NextStep {
        match self.sync_state.throttle.next_delay(Instant::now().into_std()) {
            Duration::ZERO => NextStep::SyncNow,
            time => NextStep::Pause(time),
        }
    }

    fn handle_response(
        &mut self,
        response: SyncResponse,
        request: &SyncRequest,
        took: Duration,
    ) -> anyhow::Result<NextStep> {
        if self.identity.signs_answers() && !self.sync_state.signing_saved {
            self.state.set_signs_answers()?;
            self.sync_state.signing_saved = true;
        }
        self.sync_state.sync_counter = SyncCounter::new(response.counter, nonce());
        self.state.set_sync_counter(self.sync_state.sync_counter)?;
        self.sync_state.sync_seconds = response.sync_seconds.clamp(1, 3_600);
        self.sync_state.failures = 0;
        if request.facts.is_some() {
            self.sync_state.facts_reported.clone_from(&request.facts);
        }
        if response.wants_facts {
            self.sync_state.facts_reported = None;
        }
        self.worker.progress_delivered(&request.progress);
        if let Some(report) = &request.health {
            self.worker.health_delivered(report);
        }
        self.record_contact();
        for result in request.results.iter().filter(|r| response.acknowledged.contains(&r.order_id))
        {
            note(&result_line(result));
        }
        let rekeyed = self.update_trusted_keys(&response)? | self.renew_tag(&response)?;
        let busy = self.apply_response(&response) || response.wants_facts || rekeyed;
        let held = took.as_secs_f64() > f64::from(request.hold_seconds) / 2.0;
        if busy {
            self.sync_state.empty_responses = 0;
            return Ok(self.sync_again());
        }
        if held {
            self.sync_state.empty_responses = 0;
            return Ok(NextStep::SyncNow);
        }
        // The service did not hold the sync: it is shutting down, or declines to. Errors and early
        // empty responses must never make an agent sync more often.
        self.sync_state.empty_responses += 1;
        let max = Duration::from_secs(self.sync_state.sync_seconds.into());
        Ok(NextStep::WaitForChange(backoff_with_jitter(
            self.sync_state.empty_responses,
            max,
            random_fraction(),
        )))
    }

    /// Trusts exactly the keys that a response announces. The agent stores them on disk before it
    /// confirms them, because from then on the service may sign with only the new key. Returns
    /// whether anything changed.
    fn update_trusted_keys(&mut self, response: &SyncResponse) -> anyhow::Result<bool> {
        let Some(keys) = public_keys(&response.orders_keys) else { return Ok(false) };
        let before = self.identity.orders_keys.ids();
        if keys == self.identity.orders_keys.keys() {
            return Ok(false);
        }
        self.state.set_trusted_keys(&keys)?;
        self.identity.orders_keys.replace(keys);
        let after = self.identity.orders_keys.ids();
        note(&format!(
            "the service rotated its signing key: trusted before: {}; trusted now: {}",
            before.join(", "),
            after.join(", ")
        ));
        Ok(true)
    }

    /// Uses the tag that a response contains. It is stored on disk before it is used, because from
    /// then on the service may accept only this one. Returns whether anything changed.
    fn renew_tag(&mut self, response: &SyncResponse) -> anyhow::Result<bool> {
        let Some(tag) = &response.renewed_tag else { return Ok(false) };
        if *tag == self.identity.tag.get() {
            return Ok(false);
        }
        self.state.set_tag(tag)?;
        self.identity.tag.replace(tag);
        note("the service renewed this host's identity tag");
        Ok(true)
    }

    /// Acts on a response. Returns whether the next sync has something to report immediately.
    fn apply_response(&mut self, response: &SyncResponse) -> bool {
        self.worker.set_server_time(response.server_time);
        self.worker.acknowledge(&response.acknowledged);
        for id in &response.withdrawn {
            self.worker.withdraw(*id);
        }
        if !response.unreported.is_empty() {
            self.worker.answer_inquiries(&response.unreported);
        }
        for envelope in &response.orders {
            match verify_order(envelope, &self.identity, response.server_time) {
                Ok(order) => self.worker.accept(order),
                // An order that has already started continues; one that has not is reported as
                // failed.
                Err(OrderRefusal::Expired(order)) => {
                    let why = format!("the order had to start before {}", order.expires_at);
                    self.worker.reject(&order, FailureCode::OrderExpired, Line::sanitize(&why));
                }
                Err(OrderRefusal::ValidTooLong(order)) => {
                    let why = "the order is valid for more than 31 days";
                    self.worker.reject(&order, FailureCode::RejectedByAgent, why.into());
                }
                Err(refusal) => note(&format!("rejected an order: {refusal}")),
            }
        }
        self.worker.watch_health(response.watch_health_until, response.server_time);
        let watch = response.watch_health_until.filter(|until| *until > response.server_time);
        self.sync_state.watch_seconds = watch.map(|until| {
            let left = until.duration_since(response.server_time).as_secs();
            u32::try_from(left.max(1)).unwrap_or(u32::MAX)
        });
        self.sync_state.wanted.clone_from(&response.wanted);
        !response.acknowledged.is_empty()
            || !response.orders.is_empty()
            || !response.withdrawn.is_empty()
            || !response.unreported.is_empty()
            || !response.wanted.is_empty()
    }

    /// Uploads the package sets that the service requested, and new log output.
    async fn upload(&mut self) -> Result<(), ClientError> {
        while let Some(digest) = self.sync_state.wanted.pop() {
            let scan = self.worker.report().scan;
            let kind = match scan {
                Some(scan) if scan.installed == digest => ListingKind::Packages,
                Some(scan) if scan.pending == digest => ListingKind::Updates,
                // A newer scan has replaced it; the next sync reports that one.
                _ => continue,
            };
            let Some(bytes) = self.worker.listing(digest) else { continue };
            self.client.put_listing(&self.identity, kind, digest, &bytes).await?;
        }
        let logs = self.worker.open_logs();
        self.sync_state.logs_sent.retain(|id, _| logs.iter().any(|(open, ..)| open == id));
        for (id, length, _) in logs {
            loop {
                let sent = self.sync_state.logs_sent.get(&id).copied().unwrap_or(0);
                if sent >= length {
                    break;
                }
                let part = self.worker.read_log(id, sent, LOG_BYTES_MAX);
                if part.is_empty() {
                    break;
                }
                let next = sent + part.len() as u64;
                match self.client.send_log(&self.identity, id, sent, part).await {
                    // The service would reject it again. The log stays on the host.
                    Ok(()) | Err(ClientError::Refused { .. }) => {
                        self.sync_state.logs_sent.insert(id, next);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn handle_error(&mut self, error: ClientError) -> NextStep {
        let memory = &mut self.sync_state;
        memory.failures = memory.failures.saturating_add(1);
        if memory.contact.trouble.is_none() {
            memory.contact.trouble_since = Some(now());
            note(&error_chain(&error));
        } else if matches!(error, ClientError::Unverified { .. }) && !memory.unverified_logged {
            note(&error_chain(&error));
        }
        memory.unverified_logged |= matches!(error, ClientError::Unverified { .. });
        memory.contact.trouble = Some(Line::sanitize(&error_chain(&error)));
        // Only `status` reads this, so a full disk must not stop the agent.
        let _ = self.state.set_contact(&self.sync_state.contact);
        let failures = self.sync_state.failures;
        match error {
            ClientError::Removed => NextStep::Removed,
            ClientError::Busy { retry_after: Some(least), .. } => NextStep::Pause(
                least + backoff_with_jitter(failures, RECONNECT_MAX, random_fraction()),
            ),
            // The service would reject the same request again.
            ClientError::Refused { .. } | ClientError::InvalidResponse(_) => {
                NextStep::Pause(backoff_with_jitter(u32::MAX, RECONNECT_MAX, random_fraction()))
            }
            ClientError::Unreachable(_)
            | ClientError::Busy { .. }
            | ClientError::Unverified { .. } => {
                NextStep::Pause(backoff_with_jitter(failures, RECONNECT_MAX, random_fraction()))
            }
        }
    }

    fn record_contact(&mut self) {
        let contact = &mut self.sync_state.contact;
        if contact.trouble.take().is_some() {
            note("the service is reachable again");
        }
        contact.trouble_since = None;
        self.sync_state.connected = true;
        self.sync_state.unverified_logged = false;
        let contact = &mut self.sync_state.contact;
        contact.last_sync_at = Some(now());
        contact.agent_version = Some(crate::version().to_owned());
        let _ = self.state.set_contact(contact);
    }

    fn update_contact(&mut self, scan: Option<&ScanReport>, activity: Activity) {
        let lines = |digest| {
            self.worker
                .listing(digest)
                .map(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
        };
        let contact = &mut self.sync_state.contact;
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
fn result_line(result: &OrderResult) -> String {
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
fn error_chain(error: &ClientError) -> String {
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
fn random_fraction() -> f64 {
    // An `f64` holds 53 significant bits.
    (nonce() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_fraction_lies_between_0_and_1() {
        for _ in 0..1_000 {
            assert!((0.0..=1.0).contains(&random_fraction()));
        }
    }
}
