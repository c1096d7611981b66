//! `/v1/compliance`: every server is in one state, counts and lists agree, time and scans change
//! them, and a report is signed.

use jiff::SignedDuration;
use serde_json::{Value, json};
use service::projections::{compliance, findings};
use store::servers;
use store::servers::Server;
use vocab::{Installed, Pending, Role, ServerId, Severity};

use crate::fleet::{Host, join, scan, security};
use crate::resources::feeds::{import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

const FRIDAY: &str = "2026-11-13T00:00:00Z";

fn curl(version: &str) -> Vec<Installed> {
    vec![Installed::new("curl", version, "amd64")]
}

fn update() -> Vec<Pending> {
    vec![security("curl", Severity::Critical, &["CVE-2026-1"])]
}

fn vulnerable(name: &'static str) -> Host {
    Host { installed: curl("1.0"), ..Host::new(name) }.with_updates(update())
}

/// A feed with a CVE in curl that 1.1 fixes.
async fn import(service: &Service) {
    let advisory = osv("DSA-1", FRIDAY, "curl", "1.1", &["CVE-2026-1"]);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[advisory]))).await.unwrap();
}

/// Runs the background tasks once.
async fn judge(service: &Service) -> bool {
    findings::rebuild(&service.app, service.org).await.unwrap();
    compliance::rebuild(&service.app, service.org).await.unwrap()
}

/// A scan that also says when it was.
async fn rescan(service: &Service, server: ServerId, version: &str, pending: &[Pending]) {
    scan(service, server, &curl(version), pending).await;
    edit(service, server, |server, now| server.last_scan_at = Some(now)).await;
}

async fn edit(service: &Service, id: ServerId, change: impl Fn(&mut Server, jiff::Timestamp)) {
    let now = service.clock.now();
    let mut tx = service.app.db.begin().await.unwrap();
    let before = servers::get(&mut tx, service.org, id).await.unwrap();
    let mut after = before.clone();
    change(&mut after, now);
    servers::save(&mut tx, &before, &after, now).await.unwrap();
    tx.commit().await.unwrap();
}

fn days(number: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * number)
}

async fn create(service: &Service, name: &str, rules: Value) -> String {
    let body = json!({"name": name, "targets": {"all": true}, "rules": rules});
    let created = service.post("/v1/policies", body).await.is(201).json();
    created["id"].as_str().unwrap().to_owned()
}

fn security_in(days: u32) -> Value {
    json!([{"match": {"security": true}, "within_days": days}])
}

/// The counts of a policy: servers, compliant, due soon, breaching, unknown.
async fn counts(service: &Service, query: &str) -> Vec<(Value, [u64; 5])> {
    let list = service.get(&format!("/v1/compliance{query}")).await.is(200).json();
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    let rows = list["data"].as_array().unwrap().iter().map(|row| {
        let fields = ["servers", "compliant", "due_soon", "breaching", "unknown"];
        (row["environment"].clone(), fields.map(|field| number(row, field)))
    });
    rows.collect()
}

async fn states(service: &Service, policy: &str, more: &str) -> Vec<(String, String)> {
    let path = format!("/v1/compliance/servers?policy={policy}{more}");
    let list = service.get(&path).await.is(200).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (text(&row["hostname"]), text(&row["state"])))
        .collect();
    if !more.contains("limit") {
        assert_eq!(list["meta"]["total"], found.len(), "{path}");
    }
    found
}

async fn events(service: &Service) -> Vec<(String, String)> {
    let all = service.get("/v1/events?type=policy.breached,policy.satisfied").await.is(200).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (text(&event["type"]), text(&event["subject"]["name"])))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

