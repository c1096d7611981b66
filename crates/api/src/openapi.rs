//! The OpenAPI 3.1 document, generated from the table of routes.
//!
//! A handler declares its parameters and its success response. What applies to all operations
//! (errors, headers, authentication) is added here, so that no handler can omit it.

use std::sync::OnceLock;

use axum::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use httpkit::SharedBody;
use httpkit::problem::{Code, MEDIA_TYPE};
use serde_json::{Map, Value, json};

use crate::routes::Access;
use crate::{examples, links, openapi_rules};

const DESCRIPTION: &str = "Patch management for Linux fleets: schedules, servers, patches and batches.

Send an API key with every request: `Authorization: Bearer fmk_…`. Bodies are JSON in UTF-8; times are RFC 3339 in UTC; IDs are opaque strings. \
Unknown fields and parameters are rejected, never ignored. Lists are paginated, with links to the next page.

Send an `Idempotency-Key` with a POST to make it safe to repeat: for 24 hours, the same key returns the first response. \
Send the `ETag` of the version that you read as `If-Match` with a change to avoid overwriting the changes of others.

Every error is an RFC 9457 problem with a `code` from a closed list; a 422 lists all invalid fields at once. \
Only a request that is not valid HTTP/1.1 gets a response without a body: 400, or 431 if the URL and the headers together exceed 32 KiB; \
the connection is then closed.";

/// The groups of operations, in the order of the reference: what there is, what to do about it, and
/// how the service is set up.
const TAGS: [(&str, &str); 19] = [
    ("Summary", "Counts over the whole fleet."),
    ("Servers", "The inventory: every server with an agent, its packages and its CVEs."),
    ("Patches", "Pending updates, and the servers that need them."),
    ("CVEs", "Known vulnerabilities, the servers that they affect, and suppressions."),
    ("Preview", "What a batch would do, before it is created."),
    ("Forecast", "What the schedules will do in the next days, and the effect of changes."),
    (
        "Batches",
        "Patch operations on one server or thousands, with staggering, a canary and a failure limit.",
    ),
    (
        "Schedules",
        "Recurring patch runs: a cron expression in a time zone, the target servers, and the patch options.",
    ),
    ("Freezes", "Times in which no task starts on the selected servers, once or recurring."),
    ("Policies", "By when fixes must be installed, and which servers comply."),
    ("Events", "What happened: to read and to follow."),
    ("Audit log", "Who changed what, and whether the log is intact."),
    ("Webhooks", "Where events are sent, and the log of deliveries."),
    ("Notifications", "Messages to people by email."),
    ("Agents", "The agents on the servers, and their upgrades."),
    ("Feeds", "Vulnerability data that has been imported, and how current it is."),
    ("Enrollment tokens", "Tokens with which new servers enroll."),
    ("API keys", "Keys for the API, and their roles."),
    ("Service", "Health, metrics and documentation."),
];

/// `*`, or entity tags separated by commas.
const IF_MATCH_PATTERN: &str = r#"^(\*|(W/)?"[!#-+\--~]*")( *, *(\*|(W/)?"[!#-+\--~]*"))*$"#;

/// The error statuses that an operation may return.
fn statuses(operation: &Operation<'_>) -> Vec<u16> {
    let mut statuses = vec![400, 500, 503];
    let mut add = |condition: bool, more: &[u16]| {
        if condition {
            statuses.extend(more);
        }
    };
    add(operation.role.is_some(), &[401, 403, 429]);
    add(operation.has_id, &[404]);
    // A POST without a body still reads one, and accepts only an empty object.
    add(operation.method == "post" || operation.takes_body, &[408, 413, 415, 422]);
    add(operation.method != "get", &[409]);
    add(operation.has_version(), &[412]);
    statuses.sort_unstable();
    statuses
}

struct Operation<'a> {
    method: &'a str,
    path: &'a str,
    role: Option<&'static str>,
    takes_body: bool,
    /// Whether its path or query contains an id.
    has_id: bool,
}

impl Operation<'_> {
    /// Whether it changes a resource that has an `ETag`. Feeds have none: they change on their own.
    fn has_version(&self) -> bool {
        let changes = matches!(self.method, "put" | "patch" | "delete");
        changes && self.role.is_some() && !self.path.starts_with("/v1/feeds/")
    }
}

/// The whole document.
pub fn document() -> Value {
    let routes = super::routes();
    let access = routes.operations();
    let mut document = serde_json::to_value(routes.document()).unwrap_or_default();
    add_info(&mut document);
    add_components(&mut document);
    let schemas = document["components"]["schemas"].clone();
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            let may = access
                .iter()
                .find(|(of, at, _)| at == path && of.as_str().eq_ignore_ascii_case(method));
            let role = match may {
                Some((_, _, Access::Key(role))) => Some(role.as_str()),
                _ => None,
            };
            let takes_body = operation.get("requestBody").is_some();
            let names_something = path.contains('{') || has_id_parameter(operation);
            let about = Operation { method, path, role, takes_body, has_id: names_something };
            complete_operation(operation, &about);
            examples::add_to_operation(operation, path, &schemas);
            links::add_to_operation(operation);
            openapi_rules::add_to_operation(operation);
        }
    }
    remove_unused_responses(&mut document);
    rename_list_schemas(document)
}

