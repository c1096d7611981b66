//! Benchmark: syncs without new content per second, with signature checks and without a socket.
//! Requests are signed in advance, so the result is the cost of the server alone.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at the first error")]

use std::path::Path;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway::{Credential, signed_text};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::json;
use server::app::{App, AppParts, Settings};
use service::auth::enrollment_tokens as tokens;
use service::clock::{Clock, random_bytes};
use service::secrets::Secrets;
use store::audit::Seal;
use store::enrollment_tokens::{self, EnrollmentToken};
use tower::ServiceExt as _;
use vocab::{OrgId, TokenId};

const AGENTS: usize = 1_000;
const SYNCS_EACH: u64 = 40;

type Agent = (Credential, Ed25519KeyPair);

fn main() {
    // A filter argument that selects another benchmark.
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    if words.any(|word| !"row3 sync".contains(word.as_str())) {
        return;
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let folder = std::env::temp_dir().join(format!("fleetmend_bench_sync_{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    runtime.block_on(run(&folder));
    std::fs::remove_dir_all(&folder).unwrap();
}

async fn run(folder: &Path) {
    let url = format!("sqlite:{}", folder.join("fleetmend.db").display());
    let options = store::Options::new(url, Seal::new(|_, _, _| Vec::new()));
    let app = App::new(AppParts {
        db: store::Db::open(&options).await.unwrap(),
        clock: Clock::system(),
        secrets: Secrets::create(folder).unwrap(),
        settings: Settings::default(),
    });
    let router = gateway::router(app.gateway());
    let agents = enroll(&app, &router).await;
    // The first contact reads the database; only the rest is measured.
    for agent in &agents {
        respond(&router, sync(&app, agent, 1)).await;
    }
    app.db.close().await;
    let mut request_batches: Vec<Vec<Request<Body>>> = vec![Vec::new(), Vec::new()];
    for counter in 2..2 + SYNCS_EACH {
        for (place, agent) in agents.iter().enumerate() {
            request_batches[place % 2].push(sync(&app, agent, counter));
        }
    }
    let total: usize = request_batches.iter().map(Vec::len).sum();
    let (seconds, mut micros) = measure(&router, request_batches).await;
    micros.sort_unstable();
    println!("syncs without new content, 2 threads, signatures checked, database closed");
    println!("  {:>8.0} a second (target 20000)", total as f64 / seconds);
    println!("  p99 {} µs (target 10000)", micros[micros.len() * 99 / 100]);
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
async fn measure(router: &Router, request_batches: Vec<Vec<Request<Body>>>) -> (f64, Vec<u128>) {
    let start = std::time::Instant::now();
    let workers = request_batches.into_iter().map(|pile| {
        let router = router.clone();
        tokio::spawn(async move {
            let mut micros = Vec::with_capacity(pile.len());
            for request in pile {
                let start = std::time::Instant::now();
                respond(&router, request).await;
                micros.push(start.elapsed().as_micros());
            }
            micros
        })
    });
    let mut micros = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        micros.extend(worker.await.unwrap());
    }
    (start.elapsed().as_secs_f64(), micros)
}

async fn respond(router: &Router, request: Request<Body>) -> axum::body::Bytes {
    let response = router.clone().oneshot(request).await.unwrap();
    assert!(response.status().is_success(), "{}", response.status());
    axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap()
}

fn sync(app: &App, (who, pair): &Agent, counter: u64) -> Request<Body> {
    let body = json!({"boot_id": "6f1c9a52", "counter": counter, "nonce": counter,
        "hold_seconds": 0, "activity": "idle"})
    .to_string();
    let signature = pair.sign(signed_text("POST", "/agent/v1/sync", body.as_bytes()).as_bytes());
    let header = format!(
        "Agent id={},key={},tag={},sig={}",
        who.server,
        STANDARD.encode(who.key),
        STANDARD.encode(who.tag(&app.secrets)),
        STANDARD.encode(signature)
    );
    let nonce = STANDARD.encode(u128::from(counter).to_be_bytes());
    let request = Request::post("/agent/v1/sync")
        .header("authorization", header)
        .header(wire::agent::NONCE_HEADER, nonce);
    request.body(Body::from(body)).unwrap()
}

async fn enroll(app: &App, router: &Router) -> Vec<Agent> {
    let now = app.clock.now();
    let org_id = OrgId::new(now, 1);
    let (text, hash) = tokens::mint(&app.secrets, None);
    let token = EnrollmentToken {
        id: TokenId::new(now, 1),
        org_id,
        name: "bench".into(),
        hash,
        environment: None,
        tags: Vec::new(),
        uses: 0,
        uses_max: None,
        created_at: now,
        created_by: "bench".into(),
        expires_at: None,
        revoked_at: None,
    };
    let mut tx = app.db.begin().await.unwrap();
    store::organizations::create(&mut tx, org_id, "Acme", now).await.unwrap();
    enrollment_tokens::create(&mut tx, &token).await.unwrap();
    tx.commit().await.unwrap();
    let mut agents = Vec::with_capacity(AGENTS);
    for n in 0..AGENTS {
        let pair = Ed25519KeyPair::from_seed_unchecked(&random_bytes::<32>()).unwrap();
        let key: [u8; 32] = pair.public_key().as_ref().try_into().unwrap();
        let body = json!({"token": text, "public_key": STANDARD.encode(key), "facts":
            {"hostname": format!("web-{n}"), "os": {"id": "debian", "version": "12", "name": ""},
             "package_manager": "apt"}});
        let request = Request::post("/agent/v1/enroll").body(Body::from(body.to_string())).unwrap();
        let response: wire::agent::EnrollResponse =
            serde_json::from_slice(&respond(router, request).await).unwrap();
        agents.push((Credential { server: response.server_id, key }, pair));
    }
    agents
}
