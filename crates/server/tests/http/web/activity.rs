//! The activity page: sentences, filters, folded entries and the CSV file.

use jiff::SignedDuration;
use serde_json::json;
use vocab::{Role, ServerId};

use crate::browser::Browser;
use crate::fleet::{Host, join};
use crate::markup::csv;
use crate::support::Service;

/// The visible text of a page.
fn text(page: &str) -> String {
    let parts = page.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    parts.collect::<Vec<_>>().concat()
}

async fn edit(ann: &Browser, server: ServerId, name: &str, tags: &str) {
    let path = format!("/servers/{server}/edit");
    let page = ann.get(&path).await.is(200).text();
    let shown = page.split("name=\"shown\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let form = [("display_name", name), ("environment", "production"), ("tags", tags)];
    ann.submit(&path, &[&form[..], &[("shown", shown)]].concat()).await.is(303);
}

async fn entries_read_as_sentences_with_links_to_what_exists(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let web = join(service, Host::new("web-1")).await;
    let old = join(service, Host::new("old-1")).await;
    edit(&ann, web, "Shop <b>", "").await;
    service.delete(&format!("/v1/servers/{old}")).await.is(204);
    let order = json!({"server_ids": [web], "security_only": true});
    let batch = service.post("/v1/batches", order).await.is(202).json();
    let batch = batch["id"].as_str().unwrap();
    ann.submit(&format!("/batches/{batch}/pause"), &[]).await.is(303);
    let page = ann.get("/activity").await.is(200).text();
    let shown = text(&page);
    for sentence in [
        "ann paused batch Security updates",
        "ann edited server Shop &lt;b&gt;",
        "API key first admin key removed server old-1",
        "API key first admin key created batch Security updates for 1 server",
        "ann set a password",
    ] {
        assert!(shown.contains(sentence), "no {sentence:?} in {shown}");
    }
    assert!(page.contains(&format!("<a href=\"/servers/{web}\">")), "{page}");
    assert!(page.contains(&format!("<a href=\"/batches/{batch}\">")), "{page}");
    assert!(!page.contains(&format!("<a href=\"/servers/{old}\">")), "removed: {page}");
    // The entry itself is one click away.
    assert!(page.contains("&#34;action&#34;: &#34;batch.pause&#34;"), "{page}");
}

async fn filters_select_entries_on_the_page_and_in_the_file(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let web = join(service, Host::new("web-1")).await;
    let other = join(service, Host::new("db-1")).await;
    for (server, tag) in [(web, "a"), (other, "b")] {
        edit(&ann, server, "", tag).await;
    }
    service.clock.advance(SignedDuration::from_hours(24));
    let ann = {
        let again = Browser::new(service);
        let form = [("name", "ann"), ("password", crate::browser::PASSWORD)];
        again.post("/sign-in", &form).await.is(303);
        again
    };
    let user = {
        let mut reader = service.app.db.read().await.unwrap();
        store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap().id
    };
    let today = service.clock.now().strftime("%Y-%m-%d").to_string();
    let actions = async |query: &str| {
        let page = ann.get(&format!("/activity{query}")).await.is(200).text();
        let file = ann.get(&format!("/activity.csv{query}")).await.is(200).text();
        let lines = csv(&file);
        let at = lines[0].iter().position(|head| head == "action").unwrap();
        let actions: Vec<String> = lines[1..].iter().map(|line| line[at].clone()).collect();
        for action in &actions {
            let raw = format!("&#34;action&#34;: &#34;{action}&#34;");
            assert!(page.contains(&raw), "{query}: the page lacks {action}");
        }
        assert_eq!(page.matches("&#34;seq&#34;:").count(), actions.len(), "{query}");
        actions
    };
    assert_eq!(actions(&format!("?server={web}")).await, ["server.edit"]);
    assert_eq!(actions("?server=web-1").await, ["server.edit"]);
    assert_eq!(actions("?server=nothing").await, Vec::<String>::new());
    assert_eq!(actions(&format!("?server={web}&kind=batches")).await, Vec::<String>::new());
    assert_eq!(
        actions(&format!("?actor={user}")).await,
        ["user.sign_in", "server.edit", "server.edit", "user.password"]
    );
    assert_eq!(
        actions(&format!("?actor={user}&kind=accounts")).await,
        ["user.sign_in", "user.password"]
    );
    assert_eq!(actions("?kind=accounts").await, ["user.sign_in", "user.password", "user.create"]);
    assert_eq!(actions(&format!("?from={today}")).await, ["user.sign_in"]);
    assert_eq!(actions("?until=2001-01-01").await, Vec::<String>::new());
    let earlier = actions(&format!("?actor={user}&until={today}")).await;
    assert_eq!(earlier.len(), 4);
    // Both filters are shown as chips, and each can be removed.
    let page = ann.get(&format!("/activity?actor={user}&kind=servers")).await.text();
    assert!(page.contains("Remove the filter Actor: ann"), "{page}");
    assert!(page.contains("Remove the filter Kind: Servers and agents"), "{page}");
    for bad in ["?kind=nothing", "?from=yesterday", "?server=a&batch=b", "?what=1"] {
        ann.get(&format!("/activity{bad}")).await.is(400);
    }
}

async fn similar_entries_are_one_row_that_opens(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(join(service, Host::new(Box::leak(format!("web-{n}").into_boxed_str()))).await);
    }
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let mut form: Vec<(&str, &str)> = ids.iter().map(|id| ("server_ids", id.as_str())).collect();
    form.extend([("environment_change", "keep"), ("add_tags", "edited"), ("go", "1")]);
    ann.submit("/servers/edit", &form).await.is(303);
    let page = ann.get("/activity?kind=servers").await.is(200).text();
    assert!(text(&page).contains("ann edited 12 servers"), "{page}");
    assert!(page.contains("Show all 12"), "{page}");
    assert_eq!(page.matches(">edited server <a").count(), 0, "{page}");
    assert_eq!(text(&page).matches("edited server web-").count(), 12, "{page}");
}

async fn rare_entries_are_found_page_by_page_among_many(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let user = {
        let mut reader = service.app.db.read().await.unwrap();
        store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap().id
    };
    // More entries of one actor than one query reads.
    for _ in 0..6 {
        let mut tx = service.app.db.begin().await.unwrap();
        for _ in 0..1_000 {
            let (at, subject) = (service.clock.now(), "srv_x");
            let action = service::audit::Action::ServerEdit;
            let by = user.to_string();
            service::record(&mut tx, service.org, at, &by, action, subject, &json!({}));
        }
        tx.commit().await.unwrap();
    }
    let path = format!("/activity?actor={user}&kind=accounts");
    let first = ann.get(&path).await.is(200).text();
    assert!(first.contains("No matching entries in this part of the log."), "{first}");
    let older = first.split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    let older = older.replace("&#38;", "&");
    let second = ann.get(&older).await.is(200).text();
    assert!(text(&second).contains("ann set a password"), "{second}");
    assert!(!second.contains("rel=\"next\""), "{second}");
}

testkit::both!(
    crate::support:
    entries_read_as_sentences_with_links_to_what_exists,
    filters_select_entries_on_the_page_and_in_the_file,
    similar_entries_are_one_row_that_opens,
    rare_entries_are_found_page_by_page_among_many,
);
