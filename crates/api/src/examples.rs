//! Generates examples for the OpenAPI document from its schemas, so that every JSON body has one.
//!
//! A generated example is marked with [`GENERATED`], so that a reader can tell it from a recorded
//! or a written one. [`example_for_field`] has the realistic values; a value that does not match
//! its schema is not used.

use serde_json::{Map, Value, json};

/// Marks a media type whose example was generated.
pub(crate) const GENERATED: &str = "x-example-generated";

/// The maximum depth of an example. No body is deeper.
const DEPTH_MAX: usize = 24;

/// Adds an example to each JSON body of an operation that has none.
pub(crate) fn add_to_operation(operation: &mut Value, path: &str, schemas: &Value) {
    if let Some(body) = operation.get_mut("requestBody") {
        fill_content(body, &Generator { schemas, path, request: true });
    }
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status.starts_with('2') {
            fill_content(response, &Generator { schemas, path, request: false });
        }
    }
}

fn fill_content(holder: &mut Value, generator: &Generator<'_>) {
    let Some(content) = holder.pointer_mut("/content/application~1json") else { return };
    if content.get("example").is_none() && content.get("examples").is_none() {
        content["example"] = generator.example(&content["schema"], FieldContext::default(), 0);
        content[GENERATED] = true.into();
    }
}

/// Where a value occurs: the name of the schema that contains it, and the name of its field.
#[derive(Clone, Copy, Default)]
struct FieldContext<'a> {
    object: &'a str,
    field: &'a str,
}

struct Generator<'a> {
    schemas: &'a Value,
    /// The path of the operation, for links.
    path: &'a str,
    request: bool,
}

impl Generator<'_> {
    /// A realistic value that matches a schema.
    fn example(&self, schema: &Value, context: FieldContext<'_>, depth: usize) -> Value {
        if depth > DEPTH_MAX {
            return Value::Null;
        }
        if let Some(example) = schema.get("example") {
            return example.clone();
        }
        if let Some(value) = self.for_field(context).filter(|value| self.matches(schema, value)) {
            return value;
        }
        if let Some(first) = schema["examples"].get(0).or_else(|| schema["enum"].get(0)) {
            return first.clone();
        }
        if let Some(name) = schema_name(schema) {
            // A field of a scalar type keeps its context; the fields of an object have another one.
            let target = &self.schemas[name];
            let is_object = target["type"] == "object" || target.get("allOf").is_some();
            // The schema of a list contains its row; see `openapi::rename_list_schemas`.
            let object = name.strip_prefix("List_").unwrap_or(name);
            let context = if is_object { FieldContext { object, field: "" } } else { context };
            return self.example(target, context, depth + 1);
        }
        if let Some(parts) = schema["allOf"].as_array() {
            let parts = parts.iter().map(|part| self.example(part, context, depth + 1));
            let fields = parts.filter_map(|part| part.as_object().cloned()).flatten();
            return Value::Object(fields.collect::<Map<_, _>>());
        }
        if let Some(choices) = choices(schema) {
            let choice = choices.iter().find(|choice| choice["type"] != "null");
            return choice.map_or(Value::Null, |choice| self.example(choice, context, depth + 1));
        }
        self.example_for_type(schema, context, depth)
    }

    fn example_for_type(&self, schema: &Value, context: FieldContext<'_>, depth: usize) -> Value {
        match types(schema).into_iter().find(|kind| *kind != "null").unwrap_or("") {
            "object" => {
                let properties = schema["properties"].as_object().into_iter().flatten();
                let fields = properties.map(|(field, schema)| {
                    let context = FieldContext { object: context.object, field };
                    (field.clone(), self.example(schema, context, depth + 1))
                });
                Value::Object(fields.collect())
            }
            "array" => json!([self.example(&schema["items"], context, depth + 1)]),
            "boolean" => json!(true),
            "integer" => schema.get("minimum").cloned().unwrap_or(json!(1)),
            "number" => json!(7.5),
            "string" if schema["format"] == "date-time" => json!("2026-11-15T04:00:00Z"),
            "string" => json!("text"),
            _ => json!({}),
        }
    }

    /// Whether a value has a type that the schema allows.
    fn matches(&self, schema: &Value, value: &Value) -> bool {
        if let Some(name) = schema_name(schema) {
            return self.matches(&self.schemas[name], value);
        }
        if let Some(choices) = choices(schema) {
            return choices.iter().any(|choice| self.matches(choice, value));
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.contains(value);
        }
        types(schema).into_iter().any(|kind| match value {
            Value::Null => kind == "null",
            Value::Bool(_) => kind == "boolean",
            Value::Number(number) => kind == "number" || (kind == "integer" && !number.is_f64()),
            Value::String(_) => kind == "string",
            Value::Array(items) => {
                kind == "array" && items.iter().all(|item| self.matches(&schema["items"], item))
            }
            Value::Object(_) => kind == "object",
        })
    }

    fn for_field(&self, context: FieldContext<'_>) -> Option<Value> {
        match context {
            FieldContext { object: "Links", field: "self" } => Some(self.path_with_ids().into()),
            FieldContext { object: "TaskResult", field: "log" } => Some(
                "/v1/batches/bat_01jcqk3m8ye0fr5cq0k6s8v2xw/tasks/tsk_01jcqk3m8ye0fr5cq0k6s8v2xw/log"
                    .into(),
            ),
            _ => example_for_request(context, self.request).or_else(|| example_for_field(context)),
        }
    }

    /// The path of the operation with the ids of the examples.
    fn path_with_ids(&self) -> String {
        let ids = [("{schedule_id}", "ScheduleId"), ("{batch_id}", "BatchId")];
        ids.iter().fold(self.path.to_owned(), |path, (parameter, schema)| {
            let id = self.schemas[*schema]["examples"][0].as_str().unwrap_or(parameter);
            path.replace(parameter, id)
        })
    }
}

