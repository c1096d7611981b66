//! The patch form: Start does what the preview shows, or nothing.

use serde_json::{Value, json};

use crate::driver::Tab;
use crate::fixture::Fixture;

/// Every field of the form, and how a user changes it.
const EDITS: [(&str, &str); 18] = [
    ("input[name=name]", "Hotfix"),
    ("input[name=packages]", "openssl"),
    ("input[name=exclude]", "*"),
    ("select[name=reboot]", "always"),
    ("input[name=stagger_minutes]", "5"),
    ("input[name=max_parallel]", "1"),
    ("input[name=canary]", "2"),
    ("textarea[name=waves]", "1"),
    ("input[name=max_failures]", "1"),
    ("select[name=health]", "waves"),
    ("input[name=max_unhealthy]", "1"),
    ("input[name=window_minutes]", "60"),
    ("input[name=override_freeze]", "urgent"),
    ("input[name=what][value=all]", ""),
    ("input[name=what][value=packages]", ""),
    ("input[name=pin_versions]", ""),
    ("input[name=dry_run]", ""),
    ("input[name=server_ids]", ""),
];

fn edit(tab: &Tab, (field, text): (&str, &str)) {
    if text.is_empty() { tab.click(field) } else { tab.fill(field, text) }
}

fn is_disabled(tab: &Tab) -> bool {
    tab.eval("return document.getElementById('start').disabled") == true
}

fn label(tab: &Tab) -> String {
    tab.eval("return document.getElementById('start').innerText").as_str().unwrap().to_owned()
}

fn preview_all(fixture: &Fixture) {
    fixture.go("/servers");
    fixture.tab.click("input[data-all]");
    fixture.tab.click("[data-needs-pick]");
    fixture.tab.until_shown("What would happen");
    fixture.tab.click("#chosen summary");
}

async fn batches(fixture: &Fixture) -> Value {
    fixture.operator.get("/v1/batches").await["data"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn start_is_disabled_while_a_field_differs_from_the_preview() {
    let Some(fixture) = Fixture::new(3).await else { return };
    let tab = &fixture.tab;
    preview_all(&fixture);
    assert_eq!(label(tab), "Patch 3 servers (security updates)");
    for change in EDITS {
        assert!(!is_disabled(tab), "before {change:?}");
        edit(tab, change);
        assert!(is_disabled(tab), "{change:?}");
        assert!(tab.text().contains("Preview again to start."), "{change:?}");
        // Clicking it does nothing.
        tab.eval("document.getElementById('start').click()");
        tab.eval("document.querySelector('form[data-previewed]').reset()");
        tab.until("Start is enabled again", |tab| !is_disabled(tab));
    }
    // Every visible field of the form is in the list.
    let names = tab.eval(
        "return [...new Set([...document.querySelector('form[data-previewed]').elements]
            .filter((field) => field.name && field.type !== 'hidden' && field.tagName !== 'BUTTON').map((field) => field.name))]",
    );
    for name in names.as_array().unwrap() {
        let field = format!("[name={}]", name.as_str().unwrap());
        assert!(EDITS.iter().any(|(css, _)| css.contains(&field)), "{name}");
    }
    assert_eq!(batches(&fixture).await, json!([]));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changed_form_without_script_must_be_previewed_again() {
    let Some(fixture) = Fixture::new(3).await else { return };
    let tab = &fixture.tab;
    preview_all(&fixture);
    for change in [
        ("input[name=dry_run]", ""),
        ("input[name=canary]", "2"),
        ("input[name=max_parallel]", "1"),
        ("input[name=exclude]", "nothing-*"),
    ] {
        edit(tab, change);
    }
    // As a browser without JavaScript would: the button of the old preview with the new fields.
    tab.eval(
        "const start = document.getElementById('start');
         start.removeAttribute('data-needs-preview');
         start.disabled = false;",
    );
    tab.click("#start");
    tab.until_shown("The options changed since the preview. Review it and start again.");
    assert_eq!(batches(&fixture).await, json!([]));
    assert_eq!(label(tab), "Dry run on 3 servers (security updates)");
    assert!(!is_disabled(tab));
    for (name, value) in [("canary", "2"), ("max_parallel", "1"), ("exclude", "nothing-*")] {
        let shown = tab.eval(&format!("return document.querySelector('input[name={name}]').value"));
        assert_eq!(shown, value);
    }
    tab.click("#start");
    tab.until("the batch is there", |tab| tab.url().contains("/batches/bat_"));
    let created = batches(&fixture).await[0].clone();
    assert_eq!(created["options"]["dry_run"], true);
    assert_eq!(
        (&created["options"]["canary"], &created["options"]["max_parallel"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(
        (&created["options"]["exclude"], &created["progress"]["total"]),
        (&json!(["nothing-*"]), &json!(3))
    );
    // The browser reports the refused form.
    tab.console_problems();
    fixture.end().await;
}
