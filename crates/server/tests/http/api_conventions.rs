//! Rules that apply to every route of the API, tested on representative routes.

use api::Access;
use axum::http::Method;
use jiff::SignedDuration;
use serde_json::{Value, json};
use server::app::Settings;
use vocab::{Role, Severity};

use crate::fleet::{Host, join, security};
use crate::resources::mutations::mutations;
use crate::support::{Service, TestRequest};

/// A path of the route table with well-formed ids of nothing that exists.
fn fill_in_ids(path: &str) -> String {
    let id = |prefix: &str| format!("{prefix}_01jcqk3m8ye0fr5cq0k6s8v2xw");
    path.replace("{server_id}", &id("srv"))
        .replace("{schedule_id}", &id("sch"))
        .replace("{run_id}", &id("run"))
        .replace("{batch_id}", &id("bat"))
        .replace("{task_id}", &id("tsk"))
        .replace("{refresh_id}", &id("tsk"))
        .replace("{api_key_id}", &id("key"))
        .replace("{token_id}", &id("enr"))
        .replace("{webhook_id}", &id("whk"))
        .replace("{delivery_id}", &id("dlv"))
        .replace("{package_name}", "openssl")
}

fn routes_with_roles() -> Vec<(Method, String, Role)> {
    let operations = api::routes().operations().into_iter();
    operations
        .filter_map(|(method, path, access)| match access {
            Access::Key(role) => Some((method, fill_in_ids(&path), role)),
            Access::Open => None,
        })
        .collect()
}

async fn status_of(service: &Service, method: &Method, path: &str, key: &str) -> u16 {
    let ask = TestRequest::new(method.clone(), path).with_key(key);
    let ask = if method == Method::GET { ask } else { ask.with_json(json!({})) };
    ask.send(&service.router).await.status.as_u16()
}

/// The whole table: without a key, with an invalid key, with a lower role, with a sufficient
/// role.
async fn every_route_requires_its_role(service: &Service) {
    let expired = json!({"name": "x", "role": "admin", "expires_at": "2026-11-15T04:00:01Z"});
    let expired = service.post("/v1/api-keys", expired).await.is(201).json();
    let expired = expired["api_key"].as_str().unwrap().to_owned();
    service.clock.advance(SignedDuration::from_secs(2));
    let mut bad = service.admin.clone();
    bad.replace_range(10..11, if &bad[10..11] == "A" { "B" } else { "A" });
    let keys = [
        (Role::Viewer, &service.viewer),
        (Role::Operator, &service.operator),
        (Role::Admin, &service.admin),
    ];
    // Each from its own address, because many invalid keys from one address are throttled.
    for (host, (method, path, needed)) in (0..).zip(routes_with_roles()) {
        let open = TestRequest::new(method.clone(), &path).send(&service.router).await;
        let open = open.is_problem(401, "unauthenticated");
        assert!(open.header("www-authenticate").starts_with("Bearer"), "{method} {path}");
        for key in [&bad, &expired, "", "fmk_"] {
            let ask = TestRequest::new(method.clone(), &path).with_key(key).from(host);
            ask.send(&service.router).await.is_problem(401, "unauthenticated");
        }
        for (role, key) in keys {
            let status = status_of(service, &method, &path, key).await;
            assert_eq!(
                status == 403,
                !role.includes(needed),
                "{method} {path} as {role}: {status}"
            );
            assert!(status != 401 && status < 500, "{method} {path} as {role}: {status}");
        }
    }
}

/// Shape errors do not hide errors in values.
async fn unknown_field_hides_no_other_error(service: &Service) {
    let body = json!({"name": "n", "crno": "@daily", "cron": "61 * * * *", "timezone": "Mars/Olympus",
        "targets": {}, "options": {"stagger_minutes": 1_441, "reboot": 7}});
    let problem = service.post("/v1/schedules", body).await.is_problem(422, "invalid_body").json();
    let errors = problem["errors"].as_array().unwrap().iter();
    let pointers: Vec<&str> = errors.map(|error| error["pointer"].as_str().unwrap()).collect();
    let expected =
        ["/crno", "/options/reboot", "/cron", "/timezone", "/targets", "/options/stagger_minutes"];
    assert_eq!(pointers, expected);
}

/// serde alone would accept an array as the fields in the order of their declaration.
async fn array_is_rejected_where_an_object_is_expected(service: &Service) {
    let order = json!([["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"], [], [], true]);
    service.post("/v1/batches", order).await.is_problem(422, "invalid_body");
    let options =
        json!({"name": "n", "cron": "@daily", "targets": {"all": true}, "options": [null, null]});
    let told = service.post("/v1/schedules", options).await.is_problem(422, "invalid_body").json();
    assert_eq!(told["errors"][0]["pointer"], "/options");
}

