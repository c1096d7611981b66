//! Every form of the dashboard that changes something leaves an entry in the audit log.

use std::collections::BTreeSet;

use axum::http::Method;
use domain::rollout::{Change, RolloutOutcome};
use jiff::SignedDuration;
use serde_json::json;
use service::auth::totp::current_code;
use store::webhooks::DeliveryState;
use testkit::mail::MailServer;
use vocab::{Role, Severity};

use crate::browser::{Browser, PASSWORD};
use crate::fleet::{FAILED, Host, change, end, finish, join, security};
use crate::support::{Service, TestRequest, TestResponse};
use crate::web::notifications::{add_rule, link_in, mail_settings};
use crate::web::webhooks::add_delivery;

/// Forms that change nothing, or only a cookie of the browser.
const UNAUDITED: [&str; 4] = [
    // Cookies: the theme, and the columns of a table.
    "/account/theme",
    "/display",
    // Previews that are too long for a URL.
    "/servers/matching",
    "/order.csv",
];

/// The paths that accept a form.
async fn form_paths(service: &Service) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for (_, path) in dashboard::paths() {
        // No path has this method, so the response lists those that it has.
        let request = TestRequest::new(Method::DELETE, &path.replace(['{', '}'], ""));
        let response = request.send(&service.router).await.is(405);
        if response.header("allow").split(',').any(|method| method == "POST") {
            found.insert(path);
        }
    }
    found
}

struct Trial<'a> {
    service: &'a Service,
    tried: BTreeSet<&'static str>,
}

impl Trial<'_> {
    /// Sends a form, and checks that it leaves an entry with this action.
    async fn leaves(
        &mut self,
        action: &str,
        path: &'static str,
        send: impl Future<Output = TestResponse>,
    ) -> TestResponse {
        let before = self.latest().await;
        let response = send.await;
        let mut reader = self.service.app.db.read().await.unwrap();
        let new = store::audit::after(&mut reader, self.service.org, before, 1_000).await.unwrap();
        let new: Vec<String> = new.into_iter().map(|entry| entry.action).collect();
        assert!(
            new.iter().any(|one| one == action),
            "{path} left {new:?} instead of {action}: {} {}",
            response.status,
            response.text()
        );
        self.tried.insert(path);
        response
    }

    /// Like `leaves`, for a form without preparation; `id` replaces the parameter in the path.
    async fn submits(
        &mut self,
        browser: &Browser,
        action: &str,
        path: &'static str,
        id: &str,
        form: &[(&str, &str)],
    ) -> TestResponse {
        let segments: Vec<&str> =
            path.split('/').map(|part| if part.starts_with('{') { id } else { part }).collect();
        self.leaves(action, path, browser.submit(&segments.join("/"), form)).await
    }

    async fn latest(&self) -> i64 {
        let mut reader = self.service.app.db.read().await.unwrap();
        store::audit::head(&mut reader, self.service.org).await.unwrap().0
    }
}

fn field(page: &str, name: &str) -> String {
    let found = page.split(&format!("name=\"{name}\" value=\"")).nth(1);
    found.unwrap_or_else(|| panic!("no {name} in {page}")).split('"').next().unwrap().to_owned()
}

/// The id with this prefix that comes first on a page.
fn id_on(page: &str, prefix: &str) -> String {
    let found = page.split(prefix).nth(1).unwrap_or_else(|| panic!("no {prefix} in {page}"));
    format!("{prefix}{}", found.chars().take(26).collect::<String>())
}

async fn every_form_leaves_an_audit_entry(service: &Service) {
    let mut trial = Trial { service, tried: BTreeSet::new() };
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    servers_and_batches(service, &mut trial, &ann).await;
    schedules(service, &mut trial, &ann).await;
    settings(service, &mut trial, &ann).await;
    webhooks(service, &mut trial, &ann).await;
    notifications(service, &mut trial, ann).await;
    let ann = Browser::with_address(service, 9);
    ann.post("/sign-in", &[("name", "ann"), ("password", PASSWORD)]).await.is(303);
    account(service, &mut trial, &ann).await;
    let forms = form_paths(service).await;
    assert!(forms.len() > 30, "{forms:?}");
    let covered: BTreeSet<&str> = trial.tried.iter().copied().chain(UNAUDITED).collect();
    assert_eq!(forms, covered, "a new form needs a step here, or to be in UNAUDITED");
}