fn schema_name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix("#/components/schemas/")
}

fn choices(schema: &Value) -> Option<&Vec<Value>> {
    schema["oneOf"].as_array().or(schema["anyOf"].as_array())
}

fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    }
}

/// Values of fields that clients send.
fn example_for_request(context: FieldContext<'_>, request: bool) -> Option<Value> {
    if !request {
        return None;
    }
    Some(match (context.object, context.field) {
        ("FreezeRequest", "starts_at" | "ends_at") => Value::Null,
        ("EditServers", "add_tags") => json!(["web"]),
        ("EditServers", "remove_tags") => json!(["legacy"]),
        (_, "packages") => json!(["openssl"]),
        (_, "exclude") => json!(["linux-image-*"]),
        (_, "server_ids") => json!(["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"]),
        (_, "reboot") => json!("if_required"),
        (_, "pin_versions") => json!(true),
        ("NewerVersion", "pinned") => json!("3.0.15-1~deb12u1"),
        ("NewerVersion", "available") => json!("3.0.16-1~deb12u1"),
        (_, "max_uses") => json!(50),
        (_, "canary" | "override_freeze") => Value::Null,
        (_, "health") => json!("gate"),
        (_, "max_unhealthy") => json!("5%"),
        (_, "waves") => json!([
            {"size": 5, "soak_minutes": 60},
            {"size": "20%", "soak_minutes": 1440},
            {"approval": true},
        ]),
        ("Decision", "comment") => json!("No alerts since yesterday."),
        // It must be in the future, whenever the example is tried.
        (_, "expires_at") => json!("2099-12-31T00:00:00Z"),
        _ => return None,
    })
}

