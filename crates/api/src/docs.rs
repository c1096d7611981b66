//! `GET /docs`: the API reference as a page, rendered from the OpenAPI document.
//!
//! The page is plain HTML and CSS, without scripts or external resources. Everything from schemas
//! and descriptions is escaped.

use std::fmt::Write as _;
use std::sync::OnceLock;

use axum::Extension;
use axum::http::HeaderName;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use base64::Engine as _;
use httpkit::SharedBody;
use httpkit::problem::Code;
use serde_json::Value;

use crate::openapi;

const STYLE: &str = include_str!("docs.css");
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The reference
///
/// This description as a page to read.
#[utoipa::path(get, path = "/docs", tag = "Service", operation_id = "docs",
    responses((status = 200, description = "A page.", content_type = "text/html", body = String)))]
pub(crate) async fn docs() -> impl IntoResponse {
    static PAGE: OnceLock<String> = OnceLock::new();
    let page = PAGE.get_or_init(|| page(&openapi::document()));
    let headers: [(HeaderName, String); 3] = [
        (CONTENT_TYPE, "text/html; charset=utf-8".into()),
        (CONTENT_SECURITY_POLICY, policy()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
    ];
    (Extension(SharedBody), headers, page.as_str())
}

/// The Content Security Policy: nothing may be loaded or run; only our stylesheet is allowed, by
/// its hash.
fn policy() -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, STYLE.as_bytes());
    let hash = base64::engine::general_purpose::STANDARD.encode(digest);
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// Renders the page for a document.
pub(crate) fn page(document: &Value) -> String {
    let title = escape(text(&document["info"]["title"]));
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title} API</title><style>{STYLE}</style></head><body>"
    );
    navigation(&mut out, document);
    let version = escape(text(&document["info"]["version"]));
    let about = paragraphs(text(&document["info"]["description"]));
    let _ = write!(
        out,
        "<main><header><h1>{title} API <small>{version}</small></h1>{about}\
         <p><a href=\"/openapi.json\">OpenAPI document: openapi.json</a></p></header>"
    );
    for tag in array_items(&document["tags"]) {
        section(&mut out, document, tag);
    }
    problems(&mut out);
    schemas(&mut out, document);
    out.push_str("</main></body></html>");
    out
}

fn navigation(out: &mut String, document: &Value) {
    out.push_str("<nav aria-label=\"Contents\"><a class=\"brand\" href=\"#\">Fleetmend</a>");
    for tag in array_items(&document["tags"]) {
        let name = text(&tag["name"]);
        let mut operations = operations(document, name).peekable();
        if operations.peek().is_none() {
            continue;
        }
        let _ = write!(out, "<h2><a href=\"#{}\">{}</a></h2><ul>", anchor(name), escape(name));
        for (_, method, operation) in operations {
            let _ = write!(
                out,
                "<li><a href=\"#{}\"><b class=\"{method}\">{}</b>{}</a></li>",
                escape(text(&operation["operationId"])),
                short_method(method),
                escape(text(&operation["summary"]))
            );
        }
        out.push_str("</ul>");
    }
    out.push_str(
        "<h2><a href=\"#problems\">Errors</a></h2><h2><a href=\"#schemas\">Schemas</a></h2></nav>",
    );
}

fn section(out: &mut String, document: &Value, tag: &Value) {
    let name = text(&tag["name"]);
    let mut operations = operations(document, name).peekable();
    if operations.peek().is_none() {
        return;
    }
    let about = paragraphs(text(&tag["description"]));
    let _ = write!(
        out,
        "<section id=\"{}\"><h2 class=\"group\">{}</h2>{about}",
        anchor(name),
        escape(name)
    );
    for (path, method, of) in operations {
        operation(out, document, path, method, of);
    }
    out.push_str("</section>");
}

fn operation(out: &mut String, document: &Value, path: &str, method: &str, operation: &Value) {
    let _ = write!(
        out,
        "<article id=\"{}\"><h3>{}</h3><p class=\"line\"><b class=\"{method}\">{}</b><code>{}</code></p>{}",
        escape(text(&operation["operationId"])),
        escape(text(&operation["summary"])),
        method.to_uppercase(),
        path_html(path),
        paragraphs(text(&operation["description"])),
    );
    parameters(out, document, operation);
    if let Some(content) = operation.pointer("/requestBody/content/application~1json") {
        let _ = write!(out, "<h4>Body</h4><p>{}</p>", schema_line(&content["schema"]));
        example(out, &content["example"]);
    }
    responses(out, document, operation);
    out.push_str("</article>");
}

