//! Notifications: the address and its confirmation, rules, and links in messages. The messages go to
//! a real SMTP server.

use axum::http::Method;
use jiff::SignedDuration;
use serde_json::json;
use server::app::Settings;
use service::commands::notifications::{self as commands, RuleInput};
use service::mail::{MailSettings, unsubscribe_path};
use store::notifications::{self, Rhythm, Rule};
use store::users::User;
use testkit::mail::MailServer;
use vocab::Role;

use crate::browser::Browser;
use crate::support::{Service, TestRequest};

pub(crate) fn mail_settings(server: &MailServer) -> Settings {
    let mail = MailSettings::parse(&server.url(), Some("Fleetmend <fleetmend@example.org>"));
    let public_url = Some("https://patch.example.org".to_owned());
    Settings { mail: Some(mail.unwrap()), public_url, ..Settings::default() }
}

/// The path of the link with this prefix in the last message.
pub(crate) fn link_in(server: &MailServer, prefix: &str) -> String {
    let message = server.messages().pop().unwrap();
    let text = message["text"].as_str().unwrap();
    let found = text.split(&format!("https://patch.example.org{prefix}")).nth(1);
    let rest = found.unwrap_or_else(|| panic!("no {prefix} in {text}"));
    format!("{prefix}{}", rest.split_whitespace().next().unwrap())
}

async fn user(service: &Service, name: &str) -> User {
    let mut reader = service.app.db.read().await.unwrap();
    store::users::by_name(&mut reader, service.org, name).await.unwrap().unwrap()
}

/// A rule of a user, and the path that deletes it.
pub(crate) async fn add_rule(service: &Service, name: &str) -> (Rule, String) {
    let user = user(service, name).await;
    let (types, rhythm) = (vec!["*".to_owned()], Rhythm::Immediate);
    let input = RuleInput { types, targets: None, rhythm };
    let rule = commands::create_rule(&service.app, &user, input).await.unwrap();
    let path = unsubscribe_path(&service.app, rule.id);
    (rule, path)
}

async fn signed_in(service: &Service, name: &str, role: Role, mail: &MailServer) -> Browser {
    let mut browser = Browser::signed_in(service, name, role).await;
    let (_, router) = service.again(mail_settings(mail)).await;
    browser.switch_to(&router);
    browser
}

const ADDRESS: [(&str, &str); 2] = [("address", "ann@example.org"), ("timezone", "Europe/Berlin")];

async fn address_is_used_once_its_owner_confirmed_it(service: &Service) {
    let mail = MailServer::start(&service.database.dir, None);
    let ann = signed_in(service, "ann", Role::Viewer, &mail).await;
    let page = ann.get("/account/notifications").await.is(200).text();
    assert!(page.contains("Send a link") && !page.contains("New rule"), "{page}");
    let wrong = [("address", "ann"), ("timezone", "Mars/Olympus")];
    let page = ann.submit("/account/notifications/address", &wrong).await.is(422).text();
    assert!(page.contains("ann@example.com") && page.contains("Mars/Olympus"), "{page}");
    ann.submit("/account/notifications/address", &ADDRESS).await.is(303);
    let page = ann.get("/account/notifications?done=address").await.is(200).text();
    assert!(page.contains("not confirmed") && page.contains("ann@example.org"), "{page}");
    ann.submit("/account/notifications/test", &[]).await.is(409);

    let message = mail.messages().pop().unwrap();
    assert_eq!(message["to"], json!(["ann@example.org"]));
    assert_eq!(message["from"], "fleetmend@example.org");
    assert_eq!(message["defects"], json!([]));
    assert_eq!(message["headers"]["auto-submitted"], "auto-generated");
    // One link in two minutes.
    ann.submit("/account/notifications/address", &ADDRESS).await.is(422);
    assert_eq!(mail.messages().len(), 1);
    let first = link_in(&mail, "/confirm-email/");
    service.clock.advance(SignedDuration::from_mins(2));
    ann.submit("/account/notifications/address", &ADDRESS).await.is(303);
    let second = link_in(&mail, "/confirm-email/");
    assert_ne!(first, second);

    // A link works without a session, and a program that opens it changes nothing.
    let visitor = Browser::new(service);
    visitor.get(&first).await.is(404);
    visitor.get("/confirm-email/x").await.is(404);
    visitor.post("/confirm-email/x", &[]).await.is(404);
    let page = visitor.get(&second).await.is(200).text();
    assert!(page.contains("ann@example.org") && page.contains("user ann"), "{page}");
    visitor.post_from("https://evil.example", &second, &[]).await.is(403);
    let page = ann.get("/account/notifications").await.text();
    assert!(page.contains("not confirmed"), "{page}");
    visitor.post(&second, &[]).await.is(200);
    visitor.post(&second, &[]).await.is(404);
    let page = ann.get("/account/notifications").await.text();
    assert!(page.contains(">confirmed<") && page.contains("You have no rules"), "{page}");

    // Another time zone keeps the address confirmed; another address does not.
    let zone = [("address", "ann@example.org"), ("timezone", "Asia/Tokyo")];
    ann.submit("/account/notifications/address", &zone).await.is(303);
    let page = ann.submit("/account/notifications/test", &[]).await.is(200).text();
    assert!(page.contains("250") && page.contains("accepted"), "{page}");
    assert_eq!(mail.messages().pop().unwrap()["headers"]["subject"], "[Acme] Test message");
    let other = [("address", "bob@example.org"), ("timezone", "Asia/Tokyo")];
    ann.submit("/account/notifications/address", &other).await.is(303);
    assert!(ann.get("/account/notifications").await.text().contains("not confirmed"));
    let link = link_in(&mail, "/confirm-email/");
    service.clock.advance(SignedDuration::from_hours(24));
    visitor.get(&link).await.is(404);
    visitor.post(&link, &[]).await.is(404);
}

