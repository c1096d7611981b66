//! Organizations are isolated: every route is tested with existing ids of another organization.

use api::Access;
use axum::http::Method;
use serde_json::{Value, json};
use vocab::{Installed, Severity};

use crate::fleet::{Host, join, security};
use crate::resources::feeds::{import_feed, lines, osv, write_file};
use crate::resources::mutations;
use crate::support::{Service, TestRequest};

/// One resource of each kind, by the names of the path parameters.
async fn create_one_of_each(service: &Service) -> Vec<(&'static str, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let updates = vec![security("openssl", Severity::High, &[])];
    let mut host = Host { quarantine: Some("a copy"), ..Host::new("web-1").with_updates(updates) };
    host.installed.push(Installed::new("openssl", "1.0", "amd64"));
    let server = join(service, host).await;
    let advisory = osv("DSA-1", "2026-11-13T00:00:00Z", "openssl", "1.1", &["CVE-2026-1"]);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[advisory]))).await.unwrap();
    service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    let body = json!({"name": "s", "cron": "@daily", "targets": {"all": true}});
    let schedule = text(&service.post("/v1/schedules", body).await.is(201).json()["id"]);
    let run =
        service.post(&format!("/v1/schedules/{schedule}/run"), json!({})).await.is(202).json();
    let batch = text(&run["batch_id"]);
    let seen = service.get(&format!("/v1/batches/{batch}")).await.is(200).json();
    let refresh =
        service.post(&format!("/v1/servers/{server}/refresh"), json!({})).await.is(202).json();
    let key =
        service.post("/v1/api-keys", json!({"name": "k", "role": "viewer"})).await.is(201).json();
    let token = service.post("/v1/enrollment-tokens", json!({})).await.is(201).json();
    let body = json!({"cve": "CVE-2026-1", "reason": "not built"});
    let suppression = service.post("/v1/suppressions", body).await.is(201).json();
    let body = json!({"name": "w", "url": "https://hooks.example.org/a", "types": ["*"]});
    let webhook = text(&service.post("/v1/webhooks", body).await.is(201).json()["id"]);
    let body = json!({"name": "f", "reason": "r", "targets": {"all": true},
        "cron": "@daily", "duration_minutes": 60});
    let freeze = text(&service.post("/v1/freezes", body).await.is(201).json()["id"]);
    let body = json!({"name": "p", "targets": {"all": true},
        "rules": [{"match": {"kev": true}, "within_days": 2}]});
    let policy = text(&service.post("/v1/policies", body).await.is(201).json()["id"]);
    service::projections::compliance::rebuild(&service.app, service.org).await.unwrap();
    vec![
        ("{policy_id}", policy),
        ("{freeze_id}", freeze),
        ("{server_id}", server.to_string()),
        ("{schedule_id}", schedule),
        ("{run_id}", text(&run["id"])),
        ("{batch_id}", batch),
        ("{task_id}", text(&seen["results"][0]["id"])),
        ("{refresh_id}", text(&refresh["id"])),
        ("{api_key_id}", text(&key["id"])),
        ("{token_id}", text(&token["id"])),
        ("{package_name}", "openssl".to_owned()),
        ("{cve_id}", "CVE-2026-1".to_owned()),
        ("{suppression_id}", text(&suppression["id"])),
        ("{delivery_id}", mutations::delivery(service, &webhook).await.to_string()),
        ("{webhook_id}", webhook),
    ]
}

/// A body that the operation would accept from its own organization.
fn body(path: &str) -> Value {
    match path {
        "/v1/schedules/{schedule_id}" => {
            json!({"name": "x", "cron": "@daily", "targets": {"all": true}})
        }
        "/v1/freezes/{freeze_id}" => {
            json!({"name": "x", "reason": "r", "targets": {"all": true}, "cron": "@daily",
                "duration_minutes": 60})
        }
        "/v1/policies/{policy_id}" => {
            json!({"name": "x", "targets": {"all": true},
                "rules": [{"match": {"kev": true}, "within_days": 2}]})
        }
        "/v1/servers/{server_id}/patch" => json!({"security_only": true}),
        _ => json!({}),
    }
}

async fn id_of_another_organization_is_not_found(service: &Service) {
    let ids = create_one_of_each(service).await;
    let stranger = service.stranger().await;
    let mut requests = 0;
    for (method, path, access) in api::routes().operations() {
        // Feeds belong to the installation; `feed_management` tests who may change them.
        let is_shared = path.starts_with("/v1/feeds/");
        if access == Access::Open || !path.contains('{') || is_shared {
            continue;
        }
        let concrete = ids.iter().fold(path.clone(), |path, (name, id)| path.replace(name, id));
        assert!(!concrete.contains('{'), "an id is missing for {path}");
        let ask = TestRequest::new(method.clone(), &concrete).with_key(&stranger);
        let ask = if method == Method::GET { ask } else { ask.with_json(body(&path)) };
        let response = ask.send(&service.router).await;
        assert_eq!(
            response.status.as_u16(),
            404,
            "{method} {path}: {}",
            String::from_utf8_lossy(&response.bytes)
        );
        response.is_problem(404, "not_found");
        // For its own organization the resource exists.
        if method == Method::GET {
            service.get(&concrete).await.is(200);
        }
        requests += 1;
    }
    assert!(requests >= 25, "only {requests} operations were tested");
}

async fn lists_and_counts_contain_nothing_of_another_organization(service: &Service) {
    create_one_of_each(service).await;
    let stranger = service.stranger().await;
    let ask =
        async |path: &str| TestRequest::get(path).with_key(&stranger).send(&service.router).await;
    let paths = [
        "/v1/servers",
        "/v1/schedules",
        "/v1/freezes",
        "/v1/policies",
        "/v1/compliance",
        "/v1/patches",
        "/v1/cves",
        "/v1/suppressions",
        "/v1/batches",
    ];
    for path in paths {
        let list = ask(path).await.is(200).json();
        assert_eq!((&list["data"], &list["meta"]["total"]), (&json!([]), &json!(0)), "{path}");
    }
    let summary = ask("/v1/summary").await.is(200).json();
    assert_eq!(
        (&summary["servers"]["total"], &summary["schedules"]["total"]),
        (&json!(0), &json!(0))
    );
    let server = service.get("/v1/servers").await.json()["data"][0]["id"].clone();
    ask(&format!("/v1/patches?server_id={}", server.as_str().unwrap()))
        .await
        .is_problem(404, "not_found");
    for path in ["/v1/batches", "/v1/preview"] {
        let body = json!({"server_ids": [server], "security_only": true});
        let refusal = TestRequest::post(path, body).with_key(&stranger).send(&service.router).await;
        let refusal = refusal.is_problem(422, "invalid_body").json();
        assert_eq!(refusal["errors"][0]["code"], "not_found");
    }
    let body = json!({"targets": {"all": true}});
    let seen = TestRequest::post("/v1/preview", body)
        .with_key(&stranger)
        .send(&service.router)
        .await
        .is(200)
        .json();
    assert_eq!(seen["total"], 0);
}

testkit::both!(
    crate::support:
    id_of_another_organization_is_not_found,
    lists_and_counts_contain_nothing_of_another_organization,
);
