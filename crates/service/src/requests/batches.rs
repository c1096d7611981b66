//! Requests about batches: create, cancel, pause, resume, retry.

use async_recursion::async_recursion as boxed;
use store::Conn;
use store::rollouts::Rollout;
use vocab::{BatchId, Role, ServerId};
use wire::v1::{CreateBatch, Decision as DecisionBody};

use super::{Body, ValidationErrors, validate};
use crate::auth::caller::Caller;
use crate::clock::random_u128;
use crate::commands::batches::{self as commands, Decision, NewRollout, SeenBatch};
use crate::queries::batches::find;
use crate::queries::{Scope, servers};
use crate::{App, PatchOptions, Result};

/// Creates a batch for several servers. Every server that does not exist is reported, and then
/// nothing starts.
#[boxed]
pub async fn create(
    app: &App,
    caller: &Caller,
    (body, mut errors): Body<CreateBatch>,
) -> Result<Rollout> {
    let options = validate::batch_options(&mut errors, body.options());
    let name = validate::batch_name(&mut errors, body.name);
    // In the transaction that creates the batch, so that no server is removed in between.
    let mut tx = app.db.begin().await?;
    let named = find_named_servers(&mut tx, &caller.scope(), &mut errors, &body.server_ids).await?;
    errors.into_result()?;
    may_override_freezes(caller, &options)?;
    let (id, now) = (BatchId::new(app.clock.now(), random_u128()), app.clock.now());
    let new = NewRollout { name, ..new_rollout(app, caller, options, named) };
    let created = commands::create_in(&mut tx, id, new, now).await?;
    tx.commit().await?;
    Ok(created)
}

pub(super) fn new_rollout(
    app: &App,
    caller: &Caller,
    options: PatchOptions,
    servers: Vec<ServerId>,
) -> NewRollout {
    NewRollout {
        org: caller.org,
        options,
        servers,
        starts_at: app.clock.now(),
        origin: caller.origin(),
        started_by: caller.id.to_string(),
        run_id: None,
        retry_of: None,
        name: None,
    }
}

/// The servers that a request names. Every server that does not exist, or that the caller may not
/// see, is added to `errors`.
pub(super) async fn find_named_servers(
    conn: &mut Conn,
    scope: &Scope,
    errors: &mut ValidationErrors,
    texts: &[String],
) -> Result<Vec<ServerId>> {
    let named = validate::server_ids(errors, texts);
    let ids = named.iter().map(|(_, id)| *id);
    let there = servers::existing(conn, scope, ids).await?;
    for (place, id) in named.iter().filter(|(_, id)| !there.contains(id)) {
        validate::add_unknown_server(errors, *place, &id.to_string());
    }
    Ok(named.into_iter().map(|(_, id)| id).collect())
}

/// Cancels the tasks that have not started.
#[boxed]
pub async fn cancel(app: &App, caller: &Caller, id: BatchId) -> Result<Rollout> {
    find(app, &caller.scope(), id).await?;
    commands::cancel(app, &caller.actor(), caller.org, id).await
}

/// Pauses a batch: no further server starts.
#[boxed]
pub async fn pause(app: &App, caller: &Caller, id: BatchId) -> Result<Rollout> {
    find(app, &caller.scope(), id).await?;
    commands::pause(app, &caller.actor(), caller.org, id).await
}

/// Resumes a batch that was paused or has halted.
#[boxed]
pub async fn resume(app: &App, caller: &Caller, id: BatchId) -> Result<Rollout> {
    find(app, &caller.scope(), id).await?;
    commands::resume(app, &caller.actor(), caller.org, id).await
}

/// Resumes a batch unless it has changed since the caller saw it.
#[boxed]
pub async fn resume_seen(
    app: &App,
    caller: &Caller,
    id: BatchId,
    seen: &SeenBatch,
) -> Result<Rollout> {
    find(app, &caller.scope(), id).await?;
    commands::resume_seen(app, &caller.actor(), caller.org, id, seen).await
}

/// Only administrators may ignore freezes.
pub(super) fn may_override_freezes(caller: &Caller, options: &PatchOptions) -> Result<()> {
    match options.pace.override_freeze {
        Some(_) => caller.require(Role::Admin),
        None => Ok(()),
    }
}

/// Approves or rejects the wave that waits for it.
#[boxed]
pub async fn decide(
    app: &App,
    caller: &Caller,
    id: BatchId,
    decision: Decision,
    (body, mut errors): Body<DecisionBody>,
) -> Result<Rollout> {
    find(app, &caller.scope(), id).await?;
    let comment = body.comment.filter(|comment| !comment.trim().is_empty());
    errors.prose("/comment", comment.as_deref().unwrap_or_default());
    errors.into_result()?;
    let actor = caller.actor();
    let comment = comment.as_deref();
    commands::decide(app, &actor, caller.org, id, decision, body.wave, comment).await
}

/// Creates a new batch for the servers that failed.
#[boxed]
pub async fn retry(app: &App, caller: &Caller, id: BatchId) -> Result<Rollout> {
    find(app, &caller.scope(), id).await?;
    commands::retry(app, &caller.actor(), caller.org, id).await
}
