//! Requests about webhooks: create, edit, delete, rotate, test, send again.

use async_recursion::async_recursion as boxed;
use jiff::SignedDuration;
use store::webhooks::{Delivery, Webhook};
use vocab::{DeliveryId, WebhookId};
use wire::v1::{CreateWebhook, EditWebhook, RotateWebhook};

use super::errors::ValidationErrors;
use super::{Body, Versions, check_version, forbidden, validate};
use crate::auth::caller::Caller;
use crate::commands::webhooks::{self as commands, WebhookInput};
use crate::queries::webhooks::{find, find_delivery};
use crate::webhooks::{Format, Response, SigningSecret, check_url};
use crate::{ATTEMPTS_MAX, App, EventKind, Result, ServiceError};

const TYPES_MAX: usize = 100;
const OVERLAP_HOURS: u32 = 24;
const OVERLAP_HOURS_MAX: u32 = 720;

#[boxed]
pub async fn create(
    app: &App,
    caller: &Caller,
    (body, mut errors): Body<CreateWebhook>,
) -> Result<(Webhook, SigningSecret)> {
    check_caller(caller)?;
    let targets = body.targets.and_then(|targets| validate::targets(&mut errors, &targets));
    let format = body.format.as_deref().unwrap_or("standard");
    let input = WebhookInput {
        name: errors.name("/name", body.name),
        url: url(app, &mut errors, body.url),
        types: types(&mut errors, body.types),
        targets,
        format: parse_format(&mut errors, format),
        enabled: body.enabled.unwrap_or(true),
    };
    errors.into_result()?;
    commands::create(app, &caller.actor(), input).await
}

#[boxed]
pub async fn edit(
    app: &App,
    caller: &Caller,
    id: WebhookId,
    (body, mut errors): Body<EditWebhook>,
    wanted_version: &Versions,
) -> Result<Webhook> {
    check_caller(caller)?;
    let name = body.name.map(|name| errors.name("/name", name));
    let url = body.url.map(|text| url(app, &mut errors, text));
    let types = body.types.map(|all| types(&mut errors, all));
    let targets = body
        .targets
        .map(|targets| targets.and_then(|targets| validate::targets(&mut errors, &targets)));
    let format = body.format.map(|text| parse_format(&mut errors, &text));
    errors.into_result()?;
    for _ in 0..ATTEMPTS_MAX {
        let seen = find(app, &caller.scope(), id).await?;
        check_version(wanted_version, seen.generation)?;
        let input = WebhookInput {
            name: name.clone().unwrap_or_else(|| seen.name.clone()),
            url: url.clone().unwrap_or_else(|| seen.url.clone()),
            types: types.clone().unwrap_or_else(|| seen.types.clone()),
            targets: targets.clone().unwrap_or_else(|| seen.targets.clone()),
            format: format.or(Format::parse(&seen.format)).unwrap_or(Format::Standard),
            enabled: body.enabled.unwrap_or(seen.enabled),
        };
        match commands::edit(app, &caller.actor(), &seen, input).await {
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
    id: WebhookId,
    wanted_version: &Versions,
) -> Result<()> {
    check_caller(caller)?;
    let seen = find(app, &caller.scope(), id).await?;
    check_version(wanted_version, seen.generation)?;
    commands::delete(app, &caller.actor(), &seen).await
}

#[boxed]
pub async fn rotate(
    app: &App,
    caller: &Caller,
    id: WebhookId,
    (body, mut errors): Body<RotateWebhook>,
) -> Result<(Webhook, SigningSecret)> {
    check_caller(caller)?;
    let hours = body.overlap_hours.unwrap_or(OVERLAP_HOURS);
    if hours > OVERLAP_HOURS_MAX {
        let detail = format!("must be at most {OVERLAP_HOURS_MAX}");
        errors.add("/overlap_hours", "out_of_range", detail);
    }
    errors.into_result()?;
    let seen = find(app, &caller.scope(), id).await?;
    commands::rotate(app, &caller.actor(), &seen, SignedDuration::from_hours(hours.into())).await
}

#[boxed]
pub async fn test(app: &App, caller: &Caller, id: WebhookId) -> Result<Response> {
    check_caller(caller)?;
    let webhook = find(app, &caller.scope(), id).await?;
    commands::test(app, &caller.actor(), &webhook).await
}

#[boxed]
pub async fn redeliver(
    app: &App,
    caller: &Caller,
    id: WebhookId,
    delivery: DeliveryId,
) -> Result<Delivery> {
    check_caller(caller)?;
    let (webhook, delivery) = find_delivery(app, &caller.scope(), id, delivery).await?;
    commands::redeliver(app, &caller.actor(), &webhook, &delivery).await
}

/// A webhook gets the events of the whole organization.
fn check_caller(caller: &Caller) -> Result<()> {
    match caller.environments {
        None => Ok(()),
        Some(_) => forbidden(
            "This API key is limited to certain environments, and webhooks get the events of all of them.",
        ),
    }
}

fn url(app: &App, errors: &mut ValidationErrors, text: String) -> String {
    if let Err(wrong) = check_url(&text, app.settings.webhook_allow_local) {
        errors.add("/url", "invalid_url", wrong);
    }
    text
}

pub(super) fn types(errors: &mut ValidationErrors, all: Vec<String>) -> Vec<String> {
    if all.is_empty() {
        errors.add("/types", "empty", "at least one type of event is required");
    }
    if all.len() > TYPES_MAX {
        errors.add("/types", "too_many", format!("must have at most {TYPES_MAX} entries"));
        return Vec::new();
    }
    for (place, pattern) in all.iter().enumerate() {
        if let Err(wrong) = EventKind::select(pattern) {
            errors.add(&format!("/types/{place}"), "invalid_type", wrong);
        }
    }
    all
}

fn parse_format(errors: &mut ValidationErrors, text: &str) -> Format {
    Format::parse(text).unwrap_or_else(|| {
        let detail = format!("must be one of {}", Format::WORDS.join(", "));
        errors.add("/format", "invalid_format", detail);
        Format::Standard
    })
}
