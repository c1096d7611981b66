//! Every table of every page has a CSV export with the same content.

use std::collections::BTreeSet;
use std::path::Path;

use dashboard::{Access, paths};
use domain::rollout::RolloutOutcome;
use serde_json::json;
use store::webhooks::DeliveryState;
use vocab::{Installed, Role, Severity};

use crate::browser::Browser;
use crate::fleet::{FAILED, Host, end, finish, join, security};
use crate::markup::{FileLink, Table, csv, tables};
use crate::support::Service;
use crate::web::webhooks::add_delivery;

/// A table: the end of its file's path, whether the file has rows that the page omits, and for each
/// heading the columns that contain the same. A `~` before a column means that the page words it
/// differently. A heading `*` is the name of a time zone.
type TableKind = (&'static str, bool, &'static [(&'static str, &'static str)]);

#[rustfmt::skip]
const KINDS: [TableKind; 35] = [
    ("/trend.csv", false, &[("Day", "day"), ("Servers", "servers"), ("Up to date", "up_to_date"), ("critical", "critical"), ("high", "high"), ("medium", "medium"), ("low", "low"), ("unknown", "unknown"), ("Known exploited", "known_exploited")]),
    ("/cves.csv", true, &[("CVE", "id"), ("Severity", "severity"), ("Servers", "affected_servers")]),
    ("/batches.csv", true, &[("Name", "name"), ("State", "state"), ("Progress", "percent")]),
    ("/schedules.csv", true, &[("Schedule", "name"), ("Next run", "next_run_at")]),
    ("/servers.csv", false, &[("", ""), ("Name", "hostname"), ("Status", "status"), ("Environment", "environment"), ("System", "os"), ("Updates", "updates"), ("Security", "security_updates"), ("CVEs", "~cves_critical ~cves_high ~cves_medium ~cves_low ~cves_unknown ~assessment ~stale"), ("Last seen", "last_seen_at")]),
    ("/packages.csv", true, &[("Package", "name"), ("Installed", "version"), ("Available", "available_version"), ("Type", "~security"), ("Installable", "blocked_by ~held")]),
    ("/cves.csv", false, &[("CVE", "id ~kev"), ("Severity", "severity"), ("CVSS", "cvss"), ("Package", "package"), ("Installed", "installed_version"), ("Fixed in", "fixed_version"), ("State", "state ~suppressed")]),
    ("/unassessed.csv", false, &[("Package", "package"), ("Version", "version"), ("Reason", "detail ~reason")]),
    ("/history.csv", false, &[("Requested", "ordered_at"), ("Result", "state failure_code"), ("Updates", "what"), ("Changes", "message packages ~reboot_done"), ("Duration", "duration_seconds"), ("Log", "~batch")]),
    ("/packages.csv", false, &[("Package", "name"), ("Version", "version"), ("Architecture", "arch"), ("Source", "source")]),
    ("/patch-ages.csv", false, &[("Pending for", "pending"), ("Bar chart", ""), ("By severity", "~critical ~high ~medium ~low ~unknown"), ("Packages", "packages")]),
    ("/patches.csv", false, &[("", ""), ("Package", "package_name ~kev"), ("Severity", "severity"), ("Type", "type"), ("Servers", "affected_servers"), ("CVEs", "~cves"), ("Versions", "versions"), ("First seen", "first_seen_at")]),
    ("/versions.csv", false, &[("System", "os"), ("Version", "from to")]),
    ("/cves.csv", false, &[("CVE", "id ~kev"), ("Severity", "severity"), ("CVSS", "cvss")]),
    ("/servers.csv", false, &[("", ""), ("Server", "hostname"), ("Status", "status"), ("Environment", "environment"), ("Installed", "installed_version"), ("Available", "available_version"), ("Installable", "blocked_by")]),
    ("/cves.csv", false, &[("CVE", "id ~kev"), ("Severity", "severity"), ("CVSS", "cvss"), ("EPSS", "~epss"), ("Servers", "affected_servers"), ("Packages", "packages"), ("Published", "published")]),
    ("/servers.csv", false, &[("Server", "hostname"), ("Status", "status"), ("Environment", "environment"), ("Package", "package"), ("Installed", "installed_version"), ("Fixed in", "fixed_version"), ("State", "state ~suppressed")]),
    ("/batches.csv", false, &[("Name", "name"), ("State", "state"), ("Updates", "what"), ("Servers", "servers"), ("Failed", "failed"), ("Progress", "percent"), ("Requested", "created_at"), ("Started by", "origin ~started_by_name")]),
    ("/tasks.csv", false, &[("Server", "hostname"), ("State", "state"), ("Detail", "failure_code message waiting_for notes"), ("Packages", "~packages"), ("Reboot", "~reboot_needed ~reboot_done"), ("Log", "~id")]),
    ("/changes.csv", false, &[("Package", "name"), ("From", "from"), ("To", "to")]),
    ("/order.csv /run.csv /retry.csv", false, &[("Server", "hostname ~canary"), ("Starts", "starts_at waits_for"), ("To install", "~updates"), ("Skipped", "~blocked ~nothing_pending ~host_limits"), ("Reboot", "reboot")]),
    ("/schedules.csv", false, &[("Name", "name ~enabled"), ("When", "when timezone"), ("Servers", "targets"), ("Updates", "what"), ("Next run", "next_run_at"), ("Last run", "last_run_state last_run_at")]),
    ("/calendar.csv", false, CALENDAR),
    ("/freezes.csv", false, &[("Name", "name"), ("State", "active_until ~active ~next_start_at"), ("When", "when"), ("Servers", "targets servers"), ("Reason", "reason"), ("Actions", "")]),
    ("/compliance.csv", false, &[("Policy", "policy"), ("Environment", "environment"), ("Servers", "servers"), ("Compliant", "compliant"), ("Due soon", "due_soon"), ("Breaching", "breaching"), ("Unknown", "unknown"), ("Oldest breach", "oldest_breach_at"), ("90 days", "")]),
    ("/compliance/servers.csv", false, &[("Server", "server"), ("Environment", "environment"), ("State", "state unknown_reason"), ("Due", "due_at"), ("Open fixes", "open"), ("Overdue", "overdue")]),
    ("/next.csv", false, &[("*", "local_time ~timezone"), ("Your time", "at"), ("", "")]),
    ("/next.csv", false, &[("In *", "local_time ~timezone"), ("Your time", "at")]),
    ("/runs.csv", false, &[("Scheduled for", "scheduled_for"), ("State", "state skip_reason"), ("Trigger", "trigger"), ("Servers", "servers"), ("Failed", "failed"), ("Ended", "finished_at")]),
    ("/users.csv", false, &[("Name", "name"), ("Role", "role"), ("Created", "created_at"), ("", "")]),
    ("/keys.csv", false, &[("Name", "name id ~revoked_at"), ("Role", "role environments"), ("Created", "created_at"), ("Last used", "last_used_at"), ("Expires", "expires_at"), ("", "")]),
    ("/tokens.csv", false, &[("Name", "name id ~revoked_at"), ("Environment", "environment tags"), ("Used", "uses max_uses"), ("Created", "created_at"), ("Expires", "expires_at"), ("", "")]),
    ("/feeds.csv", false, &[("Feed", "name last_error"), ("State", "state"), ("Kind", "kind"), ("Records", "records"), ("As of", "as_of"), ("Checked", "checked_at"), ("Next update", "next_update_at"), ("", "")]),
    ("/webhooks.csv", false, &[("Name", "name"), ("Sent to", "sent_to format"), ("Events", "types"), ("State", "state failing_since disabled_reason"), ("Pending", "pending")]),
    ("/deliveries.csv", false, &[("Event", "event_type"), ("Subject", "subject_name"), ("State", "state next_attempt_at"), ("Attempts", "attempts"), ("Last attempt", "last_attempt_at ~created_at"), ("Response", "response_status error response_body"), ("", "")]),
];

