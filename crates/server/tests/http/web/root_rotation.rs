//! Rotation of `root.key` while users have pages open: the pages keep working until the old key is
//! retired, and are invalid afterwards.

use axum::Router;
use serde_json::json;
use server::app::Settings;
use service::auth::root_keys;
use service::secrets::Secrets;
use vocab::{Role, Severity};

use crate::browser::{Browser, PASSWORD, start_token};
use crate::fleet::{Host, join, security};
use crate::provider::Provider;
use crate::support::Service;
use crate::web::oidc::{authorization_url, claims_for, config, invite};

/// The service after a restart with the current key files.
async fn restarted(service: &Service, provider: &Provider) -> Router {
    let settings = Settings { oidc: Some(config(service, provider)), ..Settings::default() };
    let (app, router) = service.again(settings).await;
    root_keys::check_and_record(&app.db, &app.secrets, app.clock.now()).await.unwrap();
    router
}

/// The fields of a patch form with the token of its preview.
async fn preview_form(ann: &Browser, server: &str) -> Vec<(&'static str, String)> {
    let csrf = ann.csrf().await;
    let mut form: Vec<(&'static str, String)> =
        vec![("server_ids", server.into()), ("what", "security".into()), ("csrf", csrf)];
    let page = send(ann, &form).await.is(200).text();
    form.push(("start", start_token(&page)));
    form
}

async fn send(ann: &Browser, form: &[(&'static str, String)]) -> crate::support::TestResponse {
    let form: Vec<(&str, &str)> =
        form.iter().map(|(name, value)| (*name, value.as_str())).collect();
    ann.post("/order", &form).await
}

async fn batches(service: &Service) -> usize {
    let json = service.get("/v1/batches").await.is(200).json();
    json["data"].as_array().map_or(0, Vec::len)
}

async fn open_pages_and_sign_ins_survive_root_key_rotation(service: &Service) {
    let updates = vec![security("openssl", Severity::High, &["CVE-2026-1"])];
    let server = join(service, Host::new("web-1").with_updates(updates)).await.to_string();
    let provider = Provider::new(service.clock.now()).await;
    let before = restarted(service, &provider).await;
    let mut ann = Browser::signed_in(service, "ann", Role::Operator).await;
    ann.switch_to(&before);
    for address in ["bob@example.org", "eve@example.org"] {
        invite(service, address, Role::Viewer).await;
    }
    // Open at the time of the rotation: two previews, and two sign-ins that are at the
    // provider.
    let open = preview_form(&ann, &server).await;
    let left_open = preview_form(&ann, &server).await;
    let [mut bob, mut eve] = [2, 3].map(|host| Browser::with_router(before.clone(), host));
    let (bob_is_sent, eve_is_sent) = (authorization_url(&bob).await, authorization_url(&eve).await);

    let dir = &service.database.dir;
    Secrets::rotate_root(dir).unwrap();
    let rotated = restarted(service, &provider).await;
    ann.switch_to(&rotated);
    send(&ann, &open).await.is(303);
    assert_eq!(batches(service).await, 1);
    // Sent twice: still one batch.
    send(&ann, &open).await.is(303);
    assert_eq!(batches(service).await, 1);
    bob.switch_to(&rotated);
    bob.get(&provider.approve(&bob_is_sent, claims_for("sub-bob", "bob@example.org")))
        .await
        .is(200);
    bob.get("/servers").await.is(200);
    // Not with other options.
    let mut other = left_open.clone();
    other.push(("dry_run", "true".into()));
    send(&ann, &other).await.is(422);
    assert_eq!(batches(service).await, 1);

    let (app, _) = service.again(Settings::default()).await;
    assert!(root_keys::reseal(&app).await.unwrap().is_empty());
    let old = app.secrets.old_root_key_id().unwrap().to_owned();
    root_keys::retire(&app, &old, &json!({"key": "root"})).await.unwrap();
    Secrets::retire_root(dir).unwrap();
    let retired = restarted(service, &provider).await;
    // The session, the form and the sign-in were made with the old key.
    ann.switch_to(&retired);
    assert!(ann.get("/servers").await.is(303).header("location").starts_with("/sign-in"));
    send(&ann, &left_open).await.is(401);
    eve.switch_to(&retired);
    let eve_returns = provider.approve(&eve_is_sent, claims_for("sub-eve", "eve@example.org"));
    assert!(eve.get(&eve_returns).await.is(422).text().contains("Sign in again"));
    assert!(eve.get("/servers").await.is(303).header("location").starts_with("/sign-in"));
    // After signing in again, a token from before the rotation starts nothing.
    ann.post("/sign-in", &[("name", "ann"), ("password", PASSWORD)]).await.is(303);
    let mut late = left_open.clone();
    late.retain(|(name, _)| *name != "csrf");
    late.push(("csrf", ann.csrf().await));
    send(&ann, &late).await.is(422);
    assert_eq!(batches(service).await, 1);
    let fresh = preview_form(&ann, &server).await;
    send(&ann, &fresh).await.is(303);
    assert_eq!(batches(service).await, 2);
    bob.switch_to(&retired);
    bob.get("/servers").await.is(200);
    provider.stop().await;
}

testkit::both!(
    crate::support:
    open_pages_and_sign_ins_survive_root_key_rotation,
);
