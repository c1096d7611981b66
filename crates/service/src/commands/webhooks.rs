//! Commands on webhooks: create, edit, delete, rotate the secret, test, send again.

use async_recursion::async_recursion as boxed;
use jiff::SignedDuration;
use serde_json::{Map, json};
use store::webhooks::{self, Delivery, DeliveryState, Webhook};
use store::{Topic, events};
use vocab::{EventId, Selector, WebhookId};
use wire::v1::{ActorKind, EventActor, EventSubject};

use crate::audit::Action;
use crate::clock::random_u128;
use crate::events::SubjectKind;
use crate::webhooks::{Client, Format, Message, Response, SigningSecret};
use crate::{Actor, App, EventKind, Result, ServiceError, audit};

/// The maximum number of webhooks of an organization. Each has a worker.
const WEBHOOKS_MAX: usize = 100;
/// The type of the event that a test sends.
const TEST_KIND: &str = "webhook.test";

/// What a user chooses about a webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookInput {
    pub name: String,
    pub url: String,
    pub types: Vec<String>,
    pub targets: Option<Selector>,
    pub format: Format,
    pub enabled: bool,
}

/// Creates a webhook that gets the events from now on. The secret is not readable later.
#[boxed]
pub async fn create(
    app: &App,
    actor: &Actor,
    input: WebhookInput,
) -> Result<(Webhook, SigningSecret)> {
    let now = app.clock.now();
    let id = WebhookId::new(now, random_u128());
    let secret = SigningSecret::generate();
    let mut tx = app.db.begin().await?;
    if webhooks::list(&mut tx, actor.org).await?.len() >= WEBHOOKS_MAX {
        let detail = format!("an organization has at most {WEBHOOKS_MAX} webhooks");
        return Err(ServiceError::conflict("conflict", detail));
    }
    let webhook = Webhook {
        id,
        org_id: actor.org,
        name: input.name,
        url: input.url,
        types: input.types,
        targets: input.targets,
        format: input.format.as_str().to_owned(),
        enabled: input.enabled,
        disabled_reason: None,
        secret: secret.encrypt(&app.secrets, id),
        old_secret: None,
        old_secret_until: None,
        position: events::latest(&mut tx, actor.org).await?,
        failing_since: None,
        created_at: now,
        created_by: actor.id.clone(),
        generation: 1,
    };
    webhooks::create(&mut tx, &webhook).await?;
    audit::record(app, &mut tx, actor, Action::WebhookCreate, id, details(&webhook));
    audit::emit(app, &mut tx, actor, EventKind::WebhookCreated, id, details(&webhook));
    tx.commit().await?;
    Ok((webhook, secret))
}

/// Changes a webhook, unless it has changed since it was `seen`. If it is enabled again, it gets
/// the events from now on, and what was still pending is given up.
#[boxed]
pub async fn edit(
    app: &App,
    actor: &Actor,
    seen: &Webhook,
    input: WebhookInput,
) -> Result<Webhook> {
    let mut after = Webhook {
        name: input.name,
        url: input.url,
        types: input.types,
        targets: input.targets,
        format: input.format.as_str().to_owned(),
        enabled: input.enabled,
        ..seen.clone()
    };
    if after == *seen {
        return Ok(after);
    }
    let mut tx = app.db.begin().await?;
    if after.enabled && !seen.enabled {
        after.disabled_reason = None;
        let latest = events::latest(&mut tx, actor.org).await?;
        webhooks::skip_to(&mut tx, seen.id, latest).await?;
        webhooks::give_up(&mut tx, seen.id).await?;
    }
    webhooks::save(&mut tx, &after).await?;
    audit::record(app, &mut tx, actor, Action::WebhookUpdate, seen.id, details(&after));
    audit::emit(app, &mut tx, actor, EventKind::WebhookChanged, seen.id, details(&after));
    tx.commit().await?;
    Ok(Webhook { generation: seen.generation + 1, ..after })
}