/// Removes the responses that no operation refers to. Some codes occur only outside of operations,
/// such as 405 for a method that a path does not have.
fn remove_unused_responses(document: &mut Value) {
    let paths = document["paths"].to_string();
    if let Some(responses) = document["components"]["responses"].as_object_mut() {
        responses.retain(|name, _| paths.contains(&format!("\"#/components/responses/{name}\"")));
    }
}

/// Whether a parameter of the query names something that must exist.
fn has_id_parameter(operation: &Value) -> bool {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    parameters
        .into_iter()
        .any(|parameter| parameter["name"] == "server_id" || parameter["name"] == "policy")
}

fn add_info(document: &mut Value) {
    document["info"] = json!({
        "title": "Fleetmend",
        "version": env!("CARGO_PKG_VERSION"),
        "description": DESCRIPTION,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    });
    document["servers"] = json!([{"url": "/", "description": "This service."}]);
    document["security"] = json!([{"api_key": []}]);
    document["tags"] = TAGS
        .iter()
        .map(|(name, description)| json!({"name": name, "description": description}))
        .collect();
}

fn add_components(document: &mut Value) {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.word()).collect();
    let responses: Map<String, Value> =
        all_statuses().into_iter().map(|status| (response_name(status), problem(status))).collect();
    let components = &mut document["components"];
    components["schemas"]["Problem"] = schema::<wire::v1::Problem>();
    components["schemas"]["FieldError"] = schema::<wire::v1::FieldError>();
    components["schemas"]["OsFilter"] = schema::<vocab::OsFilter>();
    components["schemas"]["Tag"] = schema::<vocab::Tag>();
    components["schemas"]["Environment"] = schema::<vocab::Environment>();
    components["schemas"]["ServerId"] = schema::<vocab::ServerId>();
    components["schemas"]["Problem"]["properties"]["code"]["enum"] = json!(codes);
    openapi_rules::add_to_schemas(&mut components["schemas"]);
    components["responses"] = Value::Object(responses);
    components["responses"]["SeeOther"] = json!({
        "description": "Only with an `Idempotency-Key` that was used before: the first request succeeded, but its response was lost in a crash. `Location` has the result.",
        "headers": {
            "X-Request-Id": {"$ref": "#/components/headers/RequestId"},
            "Location": {"$ref": "#/components/headers/Location"},
            "Idempotent-Replayed": {"$ref": "#/components/headers/IdempotentReplayed"},
        },
    });
    components["securitySchemes"] = json!({"api_key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "fmk_…",
        "description": "An API key. `fleetmend init` prints the first one; `POST /v1/api-keys` creates more.",
    }});
    components["headers"] = json!({
        "RequestId": {"description": "ID of this request in the logs.", "required": true,
            "schema": {"type": "string"}},
        "RateLimit": {"description": "Remaining requests of this key (`r`), and seconds until the limit is fully restored (`t`).",
            "schema": {"type": "string"}, "example": "\"key\";r=1999;t=1"},
        "RateLimitPolicy": {"description": "Requests that a key can send at once (`q`), and seconds until an exhausted limit is fully restored (`w`).",
            "schema": {"type": "string"}, "example": "\"key\";q=2000;w=10"},
        "Location": {"description": "Path of the resource.", "schema": {"type": "string"}},
        "ETag": {"description": "Version of the resource, for `If-Match`.", "schema": {"type": "string"}, "example": "\"3\""},
        "RetryAfter": {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}},
        "IdempotentReplayed": {"description": "`true` if this is the stored response of an earlier request.", "schema": {"type": "string"}},
    });
    components["parameters"] = json!({
        "IdempotencyKey": {"name": "Idempotency-Key", "in": "header", "required": false,
            "description": "Makes it safe to repeat this request: for 24 hours, the same key and body return the first response.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
            "example": "0d2f7a8e-patch-web"},
        "IfMatch": {"name": "If-Match", "in": "header", "required": false,
            "description": "The `ETag` of the version to change, or several separated by commas. 412 if the resource has another version.",
            "schema": {"type": "string", "minLength": 1, "pattern": IF_MATCH_PATTERN}, "example": "\"3\""},
    });
}

fn schema<T: utoipa::PartialSchema>() -> Value {
    serde_json::to_value(T::schema()).unwrap_or_default()
}

fn all_statuses() -> Vec<u16> {
    let mut statuses: Vec<u16> = Code::ALL.iter().map(|code| code.status().as_u16()).collect();
    statuses.sort_unstable();
    statuses.dedup();
    statuses
}

fn response_name(status: u16) -> String {
    format!("Problem{status}")
}

fn codes_of(status: u16) -> impl Iterator<Item = Code> {
    Code::ALL.iter().copied().filter(move |code| code.status().as_u16() == status)
}

