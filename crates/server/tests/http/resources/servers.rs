//! `/v1/servers`.

use axum::http::Method;
use jiff::SignedDuration;
use serde_json::{Value, json};
use vocab::{BlockedBy, Installed, Pending, Role, Severity};

use crate::fleet::{Host, join, rollout_task, security};
use crate::support::{Service, TestRequest};

fn names(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|row| row["hostname"].as_str().unwrap()).collect()
}

async fn list_servers(service: &Service, query: &str) -> (Vec<String>, u64) {
    let list = service.get(&format!("/v1/servers?{query}")).await.is(200).json();
    let found = names(&list).into_iter().map(str::to_owned).collect();
    (found, list["meta"]["total"].as_u64().unwrap())
}

async fn list_is_filtered_and_sorted(service: &Service) {
    join(service, Host { tags: &["web", "eu"], ..Host::new("web-1") }).await;
    join(service, Host { os: ("rhel", "9.4"), reboot_required: true, ..Host::new("Web-2") }).await;
    join(
        service,
        Host::new("db-1").in_environment("staging").with_updates(vec![security(
            "openssl",
            Severity::High,
            &[],
        )]),
    )
    .await;
    service.clock.advance(SignedDuration::from_mins(10));
    join(
        service,
        Host { environment: None, tags: &["web"], os: ("debian", "12.5"), ..Host::new("late") },
    )
    .await;
    let found = async |query: &str| list_servers(service, query).await.0;
    assert_eq!(found("").await, ["db-1", "late", "web-1", "Web-2"]);
    assert_eq!(found("status=online").await, ["late"]);
    assert_eq!(found("status=offline").await, ["db-1", "web-1", "Web-2"]);
    assert_eq!(found("environment=production").await, ["web-1", "Web-2"]);
    assert_eq!(found("os=Debian%2012").await, ["db-1", "late", "web-1"]);
    assert_eq!(found("os=RHEL").await, ["Web-2"]);
    assert_eq!(found("q=WEB").await, ["web-1", "Web-2"]);
    assert_eq!(found("tag=web").await, ["late", "web-1"]);
    assert_eq!(found("tag=web,eu").await, ["web-1"]);
    assert_eq!(found("reboot_required=true").await, ["Web-2"]);
    assert_eq!(found("sort=security_updates&limit=1").await, ["db-1"]);
    assert_eq!(found("sort=newest&limit=1").await, ["late"]);
    assert_eq!(found("sort=last_seen").await.last().unwrap(), "late");
    assert_eq!(
        list_servers(service, "limit=2&offset=1").await,
        (vec!["late".into(), "web-1".into()], 4)
    );
    assert_eq!(found("status=online&environment=staging&os=debian").await, [""; 0]);
}

async fn invalid_filter_is_rejected(service: &Service) {
    for bad in [
        "status=up",
        "environment=a%20b",
        "os=a%20b%20c",
        "sort=colour",
        "reboot_required=yes",
        "tag=a%20b",
        "limit=0",
        "limit=501",
    ] {
        service.get(&format!("/v1/servers?{bad}")).await.is_problem(400, "invalid_parameter");
    }
    let refusal =
        service.get("/v1/servers?enviroment=x").await.is_problem(400, "unknown_parameter").json();
    assert!(refusal["detail"].as_str().unwrap().contains("did you mean `environment`?"));
}

