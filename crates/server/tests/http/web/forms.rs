//! Forms: a rejected one shows all errors beside its fields and keeps what was typed; the schedule
//! form composes cron expressions and counts the servers that match.

use serde_json::json;
use vocab::Role;

use crate::browser::Browser;
use crate::fleet::{Host, join};
use crate::support::Service;

/// Names and values of a form.
type Fields<'a> = &'a [(&'a str, &'a str)];

/// Asserts that exactly these fields are marked as invalid, that each has its message beside it, and
/// that the summary links to it.
#[track_caller]
fn assert_marked(page: &str, fields: &[&str]) {
    for field in fields {
        let error = format!("id=\"f-{field}-error\"");
        assert!(page.contains(&error), "no message at {field}: {page}");
        assert!(page.contains(&format!("<a href=\"#f-{field}\">")), "no link to {field}: {page}");
        assert!(page.contains(&format!("id=\"f-{field}\"")), "no field {field}: {page}");
        assert!(page.contains(&format!("aria-describedby=\"f-{field}-error")), "{field}: {page}");
    }
    assert_eq!(page.matches("class=\"error\" id=\"f-").count(), fields.len(), "{page}");
    assert!(page.contains("role=\"alert\" tabindex=\"-1\" autofocus"), "{page}");
}

async fn rejected_schedule_shows_all_errors_at_their_fields(service: &Service) {
    join(service, Host::new("web-1")).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let form = [
        ("name", " "),
        ("description", "kept"),
        ("repeat", "week"),
        ("time", "25:00"),
        ("timezone", "Mars/Olympus"),
        ("environment", "a b"),
        ("tags", "ok, not=<b>"),
        ("add_servers", "nobody"),
        ("what", "packages"),
        ("exclude", "[x"),
        ("reboot", "sometimes"),
        ("canary", "101%"),
        ("max_failures", "0"),
        ("health", "sometimes"),
        ("max_unhealthy", "some"),
        ("max_parallel", "many"),
        ("stagger_minutes", "1441"),
        ("window_minutes", "0"),
    ];
    let page = ann.submit("/schedules/new", &form).await.is(422).text();
    assert_marked(
        &page,
        &[
            "name",
            "weekdays",
            "time",
            "timezone",
            "environment",
            "tags",
            "add_servers",
            "packages",
            "exclude",
            "reboot",
            "canary",
            "max_failures",
            "health",
            "max_unhealthy",
            "max_parallel",
            "stagger_minutes",
            "window_minutes",
        ],
    );
    assert!(page.contains("Not saved: check 17 fields."), "{page}");
    for kept in ["kept", "25:00", "Mars/Olympus", "a b", "nobody", "many", "1441", "101%"] {
        assert!(page.contains(&format!("value=\"{kept}\"")), "{kept} is lost: {page}");
    }
    assert!(!page.contains("<b>"), "{page}");
    assert_eq!(service.get("/v1/schedules").await.json()["meta"]["total"], 0);
}

async fn name_in_use_is_an_error_of_the_name(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let schedule = [("name", "Nightly"), ("cron", "0 3 * * *"), ("all", "true")];
    ann.submit("/schedules/new", &schedule).await.is(303);
    assert_marked(&ann.submit("/schedules/new", &schedule).await.is(422).text(), &["name"]);
    let taken = ann.submit("/settings/users", &[("name", "ANN"), ("role", "viewer")]).await;
    let page = taken.is(409).text();
    assert_marked(&page, &["name"]);
    assert!(page.contains("value=\"ANN\"") && page.contains("Invite a person"), "{page}");
}

