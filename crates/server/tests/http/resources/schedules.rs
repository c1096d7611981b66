//! `/v1/schedules` and their runs.

use axum::http::Method;
use domain::rollout::RolloutOutcome;
use serde_json::{Value, json};
use vocab::Role;

use crate::fleet::{Host, end, join};
use crate::support::{Service, TestRequest};

const ABSENT: &str = "/v1/schedules/sch_01jcqk3m8ye0fr5cq0k6s8v2xw";

fn nightly() -> Value {
    json!({"name": "Nightly", "description": "Security at night", "cron": "0 3 * * *",
        "timezone": "Europe/Berlin", "targets": {"environment": "production"},
        "options": {"security_only": true, "reboot": "if_required", "stagger_minutes": 5}})
}

async fn put(
    service: &Service,
    path: &str,
    body: Value,
    etag: Option<&str>,
) -> crate::support::TestResponse {
    let ask = TestRequest::new(Method::PUT, path).with_key(&service.operator).with_json(body);
    let ask = match etag {
        Some(etag) => ask.with("if-match", etag),
        None => ask,
    };
    ask.send(&service.router).await
}

async fn create_schedule(service: &Service, body: Value) -> String {
    let created = service.post("/v1/schedules", body).await.is(201);
    created.header("location").to_owned()
}

async fn schedule_is_created_read_replaced_and_deleted(service: &Service) {
    let created = service.post("/v1/schedules", nightly()).await.is(201);
    let (path, etag) = (created.header("location").to_owned(), created.header("etag").to_owned());
    let schedule = created.json();
    assert_eq!(path, format!("/v1/schedules/{}", schedule["id"].as_str().unwrap()));
    assert_eq!(schedule["enabled"], true);
    // 03:00 in Berlin is 02:00 UTC in November; it is 04:00 UTC now.
    assert_eq!(schedule["next_runs"][0], "2026-11-16T02:00:00Z");
    assert_eq!(schedule["next_runs"].as_array().unwrap().len(), 5);
    assert_eq!(schedule["last_run"], Value::Null);
    assert_eq!(
        schedule["options"],
        json!({"packages": [], "exclude": [], "security_only": true,
        "reboot": "if_required", "stagger_minutes": 5, "max_parallel": null, "canary": 0,
        "waves": [], "max_failures": null, "window_minutes": null, "override_freeze": null,
        "pin_versions": false, "health": "report", "max_unhealthy": 0, "dry_run": false})
    );
    let read = service.get(&path).await.is(200);
    assert_eq!((read.json(), read.header("etag")), (schedule, etag.as_str()));

    // Fields that are omitted in a PUT get their defaults.
    let bare =
        json!({"name": "Nightly", "cron": "@weekly", "targets": {"all": true}, "enabled": false});
    let after = put(service, &path, bare.clone(), Some(&etag)).await.is(200);
    assert_ne!(after.header("etag"), etag);
    let after = after.json();
    assert_eq!((&after["description"], &after["timezone"]), (&json!(""), &json!("UTC")));
    assert_eq!(after["options"]["security_only"], false);
    assert_eq!(after["next_runs"], json!([]));
    put(service, &path, bare, Some(&etag)).await.is_problem(412, "precondition_failed");
    let stale =
        TestRequest::new(Method::DELETE, &path).with_key(&service.operator).with("if-match", &etag);
    stale.send(&service.router).await.is_problem(412, "precondition_failed");
    service.delete(&path).await.is(204);
    service.get(&path).await.is_problem(404, "not_found");
    service.delete(&path).await.is_problem(404, "not_found");
}

async fn all_schedules_are_listed_without_limit(service: &Service) {
    for n in 0..60 {
        let body = json!({"name": format!("s{n:02}"), "cron": "@daily", "targets": {"all": true}});
        create_schedule(service, body).await;
    }
    let all = service.get("/v1/schedules").await.is(200).json();
    assert_eq!((all["data"].as_array().unwrap().len(), &all["links"]["next"]), (60, &Value::Null));
    let part = service.get("/v1/schedules?limit=25&offset=50").await.is(200).json();
    assert_eq!(part["data"].as_array().unwrap().len(), 10);
    assert_eq!(part["data"][0]["name"], "s50");
    assert_eq!(part["meta"], json!({"total": 60, "limit": 25, "offset": 50}));
    service.get("/v1/schedules?limit=0").await.is_problem(400, "invalid_parameter");
}

