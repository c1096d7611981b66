//! Rows 3 and 4: agents with nothing new, and agents with a new list of packages.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::client::{Agent, Client};
use crate::clock;
use crate::fleet::{id, new_list};
use crate::place::{Place, Service};
use crate::table::p99;

const AGENTS: u64 = 500;
const SYNCS_EACH: u64 = 40;
const INVENTORIES: u64 = 2_000;
const CONNECTIONS: usize = 64;

/// Agents of a fleet that was filled, each with its next counter.
pub(crate) struct Agents {
    all: Vec<Agent>,
    salt: u64,
}

/// How many a second, the worst of a hundred in milliseconds, and milliseconds of CPU each.
pub(crate) struct Pace {
    pub(crate) per_second: f64,
    pub(crate) p99_ms: f64,
    pub(crate) cpu_ms: f64,
}

impl Agents {
    pub(crate) fn new(place: &Place) -> Agents {
        let secrets = place.secrets();
        let all = (0..AGENTS).map(|nth| Agent::new(&secrets, nth, id(nth))).collect();
        Agents { all, salt: 0 }
    }

    /// Makes contact once: from then on the service knows them.
    pub(crate) async fn greet(&mut self, service: &Service) {
        let mut client = Client::connect(&service.address).await.unwrap();
        for agent in &mut self.all {
            client.ask(&agent.sync(0, "")).await.unwrap();
        }
    }

    /// Syncs with nothing new, as fast as two connections can.
    pub(crate) async fn row3(&mut self, service: &Service) -> Pace {
        let mut piles = vec![Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..SYNCS_EACH {
            for (place, agent) in self.all.iter_mut().enumerate() {
                piles[place % 4].push(vec![agent.sync(0, "")]);
            }
        }
        measure(service, piles).await
    }

    fn inventory(&mut self, place: usize) -> (vocab::Digest, Vec<Vec<u8>>) {
        self.salt += 1;
        let (digest, packed) = new_list(self.salt);
        let agent = &mut self.all[place];
        let list = agent.packages(digest, &packed);
        (digest, vec![list, agent.sync(0, &format!(",\"installed\":\"{digest}\""))])
    }

    /// New inventories: the list, and the sync that says whose it is. Durable: the service is killed right after the last
    /// answer, and what it acknowledged must be there.
    pub(crate) async fn row4(&mut self, place: &Place, service: Service) -> (Pace, Service) {
        let mut piles = vec![Vec::new(); CONNECTIONS];
        let mut last = vec![None; AGENTS as usize];
        for n in 0..INVENTORIES {
            let agent = (n % AGENTS) as usize;
            let (digest, requests) = self.inventory(agent);
            last[agent] = Some(digest);
            // One agent's come one after the other.
            piles[agent % CONNECTIONS].push(requests);
        }
        let pace = measure(&service, piles).await;
        let address = service.kill();
        let db = place.db().await;
        let mut reader = db.read().await.unwrap();
        for (agent, digest) in last.iter().enumerate() {
            let found =
                store::servers::get(&mut reader, place.org, id(agent as u64)).await.unwrap();
            assert_eq!(found.package_set, *digest, "an acknowledged inventory was lost");
            assert_eq!(found.packages, 600);
        }
        drop(reader);
        db.close().await;
        (pace, place.serve_at(&address))
    }

    /// New inventories at a steady pace, until the other future ends.
    pub(crate) async fn beside<T>(
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
                    client.ask(&request).await.unwrap();
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

/// Each pile over a connection of its own; the requests of one unit one after the other.
async fn measure(service: &Service, piles: Vec<Vec<Vec<Vec<u8>>>>) -> Pace {
    let units: usize = piles.iter().map(Vec::len).sum();
    let (start, before) = (clock(), service.cpu_seconds());
    let workers = piles.into_iter().map(|pile| {
        let address = service.address.clone();
        tokio::spawn(async move {
            let mut client = Client::connect(&address).await.unwrap();
            let mut millis = Vec::with_capacity(pile.len());
            for unit in pile {
                let start = clock();
                for request in unit {
                    client.ask(&request).await.unwrap();
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
