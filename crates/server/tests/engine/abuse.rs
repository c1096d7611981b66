//! Attacks with the genuine key of one agent, and what they cost the service.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::future::join_all;
use serde_json::{Value, json};

use store::package_sets::SetKind;
use store::{package_sets, servers};
use tower::ServiceExt as _;
use vocab::{Digest, Installed, listing};
use wire::agent::{Facts, Outcome};

use crate::agent::{Agent, facts, rejection, send};
use crate::rollouts::{tasks, wait_for_state};
use crate::support::{World, eventually};

/// A list of updates of almost 16 MiB that takes a few kilobytes when compressed, and a lot of
/// memory when it is parsed as a whole: thousands of empty references per line.
fn decompression_bomb(mark: &str) -> (Digest, Vec<u8>) {
    let references = vec!["\"\""; 4_900].join(",");
    let mut text = String::new();
    for line in 0_u32.. {
        let line = format!(
            "{{\"n\":\"{mark}-{line:05}\",\"c\":\"2\",\"ad\":[{references}],\"cv\":[{references}]}}\n"
        );
        if text.len() + line.len() > listing::BYTES_MAX {
            break;
        }
        text.push_str(&line);
    }
    let packed = zstd::bulk::compress(text.as_bytes(), 3).unwrap();
    assert!(packed.len() < 64 << 10, "{}", packed.len());
    (Digest::compute(text.as_bytes()), packed)
}

/// A valid list of almost 16 MiB that takes little space when compressed.
fn large_package_set(mark: &str) -> (Digest, Vec<u8>) {
    let version = "1".repeat(380);
    let line = |n| format!("{{\"n\":\"{mark}-{n:05}\",\"c\":\"{version}\",\"i\":\"{version}\"}}\n");
    let lines = (0..19_900).map(line);
    let text: String = lines.collect();
    assert!(text.len() > listing::BYTES_MAX * 9 / 10 && text.len() < listing::BYTES_MAX);
    (Digest::compute(text.as_bytes()), zstd::bulk::compress(text.as_bytes(), 3).unwrap())
}

/// The peak memory use of this process, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn upload(agent: &Agent, digest: Digest, packed: &[u8]) -> Request<Body> {
    let path = format!("/agent/v1/listings/updates/{digest}");
    let mut request = agent.signed("PUT", &path, packed.to_vec());
    request.headers_mut().insert("content-encoding", "zstd".parse().unwrap());
    request
}

