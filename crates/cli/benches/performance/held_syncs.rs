//! Benchmark 5: memory per agent with a held sync, and all agents reconnecting after a kill -9.

use std::time::Duration;

use crate::client::{Agent, Client};
use crate::installation::{Engine, Installation};
use crate::table::{Line, Table, Target, print_figure};
use crate::{clock, fleet};

const AGENTS: u64 = 10_000;
/// Agents that connect at once before their syncs are held; the reconnect storm has no such limit.
const CONNECTING_AT_ONCE: usize = 200;
/// 2 GiB for 50,000 agents.
const KIB_EACH_MAX: f64 = 2.0 * 1024.0 * 1024.0 / 50_000.0;

pub(crate) async fn measure_held_syncs(engine: Engine, table: &mut Table) {
    let installation = Installation::new(engine, "held").await;
    fleet::fill(&installation, AGENTS).await;
    let service = installation.serve();
    let secrets = installation.secrets();
    let mut agents: Vec<Agent> =
        (0..AGENTS).map(|nth| Agent::new(&secrets, nth, fleet::id(nth))).collect();
    let settled = Duration::from_secs(5);
    tokio::time::sleep(settled).await;
    let before = service.memory_bytes();
    let mut parked = Vec::with_capacity(agents.len());
    for some in agents.chunks_mut(CONNECTING_AT_ONCE) {
        for agent in some {
            let mut client = Client::connect(&service.address).await.unwrap();
            // The first sync gets a response, so that the service knows every agent; the second is
            // held.
            client.request(&agent.sync(0, "")).await.unwrap();
            client.send(&agent.sync(50, "")).await.unwrap();
            parked.push(client);
        }
    }
    tokio::time::sleep(settled).await;
    let each = (service.memory_bytes() - before) / AGENTS as f64 / 1024.0;
    let held = [(AGENTS, each)];
    let line = |what, unit, figures, target| Line {
        row: 5,
        what,
        engine: engine.name(),
        unit,
        figures,
        target,
    };
    let what = "memory per held agent (2 GiB for 50,000)";
    print_figure(what, engine, AGENTS, each, "KiB");
    table.add_line(&line(what, "KiB", &held, Target::Most(KIB_EACH_MAX)));
    let start = clock();
    let address = service.kill();
    drop(parked);
    let service = installation.serve_at(&address);
    let storm = agents.into_iter().map(|mut agent| {
        let address = address.clone();
        tokio::spawn(async move {
            // Without the backoff of a real agent.
            for _ in 0..600 {
                if let Ok(mut client) = Client::connect(&address).await
                    && client.request(&agent.sync(0, "")).await.is_ok()
                {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            false
        })
    });
    let mut back = 0;
    for task in storm.collect::<Vec<_>>() {
        back += u64::from(task.await.unwrap());
    }
    assert_eq!(back, AGENTS, "not all agents reconnected");
    let seconds = [(AGENTS, start.elapsed().as_secs_f64())];
    let what = "10,000 agents back in sync after kill -9";
    print_figure(what, engine, AGENTS, seconds[0].1, "s");
    table.add_line(&line(what, "s", &seconds, Target::Most(10.0)));
    drop(service);
    installation.remove().await;
}
