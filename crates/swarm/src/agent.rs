//! One simulated agent: enrolls, syncs, uploads inventories and logs, and reports the results of
//! orders.
//!
//! This is the I/O layer around [`Worker`]: it owns the clock and the network and makes no
//! decisions about orders. `swarm` spawns one task per agent.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use vocab::listing::encode;
use vocab::{Digest, FailureCode, Line, TaskId};
use wire::agent::{Facts, HealthReport, SyncRequest, SyncResponse};

use crate::Rng;
use crate::behavior::{HostEvent, OrderReceipt, Script, Worker, healthy};
use crate::fleet::{Digests, Host};
use crate::outage::OutageSchedule;
use crate::saved::SavedAgent;
use crate::swarm::{AgentHandle, SharedState, SyncMode, increment};
use agent_client::{
    AgentClient, ClientError, EnrollOptions, HostKey, Identity, ListingKind, OrderRefusal,
    SyncCounter, SyncThrottle, backoff_with_jitter, nonce, public_keys, verify_order,
};

/// Maximum seconds that an agent lets the service hold a sync open.
const HOLD_SECONDS_MAX: u32 = 50;
/// Everything an agent needs to start.
pub(crate) struct AgentStart {
    pub(crate) host: Host,
    /// One client per server address; at least one.
    pub(crate) clients: Arc<[AgentClient]>,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) handle: Arc<AgentHandle>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) saved: Option<SavedAgent>,
    /// Upper bound of the random delay before the first request.
    pub(crate) delay: Duration,
}

pub(crate) struct Agent {
    clients: Arc<[AgentClient]>,
    /// Index of the client in use.
    current_client: usize,
    shared: Arc<SharedState>,
    handle: Arc<AgentHandle>,
    worker: Worker,
    digests: Digests,
    rng: Rng,
    /// Generated before the first request, and reused in every enrollment attempt.
    key: Option<HostKey>,
    enrollment: Option<Enrollment>,
    script: Script,
    /// Log parts that are waiting to be sent. A real host keeps them in a file.
    log: VecDeque<(TaskId, String)>,
    volatile: VolatileState,
    outage: OutageSchedule,
}

/// The state that exists once the host is enrolled.
struct Enrollment {
    identity: Identity,
    sync_counter: SyncCounter,
    sync_seconds: u32,
}

/// State that a crash loses.
struct VolatileState {
    /// Whether there is something that the service does not know yet.
    has_news: bool,
    facts_wanted: bool,
    /// The watch of the host's health: its beginning and its end.
    watch: Option<(Timestamp, Timestamp)>,
    /// The report at the end of a watch, until a response arrives.
    health: Option<HealthReport>,
    wanted: Vec<Digest>,
    failures: u32,
    /// The agent sends nothing to the service before this time, whatever happens on the host.
    backoff_until: Option<Instant>,
    /// Consecutive responses that came early and contained nothing.
    empty_responses: u32,
    throttle: SyncThrottle,
}

impl VolatileState {
    /// The state after a start: the agent has to report that it is up.
    fn new() -> VolatileState {
        VolatileState {
            has_news: true,
            facts_wanted: false,
            watch: None,
            health: None,
            wanted: Vec::new(),
            failures: 0,
            backoff_until: None,
            empty_responses: 0,
            throttle: SyncThrottle::new(Instant::now().into_std()),
        }
    }
}

impl VolatileState {
    /// Watches the health of the host, which nothing breaks: only the end is reported.
    fn watch_health(&mut self, response: &SyncResponse) {
        let now = response.server_time;
        self.health = None;
        if let Some((began, _)) = self.watch.take_if(|(_, end)| *end <= now) {
            self.health = Some(healthy(began, now));
        }
        let until = response.watch_health_until.filter(|until| *until > now);
        let began = self.watch.map_or(now, |(began, _)| began);
        self.watch = until.map(|until| (began, until));
    }
}

enum NextAction {
    Continue,
    Wait(Duration),
    End,
}