async fn invalid_schedule_is_rejected_with_every_error(service: &Service) {
    let refused = async |body: Value| {
        let refusal =
            service.post("/v1/schedules", body).await.is_problem(422, "invalid_body").json();
        let errors = refusal["errors"].as_array().unwrap().iter();
        errors
            .map(|error| {
                format!(
                    "{} {}",
                    error["pointer"].as_str().unwrap(),
                    error["code"].as_str().unwrap()
                )
            })
            .collect::<Vec<_>>()
    };
    let mut bad = nightly();
    bad["cron"] = json!("0 0 3 * * *");
    bad["timezone"] = json!("Berlin");
    bad["targets"] = json!({});
    bad["options"]["reboot"] = json!("if-required");
    assert_eq!(
        refused(bad).await,
        [
            "/cron invalid_cron",
            "/timezone invalid_timezone",
            "/targets empty_targets",
            "/options/reboot invalid_reboot_policy"
        ]
    );
    let mut never = nightly();
    never["cron"] = json!("0 0 30 2 *");
    assert_eq!(refused(never).await, ["/cron invalid_cron"]);
    let mut typo = nightly();
    typo["options"]["securty_only"] = json!(true);
    typo["target"] = json!({});
    assert_eq!(
        refused(typo).await,
        ["/options/securty_only unknown_field", "/target unknown_field"]
    );
    assert_eq!(refused(json!({})).await, ["/name required", "/cron required", "/targets required"]);
    let mut all = nightly();
    all["targets"] = json!({"all": true, "environment": "production", "colour": "red"});
    assert_eq!(refused(all).await, ["/targets/colour unknown_field", "/targets/all all_and_more"]);
    create_schedule(service, nightly()).await;
    service.post("/v1/schedules", nightly()).await.is_problem(409, "already_exists");
}

async fn stagger_longer_than_the_window_is_a_warning(service: &Service) {
    for name in ["web-1", "web-2", "web-3", "web-4"] {
        join(service, Host::new(name)).await;
    }
    let mut body = nightly();
    body["options"]["stagger_minutes"] = json!(30);
    body["options"]["window_minutes"] = json!(60);
    let path = create_schedule(service, body.clone()).await;
    let warned = service.get(&path).await.is(200).json();
    assert!(warned["warnings"][0].as_str().unwrap().contains("90 minutes"), "{warned}");
    body["options"]["window_minutes"] = json!(90);
    let fits = put(service, &path, body, None).await.is(200).json();
    assert_eq!(fits.get("warnings"), None);
}

