//! `/v1/forecast`.

use axum::http::Method;
use serde_json::{Value, json};
use vocab::{BlockedBy, Pending, Role, Severity};

use crate::fleet::{Host, join, security};
use crate::support::{Service, TestRequest};

async fn forecast(service: &Service, body: Value) -> Value {
    let ask = TestRequest::post("/v1/forecast", body).with_key(&service.viewer);
    ask.send(&service.router).await.is(200).json()
}

async fn create(service: &Service, path: &str, body: Value) -> Value {
    let ask = TestRequest::new(Method::POST, path).with_key(&service.operator).with_json(body);
    ask.send(&service.router).await.is(201).json()
}

fn nightly() -> Value {
    json!({"name": "Nightly", "cron": "0 5 * * *", "targets": {"tags": ["web"]},
        "options": {"max_parallel": 1, "window_minutes": 15, "reboot": "if_required"}})
}

fn updates() -> Vec<Pending> {
    vec![security("openssl", Severity::High, &[]), Pending::new("vim", "amd64", "1", "2")]
}

/// Three web servers, of which one needs a reboot, and one that no schedule selects.
async fn fleet(service: &Service) {
    for name in ["web-1", "web-2", "web-3"] {
        let host = Host { tags: &["web"], reboot_required: name == "web-2", ..Host::new(name) };
        join(service, host.with_updates(updates())).await;
    }
    join(service, Host::new("db-1").with_updates(updates())).await;
}

fn hostnames(list: &Value) -> Vec<String> {
    let name = |server: &Value| server["hostname"].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(name).collect()
}

