//! `/v1/policies`: created, read, replaced and deleted like every resource.

use axum::http::Method;
use serde_json::{Value, json};
use vocab::Role;

use crate::fleet::{Host, join};
use crate::support::{Service, TestRequest};

fn policy(name: &str) -> Value {
    json!({"name": name, "description": "Standard 4.2", "targets": {"all": true},
        "rules": [{"match": {"kev": true}, "within_days": 2},
                  {"match": {"severity": "high"}, "within_days": 7},
                  {"match": {"security": true}, "within_days": 30}]})
}

async fn policy_is_created_read_replaced_and_deleted(service: &Service) {
    join(service, Host::new("web")).await;
    let created = service.post("/v1/policies", policy("Fast")).await.is(201);
    let (etag, location) =
        (created.header("etag").to_owned(), created.header("location").to_owned());
    let created = created.json();
    assert_eq!(created["rules"], policy("Fast")["rules"]);
    assert_eq!((&created["servers"], created.get("warnings")), (&json!(1), None));
    assert_eq!(location, format!("/v1/policies/{}", created["id"].as_str().unwrap()));
    assert_eq!(service.get(&location).await.is(200).json(), created);
    let list = service.get("/v1/policies").await.is(200).json();
    assert_eq!(list["data"], json!([created]));

    let mut body = policy("Slow");
    body["targets"] = json!({"tags": ["none"]});
    body["rules"] = json!([{"match": {"security": true}, "within_days": 90}]);
    let put = async |tag: &str, body: &Value| {
        let ask = TestRequest::new(Method::PUT, &location).with_key(&service.operator);
        ask.with("if-match", tag).with_json(body.clone()).send(&service.router).await
    };
    put("\"99\"", &body).await.is(412);
    let changed = put(&etag, &body).await.is(200).json();
    assert_eq!((&changed["name"], &changed["servers"]), (&json!("Slow"), &json!(0)));
    assert_eq!(changed["warnings"].as_array().unwrap().len(), 1, "{changed}");
    service.post("/v1/policies", policy("Slow")).await.is_problem(409, "already_exists");

    let events = service.get("/v1/events?type=policy.*").await.is(200).json();
    let kinds: Vec<&Value> =
        events["data"].as_array().unwrap().iter().map(|event| &event["type"]).collect();
    assert_eq!(kinds, [&json!("policy.created"), &json!("policy.updated")]);
    let ask = TestRequest::new(Method::DELETE, &location).with_key(&service.operator);
    ask.send(&service.router).await.is(204);
    service.get(&location).await.is_problem(404, "not_found");
}

async fn all_errors_of_a_policy_are_reported_at_once(service: &Service) {
    // (a rule, the place of the error below it)
    let cases = [
        (json!({"match": {}, "within_days": 7}), "/match"),
        (json!({"match": {"kev": true, "security": true}, "within_days": 7}), "/match"),
        (json!({"match": {"kev": false}, "within_days": 7}), "/match/kev"),
        (json!({"match": {"severity": "awful"}, "within_days": 7}), "/match/severity"),
        (json!({"match": {"severity": "unknown"}, "within_days": 7}), "/match/severity"),
        (json!({"match": {"kev": true}, "within_days": -1}), "/within_days"),
        (json!({"match": {"kev": true}, "within_days": 3_651}), "/within_days"),
    ];
    let rules: Vec<&Value> = cases.iter().map(|(rule, _)| rule).collect();
    let body = json!({"name": "", "targets": {}, "rules": rules});
    let problem = service.post("/v1/policies", body).await.is(422).json();
    let found: Vec<String> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap().to_owned())
        .collect();
    for (place, (rule, pointer)) in cases.iter().enumerate() {
        let expected = format!("/rules/{place}{pointer}");
        assert!(found.contains(&expected), "{rule}: {expected} is not in {found:?}");
    }
    assert!(found.contains(&"/name".to_owned()), "{found:?}");
    let body = json!({"name": "x", "targets": {"all": true}, "rules": []});
    service.post("/v1/policies", body).await.is(422);
}

async fn viewers_read_policies_and_operators_write_them(service: &Service) {
    let create = |key: &str| {
        TestRequest::new(Method::POST, "/v1/policies").with_key(key).with_json(policy("p"))
    };
    create(&service.viewer).send(&service.router).await.is_problem(403, "forbidden");
    let made = create(&service.operator).send(&service.router).await.is(201).json();
    let path = format!("/v1/policies/{}", made["id"].as_str().unwrap());
    TestRequest::get(&path).with_key(&service.viewer).send(&service.router).await.is(200);
    // A key that is limited to environments must not create a policy for all servers, and does not
    // see one.
    let limited = service.key(Role::Operator, Some(&["staging"])).await;
    create(&limited).send(&service.router).await.is_problem(403, "forbidden");
    TestRequest::get(&path).with_key(&limited).send(&service.router).await.is(404);
    let mut body = policy("staging");
    body["targets"] = json!({"environment": "staging"});
    let ask = TestRequest::new(Method::POST, "/v1/policies").with_key(&limited).with_json(body);
    ask.send(&service.router).await.is(201);
}

testkit::both!(
    crate::support:
    policy_is_created_read_replaced_and_deleted,
    all_errors_of_a_policy_are_reported_at_once,
    viewers_read_policies_and_operators_write_them,
);