async fn targets_without_servers_are_rejected_with_a_suggestion(service: &Service) {
    let mut web = Host::new("web-1");
    web.tags = &["role=web", "blue"];
    let web = join(service, web).await;
    join(
        service,
        Host {
            tags: &["green"],
            os: ("rocky", "9.4"),
            ..Host::new("db-1").in_environment("staging")
        },
    )
    .await;
    let gone = join(service, Host::new("gone").in_environment("old")).await;
    service.delete(&format!("/v1/servers/{gone}")).await.is(204);
    for (targets, message) in [
        (
            json!({"environment": "prodction"}),
            "No server has the environment \"prodction\". Did you mean \"production\"?",
        ),
        (json!({"environment": "mars"}), "No server has the environment \"mars\"."),
        (json!({"environment": "old"}), "No server has the environment \"old\"."),
        (json!({"os": "debain 12"}), "No server runs \"debain 12\". Did you mean \"debian 12\"?"),
        (json!({"os": "rcky"}), "No server runs \"rcky\". Did you mean \"rocky\"?"),
        (
            json!({"tags": ["blue", "grean"]}),
            "No server has the tag \"grean\". Did you mean \"green\"?",
        ),
        (
            json!({"environment": "stagng", "tags": ["role=wbe"]}),
            "No server has the environment \"stagng\". Did you mean \"staging\"? \
             No server has the tag \"role=wbe\". Did you mean \"role=web\"?",
        ),
        (json!({"server_ids": [gone]}), "The selected server does not exist."),
        (
            json!({"environment": "staging", "tags": ["blue"]}),
            "No server matches all of: environment \"staging\", tag \"blue\".",
        ),
        (
            json!({"os": "rocky 9", "server_ids": [web]}),
            "No server matches all of: system \"rocky 9\", the selected server.",
        ),
    ] {
        let mut body = nightly();
        body["targets"] = targets.clone();
        let refusal =
            service.post("/v1/schedules", body).await.is_problem(422, "invalid_body").json();
        assert_eq!(
            refusal["errors"],
            json!([{"pointer": "/targets", "code": "no_servers_match", "detail": message}])
        );
        assert!(refusal["detail"].as_str().unwrap().contains("`allow_empty`"), "{refusal}");
        let order = json!({"targets": targets, "security_only": true});
        let preview = service.post("/v1/preview", order).await.is(200).json();
        assert_eq!((&preview["total"], &preview["warnings"]), (&json!(0), &json!([message])));
    }
    assert_eq!(service.get("/v1/schedules").await.json()["meta"]["total"], 0);
    for targets in
        [json!({"environment": "staging", "tags": ["green"]}), json!({"server_ids": [gone, web]})]
    {
        let schedule = json!({"name": targets.to_string(), "cron": "@daily", "targets": targets});
        let schedule = service.post("/v1/schedules", schedule).await.is(201).json();
        assert_eq!(schedule.get("warnings"), None);
    }
}

async fn schedule_without_servers_is_saved_with_a_warning_if_allowed(service: &Service) {
    let warned = |schedule: &Value| schedule["warnings"].as_array().map_or(0, Vec::len);
    // Schedules may be created before the first server is enrolled.
    let early = service.post("/v1/schedules", nightly()).await.is(201);
    let path = early.header("location").to_owned();
    assert_eq!(
        early.json()["warnings"],
        json!(["No server is enrolled yet. Runs are skipped until a server matches."])
    );
    join(service, Host::new("db-1").in_environment("staging")).await;
    let told =
        "No server has the environment \"production\". Runs are skipped until a server matches.";
    assert_eq!(service.get(&path).await.json()["warnings"], json!([told]));

    let mut body = nightly();
    let refused =
        put(service, &path, body.clone(), None).await.is_problem(422, "invalid_body").json();
    assert_eq!(refused["errors"][0]["code"], "no_servers_match");
    body["enabled"] = json!(false);
    assert_eq!(warned(&put(service, &path, body.clone(), None).await.is(200).json()), 1);
    body["enabled"] = json!(true);
    body["allow_empty"] = json!(true);
    let allowed = put(service, &path, body.clone(), None).await.is(200).json();
    assert_eq!((warned(&allowed), allowed.get("allow_empty")), (1, None));
    body["name"] = json!("Another");
    let created = service.post("/v1/schedules", body.clone()).await.is(201).json();
    assert_eq!(created["warnings"], json!([told]));
    let listed = service.get("/v1/schedules").await.json();
    assert_eq!(listed["data"].as_array().unwrap().iter().map(warned).collect::<Vec<_>>(), [1, 1]);
    body["allow_empty"] = json!("yes");
    let wrong = service.post("/v1/schedules", body).await.is_problem(422, "invalid_body").json();
    assert_eq!(wrong["errors"][0]["pointer"], "/allow_empty");

    join(service, Host::new("web-1")).await;
    assert_eq!(service.get(&path).await.json().get("warnings"), None);
    put(service, &path, nightly(), None).await.is(200);
}

