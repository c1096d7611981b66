//! Email addresses of users, and the rules about what they are notified of.
//!
//! The events of an organization are the queue of its rules, as they are of its webhooks: a rule's
//! `position` is the sequence number up to which events were sent.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{NotificationRuleId, OrgId, Selector, UserId, Zone};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, expect_one_row};
use crate::row::{put, row};
use crate::sql::{Text, join};
use crate::tx::Tx;

row! {
    /// The email address of a user.
    pub struct EmailAddress in "email_addresses" by "user_id" {
        pub user_id: UserId,
        pub org_id: OrgId,
        pub address: String,
        /// The time zone in which digests are sent in the morning.
        pub timezone: Zone,
        /// `None` until its owner followed the link that was sent to it.
        pub confirmed_at: Option<Timestamp>,
        /// The hash of the link that confirms it, and when the link was sent.
        pub link_hash: Option<Vec<u8>>,
        pub link_sent_at: Option<Timestamp>,
        /// Since when no message could be sent, and why.
        pub failing_since: Option<Timestamp>,
        pub error: Option<String>,
        /// When a message was last sent.
        pub sent_at: Option<Timestamp>,
        /// Incremented by every change of a user.
        pub generation: i64,
    }
}

/// When messages about events are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rhythm {
    /// As soon as something happens; a message collects what happens together.
    Immediate,
    /// Every morning, if something happened or needs a person.
    Daily,
    /// Every Monday morning.
    Weekly,
}

impl Rhythm {
    pub const ALL: [Rhythm; 3] = [Rhythm::Immediate, Rhythm::Daily, Rhythm::Weekly];

    /// The name in forms and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Rhythm::Immediate => "immediate",
            Rhythm::Daily => "daily",
            Rhythm::Weekly => "weekly",
        }
    }
}

impl std::fmt::Display for Rhythm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Rhythm {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Rhythm::ALL.into_iter().find(|rhythm| rhythm.as_str() == text);
        found.ok_or_else(|| "must be one of immediate, daily, weekly".to_owned())
    }
}

crate::row::via!(Rhythm);

row! {
    /// What a user is notified of, and when.
    pub struct Rule in "notification_rules" by "id" {
        pub id: NotificationRuleId,
        pub org_id: OrgId,
        pub user_id: UserId,
        /// The types of events, or patterns for them.
        pub types: Vec<String>,
        /// The servers whose events are sent; all if `None`.
        pub targets: Option<Selector>,
        pub rhythm: Rhythm,
        /// Events up to this sequence number were sent.
        pub position: i64,
        /// When the next message may be sent. `None`: with the next event.
        pub next_at: Option<Timestamp>,
        /// Failed attempts to send the next message.
        pub attempts: u32,
        pub created_at: Timestamp,
    }
}

/// The address of a user, confirmed or not.
#[boxed]
pub async fn address(conn: &mut Conn, user: UserId) -> Result<Option<EmailAddress>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            EmailAddress::COLUMNS,
            " from email_addresses where user_id = $1",
        ]))
        .bind(put(&user))
        .fetch_optional(c)
        .await
    })?)
}

/// The address that the link with this hash confirms.
#[boxed]
pub async fn address_by_link(conn: &mut Conn, hash: &[u8]) -> Result<Option<EmailAddress>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            EmailAddress::COLUMNS,
            " from email_addresses where link_hash = $1",
        ]))
        .bind(hash)
        .fetch_optional(c)
        .await
    })?)
}

