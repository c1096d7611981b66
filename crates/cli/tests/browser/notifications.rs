//! Notifications from the first click to the message: the pages, and how messages look.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use service::secrets::Secrets;
use store::notifications;
use swarm::behavior::Script;
use vocab::FailureCode;

use crate::axe::Axe;
use crate::fixture::Fixture;
use crate::operator::until;
use crate::page_layout::check_page;

/// Waits for the message with this in its subject.
async fn message(fixture: &Fixture, subject: &str) -> Value {
    let matches = |one: &Value| one["headers"]["subject"].as_str().unwrap().contains(subject);
    let find = async || fixture.mail.messages().into_iter().find(matches).unwrap_or_default();
    until(find, |found| !found.is_null()).await
}

/// Makes all digests due now, instead of waiting for the morning.
async fn make_digests_due(fixture: &Fixture) {
    let data = fixture.dir.data();
    let seal = service::commands::setup::seal(&Secrets::load(&data).unwrap());
    let url = format!("sqlite:{}", data.join("fleetmend.db").display());
    let db = store::Db::open(&store::Options::new(&url, seal)).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let org = store::organizations::list(&mut tx).await.unwrap()[0].id;
    let user = store::users::by_name(&mut tx, org, "ann").await.unwrap().unwrap();
    for rule in notifications::rules(&mut tx, user.id).await.unwrap() {
        notifications::move_rule(&mut tx, rule.id, user.created_at).await.unwrap();
    }
    tx.commit().await.unwrap();
    db.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn person_gets_messages_that_look_right() {
    let Some(fixture) = Fixture::new(12).await else { return };
    let tab = &fixture.tab;
    let axe = Axe::new();
    let kept = std::env::var_os("FLEETMEND_SCREENSHOTS").map(PathBuf::from);
    let mut stumbles = Vec::new();
    let mut check = |name: &str| {
        check_page(tab, axe.as_ref(), name, kept.as_ref(), &mut stumbles);
        tab.set_viewport(1280, "light");
    };

    // The address, and its confirmation.
    fixture.go("/account");
    tab.click("a[href='/account/notifications']");
    tab.until_shown("Send a link");
    check("notifications-empty");
    tab.fill("#f-address", "ann@example.org");
    tab.click("form[action='/account/notifications/address'] button");
    tab.until_shown("We sent a link to ann@example.org");
    check("notifications-unconfirmed");
    let mail = message(&fixture, "Confirm your email address").await;
    let text = mail["text"].as_str().unwrap();
    let link = text.split("https://fleet.example").nth(1).unwrap();
    fixture.go(link.split_whitespace().next().unwrap());
    tab.until_shown("Confirm your email address");
    check("notifications-confirm");
    tab.click("button.main");
    tab.until_shown("Address confirmed");
    tab.click("a[href='/account/notifications']");
    tab.until_shown("You have no rules");
    check("notifications-no-rules");

    // Two of the suggested rules, and one of one's own.
    tab.click("button[aria-label='Add: Problems, as they happen']");
    tab.until_shown("The rule was added");
    tab.click("a[href='/account/notifications/new']");
    tab.until_shown("A message collects everything");
    check("notifications-new");
    tab.eval("document.querySelector('#f-rhythm').value = 'daily'");
    tab.click("input[name=types][value='*']");
    tab.click("main button.main");
    tab.until_shown("Daily digest");
    check("notifications-rules");

    // A batch in which a server fails.
    fixture.fleet.script(0, Script::FailWith(FailureCode::DiskFull));
    let batch = fixture.operator.orders(&fixture.fleet, 0..3, json!({})).await;
    fixture.operator.until_ended(&batch).await;
    let immediate = message(&fixture, "failed or timed out").await;
    make_digests_due(&fixture).await;
    let digest = message(&fixture, "Daily digest").await;
    assert!(digest["text"].as_str().unwrap().contains("What went wrong"), "{digest}");
    for (name, mail) in [("email-immediate", &immediate), ("email-digest", &digest)] {
        assert_eq!(mail["defects"], json!([]));
        let html = mail["html"].as_str().unwrap();
        tab.go(&format!("data:text/html;charset=utf-8;base64,{}", STANDARD.encode(html)));
        tab.until_shown("Unsubscribe");
        check(name);
        // In the dark theme it is dark.
        tab.set_viewport(1280, "dark");
        let color = "return getComputedStyle(document.querySelector('.card')).backgroundColor";
        assert_eq!(tab.eval(color), "rgb(25, 29, 35)", "{name}");
        tab.set_viewport(1280, "light");
        assert_eq!(tab.eval(color), "rgb(255, 255, 255)", "{name}");
    }

    // One click ends the messages of a rule.
    let link = digest["headers"]["list-unsubscribe"].as_str().unwrap();
    let path = link.trim_matches(['<', '>']).strip_prefix("https://fleet.example").unwrap();
    fixture.go(path);
    tab.until_shown("You get no more messages of this kind");
    check("notifications-unsubscribe");
    tab.click("button.main");
    tab.until_shown("Unsubscribed");
    tab.click("a[href='/account/notifications']");
    tab.until("the rule is gone", |tab| !tab.text().contains("Daily digest"));
    assert!(tab.text().contains("As it happens"));
    assert_eq!(stumbles, Vec::<String>::new());
    fixture.end().await;
}
