//! Operator tasks in the dashboard: finding, patching and watching servers, schedules, and
//! reconnecting.

use serde_json::{Value, json};

use crate::axe::Axe;
use crate::driver::{ENTER, TAB, Tab};
use crate::fixture::Fixture;
use crate::support::Running;

/// From sign-in to the end of a batch without the mouse, and without a reload while it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn server_is_patched_with_the_keyboard_only() {
    let Some(fixture) = Fixture::new(8).await else { return };
    let tab = &fixture.tab;
    let servers: Value = fixture.operator.get("/v1/servers?sort=security_updates").await;
    let name = servers["data"][0]["hostname"].as_str().unwrap().to_owned();
    tab.keys("?");
    tab.until_shown("next and previous row");
    tab.keys(ENTER);
    tab.until("the help is closed", |tab| {
        tab.eval("return !document.getElementById('help').open") == true
    });
    tab.keys("g");
    tab.keys("s");
    tab.until("the servers are there", |tab| tab.url().ends_with("/servers"));
    tab.until_shown(&name);
    tab.keys("/");
    tab.keys(&format!("{name}{ENTER}"));
    tab.until("the list is filtered", |tab| tab.url().ends_with(&format!("/servers?q={name}")));
    tab.until_shown("1–1 of 1 servers");
    tab.eval("document.activeElement.blur()");
    tab.keys("j");
    tab.keys(ENTER);
    tab.until_shown("Needs attention");
    // Reach the button with the Tab key.
    for _ in 0..40 {
        if tab.eval("return document.activeElement.innerText") == "Patch…" {
            break;
        }
        tab.keys(TAB);
    }
    tab.keys(ENTER);
    tab.until_shown("What would happen");
    assert!(tab.text().contains("Nothing has started."), "{}", tab.text());
    tab.eval("document.getElementById('start').focus()");
    tab.keys(ENTER);
    tab.until("the batch is there", |tab| tab.url().contains("/batches/bat_"));
    tab.eval("window.neverReloaded = true");
    tab.until("it ended, live", |tab| {
        tab.eval("return document.getElementById('state').innerText")
            .as_str()
            .is_some_and(|state| state.contains("succeeded"))
    });
    assert_eq!(tab.eval("return window.neverReloaded"), true);
    assert!(tab.text().contains("100 % of 1 server"), "{}", tab.text());
    tab.click("td a[href*='/tasks/']");
    tab.until_shown("Package changes");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_is_found_from_everywhere() {
    let Some(fixture) = Fixture::new(8).await else { return };
    let tab = &fixture.tab;
    let servers: Value = fixture.operator.get("/v1/servers").await;
    let name = servers["data"][3]["hostname"].as_str().unwrap();
    let id = servers["data"][3]["id"].as_str().unwrap();
    fixture.go("/schedules");
    tab.eval("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, bubbles: true}))");
    tab.until("the palette is open", |tab| {
        tab.eval("return document.getElementById('palette').open") == true
    });
    tab.keys(name);
    tab.until("the server is found", |tab| {
        let found = tab.eval("return document.querySelector('#palette-found a.at')?.href");
        found.as_str().is_some_and(|href| href.ends_with(&format!("/servers/{id}")))
    });
    tab.keys(ENTER);
    tab.until("its page is there", |tab| tab.url().ends_with(&format!("/servers/{id}")));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_servers_that_match_are_edited_at_once() {
    let Some(fixture) = Fixture::new(60).await else { return };
    let tab = &fixture.tab;
    let servers: Value = fixture.operator.get("/v1/servers").await;
    let total = servers["meta"]["total"].as_u64().unwrap();
    fixture.go("/servers");
    assert_eq!(tab.eval("return document.querySelector('[data-bar]').hidden"), true);
    tab.click("input[data-pick]");
    tab.until_shown("Edit 1 server…");
    tab.click("input[data-all-matching]");
    tab.until_shown(&format!("Edit {total} servers…"));
    tab.click("button[formaction='/servers/edit']");
    tab.until_shown(&format!("Change {total} servers"));
    tab.fill("input[name=add_tags]", "reviewed");
    tab.click("main button.main");
    tab.until("the list is there", |tab| tab.url().ends_with("/servers"));
    let tagged: Value = fixture.operator.get("/v1/servers?tag=reviewed").await;
    assert_eq!(tagged["meta"]["total"], total);
    // The menu of a filter lists what the fleet has, and typing narrows it.
    tab.click(".filters details.menu:nth-of-type(3) > summary");
    tab.until_shown("reviewed");
    tab.click("details.menu[open] a[href*='tag=reviewed']");
    tab.until_shown("Tag: reviewed");
    tab.click("a.chip");
    tab.until("the filter is gone", |tab| tab.url().ends_with("/servers"));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batch_is_paused_and_canceled_on_its_page() {
    let Some(fixture) = Fixture::new(6).await else { return };
    let tab = &fixture.tab;
    let made = fixture.operator.orders(&fixture.fleet, 0..6, json!({"stagger_minutes": 60})).await;
    fixture.go(&format!("/batches/{made}"));
    tab.until_shown("waiting for its staggered start");
    tab.click("form[action$='/pause'] button");
    tab.until_shown("paused");
    tab.until_shown("Resume");
    tab.click("form[action$='/cancel'] button");
    tab.until_shown("nothing is rolled back");
    tab.click("main button.risk");
    tab.until("it is canceled, live", |tab| {
        tab.eval("return document.getElementById('state')?.innerText")
            .as_str()
            .is_some_and(|state| state.contains("canceled"))
    });
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn schedule_form_previews_runs_and_escapes_markup() {
    let Some(fixture) = Fixture::new(2).await else { return };
    let tab = &fixture.tab;
    fixture.go("/schedules/new");
    let planted = "<img src=x onerror=document.title='planted'>";
    tab.fill("input[name=name]", planted);
    tab.click("input[name=repeat][value=custom]");
    tab.fill("input[name=cron]", "30 3 * * SUN");
    tab.until("five runs are shown", |tab| {
        tab.eval("return document.querySelectorAll('#asked tbody tr').length") == 5
    });
    assert!(
        tab.eval("return document.getElementById('asked').innerText")
            .as_str()
            .unwrap()
            .contains("Sun ")
    );
    tab.fill("input[name=cron]", " nonsense");
    tab.until("the mistake is shown", |tab| {
        tab.eval("return document.querySelectorAll('#asked .bad').length") == 1
    });
    tab.eval("document.querySelector('input[name=cron]').value = '30 3 * * SUN'");
    tab.click("input[name=all]");
    tab.click("main button.main");
    tab.until("the schedule is there", |tab| tab.url().contains("/schedules/sch_"));
    tab.until_shown(planted);
    for path in ["/schedules", "/activity", "/"] {
        fixture.go(path);
        assert_eq!(tab.eval("return document.images.length"), 0, "{path}");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn schedule_is_built_without_cron_and_counts_its_servers() {
    let Some(fixture) = Fixture::new(6).await else { return };
    let tab = &fixture.tab;
    let servers: Value = fixture.operator.get("/v1/servers").await;
    let environment = servers["data"][0]["environment"].as_str().unwrap();
    let path = format!("/v1/servers?environment={environment}");
    let total = fixture.operator.get(&path).await["meta"]["total"].as_u64().unwrap();
    fixture.go("/schedules/new");
    let is_shown = |tab: &Tab, css: &str| {
        tab.eval(&format!("return document.querySelector('{css}').checkVisibility()")) == true
    };
    tab.until_shown("Every Sunday at 03:00 UTC");
    assert!(is_shown(tab, ".for-week") && !is_shown(tab, ".for-custom"));
    tab.click("input[name=repeat][value=nth]");
    tab.until_shown("On the second Tuesday of every month at 03:00 UTC");
    assert!(is_shown(tab, ".for-nth") && !is_shown(tab, ".for-week"));
    let text = |tab: &Tab| {
        let text = tab.eval("return document.getElementById('matches').innerText");
        text.as_str().unwrap_or_default().to_owned()
    };
    assert!(text(tab).contains("Fill in at least one field"), "{}", text(tab));
    tab.fill("input[name=environment]", environment);
    let noun = if total == 1 { "server" } else { "servers" };
    tab.until("the servers are counted", |tab| {
        text(tab).contains(&format!("Matches {total} {noun}"))
    });
    assert_eq!(
        tab.eval("return document.querySelector('#matches a').getAttribute('href')"),
        format!("/servers?environment={environment}")
    );
    tab.fill("input[name=tags]", "nobody-has-this");
    tab.until("the warning is shown", |tab| text(tab).contains("Matches no server."));
    tab.eval("const it = document.querySelector('input[name=tags]'); it.value = ''; it.dispatchEvent(new Event('input', {bubbles: true}))");
    tab.until("it is gone", |tab| !text(tab).contains("no server"));
    tab.fill("input[name=name]", "Patch Tuesday");
    tab.click("main button.main");
    tab.until("the schedule is there", |tab| tab.url().contains("/schedules/sch_"));
    tab.until_shown("On the second Tuesday of every month at 03:00");
    fixture.end().await;
}

/// All errors are at their fields, and the focus is on the summary, whose links lead to the fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rejected_form_shows_errors_at_fields_and_moves_the_focus() {
    let Some(fixture) = Fixture::new(2).await else { return };
    let tab = &fixture.tab;
    fixture.go("/schedules/new");
    tab.fill("input[name=timezone]", "x");
    tab.fill("input[name=description]", "kept");
    tab.fill("input[name=canary]", "lots");
    tab.click("main button.main");
    tab.until_shown("Not saved: check 4 fields.");
    assert_eq!(tab.eval("return document.activeElement.id"), "errors");
    let invalid = "return [...document.querySelectorAll('[aria-invalid=true]')].map((it) => it.name).join(' ')";
    assert_eq!(tab.eval(invalid), "name timezone canary");
    let described = "return [...document.querySelectorAll('[aria-invalid=true]')].every((it) => document.getElementById(it.getAttribute('aria-describedby').split(' ')[0]).checkVisibility())";
    assert_eq!(tab.eval(described), true);
    assert_eq!(tab.eval("return document.querySelector('[name=description]').value"), "kept");
    let found = Axe::new().map(|axe| axe.findings_in_both_themes(tab, "a rejected form"));
    assert_eq!(found.unwrap_or_default(), Vec::<String>::new());
    tab.eval("document.querySelector('#errors a[href=\"#f-canary\"]').focus()");
    tab.keys(ENTER);
    tab.until("the field has the focus", |tab| {
        tab.eval("return document.activeElement.name") == "canary"
    });
    // The browser reports the refused form.
    tab.console_problems();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn schedule_without_servers_needs_a_confirmation() {
    let Some(fixture) = Fixture::new(2).await else { return };
    let tab = &fixture.tab;
    let servers: Value = fixture.operator.get("/v1/servers").await;
    let environment = servers["data"][0]["environment"].as_str().unwrap();
    fixture.go("/schedules/new");
    tab.fill("input[name=name]", "Mistyped");
    tab.fill("input[name=environment]", &format!("{environment}x"));
    tab.click("main button.main");
    tab.until_shown(&format!("Did you mean \"{environment}\"?"));
    assert_eq!(tab.eval("return document.querySelector('input[name=name]').value"), "Mistyped");
    tab.click("input[name=allow_empty]");
    tab.click("main button.main");
    tab.until("the schedule is there", |tab| tab.url().contains("/schedules/sch_"));
    tab.until_shown("Runs are skipped until a server matches.");
    // The browser reports the refused form.
    tab.console_problems();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lost_connection_is_shown_and_recovers() {
    let Some(mut scene) = Fixture::new(1).await else { return };
    let hidden = |tab: &Tab| tab.eval("return document.getElementById('lost').hidden") == true;
    scene.tab.eval("window.neverReloaded = true");
    scene.service.child.kill().unwrap();
    scene.service.child.wait().unwrap();
    scene.tab.until_shown("Connection to the service lost");
    let listen = scene.url.strip_prefix("http://").unwrap();
    scene.service = Running::at(listen, &scene.dir.data(), &[]);
    scene.tab.until("it is back", hidden);
    // New events are shown again.
    let schedule =
        json!({"name": "After the outage", "cron": "0 3 * * *", "targets": {"all": true}});
    scene.operator.post("/v1/schedules", schedule).await;
    scene.tab.until_shown("After the outage");
    assert_eq!(scene.tab.eval("return window.neverReloaded"), true);
    // The browser reports the outage, which this test caused.
    scene.tab.console_problems();
    scene.end().await;
}
