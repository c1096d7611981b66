//! The swarm as its users see it: start it, wait for something, script an agent, count, check, stop.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use vocab::ServerId;

use crate::agent;
use crate::agent::Agent;
use crate::behave::{Nature, Script};
use crate::fleet::Fleet;
use crate::ledger::Ledger;
use crate::saved::{Saved, SavedAgent};
use agent_client::{AgentClient, Connect, ConnectError, Token};

/// How many agents connect from one address: there are some 28,000 ports for each.
const AGENTS_PER_ADDRESS: u64 = 20_000;
/// How many enrolments and uploads are under way at once.
const SHORT_REQUESTS_MAX: usize = 128;
/// How many agents begin in a second, so that a start is a crowd and not a stampede.
const STARTS_PER_SECOND: f64 = 5_000.0;

/// The longest that an agent waits before it tries again, unless a configuration says otherwise.
const RECONNECT_MAX: Duration = Duration::from_secs(8);

/// What kind of swarm.
#[derive(Debug)]
pub struct Config {
    /// The address of the server.
    pub url: String,
    /// Where else it can be reached. Agents are spread over all addresses, and one that is not
    /// answered goes over to the next.
    pub other_urls: Vec<String>,
    /// What lets the hosts in, and by what they know the server.
    pub token: Token,
    /// How many.
    pub servers: u64,
    /// How they behave.
    pub nature: Nature,
    /// How they sync.
    pub pace: Pace,
    /// The longest wait before an agent tries again to reach its server.
    pub reconnect_max: Duration,
    /// Whether agents send logs of their installations.
    pub logs: bool,
    /// Who they were before.
    pub saved: Option<Saved>,
}

/// How agents sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As real ones do: held open for as long as the server likes.
    Held,
    /// Not held, and again after this time: with none, as often as the server can.
    Every(Duration),
}

impl Config {
    /// A swarm of agents with the habits of real ones.
    pub fn new(url: &str, token: Token, servers: u64) -> Config {
        Config {
            url: url.to_owned(),
            other_urls: Vec::new(),
            token,
            servers,
            nature: Nature::default(),
            pace: Pace::Held,
            reconnect_max: RECONNECT_MAX,
            logs: true,
            saved: None,
        }
    }
}

/// Why a swarm does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no way to the server.
    #[error("there is no way to the server")]
    Connect(#[from] ConnectError),
    /// The identities belong to hosts of another seed.
    #[error("the saved hosts are of seed {saved}, not {asked}")]
    Seed {
        /// Whose they are.
        saved: u64,
        /// What was asked for.
        asked: u64,
    },
}

/// The server does not let hosts in with this token.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the server does not let a host in: {0}")]
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
    /// Agents that have an identity.
    enrolled,
    /// Syncs that were answered.
    syncs,
    /// Orders that were taken, each once.
    orders,
    /// Results that the server has acknowledged.
    results,
    /// Answers and orders that were not signed by the server, or not meant for the host that got them.
    forged,
    /// Listings that were uploaded.
    listings,
    /// Parts of logs that were uploaded.
    logs,
    /// Agents that were told that they are no more.
    removed,
    /// Requests that were refused.
    refused,
    /// Requests that were not answered, or with an excuse.
    failed,
    /// Agents that crashed and came back.
    crashes,
    /// Hosts that rebooted.
    boots,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What all agents share.
pub(crate) struct Shared {
    pub(crate) token: Token,
    pub(crate) nature: Nature,
    pub(crate) pace: Pace,
    pub(crate) reconnect_max: Duration,
    pub(crate) logs: bool,
    pub(crate) counters: Counters,
    pub(crate) ledger: Ledger,
    pub(crate) short_requests: Semaphore,
    refusal: Mutex<Option<String>>,
    /// Rung when someone enrolled or was refused.
    pub(crate) bell: Notify,
}

impl Shared {
    pub(crate) fn new(token: Token, nature: Nature) -> Shared {
        Shared {
            token,
            nature,
            pace: Pace::Held,
            reconnect_max: RECONNECT_MAX,
            logs: true,
            counters: Counters::default(),
            ledger: Ledger::default(),
            short_requests: Semaphore::new(SHORT_REQUESTS_MAX),
            refusal: Mutex::default(),
            bell: Notify::new(),
        }
    }

    /// Keeps the first refusal, which is what a person wants to read.
    pub(crate) fn refused(&self, why: String) {
        count(&self.counters.refused);
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.bell.notify_waiters();
    }
}

/// By what one agent is reached from outside.
#[derive(Default)]
pub(crate) struct Handle {
    pub(crate) script: Mutex<Script>,
    pub(crate) bell: Notify,
    pub(crate) server_id: OnceLock<ServerId>,
    pub(crate) syncs: AtomicU64,
}