async fn servers_and_batches(service: &Service, trial: &mut Trial<'_>, ann: &Browser) {
    let host = |name| {
        Host::new(name).with_updates(vec![security("openssl", Severity::High, &["CVE-2026-1"])])
    };
    let web = join(service, host("web-1")).await.to_string();
    let removed = join(service, host("web-2")).await.to_string();
    let copied = Host { quarantine: Some("a copy"), ..Host::new("copied") };
    let copied = join(service, copied).await.to_string();
    service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();

    let form = [("server_ids", web.as_str()), ("add_tags", "x"), ("go", "1")];
    trial.submits(ann, "server.edit", "/servers/edit", "", &form).await;
    let shown = field(&ann.get(&format!("/servers/{web}/edit")).await.is(200).text(), "shown");
    let form = [("display_name", "Shop"), ("environment", "blue"), ("shown", &shown)];
    trial.submits(ann, "server.edit", "/servers/{id}/edit", &web, &form).await;
    trial.submits(ann, "server.refresh", "/servers/{id}/refresh", &web, &[]).await;
    let upgrade = "agent.upgrade_request";
    trial.submits(ann, upgrade, "/servers/{id}/upgrade-agent", &web, &[]).await;
    trial.submits(ann, upgrade, "/settings/agents/upgrade", "", &[("go", "1")]).await;
    let form = [("reason", "a copy")];
    trial.submits(ann, "server.release", "/servers/{id}/release", &copied, &form).await;
    trial.submits(ann, "server.remove", "/servers/{id}/remove", &removed, &[("go", "1")]).await;

    let form = [("reason", "not reachable")];
    trial.submits(ann, "suppression.create", "/cves/{id}/suppress", "CVE-2026-1", &form).await;
    let list = service.get("/v1/suppressions").await.is(200).json();
    let id = list["data"][0]["id"].as_str().unwrap().to_owned();
    trial.submits(ann, "suppression.delete", "/suppressions/{id}/delete", &id, &[]).await;

    let form = [("server_ids", web.as_str())];
    trial.leaves("batch.create", "/order", ann.start(&form)).await;
    let list = service.get("/v1/batches").await.is(200).json();
    let batch = list["data"][0]["id"].as_str().unwrap().to_owned();
    change(service, &batch, Change::Start).await;
    let act = "/batches/{id}/{action}";
    let form = [("state", "paused"), ("failures", "0"), ("go", "1")];
    for (action, word) in
        [("batch.pause", "pause"), ("batch.resume", "resume"), ("batch.cancel", "cancel")]
    {
        trial.leaves(action, act, ann.submit(&format!("/batches/{batch}/{word}"), &form)).await;
    }
    let server = join(service, host("web-3")).await;
    let body = json!({"server_ids": [server], "security_only": true});
    let batch = service.post("/v1/batches", body).await.is(202).json();
    let batch = batch["id"].as_str().unwrap();
    change(service, batch, Change::Start).await;
    finish(service, batch, server, FAILED).await;
    end(service, batch, RolloutOutcome::CompletedWithErrors).await;
    trial.leaves("batch.retry", act, ann.confirm(&format!("/batches/{batch}/retry"))).await;
}