/// Realistic values, by the schema that contains the field or, for most, by its name alone.
fn example_for_field(context: FieldContext<'_>) -> Option<Value> {
    Some(match (context.object, context.field) {
        ("Package" | "PackageChange" | "PreviewUpdate", "name") => json!("openssl"),
        ("Os", "name") => json!("Debian GNU/Linux 12 (bookworm)"),
        ("Os", "id") => json!("debian"),
        ("Os", "version") => json!("12"),
        ("ApiKey", "name") => json!("ci"),
        ("EnrollmentToken", "name") => json!("web image"),
        ("ApiKey" | "EnrollmentToken" | "Suppression", "expires_at") => {
            json!("2027-11-15T04:00:00Z")
        }
        ("Forecast", "from") => json!("2026-11-15T04:00:00Z"),
        ("Forecast", "until") => json!("2026-12-15T04:00:00Z"),
        ("ForecastDay", "date") => json!("2026-11-16"),
        ("ForecastDay", "runs" | "skipped") => json!(1),
        ("ForecastDay", "reboots" | "possible_reboots" | "patched") => json!(12),
        ("ForecastPlan", "assumptions") => json!(["Nobody approves a wave."]),
        ("ForecastPlan", "ended_early_at") => Value::Null,
        ("ForecastGap", "reason") => json!("no_schedule"),
        ("ForecastGap", "detail") => json!("No schedule selects the server."),
        ("ForecastShortWindow", "minutes_short") => json!(25),
        ("ForecastPatch", "reason") => Value::Null,
        ("ForecastPatch", "outlook") => json!("patched"),
        ("ForecastPatch", "left") => json!(0),
        ("ForecastRun", "name") => json!("Nightly"),
        ("ForecastRun", "batch_id") => Value::Null,
        ("Freeze" | "FreezeRequest", "name") => json!("Business hours"),
        ("Freeze" | "FreezeRequest", "reason") => json!("Customers work until 18:00"),
        ("Freeze" | "FreezeRequest", "cron") => json!("0 8 * * MON-FRI"),
        ("Freeze" | "FreezeRequest", "duration_minutes") => json!(600),
        ("Freeze", "starts_at" | "ends_at" | "active_until") => Value::Null,
        ("Freeze", "active") => json!(false),
        ("Freeze", "servers") => json!(42),
        ("Freeze", "next") => {
            json!([{"starts_at": "2026-11-16T07:00:00Z", "ends_at": "2026-11-16T17:00:00Z"}])
        }
        ("FreezePeriod", "starts_at") => json!("2026-11-16T07:00:00Z"),
        ("FreezePeriod", "ends_at") => json!("2026-11-16T17:00:00Z"),
        ("Policy" | "PolicyRequest", "name") => json!("Critical within a week"),
        ("Policy" | "PolicyRequest" | "ReportedPolicy", "description") => {
            json!("Security standard, section 4.2")
        }
        ("PolicyRuleRequest" | "PolicyRule", "match") => json!({"severity": "critical"}),
        ("PolicyRuleRequest" | "PolicyRule", "within_days") => json!(7),
        ("Policy" | "Compliance" | "ReportedFigures", "servers") => json!(42),
        ("Compliance" | "ComplianceDay" | "ReportedFigures", "compliant") => json!(36),
        ("Compliance" | "ComplianceDay" | "ReportedFigures", "due_soon") => json!(3),
        ("Compliance" | "ComplianceDay" | "ReportedFigures", "breaching") => json!(2),
        ("Compliance" | "ComplianceDay" | "ReportedFigures", "unknown") => json!(1),
        ("ComplianceDay", "day") => json!("2026-11-15"),
        ("Compliance" | "ServerCompliance" | "ExplainedPolicy", "policy") => {
            json!("Critical within a week")
        }
        ("ServerCompliance", "state") => json!("breaching"),
        ("ServerCompliance", "unknown_reason") | ("Explanation", "policy") => Value::Null,
        ("ServerCompliance", "open") => json!(3),
        ("ServerCompliance", "overdue") => json!(1),
        ("SignedReport", "report") => json!("{\"organization\":\"default\"}"),
        ("SignedReport", "key") => json!("4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS"),
        ("CatalogFeed", "url") => json!("https://feeds.example.org/osv/Debian/all.zip"),
        ("Feed", "records") => json!(48_213),
        ("Feed", "size_bytes") => json!(71_303_168),
        ("Feed", "age_seconds") => json!(3600),
        ("Feed", "state") => json!("current"),
        ("Feed", "progress") => Value::Null,
        ("CatalogFeed", "every_hours") => json!(6),
        ("CatalogFeed", "opt_in") => json!(false),
        ("Cve" | "CveSummary" | "PatchCve", "id")
        | ("Suppression" | "CreateSuppression", "cve") => {
            json!("CVE-2026-1234")
        }
        ("Cve", "aliases") | ("PreviewServer", "blocked" | "nothing_pending" | "host_limits") => {
            json!([])
        }
        ("CveSummary", "packages") => json!(["openssl"]),
        ("CveDetail" | "PatchCve", "url") => {
            json!("https://security-tracker.debian.org/tracker/CVE-2026-1234")
        }
        ("Cve" | "ExposedServer", "found") => json!("debian"),
        ("Coverage", "ecosystem") => json!("Debian:12"),
        ("PatchVersion", "os") => json!("debian 12"),
        ("AgentRelease" | "AgentVersion", "version") | ("AgentUpgradeStatus", "version") => {
            json!("0.1.0")
        }
        ("AgentRelease" | "AgentVersion", "architecture") => json!("x86_64"),
        ("AgentRelease", "sha256") => {
            json!("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
        }
        ("AgentRelease", "size_bytes") => json!(9_437_184),
        ("AgentVersion", "outdated") | ("Server", "agent_outdated" | "stale") => json!(false),
        ("AgentVersion", "servers") => json!(42),
        ("AgentUpgradeStatus" | "Refresh", "state") => json!("completed"),
        ("AgentUpgradeStatus", "completed_at") => json!("2026-11-15T04:01:30Z"),
        ("AgentUpgrades", "requested") => json!(3),
        ("AgentUpgrades", "current") => json!(39),
        ("Refresh", "completed_at") => json!("2026-11-15T04:00:07Z"),
        ("Refresh", "deadline_at") => json!("2026-11-15T04:10:00Z"),
        ("Batch" | "Task" | "Run" | "LastRun", "state") => json!("succeeded"),
        ("Batch" | "Task" | "Run" | "LastRun", "finished_at") => json!("2026-11-15T04:02:11Z"),
        ("Options", "override_freeze") => Value::Null,
        ("Options", "waves") | ("TaskResult", "newer_available") => json!([]),
        ("Options", "pin_versions") => json!(false),
        ("Options", "max_unhealthy") | ("BatchWave", "max_unhealthy") => json!(0),
        ("TaskHealth", "state") => json!("healthy"),
        ("TaskHealth", "problems") => json!([]),
        ("TaskHealth", "not_measured") | ("Batch", "halt_code") => Value::Null,
        ("TaskHealth", "after_change") => json!(true),
        ("TaskHealth", "after_soak") => json!(false),
        ("HealthProblem", "name") => json!("nginx.service"),
        ("HealthProblem", "description") => json!("nginx.service failed"),
        ("BatchWave", "number" | "size") | ("Task" | "PreviewServer", "wave") => json!(1),
        ("BatchWave", "state") => json!("ended"),
        ("BatchWave", "soak_minutes") => json!(0),
        ("BatchWave", "approval") => json!(false),
        ("BatchWave", "soak_until" | "approved_by" | "approved_at" | "comment") => Value::Null,
        ("Batch", "run_id" | "schedule_id") | ("Task", "deadline_at") => Value::Null,
        ("TaskResult", "duration") => json!(131),
        ("TaskResult", "exit") => json!(0),
        ("TaskResult", "set_aside" | "notes") => json!([]),
        ("Reboot", "done" | "needed") => json!(false),
        ("Reboot", "seconds") => Value::Null,
        ("PreviewServer", "waits_for") | ("Preview", "freezes") => json!([]),
        ("PreviewWave", "number" | "size") => json!(1),
        ("PreviewWave", "with_updates") => json!(1),
        ("PreviewWave", "soak_minutes") => json!(60),
        ("PreviewWave", "approval") => json!(false),
        ("Preview", "expected_minutes") => json!(75),
        ("PreviewReboots", "certain") => json!(0),
        ("PreviewReboots", "possible") => json!(1),
        ("PreviewServer", "reboot") => json!("no"),
        ("HostLimits", "allowed_hours") => json!(["Sat-Sun 02:00-05:00"]),
        ("HostLimits", "exclude") => json!(["linux-image-*"]),
        ("HostLimits", "error" | "max_packages") | ("Server", "limits") => Value::Null,
        ("Server", "other_updaters" | "reboot_reasons") => json!([]),
        ("Server", "reboot_required") => json!(false),
        ("Summary", "packages") => json!(412),
        ("Summary", "updates") => json!(7),
        ("Summary", "security_updates") => json!(2),
        ("SeverityCounts", "critical" | "high") => json!(1),
        ("SeverityCounts", "medium") => json!(4),
        ("UnassessedPackage", "package") => json!("docker-ce"),
        ("UnassessedPackage", "version") => json!("5:27.3.1-1~debian.12~bookworm"),
        ("UnassessedPackage", "detail") => json!("not from a repository of Debian"),
        ("ServerCounts", "total") => json!(42),
        ("ServerCounts", "online") => json!(41),
        ("ServerCounts", "offline") => json!(1),
        ("ServerCounts", "up_to_date") => json!(30),
        ("ServerCounts", "with_updates") => json!(12),
        ("ServerCounts", "with_security_updates") => json!(5),
        ("AssessmentCounts", "assessed") => json!(42),
        ("PatchCounts", "total") => json!(37),
        ("PatchCounts", "security") => json!(9),
        ("EditedServers", "matched") => json!(12),
        ("EditedServers", "changed") => json!(4),
        ("Patch" | "CveSummary", "affected_servers") => json!(5),
        ("Patch", "cves") => json!(["CVE-2026-1234"]),
        (_, "name") => json!("Weekly security updates"),
        (_, "description") => json!("Sundays at 03:00, one server at a time"),
        (_, "cron") => json!("0 3 * * SUN"),
        (_, "timezone") => json!("Europe/Berlin"),
        (_, "next_runs") => json!(["2026-11-22T02:00:00Z", "2026-11-29T02:00:00Z"]),
        (_, "next_run_at") => json!("2026-11-22T02:00:00Z"),
        (_, "hostname") => json!("web-1.example.org"),
        (_, "security_only") => json!(true),
        (_, "stagger_minutes") => json!(10),
        (_, "max_parallel") => json!(5),
        (_, "window_minutes") => json!(240),
        (_, "dry_run" | "held" | "kev" | "allow_empty") => json!(false),
        (_, "package_name" | "package" | "source") => json!("openssl"),
        (_, "version" | "installed_version" | "from") => json!("3.0.11-1~deb12u2"),
        (_, "available_version" | "fixed_version" | "to") => json!("3.0.13-1~deb12u1"),
        (_, "arch") => json!("amd64"),
        (_, "kernel") => json!("6.1.0-18-amd64"),
        (_, "agent_version") => json!("0.1.0"),
        (_, "unit" | "restarted") => json!("ssh.service"),
        (_, "process") => json!("sshd"),
        (_, "severity") => json!("critical"),
        (_, "severity_source") => json!("debian"),
        (_, "reason") => json!("the vulnerable code is not built"),
        (_, "started_by" | "created_by") => json!("key_01jcqk3m8ye0fr5cq0k6s8v2xw"),
        (_, "api_key") => json!("fmk_…"),
        (_, "token") => json!("fme_…"),
        (_, "install_command") => {
            json!("curl -fsSL https://fleet.example/install.sh | sudo sh -s -- fme_…")
        }
        (
            _,
            "next" | "prev" | "halt_reason" | "waiting_for" | "failure_code" | "message"
            | "skip_reason" | "blocked_by" | "revoked_at" | "quarantine" | "suppressed" | "until"
            | "last_error" | "derived_from" | "agent_upgrade",
        ) => Value::Null,
        (_, "warnings") => json!([]),
        (_, "epss") => json!(0.12),
        (_, "percent") => json!(100),
        (_, "total" | "uses" | "succeeded") => json!(1),
        (_, "limit") => json!(50),
        (_, "offset") => json!(0),
        _ => return None,
    })
}
