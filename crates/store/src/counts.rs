//! The number of servers per environment and operating system, in `server_counts`.
//!
//! Every commit that changes a server updates it, so that the total of a list is a sum over a few
//! rows and not a scan of the fleet. [`crate::server_list`] reads it.

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
