//! A start runs exactly what its preview showed; anything else is rejected.

use axum::http::Method;
use domain::rollout::{Change, HaltReason, RolloutOutcome};
use jiff::SignedDuration;
use serde_json::{Value, json};
use vocab::{Role, Severity};

use crate::browser::{Browser, PASSWORD, preview_field, start_token};
use crate::fleet::{FAILED, Host, change, end, finish, join, security};
use crate::markup::{fields, form_around};
use crate::support::{Service, TestRequest};

const CHANGED: &str = "The options changed since the preview. Review it and start again.";
const EXPIRED: &str = "The preview has expired. Review the new one and start again.";

type Fields = Vec<(String, String)>;

async fn six_servers(service: &Service) -> Vec<String> {
    let mut ids = Vec::new();
    for name in ["web-1", "web-2", "web-3", "web-4", "web-5", "web-6"] {
        let updates = vec![security("openssl", Severity::High, &["CVE-2026-1"])];
        ids.push(join(service, Host::new(name).with_updates(updates)).await.to_string());
    }
    ids
}

async fn batches(service: &Service) -> Vec<Value> {
    service.get("/v1/batches").await.is(200).json()["data"].as_array().unwrap().clone()
}

/// The form of a patch page as Preview sends it.
fn form_fields(page: &str) -> Fields {
    fields(form_around(page, page.find("data-previewed").unwrap()))
}

/// The same fields with one changed, added or removed.
fn with(form: &Fields, name: &str, value: &str) -> Fields {
    let mut form: Fields = form.iter().filter(|(field, _)| field != name).cloned().collect();
    if !value.is_empty() {
        form.push((name.into(), value.into()));
    }
    form
}

async fn send(browser: &Browser, form: &Fields) -> crate::support::TestResponse {
    let form: Vec<(&str, &str)> =
        form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    browser.post("/order", &form).await
}

/// The page and form of a preview with every option set.
async fn preview_form(ann: &Browser, ids: &[String]) -> (Fields, String) {
    let mut form: Vec<(&str, &str)> =
        ids[..5].iter().map(|id| ("server_ids", id.as_str())).collect();
    form.extend([
        ("what", "packages"),
        ("packages", "openssl"),
        ("exclude", "linux-*"),
        ("reboot", "never"),
        ("stagger_minutes", "5"),
        ("max_parallel", "1"),
        ("canary", "2"),
        ("max_failures", "1"),
        ("window_minutes", "60"),
        ("dry_run", "true"),
    ]);
    let page = ann.submit("/order", &form).await.is(200).text();
    (form_fields(&page), page)
}