async fn schedules(service: &Service, trial: &mut Trial<'_>, ann: &Browser) {
    let form = [("name", "Nightly"), ("cron", "0 3 * * *"), ("all", "true"), ("enabled", "true")];
    trial.submits(ann, "schedule.create", "/schedules/new", "", &form).await;
    let list = service.get("/v1/schedules").await.is(200).json();
    let id = list["data"][0]["id"].as_str().unwrap().to_owned();
    let form = [("generation", "1"), ("name", "Weekly"), ("cron", "0 4 * * SUN"), ("all", "true")];
    trial.submits(ann, "schedule.update", "/schedules/{id}/edit", &id, &form).await;
    let run = format!("/schedules/{id}/run");
    trial.leaves("run.start", "/schedules/{id}/run", ann.confirm(&run)).await;
    let form = [
        ("name", "Office"),
        ("reason", "quiet"),
        ("kind", "recurring"),
        ("cron", "0 8 * * *"),
        ("duration_minutes", "10h"),
        ("timezone", "Europe/Berlin"),
        ("all", "true"),
    ];
    trial.submits(ann, "freeze.create", "/freezes/new", "", &form).await;
    let list = service.get("/v1/freezes").await.is(200).json();
    assert_eq!(list["data"][0]["duration_minutes"], 600);
    let freeze = list["data"][0]["id"].as_str().unwrap().to_owned();
    let form = [
        ("generation", "1"),
        ("name", "Sale"),
        ("reason", "quiet"),
        ("kind", "one_off"),
        ("ends_at", "2026-12-24T18:00"),
        ("timezone", "Europe/Berlin"),
        ("all", "true"),
    ];
    trial.submits(ann, "freeze.update", "/freezes/{id}/edit", &freeze, &form).await;
    let list = service.get("/v1/freezes").await.is(200).json();
    assert_eq!(list["data"][0]["ends_at"], "2026-12-24T17:00:00Z");
    trial.submits(ann, "freeze.delete", "/freezes/{id}/delete", &freeze, &[("go", "1")]).await;
    let form = [("name", "Fast"), ("critical", "7"), ("kev", "2"), ("all", "true")];
    let new = "/compliance/policies/new";
    trial.submits(ann, "policy.create", new, "", &form).await;
    let list = service.get("/v1/policies").await.is(200).json();
    let rules = serde_json::json!([{"match": {"kev": true}, "within_days": 2},
        {"match": {"severity": "critical"}, "within_days": 7}]);
    assert_eq!(list["data"][0]["rules"], rules);
    let policy = list["data"][0]["id"].as_str().unwrap().to_owned();
    let form = [("generation", "1"), ("name", "Slow"), ("security", "30"), ("all", "true")];
    let edit = "/compliance/policies/{id}/edit";
    trial.submits(ann, "policy.update", edit, &policy, &form).await;
    let delete = "/compliance/policies/{id}/delete";
    trial.submits(ann, "policy.delete", delete, &policy, &[("go", "1")]).await;
    trial.submits(ann, "schedule.delete", "/schedules/{id}/delete", &id, &[("go", "1")]).await;
}

