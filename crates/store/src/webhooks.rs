//! Webhooks, the log of their deliveries, and the queue of deliveries that are tried again.
//!
//! The events of an organization are the queue of its webhooks: a webhook's `position` is the
//! sequence number up to which events were sent or stored as deliveries. A delivery that failed is
//! `pending` until its next attempt. Later events about the same subject are stored behind it, with
//! no `next_at`, so that they are sent in order.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

use jiff::Timestamp;
use vocab::{DeliveryId, EventId, OrgId, Selector, WebhookId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, in_chunks, join};
use crate::tx::Tx;
use crate::{Page, Paged, Topic};

row! {
    /// Where events are sent.
    pub struct Webhook in "webhooks" by "id" {
        pub id: WebhookId,
        pub org_id: OrgId,
        pub name: String,
        pub url: String,
        /// The types of events, or patterns for them.
        pub types: Vec<String>,
        /// The servers whose events are sent; all if `None`.
        pub targets: Option<Selector>,
        /// The format of the requests.
        pub format: String,
        pub enabled: bool,
        /// Why the service disabled it.
        pub disabled_reason: Option<String>,
        /// The signing secret, encrypted.
        pub secret: Vec<u8>,
        /// The previous secret, which also signs until it expires.
        pub old_secret: Option<Vec<u8>>,
        pub old_secret_until: Option<Timestamp>,
        /// Events up to this sequence number were sent, or are stored as deliveries.
        pub position: i64,
        /// Since when every attempt has failed.
        pub failing_since: Option<Timestamp>,
        pub created_at: Timestamp,
        pub created_by: String,
        pub generation: i64,
    }
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryState {
    /// It is tried again, or waits for an earlier one.
    Pending,
    Delivered,
    /// Every attempt failed.
    Failed,
}

impl DeliveryState {
    pub const ALL: [DeliveryState; 3] =
        [DeliveryState::Pending, DeliveryState::Delivered, DeliveryState::Failed];

    /// The name in the API and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Pending => "pending",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Failed => "failed",
        }
    }
}

impl std::fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for DeliveryState {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = DeliveryState::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| format!("`{text}` is not a state of a delivery"))
    }
}

crate::row::via!(DeliveryState);

row! {
    /// An event on its way to a webhook.
    pub struct Delivery in "webhook_deliveries" by "id" {
        pub webhook_id: WebhookId,
        /// The sequence number of the event.
        pub sequence: i64,
        pub id: DeliveryId,
        pub event_id: EventId,
        /// The type of the event.
        pub kind: String,
        pub subject_id: String,
        pub subject_name: String,
        pub state: DeliveryState,
        pub attempts: u32,
        /// When it is tried next. `None` if it is over, or waits for an earlier one about the same
        /// subject.
        pub next_at: Option<Timestamp>,
        pub created_at: Timestamp,
        /// The last attempt.
        pub tried_at: Option<Timestamp>,
        pub duration_ms: Option<u64>,
        /// The status of the response, and its first bytes.
        pub status: Option<u16>,
        pub response: Option<String>,
        pub error: Option<String>,
    }
}

#[boxed]
pub async fn create(tx: &mut Tx, webhook: &Webhook) -> Result<()> {
    on!(tx, |c| {
        let mut text = Text::new("insert into webhooks (");
        text.add(Webhook::COLUMNS).add(") ");
        text.rows(std::slice::from_ref(webhook), |row, hook| {
            row.bind(put(&hook.id)).bind(put(&hook.org_id)).bind(put(&hook.name));
            row.bind(put(&hook.url)).bind(put(&hook.types)).bind(put(&hook.targets));
            row.bind(put(&hook.format)).bind(hook.enabled).bind(put(&hook.disabled_reason));
            row.bind(put(&hook.secret)).bind(put(&hook.old_secret));
            row.bind(put(&hook.old_secret_until)).bind(hook.position);
            row.bind(put(&hook.failing_since)).bind(put(&hook.created_at));
            row.bind(put(&hook.created_by)).bind(hook.generation);
        });
        text.build().execute(c).await.map(drop)
    })
    .map_err(already_exists("a webhook with this name"))?;
    tx.notify(Topic::Webhooks);
    Ok(())
}

/// The webhooks of an organization, by name.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId) -> Result<Vec<Webhook>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Webhook::COLUMNS,
            " from webhooks where org_id = $1 order by name",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: WebhookId) -> Result<Webhook> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Webhook::COLUMNS,
            " from webhooks where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("webhook", id))
}

