//! The public interface of the swarm: start it, wait for enrollment, script an agent, read the
//! counters, check the ledger, stop.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use vocab::ServerId;

use crate::agent;
use crate::agent::Agent;
use crate::behavior::{Behavior, Script};
use crate::fleet::Fleet;
use crate::ledger::Ledger;
use crate::saved::{SavedAgent, SavedAgents};
use agent_client::{AgentClient, ConnectError, ConnectOptions, Token};

/// Maximum agents per source address: each address has about 28,000 ports.
const AGENTS_PER_ADDRESS: u64 = 20_000;
/// Maximum concurrent enrollments and uploads.
const SHORT_REQUESTS_MAX: usize = 128;
/// Agents that start per second, so that a start does not overload the service.
const STARTS_PER_SECOND: f64 = 5_000.0;

/// Default maximum delay before an agent retries.
const RECONNECT_MAX: Duration = Duration::from_secs(8);

/// Configuration of a swarm.
#[derive(Debug)]
pub struct Config {
    pub url: String,
    /// Further server URLs. Agents are distributed over all URLs, and an agent that gets no
    /// response switches to the next one.
    pub other_urls: Vec<String>,
    /// The enrollment token, which also pins the service's certificate.
    pub token: Token,
    /// Number of agents.
    pub servers: u64,
    pub behavior: Behavior,
    pub sync_mode: SyncMode,
    /// Maximum delay before an agent retries to reach the service.
    pub reconnect_max: Duration,
    /// Whether agents upload their installation logs.
    pub logs: bool,
    /// Identities from an earlier run.
    pub saved: Option<SavedAgents>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Long polling, like real agents: the service holds each sync open.
    LongPoll,
    /// Without long polling, at this interval. Zero means as fast as the service responds.
    Interval(Duration),
}

impl Config {
    /// A swarm whose agents behave like real ones.
    pub fn new(url: &str, token: Token, servers: u64) -> Config {
        Config {
            url: url.to_owned(),
            other_urls: Vec::new(),
            token,
            servers,
            behavior: Behavior::default(),
            sync_mode: SyncMode::LongPoll,
            reconnect_max: RECONNECT_MAX,
            logs: true,
            saved: None,
        }
    }
}

/// Why a swarm cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot set up connections to the server")]
    Connect(#[from] ConnectError),
    /// The saved identities belong to a fleet with another seed.
    #[error("the saved hosts have seed {saved}, but seed {asked} was requested")]
    Seed { saved: u64, asked: u64 },
}

/// The service rejected the enrollment of a host with this token.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the server refused to enroll a host: {0}")]
pub struct EnrollmentRefused(pub String);

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the agents have done so far.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Enrolled agents.
    enrolled,
    /// Syncs that the service answered.
    syncs,
    /// Orders that agents accepted, each counted once.
    orders,
    /// Results that the service acknowledged.
    results,
    /// Responses and orders that were not signed by the service, or were addressed to another host.
    forged,
    /// Uploaded inventories.
    listings,
    /// Uploaded log parts.
    logs,
    /// Agents that the service removed.
    removed,
    /// Requests that the service rejected.
    refused,
    /// Requests that got no response, or a response to retry later.
    failed,
    /// Agents that crashed and restarted.
    crashes,
    /// Hosts that rebooted.
    boots,
}

pub(crate) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) struct SharedState {
    pub(crate) token: Token,
    pub(crate) behavior: Behavior,
    pub(crate) sync_mode: SyncMode,
    pub(crate) reconnect_max: Duration,
    pub(crate) logs: bool,
    pub(crate) counters: Counters,
    pub(crate) ledger: Ledger,
    pub(crate) short_requests: Semaphore,
    refusal: Mutex<Option<String>>,
    /// Notified when an agent enrolled or was refused.
    pub(crate) enrollment_changed: Notify,
}

impl SharedState {
    pub(crate) fn new(token: Token, behavior: Behavior) -> SharedState {
        SharedState {
            token,
            behavior,
            sync_mode: SyncMode::LongPoll,
            reconnect_max: RECONNECT_MAX,
            logs: true,
            counters: Counters::default(),
            ledger: Ledger::default(),
            short_requests: Semaphore::new(SHORT_REQUESTS_MAX),
            refusal: Mutex::default(),
            enrollment_changed: Notify::new(),
        }
    }

    /// Counts the refusal, and keeps the text of the first one.
    pub(crate) fn record_refusal(&self, why: String) {
        increment(&self.counters.refused);
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.enrollment_changed.notify_waiters();
    }
}

/// The handle by which the swarm controls one agent.
#[derive(Default)]
pub(crate) struct AgentHandle {
    pub(crate) script: Mutex<Script>,
    pub(crate) wakeup: Notify,
    pub(crate) server_id: OnceLock<ServerId>,
    pub(crate) syncs: AtomicU64,
}