/// PostgreSQL accepts NUL in no text; the request must get a proper response anyway.
async fn nul_is_rejected_or_finds_nothing(service: &Service) {
    let body =
        json!({"name": "n", "cron": "@daily", "targets": {"all": true}, "description": "a\u{0}b"});
    let told = service.post("/v1/schedules", body).await.is_problem(422, "invalid_body").json();
    assert_eq!(told["errors"][0]["pointer"], "/description");
    let ask = TestRequest::get("/v1/patches/a%00b").with_key(&service.viewer);
    ask.send(&service.router).await.is_problem(404, "not_found");
    let ask = TestRequest::get("/v1/servers?q=a%00b").with_key(&service.viewer);
    let found = ask.send(&service.router).await.is(200).json();
    assert_eq!(found["meta"]["total"], 0);
}

async fn only_intended_routes_are_open(service: &Service) {
    let open: Vec<String> = api::routes()
        .operations()
        .into_iter()
        .filter(|(_, _, access)| *access == Access::Open)
        .map(|(method, path, _)| format!("{method} {path}"))
        .collect();
    assert_eq!(
        open,
        ["GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json", "GET /docs"]
    );
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"] {
        TestRequest::get(path).send(&service.router).await.is(200);
    }
}

async fn unknown_path_and_method_are_problems(service: &Service) {
    for path in [
        "/nothing",
        "/v1",
        "/v1/nothing",
        "/v1/api-keys/",
        "/v1/%61pi-keys",
        "/v2/api-keys",
        "//v1/api-keys",
    ] {
        service.get(path).await.is_problem(404, "not_found");
    }
    let refusal = TestRequest::new(Method::PUT, "/v1/api-keys").send(&service.router).await;
    let refusal = refusal.is_problem(405, "method_not_allowed");
    let allowed = refusal.header("allow").to_owned();
    assert!(allowed.contains("GET") && allowed.contains("POST"), "{allowed}");
    for method in [Method::TRACE, Method::OPTIONS, Method::from_bytes(b"BREW").unwrap()] {
        TestRequest::new(method, "/v1/api-keys")
            .send(&service.router)
            .await
            .is_problem(405, "method_not_allowed");
    }
}

async fn malformed_id_is_treated_like_an_unknown_one(service: &Service) {
    for id in [
        "key_01jcqk3m8ye0fr5cq0k6s8v2xw",
        "enr_01jcqk3m8ye0fr5cq0k6s8v2xw",
        "1",
        "key_",
        "..%2f..",
        "%00",
        "%ff",
        "key_%F0%9F%92%A5",
    ] {
        service.get(&format!("/v1/api-keys/{id}")).await.is_problem(404, "not_found");
    }
}

async fn body_must_be_json_of_at_most_one_megabyte(service: &Service) {
    let post = |kind: &str, body: &str| {
        let ask = TestRequest::new(Method::POST, "/v1/api-keys").with_key(&service.admin);
        let ask = if kind.is_empty() { ask } else { ask.with("content-type", kind) };
        ask.with_body(body).send(&service.router)
    };
    let good = json!({"name": "x", "role": "viewer"}).to_string();
    post("application/json; charset=utf-8", &good).await.is(201);
    for kind in
        ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
    {
        post(kind, &good).await.is_problem(415, "unsupported_media_type");
    }
    for text in ["", "{", "nonsense", "{\"name\": \"\u{1}\"}", "[1,]"] {
        post("application/json", text).await.is_problem(400, "invalid_json");
    }
    for text in ["[]", "7", "null", "\"x\"", "{}"] {
        post("application/json", text).await.is_problem(422, "invalid_body");
    }
    let large = json!({"name": "x".repeat(1 << 20), "role": "viewer"}).to_string();
    post("application/json", &large).await.is_problem(413, "body_too_large");
    let deep = "[".repeat(100_000);
    post("application/json", &deep).await.is_problem(400, "invalid_json");
}

async fn unknown_field_is_rejected_with_a_suggestion(service: &Service) {
    let body = json!({"name": "x", "role": "viewer", "expire_at": null, "colour": "red"});
    let refusal = service.post("/v1/api-keys", body).await.is_problem(422, "invalid_body").json();
    let errors = refusal["errors"].as_array().unwrap();
    assert_eq!(errors[0]["pointer"], "/colour");
    assert_eq!(errors[1]["pointer"], "/expire_at");
    assert_eq!(errors[1]["code"], "unknown_field");
    assert!(errors[1]["detail"].as_str().unwrap().contains("did you mean `expires_at`?"));
}