async fn server_shows_its_packages_and_pending_updates(service: &Service) {
    let mut held = Pending::new("bash", "amd64", "5.1", "5.2");
    held.blocked_by = Some(BlockedBy::Held);
    let mut held_package = Installed::new("bash", "5.1", "amd64");
    held_package.held = true;
    let host = Host {
        installed: vec![
            held_package,
            Installed::new("libssl3", "1.0", "amd64").with_source("openssl", "1.0"),
            Installed::new("zlib1g", "1.2", "amd64"),
        ],
        ..Host::new("web-1")
    };
    let flaws = security("libssl3", Severity::Critical, &["CVE-2026-2", "CVE-2026-1"]);
    let id = join(service, host.with_updates(vec![held, flaws])).await;
    let response = service.get(&format!("/v1/servers/{id}")).await.is(200);
    assert_eq!(response.header("etag"), "\"1\"");
    let server = response.json();
    assert_eq!(server["status"], "online");
    assert_eq!(server["os"]["id"], "debian");
    assert_eq!(server["summary"]["updates"], 2);
    assert_eq!(
        server["packages"],
        json!([
            {"name": "bash", "version": "5.1", "arch": "amd64", "source": "bash",
                "available_version": "5.2", "security": false, "held": true, "blocked_by": "held"},
            {"name": "libssl3", "version": "1.0", "arch": "amd64", "source": "openssl",
                "available_version": "1.1", "security": true, "held": false, "blocked_by": null},
            {"name": "zlib1g", "version": "1.2", "arch": "amd64", "source": "zlib1g",
                "available_version": null, "security": false, "held": false, "blocked_by": null},
        ])
    );
    assert_eq!(server["cves"][0]["id"], "CVE-2026-1");
    assert_eq!(server["cves"][0]["severity"], "critical");
    assert_eq!(server["cves"][0]["fixed_version"], "1.1");
    assert_eq!(server["cves"][0]["state"], "open");
    assert_eq!(server["cves"].as_array().unwrap().len(), 2);
}

async fn removed_server_leaves_all_lists_and_its_tasks_are_canceled(service: &Service) {
    let id = join(service, Host::new("web-1")).await;
    let stays = join(service, Host::new("web-2")).await;
    let batch = service
        .post("/v1/batches", json!({"server_ids": [id, stays], "security_only": true}))
        .await;
    let batch = batch.is(202).json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/servers/{id}");
    let stale =
        TestRequest::new(Method::DELETE, &path).with_key(&service.admin).with("if-match", "\"9\"");
    stale.send(&service.router).await.is_problem(412, "precondition_failed");
    TestRequest::new(Method::DELETE, &path)
        .with_key(&service.operator)
        .send(&service.router)
        .await
        .is_problem(403, "forbidden");
    service.delete(&path).await.is(204);
    service.delete(&path).await.is_problem(404, "not_found");
    service.get(&path).await.is_problem(404, "not_found");
    assert_eq!(list_servers(service, "").await, (vec!["web-2".into()], 1));
    assert_eq!(
        store::rollout_tasks::state_name(rollout_task(service, &batch, id).await),
        "canceled"
    );
    // Its name is still shown in batches that it took part in.
    let batch = service.get(&format!("/v1/batches/{batch}")).await.is(200).json();
    assert_eq!(batch["results"][0]["hostname"], "web-1");
    assert_eq!(batch["results"][0]["state"], "canceled");
    let again = json!({"server_ids": [id], "security_only": true});
    service.post("/v1/batches", again).await.is_problem(422, "invalid_body");
    let mut reader = service.app.db.read().await.unwrap();
    let entries = store::audit::after(&mut reader, service.org, 0, 50).await.unwrap();
    assert!(
        entries
            .iter()
            .any(|entry| entry.action == "server.remove" && entry.subject == id.to_string())
    );
}

async fn refresh_is_accepted_and_offline_is_a_conflict(service: &Service) {
    let id = join(service, Host::new("web-1")).await;
    let path = format!("/v1/servers/{id}/refresh");
    let response = TestRequest::new(Method::POST, &path)
        .with_key(&service.operator)
        .send(&service.router)
        .await
        .is(202);
    assert_eq!(response.json()["state"], "pending");
    let location = response.header("location").to_owned();
    let shown = service.get(&location).await.is(200).json();
    assert_eq!((&shown["id"], &shown["server_id"]), (&response.json()["id"], &json!(id)));
    let other = join(service, Host::new("web-2")).await;
    service
        .get(&location.replace(&id.to_string(), &other.to_string()))
        .await
        .is_problem(404, "not_found");
    service.clock.advance(SignedDuration::from_mins(4));
    service.post(&path, json!({})).await.is_problem(409, "server_offline");
    service.post(&path, json!({"x": 1})).await.is_problem(422, "invalid_body");
}