fn parameters(out: &mut String, document: &Value, operation: &Value) {
    let parameters = array_items(&operation["parameters"]).map(|one| resolved(document, one));
    let mut parameters = parameters.peekable();
    if parameters.peek().is_none() {
        return;
    }
    out.push_str("<h4>Parameters</h4><table>");
    for parameter in parameters {
        let required = if parameter["required"] == true { " <i>required</i>" } else { "" };
        let _ = write!(
            out,
            "<tr><th><code>{}</code>{required}<br><small>in the {}</small></th><td>{}{}</td></tr>",
            escape(text(&parameter["name"])),
            escape(text(&parameter["in"])),
            paragraphs(text(&parameter["description"])),
            schema_line(&parameter["schema"]),
        );
    }
    out.push_str("</table>");
}

fn responses(out: &mut String, document: &Value, operation: &Value) {
    let all = operation["responses"].as_object().into_iter().flatten();
    let (good, bad): (Vec<_>, Vec<_>) = all.partition(|(status, _)| status.starts_with('2'));
    for (status, response) in good {
        let about = escape(text(&response["description"]));
        let _ = write!(out, "<h4>Response {}</h4><p>{about}", escape(status));
        let content = response["content"].get("application/json");
        if let Some(content) = content {
            let _ = write!(out, " {}", schema_line(&content["schema"]));
        }
        out.push_str("</p>");
        let headers: Vec<String> = (response["headers"].as_object().into_iter().flatten())
            .map(|(name, header)| {
                let about = escape(text(&resolved(document, header)["description"]));
                format!("<code title=\"{about}\">{}</code>", escape(name))
            })
            .collect();
        let _ = write!(out, "<p class=\"quiet\">Headers: {}</p>", headers.join(", "));
        if let Some(content) = content {
            example(out, &content["example"]);
        }
    }
    let errors: Vec<String> = bad
        .into_iter()
        .filter(|(status, _)| !status.starts_with('3'))
        .map(|(status, _)| format!("<a href=\"#problem-status-{0}\">{0}</a>", escape(status)))
        .collect();
    let _ = write!(out, "<p class=\"quiet\">Errors: {}</p>", errors.join(", "));
}

fn example(out: &mut String, example: &Value) {
    if example.is_null() {
        return;
    }
    let pretty = serde_json::to_string_pretty(example).unwrap_or_default();
    let _ = write!(
        out,
        "<details><summary>Example</summary><pre><code>{}</code></pre></details>",
        escape(&pretty)
    );
}

fn problems(out: &mut String) {
    out.push_str(
        "<section id=\"problems\"><h2 class=\"group\">Errors</h2>\
         <p>Every error is an RFC 9457 problem, <code>application/problem+json</code>. Programs can rely on <code>code</code>; \
         people read <code>detail</code>. Quote <code>request_id</code> when you ask for help. A 422 lists in <code>errors</code> everything \
         that is invalid, each with a JSON pointer.</p><table>",
    );
    let mut last = 0;
    for code in Code::ALL {
        let status = code.status().as_u16();
        let anchor = match status == last {
            true => String::new(),
            false => format!(" id=\"problem-status-{status}\""),
        };
        last = status;
        let _ = write!(
            out,
            "<tr id=\"problem-{0}\"><th{anchor}><code>{0}</code><br><small>{status}</small></th><td>{1}</td></tr>",
            code.word(),
            paragraphs(code.about())
        );
    }
    out.push_str("</table></section>");
}

fn schemas(out: &mut String, document: &Value) {
    out.push_str("<section id=\"schemas\"><h2 class=\"group\">Schemas</h2>");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let _ = write!(
            out,
            "<article id=\"schema-{0}\"><h3>{0}</h3>{1}",
            escape(name),
            paragraphs(text(&schema["description"]))
        );
        let parts = array_items(&schema["allOf"]).chain([schema]);
        let mut rows = String::new();
        for part in parts {
            if part.get("$ref").is_some() {
                let _ = write!(out, "<p>All fields of {}, and:</p>", schema_line(part));
            }
            fields(&mut rows, part);
        }
        match rows.is_empty() {
            true => {
                let _ = write!(out, "<p>{}</p>", schema_line(schema));
            }
            false => {
                let _ = write!(out, "<table>{rows}</table>");
            }
        }
        out.push_str("</article>");
    }
    out.push_str("</section>");
}

fn fields(out: &mut String, schema: &Value) {
    let required: Vec<&str> = array_items(&schema["required"]).map(text).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let mark = if required.contains(&name.as_str()) { "" } else { " <i>optional</i>" };
        let _ = write!(
            out,
            "<tr><th><code>{}</code>{mark}</th><td>{}{}</td></tr>",
            escape(name),
            paragraphs(description_of(field)),
            schema_line(field)
        );
    }
}

/// The description of a field. For a nullable field, the description of its non-null type.
fn description_of(field: &Value) -> &str {
    let otherwise = array_items(&field["oneOf"]).map(|choice| text(&choice["description"]));
    std::iter::once(text(&field["description"]))
        .chain(otherwise)
        .find(|text| !text.is_empty())
        .unwrap_or("")
}