/// The enabled webhooks of all organizations.
#[boxed]
pub async fn enabled(conn: &mut Conn) -> Result<Vec<Webhook>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Webhook::COLUMNS,
            " from webhooks where enabled
                and org_id in (select id from organizations where removed_at is null) order by id",
        ]))
        .fetch_all(c)
        .await
    })?)
}

/// Saves what a user chose, unless the webhook has changed since it was read. Its secrets and its
/// position stay unchanged: others write them at any time.
#[boxed]
pub async fn save(tx: &mut Tx, next: &Webhook) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update webhooks
                set name = $3, url = $4, types = $5, targets = $6, format = $7, enabled = $8,
                    disabled_reason = $9, generation = generation + 1
              where id = $1 and generation = $2",
        )
        .bind(put(&next.id))
        .bind(next.generation)
        .bind(put(&next.name))
        .bind(put(&next.url))
        .bind(put(&next.types))
        .bind(put(&next.targets))
        .bind(put(&next.format))
        .bind(next.enabled)
        .bind(put(&next.disabled_reason))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })
    .map_err(already_exists("a webhook with this name"))?;
    tx.notify(Topic::Webhooks);
    expect_one_row(saved)
}

/// Replaces the secret, unless the webhook or its secrets have changed since it was read.
#[boxed]
pub async fn rotate(tx: &mut Tx, seen: &Webhook, secret: &[u8], until: Timestamp) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update webhooks
                set old_secret = secret, secret = $4, old_secret_until = $5,
                    generation = generation + 1
              where id = $1 and generation = $2 and secret = $3",
        )
        .bind(put(&seen.id))
        .bind(seen.generation)
        .bind(put(&seen.secret))
        .bind(secret)
        .bind(put(&until))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    tx.notify(Topic::Webhooks);
    expect_one_row(saved)
}

/// Skips all events up to this sequence number, and forgets earlier failures.
#[boxed]
pub async fn skip_to(tx: &mut Tx, id: WebhookId, position: i64) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update webhooks set position = $2, failing_since = null where id = $1")
            .bind(put(&id))
            .bind(position)
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Deletes a webhook, unless it has changed since it was read. [`purge_deleted`] deletes its
/// deliveries.
#[boxed]
pub async fn delete(tx: &mut Tx, seen: &Webhook) -> Result<()> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from webhooks where id = $1 and generation = $2")
            .bind(put(&seen.id))
            .bind(seen.generation)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    tx.notify(Topic::Webhooks);
    expect_one_row(gone)
}

/// The encrypted secrets of all webhooks.
#[boxed]
pub async fn secrets(conn: &mut Conn) -> Result<Vec<(WebhookId, Vec<u8>, Option<Vec<u8>>)>> {
    let rows: Vec<(String, Vec<u8>, Option<Vec<u8>>)> = on!(conn, |c| {
        sqlx::query_as("select id, secret, old_secret from webhooks order by id").fetch_all(c).await
    })?;
    let parse =
        |(id, secret, old): (String, _, _)| Ok((crate::row::parse("webhooks", id)?, secret, old));
    rows.into_iter().map(parse).collect()
}

/// Replaces secrets by the same ones under another key, unless they changed since they were read.
#[boxed]
pub async fn replace_secrets(
    tx: &mut Tx,
    id: WebhookId,
    before: &[u8],
    secret: &[u8],
    old: Option<&[u8]>,
) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update webhooks set secret = $1, old_secret = $2 where id = $3 and secret = $4",
        )
        .bind(secret)
        .bind(old)
        .bind(put(&id))
        .bind(before)
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Stores how far the events were sent, and since when attempts fail. False if the webhook was
/// deleted or disabled. This is not a change by a user, so the generation stays the same.
#[boxed]
pub async fn advance(
    tx: &mut Tx,
    id: WebhookId,
    position: i64,
    failing_since: Option<Timestamp>,
) -> Result<bool> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update webhooks
                set position = case when position < $2 then $2 else position end,
                    failing_since = $3
              where id = $1 and enabled",
        )
        .bind(put(&id))
        .bind(position)
        .bind(put(&failing_since))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    Ok(saved == 1)
}

/// Inserts deliveries. One that is already stored, because another replica sent it at the same
/// time, stays unchanged.
#[boxed]
pub async fn insert_deliveries(tx: &mut Tx, rows: &[Delivery]) -> Result<()> {
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, rows, |chunk| {
            let mut text = Text::new("insert into webhook_deliveries (");
            text.add(Delivery::COLUMNS).add(") ");
            text.rows(chunk, |row, one| {
                row.bind(put(&one.webhook_id)).bind(one.sequence).bind(put(&one.id));
                row.bind(put(&one.event_id)).bind(put(&one.kind)).bind(put(&one.subject_id));
                row.bind(put(&one.subject_name)).bind(put(&one.state)).bind(put(&one.attempts));
                row.bind(put(&one.next_at)).bind(put(&one.created_at)).bind(put(&one.tried_at));
                row.bind(put(&one.duration_ms)).bind(put(&one.status)).bind(put(&one.response));
                row.bind(put(&one.error));
            });
            text.add(" on conflict do nothing");
            text
        })
        .await
    })?;
    Ok(())
}

