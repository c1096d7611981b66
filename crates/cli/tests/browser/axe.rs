//! Whether people can use a page who do not see it, or not well, or use no mouse: axe-core's judgement, brought in by the driver, so that the
//! page's own policy stays as it is.

use serde_json::{Value, json};

use crate::driver::Tab;
use crate::node;
use crate::scene::{PASSWORD, Scene, invited};

/// What axe-core finds serious or critical on the page as it is.
const RUN: &str = r#"
return axe.run(document, { resultTypes: ["violations"] }).then((found) => found.violations
  .filter((one) => one.impact === "serious" || one.impact === "critical")
  .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)} (${node.any.concat(node.all, node.none).map((why) => why.message).join("; ").slice(0, 200)})`)));
"#;

/// The judge.
pub(crate) struct Axe(String);

impl Axe {
    /// It, unless it is not here.
    pub(crate) fn new() -> Option<Axe> {
        let path = node::home()?.join("node_modules/axe-core/axe.min.js");
        Some(Axe(std::fs::read_to_string(path).unwrap()))
    }

    /// What it finds on this page that keeps people out.
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

    /// The same in light and in dark, with the page's name before each.
    pub(crate) fn judge(&self, tab: &Tab, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        for theme in ["light", "dark"] {
            tab.look(1280, theme);
            all.extend(self.findings(tab).into_iter().map(|one| format!("{name}, {theme}: {one}")));
        }
        all
    }
}

/// A judge that finds nothing anywhere would be no judge.
#[test]
fn the_judge_finds_what_is_wrong_with_a_bad_page() {
    let (Some(axe), Some(tab)) = (Axe::new(), Tab::open()) else { return };
    tab.go("data:text/html,<!doctype html><title>x</title><body style='background:white'><input><p style='color:%23ccc'>pale</p>");
    let found = axe.findings(&tab);
    for rule in ["html-has-lang", "label", "color-contrast"] {
        assert!(found.iter().any(|one| one.starts_with(rule)), "{rule}: {found:?}");
    }
}

/// The pages that one only gets to by doing something; `looks` has those with an address.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_on_the_way_to_something_can_be_used_by_everyone() {
    let Some(axe) = Axe::new() else { return };
    let Some(scene) = Scene::of(6).await else { return };
    let tab = &scene.tab;
    let mut found = Vec::new();
    let mut judge = |name: &str| found.extend(axe.judge(tab, name));
    let batch = scene.operator.orders(&scene.fleet, 0..2, json!({})).await;
    scene.operator.until_ended(&batch).await;
    let tasks = scene.operator.get(&format!("/v1/batches/{batch}")).await;
    let cves = scene
        .operator
        .until_at("/v1/cves", |seen: &Value| seen["meta"]["total"].as_u64() > Some(0))
        .await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let task = text(&tasks["results"][0]["id"]);
    for (name, path) in [
        ("a task", format!("/batches/{batch}/tasks/{task}")),
        ("a CVE", format!("/cves/{}", text(&cves["data"][0]["id"]))),
        ("a new schedule", "/schedules/new".into()),
        ("nothing found", "/servers?q=nobody".into()),
        ("no such page", "/servers/srv_01jcqk3m8ye0fr5cq0k6s8v2xw".into()),
    ] {
        scene.go(&path);
        judge(name);
    }
    for (name, path, press, shown) in [
        ("an order", "/servers", "tr[data-row] td.name a", "Pending updates"),
        ("a preview", "", "form[action='/order'] button", "What would happen"),
        ("a question", "/settings", "form[action$='/reset'] button", "Reset ann?"),
        ("a secret", "/settings", "form[action='/settings/keys'] button", "Copy it now"),
        ("a second factor", "/account", "form[action='/account/totp'] button", "Add this key"),
    ] {
        if !path.is_empty() {
            scene.go(path);
        }
        if name == "a secret" {
            tab.fill("form[action='/settings/keys'] input[name=name]", "ci");
        }
        tab.click(press);
        tab.until_shown(shown);
        judge(name);
    }
    // The authenticator shows the code of now.
    let secret = text(&tab.eval("return document.getElementById('secret').innerText"));
    let now = service::clock::Clock::system().now();
    tab.fill("input[name=code]", &service::auth::totp::shown(&secret, now));
    tab.click("main button.main");
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
    tab.go(&invited(&scene.dir.data(), &scene.url, "bob"));
    judge("a welcome");
    scene.go("/welcome/nobody");
    judge("a link that was used");
    assert_eq!(found, Vec::<String>::new());
    // Pages about a problem are some of these, and the browser says so.
    tab.complaints();
    scene.end().await;
}
