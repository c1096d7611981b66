//! Requests about schedules: create, replace, delete, run.

use async_recursion::async_recursion as boxed;
use store::runs::Run;
use store::schedules::Schedule;
use vocab::{ScheduleId, Selector};
use wire::v1::ScheduleRequest;

use super::batches::may_override_freezes;
use super::{Body, Versions, check_version, forbidden, validate};
use crate::auth::caller::Caller;
use crate::commands::schedules::{self as commands, ScheduleInput};
use crate::queries::schedules::find;
use crate::queries::summary::is_limited_to;
use crate::queries::targets::explain_unmatched;
use crate::{App, FieldError, Result, ServiceError};

/// The code of the field error for targets that no server matches.
pub const NO_SERVERS_MATCH: &str = "no_servers_match";

/// How many times a change is retried after a conflict. Each conflict means that another request
/// succeeded, so this many requests must change the same schedule at once before one of them is
/// refused.
const CONTENDED_TRIES: u32 = 100;

#[boxed]
pub async fn create(app: &App, caller: &Caller, body: Body<ScheduleRequest>) -> Result<Schedule> {
    let wanted = validated(app, caller, body).await?;
    commands::create(app, &caller.actor(), wanted).await
}

/// Validates a schedule without creating it, so that a form can report these errors together with
/// its own.
#[boxed]
pub async fn check(app: &App, caller: &Caller, body: Body<ScheduleRequest>) -> Result<()> {
    validated(app, caller, body).await.map(drop)
}

#[boxed]
pub async fn replace(
    app: &App,
    caller: &Caller,
    id: ScheduleId,
    body: Body<ScheduleRequest>,
    wanted_version: &Versions,
) -> Result<Schedule> {
    let seen = find(app, &caller.scope(), id).await?;
    check_version(wanted_version, seen.generation)?;
    let wanted = validated(app, caller, body).await?;
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
    id: ScheduleId,
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

#[boxed]
pub async fn run(app: &App, caller: &Caller, id: ScheduleId) -> Result<Run> {
    let schedule = find(app, &caller.scope(), id).await?;
    commands::run(app, &caller.actor(), &schedule).await
}

async fn validated(
    app: &App,
    caller: &Caller,
    (body, errors): Body<ScheduleRequest>,
) -> Result<ScheduleInput> {
    let allow_empty = body.allow_empty.unwrap_or(false);
    let wanted = validate::schedule((body, errors))?;
    check_environments(caller, &wanted.targets)?;
    may_override_freezes(caller, &wanted.options)?;
    check_targets_match(app, caller, &wanted, allow_empty).await?;
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

/// Rejects an enabled schedule whose targets match no server, unless the caller allows it. As long
/// as no server is enrolled, nothing is rejected: schedules may be created first.
async fn check_targets_match(
    app: &App,
    caller: &Caller,
    input: &ScheduleInput,
    allow_empty: bool,
) -> Result<()> {
    if allow_empty || !input.enabled {
        return Ok(());
    }
    let (mut reader, visible) = (app.db.snapshot().await?, caller.environments.as_deref());
    match explain_unmatched(&mut reader, caller.org, visible, &input.targets).await? {
        Some(found) if !found.no_fleet => Err(ServiceError::Invalid(vec![FieldError::new(
            "/targets",
            NO_SERVERS_MATCH,
            found.reason,
        )])),
        _ => Ok(()),
    }
}