async fn patching_one_server_creates_a_batch(service: &Service) {
    let id = join(service, Host::new("web-1")).await;
    let path = format!("/v1/servers/{id}/patch");
    let order = json!({"packages": ["openssl"], "security_only": true, "reboot": "if_required"});
    let response = service.post(&path, order).await.is(202);
    let batch = response.json();
    assert_eq!(
        response.header("location"),
        format!("/v1/batches/{}", batch["id"].as_str().unwrap())
    );
    assert_eq!(batch["progress"]["total"], 1);
    assert_eq!(batch["options"]["packages"], json!(["openssl"]));
    assert_eq!(batch["options"]["reboot"], "if_required");
    assert_eq!(batch["results"][0]["server_id"], json!(id));
    let refusal = service
        .post(&path, json!({"reboot": "sometimes"}))
        .await
        .is_problem(422, "invalid_body")
        .json();
    let codes: Vec<_> =
        refusal["errors"].as_array().unwrap().iter().map(|e| e["code"].clone()).collect();
    assert_eq!(codes, ["nothing_selected", "invalid_reboot_policy"]);
    let typo = service
        .post(&path, json!({"package": ["openssl"]}))
        .await
        .is_problem(422, "invalid_body")
        .json();
    assert_eq!(typo["errors"][0]["code"], "unknown_field");
    let nobody = "/v1/servers/srv_01jcqk3m8ye0fr5cq0k6s8v2xw/patch";
    service.post(nobody, json!({"security_only": true})).await.is_problem(404, "not_found");
}

async fn only_admins_release_and_only_quarantined_servers(service: &Service) {
    let id =
        join(service, Host { quarantine: Some("used by two hosts"), ..Host::new("web-1") }).await;
    let path = format!("/v1/servers/{id}/release");
    assert_eq!(
        service.get(&format!("/v1/servers/{id}")).await.json()["quarantine"],
        "used by two hosts"
    );
    TestRequest::new(Method::POST, &path)
        .with_key(&service.operator)
        .send(&service.router)
        .await
        .is_problem(403, "forbidden");
    let released = service.post(&path, json!({})).await.is(200).json();
    assert_eq!(released["quarantine"], Value::Null);
    service.post(&path, json!({})).await.is_problem(409, "not_quarantined");
}

async fn environment_limited_key_accesses_its_servers_only(service: &Service) {
    let ours = join(service, Host::new("stage-1").in_environment("staging")).await;
    let theirs = join(service, Host::new("prod-1")).await;
    let nowhere = join(service, Host { environment: None, ..Host::new("lost") }).await;
    let key = service.key(Role::Admin, Some(&["staging"])).await;
    let ask = |method: Method, path: String| {
        let ask = TestRequest::new(method, &path).with_key(&key);
        let order = path.ends_with("/patch");
        let ask = if order { ask.with_json(json!({"security_only": true})) } else { ask };
        ask.send(&service.router)
    };
    let list = ask(Method::GET, "/v1/servers".into()).await.is(200).json();
    assert_eq!((names(&list), &list["meta"]["total"]), (vec!["stage-1"], &json!(1)));
    let list = ask(Method::GET, "/v1/servers?environment=production".into()).await.is(200).json();
    assert_eq!(names(&list), [""; 0]);
    for hidden in [theirs, nowhere] {
        ask(Method::GET, format!("/v1/servers/{hidden}")).await.is_problem(404, "not_found");
        ask(Method::POST, format!("/v1/servers/{hidden}/patch")).await.is_problem(404, "not_found");
        ask(Method::DELETE, format!("/v1/servers/{hidden}")).await.is_problem(404, "not_found");
    }
    let batch = ask(Method::POST, format!("/v1/servers/{ours}/patch")).await.is(202).json();
    ask(Method::GET, format!("/v1/batches/{}", batch["id"].as_str().unwrap())).await.is(200);
    let mixed = service
        .post("/v1/batches", json!({"server_ids": [ours, theirs], "security_only": true}))
        .await;
    let mixed = mixed.is(202).json()["id"].as_str().unwrap().to_owned();
    ask(Method::GET, format!("/v1/batches/{mixed}")).await.is_problem(404, "not_found");
    ask(Method::POST, format!("/v1/batches/{mixed}/cancel")).await.is_problem(404, "not_found");
    let list = ask(Method::GET, "/v1/batches".into()).await.is(200).json();
    assert_eq!(list["meta"]["total"], 1);
    let body = json!({"server_ids": [ours, theirs], "security_only": true});
    let refusal = TestRequest::post("/v1/batches", body).with_key(&key).send(&service.router).await;
    let refusal = refusal.is_problem(422, "invalid_body").json();
    assert_eq!(refusal["errors"][0]["pointer"], "/server_ids/1");
}

