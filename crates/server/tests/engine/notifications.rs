//! Notifications by email with a real SMTP server: immediate messages, digests, failures.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use server::app::{App, AppParts, Settings};
use service::auth::users as accounts;
use service::commands::notifications::{self as commands, RuleInput};
use service::mail::MailSettings;
use service::{EventKind, emit};
use store::notifications::{self, EmailAddress, Rhythm, Rule};
use store::users::User;
use testkit::mail::MailServer;
use vocab::Role;

use crate::support::{World, eventually};

/// A replica that sends email to this server.
async fn app(world: &World, replica: &str, smtp: &str) -> App {
    let app = world.app(replica).await;
    let mail = MailSettings::parse(smtp, Some("fleetmend@example.org")).unwrap();
    App::new(AppParts {
        db: app.db.clone(),
        clock: app.clock.clone(),
        secrets: service::secrets::Secrets::load(world.data_dir()).unwrap(),
        settings: Settings {
            replica: replica.into(),
            public_url: Some("https://patch.example.org".into()),
            mail: Some(mail),
            ..Settings::default()
        },
    })
}

/// A user with a confirmed address.
async fn person(world: &World, app: &App, name: &str, role: Role, address: &str) -> User {
    let (user, _) = accounts::invite(app, &world.admin(), name, role).await.unwrap();
    let address = EmailAddress {
        user_id: user.id,
        org_id: user.org_id,
        address: address.into(),
        timezone: "Europe/Berlin".parse().unwrap(),
        confirmed_at: Some(world.now()),
        link_hash: None,
        link_sent_at: None,
        failing_since: None,
        error: None,
        sent_at: None,
        generation: 0,
    };
    let mut tx = app.db.begin().await.unwrap();
    notifications::save_address(&mut tx, &address).await.unwrap();
    tx.commit().await.unwrap();
    user
}

async fn rule(app: &App, user: &User, rhythm: Rhythm, types: &[&str]) -> Rule {
    let types = types.iter().map(ToString::to_string).collect();
    let input = RuleInput { types, targets: None, rhythm };
    commands::create_rule(app, user, input).await.unwrap()
}

/// Writes events in one transaction.
async fn happen(world: &World, app: &App, kinds: &[(EventKind, &str)]) {
    let mut tx = app.db.begin().await.unwrap();
    for (kind, subject) in kinds {
        let data = json!({"reason": "canary_failed"});
        emit(&mut tx, world.org, world.now(), "engine", *kind, subject, data);
    }
    tx.commit().await.unwrap();
}

async fn stored(app: &App, rule: &Rule) -> Rule {
    notifications::rule(&mut app.db.read().await.unwrap(), rule.id).await.unwrap()
}

async fn address(app: &App, user: &User) -> EmailAddress {
    let mut reader = app.db.read().await.unwrap();
    notifications::address(&mut reader, user.id).await.unwrap().unwrap()
}

fn text<'a>(message: &'a Value, field: &str) -> &'a str {
    message[field].as_str().unwrap()
}

