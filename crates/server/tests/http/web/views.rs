//! How lists are shown: saved views, columns and density. The settings of the organization.

use vocab::Role;

use crate::browser::Browser;
use crate::support::Service;

/// The path that deletes the view with this name, if the page offers it.
fn delete_path(page: &str, name: &str) -> Option<String> {
    let forms = page.split("action=\"/views/").skip(1);
    let mine = forms.filter(|form| form.contains(&format!("aria-label=\"Delete view {name}\"")));
    let ids = mine.map(|form| form.split('"').next().unwrap());
    ids.map(|rest| format!("/views/{rest}")).next()
}

async fn save(browser: &Browser, name: &str, query: &str, shared: bool) -> u16 {
    let mut form = vec![("list", "servers"), ("name", name), ("query", query)];
    if shared {
        form.push(("shared", "1"));
    }
    browser.submit("/views", &form).await.status.as_u16()
}

async fn view_is_personal_until_it_is_shared(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let bob = Browser::signed_in(service, "bob", Role::Viewer).await;
    let query = "environment=production&sort=security_updates&columns=status.cves";
    assert_eq!(save(&ann, "Mine", query, false).await, 303);
    assert_eq!(save(&ann, "Ours", "status=offline", true).await, 303);
    let page = ann.get("/servers").await.is(200).text();
    let link = "href=\"/servers?environment=production&#38;sort=security_updates&#38;columns=status.cves\"";
    assert!(page.contains(link) && page.contains(">Mine</a>"), "{page}");
    let page = bob.get("/servers").await.is(200).text();
    assert!(!page.contains("Mine") && page.contains("Ours"), "{page}");
    assert!(!bob.get("/cves").await.text().contains("Ours"), "a view belongs to its list");
    // A view is marked while it is shown.
    let page = bob.get("/servers?status=offline").await.is(200).text();
    assert!(page.contains("href=\"/servers?status=offline\" aria-current=\"true\">Ours"), "{page}");

    // Viewers save for themselves only, and delete only what is theirs.
    assert_eq!(save(&bob, "For all", "status=offline", true).await, 403);
    assert_eq!(save(&bob, "For me", "status=offline", false).await, 303);
    assert_eq!(delete_path(&bob.get("/servers").await.text(), "Ours"), None);
    let page = ann.get("/servers").await.text();
    let (mine, ours) = (delete_path(&page, "Mine").unwrap(), delete_path(&page, "Ours").unwrap());
    bob.submit(&mine, &[("go", "1")]).await.is(404);
    bob.submit(&ours, &[("go", "1")]).await.is(403);
    let question = ann.submit(&ours, &[]).await.is(200).text();
    assert!(question.contains("Everyone in the organization sees this view."), "{question}");
    let admin = Browser::signed_in(service, "eve", Role::Admin).await;
    assert_eq!(admin.submit(&ours, &[("go", "1")]).await.is(303).header("location"), "/servers");
    assert!(!bob.get("/servers").await.text().contains("Ours"));
    let log = admin.get("/activity").await.is(200).text();
    assert!(log.contains("shared view") && log.contains("deleted view"), "{log}");
}

async fn view_with_the_same_name_is_replaced_and_their_number_is_limited(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    save(&ann, "Mine", "status=offline", false).await;
    save(&ann, "Mine", "status=online&offset=50&limit=10", false).await;
    let page = ann.get("/servers").await.text();
    assert_eq!(page.matches(">Mine</a>").count(), 1, "{page}");
    assert!(page.contains("href=\"/servers?status=online\""), "{page}");
    for (name, query) in [
        ("", "status=online"),
        ("two\nlines", "status=online"),
        (&*"x".repeat(61), "status=online"),
        ("long", &*format!("q={}", "x".repeat(2_001))),
    ] {
        assert_eq!(save(&ann, name, query, false).await, 422, "{name:?} {}", query.len());
    }
    let other = [("list", "nothing"), ("name", "x"), ("query", "")];
    ann.submit("/views", &other).await.is(400);
    for nth in 1..100 {
        assert_eq!(save(&ann, &format!("View {nth}"), "", false).await, 303);
    }
    assert_eq!(save(&ann, "One too many", "", false).await, 409);
    assert_eq!(save(&ann, "View 7", "status=offline", false).await, 303, "it replaces one");
    assert!(!ann.get("/servers").await.text().contains("One too many"));
}

/// Names and filters are text of users: they are escaped, and a redirect stays on the list.
async fn hostile_view_stays_text_on_its_list(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Operator).await;
    let query = "q=\"><script>alert(1)</script>&x=//evil.example\r\nSet-Cookie: a=b";
    let form = [("list", "servers"), ("name", "<img src=x>"), ("query", query), ("shared", "1")];
    let saved = ann.submit("/views", &form).await.is(303);
    let location = saved.header("location");
    assert!(location.starts_with("/servers?") && !location.contains('\n'), "{location}");
    let page = ann.get("/servers").await.is(200).text();
    assert!(page.contains("&#60;img src=x&#62;"), "{page}");
    assert!(!page.contains("<img src=x") && !page.contains("<script>alert"), "{page}");
    // A filter that does not exist is an error, as if it had been typed.
    ann.get(location).await.is(400);
}