async fn invalid_parameter_is_rejected_by_name(service: &Service) {
    let refusal =
        service.get("/v1/api-keys?limt=3").await.is_problem(400, "unknown_parameter").json();
    assert!(refusal["detail"].as_str().unwrap().contains("did you mean `limit`?"), "{refusal}");
    for bad in ["limit=0", "limit=501", "limit=x", "limit=", "offset=-1", "limit=%31%30%30%30"] {
        let refusal = service.get(&format!("/v1/api-keys?{bad}")).await;
        let refusal = refusal.is_problem(400, "invalid_parameter").json();
        let name = bad.split('=').next().unwrap();
        assert!(refusal["detail"].as_str().unwrap().contains(name), "{refusal}");
    }
    service.get("/v1/api-keys?limit=1&limit=2").await.is_problem(400, "repeated_parameter");
    service
        .get("/v1/api-keys/key_01jcqk3m8ye0fr5cq0k6s8v2xw?x=1")
        .await
        .is_problem(400, "unknown_parameter");
    let body = json!({"name": "x", "role": "viewer"});
    service.post("/v1/api-keys?dry_run=true", body).await.is_problem(400, "unknown_parameter");
}

async fn links_page_through_a_list(service: &Service) {
    for n in 0..7 {
        service.post("/v1/enrollment-tokens", json!({"name": format!("t{n}")})).await.is(201);
        service.clock.advance(SignedDuration::from_secs(1));
    }
    let mut names = Vec::new();
    let mut next = Value::from("/v1/enrollment-tokens?limit=3");
    let mut last = Value::Null;
    while let Some(path) = next.as_str() {
        let page = service.get(path).await.is(200).json();
        assert_eq!(page["links"]["self"], path);
        assert_eq!((&page["meta"]["total"], &page["meta"]["limit"]), (&json!(7), &json!(3)));
        names.extend(page["data"].as_array().unwrap().iter().map(|t| t["name"].clone()));
        next = page["links"]["next"].clone();
        last = page["links"]["prev"].clone();
    }
    assert_eq!(names, ["t6", "t5", "t4", "t3", "t2", "t1", "t0"]);
    assert_eq!(last, "/v1/enrollment-tokens?limit=3&offset=3");
    let whole = service.get("/v1/enrollment-tokens").await.is(200).json();
    assert_eq!((&whole["meta"]["limit"], &whole["meta"]["offset"]), (&json!(50), &json!(0)));
    assert_eq!(
        whole["links"],
        json!({"self": "/v1/enrollment-tokens", "next": null, "prev": null})
    );
}

async fn change_with_an_old_version_is_rejected(service: &Service) {
    let made = service.post("/v1/api-keys", json!({"name": "x", "role": "viewer"})).await.is(201);
    let path = made.header("location");
    let delete = |tag: &str| {
        TestRequest::new(Method::DELETE, path)
            .with_key(&service.admin)
            .with("if-match", tag)
            .send(&service.router)
    };
    delete("\"77\"").await.is_problem(412, "precondition_failed");
    delete("77").await.is_problem(400, "invalid_header");
    delete(made.header("etag")).await.is(204);
}

/// Also the other way round: what the document does not offer has no effect.
async fn every_documented_precondition_is_checked(service: &Service) {
    let document = api::openapi::document();
    let mut checked = 0;
    for case in mutations(service).await {
        let operation = &document["paths"][case.route][case.method.as_str().to_lowercase()];
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let reference = json!({"$ref": "#/components/parameters/IfMatch"});
        let ask = case.to_request(&service.admin).with("if-match", "(z");
        let response = ask.send(&service.router).await;
        if parameters.contains(&reference) {
            response.is_problem(400, "invalid_header");
            checked += 1;
        } else {
            response.is(case.status);
        }
    }
    assert_eq!(checked, 13, "operations with `If-Match`");
}

async fn throttled_key_gets_retry_after(service: &Service) {
    let settings = Settings { requests_per_second: 1, requests_burst: 3, ..Settings::default() };
    let (_, router) = service.again(settings).await;
    let ask = TestRequest::get("/v1/api-keys").with_key(&service.admin);
    for left in [2, 1, 0] {
        let response = ask.clone().send(&router).await.is(200);
        assert_eq!(response.header("ratelimit-policy"), "\"key\";q=3;w=3");
        assert!(response.header("ratelimit").starts_with(&format!("\"key\";r={left};")));
    }
    let refusal = ask.send(&router).await.is_problem(429, "rate_limited");
    assert_eq!(refusal.header("retry-after"), "1");
    assert!(refusal.header("ratelimit").starts_with("\"key\";r=0;"));
    // Another key has its own bucket.
    TestRequest::get("/v1/api-keys")
        .with_key(&service.key(Role::Admin, None).await)
        .send(&router)
        .await
        .is(200);
}

