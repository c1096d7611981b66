//! Validates response bodies against the OpenAPI document. Supports the parts of JSON Schema that
//! the document uses.

use serde_json::{Map, Value};

use crate::support::fleetmend;

/// The OpenAPI document, as the binary prints it.
pub(crate) struct OpenApi(Value);

impl OpenApi {
    pub(crate) fn load() -> OpenApi {
        let printed = fleetmend(&["openapi"]).output().unwrap();
        OpenApi(serde_json::from_slice(&printed.stdout).unwrap())
    }

    /// The violations in the response to a GET of this path, written as in the document.
    pub(crate) fn violations(&self, path: &str, body: &Value) -> Vec<String> {
        self.response_violations("get", path, "200", body)
    }

    /// The violations in a response with this status to an operation.
    pub(crate) fn response_violations(
        &self,
        method: &str,
        path: &str,
        status: &str,
        body: &Value,
    ) -> Vec<String> {
        let response = &self.0["paths"][path][method]["responses"][status];
        let schema = &response["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {path} {status} is not described");
        let mut wrong = Vec::new();
        self.check(schema, body, path, &mut wrong);
        wrong
    }

    fn check(&self, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
        let schema = self.resolve(schema);
        for word in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[word].as_array() {
                let fits = |choice: &&Value| {
                    let mut wrong = Vec::new();
                    self.check(choice, value, at, &mut wrong);
                    wrong.is_empty()
                };
                let fitting = choices.iter().filter(fits).count();
                if fitting == 0 || (word == "oneOf" && fitting > 1) {
                    wrong.push(format!("{at}: {fitting} of {word} match {value}"));
                }
            }
        }
        if !is_of_type(&schema["type"], value) {
            wrong.push(format!("{at}: {value} is not {}", schema["type"]));
        }
        if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
            wrong.push(format!("{at}: {value} is not one of {}", schema["enum"]));
        }
        match value {
            Value::Object(fields) => self.check_object(schema, fields, at, wrong),
            Value::Array(items) => {
                let each = items.iter().filter(|_| schema["items"].is_object()).enumerate();
                each.for_each(|(place, item)| {
                    self.check(&schema["items"], item, &format!("{at}/{place}"), wrong);
                });
            }
            _ => {}
        }
    }

    fn check_object(
        &self,
        schema: &Value,
        fields: &Map<String, Value>,
        at: &str,
        wrong: &mut Vec<String>,
    ) {
        let mut known = Map::new();
        let mut open = false;
        self.gather(schema, &mut known, &mut open, fields, at, wrong);
        for (name, value) in fields {
            match known.get(name) {
                Some(schema) => self.check(schema, value, &format!("{at}/{name}"), wrong),
                None if open => {}
                None => wrong.push(format!("{at}: `{name}` is not described")),
            }
        }
    }

    /// Collects every property that a schema and its `allOf` parts describe, and checks required
    /// ones.
    fn gather(
        &self,
        schema: &Value,
        known: &mut Map<String, Value>,
        open: &mut bool,
        fields: &Map<String, Value>,
        at: &str,
        wrong: &mut Vec<String>,
    ) {
        let schema = self.resolve(schema);
        let properties = schema["properties"].as_object();
        known.extend(
            properties.into_iter().flatten().map(|(name, one)| (name.clone(), one.clone())),
        );
        let choice = schema.get("oneOf").is_some() || schema.get("anyOf").is_some();
        let parts = schema["allOf"].as_array();
        let more = &schema["additionalProperties"];
        let says_nothing = properties.is_none() && parts.is_none();
        *open |= choice || more.is_object() || *more == true || says_nothing;
        for name in schema["required"].as_array().into_iter().flatten() {
            if name.as_str().is_some_and(|name| !fields.contains_key(name)) {
                wrong.push(format!("{at}: {name} is missing"));
            }
        }
        for part in parts.into_iter().flatten() {
            self.gather(part, known, open, fields, at, wrong);
        }
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(place) => {
                let found = self.0.pointer(place.trim_start_matches('#'));
                self.resolve(found.unwrap_or_else(|| panic!("{place} is not in the document")))
            }
            None => schema,
        }
    }
}

fn is_of_type(types: &Value, value: &Value) -> bool {
    let is = |word: &str| match word {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("unknown JSON Schema type `{other}`"),
    };
    match types {
        Value::String(word) => is(word),
        Value::Array(words) => words.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}

/// Tests the validator itself.
#[test]
fn invalid_bodies_are_rejected() {
    let description = OpenApi::load();
    let good = serde_json::json!({"data": [], "meta": {"total": 0, "limit": 50, "offset": 0},
        "links": {"self": "/v1/servers", "next": null, "prev": null}});
    assert_eq!(description.violations("/v1/servers", &good), [""; 0]);
    for (pointer, value) in
        [("/meta/total", "many".into()), ("/data", Value::Null), ("/meta", 1.into())]
    {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(!description.violations("/v1/servers", &bad).is_empty(), "{pointer}");
    }
    for name in ["data", "meta"] {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().remove(name);
        assert!(!description.violations("/v1/servers", &bad).is_empty(), "without {name}");
    }
    let mut bad = good;
    bad["strange"] = 1.into();
    assert!(!description.violations("/v1/servers", &bad).is_empty());
}