/// Saves the state of a delivery after an attempt.
#[boxed]
pub async fn save_delivery(tx: &mut Tx, one: &Delivery) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update webhook_deliveries
                set state = $3, attempts = $4, next_at = $5, tried_at = $6, duration_ms = $7,
                    status = $8, response = $9, error = $10
              where webhook_id = $1 and sequence = $2",
        )
        .bind(put(&one.webhook_id))
        .bind(one.sequence)
        .bind(put(&one.state))
        .bind(put(&one.attempts))
        .bind(put(&one.next_at))
        .bind(put(&one.tried_at))
        .bind(put(&one.duration_ms))
        .bind(put(&one.status))
        .bind(put(&one.response))
        .bind(put(&one.error))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Makes the first delivery about this subject due that waits for an earlier one.
#[boxed]
pub async fn release_next(
    tx: &mut Tx,
    webhook: WebhookId,
    subject: &str,
    now: Timestamp,
) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update webhook_deliveries set next_at = $3
              where webhook_id = $1 and next_at is null and sequence =
                (select min(sequence) from webhook_deliveries
                  where webhook_id = $1 and subject_id = $2 and state = 'pending')",
        )
        .bind(put(&webhook))
        .bind(subject)
        .bind(put(&now))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// The deliveries that are due, the longest due first.
#[boxed]
pub async fn due(
    conn: &mut Conn,
    webhook: WebhookId,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Delivery>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Delivery::COLUMNS,
            " from webhook_deliveries where webhook_id = $1 and next_at <= $2
              order by next_at limit $3",
        ]))
        .bind(put(&webhook))
        .bind(put(&now))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// When the next delivery is due.
#[boxed]
pub async fn next_due(conn: &mut Conn, webhook: WebhookId) -> Result<Option<Timestamp>> {
    let found: Option<Delivery> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Delivery::COLUMNS,
            " from webhook_deliveries where webhook_id = $1 and next_at is not null
              order by next_at limit 1",
        ]))
        .bind(put(&webhook))
        .fetch_optional(c)
        .await
    })?;
    Ok(found.and_then(|delivery| delivery.next_at))
}

/// Those of these subjects that have a pending delivery.
#[boxed]
pub async fn blocked_subjects(
    conn: &mut Conn,
    webhook: WebhookId,
    subjects: &BTreeSet<String>,
) -> Result<BTreeSet<String>> {
    let subjects: Vec<&String> = subjects.iter().collect();
    let mut found = BTreeSet::new();
    for chunk in subjects.chunks(ROWS_MAX) {
        let rows: Vec<(String,)> = on!(conn, |c| {
            let mut text = Text::new(
                "select distinct subject_id from webhook_deliveries
                  where state = 'pending' and webhook_id = ",
            );
            text.bind(put(&webhook)).add(" and subject_id in ");
            text.list(chunk.iter().map(ToString::to_string));
            text.build_as().fetch_all(c).await
        })?;
        found.extend(rows.into_iter().map(|(subject,)| subject));
    }
    Ok(found)
}

/// The deliveries of a webhook in one of these states (all if empty), newest first.
#[boxed]
pub async fn deliveries(
    conn: &mut Conn,
    webhook: WebhookId,
    states: &[DeliveryState],
    page: Page,
) -> Result<Paged<Delivery>> {
    let total: (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from webhook_deliveries where webhook_id = ");
        text.bind(put(&webhook));
        if !states.is_empty() {
            text.add(" and state in ").list(states.iter().map(ToString::to_string));
        }
        text.build_as().fetch_one(c).await
    })?;
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Delivery::COLUMNS).add(" from webhook_deliveries where webhook_id = ");
        text.bind(put(&webhook));
        if !states.is_empty() {
            text.add(" and state in ").list(states.iter().map(ToString::to_string));
        }
        text.add(" order by sequence desc limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(i64::try_from(page.offset).unwrap_or(i64::MAX));
        text.build_as().fetch_all(c).await
    })?;
    Ok(Paged { items, total: total.0.unsigned_abs() })
}

