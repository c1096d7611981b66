//! Rotation of `root.key`: what was made with the old key works until that key is retired, and
//! nothing genuine is ever treated as forged.

use agent_client::ClientError;
use axum::body::Body;
use axum::http::Request;
use jiff::SignedDuration;
use serde_json::{Value, json};
use server::app::App;
use server::background;
use service::auth::api_keys as keys;
use service::auth::api_keys::NewKey;
use service::auth::root_keys;
use service::auth::root_keys::{KeyMismatch, OldKeyDependents, OpenError, old_key_dependents};
use service::auth::sessions::{self, Client};
use service::auth::two_factor as second;
use service::auth::two_factor::PendingSignIn;
use service::auth::users;
use service::auth::users::SignInOutcome;
use service::clock::Clock;
use service::secrets::Secrets;

use service::audit_anchor;
use service::auth::totp;
use service::commands::setup;
use store::audit;
use tower::ServiceExt as _;
use vocab::Role;
use wire::agent::Outcome;

use crate::agent::Agent as OldAgent;
use crate::key_rotation::{Agent, client_for};
use crate::rollouts::event_kinds;
use crate::support::{INTERVALS, World, eventually};
use crate::tampering::{count_alarms, hourly_from_now};

const PASSWORD: &str = "correct horse battery staple";

async fn new_key(app: &App, world: &World, name: &str) -> String {
    let new = NewKey { name: name.into(), role: Role::Admin, environments: None, expires_at: None };
    keys::create(app, &world.admin(), new).await.unwrap().1
}

