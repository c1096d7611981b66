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
use wire::agent::{Facts, SyncRequest, SyncResponse};

use crate::Chance;
use crate::behave::{Happening, Script, Taken, Worker};
use crate::fleet::{Digests, Host};
use crate::outage::Outage;
use crate::saved::SavedAgent;
use crate::swarm::{Handle, Pace, Shared, count};
use agent_client::{
    AgentClient, ClientError, HostKey, Identity, Joining, ListingKind, OrderRefusal, SyncThrottle,
    Turn, jittered, nonce, public_keys, verify,
};

/// Maximum seconds that an agent lets the server hold a sync open.
const HOLD_SECONDS_MAX: u32 = 50;
/// Everything an agent needs to start.
pub(crate) struct Start {
    pub(crate) host: Host,
    /// One client per server address; at least one.
    pub(crate) ways: Arc<[AgentClient]>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Arc<Handle>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) saved: Option<SavedAgent>,
    /// Upper bound of the random delay before the first request.
    pub(crate) delay: Duration,
}

pub(crate) struct Agent {
    ways: Arc<[AgentClient]>,
    /// Index of the client in use.
    way: usize,
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    worker: Worker,
    digests: Digests,
    chance: Chance,
    /// Generated before the first request, and reused in every enrollment attempt.
    key: Option<HostKey>,
    life: Option<Life>,
    script: Script,
    /// Log parts that are waiting to be sent. A real host keeps them in a file.
    log: VecDeque<(TaskId, String)>,
    memory: Memory,
    outage: Outage,
}

/// The state that exists once the host is enrolled.
struct Life {
    identity: Identity,
    turn: Turn,
    sync_seconds: u32,
}

/// State that a crash loses.
struct Memory {
    /// Whether there is something that the server does not know yet.
    news: bool,
    facts_wanted: bool,
    wanted: Vec<Digest>,
    failures: u32,
    /// The agent sends nothing to the server before this time, whatever happens on the host.
    patience: Option<Instant>,
    /// Consecutive responses that came early and contained nothing.
    quiet: u32,
    rush: SyncThrottle,
}

impl Memory {
    /// The state after a start: the agent has to report that it is up.
    fn new() -> Memory {
        Memory {
            news: true,
            facts_wanted: false,
            wanted: Vec::new(),
            failures: 0,
            patience: None,
            quiet: 0,
            rush: SyncThrottle::new(Instant::now().into_std()),
        }
    }
}

enum Next {
    Go,
    Wait(Duration),
    End,
}

