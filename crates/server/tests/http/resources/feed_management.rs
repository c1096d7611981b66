//! Adding, updating and removing feeds through the API. The leader that fetches them is in the
//! engine's tests.

use axum::http::Method;
use serde_json::{Value, json};
use service::app::FeedSettings;
use store::feed_sources;
use vocab::Role;

use crate::fleet::{Host, join};
use crate::resources::feeds::{FRIDAY, import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};
use server::app::Settings;

fn names(listed: &Value) -> Vec<&str> {
    listed["data"].as_array().unwrap().iter().map(|feed| feed["name"].as_str().unwrap()).collect()
}

async fn built_in_feed_is_added_by_name(service: &Service) {
    let answer = service.post("/v1/feeds", json!({"name": "rocky linux"})).await.is(201);
    let added = answer.json();
    assert_eq!((&added["name"], &added["state"]), (&"Rocky Linux".into(), &"waiting".into()));
    assert_eq!((&added["built_in"], &added["automatic"]), (&true.into(), &false.into()));
    let path = format!("/v1/feeds/{}", added["id"].as_str().unwrap());
    assert_eq!(answer.headers["location"], path.as_str());
    assert_eq!(service.get(&path).await.is(200).json(), added);
    let again = service.post("/v1/feeds", json!({"name": "Rocky Linux"})).await.is(409).json();
    assert_eq!(again["code"], "already_exists");
    let sources = feed_sources::list(&mut service.app.db.read().await.unwrap()).await.unwrap();
    assert_eq!(sources[0].url, feed::catalog::find("Rocky Linux").unwrap().url);
    assert_eq!(sources[0].every_seconds, 6 * 3_600);
}

async fn feed_is_added_by_url_and_named_after_it(service: &Service) {
    let url = "https://feeds.example.org/osv/Debian/all.zip";
    let added = service.post("/v1/feeds", json!({"url": url, "every_hours": 12})).await.is(201);
    let added = added.json();
    assert_eq!((&added["name"], &added["built_in"]), (&"Debian".into(), &false.into()));
    let named = json!({"url": "https://feeds.example.org/all.zip", "name": "ours"});
    service.post("/v1/feeds", named).await.is(201);
    let sources = feed_sources::list(&mut service.app.db.read().await.unwrap()).await.unwrap();
    assert_eq!((sources[0].every_seconds, sources[1].name.as_str()), (12 * 3_600, "ours"));
}

