//! `/v1/batches`, with tasks and logs.

use axum::http::Method;
use domain::rollout::{Change, HaltReason, ReportedResult, RolloutOutcome};
use jiff::SignedDuration;
use serde_json::{Value, json};
use store::task_logs::{self, NewChunk};
use vocab::ServerId;

use crate::fleet::{FAILED, Host, change, end, finish, join};
use crate::support::{Service, TestRequest};

const ABSENT: &str = "srv_01jcqk3m8ye0fr5cq0k6s8v2xw";

async fn three_servers(service: &Service) -> [ServerId; 3] {
    [
        join(service, Host::new("web-1")).await,
        join(service, Host::new("web-2")).await,
        join(service, Host::new("web-3")).await,
    ]
}

async fn create_batch(service: &Service, body: Value) -> String {
    service.post("/v1/batches", body).await.is(202).json()["id"].as_str().unwrap().to_owned()
}

async fn get_batch(service: &Service, batch: &str) -> Value {
    service.get(&format!("/v1/batches/{batch}")).await.is(200).json()
}

async fn act(service: &Service, batch: &str, verb: &str) -> crate::support::TestResponse {
    service.post(&format!("/v1/batches/{batch}/{verb}"), json!({})).await
}

async fn batch_has_its_options_and_one_task_per_server(service: &Service) {
    let [one, two, _] = three_servers(service).await;
    let body = json!({"server_ids": [two, one, two], "packages": ["openssl"], "security_only": true,
        "reboot": "if_required", "canary": "10%", "max_failures": 1, "max_parallel": 2});
    let response = service.post("/v1/batches", body).await.is(202);
    let batch = response.json();
    assert_eq!(
        response.header("location"),
        format!("/v1/batches/{}", batch["id"].as_str().unwrap())
    );
    assert_eq!((&batch["state"], &batch["origin"]), (&json!("scheduled"), &json!("api")));
    assert!(batch["started_by"].as_str().unwrap().starts_with("key_"));
    assert_eq!(
        (&batch["progress"]["total"], &batch["progress"]["pending"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(batch["options"]["canary"], "10%");
    let servers: Vec<_> =
        batch["results"].as_array().unwrap().iter().map(|task| task["server_id"].clone()).collect();
    assert_eq!(servers, [json!(two), json!(one)]);
    assert_eq!(batch["results"][0]["state"], "pending");
}

async fn batch_has_a_given_or_derived_name(service: &Service) {
    let [one, two, three] = three_servers(service).await;
    let other = join(service, Host::new("db-1").in_environment("staging")).await;
    let name = async |body: Value| {
        let batch = service.post("/v1/batches", body).await.is(202).json();
        assert_eq!(get_batch(service, batch["id"].as_str().unwrap()).await["name"], batch["name"]);
        batch["name"].as_str().unwrap().to_owned()
    };
    let order = |ids: &[ServerId]| json!({"server_ids": ids, "security_only": true});
    assert_eq!(name(order(&[one, two, three])).await, "Security updates · production");
    assert_eq!(name(order(&[one, two, one])).await, "Security updates · 2 servers in production");
    assert_eq!(name(order(&[one, two, other, other])).await, "Security updates · 3 servers");
    assert_eq!(name(order(&[one])).await, "Security updates · web-1");
    let openssl = json!({"server_ids": [one, other], "packages": ["openssl"], "dry_run": true});
    assert_eq!(name(openssl).await, "openssl · 2 servers (dry run)");
    let named = json!({"server_ids": [one], "packages": [], "name": " Hotfix <b> "});
    assert_eq!(name(named).await, "Hotfix <b>");
    let path = format!("/v1/servers/{one}/patch");
    let body = json!({"security_only": true, "name": "One server"});
    assert_eq!(service.post(&path, body).await.is(202).json()["name"], "One server");
    for wrong in ["", "  ", "a\nb", &"x".repeat(201)] {
        let body = json!({"server_ids": [one], "security_only": true, "name": wrong});
        let problem =
            service.post("/v1/batches", body).await.is_problem(422, "invalid_body").json();
        assert_eq!(problem["errors"][0]["pointer"], "/name", "{wrong:?}");
    }
    let list = service.get("/v1/batches").await.json();
    let mut listed = list["data"].as_array().unwrap().iter().map(|batch| &batch["name"]);
    assert!(listed.any(|name| name == "One server"), "{list}");
    let schedule = json!({"name": "Nightly", "cron": "@daily", "targets": {"all": true}});
    let schedule = service.post("/v1/schedules", schedule).await.is(201).json();
    let path = format!("/v1/schedules/{}/run", schedule["id"].as_str().unwrap());
    let run = service.post(&path, json!({})).await.is(202).json();
    let batch = get_batch(service, run["batch_id"].as_str().unwrap()).await;
    assert_eq!(batch["name"], "Nightly (schedule)");
}

async fn unknown_servers_are_listed_and_nothing_starts(service: &Service) {
    let [one, ..] = three_servers(service).await;
    let body = json!({"server_ids": [ABSENT, one, "nonsense"], "reboot": "maybe"});
    let refusal = service.post("/v1/batches", body).await.is_problem(422, "invalid_body").json();
    let mut errors: Vec<_> = refusal["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| {
            format!("{} {}", error["pointer"].as_str().unwrap(), error["code"].as_str().unwrap())
        })
        .collect();
    errors.sort();
    assert_eq!(
        errors,
        [
            " nothing_selected",
            "/reboot invalid_reboot_policy",
            "/server_ids/0 not_found",
            "/server_ids/2 not_found"
        ]
    );
    assert!(refusal.to_string().contains(ABSENT));
    let empty = service.post("/v1/batches", json!({"server_ids": [], "security_only": true})).await;
    assert_eq!(empty.is_problem(422, "invalid_body").json()["errors"][0]["code"], "empty");
    for hostile in
        ["bash-", "/tmp/x.deb", "?upgradable", "bash=1", "-oDpkg::x", "a b", "bash:amd64"]
    {
        let body = json!({"server_ids": [one], "packages": [hostile]});
        let refusal =
            service.post("/v1/batches", body).await.is_problem(422, "invalid_body").json();
        assert_eq!(refusal["errors"][0]["pointer"], "/packages/0", "{hostile}");
    }
    assert_eq!(service.get("/v1/batches").await.json()["meta"]["total"], 0);
}

async fn progress_and_results_match_the_tasks(service: &Service) {
    let [one, two, three] = three_servers(service).await;
    let batch =
        create_batch(service, json!({"server_ids": [one, two, three], "security_only": true}))
            .await;
    change(service, &batch, Change::Start).await;
    finish(service, &batch, one, ReportedResult::Succeeded).await;
    finish(service, &batch, two, FAILED).await;
    let seen = get_batch(service, &batch).await;
    assert_eq!(seen["state"], "running");
    let progress = &seen["progress"];
    assert_eq!(
        (&progress["succeeded"], &progress["failed"], &progress["waiting"], &progress["percent"]),
        (&json!(1), &json!(1), &json!(1), &json!(66))
    );
    let result = &seen["results"][0]["result"];
    assert_eq!(result["packages"], json!([{"name": "openssl", "from": "1.0", "to": "1.1"}]));
    assert_eq!(result["reboot"], json!({"needed": true, "done": true, "seconds": 40}));
    assert_eq!(seen["results"][1]["result"]["failure_code"], "pkg_lock_timeout");
    assert_eq!(seen["results"][1]["hostname"], "web-2");
    let failed = service
        .get(&format!("/v1/batches/{batch}/tasks?state=failed,timed_out"))
        .await
        .is(200)
        .json();
    assert_eq!(
        (&failed["meta"]["total"], &failed["data"][0]["server_id"]),
        (&json!(1), &json!(two))
    );
    let pending =
        service.get(&format!("/v1/batches/{batch}/tasks?state=pending")).await.is(200).json();
    assert_eq!(pending["meta"]["total"], 0);
    let refusal = service.get(&format!("/v1/batches/{batch}/tasks?state=faild")).await;
    let refusal = refusal.is_problem(400, "invalid_parameter").json();
    assert!(refusal["detail"].as_str().unwrap().contains("did you mean `failed`?"), "{refusal}");
    let task = seen["results"][1]["id"].as_str().unwrap();
    let alone = service.get(&format!("/v1/batches/{batch}/tasks/{task}")).await.is(200).json();
    assert_eq!(alone, seen["results"][1]);
}

/// Operators see why nothing happens.
async fn waiting_task_shows_what_it_waits_for(service: &Service) {
    let [one, two, three] = three_servers(service).await;
    let reasons = async |batch: &str| {
        let seen = get_batch(service, batch).await;
        let tasks = seen["results"].as_array().unwrap().clone();
        tasks.iter().map(|task| task["waiting_for"].clone()).collect::<Vec<_>>()
    };
    let body = |options: Value| {
        let mut body = json!({"server_ids": [one, two, three], "security_only": true});
        body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        body
    };
    let staggered = create_batch(service, body(json!({"stagger_minutes": 10}))).await;
    assert_eq!(reasons(&staggered).await, ["window", "window", "window"]);
    change(service, &staggered, Change::Start).await;
    let mut tx = service.app.db.begin().await.unwrap();
    let seen = store::rollouts::load(&mut tx, staggered.parse().unwrap()).await.unwrap();
    let mut head = seen.head.clone();
    head.last_start = Some(service.clock.now());
    store::rollouts::save_head(&mut tx, &seen, &head, None).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(reasons(&staggered).await, ["stagger", "stagger", "stagger"]);
    service.clock.advance(SignedDuration::from_mins(5));
    assert_eq!(reasons(&staggered).await, ["offline", "offline", "offline"]);
    assert_eq!(
        act(service, &staggered, "pause").await.is(200).json()["results"][0]["waiting_for"],
        Value::Null
    );
}

async fn batch_rejects_actions_that_its_state_does_not_allow(service: &Service) {
    let [one, two, three] = three_servers(service).await;
    let batch =
        create_batch(service, json!({"server_ids": [one, two, three], "security_only": true}))
            .await;
    change(service, &batch, Change::Start).await;
    assert_eq!(act(service, &batch, "pause").await.is(200).json()["state"], "paused");
    assert_eq!(act(service, &batch, "resume").await.is(200).json()["state"], "running");
    change(service, &batch, Change::Halt(HaltReason::TooManyFailures)).await;
    let halted = get_batch(service, &batch).await;
    assert!(halted["halt_reason"].as_str().unwrap().contains("max_failures"), "{halted}");
    act(service, &batch, "pause").await.is_problem(409, "batch_state");
    act(service, &batch, "retry").await.is_problem(409, "batch_not_ended");
    assert_eq!(act(service, &batch, "cancel").await.is(200).json()["state"], "canceling");
    act(service, &batch, "resume").await.is_problem(409, "batch_state");
    end(service, &batch, RolloutOutcome::Canceled).await;
    for verb in ["pause", "resume", "cancel"] {
        act(service, &batch, verb).await.is_problem(409, "batch_state");
    }
    for verb in ["pause", "resume", "cancel", "retry"] {
        act(service, "bat_01jcqk3m8ye0fr5cq0k6s8v2xw", verb).await.is_problem(404, "not_found");
        let path = format!("/v1/batches/{batch}/{verb}");
        TestRequest::post(&path, json!({}))
            .with_key(&service.viewer)
            .send(&service.router)
            .await
            .is_problem(403, "forbidden");
    }
}

async fn wave_is_approved_by_someone_else(service: &Service) {
    let [one, two, _] = three_servers(service).await;
    let waves = json!([{"size": 1, "soak_minutes": 10, "approval": true}, {"approval": true}]);
    let body = json!({"server_ids": [one, two], "security_only": true, "waves": waves});
    let batch = create_batch(service, body).await;
    change(service, &batch, Change::Start).await;
    act(service, &batch, "reject").await.is_problem(409, "batch_state");
    change(service, &batch, Change::AskApproval).await;
    let seen = get_batch(service, &batch).await;
    assert_eq!(
        (&seen["state"], &seen["options"]["canary"]),
        (&json!("awaiting_approval"), &json!(0))
    );
    assert_eq!(seen["results"][0]["waiting_for"], "approval");
    assert_eq!(seen["waves"][0]["state"], "awaiting_approval");
    assert_eq!(
        (&seen["waves"][1]["state"], &seen["waves"][1]["size"]),
        (&json!("pending"), &json!(1))
    );
    let listed = service.get("/v1/batches?state=awaiting_approval").await.is(200).json();
    assert_eq!(listed["meta"]["total"], 1);
    let summary = service.get("/v1/summary").await.is(200).json();
    assert_eq!(
        (&summary["batches"]["open"], &summary["batches"]["awaiting_approval"]),
        (&json!(1), &json!(1))
    );

    act(service, &batch, "approve").await.is_problem(403, "own_batch");
    act(service, &batch, "resume").await.is_problem(409, "batch_state");
    let decide = async |key: &str, verb: &str, comment: Value| {
        let path = format!("/v1/batches/{batch}/{verb}");
        TestRequest::post(&path, comment).with_key(key).send(&service.router).await
    };
    decide(&service.viewer, "approve", json!({})).await.is_problem(403, "forbidden");
    let long = json!({"comment": "x".repeat(2_001)});
    decide(&service.operator, "approve", long).await.is_problem(422, "invalid_body");
    // A decision about another wave than the current one comes too late, or too early.
    decide(&service.operator, "approve", json!({"wave": 2}))
        .await
        .is_problem(409, "changed_meanwhile");
    let approved =
        decide(&service.operator, "approve", json!({"comment": "quiet", "wave": 1})).await;
    let approved = approved.is(200).json();
    assert_eq!(approved["state"], "running");
    let wave = &approved["waves"][0];
    assert_eq!((&wave["state"], &wave["comment"]), (&json!("running"), &json!("quiet")));
    assert!(wave["approved_by"].as_str().unwrap().starts_with("key_"), "{wave}");

    finish(service, &batch, one, ReportedResult::Succeeded).await;
    change(service, &batch, Change::WaveEnded).await;
    let seen = get_batch(service, &batch).await;
    assert_eq!(seen["waves"][0]["state"], "soaking");
    assert!(seen["waves"][0]["soak_until"].is_string());
    change(service, &batch, Change::NextWave).await;
    change(service, &batch, Change::AskApproval).await;
    let rejected = decide(&service.operator, "reject", json!({"comment": "not today"})).await;
    assert_eq!(rejected.is(200).json()["state"], "canceling");
    let events = service.get("/v1/events?type=batch.approved,batch.rejected").await.is(200).json();
    let comments: Vec<_> = events["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["data"]["comment"].clone())
        .collect();
    assert_eq!(comments, ["quiet", "not today"]);
}

async fn pinned_versions_need_a_first_wave(service: &Service) {
    let [one, two, _] = three_servers(service).await;
    let body = |more: Value| {
        let mut body =
            json!({"server_ids": [one, two], "security_only": true, "pin_versions": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for alone in [json!({}), json!({"canary": 0}), json!({"waves": []}), json!({"waves": [{}]})] {
        let refusal = service.post("/v1/batches", body(alone)).await;
        let refusal = refusal.is_problem(422, "invalid_body").json();
        let error = &refusal["errors"][0];
        assert_eq!(
            (&error["pointer"], &error["code"]),
            (&json!("/pin_versions"), &json!("single_wave")),
            "{refusal}"
        );
    }
    for first in [json!({"canary": 1}), json!({"waves": [{"size": 1}]})] {
        let batch = create_batch(service, body(first)).await;
        assert_eq!(get_batch(service, &batch).await["options"]["pin_versions"], true);
    }
    // The schedule's options and a single patch accept the same.
    let schedule = json!({"name": "Nightly", "cron": "@daily", "targets": {"all": true},
        "options": {"security_only": true, "pin_versions": true}});
    let refusal = service.post("/v1/schedules", schedule).await;
    let refusal = refusal.is_problem(422, "invalid_body").json();
    assert_eq!(refusal["errors"][0]["pointer"], "/options/pin_versions");
    let single = json!({"security_only": true, "pin_versions": true, "canary": 1});
    service.post(&format!("/v1/servers/{one}/patch"), single).await.is(202);
}

async fn only_administrators_override_freezes(service: &Service) {
    let [one, ..] = three_servers(service).await;
    let body = json!({"server_ids": [one], "security_only": true, "override_freeze": "CVE-2026-1"});
    let ask = TestRequest::post("/v1/batches", body.clone()).with_key(&service.operator);
    ask.send(&service.router).await.is_problem(403, "forbidden");
    let batch = create_batch(service, body).await;
    assert_eq!(get_batch(service, &batch).await["options"]["override_freeze"], "CVE-2026-1");
    let audit = service.get("/v1/audit?action=batch.create").await.is(200).json();
    assert!(audit.to_string().contains("CVE-2026-1"), "{audit}");
}

async fn retry_is_a_new_batch_of_the_failed_servers(service: &Service) {
    let [one, two, _] = three_servers(service).await;
    let batch =
        create_batch(service, json!({"server_ids": [one, two], "packages": ["openssl"]})).await;
    change(service, &batch, Change::Start).await;
    finish(service, &batch, one, ReportedResult::Succeeded).await;
    finish(service, &batch, two, FAILED).await;
    end(service, &batch, RolloutOutcome::CompletedWithErrors).await;
    let again = act(service, &batch, "retry").await.is(202);
    let location = again.header("location").to_owned();
    let again = again.json();
    assert_ne!(again["id"].as_str().unwrap(), batch);
    assert_eq!(location, format!("/v1/batches/{}", again["id"].as_str().unwrap()));
    assert_eq!(
        (&again["progress"]["total"], &again["results"][0]["server_id"]),
        (&json!(1), &json!(two))
    );
    assert_eq!(again["options"]["packages"], json!(["openssl"]));
    let well = create_batch(service, json!({"server_ids": [one], "packages": []})).await;
    change(service, &well, Change::Start).await;
    finish(service, &well, one, ReportedResult::NoChange).await;
    end(service, &well, RolloutOutcome::Succeeded).await;
    act(service, &well, "retry").await.is_problem(409, "nothing_to_retry");
}

async fn batch_has_at_most_one_unfinished_retry(service: &Service) {
    let [one, two, _] = three_servers(service).await;
    let batch =
        create_batch(service, json!({"server_ids": [one, two], "packages": ["openssl"]})).await;
    change(service, &batch, Change::Start).await;
    finish(service, &batch, one, ReportedResult::Succeeded).await;
    finish(service, &batch, two, FAILED).await;
    end(service, &batch, RolloutOutcome::CompletedWithErrors).await;
    let total =
        async || service.get("/v1/batches").await.is(200).json()["meta"]["total"].as_u64().unwrap();
    let mut last = String::new();
    for round in 1..=2 {
        let path = format!("/v1/batches/{batch}/retry");
        let asks = (0..20).map(|_| {
            let ask = TestRequest::post(&path, json!({})).with_key(&service.operator);
            let router = service.router.clone();
            tokio::spawn(async move { ask.send(&router).await })
        });
        let answers = futures_util::future::join_all(asks).await;
        let (made, refused): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .map(Result::unwrap)
            .partition(|answer| answer.status.as_u16() == 202);
        assert_eq!((made.len(), total().await), (1, 1 + round));
        let retry = made[0].json()["id"].as_str().unwrap().to_owned();
        assert_ne!(retry, last);
        for answer in refused {
            let told = answer.is_problem(409, "batch_not_ended").json();
            assert_eq!(told["detail"], format!("A retry of this batch is still running: {retry}."));
        }
        // It stays the only one while it runs; once it has ended, the failed server can be
        // retried.
        change(service, &retry, Change::Start).await;
        act(service, &batch, "retry").await.is_problem(409, "batch_not_ended");
        finish(service, &retry, two, FAILED).await;
        end(service, &retry, RolloutOutcome::Failed).await;
        last = retry;
    }
    // A retry of the last retry is not a retry of the first batch.
    act(service, &last, "retry").await.is(202);
    act(service, &last, "retry").await.is_problem(409, "batch_not_ended");
    act(service, &batch, "retry").await.is(202);
    assert_eq!(total().await, 5);
}

async fn batches_are_listed_newest_first_and_by_state(service: &Service) {
    let [one, two, three] = three_servers(service).await;
    let mut ids = Vec::new();
    for server in [one, two, three] {
        ids.push(
            create_batch(service, json!({"server_ids": [server], "security_only": true})).await,
        );
        service.clock.advance(SignedDuration::from_secs(1));
    }
    change(service, &ids[1], Change::Start).await;
    let list = service.get("/v1/batches").await.is(200).json();
    let listed: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(listed, [&ids[2], &ids[1], &ids[0]]);
    assert_eq!(list["data"][0].get("results"), None);
    let running = service.get("/v1/batches?state=running,halted").await.is(200).json();
    assert_eq!((&running["meta"]["total"], &running["data"][0]["id"]), (&json!(1), &json!(ids[1])));
    service.get("/v1/batches?state=done").await.is_problem(400, "invalid_parameter");
    service.get("/v1/batches?status=running").await.is_problem(400, "unknown_parameter");
}

async fn tasks_of_a_large_batch_are_paged(service: &Service) {
    let servers: Vec<ServerId> = {
        let mut servers = Vec::new();
        for _ in 0..501 {
            servers.push(join(service, Host::new("web")).await);
        }
        servers
    };
    let batch = create_batch(service, json!({"server_ids": servers, "security_only": true})).await;
    let seen = get_batch(service, &batch).await;
    assert_eq!(seen["progress"]["total"], 501);
    assert_eq!(seen["results"].as_array().unwrap().len(), 500);
    let rest = service.get(&format!("/v1/batches/{batch}/tasks?offset=500")).await.is(200).json();
    assert_eq!(rest["data"][0]["server_id"], json!(servers[500]));
    assert_eq!(rest["meta"]["total"], 501);
}

async fn log_is_returned_as_text_or_streamed_to_its_end(service: &Service) {
    let [one, two, _] = three_servers(service).await;
    let batch =
        create_batch(service, json!({"server_ids": [one, two], "security_only": true})).await;
    change(service, &batch, Change::Start).await;
    let seen = get_batch(service, &batch).await;
    let (task, other) =
        (seen["results"][0]["id"].as_str().unwrap(), seen["results"][1]["id"].as_str().unwrap());
    let path = format!("/v1/batches/{batch}/tasks/{task}/log");
    let empty = service.get(&path).await.is(200);
    assert_eq!((empty.header("content-type"), empty.bytes.len()), ("text/plain; charset=utf-8", 0));
    let mut tx = service.app.db.begin().await.unwrap();
    let now = service.clock.now();
    let task_id = task.parse().unwrap();
    let piece = |position, body| NewChunk { task: task_id, position, body, at: now };
    let pieces = [piece(0, b"Get:1 openssl\n".as_slice()), piece(14, b"Setting up \xff\n")];
    task_logs::append(&mut tx, &pieces).await.unwrap();
    tx.commit().await.unwrap();
    finish(service, &batch, one, ReportedResult::Succeeded).await;
    let log = service.get(&path).await.is(200);
    assert_eq!(String::from_utf8(log.bytes).unwrap(), "Get:1 openssl\nSetting up \u{fffd}\n");
    let follow = |from: &str| {
        let ask =
            TestRequest::get(&path).with_key(&service.viewer).with("accept", "text/event-stream");
        if from.is_empty() { ask } else { ask.with("last-event-id", from) }.send(&service.router)
    };
    let live = follow("").await.is(200);
    assert_eq!(live.header("content-type"), "text/event-stream");
    let text = String::from_utf8(live.bytes).unwrap();
    assert!(text.contains("event: log\nid: 14\ndata: Get:1 openssl\n"), "{text}");
    assert!(text.ends_with("event: end\ndata: succeeded\n\n"), "{text}");
    let rest = String::from_utf8(follow("14").await.is(200).bytes).unwrap();
    assert!(!rest.contains("Get:1") && rest.contains("Setting up"), "{rest}");
    follow("here").await.is_problem(400, "invalid_header");
    service
        .get(&path.replace(task, "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw"))
        .await
        .is_problem(404, "not_found");
    let elsewhere =
        create_batch(service, json!({"server_ids": [one], "security_only": true})).await;
    service
        .get(&format!("/v1/batches/{elsewhere}/tasks/{other}/log"))
        .await
        .is_problem(404, "not_found");
}

async fn long_log_is_sent_completely_in_parts(service: &Service) {
    let [one, _, _] = three_servers(service).await;
    let batch = create_batch(service, json!({"server_ids": [one], "security_only": true})).await;
    change(service, &batch, Change::Start).await;
    let seen = get_batch(service, &batch).await;
    let task = seen["results"][0]["id"].as_str().unwrap();
    let path = format!("/v1/batches/{batch}/tasks/{task}/log");
    let mut log = "Unpacking käse (1.0~€) over 🦀 …\n".repeat(12_000).into_bytes();
    log.extend(b"\xff and the end \xf0\x9f");
    let (task_id, now) = (task.parse().unwrap(), service.clock.now());
    // Small chunks, many of them within one part; then chunks of the largest size. Both split
    // characters.
    let (small, large) = log.split_at(70_001);
    let bodies = small.chunks(61).chain(large.chunks(256 * 1024));
    let mut chunks: Vec<NewChunk> = Vec::new();
    for body in bodies {
        let position = chunks.last().map_or(0, |last| last.position + last.body.len() as u64);
        chunks.push(NewChunk { task: task_id, position, body, at: now });
    }
    let mut tx = service.app.db.begin().await.unwrap();
    task_logs::append(&mut tx, &chunks).await.unwrap();
    tx.commit().await.unwrap();
    let response = service.get(&path).await.is(200);
    assert_eq!(response.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(
        (response.header("content-length"), response.header("cache-control")),
        ("", "no-store")
    );
    assert!(
        response.bytes == String::from_utf8_lossy(&log).as_bytes(),
        "{} bytes",
        response.bytes.len()
    );
    finish(service, &batch, one, ReportedResult::Succeeded).await;
    let follow =
        TestRequest::get(&path).with_key(&service.viewer).with("accept", "text/event-stream");
    let live = String::from_utf8(follow.clone().send(&service.router).await.is(200).bytes).unwrap();
    let longest = live.split("\n\n").map(str::len).max().unwrap();
    assert!((30_000..60_000).contains(&longest), "an event of {longest} bytes");
    let end = format!("id: {}\n", log.len());
    assert!(live.contains(&end) && live.ends_with("event: end\ndata: succeeded\n\n"));
    // Only the agent's chunks split a character.
    let pieces = small.len().div_ceil(61) + large.len().div_ceil(256 * 1024);
    assert!(live.matches('\u{fffd}').count() < 3 * pieces);
    // Retention deletes the oldest chunks first.
    service.by_hand("delete from task_logs where position < 70001").await;
    let response = service.get(&path).await.is(200);
    assert!(
        response.bytes == String::from_utf8_lossy(large).as_bytes(),
        "{} bytes",
        response.bytes.len()
    );
    let live = String::from_utf8(follow.send(&service.router).await.is(200).bytes).unwrap();
    assert!(!live.contains("id: 61\n") && live.contains(&end));
    let hidden = service.stranger().await;
    TestRequest::get(&path)
        .with_key(&hidden)
        .send(&service.router)
        .await
        .is_problem(404, "not_found");
}

async fn log_stream_ends_when_the_key_is_revoked(service: &Service) {
    let [one, ..] = three_servers(service).await;
    let batch = create_batch(service, json!({"server_ids": [one], "security_only": true})).await;
    change(service, &batch, Change::Start).await;
    let seen = get_batch(service, &batch).await;
    let task = seen["results"][0]["id"].as_str().unwrap();
    let path = format!("/v1/batches/{batch}/tasks/{task}/log");
    let prints = async |position, body: &'static [u8]| {
        let mut tx = service.app.db.begin().await.unwrap();
        let piece =
            NewChunk { task: task.parse().unwrap(), position, body, at: service.clock.now() };
        task_logs::append(&mut tx, &[piece]).await.unwrap();
        tx.commit().await.unwrap();
    };
    prints(0, b"before\n").await;
    let created = service
        .post("/v1/api-keys", json!({"name": "reader", "role": "viewer"}))
        .await
        .is(201)
        .json();
    let (id, key) = (created["id"].as_str().unwrap(), created["api_key"].as_str().unwrap());
    let request = axum::http::Request::get(&path)
        .header("authorization", format!("Bearer {key}"))
        .header("accept", "text/event-stream")
        .body(axum::body::Body::empty())
        .unwrap();
    let response = tower::ServiceExt::oneshot(service.router.clone(), request).await.unwrap();
    let mut stream = response.into_body().into_data_stream();
    let first = futures_util::StreamExt::next(&mut stream).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("before"));
    service.delete(&format!("/v1/api-keys/{id}")).await;
    prints(7, b"after\n").await;
    // The stream ends without the output that was added since.
    let rest = async {
        let mut rest = Vec::new();
        while let Some(part) = futures_util::StreamExt::next(&mut stream).await {
            rest.extend_from_slice(&part.unwrap());
        }
        String::from_utf8(rest).unwrap()
    };
    let rest = tokio::time::timeout(std::time::Duration::from_secs(60), rest).await.unwrap();
    assert!(!rest.contains("after"), "{rest}");
}

async fn repeated_request_with_the_same_key_creates_one_batch(service: &Service) {
    let [one, ..] = three_servers(service).await;
    let order = |body: Value| {
        TestRequest::new(Method::POST, "/v1/batches")
            .with_key(&service.operator)
            .with("idempotency-key", "order-1")
            .with_json(body)
            .send(&service.router)
    };
    let body = json!({"server_ids": [one], "security_only": true});
    let first = order(body.clone()).await.is(202).json();
    assert_eq!(order(body).await.is(202).json()["id"], first["id"]);
    order(json!({"server_ids": [one], "packages": []}))
        .await
        .is_problem(409, "idempotency_key_reused");
    assert_eq!(service.get("/v1/batches").await.json()["meta"]["total"], 1);
}

testkit::both!(
    crate::support:
    batch_has_its_options_and_one_task_per_server,
    batch_has_a_given_or_derived_name,
    unknown_servers_are_listed_and_nothing_starts,
    progress_and_results_match_the_tasks,
    waiting_task_shows_what_it_waits_for,
    batch_rejects_actions_that_its_state_does_not_allow,
    wave_is_approved_by_someone_else,
    pinned_versions_need_a_first_wave,
    only_administrators_override_freezes,
    retry_is_a_new_batch_of_the_failed_servers,
    batch_has_at_most_one_unfinished_retry,
    batches_are_listed_newest_first_and_by_state,
    tasks_of_a_large_batch_are_paged,
    log_is_returned_as_text_or_streamed_to_its_end,
    long_log_is_sent_completely_in_parts,
    log_stream_ends_when_the_key_is_revoked,
    repeated_request_with_the_same_key_creates_one_batch,
);
