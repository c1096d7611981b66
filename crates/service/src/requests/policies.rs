//! Requests about policies: create, replace, delete.

use async_recursion::async_recursion as boxed;
use store::policies::Policy;
use vocab::{PolicyId, Selector};
use wire::v1::PolicyRequest;

use super::{Body, Versions, check_version, forbidden, validate};
use crate::auth::caller::Caller;
use crate::commands::policies::{self as commands, PolicyInput};
use crate::queries::policies::find;
use crate::queries::summary::is_limited_to;
use crate::{App, Result, ServiceError};

/// How many times a change is retried after a conflict. Each conflict means that another request
/// succeeded.
const CONTENDED_TRIES: u32 = 100;

#[boxed]
pub async fn create(app: &App, caller: &Caller, body: Body<PolicyRequest>) -> Result<Policy> {
    let wanted = validated(caller, body)?;
    commands::create(app, &caller.actor(), wanted).await
}

/// Validates a policy without creating it, so that a form can report these errors together with its
/// own.
pub fn check(caller: &Caller, body: Body<PolicyRequest>) -> Result<()> {
    validated(caller, body).map(drop)
}

#[boxed]
pub async fn replace(
    app: &App,
    caller: &Caller,
    id: PolicyId,
    body: Body<PolicyRequest>,
    wanted_version: &Versions,
) -> Result<Policy> {
    let seen = find(app, &caller.scope(), id).await?;
    check_version(wanted_version, seen.generation)?;
    let wanted = validated(caller, body)?;
    for _ in 0..CONTENDED_TRIES {
        let seen = find(app, &caller.scope(), id).await?;
        check_version(wanted_version, seen.generation)?;
        match commands::replace(app, &caller.actor(), &seen, wanted.clone()).await {
            Err(ServiceError::Stale) => {}
            done => return done,
        }
    }
    Err(ServiceError::Stale)
}

#[boxed]
pub async fn delete(
    app: &App,
    caller: &Caller,
    id: PolicyId,
    wanted_version: &Versions,
) -> Result<()> {
    for _ in 0..CONTENDED_TRIES {
        let seen = find(app, &caller.scope(), id).await?;
        check_version(wanted_version, seen.generation)?;
        match commands::delete(app, &caller.actor(), &seen).await {
            Err(ServiceError::Stale) => {}
            done => return done,
        }
    }
    Err(ServiceError::Stale)
}

fn validated(caller: &Caller, body: Body<PolicyRequest>) -> Result<PolicyInput> {
    let wanted = validate::policy(body)?;
    check_environments(caller, &wanted.targets)?;
    Ok(wanted)
}

/// Refuses targets outside the caller's environments.
fn check_environments(caller: &Caller, targets: &Selector) -> Result<()> {
    if is_limited_to(caller.environments.as_deref(), targets) {
        return Ok(());
    }
    forbidden(
        "This API key is limited to certain environments: set `environment` in `targets` to one of them.",
    )
}