/// From the offered fix over the due date to the installed version, with the events.
async fn server_breaches_and_satisfies_a_policy(service: &Service) {
    let web = join(service, vulnerable("web")).await;
    join(service, Host { installed: curl("1.1"), ..Host::new("clean") }).await;
    import(service).await;
    judge(service).await;
    let policy = create(service, "p", security_in(5)).await;
    assert!(judge(service).await);
    assert!(!judge(service).await, "nothing changed");
    let production = json!("production");
    let at = async || counts(service, "").await;
    assert_eq!(at().await, [(production.clone(), [2, 2, 0, 0, 0])]);

    service.clock.advance(days(3));
    assert!(judge(service).await, "time has passed");
    assert_eq!(at().await, [(production.clone(), [2, 1, 1, 0, 0])]);
    service.clock.advance(days(2));
    judge(service).await;
    assert_eq!(at().await, [(production.clone(), [2, 1, 0, 1, 0])]);
    assert_eq!(events(service).await, pairs(&[("policy.breached", "web")]));
    let expected = pairs(&[("web", "breaching"), ("clean", "compliant")]);
    assert_eq!(states(service, &policy, "").await, expected);
    assert_eq!(states(service, &policy, "&state=breaching").await, expected[..1]);
    assert_eq!(states(service, &policy, "&state=unknown").await, []);
    assert_eq!(states(service, &policy, "&environment=production&limit=1").await, expected[..1]);
    assert_eq!(states(service, &policy, "&environment=staging").await, []);

    let list = service.get("/v1/compliance").await.is(200).json();
    let row = &list["data"][0];
    assert_eq!(row["oldest_breach_at"], "2026-11-20T04:00:00Z", "{row}");
    let last = row["trend"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["day"], &last["breaching"]), (&json!("2026-11-20"), &json!(1)));
    assert_eq!(row["trend"].as_array().unwrap().len(), 3, "{row}");

    let of_server = service.get(&format!("/v1/servers/{web}/compliance")).await.is(200).json();
    let one = &of_server["data"][0];
    assert_eq!(
        (&one["state"], &one["open"], &one["overdue"], &one["policy"]),
        (&json!("breaching"), &json!(1), &json!(1), &json!("p"))
    );
    let explained = service.get(&format!("/v1/servers/{web}/updates/curl")).await.is(200).json();
    let expected = json!({"policy_id": policy, "policy": "p", "breach": true,
        "available_since": "2026-11-15T04:00:00Z", "due_at": "2026-11-20T04:00:00Z"});
    assert_eq!(explained["policy"], expected);

    rescan(service, web, "1.1", &[]).await;
    judge(service).await;
    assert_eq!(at().await, [(production, [2, 2, 0, 0, 0])]);
    let both = pairs(&[("policy.breached", "web"), ("policy.satisfied", "web")]);
    assert_eq!(events(service).await, both);
}

/// What cannot be judged is unknown, and never counts as compliant.
async fn servers_that_cannot_be_judged_are_unknown(service: &Service) {
    import(service).await;
    let clean = Host { installed: curl("1.1"), ..Host::new("clean") };
    let stale = join(service, clean).await;
    let other = Host { installed: curl("1.1"), os: ("alpine", "3.20"), ..Host::new("alpine") };
    join(service, other).await;
    let new = join(service, Host::new("new")).await;
    edit(service, new, |server, _| {
        (server.package_set, server.update_set, server.last_scan_at) = (None, None, None);
    })
    .await;
    let policy = create(service, "p", security_in(5)).await;
    judge(service).await;
    let reasons = async || {
        let path = format!("/v1/compliance/servers?policy={policy}");
        let list = service.get(&path).await.is(200).json();
        let rows = list["data"].as_array().unwrap().clone();
        let mut found: Vec<(String, String, Value)> = rows
            .iter()
            .map(|row| {
                let text = |field: &str| row[field].as_str().unwrap().to_owned();
                (text("hostname"), text("state"), row["unknown_reason"].clone())
            })
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    };
    let row = |name: &str, state: &str, reason: Value| (name.to_owned(), state.to_owned(), reason);
    let mut expected = vec![
        row("alpine", "unknown", json!("no_feed")),
        row("clean", "compliant", Value::Null),
        row("new", "unknown", json!("not_scanned")),
    ];
    assert_eq!(reasons().await, expected);
    assert_eq!(counts(service, "").await[0].1, [3, 1, 0, 0, 2]);
    // Seven days after its last scan, a server is stale.
    service.clock.advance(days(7));
    judge(service).await;
    expected[1] = row("clean", "unknown", json!("stale"));
    assert_eq!(reasons().await, expected);
    assert_eq!(counts(service, "").await[0].1, [3, 0, 0, 0, 3]);
    assert_eq!(events(service).await, []);
    rescan(service, stale, "1.1", &[]).await;
    judge(service).await;
    expected[1] = row("clean", "compliant", Value::Null);
    assert_eq!(reasons().await, expected);
}

