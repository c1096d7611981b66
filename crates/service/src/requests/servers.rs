//! Requests about servers: edit, remove, refresh, patch, release.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use store::refreshes::Refresh;
use store::rollouts::Rollout;
use store::servers::Server;
use vocab::{ServerId, Tag};
use wire::v1::{EditServer, EditServers, EditedServers, PatchServer};

use super::batches::may_override_freezes;
use super::enrollment_tokens::TAGS_MAX;
use super::{Body, CHUNK, Versions, check_version, forbidden, validate};
use crate::auth::caller::Caller;
use crate::commands::batches::NewRollout;
use crate::commands::servers::ServerEdit;
use crate::commands::{batches, refreshes, servers};
use crate::projections::findings;
use crate::queries;
use crate::queries::convert;
use crate::queries::servers::find;
use crate::requests::batches::new_rollout;
use crate::{ATTEMPTS_MAX, App, Result, ServiceError};

/// Changes a server. Returns its generation and the API type.
///
/// A caller that is limited to certain environments cannot move a server out of them.
#[boxed]
pub async fn edit(
    app: &App,
    caller: &Caller,
    id: ServerId,
    (body, mut errors): Body<EditServer>,
    wanted_version: &Versions,
) -> Result<(i64, wire::v1::Server)> {
    let environment = body.environment.map(|text| {
        text.and_then(|text| errors.parse("/environment", "invalid_environment", &text))
    });
    let tags = body.tags.map(Option::unwrap_or_default);
    if tags.as_ref().is_some_and(|tags| tags.len() > TAGS_MAX) {
        errors.add("/tags", "too_many", format!("must have at most {TAGS_MAX} entries"));
    }
    let tags = tags.map(|tags| errors.parse_all("/tags", "invalid_tag", &tags));
    let display_name = body
        .display_name
        .map(|text| text.map(|text| errors.name("/display_name", text.trim().to_owned())));
    let notes = body.notes.map(Option::unwrap_or_default);
    if let Some(notes) = &notes {
        errors.prose("/notes", notes);
    }
    errors.into_result()?;
    let edit = ServerEdit { environment, tags, display_name, notes };
    // An inventory that arrives at the same time changes the row, but is no reason to refuse.
    for _ in 0..ATTEMPTS_MAX {
        let seen = find(app, &caller.scope(), id).await?;
        check_version(wanted_version, seen.generation)?;
        if !edit.environment.as_ref().is_none_or(|to| caller.may_touch(to.as_ref())) {
            return forbidden(
                "This API key is limited to certain environments: set `environment` to one of them.",
            );
        }
        match servers::edit(app, &caller.actor(), &seen, &edit).await {
            Err(ServiceError::Stale) => {}
            done => return with_generation(app, done?).await,
        }
    }
    Err(ServiceError::Stale)
}

/// Changes the environment and the tags of all selected servers, some at a time: if one cannot
/// be changed, the chunks before it stay changed.
#[boxed]
pub async fn edit_many(
    app: &App,
    caller: &Caller,
    (body, mut errors): Body<EditServers>,
) -> Result<EditedServers> {
    let targets = validate::targets(&mut errors, &body.targets);
    let environment = body.environment.map(|text| {
        text.and_then(|text| errors.parse("/environment", "invalid_environment", &text))
    });
    let mut tags = |pointer: &str, texts: &[String]| {
        if texts.len() > TAGS_MAX {
            errors.add(pointer, "too_many", format!("must have at most {TAGS_MAX} entries"));
        }
        errors.parse_all(pointer, "invalid_tag", texts)
    };
    let added: Vec<Tag> = tags("/add_tags", &body.add_tags);
    let removed: Vec<Tag> = tags("/remove_tags", &body.remove_tags);
    errors.into_result()?;
    let Some(targets) = targets else {
        let why = "the selector is missing although validation succeeded";
        return Err(ServiceError::Internal(why.into()));
    };
    if !environment.as_ref().is_none_or(|to| caller.may_touch(to.as_ref())) {
        return forbidden(
            "This API key is limited to certain environments: set `environment` to one of them.",
        );
    }
    let ids = queries::servers::select(app, &caller.scope(), &targets).await?;
    let mut done = EditedServers { matched: ids.len() as u64, changed: 0 };
    let edit = |seen: &Server| {
        let mut unique = BTreeSet::new();
        let kept = seen.tags.iter().chain(&added).filter(|tag| !removed.contains(tag));
        let tags: Vec<Tag> = kept.filter(|tag| unique.insert(*tag)).cloned().collect();
        if tags.len() > TAGS_MAX {
            let detail = format!("{} would have more than {TAGS_MAX} tags", seen.hostname);
            return Err(ServiceError::conflict("too_many_tags", detail));
        }
        Ok(ServerEdit {
            environment: environment.clone(),
            tags: Some(tags),
            ..ServerEdit::default()
        })
    };
    let visible = |seen: &Server| caller.may_touch(seen.environment.as_ref());
    for chunk in ids.chunks(CHUNK) {
        done.changed += servers::edit_all(app, &caller.actor(), chunk, &visible, &edit).await?;
    }
    Ok(done)
}

