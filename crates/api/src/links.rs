//! OpenAPI links: the operations that accept the id of what a response created or shows.
//!
//! They are part of the document, for authors of clients and for programs that explore the API.

use serde_json::{Map, Value, json};

/// The operation, the location of the id in its response, the parameter name in the linked
/// operations, and the linked operations.
type OperationLinks = (&'static str, &'static str, &'static str, &'static [&'static str]);

const BATCH_OPERATIONS: &[&str] =
    &["get_batch", "list_tasks", "pause_batch", "resume_batch", "cancel_batch", "retry_batch"];

const LINKS: [OperationLinks; 14] = [
    (
        "create_schedule",
        "id",
        "schedule_id",
        &["get_schedule", "update_schedule", "run_schedule", "list_runs", "delete_schedule"],
    ),
    ("create_freeze", "id", "freeze_id", &["get_freeze", "update_freeze", "delete_freeze"]),
    ("create_policy", "id", "policy_id", &["get_policy", "update_policy", "delete_policy"]),
    ("list_servers", "data/0/id", "server_id", &["get_server", "refresh_server", "patch_server"]),
    ("patch_server", "id", "batch_id", BATCH_OPERATIONS),
    ("create_batch", "id", "batch_id", BATCH_OPERATIONS),
    ("retry_batch", "id", "batch_id", BATCH_OPERATIONS),
    ("list_patches", "data/0/package_name", "package_name", &["get_patch"]),
    ("list_cves", "data/0/id", "cve_id", &["get_cve"]),
    ("create_suppression", "id", "suppression_id", &["get_suppression", "delete_suppression"]),
    ("create_api_key", "id", "api_key_id", &["get_api_key", "revoke_api_key"]),
    (
        "create_enrollment_token",
        "id",
        "token_id",
        &["get_enrollment_token", "revoke_enrollment_token"],
    ),
    ("run_schedule", "id", "run_id", &["get_run"]),
    ("refresh_server", "id", "refresh_id", &["get_refresh"]),
];

/// Adds the links to the responses of an operation.
pub(crate) fn add_to_operation(operation: &mut Value) {
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    let mut links = Map::new();
    for (_, place, name, others) in LINKS.iter().filter(|(from, ..)| *from == id) {
        for other in *others {
            let mut parameters = json!({*name: format!("$response.body#/{place}")});
            // A nested resource needs both ids; the outer one is in the request.
            match *other {
                "get_run" => parameters["schedule_id"] = json!("$request.path.schedule_id"),
                "get_refresh" => parameters["server_id"] = json!("$request.path.server_id"),
                _ => {}
            }
            links.insert((*other).into(), json!({"operationId": other, "parameters": parameters}));
        }
    }
    let responses = operation["responses"].as_object_mut().into_iter().flatten();
    if let Some((_, answer)) =
        responses.into_iter().find(|(status, _)| matches!(status.as_str(), "200" | "201" | "202"))
        && !links.is_empty()
    {
        answer["links"] = Value::Object(links);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::document;

    #[test]
    fn links_lead_to_operations_with_such_an_id() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let all: Vec<(&String, &Value)> = paths
            .iter()
            .flat_map(|(path, item)| item.as_object().unwrap().values().map(move |op| (path, op)))
            .collect();
        let find_operation = |id: &str| all.iter().find(|(_, op)| op["operationId"] == id);
        for (from, _, name, others) in LINKS {
            assert!(
                find_operation(from)
                    .is_some_and(|(_, op)| op.to_string().contains("$response.body#/")),
                "{from}"
            );
            for other in others {
                let (path, _) =
                    find_operation(other).unwrap_or_else(|| panic!("unknown operation {other}"));
                assert!(path.contains(&format!("{{{name}}}")), "{other} has no parameter {name}");
            }
        }
    }
}