async fn settings(service: &Service, trial: &mut Trial<'_>, ann: &Browser) {
    let generation = field(&ann.get("/settings").await.is(200).text(), "generation");
    let form = [("name", "Acme & Sons"), ("generation", generation.as_str())];
    trial.submits(ann, "organization.rename", "/settings/organization", "", &form).await;

    trial.submits(ann, "feed.add", "/settings/feeds", "", &[("name", "Debian")]).await;
    let list = service.get("/v1/feeds").await.is(200).json();
    let feed = list["data"][0]["id"].as_str().unwrap().to_owned();
    trial.submits(ann, "feed.update", "/settings/feeds/{id}/update", &feed, &[]).await;
    let go = [("go", "1")];
    trial.submits(ann, "feed.remove", "/settings/feeds/{id}/remove", &feed, &go).await;

    let form = [("name", "bob"), ("role", "viewer")];
    trial.submits(ann, "user.create", "/settings/users", "", &form).await;
    let bob = {
        let mut reader = service.app.db.read().await.unwrap();
        store::users::by_name(&mut reader, service.org, "bob").await.unwrap().unwrap().id
    };
    let bob = bob.to_string();
    let reset = trial.submits(ann, "user.reset", "/settings/users/{id}/reset", &bob, &go).await;
    let reset = reset.text();
    let link = reset.split("/welcome/").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let form = [("password", PASSWORD), ("again", PASSWORD)];
    let visitor = Browser::with_address(service, 7);
    let path = format!("/welcome/{link}");
    trial.leaves("user.password", "/welcome/{link}", visitor.post(&path, &form)).await;
    trial.submits(ann, "user.remove", "/settings/users/{id}/remove", &bob, &go).await;

    let form = [("name", "ci"), ("role", "viewer")];
    trial.submits(ann, "api_key.create", "/settings/keys", "", &form).await;
    let list = service.get("/v1/api-keys?limit=500").await.is(200).json();
    let keys = list["data"].as_array().unwrap();
    let key = keys.iter().find(|key| key["name"] == "ci").unwrap()["id"].as_str().unwrap();
    trial.submits(ann, "api_key.revoke", "/settings/keys/{id}/revoke", key, &go).await;
    let form = [("name", "image")];
    trial.submits(ann, "enrollment_token.create", "/settings/tokens", "", &form).await;
    let list = service.get("/v1/enrollment-tokens").await.is(200).json();
    let token = list["data"][0]["id"].as_str().unwrap();
    let revoke = "/settings/tokens/{id}/revoke";
    trial.submits(ann, "enrollment_token.revoke", revoke, token, &go).await;
}

async fn webhooks(service: &Service, trial: &mut Trial<'_>, ann: &Browser) {
    let form = [
        ("name", "Chat"),
        ("url", "https://hooks.example.org/a"),
        ("format", "standard"),
        ("types", "batch.halted"),
    ];
    trial.submits(ann, "webhook.create", "/settings/webhooks/new", "", &form).await;
    let list = service.get("/v1/webhooks").await.is(200).json();
    let id = list["data"][0]["id"].as_str().unwrap().to_owned();
    let edit = format!("/settings/webhooks/{id}/edit");
    let generation = field(&ann.get(&edit).await.is(200).text(), "generation");
    let mut form = form.to_vec();
    form[0].1 = "Chat 2";
    form.push(("generation", &generation));
    trial.submits(ann, "webhook.update", "/settings/webhooks/{id}/edit", &id, &form).await;
    // An address that is refused before anything is sent.
    service.by_hand("update webhooks set url = 'http://127.0.0.1:9/'").await;
    trial.submits(ann, "webhook.test", "/settings/webhooks/{id}/test", &id, &[]).await;
    let go = [("go", "1")];
    trial.submits(ann, "webhook.rotate", "/settings/webhooks/{id}/rotate", &id, &go).await;
    let delivery = add_delivery(service, &id, 1, DeliveryState::Failed).await;
    let redeliver = format!("/settings/webhooks/{id}/deliveries/{delivery}/redeliver");
    let path = "/settings/webhooks/{id}/deliveries/{delivery}/redeliver";
    trial.leaves("webhook.redeliver", path, ann.submit(&redeliver, &[])).await;
    trial.submits(ann, "webhook.update", "/settings/webhooks/{id}/disable", &id, &go).await;
    trial.submits(ann, "webhook.update", "/settings/webhooks/{id}/enable", &id, &go).await;
    trial.submits(ann, "webhook.delete", "/settings/webhooks/{id}/delete", &id, &go).await;
}

