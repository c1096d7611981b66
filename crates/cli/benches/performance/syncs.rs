//! Benchmarks 3 and 4: syncs without changes, and syncs with a new inventory.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::client::{Agent, Client};
use crate::clock;
use crate::fleet::{id, new_package_list};
use crate::installation::{Installation, Service};
use crate::table::p99;

const AGENTS: u64 = 500;
const SYNCS_EACH: u64 = 40;
const INVENTORIES: u64 = 2_000;
const CONNECTIONS: usize = 64;

/// Agents of a filled fleet, each with its next counter.
pub(crate) struct Agents {
    all: Vec<Agent>,
    salt: u64,
}

/// Throughput per second, p99 latency in milliseconds, and service CPU per unit in milliseconds.
pub(crate) struct Pace {
    pub(crate) per_second: f64,
    pub(crate) p99_ms: f64,
    pub(crate) cpu_ms: f64,
}

impl Agents {
    pub(crate) fn new(installation: &Installation) -> Agents {
        let secrets = installation.secrets();
        let all = (0..AGENTS).map(|nth| Agent::new(&secrets, nth, id(nth))).collect();
        Agents { all, salt: 0 }
    }

    /// Syncs each agent once, so that the service knows it.
    pub(crate) async fn sync_once(&mut self, service: &Service) {
        let mut client = Client::connect(&service.address).await.unwrap();
        for agent in &mut self.all {
            client.request(&agent.sync(0, "")).await.unwrap();
        }
    }

    /// The next sync of one of the agents.
    pub(crate) fn next_sync(&mut self) -> Vec<u8> {
        self.all.rotate_left(1);
        self.all[0].sync(0, "")
    }

    /// Syncs without changes, as fast as four connections can.
    pub(crate) async fn measure_syncs(&mut self, service: &Service) -> Pace {
        let mut request_batches = vec![Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..SYNCS_EACH {
            for (place, agent) in self.all.iter_mut().enumerate() {
                request_batches[place % 4].push(vec![agent.sync(0, "")]);
            }
        }
        measure(service, request_batches).await
    }

    fn inventory(&mut self, place: usize) -> (vocab::Digest, Vec<Vec<u8>>) {
        self.salt += 1;
        let (digest, packed) = new_package_list(self.salt);
        let agent = &mut self.all[place];
        let list = agent.packages(digest, &packed);
        (digest, vec![list, agent.sync(0, &format!(",\"installed\":\"{digest}\""))])
    }

    /// New inventories: the package set, and the sync that refers to it. Verifies durability: the
    /// service is killed right after the last response, and everything that it acknowledged must be
    /// stored.
    pub(crate) async fn measure_inventories(
        &mut self,
        installation: &Installation,
        service: Service,
    ) -> (Pace, Service) {
        let mut request_batches = vec![Vec::new(); CONNECTIONS];
        let mut last = vec![None; AGENTS as usize];
        for n in 0..INVENTORIES {
            let agent = (n % AGENTS) as usize;
            let (digest, requests) = self.inventory(agent);
            last[agent] = Some(digest);
            // Inventories of one agent are sent in sequence.
            request_batches[agent % CONNECTIONS].push(requests);
        }
        let pace = measure(&service, request_batches).await;
        let address = service.kill();
        let db = installation.db().await;
        let mut reader = db.read().await.unwrap();
        for (agent, digest) in last.iter().enumerate() {
            let found =
                store::servers::get(&mut reader, installation.org, id(agent as u64)).await.unwrap();
            assert_eq!(found.package_set, *digest, "an acknowledged inventory was lost");
            assert_eq!(found.packages, 600);
        }
        drop(reader);
        db.close().await;
        (pace, installation.serve_at(&address))
    }

    /// Sends new inventories at a steady rate until the other future ends.
    pub(crate) async fn send_inventories_during<T>(
        mut self,
        service: &Service,
        per_second: u64,
        other: impl Future<Output = T>,
    ) -> (T, u64) {
        let sent = Arc::new(Mutex::new(0));
        let (count, address) = (sent.clone(), service.address.clone());
        let flow = tokio::spawn(async move {
            let mut client = Client::connect(&address).await.unwrap();
            let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / per_second));
            for place in (0..AGENTS as usize).cycle() {
                tick.tick().await;
                let (_, requests) = self.inventory(place);
                for request in requests {
                    client.request(&request).await.unwrap();
                }
                *count.lock().await += 1;
            }
        });
        let done = other.await;
        flow.abort();
        let sent = *sent.lock().await;
        (done, sent)
    }
}

/// Sends each pile over its own connection; the requests of one unit are sent in sequence.
async fn measure(service: &Service, request_batches: Vec<Vec<Vec<Vec<u8>>>>) -> Pace {
    let units: usize = request_batches.iter().map(Vec::len).sum();
    let (start, before) = (clock(), service.cpu_seconds());
    let workers = request_batches.into_iter().map(|pile| {
        let address = service.address.clone();
        tokio::spawn(async move {
            let mut client = Client::connect(&address).await.unwrap();
            let mut millis = Vec::with_capacity(pile.len());
            for unit in pile {
                let start = clock();
                for request in unit {
                    client.request(&request).await.unwrap();
                }
                millis.push(start.elapsed().as_secs_f64() * 1e3);
            }
            millis
        })
    });
    let mut millis = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        millis.extend(worker.await.unwrap());
    }
    assert_eq!(millis.len(), units);
    Pace {
        per_second: units as f64 / start.elapsed().as_secs_f64(),
        p99_ms: p99(millis),
        cpu_ms: (service.cpu_seconds() - before) * 1e3 / units as f64,
    }
}