async fn guessing_address_is_throttled_and_valid_keys_are_not(service: &Service) {
    let mut refusals = Vec::new();
    for _ in 0..80 {
        let response =
            TestRequest::get("/v1/api-keys").with_key("fmk_guess").send(&service.router).await;
        refusals.push(response.status.as_u16());
    }
    assert!(refusals.starts_with(&[401; 50]) && refusals.ends_with(&[429]), "{refusals:?}");
    service.get("/v1/api-keys").await.is(200);
}

async fn unavailable_database_is_503_and_process_stays_alive(service: &Service) {
    service.get("/v1/api-keys").await.is(200);
    let (app, router) = service.again(Settings::default()).await;
    app.db.close().await;
    let ask = TestRequest::get("/v1/api-keys").with_key(&service.admin);
    let refusal = ask.send(&router).await.is_problem(503, "unavailable");
    assert_eq!(refusal.header("retry-after"), "2");
    TestRequest::get("/readyz").send(&router).await.is_problem(503, "unavailable");
    TestRequest::get("/healthz").send(&router).await.is(200);
}

async fn metrics_are_labeled_by_route_not_by_path(service: &Service) {
    service.get("/v1/api-keys/key_01jcqk3m8ye0fr5cq0k6s8v2xw").await.is_problem(404, "not_found");
    service.get("/v1/made-up-by-someone").await.is_problem(404, "not_found");
    let text = TestRequest::get("/metrics").send(&service.router).await.is(200).bytes;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("path=\"/v1/api-keys/{api_key_id}\""), "{text}");
    assert!(text.contains("fleetmend_http_request_duration_seconds_bucket"), "{text}");
    assert!(!text.contains("made-up-by-someone") && !text.contains("key_01"), "{text}");
}

async fn metrics_of_the_fleet_need_a_key_of_its_organization(service: &Service) {
    join(service, Host::new("web-1").with_updates(vec![security("openssl", Severity::High, &[])]))
        .await;
    let metrics = async |key: Option<&str>| {
        let ask = TestRequest::get("/metrics");
        let ask = if let Some(key) = key { ask.with_key(key) } else { ask };
        String::from_utf8(ask.send(&service.router).await.is(200).bytes).unwrap()
    };
    let open = metrics(None).await;
    assert!(open.contains("fleetmend_build_info{version=") && !open.contains("fleetmend_servers"));
    let mine = metrics(Some(&service.viewer)).await;
    for line in [
        "fleetmend_servers{status=\"online\"} 1",
        "fleetmend_servers_by_assessment{assessment=\"not_scanned\"} ",
        "fleetmend_updates_pending{type=\"security\"} 1",
        "fleetmend_cves_open{severity=\"critical\"} 0",
        "fleetmend_batches{state=\"running\"} 0",
        "fleetmend_tasks{state=\"waiting\"} 0",
        "fleetmend_agents_outdated 0",
    ] {
        assert!(mine.contains(line), "{line}\n{mine}");
    }
    // Every family has its help and type once, before its samples.
    for family in mine.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = family.split(' ').next().unwrap();
        let helps = mine.lines().filter(|line| line.starts_with(&format!("# TYPE {name} ")));
        assert_eq!(helps.count(), 1, "{name}");
    }
    let stranger = service.stranger().await;
    assert!(metrics(Some(&stranger)).await.contains("fleetmend_servers{status=\"online\"} 0"));
    let limited = service.key(Role::Viewer, Some(&["production"])).await;
    assert!(!metrics(Some(&limited)).await.contains("fleetmend_servers{"));
    let unknown = TestRequest::get("/metrics").with_key("fmk_unknown").send(&service.router).await;
    unknown.is_problem(401, "unauthenticated");
}

testkit::both!(
    crate::support:
    metrics_of_the_fleet_need_a_key_of_its_organization,
    every_route_requires_its_role,
    unknown_field_hides_no_other_error,
    array_is_rejected_where_an_object_is_expected,
    nul_is_rejected_or_finds_nothing,
    only_intended_routes_are_open,
    unknown_path_and_method_are_problems,
    malformed_id_is_treated_like_an_unknown_one,
    body_must_be_json_of_at_most_one_megabyte,
    unknown_field_is_rejected_with_a_suggestion,
    invalid_parameter_is_rejected_by_name,
    links_page_through_a_list,
    change_with_an_old_version_is_rejected,
    every_documented_precondition_is_checked,
    throttled_key_gets_retry_after,
    guessing_address_is_throttled_and_valid_keys_are_not,
    unavailable_database_is_503_and_process_stays_alive,
    metrics_are_labeled_by_route_not_by_path,
);
