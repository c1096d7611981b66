//! The environments, operating systems and tags in use, to suggest corrections for a mistyped
//! selector.
//!
//! [`crate::server_list`] finds the servers themselves.

use async_recursion::async_recursion as boxed;
use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::put;

/// An environment and operating system that at least one server has together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLabels {
    /// `production`; empty for none.
    pub environment: String,
    /// `debian`, in lower case.
    pub os_id: String,
    /// `debian 12`, in lower case.
    pub os_release: String,
}

/// Every combination of environment and operating system in this organization.
#[boxed]
pub async fn groups(conn: &mut Conn, org: OrgId) -> Result<Vec<ServerLabels>> {
    let found: Vec<(String, String, String)> = on!(conn, |c| {
        sqlx::query_as(
            "select environment, os_id, os_release from server_counts
              where org_id = $1 and servers > 0 order by environment, os_id, os_release",
        )
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let group = |(environment, os_id, os_release)| ServerLabels { environment, os_id, os_release };
    Ok(found.into_iter().map(group).collect())
}

/// The operating systems of all servers of all organizations, as id and release in lower case:
/// `debian` and `debian 12`.
#[boxed]
pub async fn systems(conn: &mut Conn) -> Result<Vec<(String, String)>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(
            "select distinct os_id, os_release from server_counts where servers > 0
              order by os_id, os_release",
        )
        .fetch_all(c)
        .await
    })?)
}

/// Up to `limit` tags of this organization's servers, in order.
///
/// Steps from one tag to the next in the index instead of reading every row.
#[boxed]
pub async fn tags(conn: &mut Conn, org: OrgId, limit: u32) -> Result<Vec<String>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as(
            "with recursive known (tag) as (
                 select min(tag) from server_tags where owner = $1
                 union all
                 select (select min(t.tag) from server_tags t where t.owner = $1 and t.tag > known.tag)
                   from known where known.tag is not null
             )
             select tag from known where tag is not null limit $2",
        )
        .bind(put(&org))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|(tag,)| tag).collect())
}
