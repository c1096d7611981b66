//! Generates examples for the OpenAPI document from its schemas, so that every JSON body has one.

use serde_json::{Map, Value, json};

/// The maximum depth of an example. No body is deeper.
const DEPTH_MAX: usize = 12;

/// Adds an example to each JSON body of an operation that has none.
pub(crate) fn add_to_operation(operation: &mut Value, schemas: &Value) {
    if let Some(body) = operation.get_mut("requestBody") {
        fill_content(body, schemas, true);
    }
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status.starts_with('2') {
            fill_content(response, schemas, false);
        }
    }
}

fn fill_content(holder: &mut Value, schemas: &Value, request: bool) {
    let Some(content) = holder.pointer_mut("/content/application~1json") else { return };
    if content.get("example").is_none() && content.get("examples").is_none() {
        let example = example_for(&content["schema"], "", schemas, request, 0);
        content["example"] = example;
    }
}

/// A realistic value that matches a schema.
fn example_for(schema: &Value, name: &str, schemas: &Value, request: bool, depth: usize) -> Value {
    if depth > DEPTH_MAX {
        return Value::Null;
    }
    if let Some(example) = stated_example(schema, name, request) {
        return example;
    }
    let deeper = |schema: &Value| example_for(schema, name, schemas, request, depth + 1);
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.trim_start_matches("#/components/schemas/");
        return deeper(&schemas[target]);
    }
    if let Some(parts) = schema["allOf"].as_array() {
        let mut whole = Map::new();
        for part in parts.iter().map(deeper) {
            whole.extend(part.as_object().cloned().unwrap_or_default());
        }
        return Value::Object(whole);
    }
    let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if let Some(choices) = choices {
        let is_null = |choice: &&Value| choice["type"] == "null";
        return choices.iter().find(|choice| !is_null(choice)).map_or(Value::Null, deeper);
    }
    example_for_type(schema, name, schemas, request, depth)
}

fn example_for_type(
    schema: &Value,
    name: &str,
    schemas: &Value,
    request: bool,
    depth: usize,
) -> Value {
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.clone(),
        kind => vec![kind.clone()],
    };
    let kind = kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("");
    match kind {
        "object" => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            let fields = properties.map(|(field, schema)| {
                (field.clone(), example_for(schema, field, schemas, request, depth + 1))
            });
            Value::Object(fields.collect())
        }
        "array" => json!([example_for(&schema["items"], name, schemas, request, depth + 1)]),
        "boolean" => json!(true),
        "integer" => schema.get("minimum").cloned().unwrap_or(json!(1)),
        "number" => json!(7.5),
        "string" if schema["format"] == "date-time" => json!("2026-11-15T04:00:00Z"),
        "string" => json!("text"),
        _ => json!({}),
    }
}

/// The schema's own example or constant, or the usual value of a field with this name.
fn stated_example(schema: &Value, name: &str, request: bool) -> Option<Value> {
    if let Some(example) = schema.get("example") {
        return Some(example.clone());
    }
    if let Some(first) = schema["examples"].get(0).or_else(|| schema["enum"].get(0)) {
        let fits = |value: &Value| match schema["enum"].as_array() {
            Some(values) => values.contains(value),
            None => schema["type"] == "string" && (value.is_string() || value.is_null()),
        };
        return Some(example_by_name(name, request).filter(fits).unwrap_or_else(|| first.clone()));
    }
    // A field with the same name may be an object or a list elsewhere.
    let made_of_others = ["properties", "$ref", "oneOf", "anyOf", "allOf"];
    let plain = |schema: &Value| made_of_others.iter().all(|part| schema.get(part).is_none());
    let plain = plain(schema) && plain(&schema["items"]);
    if plain { example_by_name(name, request) } else { None }
}

fn example_by_name(name: &str, request: bool) -> Option<Value> {
    Some(match name {
        "name" => json!("Weekly security updates"),
        "description" => json!("Sundays at 03:00, one server at a time"),
        "cron" => json!("0 3 * * SUN"),
        "timezone" => json!("Europe/Berlin"),
        "hostname" => json!("web-1.example.org"),
        "packages" if request => json!(["openssl"]),
        "exclude" if request => json!(["linux-image-*"]),
        "server_ids" if request => json!(["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"]),
        "security_only" => json!(true),
        "reboot" if request => json!("if_required"),
        "stagger_minutes" => json!(10),
        "max_parallel" => json!(5),
        "window_minutes" => json!(240),
        "dry_run" | "held" | "kev" | "allow_empty" => json!(false),
        "suppressed" | "until" => Value::Null,
        "package_name" | "package" | "source" => json!("openssl"),
        "version" | "installed_version" | "from" => json!("3.0.11-1~deb12u2"),
        "available_version" | "fixed_version" | "to" => json!("3.0.13-1~deb12u1"),
        "arch" => json!("amd64"),
        "kernel" => json!("6.1.0-18-amd64"),
        "agent_version" => json!("0.1.0"),
        "reboot_reasons" => json!("linux-image-amd64"),
        "other_updaters" => json!("unattended-upgrades"),
        "unit" | "restarted" => json!("ssh.service"),
        "process" => json!("sshd"),
        "set_aside" => json!("/etc/ssh/sshd_config.dpkg-dist"),
        "notes" => json!("linux-image-amd64 is held and was skipped"),
        "os" => json!("debian 12"),
        "severity" => json!("critical"),
        "severity_source" => json!("debian"),
        "cves" => json!(["CVE-2026-1234"]),
        "started_by" | "created_by" => json!("key_01jcqk3m8ye0fr5cq0k6s8v2xw"),
        "self" => json!("/v1/servers"),
        "next" => json!("/v1/servers?limit=50&offset=50"),
        "prev" | "halt_reason" | "waiting_for" | "failure_code" | "message" | "skip_reason"
        | "blocked_by" | "revoked_at" | "quarantine" => Value::Null,
        "warnings" => json!([]),
        "log" => json!(
            "/v1/batches/bat_01jcqk3m8ye0fr5cq0k6s8v2xw/tasks/tsk_01jcqk3m8ye0fr5cq0k6s8v2xw/log"
        ),
        // In a request it must be in the future, whenever the example is tried.
        "expires_at" if request => json!("2099-12-31T00:00:00Z"),
        "epss" => json!(0.12),
        "percent" => json!(100),
        "total" | "uses" | "succeeded" => json!(1),
        "limit" => json!(50),
        "offset" => json!(0),
        _ => return None,
    })
}