async fn other_organization_sees_no_view(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    save(&ann, "Ours", "status=offline", true).await;
    let delete = delete_path(&ann.get("/servers").await.text(), "Ours").unwrap();
    let eve = Browser::of_other_organization(service).await;
    assert!(!eve.get("/servers").await.is(200).text().contains("Ours"));
    eve.submit(&delete, &[("go", "1")]).await.is(404);
    assert!(ann.get("/servers").await.text().contains("Ours"));
}

async fn personal_views_end_with_their_user(service: &Service) {
    let admin = Browser::signed_in(service, "ann", Role::Admin).await;
    let bob = Browser::signed_in(service, "bob", Role::Operator).await;
    save(&bob, "Mine", "", false).await;
    save(&bob, "Ours", "", true).await;
    let id = {
        let mut reader = service.app.db.read().await.unwrap();
        store::users::by_name(&mut reader, service.org, "bob").await.unwrap().unwrap().id
    };
    admin.submit(&format!("/settings/users/{id}/remove"), &[("go", "1")]).await.is(303);
    let mut reader = service.app.db.read().await.unwrap();
    assert_eq!(store::saved_views::count(&mut reader, id).await.unwrap(), 1);
    drop(reader);
    assert!(admin.get("/servers").await.text().contains("Ours"));
}

async fn columns_are_kept_in_the_browser_and_in_the_address(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let page = ann.get("/batches").await.is(200).text();
    assert!(page.contains("name=\"columns\" value=\"progress\" checked"), "{page}");
    let form = [
        ("list", "batches"),
        ("query", "state=running&columns=state&limit=10"),
        ("columns", "state"),
        ("columns", "servers"),
        ("columns", "<b>"),
        ("density", "compact"),
    ];
    let chosen = ann.submit("/display", &form).await.is(303);
    assert_eq!(chosen.header("location"), "/batches?state=running");
    assert_eq!(ann.cookie("fleetmend_columns_batches").as_deref(), Some("state.servers"));
    let page = ann.get("/batches").await.is(200).text();
    assert!(page.contains("<html lang=\"en\" data-density=\"compact\">"), "{page}");
    assert!(!page.contains("value=\"progress\" checked"), "{page}");
    assert!(page.contains("value=\"servers\" checked"), "{page}");
    // The address wins, and links keep what it says.
    let page = ann.get("/batches?columns=progress").await.is(200).text();
    assert!(page.contains("value=\"progress\" checked"), "{page}");
    assert!(page.contains("state=running&#38;columns=progress"), "{page}");
    // Each list has its own columns.
    assert!(ann.get("/cves").await.text().contains("value=\"cvss\" checked"));
    for text in ["\"><script>", "..", "nonsense"] {
        ann.set_cookie("fleetmend_columns_batches", text);
        let page = ann.get("/batches").await.is(200).text();
        assert!(page.contains("value=\"progress\" checked"), "{text}: all are shown");
    }
    // All columns and the usual density need no cookie.
    let mut form = vec![("list", "cves"), ("query", ""), ("density", "comfortable")];
    let all = ["severity", "cvss", "epss", "servers", "packages", "published"];
    form.extend(all.map(|name| ("columns", name)));
    ann.submit("/display", &form).await.is(303);
    assert_eq!(
        (ann.cookie("fleetmend_columns_cves"), ann.cookie("fleetmend_density")),
        (None, None)
    );
}

async fn organization_is_renamed_by_administrators(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let bob = Browser::signed_in(service, "bob", Role::Operator).await;
    let generation = |page: &str| {
        let found = page.split("name=\"generation\" value=\"").nth(1).unwrap();
        found.split('"').next().unwrap().to_owned()
    };
    let first = generation(&ann.get("/settings").await.is(200).text());
    let form = [("name", "Acme & Sons"), ("generation", first.as_str())];
    bob.submit("/settings/organization", &form).await.is(403);
    ann.submit("/settings/organization", &form).await.is(303);
    assert!(bob.get("/servers").await.text().contains("Acme &#38; Sons"));
    // A page that was loaded before does not undo it.
    let outdated = [("name", "Older"), ("generation", first.as_str())];
    let page = ann.submit("/settings/organization", &outdated).await.is(409).text();
    assert!(page.contains("renamed meanwhile") && page.contains("value=\"Older\""), "{page}");
    service.stranger().await;
    let now = generation(&page);
    for (name, status) in [("", 422), ("Umbrella", 409), (&*"x".repeat(101), 422)] {
        let form = [("name", name), ("generation", now.as_str())];
        let page = ann.submit("/settings/organization", &form).await.is(status).text();
        assert!(page.contains("id=\"f-name-error\""), "{name}: {page}");
    }
    let log = ann.get("/activity").await.is(200).text();
    assert!(log.contains("renamed the organization from"), "{log}");
}

async fn sign_in_page_names_people_without_a_second_factor(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    Browser::signed_in(service, "bob", Role::Viewer).await;
    let page = ann.get("/settings/sign-in").await.is(200).text();
    assert!(page.contains("2 of 2 people with a password do not use two-factor"), "{page}");
    assert!(page.contains("ann, bob") && page.contains("/sign-in/oidc/back"), "{page}");
}

testkit::both!(
    crate::support:
    view_is_personal_until_it_is_shared,
    view_with_the_same_name_is_replaced_and_their_number_is_limited,
    hostile_view_stays_text_on_its_list,
    other_organization_sees_no_view,
    personal_views_end_with_their_user,
    columns_are_kept_in_the_browser_and_in_the_address,
    organization_is_renamed_by_administrators,
    sign_in_page_names_people_without_a_second_factor,
);
