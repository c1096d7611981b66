//! Accessibility checks with axe-core. The driver injects it, so that the page's own content
//! security policy stays in force.

use serde_json::{Value, json};

use crate::driver::Tab;
use crate::fixture::{Fixture, PASSWORD, invite};
use crate::node;

/// The serious and critical violations on the current page.
const RUN: &str = r#"
return axe.run(document, { resultTypes: ["violations"] }).then((found) => found.violations
  .filter((one) => one.impact === "serious" || one.impact === "critical")
  .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)} (${node.any.concat(node.all, node.none).map((why) => why.message).join("; ").slice(0, 200)})`)));
"#;

pub(crate) struct Axe(String);

impl Axe {
    /// Loads axe-core; none if it is not installed.
    pub(crate) fn new() -> Option<Axe> {
        let path = node::home()?.join("node_modules/axe-core/axe.min.js");
        Some(Axe(std::fs::read_to_string(path).unwrap()))
    }

    /// The violations on this page.
    pub(crate) fn findings(&self, tab: &Tab) -> Vec<String> {
        if tab.eval("return typeof axe") == "undefined" {
            tab.eval(&self.0);
        }
        let found = tab.eval(RUN);
        let found = found.as_array().unwrap_or_else(|| panic!("{found}"));
        found
            .iter()
            .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
            .collect()
    }

    /// The violations in the light and the dark theme, prefixed with the page's name.
    pub(crate) fn findings_in_both_themes(&self, tab: &Tab, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        for theme in ["light", "dark"] {
            tab.set_viewport(1280, theme);
            all.extend(self.findings(tab).into_iter().map(|one| format!("{name}, {theme}: {one}")));
        }
        all
    }
}

/// Verifies that axe-core reports problems at all.
#[test]
fn axe_finds_problems_on_a_bad_page() {
    let (Some(axe), Some(tab)) = (Axe::new(), Tab::open()) else { return };
    tab.go("data:text/html,<!doctype html><title>x</title><body style='background:white'><input><p style='color:%23ccc'>pale</p>");
    let found = axe.findings(&tab);
    for rule in ["html-has-lang", "label", "color-contrast"] {
        assert!(found.iter().any(|one| one.starts_with(rule)), "{rule}: {found:?}");
    }
}

/// Pages that are reached only through an action; `page_layout` has those with a URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn action_pages_have_no_accessibility_violations() {
    let Some(axe) = Axe::new() else { return };
    let Some(fixture) = Fixture::new(6).await else { return };
    let tab = &fixture.tab;
    let mut found = Vec::new();
    let mut judge = |name: &str| found.extend(axe.findings_in_both_themes(tab, name));
    let batch = fixture.operator.orders(&fixture.fleet, 0..2, json!({})).await;
    fixture.operator.until_ended(&batch).await;
    let tasks = fixture.operator.get(&format!("/v1/batches/{batch}")).await;
    let cves = fixture
        .operator
        .until_at("/v1/cves", |seen: &Value| seen["meta"]["total"].as_u64() > Some(0))
        .await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let task = text(&tasks["results"][0]["id"]);
    for (name, path) in [
        ("a task", format!("/batches/{batch}/tasks/{task}")),
        ("a CVE", format!("/cves/{}", text(&cves["data"][0]["id"]))),
        ("a new schedule", "/schedules/new".into()),
        ("a new freeze", "/freezes/new".into()),
        ("freezes", "/freezes".into()),
        ("compliance", "/compliance".into()),
        ("a new policy", "/compliance/policies/new".into()),
        ("nothing found", "/servers?q=no-match".into()),
        ("no such page", "/servers/srv_01jcqk3m8ye0fr5cq0k6s8v2xw".into()),
    ] {
        fixture.go(&path);
        judge(name);
    }
    for (name, path, press, shown) in [
        ("an order", "/servers", "tr[data-row] td.name a", "Needs attention"),
        ("a preview", "", "form[action='/order'] button", "What would happen"),
        ("a question", "/settings/people", "form[action$='/reset'] button", "Reset ann?"),
        ("a secret", "/settings/keys", "form[action='/settings/keys'] button", "Copy it now"),
        ("a second factor", "/account", "form[action='/account/totp'] button", "Scan this code"),
    ] {
        if !path.is_empty() {
            fixture.go(path);
        }
        if name == "a secret" {
            tab.fill("form[action='/settings/keys'] input[name=name]", "ci");
        }
        tab.click(press);
        tab.until_shown(shown);
        judge(name);
    }
    // The current code, as an authenticator app shows it.
    let secret = text(&tab.eval("return document.getElementById('secret').innerText"));
    let now = service::clock::Clock::system().now();
    tab.fill("input[name=code]", &service::auth::totp::current_code(&secret, now));
    tab.click("form[action='/account/totp'] button");
    tab.until_shown("Each works once");
    judge("recovery codes");
    fixture.go("/account");
    tab.until_shown("requires a code");
    judge("a second factor that is on");
    tab.click("form[action='/sign-out'] button");
    tab.until_shown("Password");
    for (name, password, shown) in [
        ("a wrong password", "not the password", "Incorrect username or password"),
        ("a code", PASSWORD, "Two-factor authentication"),
    ] {
        tab.eval("document.querySelector('input[name=name]').value = ''");
        tab.fill("input[name=name]", "ann");
        tab.fill("input[name=password]", password);
        tab.click("form button");
        tab.until_shown(shown);
        judge(name);
    }
    tab.go(&invite(&fixture.dir.data(), &fixture.url, "bob"));
    judge("a welcome");
    fixture.go("/welcome/invalid");
    judge("a link that was used");
    assert_eq!(found, Vec::<String>::new());
    // Some of these pages are error pages, which the browser reports.
    tab.console_problems();
    fixture.end().await;
}