/// Agents at work, each in a task of its own. Dropping it cuts them all off.
pub struct Swarm {
    shared: Arc<Shared>,
    handles: Vec<Arc<Handle>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<Option<SavedAgent>>,
    /// Hosts that were saved and do not take part this time.
    absent: Vec<SavedAgent>,
}

impl Swarm {
    /// Starts the agents. Call it inside a tokio runtime.
    pub fn start(config: Config) -> Result<Swarm, StartError> {
        let Config { url, other_urls, token, servers, .. } = config;
        let Config { nature, pace, reconnect_max, logs, saved, .. } = config;
        let urls: Vec<_> = std::iter::once(url).chain(other_urls).collect();
        let ways = ways(&urls, &token, servers)?;
        let mut saved = match saved {
            Some(saved) if saved.seed != nature.seed => {
                return Err(StartError::Seed { saved: saved.seed, asked: nature.seed });
            }
            Some(saved) => saved.agents.into_iter().map(|agent| (agent.index, agent)).collect(),
            None => std::collections::HashMap::new(),
        };
        let shared = Shared { pace, reconnect_max, logs, ..Shared::new(token, nature) };
        let shared = Arc::new(shared);
        let (stop, stopped) = watch::channel(false);
        let fleet = Fleet::new(nature.seed, servers);
        let mut tasks = JoinSet::new();
        let mut handles = Vec::new();
        for index in 0..servers {
            let handle = Arc::new(Handle::default());
            let start = agent::Start {
                host: fleet.host(index),
                ways: ways[(index / AGENTS_PER_ADDRESS) as usize].clone(),
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
        Ok(Swarm { shared, handles, stop, tasks, absent })
    }

    /// Waits until every agent has an identity.
    pub async fn wait_until_enrolled(&self) -> Result<(), EnrollmentRefused> {
        loop {
            let bell = self.shared.bell.notified();
            if self.counts().enrolled >= self.handles.len() as u64 {
                return Ok(());
            }
            let refusal = self.refusal();
            if let Some(refusal) = refusal {
                return Err(EnrollmentRefused(refusal));
            }
            // The bell may ring between the look and the wait; nobody waits for long.
            let _ = tokio::time::timeout(Duration::from_millis(50), bell).await;
        }
    }

    /// Why the first request was refused that was.
    pub fn refusal(&self) -> Option<String> {
        self.shared.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the agents have done so far.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// How many syncs of each agent were answered.
    pub fn syncs(&self) -> Vec<u64> {
        self.handles.iter().map(|handle| handle.syncs.load(Ordering::Relaxed)).collect()
    }

    /// What really happened, and whether anything did that must not.
    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// How many agents there are.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// The id of an agent's server once it has enrolled.
    pub fn server_id(&self, agent: usize) -> Option<ServerId> {
        self.handles.get(agent)?.server_id.get().copied()
    }

    /// Tells one agent how to behave with the orders that it begins from now on.
    pub fn script(&self, agent: usize, script: Script) {
        if let Some(handle) = self.handles.get(agent) {
            *handle.script.lock().unwrap_or_else(PoisonError::into_inner) = script;
            handle.bell.notify_one();
        }
    }

    /// Stops all agents and returns who they were. A sync that is held open is cut off, and would be
    /// repeated by whoever comes back as that agent.
    pub async fn stop(mut self) -> Saved {
        self.stop.send_replace(true);
        let mut saved = Saved { seed: self.shared.nature.seed, agents: self.absent };
        while let Some(ended) = self.tasks.join_next().await {
            saved.agents.extend(ended.ok().flatten());
        }
        saved.agents.sort_unstable_by_key(|agent| agent.index);
        saved
    }
}

/// The ways to the server, one for each of its addresses, for every so many agents; from addresses of
/// their own if it is on this machine.
fn ways(
    urls: &[String],
    token: &Token,
    servers: u64,
) -> Result<Vec<Arc<[AgentClient]>>, ConnectError> {
    let addresses = servers.div_ceil(AGENTS_PER_ADDRESS).max(1);
    let way = |url: &String, number: u64| {
        let local = ["//127.", "//localhost"].iter().any(|start| url.contains(start));
        let spread = addresses > 1 && local;
        let last = u8::try_from(2 + number).unwrap_or(u8::MAX);
        let from = spread.then(|| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
        AgentClient::new(Connect { url, pin: token.pin(), from })
    };
    (0..addresses).map(|number| urls.iter().map(|url| way(url, number)).collect()).collect()
}