/// The clock runs without a policy: a new policy judges the time before it, without events.
async fn new_policy_judges_the_time_that_has_passed(service: &Service) {
    let web = join(service, vulnerable("web")).await;
    import(service).await;
    judge(service).await;
    service.clock.advance(days(6));
    let strict = create(service, "strict", security_in(5)).await;
    let kev = json!([{"match": {"kev": true}, "within_days": 1}]);
    let exploited = create(service, "exploited", kev).await;
    judge(service).await;
    assert_eq!(states(service, &strict, "").await, pairs(&[("web", "breaching")]));
    assert_eq!(states(service, &exploited, "").await, pairs(&[("web", "compliant")]));
    assert_eq!(events(service).await, []);
    // The CVE enters KEV, which is news.
    let kev = json!({"title": "list", "catalogVersion": "1", "dateReleased": FRIDAY, "count": 1,
        "vulnerabilities": [{"cveID": "CVE-2026-1", "dateAdded": "2026-11-12",
            "knownRansomwareCampaignUse": "Known"}]});
    import_feed(service, &write_file(service, "kev.json", &kev.to_string())).await.unwrap();
    judge(service).await;
    assert_eq!(states(service, &exploited, "").await, pairs(&[("web", "breaching")]));
    assert_eq!(events(service).await, pairs(&[("policy.breached", "web")]));
    let explained = service.get(&format!("/v1/servers/{web}/updates/curl")).await.is(200).json();
    assert_eq!(explained["policy"]["policy"], "exploited", "the earliest due date");
}

/// A suppression is an exception; the clock runs on, and no event says that the policy is satisfied
/// because of it.
async fn suppressed_cve_does_not_count_until_it_counts_again(service: &Service) {
    join(service, vulnerable("web")).await;
    import(service).await;
    let policy = create(service, "p", security_in(2)).await;
    judge(service).await;
    service.clock.advance(days(3));
    judge(service).await;
    let body = json!({"cve": "CVE-2026-1", "reason": "not reachable"});
    let made = service.post("/v1/suppressions", body).await.is(201).header("location").to_owned();
    judge(service).await;
    assert_eq!(states(service, &policy, "").await, pairs(&[("web", "compliant")]));
    let signed = service.get("/v1/compliance/report").await.is(200).json();
    let report: Value = serde_json::from_str(signed["report"].as_str().unwrap()).unwrap();
    assert_eq!(report["suppressions"][0]["reason"], "not reachable");
    service.delete(&made).await.is(204);
    judge(service).await;
    assert_eq!(states(service, &policy, "").await, pairs(&[("web", "breaching")]));
}