async fn environment_limited_key_learns_nothing_of_others(service: &Service) {
    join(service, Host { tags: &["blue"], ..Host::new("web-1") }).await;
    let key = service.key(Role::Operator, Some(&["prodction"])).await;
    let create = async |targets: Value| {
        let body = json!({"name": targets.to_string(), "cron": "@daily", "targets": targets});
        let ask = TestRequest::new(Method::POST, "/v1/schedules").with_key(&key).with_json(body);
        ask.send(&service.router).await
    };
    let early = create(json!({"environment": "prodction"})).await.is(201).json();
    assert_eq!(
        early["warnings"],
        json!(["No server is enrolled in the environments of this API key. \
        Runs are skipped until a server matches."])
    );
    join(service, Host::new("web-2").in_environment("prodction")).await;
    let refused =
        create(json!({"environment": "prodction", "tags": ["bleu"], "os": "debian 11"})).await;
    let refused = refused.is_problem(422, "invalid_body").json();
    assert_eq!(
        refused["errors"][0]["detail"],
        "No server runs \"debian 11\". Did you mean \"debian 12\"? No server has the tag \"bleu\"."
    );
}

async fn manual_run_without_matching_servers_is_skipped(service: &Service) {
    let path = create_schedule(service, nightly()).await;
    let response = service.post(&format!("{path}/run"), json!({})).await.is(202);
    let run = response.json();
    assert_eq!((&run["state"], &run["skip_reason"]), (&json!("skipped"), &json!("no_servers")));
    assert_eq!(
        (&run["batch_id"], &run["started_at"], &run["trigger"]),
        (&Value::Null, &Value::Null, &json!("manual"))
    );
    assert!(run["finished_at"].is_string(), "{run}");
    assert_eq!(service.get(response.header("location")).await.is(200).json(), run);
    assert_eq!(service.get(&path).await.json()["last_run"]["state"], "skipped");
    assert_eq!(service.get("/v1/batches").await.json()["meta"]["total"], 0);

    // A skipped run does not block the next one; an unfinished run still does.
    let server = join(service, Host::new("web-1")).await;
    service.post(&format!("{path}/run"), json!({})).await.is(202);
    service.delete(&format!("/v1/servers/{server}")).await.is(204);
    service.post(&format!("{path}/run"), json!({})).await.is_problem(409, "run_in_progress");
    assert_eq!(service.get(&format!("{path}/runs")).await.json()["meta"]["total"], 2);
}

/// Of concurrent changes to one version, one wins, and the others learn that the version
/// changed.
async fn concurrent_changes_to_one_version_have_one_winner(service: &Service) {
    join(service, Host::new("web-1")).await;
    let body = |name: &str| {
        json!({"name": name, "cron": "0 3 * * *", "targets": {"all": true},
        "options": {"security_only": true}})
    };
    let created = service.post("/v1/schedules", body("Nightly")).await.is(201);
    let (path, etag) = (created.header("location").to_owned(), created.header("etag").to_owned());
    let put = |nth: usize, tag: Option<String>| {
        let ask = TestRequest::new(Method::PUT, &path).with_key(&service.admin);
        let ask = ask.with_json(body(&format!("Nightly {nth}")));
        let ask = match tag {
            Some(tag) => ask.with("if-match", &tag),
            None => ask,
        };
        let router = service.router.clone();
        tokio::spawn(async move { ask.send(&router).await.status.as_u16() })
    };
    let mut statuses = Vec::new();
    for task in (0..20).map(|nth| put(nth, Some(etag.clone()))).collect::<Vec<_>>() {
        statuses.push(task.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![200], vec![412; 19]].concat());
    for task in (0..20).map(|nth| put(nth, None)).collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap(), 200);
    }
}

