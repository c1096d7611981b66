//! `PATCH /v1/servers/{server_id}`: what operators change about a server.

use axum::http::Method;
use serde_json::{Value, json};
use vocab::{Role, ServerId};

use crate::fleet::{Host, join, security};
use crate::support::{Service, TestRequest, TestResponse};

fn edit(id: ServerId, body: Value) -> TestRequest {
    TestRequest::new(Method::PATCH, &format!("/v1/servers/{id}")).with_json(body)
}

async fn as_admin(service: &Service, id: ServerId, body: Value) -> TestResponse {
    edit(id, body).with_key(&service.admin).send(&service.router).await
}

async fn count(service: &Service, query: &str) -> u64 {
    let list = service.get(&format!("/v1/servers?{query}")).await.is(200).json();
    list["meta"]["total"].as_u64().unwrap()
}

async fn edit_changes_only_what_it_names(service: &Service) {
    let updates = vec![security("openssl", vocab::Severity::High, &[])];
    let host = Host { tags: &["web", "eu"], ..Host::new("web-1") }.with_updates(updates);
    let id = join(service, host).await;
    let before = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
    let edited = as_admin(service, id, json!({"environment": "staging"})).await.is(200).json();
    assert_eq!(edited["environment"], "staging");
    for field in ["id", "hostname", "tags", "os", "status", "summary", "enrolled_at"] {
        assert_eq!(edited[field], before[field], "{field}");
    }
    // Lists, counts and filters follow.
    assert_eq!(count(service, "environment=production").await, 0);
    assert_eq!(count(service, "environment=staging&tag=web").await, 1);
    let edited = as_admin(service, id, json!({"tags": ["db", "blue", "db"]})).await.is(200).json();
    assert_eq!(edited["tags"], json!(["db", "blue"]), "each once");
    assert_eq!((count(service, "tag=web").await, count(service, "tag=blue,db").await), (0, 1));
    let cleared = json!({"environment": null, "tags": null});
    let edited = as_admin(service, id, cleared).await.is(200).json();
    assert_eq!((&edited["environment"], &edited["tags"]), (&Value::Null, &json!([])));
    assert_eq!(count(service, "environment=staging").await, 0);
    assert_eq!(count(service, "").await, 1);
}

async fn display_name_is_shown_wherever_the_server_is_listed(service: &Service) {
    let updates = vec![security("openssl", vocab::Severity::High, &[])];
    let id = join(service, Host::new("db-1").with_updates(updates)).await;
    let body = json!({"display_name": " Shop database ", "notes": "Ask Ops.\nTwice."});
    let edited = as_admin(service, id, body).await.is(200).json();
    assert_eq!(edited["display_name"], "Shop database");
    assert_eq!(
        (&edited["hostname"], &edited["notes"]),
        (&json!("db-1"), &json!("Ask Ops.\nTwice."))
    );
    for query in ["q=shop", "q=db-1"] {
        assert_eq!(count(service, query).await, 1, "{query}");
    }
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    let detail = service.get("/v1/patches/openssl").await.is(200).json();
    assert_eq!(detail["servers"][0]["display_name"], "Shop database");
    let order = json!({"server_ids": [id], "security_only": true});
    let preview = service.post("/v1/preview", order.clone()).await.is(200).json();
    assert_eq!(preview["servers"][0]["display_name"], "Shop database");
    let batch = service.post("/v1/batches", order).await.is(202).json();
    assert_eq!(batch["results"][0]["display_name"], "Shop database");
    let cleared = json!({"display_name": null, "notes": null});
    let edited = as_admin(service, id, cleared).await.is(200).json();
    assert_eq!((&edited["display_name"], &edited["notes"]), (&Value::Null, &json!("")));
    assert_eq!(count(service, "q=shop").await, 0);
}

