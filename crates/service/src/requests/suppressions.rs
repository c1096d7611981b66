//! Requests about suppressions: create, delete.

use async_recursion::async_recursion as boxed;
use store::suppressions::Suppression;
use vocab::SuppressionId;
use wire::v1::CreateSuppression;

use super::{Body, Versions, check_version, forbidden};
use crate::auth::caller::Caller;
use crate::commands::suppressions::{self as commands, NewSuppression};
use crate::queries::suppressions::find;
use crate::{App, Result};

const REASON_CHARS_MAX: usize = 1_000;
const CVE_CHARS_MAX: usize = 100;

/// A suppression never changes, so it has only one version.
pub const VERSION: i64 = 1;

#[boxed]
pub async fn create(
    app: &App,
    caller: &Caller,
    body: Body<CreateSuppression>,
) -> Result<Suppression> {
    let new = validate(body)?;
    if !caller.may_touch(new.environment.as_ref()) {
        return forbidden(
            "This API key is limited to certain environments: set `environment` to one of them.",
        );
    }
    commands::create(app, &caller.actor(), new).await
}

#[boxed]
pub async fn delete(
    app: &App,
    caller: &Caller,
    id: SuppressionId,
    wanted_version: &Versions,
) -> Result<()> {
    let row = find(app, &caller.scope(), id).await?;
    check_version(wanted_version, VERSION)?;
    if !caller.may_touch(row.environment.as_ref()) {
        return forbidden(
            "This API key is limited to certain environments, and this suppression applies to all servers.",
        );
    }
    commands::delete(app, &caller.actor(), &row).await
}

fn validate((body, mut errors): Body<CreateSuppression>) -> Result<NewSuppression> {
    if !is_cve_id(&body.cve) {
        errors.add("/cve", "invalid_cve", "must be a CVE id, like CVE-2026-1234");
    }
    let package = body.package.map(|name| errors.name("/package", name));
    let environment = body
        .environment
        .and_then(|text| errors.parse("/environment", "invalid_environment", &text));
    let reason = errors.line("/reason", body.reason, REASON_CHARS_MAX);
    let expires_at = errors.time("/expires_at", body.expires_at.as_deref());
    errors.into_result()?;
    Ok(NewSuppression { cve: body.cve, package, environment, reason, expires_at })
}

/// Accepts any advisory id, because not every advisory has a CVE id.
fn is_cve_id(text: &str) -> bool {
    text.len() <= CVE_CHARS_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c))
}
