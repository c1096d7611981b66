//! Actions in the dashboard: each shows a preview or a confirmation first.

use domain::rollout::{Change, RolloutOutcome};
use serde_json::json;
use vocab::{Role, Severity};

use crate::browser::{Browser, start_token};
use crate::fleet::{Host, cancel_tasks, change, end, join, security};
use crate::support::Service;

async fn fleet(service: &Service) -> [String; 2] {
    let host = |name| {
        Host::new(name).with_updates(vec![security("openssl", Severity::High, &["CVE-2026-1"])])
    };
    [join(service, host("web-1")).await.to_string(), join(service, host("web-2")).await.to_string()]
}

async fn batches(service: &Service) -> Vec<serde_json::Value> {
    service.get("/v1/batches").await.is(200).json()["data"].as_array().unwrap().clone()
}

async fn batch_is_previewed_and_starts_only_on_confirmation(service: &Service) {
    let [one, two] = fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let chosen = [("server_ids", one.as_str()), ("server_ids", two.as_str())];
    let page = ann.submit("/order", &chosen).await.is(200).text();
    assert!(page.contains("Patch 2 servers") && page.contains("openssl"), "{page}");
    assert!(batches(service).await.is_empty());

    let mut form = chosen.to_vec();
    form.extend([
        ("what", "packages"),
        ("packages", "openssl"),
        ("reboot", "if_required"),
        ("stagger_minutes", "10"),
    ]);
    let page = ann.submit("/order", &form).await.is(200).text();
    assert!(page.contains("in 10 min") && batches(service).await.is_empty(), "{page}");
    let started = ann.start(&form).await.is(303);
    let created = batches(service).await;
    assert_eq!(
        started.header("location"),
        format!("/batches/{}", created[0]["id"].as_str().unwrap())
    );
    assert_eq!(created[0]["origin"], "dashboard");
    assert!(created[0]["started_by"].as_str().unwrap().starts_with("usr_"), "{created:?}");
    assert_eq!(created[0]["options"]["packages"], json!(["openssl"]));
    assert_eq!(created[0]["options"]["stagger_minutes"], 10);
}

/// The form starts the waves that it shows. Someone else than the creator approves one on its page,
/// and the button approves only the wave that the page showed.
async fn waves_start_and_are_approved_by_someone_else(service: &Service) {
    let [one, two] = fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let bob = Browser::signed_in(service, "bob", Role::Operator).await;
    let chosen = [("server_ids", one.as_str()), ("server_ids", two.as_str())];
    let with_waves = |waves| [&chosen[..], &[("what", "security"), ("waves", waves)]].concat();
    for (waves, shown) in [
        ("10%,soak=soon", "must be a number of minutes"),
        ("1,approve", "is not part of a wave"),
        ("0", "must not be zero"),
    ] {
        let page = ann.submit("/order", &with_waves(waves)).await.is(422).text();
        assert!(page.contains(shown), "{page}");
        assert!(page.contains(waves), "{page}");
    }
    ann.start(&with_waves("1,soak=30,approval\r\nrest,approval\r\n")).await.is(303);
    let created = batches(service).await;
    assert_eq!(
        created[0]["options"]["waves"],
        json!([{"size": 1, "soak_minutes": 30, "approval": true},
            {"size": null, "soak_minutes": 0, "approval": true}])
    );
    let id = created[0]["id"].as_str().unwrap();
    change(service, id, Change::Start).await;
    change(service, id, Change::AskApproval).await;
    let path = format!("/batches/{id}");
    let page = ann.get(&path).await.is(200).text();
    assert!(page.contains("someone else has to approve it"), "{page}");
    assert!(!page.contains(&format!("{path}/approve")), "{page}");
    ann.submit(&format!("{path}/approve"), &[("wave", "1")]).await.is(403);
    let page = bob.get(&path).await.is(200).text();
    assert!(page.contains("Approve 1 server<"), "{page}");
    bob.submit(&format!("{path}/approve"), &[("wave", "2")]).await.is(409);
    let approval = [("wave", "1"), ("comment", "looks <b>good</b>")];
    bob.submit(&format!("{path}/approve"), &approval).await.is(303);
    // A second click is late.
    bob.submit(&format!("{path}/approve"), &approval).await.is(409);
    let page = ann.get(&path).await.is(200).text();
    assert!(page.contains("looks &#60;b&#62;good"), "{page}");
    bob.submit(&format!("{path}/reject"), &[]).await.is(200);
    assert_eq!(batches(service).await[0]["state"], "running");
}

