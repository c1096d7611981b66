//! Requests about API keys: create, revoke.

use async_recursion::async_recursion as boxed;
use store::api_keys::ApiKey;
use vocab::{Environment, KeyId};
use wire::v1::CreateApiKey;

use super::{Body, Versions, check_version, forbidden};
use crate::auth::api_keys::{self, NewKey};
use crate::auth::caller::Caller;
use crate::queries::credentials::find_api_key;
use crate::{ATTEMPTS_MAX, App, Result, ServiceError};

/// Creates a key. The text is shown once.
#[boxed]
pub async fn create(
    app: &App,
    caller: &Caller,
    body: Body<CreateApiKey>,
) -> Result<(ApiKey, String)> {
    let new = validate(body)?;
    check_environments(caller, new.environments.as_deref())?;
    api_keys::create(app, &caller.actor(), new).await
}

/// Revokes a key. Revoking a revoked key is not an error.
#[boxed]
pub async fn revoke(
    app: &App,
    caller: &Caller,
    id: KeyId,
    wanted_version: &Versions,
) -> Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let key = find_api_key(app, &caller.scope(), id).await?;
        check_version(wanted_version, key.generation)?;
        check_environments(caller, key.environments.as_deref())?;
        match api_keys::revoke(app, &caller.actor(), &key).await {
            // Another request changed the key at the same time.
            Err(ServiceError::Stale) => {}
            done => return done,
        }
    }
    Err(ServiceError::Stale)
}

/// Rejects environments that the caller may not access.
fn check_environments(caller: &Caller, wanted: Option<&[Environment]>) -> Result<()> {
    let fits = match (&caller.environments, wanted) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(wanted)) => wanted.iter().all(|one| caller.may_touch(Some(one))),
    };
    match fits {
        true => Ok(()),
        false => forbidden(
            "This API key is limited to certain environments and can manage only keys within that limit.",
        ),
    }
}

fn validate((body, mut errors): Body<CreateApiKey>) -> Result<NewKey> {
    let name = errors.name("/name", body.name);
    let role = errors.parse("/role", "invalid_role", &body.role);
    let environments = body.environments.map(|texts| {
        if texts.is_empty() {
            errors.add(
                "/environments",
                "empty",
                "must name at least one environment or be omitted",
            );
        }
        errors.parse_all::<Environment>("/environments", "invalid_environment", &texts)
    });
    let expires_at = errors.time("/expires_at", body.expires_at.as_deref());
    errors.into_result()?;
    let role = role.ok_or_else(|| {
        ServiceError::Internal("the role is missing although validation succeeded".into())
    })?;
    Ok(NewKey { name, role, environments, expires_at })
}
