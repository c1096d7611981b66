//! The event log, in an order that all readers agree on.
//!
//! A reader that has seen event 7 asks for events after 7, and event 6 must never appear later. A
//! PostgreSQL sequence cannot guarantee that, because transactions may commit in another order than
//! they took their numbers, and a transaction that is rolled back leaves a gap. So the number comes
//! from a row of the organization that stays locked until the commit. [`Tx::emit`](crate::Tx::emit)
//! takes it last, to keep that lock short.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;
use vocab::{Environment, EventId, OrgId, ServerId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::names;
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, in_chunks, join};
use crate::tx::Tx;

/// An event that has no number yet. The names are read when it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub id: EventId,
    pub org_id: OrgId,
    /// The type of event, as the API calls it.
    pub kind: &'static str,
    pub at: Timestamp,
    /// The key, user or part of the service that caused it.
    pub actor: String,
    /// The type of what it is about, as the API calls it.
    pub subject_kind: &'static str,
    pub subject_id: String,
    /// The data that the API returns.
    pub data: Value,
}

row! {
    pub struct Event in "events" by "id" {
        pub org_id: OrgId,
        /// Its number within the organization, without gaps; later commits have larger numbers.
        pub sequence: i64,
        pub id: EventId,
        /// The type of event, as the API calls it.
        pub kind: String,
        pub at: Timestamp,
        /// The key, user or part of the service that caused it.
        pub actor: String,
        /// The name of the key or user at that time.
        pub actor_name: Option<String>,
        /// The type of what it is about, as the API calls it.
        pub subject_kind: String,
        pub subject_id: String,
        /// The name of the subject at that time; its id if it has none.
        pub subject_name: String,
        /// The environment of the server that it is about.
        pub environment: Option<Environment>,
        /// The data that the API returns.
        pub data: Value,
    }
}

/// Which events to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Events of any of these types; all if empty.
    pub kinds: Vec<String>,
    /// Events about the resource with this id.
    pub subject_id: Option<String>,
    /// Events about servers in these environments only.
    pub environments: Option<Vec<Environment>>,
}

pub(crate) async fn append(conn: &mut Conn, events: Vec<NewEvent>) -> Result<()> {
    // Sorted by organization, so that two transactions lock in the same order.
    let mut by_org: BTreeMap<OrgId, Vec<NewEvent>> = BTreeMap::new();
    for event in events {
        by_org.entry(event.org_id).or_default().push(event);
    }
    // Before any number is taken, because the lock of the number is held until the commit.
    let mut named = Vec::with_capacity(by_org.len());
    for (org, events) in by_org {
        named.push((org, name_all(conn, org, events).await?));
    }
    for (org, mut events) in named {
        let count = events.len() as i64;
        let (last,): (i64,) = on!(conn, |c| {
            sqlx::query_as(
                "insert into event_heads (org_id, sequence) values ($1, $2)
                 on conflict (org_id) do update
                    set sequence = event_heads.sequence + excluded.sequence
                 returning sequence",
            )
            .bind(put(&org))
            .bind(count)
            .fetch_one(c)
            .await
        })?;
        for (event, sequence) in events.iter_mut().zip(last - count + 1..) {
            event.sequence = sequence;
        }
        let _: Vec<()> = on!(conn, |c| {
            in_chunks(c, &events, |chunk| {
                let mut text = Text::new("insert into events (");
                text.add(Event::COLUMNS).add(") ");
                text.rows(chunk, |row, event| {
                    row.bind(put(&event.org_id)).bind(event.sequence).bind(put(&event.id));
                    row.bind(put(&event.kind)).bind(put(&event.at)).bind(put(&event.actor));
                    row.bind(put(&event.actor_name)).bind(put(&event.subject_kind));
                    row.bind(put(&event.subject_id)).bind(put(&event.subject_name));
                    row.bind(put(&event.environment)).bind(put(&event.data));
                });
                text
            })
            .await
        })?;
    }
    Ok(())
}