async fn edit_without_a_change_leaves_no_trace(service: &Service) {
    let id = join(service, Host { tags: &["web"], ..Host::new("web-1") }).await;
    let entries = async || service.get("/v1/servers").await.is(200).header("etag").to_owned();
    let seen = entries().await;
    let etag = service.get(&format!("/v1/servers/{id}")).await.is(200).header("etag").to_owned();
    for body in [json!({}), json!({"tags": ["web"]}), json!({"environment": "production"})] {
        assert_eq!(as_admin(service, id, body).await.is(200).header("etag"), etag);
    }
    assert_eq!(entries().await, seen);
}

async fn outdated_edit_is_rejected(service: &Service) {
    let id = join(service, Host::new("web-1")).await;
    let etag = service.get(&format!("/v1/servers/{id}")).await.is(200).header("etag").to_owned();
    as_admin(service, id, json!({"tags": ["a"]})).await.is(200);
    let late = edit(id, json!({"tags": ["b"]})).with_key(&service.admin);
    late.with("if-match", &etag).send(&service.router).await.is_problem(412, "precondition_failed");
    assert_eq!(count(service, "tag=a").await, 1);
}

async fn invalid_edits_are_rejected_with_every_error(service: &Service) {
    let id = join(service, Host::new("web-1")).await;
    let body = json!({"environment": "not an environment!", "tags": ["ok", "two words"]});
    let problem = as_admin(service, id, body).await.is_problem(422, "invalid_body").json();
    let pointers: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(pointers, ["/environment", "/tags/1"]);
    let body = json!({"display_name": "a\u{1}", "notes": "x".repeat(2_001)});
    let problem = as_admin(service, id, body).await.is_problem(422, "invalid_body").json();
    assert_eq!(problem["errors"].as_array().unwrap().len(), 2, "{problem}");
    as_admin(service, id, json!({"display_name": " "})).await.is_problem(422, "invalid_body");
    let many: Vec<String> = (0..51).map(|n| format!("tag-{n}")).collect();
    as_admin(service, id, json!({"tags": many})).await.is_problem(422, "invalid_body");
    as_admin(service, id, json!({"hostname": "x"})).await.is_problem(422, "invalid_body");
    as_admin(service, id, json!([])).await.is_problem(422, "invalid_body");
    let unknown = "srv_01m7ft2cnverqb58v0qewag7sa".parse().unwrap();
    as_admin(service, unknown, json!({"tags": []})).await.is_problem(404, "not_found");
    assert_eq!(count(service, "environment=production").await, 1);
}

async fn limited_key_cannot_move_servers_out_of_its_environments(service: &Service) {
    let ours = join(service, Host::new("web-1")).await;
    let other = join(service, Host::new("db-1").in_environment("staging")).await;
    let limited = service.key(Role::Operator, Some(&["production"])).await;
    let send = async |id: ServerId, body: Value| {
        edit(id, body).with_key(&limited).send(&service.router).await
    };
    send(ours, json!({"environment": "staging"})).await.is_problem(403, "forbidden");
    send(ours, json!({"environment": null})).await.is_problem(403, "forbidden");
    // It does not see this one at all.
    send(other, json!({"environment": "production"})).await.is_problem(404, "not_found");
    send(ours, json!({"tags": ["a"]})).await.is(200);
    let viewer = edit(ours, json!({"tags": []})).with_key(&service.viewer);
    viewer.send(&service.router).await.is_problem(403, "forbidden");
    let stranger = edit(ours, json!({"tags": []})).with_key(&service.stranger().await);
    stranger.send(&service.router).await.is_problem(404, "not_found");
    assert_eq!(count(service, "environment=production&tag=a").await, 1);
}

testkit::both!(
    crate::support:
    edit_changes_only_what_it_names,
    display_name_is_shown_wherever_the_server_is_listed,
    edit_without_a_change_leaves_no_trace,
    outdated_edit_is_rejected,
    invalid_edits_are_rejected_with_every_error,
    limited_key_cannot_move_servers_out_of_its_environments,
);
