//! Requests about notifications: create a rule, send a test message.

use async_recursion::async_recursion as boxed;
use store::notifications::{Rhythm, Rule};
use store::users::User;
use wire::v1::TestNotification;

use super::errors::ValidationErrors;
use super::webhooks::types;
use super::{Body, forbidden, validate};
use crate::auth::caller::Caller;
use crate::commands::notifications::{self as commands, RuleInput, TestResult};
use crate::queries::events::kinds;
use crate::{App, EventKind, Result};

/// Creates a rule of a user from the fields of a form.
#[boxed]
pub async fn create_rule(
    app: &App,
    user: &User,
    selected: Vec<String>,
    targets: Option<serde_json::Value>,
    rhythm: &str,
) -> Result<Rule> {
    let mut errors = ValidationErrors::default();
    let targets = targets.and_then(|targets| validate::targets(&mut errors, &targets));
    let types = types(&mut errors, selected);
    let readable = |kind: &EventKind| user.role.includes(kind.subject().readable_by());
    if !types.is_empty() && !kinds(&types).iter().any(readable) {
        let detail = "events about accounts and settings need the role `admin`";
        errors.add("/types", "forbidden_types", detail);
    }
    let rhythm: Option<Rhythm> = errors.parse("/rhythm", "invalid_rhythm", rhythm);
    errors.into_result()?;
    let rhythm = rhythm.unwrap_or(Rhythm::Immediate);
    commands::create_rule(app, user, RuleInput { types, targets, rhythm }).await
}

/// Sends a test message to any address.
#[boxed]
pub async fn test(
    app: &App,
    caller: &Caller,
    (body, errors): Body<TestNotification>,
) -> Result<TestResult> {
    if caller.environments.is_some() {
        return forbidden(
            "This API key is limited to certain environments, and email is sent for all of them.",
        );
    }
    errors.into_result()?;
    commands::send_test(app, &caller.actor(), &body.to).await
}