/// Deletes a webhook and its log, unless it has changed since it was `seen`.
#[boxed]
pub async fn delete(app: &App, actor: &Actor, seen: &Webhook) -> Result<()> {
    let mut tx = app.db.begin().await?;
    audit::record(app, &mut tx, actor, Action::WebhookDelete, seen.id, details(seen));
    audit::emit(app, &mut tx, actor, EventKind::WebhookDeleted, seen.id, details(seen));
    webhooks::delete(&mut tx, seen).await?;
    Ok(tx.commit().await?)
}

/// Replaces the secret. For `overlap`, requests are signed with both, so that receivers can be
/// updated one after the other.
#[boxed]
pub async fn rotate(
    app: &App,
    actor: &Actor,
    seen: &Webhook,
    overlap: SignedDuration,
) -> Result<(Webhook, SigningSecret)> {
    let now = app.clock.now();
    let secret = SigningSecret::generate();
    let mut tx = app.db.begin().await?;
    let until = now.saturating_add(overlap).unwrap_or(now);
    webhooks::rotate(&mut tx, seen, &secret.encrypt(&app.secrets, seen.id), until).await?;
    let detail = json!({"name": seen.name, "old_secret_until": until});
    audit::record(app, &mut tx, actor, Action::WebhookRotate, seen.id, detail.clone());
    audit::emit(app, &mut tx, actor, EventKind::WebhookChanged, seen.id, detail);
    let after = webhooks::get(&mut tx, actor.org, seen.id).await?;
    tx.commit().await?;
    Ok((after, secret))
}

/// Sends a test event once, and returns what the receiver answered. It is not in the event log.
#[boxed]
pub async fn test(app: &App, actor: &Actor, webhook: &Webhook) -> Result<Response> {
    let client = Client::new(app.settings.webhook_allow_local)
        .map_err(|error| ServiceError::Internal(error.into()))?;
    let now = app.clock.now();
    let event = wire::v1::Event {
        id: EventId::new(now, random_u128()),
        sequence: 0,
        kind: TEST_KIND.to_owned(),
        occurred_at: now,
        actor: EventActor { kind: ActorKind::of(&actor.id), id: actor.id.clone(), name: None },
        subject: EventSubject {
            kind: SubjectKind::Webhook.as_str().to_owned(),
            id: webhook.id.to_string(),
            name: webhook.name.clone(),
        },
        environment: None,
        data: Map::from_iter([("message".to_owned(), json!("This is a test."))]),
        url: app.page_url(&SubjectKind::Webhook.page(&webhook.id.to_string())),
    };
    let format = Format::parse(&webhook.format).unwrap_or(Format::Standard);
    let response = client.send(app, webhook, &Message::new(format, &[event])).await;
    let mut tx = app.db.begin().await?;
    let detail = json!({"name": webhook.name, "status": response.status, "error": response.error});
    audit::record(app, &mut tx, actor, Action::WebhookTest, webhook.id, detail);
    tx.commit().await?;
    Ok(response)
}

/// Sends a delivery again as soon as possible, with all of its attempts.
#[boxed]
pub async fn redeliver(
    app: &App,
    actor: &Actor,
    webhook: &Webhook,
    seen: &Delivery,
) -> Result<Delivery> {
    if !webhook.enabled {
        let detail = "the webhook is disabled; enable it first";
        return Err(ServiceError::conflict("conflict", detail));
    }
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let after = Delivery {
        state: DeliveryState::Pending,
        attempts: 0,
        next_at: Some(now),
        ..webhooks::delivery(&mut tx, webhook.id, seen.id).await?
    };
    webhooks::save_delivery(&mut tx, &after).await?;
    let detail = json!({"name": webhook.name, "delivery_id": seen.id, "event_id": seen.event_id});
    audit::record(app, &mut tx, actor, Action::WebhookRedeliver, webhook.id, detail);
    tx.notify(Topic::Webhooks);
    tx.commit().await?;
    Ok(after)
}

/// The URL is not included: those of chat services contain a secret.
fn details(webhook: &Webhook) -> serde_json::Value {
    json!({"webhook_id": webhook.id, "name": webhook.name, "types": webhook.types,
        "targets": webhook.targets, "format": webhook.format, "enabled": webhook.enabled})
}