/// Running agents, each in its own task. Dropping the swarm aborts all of them.
pub struct Swarm {
    shared: Arc<SharedState>,
    handles: Vec<Arc<AgentHandle>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<Option<SavedAgent>>,
    /// Saved agents that do not run this time.
    inactive: Vec<SavedAgent>,
}

impl Swarm {
    /// Starts the agents. Must be called inside a tokio runtime.
    pub fn start(config: Config) -> Result<Swarm, StartError> {
        let Config { url, other_urls, token, servers, .. } = config;
        let Config { behavior: nature, sync_mode: pace, reconnect_max, logs, saved, .. } = config;
        let urls: Vec<_> = std::iter::once(url).chain(other_urls).collect();
        let ways = connect_clients(&urls, &token, servers)?;
        let mut saved = match saved {
            Some(saved) if saved.seed != nature.seed => {
                return Err(StartError::Seed { saved: saved.seed, asked: nature.seed });
            }
            Some(saved) => saved.agents.into_iter().map(|agent| (agent.index, agent)).collect(),
            None => std::collections::HashMap::new(),
        };
        let shared =
            SharedState { sync_mode: pace, reconnect_max, logs, ..SharedState::new(token, nature) };
        let shared = Arc::new(shared);
        let (stop, stopped) = watch::channel(false);
        let fleet = Fleet::new(nature.seed, servers);
        let mut tasks = JoinSet::new();
        let mut handles = Vec::new();
        for index in 0..servers {
            let handle = Arc::new(AgentHandle::default());
            let start = agent::AgentStart {
                host: fleet.host(index),
                clients: ways[(index / AGENTS_PER_ADDRESS) as usize].clone(),
                shared: shared.clone(),
                handle: handle.clone(),
                stop: stopped.clone(),
                saved: saved.remove(&index),
                delay: Duration::from_secs_f64(servers as f64 / STARTS_PER_SECOND),
            };
            handles.push(handle);
            tasks.spawn(Agent::run(start));
        }
        let absent = saved.into_values().collect();
        Ok(Swarm { shared, handles, stop, tasks, inactive: absent })
    }

    /// Waits until every agent is enrolled.
    pub async fn wait_until_enrolled(&self) -> Result<(), EnrollmentRefused> {
        loop {
            let wakeup = self.shared.enrollment_changed.notified();
            if self.counts().enrolled >= self.handles.len() as u64 {
                return Ok(());
            }
            let refusal = self.refusal();
            if let Some(refusal) = refusal {
                return Err(EnrollmentRefused(refusal));
            }
            // A notification between the check and the wait may be missed, so the wait is short.
            let _ = tokio::time::timeout(Duration::from_millis(50), wakeup).await;
        }
    }

    /// The text of the first refused request, if any.
    pub fn refusal(&self) -> Option<String> {
        self.shared.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// Number of answered syncs of each agent.
    pub fn syncs(&self) -> Vec<u64> {
        self.handles.iter().map(|handle| handle.syncs.load(Ordering::Relaxed)).collect()
    }

    /// The record of what really happened, with all violations.
    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    pub fn len(&self) -> usize {
        self.handles.len()
    }

    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// The server id of an agent, once it is enrolled.
    pub fn server_id(&self, agent: usize) -> Option<ServerId> {
        self.handles.get(agent)?.server_id.get().copied()
    }

    /// Sets the script of one agent, for the orders that it starts from now on.
    pub fn script(&self, agent: usize, script: Script) {
        if let Some(handle) = self.handles.get(agent) {
            *handle.script.lock().unwrap_or_else(PoisonError::into_inner) = script;
            handle.wakeup.notify_one();
        }
    }

    /// Stops all agents and returns their identities. A sync that is held open is interrupted; an
    /// agent that restarts with the saved identity repeats it.
    pub async fn stop(mut self) -> SavedAgents {
        self.stop.send_replace(true);
        let mut saved = SavedAgents { seed: self.shared.behavior.seed, agents: self.inactive };
        while let Some(ended) = self.tasks.join_next().await {
            saved.agents.extend(ended.ok().flatten());
        }
        saved.agents.sort_unstable_by_key(|agent| agent.index);
        saved
    }
}

/// Creates the clients: one per server URL for each block of [`AGENTS_PER_ADDRESS`] agents. If the
/// server is on this machine, each block has its own source address.
fn connect_clients(
    urls: &[String],
    token: &Token,
    servers: u64,
) -> Result<Vec<Arc<[AgentClient]>>, ConnectError> {
    let addresses = servers.div_ceil(AGENTS_PER_ADDRESS).max(1);
    let route = |url: &String, number: u64| {
        let local = ["//127.", "//localhost"].iter().any(|start| url.contains(start));
        let spread = addresses > 1 && local;
        let last = u8::try_from(2 + number).unwrap_or(u8::MAX);
        let from = spread.then(|| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
        AgentClient::new(ConnectOptions { url, pin: token.pin(), from })
    };
    (0..addresses).map(|number| urls.iter().map(|url| route(url, number)).collect()).collect()
}
