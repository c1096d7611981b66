//! Every page with content; texts from agents are escaped.

use serde_json::json;
use vocab::{Installed, Role, Severity};

use crate::browser::Browser;
use crate::fleet::{FAILED, Host, finish, join, security};
use crate::support::{Service, TestRequest};

/// A package name that a hostile host could report.
const HOSTILE_NAME: &str = "<img src=x onerror=alert(1)>\"'";

/// A small fleet with content for every page. Returns the ids of a server, a batch, a task and a
/// schedule.
async fn sample(service: &Service) -> [String; 4] {
    let mut web = Host::new("web-1").with_updates(vec![
        security("openssl", Severity::Critical, &["CVE-2026-0001"]),
        security(HOSTILE_NAME, Severity::High, &["CVE-2026-0002"]),
    ]);
    web.installed = vec![
        Installed::new("openssl", "1.0", "amd64"),
        Installed::new(HOSTILE_NAME, "1.0", "amd64"),
    ];
    web.tags = &["web", "team:shop"];
    web.reboot_required = true;
    let server = join(service, web).await;
    join(
        service,
        Host {
            quarantine: Some("two hosts used its identity"),
            ..Host::new("db-1").in_environment("staging")
        },
    )
    .await;
    let order = json!({"server_ids": [server], "security_only": true});
    let batch = service.post("/v1/batches", order).await.is(202).json();
    let (batch, task) = (
        batch["id"].as_str().unwrap().to_owned(),
        batch["results"][0]["id"].as_str().unwrap().to_owned(),
    );
    finish(service, &batch, server, FAILED).await;
    let schedule = json!({"name": "Nightly <b>", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "targets": {"environment": "production"}});
    let schedule = service.post("/v1/schedules", schedule).await.is(201).json();
    let schedule = schedule["id"].as_str().unwrap().to_owned();
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    [server.to_string(), batch, task, schedule]
}

/// Whether tags are balanced, roughly: enough to detect a broken template.
fn is_balanced(text: &str) -> bool {
    ["main", "table", "tbody", "form", "section", "dl", "nav", "details", "select"].iter().all(
        |tag| {
            text.matches(&format!("<{tag}>")).count() + text.matches(&format!("<{tag} ")).count()
                == text.matches(&format!("</{tag}>")).count()
        },
    )
}