async fn several_servers_are_edited_by_selector(service: &Service) {
    join(service, Host { tags: &["web", "blue"], ..Host::new("web-1") }).await;
    join(service, Host { tags: &["web"], ..Host::new("web-2").in_environment("staging") }).await;
    join(service, Host { tags: &["db"], ..Host::new("db-1") }).await;
    let edit = async |body: Value| service.post("/v1/servers/edit", body).await;
    let body = json!({"targets": {"tags": ["web"]}, "environment": "test", "add_tags": ["blue", "new"],
        "remove_tags": ["web"]});
    let done = edit(body.clone()).await.is(200).json();
    assert_eq!(done, json!({"matched": 2, "changed": 2}));
    let list = service.get("/v1/servers?environment=test").await.is(200).json();
    let tags: Vec<_> = list["data"].as_array().unwrap().iter().map(|row| &row["tags"]).collect();
    assert_eq!(tags, [&json!(["blue", "new"]), &json!(["blue", "new"])]);
    // They no longer have the tag, so the same request matches nothing.
    assert_eq!(edit(body).await.is(200).json(), json!({"matched": 0, "changed": 0}));
    let same = json!({"targets": {"environment": "test"}, "add_tags": ["new"]});
    assert_eq!(edit(same).await.is(200).json(), json!({"matched": 2, "changed": 0}));
    let nothing = json!({"targets": {"environment": "test"}});
    assert_eq!(edit(nothing).await.is(200).json(), json!({"matched": 2, "changed": 0}));
    for (wrong, pointer) in [
        (json!({"targets": {}, "add_tags": ["x"]}), "/targets"),
        (json!({"targets": {"all": true}, "add_tags": ["a b"]}), "/add_tags/0"),
        (json!({"targets": {"all": true}, "environment": "a b"}), "/environment"),
    ] {
        let problem = edit(wrong).await.is_problem(422, "invalid_body").json();
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    // A key for one environment neither sees the other servers nor moves its own out of it.
    let limited = service.key(Role::Operator, Some(&["test"])).await;
    let ask = async |body: Value| {
        let ask = TestRequest::post("/v1/servers/edit", body).with_key(&limited);
        ask.send(&service.router).await
    };
    let all = json!({"targets": {"all": true}, "add_tags": ["seen"]});
    assert_eq!(ask(all).await.is(200).json(), json!({"matched": 2, "changed": 2}));
    ask(json!({"targets": {"all": true}, "environment": "production"})).await.is(403);
    ask(json!({"targets": {"all": true}, "environment": null})).await.is(403);
    let viewer = TestRequest::post("/v1/servers/edit", json!({})).with_key(&service.viewer);
    viewer.send(&service.router).await.is(403);
}

testkit::both!(
    crate::support:
    several_servers_are_edited_by_selector,
    list_is_filtered_and_sorted,
    invalid_filter_is_rejected,
    server_shows_its_packages_and_pending_updates,
    removed_server_leaves_all_lists_and_its_tasks_are_canceled,
    refresh_is_accepted_and_offline_is_a_conflict,
    patching_one_server_creates_a_batch,
    only_admins_release_and_only_quarantined_servers,
    environment_limited_key_accesses_its_servers_only,
);
