//! Constraints that the derived schemas cannot express: rules between fields, and limits that the
//! extractors set.
//!
//! The rules are enforced elsewhere. They are written into the OpenAPI document here, so that the
//! service accepts every request that the document calls valid. They use `not` instead of `anyOf`,
//! because client generators turn the latter into a union of types.

use std::collections::BTreeSet;

use httpkit::filters::{DELIVERY_STATES, TASK_STATES};
use serde_json::{Value, json};
use service::requests::NAME_PATTERN;

/// Pattern of one tag in a list.
const TAG: &str = "[A-Za-z0-9][A-Za-z0-9._:/=@+-]{0,63}";

/// Pattern of the address of a webhook.
const URL: &str = "^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[!-~]*)?$";

/// Pattern of an email address. The service checks more than it says.
const EMAIL: &str = r"^[A-Za-z0-9._+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$";
/// Pattern of a reason: text of several lines that is not blank.
const REASON: &str = r"^[^\u0000]*[^\s\u0000][^\u0000]*$";
/// The request bodies that start a batch.
const BATCH_BODIES: [&str; 2] = ["CreateBatch", "PatchServer"];

/// Adds the constraints to the schemas.
pub(crate) fn add_to_schemas(schemas: &mut Value) {
    for body in [
        "ScheduleRequest",
        "FreezeRequest",
        "PolicyRequest",
        "CreateApiKey",
        "CreateEnrollmentToken",
    ] {
        schemas[body]["properties"]["name"]["pattern"] = NAME_PATTERN.into();
    }
    for body in BATCH_BODIES {
        schemas[body]["properties"]["name"]["pattern"] = NAME_PATTERN.into();
    }
    for body in ["CreateWebhook", "EditWebhook"] {
        let fields = &mut schemas[body]["properties"];
        fields["name"]["pattern"] = NAME_PATTERN.into();
        fields["url"]["pattern"] = URL.into();
        fields["types"]["items"]["pattern"] = format!("^({})$", event_types()).into();
    }
    schemas["TestNotification"]["properties"]["to"]["pattern"] = EMAIL.into();
    schemas["EditServer"]["properties"]["display_name"]["pattern"] = NAME_PATTERN.into();
    for field in ["package", "reason"] {
        schemas["CreateSuppression"]["properties"][field]["pattern"] = NAME_PATTERN.into();
    }
    for body in ["OptionsRequest", "PreviewRequest"].into_iter().chain(BATCH_BODIES) {
        at_least_one(&mut schemas[body]["properties"]["max_failures"]);
        schemas[body]["properties"]["override_freeze"]["pattern"] = NAME_PATTERN.into();
    }
    schemas["FreezeRequest"]["properties"]["reason"]["pattern"] = REASON.into();
    schemas["FreezeRequest"]["not"] = freeze_without_one_timing();
    policy_match(&mut schemas["PolicyMatchRequest"]);
    at_least_one(&mut schemas["WaveRequest"]["properties"]["size"]);
    schemas["Selector"]["minProperties"] = 1.into();
    schemas["Selector"]["not"] = json!({
        "required": ["all"], "minProperties": 2, "properties": {"all": {"type": "boolean"}},
    });
    let selects_nothing = without_fields(&["packages", "security_only"]);
    for body in BATCH_BODIES {
        schemas[body]["not"] = selects_nothing.clone();
    }
    let mut named_and_selects_nothing = selects_nothing;
    named_and_selects_nothing["required"] = json!(["server_ids"]);
    named_and_selects_nothing["properties"]["server_ids"] = any_array();
    let both = json!({
        "required": ["server_ids", "targets"],
        "properties": {"server_ids": any_array(), "targets": {"type": "object"}},
    });
    schemas["PreviewRequest"]["not"] = json!({"anyOf": [without_fields(&["server_ids", "targets"]), both, named_and_selects_nothing]});
}