async fn settings_forms_keep_input_and_mark_fields(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let long = "x".repeat(201);
    let cases: [(&str, Fields<'_>, &[&str]); 5] = [
        ("/settings/users", &[("name", ""), ("role", "viewer")], &["name"]),
        ("/settings/users", &[("name", "bob"), ("role", "king")], &["role"]),
        ("/settings/keys", &[("name", &long), ("role", "king")], &["name", "role"]),
        (
            "/settings/tokens",
            &[("name", &long), ("environment", "a b"), ("max_uses", "few")],
            &["name", "environment", "max_uses"],
        ),
        ("/settings/feeds", &[("url", "nonsense"), ("name", &long)], &["url", "name"]),
    ];
    for (path, form, wrong) in cases {
        let page = ann.submit(path, form).await.is(422).text();
        assert_marked(&page, wrong);
        let typed = form.iter().filter(|(name, text)| *name != "role" && !text.is_empty());
        for (_, text) in typed {
            assert!(page.contains(&format!("value=\"{text}\"")), "{text} is lost: {page}");
        }
    }
}

async fn server_forms_mark_fields(service: &Service) {
    let id = join(service, Host::new("web-1")).await.to_string();
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let path = format!("/servers/{id}/edit");
    let page = ann.get(&path).await.is(200).text();
    let shown = page.split("name=\"shown\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let (name, notes) = ("x".repeat(201), "n".repeat(2_001));
    let form = [
        ("display_name", name.as_str()),
        ("environment", "a b"),
        ("tags", "<i>"),
        ("notes", &notes),
        ("shown", shown),
    ];
    let page = ann.submit(&path, &form).await.is(422).text();
    assert_marked(&page, &["display_name", "notes", "environment", "tags"]);
    let form = [
        ("server_ids", id.as_str()),
        ("go", "1"),
        ("environment_change", "set"),
        ("environment", "a b"),
        ("add_tags", "<i>"),
        ("remove_tags", "<u>"),
    ];
    let page = ann.submit("/servers/edit", &form).await.is(422).text();
    assert_marked(&page, &["environment", "add_tags", "remove_tags"]);
    assert!(page.contains("value=\"a b\"") && page.contains("Change 1 server"), "{page}");
}

async fn patch_form_marks_fields_and_names_the_batch(service: &Service) {
    let id = join(service, Host::new("web-1")).await.to_string();
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let form = [
        ("server_ids", id.as_str()),
        ("what", "packages"),
        ("canary", "x"),
        ("max_parallel", "0"),
        ("name", "Hotfix"),
    ];
    let page = ann.submit("/order", &form).await.is(422).text();
    assert_marked(&page, &["packages", "canary", "max_parallel"]);
    assert!(page.contains("value=\"Hotfix\"") && !page.contains("id=\"start\""), "{page}");
    let form = [("server_ids", id.as_str()), ("what", "security"), ("name", "Hotfix")];
    let page = ann.submit("/order", &form).await.is(200).text();
    let token = page.split("name=\"start\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    // The name is one of the previewed fields.
    let renamed =
        [("server_ids", id.as_str()), ("what", "security"), ("name", "x"), ("start", token)];
    ann.submit("/order", &renamed).await.is(422);
    let started = [form.as_slice(), &[("start", token)]].concat();
    let here = ann.submit("/order", &started).await.is(303).header("location").to_owned();
    let page = ann.get(&here).await.is(200).text();
    assert!(page.contains("<h1>Hotfix</h1>"), "{page}");
    let found = ann.get("/find?q=hotf").await.is(200).text();
    assert!(found.contains(&here), "{found}");
    assert!(ann.get("/batches").await.is(200).text().contains(">Hotfix</a>"));
    assert!(ann.get("/batches.csv").await.is(200).text().contains(",Hotfix\r\n"));
}

async fn builder_composes_cron_and_shows_it_again(service: &Service) {
    join(service, Host::new("web-1")).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let cases: [(Fields<'_>, &str, &str); 5] = [
        (&[("repeat", "day")], "30 4 * * *", "Every day at 04:30"),
        (
            &[("repeat", "week"), ("weekday_mon", "true"), ("weekday_sun", "true")],
            "30 4 * * MON,SUN",
            "Every Monday and Sunday at 04:30",
        ),
        (
            &[("repeat", "month"), ("month_day", "last")],
            "30 4 L * *",
            "On the last day of every month at 04:30",
        ),
        (
            &[("repeat", "nth"), ("nth", "second"), ("nth_weekday", "TUE")],
            "30 4 * * TUE#2",
            "On the second Tuesday of every month at 04:30",
        ),
        (&[("repeat", "custom"), ("cron", "*/15 2 * * *")], "*/15 2 * * *", "*/15 2 * * *"),
    ];
    for (nth, (fields, cron, sentence)) in cases.iter().enumerate() {
        let name = format!("S{nth}");
        let rest = [("name", name.as_str()), ("time", "04:30"), ("all", "true")];
        let form = [*fields, &rest].concat();
        let here = ann.submit("/schedules/new", &form).await.is(303).header("location").to_owned();
        let saved = service.get(&format!("/v1{here}")).await.is(200).json();
        assert_eq!(saved["cron"], *cron);
        for path in ["/schedules".to_owned(), here.clone()] {
            let page = ann.get(&path).await.is(200).text();
            assert!(page.contains(sentence), "{path}: no {sentence} in {page}");
        }
        let page = ann.get(&format!("{here}/edit")).await.is(200).text();
        let chosen = format!("value=\"{}\" data-asks=\"asked\" checked", fields[0].1);
        assert!(page.contains(&chosen), "{chosen}: {page}");
        // Saving it unchanged keeps the expression.
        let form = crate::markup::fields(crate::markup::form_around(
            &page,
            page.find("data-ask").unwrap(),
        ));
        let form: Vec<(&str, &str)> = form.iter().map(|(name, it)| (&**name, &**it)).collect();
        ann.post(&format!("{here}/edit"), &form).await.is(303);
        assert_eq!(service.get(&format!("/v1{here}")).await.json()["cron"], *cron);
    }
    let next =
        "/schedules/next?repeat=nth&nth=second&nth_weekday=TUE&time=03:00&timezone=Asia/Tokyo";
    let page = ann.get(next).await.is(200).text();
    assert!(
        page.contains("On the second Tuesday of every month at 03:00 Asia/Tokyo")
            && page.contains("Tue 2026-12-08 03:00")
            && page.contains("2026-12-07 18:00 UTC"),
        "{page}"
    );
    let page = ann.get("/schedules/next?repeat=week&time=03:00").await.is(200).text();
    assert!(page.contains("class=\"note bad\""), "{page}");
}

async fn matching_servers_are_counted_while_typing(service: &Service) {
    for name in ["web-1", "web-2"] {
        join(service, Host { tags: &["web"], ..Host::new(name) }).await;
    }
    join(service, Host::new("db-1").in_environment("staging")).await;
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let count =
        async |form: &[(&str, &str)]| ann.submit("/servers/matching", form).await.is(200).text();
    let text = count(&[("environment", "production"), ("tags", "web")]).await;
    let link = "<a href=\"/servers?environment=production&#38;tag=web\">2 servers</a>";
    assert!(text.contains(link), "{text}");
    assert!(count(&[("all", "true")]).await.contains("<a href=\"/servers\">3 servers</a>"));
    let text = count(&[("environment", "prodction")]).await;
    assert!(
        text.contains("class=\"matches warn\"")
            && text.contains("Matches no server.")
            && text.contains("Did you mean"),
        "{text}"
    );
    let text = count(&[("add_servers", "web-1, db-1"), ("environment", "production")]).await;
    assert!(text.contains("Matches 1 server<"), "{text}");
    assert!(count(&[("add_servers", "nobody")]).await.contains("No server is named nobody."));
    assert!(count(&[("tags", "<b>")]).await.contains("class=\"matches warn\""));
    assert!(count(&[]).await.contains("Fill in at least one field"));
    // The first page has the same, so that it works without a script.
    let made = json!({"name": "N", "cron": "@daily", "targets": {"environment": "production"}});
    let made = service.post("/v1/schedules", made).await.is(201).json();
    let path = format!("/schedules/{}/edit", made["id"].as_str().unwrap());
    let page = ann.get(&path).await.is(200).text();
    assert!(page.contains("<a href=\"/servers?environment=production\">2 servers</a>"), "{page}");
    let eve = Browser::signed_in(service, "eve", Role::Viewer).await;
    eve.submit("/servers/matching", &[("all", "true")]).await.is(403);
}

testkit::both!(
    crate::support:
    rejected_schedule_shows_all_errors_at_their_fields,
    name_in_use_is_an_error_of_the_name,
    settings_forms_keep_input_and_mark_fields,
    server_forms_mark_fields,
    patch_form_marks_fields_and_names_the_batch,
    builder_composes_cron_and_shows_it_again,
    matching_servers_are_counted_while_typing,
);
