//! Ten thousand agents reconnect after an outage of the service.

use std::path::Path;
use std::time::Duration;

use agent_client::{HostKey, Identity};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway::Credential;
use jiff::Timestamp;
use serde_json::json;
use service::clock::Clock;
use service::commands::setup;
use service::secrets::Secrets;
use store::servers::{self, Server};
use store::{Db, Options, organizations};
use swarm::fleet::{Fleet, Host};
use swarm::{Config, SavedAgents, Swarm};
use vocab::{OrgId, ServerId};
use wire::agent::EnrollResponse;

use crate::operator::{Operator, POLL_INTERVAL};
use crate::support::{Dir, Running, first_key, whole_machine};
use crate::whole_machine::fleet::{allow_files, slow_agents};

const AGENTS: u64 = 10_000;
/// Number of agents that get orders.
const AT_WORK: usize = 500;
/// Five minutes, the promised limit.
const POLLS_MAX: u32 = 1_500;

fn server(org_id: OrgId, host: &Host, key: &HostKey, now: Timestamp) -> Server {
    let facts = host.facts();
    Server {
        id: ServerId::new(now, u128::from(host.index) + 1),
        org_id,
        hostname: facts.hostname,
        display_name: None,
        notes: String::new(),
        environment: host.environment(),
        tags: host.tags(),
        os: facts.os,
        kernel: facts.kernel.to_string(),
        arch: facts.arch.to_string(),
        package_manager: Some(facts.package_manager),
        agent_version: facts.agent_version.to_string(),
        public_key: STANDARD.decode(key.public_key()).unwrap(),
        enrolled_at: now,
        last_scan_at: None,
        reboot_required: facts.reboot_required,
        reboot_reasons: facts.reboot_reasons.iter().map(ToString::to_string).collect(),
        activity: "idle".into(),
        package_set: None,
        update_set: None,
        packages: 0,
        updates: 0,
        security_updates: 0,
        facts: json!({}),
        runs: String::new(),
        quarantine: None,
        generation: 1,
        last_seen_at: now,
        counter: 1,
    }
}

/// Enrolls the hosts of a swarm in one transaction. Ten thousand requests would take minutes in a
/// debug build, and enrollment is not what this tests.
async fn enroll(data: &Path, config: &Config) -> SavedAgents {
    let secrets = Secrets::load(data).unwrap();
    let url = format!("sqlite:{}", data.join("fleetmend.db").display());
    let db = Db::open(&Options::new(&url, setup::seal(&secrets))).await.unwrap();
    let org = organizations::list(&mut db.read().await.unwrap()).await.unwrap()[0].id;
    let (fleet, now) = (Fleet::new(config.behavior.seed, config.servers), Clock::system().now());
    let mut rows = Vec::new();
    let mut agents = Vec::new();
    for index in 0..config.servers {
        let (host, key) = (fleet.host(index), HostKey::generate());
        let row = server(org, &host, &key, now);
        let public_key = row.public_key.clone().try_into().unwrap();
        let tag = Credential { server: row.id, key: public_key }.tag(&secrets);
        let response = EnrollResponse {
            server_id: row.id,
            tag: STANDARD.encode(tag),
            orders_key: secrets.orders_key().public_key(),
            orders_keys: secrets.announced_keys(),
            counter: 1,
            sync_seconds: 30,
            signs_answers: true,
        };
        agents.push((host, Identity::new(key, response).unwrap()));
        rows.push(row);
    }
    let mut tx = db.begin().await.unwrap();
    servers::enroll_all(&mut tx, &rows).await.unwrap();
    tx.commit().await.unwrap();
    db.close().await;
    SavedAgents::enrolled(config.behavior, agents, now)
}

async fn until(enough: impl Fn() -> bool) {
    for _ in 0..POLLS_MAX {
        if enough() {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    panic!("the expected state was not reached within five minutes");
}

/// Waits until each agent has synced once. An operator uses the API meanwhile, and every request
/// must succeed.
async fn wait_for_all_syncs(fleet: &Swarm, operator: &Operator) {
    let mut missing = AGENTS as usize;
    for _ in 0..POLLS_MAX {
        missing = fleet.syncs().iter().filter(|syncs| **syncs == 0).count();
        if missing == 0 {
            return;
        }
        operator.get("/v1/servers?limit=100").await;
        operator.get("/v1/summary").await;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    panic!("{missing} agents did not sync within five minutes");
}

/// The service is down; ten thousand agents try to connect and succeed at the same moment. Some get
/// orders while others are still connecting.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_agents_reconnect_without_losing_results() {
    let _alone = whole_machine().await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    allow_files();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let before = Running::start(&dir.data(), &[]);
    let operator = Operator::new(&before.address, &key);
    let token = operator.post("/v1/enrollment-tokens", json!({"name": "fleet"})).await;
    let token = token["token"].as_str().unwrap().parse().unwrap();
    let address = before.address.strip_prefix("http://").unwrap().to_owned();
    drop(before);
    let config = Config {
        reconnect_max: Duration::from_secs(2),
        logs: false,
        ..slow_agents(Config::new(&operator.url, token, AGENTS))
    };
    let saved = enroll(&dir.data(), &config).await;
    let fleet = Swarm::start(Config { saved: Some(saved), ..config }).unwrap();
    until(|| fleet.counts().failed >= AGENTS).await;
    assert_eq!(fleet.counts().syncs, 0, "the service is down");

    let _service = Running::at(&address, &dir.data(), &[]);
    // A new client, without a connection to the previous process.
    let operator = Operator::new(&operator.url, &key);
    let batch = operator.orders(&fleet, 0..AT_WORK, json!({"max_parallel": AT_WORK})).await;
    wait_for_all_syncs(&fleet, &operator).await;
    operator.until_ended(&batch).await;
    operator.batch_views(&fleet, &batch).await.assert_all_finished(AT_WORK);
    let online = operator.get("/v1/servers?status=online&limit=1").await;
    assert_eq!(online["meta"]["total"], AGENTS);
    let all = operator.get("/v1/servers?limit=1").await;
    assert_eq!(all["meta"]["total"], AGENTS, "no agent may enroll twice");
    let violations = fleet.ledger().violations();
    assert!(violations.is_empty(), "{violations:?}");
    assert_eq!(fleet.counts().forged, 0);
    fleet.stop().await;
}