async fn start_with_any_field_changed_since_the_preview_is_rejected(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let (form, page) = preview_form(&ann, &ids).await;
    assert!(page.contains(">Dry run on 5 servers (1 package)</button>"), "{page}");
    let token = start_token(&page);
    let servers = |some: &[&String]| -> Fields {
        let ids = some.iter().map(|id| ("server_ids".to_owned(), id.to_string()));
        with(&form, "server_ids", "").into_iter().chain(ids).collect()
    };
    let all: Vec<&String> = ids.iter().collect();
    let mut attacks: Vec<(&str, Fields)> = vec![
        ("one server less", servers(&all[..4])),
        ("one server more", servers(&all)),
        ("another server", servers(&all[1..])),
    ];
    for (name, value) in [
        ("what", "all"),
        ("what", "security"),
        ("what", "packages_security"),
        ("packages", "openssl, bash"),
        ("exclude", ""),
        ("exclude", "*"),
        ("reboot", "always"),
        ("stagger_minutes", ""),
        ("max_parallel", "5"),
        ("max_parallel", ""),
        ("canary", "1"),
        ("canary", ""),
        ("max_failures", ""),
        ("window_minutes", ""),
        ("override_freeze", "CVE-2026-1"),
        ("pin_versions", "true"),
        ("health", "off"),
        ("max_unhealthy", "9"),
        ("dry_run", ""),
    ] {
        attacks.push((name, with(&form, name, value)));
    }
    for (what, form) in &attacks {
        let page = send(&ann, &with(form, "start", &token)).await.is(422).text();
        assert!(page.contains(CHANGED), "{what}: {page}");
        // The current values come back, with a preview of them and a token for it.
        let mut back = form_fields(&page);
        let mut sent = form.clone();
        back.retain(|(_, value)| !value.is_empty());
        sent.retain(|(_, value)| !value.is_empty());
        back.sort();
        sent.sort();
        assert_eq!(back, sent, "{what}");
        assert_ne!(start_token(&page), token, "{what}");
        assert_eq!(batches(service).await, Vec::<Value>::new(), "{what}");
    }
    // Unchanged, it starts exactly what was shown.
    send(&ann, &with(&form, "start", &token)).await.is(303);
    let created = batches(service).await;
    assert_eq!(created.len(), 1);
    assert_eq!(created[0]["progress"]["total"], 5);
    assert_eq!(
        created[0]["options"],
        json!({"packages": ["openssl"], "exclude": ["linux-*"], "security_only": false,
        "reboot": "never", "stagger_minutes": 5, "max_parallel": 1, "canary": 2, "max_failures": 1,
        "waves": [], "window_minutes": 60, "override_freeze": null, "pin_versions": false,
        "health": "report", "max_unhealthy": 0, "dry_run": true})
    );
    // A used token starts nothing more, even with an additional field that is ignored.
    let total = service.get("/v1/batches").await.is(200).json()["meta"]["total"].clone();
    for junk in ["1", "2"] {
        send(&ann, &with(&with(&form, "junk", junk), "start", &token)).await.is(422);
    }
    let unchanged = send(&ann, &with(&form, "start", &token)).await.is(303);
    assert_eq!(service.get("/v1/batches").await.is(200).json()["meta"]["total"], total);
    assert!(unchanged.header("location").starts_with("/batches/"));
    // The new preview after a rejected start can be started.
    let refused =
        send(&ann, &with(&with(&form, "dry_run", ""), "start", &token)).await.is(422).text();
    assert!(refused.contains(">Patch 5 servers (1 package)</button>"), "{refused}");
    let started =
        send(&ann, &with(&form_fields(&refused), "start", &start_token(&refused))).await.is(303);
    let created = service.get(&format!("/v1{}", started.header("location"))).await.is(200).json();
    assert_eq!(
        (&created["progress"]["total"], &created["options"]["dry_run"]),
        (&json!(5), &json!(false))
    );
    assert_eq!(batches(service).await.len(), 2);
}

/// Regression: options that were set after the preview were ignored by the start.
async fn options_set_after_the_preview_are_not_ignored(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let chosen: Vec<(&str, &str)> = ids.iter().map(|id| ("server_ids", id.as_str())).collect();
    let page = ann.submit("/order", &chosen).await.is(200).text();
    assert!(page.contains(">Patch 6 servers (security updates)</button>"), "{page}");
    let (mut form, token) = (form_fields(&page), start_token(&page));
    for (name, value) in
        [("dry_run", "true"), ("canary", "2"), ("max_parallel", "1"), ("exclude", "*")]
    {
        form = with(&form, name, value);
    }
    let page = send(&ann, &with(&form, "start", &token)).await.is(422).text();
    assert!(page.contains(CHANGED) && batches(service).await.is_empty(), "{page}");
    assert!(page.contains(">Dry run on 6 servers (security updates)</button>"), "{page}");
    send(&ann, &with(&form_fields(&page), "start", &start_token(&page))).await.is(303);
    let created = &batches(service).await[0]["options"];
    assert_eq!(
        (&created["dry_run"], &created["canary"], &created["max_parallel"]),
        (&json!(true), &json!(2), &json!(1))
    );
    assert_eq!(created["exclude"], json!(["*"]));
}