async fn every_page_shows_its_content_and_escapes_markup(service: &Service) {
    let [server, batch, task, schedule] = sample(service).await;
    let hook = json!({"name": "Chat <b>", "url": "https://chat.example/x", "types": ["batch.*"]});
    let hook = service.post("/v1/webhooks", hook).await.is(201).json();
    let hook = hook["id"].as_str().unwrap();
    let freeze = json!({"name": "Sale <b>", "reason": "Quiet <i>", "targets": {"all": true},
        "starts_at": "2026-11-10T00:00:00Z", "ends_at": "2026-11-18T08:00:00Z"});
    let freeze = service.post("/v1/freezes", freeze).await.is(201).json();
    let freeze = freeze["id"].as_str().unwrap();
    let policy = json!({"name": "Fast <b>", "description": "Standard <i>", "targets": {"all": true},
        "rules": [{"match": {"severity": "critical"}, "within_days": 7}]});
    let policy = service.post("/v1/policies", policy).await.is(201).json();
    let policy = policy["id"].as_str().unwrap();
    service::projections::compliance::rebuild(&service.app, service.org).await.unwrap();
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let pages = [
        ("/".to_owned(), "Reboots pending"),
        ("/servers".into(), "web-1"),
        ("/servers?q=WEB&status=&environment=&sort=security_updates".into(), "web-1"),
        (format!("/servers/{server}"), "team:shop"),
        (format!("/servers/{server}/edit"), "Separated by spaces"),
        (format!("/servers/{server}/remove"), "agent stays installed"),
        ("/patches".into(), "openssl"),
        ("/patches?severity=critical".into(), "openssl"),
        ("/patches/openssl".into(), "name=\"packages\" value=\"openssl\""),
        ("/cves".into(), "No known open CVEs"),
        ("/batches".into(), "Security updates"),
        (format!("/batches/{batch}"), "pkg_lock_timeout"),
        (format!("/batches/{batch}/tasks/{task}"), "Log"),
        ("/schedules".into(), "Nightly &#60;b&#62;"),
        (format!("/schedules/{schedule}"), "Europe/Berlin"),
        ("/schedules".into(), "all day <a href=\"/freezes\">Sale &#60;b&#62;</a>"),
        ("/freezes".into(), "Quiet &#60;i&#62;"),
        ("/freezes/new".into(), "New freeze"),
        (format!("/freezes/{freeze}/edit"), "2026-11-18T08:00"),
        ("/compliance".into(), "critical within 7 days"),
        ("/compliance".into(), "Fast &#60;b&#62;"),
        (format!("/compliance/servers?policy={policy}"), "unknown"),
        (format!("/compliance/servers?policy={policy}&state=unknown"), "web-1"),
        (format!("/compliance/servers?policy={policy}&state=breaching"), "No servers"),
        ("/compliance/report".into(), "Standard &#60;i&#62;"),
        ("/compliance/policies/new".into(), "New policy"),
        (format!("/compliance/policies/{policy}/edit"), "value=\"7\""),
        (format!("/servers/{server}"), "Fast &#60;b&#62;"),
        ("/".into(), "Fast &#60;b&#62;"),
        (format!("/servers/{server}"), "(<a href=\"/freezes\">Sale &#60;b&#62;</a>)"),
        ("/".into(), "frozen: Sale &#60;b&#62;"),
        (format!("/servers/{server}/history"), "pkg_lock_timeout"),
        (format!("/servers/{server}/packages"), "openssl"),
        (format!("/servers/{server}/updates/openssl"), "Why is it not patched?"),
        (format!("/servers/{server}/cves/CVE-2026-0001"), "Why is it not patched?"),
        (format!("/servers/{server}/cves"), "CVE-2026-0001"),
        (format!("/batches/{batch}?state=failed"), "Stop the other updater"),
        ("/find?q=WEB".into(), "web-1"),
        ("/find?q=".into(), "href=\"/servers\""),
        ("/find?q=openss".into(), "/patches/openssl"),
        ("/find?q=sched".into(), "href=\"/schedules\""),
        ("/find?q=%3Cb%3E".into(), "Nothing found for “&#60;b&#62;”"),
        ("/".into(), "No data yet"),
        ("/patches".into(), "Time pending"),
        ("/schedules".into(), "Times in UTC"),
        (format!("/schedules/{schedule}/edit"), "0 3 * * *"),
        ("/schedules/new".into(), "New schedule"),
        ("/schedules/next?cron=0+3+*+*+*&timezone=Europe/Berlin".into(), "2026-11-16 03:00"),
        ("/schedules/next?cron=nonsense&timezone=".into(), "class=\"note bad\""),
        ("/activity".into(), "created schedule"),
        ("/account".into(), "this session"),
        ("/account/notifications".into(), "Send a link"),
        ("/account/notifications/new".into(), "Daily digest"),
        ("/settings".into(), "Organization ID"),
        ("/settings/people".into(), "ann"),
        ("/settings/sign-in".into(), "No identity provider is configured"),
        ("/settings/keys".into(), "first admin key"),
        ("/settings/tokens".into(), "Create token"),
        ("/settings/agents".into(), "carries no agent"),
        ("/settings/feeds".into(), "Debian, Raspbian, LMDE (needed by your servers)"),
        ("/settings/webhooks".into(), "Chat &#60;b&#62;"),
        ("/settings/webhooks/new".into(), "A batch halted automatically"),
        (format!("/settings/webhooks/{hook}"), "https://chat.example/x"),
        (format!("/settings/webhooks/{hook}/edit"), "value=\"batch.*\" checked"),
    ];
    for (path, shown) in pages {
        let page = ann.get(&path).await.is(200);
        let text = page.text();
        assert!(text.contains(shown), "{path} does not show {shown:?}: {text}");
        assert!(is_balanced(&text), "{path}: {text}");
        for bad in ["<img", "<b>", "style=", "onclick", "javascript:", "<script>"] {
            assert!(!text.contains(bad), "{path} holds {bad}: {text}");
        }
    }
    let text = ann.get(&format!("/servers/{server}/updates")).await.is(200).text();
    assert!(text.contains("&#60;img src=x onerror=alert(1)&#62;"), "{text}");
}

async fn empty_fleet_shows_the_next_step(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    for (path, shown) in [
        ("/", "No servers yet"),
        ("/servers", "enrollment token"),
        ("/patches", "No pending updates"),
        ("/cves", "fleetmend feeds add"),
        ("/settings/tokens", "No enrollment tokens"),
        ("/settings/feeds", "Ubuntu with Ubuntu Pro, Linux Mint"),
        ("/settings/webhooks", "No webhooks yet"),
        ("/batches", "No batches yet"),
        ("/schedules", "No schedules yet"),
        ("/freezes", "No freezes yet"),
        ("/compliance", "No policies yet"),
        ("/servers?status=offline", "No server matches"),
    ] {
        let text = ann.get(path).await.is(200).text();
        assert!(text.contains(shown) && is_balanced(&text), "{path}: {text}");
        // It only updates feeds that were imported before: there are none.
        assert!(!text.contains("feeds update"), "{path}: {text}");
    }
}

