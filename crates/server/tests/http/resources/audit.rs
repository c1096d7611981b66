//! The audit log contains who changed what, for every operation; it is listed, exported and
//! verified.

use jiff::SignedDuration;
use serde_json::{Value, json};
use server::app::Settings;
use vocab::Role;

use crate::markup::csv;
use crate::resources::mutations::{READ_ONLY, audited_actions, mutations, new_admin};
use crate::support::{Service, TestRequest};

async fn every_mutating_operation_is_in_the_audit_log(service: &Service) {
    let cases = mutations(service).await;
    let (who, key) = new_admin(service).await;
    for case in cases {
        let before = audited_actions(service, &who).await.len();
        case.to_request(&key).send(&service.router).await.is(case.status);
        let after = audited_actions(service, &who).await;
        assert!(after.len() > before, "{} {} is not in the audit log", case.method, case.route);
        println!("{} {}: {:?}", case.method, case.route, &after[before..]);
    }
    let mut reader = service.app.db.read().await.unwrap();
    let seal = service::commands::setup::seal(&service.app.secrets);
    assert_eq!(store::audit::first_broken(&mut reader, service.org, &seal).await.unwrap(), None);
}

async fn operations_that_change_nothing_are_not_in_the_audit_log(service: &Service) {
    let (who, key) = new_admin(service).await;
    for (method, path) in READ_ONLY {
        let body = match path {
            "/v1/preview" => json!({"targets": {"all": true}}),
            _ => json!({}),
        };
        TestRequest::new(method, path)
            .with_json(body)
            .with_key(&key)
            .send(&service.router)
            .await
            .is(200);
    }
    assert_eq!(audited_actions(service, &who).await, Vec::<String>::new());
}

/// The sequence numbers of a list.
fn sequences(list: &Value) -> Vec<u64> {
    let entries = list["data"].as_array().unwrap();
    entries.iter().map(|entry| entry["sequence"].as_u64().unwrap()).collect()
}

async fn create_keys(service: &Service, names: &[&str]) -> Vec<String> {
    let mut ids = Vec::new();
    for name in names {
        let body = json!({"name": name, "role": "viewer"});
        let created = service.post("/v1/api-keys", body).await.is(201).json();
        ids.push(created["id"].as_str().unwrap().to_owned());
        service.clock.advance(SignedDuration::from_mins(1));
    }
    ids
}

