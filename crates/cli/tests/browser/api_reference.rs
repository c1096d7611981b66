//! The API reference in a browser: search, copying, and test requests with a real key.

use serde_json::{Value, json};

use crate::axe::Axe;
use crate::driver::{ENTER, Tab};
use crate::fixture::Fixture;
use crate::page_layout::find_layout_problems;

/// Removes all but a few operations and objects. They are alike, and axe-core would need minutes for
/// all of them.
const REMOVE_SIMILAR: &str = "
const keep = ['list_servers', 'remove_server', 'create_schedule', 'docs', 'schema-Batch', 'schema-Problem'];
for (const at of document.querySelectorAll('article')) if (!keep.includes(at.id)) at.remove();
";

const LIST_SERVERS: &str = "#list_servers";

fn hash(tab: &Tab) -> String {
    tab.eval("return location.hash").as_str().unwrap().to_owned()
}

/// Opens the form for a test request of an operation.
fn open_form(tab: &Tab, operation: &str) {
    tab.eval(&format!("document.querySelector('{operation}').scrollIntoView()"));
    tab.click(&format!("{operation} button[aria-expanded=false]"));
}

fn result(tab: &Tab, operation: &str) -> String {
    let script = format!("return document.querySelector('{operation} .ref-status').innerText");
    tab.eval(&script).as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reference_is_searched_with_the_keyboard() {
    let Some(fixture) = Fixture::new(1).await else { return };
    let tab = &fixture.tab;
    for width in [1280, 390] {
        tab.set_viewport(width, "light");
        fixture.go("/docs");
        tab.keys("/");
        tab.until("the search has the focus", |tab| {
            tab.eval("return document.activeElement.id") == "search"
        });
        tab.keys("pause batch");
        tab.until("there are results", |tab| {
            tab.eval("return document.querySelector('#results a')?.hash ?? ''") == "#pause_batch"
        });
        tab.keys(ENTER);
        tab.until("the operation is shown", |tab| hash(tab) == "#pause_batch");
        let visible = "const box = document.querySelector('#pause_batch h3').getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight";
        tab.until("it is on the screen", |tab| tab.eval(visible) == true);
    }
    // Names of fields and error codes are found too.
    tab.set_viewport(1280, "light");
    for (words, target) in [
        ("stagger_minutes create batch", "#create_batch"),
        ("last_admin_key", "#problem-last_admin_key"),
    ] {
        fixture.go("/docs");
        tab.fill("#search", words);
        let first = tab.eval("return document.querySelector('#results a').hash");
        assert_eq!(first, target, "{words}");
    }
    tab.fill("#search", " xyzzy");
    tab.until_shown("No results.");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn examples_are_copied_with_the_address_of_the_service() {
    let Some(fixture) = Fixture::new(1).await else { return };
    let tab = &fixture.tab;
    let allowed = json!({"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]});
    tab.cdp("Browser.grantPermissions", &allowed);
    fixture.go("/docs#create_batch");
    tab.click("#create_batch .ref-block button:last-child");
    tab.until("it says so", |tab| {
        tab.eval(
            "return document.querySelector('#create_batch .ref-block button:last-child').innerText",
        ) == "Copied"
    });
    let copied = tab.eval("return navigator.clipboard.readText()");
    let copied = copied.as_str().unwrap();
    let start = format!("curl -X POST \"{}/v1/batches\" \\\n", fixture.url);
    assert!(copied.starts_with(&start) && copied.contains("$FLEETMEND_API_KEY"), "{copied}");
    let body = copied.split_once("-d '").unwrap().1.trim_end_matches('\'');
    let body: Value = serde_json::from_str(body).unwrap();
    assert!(body["server_ids"].is_array());
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn test_requests_use_the_key_and_ask_before_a_change() {
    let Some(fixture) = Fixture::new(2).await else { return };
    let tab = &fixture.tab;
    fixture.go("/docs");
    open_form(tab, LIST_SERVERS);
    // The session of the dashboard is not used in place of a key.
    tab.click(&format!("{LIST_SERVERS} .ref-try button"));
    tab.until_shown("Enter an API key.");
    tab.fill(&format!("{LIST_SERVERS} input[data-secret]"), &fixture.key);
    tab.click(&format!("{LIST_SERVERS} .ref-try button"));
    tab.until("the servers are shown", |tab| result(tab, LIST_SERVERS).starts_with("200"));
    let body = tab.eval(&format!("return document.querySelector('{LIST_SERVERS} .ref-try').parentElement.nextElementSibling.querySelector('code').textContent"));
    let body: Value = serde_json::from_str(body.as_str().unwrap()).unwrap();
    assert_eq!(body["meta"]["total"], 2);

    // A change is sent only after a confirmation. The key is still known.
    let created = async || fixture.operator.all("/v1/enrollment-tokens").await.len();
    let before = created().await;
    let operation = "#create_enrollment_token";
    open_form(tab, operation);
    tab.click(&format!("{operation} .ref-try button"));
    tab.until_shown("Send this request?");
    assert_eq!(tab.eval("return document.activeElement.value"), "cancel");
    tab.keys(ENTER);
    tab.until("it was not sent", |tab| result(tab, operation) == "Not sent.");
    assert_eq!(created().await, before);
    tab.click(&format!("{operation} .ref-try button"));
    tab.until_shown("Send this request?");
    tab.click("#confirm button[value=send]");
    tab.until("it was sent", |tab| result(tab, operation).starts_with("201"));
    assert_eq!(created().await, before + 1);

    // A value cannot lead to another path.
    open_form(tab, "#get_server");
    tab.fill("#get_server .ref-try input[required]", "..");
    tab.click("#get_server .ref-try button");
    tab.until_shown("server_id cannot be ..");
    tab.fill("#get_server .ref-try input[required]", "/x?y");
    tab.click("#get_server .ref-try button");
    tab.until("it is not found", |tab| result(tab, "#get_server").starts_with("404"));

    // The key is nowhere but in memory.
    let stored = "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])";
    assert!(!tab.eval(stored).as_str().unwrap().contains(&fixture.key));
    tab.eval("location.reload()");
    tab.until("the page is loaded again", |tab| {
        tab.eval("return document.readyState === 'complete' && !document.querySelector('.ref-try')")
            == true
    });
    open_form(tab, LIST_SERVERS);
    assert_eq!(tab.eval("return document.querySelector('input[data-secret]').value"), "");
    // The browser reports the 404.
    tab.console_problems();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reference_is_readable_at_all_widths_and_themes() {
    let Some(fixture) = Fixture::new(1).await else { return };
    let (tab, axe) = (&fixture.tab, Axe::new());
    let kept = std::env::var_os("FLEETMEND_SCREENSHOTS").map(std::path::PathBuf::from);
    let mut found = Vec::new();
    for (width, theme) in [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")] {
        tab.set_viewport(width, theme);
        for state in ["top", "operation", "contents"] {
            fixture.go("/docs");
            match state {
                "operation" => {
                    open_form(tab, "#create_schedule");
                    tab.eval("document.querySelectorAll('#create_schedule details').forEach((at) => (at.open = true))");
                    tab.eval("document.querySelector('#create_schedule').scrollIntoView()");
                }
                "contents" => drop(tab.eval("location.hash = 'contents'")),
                _ => {}
            }
            let name = format!("docs-{state}-{width}-{theme}");
            found.extend(find_layout_problems(tab).into_iter().map(|one| format!("{name}: {one}")));
            if let Some(dir) = &kept {
                std::fs::create_dir_all(dir).unwrap();
                std::fs::write(dir.join(format!("{name}.png")), tab.screenshot()).unwrap();
            }
            if let Some(axe) = &axe {
                tab.eval(REMOVE_SIMILAR);
                found.extend(axe.findings(tab).into_iter().map(|one| format!("{name}: {one}")));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
    fixture.end().await;
}
