//! What one agent's key can do to the service: attacks with a genuine key, and what they cost.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::future::join_all;
use serde_json::json;
use store::listings::Kind;
use store::{listings, servers};
use tower::ServiceExt as _;
use vocab::{Digest, Installed, listing};
use wire::agent::Facts;

use crate::agent::{Agent, facts, refused, send};
use crate::support::both;

/// A list of updates of nearly 16 MiB that takes some kilobytes when packed, and much memory when
/// it is parsed as a whole: thousands of empty references on each line.
fn bomb(mark: &str) -> (Digest, Vec<u8>) {
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
    (Digest::of(text.as_bytes()), packed)
}

/// A list of nearly 16 MiB that is as it should be, and takes little when packed.
fn large(mark: &str) -> (Digest, Vec<u8>) {
    let version = "1".repeat(380);
    let lines = (0..39_000).map(|n| format!("{{\"n\":\"{mark}-{n:05}\",\"c\":\"{version}\"}}\n"));
    let text: String = lines.collect();
    assert!(text.len() > listing::BYTES_MAX * 9 / 10 && text.len() < listing::BYTES_MAX);
    (Digest::of(text.as_bytes()), zstd::bulk::compress(text.as_bytes(), 3).unwrap())
}

/// The most memory that this process ever used, in MiB.
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

both! {
    async fn a_list_that_was_not_asked_for_is_refused(world: World) {
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let web = Agent::join(&app, &token, "web-1").await;
        let mut other = Agent::join(&app, &token, "web-2").await;
        let bytes = listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
        let digest = Digest::of(&bytes);
        let unwanted = refused(StatusCode::CONFLICT, "listing_not_wanted");
        assert_eq!(web.uploads("packages", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
        // Not either if another server was asked, and not under another kind.
        other.says.installed = Some(digest);
        assert_eq!(other.sync(0).await.unwrap().wanted, [digest]);
        assert_eq!(web.uploads("packages", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
        assert_eq!(other.uploads("updates", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
        let mut reader = app.db.read().await.unwrap();
        assert!(listings::get(&mut reader, world.org, Kind::Packages, digest).await.is_err(), "nothing is kept");
        drop(reader);
        // A request to upload does not hold forever.
        world.minutes(16);
        assert_eq!(other.uploads("packages", digest, bytes.clone(), None).await.unwrap_err(), unwanted);
        assert_eq!(other.sync(0).await.unwrap().wanted, [digest]);
        other.uploads("packages", digest, bytes, None).await.unwrap();
    }

    async fn a_list_that_one_replica_asked_for_may_go_to_another(world: World) {
        let (a, b) = (world.app("a").await, world.app("b").await);
        let token = world.token(&a).await;
        let mut web = Agent::join(&a, &token, "web-1").await;
        let bytes = listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
        let digest = Digest::of(&bytes);
        web.says.installed = Some(digest);
        assert_eq!(web.sync(0).await.unwrap().wanted, [digest]);
        web.moves_to(&b);
        web.uploads("packages", digest, bytes, None).await.unwrap();
        web.moves_to(&a);
        assert_eq!(web.sync(0).await.unwrap().wanted, []);
    }

    async fn packed_bombs_at_once_take_little_memory(world: World) {
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let mut agents = Vec::new();
        for nth in 0..24 {
            let mut agent = Agent::join(&app, &token, &format!("web-{nth}")).await;
            let mark = format!("p{nth}");
            let (digest, packed) = if nth % 2 == 0 { bomb(&mark) } else { large(&mark) };
            agent.says.pending = Some(digest);
            assert_eq!(agent.sync(0).await.unwrap().wanted, [digest]);
            agents.push((agent, digest, packed));
        }
        let before = peak_mib();
        let sent = agents.iter().map(|(agent, digest, packed)| {
            send(&agent.door, upload(agent, *digest, packed))
        });
        let answers = join_all(sent).await;
        let grown = peak_mib() - before;
        println!("24 bombs at once: {grown} MiB");
        // One of them alone used to take 245 MiB. Other tests run in the same process.
        assert!(grown < 400, "{grown} MiB");
        for (nth, answer) in answers.into_iter().enumerate() {
            // Half of them have more references than a list may have.
            let malformed = refused(StatusCode::UNPROCESSABLE_ENTITY, "malformed_listing");
            assert_eq!(answer.err(), (nth % 2 == 0).then_some(malformed));
        }
    }

    async fn one_agent_uploads_one_list_at_a_time(world: World) {
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let mut web = Agent::join(&app, &token, "web-1").await;
        let (digest, packed) = bomb("p");
        web.says.pending = Some(digest);
        web.sync(0).await.unwrap();
        let answers = join_all((0..8).map(|_| {
            let request = upload(&web, digest, &packed);
            web.door.clone().oneshot(request)
        })).await;
        let (mut tried, mut refused) = (0, 0);
        for answer in answers {
            let answer = answer.unwrap();
            match answer.status() {
                StatusCode::TOO_MANY_REQUESTS => {
                    assert!(answer.headers().contains_key("retry-after"));
                    refused += 1;
                }
                status => {
                    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
                    tried += 1;
                }
            }
        }
        assert_eq!(tried + refused, 8);
        assert!(refused >= 1, "{tried} were tried");
    }

    async fn a_frame_with_a_huge_window_is_refused(world: World) {
        use std::io::Write as _;
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let mut web = Agent::join(&app, &token, "web-1").await;
        let bytes = listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
        let digest = Digest::of(&bytes);
        web.says.installed = Some(digest);
        web.sync(0).await.unwrap();
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.include_contentsize(false).unwrap();
        encoder.write_all(&bytes).unwrap();
        encoder.flush().unwrap();
        let packed = encoder.finish().unwrap();
        let answer = web.uploads("packages", digest, packed, Some("zstd")).await.unwrap_err();
        assert_eq!(answer, refused(StatusCode::BAD_REQUEST, "malformed_request"));
    }

    async fn an_agent_that_floods_is_held_up_and_no_other_is(world: World) {
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
        assert_eq!(limited, Some(refused(StatusCode::TOO_MANY_REQUESTS, "rate_limited")));
        other.sync(0).await.unwrap();
    }

    async fn lists_in_facts_are_cut_and_reports_beyond_reason_refused(world: World) {
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let mut web = Agent::join(&app, &token, "web-1").await;
        let mut told = facts("web-1");
        told["reboot_required"] = json!(true);
        told["reboot_reasons"] = json!(vec!["x".repeat(1_000); 900]);
        told["other_updaters"] = json!(vec!["y"; 1_000]);
        let told: Facts = serde_json::from_value(told).unwrap();
        web.says.facts = Some(told);
        web.sync(0).await.unwrap();
        let row = servers::get(&mut app.db.read().await.unwrap(), world.org, web.id).await.unwrap();
        assert_eq!(row.reboot_reasons.len(), 50);
        assert!(row.reboot_reasons.iter().all(|reason| reason.chars().count() <= 500));
        assert_eq!(row.facts["other_updaters"].as_array().unwrap().len(), 50);

        let task: vocab::TaskId = "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap();
        for _ in 0..1_001 {
            web.reaches(task, vocab::Stage::Installing, world.now());
        }
        let refusal = web.sync(0).await.unwrap_err();
        assert_eq!(refusal, refused(StatusCode::UNPROCESSABLE_ENTITY, "too_many_reports"));
    }
}