/// Calls the API. Returns the status and the body.
async fn call_api(
    app: &App,
    method: &str,
    path: &str,
    key: &str,
    once: Option<&str>,
) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("authorization", format!("Bearer {key}"));
    request = request.header("content-type", "application/json");
    if let Some(once) = once {
        request = request.header("idempotency-key", once);
    }
    let body = if method == "POST" { Body::from("{}") } else { Body::empty() };
    let router = server::router(app);
    let response = router.oneshot(request.body(body).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

async fn old_key_dependence(app: &App) -> OldKeyDependents {
    let mut reader = app.db.read().await.unwrap();
    old_key_dependents(&mut reader, app.secrets.root_key_id(), app.clock.now()).await.unwrap()
}

/// Where the audit log does not verify.
async fn first_invalid_entry(app: &App, world: &World) -> Option<i64> {
    let mut reader = app.db.snapshot().await.unwrap();
    audit::first_broken(&mut reader, world.org, &setup::seal(&app.secrets)).await.unwrap()
}

async fn any_alarm(app: &App, world: &World) -> Option<String> {
    let events = event_kinds(app, world).await;
    events.into_iter().find(|kind| kind.ends_with(".tampered") || kind == "audit.cut")
}

/// Signs in with the second factor.
async fn sign_in(app: &App, world: &World, secret: &str) -> Option<String> {
    let first = users::sign_in(app, Some(world.org), "ann", PASSWORD, false, &Client::default())
        .await
        .unwrap();
    let SignInOutcome::NeedsCode { ticket } = first else { panic!("{first:?}") };
    let first = PendingSignIn::read(app, &ticket).await.unwrap()?;
    // A code can be used once.
    world.advance(SignedDuration::from_secs(60));
    let code = totp::current_code(secret, world.now());
    match second::sign_in(app, first, &code, &Client::default()).await.unwrap() {
        SignInOutcome::SignedIn(_, session) => Some(session),
        _ => None,
    }
}

async fn everything_survives_rotation_and_a_retired_key_has_no_effect(world: &World) {
    let dir = world.data_dir();
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let link = client_for(&app).await;
    let mut web = Agent::join(&link, &token, "web-1").await;
    let mut old = OldAgent::join(&app, &token, "old-1").await;
    let key = new_key(&app, world, "ci").await;
    let (user, invitation) = users::invite(&app, &world.admin(), "ann", Role::Admin).await.unwrap();
    let (_, session) = users::accept_invitation(&app, &invitation, PASSWORD, &Client::default())
        .await
        .unwrap()
        .unwrap();
    let (_, ann) = sessions::find(&app, &session).await.unwrap().unwrap();
    let secret = second::new_secret();
    second::turn_on(&app, &ann, &secret, &totp::current_code(&secret, world.now())).await.unwrap();
    let (_, invited) = users::invite(&app, &world.admin(), "bob", Role::Viewer).await.unwrap();
    let schedule = hourly_from_now(&app, world).await;
    let servers = vec![web.identity.server_id, old.id];
    let created = service::commands::batches::create(
        &app,
        world.new_rollout(servers, json!({"packages": ["bash"]})),
    );
    let batch = created.await.unwrap().id;
    let (_, begun) = web.wait_for_order().await;
    let once = Some("again");
    let (status, first) = call_api(&app, "POST", "/v1/enrollment-tokens", &key, once).await;
    assert_eq!(status, 201, "{first}");
    audit_anchor::check(&app, dir).await.unwrap();
    engine.stop().await;
    app.db.close().await;

    // The service is restarted with a new key.
    let before = Secrets::load(dir).unwrap();
    Secrets::rotate_root(dir).unwrap();
    assert!(Secrets::rotate_root(dir).is_err(), "an old key is never replaced");
    let (app, engine) = world.leader("b").await;
    assert_eq!(app.secrets.old_root_key_id(), Some(before.root_key_id()));
    assert_eq!(first_invalid_entry(&app, world).await, None);
    assert!(audit_anchor::check(&app, dir).await.unwrap().is_empty());
    let (_, again) = call_api(&app, "POST", "/v1/enrollment-tokens", &key, once).await;
    assert_eq!(again, first, "the stored response");
    assert_eq!(sessions::find(&app, &session).await.unwrap().unwrap().1.id, user.id);
    assert!(users::user_of_link(&app, &invited).await.unwrap().is_some());
    let found = old_key_dependence(&app).await;
    assert_eq!((found.api_keys.count, found.agents.count), (1, 2));
    assert_eq!(found.api_keys.first[0].0, "ci");
    assert_eq!(found.enrollment_tokens.count, 2);
    // The agent's tag is renewed, and its order continues.
    let before_tag = web.identity.tag.get();
    web.client = client_for(&app).await;
    web.sync().await.unwrap();
    assert_ne!(web.identity.tag.get(), before_tag);
    assert_eq!(web.sync().await.unwrap().renewed_tag, None);
    web.report_success(&begun).await;
    // An agent without support for this works as before.
    old.switch_to(&app);
    let order = old.wait_for_order().await;
    old.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    eventually("the batch ended", async || {
        let mut reader = app.db.read().await.unwrap();
        store::rollouts::get(&mut reader, world.org, batch).await.unwrap().ended_at.is_some()
    })
    .await;
    let found = old_key_dependence(&app).await;
    let left: Vec<_> = found.agents.first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(left, ["old-1"]);
    // The second factor works before and after it is re-encrypted.
    assert!(sign_in(&app, world, &secret).await.is_some());
    assert!(root_keys::reseal(&app).await.unwrap().is_empty());
    let session = sign_in(&app, world, &secret).await.unwrap();
    assert_eq!(first_invalid_entry(&app, world).await, None);
    assert!(audit_anchor::check(&app, dir).await.unwrap().is_empty());
    let late = new_key(&app, world, "late").await;
    assert_eq!(
        old_key_dependence(&app).await.api_keys.count,
        1,
        "the new API key uses the new root key"
    );
    engine.stop().await;

    // The old key is retired, and everything that is left was made with the new key.
    let retired = app.secrets.old_root_key_id().unwrap().to_owned();
    root_keys::retire(&app, &retired, &json!({"key": "root"})).await.unwrap();
    app.db.close().await;
    // A crash before the file is deleted does no harm.
    let app = world.app("c").await;
    assert_eq!(app.secrets.old_root_key_id(), None);
    app.db.close().await;
    Secrets::retire_root(dir).unwrap();
    let (app, engine) = world.leader("d").await;
    assert_eq!(first_invalid_entry(&app, world).await, None);
    assert!(audit_anchor::check(&app, dir).await.unwrap().is_empty());
    assert_eq!(call_api(&app, "GET", "/v1/servers", &key, None).await.0, 401);
    assert_eq!(call_api(&app, "GET", "/v1/servers", &late, None).await.0, 200);
    assert!(sessions::find(&app, &session).await.unwrap().is_some());
    assert!(users::user_of_link(&app, &invited).await.unwrap().is_none());
    assert!(sign_in(&app, world, &secret).await.is_some());
    web.client = client_for(&app).await;
    web.sync().await.unwrap();
    old.switch_to(&app);
    assert_eq!(old.sync(0).await.unwrap_err().0, 401);
    web.identity.tag.replace(&before_tag);
    let refused = web.sync().await;
    assert!(
        matches!(&refused, Err(ClientError::Unverified { status }) if status.as_u16() == 401),
        "{refused:?}"
    );
    let mut reader = app.db.read().await.unwrap();
    let schedule = store::schedules::get(&mut reader, world.org, schedule.id).await.unwrap();
    assert!(app.db.is_authentic(&schedule));
    drop(reader);
    assert_eq!(any_alarm(&app, world).await, None);
    engine.stop().await;
}

async fn forged_rows_and_entries_are_not_resealed(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = OldAgent::join(&app, &token, "web-1").await;
    let (good, bad) = (hourly_from_now(&app, world).await, {
        let mut order = world.new_rollout(vec![web.id], json!({"dry_run": true}));
        order.starts_at = world.now() + SignedDuration::from_hours(24);
        service::commands::batches::create(&app, order).await.unwrap()
    });
    app.db.close().await;
    world
        .execute_sql(&format!("update rollouts set started_by = 'mallory' where id = '{}'", bad.id))
        .await;
    world.execute_sql("update audit_entries set actor = 'mallory' where seq = 2").await;
    Secrets::rotate_root(world.data_dir()).unwrap();
    let (app, engine) = world.leader("b").await;
    assert_eq!(root_keys::reseal(&app).await.unwrap(), [(world.org, 2)]);
    eventually("the forged batch is canceled", async || {
        count_alarms(&app, world, "batch.tampered").await == 1
    })
    .await;
    assert_eq!(first_invalid_entry(&app, world).await, Some(2));
    let mut reader = app.db.read().await.unwrap();
    let good = store::schedules::get(&mut reader, world.org, good.id).await.unwrap();
    assert!(app.db.is_authentic(&good));
    drop(reader);
    assert_eq!(count_alarms(&app, world, "schedule.tampered").await, 0);
    engine.stop().await;
}

/// Every step of resealing the log leaves a log that verifies, while entries are added.
async fn audit_log_verifies_at_every_step(world: &World) {
    let app = world.app("a").await;
    for number in 0..12 {
        new_key(&app, world, &format!("key {number}")).await;
    }
    app.db.close().await;
    Secrets::rotate_root(world.data_dir()).unwrap();
    let app = world.app("b").await;
    let mut steps = 0;
    loop {
        let mut tx = app.db.begin().await.unwrap();
        let done = audit::reseal(&mut tx, world.org, 5).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(first_invalid_entry(&app, world).await, None, "after {steps} steps");
        if done == audit::ResealStatus::Done {
            break;
        }
        assert_eq!(done, audit::ResealStatus::Partial);
        if steps == 0 {
            new_key(&app, world, "meanwhile").await;
            // Without the keys, nobody can move the position up to which old hashes count.
            let moved = "update audit_reseals set seq = seq - 1";
            world.execute_sql(moved).await;
            assert_eq!(first_invalid_entry(&app, world).await, Some(5));
            world.execute_sql("update audit_reseals set seq = seq + 1").await;
        }
        steps += 1;
    }
    assert!(steps >= 2);
    new_key(&app, world, "after").await;
    assert_eq!(first_invalid_entry(&app, world).await, None);
}

async fn replica_with_only_the_old_key_does_nothing(world: &World) {
    let (old, old_engine) = world.leader("a").await;
    let token = world.token(&old).await;
    let web = OldAgent::join(&old, &token, "web-1").await;
    let dir = world.data_dir();
    let of_old = std::fs::read(dir.join("root.key")).unwrap();
    Secrets::rotate_root(dir).unwrap();

    // Another replica starts with the new key and creates work.
    let new = world.app("b").await;
    let mut order = world.new_rollout(vec![web.id], json!({"dry_run": true}));
    order.starts_at = world.now() + SignedDuration::from_hours(24);
    let batch = service::commands::batches::create(&new, order).await.unwrap().id;
    hourly_from_now(&new, world).await;
    eventually("the old replica releases the leader lease", async || {
        old.condition().root_key_rotated() && !old_engine.is_leader()
    })
    .await;
    let new_key_of_old =
        NewKey { name: "x".into(), role: Role::Admin, environments: None, expires_at: None };
    assert!(keys::create(&old, &world.admin(), new_key_of_old).await.is_err());
    let (status, body) = call_api(&old, "GET", "/readyz", "", None).await;
    assert_eq!(status, 503);
    assert!(body["detail"].as_str().unwrap().starts_with("root.key was rotated"), "{body}");
    let engine = background::spawn_with(&new, INTERVALS);
    eventually("the new replica leads", async || engine.is_leader()).await;
    let mut reader = new.db.read().await.unwrap();
    let row = store::rollouts::get(&mut reader, world.org, batch).await.unwrap();
    assert_eq!(row.ended_at, None);
    drop(reader);
    assert_eq!(any_alarm(&new, world).await, None);
    assert_eq!(first_invalid_entry(&new, world).await, None);

    // It cannot be started again like this, nor with an unrelated key.
    let kept = std::fs::read(dir.join("root.key")).unwrap();
    for (root, wanted) in [(of_old.clone(), true), (vec![7; 32], false)] {
        std::fs::write(dir.join("root.key"), root).unwrap();
        std::fs::rename(dir.join("root.old.key"), dir.join("aside")).unwrap();
        let refused = world.try_app("c", Clock::system()).await.err().unwrap();
        let OpenError::KeyMismatch(unfit) = refused else { panic!("{refused}") };
        assert_eq!(unfit == KeyMismatch::Rotated, wanted, "{unfit}");
        assert_eq!(matches!(unfit, KeyMismatch::Foreign { .. }), !wanted, "{unfit}");
        std::fs::rename(dir.join("aside"), dir.join("root.old.key")).unwrap();
    }
    // Nor without the old key, while the rotation is in progress.
    std::fs::write(dir.join("root.key"), kept).unwrap();
    std::fs::remove_file(dir.join("root.old.key")).unwrap();
    let refused = world.try_app("c", Clock::system()).await.err().unwrap();
    assert!(matches!(refused, OpenError::KeyMismatch(KeyMismatch::OldMissing { .. })), "{refused}");
    engine.stop().await;
    old_engine.stop().await;
}

testkit::both!(
    crate::support:
    everything_survives_rotation_and_a_retired_key_has_no_effect,
    forged_rows_and_entries_are_not_resealed,
    audit_log_verifies_at_every_step,
    replica_with_only_the_old_key_does_nothing,
);
