//! The OpenAPI document is complete, and changes only intentionally.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

use std::collections::BTreeSet;

use api::openapi::document;
use serde_json::Value;

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            all.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    all
}

/// A change of the API shows here as clients will see it: `/v1` only grows.
#[test]
fn document_matches_the_snapshot() {
    insta::with_settings!({snapshot_path => "snapshots", prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("openapi", serde_json::to_string_pretty(&document()).unwrap());
    });
}

#[test]
fn document_is_openapi_3_1_with_license_and_authentication() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["license"]["name"], "Apache-2.0");
    assert_eq!(document["components"]["securitySchemes"]["api_key"]["scheme"], "bearer");
}

#[test]
fn document_describes_exactly_the_routes() {
    let table: BTreeSet<(String, String)> = (api::routes().operations().into_iter())
        .map(|(method, path, _)| (method.to_string(), path))
        .collect();
    let described: BTreeSet<(String, String)> =
        operations(&document()).into_iter().map(|(method, path, _)| (method, path)).collect();
    assert_eq!(table, described);
}

#[test]
fn every_operation_has_summary_responses_and_errors() {
    let document = document();
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let name = format!("{method} {path}");
        for field in ["summary", "operationId"] {
            assert!(
                operation[field].as_str().is_some_and(|text| !text.is_empty()),
                "{name}: {field}"
            );
        }
        assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{name}");
        let tag = &operation["tags"][0];
        let known = document["tags"].as_array().unwrap().iter().any(|known| known["name"] == *tag);
        assert!(known, "{name}: the tag {tag} is not described");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{name}");
        assert!(responses.contains_key("500") && responses.contains_key("503"), "{name}");
        for (status, response) in responses {
            let described = response["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(described || response["$ref"].is_string(), "{name}: {status}");
            if let Some(content) = response.pointer("/content/application~1json") {
                assert!(
                    content.get("example").or(content.get("examples")).is_some(),
                    "{name}: {status}"
                );
            }
        }
        if let Some(body) = operation.pointer("/requestBody/content/application~1json") {
            assert!(body.get("example").or(body.get("examples")).is_some(), "{name}");
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let described = parameter["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(described || parameter["$ref"].is_string(), "{name}: {parameter}");
        }
    }
}

#[test]
fn all_references_resolve() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

/// The service rejects unknown fields, so the document must not allow them.
#[test]
fn request_bodies_deny_unknown_fields() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        let Some(schema) = operation.pointer("/requestBody/content/application~1json/schema")
        else {
            continue;
        };
        let schema = match schema["$ref"].as_str() {
            Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
            None => schema,
        };
        assert_eq!(schema["additionalProperties"], false, "{method} {path}");
    }
}

/// A generated client has one type per resource, in lists as elsewhere.
#[test]
fn list_rows_have_a_named_type() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let lists: Vec<_> =
        schemas.iter().filter(|(_, one)| one["properties"].get("links").is_some()).collect();
    assert!(lists.len() > 5);
    for (name, list) in lists {
        let row = name.strip_suffix("List").unwrap();
        let reference = format!("#/components/schemas/{row}");
        assert_eq!(list["properties"]["data"]["items"]["$ref"], reference, "{name}");
        assert!(!schemas[row]["properties"].as_object().unwrap().is_empty(), "{row}");
    }
}