async fn manual_runs_are_limited_to_one_at_a_time(service: &Service) {
    let server = join(service, Host::new("web-1")).await;
    join(service, Host::new("elsewhere").in_environment("staging")).await;
    let path = create_schedule(service, nightly()).await;
    let response = service.post(&format!("{path}/run"), json!({})).await.is(202);
    let (run, location) = (response.json(), response.header("location").to_owned());
    assert_eq!((&run["trigger"], &run["state"]), (&json!("manual"), &json!("scheduled")));
    assert_eq!(run["progress"]["total"], 1);
    assert_eq!(run["targets"], json!({"environment": "production"}));
    assert_eq!(service.get(&location).await.is(200).json(), run);
    service.post(&format!("{path}/run"), json!({})).await.is_problem(409, "run_in_progress");

    let batch = run["batch_id"].as_str().unwrap();
    let shown = service.get(&format!("/v1/batches/{batch}")).await.is(200).json();
    assert_eq!((&shown["origin"], &shown["run_id"]), (&json!("schedule"), &run["id"]));
    assert_eq!(shown["schedule_id"], run["schedule_id"]);
    assert_eq!(shown["results"][0]["server_id"], json!(server));
    end(service, batch, RolloutOutcome::Expired).await;
    assert_eq!(service.get(&location).await.json()["state"], "expired");
    service.clock.advance(jiff::SignedDuration::from_secs(1));
    let second = service.post(&format!("{path}/run"), json!({})).await.is(202).json();
    let history = service.get(&format!("{path}/runs")).await.is(200).json();
    let ids: Vec<_> =
        history["data"].as_array().unwrap().iter().map(|run| run["id"].clone()).collect();
    assert_eq!(ids, [second["id"].clone(), run["id"].clone()]);
    assert_eq!(service.get(&path).await.json()["last_run"]["id"], second["id"]);
    let page = service.get(&format!("{path}/runs?limit=1&offset=1")).await.is(200).json();
    assert_eq!(page["data"][0]["id"], run["id"]);
    // A run is found only under its own schedule.
    let other =
        create_schedule(service, json!({"name": "o", "cron": "@daily", "targets": {"all": true}}))
            .await;
    let crossed = format!("{other}/runs/{}", run["id"].as_str().unwrap());
    service.get(&crossed).await.is_problem(404, "not_found");
    service.delete(&path).await.is(204);
    service.get(&format!("/v1/batches/{batch}")).await.is(200);
}

async fn unknown_schedules_and_runs_are_not_found(service: &Service) {
    service.get(ABSENT).await.is_problem(404, "not_found");
    service.get(&format!("{ABSENT}/runs")).await.is_problem(404, "not_found");
    service.post(&format!("{ABSENT}/run"), json!({})).await.is_problem(404, "not_found");
    put(service, ABSENT, nightly(), None).await.is_problem(404, "not_found");
    service.get("/v1/schedules/nonsense").await.is_problem(404, "not_found");
}

async fn environment_limited_key_creates_schedules_for_its_servers_only(service: &Service) {
    let theirs = create_schedule(service, nightly()).await;
    let key = service.key(Role::Operator, Some(&["staging"])).await;
    let ask = |method: Method, path: &str| TestRequest::new(method, path).with_key(&key);
    ask(Method::GET, &theirs).send(&service.router).await.is_problem(404, "not_found");
    let mut body = nightly();
    body["name"] = json!("Ours");
    let beyond =
        ask(Method::POST, "/v1/schedules").with_json(body.clone()).send(&service.router).await;
    beyond.is_problem(403, "forbidden");
    body["targets"] = json!({"environment": "staging"});
    ask(Method::POST, "/v1/schedules").with_json(body).send(&service.router).await.is(201);
    let list = ask(Method::GET, "/v1/schedules").send(&service.router).await.is(200).json();
    assert_eq!((&list["meta"]["total"], &list["data"][0]["name"]), (&json!(1), &json!("Ours")));
}

testkit::both!(
    crate::support:
    schedule_is_created_read_replaced_and_deleted,
    all_schedules_are_listed_without_limit,
    invalid_schedule_is_rejected_with_every_error,
    stagger_longer_than_the_window_is_a_warning,
    targets_without_servers_are_rejected_with_a_suggestion,
    schedule_without_servers_is_saved_with_a_warning_if_allowed,
    environment_limited_key_learns_nothing_of_others,
    manual_run_without_matching_servers_is_skipped,
    concurrent_changes_to_one_version_have_one_winner,
    manual_runs_are_limited_to_one_at_a_time,
    unknown_schedules_and_runs_are_not_found,
    environment_limited_key_creates_schedules_for_its_servers_only,
);
