//! The agent protocol: who is accepted, and which of an agent's reports count.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use jiff::SignedDuration;
use serde_json::json;
use server::app::App;

use service::auth::enrollment_tokens as tokens;
use service::commands::refreshes;
use sqlx::Executor as _;
use store::enrollment_tokens::EnrollmentToken;
use store::{servers, task_logs};
use vocab::{Installed, Pending, Stage, listing};
use wire::v1::Activity;

use crate::agent::{Agent, enroll, rejection, send};
use crate::rollouts::tasks;
use crate::support::{World, at, eventually};

async fn server(app: &App, world: &World, agent: &Agent) -> servers::Server {
    servers::get(&mut app.db.read().await.unwrap(), world.org, agent.id).await.unwrap()
}

fn unauthorized(code: &str) -> (u16, String) {
    rejection(StatusCode::UNAUTHORIZED, code)
}

async fn token_settings_take_precedence_at_enrollment(world: &World) {
    let app = world.app("a").await;
    let token = world
        .token_with(&app, |token| EnrollmentToken {
            environment: Some("production".parse().unwrap()),
            ..token
        })
        .await;
    let agent = Agent::join(&app, &token, "web-1").await;
    let row = server(&app, world, &agent).await;
    assert_eq!(row.hostname.as_str(), "web-1");
    assert_eq!(row.environment, Some("production".parse().unwrap()));
    assert_eq!(row.tags, ["role=web".parse().unwrap()]);
    assert_eq!((row.public_key.clone(), row.counter), (agent.key(), 1));
}

/// The response was lost: the host must neither become two servers nor be locked out.
async fn repeated_enrollment_gets_the_same_response_and_no_second_use(world: &World) {
    let app = world.app("a").await;
    let token =
        world.token_with(&app, |token| EnrollmentToken { uses_max: Some(1), ..token }).await;
    let agent = Agent::join(&app, &token, "web-1").await;
    let again = enroll(&app, &token, &agent.key(), "web-1").await.unwrap();
    assert_eq!((again.server_id, again.tag), (agent.id, agent.tag.clone()));
    // Another host cannot enroll this way.
    assert_eq!(
        enroll(&app, &token, &[7; 32], "web-2").await.unwrap_err(),
        unauthorized("token_used_up")
    );
}

async fn every_enrollment_refusal_has_its_own_code(world: &World) {
    let app = world.app("a").await;
    let revoked =
        world.token_with(&app, |t| EnrollmentToken { revoked_at: Some(at(0)), ..t }).await;
    let expired =
        world.token_with(&app, |t| EnrollmentToken { expires_at: Some(at(0)), ..t }).await;
    let (unknown, _) = tokens::mint(&app.secrets, None);
    for (token, code) in [
        (revoked.as_str(), "token_revoked"),
        (&expired, "token_expired"),
        (&unknown, "bad_token"),
        ("fme_AAAA.plain", "bad_token"),
        ("", "bad_token"),
    ] {
        assert_eq!(enroll(&app, token, &[7; 32], "web-1").await.unwrap_err(), unauthorized(code));
    }
    let good = world.token(&app).await;
    let short = enroll(&app, &good, &[7; 31], "web-1").await.unwrap_err();
    assert_eq!(short, rejection(StatusCode::BAD_REQUEST, "malformed_request"));
}

