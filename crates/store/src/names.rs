//! Display names for ids of any kind, for lists that mix them.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use vocab::{Environment, OrgId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::put;
use crate::sql::{ROWS_MAX, Text};

/// The queries for names, by prefix of the id. Removed resources keep their names.
const NAME_QUERIES: [(&str, &str, &str); 11] = [
    ("usr_", "select id, name from users where org_id = ", " and id in "),
    ("key_", "select id, name from api_keys where org_id = ", " and id in "),
    (
        "srv_",
        "select id, coalesce(display_name, hostname) from servers where org_id = ",
        " and id in ",
    ),
    ("sch_", "select id, name from schedules where org_id = ", " and id in "),
    ("frz_", "select id, name from freezes where org_id = ", " and id in "),
    ("pol_", "select id, name from policies where org_id = ", " and id in "),
    ("bat_", "select id, name from rollouts where org_id = ", " and id in "),
    ("enr_", "select id, name from enrollment_tokens where org_id = ", " and id in "),
    ("whk_", "select id, name from webhooks where org_id = ", " and id in "),
    ("org_", "select id, name from organizations where id = ", " and id in "),
    // A task has the name of its server.
    (
        "tsk_",
        "select task_id, coalesce(display_name, hostname) from rollout_tasks join servers on id = server_id where org_id = ",
        " and task_id in ",
    ),
];

/// The names of those of these ids that have one in this organization.
#[boxed]
pub async fn find(
    conn: &mut Conn,
    org: OrgId,
    ids: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for (prefix, select, among) in NAME_QUERIES {
        let of_this_kind: Vec<&String> = ids.iter().filter(|id| id.starts_with(prefix)).collect();
        for chunk in of_this_kind.chunks(ROWS_MAX) {
            let named: Vec<(String, String)> = on!(conn, |c| {
                let mut text = Text::new(select);
                text.bind(put(&org)).add(among);
                text.list(chunk.iter().map(ToString::to_string));
                text.build_as().fetch_all(c).await
            })?;
            found.extend(named);
        }
    }
    Ok(found)
}

/// The environments of those of these ids that are servers in one.
pub(crate) async fn environments(
    conn: &mut Conn,
    org: OrgId,
    ids: &BTreeSet<String>,
) -> Result<BTreeMap<String, Environment>> {
    let mut found = BTreeMap::new();
    let servers: Vec<&String> = ids.iter().filter(|id| id.starts_with("srv_")).collect();
    for chunk in servers.chunks(ROWS_MAX) {
        let rows: Vec<(String, String)> = on!(conn, |c| {
            let mut text = Text::new("select id, environment from servers where org_id = ");
            text.bind(put(&org)).add(" and environment is not null and id in ");
            text.list(chunk.iter().map(ToString::to_string));
            text.build_as().fetch_all(c).await
        })?;
        // Without a readable environment, readers who are limited to environments do not see the event.
        let readable = |(id, text): (String, String)| Some((id, text.parse().ok()?));
        found.extend(rows.into_iter().filter_map(readable));
    }
    Ok(found)
}

/// The queries for resources that can be removed, by prefix of the id.
const EXISTENCE_QUERIES: [(&str, &str); 2] = [
    ("srv_", "select id from servers where removed_at is null and org_id = "),
    ("sch_", "select id from schedules where org_id = "),
];

/// Those of these ids of servers and schedules that still exist in this organization.
#[boxed]
pub async fn existing(
    conn: &mut Conn,
    org: OrgId,
    ids: &BTreeSet<String>,
) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (prefix, select) in EXISTENCE_QUERIES {
        let of_this_kind: Vec<&String> = ids.iter().filter(|id| id.starts_with(prefix)).collect();
        for chunk in of_this_kind.chunks(ROWS_MAX) {
            let existing: Vec<(String,)> = on!(conn, |c| {
                let mut text = Text::new(select);
                text.bind(put(&org)).add(" and id in ");
                text.list(chunk.iter().map(ToString::to_string));
                text.build_as().fetch_all(c).await
            })?;
            found.extend(existing.into_iter().map(|(id,)| id));
        }
    }
    Ok(found)
}
