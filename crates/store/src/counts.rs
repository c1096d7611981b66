//! The number of servers per environment and operating system, in `server_counts`, and per tag, in
//! `tag_counts`.
//!
//! Every commit that changes a server updates them, so that the total of a list is a sum over a few
//! rows and not a scan of the fleet. [`crate::server_list`] reads the first.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::put;
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text};

/// The values that servers are counted by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CountKey {
    org: OrgId,
    /// Empty if the server has none.
    environment: String,
    os_id: String,
    os_release: String,
}

impl CountKey {
    pub(crate) fn from_server(server: &Server) -> CountKey {
        CountKey {
            org: server.org_id,
            environment: server.environment.as_ref().map(ToString::to_string).unwrap_or_default(),
            os_id: server.os.id().to_ascii_lowercase(),
            os_release: server.os.to_string().to_ascii_lowercase(),
        }
    }
}

/// Adds the differences to the stored counts. Sorted by key, so that two transactions that write
/// the same keys cannot deadlock.
pub(crate) async fn write(conn: &mut Conn, counts: Vec<(CountKey, i64)>) -> Result<()> {
    let mut sums = BTreeMap::new();
    for (kind, more) in counts {
        *sums.entry(kind).or_insert(0) += more;
    }
    let sums: Vec<(CountKey, i64)> = sums.into_iter().filter(|(_, more)| *more != 0).collect();
    for chunk in sums.chunks(ROWS_MAX) {
        on!(conn, |c| {
            Text::new(
                "insert into server_counts (org_id, environment, os_id, os_release, servers) ",
            )
            .rows(chunk, |row, (kind, more)| {
                row.bind(put(&kind.org)).bind(kind.environment.clone());
                row.bind(kind.os_id.clone()).bind(kind.os_release.clone()).bind(*more);
            })
            .add(
                " on conflict (org_id, environment, os_id, os_release) do update
                     set servers = server_counts.servers + excluded.servers",
            )
            .build()
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(())
}

/// A tag of an organization, by which servers are counted.
pub(crate) type TagKey = (OrgId, String);

/// Adds the differences to the stored counts of tags, in the order of the tags.
pub(crate) async fn write_tags(conn: &mut Conn, counts: Vec<(TagKey, i64)>) -> Result<()> {
    let mut sums = BTreeMap::new();
    for (key, more) in counts {
        *sums.entry(key).or_insert(0) += more;
    }
    let sums: Vec<(TagKey, i64)> = sums.into_iter().filter(|(_, more)| *more != 0).collect();
    for chunk in sums.chunks(ROWS_MAX) {
        on!(conn, |c| {
            Text::new("insert into tag_counts (org_id, tag, servers) ")
                .rows(chunk, |row, ((org, tag), more)| {
                    row.bind(put(org)).bind(tag.clone()).bind(*more);
                })
                .add(
                    " on conflict (org_id, tag) do update
                         set servers = tag_counts.servers + excluded.servers",
                )
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// The number of servers of an environment with an operating system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCount {
    /// Empty for servers without an environment.
    pub environment: String,
    /// With its version, in lower case, such as `debian 12`.
    pub os: String,
    pub servers: u64,
}

/// The number of servers by environment and operating system.
#[boxed]
pub async fn by_environment_and_os(conn: &mut Conn, org: OrgId) -> Result<Vec<ServerCount>> {
    let rows: Vec<(String, String, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select environment, os_release, servers from server_counts
              where org_id = $1 and servers > 0 order by environment, os_release",
        )
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let count = |(environment, os, servers)| ServerCount {
        environment,
        os,
        servers: u64::try_from(servers).unwrap_or_default(),
    };
    Ok(rows.into_iter().map(count).collect())
}

/// The most frequent tags with their number of servers, by name.
#[boxed]
pub async fn by_tag(conn: &mut Conn, org: OrgId, limit: u32) -> Result<Vec<(String, u64)>> {
    let mut rows: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select tag, servers from tag_counts where org_id = $1 and servers > 0
              order by servers desc, tag limit $2",
        )
        .bind(put(&org))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?;
    rows.sort();
    let count = |(tag, servers)| (tag, u64::try_from(servers).unwrap_or_default());
    Ok(rows.into_iter().map(count).collect())
}