/// Adds the names of actors and subjects, and the environments of servers.
async fn name_all(conn: &mut Conn, org: OrgId, events: Vec<NewEvent>) -> Result<Vec<Event>> {
    let ids: BTreeSet<String> =
        events.iter().flat_map(|event| [event.actor.clone(), event.subject_id.clone()]).collect();
    let names = names::find(conn, org, &ids).await?;
    let environments = names::environments(conn, org, &ids).await?;
    let complete = |event: NewEvent| Event {
        org_id: org,
        sequence: 0,
        id: event.id,
        kind: event.kind.to_owned(),
        at: event.at,
        actor_name: names.get(&event.actor).cloned(),
        actor: event.actor,
        subject_kind: event.subject_kind.to_owned(),
        subject_name: names.get(&event.subject_id).unwrap_or(&event.subject_id).clone(),
        environment: environments.get(&event.subject_id).cloned(),
        subject_id: event.subject_id,
        data: event.data,
    };
    Ok(events.into_iter().map(complete).collect())
}

/// The events of an organization after a sequence number that match, oldest first.
#[boxed]
pub async fn after(
    conn: &mut Conn,
    org: OrgId,
    sequence: i64,
    filter: &Filter,
    limit: u32,
) -> Result<Vec<Event>> {
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Event::COLUMNS).add(" from events where org_id = ").bind(put(&org));
        text.add(" and sequence > ").bind(sequence);
        if !filter.kinds.is_empty() {
            text.add(" and kind in ").list(filter.kinds.iter().cloned());
        }
        if let Some(subject) = &filter.subject_id {
            text.add(" and subject_id = ").bind(subject.clone());
        }
        if let Some(environments) = &filter.environments {
            text.add(" and environment in ").list(environments.iter().map(ToString::to_string));
        }
        text.add(" order by sequence limit ").bind(i64::from(limit));
        text.build_as().fetch_all(c).await
    })?)
}

row! {
    /// A server went offline or came back.
    pub struct PresenceChange in "events" by "sequence" {
        pub sequence: i64,
        pub subject_id: ServerId,
        pub kind: String,
        pub at: Timestamp,
    }
}

/// When servers of an organization went offline (`server.offline`) or came back since `since`, the
/// newest first and at most `limit`.
#[boxed]
pub async fn presence_changes(
    conn: &mut Conn,
    org: OrgId,
    since: Timestamp,
    limit: u32,
) -> Result<Vec<PresenceChange>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            PresenceChange::COLUMNS,
            " from events where org_id = $1 and kind in ('server.offline', 'server.online')
                and at >= $2 order by sequence desc limit $3",
        ]))
        .bind(put(&org))
        .bind(put(&since))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Those of these events of an organization that are still stored, by sequence number.
#[boxed]
pub async fn by_sequence(
    conn: &mut Conn,
    org: OrgId,
    sequences: &[i64],
) -> Result<BTreeMap<i64, Event>> {
    let mut found = BTreeMap::new();
    for chunk in sequences.chunks(ROWS_MAX) {
        let events: Vec<Event> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Event::COLUMNS).add(" from events where org_id = ").bind(put(&org));
            text.add(" and sequence in ").list(chunk.iter().copied());
            text.build_as().fetch_all(c).await
        })?;
        found.extend(events.into_iter().map(|event| (event.sequence, event)));
    }
    Ok(found)
}

/// The sequence number of the organization's latest event; 0 if there is none.
#[boxed]
pub async fn latest(conn: &mut Conn, org: OrgId) -> Result<i64> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as("select sequence from event_heads where org_id = $1")
            .bind(put(&org))
            .fetch_optional(c)
            .await
    })?;
    Ok(found.map_or(0, |(sequence,)| sequence))
}

/// The sequence number of the organization's oldest event that is still stored.
#[boxed]
pub async fn oldest(conn: &mut Conn, org: OrgId) -> Result<Option<i64>> {
    let (first,): (Option<i64>,) = on!(conn, |c| {
        sqlx::query_as("select min(sequence) from events where org_id = $1")
            .bind(put(&org))
            .fetch_one(c)
            .await
    })?;
    Ok(first)
}

/// Deletes up to `limit` events from before `cutoff`. Returns their number.
#[boxed]
pub async fn purge(tx: &mut Tx, cutoff: Timestamp, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from events where (org_id, sequence) in
                (select org_id, sequence from events where at < $1 order by at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}
