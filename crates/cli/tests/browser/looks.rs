//! What pages look like, wide and narrow, in light and in dark.
//!
//! `FLEETMEND_SCREENSHOTS=DIR` keeps the pictures.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::axe::Axe;
use crate::scene::Scene;

/// What people would stumble over who see only a small part of the page, and what axe-core leaves open.
const STUMBLES: &str = r#"
const found = [];
if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
for (const at of document.querySelectorAll("svg.plot")) if (!at.getAttribute("aria-label")) found.push("a plot without words");
const ids = [...document.querySelectorAll("[id]")].map((at) => at.id);
for (const id of ids) if (ids.filter((other) => other === id).length > 1) found.push("twice: " + id);
if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window: " + document.documentElement.scrollWidth);
return found;
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_page_can_be_read_wide_and_narrow_in_light_and_in_dark() {
    let Some(scene) = Scene::of(30).await else { return };
    let (tab, axe) = (&scene.tab, Axe::new());
    let servers: Value = scene.operator.get("/v1/servers").await;
    let server = servers["data"][0]["id"].as_str().unwrap().to_owned();
    let schedule = json!({"name": "Nightly, production", "cron": "0 3 * * *", "timezone": "Europe/Berlin",
        "targets": {"environment": "production"}, "options": {"security_only": true, "canary": "10%", "reboot": "if_required"}});
    let schedule = scene.operator.post("/v1/schedules", schedule).await;
    let batch = scene.operator.orders(&scene.fleet, 0..12, json!({"max_parallel": 4})).await;
    scene.operator.until_ended(&batch).await;
    // What is pending, and how bad it is, is counted a moment after it is told.
    let listed = |seen: &Value| seen["meta"]["total"].as_u64() > Some(0);
    let patches = scene.operator.until_at("/v1/patches", listed).await;
    scene.operator.until_at("/v1/cves", listed).await;
    let patch = patches["data"][0]["package_name"].as_str().unwrap().to_owned();
    let schedule = schedule["id"].as_str().unwrap();
    let pages = [
        ("overview", "/".to_owned()),
        ("servers", "/servers".into()),
        ("server", format!("/servers/{server}")),
        ("remove", format!("/servers/{server}/remove")),
        ("patches", "/patches".into()),
        ("patch", format!("/patches/{patch}")),
        ("cves", "/cves".into()),
        ("batches", "/batches".into()),
        ("batch", format!("/batches/{batch}")),
        ("schedules", "/schedules".into()),
        ("schedule", format!("/schedules/{schedule}")),
        ("schedule-edit", format!("/schedules/{schedule}/edit")),
        ("activity", "/activity".into()),
        ("settings", "/settings".into()),
        ("problem", "/servers?limit=0".into()),
        ("sign-in", "/sign-in".into()),
    ];
    let kept = std::env::var_os("FLEETMEND_SCREENSHOTS").map(PathBuf::from);
    let mut stumbles = Vec::new();
    for (name, path) in &pages {
        scene.go(path);
        for (width, theme) in [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")] {
            tab.look(width, theme);
            let found = tab.eval(STUMBLES);
            for one in found.as_array().unwrap() {
                stumbles.push(format!("{name} {width} {theme}: {one}"));
            }
            for one in axe.as_ref().map_or_else(Vec::new, |axe| axe.findings(tab)) {
                stumbles.push(format!("{name} {width} {theme}: {one}"));
            }
            if let Some(dir) = &kept {
                std::fs::create_dir_all(dir).unwrap();
                std::fs::write(dir.join(format!("{name}-{width}-{theme}.png")), tab.picture())
                    .unwrap();
            }
        }
    }
    assert_eq!(stumbles, Vec::<String>::new());
    // The page about a problem is one, and the browser says so.
    let complaints: Vec<String> =
        tab.complaints().into_iter().filter(|one| !one.contains("limit=0")).collect();
    assert_eq!(complaints, Vec::<String>::new());
    scene.end().await;
}