async fn forecast_shows_gaps_short_windows_and_reboots(service: &Service) {
    fleet(service).await;
    let schedule = create(service, "/v1/schedules", nightly()).await;
    // Ten minutes each, one at a time, in a window of 15 minutes: two start.
    let seen = forecast(service, json!({"days": 1})).await;
    assert_eq!((&seen["with_changes"], &seen["differences"]), (&Value::Null, &Value::Null));
    assert_eq!(seen["from"], "2026-11-15T04:00:00Z");
    assert_eq!(seen["until"], "2026-11-16T04:00:00Z");
    let today = &seen["today"];
    assert_eq!(today["servers"]["patched"], 2);
    assert_eq!(
        (&today["servers"]["total"], &today["servers"]["uncovered"]),
        (&json!(4), &json!(2))
    );
    let gaps = today["gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 2);
    assert_eq!(
        (&gaps[0]["reason"], hostnames(&gaps[0]["servers"])),
        (&json!("no_schedule"), vec!["db-1".to_owned()])
    );
    assert_eq!(
        (&gaps[1]["reason"], hostnames(&gaps[1]["servers"])),
        (&json!("window_closes"), vec!["web-3".to_owned()])
    );
    let window = &today["short_windows"][0];
    assert_eq!((&window["no_turn"], &window["minutes_short"]), (&json!(1), &json!(6)));
    assert_eq!(window["run"]["schedule_id"], schedule["id"]);
    assert_eq!(window["run"]["at"], "2026-11-15T05:00:00Z");
    assert_eq!(today["short_windows_total"], 1);
    let day = &today["days"][0];
    assert_eq!(
        (&day["date"], &day["runs"], &day["patched"]),
        (&json!("2026-11-15"), &json!(1), &json!(2))
    );
    assert_eq!((&day["reboots"], &day["possible_reboots"]), (&json!(1), &json!(1)));
    assert_eq!(today["days"].as_array().unwrap().len(), 2, "both days are listed");
    let outlook: Vec<_> = today["patches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|patch| {
            (patch["server"]["hostname"].as_str().unwrap(), patch["outlook"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        outlook,
        [
            ("db-1", "not_patched"),
            ("web-3", "not_patched"),
            ("web-2", "patched"),
            ("web-1", "patched")
        ]
    );
    assert_eq!(today["patches"][3]["last_at"], "2026-11-15T05:10:00Z");
    let assumptions = today["assumptions"].to_string();
    assert!(
        assumptions.contains("Only updates that are pending now")
            && assumptions.contains("No durations are measured"),
        "{assumptions}"
    );

    // A second night reaches the third server.
    let two = forecast(service, json!({"days": 2})).await;
    assert_eq!(two["today"]["servers"]["patched"], 3);
}

async fn changes_are_compared_and_not_stored(service: &Service) {
    fleet(service).await;
    create(service, "/v1/schedules", nightly()).await;
    let everything = json!({"name": "All", "cron": "30 4 * * *", "targets": {"all": true}});
    let body = json!({"days": 1, "changes": {"schedules": [everything]}});
    let seen = forecast(service, body).await;
    let differences = &seen["differences"];
    assert_eq!(hostnames(&differences["covered"]["servers"]), ["db-1", "web-3"]);
    assert_eq!(hostnames(&differences["patched"]["servers"]), ["db-1", "web-3"]);
    assert_eq!(hostnames(&differences["earlier"]["servers"]), ["web-1", "web-2"]);
    assert_eq!(differences["later"]["total"], 0);
    assert_eq!(seen["with_changes"]["servers"]["uncovered"], 0);
    assert_eq!(seen["today"]["servers"]["uncovered"], 2);
    let patch = seen["with_changes"]["patches"]
        .as_array()
        .unwrap()
        .iter()
        .find(|patch| patch["server"]["hostname"] == "db-1")
        .unwrap();
    assert_eq!(
        (&patch["run"]["name"], &patch["run"]["schedule_id"]),
        (&json!("All"), &Value::Null)
    );

    let freeze = json!({"name": "Stop", "reason": "Sale", "targets": {"all": true}, "ends_at": "2026-12-01T00:00:00Z"});
    let frozen = forecast(service, json!({"days": 3, "changes": {"freezes": [freeze]}})).await;
    assert_eq!(frozen["differences"]["uncovered"]["total"], 3);
    let skipped = &frozen["with_changes"]["skipped"][0];
    assert_eq!(
        (&skipped["reason"], &frozen["with_changes"]["skipped_total"]),
        (&json!("freeze"), &json!(3))
    );
    assert_eq!(service.get("/v1/schedules").await.is(200).json()["meta"]["total"], 1);
    assert_eq!(service.get("/v1/freezes").await.is(200).json()["meta"]["total"], 0);
}

async fn host_blocks_and_limits_are_gaps(service: &Service) {
    let mut held = security("openssl", Severity::High, &[]);
    held.blocked_by = Some(BlockedBy::Held);
    join(service, Host::new("held").with_updates(vec![held])).await;
    let limits = json!({"limits": {"frozen": true, "never_reboot": false, "security_only": false,
        "exclude": [], "max_packages": null, "allowed_hours": []}});
    join(service, Host { facts: limits, ..Host::new("limited").with_updates(updates()) }).await;
    join(service, Host { quarantine: Some("a copy"), ..Host::new("quarantined") }).await;
    let all = json!({"name": "All", "cron": "0 5 * * *", "targets": {"all": true}});
    create(service, "/v1/schedules", all).await;
    let seen = forecast(service, json!({"days": 1})).await["today"].clone();
    let gaps: Vec<_> = seen["gaps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gap| (gap["reason"].as_str().unwrap(), hostnames(&gap["servers"])))
        .collect();
    assert_eq!(
        gaps,
        [
            ("quarantined", vec!["quarantined".to_owned()]),
            ("host_limits", vec!["limited".to_owned()])
        ]
    );
    let held = seen["patches"]
        .as_array()
        .unwrap()
        .iter()
        .find(|patch| patch["server"]["hostname"] == "held")
        .unwrap();
    assert_eq!(held["reason"], "The host blocks every pending update.");
}

async fn invalid_forecast_is_rejected_with_every_error(service: &Service) {
    let body = json!({"days": 91, "changes": {
        "schedules": [{"name": "", "cron": "never", "targets": {"all": true}}],
        "freezes": [{"name": "A", "reason": "B", "targets": {}}]}});
    let problem = service.post("/v1/forecast", body).await.is_problem(422, "invalid_body").json();
    let mut pointers: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap().to_owned())
        .collect();
    pointers.sort();
    let expected = [
        "/changes/freezes/0",
        "/changes/freezes/0/targets",
        "/changes/schedules/0/cron",
        "/changes/schedules/0/name",
        "/days",
    ];
    assert_eq!(pointers, expected);
    for days in [0, -1] {
        service.post("/v1/forecast", json!({"days": days})).await.is_problem(422, "invalid_body");
    }
    let many: Vec<Value> = (0..21).map(|_| nightly()).collect();
    let body = json!({"changes": {"schedules": many}});
    let problem = service.post("/v1/forecast", body).await.is_problem(422, "invalid_body").json();
    assert_eq!(problem["errors"][0]["code"], "too_many");
}

/// Servers of other environments affect when a server has its turn.
async fn environment_limited_key_gets_no_forecast(service: &Service) {
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let ask = TestRequest::post("/v1/forecast", json!({})).with_key(&key);
    ask.send(&service.router).await.is_problem(403, "forbidden");
}

testkit::both!(
    crate::support:
    forecast_shows_gaps_short_windows_and_reboots,
    changes_are_compared_and_not_stored,
    host_blocks_and_limits_are_gaps,
    invalid_forecast_is_rejected_with_every_error,
    environment_limited_key_gets_no_forecast,
);