async fn activity_pages_back_to_the_first_entry(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let first = ann.get("/activity?before=2").await.is(200).text();
    assert!(first.contains("organization.create") && !first.contains("user.create"), "{first}");
    assert!(first.contains(">Newest<") && !first.contains(">Older<"), "{first}");
    let newest = ann.get("/activity").await.is(200).text();
    let (password, made) =
        (newest.find("user.password").unwrap(), newest.find("user.create").unwrap());
    assert!(password < made, "newest first");
}

async fn unknown_paths_show_an_error_page(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    for (path, status) in [
        ("/servers/srv_01jcqk3m8ye0fr5cq0k6s8v2xw", 404),
        ("/servers/%00", 404),
        ("/servers/x/updates", 404),
        ("/servers/srv_01jcqk3m8ye0fr5cq0k6s8v2xw/nothing", 404),
        ("/patches/nothing", 404),
        ("/cves/CVE-1", 404),
        ("/batches/x", 404),
        ("/schedules/x", 404),
        ("/servers?statsu=online", 400),
        ("/servers?limit=0", 400),
        ("/settings", 403),
    ] {
        let page = ann.get(path).await.is(status);
        let text = page.text();
        assert!(text.contains("Request <code>req_") && text.contains("Sign out"), "{path}: {text}");
    }
}

async fn unknown_address_is_a_page_for_browsers_and_json_for_clients(service: &Service) {
    let html = "text/html,application/xhtml+xml,*/*;q=0.8";
    let ask = async |path: &str, accept: &str| {
        TestRequest::get(path).with("accept", accept).send(&service.router).await.is(404)
    };
    let page = ask("/nowhere", html).await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.header("content-security-policy").contains("default-src"));
    let text = page.text();
    assert!(text.contains("no page at this address") && text.contains("href=\"/\""), "{text}");
    for (path, accept) in [("/nowhere", "*/*"), ("/v1/nowhere", html), ("/agent/v1/x", html)] {
        assert_eq!(ask(path, accept).await.header("content-type"), "application/problem+json");
    }
}

async fn other_organizations_resources_are_not_found(service: &Service) {
    let [server, batch, _, schedule] = sample(service).await;
    let eve = Browser::of_other_organization(service).await;
    for path in [
        format!("/servers/{server}"),
        format!("/batches/{batch}"),
        format!("/schedules/{schedule}"),
        "/patches/openssl".into(),
        format!("/live?batch={batch}"),
    ] {
        eve.get(&path).await.is(404);
    }
    for path in [
        "/",
        "/servers",
        "/patches",
        "/batches",
        "/schedules",
        "/freezes",
        "/compliance",
        "/compliance/report",
        "/activity",
        "/settings",
        "/servers.csv",
    ] {
        let text = eve.get(path).await.is(200).text();
        assert!(
            !text.contains("web-1") && !text.contains("Nightly") && !text.contains("openssl"),
            "{path}: {text}"
        );
    }
    eve.submit("/order", &[("server_ids", &server)]).await.is(422);
}

async fn csv_export_contains_no_formulas(service: &Service) {
    let mut host = Host::new("web-1").with_updates(vec![security("=cmd()", Severity::High, &[])]);
    host.tags = &["a", "b"];
    join(service, host).await;
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let file = ann.get("/servers.csv?status=online").await.is(200);
    assert!(file.header("content-disposition").contains("servers.csv"));
    let text = file.text();
    assert!(
        text.starts_with("id,hostname,") && text.contains(",web-1,online,production,a b,"),
        "{text}"
    );
    let text = ann.get("/patches.csv").await.is(200).text();
    assert!(text.contains("\"'=cmd()\",high,"), "{text}");
    assert_eq!(ann.get("/batches.csv").await.is(200).text().lines().count(), 1);
    assert_eq!(ann.get("/cves.csv").await.is(200).text().lines().count(), 1);
}

testkit::both!(
    crate::support:
    every_page_shows_its_content_and_escapes_markup,
    empty_fleet_shows_the_next_step,
    activity_pages_back_to_the_first_entry,
    unknown_paths_show_an_error_page,
    unknown_address_is_a_page_for_browsers_and_json_for_clients,
    other_organizations_resources_are_not_found,
    csv_export_contains_no_formulas,
);