async fn failure_to_send_the_link_is_shown(service: &Service) {
    let mail = MailServer::start(&service.database.dir, None);
    let ann = signed_in(service, "ann", Role::Viewer, &mail).await;
    let refused = [("address", "x@refused.example"), ("timezone", "UTC")];
    ann.submit("/account/notifications/address", &refused).await.is(303);
    let page = ann.get("/account/notifications").await.text();
    assert!(page.contains("No such user here"), "{page}");
    // It can be corrected at once.
    ann.submit("/account/notifications/address", &ADDRESS).await.is(303);
    let page = ann.get("/account/notifications").await.text();
    assert!(!page.contains("No such user here") && page.contains("We sent a link"), "{page}");
    // A user cannot flood addresses of other people.
    let mut sent = 0;
    for n in 0..30 {
        service.clock.advance(SignedDuration::from_mins(2));
        let address = format!("victim{n}@example.org");
        let form = [("address", address.as_str()), ("timezone", "UTC")];
        sent += i32::from(ann.submit("/account/notifications/address", &form).await.status == 303);
    }
    assert!(sent < 10, "{sent}");
    // Without a mail server.
    let (_, router) = service.again(Settings::default()).await;
    let mut eve = Browser::signed_in(service, "eve", Role::Viewer).await;
    eve.switch_to(&router);
    assert!(eve.get("/account/notifications").await.text().contains("Email is not set up"));
    eve.submit("/account/notifications/address", &ADDRESS).await.is(409);
    let test = TestRequest::post("/v1/notifications/test", json!({"to": "ann@example.org"}));
    let test = test.with_key(&service.admin).send(&router).await;
    test.is_problem(409, "email_not_configured");
}