async fn notifications(service: &Service, trial: &mut Trial<'_>, mut ann: Browser) {
    let mail = MailServer::start(&service.database.dir, None);
    let (_, router) = service.again(mail_settings(&mail)).await;
    ann.switch_to(&router);
    let address = [("address", "ann@example.org"), ("timezone", "Europe/Berlin")];
    trial.submits(&ann, "email.set", "/account/notifications/address", "", &address).await;
    let path = "/confirm-email/{link}";
    let link = link_in(&mail, "/confirm-email/");
    trial.leaves("email.confirm", path, ann.post(&link, &[])).await;
    trial.submits(&ann, "notification.test", "/account/notifications/test", "", &[]).await;
    let rule = [("rhythm", "daily"), ("types", "*")];
    let create = "/account/notifications/new";
    trial.submits(&ann, "notification_rule.create", create, "", &rule).await;
    let page = ann.get("/account/notifications").await.is(200).text();
    let id = id_on(&page, "ntf_");
    let delete = "/account/notifications/{id}/delete";
    trial.submits(&ann, "notification_rule.delete", delete, &id, &[]).await;
    let (_, unsubscribe) = add_rule(service, "ann").await;
    let path = "/unsubscribe/{link}";
    trial.leaves("notification_rule.delete", path, ann.post(&unsubscribe, &[])).await;
    let remove = "/account/notifications/address/remove";
    trial.submits(&ann, "email.remove", remove, "", &[("go", "1")]).await;
}

async fn account(service: &Service, trial: &mut Trial<'_>, ann: &Browser) {
    let form = [("list", "servers"), ("name", "Mine"), ("query", "q=web")];
    trial.submits(ann, "view.save", "/views", "", &form).await;
    let view = id_on(&ann.get("/servers").await.is(200).text(), "/views/view_");
    let view = view.trim_start_matches("/views/").to_owned();
    trial.submits(ann, "view.delete", "/views/{id}/delete", &view, &[("go", "1")]).await;

    let sign_in = [("name", "ann"), ("password", PASSWORD)];
    let other = Browser::with_address(service, 8);
    trial.leaves("user.sign_in", "/sign-in", other.post("/sign-in", &sign_in)).await;
    trial.submits(&other, "user.sign_out", "/sign-out", "", &[]).await;
    other.post("/sign-in", &sign_in).await.is(303);
    let session = id_on(&ann.get("/account").await.is(200).text(), "/account/sessions/ses_");
    let session = session.trim_start_matches("/account/sessions/").to_owned();
    let end = "/account/sessions/{id}/end";
    trial.submits(ann, "user.session_end", end, &session, &[]).await;
    let others = "/account/sessions/end-others";
    trial.submits(ann, "user.sessions_end", others, "", &[]).await;

    let secret = field(&ann.submit("/account/totp", &[]).await.is(200).text(), "secret");
    let code = current_code(&secret, service.clock.now());
    let form = [("secret", secret.as_str()), ("code", &code)];
    trial.submits(ann, "user.totp_on", "/account/totp", "", &form).await;
    service.clock.advance(SignedDuration::from_secs(60));
    let code = current_code(&secret, service.clock.now());
    let renew = "/account/recovery-codes";
    trial.submits(ann, "user.recovery_codes", renew, "", &[("code", &code)]).await;
    service.clock.advance(SignedDuration::from_secs(60));
    let code = current_code(&secret, service.clock.now());
    let ticket = field(&other.post("/sign-in", &sign_in).await.is(200).text(), "ticket");
    let form = [("ticket", ticket.as_str()), ("code", &code)];
    trial.leaves("user.sign_in", "/sign-in/code", other.post("/sign-in/code", &form)).await;
    let new = "a newer horse battery";
    let form = [("current", PASSWORD), ("password", new), ("again", new)];
    trial.submits(ann, "user.password_change", "/account/password", "", &form).await;
}

/// Someone who is not signed in changes nothing, and leaves no entry.
async fn rejected_form_leaves_no_entry(service: &Service) {
    let trial = Trial { service, tried: BTreeSet::new() };
    let before = trial.latest().await;
    let visitor = Browser::new(service);
    for path in form_paths(service).await {
        if !["/sign-in", "/sign-in/code", "/welcome/{link}"].contains(&path) {
            visitor.post(&path.replace(['{', '}'], ""), &[("go", "1")]).await;
        }
    }
    let body = json!({"name": "x", "role": "nobody"});
    service.post("/v1/api-keys", body).await.is_problem(422, "invalid_body");
    assert_eq!(trial.latest().await, before);
}

testkit::both!(
    crate::support:
    every_form_leaves_an_audit_entry,
    rejected_form_leaves_no_entry,
);
