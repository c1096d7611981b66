//! `/v1/preview`.

use serde_json::{Value, json};
use service::projections::findings;
use vocab::{BlockedBy, Installed, Pending, Severity};

use crate::fleet::{Host, join, security};
use crate::resources::feeds::{FRIDAY, import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

async fn preview(service: &Service, body: Value) -> Value {
    let ask = TestRequest::post("/v1/preview", body).with_key(&service.viewer);
    ask.send(&service.router).await.is(200).json()
}

fn updates(server: &Value, field: &str) -> Vec<String> {
    server[field]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A viewer may only request previews, and must not be able to fill the database with them.
async fn previews_with_idempotency_keys_store_nothing(service: &Service) {
    let one = join(service, Host::new("web-1")).await;
    for nth in 0..50 {
        let ask = TestRequest::post("/v1/preview", json!({"server_ids": [one], "packages": []}));
        let ask = ask.with_key(&service.viewer).with("idempotency-key", &format!("key-{nth}"));
        ask.send(&service.router).await.is(200);
    }
    let keys = service.get("/v1/api-keys").await.is(200).json();
    let mut reader = service.app.db.read().await.unwrap();
    for key in keys["data"].as_array().unwrap() {
        let id = key["id"].as_str().unwrap();
        let stored = store::idempotency::count(&mut reader, service.org, id, 1_000).await.unwrap();
        assert_eq!(stored, 0, "{id}");
    }
}

async fn preview_shows_updates_times_and_reboots_and_changes_nothing(service: &Service) {
    let mut held = security("curl", Severity::High, &[]);
    held.blocked_by = Some(BlockedBy::Held);
    let pending = vec![
        security("openssl", Severity::High, &[]),
        held,
        Pending::new("vim", "amd64", "1", "2"),
    ];
    let one = join(service, Host::new("web-1").with_updates(pending)).await;
    let two = join(service, Host { reboot_required: true, ..Host::new("web-2") }).await;
    let body = json!({"server_ids": [one, two], "packages": [], "exclude": ["vi*"], "reboot": "if_required",
        "stagger_minutes": 30, "canary": 1});
    let seen = preview(service, body).await;
    assert_eq!(
        (&seen["total"], &seen["offline"], &seen["beyond_window"]),
        (&json!(2), &json!(0), &json!(0))
    );
    assert_eq!(
        (&seen["first_start_at"], &seen["last_start_at"]),
        (&json!("2026-11-15T04:00:00Z"), &json!("2026-11-15T04:30:00Z"))
    );
    let [first, second] = [&seen["servers"][0], &seen["servers"][1]];
    assert_eq!(updates(first, "updates"), ["openssl"]);
    assert_eq!(updates(first, "blocked"), ["curl", "vim"]);
    assert_eq!(first["blocked"][1]["blocked_by"], "excluded");
    assert_eq!((&first["canary"], &first["reboot"]), (&json!(true), &json!("possible")));
    assert_eq!((&second["waits_for"], &second["reboot"]), (&json!(["canary"]), &json!("certain")));
    assert_eq!(second["starts_at"], "2026-11-15T04:30:00Z");
    assert_eq!(service.get("/v1/batches").await.json()["meta"]["total"], 0);
}

async fn canary_prefers_servers_with_updates_or_warns(service: &Service) {
    let host = |name| Host::new(name).with_updates(vec![security("openssl", Severity::High, &[])]);
    let idle = [join(service, Host::new("web-1")).await, join(service, Host::new("web-2")).await];
    let [one, two] = [join(service, host("web-3")).await, join(service, host("web-4")).await];
    let seen = async |servers: &[vocab::ServerId], canary: u32| {
        let body = json!({"server_ids": servers, "security_only": true, "canary": canary});
        let seen = preview(service, body.clone()).await;
        let names: Vec<String> = seen["servers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["hostname"].as_str().unwrap().to_owned())
            .collect();
        // The batch starts its servers in the order that the preview shows.
        let batch = service.post("/v1/batches", body).await.is(202).json();
        let turns: Vec<String> = batch["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["hostname"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, turns);
        (names, seen["warnings"].clone())
    };
    let effect = "as of the last scans, no other server has anything to install either, so the other \
        servers start after them without a tested update";
    let (names, warnings) = seen(&[idle[0], one, two, one], 1).await;
    assert_eq!(
        (names.as_slice(), warnings),
        (&["web-3".into(), "web-4".into(), "web-1".into()][..], json!([]))
    );
    let (names, warnings) = seen(&[idle[0], idle[1], two], 2).await;
    assert_eq!(names, ["web-4", "web-1", "web-2"]);
    assert_eq!(
        warnings,
        json!([format!("1 of the 2 canary servers has nothing to install: {effect}")])
    );
    let (_, warnings) = seen(&idle, 1).await;
    assert_eq!(warnings, json!([format!("the canary server has nothing to install: {effect}")]));
    let (names, warnings) = seen(&[idle[0], one], 0).await;
    assert_eq!((names.as_slice(), warnings), (&["web-1".into(), "web-3".into()][..], json!([])));
}

async fn preview_respects_host_limits(service: &Service) {
    let pending =
        || vec![security("openssl", Severity::High, &[]), Pending::new("vim", "amd64", "1", "2")];
    let host = |name, limits: Value| {
        Host { facts: json!({"limits": limits}), ..Host::new(name) }.with_updates(pending())
    };
    let ids = [
        join(service, host("frozen", json!({"frozen": true}))).await,
        join(service, host("damaged", json!({"error": "line 3: no such key"}))).await,
        join(service, host("small", json!({"max_packages": 1}))).await,
        join(service, host("careful", json!({"security_only": true, "never_reboot": true}))).await,
        join(
            service,
            host(
                "pinned",
                json!({"exclude": ["open*"], "allowed_hours": ["Sat 22:00-05:00 (UTC)"]}),
            ),
        )
        .await,
        join(service, host("free", json!({}))).await,
    ];
    let order = json!({"server_ids": ids, "packages": [], "reboot": "always"});
    let seen = preview(service, order.clone()).await;
    let chosen: Vec<_> = seen["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (updates(one, "updates"), updates(one, "blocked"), one["reboot"].as_str().unwrap())
        })
        .collect();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let all = || names(&["openssl", "vim"]);
    assert_eq!(
        chosen,
        [
            (vec![], all(), "no"),
            (vec![], all(), "no"),
            (vec![], all(), "certain"),
            (names(&["openssl"]), names(&["vim"]), "no"),
            (names(&["vim"]), names(&["openssl"]), "certain"),
            (all(), vec![], "certain"),
        ]
    );
    let said = |nth: usize| seen["servers"][nth]["host_limits"].to_string();
    assert!(
        said(0).contains("`frozen` is set") && said(1).contains("line 3") && said(5) == "[]",
        "{seen}"
    );
    assert!(said(4).contains("excludes open*") && said(4).contains("Sat 22:00-05:00"), "{seen}");
    assert_eq!(
        seen["warnings"],
        json!([
            "3 servers will refuse this order because of their host limits; the first is frozen"
        ])
    );
    // A frozen host executes a dry run, and is not a canary while another server can be one.
    let dry = json!({"server_ids": [ids[0]], "packages": [], "dry_run": true});
    assert_eq!(updates(&preview(service, dry).await["servers"][0], "updates"), all());
    let canary = json!({"server_ids": [ids[0], ids[5]], "packages": [], "canary": 1});
    assert_eq!(preview(service, canary).await["servers"][0]["hostname"], "free");
    let shown = service.get(&format!("/v1/servers/{}", ids[0])).await.is(200).json();
    assert_eq!(shown["limits"]["frozen"], true);
}

async fn update_that_fixes_a_known_cve_is_a_security_update(service: &Service) {
    let pending = |name: &str| Pending::new(name, "amd64", "1.0", "1.2");
    let installed = ["curl", "vim"].map(|name| Installed::new(name, "1.0", "amd64")).to_vec();
    let host = Host { installed, ..Host::new("web-1") };
    let one = join(service, host.with_updates(vec![pending("curl"), pending("vim")])).await;
    let order = json!({"server_ids": [one], "security_only": true});
    assert_eq!(updates(&preview(service, order.clone()).await["servers"][0], "updates"), [""; 0]);
    let record = osv("DSA-1", FRIDAY, "curl", "1.1", &["CVE-2026-1"]);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[record]))).await.unwrap();
    findings::rebuild(&service.app, service.org).await.unwrap();
    let seen = preview(service, order).await;
    assert_eq!(updates(&seen["servers"][0], "updates"), ["curl"]);
    assert_eq!(seen["servers"][0]["updates"][0]["security"], true);
}