async fn events_arrive_at_once_and_a_flood_is_one_message(world: &World) {
    let mail = MailServer::start(world.data_dir(), None);
    let app = app(world, "a", &mail.url()).await;
    let ann = person(world, &app, "ann", Role::Viewer, "ann@example.org").await;
    let bob = person(world, &app, "bob", Role::Admin, "bob@example.org").await;
    happen(world, &app, &[(EventKind::BatchHalted, "before the rule")]).await;
    let anns = rule(&app, &ann, Rhythm::Immediate, &["*"]).await;
    let bobs = rule(&app, &bob, Rhythm::Immediate, &["api_key.*"]).await;
    let (app, engine) = world.lead(app).await;
    happen(
        world,
        &app,
        &[(EventKind::BatchHalted, "Nightly <b>"), (EventKind::ApiKeyCreated, "k")],
    )
    .await;
    eventually("both get a message", async || mail.messages().len() == 2).await;
    let mut messages = mail.messages();
    messages.sort_by_key(|message| message["to"].to_string());
    assert_eq!(messages[0]["to"], json!(["ann@example.org"]));
    let headers = &messages[0]["headers"];
    let subject =
        "[Acme] Nightly <b>: A batch halted automatically, because servers failed: canary failed";
    assert_eq!(headers["subject"], subject, "an event about a key is not for a viewer");
    let (text_body, html) = (text(&messages[0], "text"), text(&messages[0], "html"));
    assert!(text_body.contains("https://patch.example.org/batches/Nightly"), "{text_body}");
    assert!(!text_body.contains("before the rule") && !html.contains("<b>"), "{html}");
    let unsubscribe = headers["list-unsubscribe"].as_str().unwrap();
    assert!(
        unsubscribe.starts_with("<https://patch.example.org/unsubscribe/ntf_"),
        "{unsubscribe}"
    );
    assert_eq!(headers["list-unsubscribe-post"], "List-Unsubscribe=One-Click");
    assert!(text_body.contains(unsubscribe.trim_matches(['<', '>'])), "{text_body}");
    assert!(headers["message-id"].as_str().unwrap().contains(&anns.id.to_string()));
    assert_eq!(messages[0]["defects"], json!([]));
    assert!(text(&messages[1], "text").contains("An API key was created"));

    // What happens in the next minute comes together, however much it is.
    let flood: Vec<(EventKind, &str)> = (0..5_000)
        .map(|n| (if n == 7 { EventKind::TaskFailed } else { EventKind::TaskFinished }, "srv_1"))
        .collect();
    happen(world, &app, &flood).await;
    world.advance(SignedDuration::from_secs(59));
    let latest = store::events::latest(&mut app.db.read().await.unwrap(), world.org).await;
    eventually("the other rule has looked at them", async || {
        world.advance(SignedDuration::from_millis(10));
        stored(&app, &bobs).await.position == *latest.as_ref().unwrap()
    })
    .await;
    world.advance(SignedDuration::from_secs(2));
    eventually("one more message", async || mail.messages().len() == 3).await;
    let flood = mail.messages().pop().unwrap();
    let subject = "[Acme] 5,000 events, 1 of them a problem";
    assert_eq!(flood["headers"]["subject"], subject);
    let body = text(&flood, "text");
    assert!(body.len() < 8_000 && body.contains("and 4,980 more"), "{body}");
    assert!(body.contains("  4999  A task ended without failure."), "{body}");
    let first = body.lines().find(|line| line.starts_with("- ")).unwrap();
    assert!(first.contains("failed or timed out"), "problems come first: {body}");
    assert!(address(&app, &ann).await.sent_at.is_some());
    engine.stop().await;
}

async fn digests_come_in_the_morning(world: &World) {
    let mail = MailServer::start(world.data_dir(), None);
    let app = app(world, "a", &mail.url()).await;
    let ann = person(world, &app, "ann", Role::Viewer, "ann@example.org").await;
    let quiet = person(world, &app, "bob", Role::Viewer, "bob@example.org").await;
    let daily = rule(&app, &ann, Rhythm::Daily, &["*"]).await;
    let weekly = rule(&app, &ann, Rhythm::Weekly, &["*"]).await;
    let silent = rule(&app, &quiet, Rhythm::Daily, &["suppression.*"]).await;
    let due = |rule: &Rule| rule.next_at.unwrap();
    let hour = |at: Timestamp| at.in_tz("Europe/Berlin").unwrap().hour();
    assert_eq!((hour(due(&daily)), hour(due(&weekly))), (7, 7));
    let (app, engine) = world.lead(app).await;
    happen(world, &app, &[(EventKind::TaskFailed, "web-1"), (EventKind::BatchFinished, "Nightly")])
        .await;
    world.advance(due(&daily).duration_since(world.now()));
    eventually("the digest is sent", async || !mail.messages().is_empty()).await;
    let digest = mail.messages().pop().unwrap();
    assert_eq!(digest["headers"]["subject"], "[Acme] Daily digest: nothing needs attention");
    let body = text(&digest, "text");
    for part in [
        "No security update is pending",
        "(Europe/Berlin)",
        "What went wrong",
        "web-1: A task failed or timed out: canary failed",
        "     1  Every task of a batch has ended.",
        "You get this every day.",
    ] {
        assert!(body.contains(part), "{part}: {body}");
    }
    eventually("an empty digest is not sent", async || {
        stored(&app, &silent).await.next_at > silent.next_at
    })
    .await;
    let tomorrow = due(&daily) + SignedDuration::from_hours(24);
    eventually("the next is tomorrow", async || due(&stored(&app, &daily).await) == tomorrow).await;
    // The weekly report says that all is well.
    world.advance(due(&weekly).duration_since(world.now()));
    eventually("the report is sent", async || {
        let subjects: Vec<Value> =
            mail.messages().iter().map(|one| one["headers"]["subject"].clone()).collect();
        subjects.contains(&json!("[Acme] Weekly report: nothing needs attention"))
    })
    .await;
    let to: Vec<Value> = mail.messages().iter().map(|message| message["to"][0].clone()).collect();
    assert!(!to.contains(&json!("bob@example.org")), "{to:?}");
    engine.stop().await;
}

