//! A real agent on a real Debian system, patched from the dashboard.

use lab::apt::{Deb, Pocket, Repo, Server};
use serde_json::{Value, json};

use crate::agents::{Fleet, Host};
use crate::driver::{ENTER, Tab};
use crate::fixture::{invite, set_password};

/// Finds a server, previews, patches, and watches the batch without a reload. The page and the
/// system's package database must agree. Not asynchronous, because only this thread sees the lab's
/// system.
#[test]
fn server_patched_in_the_dashboard_matches_its_package_database() {
    let debs = [
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Stable, Deb::new("other", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs()),
    ];
    let Some(repo) = Repo::with(&debs) else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other"]) else { return };
    let Some(tab) = Tab::open() else { return };
    let fleet = Fleet::new();
    let host = Host::joined(&fleet, server.root.dir());
    let seen =
        fleet.until(&format!("/v1/servers/{}", host.id), |seen| seen["summary"]["updates"] == 1);
    let name = seen["hostname"].as_str().unwrap().to_owned();
    let before = server.packages();

    set_password(&tab, &invite(&fleet.dir.data(), &fleet.service.address, "ann"));
    tab.go(&format!("{}/servers", fleet.service.address));
    tab.fill("input[data-search]", &format!("{name}{ENTER}"));
    tab.until_shown("1–1 of 1 servers");
    tab.click("tr[data-row] td.name a");
    tab.until_shown("Needs attention");
    tab.click("a[href$='/updates']");
    tab.until_shown("Pending updates");
    assert!(tab.text().contains("hello"), "{}", tab.text());
    tab.click("form[action='/order'] button");
    tab.until_shown("What would happen");
    assert_eq!(server.packages(), before, "nothing may have started");
    // A dry run changes nothing, even if it is selected after the first preview.
    tab.click("input[name=dry_run]");
    assert_eq!(tab.eval("return document.getElementById('start').disabled"), true);
    tab.click("form[data-previewed] > p > button");
    tab.until_shown("Dry run on 1 server (security updates)");
    tab.click("#start");
    tab.until("the dry run is there", |tab| tab.url().contains("/batches/bat_"));
    tab.until("it ended", |tab| {
        let state = tab.eval("return document.getElementById('state').innerText");
        state.as_str().is_some_and(|state| state.contains("succeeded"))
    });
    assert_eq!(server.packages(), before, "a dry run installs nothing");
    assert_eq!(server.runs("hello"), Vec::<String>::new());

    tab.go(&format!("{}/servers/{}", fleet.service.address, host.id));
    tab.click("form[action='/order'] button");
    tab.until_shown("What would happen");
    assert!(tab.text().contains("Patch 1 server (security updates)"), "{}", tab.text());
    tab.click("#start");
    tab.until("the batch is there", |tab| tab.url().contains("/batches/bat_"));
    tab.eval("window.neverReloaded = true");
    tab.until("it ended, live", |tab| {
        let state = tab.eval("return document.getElementById('state').innerText");
        state.as_str().is_some_and(|state| state.contains("succeeded"))
    });
    assert_eq!(tab.eval("return window.neverReloaded"), true);

    let mut expected = before;
    expected.insert("hello".into(), "1.1".into());
    assert_eq!(server.packages(), expected);
    assert_eq!(server.runs("hello"), ["1.1"], "the script must run once");
    tab.click("td a[href*='/tasks/']");
    tab.until_shown("Package changes");
    let shown = tab.text();
    assert!(shown.contains("hello") && shown.contains("1.0") && shown.contains("1.1"), "{shown}");
    let reported: Value =
        fleet.until(&format!("/v1/servers/{}", host.id), |seen| seen["summary"]["updates"] == 0);
    assert_eq!(reported["status"], json!("online"));
    assert_eq!(tab.console_problems(), Vec::<String>::new());
}
