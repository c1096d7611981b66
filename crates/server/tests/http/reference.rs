//! The API reference at `/docs`, as a browser loads it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{Service, TestRequest, TestResponse};

async fn get(service: &Service, path: &str) -> TestResponse {
    TestRequest::get(path).send(&service.router).await
}

fn text(response: &TestResponse) -> String {
    String::from_utf8(response.bytes.clone()).unwrap()
}

/// The values of an attribute.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let parts = page.split(&format!(" {name}=\"")).skip(1).collect::<Vec<_>>();
    parts.into_iter().map(|part| part.split('"').next().unwrap()).collect()
}

async fn reference_contains_every_operation_once(service: &Service) {
    let document: Value = get(service, "/openapi.json").await.is(200).json();
    let page = text(&get(service, "/docs").await.is(200));
    let shown = attributes(&page, "id");
    let mut operations = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert_eq!(shown.iter().filter(|one| **one == id).count(), 1, "{id}");
            assert!(page.contains(&format!("data-method=\"{method}\" data-path=\"{path}\"")));
            operations += 1;
        }
    }
    assert!(operations > 50, "{operations}");
    assert_eq!(page.matches("<article class=\"ref-pair\"").count(), operations);
}

async fn links_and_assets_of_the_reference_exist(service: &Service) {
    let page = text(&get(service, "/docs").await.is(200));
    let ids: BTreeSet<&str> = attributes(&page, "id").into_iter().collect();
    let links: BTreeSet<&str> =
        attributes(&page, "href").into_iter().chain(attributes(&page, "src")).collect();
    for link in links {
        match link.strip_prefix('#') {
            Some(target) => assert!(ids.contains(target), "{link}"),
            // The dashboard asks for a sign-in.
            None if link == "/" => drop(get(service, link).await.is(303)),
            None => drop(get(service, link).await.is(200)),
        }
    }
}

/// The type of every error is a link to its description.
async fn problem_type_leads_to_its_description(service: &Service) {
    let page = text(&get(service, "/docs").await.is(200));
    let problem = get(service, "/v1/servers").await.is_problem(401, "unauthenticated").json();
    let target = problem["type"].as_str().unwrap().strip_prefix("/docs#").unwrap().to_owned();
    assert!(attributes(&page, "id").contains(&target.as_str()), "{target}");
}

async fn reference_has_a_strict_content_security_policy(service: &Service) {
    let page = get(service, "/docs").await.is(200);
    let policy = page.header("content-security-policy").to_owned();
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http") && !policy.contains('*'));
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    let page = text(&page);
    for inline in [" style=\"", "<style", "<script>", " onclick=", "javascript:"] {
        assert!(!page.contains(inline), "{inline}");
    }
}

async fn reference_is_compressed_for_clients_that_accept_gzip(service: &Service) {
    let plain = get(service, "/docs").await.is(200);
    assert_eq!(plain.header("vary"), "Accept-Encoding");
    assert!(!plain.headers.contains_key("content-encoding"));
    let ask = TestRequest::get("/docs").with("accept-encoding", "br, gzip");
    let small = ask.send(&service.router).await.is(200);
    assert_eq!(small.header("content-encoding"), "gzip");
    assert!(small.bytes.starts_with(&[0x1f, 0x8b]) && small.bytes.len() < 120_000);
    assert!(plain.bytes.len() > 2 * small.bytes.len());
}

/// The reference takes its colors from the dashboard's stylesheet, which another crate contains.
async fn colors_of_the_reference_are_defined_by_the_dashboard(service: &Service) {
    let page = text(&get(service, "/docs").await.is(200));
    let mut sheets = Vec::new();
    for path in attributes(&page, "href").into_iter().filter(|path| path.ends_with(".css")) {
        sheets.push(text(&get(service, path).await.is(200)));
    }
    let [shared, own] = sheets.try_into().unwrap();
    assert!(own.matches("var(--").count() > 20);
    for name in own.split("var(").skip(1).map(|rest| rest.split([')', ',']).next().unwrap()) {
        assert!(shared.contains(&format!("{name}:")), "{name} is not defined");
    }
}

testkit::both!(
    crate::support:
    reference_contains_every_operation_once,
    links_and_assets_of_the_reference_exist,
    problem_type_leads_to_its_description,
    reference_has_a_strict_content_security_policy,
    reference_is_compressed_for_clients_that_accept_gzip,
    colors_of_the_reference_are_defined_by_the_dashboard,
);