async fn rules_belong_to_their_user_and_end_by_link(service: &Service) {
    let mail = MailServer::start(&service.database.dir, None);
    let ann = signed_in(service, "ann", Role::Viewer, &mail).await;
    ann.submit("/account/notifications/new", &[("rhythm", "daily"), ("types", "*")]).await.is(409);
    ann.submit("/account/notifications/address", &ADDRESS).await.is(303);
    let bad = [("rhythm", "hourly"), ("types", "batch.danced"), ("environment", "prod uction!")];
    let page = ann.submit("/account/notifications/new", &bad).await.is(422).text();
    assert!(page.contains("immediate, daily, weekly") && page.contains("batch."), "{page}");
    // Events about accounts are for administrators only.
    let page = ann.get("/account/notifications/new").await.is(200).text();
    assert!(page.contains("batch.halted") && !page.contains("api_key.created"), "{page}");
    let accounts = [("rhythm", "immediate"), ("types", "api_key.*")];
    let page = ann.submit("/account/notifications/new", &accounts).await.is(422).text();
    assert!(page.contains("admin"), "{page}");
    let rule = [
        ("rhythm", "weekly"),
        ("types", "batch.*"),
        ("types", "task.failed"),
        ("environment", "production"),
    ];
    ann.submit("/account/notifications/new", &rule).await.is(303);
    let page = ann.get("/account/notifications?done=rule").await.text();
    for shown in ["Weekly report", "task.failed", "production", "The rule was added"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let (rule, unsubscribe) = add_rule(service, "ann").await;

    // Nobody else can delete it, also not an administrator; the link needs no session.
    let eve = signed_in(service, "eve", Role::Admin, &mail).await;
    let delete = format!("/account/notifications/{}/delete", rule.id);
    eve.submit(&delete, &[]).await.is(404);
    let visitor = Browser::new(service);
    let mut forged = unsubscribe.clone();
    let last = if forged.pop() == Some('0') { '1' } else { '0' };
    forged.push(last);
    visitor.get(&forged).await.is(404);
    for path in [forged.as_str(), "/unsubscribe/x", "/unsubscribe/ntf_.", "/unsubscribe/é.é"] {
        visitor.post(path, &[]).await;
    }
    assert_eq!(rules(service, "ann").await, 2);
    assert!(visitor.get(&unsubscribe).await.is(200).text().contains("Unsubscribe"));
    assert_eq!(rules(service, "ann").await, 2, "opening the link changes nothing");
    // As the mail program of the recipient does (RFC 8058); it may repeat the request.
    for _ in 0..2 {
        let form = [("List-Unsubscribe", "One-Click")];
        visitor.post(&unsubscribe, &form).await.is(200);
        assert_eq!(rules(service, "ann").await, 1);
    }
    visitor.get(&unsubscribe).await.is(404);

    // There is a limit.
    for _ in 1..commands::RULES_MAX {
        add_rule(service, "ann").await;
    }
    let rule = [("rhythm", "daily"), ("types", "*")];
    ann.submit("/account/notifications/new", &rule).await.is(409);
    let page = ann.submit("/account/notifications/address/remove", &[]).await.is(200).text();
    assert!(page.contains("Remove your email address?"), "{page}");
    ann.submit("/account/notifications/address/remove", &[("go", "1")]).await.is(303);
    assert_eq!(rules(service, "ann").await, 0);
}

async fn rules(service: &Service, name: &str) -> usize {
    let user = user(service, name).await;
    let mut reader = service.app.db.read().await.unwrap();
    notifications::rules(&mut reader, user.id).await.unwrap().len()
}

async fn test_message_reports_what_the_server_said(service: &Service) {
    let mail = MailServer::start(&service.database.dir, None);
    let (_, router) = service.again(mail_settings(&mail)).await;
    let send = async |to: &str| {
        let request = TestRequest::post("/v1/notifications/test", json!({"to": to}));
        request.with_key(&service.admin).send(&router).await
    };
    let sent = send("ann@example.org").await.is(200).json();
    assert_eq!(sent["sent"], true);
    assert_eq!(sent["response"], "250 2.0.0 Ok: queued");
    let refused = send("x@refused.example").await.is(200).json();
    assert_eq!(refused["sent"], false);
    assert!(refused["error"].as_str().unwrap().contains("No such user here"), "{refused}");
    for wrong in ["", "ann", "ann@example.org\r\nBcc: eve@example.org", "a@b.c,d@e.f"] {
        send(wrong).await.is_problem(422, "invalid_body");
    }
    drop(mail);
    let gone = send("ann@example.org").await.is(200).json();
    assert_eq!(gone["sent"], false);
    let limited = service.key(Role::Admin, Some(&["production"])).await;
    let request = TestRequest::post("/v1/notifications/test", json!({"to": "ann@example.org"}));
    request.with_key(&limited).send(&router).await.is_problem(403, "forbidden");
    let request = TestRequest::new(Method::POST, "/v1/notifications/test");
    request.with_key(&service.viewer).send(&router).await.is_problem(403, "forbidden");
}

testkit::both!(
    crate::support:
    address_is_used_once_its_owner_confirmed_it,
    failure_to_send_the_link_is_shown,
    rules_belong_to_their_user_and_end_by_link,
    test_message_reports_what_the_server_said,
);