#[expect(clippy::disallowed_methods, reason = "this is the agents' clock")]
fn now() -> Timestamp {
    // Microsecond precision, as the service stores it, so that a time survives the round trip
    // unchanged.
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

fn time_until(due: Timestamp, now: Timestamp) -> Duration {
    due.duration_since(now).try_into().unwrap_or(Duration::ZERO)
}

impl Agent {
    /// Runs until the swarm stops or the service removes the host. Returns the agent's saved
    /// identity.
    pub(crate) async fn run(start: AgentStart) -> Option<SavedAgent> {
        let (delay, mut stop) = (start.delay, start.stop.clone());
        let mut agent = Agent::new(start);
        let mut next = NextAction::Wait(delay.mul_f64(agent.rng.next_f64()));
        while !*stop.borrow() {
            next = match next {
                NextAction::End => return None,
                // Anything in progress may be interrupted: the agent repeats the sync with the same
                // counter and nonce, and the service requests the upload again.
                NextAction::Continue => tokio::select! {
                    next = agent.run_round() => next,
                    _ = stop.changed() => break,
                },
                NextAction::Wait(time) => {
                    let due = agent.worker.next_due().map_or(time, |due| time_until(due, now()));
                    tokio::select! {
                        () = sleep(time.min(due)) => NextAction::Continue,
                        () = agent.handle.wakeup.notified() => NextAction::Continue,
                        _ = stop.changed() => break,
                    }
                }
            };
        }
        let durable = agent.worker.persistent_state();
        let Enrollment { identity, sync_counter: turn, sync_seconds } = agent.enrollment?;
        let index = agent.worker.host().index;
        Some(SavedAgent::new(index, &identity, turn, sync_seconds, durable))
    }

    fn new(start: AgentStart) -> Agent {
        let AgentStart { host, clients: ways, shared, handle, saved, .. } = start;
        let mut rng = Rng::for_entity(shared.behavior.seed, "agent", host.index);
        let identity = saved.as_ref().and_then(SavedAgent::identity);
        let (worker, enrollment) = match (saved, identity) {
            (Some(saved), Some(identity)) => {
                let SavedAgent { turn, sync_seconds, durable, .. } = saved;
                let worker = Worker::resumed(host, shared.behavior, durable);
                (worker, Some(Enrollment { identity, sync_counter: turn, sync_seconds }))
            }
            _ => (Worker::new(host, shared.behavior, now()), None),
        };
        if let Some(enrollment) = &enrollment {
            record_enrollment(&shared, &handle, &enrollment.identity);
        }
        for order in worker.known_orders() {
            shared.ledger.order_resumed(worker.host().index, order);
        }
        let host = worker.host();
        let digests = host.group().digests(host.state.packages);
        let outage = OutageSchedule::new(&shared.behavior, &mut rng);
        let memory = VolatileState::new();
        let script = Script::Random;
        let (log, key) = (VecDeque::new(), None);
        let url_index = (host.index % ways.len() as u64) as usize;
        Agent {
            clients: ways,
            current_client: url_index,
            shared,
            handle,
            worker,
            digests,
            rng,
            key,
            enrollment,
            script,
            log,
            volatile: memory,
            outage,
        }
    }

    /// One round: advances the simulated host, then contacts the service if it is reachable.
    async fn run_round(&mut self) -> NextAction {
        let now = now();
        let script = *self.handle.script.lock().unwrap_or_else(PoisonError::into_inner);
        if script != self.script {
            self.script = script;
            self.worker.set_script(script, now);
        }
        self.advance_host(now);
        let due = self.worker.next_due().map(|due| time_until(due, now));
        if self.worker.is_down() {
            return NextAction::Wait(due.unwrap_or(Duration::from_secs(3_600)));
        }
        if let Some(time) = self.disconnected_for() {
            return NextAction::Wait(due.map_or(time, |due| due.min(time)));
        }
        if let Some(time) =
            self.volatile.backoff_until.and_then(|end| end.checked_duration_since(Instant::now()))
            && !time.is_zero()
        {
            return NextAction::Wait(time);
        }
        // Both are rare and their futures are large. Boxing them keeps the task of a waiting agent
        // small.
        if self.enrollment.is_none() {
            return Box::pin(self.enroll()).await;
        }
        // Before a reboot, everything else waits until the host is back.
        let leaving = self.worker.is_leaving();
        if !leaving && (!self.volatile.wanted.is_empty() || !self.log.is_empty()) {
            return match Box::pin(self.upload()).await {
                Ok(()) => NextAction::Continue,
                Err(error) => self.handle_error(error),
            };
        }
        self.sync(now, due).await
    }

    /// Advances the simulated host to `now` and records its events in the ledger.
    fn advance_host(&mut self, now: Timestamp) {
        let agent = self.worker.host().index;
        for happening in self.worker.advance(now) {
            self.volatile.has_news = true;
            let SharedState { ledger, counters, .. } = &*self.shared;
            match happening {
                HostEvent::OrderStarted { order, plan } => {
                    ledger.order_started(agent, order, plan, now);
                }
                HostEvent::PackagesChanged { order, before, after } => {
                    let kind = self.worker.host().group();
                    ledger.packages_changed(
                        agent,
                        order,
                        &kind.installed(before),
                        &kind.installed(after),
                    );
                    if self.shared.logs {
                        self.log.push_back((order, self.worker.install_log(before, after)));
                    }
                    self.digests = kind.digests(after);
                    self.volatile.facts_wanted = true;
                }
                HostEvent::Booted { order } => {
                    ledger.host_booted(agent, order);
                    increment(&counters.boots);
                    self.volatile.facts_wanted = true;
                }
                HostEvent::Crashed => {
                    increment(&counters.crashes);
                    self.volatile = VolatileState::new();
                }
                HostEvent::StageReached { .. } | HostEvent::OrderEnded { .. } => {}
            }
        }
    }

    /// How long the host stays disconnected, if it is.
    fn disconnected_for(&mut self) -> Option<Duration> {
        if self.script == Script::Disconnect {
            return Some(Duration::from_secs(3_600));
        }
        self.outage.remaining(&mut self.rng)
    }

    async fn enroll(&mut self) -> NextAction {
        let host = self.worker.host();
        let options = EnrollOptions {
            facts: host.facts(),
            environment: host.environment(),
            tags: host.tags(),
        };
        let shared = self.shared.clone();
        let Ok(_permit) = shared.short_requests.acquire().await else { return NextAction::End };
        let key = self.key.get_or_insert_with(HostKey::generate);
        match self.clients[self.current_client].enroll(&shared.token, key, options).await {
            Ok(answer) => {
                self.volatile.failures = 0;
                let sync_counter = SyncCounter::new(answer.counter, nonce());
                let sync_seconds = answer.sync_seconds;
                let Some(key) = self.key.take() else { return NextAction::Continue };
                match Identity::new(key, answer) {
                    Ok(identity) => {
                        record_enrollment(&shared, &self.handle, &identity);
                        self.enrollment = Some(Enrollment { identity, sync_counter, sync_seconds });
                        NextAction::Continue
                    }
                    Err(error) => {
                        shared.record_refusal(error.to_string());
                        NextAction::End
                    }
                }
            }
            // A token that is rejected once will not be accepted later.
            Err(error @ (ClientError::Refused { .. } | ClientError::InvalidResponse(_))) => {
                shared.record_refusal(error.to_string());
                NextAction::End
            }
            Err(error) => self.handle_error(error),
        }
    }

    /// Uploads the inventories that the service requested, and the package manager's log.
    async fn upload(&mut self) -> Result<(), ClientError> {
        let Some(enrollment) = &self.enrollment else { return Ok(()) };
        let Ok(_permit) = self.shared.short_requests.acquire().await else { return Ok(()) };
        let host = self.worker.host();
        while let Some(digest) = self.volatile.wanted.last().copied() {
            let (kind, bytes) = if digest == self.digests.installed {
                (ListingKind::Packages, encode(&host.group().installed(host.state.packages)))
            } else {
                (ListingKind::Updates, encode(&host.group().pending(host.state.packages)))
            };
            if Digest::compute(&bytes) == digest {
                self.clients[self.current_client]
                    .put_listing(&enrollment.identity, kind, digest, &bytes)
                    .await?;
                increment(&self.shared.counters.listings);
            }
            self.volatile.wanted.pop();
            // The service has the content now. The next sync states which host has it.
            self.volatile.has_news = true;
        }
        while let Some((order, text)) = self.log.front() {
            self.clients[self.current_client]
                .send_log(&enrollment.identity, *order, 0, text.clone().into_bytes())
                .await?;
            increment(&self.shared.counters.logs);
            self.log.pop_front();
        }
        Ok(())
    }

    async fn sync(&mut self, now: Timestamp, due: Option<Duration>) -> NextAction {
        let Some(enrollment) = &self.enrollment else { return NextAction::Continue };
        let max = HOLD_SECONDS_MAX.min(enrollment.sync_seconds.max(1));
        let hold = match (self.shared.sync_mode, due) {
            (SyncMode::Interval(_), _) => 0,
            (SyncMode::LongPoll, None) => max,
            // The hold ends when the next event is due, so that the agent can report it without
            // interrupting a sync.
            (SyncMode::LongPoll, Some(due)) => max.min(u32::try_from(due.as_secs()).unwrap_or(max)),
        };
        if let (SyncMode::LongPoll, 0, false, Some(due)) =
            (self.shared.sync_mode, hold, self.volatile.has_news, due)
        {
            return NextAction::Wait(due);
        }
        let request = self.request(enrollment, hold, now);
        for result in &request.results {
            self.shared.ledger.result_reported(self.worker.host().index, result);
        }
        let began = Instant::now();
        let outage = self.outage.wait_for_start();
        let response = tokio::select! {
            answer = self.clients[self.current_client].sync(&enrollment.identity, &request) => answer,
            // Both events interrupt the sync. The next one repeats its counter and nonce.
            () = outage => return NextAction::Continue,
            () = self.handle.wakeup.notified() => return NextAction::Continue,
        };
        match response {
            Ok(answer) => self.handle_response(answer, hold, began.elapsed()),
            Err(error) => self.handle_error(error),
        }
    }

    fn request(&self, enrollment: &Enrollment, hold_seconds: u32, now: Timestamp) -> SyncRequest {
        let host = self.worker.host();
        SyncRequest {
            boot_id: host.boot_id(),
            counter: enrollment.sync_counter.counter,
            nonce: enrollment.sync_counter.nonce,
            hold_seconds,
            facts: self.volatile.facts_wanted.then(|| Facts {
                trusted_keys: enrollment
                    .identity
                    .orders_keys
                    .ids()
                    .into_iter()
                    .map(Line::from)
                    .collect(),
                ..host.facts()
            }),
            installed: Some(self.digests.installed),
            pending: Some(self.digests.pending),
            scanned_at: self.worker.scanned_at(),
            activity: self.worker.activity(),
            results: self.worker.results(),
            progress: self.worker.progress(now),
            health: self.volatile.health.clone(),
        }
    }

    /// Processes a response and decides when to sync again.
    fn handle_response(&mut self, response: SyncResponse, hold: u32, took: Duration) -> NextAction {
        let Some(enrollment) = &mut self.enrollment else { return NextAction::Continue };
        increment(&self.shared.counters.syncs);
        increment(&self.handle.syncs);
        enrollment.sync_counter = SyncCounter::new(response.counter, nonce());
        enrollment.sync_seconds = response.sync_seconds.clamp(1, 3_600);
        self.volatile.failures = 0;
        self.volatile.watch_health(&response);
        let announced = public_keys(&response.orders_keys);
        let rekeyed = announced.filter(|keys| *keys != enrollment.identity.orders_keys.keys());
        self.volatile.facts_wanted = response.wants_facts || rekeyed.is_some();
        if let Some(keys) = rekeyed {
            enrollment.identity.orders_keys.replace(keys);
        }
        if let Some(tag) = &response.renewed_tag {
            enrollment.identity.tag.replace(tag);
        }
        self.volatile.has_news = self.apply_response(&response)
            || self.volatile.facts_wanted
            || self.volatile.health.is_some()
            || response.renewed_tag.is_some();
        let held = hold > 0 && took.as_secs_f64() > f64::from(hold) / 2.0;
        let sync_seconds =
            self.enrollment.as_ref().map_or(60, |enrollment| enrollment.sync_seconds);
        let VolatileState { empty_responses: quiet, throttle: rush, has_news: news, .. } =
            &mut self.volatile;
        *quiet = if *news || held { 0 } else { *quiet + 1 };
        match (self.shared.sync_mode, *news) {
            (_, true) => match rush.next_delay(Instant::now().into_std()) {
                Duration::ZERO => NextAction::Continue,
                wait => NextAction::Wait(wait),
            },
            (SyncMode::Interval(Duration::ZERO), false) => NextAction::Continue,
            (SyncMode::Interval(time), false) => NextAction::Wait(time),
            (SyncMode::LongPoll, false) if held => NextAction::Continue,
            // The service did not hold the sync open: it is shutting down, or chose not to. Errors
            // and empty responses must never make an agent sync more often.
            (SyncMode::LongPoll, false) => {
                let max = Duration::from_secs(sync_seconds.into());
                NextAction::Wait(backoff_with_jitter(*quiet, max, self.rng.next_f64()))
            }
        }
    }

    /// Carries out what a response asks for. Returns whether the service should hear of it
    /// immediately.
    fn apply_response(&mut self, response: &SyncResponse) -> bool {
        let Some(enrollment) = &self.enrollment else { return false };
        let (worker, counters, now) = (&mut self.worker, &self.shared.counters, now());
        let mut news = false;
        let open = worker.results().len();
        for order in &response.acknowledged {
            worker.mark_acknowledged(*order);
        }
        let settled = open - worker.results().len();
        counters.results.fetch_add(settled as u64, std::sync::atomic::Ordering::Relaxed);
        for envelope in &response.orders {
            match verify_order(envelope, &enrollment.identity, response.server_time) {
                Ok(order) => match worker.accept(order, now) {
                    OrderReceipt::Accepted | OrderReceipt::Refused => {
                        increment(&counters.orders);
                        news = true;
                    }
                    OrderReceipt::AlreadyDone => news = true,
                    OrderReceipt::InProgress | OrderReceipt::Ignored => {}
                },
                Err(OrderRefusal::Expired(order)) if self.script != Script::IgnoreOrders => {
                    let message = "the order expired before the agent received it";
                    worker.refuse(order.id, FailureCode::OrderExpired, message, now);
                    news = true;
                }
                Err(OrderRefusal::Expired(_)) => {}
                Err(_) => increment(&counters.forged),
            }
        }
        for order in &response.withdrawn {
            news |= worker.withdraw(*order, now);
        }
        for order in &response.unreported {
            news |= self.script != Script::IgnoreOrders && worker.answer_inquiry(*order, now);
        }
        let ours = |digest: &&Digest| {
            **digest == self.digests.installed || **digest == self.digests.pending
        };
        self.volatile.wanted = response.wanted.iter().filter(ours).copied().collect();
        news || !self.volatile.wanted.is_empty()
    }

    fn handle_error(&mut self, error: ClientError) -> NextAction {
        let memory = &mut self.volatile;
        memory.failures = memory.failures.saturating_add(1);
        memory.has_news = true;
        let max = self.shared.reconnect_max;
        let wait = match &error {
            ClientError::Busy { retry_after: Some(least), .. } => {
                *least + backoff_with_jitter(memory.failures, max, self.rng.next_f64())
            }
            // A refused request would be refused again, so the agent waits the maximum time.
            ClientError::Refused { .. } | ClientError::InvalidResponse(_) => {
                backoff_with_jitter(u32::MAX, max, self.rng.next_f64())
            }
            _ => backoff_with_jitter(memory.failures, max, self.rng.next_f64()),
        };
        memory.backoff_until = Some(Instant::now() + wait);
        match error {
            ClientError::Removed => {
                increment(&self.shared.counters.removed);
                NextAction::End
            }
            ClientError::Unverified { .. } => {
                increment(&self.shared.counters.forged);
                NextAction::Wait(wait)
            }
            ClientError::Unreachable(_) | ClientError::Busy { .. } => {
                increment(&self.shared.counters.failed);
                self.current_client = (self.current_client + 1) % self.clients.len();
                NextAction::Wait(wait)
            }
            ClientError::Refused { .. } | ClientError::InvalidResponse(_) => {
                self.shared.record_refusal(error.to_string());
                // An inventory is dropped until the service requests it again; a log is discarded.
                (self.volatile.wanted, self.log) = (Vec::new(), VecDeque::new());
                NextAction::Wait(wait)
            }
        }
    }
}

fn record_enrollment(shared: &SharedState, handle: &AgentHandle, identity: &Identity) {
    let _ = handle.server_id.set(identity.server_id);
    increment(&shared.counters.enrolled);
    shared.enrollment_changed.notify_waiters();
}

#[cfg(test)]
mod tests;
