//! Charts, the calendar, histories, names instead of ids, and CSV exports.

use jiff::SignedDuration;
use serde_json::json;
use store::daily_stats::DailyStats;
use vocab::{Installed, Role, Severity};

use crate::browser::Browser;
use crate::fleet::{FAILED, Host, finish, join, security};
use crate::support::Service;

async fn web_1(service: &Service) -> String {
    let mut host = Host::new("web-1").with_updates(vec![security(
        "openssl",
        Severity::Critical,
        &["CVE-2026-0001"],
    )]);
    host.installed = vec![Installed::new("openssl", "1.0", "amd64")];
    let id = join(service, host).await;
    service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    id.to_string()
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

async fn trend_shows_its_numbers_and_its_first_day(service: &Service) {
    web_1(service).await;
    let today = service::projections::daily_stats::utc_day(service.app.clock.now());
    let mut tx = service.app.db.begin().await.unwrap();
    let counted = service::projections::daily_stats::current_counts(&mut tx, service.org, today)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((counted.servers, counted.up_to_date, counted.critical), (1, 0, 1));
    let yesterday = DailyStats {
        day: today.yesterday().unwrap(),
        servers: 4,
        up_to_date: 3,
        high: 17,
        ..counted.clone()
    };
    for day in [&yesterday, &counted] {
        store::daily_stats::write(&mut tx, service.org, day).await.unwrap();
    }
    tx.commit().await.unwrap();
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let page = ann.get("/").await.is(200).text();
    for shown in [
        "18 open, 1 critical, 17 high",
        "75 % up to date, 3 of 4",
        "Recorded once a day since",
        "aria-label=\"Open CVEs by day.",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let file = ann.get("/trend.csv").await.is(200).text();
    let expected = [
        "day,servers,up_to_date,critical,high,medium,low,unknown,known_exploited".to_owned(),
        format!("{},4,3,1,17,0,0,0,0", yesterday.day),
        format!("{today},1,0,1,0,0,0,0,0"),
    ];
    assert_eq!(lines(&file), expected);
}

async fn patches_show_how_long_they_have_been_pending(service: &Service) {
    web_1(service).await;
    service.clock.advance(SignedDuration::from_hours(8 * 24));
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let page = ann.get("/patches").await.is(200).text();
    assert!(page.contains("Pending less than 30 days: 1, 1 critical"), "{page}");
    let file = ann.get("/patch-ages.csv").await.is(200).text();
    assert_eq!(lines(&file)[3], "less than 30 days,1,0,0,0,0,1", "{file}");
}

async fn calendar_uses_the_browsers_time_zone(service: &Service) {
    let nightly = |name: &str, cron: &str| json!({"name": name, "cron": cron, "timezone": "Europe/Berlin", "targets": {"all": true}});
    service.post("/v1/schedules", nightly("Nightly", "0 3 * * *")).await.is(201);
    service.post("/v1/schedules", nightly("Often", "* * * * *")).await.is(201);
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let page = ann.get("/schedules").await.is(200).text();
    assert!(
        page.contains("data-zone=\"UTC\"") && page.contains("<strong>02:00</strong>"),
        "{page}"
    );
    assert!(page.contains("03:00 Europe/Berlin") && page.contains("Complete until"), "{page}");
    ann.set_cookie("fleetmend_zone", "Asia/Kolkata");
    let page = ann.get("/schedules").await.is(200).text();
    assert!(
        page.contains("data-zone=\"Asia/Kolkata\"") && page.contains("<strong>07:30</strong>"),
        "{page}"
    );
    for bad in ["<b>", "Nowhere/Else", "../../etc/passwd"] {
        ann.set_cookie("fleetmend_zone", bad);
        assert!(ann.get("/schedules").await.is(200).text().contains("data-zone=\"UTC\""));
    }
}

async fn history_and_activity_show_names(service: &Service) {
    let server = web_1(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    ann.start(&[("server_ids", &server)]).await.is(303);
    let batch = service.get("/v1/batches").await.is(200).json()["data"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    finish(service, &batch, server.parse().unwrap(), FAILED).await;
    let page = ann.get(&format!("/servers/{server}/history")).await.is(200).text();
    assert!(
        page.contains(&format!("/batches/{batch}")) && page.contains("pkg_lock_timeout"),
        "{page}"
    );
    let page = ann.get(&format!("/servers/{server}/history?limit=5&offset=5")).await.is(200).text();
    assert!(page.contains("No more entries"), "{page}");
    let page = ann.get(&format!("/batches/{batch}")).await.is(200).text();
    assert!(page.contains("ann <code class=\"dim\">usr_"), "{page}");
    assert!(ann.get("/batches").await.is(200).text().contains(">ann</span>"));
    let page = ann.get("/activity").await.is(200).text();
    assert!(page.contains(">ann</strong>") && page.contains("href=\"/batches/bat_"), "{page}");
}

async fn main_lists_are_offered_as_json(service: &Service) {
    join(service, Host::new("web-1")).await;
    join(service, Host::new("db-1").in_environment("staging")).await;
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    for list in ["servers", "patches", "cves", "batches", "schedules", "freezes"] {
        let page = ann.get(&format!("/{list}")).await.is(200).text();
        assert!(page.contains(&format!("href=\"/{list}.json\"")), "{page}");
        let file = ann.get(&format!("/{list}.json")).await.is(200);
        assert_eq!(file.header("content-type"), "application/json");
        let name = format!("attachment; filename=\"{list}.json\"");
        assert_eq!(file.header("content-disposition"), name);
        assert!(file.json().is_array(), "{list}");
    }
    let file = ann.get("/servers.json?environment=staging").await.is(200).json();
    let listed = service.get("/v1/servers?environment=staging").await.is(200).json();
    assert_eq!(file, listed["data"], "the same fields as in the API");
    ann.get("/servers.json?environment=a%20b").await.is(400);
}

async fn every_table_has_a_csv_export(service: &Service) {
    let server = web_1(service).await;
    let order = json!({"server_ids": [server], "security_only": true});
    let batch =
        service.post("/v1/batches", order).await.is(202).json()["id"].as_str().unwrap().to_owned();
    finish(service, &batch, server.parse().unwrap(), FAILED).await;
    let schedule = json!({"name": "=Nightly", "cron": "0 3 * * *", "targets": {"all": true}});
    let schedule = service.post("/v1/schedules", schedule).await.is(201).json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    service.post(&format!("/v1/schedules/{schedule}/run"), json!({})).await.is(202);
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    for (path, starts, holds) in [
        (format!("/servers/{server}/packages.csv"), "name,version,", "openssl"),
        (format!("/servers/{server}/cves.csv"), "id,severity,", "CVE-2026-0001,critical"),
        (
            format!("/servers/{server}/history.csv"),
            "batch,ordered_at,what,state,",
            "pkg_lock_timeout",
        ),
        ("/patches/openssl/servers.csv".into(), "server_id,hostname,", ",web-1,online,"),
        ("/cves/CVE-2026-0001/servers.csv".into(), "server_id,hostname,", ",web-1,online,"),
        (format!("/batches/{batch}/tasks.csv"), "id,server_id,hostname,state,", ",web-1,failed,"),
        (
            format!("/batches/{batch}/tasks.csv?state=failed"),
            "id,server_id,hostname,state,",
            ",web-1,failed,",
        ),
        ("/schedules.csv".into(), "id,name,", "\"'=Nightly\""),
        (format!("/schedules/{schedule}/runs.csv"), "id,scheduled_for,", ",manual,"),
        ("/activity.csv".into(), "seq,at,actor_name,actor,", ",ann,usr_"),
        ("/settings/users.csv".into(), "id,name,", ",ann,admin,"),
        ("/settings/keys.csv".into(), "id,name,", "first admin key,admin"),
        ("/settings/tokens.csv".into(), "id,name,", ""),
        ("/settings/feeds.csv".into(), "name,kind,", ""),
        ("/batches.csv".into(), "id,state,", "first admin key,key_"),
    ] {
        let file = ann.get(&path).await.is(200);
        assert!(
            file.header("content-disposition").starts_with("attachment; filename=\""),
            "{path}"
        );
        let text = file.text();
        assert!(text.starts_with(starts) && text.contains(holds), "{path}: {text}");
    }
    let none = ann.get(&format!("/batches/{batch}/tasks.csv?state=succeeded")).await.is(200).text();
    assert_eq!(lines(&none).len(), 1);
    let bob = Browser::signed_in(service, "bob", Role::Viewer).await;
    bob.get("/activity.csv").await.is(403);
    bob.get("/servers/srv_01jcqk3m8ye0fr5cq0k6s8v2xw/history.csv").await.is(404);
}

async fn schedule_with_named_servers_can_be_edited(service: &Service) {
    let [one, two] =
        [join(service, Host::new("web-1")).await, join(service, Host::new("Web-2")).await]
            .map(|id| id.to_string());
    let made = json!({"name": "Named", "cron": "0 3 * * *", "targets": {"server_ids": [one]}});
    let id =
        service.post("/v1/schedules", made).await.is(201).json()["id"].as_str().unwrap().to_owned();
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let edit = format!("/schedules/{id}/edit");
    let page = ann.get(&edit).await.is(200).text();
    assert!(page.contains("checked>web-1</label>"), "{page}");
    let form = |add: &'static str| {
        [
            ("generation", "1"),
            ("name", "Named"),
            ("cron", "0 4 * * *"),
            ("server_ids", one.as_str()),
            ("add_servers", add),
            ("enabled", "true"),
        ]
        .to_vec()
    };
    let wrong = ann.submit(&edit, &form("web-2, nobody")).await.is(422).text();
    assert!(
        wrong.contains("No server is named nobody") && wrong.contains("value=\"web-2, nobody\""),
        "{wrong}"
    );
    ann.submit(&edit, &form("web-2")).await.is(303);
    let now = service.get(&format!("/v1/schedules/{id}")).await.is(200).json();
    let mut named = [one.as_str(), two.as_str()];
    named.sort_unstable();
    assert_eq!((&now["targets"]["server_ids"], &now["cron"]), (&json!(named), &json!("0 4 * * *")));
}

testkit::both!(
    crate::support:
    trend_shows_its_numbers_and_its_first_day,
    patches_show_how_long_they_have_been_pending,
    calendar_uses_the_browsers_time_zone,
    history_and_activity_show_names,
    every_table_has_a_csv_export,
    main_lists_are_offered_as_json,
    schedule_with_named_servers_can_be_edited,
);