async fn entries_are_listed_newest_first_with_filters(service: &Service) {
    let start = service.clock.now();
    let keys = create_keys(service, &["=one", "two"]).await;
    let (who, key) = new_admin(service).await;
    let path = format!("/v1/api-keys/{}", keys[0]);
    TestRequest::new(axum::http::Method::DELETE, &path)
        .with_key(&key)
        .send(&service.router)
        .await
        .is(204);

    let all = service.get("/v1/audit").await.is(200).json();
    let numbers = sequences(&all);
    assert!(numbers.is_sorted_by(|a, b| *a == b + 1) && *numbers.last().unwrap() == 1, "{all}");
    assert_eq!((&all["meta"]["next_before"], &all["links"]["next"]), (&Value::Null, &Value::Null));
    let newest = &all["data"][0];
    assert_eq!(newest["action"], "api_key.revoke");
    assert_eq!(newest["at"], service.clock.now().to_string());
    assert_eq!(newest["actor"], json!({"type": "api_key", "id": who, "name": "somebody"}));
    assert_eq!(newest["subject"], json!({"id": keys[0], "name": "=one"}));
    assert!(newest["details"].is_object(), "{newest}");

    let actions = async |query: &str| -> Vec<String> {
        let list = service.get(&format!("/v1/audit?{query}")).await.is(200).json();
        let entries = list["data"].as_array().unwrap();
        entries.iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(actions(&format!("actor={who}")).await, ["api_key.revoke"]);
    assert_eq!(
        actions(&format!("subject={}", keys[0])).await,
        ["api_key.revoke", "api_key.create"]
    );
    assert_eq!(actions(&format!("subject={}&actor={who}", keys[1])).await, [""; 0]);
    assert_eq!(actions("action=api_key.revoke").await, ["api_key.revoke"]);
    assert_eq!(actions("action=batch.*,api_key.revoke").await, ["api_key.revoke"]);
    assert_eq!(actions("action=*").await.len(), numbers.len());
    for nothing in ["action=batch.*", "actor=%00", "subject=%00", "before=1", "before=0"] {
        assert_eq!(actions(nothing).await, [""; 0], "{nothing}");
    }
    let second = start.saturating_add(SignedDuration::from_mins(1)).unwrap();
    let third = start.saturating_add(SignedDuration::from_mins(2)).unwrap();
    let created = actions(&format!("since={second}&until={third}")).await;
    assert_eq!(created, ["api_key.create"], "the end is exclusive");

    let wrong = service.get("/v1/audit?action=api_key.create,batch.stop").await;
    let wrong = wrong.is_problem(400, "invalid_parameter").json();
    assert!(wrong["detail"].as_str().unwrap().contains("not an action"), "{wrong}");
    service.get("/v1/audit?since=yesterday").await.is_problem(400, "invalid_parameter");
    service.get("/v1/audit?offset=1").await.is_problem(400, "unknown_parameter");
}

async fn pages_follow_links_and_miss_nothing(service: &Service) {
    create_keys(service, &["one", "two", "three", "four"]).await;
    let all = sequences(&service.get("/v1/audit").await.is(200).json());
    let (mut next, mut seen) = (Some("/v1/audit?limit=2".to_owned()), Vec::new());
    while let Some(path) = next {
        let page = service.get(&path).await.is(200).json();
        seen.extend(sequences(&page));
        // A new entry does not move the pages.
        create_keys(service, &[&format!("key {}", seen.len())]).await;
        next = page["links"]["next"].as_str().map(str::to_owned);
    }
    assert_eq!(seen, all);
}

async fn only_admins_of_the_whole_organization_read_the_log(service: &Service) {
    let limited = service.key(Role::Admin, Some(&["staging"])).await;
    let stranger = service.stranger().await;
    let requests = [
        TestRequest::get("/v1/audit"),
        TestRequest::get("/v1/audit.csv"),
        TestRequest::post("/v1/audit/verify", json!({})),
    ];
    for request in requests {
        for key in [&service.operator, &limited] {
            let response = request.clone().with_key(key).send(&service.router).await;
            response.is_problem(403, "forbidden");
        }
        let response = request.with_key(&stranger).send(&service.router).await.is(200);
        assert!(!response.text().contains(&service.org.to_string()), "{}", response.text());
    }
}

async fn export_has_every_entry_and_no_formula(service: &Service) {
    let keys = create_keys(service, &["=1+1", "a, \"b\""]).await;
    // More than one part.
    let mut tx = service.app.db.begin().await.unwrap();
    for number in 0..1_200 {
        tx.record(store::audit::NewEntry {
            org_id: service.org,
            at: service.clock.now(),
            actor: "engine".into(),
            action: "batch.change".into(),
            subject: format!("bat_{number}"),
            detail: "{}".into(),
        });
    }
    tx.commit().await.unwrap();
    let latest = sequences(&service.get("/v1/audit?limit=1").await.is(200).json())[0];
    let response = service.get("/v1/audit.csv").await.is(200);
    assert_eq!(response.header("content-type"), "text/csv; charset=utf-8");
    let rows = csv(&response.text());
    let head = "sequence,at,actor_type,actor_id,actor_name,action,subject_id,subject_name,details";
    assert_eq!(rows[0].join(","), head);
    let numbers: Vec<u64> = rows[1..].iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(numbers, (1..=latest).rev().collect::<Vec<_>>());
    let row = rows.iter().find(|row| row[6] == keys[0] && row[5] == "api_key.create").unwrap();
    assert_eq!((row[2].as_str(), row[7].as_str()), ("api_key", "'=1+1"));
    let row = rows.iter().find(|row| row[6] == keys[1]).unwrap();
    assert_eq!(row[7], "a, \"b\"");

    let some = service.get("/v1/audit.csv?action=api_key.*").await.is(200).text();
    assert!(some.lines().count() > 2 && !some.contains("batch.change"), "{some}");
    service.get("/v1/audit.csv?limit=1").await.is_problem(400, "unknown_parameter");
}

async fn verify(service: &Service, body: Value) -> Value {
    service.post("/v1/audit/verify", body).await.is(200).json()
}

async fn changed_entry_is_found_with_its_number(service: &Service) {
    create_keys(service, &["one", "two", "three", "four"]).await;
    let latest = sequences(&service.get("/v1/audit?limit=1").await.is(200).json())[0];
    let intact = verify(service, json!({})).await;
    assert_eq!((&intact["valid"], &intact["complete"]), (&json!(true), &json!(true)), "{intact}");
    let numbers = [&intact["entries"], &intact["verified_to"], &intact["latest"]];
    assert_eq!(numbers, [&json!(latest); 3]);
    assert_eq!(intact["truncated"], Value::Null, "there is no anchor");

    let change = |seq: u64, what: &str| {
        format!("update audit_entries set {what} where org_id = '{}' and seq = {seq}", service.org)
    };
    let third = latest - 2;
    for (what, back) in [
        ("actor = 'usr_x' || actor", "actor = substr(actor, 6)"),
        ("action = 'x' || action", "action = substr(action, 2)"),
        ("subject = 'x' || subject", "subject = substr(subject, 2)"),
        ("detail = detail || ' '", "detail = substr(detail, 1, length(detail) - 1)"),
    ] {
        service.by_hand(&change(third, what)).await;
        let found = verify(service, json!({})).await;
        assert_eq!((&found["valid"], &found["complete"]), (&json!(false), &json!(false)));
        assert_eq!(found["first_invalid"], third, "{what}: {found}");
        assert_eq!(found["verified_to"], third - 1, "{found}");
        let detail = found["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("Entry {third} was changed or removed")), "{detail}");
        // Where the change is not, all is well.
        let after = verify(service, json!({"after": third})).await;
        assert_eq!((&after["valid"], &after["complete"]), (&json!(true), &json!(true)), "{after}");
        service.by_hand(&change(third, back)).await;
        assert_eq!(verify(service, json!({})).await["valid"], true, "{back}");
    }
    let delete = format!("delete from audit_entries where org_id = '{}' and seq = ", service.org);
    service.by_hand(&format!("{delete}{third}")).await;
    assert_eq!(verify(service, json!({})).await["first_invalid"], third);
    // The last entry, but not the head.
    service.by_hand(&format!("{delete}{latest}")).await;
    let end = verify(service, json!({"after": latest - 1})).await;
    assert_eq!((&end["valid"], &end["first_invalid"]), (&json!(false), &json!(latest)), "{end}");
}

async fn long_log_is_verified_in_parts(service: &Service) {
    create_keys(service, &["one", "two", "three", "four"]).await;
    let latest = sequences(&service.get("/v1/audit?limit=1").await.is(200).json())[0];
    let (mut after, mut entries) = (0, 0);
    loop {
        let part = verify(service, json!({"after": after, "limit": 2})).await;
        assert_eq!(part["valid"], true, "{part}");
        entries += part["entries"].as_u64().unwrap();
        after = part["verified_to"].as_u64().unwrap();
        assert_eq!(part["complete"], after == latest, "{part}");
        if part["complete"] == true {
            break;
        }
        assert!(
            part["detail"].as_str().unwrap().contains(&format!("Continue after entry {after}"))
        );
    }
    assert_eq!((after, entries), (latest, latest));
    // More than one transaction.
    let mut tx = service.app.db.begin().await.unwrap();
    for _ in 0..2_500 {
        tx.record(store::audit::NewEntry {
            org_id: service.org,
            at: service.clock.now(),
            actor: "engine".into(),
            action: "batch.change".into(),
            subject: "bat_1".into(),
            detail: "{}".into(),
        });
    }
    tx.commit().await.unwrap();
    let whole = verify(service, json!({})).await;
    assert_eq!((&whole["valid"], &whole["entries"]), (&json!(true), &json!(latest + 2_500)));

    let beyond = json!({"after": latest + 2_501});
    let beyond = service.post("/v1/audit/verify", beyond).await;
    beyond.is_problem(409, "unknown_sequence");
    for wrong in [json!({"after": -1}), json!({"limit": 0}), json!({"limit": 100_001})] {
        let wrong = service.post("/v1/audit/verify", wrong).await;
        wrong.is_problem(422, "invalid_body");
    }
}

/// Someone deletes the newest entries and sets the head back, so that the chain is intact.
async fn missing_end_is_found_by_the_anchor(service: &Service) {
    let data_dir = Some(service.database.dir.clone());
    let (app, router) = service.again(Settings { data_dir, ..Settings::default() }).await;
    let verify = async || {
        let request = TestRequest::post("/v1/audit/verify", json!({})).with_key(&service.admin);
        request.send(&router).await.is(200).json()
    };
    create_keys(service, &["one", "two", "three"]).await;
    assert_eq!(verify().await["truncated"], Value::Null, "no anchor was written yet");
    service::audit_anchor::check(&app, &service.database.dir).await.unwrap();
    let intact = verify().await;
    assert_eq!((&intact["valid"], &intact["truncated"]), (&json!(true), &json!(false)), "{intact}");
    let latest = intact["latest"].as_u64().unwrap();

    let (org, last) = (service.org, latest - 2);
    let delete = format!("delete from audit_entries where org_id = '{org}' and seq > {last}");
    service.by_hand(&delete).await;
    let hash = format!("select hash from audit_entries where org_id = '{org}' and seq = {last}");
    service
        .by_hand(&format!(
            "update audit_heads set seq = {last}, hash = ({hash}) where org_id = '{org}'"
        ))
        .await;
    let cut = verify().await;
    assert_eq!((&cut["valid"], &cut["truncated"]), (&json!(false), &json!(true)), "{cut}");
    assert_eq!((&cut["first_invalid"], &cut["entries"]), (&Value::Null, &json!(last)), "{cut}");
    let detail = cut["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("Entry {latest} existed earlier and is missing")), "{detail}");
    // New entries in their place do not hide it.
    create_keys(service, &["four", "five", "six"]).await;
    assert_eq!(verify().await["truncated"], true);
    // A replica without the anchor cannot tell, and says so.
    let blind = self::verify(service, json!({})).await;
    assert_eq!((&blind["valid"], &blind["truncated"]), (&json!(true), &Value::Null), "{blind}");
    assert!(blind["detail"].as_str().unwrap().contains("cannot tell"), "{blind}");
    // A forged anchor is not trusted.
    let path = service.database.dir.join(service::audit_anchor::FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"seq\":", "\"seq\":1", 1)).unwrap();
    let forged = verify().await;
    assert_eq!((&forged["valid"], &forged["truncated"]), (&json!(false), &Value::Null), "{forged}");
}

testkit::both!(
    crate::support:
    entries_are_listed_newest_first_with_filters,
    pages_follow_links_and_miss_nothing,
    only_admins_of_the_whole_organization_read_the_log,
    export_has_every_entry_and_no_formula,
    changed_entry_is_found_with_its_number,
    long_log_is_verified_in_parts,
    missing_end_is_found_by_the_anchor,
    every_mutating_operation_is_in_the_audit_log,
    operations_that_change_nothing_are_not_in_the_audit_log,
);