/// The database is closed, so a request that still gets a response did not use it.
async fn forged_and_unchanged_syncs_need_no_database(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut agent = Agent::join(&app, &token, "web-1").await;
    let newcomer = Agent::join(&app, &token, "web-2").await;
    agent.sync(0).await.unwrap();
    app.db.close().await;

    agent.sync(0).await.expect("a sync without new content needs no database");
    let mut forged = agent.clone();
    forged.tag = newcomer.tag.clone();
    assert_eq!(forged.sync(0).await.unwrap_err(), unauthorized("bad_credential"));
    let mut request = agent.signed("POST", "/agent/v1/sync", agent.sync_body(0));
    *request.uri_mut() = "/agent/v1/sync?more=1".parse().unwrap();
    assert_eq!(send(&agent.router, request).await.unwrap_err(), unauthorized("bad_credential"));
    let mut request = agent.signed("POST", "/agent/v1/sync", agent.sync_body(0));
    *request.body_mut() = Body::from(agent.sync_body(1));
    assert_eq!(send(&agent.router, request).await.unwrap_err(), unauthorized("bad_credential"));
    for credential in ["", "Bearer fmk_x", "Agent id=x", "Agent id=,key=,tag=,sig="] {
        let request = Request::post("/agent/v1/sync").header("authorization", credential);
        let response = send(&agent.router, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.unwrap_err(), unauthorized("malformed_credential"), "{credential}");
    }
    let response = enroll(&app, "fme_AAAA.plain", &[7; 32], "web-3").await;
    assert_eq!(response.unwrap_err(), unauthorized("bad_token"));
    // An agent that only the database knows must wait.
    let unavailable = rejection(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    assert_eq!(newcomer.clone().sync(0).await.unwrap_err(), unavailable);
    assert_eq!(enroll(&app, &token, &[7; 32], "web-3").await.unwrap_err(), unavailable);
}

async fn package_set_is_uploaded_once_and_then_known_by_digest(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut second_agent = Agent::join(&app, &token, "web-2").await;
    let installed = listing::encode(&[
        Installed::new("bash", "5.1", "amd64"),
        Installed::new("curl", "7", "amd64"),
    ]);
    let mut fix = Pending::new("bash", "amd64", "5.1", "5.2");
    fix.security = true;
    let pending = listing::encode(&[fix, Pending::new("curl", "amd64", "7", "8")]);
    let (one, two) = (vocab::Digest::compute(&installed), vocab::Digest::compute(&pending));
    for agent in [&mut web, &mut second_agent] {
        agent.next_sync.installed = Some(one);
        agent.next_sync.pending = Some(two);
        agent.next_sync.scanned_at = Some(at(-60));
    }
    // Requested immediately, however long the agent is willing to wait.
    assert_eq!(web.sync(50).await.unwrap().wanted, [one, two]);
    assert_eq!(server(&app, world, &web).await.last_scan_at, None);
    web.upload("packages", one, installed.clone(), None).await.unwrap();
    let packed = zstd::bulk::compress(&pending, 3).unwrap();
    web.upload("updates", two, packed, Some("zstd")).await.unwrap();
    for agent in [&mut web, &mut second_agent] {
        assert_eq!(agent.sync(0).await.unwrap().wanted, []);
        let row = server(&app, world, agent).await;
        assert_eq!((row.package_set, row.update_set), (Some(one), Some(two)));
        assert_eq!((row.packages, row.updates, row.security_updates), (2, 2, 1));
        assert_eq!(row.last_scan_at, Some(at(-60)));
    }

    let asked = async |agent: &mut Agent, digest| {
        agent.next_sync.installed = Some(digest);
        assert_eq!(agent.sync(0).await.unwrap().wanted, [digest]);
    };
    asked(&mut web, two).await;
    let wrong = web.upload("packages", two, installed.clone(), None).await.unwrap_err();
    assert_eq!(wrong, rejection(StatusCode::UNPROCESSABLE_ENTITY, "digest_mismatch"));
    let junk = b"not JSON\n".to_vec();
    asked(&mut web, vocab::Digest::compute(&junk)).await;
    let malformed =
        web.upload("packages", vocab::Digest::compute(&junk), junk, None).await.unwrap_err();
    assert_eq!(malformed, rejection(StatusCode::UNPROCESSABLE_ENTITY, "malformed_listing"));
    let odd = web.upload("packages", one, installed.clone(), Some("gzip")).await.unwrap_err();
    assert_eq!(odd, rejection(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding"));
    let third = vocab::Digest::compute(b"a third package set");
    let unknown = web.upload("secrets", one, installed, None).await.unwrap_err();
    assert_eq!(unknown, rejection(StatusCode::NOT_FOUND, "not_found"));
    let line = format!("{{\"n\":\"bash\",\"v\":\"{}\"}}\n", "1".repeat(480)).into_bytes();
    let large = line.repeat(listing::BYTES_MAX / line.len() + 1);
    asked(&mut web, third).await;
    let large_one = web.upload("packages", third, large.clone(), None).await.unwrap_err();
    assert_eq!(large_one, rejection(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"));
    // However small it is when compressed.
    let bomb = zstd::bulk::compress(&large, 3).unwrap();
    assert!(bomb.len() < 10_000);
    let bomb = web.upload("packages", third, bomb, Some("zstd")).await.unwrap_err();
    assert_eq!(bomb, rejection(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"));
}

async fn one_of_many_servers_uploads_their_common_package_set(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut second_agent = Agent::join(&app, &token, "web-2").await;
    let installed = listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
    let digest = vocab::Digest::compute(&installed);
    web.next_sync.installed = Some(digest);
    second_agent.next_sync.installed = Some(digest);
    assert_eq!(web.sync(50).await.unwrap().wanted, [digest]);
    assert_eq!(web.sync(50).await.unwrap().wanted, [digest], "until it is uploaded");
    assert_eq!(
        second_agent.sync(0).await.unwrap().wanted,
        [],
        "an agent that cannot wait reports it again later"
    );
    let seen = second_agent.clone();
    let sends = async {
        web.sync(0).await.unwrap();
        web.upload("packages", digest, installed, None).await.unwrap();
        eventually("the other server has it too", async || {
            server(&app, world, &seen).await.package_set == Some(digest)
        })
        .await;
        app.gateway().drain();
    };
    let (answer, ()) = tokio::join!(second_agent.sync(50), sends);
    assert_eq!(answer.unwrap().wanted, []);
}

/// In quarantine the host may be two hosts, or a request may be captured: nothing that is
/// reported about the host is applied.
async fn replay_in_quarantine_does_not_change_facts(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.next_sync.facts = Some(serde_json::from_value(crate::agent::facts("old-name")).unwrap());
    let captured = web.sync_body(0);
    web.sync(0).await.unwrap();
    web.next_sync.facts = Some(serde_json::from_value(crate::agent::facts("new-name")).unwrap());
    // More syncs than are remembered.
    for _ in 0..70 {
        web.sync(0).await.unwrap();
    }
    let mut copy = web.clone();
    copy.counter = 3;
    copy.sync(0).await.unwrap();
    copy.sync(0).await.unwrap();
    for _ in 0..3 {
        let request = web.signed("POST", "/agent/v1/sync", captured.clone());
        send(&web.router, request).await.unwrap();
        let row = server(&app, world, &web).await;
        assert!(row.quarantine.is_some());
        assert_eq!(row.hostname.as_str(), "new-name");
    }
    let row = server(&app, world, &web).await;
    service::commands::servers::release(&app, &world.admin(), &row).await.unwrap();
}

/// The reports of many agents are written together: one agent's report must not fail those of
/// others.
async fn times_that_the_database_cannot_store_are_dropped(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    for time in [jiff::Timestamp::MIN, jiff::Timestamp::UNIX_EPOCH, jiff::Timestamp::MAX] {
        web.next_sync.scanned_at = Some(time);
        web.sync(0).await.unwrap();
        let scanned = server(&app, world, &web).await.last_scan_at;
        assert!(scanned.is_none_or(|at| at == world.now()), "{scanned:?}");
    }
}

async fn facts_and_activity_are_stored_when_they_change(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let before = server(&app, world, &web).await;
    web.sync(0).await.unwrap();
    assert_eq!(server(&app, world, &web).await.generation, before.generation);
    let mut facts: wire::agent::Facts =
        serde_json::from_value(crate::agent::facts("web-one")).unwrap();
    facts.reboot_required = true;
    web.next_sync.facts = Some(facts);
    web.next_sync.activity = wire::v1::Activity::Patching;
    web.sync(0).await.unwrap();
    let after = server(&app, world, &web).await;
    assert_eq!((after.hostname.as_str(), after.activity.as_str()), ("web-one", "patching"));
    assert!(after.reboot_required);
    // Once, not with every scan.
    web.sync(0).await.unwrap();
    let kinds = crate::rollouts::event_kinds(&app, world).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "server.reboot_required").count(), 1);
}

async fn clone_is_detected_and_gets_no_orders_until_released(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    let mut copy = web.clone();
    // The first contact of the clone may be a retry; the second is not.
    web.sync(0).await.unwrap();
    copy.sync(0).await.unwrap();
    assert_eq!(server(&app, world, &web).await.quarantine, None);
    web.sync(0).await.unwrap();
    copy.sync(0).await.unwrap();
    let row = server(&app, world, &web).await;
    assert!(row.quarantine.as_ref().unwrap().contains("clone"), "{row:?}");

    let made = service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    crate::rollouts::wait_for_state(&app, world, made.id, "running: waiting").await;
    assert!(web.orders(0).await.is_empty() && copy.orders(0).await.is_empty());

    // The server is released; the host that connects first is the genuine one.
    let row = server(&app, world, &web).await;
    service::commands::servers::release(&app, &world.admin(), &row).await.unwrap();
    assert_eq!(tasks(&app, made.id).await[0].task_id, web.wait_for_order().await.id);
    // The other host is challenged for its key, and has it.
    assert!(copy.orders(0).await.is_empty() && copy.orders(0).await.is_empty());
    assert!(server(&app, world, &web).await.quarantine.is_some());
    engine.stop().await;
}

async fn repeated_sync_after_a_lost_response_is_not_a_clone(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    for _ in 0..3 {
        let lost = web.signed("POST", "/agent/v1/sync", web.sync_body(0));
        send(&web.router, lost).await.unwrap();
        web.sync(0).await.unwrap();
    }
    // The database was restored from a backup, which lacks some syncs.
    web.counter += 100;
    assert!(web.sync(0).await.unwrap().wants_facts);
    assert!(!web.sync(0).await.unwrap().wants_facts);
    assert_eq!(server(&app, world, &web).await.quarantine, None);
}

/// An agent abandons a sync when it has something new, and sends the same counter again; the
/// first may arrive last.
async fn overtaken_sync_is_not_a_clone_and_gets_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    web.wait_for_order().await;
    let mut let_go = Vec::new();
    for hold in [0, 50, 50, 50, 50] {
        let_go.push(web.signed("POST", "/agent/v1/sync", web.sync_body(hold)));
        assert_eq!(web.orders(0).await.len(), 1, "an order is sent with every response");
    }
    // The last of them was repeated, and the first is too old by now.
    for late in let_go.drain(1..4) {
        let answer = send(&web.router, late).await.unwrap();
        let answer: wire::agent::SyncResponse = serde_json::from_slice(&answer).unwrap();
        assert!(answer.orders.is_empty());
    }
    send(&web.router, let_go.remove(0)).await.unwrap();
    assert_eq!(server(&app, world, &web).await.quarantine, None);
    engine.stop().await;
}

/// Somebody on the network captures requests and replays them.
async fn replayed_sync_changes_nothing_and_quarantines_no_server(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.next_sync.facts = serde_json::from_value(crate::agent::facts("captured")).ok();
    let captured = web.sync_body(0);
    web.sync(0).await.unwrap();
    web.next_sync.facts = serde_json::from_value(crate::agent::facts("web-1")).ok();
    web.sync(0).await.unwrap();
    web.sync(0).await.unwrap();
    let seen = app.gateway().last_seen(web.id);
    world.minutes(5);
    let replayed = web.signed("POST", "/agent/v1/sync", captured);
    send(&web.router, replayed).await.unwrap();
    let row = server(&app, world, &web).await;
    assert_eq!((row.hostname.as_str(), row.quarantine), ("web-1", None));
    assert_eq!(app.gateway().last_seen(web.id), seen);
}

/// A restarted service does not remember earlier requests. Somebody replays all of them, in
/// order and repeatedly; the agent is online or has just been restarted itself.
async fn replay_of_everything_after_a_restart_changes_nothing(world: &World) {
    let before = world.app("a").await;
    let token = world.token(&before).await;
    let mut web = Agent::join(&before, &token, "web-1").await;
    let mut captured = Vec::new();
    for number in 0..70 {
        web.next_sync.facts =
            serde_json::from_value(crate::agent::facts(&format!("web-{number}"))).ok();
        captured.push(web.sync_body(0));
        web.sync(0).await.unwrap();
    }
    before.gateway().flush().await;
    let app = world.app("a").await;
    web.switch_to(&app);
    for contact in 0..3 {
        // As many as the rate limit of an agent permits.
        for body in captured.iter().chain(&captured[10..20]).skip(contact).step_by(1 + 6 * contact)
        {
            let request = web.signed("POST", "/agent/v1/sync", body.clone());
            send(&web.router, request).await.unwrap();
        }
        let row = server(&app, world, &web).await;
        assert_eq!((row.hostname.as_str(), row.quarantine), ("web-69", None), "{contact}");
        web.next_sync.facts = None;
        captured.push(web.sync_body(0));
        web.sync(0).await.unwrap();
    }
    // A challenge that a clone answered is useless later.
    let mut copy = web.clone();
    copy.counter = 5;
    copy.sync(0).await.unwrap();
    let met = copy.sync_body(0);
    copy.sync(0).await.unwrap();
    let row = server(&app, world, &web).await;
    assert!(row.quarantine.is_some());
    service::commands::servers::release(&app, &world.admin(), &row).await.unwrap();
    web.sync(0).await.unwrap();
    world.minutes(121);
    let request = web.signed("POST", "/agent/v1/sync", met);
    send(&web.router, request).await.unwrap();
    assert_eq!(server(&app, world, &web).await.quarantine, None);
}

/// An eavesdropper immediately replays every sync. The waiting agent still gets its order.
async fn sync_repeated_by_an_eavesdropper_is_still_answered(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    let captured = web.sync_body(50);
    let repeat = || {
        let (door, request) =
            (web.router.clone(), web.signed("POST", "/agent/v1/sync", captured.clone()));
        tokio::spawn(async move { send(&door, request).await })
    };
    world.advance(jiff::SignedDuration::from_secs(1));
    let own = repeat();
    let now = world.now();
    eventually("it is held", async || app.gateway().last_seen(web.id) == Some(now)).await;
    let mut others = Vec::new();
    for _ in 0..20 {
        others.push(repeat());
        tokio::task::yield_now().await;
    }
    let order = world.new_rollout(vec![web.id], json!({"packages": ["bash"]}));
    service::commands::batches::create(&app, order).await.unwrap();
    let response = own.await.unwrap().unwrap();
    let response: wire::agent::SyncResponse = serde_json::from_slice(&response).unwrap();
    assert_eq!(response.orders.len(), 1);
    for other in others {
        let _ = other.await.unwrap();
    }
    engine.stop().await;
}

/// A clone was detected, and everything that it and the host sent was captured. After the
/// release, replaying it has no effect; only a clone that is still running is detected.
async fn captured_requests_have_no_effect_after_a_release(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut copy = web.clone();
    let mut captured = Vec::new();
    let mut both = async |of: &mut Agent, name: &str| {
        of.next_sync.facts = serde_json::from_value(crate::agent::facts(name)).ok();
        captured.push(of.sync_body(0));
        of.sync(0).await.unwrap();
    };
    for _ in 0..5 {
        both(&mut web, "web-1").await;
    }
    copy.nonce = 5;
    for _ in 0..12 {
        both(&mut copy, "copy").await;
    }
    for _ in 0..2 {
        both(&mut web, "web-1").await;
    }
    for round in 0..2 {
        let row = server(&app, world, &web).await;
        assert!(row.quarantine.is_some(), "{round}");
        service::commands::servers::release(&app, &world.admin(), &row).await.unwrap();
        let replay = async || {
            for body in &captured {
                let _ = send(&web.router, web.signed("POST", "/agent/v1/sync", body.clone())).await;
            }
            let row = server(&app, world, &web).await;
            assert_eq!((row.hostname.as_str(), row.quarantine), ("web-1", None), "{round}");
        };
        eventually("the release is known", async || app.gateway().last_seen(web.id).is_none())
            .await;
        replay().await;
        let mut host = web.clone();
        host.sync(0).await.unwrap();
        replay().await;
        host.sync(0).await.unwrap();
        replay().await;
        host.sync(0).await.unwrap();
        assert_eq!(server(&app, world, &web).await.quarantine, None, "{round}");
        // A live clone is detected again.
        let mut copy = host.clone();
        copy.counter = 3;
        copy.sync(0).await.unwrap();
        copy.sync(0).await.unwrap();
        web = host;
    }
    engine.stop().await;
}

async fn repeated_bytes_are_no_heartbeat_and_older_content_is_ignored(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    // The agent abandoned the first one, because it had something new.
    web.next_sync.facts = serde_json::from_value(crate::agent::facts("older")).ok();
    let older = web.sync_body(0);
    send(&web.router, web.signed("POST", "/agent/v1/sync", older.clone())).await.unwrap();
    web.next_sync.facts = serde_json::from_value(crate::agent::facts("newer")).ok();
    let newer = web.sync_body(0);
    web.sync(0).await.unwrap();
    let seen = app.gateway().last_seen(web.id);
    world.minutes(5);
    for body in [&older, &newer, &older, &newer] {
        send(&web.router, web.signed("POST", "/agent/v1/sync", body.clone())).await.unwrap();
    }
    assert_eq!(server(&app, world, &web).await.hostname.as_str(), "newer");
    assert_eq!(app.gateway().last_seen(web.id), seen);
    web.sync(0).await.unwrap();
    assert_eq!(app.gateway().last_seen(web.id), Some(world.now()));
}

/// The service was restarted and has no sessions yet.
async fn first_contact_with_an_old_counter_gets_no_orders(world: &World) {
    let (before, engine) = world.leader("a").await;
    let token = world.token(&before).await;
    let mut web = Agent::join(&before, &token, "web-1").await;
    let mut second_agent = Agent::join(&before, &token, "web-2").await;
    let captured = web.sync_body(0);
    for _ in 0..3 {
        web.sync(0).await.unwrap();
    }
    let order = world.new_rollout(vec![web.id, second_agent.id], json!({"packages": ["bash"]}));
    service::commands::batches::create(&before, order).await.unwrap();
    web.wait_for_order().await;
    second_agent.wait_for_order().await;
    engine.stop().await;
    let (app, engine) = world.leader("a").await;
    web.switch_to(&app);
    // The order of another server was loaded again, so this server's was too.
    second_agent.switch_to(&app);
    second_agent.wait_for_order().await;
    let response = send(&web.router, web.signed("POST", "/agent/v1/sync", captured)).await;
    let response: wire::agent::SyncResponse = serde_json::from_slice(&response.unwrap()).unwrap();
    assert_eq!(response.orders.len(), 0);
    web.wait_for_order().await;
    engine.stop().await;
}

async fn sync_of_a_clone_changes_nothing_but_the_quarantine(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut copy = web.clone();
    copy.nonce = 77;
    copy.next_sync.facts = serde_json::from_value(crate::agent::facts("copy")).ok();
    for _ in 0..3 {
        web.sync(0).await.unwrap();
    }
    let seen = app.gateway().last_seen(web.id);
    world.minutes(5);
    assert!(copy.orders(0).await.is_empty());
    let row = server(&app, world, &web).await;
    assert_eq!(row.hostname.as_str(), "web-1");
    assert!(row.quarantine.is_some());
    assert_eq!(app.gateway().last_seen(web.id), seen);
}

/// Its first contact looks like a replay of an old request.
async fn restored_snapshot_is_detected_at_its_second_contact(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut copy = web.clone();
    for _ in 0..10 {
        web.sync(0).await.unwrap();
    }
    copy.sync(0).await.unwrap();
    assert_eq!(server(&app, world, &web).await.quarantine, None);
    copy.sync(0).await.unwrap();
    assert!(server(&app, world, &web).await.quarantine.is_some());
}

async fn heartbeat_and_counter_are_written_together_later(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    world.advance(SignedDuration::from_secs(90));
    web.sync(0).await.unwrap();
    eventually("the heartbeat is written", async || {
        let row = server(&app, world, &web).await;
        row.last_seen_at == at(90) && row.counter == 2
    })
    .await;
    // What is not written yet is written at shutdown.
    world.advance(SignedDuration::from_secs(90));
    web.sync(0).await.unwrap();
    engine.stop().await;
    assert_eq!(server(&app, world, &web).await.last_seen_at, at(180));
}

/// A connection was cut and the service has not noticed: the order must go to the new one.
async fn repeated_sync_replaces_the_held_one(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    let lost = web.signed("POST", "/agent/v1/sync", web.sync_body(50));
    let door = web.router.clone();
    let lost = tokio::spawn(async move { send(&door, lost).await.unwrap() });
    eventually("it is held", async || {
        app.db.ping().await.unwrap();
        app.gateway().last_seen(web.id).is_some()
    })
    .await;
    let again = web.orders(0).await;
    let lost: wire::agent::SyncResponse = serde_json::from_slice(&lost.await.unwrap()).unwrap();
    assert!(again.is_empty() && lost.orders.is_empty());
    service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    web.wait_for_order().await;
    engine.stop().await;
}

/// The database is busy. An agent reports that it scans, abandons that sync, and reports that it is
/// done: both reports are queued, and the abandoned one must not be what stays.
async fn abandoned_report_is_not_written_after_a_newer_one(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut other = Agent::join(&app, &token, "other").await;
    web.sync(0).await.unwrap();
    other.sync(0).await.unwrap();
    let refresh = refreshes::request(&app, &world.admin(), web.id).await.unwrap();
    assert_eq!(web.wait_for_order().await.id, refresh.id);
    let mut tx = app.db.begin().await.unwrap();
    servers::set_root_key(&mut tx, other.id, "busy").await.unwrap();
    world.advance(SignedDuration::from_secs(5));
    let heard = async |agent| {
        eventually("it is heard", async || app.gateway().last_seen(agent) == Some(world.now()))
            .await;
    };
    let other_id = other.id;
    other.next_sync.activity = Activity::Scanning;
    let blocked = tokio::spawn(async move { other.sync(0).await.map(drop) });
    heard(other_id).await;
    // The abandoned sync: it reports the stage of the order.
    world.advance(SignedDuration::from_secs(5));
    web.next_sync.activity = Activity::Scanning;
    web.report_stage(refresh.id, Stage::Preflight, world.now());
    let request = web.signed("POST", "/agent/v1/sync", web.sync_body(0));
    let router = web.router.clone();
    let abandoned = tokio::spawn(async move { send(&router, request).await.map(drop) });
    heard(web.id).await;
    // The next one has the same counter, and nothing to report on the order.
    world.advance(SignedDuration::from_secs(5));
    web.next_sync.activity = Activity::Idle;
    web.next_sync.progress.clear();
    let (id, mut again) = (web.id, web.clone());
    let newest = tokio::spawn(async move { again.sync(0).await.map(drop) });
    heard(id).await;
    tx.rollback().await.unwrap();
    for request in [blocked, abandoned, newest] {
        request.await.unwrap().unwrap();
    }
    assert_eq!(server(&app, world, &web).await.activity, "idle");
    engine.stop().await;
}

async fn held_syncs_are_answered_at_shutdown(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    let held = tokio::spawn(async move { web.sync(50).await });
    engine.stop().await;
    assert!(held.await.unwrap().unwrap().orders.is_empty());
}

async fn log_chunks_are_appended_once(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let other = Agent::join(&app, &token, "web-2").await;
    service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    let task = web.wait_for_order().await.id;
    web.send_log(task, 0, b"reading lists\n").await.unwrap();
    web.send_log(task, 0, b"reading lists\n").await.unwrap();
    web.send_log(task, 8, b"lists\nunpacking\n").await.unwrap();
    assert_eq!(
        web.send_log(task, 99, b"x").await.unwrap_err(),
        rejection(StatusCode::CONFLICT, "log_gap")
    );
    assert_eq!(read(&app, task).await, b"reading lists\nunpacking\n");
    assert_eq!(
        other.send_log(task, 24, b"x").await.unwrap_err(),
        rejection(StatusCode::NOT_FOUND, "not_found")
    );
    let large = vec![b'x'; 256 * 1024 + 1];
    let refusal = web.send_log(task, 24, &large).await.unwrap_err();
    assert_eq!(refusal, rejection(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"));
    // Four megabytes, then a truncation notice, then nothing more.
    let mut end = 24;
    for _ in 0..20 {
        web.send_log(task, end, &large[1..]).await.unwrap();
        end += large.len() - 1;
    }
    let log = read(&app, task).await;
    let notice = b"\n[log truncated here: size limit reached]\n";
    assert!(log.ends_with(&[b"x", &notice[..]].concat()));
    assert_eq!(log.len(), 4 * 1024 * 1024 + notice.len());
    engine.stop().await;
}

async fn invalid_and_oversized_syncs_are_rejected(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    let malformed = rejection(StatusCode::BAD_REQUEST, "malformed_request");
    for body in ["", "{}", "[]", "{\"boot_id\":1}", "\u{0}"] {
        let request = web.signed("POST", "/agent/v1/sync", body.into());
        assert_eq!(send(&web.router, request).await.unwrap_err(), malformed);
    }
    let request = web.signed("POST", "/agent/v1/sync", vec![b' '; 1024 * 1024 + 1]);
    let large = rejection(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large");
    assert_eq!(send(&web.router, request).await.unwrap_err(), large);
    let request = Request::get("/agent/v1/sync").body(Body::empty()).unwrap();
    let method = rejection(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
    assert_eq!(send(&gateway::router(app.gateway()), request).await.unwrap_err(), method);
}

testkit::both!(
    crate::support:
    token_settings_take_precedence_at_enrollment,
    repeated_enrollment_gets_the_same_response_and_no_second_use,
    every_enrollment_refusal_has_its_own_code,
    forged_and_unchanged_syncs_need_no_database,
    package_set_is_uploaded_once_and_then_known_by_digest,
    one_of_many_servers_uploads_their_common_package_set,
    replay_in_quarantine_does_not_change_facts,
    times_that_the_database_cannot_store_are_dropped,
    facts_and_activity_are_stored_when_they_change,
    clone_is_detected_and_gets_no_orders_until_released,
    repeated_sync_after_a_lost_response_is_not_a_clone,
    overtaken_sync_is_not_a_clone_and_gets_nothing,
    replayed_sync_changes_nothing_and_quarantines_no_server,
    replay_of_everything_after_a_restart_changes_nothing,
    sync_repeated_by_an_eavesdropper_is_still_answered,
    captured_requests_have_no_effect_after_a_release,
    repeated_bytes_are_no_heartbeat_and_older_content_is_ignored,
    first_contact_with_an_old_counter_gets_no_orders,
    sync_of_a_clone_changes_nothing_but_the_quarantine,
    restored_snapshot_is_detected_at_its_second_contact,
    heartbeat_and_counter_are_written_together_later,
    repeated_sync_replaces_the_held_one,
    abandoned_report_is_not_written_after_a_newer_one,
    held_syncs_are_answered_at_shutdown,
    log_chunks_are_appended_once,
    invalid_and_oversized_syncs_are_rejected,
);

async fn read(app: &App, task: vocab::TaskId) -> Vec<u8> {
    let mut reader = app.db.read().await.unwrap();
    let chunks = task_logs::read(&mut reader, task, 0, 1_000).await.unwrap();
    chunks.into_iter().flat_map(|chunk| chunk.body).collect()
}

/// Only on PostgreSQL can a reader be blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnecting_fleet_leaves_database_connections_for_others() {
    crate::support::postgres(async |world: &World| {
        let app = world.app("before").await;
        let token = world.token(&app).await;
        let mut fleet = Vec::new();
        for number in 0..24 {
            fleet.push(Agent::join(&app, &token, &format!("web-{number}")).await);
        }
        app.db.close().await;
        let app = world.app("after").await;
        let mut stuck = world.postgres_connection().await;
        stuck.execute("begin; lock table servers in access exclusive mode").await.unwrap();
        let syncs = fleet.into_iter().map(|mut agent| {
            agent.switch_to(&app);
            tokio::spawn(async move { agent.sync(0).await.map(drop) })
        });
        let syncs: Vec<_> = syncs.collect();
        let mut watch = world.postgres_connection().await;
        eventually("agents wait for the database", async || {
        let waiting =
            "select count(*) from pg_locks where not granted and relation = 'servers'::regclass";
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut watch).await.unwrap() >= 3
    })
    .await;
        let others = futures_util::future::join_all((0..5).map(|_| app.db.read()));
        let others = tokio::time::timeout(Duration::from_secs(5), others).await;
        assert!(others.expect("a database connection is left").iter().all(Result::is_ok));
        stuck.execute("rollback").await.unwrap();
        for sync in syncs {
            sync.await.unwrap().unwrap();
        }
        app.db.close().await;
    })
    .await;
}