/// The number of deliveries of a webhook in a state.
#[boxed]
pub async fn count_deliveries(
    conn: &mut Conn,
    webhook: WebhookId,
    state: DeliveryState,
) -> Result<u64> {
    let (count,): (i64,) = on!(conn, |c| {
        sqlx::query_as(
            "select count(*) from webhook_deliveries where webhook_id = $1 and state = $2",
        )
        .bind(put(&webhook))
        .bind(put(&state))
        .fetch_one(c)
        .await
    })?;
    Ok(count.unsigned_abs())
}

#[boxed]
pub async fn delivery(conn: &mut Conn, webhook: WebhookId, id: DeliveryId) -> Result<Delivery> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Delivery::COLUMNS,
            " from webhook_deliveries where id = $1 and webhook_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&webhook))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("delivery", id))
}

/// Deletes up to `limit` deliveries that are over and from before `cutoff`. Returns their number.
#[boxed]
pub async fn purge(tx: &mut Tx, cutoff: Timestamp, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from webhook_deliveries where id in
                (select id from webhook_deliveries where created_at < $1 and state <> 'pending'
                  order by created_at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}

/// Deletes up to `limit` deliveries that are over, of a webhook that has at least `kept` newer ones in
/// the same state. Returns their number.
#[boxed]
pub async fn purge_excess(tx: &mut Tx, kept: u32, limit: u32) -> Result<u64> {
    let webhooks: Vec<(String,)> =
        on!(tx, |c| { sqlx::query_as("select id from webhooks order by id").fetch_all(c).await })?;
    for (webhook,) in webhooks {
        for state in [DeliveryState::Delivered, DeliveryState::Failed] {
            let newest: Option<(i64,)> = on!(tx, |c| {
                sqlx::query_as(
                    "select sequence from webhook_deliveries where webhook_id = $1 and state = $2
                      order by sequence desc limit 1 offset $3",
                )
                .bind(webhook.clone())
                .bind(put(&state))
                .bind(i64::from(kept))
                .fetch_optional(c)
                .await
            })?;
            let Some((newest,)) = newest else { continue };
            return Ok(on!(tx, |c| {
                sqlx::query(
                    "delete from webhook_deliveries where webhook_id = $1 and sequence in
                        (select sequence from webhook_deliveries
                          where webhook_id = $1 and state = $2 and sequence <= $3
                          order by sequence limit $4)",
                )
                .bind(webhook.clone())
                .bind(put(&state))
                .bind(newest)
                .bind(i64::from(limit))
                .execute(c)
                .await
                .map(|done| done.rows_affected())
            })?);
        }
    }
    Ok(0)
}

/// The error of a delivery that was pending when its webhook was disabled.
const DISABLED: &str = "the webhook was disabled";

/// Gives up what is pending of a webhook.
#[boxed]
pub async fn give_up(tx: &mut Tx, webhook: WebhookId) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update webhook_deliveries set state = 'failed', next_at = null, error = $2
              where webhook_id = $1 and state = 'pending'",
        )
        .bind(put(&webhook))
        .bind(DISABLED)
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Gives up to `limit` deliveries up that are pending although their webhook is disabled. Returns
/// their number.
#[boxed]
pub async fn give_up_disabled(tx: &mut Tx, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "update webhook_deliveries set state = 'failed', next_at = null, error = $1
              where id in (select d.id from webhooks w
                             join webhook_deliveries d on d.webhook_id = w.id
                            where not w.enabled and d.state = 'pending' limit $2)",
        )
        .bind(DISABLED)
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}

/// Deletes up to `limit` deliveries of one webhook that was deleted. Returns their number.
#[boxed]
pub async fn purge_deleted(tx: &mut Tx, limit: u32) -> Result<u64> {
    let mut last = String::new();
    // One step per webhook, not per delivery.
    loop {
        let (next,): (Option<String>,) = on!(tx, |c| {
            sqlx::query_as("select min(webhook_id) from webhook_deliveries where webhook_id > $1")
                .bind(last.clone())
                .fetch_one(c)
                .await
        })?;
        let Some(next) = next else { return Ok(0) };
        let known: Option<(i64,)> = on!(tx, |c| {
            sqlx::query_as("select generation from webhooks where id = $1")
                .bind(next.clone())
                .fetch_optional(c)
                .await
        })?;
        if known.is_none() {
            return Ok(on!(tx, |c| {
                sqlx::query(
                    "delete from webhook_deliveries where webhook_id = $1 and sequence in
                        (select sequence from webhook_deliveries where webhook_id = $1
                          order by sequence limit $2)",
                )
                .bind(next.clone())
                .bind(i64::from(limit))
                .execute(c)
                .await
                .map(|done| done.rows_affected())
            })?);
        }
        last = next;
    }
}
