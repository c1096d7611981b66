//! Every page: wide and narrow, in the light and the dark theme, with accessibility checks.
//!
//! `FLEETMEND_SCREENSHOTS=DIR` saves the screenshots.

use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::{Value, json};
use service::secrets::Secrets;
use store::daily_stats::{self, DailyStats};

use crate::axe::Axe;
use crate::driver::Tab;
use crate::fixture::{Fixture, PASSWORD};
use crate::support::fleetmend;

/// Problems on a narrow screen, and some that axe-core does not check.
const FIND_PROBLEMS: &str = r#"
const found = [];
if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
for (const at of document.querySelectorAll("svg.plot")) if (!at.getAttribute("aria-label")) found.push("a plot without words");
const ids = [...document.querySelectorAll("[id]")].map((at) => at.id);
for (const id of ids) if (ids.filter((other) => other === id).length > 1) found.push("twice: " + id);
if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window: " + document.documentElement.scrollWidth);
return found;
"#;

/// Whether a page needs more than a stylesheet and a script, or more than 120 KB, for its first paint.
const FIND_WEIGHT: &str = r#"
const found = [];
const loaded = performance.getEntriesByType("resource").filter((at) => ["link", "script", "css", "img"].includes(at.initiatorType));
const files = loaded.map((at) => at.name).filter((url) => !url.endsWith("icon.svg"));
const count = (end) => files.filter((url) => url.endsWith(end)).length;
if (count(".css") !== 1 || count(".js") > 1 || count(".css") + count(".js") !== files.length) found.push("needs more than one stylesheet and one script: " + files);
const compressed = async (text) => (await new Response(new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer()).byteLength;
let bytes = await compressed(document.documentElement.outerHTML);
for (const url of files) bytes += await compressed(await (await fetch(url)).text());
if (bytes > 120_000) found.push("needs " + bytes + " compressed bytes for the first paint");
return found;
"#;

/// How to reach a page: a path, and the steps to take there.
enum PagePath {
    Direct(String),
    WithSteps(String, Vec<Step>),
}

enum Step {
    Click(&'static str),
    Fill(&'static str, &'static str),
    /// Waits for the next page: the document contains this text, visible or not.
    Contains(&'static str),
}
use Step::{Click, Contains, Fill};

impl PagePath {
    fn go(&self, fixture: &Fixture) {
        let (PagePath::Direct(path) | PagePath::WithSteps(path, _)) = self;
        // Load the page again, in case a previous step changed it.
        fixture.go(path);
        let PagePath::WithSteps(_, steps) = self else { return };
        for step in steps {
            match step {
                Click(css) => fixture.tab.click(css),
                Fill(css, text) => fixture.tab.fill(css, text),
                Contains(text) => fixture.tab.until(&format!("{text:?} in the document"), |tab| {
                    let ready = "document.readyState === 'complete'";
                    let found = format!("document.body.textContent.includes({text:?})");
                    tab.eval(&format!("return {ready} && {found}")) == true
                }),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_page_is_readable_at_all_widths_and_themes() {
    let Some(fixture) = Fixture::new(30).await else { return };
    let (pages, axe) = (pages(&fixture).await, Axe::new());
    let kept = std::env::var_os("FLEETMEND_SCREENSHOTS").map(PathBuf::from);
    let mut stumbles = Vec::new();
    for (name, way) in &pages {
        way.go(&fixture);
        stumbles.extend(find(&fixture.tab, FIND_WEIGHT).iter().map(|one| format!("{name}: {one}")));
        check_page(&fixture.tab, axe.as_ref(), name, kept.as_ref(), &mut stumbles);
    }
    sign_in_up_to_code(&fixture);
    check_page(&fixture.tab, axe.as_ref(), "code", kept.as_ref(), &mut stumbles);
    assert_eq!(stumbles, Vec::<String>::new());
    // The error page and a rejected form are among them, and the browser reports them.
    let is_expected =
        |one: &String| one.contains("limit=0") || one.contains("/settings/webhooks/new");
    let complaints: Vec<String> =
        fixture.tab.console_problems().into_iter().filter(|one| !is_expected(one)).collect();
    assert_eq!(complaints, Vec::<String>::new());
    fixture.end().await;
}

/// Every page, with content on it.
async fn pages(fixture: &Fixture) -> Vec<(&'static str, PagePath)> {
    let operator = &fixture.operator;
    let servers: Value = operator.get("/v1/servers").await;
    let server = servers["data"][0]["id"].as_str().unwrap().to_owned();
    let schedule = json!({"name": "Nightly, production", "cron": "0 3 * * *", "timezone": "Europe/Berlin",
        "targets": {"environment": "production"}, "options": {"security_only": true, "canary": "10%", "reboot": "if_required"}});
    let schedule = operator.post("/v1/schedules", schedule).await;
    let named = json!({"name": "Two of them, at noon", "cron": "0 12 * * MON-FRI", "timezone": "America/New_York",
        "targets": {"server_ids": [servers["data"][0]["id"], servers["data"][1]["id"]]}});
    let named = operator.post("/v1/schedules", named).await;
    let freeze = json!({"name": "Business hours", "reason": "Customers work until 18:00", "targets": {"environment": "production"},
        "cron": "0 8 * * MON-FRI", "duration_minutes": 600, "timezone": "Europe/Berlin"});
    let freeze = operator.post("/v1/freezes", freeze).await;
    let freeze = freeze["id"].as_str().unwrap();
    let policy = json!({"name": "Critical within a week", "description": "Security standard, section 4.2",
        "targets": {"environment": "production"}, "rules": [{"match": {"severity": "critical"}, "within_days": 7}]});
    let policy = operator.post("/v1/policies", policy).await;
    let policy = policy["id"].as_str().unwrap();
    // Addresses of this host are refused: each delivery fails.
    let webhook = json!({"name": "On-call, production", "url": "http://localhost:9/hook", "types": ["batch.*", "task.failed"]});
    let webhook = operator.post("/v1/webhooks", webhook).await;
    let webhook = webhook["id"].as_str().unwrap();
    let batch = operator.orders(&fixture.fleet, 0..12, json!({"max_parallel": 4})).await;
    operator.until_ended(&batch).await;
    // Pending updates and severities are counted a moment after they are reported.
    let listed = |seen: &Value| seen["meta"]["total"].as_u64() > Some(0);
    let patches = operator.until_at("/v1/patches", listed).await;
    let cves = operator.until_at("/v1/cves", listed).await;
    let tasks: Value = operator.get(&format!("/v1/batches/{batch}/tasks")).await;
    let [patch, cve] = [&patches["data"][0]["package_name"], &cves["data"][0]["id"]]
        .map(|text| text.as_str().unwrap().to_owned());
    let [schedule, named] =
        [&schedule["id"], &named["id"]].map(|id| id.as_str().unwrap().to_owned());
    let (task, treated) =
        (tasks["data"][0]["id"].as_str().unwrap(), &tasks["data"][0]["server_id"]);
    let treated = treated.as_str().unwrap();
    let detail: Value = operator.get(&format!("/v1/patches/{patch}")).await;
    let waiting = detail["servers"][0]["server_id"].as_str().unwrap();
    write_daily_stats(fixture).await;
    let to = |path: &str| PagePath::Direct(path.to_owned());
    vec![
        ("overview", to("/")),
        ("servers", to("/servers")),
        ("servers-none", to("/servers?q=no-match")),
        ("server", to(&format!("/servers/{treated}"))),
        ("server-updates", to(&format!("/servers/{server}/updates"))),
        ("server-update", to(&format!("/servers/{waiting}/updates/{patch}"))),
        ("server-cves", to(&format!("/servers/{server}/cves"))),
        ("server-packages", to(&format!("/servers/{server}/packages"))),
        ("server-history", to(&format!("/servers/{treated}/history"))),
        ("server-edit", to(&format!("/servers/{server}/edit"))),
        (
            "servers-menu",
            PagePath::WithSteps("/servers".into(), vec![Click(".filters details.menu > summary")]),
        ),
        (
            "servers-views",
            PagePath::WithSteps(
                "/servers".into(),
                vec![
                    Click(".head details.menu.end > summary"),
                    Fill("form[action='/views'] input[name=name]", "All production servers"),
                    Click("form[action='/views'] button"),
                    Contains("All production servers"),
                    Click(".head details.menu.end > summary"),
                ],
            ),
        ),
        (
            "servers-display",
            PagePath::WithSteps(
                "/servers".into(),
                vec![Click(".head details.menu.end:nth-of-type(2) > summary")],
            ),
        ),
        ("styleguide", to("/styleguide")),
        (
            "servers-edit",
            PagePath::WithSteps(
                "/servers".into(),
                vec![Click("input[data-pick]"), Click("button[formaction='/servers/edit']")],
            ),
        ),
        ("find", to("/find?q=1")),
        ("remove", to(&format!("/servers/{server}/remove"))),
        (
            "order",
            PagePath::WithSteps(
                "/servers".into(),
                vec![Click("input[data-pick]"), Click("[data-needs-pick]")],
            ),
        ),
        ("patches", to("/patches")),
        ("patch", to(&format!("/patches/{patch}"))),
        ("cves", to("/cves")),
        ("cve", to(&format!("/cves/{cve}"))),
        ("cves-none", to("/cves?q=nothing")),
        ("batches", to("/batches")),
        ("batch", to(&format!("/batches/{batch}"))),
        ("task", to(&format!("/batches/{batch}/tasks/{task}"))),
        ("schedules", to("/schedules")),
        ("schedule", to(&format!("/schedules/{schedule}"))),
        ("schedule-edit", to(&format!("/schedules/{named}/edit"))),
        (
            "schedule-run",
            PagePath::WithSteps(
                format!("/schedules/{schedule}"),
                vec![Click("form[action$='/run'] button")],
            ),
        ),
        ("freezes", to("/freezes")),
        ("compliance", to("/compliance")),
        ("compliance-servers", to(&format!("/compliance/servers?policy={policy}"))),
        ("compliance-report", to("/compliance/report")),
        ("policy-edit", to(&format!("/compliance/policies/{policy}/edit"))),
        ("freeze-edit", to(&format!("/freezes/{freeze}/edit"))),
        ("activity", to("/activity")),
        ("settings", to("/settings")),
        ("settings-people", to("/settings/people")),
        ("settings-sign-in", to("/settings/sign-in")),
        ("settings-keys", to("/settings/keys")),
        ("settings-tokens", to("/settings/tokens")),
        ("settings-agents", to("/settings/agents")),
        ("settings-feeds", to("/settings/feeds")),
        ("webhooks", to("/settings/webhooks")),
        ("webhook", to(&format!("/settings/webhooks/{webhook}"))),
        ("webhook-edit", to(&format!("/settings/webhooks/{webhook}/edit"))),
        (
            "webhook-test",
            PagePath::WithSteps(
                format!("/settings/webhooks/{webhook}"),
                vec![Click("form[action$='/test'] button")],
            ),
        ),
        (
            "webhook-errors",
            PagePath::WithSteps(
                "/settings/webhooks/new".into(),
                // The Enter key sends the form.
                vec![Fill("#f-url", "nonsense\u{e007}")],
            ),
        ),
        (
            "secret",
            PagePath::WithSteps(
                "/settings/tokens".into(),
                vec![
                    Fill("form[action='/settings/tokens'] input[name=name]", "web image"),
                    Click("form[action='/settings/tokens'] button"),
                ],
            ),
        ),
        ("account", to("/account")),
        (
            "second-factor",
            PagePath::WithSteps(
                "/account".into(),
                vec![Click("form[action='/account/totp'] button")],
            ),
        ),
        ("problem", to("/servers?limit=0")),
        ("sign-in", to("/sign-in")),
        ("welcome", to(&invitation_path(fixture))),
    ]
}

/// Checks the page at every width, in both themes.
pub(crate) fn check_page(
    tab: &Tab,
    axe: Option<&Axe>,
    name: &str,
    screenshot_dir: Option<&PathBuf>,
    stumbles: &mut Vec<String>,
) {
    for (width, theme) in [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")] {
        tab.set_viewport(width, theme);
        for one in find_layout_problems(tab) {
            stumbles.push(format!("{name} {width} {theme}: {one}"));
        }
        for one in axe.map_or_else(Vec::new, |axe| axe.findings(tab)) {
            stumbles.push(format!("{name} {width} {theme}: {one}"));
        }
        if let Some(dir) = screenshot_dir {
            std::fs::create_dir_all(dir).unwrap();
            let file = dir.join(format!("{name}-{width}-{theme}.png"));
            std::fs::write(file, tab.screenshot()).unwrap();
        }
    }
}

/// What [`FIND_PROBLEMS`] finds on the current page.
pub(crate) fn find_layout_problems(tab: &Tab) -> Vec<String> {
    find(tab, FIND_PROBLEMS)
}

fn find(tab: &Tab, script: &str) -> Vec<String> {
    tab.eval(script).as_array().unwrap().iter().map(Value::to_string).collect()
}

/// The path of a link for setting a password.
fn invitation_path(fixture: &Fixture) -> String {
    let data = fixture.dir.data();
    let words = [
        "users",
        "create",
        "bob",
        "--data-dir",
        data.to_str().unwrap(),
        "--url",
        &fixture.url,
        "--json",
    ];
    let created = fleetmend(&words).output().unwrap();
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let created: Value = serde_json::from_slice(&created.stdout).unwrap();
    created["link"].as_str().unwrap().strip_prefix(&fixture.url).unwrap().to_owned()
}

#[expect(clippy::disallowed_methods, reason = "the service in this test uses the system clock")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Writes the statistics of earlier days directly to the database, instead of waiting a month.
async fn write_daily_stats(fixture: &Fixture) {
    let data = fixture.dir.data();
    let seal = service::commands::setup::seal(&Secrets::load(&data).unwrap());
    let url = format!("sqlite:{}", data.join("fleetmend.db").display());
    let db = store::Db::open(&store::Options::new(&url, seal)).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let org = store::organizations::list(&mut tx).await.unwrap()[0].id;
    let mut day = service::projections::daily_stats::utc_day(now());
    let today = service::projections::daily_stats::current_counts(&mut tx, org, day)
        .await
        .unwrap()
        .unwrap();
    for ago in 1..24 {
        day = day.yesterday().unwrap();
        let then = |count: u64| count * (100 + ago * 2 + (ago + 3) % 7 * 3) / 100;
        let row = DailyStats {
            day,
            up_to_date: today.up_to_date + (30 - ago) / 4 + ago % 7,
            critical: then(today.critical),
            high: then(today.high),
            medium: then(today.medium),
            low: then(today.low),
            exploited: ago / 9,
            ..today.clone()
        };
        daily_stats::write(&mut tx, org, &row).await.unwrap();
    }
    tx.commit().await.unwrap();
    db.close().await;
}

/// Turns on TOTP, signs out, and signs in again up to the code.
fn sign_in_up_to_code(fixture: &Fixture) {
    let tab = &fixture.tab;
    fixture.go("/account");
    tab.click("form[action='/account/totp'] button");
    tab.until_shown("Scan this code with your authenticator");
    let secret = tab.eval("return document.getElementById('secret').innerText");
    let code = service::auth::totp::current_code(secret.as_str().unwrap(), now());
    tab.fill("input[name=code]", &code);
    tab.click("form[action='/account/totp'] button");
    tab.until_shown("Each works once");
    tab.click("form[action='/sign-out'] button");
    tab.until("the user is signed out", |tab| tab.url().ends_with("/sign-in"));
    tab.fill("input[name=name]", "ann");
    tab.fill("input[name=password]", PASSWORD);
    tab.click("button.main");
    tab.until_shown("Two-factor authentication");
}