async fn preview_token_of_another_user_session_or_time_is_rejected(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let (form, page) = preview_form(&ann, &ids).await;
    let token = start_token(&page);
    let replay = async |browser: &Browser, token: &str| {
        let form = with(&with(&form, "csrf", &browser.csrf().await), "start", token);
        send(browser, &form).await
    };
    // Another user of the same organization.
    let bob = Browser::signed_in(service, "bob", Role::Admin).await;
    assert!(replay(&bob, &token).await.is(422).text().contains(CHANGED));
    // The same user in another session.
    let again = Browser::new(service);
    again.post("/sign-in", &[("name", "ann"), ("password", PASSWORD)]).await.is(303);
    assert!(replay(&again, &token).await.is(422).text().contains(CHANGED));
    // Another organization does not even see the servers.
    let eve = Browser::of_other_organization(service).await;
    replay(&eve, &token).await.is(422);
    // Forged: another expiry time, another digest, no token at all.
    let (expires, rest) = token.split_once('.').unwrap();
    let later = format!("{}.{rest}", expires.parse::<i64>().unwrap() + 1);
    let last = if token.ends_with('A') { 'E' } else { 'A' };
    let other = format!("{}{last}", &token[..token.len() - 1]);
    for forged in [later.as_str(), &other, "x", "..", "9999999999..", "1"] {
        assert!(replay(&ann, forged).await.is(422).text().contains(CHANGED), "{forged}");
    }
    // Too late.
    service.clock.advance(SignedDuration::from_mins(30));
    assert!(replay(&ann, &token).await.is(422).text().contains(EXPIRED));
    assert_eq!(batches(service).await, Vec::<Value>::new());
}

