//! The event log, in an order that all readers agree on.
//!
//! A reader that has seen event 7 asks for events after 7, and event 6 must never appear later. A
//! PostgreSQL sequence cannot guarantee that, because transactions may commit in another order than
//! they took their numbers. So the number comes from a row that stays locked until the commit.
//! [`Tx::emit`](crate::Tx::emit) takes it last, to keep that lock short.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use serde_json::Value;
use vocab::{EventId, OrgId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;

/// An event that has no number yet.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub id: EventId,
    pub org_id: OrgId,
    /// The type of event, as the API calls it.
    pub kind: String,
    pub at: Timestamp,
    /// The data that the API returns.
    pub data: Value,
}

row! {
    pub struct Event in "events" by "id" {
        /// Its number; later commits have larger numbers.
        pub seq: i64,
        pub id: EventId,
        pub org_id: OrgId,
        /// The type of event, as the API calls it.
        pub kind: String,
        pub at: Timestamp,
        /// The data that the API returns.
        pub data: Value,
    }
}

pub(crate) async fn append(conn: &mut Conn, events: Vec<NewEvent>) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let (last,): (i64,) = on!(conn, |c| {
        sqlx::query_as(
            "update counters set value = value + $1 where name = 'events' returning value",
        )
        .bind(events.len() as i64)
        .fetch_one(c)
        .await
    })?;
    let numbered: Vec<_> = (last - events.len() as i64 + 1..).zip(&events).collect();
    let _: Vec<()> = on!(conn, |c| {
        in_chunks(c, &numbered, |chunk| {
            let mut text = Text::new("insert into events (seq, id, org_id, kind, at, data) ");
            text.rows(chunk, |row, (seq, event)| {
                row.bind(*seq).bind(put(&event.id)).bind(put(&event.org_id));
                row.bind(put(&event.kind)).bind(put(&event.at)).bind(put(&event.data));
            });
            text
        })
        .await
    })?;
    Ok(())
}

/// The events of one organization after number `seq`, oldest first.
#[boxed]
pub async fn after(conn: &mut Conn, org: OrgId, seq: i64, limit: u32) -> Result<Vec<Event>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Event::COLUMNS,
            " from events where org_id = $1 and seq > $2 order by seq limit $3",
        ]))
        .bind(put(&org))
        .bind(seq)
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// The events of all organizations after number `seq`, oldest first. For forwarding events.
#[boxed]
pub async fn after_all_orgs(conn: &mut Conn, seq: i64, limit: u32) -> Result<Vec<Event>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Event::COLUMNS,
            " from events where seq > $1 order by seq limit $2",
        ]))
        .bind(seq)
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// The number of the latest event; 0 if there is none.
#[boxed]
pub async fn latest(conn: &mut Conn) -> Result<i64> {
    let (seq,) = on!(conn, |c| {
        sqlx::query_as("select value from counters where name = 'events'").fetch_one(c).await
    })?;
    Ok(seq)
}

/// Deletes up to `limit` events from before `cutoff`. Returns their number.
#[boxed]
pub async fn purge(tx: &mut Tx, cutoff: Timestamp, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from events where seq in
                (select seq from events where at < $1 order by at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}