async fn preview_counts_servers_outside_the_window(service: &Service) {
    for name in ["web-1", "web-2", "web-3"] {
        join(service, Host::new(name)).await;
    }
    join(service, Host::new("db-1").in_environment("staging")).await;
    let body = json!({"targets": {"environment": "production"}, "packages": ["bash"], "stagger_minutes": 60, "window_minutes": 90});
    let seen = preview(service, body).await;
    assert_eq!((&seen["total"], &seen["beyond_window"]), (&json!(3), &json!(1)));
    assert_eq!(seen["servers"][2]["waits_for"], json!(["window"]));
    assert_eq!(seen["servers"][2]["starts_at"], Value::Null);
    assert_eq!(seen["servers"][0]["nothing_pending"], json!(["bash"]));
    assert_eq!(seen["warnings"].as_array().unwrap().len(), 1);
}

async fn preview_rejects_what_a_batch_would_reject(service: &Service) {
    let refused = async |body: Value| {
        let refusal =
            service.post("/v1/preview", body).await.is_problem(422, "invalid_body").json();
        let errors = refusal["errors"].as_array().unwrap().iter();
        errors.map(|error| error["code"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let absent = "srv_01jcqk3m8ye0fr5cq0k6s8v2xw";
    assert_eq!(refused(json!({"security_only": true})).await, ["one_of"]);
    assert_eq!(
        refused(json!({"server_ids": [absent], "targets": {"all": true}})).await,
        ["one_of"]
    );
    assert_eq!(refused(json!({"server_ids": [absent]})).await, ["nothing_selected", "not_found"]);
    assert_eq!(refused(json!({"targets": {}})).await, ["empty_targets"]);
    assert_eq!(
        refused(json!({"targets": {"all": true}, "reboots": "never"})).await,
        ["unknown_field"]
    );
}

/// The whole plan: waves, reboots, freezes, pins, and the expected duration from past tasks.
async fn preview_tells_the_whole_plan(service: &Service) {
    let pending = || vec![security("openssl", Severity::High, &[])];
    let host = |name| Host::new(name).with_updates(pending());
    let one = join(service, host("web-1")).await;
    let two = join(service, Host { reboot_required: true, ..host("web-2") }).await;
    let idle = [join(service, Host::new("web-3")).await, join(service, Host::new("web-4")).await];
    let rocky = join(service, Host { os: ("rocky", "9.4"), ..host("rocky-1") }).await;
    let freeze = json!({"name": "Sale", "reason": "no changes", "targets": {"server_ids": [two]},
        "starts_at": "2026-11-15T03:00:00Z", "ends_at": "2026-11-15T09:00:00Z"});
    service.post("/v1/freezes", freeze).await.is(201);
    let order = |waves: Value| {
        json!({"server_ids": [one, two, rocky, idle[0], idle[1]], "packages": [],
            "reboot": "if_required", "waves": waves, "pin_versions": true})
    };
    let waves = json!([{"size": 1, "soak_minutes": 60}, {"size": 2}, {"size": 1},
        {"approval": true}]);
    let seen = preview(service, order(waves.clone())).await;
    assert_eq!(seen["options"]["pin_versions"], true);
    let wave = |number: u32, size: u32, with_updates: u32, soak: u32, approval: bool| {
        json!({"number": number, "size": size, "with_updates": with_updates,
            "soak_minutes": soak, "approval": approval})
    };
    assert_eq!(
        seen["waves"],
        json!([
            wave(1, 1, 1, 60, false),
            wave(2, 2, 2, 0, false),
            wave(3, 1, 0, 0, false),
            wave(4, 1, 0, 0, true)
        ])
    );
    assert_eq!(seen["reboots"], json!({"certain": 1, "possible": 2}));
    let freeze = &seen["freezes"][0];
    assert_eq!((&freeze["name"], &freeze["servers"]), (&json!("Sale"), &json!(1)));
    assert_eq!(freeze["ends_at"], "2026-11-15T09:00:00Z");
    let frozen =
        { seen["servers"].as_array().unwrap().iter() }.find(|server| server["hostname"] == "web-2");
    assert!(frozen.unwrap()["waits_for"].as_array().unwrap().contains(&json!("freeze")), "{seen}");
    let warnings = seen["warnings"].to_string();
    assert!(warnings.contains("none of the servers of wave 3 has anything to install"), "{seen}");
    assert!(warnings.contains("the first wave updates no server with"), "{seen}");
    assert!(warnings.contains("1 server with this system would be skipped"), "{seen}");
    // The systems take turns, so a first wave of two covers both.
    let covered = preview(service, order(json!([{"size": 2}, {}]))).await;
    assert!(!covered["warnings"].to_string().contains("pinned"), "{covered}");
    // Nothing was measured yet.
    assert_eq!(seen["expected_minutes"], Value::Null);
    let urgent = json!({"server_ids": [two], "packages": [], "override_freeze": "CVE-2026-1"});
    let urgent = service.post("/v1/preview", urgent).await.is(200).json();
    assert_eq!(urgent["freezes"], json!([]));
}

testkit::both!(
    crate::support:
    previews_with_idempotency_keys_store_nothing,
    preview_shows_updates_times_and_reboots_and_changes_nothing,
    canary_prefers_servers_with_updates_or_warns,
    preview_respects_host_limits,
    preview_tells_the_whole_plan,
    update_that_fixes_a_known_cve_is_a_security_update,
    preview_counts_servers_outside_the_window,
    preview_rejects_what_a_batch_would_reject,
);