async fn double_click_starts_one_batch(service: &Service) {
    let once = |page: &str| {
        page.split("name=\"once\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let [one, _] = fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let chosen = [("server_ids", one.as_str())];
    let token = start_token(&ann.submit("/order", &chosen).await.is(200).text());
    let form = [("server_ids", one.as_str()), ("start", &token)];
    let pressed = futures_util::future::join_all((0..5).map(|_| ann.submit("/order", &form))).await;
    let created = batches(service).await;
    assert_eq!(created.len(), 1);
    let there = format!("/batches/{}", created[0]["id"].as_str().unwrap());
    for answer in pressed {
        assert_eq!(answer.is(303).header("location"), there);
    }
    // Sent again by a reload, much later.
    assert_eq!(ann.submit("/order", &form).await.is(303).header("location"), there);
    // Also after the preview expired.
    service.clock.advance(jiff::SignedDuration::from_mins(31));
    assert_eq!(ann.submit("/order", &form).await.is(303).header("location"), there);
    // Another preview is another batch.
    ann.start(&chosen).await.is(303);
    assert_eq!(batches(service).await.len(), 2);

    // A failure is shown as a page, even the second time; a mistake can be corrected.
    let here = format!("{there}/retry");
    let word = once(&ann.submit(&format!("{there}/cancel"), &[]).await.is(200).text());
    for _ in 0..2 {
        let response = ann.submit(&here, &[("go", "1"), ("once", &word)]).await.is(409);
        assert!(response.header("content-type").starts_with("text/html"), "{response:?}");
        assert!(response.text().contains("<main"), "{}", response.text());
    }
    let mistake = [("server_ids", one.as_str()), ("reboot", "perhaps"), ("start", "a-word")];
    for _ in 0..2 {
        assert!(ann.submit("/order", &mistake).await.is(422).text().contains("reboot"));
    }
}

/// Forms of pages without a preview count once, too: a schedule, a change of one, a key, a
/// token, an invitation.
async fn form_that_is_sent_twice_takes_effect_once(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let word = async |page: &str| {
        let text = ann.get(page).await.is(200).text();
        text.split("name=\"once\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let count = async |list: &str, name: &str| {
        let all = service.get(list).await.is(200).json()["data"].as_array().unwrap().clone();
        all.iter().filter(|one| one["name"] == name).count()
    };
    let schedule =
        vec![("name", "Nightly"), ("cron", "0 3 * * *"), ("all", "true"), ("enabled", "true")];
    for (page, action, fields, list) in [
        ("/schedules/new", "/schedules/new", schedule, "/v1/schedules"),
        (
            "/settings/keys",
            "/settings/keys",
            vec![("name", "ci"), ("role", "viewer")],
            "/v1/api-keys",
        ),
        (
            "/settings/tokens",
            "/settings/tokens",
            vec![("name", "image"), ("environment", "staging")],
            "/v1/enrollment-tokens",
        ),
    ] {
        let once = word(page).await;
        let form = [&fields[..], &[("once", once.as_str())]].concat();
        let pressed =
            futures_util::future::join_all((0..5).map(|_| ann.submit(action, &form))).await;
        assert_eq!(count(list, fields[0].1).await, 1, "{action}");
        let shown = |response: &crate::support::TestResponse| {
            (response.status, response.header("location").to_owned(), response.text())
        };
        assert!(
            pressed[0].status.is_success() || pressed[0].status.is_redirection(),
            "{}",
            pressed[0].text()
        );
        for answer in &pressed {
            assert_eq!(shown(answer), shown(&pressed[0]), "{action}");
        }
        // A user who goes back and changes a field submits a different form.
        let mut other = form.clone();
        other[0] = ("name", "another");
        let created = ann.submit(action, &other).await;
        assert_eq!(
            (created.status, count(list, "another").await),
            (pressed[0].status, 1),
            "{}",
            created.text()
        );
    }
    // Two forms of one page with the same content are still two forms.
    let once = word("/settings/people").await;
    let same = [("name", "bob"), ("role", "viewer"), ("once", once.as_str())];
    let invited = ann.submit("/settings/users", &same).await.is(200).text();
    assert!(invited.contains("/welcome/"), "{invited}");
    assert_eq!(ann.submit("/settings/users", &same).await.is(200).text(), invited);
    assert!(ann.submit("/settings/keys", &same).await.is(200).text().contains("fmk_"));
    assert_eq!(count("/v1/api-keys", "bob").await, 1);

    let id =
        service.get("/v1/schedules").await.json()["data"][0]["id"].as_str().unwrap().to_owned();
    let edit = format!("/schedules/{id}/edit");
    let once = word(&edit).await;
    let change = [
        ("generation", "1"),
        ("name", "Weekly"),
        ("cron", "0 4 * * SUN"),
        ("all", "true"),
        ("once", once.as_str()),
    ];
    for _ in 0..2 {
        assert_eq!(
            ann.submit(&edit, &change).await.is(303).header("location"),
            format!("/schedules/{id}")
        );
    }
    // A mistake is reported, and corrected on the same page.
    let once = word("/schedules/new").await;
    let form = |cron: &'static str| {
        [("name", "Mended"), ("cron", cron), ("all", "true"), ("once", once.as_str())].to_vec()
    };
    ann.submit("/schedules/new", &form("nonsense")).await.is(422);
    ann.submit("/schedules/new", &form("0 5 * * *")).await.is(303);
    assert_eq!(count("/v1/schedules", "Mended").await, 1);
}

async fn invalid_patch_form_comes_back_unchanged_and_starts_nothing(service: &Service) {
    let [one, _] = fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    for (field, value, told) in [
        ("stagger_minutes", "ten", "f-stagger_minutes-error"),
        ("canary", "200%", "f-canary-error"),
        ("reboot", "perhaps", "f-reboot-error"),
        ("what", "packages", "Enter at least one package"),
        ("what", "packages_security", "Enter at least one package"),
        ("exclude", "$(reboot)", "f-exclude-error"),
    ] {
        let form = [("server_ids", one.as_str()), (field, value), ("start", "x")];
        let page = ann.submit("/order", &form).await.is(422).text();
        assert!(page.contains(told), "{field}: {page}");
    }
    ann.submit("/order", &[("start", "x")]).await.is(400);
    ann.submit("/order", &[("server_ids", "nonsense"), ("start", "x")]).await.is(422);
    assert!(batches(service).await.is_empty());
    let viewer = Browser::signed_in(service, "bob", Role::Viewer).await;
    viewer.submit("/order", &[("server_ids", one.as_str()), ("start", "x")]).await.is(403);
    assert!(batches(service).await.is_empty());
}

async fn batch_is_paused_resumed_and_canceled_after_confirmation(service: &Service) {
    let [one, _] = fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    ann.start(&[("server_ids", one.as_str())]).await.is(303);
    let id = batches(service).await[0]["id"].as_str().unwrap().to_owned();
    let here = format!("/batches/{id}");
    let state = async || batches(service).await[0]["state"].as_str().unwrap().to_owned();
    ann.submit(&format!("{here}/pause"), &[]).await.is(303);
    assert_eq!(state().await, "paused");
    assert!(ann.get(&here).await.is(200).text().contains(">Resume<"));
    ann.submit(&format!("{here}/resume"), &[("state", "paused"), ("failures", "0")]).await.is(303);
    assert_ne!(state().await, "paused");
    let confirmation = ann.submit(&format!("{here}/cancel"), &[]).await.is(200).text();
    assert!(
        confirmation.contains("nothing is rolled back") && state().await != "canceled",
        "{confirmation}"
    );
    ann.submit(&format!("{here}/cancel"), &[("go", "1")]).await.is(303);
    assert!(["canceling", "canceled"].contains(&state().await.as_str()));
    ann.submit(&format!("{here}/explode"), &[]).await.is(404);
    let retry = ann.submit(&format!("{here}/retry"), &[("go", "1")]).await;
    assert_eq!(retry.status.as_u16(), 409);
}

async fn schedule_is_created_edited_run_and_deleted(service: &Service) {
    fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let mut form = vec![
        ("name", "Nightly"),
        ("cron", "0 3 * *"),
        ("timezone", "Europe/Berlin"),
        ("enabled", "true"),
        ("environment", "production"),
        ("what", "all"),
        ("reboot", "if_required"),
        ("canary", "10%"),
    ];
    let page = ann.submit("/schedules/new", &form).await.is(422).text();
    assert!(page.contains("value=\"Nightly\"") && page.contains("role=\"alert\""), "{page}");
    form[1] = ("cron", "0 3 * * *");
    let created = ann.submit("/schedules/new", &form).await.is(303);
    let here = created.header("location").to_owned();
    assert!(here.starts_with("/schedules/sch_"), "{here}");
    let page = ann.get(&here).await.is(200).text();
    assert!(page.contains("Mon 2026-11-16 03:00") && page.contains("canary 10%"), "{page}");

    let edit = ann.get(&format!("{here}/edit")).await.is(200).text();
    let generation = edit
        .split("name=\"generation\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    form[0] = ("name", "Weekly");
    form.push(("generation", &generation));
    ann.submit(&format!("{here}/edit"), &form).await.is(303);
    // The same form, sent again from an outdated tab.
    let stale = ann.submit(&format!("{here}/edit"), &form).await.is(422).text();
    assert!(stale.contains("The resource has changed"), "{stale}");

    let asked = ann.submit(&format!("{here}/run"), &[]).await.is(200).text();
    assert!(asked.contains("web-1") && batches(service).await.is_empty(), "{asked}");
    let ran = ann.confirm(&format!("{here}/run")).await.is(303);
    assert_eq!(ran.header("location"), here);
    assert_eq!(batches(service).await.len(), 1);
    ann.submit(&format!("{here}/delete"), &[]).await.is(200);
    ann.get(&here).await.is(200);
    ann.submit(&format!("{here}/delete"), &[("go", "1")]).await.is(303);
    ann.get(&here).await.is(404);
}

async fn schedule_without_servers_needs_confirmation_and_keeps_input(service: &Service) {
    fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let mut form = vec![
        ("name", "Nightly"),
        ("cron", "0 3 * * *"),
        ("timezone", "Europe/Berlin"),
        ("enabled", "true"),
        ("environment", "prodction"),
        ("what", "all"),
        ("reboot", "if_required"),
        ("canary", "10%"),
    ];
    let page = ann.submit("/schedules/new", &form).await.is(422).text();
    assert!(
        page.contains("Did you mean &#34;production&#34;?")
            && page.contains("Create the schedule anyway"),
        "{page}"
    );
    for kept in
        ["value=\"Nightly\"", "value=\"prodction\"", "value=\"Europe/Berlin\"", "value=\"10%\""]
    {
        assert!(page.contains(kept), "no {kept} in {page}");
    }
    assert!(!ann.get("/schedules/new").await.is(200).text().contains("allow_empty"));
    // The checkbox stays checked after another error.
    form.push(("allow_empty", "true"));
    form[1] = ("cron", "0 3 * *");
    let page = ann.submit("/schedules/new", &form).await.is(422).text();
    assert!(page.contains("name=\"allow_empty\" value=\"true\" checked"), "{page}");
    form[1] = ("cron", "0 3 * * *");
    let here = ann.submit("/schedules/new", &form).await.is(303).header("location").to_owned();
    let page = ann.get(&here).await.is(200).text();
    assert!(page.contains("Runs are skipped until a server matches."), "{page}");
    let asked = ann.submit(&format!("{here}/run"), &[]).await.is(200).text();
    assert!(asked.contains("No server has the environment"), "{asked}");
    ann.confirm(&format!("{here}/run")).await.is(303);
    let page = ann.get(&here).await.is(200).text();
    assert!(
        page.contains("skipped</span>: no server matches the schedule&#39;s targets"),
        "{page}"
    );
    assert!(batches(service).await.is_empty());

    form.retain(|(name, _)| *name != "allow_empty");
    form.push(("generation", "1"));
    let page = ann.submit(&format!("{here}/edit"), &form).await.is(422).text();
    assert!(page.contains("Save the schedule anyway"), "{page}");
}

async fn server_is_refreshed_and_removed_after_confirmation(service: &Service) {
    let [one, _] = fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    ann.submit(&format!("/servers/{one}/refresh"), &[]).await.is(303);
    let here = format!("/servers/{one}/remove");
    ann.submit(&here, &[]).await.is(303);
    ann.get(&format!("/servers/{one}")).await.is(200);
    ann.submit(&here, &[("go", "1")]).await.is(303);
    ann.get(&format!("/servers/{one}")).await.is(404);
}

async fn server_is_edited_and_concurrent_edits_are_not_lost(service: &Service) {
    let id = join(service, Host { tags: &["web"], ..Host::new("web-1") }).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let path = format!("/servers/{id}/edit");
    let page = ann.get(&path).await.is(200).text();
    assert!(page.contains("value=\"production\"") && page.contains("value=\"web\""), "{page}");
    let shown = page.split("name=\"shown\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let bad = [("environment", "a b"), ("tags", "x  y"), ("shown", shown)];
    let page = ann.submit(&path, &bad).await.is(422).text();
    assert!(page.contains("role=\"alert\"") && page.contains("value=\"a b\""), "{page}");
    let good = [("environment", "staging"), ("tags", "blue, web rack=7"), ("shown", shown)];
    assert_eq!(ann.submit(&path, &good).await.is(303).header("location"), format!("/servers/{id}"));
    let server = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
    assert_eq!(
        (&server["environment"], &server["tags"]),
        (&json!("staging"), &json!(["blue", "web", "rack=7"]))
    );
    // The same form again, as from a second tab, would undo that.
    let late = [("environment", ""), ("tags", ""), ("shown", shown)];
    ann.submit(&path, &late).await.is(409);
    assert!(ann.get(&format!("/servers/{id}")).await.text().contains("staging"));
    let eve = Browser::signed_in(service, "eve", Role::Viewer).await;
    eve.get(&path).await.is(403);
}

async fn several_servers_are_edited_at_once(service: &Service) {
    let [one, two] = fleet(service).await;
    join(service, Host::new("db-1").in_environment("staging")).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let chosen = [("server_ids", one.as_str()), ("server_ids", two.as_str())];
    let page = ann.submit("/servers/edit", &chosen).await.is(200).text();
    assert!(page.contains("Edit 2 servers") && page.contains("Change 2 servers"), "{page}");
    let with = |fields: &[(&'static str, &'static str)]| -> Vec<(&str, &str)> {
        chosen.iter().chain(fields).chain(&[("go", "1")]).copied().collect()
    };
    let bad = with(&[("environment_change", "set"), ("environment", "a b"), ("add_tags", "x y")]);
    let page = ann.submit("/servers/edit", &bad).await.is(422).text();
    assert!(page.contains("role=\"alert\"") && page.contains("value=\"a b\""), "{page}");
    let good = with(&[("environment_change", "set"), ("environment", "blue"), ("add_tags", "x y")]);
    ann.submit("/servers/edit", &good).await.is(303);
    let seen = service.get("/v1/servers?environment=blue&tag=x,y").await.is(200).json();
    assert_eq!(seen["meta"]["total"], 2);
    // All that match the list's filters, however many were on its page.
    let every = [("all_matching", "2"), ("matching", "?environment=blue&sort=last_seen")];
    let page = ann.submit("/servers/edit", &every).await.is(200).text();
    assert!(page.contains("Edit 2 servers"), "{page}");
    let page = ann.submit("/order", &every).await.is(200).text();
    assert!(page.contains("Patch 2 servers") && page.contains(&two), "{page}");
    let keep = with(&[("environment_change", "keep"), ("remove_tags", "y")]);
    ann.submit("/servers/edit", &keep).await.is(303);
    let seen = service.get("/v1/servers?environment=blue&tag=x").await.is(200).json();
    assert_eq!(seen["data"][0]["tags"], json!(["x"]));
    ann.submit("/servers/edit", &[]).await.is(400);
    ann.submit("/servers/edit", &[("all_matching", "1"), ("matching", "?statsu=x")]).await.is(400);
    let eve = Browser::signed_in(service, "eve", Role::Viewer).await;
    eve.submit("/servers/edit", &good).await.is(403);
}

async fn secrets_are_created_shown_once_and_revoked(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let page = ann
        .submit("/settings/tokens", &[("name", "web image"), ("environment", "production")])
        .await
        .is(200)
        .text();
    assert!(
        page.contains("fleetmend-agent enroll --server http://fleet.example --token fme_"),
        "{page}"
    );
    let page =
        ann.submit("/settings/keys", &[("name", "ci"), ("role", "operator")]).await.is(200).text();
    let key = page.split("id=\"secret\">").nth(1).unwrap().split('<').next().unwrap().to_owned();
    crate::support::TestRequest::get("/v1/servers")
        .with_key(&key)
        .send(&service.router)
        .await
        .is(200);
    let settings = ann.get("/settings/tokens").await.is(200).text()
        + &ann.get("/settings/keys").await.is(200).text();
    assert!(
        settings.contains("web image") && !settings.contains(&key) && !settings.contains("fme_"),
        "{settings}"
    );
    let found = service.get("/v1/api-keys").await.json();
    let id =
        found["data"].as_array().unwrap().iter().find(|key| key["name"] == "ci").unwrap()["id"]
            .clone();
    let path = format!("/settings/keys/{}/revoke", id.as_str().unwrap());
    ann.submit(&path, &[]).await.is(200);
    crate::support::TestRequest::get("/v1/servers")
        .with_key(&key)
        .send(&service.router)
        .await
        .is(200);
    ann.submit(&path, &[("go", "1")]).await.is(303);
    crate::support::TestRequest::get("/v1/servers")
        .with_key(&key)
        .send(&service.router)
        .await
        .is(401);
}

async fn feeds_are_added_updated_and_removed_after_confirmation(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    ann.submit("/settings/feeds", &[("name", "Debian")]).await.is(303);
    let url = "https://feeds.example.org/osv/all.zip";
    ann.submit("/settings/feeds", &[("url", url), ("name", "<ours>")]).await.is(303);
    let problem = ann.submit("/settings/feeds", &[("url", "nonsense")]).await.is(422).text();
    assert!(problem.contains("not a valid URL"), "{problem}");
    let page = ann.get("/settings/feeds").await.is(200).text();
    assert!(page.contains("&#60;ours&#62;") && page.contains("tone-warn\">waiting"), "{page}");
    assert!(!page.contains("value=\"Debian\""), "it is added already");
    let path = format!("/settings/feeds/{}", service::queries::feeds::id("Debian"));
    ann.submit(&format!("{path}/update"), &[]).await.is(303);
    let question = ann.submit(&format!("{path}/remove"), &[]).await.is(200).text();
    assert!(question.contains("Remove Debian?"), "{question}");
    assert_eq!(service.get("/v1/feeds").await.json()["meta"]["total"], 2);
    ann.submit(&format!("{path}/remove"), &[("go", "1")]).await.is(303);
    assert_eq!(service.get("/v1/feeds").await.json()["meta"]["total"], 1);
    let eve = Browser::signed_in(service, "eve", Role::Operator).await;
    eve.get("/settings/feeds").await.is(403);
    eve.submit("/settings/feeds", &[("name", "KEV")]).await.is(403);
}

/// Two servers with a CVE in openssl and the update for it, and one with another update.
async fn affected_fleet(service: &Service) -> [String; 2] {
    let servers = fleet(service).await;
    let other = security("vim", Severity::Low, &["CVE-2026-2"]);
    join(service, Host::new("db-1").with_updates(vec![other])).await;
    service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    servers
}

async fn affected_servers_are_patched_from_the_pages_of_cves_and_packages(service: &Service) {
    let [one, two] = affected_fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let page = ann.get("/cves/CVE-2026-1").await.is(200).text();
    assert!(page.contains("Patch 2 affected servers…"), "{page}");
    let page = ann.submit("/order", &[("cve", "CVE-2026-1")]).await.is(200).text();
    assert!(
        page.contains("value=\"openssl\"") && page.contains("Patch 2 servers (1 package)"),
        "{page}"
    );
    assert!(page.contains(&one) && page.contains(&two) && !page.contains("db-1"), "{page}");
    assert_eq!(batches(service).await.len(), 0, "nothing starts without a confirmation");
    let page = ann.get("/patches/openssl").await.is(200).text();
    assert!(page.contains("Patch 2 servers…"), "{page}");
    let page = ann.submit("/order", &[("pending", "openssl")]).await.is(200).text();
    assert!(page.contains(&one) && page.contains(&two) && !page.contains("db-1"), "{page}");
    let both = [("pending", "openssl"), ("pending", "vim")];
    let page = ann.submit("/order", &both).await.is(200).text();
    assert!(page.contains("value=\"openssl, vim\"") && page.contains("db-1"), "{page}");
    ann.submit("/order", &[("cve", "CVE-2026-9")]).await.is(404);
    ann.submit("/order", &[("pending", "nothing")]).await.is(400);
    let eve = Browser::signed_in(service, "eve", Role::Viewer).await;
    eve.submit("/order", &[("cve", "CVE-2026-1")]).await.is(403);
    let page = eve.get("/cves/CVE-2026-1").await.is(200).text();
    assert!(!page.contains("affected servers…") && !page.contains("Suppress…"), "{page}");
}

async fn cve_is_suppressed_with_a_reason_and_counted_again(service: &Service) {
    affected_fleet(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let form = "/cves/CVE-2026-1/suppress";
    let page = ann.get(form).await.is(200).text();
    assert!(page.contains("<option value=\"production\">production</option>"), "{page}");
    let page = ann.submit(form, &[("reason", ""), ("expires_at", "soon")]).await.is(422).text();
    assert!(page.contains("role=\"alert\"") && page.contains("value=\"soon\""), "{page}");
    assert!(
        page.contains("id=\"f-reason-error\"") && page.contains("f-expires_at-error"),
        "{page}"
    );
    let past = [("reason", "old"), ("expires_at", "2001-01-01")];
    assert!(ann.submit(form, &past).await.is(422).text().contains("in the future"));
    let good =
        [("reason", "not\nreachable"), ("environment", "production"), ("expires_at", "2099-01-02")];
    let there = ann.submit(form, &good).await.is(303).header("location").to_owned();
    assert_eq!(there, "/cves/CVE-2026-1");
    let page = ann.get(&there).await.is(200).text();
    assert!(page.contains("not reachable") && page.contains("Stop suppressing"), "{page}");
    assert!(!page.contains("affected servers…"), "{page}");
    let list = service.get("/v1/suppressions").await.is(200).json();
    assert_eq!(list["data"][0]["expires_at"], "2099-01-02T00:00:00Z");
    let path = format!("/suppressions/{}/delete", list["data"][0]["id"].as_str().unwrap());
    let eve = Browser::signed_in(service, "eve", Role::Viewer).await;
    eve.submit(&path, &[]).await.is(403);
    eve.submit(form, &good).await.is(403);
    assert_eq!(ann.submit(&path, &[]).await.is(303).header("location"), there);
    assert!(ann.get(&there).await.is(200).text().contains("Patch 2 affected servers…"));
    ann.get("/cves/CVE-2026-9/suppress").await.is(404);
    ann.submit("/cves/CVE-2026-9/suppress", &good).await.is(404);
}

async fn canceled_servers_are_patched_with_the_same_options(service: &Service) {
    let [one, two] = fleet(service).await;
    let body = json!({"server_ids": [one, two], "packages": ["openssl"], "max_parallel": 3});
    let batch = service.post("/v1/batches", body).await.is(202).json();
    let batch = batch["id"].as_str().unwrap();
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let again = [("canceled_in", batch)];
    ann.submit("/order", &again).await.is(409);
    change(service, batch, Change::Start).await;
    service.post(&format!("/v1/batches/{batch}/cancel"), json!({})).await.is(200);
    cancel_tasks(service, batch).await;
    end(service, batch, RolloutOutcome::Canceled).await;
    let page = ann.get(&format!("/batches/{batch}")).await.is(200).text();
    assert!(page.contains("Patch 2 canceled servers…"), "{page}");
    service.delete(&format!("/v1/servers/{two}")).await.is(204);
    let page = ann.submit("/order", &again).await.is(200).text();
    assert!(page.contains(&one) && !page.contains(&two), "{page}");
    assert!(page.contains("value=\"openssl\"") && page.contains("value=\"3\""), "{page}");
    assert_eq!(batches(service).await.len(), 1, "nothing starts without a confirmation");
    for nothing in ["x", "bat_01jcqk3m8ye0fr5cq0k6s8v2xw"] {
        ann.submit("/order", &[("canceled_in", nothing)]).await.is(404);
    }
}

async fn cve_pages_show_imports_in_progress(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let banner = "Importing Debian: 41%";
    assert!(!ann.get("/cves").await.is(200).text().contains("Importing"));
    service.post("/v1/feeds", serde_json::json!({"name": "Debian"})).await.is(201);
    let progress = store::feed_progress::FeedProgress {
        name: "Debian".into(),
        phase: "importing".into(),
        bytes: 1_000,
        total_bytes: Some(1_000),
        records: 41,
        total_records: Some(100),
        phase_started_at: service.clock.now(),
        updated_at: service.clock.now(),
    };
    let mut tx = service.app.db.begin().await.unwrap();
    store::feed_progress::save(&mut tx, &progress).await.unwrap();
    tx.commit().await.unwrap();
    assert!(ann.get("/cves").await.is(200).text().contains(banner));
    let bob = Browser::signed_in(service, "bob", Role::Admin).await;
    let page = bob.get("/settings/feeds").await.is(200).text();
    assert!(page.contains("Importing: 41%") && page.contains("tone-busy\">importing"), "{page}");
    service.clock.advance(jiff::SignedDuration::from_mins(3));
    let later = ann.get("/cves").await.is(200).text();
    assert!(!later.contains(banner), "the process that imported it was killed");
}

async fn admin_invites_resets_and_removes_others_only(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let page =
        ann.submit("/settings/users", &[("name", "bob"), ("role", "viewer")]).await.is(200).text();
    let link = page.split("/welcome/").nth(1).unwrap().split('<').next().unwrap().to_owned();
    Browser::new(service).get(&format!("/welcome/{link}")).await.is(200);
    let taken = ann.submit("/settings/users", &[("name", "BOB"), ("role", "viewer")]).await;
    assert_eq!(taken.status.as_u16(), 409);
    let id = async |name: &str| {
        let mut reader = service.app.db.read().await.unwrap();
        store::users::by_name(&mut reader, service.org, name).await.unwrap().unwrap().id
    };
    let (me, bob) = (id("ann").await, id("bob").await);
    ann.submit(&format!("/settings/users/{me}/remove"), &[("go", "1")]).await.is(409);
    ann.submit(&format!("/settings/users/{bob}/reset"), &[("go", "1")]).await.is(200);
    Browser::new(service).get(&format!("/welcome/{link}")).await.is(404);
    ann.submit(&format!("/settings/users/{bob}/remove"), &[("go", "1")]).await.is(303);
    assert!(!ann.get("/settings/people").await.text().contains(">bob"));
}

testkit::both!(
    crate::support:
    batch_is_previewed_and_starts_only_on_confirmation,
    waves_start_and_are_approved_by_someone_else,
    double_click_starts_one_batch,
    form_that_is_sent_twice_takes_effect_once,
    invalid_patch_form_comes_back_unchanged_and_starts_nothing,
    batch_is_paused_resumed_and_canceled_after_confirmation,
    schedule_is_created_edited_run_and_deleted,
    schedule_without_servers_needs_confirmation_and_keeps_input,
    server_is_refreshed_and_removed_after_confirmation,
    server_is_edited_and_concurrent_edits_are_not_lost,
    several_servers_are_edited_at_once,
    secrets_are_created_shown_once_and_revoked,
    feeds_are_added_updated_and_removed_after_confirmation,
    affected_servers_are_patched_from_the_pages_of_cves_and_packages,
    cve_is_suppressed_with_a_reason_and_counted_again,
    canceled_servers_are_patched_with_the_same_options,
    cve_pages_show_imports_in_progress,
    admin_invites_resets_and_removes_others_only,
);