async fn invalid_feeds_are_rejected_with_the_reason(service: &Service) {
    for (body, pointer, part) in [
        (json!({}), "/url", "built-in feed"),
        (json!({"name": "Debain"}), "/name", "Debian, Ubuntu"),
        (json!({"url": "ftp://feeds.example.org/x"}), "/url", "https://"),
        (json!({"url": "file:///etc/passwd"}), "/url", "no host"),
        (json!({"url": "https://ann:secret@feeds.example.org/x"}), "/url", "credentials"),
        (json!({"url": "https://feeds.example.org/x", "name": " "}), "/name", "empty"),
        (json!({"name": "Debian", "every_hours": 0}), "/every_hours", "1 to 168"),
        (json!({"name": "Debian", "interval": 3}), "/interval", ""),
    ] {
        let problem = service.post("/v1/feeds", body.clone()).await.is(422).json();
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
        let detail = problem["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.contains(part) && !detail.contains("secret"), "{body}: {detail}");
    }
    assert_eq!(service.get("/v1/feeds").await.is(200).json()["meta"]["total"], 0);
}

async fn feeds_are_managed_by_administrators_of_the_installation(service: &Service) {
    let staging = service.key(Role::Admin, Some(&["staging"])).await;
    let added = service.post("/v1/feeds", json!({"name": "KEV"})).await.is(201).json();
    let path = format!("/v1/feeds/{}", added["id"].as_str().unwrap());
    for key in [&service.viewer, &service.operator, &staging] {
        let requests = [
            TestRequest::post("/v1/feeds", json!({"name": "EPSS"})),
            TestRequest::post(&format!("{path}/update"), json!({})),
            TestRequest::new(Method::DELETE, &path),
        ];
        for request in requests {
            request.with_key(key).send(&service.router).await.is(403);
        }
        TestRequest::get(&path).with_key(key).send(&service.router).await.is(200);
    }
}

async fn organizations_that_share_feeds_cannot_change_them(service: &Service) {
    let added = service.post("/v1/feeds", json!({"name": "KEV"})).await.is(201).json();
    let path = format!("/v1/feeds/{}", added["id"].as_str().unwrap());
    let stranger = service.stranger().await;
    for key in [&service.admin, &stranger] {
        let refused = TestRequest::new(Method::DELETE, &path).with_key(key);
        let refused = refused.send(&service.router).await.is(403).json();
        assert!(refused["detail"].as_str().unwrap().contains("share"), "{refused}");
        TestRequest::get(&path).with_key(key).send(&service.router).await.is(200);
    }
}

async fn update_makes_a_feed_due_now(service: &Service) {
    let added = service.post("/v1/feeds", json!({"name": "KEV"})).await.is(201).json();
    let path = format!("/v1/feeds/{}/update", added["id"].as_str().unwrap());
    service.clock.advance(jiff::SignedDuration::from_hours(1));
    let updated = service.post(&path, json!({})).await.is(202).json();
    assert_eq!(updated["next_update_at"], service.clock.now().to_string());
    let osv = lines(&[osv("DSA-1", FRIDAY, "curl", "1.2", &["CVE-2026-1"])]);
    import_feed(service, &write_file(service, "by-hand.jsonl", &osv)).await.unwrap();
    let listed = service.get("/v1/feeds").await.is(200).json();
    let by_hand = &listed["data"][1];
    assert_eq!((&by_hand["name"], &by_hand["state"]), (&"by-hand".into(), &"manual".into()));
    let path = format!("/v1/feeds/{}/update", by_hand["id"].as_str().unwrap());
    let refused = service.post(&path, json!({})).await.is(409).json();
    assert!(refused["detail"].as_str().unwrap().contains("has no URL"), "{refused}");
}

async fn removed_feed_disappears_from_the_list(service: &Service) {
    let osv = lines(&[osv("DSA-1", FRIDAY, "curl", "1.2", &["CVE-2026-1"])]);
    import_feed(service, &write_file(service, "Debian.jsonl", &osv)).await.unwrap();
    service.post("/v1/feeds", json!({"name": "KEV"})).await.is(201);
    let listed = service.get("/v1/feeds").await.is(200).json();
    assert_eq!(names(&listed), ["Debian", "KEV"]);
    for feed in listed["data"].as_array().unwrap() {
        let path = format!("/v1/feeds/{}", feed["id"].as_str().unwrap());
        service.delete(&path).await.is(204);
        service.delete(&path).await.is(404);
        service.get(&path).await.is(404);
    }
    assert_eq!(names(&service.get("/v1/feeds").await.is(200).json()), [""; 0]);
    service.get("/v1/feeds/feed_01jcqk3m8ye0fr5cq0k6s8v2xw").await.is(404);
    let added = service.post("/v1/feeds", json!({"name": "Debian"})).await.is(201).json();
    assert_eq!(added["name"], "Debian", "a removed feed can be added again");
}

async fn catalog_says_which_feeds_servers_need(service: &Service) {
    join(service, Host::new("web-1")).await;
    join(service, Host { os: ("fedora", "42"), ..Host::new("fed-1") }).await;
    service.post("/v1/feeds", json!({"name": "Debian"})).await.is(201);
    let all = service.get("/v1/feed-catalog?limit=500").await.is(200).json();
    let shown = |name: &str| {
        let all = all["data"].as_array().unwrap();
        let feed = all.iter().find(|feed| feed["name"] == name).unwrap();
        (feed["needed"] == true, feed["added"] == true, feed["opt_in"] == true)
    };
    assert_eq!(shown("Debian"), (true, true, false));
    assert_eq!(shown("KEV"), (true, false, false));
    assert_eq!(shown("Ubuntu"), (false, false, false));
    assert_eq!(shown("Wolfi"), (false, false, true));
    assert_eq!(all["meta"]["total"], feed::catalog::BUILT_IN.len());
}

async fn server_is_not_assessed_before_the_first_import_ends(service: &Service) {
    let installed = vec![vocab::Installed::new("curl", "1.0", "amd64")];
    let id = join(service, Host { installed, ..Host::new("web-1") }).await;
    let assessment = async || {
        service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
        let summary = service.get("/v1/summary").await.is(200).json();
        let server = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
        (server["assessment"].clone(), summary["assessment"]["no_feed"].clone())
    };
    let osv = lines(&[osv("DSA-1", FRIDAY, "curl", "1.2", &["CVE-2026-1"])]);
    import_feed(service, &write_file(service, "Debian.jsonl", &osv)).await.unwrap();
    // As if the records were written, and the import had not ended.
    service.by_hand("update feeds set imported_at = null").await;
    assert_eq!(assessment().await, ("no_feed".into(), 1.into()));
    service.by_hand("update feeds set imported_at = checked_at").await;
    assert_eq!(assessment().await, ("partial".into(), 0.into()));
    let server = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
    assert_eq!(server["unassessed"][0]["reason"], "foreign_kernel", "{}", server["unassessed"]);
}

async fn offline_service_refuses_to_fetch(service: &Service) {
    let added = service.post("/v1/feeds", json!({"name": "KEV"})).await.is(201).json();
    let feeds = FeedSettings { offline: true, ..FeedSettings::default() };
    let (_, router) = service.again(Settings { feeds, ..Settings::default() }).await;
    let send = async |request: TestRequest| request.with_key(&service.admin).send(&router).await;
    let path = format!("/v1/feeds/{}", added["id"].as_str().unwrap());
    let shown = send(TestRequest::get(&path)).await.is(200).json();
    assert_eq!((&shown["state"], &shown["next_update_at"]), (&"offline".into(), &().into()));
    for (path, body) in
        [("/v1/feeds", json!({"name": "EPSS"})), (&format!("{path}/update"), json!({}))]
    {
        let refused = send(TestRequest::post(path, body)).await.is(409).json();
        assert!(refused["detail"].as_str().unwrap().contains("offline"), "{refused}");
    }
    send(TestRequest::new(Method::DELETE, &path)).await.is(204);
}

testkit::both!(
    crate::support:
    built_in_feed_is_added_by_name,
    feed_is_added_by_url_and_named_after_it,
    invalid_feeds_are_rejected_with_the_reason,
    feeds_are_managed_by_administrators_of_the_installation,
    organizations_that_share_feeds_cannot_change_them,
    update_makes_a_feed_due_now,
    removed_feed_disappears_from_the_list,
    catalog_says_which_feeds_servers_need,
    server_is_not_assessed_before_the_first_import_ends,
    offline_service_refuses_to_fetch,
);
