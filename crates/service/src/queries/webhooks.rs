//! Webhooks and the log of their deliveries.

use async_recursion::async_recursion as boxed;
use store::events;
pub use store::webhooks::DeliveryState;
use store::webhooks::{self, Delivery, Webhook};
use store::{Page, Paged, StoreError};
use vocab::{DeliveryId, WebhookId};
use wire::v1::{DeliveryDetail, WebhookFormat};

use super::Scope;
use super::events::to_wire as event_to_wire;
use crate::webhooks::{Format, Message};
use crate::{App, Result};

/// The webhooks of the organization, by name. A reader who is limited to environments sees none.
#[boxed]
pub async fn list(app: &App, scope: &Scope) -> Result<Vec<wire::v1::Webhook>> {
    if scope.environments.is_some() {
        return Ok(Vec::new());
    }
    let mut reader = app.db.snapshot().await?;
    let mut shown = Vec::new();
    for row in webhooks::list(&mut reader, scope.org).await? {
        let pending =
            webhooks::count_deliveries(&mut reader, row.id, DeliveryState::Pending).await?;
        shown.push(to_wire(app, row, pending));
    }
    Ok(shown)
}

/// A webhook that the reader may see.
#[boxed]
pub async fn find(app: &App, scope: &Scope, id: WebhookId) -> Result<Webhook> {
    if scope.environments.is_some() {
        return Err(StoreError::not_found("webhook", id).into());
    }
    Ok(webhooks::get(&mut *app.db.read().await?, scope.org, id).await?)
}

/// A webhook as the API shows it, and its version.
#[boxed]
pub async fn get(app: &App, scope: &Scope, id: WebhookId) -> Result<(i64, wire::v1::Webhook)> {
    let row = find(app, scope, id).await?;
    let mut reader = app.db.read().await?;
    let pending = webhooks::count_deliveries(&mut reader, id, DeliveryState::Pending).await?;
    Ok((row.generation, to_wire(app, row, pending)))
}

/// A delivery of a webhook that the reader may see.
#[boxed]
pub async fn find_delivery(
    app: &App,
    scope: &Scope,
    webhook: WebhookId,
    id: DeliveryId,
) -> Result<(Webhook, Delivery)> {
    let webhook = find(app, scope, webhook).await?;
    let delivery = webhooks::delivery(&mut *app.db.read().await?, webhook.id, id).await?;
    Ok((webhook, delivery))
}

/// The deliveries of a webhook, newest first.
#[boxed]
pub async fn deliveries(
    app: &App,
    scope: &Scope,
    webhook: WebhookId,
    states: &[DeliveryState],
    page: Page,
) -> Result<Paged<wire::v1::Delivery>> {
    let webhook = find(app, scope, webhook).await?;
    let mut reader = app.db.snapshot().await?;
    let Paged { items, total } =
        webhooks::deliveries(&mut reader, webhook.id, states, page).await?;
    Ok(Paged { items: items.into_iter().map(delivery_to_wire).collect(), total })
}

/// A delivery with its request.
#[boxed]
pub async fn delivery(
    app: &App,
    scope: &Scope,
    webhook: WebhookId,
    id: DeliveryId,
) -> Result<DeliveryDetail> {
    let (webhook, delivery) = find_delivery(app, scope, webhook, id).await?;
    let mut reader = app.db.read().await?;
    let found = events::by_sequence(&mut reader, scope.org, &[delivery.sequence]).await?;
    let event = found.into_values().find(|event| event.id == delivery.event_id);
    let format = Format::parse(&webhook.format).unwrap_or(Format::Standard);
    let request_body = event.and_then(|event| {
        let message = Message::new(format, &[event_to_wire(app, event)]);
        serde_json::from_str(&message.body).ok()
    });
    Ok(DeliveryDetail { delivery: delivery_to_wire(delivery), request_body })
}

/// Converts a webhook to the API type.
pub fn to_wire(app: &App, row: Webhook, pending: u64) -> wire::v1::Webhook {
    let now = app.clock.now();
    wire::v1::Webhook {
        id: row.id,
        name: row.name,
        url: row.url,
        types: row.types,
        targets: row.targets,
        format: match Format::parse(&row.format) {
            Some(Format::Slack) => WebhookFormat::Slack,
            Some(Format::Teams) => WebhookFormat::Teams,
            Some(Format::Standard) | None => WebhookFormat::Standard,
        },
        enabled: row.enabled,
        disabled_reason: row.disabled_reason,
        failing_since: row.failing_since,
        pending,
        old_secret_until: row.old_secret_until.filter(|until| now < *until),
        created_at: row.created_at,
        created_by: row.created_by,
    }
}

/// Converts a delivery to the API type.
pub fn delivery_to_wire(row: Delivery) -> wire::v1::Delivery {
    wire::v1::Delivery {
        id: row.id,
        event_id: row.event_id,
        sequence: u64::try_from(row.sequence).unwrap_or(0),
        event_type: row.kind,
        subject_name: row.subject_name,
        state: match row.state {
            DeliveryState::Pending => wire::v1::DeliveryState::Pending,
            DeliveryState::Delivered => wire::v1::DeliveryState::Delivered,
            DeliveryState::Failed => wire::v1::DeliveryState::Failed,
        },
        attempts: row.attempts,
        next_attempt_at: row.next_at,
        created_at: row.created_at,
        last_attempt_at: row.tried_at,
        duration_ms: row.duration_ms,
        response_status: row.status,
        response_body: row.response,
        error: row.error,
    }
}