/// Adds the patterns of comma-separated parameters to an operation.
pub(crate) fn add_to_operation(operation: &mut Value) {
    let severities: Vec<&str> = vocab::Severity::ALL.iter().map(|word| word.as_str()).collect();
    let (parameter, word) = match operation["operationId"].as_str() {
        Some("list_batches") => ("state", service::queries::batches::STATES.join("|")),
        Some("list_tasks") => ("state", TASK_STATES.join("|")),
        Some("list_patches" | "list_cves") => ("severity", severities.join("|")),
        Some("list_servers") => ("tag", TAG.to_owned()),
        Some("list_events" | "follow_events") => ("type", event_types()),
        Some("list_deliveries") => ("state", DELIVERY_STATES.join("|")),
        Some("list_audit_entries" | "export_audit_entries") => ("action", action_patterns()),
        _ => return,
    };
    let parameters = operation["parameters"].as_array_mut().into_iter().flatten();
    if let Some(found) = parameters.into_iter().find(|one| one["name"] == parameter) {
        found["schema"]["pattern"] = format!("^ *({word}) *(, *({word}) *)*$").into();
    }
}

/// What selects types of events: their names, and `batch.*` for a group.
fn event_types() -> String {
    patterns(service::EventKind::ALL.iter().map(|kind| kind.as_str()))
}

/// What selects actions: their names, and `batch.*` for a group.
fn action_patterns() -> String {
    patterns(service::audit::Action::ALL.iter().map(|action| action.as_str()))
}

/// A pattern of these names, their groups, and `*`.
fn patterns(names: impl Iterator<Item = &'static str> + Clone) -> String {
    let groups: BTreeSet<&str> = names.clone().filter_map(|name| name.split('.').next()).collect();
    let groups = groups.into_iter().map(|group| format!(r"{group}\.\*"));
    let names = names.map(|name| name.replace('.', r"\."));
    [r"\*".to_owned()].into_iter().chain(groups).chain(names).collect::<Vec<_>>().join("|")
}

/// Exactly one field, which says something.
fn policy_match(schema: &mut Value) {
    schema["minProperties"] = 1.into();
    schema["maxProperties"] = 1.into();
    schema["properties"]["kev"] = json!({"const": true, "type": "boolean",
        "description": "`true`: fixes of CVEs that are known to be exploited."});
    schema["properties"]["security"] = json!({"const": true, "type": "boolean",
        "description": "`true`: fixes of all CVEs, and updates that the package manager marks as security updates."});
    schema["properties"]["severity"] = json!({"enum": ["low", "medium", "high", "critical"],
        "type": "string", "description": "Fixes of CVEs of at least this severity."});
}

/// A freeze that is neither one-off nor recurring, both, or incomplete.
fn freeze_without_one_timing() -> Value {
    let text = json!({"type": "string"});
    let mut both = Vec::new();
    for one_off in ["starts_at", "ends_at"] {
        for (recurring, kind) in [
            ("cron", text.clone()),
            ("timezone", text.clone()),
            ("duration_minutes", json!({"type": "integer"})),
        ] {
            both.push(json!({
                "required": [one_off, recurring],
                "properties": {one_off: text.clone(), recurring: kind},
            }));
        }
    }
    let incomplete = [&["ends_at", "cron"][..], &["ends_at", "duration_minutes"]];
    let choices: Vec<Value> = both.into_iter().chain(incomplete.map(without_fields)).collect();
    json!({"anyOf": choices})
}

fn any_array() -> Value {
    json!({"type": "array", "items": {}})
}

/// A schema for an object without these fields. Null counts as absent.
fn without_fields(fields: &[&str]) -> Value {
    let nothing = fields.iter().map(|field| ((*field).to_owned(), json!({"type": "null"})));
    json!({"properties": Value::Object(nothing.collect())})
}

/// Excludes zero from a number or percentage.
fn at_least_one(field: &mut Value) {
    let description = field["oneOf"][0]["description"].clone();
    let mut schema = serde_json::to_value(<vocab::Portion as utoipa::PartialSchema>::schema())
        .unwrap_or_default();
    schema["description"] = description;
    schema["oneOf"][0]["minimum"] = 1.into();
    if let Some(choices) = schema["oneOf"].as_array_mut() {
        choices.push(json!({"type": "null"}));
    }
    *field = schema;
}
