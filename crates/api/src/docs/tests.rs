use serde_json::{Value, json};

use super::*;
use httpkit::problem::Code;

fn page(document: &Value) -> String {
    let shared = SharedAssets { stylesheet: "/assets/app.css".into(), icon: "/icon.svg".into() };
    render(&Reference::new(document), &shared)
}

#[test]
fn text_from_the_document_is_escaped() {
    let bad = "<script>alert(1)</script>\"'&`<b>`";
    let field =
        json!({"type": bad, "enum": [bad], "default": bad, "description": bad, "pattern": "<b>"});
    let content = json!({"application/json": {"schema": {"$ref": bad}, "example": {bad: [bad]}}});
    let document = json!({
        "info": {"title": bad, "version": bad, "description": bad},
        "tags": [{"name": bad, "description": bad}],
        "paths": {"/x/{<b>}": {"get": {"tags": [bad], "operationId": bad, "summary": bad, "description": bad,
            "x-required-role": bad,
            "parameters": [{"name": bad, "in": "query", "required": true, "description": bad, "example": bad, "schema": field}],
            "requestBody": {"content": content},
            "responses": {"200": {"description": bad, "headers": {bad: {"description": bad}}, "content": content},
                "201": {"content": {bad: {}}}, bad: {}}}}},
        "components": {"schemas": {bad: {"type": "object", "description": bad,
            "properties": {bad: field, "x": {"type": "object", "properties": {bad: field}}}}}},
    });
    let page = page(&document);
    assert!(
        !page.contains("<script>") && !page.contains("<b>}") && !page.contains("=\"<"),
        "{page}"
    );
    // Keys of JSON are the only bold text, and they are in quotes.
    assert!(page.matches("<b>").count() == page.matches("<b>&quot;").count(), "{page}");
}

#[test]
fn every_operation_and_code_is_on_the_page() {
    let document = openapi::document();
    let page = page(&document);
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            let article = format!("id=\"{id}\" data-method=\"{method}\" data-path=\"{path}\"");
            assert_eq!(page.matches(&article).count(), 1, "{id}");
            assert!(page.contains(&format!("<li><a href=\"#{id}\"><span>")), "{id}");
        }
    }
    for code in Code::ALL {
        assert!(page.contains(&format!("id=\"problem-{}\"", code.word())));
    }
}

/// Every internal link leads to an element of the page, and no two elements have the same id.
#[test]
fn internal_links_have_targets() {
    let page = page(&openapi::document());
    for link in page.split("href=\"#").skip(1) {
        let target = link.split('"').next().unwrap();
        assert_eq!(page.matches(&format!(" id=\"{target}\"")).count(), 1, "#{target}");
    }
    // Examples contain addresses, but the page loads nothing and links to nothing outside, and has
    // no inline script or style.
    let inline = [" style=", " onclick", "<style", "<script>", "@import"];
    for reference in ["=\"http", "='http", "=http", "url(http", "//\""].into_iter().chain(inline) {
        assert!(!page.contains(reference), "{reference}");
    }
}

/// A client on a slow connection reads it too.
#[test]
fn page_is_below_120_kb_compressed() {
    let size = compress(page(&openapi::document()).as_bytes()).len();
    assert!((10_000..120_000).contains(&size), "{size}");
}

#[test]
fn gzip_is_sent_only_to_clients_that_accept_it() {
    let accepts = |value: &'static str| {
        accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]))
    };
    assert!(accepts("gzip") && accepts("br, GZIP;q=0.5") && accepts("deflate, gzip"));
    assert!(!accepts("br") && !accepts("gzip;q=0") && !accepts("gzip; q=0.0") && !accepts("*"));
    assert!(!accepts_gzip(&HeaderMap::new()));
}