#[expect(clippy::disallowed_methods, reason = "this is the agents' clock")]
fn now() -> Timestamp {
    // Microsecond precision, as the server stores it, so that a time survives the round trip
    // unchanged.
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

fn until(due: Timestamp, now: Timestamp) -> Duration {
    due.duration_since(now).try_into().unwrap_or(Duration::ZERO)
}

impl Agent {
    /// Runs until the swarm stops or the server removes the host. Returns the agent's saved
    /// identity.
    pub(crate) async fn run(start: Start) -> Option<SavedAgent> {
        let (delay, mut stop) = (start.delay, start.stop.clone());
        let mut agent = Agent::new(start);
        let mut next = Next::Wait(delay.mul_f64(agent.chance.share()));
        while !*stop.borrow() {
            next = match next {
                Next::End => return None,
                // Anything in progress may be interrupted: the agent repeats the sync with the same
                // counter and nonce, and the server requests the upload again.
                Next::Go => tokio::select! {
                    next = agent.once() => next,
                    _ = stop.changed() => break,
                },
                Next::Wait(time) => {
                    let due = agent.worker.due().map_or(time, |due| until(due, now()));
                    tokio::select! {
                        () = sleep(time.min(due)) => Next::Go,
                        () = agent.handle.bell.notified() => Next::Go,
                        _ = stop.changed() => break,
                    }
                }
            };
        }
        let durable = agent.worker.durable();
        let Life { identity, turn, sync_seconds } = agent.life?;
        let index = agent.worker.host().index;
        Some(SavedAgent::new(index, &identity, turn, sync_seconds, durable))
    }

    fn new(start: Start) -> Agent {
        let Start { host, ways, shared, handle, saved, .. } = start;
        let mut chance = Chance::about(shared.nature.seed, "agent", host.index);
        let identity = saved.as_ref().and_then(SavedAgent::identity);
        let (worker, life) = match (saved, identity) {
            (Some(saved), Some(identity)) => {
                let SavedAgent { turn, sync_seconds, durable, .. } = saved;
                let worker = Worker::resumed(host, shared.nature, durable);
                (worker, Some(Life { identity, turn, sync_seconds }))
            }
            _ => (Worker::new(host, shared.nature, now()), None),
        };
        if let Some(life) = &life {
            joined(&shared, &handle, &life.identity);
        }
        for order in worker.remembered() {
            shared.ledger.remembered(worker.host().index, order);
        }
        let host = worker.host();
        let digests = host.kind().digests(host.state.packages);
        let outage = Outage::of(&shared.nature, &mut chance);
        let memory = Memory::new();
        let script = Script::Usual;
        let (log, key) = (VecDeque::new(), None);
        let way = (host.index % ways.len() as u64) as usize;
        Agent {
            ways,
            way,
            shared,
            handle,
            worker,
            digests,
            chance,
            key,
            life,
            script,
            log,
            memory,
            outage,
        }
    }

    /// One round: advances the simulated host, then contacts the server if it is reachable.
    async fn once(&mut self) -> Next {
        let now = now();
        let script = *self.handle.script.lock().unwrap_or_else(PoisonError::into_inner);
        if script != self.script {
            self.script = script;
            self.worker.follow(script, now);
        }
        self.pass(now);
        let due = self.worker.due().map(|due| until(due, now));
        if self.worker.is_down() {
            return Next::Wait(due.unwrap_or(Duration::from_secs(3_600)));
        }
        if let Some(time) = self.cut_off() {
            return Next::Wait(due.map_or(time, |due| due.min(time)));
        }
        if let Some(time) =
            self.memory.patience.and_then(|end| end.checked_duration_since(Instant::now()))
            && !time.is_zero()
        {
            return Next::Wait(time);
        }
        // Both are rare and their futures are large. Boxing them keeps the task of a waiting agent
        // small.
        if self.life.is_none() {
            return Box::pin(self.enroll()).await;
        }
        // Before a reboot, everything else waits until the host is back.
        let leaving = self.worker.is_leaving();
        if !leaving && (!self.memory.wanted.is_empty() || !self.log.is_empty()) {
            return match Box::pin(self.upload()).await {
                Ok(()) => Next::Go,
                Err(error) => self.failed(error),
            };
        }
        self.sync(now, due).await
    }

    /// Advances the simulated host to `now` and records its events in the ledger.
    fn pass(&mut self, now: Timestamp) {
        let agent = self.worker.host().index;
        for happening in self.worker.turn(now) {
            self.memory.news = true;
            let Shared { ledger, counters, .. } = &*self.shared;
            match happening {
                Happening::Began { order, plan } => ledger.began(agent, order, plan, now),
                Happening::Changed { order, before, after } => {
                    let kind = self.worker.host().kind();
                    ledger.changed(agent, order, &kind.installed(before), &kind.installed(after));
                    if self.shared.logs {
                        self.log.push_back((order, self.worker.log_of(before, after)));
                    }
                    self.digests = kind.digests(after);
                    self.memory.facts_wanted = true;
                }
                Happening::Booted { order } => {
                    ledger.booted(agent, order);
                    count(&counters.boots);
                    self.memory.facts_wanted = true;
                }
                Happening::Crashed => {
                    count(&counters.crashes);
                    self.memory = Memory::new();
                }
                Happening::Reached { .. } | Happening::Ended { .. } => {}
            }
        }
    }

    /// How long the host stays disconnected, if it is.
    fn cut_off(&mut self) -> Option<Duration> {
        if self.script == Script::CutOff {
            return Some(Duration::from_secs(3_600));
        }
        self.outage.holds_for(&mut self.chance)
    }

    async fn enroll(&mut self) -> Next {
        let host = self.worker.host();
        let joining =
            Joining { facts: host.facts(), environment: host.environment(), tags: host.tags() };
        let shared = self.shared.clone();
        let Ok(_permit) = shared.short_requests.acquire().await else { return Next::End };
        let key = self.key.get_or_insert_with(HostKey::generate);
        match self.ways[self.way].enroll(&shared.token, key, joining).await {
            Ok(answer) => {
                self.memory.failures = 0;
                let turn = Turn::after(answer.counter, nonce());
                let sync_seconds = answer.sync_seconds;
                let Some(key) = self.key.take() else { return Next::Go };
                match Identity::new(key, answer) {
                    Ok(identity) => {
                        joined(&shared, &self.handle, &identity);
                        self.life = Some(Life { identity, turn, sync_seconds });
                        Next::Go
                    }
                    Err(error) => {
                        shared.refused(error.to_string());
                        Next::End
                    }
                }
            }
            // A token that is refused once will not be accepted later.
            Err(error @ (ClientError::Refused { .. } | ClientError::Answer(_))) => {
                shared.refused(error.to_string());
                Next::End
            }
            Err(error) => self.failed(error),
        }
    }

    /// Uploads the inventories that the server requested, and the package manager's log.
    async fn upload(&mut self) -> Result<(), ClientError> {
        let Some(life) = &self.life else { return Ok(()) };
        let Ok(_permit) = self.shared.short_requests.acquire().await else { return Ok(()) };
        let host = self.worker.host();
        while let Some(digest) = self.memory.wanted.last().copied() {
            let (kind, bytes) = if digest == self.digests.installed {
                (ListingKind::Packages, encode(&host.kind().installed(host.state.packages)))
            } else {
                (ListingKind::Updates, encode(&host.kind().pending(host.state.packages)))
            };
            if Digest::of(&bytes) == digest {
                self.ways[self.way].put_listing(&life.identity, kind, digest, &bytes).await?;
                count(&self.shared.counters.listings);
            }
            self.memory.wanted.pop();
            // The server has the content now. The next sync states which host has it.
            self.memory.news = true;
        }
        while let Some((order, text)) = self.log.front() {
            self.ways[self.way]
                .send_log(&life.identity, *order, 0, text.clone().into_bytes())
                .await?;
            count(&self.shared.counters.logs);
            self.log.pop_front();
        }
        Ok(())
    }

    async fn sync(&mut self, now: Timestamp, due: Option<Duration>) -> Next {
        let Some(life) = &self.life else { return Next::Go };
        let most = HOLD_SECONDS_MAX.min(life.sync_seconds.max(1));
        let hold = match (self.shared.pace, due) {
            (Pace::Every(_), _) => 0,
            (Pace::Held, None) => most,
            // The hold ends when the next event is due, so that the agent can report it without
            // interrupting a sync.
            (Pace::Held, Some(due)) => most.min(u32::try_from(due.as_secs()).unwrap_or(most)),
        };
        if let (Pace::Held, 0, false, Some(due)) = (self.shared.pace, hold, self.memory.news, due) {
            return Next::Wait(due);
        }
        let request = self.request(life, hold, now);
        for result in &request.results {
            self.shared.ledger.told(self.worker.host().index, result);
        }
        let began = Instant::now();
        let outage = self.outage.begins();
        let answer = tokio::select! {
            answer = self.ways[self.way].sync(&life.identity, &request) => answer,
            // Both events interrupt the sync. The next one repeats its counter and nonce.
            () = outage => return Next::Go,
            () = self.handle.bell.notified() => return Next::Go,
        };
        match answer {
            Ok(answer) => self.heard(answer, hold, began.elapsed()),
            Err(error) => self.failed(error),
        }
    }

    fn request(&self, life: &Life, hold_seconds: u32, now: Timestamp) -> SyncRequest {
        let host = self.worker.host();
        SyncRequest {
            boot_id: host.boot_id(),
            counter: life.turn.counter,
            nonce: life.turn.nonce,
            hold_seconds,
            facts: self.memory.facts_wanted.then(|| Facts {
                trusted_keys: life.identity.orders_keys.ids().into_iter().map(Line::from).collect(),
                ..host.facts()
            }),
            installed: Some(self.digests.installed),
            pending: Some(self.digests.pending),
            scanned_at: self.worker.scanned_at(),
            activity: self.worker.activity(),
            results: self.worker.results(),
            progress: self.worker.progress(now),
        }
    }

    /// Processes a response and decides when to sync again.
    fn heard(&mut self, answer: SyncResponse, hold: u32, took: Duration) -> Next {
        let Some(life) = &mut self.life else { return Next::Go };
        count(&self.shared.counters.syncs);
        count(&self.handle.syncs);
        life.turn = Turn::after(answer.counter, nonce());
        life.sync_seconds = answer.sync_seconds.clamp(1, 3_600);
        self.memory.failures = 0;
        let announced = public_keys(&answer.orders_keys);
        let rekeyed = announced.filter(|keys| *keys != life.identity.orders_keys.keys());
        self.memory.facts_wanted = answer.wants_facts || rekeyed.is_some();
        if let Some(keys) = rekeyed {
            life.identity.orders_keys.replace(keys);
        }
        if let Some(tag) = &answer.renewed_tag {
            life.identity.tag.replace(tag);
        }
        self.memory.news =
            self.obey(&answer) || self.memory.facts_wanted || answer.renewed_tag.is_some();
        let held = hold > 0 && took.as_secs_f64() > f64::from(hold) / 2.0;
        let sync_seconds = self.life.as_ref().map_or(60, |life| life.sync_seconds);
        let Memory { quiet, rush, news, .. } = &mut self.memory;
        *quiet = if *news || held { 0 } else { *quiet + 1 };
        match (self.shared.pace, *news) {
            (_, true) => match rush.next(Instant::now().into_std()) {
                Duration::ZERO => Next::Go,
                wait => Next::Wait(wait),
            },
            (Pace::Every(Duration::ZERO), false) => Next::Go,
            (Pace::Every(time), false) => Next::Wait(time),
            (Pace::Held, false) if held => Next::Go,
            // The server did not hold the sync open: it is shutting down, or chose not to. Errors
            // and empty responses must never make an agent sync more often.
            (Pace::Held, false) => {
                let most = Duration::from_secs(sync_seconds.into());
                Next::Wait(jittered(*quiet, most, self.chance.share()))
            }
        }
    }

    /// Carries out what a response asks for. Returns whether the server should hear of it
    /// immediately.
    fn obey(&mut self, answer: &SyncResponse) -> bool {
        let Some(life) = &self.life else { return false };
        let (worker, counters, now) = (&mut self.worker, &self.shared.counters, now());
        let mut news = false;
        let open = worker.results().len();
        for order in &answer.acknowledged {
            worker.acknowledged(*order);
        }
        let settled = open - worker.results().len();
        counters.results.fetch_add(settled as u64, std::sync::atomic::Ordering::Relaxed);
        for envelope in &answer.orders {
            match verify(envelope, &life.identity, answer.server_time) {
                Ok(order) => match worker.take(order, now) {
                    Taken::New | Taken::Refused => {
                        count(&counters.orders);
                        news = true;
                    }
                    Taken::Answered => news = true,
                    Taken::Known | Taken::Ignored => {}
                },
                Err(OrderRefusal::Expired(order)) if self.script != Script::NeverAnswer => {
                    let message = "the order expired before the agent received it";
                    worker.refuse(order.id, FailureCode::OrderExpired, message, now);
                    news = true;
                }
                Err(OrderRefusal::Expired(_)) => {}
                Err(_) => count(&counters.forged),
            }
        }
        for order in &answer.withdrawn {
            news |= worker.withdraw(*order, now);
        }
        for order in &answer.unreported {
            news |= self.script != Script::NeverAnswer && worker.inquire(*order, now);
        }
        let ours = |digest: &&Digest| {
            **digest == self.digests.installed || **digest == self.digests.pending
        };
        self.memory.wanted = answer.wanted.iter().filter(ours).copied().collect();
        news || !self.memory.wanted.is_empty()
    }

    fn failed(&mut self, error: ClientError) -> Next {
        let memory = &mut self.memory;
        memory.failures = memory.failures.saturating_add(1);
        memory.news = true;
        let most = self.shared.reconnect_max;
        let wait = match &error {
            ClientError::Busy { retry_after: Some(least), .. } => {
                *least + jittered(memory.failures, most, self.chance.share())
            }
            // A refused request would be refused again, so the agent waits the maximum time.
            ClientError::Refused { .. } | ClientError::Answer(_) => {
                jittered(u32::MAX, most, self.chance.share())
            }
            _ => jittered(memory.failures, most, self.chance.share()),
        };
        memory.patience = Some(Instant::now() + wait);
        match error {
            ClientError::Removed => {
                count(&self.shared.counters.removed);
                Next::End
            }
            ClientError::Unproven { .. } => {
                count(&self.shared.counters.forged);
                Next::Wait(wait)
            }
            ClientError::Unreachable(_) | ClientError::Busy { .. } => {
                count(&self.shared.counters.failed);
                self.way = (self.way + 1) % self.ways.len();
                Next::Wait(wait)
            }
            ClientError::Refused { .. } | ClientError::Answer(_) => {
                self.shared.refused(error.to_string());
                // An inventory is dropped until the server requests it again; a log is discarded.
                (self.memory.wanted, self.log) = (Vec::new(), VecDeque::new());
                Next::Wait(wait)
            }
        }
    }
}

fn joined(shared: &Shared, handle: &Handle, identity: &Identity) {
    let _ = handle.server_id.set(identity.server_id);
    count(&shared.counters.enrolled);
    shared.bell.notify_waiters();
}

#[cfg(test)]
mod tests;
