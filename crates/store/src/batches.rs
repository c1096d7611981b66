//! Rollouts as `/v1/batches` shows them.
//!
//! Limits a list to rollouts whose servers are all in the environments of the caller's key, and
//! gives the names of their servers, removed ones included. [`crate::rollouts`] reads and writes
//! the rollouts themselves.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use vocab::{BatchId, Environment, Hostname, OrgId, ServerId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::rollouts;
use crate::rollouts::Rollout;
use crate::row::{parse, put, row};
use crate::sql::{ROWS_MAX, Text};
use crate::{Page, Paged};

row! {
    /// The name of a server, and when it was last seen.
    pub struct ServerName in "servers" by "id" {
        pub id: ServerId,
        /// Its hostname, or the last one before it was removed.
        pub hostname: Hostname,
        pub display_name: Option<String>,
        /// When it was last seen; `None` if it was removed.
        pub last_seen_at: Option<Timestamp>,
    }
}

row! {
    struct BatchOptions in "rollouts" by "id" {
        id: BatchId,
        options: Value,
    }
}

/// The names of these servers.
#[boxed]
pub async fn names(
    conn: &mut Conn,
    org: OrgId,
    servers: &[ServerId],
) -> Result<BTreeMap<ServerId, ServerName>> {
    let mut found = BTreeMap::new();
    for chunk in servers.chunks(ROWS_MAX) {
        let server_name: Vec<ServerName> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(ServerName::COLUMNS);
            text.add(" from servers left join presence on org = org_id and server_id = id");
            text.add(" where org_id = ").bind(put(&org));
            text.add(" and id").in_ids(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        found.extend(server_name.into_iter().map(|named| (named.id, named)));
    }
    Ok(found)
}

/// The patch options of these rollouts.
#[boxed]
pub async fn options(
    conn: &mut Conn,
    org: OrgId,
    batches: &[BatchId],
) -> Result<BTreeMap<BatchId, Value>> {
    let mut found = BTreeMap::new();
    for chunk in batches.chunks(ROWS_MAX) {
        let options: Vec<BatchOptions> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(BatchOptions::COLUMNS).add(" from rollouts where org_id = ").bind(put(&org));
            text.add(" and id in ").list(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        found.extend(options.into_iter().map(|row| (row.id, row.options)));
    }
    Ok(found)
}

/// The number of these servers by environment; `None` for those without one.
#[boxed]
pub async fn count_by_environment(
    conn: &mut Conn,
    org: OrgId,
    servers: &[ServerId],
) -> Result<BTreeMap<Option<Environment>, u64>> {
    let mut found = BTreeMap::new();
    for chunk in servers.chunks(ROWS_MAX) {
        let counts: Vec<(Option<String>, i64)> = on!(conn, |c| {
            let mut text = Text::new("select environment, count(*) from servers where org_id = ");
            text.bind(put(&org)).add(" and id").in_ids(chunk.iter().map(put));
            text.add(" group by environment");
            text.build_as().fetch_all(c).await
        })?;
        for (environment, count) in counts {
            let environment = environment.map(|name| parse("servers", name)).transpose()?;
            *found.entry(environment).or_default() += count.unsigned_abs();
        }
    }
    Ok(found)
}

/// Whether every server of a rollout is, or was, in one of these environments.
#[boxed]
pub async fn is_within_environments(
    conn: &mut Conn,
    rollout: BatchId,
    environments: &[Environment],
) -> Result<bool> {
    let outside: Option<(String,)> = on!(conn, |c| {
        let mut text = Text::new(
            "select t.server_id from rollout_tasks t join servers s on s.id = t.server_id
              where t.rollout_id = ",
        );
        text.bind(put(&rollout));
        if !environments.is_empty() {
            text.add(" and (s.environment is null or s.environment not in ");
            text.list(environments.iter().map(put)).add(")");
        }
        text.add(" limit 1");
        text.build_as().fetch_optional(c).await
    })?;
    Ok(outside.is_none())
}

/// Returns a page of the rollouts in one of these phases, or in any if `phases` is empty, newest
/// first. With `environments`, only rollouts whose servers are all in them.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    phases: &[&str],
    environments: Option<&[Environment]>,
    page: Page,
) -> Result<Paged<Rollout>> {
    let Some(environments) = environments else {
        return rollouts::list(conn, org, phases, page).await;
    };
    macro_rules! push_filter {
        ($text:ident) => {
            $text.add(" from rollouts where org_id = ").bind(put(&org));
            if !phases.is_empty() {
                $text.add(" and phase in ").list(phases.iter().map(ToString::to_string));
            }
            $text.add(
                " and not exists (select 1 from rollout_tasks t join servers s on s.id = t.server_id
                    where t.rollout_id = rollouts.id",
            );
            if !environments.is_empty() {
                $text.add(" and (s.environment is null or s.environment not in ");
                $text.list(environments.iter().map(put)).add(")");
            }
            $text.add(")");
        };
    }
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Rollout::COLUMNS);
        push_filter!(text);
        text.add(" order by created_at desc, id desc limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*)");
        push_filter!(text);
        text.build_as().fetch_one(c).await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}