/// A schema in one line: its type, its values and its limits.
fn schema_line(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = escape(reference.rsplit('/').next().unwrap_or(""));
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if let Some(choices) = choices {
        let shown: Vec<String> = choices.iter().map(schema_line).collect();
        return shown.join(" or ");
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).collect(),
        kind => vec![text(kind)],
    };
    let kinds: Vec<String> = kinds
        .into_iter()
        .filter(|kind| !kind.is_empty())
        .map(|kind| match kind {
            "array" => format!("array of {}", schema_line(&schema["items"])),
            kind => escape(kind),
        })
        .collect();
    let mut shown = format!("<small>{}", kinds.join(" or "));
    for (key, before, after) in [
        ("format", "", ""),
        ("minimum", "from ", ""),
        ("maximum", "to ", ""),
        ("minLength", "at least ", " long"),
        ("maxLength", "at most ", " long"),
        ("minItems", "at least ", ""),
        ("maxItems", "at most ", ""),
        ("default", "default ", ""),
    ] {
        if let Some(value) = schema.get(key) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ = write!(shown, ", {before}{}{after}", escape(&value));
        }
    }
    let words: Vec<String> = array_items(&schema["enum"])
        .map(|word| {
            let word = word.as_str().map_or_else(|| word.to_string(), str::to_owned);
            format!("<code>{}</code>", escape(&word))
        })
        .collect();
    if !words.is_empty() {
        let _ = write!(shown, ": {}", words.join(" "));
    }
    shown + "</small>"
}

fn operations<'a>(
    document: &'a Value,
    tag: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str, &'a Value)> {
    let paths = document["paths"].as_object().into_iter().flatten();
    let all = paths.flat_map(|(path, item)| {
        METHODS.iter().filter_map(move |method| Some((path.as_str(), *method, item.get(*method)?)))
    });
    all.filter(move |(_, _, operation)| array_items(&operation["tags"]).any(|name| name == tag))
}

fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let reference = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| document.pointer(pointer)).unwrap_or(value)
}

fn array_items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn short_method(method: &str) -> &str {
    if method == "delete" { "DEL" } else { method }
}

fn anchor(name: &str) -> String {
    name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

fn path_html(path: &str) -> String {
    escape(path).replace('{', "<em>{").replace('}', "}</em>")
}

/// Renders paragraphs, with `code` between backticks.
fn paragraphs(text: &str) -> String {
    let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty());
    let shown = paragraphs.map(|paragraph| {
        let mut out = String::from("<p>");
        for (place, part) in escape(paragraph).split('`').enumerate() {
            match place % 2 {
                0 => out.push_str(part),
                _ => {
                    let _ = write!(out, "<code>{part}</code>");
                }
            }
        }
        out + "</p>"
    });
    shown.collect()
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_from_the_document_is_escaped() {
        let bad = "<script>alert(1)</script>\"'&";
        let document = json!({
            "info": {"title": bad, "version": bad, "description": bad},
            "tags": [{"name": bad, "description": bad}],
            "paths": {"/x/{<b>}": {"get": {"tags": [bad], "operationId": bad, "summary": bad, "description": bad,
                "parameters": [{"name": bad, "in": bad, "description": bad, "schema": {"type": bad, "enum": [bad], "default": bad}}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": bad}, "example": bad}}},
                "responses": {"200": {"description": bad, "headers": {bad: {"description": bad}}}, bad: {}}}}},
            "components": {"schemas": {bad: {"description": bad, "properties": {bad: {"type": [bad]}}}}},
        });
        let page = page(&document);
        assert!(!page.contains("<script") && !page.contains("<b>}"), "{page}");
    }

    #[test]
    fn every_operation_and_code_is_on_the_page() {
        let document = openapi::document();
        let page = page(&document);
        for (_, item) in document["paths"].as_object().unwrap() {
            for (_, operation) in item.as_object().unwrap() {
                let id = text(&operation["operationId"]);
                assert!(page.contains(&format!("<article id=\"{id}\">")), "{id}");
            }
        }
        for code in Code::ALL {
            assert!(page.contains(&format!("id=\"problem-{}\"", code.word())));
        }
    }

    /// Every internal link leads to an element of the page.
    #[test]
    fn internal_links_have_targets() {
        let page = page(&openapi::document());
        for link in page.split("href=\"#").skip(1) {
            let target = link.split('"').next().unwrap();
            let there = target.is_empty() || page.contains(&format!("id=\"{target}\""));
            assert!(there, "#{target}");
        }
        // Examples contain addresses, but the page loads nothing and links to nothing outside.
        for reference in ["=\"http", "='http", "=http", "url(http", "//\"", "<script", "@import"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }
}