async fn unrequested_package_set_is_rejected(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    let mut other = Agent::join(&app, &token, "web-2").await;
    let bytes = listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
    let digest = Digest::compute(&bytes);
    let unwanted = rejection(StatusCode::CONFLICT, "listing_not_wanted");
    assert_eq!(web.upload("packages", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
    // Nor if another server was asked for it, nor as another kind.
    other.next_sync.installed = Some(digest);
    assert_eq!(other.sync(0).await.unwrap().wanted, [digest]);
    assert_eq!(web.upload("packages", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
    assert_eq!(other.upload("updates", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
    let mut reader = app.db.read().await.unwrap();
    assert!(
        package_sets::get(&mut reader, world.org, SetKind::Packages, digest).await.is_err(),
        "nothing is stored"
    );
    drop(reader);
    // A request to upload expires.
    world.minutes(16);
    assert_eq!(other.upload("packages", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
    assert_eq!(other.sync(0).await.unwrap().wanted, [digest]);
    other.upload("packages", digest, bytes, None).await.unwrap();
}

async fn package_set_may_be_uploaded_to_another_replica(world: &World) {
    let (a, b) = (world.app("a").await, world.app("b").await);
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    let bytes = listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
    let digest = Digest::compute(&bytes);
    web.next_sync.installed = Some(digest);
    assert_eq!(web.sync(0).await.unwrap().wanted, [digest]);
    web.switch_to(&b);
    web.upload("packages", digest, bytes, None).await.unwrap();
    web.switch_to(&a);
    assert_eq!(web.sync(0).await.unwrap().wanted, []);
}

async fn concurrent_decompression_bombs_use_little_memory(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut agents = Vec::new();
    for nth in 0..24 {
        let mut agent = Agent::join(&app, &token, &format!("web-{nth}")).await;
        let mark = format!("p{nth}");
        let (digest, packed) =
            if nth % 2 == 0 { decompression_bomb(&mark) } else { large_package_set(&mark) };
        agent.next_sync.pending = Some(digest);
        assert_eq!(agent.sync(0).await.unwrap().wanted, [digest]);
        agents.push((agent, digest, packed));
    }
    let before = peak_mib();
    let sent = agents
        .iter()
        .map(|(agent, digest, packed)| send(&agent.router, upload(agent, *digest, packed)));
    let answers = join_all(sent).await;
    let grown = peak_mib() - before;
    println!("24 concurrent bombs: {grown} MiB");
    // A single one used to take 245 MiB. Other tests run in the same process.
    assert!(grown < 400, "{grown} MiB");
    for (nth, answer) in answers.into_iter().enumerate() {
        // Half of them have more references than a package set may have.
        let malformed = rejection(StatusCode::UNPROCESSABLE_ENTITY, "malformed_listing");
        assert_eq!(answer.err(), (nth % 2 == 0).then_some(malformed));
    }
}

async fn agent_uploads_one_package_set_at_a_time(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let (digest, packed) = decompression_bomb("p");
    web.next_sync.pending = Some(digest);
    web.sync(0).await.unwrap();
    let answers = join_all((0..8).map(|_| {
        let request = upload(&web, digest, &packed);
        web.router.clone().oneshot(request)
    }))
    .await;
    let (mut tried, mut refused) = (0, 0);
    for answer in answers {
        let response = answer.unwrap();
        match response.status() {
            StatusCode::TOO_MANY_REQUESTS => {
                assert!(response.headers().contains_key("retry-after"));
                refused += 1;
            }
            status => {
                assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
                tried += 1;
            }
        }
    }
    assert_eq!(tried + refused, 8);
    assert!(refused >= 1, "after {tried} attempts");
}

async fn zstd_frame_with_a_huge_window_is_rejected(world: &World) {
    use std::io::Write as _;
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let bytes = listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
    let digest = Digest::compute(&bytes);
    web.next_sync.installed = Some(digest);
    web.sync(0).await.unwrap();
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&bytes).unwrap();
    encoder.flush().unwrap();
    let packed = encoder.finish().unwrap();
    let response = web.upload("packages", digest, packed, Some("zstd")).await.unwrap_err();
    assert_eq!(response, rejection(StatusCode::BAD_REQUEST, "malformed_request"));
}

async fn flooding_agent_is_throttled_and_others_are_not(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut other = Agent::join(&app, &token, "web-2").await;
    let mut limited = None;
    for _ in 0..5_000 {
        if let Err(refusal) = web.sync(0).await {
            limited = Some(refusal);
            break;
        }
    }
    assert_eq!(limited, Some(rejection(StatusCode::TOO_MANY_REQUESTS, "rate_limited")));
    other.sync(0).await.unwrap();
}

async fn long_facts_are_truncated_and_oversized_reports_rejected(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut told = facts("web-1");
    told["reboot_required"] = json!(true);
    told["reboot_reasons"] = json!(vec!["x".repeat(1_000); 900]);
    told["other_updaters"] = json!(vec!["y"; 1_000]);
    let told: Facts = serde_json::from_value(told).unwrap();
    web.next_sync.facts = Some(told);
    web.sync(0).await.unwrap();
    let row = servers::get(&mut app.db.read().await.unwrap(), world.org, web.id).await.unwrap();
    assert_eq!(row.reboot_reasons.len(), 50);
    assert!(row.reboot_reasons.iter().all(|reason| reason.chars().count() <= 500));
    assert_eq!(row.facts["other_updaters"].as_array().unwrap().len(), 50);

    let task: vocab::TaskId = "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap();
    for _ in 0..1_001 {
        web.report_stage(task, vocab::Stage::Installing, world.now());
    }
    let refusal = web.sync(0).await.unwrap_err();
    assert_eq!(refusal, rejection(StatusCode::UNPROCESSABLE_ENTITY, "too_many_reports"));
}

testkit::both!(
    crate::support:
    unrequested_package_set_is_rejected,
    package_set_may_be_uploaded_to_another_replica,
    concurrent_decompression_bombs_use_little_memory,
    agent_uploads_one_package_set_at_a_time,
    zstd_frame_with_a_huge_window_is_rejected,
    flooding_agent_is_throttled_and_others_are_not,
    long_facts_are_truncated_and_oversized_reports_rejected,
);

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Values that no genuine agent sends. `stolen` has the ids of another server and its orders.
fn hostile_values(stolen: &[String]) -> Vec<Value> {
    let nested = (0..100).fold(json!(1), |inside, _| json!([inside]));
    let mut values = vec![
        Value::Null,
        nested,
        json!(true),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!({}),
        json!([]),
        json!([[]]),
        json!(""),
        json!("\u{0}"),
        json!("web\u{0}1"),
        json!("\u{202e}\u{1b}[2J"),
        json!("x".repeat(70_000)),
        json!("../../../etc/passwd"),
        json!("'; drop table servers; --"),
        json!("9999-12-31T23:59:59Z"),
        json!("-009999-01-02T00:00:00Z"),
        json!("1970-01-01T00:00:00Z"),
        json!("succeeded"),
        json!("rebooting"),
    ];
    values.extend(stolen.iter().map(|id| json!(id)));
    values
}

/// Replaces the value at a random location.
fn replace_somewhere(random: &mut Random, value: &mut Value, with: &Value) {
    let stop = random.below(5) == 0;
    match value {
        Value::Object(fields) if !stop && !fields.is_empty() => {
            let nth = random.below(fields.len());
            replace_somewhere(random, fields.values_mut().nth(nth).unwrap(), with);
        }
        Value::Array(items) if !stop && !items.is_empty() => {
            let nth = random.below(items.len());
            replace_somewhere(random, &mut items[nth], with);
        }
        _ => *value = with.clone(),
    }
}

/// A sync with every field set.
fn full_sync(agent: &Agent, order: &str, digest: Digest) -> Value {
    let mut changed_facts = facts("web-1");
    changed_facts["reboot_reasons"] = json!(["a kernel"]);
    changed_facts["old_code"] = json!([{"package": "libssl", "unit": "a.service", "process": "a"}]);
    changed_facts["other_updaters"] = json!(["unattended-upgrades"]);
    let at = "2026-11-15T04:00:00Z";
    json!({"boot_id": "boot-1", "counter": agent.counter, "nonce": agent.nonce, "hold_seconds": 0,
        "facts": changed_facts, "installed": digest, "pending": digest, "scanned_at": at,
        "activity": "idle",
        "results": [{"order_id": order, "outcome": "failed", "failure_code": "pkg_lock_timeout",
            "message": "m", "packages": [{"name": "a", "arch": "b", "from": "1", "to": "2"}],
            "reboot_needed": true, "reboot_seconds": 3, "exit": 1, "set_aside": ["/etc/a"],
            "restarted": ["a.service"], "notes": ["n"], "started_at": at, "finished_at": at}],
        "progress": [{"order_id": order, "stage": "installing", "at": at, "message": "m"}]})
}

/// A request with a genuine signature and unusual content.
fn malformed_request(random: &mut Random, agent: &Agent, stolen: &[String]) -> Request<Body> {
    let values = hostile_values(stolen);
    let ids = [stolen, &["tsk_".into(), "..%2F..%2Fsync".into(), "%00".into(), "x".repeat(2_000)]]
        .concat();
    let lines = "{\"n\":\"bash\",\"v\":\"5.2\",\"a\":\"amd64\",\"c\":\"5.3\"}\n".repeat(3);
    let mut body = lines.clone().into_bytes();
    let digest = Digest::compute(&body);
    let (method, path) = match random.below(8) {
        0 => {
            let kind = *random.one_of(&["packages", "updates", "", "..", "PACKAGES"]);
            let named = [vec![digest.to_string()], ids].concat();
            ("PUT", format!("/agent/v1/listings/{kind}/{}", random.one_of(&named)))
        }
        1 => {
            let offset = *random.one_of(&[
                "0",
                "-1",
                "18446744073709551615",
                "9223372036854775807",
                "4194303",
                "x",
                "",
            ]);
            ("POST", format!("/agent/v1/orders/{}/log?offset={offset}", random.one_of(&ids)))
        }
        _ => {
            let mut sync = full_sync(agent, &stolen[1 + random.below(2)], digest);
            for _ in 0..random.below(3) {
                let with = random.one_of(&values).clone();
                replace_somewhere(random, &mut sync, &with);
            }
            // A sync with this value would be held open.
            if sync["hold_seconds"]
                .as_u64()
                .is_some_and(|seconds| seconds > 0 && seconds <= u32::MAX.into())
            {
                sync["hold_seconds"] = json!(0);
            }
            body = sync.to_string().into_bytes();
            ("POST", "/agent/v1/sync".to_owned())
        }
    };
    if random.below(4) == 0 && !body.is_empty() {
        let at = random.below(body.len());
        body[at] ^= 1 << random.below(8);
    }
    if random.below(10) == 0 {
        body.truncate(random.below(body.len() + 1));
    }
    let mut request = agent.signed(method, &path, body);
    if random.below(6) == 0 {
        let name = *random.one_of(&[
            "content-encoding",
            "content-type",
            "fleetmend-nonce",
            "content-length",
            "x-request-id",
        ]);
        let value = *random.one_of(&[
            "zstd",
            "gzip",
            "",
            "application/xml",
            "99999999999999999999",
            "\u{7f}",
        ]);
        if let Ok(value) = value.parse() {
            request.headers_mut().insert(name, value);
        }
    }
    request
}

async fn malformed_requests_of_one_agent_do_not_affect_others(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut victim = Agent::join(&app, &token, "victim").await;
    let ended =
        service::commands::batches::create(&app, world.new_rollout(vec![victim.id], json!({})))
            .await
            .unwrap();
    let first = victim.wait_for_order().await;
    victim.send_log(first.id, 0, b"as it went\n").await.unwrap();
    victim.report_until_acknowledged(first.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, ended.id, "succeeded: succeeded").await;
    let running =
        service::commands::batches::create(&app, world.new_rollout(vec![victim.id], json!({})))
            .await
            .unwrap();
    let second = victim.wait_for_order().await;
    victim.report_stage(second.id, vocab::Stage::Installing, world.now());
    victim.sync(0).await.unwrap();
    wait_for_state(&app, world, running.id, "running: installing").await;
    let victim_id = victim.id;
    let state = async || {
        let mut reader = app.db.read().await.unwrap();
        let row = servers::get(&mut reader, world.org, victim_id).await.unwrap();
        let logs = store::task_logs::read(&mut reader, first.id, 0, 100).await.unwrap();
        format!(
            "{row:?} {:?} {:?} {logs:?}",
            tasks(&app, ended.id).await,
            tasks(&app, running.id).await
        )
    };
    eventually("the last sync is written", async || {
        let mut reader = app.db.read().await.unwrap();
        let row = servers::get(&mut reader, world.org, victim_id).await.unwrap();
        row.counter.unsigned_abs() == victim.counter
    })
    .await;
    let before = state().await;

    let stolen =
        [victim.id.to_string(), first.id.to_string(), second.id.to_string(), ended.id.to_string()];
    let mut random = Random(0x5eed_1234_5678_9abc);
    let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
    for attacker in 0..10 {
        let mut agent = Agent::join(&app, &token, &format!("web-{attacker}")).await;
        for nth in 0..250 {
            let request = malformed_request(&mut random, &agent, &stolen);
            let response = agent.router.clone().oneshot(request).await.unwrap();
            let status = response.status();
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
            let text = String::from_utf8_lossy(&body);
            assert!(!status.is_server_error(), "request {nth} of {attacker}: {status} {text}");
            *statuses.entry(status.as_u16()).or_default() += 1;
            if let Ok(answer) = serde_json::from_slice::<wire::agent::SyncResponse>(&body) {
                assert!(answer.orders.is_empty(), "it has no orders: {text}");
                agent.counter = answer.counter;
                agent.nonce += 1;
            }
        }
    }
    println!("{statuses:?}");
    let handled: u32 =
        statuses.iter().filter(|(status, _)| **status != 429).map(|(_, count)| count).sum();
    assert!(handled >= 1_500 && statuses[&200] >= 100, "{statuses:?}");
    assert_eq!(state().await, before);
    victim.report_until_acknowledged(second.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, running.id, "succeeded: succeeded").await;
    engine.stop().await;
}

testkit::both!(
    crate::support:
    malformed_requests_of_one_agent_do_not_affect_others,
);
