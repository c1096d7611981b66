//! `/v1/suppressions`: a suppressed CVE is shown as suppressed, counted separately, and counts
//! again when the suppression expires.

use axum::http::Method;
use jiff::SignedDuration;
use serde_json::{Value, json};
use service::projections::findings::rebuild;
use vocab::{Installed, Role, ServerId};

use crate::fleet::{Host, join};
use crate::resources::feeds::{import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

const FRIDAY: &str = "2026-11-13T00:00:00Z";
const NOON: &str = "2026-11-15T12:00:00Z";

/// Two servers with a CVE in curl, which libcurl's source has too, and one in vim.
async fn fleet(service: &Service) -> [ServerId; 2] {
    let host = |name| {
        let installed = ["curl", "vim"].map(|name| Installed::new(name, "1.0", "amd64"));
        Host { installed: installed.to_vec(), ..Host::new(name) }
    };
    let servers = [
        join(service, host("web")).await,
        join(service, host("test").in_environment("staging")).await,
    ];
    let both = osv("DSA-2", FRIDAY, "vim", "1.1", &["CVE-2026-1", "CVE-2026-2"]);
    let feed = lines(&[osv("DSA-1", FRIDAY, "curl", "1.1", &["CVE-2026-1"]), both]);
    import_feed(service, &write_file(service, "Debian.jsonl", &feed)).await.unwrap();
    run_background_task(service).await;
    servers
}

/// Runs the background task once.
async fn run_background_task(service: &Service) -> bool {
    rebuild(&service.app, service.org).await.unwrap()
}

async fn suppress(service: &Service, body: Value) -> Value {
    let created = service.post("/v1/suppressions", body).await.is(201).json();
    run_background_task(service).await;
    created
}

/// The number of servers on which a CVE counts, and on which it is suppressed.
async fn server_counts(service: &Service, cve: &str) -> (u64, u64) {
    let cve = service.get(&format!("/v1/cves/{cve}")).await.is(200).json();
    (cve["affected_servers"].as_u64().unwrap(), cve["suppressed_servers"].as_u64().unwrap())
}

/// The number of CVEs of a server, the number of suppressed ones, and the suppression of the first.
async fn cves_of_server(service: &Service, server: ServerId) -> (u64, u64, Value) {
    let shown = service.get(&format!("/v1/servers/{server}")).await.is(200).json();
    let first = shown["cves"].as_array().unwrap().iter().find(|cve| !cve["suppressed"].is_null());
    let by = first.map_or(Value::Null, |cve| cve["suppressed"].clone());
    (
        shown["summary"]["cves"]["unknown"].as_u64().unwrap(),
        shown["suppressed_cves"].as_u64().unwrap(),
        by,
    )
}

async fn suppressed_cve_is_shown_and_counts_again_after_expiry(service: &Service) {
    let [web, _] = fleet(service).await;
    assert_eq!(
        (server_counts(service, "CVE-2026-1").await, cves_of_server(service, web).await),
        ((2, 0), (2, 0, Value::Null))
    );
    let created =
        suppress(service, json!({"cve": "CVE-2026-1", "reason": "not built", "expires_at": NOON}))
            .await;
    assert_eq!(
        (&created["active"], &created["package"], &created["environment"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    assert_eq!(server_counts(service, "CVE-2026-1").await, (0, 2));
    let by = json!({"suppression_id": created["id"], "reason": "not built", "until": NOON});
    assert_eq!(
        cves_of_server(service, web).await,
        (1, 2, by.clone()),
        "it is in two packages, and counts as one CVE"
    );
    let cve = service.get("/v1/cves/CVE-2026-1").await.is(200).json();
    assert_eq!(
        (cve["servers"].as_array().unwrap().len(), &cve["servers"][0]["suppressed"]),
        (4, &by)
    );
    let listed = async |query: &str| {
        let list = service.get(&format!("/v1/cves?{query}")).await.is(200).json();
        let ids = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cve| cve["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(
        listed("").await,
        ["CVE-2026-2", "CVE-2026-1"],
        "still listed, after those that count"
    );
    assert_eq!(listed("suppressed=true").await, ["CVE-2026-1"]);
    assert_eq!(listed("suppressed=false").await, ["CVE-2026-2"]);
    assert!(!run_background_task(service).await, "nothing changed");
    service.clock.advance(SignedDuration::from_hours(9));
    assert!(run_background_task(service).await, "the suppression has expired");
    assert_eq!(
        (server_counts(service, "CVE-2026-1").await, cves_of_server(service, web).await),
        ((2, 0), (2, 0, Value::Null))
    );
    let path = format!("/v1/suppressions/{}", created["id"].as_str().unwrap());
    assert_eq!(
        service.get(&path).await.is(200).json()["active"],
        false,
        "the suppression can still be read"
    );
}

async fn suppression_of_one_package_keeps_the_cve_in_the_other(service: &Service) {
    let [web, _] = fleet(service).await;
    suppress(service, json!({"cve": "CVE-2026-1", "package": "curl", "reason": "no"})).await;
    assert_eq!(
        (server_counts(service, "CVE-2026-1").await, cves_of_server(service, web).await.0),
        ((2, 0), 2)
    );
    assert_eq!(cves_of_server(service, web).await.1, 1);
    suppress(service, json!({"cve": "CVE-2026-1", "package": "vim", "reason": "no"})).await;
    assert_eq!(
        (server_counts(service, "CVE-2026-1").await, cves_of_server(service, web).await.0),
        ((0, 2), 1)
    );
}

async fn suppression_of_one_environment_does_not_affect_others(service: &Service) {
    let [web, test] = fleet(service).await;
    let created = suppress(
        service,
        json!({"cve": "CVE-2026-1", "environment": "staging", "reason": "a test system"}),
    )
    .await;
    assert_eq!(server_counts(service, "CVE-2026-1").await, (1, 1));
    assert_eq!(
        (cves_of_server(service, web).await.0, cves_of_server(service, test).await.0),
        (2, 1)
    );
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let seen = TestRequest::get("/v1/cves/CVE-2026-1")
        .with_key(&key)
        .send(&service.router)
        .await
        .is(200)
        .json();
    assert_eq!((&seen["affected_servers"], &seen["suppressed_servers"]), (&json!(0), &json!(1)));
    let path = format!("/v1/suppressions/{}", created["id"].as_str().unwrap());
    service.delete(&path).await.is(204);
    run_background_task(service).await;
    assert_eq!(
        (server_counts(service, "CVE-2026-1").await, cves_of_server(service, test).await.0),
        ((2, 0), 2)
    );
    service.get(&path).await.is_problem(404, "not_found");
    service.delete(&path).await.is_problem(404, "not_found");
}

async fn suppressions_are_created_listed_deleted_and_audited(service: &Service) {
    let body =
        json!({"cve": "CVE-2026-1", "package": "zlib", "reason": "not built", "expires_at": NOON});
    let ask = || {
        TestRequest::post("/v1/suppressions", body.clone())
            .with_key(&service.operator)
            .with("idempotency-key", "once")
    };
    let created = ask().send(&service.router).await.is(201);
    let again = ask().send(&service.router).await.is(201);
    assert_eq!(created.json(), again.json(), "one request, one suppression");
    let path = created.header("location").to_owned();
    let read = service.get(&path).await.is(200);
    assert_eq!((read.json(), read.header("etag")), (created.json(), created.header("etag")));
    // Two suppressions of the same millisecond have no defined order.
    service.clock.advance(SignedDuration::from_secs(1));
    service.post("/v1/suppressions", json!({"cve": "CVE-2026-2", "reason": "x"})).await.is(201);
    let list = service.get("/v1/suppressions").await.is(200).json();
    let ids: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|one| one["cve"].clone()).collect();
    assert_eq!(
        (ids, &list["meta"]["total"]),
        (vec![json!("CVE-2026-2"), json!("CVE-2026-1")], &json!(2))
    );
    let one = service.get("/v1/suppressions?cve=CVE-2026-1").await.is(200).json();
    assert_eq!((&one["meta"]["total"], &one["data"][0]), (&json!(1), &created.json()));
    let stale = TestRequest::new(Method::DELETE, &path)
        .with_key(&service.operator)
        .with("if-match", "\"7\"");
    stale.send(&service.router).await.is_problem(412, "precondition_failed");
    let delete = TestRequest::new(Method::DELETE, &path)
        .with_key(&service.operator)
        .with("if-match", created.header("etag"));
    delete.send(&service.router).await.is(204);
    let mut reader = service.app.db.read().await.unwrap();
    let entries = store::audit::after(&mut reader, service.org, 0, 100).await.unwrap();
    let actions: Vec<_> = entries
        .iter()
        .map(|entry| entry.action.as_str())
        .filter(|action| action.starts_with("supp"))
        .collect();
    assert_eq!(actions, ["suppression.create", "suppression.create", "suppression.delete"]);
}

async fn invalid_and_forbidden_suppressions_are_rejected(service: &Service) {
    let wrong = json!({"cve": "not a cve", "package": "", "environment": "a b", "reason": " ", "expires_at": "soon"});
    let refusal =
        service.post("/v1/suppressions", wrong).await.is_problem(422, "invalid_body").json();
    let pointers: Vec<_> = refusal["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(pointers, ["/cve", "/package", "/environment", "/reason", "/expires_at"]);
    let past = json!({"cve": "CVE-2026-1", "reason": "x", "expires_at": FRIDAY});
    let refusal =
        service.post("/v1/suppressions", past).await.is_problem(422, "invalid_body").json();
    assert_eq!(refusal["errors"][0]["code"], "in_the_past");
    service
        .post("/v1/suppressions", json!({"cve": "CVE-2026-1", "reason": "x", "scope": "all"}))
        .await
        .is_problem(422, "invalid_body");
    service.get("/v1/suppressions?package=x").await.is_problem(400, "unknown_parameter");
    let body = json!({"cve": "CVE-2026-1", "reason": "x"});
    let everywhere =
        service.post("/v1/suppressions", body.clone()).await.is(201).header("location").to_owned();
    let viewer = service.key(Role::Viewer, None).await;
    TestRequest::post("/v1/suppressions", body.clone())
        .with_key(&viewer)
        .send(&service.router)
        .await
        .is_problem(403, "forbidden");
    let limited = service.key(Role::Operator, Some(&["staging"])).await;
    let ask = async |ask: TestRequest| ask.with_key(&limited).send(&service.router).await;
    ask(TestRequest::post("/v1/suppressions", body)).await.is_problem(403, "forbidden");
    ask(TestRequest::new(Method::DELETE, &everywhere)).await.is_problem(403, "forbidden");
    ask(TestRequest::get(&everywhere)).await.is(200);
    let theirs = json!({"cve": "CVE-2026-1", "reason": "x", "environment": "production"});
    let theirs =
        service.post("/v1/suppressions", theirs).await.is(201).header("location").to_owned();
    ask(TestRequest::get(&theirs)).await.is_problem(404, "not_found");
    let ours = json!({"cve": "CVE-2026-1", "reason": "x", "environment": "staging"});
    let ours = ask(TestRequest::post("/v1/suppressions", ours))
        .await
        .is(201)
        .header("location")
        .to_owned();
    assert_eq!(ask(TestRequest::get("/v1/suppressions")).await.is(200).json()["meta"]["total"], 2);
    ask(TestRequest::new(Method::DELETE, &ours)).await.is(204);
}

testkit::both!(
    crate::support:
    suppressed_cve_is_shown_and_counts_again_after_expiry,
    suppression_of_one_package_keeps_the_cve_in_the_other,
    suppression_of_one_environment_does_not_affect_others,
    suppressions_are_created_listed_deleted_and_audited,
    invalid_and_forbidden_suppressions_are_rejected,
);