/// Moving, removing and deleting keep the counts right.
async fn counts_follow_servers_that_move_and_disappear(service: &Service) {
    let [web, db] = [join(service, vulnerable("web")).await, join(service, vulnerable("db")).await];
    import(service).await;
    let body = json!({"name": "p", "targets": {"environment": "production"},
        "rules": security_in(30)});
    let policy = service.post("/v1/policies", body).await.is(201).header("location").to_owned();
    let all = create(service, "all", security_in(30)).await;
    judge(service).await;
    let production = json!("production");
    assert_eq!(
        counts(service, "").await,
        [(production.clone(), [2, 2, 0, 0, 0]), (production.clone(), [2, 2, 0, 0, 0])]
    );
    edit(service, web, |server, _| server.environment = Some("staging".parse().unwrap())).await;
    judge(service).await;
    let query = format!("?policy={all}");
    let expected = [(production.clone(), [1, 1, 0, 0, 0]), (json!("staging"), [1, 1, 0, 0, 0])];
    assert_eq!(counts(service, &query).await, expected);
    let query = format!("?policy={}", policy.rsplit('/').next().unwrap());
    assert_eq!(counts(service, &query).await, [(production.clone(), [1, 1, 0, 0, 0])]);
    let query = format!("?policy={all}&environment=staging");
    assert_eq!(counts(service, &query).await, expected[1..]);

    let now = service.clock.now();
    let mut tx = service.app.db.begin().await.unwrap();
    let seen = servers::get(&mut tx, service.org, db).await.unwrap();
    servers::remove(&mut tx, &seen, now).await.unwrap();
    tx.commit().await.unwrap();
    service.delete(&policy).await.is(204);
    judge(service).await;
    assert_eq!(counts(service, "").await, [(json!("staging"), [1, 1, 0, 0, 0])]);
    assert!(!judge(service).await, "nothing is left to do");
}

async fn readers_see_their_environments_only(service: &Service) {
    join(service, vulnerable("web")).await;
    let staging = join(service, vulnerable("test").in_environment("staging")).await;
    import(service).await;
    let policy = create(service, "p", security_in(0)).await;
    judge(service).await;
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let ask = async |path: &str| TestRequest::get(path).with_key(&key).send(&service.router).await;
    let list = ask("/v1/compliance").await.is(200).json();
    assert_eq!((&list["meta"]["total"], &list["data"][0]["servers"]), (&json!(1), &json!(1)));
    assert_eq!(list["data"][0]["environment"], "staging");
    let path = format!("/v1/compliance/servers?policy={policy}");
    let list = ask(&path).await.is(200).json();
    assert_eq!((&list["meta"]["total"], &list["data"][0]["hostname"]), (&json!(1), &json!("test")));
    let list = ask(&format!("{path}&environment=production")).await.is(200).json();
    assert_eq!(list["meta"]["total"], 0);
    ask(&format!("/v1/servers/{staging}/compliance")).await.is(200);
    let signed = ask("/v1/compliance/report").await.is(200).json();
    let report = signed["report"].as_str().unwrap();
    assert!(report.contains("\"test\"") && !report.contains("\"web\""), "{report}");
    let stranger = service.stranger().await;
    let ask = TestRequest::get(&path).with_key(&stranger);
    ask.send(&service.router).await.is_problem(404, "not_found");
}

async fn report_is_signed_with_a_key_of_the_installation(service: &Service) {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use ring::signature::{ED25519, UnparsedPublicKey};

    join(service, vulnerable("web")).await;
    import(service).await;
    let policy = create(service, "p", security_in(0)).await;
    judge(service).await;
    let signed =
        service.get(&format!("/v1/compliance/report?policy={policy}")).await.is(200).json();
    let field = |name: &str| signed[name].as_str().unwrap();
    assert_eq!(field("key"), service.app.secrets.report_key().public_key());
    let report: Value = serde_json::from_str(field("report")).unwrap();
    let shown = &report["policies"][0];
    assert_eq!((&shown["name"], &shown["rules"]), (&json!("p"), &security_in(0)));
    assert_eq!(shown["figures"][0]["breaching"], 1);
    assert_eq!(shown["breaches"][0]["hostname"], "web");
    let key = UnparsedPublicKey::new(&ED25519, STANDARD.decode(field("key")).unwrap());
    let signature = STANDARD.decode(field("signature")).unwrap();
    let text = wire::v1::report_signing_text(field("report"));
    key.verify(&text, &signature).unwrap();
    key.verify(field("report").as_bytes(), &signature).unwrap_err();
}

testkit::both!(
    crate::support:
    server_breaches_and_satisfies_a_policy,
    servers_that_cannot_be_judged_are_unknown,
    new_policy_judges_the_time_that_has_passed,
    suppressed_cve_does_not_count_until_it_counts_again,
    counts_follow_servers_that_move_and_disappear,
    readers_see_their_environments_only,
    report_is_signed_with_a_key_of_the_installation,
);