/// Its rows are weeks and its headings are days: each line of the file is an entry of some day.
const CALENDAR: &[(&str, &str)] = &[];

/// Pages without a table, and responses that are no pages.
const PAGES_WITHOUT_TABLES: [&str; 35] = [
    "/servers/{id}/updates/{package}",
    "/servers/{id}/cves/{cve}",
    "/account/notifications",
    "/account/notifications/address",
    "/account/notifications/address/remove",
    "/account/notifications/test",
    "/account/notifications/new",
    "/account/notifications/{id}/delete",
    "/display",
    "/views",
    "/views/{id}/delete",
    "/styleguide",
    "/settings",
    "/cves/{id}/suppress",
    "/suppressions/{id}/delete",
    "/find",
    "/servers/matching",
    "/servers/edit",
    "/account",
    "/account/password",
    "/activity",
    "/account/totp",
    "/account/recovery-codes",
    "/account/sessions/end-others",
    "/account/sessions/{id}/end",
    "/account/theme",
    "/sign-out",
    "/live",
    "/servers/{id}/refresh",
    "/servers/{id}/edit",
    "/servers/{id}/upgrade-agent",
    "/settings/agents/upgrade",
    "/servers/{id}/remove",
    "/servers/{id}/release",
    "/batches/{id}/tasks/{task}/log",
];