/// Saves what a user chose, unless the address has changed since it was read. The `generation` of a
/// new address is 0.
#[boxed]
pub async fn save_address(tx: &mut Tx, next: &EmailAddress) -> Result<()> {
    let saved = on!(tx, |c| {
        let mut text = Text::new("insert into email_addresses (");
        text.add(EmailAddress::COLUMNS).add(") ");
        text.rows(std::slice::from_ref(next), |row, next| {
            row.bind(put(&next.user_id)).bind(put(&next.org_id)).bind(put(&next.address));
            row.bind(put(&next.timezone)).bind(put(&next.confirmed_at));
            row.bind(put(&next.link_hash)).bind(put(&next.link_sent_at));
            row.bind(put(&next.failing_since)).bind(put(&next.error));
            row.bind(put(&next.sent_at)).bind(next.generation + 1);
        });
        text.add(
            " on conflict (user_id) do update
                set address = excluded.address, timezone = excluded.timezone,
                    confirmed_at = excluded.confirmed_at, link_hash = excluded.link_hash,
                    link_sent_at = excluded.link_sent_at, failing_since = excluded.failing_since,
                    error = excluded.error, sent_at = excluded.sent_at,
                    generation = excluded.generation
              where email_addresses.generation = ",
        );
        text.bind(next.generation);
        text.build().execute(c).await.map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}

/// Deletes the address and the rules of a user.
#[boxed]
pub async fn delete_all(tx: &mut Tx, user: UserId) -> Result<()> {
    for statement in [
        "delete from email_addresses where user_id = $1",
        "delete from notification_rules where user_id = $1",
    ] {
        on!(tx, |c| sqlx::query(statement).bind(put(&user)).execute(c).await.map(drop))?;
    }
    Ok(())
}

#[boxed]
pub async fn create_rule(tx: &mut Tx, rule: &Rule) -> Result<()> {
    on!(tx, |c| {
        let mut text = Text::new("insert into notification_rules (");
        text.add(Rule::COLUMNS).add(") ");
        text.rows(std::slice::from_ref(rule), |row, rule| {
            row.bind(put(&rule.id)).bind(put(&rule.org_id)).bind(put(&rule.user_id));
            row.bind(put(&rule.types)).bind(put(&rule.targets)).bind(put(&rule.rhythm));
            row.bind(rule.position).bind(put(&rule.next_at)).bind(put(&rule.attempts));
            row.bind(put(&rule.created_at));
        });
        text.build().execute(c).await.map(drop)
    })?;
    Ok(())
}

/// The rules of a user, oldest first.
#[boxed]
pub async fn rules(conn: &mut Conn, user: UserId) -> Result<Vec<Rule>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Rule::COLUMNS,
            " from notification_rules where user_id = $1 order by created_at, id",
        ]))
        .bind(put(&user))
        .fetch_all(c)
        .await
    })?)
}

/// A rule of any user.
#[boxed]
pub async fn rule(conn: &mut Conn, id: NotificationRuleId) -> Result<Rule> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&["select ", Rule::COLUMNS, " from notification_rules where id = $1"]))
            .bind(put(&id))
            .fetch_optional(c)
            .await
    })?;
    found.ok_or_else(|| StoreError::not_found("notification rule", id))
}

/// Replaces the time of the next message, for another time zone.
#[boxed]
pub async fn move_rule(tx: &mut Tx, id: NotificationRuleId, next_at: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update notification_rules set next_at = $2 where id = $1")
            .bind(put(&id))
            .bind(put(&next_at))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Deletes a rule. False if it does not exist.
#[boxed]
pub async fn delete_rule(tx: &mut Tx, id: NotificationRuleId) -> Result<bool> {
    Ok(on!(tx, |c| {
        sqlx::query("delete from notification_rules where id = $1")
            .bind(put(&id))
            .execute(c)
            .await
            .map(|done| done.rows_affected() == 1)
    })?)
}

/// The rules of confirmed addresses that may have something to send: their time has come, and there
/// are new events or it is a digest.
#[boxed]
pub async fn due(conn: &mut Conn, now: Timestamp, limit: u32) -> Result<Vec<Rule>> {
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Rule::COLUMNS).add(
            " from notification_rules r
              where (r.rhythm <> 'immediate'
                    or r.position < (select sequence from event_heads h where h.org_id = r.org_id))
                and exists (select 1 from email_addresses a
                    where a.user_id = r.user_id and a.confirmed_at is not null)
                and org_id in (select id from organizations where removed_at is null)
                and (r.next_at is null or r.next_at <= ",
        );
        text.bind(put(&now)).add(") order by r.next_at, r.id limit ").bind(i64::from(limit));
        text.build_as().fetch_all(c).await
    })?)
}

/// Stores how far the events of a rule were sent, and when it is looked at next. False if the rule
/// was deleted.
#[boxed]
pub async fn advance(
    tx: &mut Tx,
    id: NotificationRuleId,
    position: i64,
    next_at: Option<Timestamp>,
    attempts: u32,
) -> Result<bool> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "update notification_rules set position = $2, next_at = $3, attempts = $4 where id = $1",
        )
        .bind(put(&id))
        .bind(position)
        .bind(put(&next_at))
        .bind(put(&attempts))
        .execute(c)
        .await
        .map(|done| done.rows_affected() == 1)
    })?)
}

/// Stores that a message was sent to an address, unless the user chose another one meanwhile.
#[boxed]
pub async fn record_sent(tx: &mut Tx, seen: &EmailAddress, now: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update email_addresses set sent_at = $3, failing_since = null, error = null
              where user_id = $1 and generation = $2",
        )
        .bind(put(&seen.user_id))
        .bind(seen.generation)
        .bind(put(&now))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Stores why a message could not be sent to an address, unless the user chose another one
/// meanwhile.
#[boxed]
pub async fn record_failure(
    tx: &mut Tx,
    seen: &EmailAddress,
    error: &str,
    since: Option<Timestamp>,
) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update email_addresses set failing_since = $3, error = $4
              where user_id = $1 and generation = $2",
        )
        .bind(put(&seen.user_id))
        .bind(seen.generation)
        .bind(put(&since))
        .bind(error)
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}