async fn patch_page_has_one_form_with_every_option(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let (_, page) = preview_form(&ann, &ids).await;
    let main = page.split("<main").nth(1).unwrap().split("</main>").next().unwrap();
    assert_eq!(main.matches("<form").count(), 1, "{main}");
    let hidden: Vec<&str> = main
        .split("type=\"hidden\" name=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert_eq!(hidden, ["csrf"]);
}

async fn schedule_changed_since_the_preview_is_not_run(service: &Service) {
    six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let schedule = json!({"name": "Nightly", "cron": "0 3 * * *", "targets": {"environment": "production"},
        "options": {"security_only": true, "dry_run": true}});
    let id = service.post("/v1/schedules", schedule.clone()).await.is(201).json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let run = format!("/schedules/{id}/run");
    let page = ann.submit(&run, &[]).await.is(200).text();
    assert!(page.contains(">Dry run on 6 servers (security updates)</button>"), "{page}");
    let old = preview_field(&page);
    let press = async |token: &str| ann.submit(&run, &[("go", "1"), ("preview", token)]).await;
    let refused = "changed since the preview";
    // Other options.
    let mut changed = schedule.clone();
    changed["options"]["dry_run"] = json!(false);
    let put =
        TestRequest::new(Method::PUT, &format!("/v1/schedules/{id}")).with_key(&service.admin);
    put.with_json(changed).send(&service.router).await.is(200);
    let page = press(&old).await.is(422).text();
    assert!(
        page.contains(refused) && page.contains(">Patch 6 servers (security updates)</button>"),
        "{page}"
    );
    // Another server.
    let fresh = preview_field(&page);
    join(service, Host::new("web-7")).await;
    let page = press(&fresh).await.is(422).text();
    assert!(
        page.contains(refused) && page.contains(">Patch 7 servers (security updates)</button>"),
        "{page}"
    );
    // No token, another user's token, too late.
    for token in ["", &old, &fresh] {
        press(token).await.is(422);
    }
    let bob = Browser::signed_in(service, "bob", Role::Operator).await;
    let theirs = preview_field(&bob.submit(&run, &[]).await.is(200).text());
    press(&theirs).await.is(422);
    let mine = preview_field(&ann.submit(&run, &[]).await.is(200).text());
    service.clock.advance(SignedDuration::from_mins(30));
    press(&mine).await.is(422);
    assert_eq!(batches(service).await, Vec::<Value>::new());
    ann.confirm(&run).await.is(303);
    let created = batches(service).await;
    assert_eq!(
        (&created[0]["progress"]["total"], &created[0]["options"]["dry_run"]),
        (&json!(7), &json!(false))
    );
}

async fn retry_patches_exactly_the_previewed_servers(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let order = json!({"server_ids": &ids[..3], "security_only": true, "canary": 1});
    let batch =
        service.post("/v1/batches", order).await.is(202).json()["id"].as_str().unwrap().to_owned();
    for id in &ids[..3] {
        finish(service, &batch, id.parse().unwrap(), FAILED).await;
    }
    end(service, &batch, RolloutOutcome::Failed).await;
    let retry = format!("/batches/{batch}/retry");
    let page = ann.submit(&retry, &[]).await.is(200).text();
    assert!(
        page.contains(">Patch 3 servers (security updates)</button>") && page.contains("web-3"),
        "{page}"
    );
    let old = preview_field(&page);
    // A failed server is removed: a retry would patch two.
    ann.submit(&format!("/servers/{}/remove", ids[2]), &[("go", "1")]).await.is(303);
    let page = ann.submit(&retry, &[("go", "1"), ("preview", &old)]).await.is(422).text();
    assert!(page.contains("The failed servers changed since the preview"), "{page}");
    assert!(
        page.contains(">Patch 2 servers (security updates)</button>") && !page.contains("web-3"),
        "{page}"
    );
    assert_eq!(batches(service).await.len(), 1);
    // The token of one batch is not valid for another action.
    ann.submit(&retry, &[("go", "1")]).await.is(422);
    let created =
        ann.submit(&retry, &[("go", "1"), ("preview", &preview_field(&page))]).await.is(303);
    let created = service.get(&format!("/v1{}", created.header("location"))).await.is(200).json();
    assert_eq!(
        (&created["progress"]["total"], &created["options"]["canary"]),
        (&json!(2), &json!(1))
    );
}

/// The forms differ in everything but the token, and encode its field differently.
async fn preview_token_starts_one_batch_only(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let csrf = ann.csrf().await;
    let chosen = format!("csrf={csrf}&server_ids={}", ids[0]);
    for (nth, attack) in [
        "once=w{n}&start={token}",
        "start={token}&once=w{n}",
        "junk={n}&%73tart={token}",
        "%6Fnce=w{n}&%73%74art={token}",
        "junk={n}&preview=&go=1&start={token}",
        "go=1&once=w{n}&start={token}",
    ]
    .iter()
    .enumerate()
    {
        let page = ann.post_raw("/order", chosen.clone()).await.is(200).text();
        let token = start_token(&page);
        let form = |n: usize| {
            let rest = attack.replace("{n}", &n.to_string()).replace("{token}", &token);
            format!("{chosen}&{rest}")
        };
        let there = ann.post_raw("/order", form(0)).await.is(303).header("location").to_owned();
        for n in 1..5 {
            let page = ann.post_raw("/order", form(n)).await.is(422).text();
            assert!(page.contains(CHANGED) && start_token(&page) != token, "{attack}: {page}");
        }
        // The form that started the batch still redirects there.
        assert_eq!(ann.post_raw("/order", form(0)).await.is(303).header("location"), there);
        assert_eq!(batches(service).await.len(), nth + 1, "{attack}");
    }
    // All at the same time.
    let before = batches(service).await.len();
    let token = start_token(&ann.post_raw("/order", chosen.clone()).await.is(200).text());
    let forms = (0..8).map(|n| format!("{chosen}&once=w{n}&%73tart={token}"));
    let sent = futures_util::future::join_all(forms.map(|form| ann.post_raw("/order", form))).await;
    assert_eq!(sent.iter().filter(|answer| answer.status == 303).count(), 1, "{sent:?}");
    assert_eq!(batches(service).await.len(), before + 1);
}

async fn confirmed_preview_counts_once(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let batch = service
        .post("/v1/batches", json!({"server_ids": [ids[0]], "security_only": true}))
        .await
        .is(202)
        .json();
    let batch = batch["id"].as_str().unwrap().to_owned();
    finish(service, &batch, ids[0].parse().unwrap(), FAILED).await;
    end(service, &batch, RolloutOutcome::Failed).await;
    let schedule = json!({"name": "Nightly", "cron": "0 3 * * *", "targets": {"all": true},
        "options": {"security_only": true}});
    let schedule = service.post("/v1/schedules", schedule).await.is(201).json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    for (nth, action) in
        [format!("/batches/{batch}/retry"), format!("/schedules/{schedule}/run")].iter().enumerate()
    {
        let token = preview_field(&ann.submit(action, &[]).await.is(200).text());
        // Opening the preview again does not use it up.
        ann.submit(action, &[("preview", &token), ("once", "w")]).await.is(200);
        let forms: Vec<_> = (0..5).map(|n| format!("w{n}")).collect();
        let forms: Vec<_> = forms
            .iter()
            .map(|word| [("once", word.as_str()), ("go", "1"), ("preview", &token)])
            .collect();
        let sent =
            futures_util::future::join_all(forms.iter().map(|form| ann.submit(action, form))).await;
        let started: Vec<_> =
            sent.iter().enumerate().filter(|(_, answer)| answer.status == 303).collect();
        assert_eq!(started.len(), 1, "{action}: {sent:?}");
        let (first, there) = (started[0].0, started[0].1.header("location").to_owned());
        assert_eq!(batches(service).await.len(), nth + 2, "{action}");
        // After the batch has ended, the token still starts nothing more.
        let all = batches(service).await;
        let created = all.iter().find(|batch| batch["state"] == "scheduled").unwrap();
        let created = created["id"].as_str().unwrap().to_owned();
        end(service, &created, RolloutOutcome::Canceled).await;
        for form in forms.iter().enumerate().filter(|(n, _)| *n != first).map(|(_, form)| form) {
            let page = ann.submit(action, form).await.is(422).text();
            assert!(
                page.contains("changed since the preview") && preview_field(&page) != token,
                "{page}"
            );
        }
        let csrf = ann.csrf().await;
        ann.post_raw(action, format!("csrf={csrf}&go=1&%70review={token}&once=w")).await.is(422);
        // The same button again, or a reload, returns the result of the first.
        assert_eq!(ann.submit(action, &forms[first]).await.is(303).header("location"), there);
        assert_eq!(batches(service).await.len(), nth + 2, "{action}");
    }
}

async fn form_with_duplicate_field_or_two_tokens_is_rejected(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let csrf = ann.csrf().await;
    let chosen = format!("csrf={csrf}&server_ids={}&server_ids={}", ids[0], ids[1]);
    let token = start_token(&ann.post_raw("/order", chosen.clone()).await.is(200).text());
    for twice in [
        format!("start=w&start={token}"),
        format!("start={token}&%73tart=w"),
        format!("start={token}&once=a&once=b"),
        format!("start={token}&csrf={csrf}"),
        format!("start={token}&dry_run=&dry_run=true"),
        format!("start={token}&junk=1&junk=1"),
    ] {
        let told = ann.post_raw("/order", format!("{chosen}&{twice}")).await.is(400).text();
        assert!(told.contains("more than once") && told.contains("<main"), "{twice}: {told}");
    }
    let told = ann
        .post_raw("/order", format!("{chosen}&start={token}&go=1&preview=w"))
        .await
        .is(400)
        .text();
    assert!(told.contains("two preview tokens"), "{told}");
    assert_eq!(batches(service).await, Vec::<Value>::new());
    // None of these used up the token.
    ann.post_raw("/order", format!("{chosen}&start={token}")).await.is(303);
    // The same holds before the user has signed in.
    let sign_in = format!("name=ann&name=bob&password={PASSWORD}");
    let told = Browser::new(service).post_raw("/sign-in", sign_in).await.is(400).text();
    assert!(told.contains("more than once"), "{told}");
}

async fn batch_resumes_only_in_the_state_the_page_showed(service: &Service) {
    let ids = six_servers(service).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let order = json!({"server_ids": ids, "security_only": true, "max_failures": 1});
    let batch =
        service.post("/v1/batches", order).await.is(202).json()["id"].as_str().unwrap().to_owned();
    let here = format!("/batches/{batch}");
    ann.submit(&format!("{here}/pause"), &[]).await.is(303);
    // Another user resumes it, a server fails, and the batch halts.
    let resume = async |state: &str, failures: &str| {
        ann.submit(&format!("{here}/resume"), &[("state", state), ("failures", failures)]).await
    };
    resume("paused", "0").await.is(303);
    finish(service, &batch, ids[0].parse().unwrap(), FAILED).await;
    change(service, &batch, Change::Halt(HaltReason::TooManyFailures)).await;
    let page = ann.get(&here).await.is(200).text();
    assert!(page.contains(">Resume despite 1 failure</button>"), "{page}");
    // An outdated page does not ignore a failure that it does not show.
    for (state, failures) in [("paused", "0"), ("halted", "0"), ("halted", "2"), ("", "")] {
        let told = resume(state, failures).await.is(409).text();
        assert!(told.contains("it is halted"), "{told}");
    }
    assert_eq!(batches(service).await[0]["state"], "halted");
    resume("halted", "1").await.is(303);
    assert_eq!(batches(service).await[0]["state"], "running");
}

/// The form has a field for every option, so that saving it unchanged changes nothing.
async fn saving_an_unchanged_schedule_changes_no_option(service: &Service) {
    let mut ids = six_servers(service).await;
    ids.sort();
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let options = [
        json!({"packages": ["openssl"], "security_only": true, "dry_run": true}),
        json!({"packages": ["openssl", "curl"], "exclude": ["linux-*"], "reboot": "if_required", "stagger_minutes": 5,
            "max_parallel": 2, "canary": "10%", "max_failures": "5%", "window_minutes": 60, "pin_versions": true}),
        json!({"packages": [], "dry_run": true}),
        json!({"security_only": true}),
    ];
    let targets = [
        json!({"all": true}),
        json!({"environment": "production", "tags": ["a", "b:c"], "os": "debian 12"}),
        json!({"server_ids": [ids[0], ids[1]]}),
    ];
    for (nth, options) in options.iter().enumerate() {
        for (place, targets) in targets.iter().enumerate() {
            let schedule = json!({"name": format!("S{nth}{place}"), "cron": "0 3 * * *", "targets": targets,
                "options": options, "allow_empty": true});
            let created = service.post("/v1/schedules", schedule).await.is(201).json();
            let edit = format!("/schedules/{}/edit", created["id"].as_str().unwrap());
            let page = ann.get(&edit).await.is(200).text();
            let mut form = fields(form_around(&page, page.find("data-ask").unwrap()));
            form.push(("allow_empty".into(), "true".into()));
            let form: Vec<(&str, &str)> =
                form.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            ann.post(&edit, &form).await.is(303);
            let saved = service
                .get(&format!("/v1/schedules/{}", created["id"].as_str().unwrap()))
                .await
                .is(200)
                .json();
            assert_eq!(
                (&saved["options"], &saved["targets"]),
                (&created["options"], &created["targets"]),
                "{page}"
            );
        }
    }
}

async fn quarantine_is_released_only_for_the_reason_shown(service: &Service) {
    let host = Host { quarantine: Some("two hosts used its identity"), ..Host::new("web-1") };
    let id = join(service, host).await;
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let release = format!("/servers/{id}/release");
    for other in ["", "another reason"] {
        ann.submit(&release, &[("reason", other)]).await.is(409);
    }
    let page = ann.get(&format!("/servers/{id}")).await.is(200).text();
    assert!(page.contains("name=\"reason\" value=\"two hosts used its identity\""), "{page}");
    ann.submit(&release, &[("reason", "two hosts used its identity")]).await.is(303);
    assert!(!ann.get(&format!("/servers/{id}")).await.is(200).text().contains("In quarantine"));
}

testkit::both!(
    crate::support:
    start_with_any_field_changed_since_the_preview_is_rejected,
    options_set_after_the_preview_are_not_ignored,
    preview_token_of_another_user_session_or_time_is_rejected,
    patch_page_has_one_form_with_every_option,
    schedule_changed_since_the_preview_is_not_run,
    retry_patches_exactly_the_previewed_servers,
    preview_token_starts_one_batch_only,
    confirmed_preview_counts_once,
    form_with_duplicate_field_or_two_tokens_is_rejected,
    batch_resumes_only_in_the_state_the_page_showed,
    saving_an_unchanged_schedule_changes_no_option,
    quarantine_is_released_only_for_the_reason_shown,
);