/// A page, and the fields to submit if it is not reached by a link.
type Visit = (String, Option<Vec<(&'static str, String)>>);

/// A fleet with content for every table, and its pages by their route.
async fn sample(service: &Service, ann: &Browser) -> Vec<(&'static str, Visit)> {
    let mut web = Host::new("web-1").with_updates(vec![
        security("openssl", Severity::Critical, &["CVE-2026-0001"]),
        security("=zlib", Severity::High, &["CVE-2026-0002", "CVE-2026-0003"]),
    ]);
    web.installed =
        ["openssl", "=zlib", "bash"].map(|name| Installed::new(name, "1.0", "amd64")).into();
    web.tags = &["web", "team:shop"];
    let server = join(service, web).await;
    let other = join(service, Host::new("db-1").in_environment("staging")).await;
    service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    let id = |made: serde_json::Value| made["id"].as_str().unwrap().to_owned();
    let order = json!({"server_ids": [server, other], "security_only": true});
    let batch = service.post("/v1/batches", order.clone()).await.is(202).json();
    let task = batch["results"].as_array().unwrap().iter().find(|task| task["hostname"] == "web-1");
    let (task, batch) = (id(task.unwrap().clone()), id(batch));
    finish(service, &batch, server, FAILED).await;
    service.post("/v1/batches", order).await.is(202);
    let one = json!({"server_ids": [server], "security_only": true});
    let failed = id(service.post("/v1/batches", one).await.is(202).json());
    finish(service, &failed, server, FAILED).await;
    end(service, &failed, RolloutOutcome::Failed).await;
    let nightly = json!({"name": "Nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "targets": {"all": true}});
    let schedule = id(service.post("/v1/schedules", nightly).await.is(201).json());
    service.post("/v1/schedules", json!({"name": "=Weekly", "cron": "30 1 * * SUN", "targets": {"environment": "staging"}})).await.is(201);
    service.post(&format!("/v1/schedules/{schedule}/run"), json!({})).await.is(202);
    let freeze = json!({"name": "=Sale", "reason": "=Quiet", "targets": {"tags": ["none"]},
        "starts_at": "2026-11-10T00:00:00Z", "ends_at": "2026-11-30T00:00:00Z"});
    let freeze = id(service.post("/v1/freezes", freeze).await.is(201).json());
    let policy = json!({"name": "=Fast", "targets": {"all": true},
        "rules": [{"match": {"security": true}, "within_days": 0}]});
    let policy = id(service.post("/v1/policies", policy).await.is(201).json());
    service::projections::compliance::rebuild(&service.app, service.org).await.unwrap();
    service
        .post(
            "/v1/enrollment-tokens",
            json!({"name": "image", "max_uses": 3, "tags": ["web"], "environment": "staging"}),
        )
        .await
        .is(201);
    service
        .post(
            "/v1/api-keys",
            json!({"name": "ci", "role": "operator", "environments": ["staging"]}),
        )
        .await
        .is(201);
    let osv = json!({"id": "DSA-1", "modified": "2026-11-13T00:00:00Z", "published": "2026-11-01T00:00:00Z", "aliases": ["CVE-2026-9"],
        "affected": [{"package": {"ecosystem": "Debian:12", "name": "elsewhere"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2"}]}]}]});
    let feed = service.database.dir.join("osv.jsonl");
    std::fs::write(&feed, format!("{osv}\n")).unwrap();
    let wanted =
        service::commands::feeds::ImportRequest { path: feed, name: None, kind: None, as_of: None };
    service::commands::feeds::import(&service.app.db, wanted, service.clock.now(), |_| {})
        .await
        .unwrap();
    let hook = json!({"name": "=Chat", "url": "https://chat.example/hook?key=1", "types": ["batch.*", "server.offline"]});
    let hook = id(service.post("/v1/webhooks", hook).await.is(201).json());
    add_delivery(service, &hook, 1, DeliveryState::Failed).await;
    add_delivery(service, &hook, 2, DeliveryState::Delivered).await;
    add_delivery(service, &hook, 3, DeliveryState::Pending).await;
    let csrf = ann.csrf().await;
    let form =
        |fields: &[(&'static str, String)]| Some([fields, &[("csrf", csrf.clone())]].concat());
    let chosen = [
        ("server_ids", server.to_string()),
        ("server_ids", other.to_string()),
        ("what", "all".to_owned()),
        ("canary", "1".to_owned()),
    ];
    let get = |path: &str| (path.to_owned(), None);
    vec![
        ("/", get("/")),
        ("/servers", get("/servers")),
        ("/servers", get("/servers?q=WEB&status=&sort=last_seen")),
        ("/servers/{id}", get(&format!("/servers/{server}"))),
        ("/servers/{id}/{tab}", get(&format!("/servers/{server}/updates"))),
        ("/servers/{id}/{tab}", get(&format!("/servers/{server}/cves"))),
        ("/servers/{id}/{tab}", get(&format!("/servers/{server}/packages"))),
        ("/servers/{id}/{tab}", get(&format!("/servers/{server}/history"))),
        ("/patches", get("/patches")),
        ("/patches/{name}", get("/patches/openssl")),
        ("/patches/{name}", get("/patches/%3Dzlib")),
        ("/cves", get("/cves?severity=high")),
        ("/cves/{id}", get("/cves/CVE-2026-0002")),
        ("/batches", get("/batches")),
        ("/batches/{id}", get(&format!("/batches/{batch}"))),
        ("/batches/{id}/tasks/{task}", get(&format!("/batches/{batch}/tasks/{task}"))),
        ("/batches/{id}/{action}", (format!("/batches/{failed}/retry"), form(&[]))),
        ("/order", ("/order".into(), form(&chosen))),
        ("/schedules", get("/schedules")),
        ("/schedules/new", get("/schedules/new")),
        ("/schedules/next", get("/schedules/next?cron=0+3+*+*+*&timezone=America%2FNew_York")),
        ("/schedules/{id}", get(&format!("/schedules/{schedule}"))),
        ("/schedules/{id}/edit", get(&format!("/schedules/{schedule}/edit"))),
        ("/schedules/{id}/run", (format!("/schedules/{schedule}/run"), form(&[]))),
        ("/schedules/{id}/delete", (format!("/schedules/{schedule}/delete"), form(&[]))),
        ("/freezes", get("/freezes")),
        ("/freezes/new", get("/freezes/new")),
        ("/freezes/{id}/edit", get(&format!("/freezes/{freeze}/edit"))),
        ("/freezes/{id}/delete", (format!("/freezes/{freeze}/delete"), form(&[]))),
        ("/compliance", get("/compliance")),
        ("/compliance/servers", get(&format!("/compliance/servers?policy={policy}"))),
        ("/compliance/report", get("/compliance/report")),
        ("/compliance/policies/new", get("/compliance/policies/new")),
        ("/compliance/policies/{id}/edit", get(&format!("/compliance/policies/{policy}/edit"))),
        (
            "/compliance/policies/{id}/delete",
            (format!("/compliance/policies/{policy}/delete"), form(&[])),
        ),
        ("/settings/people", get("/settings/people")),
        ("/settings/keys", get("/settings/keys")),
        ("/settings/tokens", get("/settings/tokens")),
        ("/settings/feeds", get("/settings/feeds")),
        ("/settings/webhooks", get("/settings/webhooks")),
        ("/settings/webhooks/{id}", get(&format!("/settings/webhooks/{hook}"))),
        (
            "/settings/webhooks/{id}",
            get(&format!("/settings/webhooks/{hook}?state=pending,failed")),
        ),
    ]
}

/// Letters and digits only, so that `1,234 → 2` on a page equals `1234 → 2` in a file.
fn normalized(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn has_headings(kind: &TableKind, table: &Table) -> bool {
    let same = |(column, (head, _)): (&String, &(&str, &str))| match head.strip_suffix('*') {
        Some(start) => {
            column.starts_with(start) && (column.contains('/') || column.ends_with("UTC"))
        }
        None => column == head,
    };
    table.heads.len() == kind.2.len() && table.heads.iter().zip(kind.2).all(same)
}

/// The kind of a table. The checkbox column is missing for users who cannot select rows.
fn kind_of(path: &str, table: &Table) -> usize {
    let plain = path.split('?').next().unwrap();
    let found = KINDS.iter().position(|kind| {
        let named = kind.0.split(' ').any(|end| plain.ends_with(end));
        named && (has_headings(kind, table) || kind.2.is_empty())
    });
    found.unwrap_or_else(|| panic!("{path} is not the file of {:?}", table.heads))
}

/// Whether a line of the file contains what a row of the page shows.
fn described(reason: &str) -> &'static str {
    match reason {
        "stagger" => "its staggered start",
        "canary" => "the canary",
        "parallel" => "a free slot",
        "offline" => "the server to come online",
        "window" => "the start of the batch",
        other => panic!("unknown reason `{other}`"),
    }
}

fn row_matches(kind: &TableKind, row: &[String], head: &[String], line: &[String]) -> bool {
    kind.2.iter().zip(row).all(|((_, columns), shown)| {
        columns.split_whitespace().filter(|column| !column.starts_with('~')).all(|column| {
            let at = head.iter().position(|name| name == column).unwrap();
            match column {
                // Several reasons, which the page describes.
                "waiting_for" | "waits_for" => line[at]
                    .split_whitespace()
                    .all(|reason| shown.contains(&format!("waiting for {}", described(reason)))),
                _ => normalized(shown).contains(&normalized(&line[at])),
            }
        })
    })
}

/// Fetches the file of a table and compares it with the table. Returns the kind of the table.
async fn compare_table(ann: &Browser, page: &str, table: &Table) -> usize {
    let file = table.file.as_ref();
    let file = file.unwrap_or_else(|| panic!("{page}: no file for {:?}", table.heads));
    let path = file.path();
    let response = match file {
        FileLink::Link(path) => ann.get(path).await.is(200),
        FileLink::Form(path, fields) => {
            let fields: Vec<(&str, &str)> =
                fields.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            ann.post(path, &fields).await.is(200)
        }
    };
    assert_eq!(response.header("content-type"), "text/csv; charset=utf-8", "{path}");
    assert!(
        response.header("content-disposition").starts_with("attachment; filename=\""),
        "{path}"
    );
    let text = response.text();
    assert!(!text.contains(",=") && !text.contains("\n="), "{path} holds a formula: {text}");
    let lines = csv(&text);
    let (head, lines) = lines.split_first().unwrap();
    let named: BTreeSet<&String> = head.iter().collect();
    assert!(
        named.len() == head.len() && head.iter().all(|name| !name.is_empty()),
        "{path}: {head:?}"
    );
    assert!(lines.iter().all(|line| line.len() == head.len()), "{path}: {text}");
    let which = kind_of(path, table);
    let kind = &KINDS[which];
    for column in kind.2.iter().flat_map(|(_, columns)| columns.split_whitespace()) {
        assert!(
            head.iter().any(|name| name == column.trim_start_matches('~')),
            "{path} has no {column}: {head:?}"
        );
    }
    assert!(!table.rows.is_empty(), "{page}: nothing to compare in {:?}", table.heads);
    if kind.2.is_empty() {
        let days = table.rows.iter().flatten().map(|day| normalized(day)).collect::<Vec<_>>();
        assert!(!lines.is_empty());
        for line in lines {
            let reported = [&line[0], &line[1], &line[4]].map(|cell| normalized(cell));
            let there = |day: &&String| reported.iter().all(|word| day.contains(word));
            assert_eq!(days.iter().filter(there).count(), 1, "{page}: {line:?} in {days:?}");
        }
        return which;
    }
    assert!(
        lines.len() == table.rows.len() || (kind.1 && lines.len() > table.rows.len()),
        "{page}: {table:?} and {text}"
    );
    for row in &table.rows {
        let found = lines.iter().any(|line| row_matches(kind, row, head, line));
        assert!(found, "{page}: {row:?} is not in {path}: {text}");
    }
    which
}

async fn every_table_has_a_matching_csv_export(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let pages = sample(service, &ann).await;
    let mut seen = BTreeSet::new();
    for (_, (path, form)) in &pages {
        let page = match form {
            None => ann.get(path).await.is(200).text(),
            Some(fields) => {
                let fields: Vec<(&str, &str)> =
                    fields.iter().map(|(name, text)| (*name, text.as_str())).collect();
                ann.post(path, &fields).await.is(200).text()
            }
        };
        for table in tables(&page) {
            seen.insert(compare_table(&ann, path, &table).await);
        }
    }
    // Completeness: every page was visited, and every table of every template.
    let visited: BTreeSet<&str> =
        pages.iter().map(|(path, _)| *path).chain(PAGES_WITHOUT_TABLES).collect();
    for (access, path) in paths() {
        let elsewhere = access == Access::Open
            || path.ends_with(".csv")
            || path.ends_with(".json")
            || path.starts_with("/settings/");
        assert!(elsewhere || visited.contains(path), "{path} was not visited");
    }
    let unseen: Vec<&TableKind> = KINDS
        .iter()
        .enumerate()
        .filter(|(nth, _)| !seen.contains(nth))
        .map(|(_, kind)| kind)
        .collect();
    assert!(unseen.is_empty(), "{unseen:?}");
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboard/templates");
    let texts = templates
        .read_dir()
        .unwrap()
        .map(|file| file.unwrap().path())
        // Its table is a sample.
        .filter(|path| !path.ends_with("styleguide.html"))
        .map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(texts.map(|text| text.matches("<table").count()).sum::<usize>(), KINDS.len());
}

async fn csv_export_requires_the_role_of_its_page(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let pages = sample(service, &ann).await;
    let bob = Browser::signed_in(service, "bob", Role::Viewer).await;
    let mut files = 0;
    for (_, (path, form)) in pages {
        // Viewers have no page for actions that they may not take, and no access to its file.
        let page = if form.is_some() { bob.submit(&path, &[]).await } else { bob.get(&path).await };
        let closed = page.status.as_u16() == 403;
        let shown = if closed { ann.get(&path).await } else { page };
        for table in tables(&shown.text()) {
            let Some(FileLink::Link(file)) = table.file else { continue };
            // The run times of a cron expression are not secret, and every user sees them on
            // the schedule's page.
            let status = if closed && !file.starts_with("/schedules/next.csv") { 403 } else { 200 };
            bob.get(&file).await.is(status);
            files += 1;
        }
    }
    assert!(files > 20, "{files}");
    bob.submit("/order.csv", &[]).await.is(403);
}

async fn csv_export_of_invalid_input_shows_the_error(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    for (path, status) in [
        ("/patches/nothing/versions.csv", 404),
        ("/patches/nothing/cves.csv", 404),
        ("/schedules/sch_01jcqk3m8ye0fr5cq0k6s8v2xw/run.csv", 404),
        (
            "/batches/bat_01jcqk3m8ye0fr5cq0k6s8v2xw/tasks/tsk_01jcqk3m8ye0fr5cq0k6s8v2xw/changes.csv",
            404,
        ),
        ("/schedules/next.csv?cron=nonsense", 400),
        ("/schedules/next.csv?cron=0+3+*+*+*&timezone=Nowhere%2FElse", 400),
        ("/schedules/calendar.csv?limit=3", 400),
    ] {
        let response = ann.get(path).await.is(status);
        assert!(response.header("content-type").starts_with("text/html"), "{path}: {response:?}");
    }
    ann.submit("/order.csv", &[]).await.is(400);
    assert!(
        ann.submit("/order.csv", &[("server_ids", "nobody")])
            .await
            .is(422)
            .text()
            .contains("server")
    );
}

testkit::both!(
    crate::support:
    every_table_has_a_matching_csv_export,
    csv_export_requires_the_role_of_its_page,
    csv_export_of_invalid_input_shows_the_error,
);