fn problem(status: u16) -> Value {
    let descriptions: Vec<String> =
        codes_of(status).map(|code| format!("`{}`: {}", code.word(), code.about())).collect();
    let examples: Map<String, Value> = codes_of(status)
        .map(|code| {
            (code.word().to_owned(), json!({"summary": code.title(), "value": example(code)}))
        })
        .collect();
    let mut headers = json!({"X-Request-Id": {"$ref": "#/components/headers/RequestId"}});
    if matches!(status, 409 | 429 | 503) {
        headers["Retry-After"] = json!({"$ref": "#/components/headers/RetryAfter"});
    }
    json!({
        "description": descriptions.join("\n\n"),
        "headers": headers,
        "content": {MEDIA_TYPE: {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "examples": examples,
        }},
    })
}

fn example(code: Code) -> Value {
    let mut value = json!({
        "type": format!("/docs#problem-{}", code.word()),
        "title": code.title(),
        "status": code.status().as_u16(),
        "detail": code.about(),
        "code": code.word(),
        "request_id": "req_5f0d6b1c9a3e4d27b8c1f2a3948576e0",
    });
    if code == Code::InvalidBody {
        value["errors"] =
            json!([{"pointer": "/name", "code": "required", "detail": "this field is required"}]);
    }
    value
}

/// Adds what applies to every operation of this kind.
fn complete_operation(operation: &mut Value, about: &Operation<'_>) {
    match about.role {
        Some(role) => {
            let requirement = format!("Requires an API key with the role `{role}` or higher.");
            let description = match operation["description"].as_str() {
                Some(description) => format!("{description}\n\n{requirement}"),
                None => requirement,
            };
            operation["description"] = description.into();
            operation["x-required-role"] = role.into();
        }
        None => operation["security"] = json!([]),
    }
    let parameter = match (about.role, about.method) {
        (Some(_), "post") => Some("IdempotencyKey"),
        _ => about.has_version().then_some("IfMatch"),
    };
    if let Some(parameter) = parameter {
        let reference = json!({"$ref": format!("#/components/parameters/{parameter}")});
        match operation["parameters"].as_array_mut() {
            Some(parameters) => parameters.push(reference),
            None => operation["parameters"] = json!([reference]),
        }
    }
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, response) in responses.iter_mut() {
        response["headers"] = headers(about, status);
    }
    if about.method == "post" && about.role.is_some() {
        responses.insert("303".into(), json!({"$ref": "#/components/responses/SeeOther"}));
    }
    for status in statuses(about) {
        let reference =
            json!({"$ref": format!("#/components/responses/{}", response_name(status))});
        responses.entry(status.to_string()).or_insert(reference);
    }
}

fn headers(about: &Operation<'_>, status: &str) -> Value {
    let mut names = vec![("X-Request-Id", "RequestId")];
    if about.role.is_some() {
        names.extend([("RateLimit", "RateLimit"), ("RateLimit-Policy", "RateLimitPolicy")]);
    }
    if about.method == "post" && about.role.is_some() {
        names.push(("Idempotent-Replayed", "IdempotentReplayed"));
    }
    if matches!(status, "201" | "202") {
        names.push(("Location", "Location"));
    }
    // Only resources with their own id have a version; parts of a resource and computed values have
    // none.
    let by_id = about.path.ends_with("_id}") && about.path.matches('{').count() == 1;
    let one = by_id && matches!(about.method, "get" | "put");
    if (one && status == "200") || status == "201" {
        names.push(("ETag", "ETag"));
    }
    let all = names.into_iter().map(|(name, component)| {
        (name.to_owned(), json!({"$ref": format!("#/components/headers/{component}")}))
    });
    Value::Object(all.collect())
}

/// Renames `List_Server`, which results from Rust's generics and contains an anonymous copy of the
/// row, to `ServerList` with rows of type `Server`.
fn rename_list_schemas(mut document: Value) -> Value {
    let schemas = &mut document["components"]["schemas"];
    let names: Vec<String> = schemas
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, _)| name.strip_prefix("List_").map(str::to_owned))
        .collect();
    for name in &names {
        let row = schemas[format!("List_{name}")].pointer_mut("/properties/data/items");
        let reference = json!({"$ref": format!("#/components/schemas/{name}")});
        let row = row.map(|row| std::mem::replace(row, reference));
        if schemas.get(name).is_none() {
            schemas[name] = row.unwrap_or_default();
        }
    }
    let mut text = document.to_string();
    for name in names {
        text = text.replace(&format!("List_{name}\""), &format!("{name}List\""));
    }
    serde_json::from_str(&text).unwrap_or(document)
}

/// The document as served.
pub fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| serde_json::to_string_pretty(&document()).unwrap_or_default())
}

/// This description
///
/// The whole interface as an OpenAPI 3.1 document.
#[utoipa::path(get, path = "/openapi.json", tag = "Service", operation_id = "openapi",
    responses((status = 200, description = "The OpenAPI document.", body = Object)))]
pub(crate) async fn openapi_json() -> impl IntoResponse {
    (Extension(SharedBody), [(CONTENT_TYPE, "application/json")], text())
}