#[boxed]
pub async fn remove(
    app: &App,
    caller: &Caller,
    id: ServerId,
    wanted_version: &Versions,
) -> Result<()> {
    // An inventory that arrives at the same time changes the row, but is no reason to refuse.
    for _ in 0..ATTEMPTS_MAX {
        let seen = find(app, &caller.scope(), id).await?;
        check_version(wanted_version, seen.generation)?;
        match servers::remove(app, &caller.actor(), &seen).await {
            Err(ServiceError::Stale) => {}
            done => return done,
        }
    }
    Err(ServiceError::Stale)
}

/// Asks an agent to report its packages.
#[boxed]
pub async fn refresh(app: &App, caller: &Caller, id: ServerId) -> Result<Refresh> {
    find(app, &caller.scope(), id).await?;
    refreshes::request(app, &caller.actor(), id).await
}

/// Creates a batch for one server.
#[boxed]
pub async fn patch(
    app: &App,
    caller: &Caller,
    id: ServerId,
    (body, mut errors): Body<PatchServer>,
) -> Result<Rollout> {
    find(app, &caller.scope(), id).await?;
    let options = validate::batch_options(&mut errors, body.options());
    let name = validate::batch_name(&mut errors, body.name);
    errors.into_result()?;
    may_override_freezes(caller, &options)?;
    let new = NewRollout { name, ..new_rollout(app, caller, options, vec![id]) };
    batches::create(app, new).await
}

/// Releases a server from quarantine. Returns its generation and the API type.
#[boxed]
pub async fn release(app: &App, caller: &Caller, id: ServerId) -> Result<(i64, wire::v1::Server)> {
    for _ in 0..ATTEMPTS_MAX {
        let seen = find(app, &caller.scope(), id).await?;
        match servers::release(app, &caller.actor(), &seen).await {
            Err(ServiceError::Stale) => {}
            done => return with_generation(app, done?).await,
        }
    }
    Err(ServiceError::Stale)
}

/// Releases a server if it is in quarantine for the reason that the caller saw. Returns `None` if
/// the reason has changed.
#[boxed]
pub async fn release_if_reason_unchanged(
    app: &App,
    caller: &Caller,
    id: ServerId,
    reason: &str,
) -> Result<Option<Server>> {
    for _ in 0..ATTEMPTS_MAX {
        let seen = find(app, &caller.scope(), id).await?;
        if seen.quarantine.as_deref().is_some_and(|now| now.trim() != reason) {
            return Ok(None);
        }
        match servers::release(app, &caller.actor(), &seen).await {
            Err(ServiceError::Stale) => {}
            done => return done.map(Some),
        }
    }
    Err(ServiceError::Stale)
}

async fn with_generation(app: &App, row: Server) -> Result<(i64, wire::v1::Server)> {
    let mut reader = app.db.read().await?;
    let assessed =
        findings::assess_servers(&mut reader, row.org_id, std::slice::from_ref(&row)).await?;
    Ok((row.generation, convert::server(app, row, &assessed[0])))
}