async fn messages_that_cannot_be_sent_are_kept_and_tried_again(world: &World) {
    let mail = MailServer::start(world.data_dir(), None);
    let url = mail.url();
    let app = app(world, "a", &url).await;
    let ann = person(world, &app, "ann", Role::Viewer, "ann@example.org").await;
    let nobody = person(world, &app, "bob", Role::Viewer, "bob@refused.example").await;
    let anns = rule(&app, &ann, Rhythm::Immediate, &["*"]).await;
    let refused = rule(&app, &nobody, Rhythm::Immediate, &["*"]).await;
    let (app, engine) = world.lead(app).await;
    happen(world, &app, &[(EventKind::BatchHalted, "Nightly")]).await;
    // A recipient who does not exist delays nobody else.
    eventually("ann gets hers", async || mail.messages().len() == 1).await;
    // Before the clock is set: the next message waits for a minute after this one.
    eventually("it is stored", async || stored(&app, &anns).await.position > anns.position).await;
    eventually("the refusal is stored", async || address(&app, &nobody).await.error.is_some())
        .await;
    let failing = address(&app, &nobody).await;
    assert!(failing.error.unwrap().contains("No such user here"));
    assert_eq!(failing.failing_since, Some(world.now()));
    let kept = stored(&app, &refused).await;
    assert_eq!((kept.position, kept.attempts), (refused.position, 1));
    // After five days the address must be confirmed again.
    world.advance(SignedDuration::from_hours(5 * 24));
    eventually("it is stopped", async || address(&app, &nobody).await.confirmed_at.is_none()).await;
    let mut reader = app.db.read().await.unwrap();
    let entries = store::audit::after(&mut reader, world.org, 0, 1_000).await.unwrap();
    drop(reader);
    assert!(entries.iter().any(|entry| entry.action == "email.stop" && entry.actor == "engine"));
    engine.stop().await;

    // A server that is down loses nothing, and is not the fault of the address.
    drop(mail);
    let (app, engine) = world.lead(app).await;
    happen(world, &app, &[(EventKind::BatchHalted, "Weekend")]).await;
    eventually("it was tried", async || stored(&app, &anns).await.attempts == 1).await;
    let waiting = address(&app, &ann).await;
    assert!(waiting.error.is_some() && waiting.failing_since.is_none());
    engine.stop().await;
    app.db.close().await;
}

async fn next_leader_continues(world: &World) {
    let mail = MailServer::start(world.data_dir(), None);
    let first = app(world, "a", &mail.url()).await;
    let ann = person(world, &first, "ann", Role::Viewer, "ann@example.org").await;
    let anns = rule(&first, &ann, Rhythm::Immediate, &["*"]).await;
    let (first, engine) = world.lead(first).await;
    happen(world, &first, &[(EventKind::BatchHalted, "Nightly")]).await;
    eventually("the first message", async || stored(&first, &anns).await.next_at.is_some()).await;
    engine.stop().await;
    let second = app(world, "b", &mail.url()).await;
    let (second, engine) = world.lead(second).await;
    happen(world, &second, &[(EventKind::BatchHalted, "Weekend")]).await;
    world.advance(SignedDuration::from_secs(61));
    eventually("the second message", async || mail.messages().len() == 2).await;
    let subjects: Vec<String> =
        mail.messages().iter().map(|one| one["headers"]["subject"].to_string()).collect();
    assert!(subjects[0].contains("Nightly") && subjects[1].contains("Weekend"), "{subjects:?}");
    engine.stop().await;
}

testkit::both!(
    crate::support:
    events_arrive_at_once_and_a_flood_is_one_message,
    digests_come_in_the_morning,
    messages_that_cannot_be_sent_are_kept_and_tried_again,
    next_leader_continues,
);
