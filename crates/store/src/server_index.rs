//! The columns that servers are searched and sorted by, in a separate narrow table.
//!
//! [`crate::server_list`] may scan this table as a whole, but never `servers`, whose rows are wide
//! and rewritten by every scan. With 100,000 servers on PostgreSQL, a search by name and its total
//! took 174 ms in `servers` and 27 ms in a table of names alone. A trigram index would need an
//! extension that not every cluster has; an index for every pair of filters would be written with
//! every scan.

use vocab::{OrgId, ServerId};

use crate::db::on;
use crate::error::Result;
use crate::row::{put, row};
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text};
use crate::tx::Tx;

/// Separates the display name from the hostname. Neither can contain it, and it sorts before every
/// character that they can contain.
pub(crate) const SEPARATOR: char = '\n';

/// The form of the names that is sorted and searched. A server with a display name is sorted by that
/// and found by both.
pub(crate) fn sort_name(server: &Server) -> String {
    match &server.display_name {
        Some(name) => lower_case(&format!("{name}{SEPARATOR}{}", server.hostname)),
        None => lower_case(server.hostname.as_str()),
    }
}

/// The form in which names are compared.
pub(crate) fn lower_case(name: &str) -> String {
    name.to_lowercase()
}

/// Binds the columns that filters and sort orders use, in the order of the table.
macro_rules! push_index_columns {
    ($to:ident, $server:ident) => {
        $to.bind($crate::server_index::sort_name(&$server)).bind(put(&$server.environment));
        $to.bind($server.os.id().to_ascii_lowercase());
        $to.bind($server.os.to_string().to_ascii_lowercase()).bind($server.reboot_required);
        $to.bind(put(&$server.security_updates));
    };
}

/// Whether the two versions of a server differ in the columns of this table. Ignores
/// `security_updates`, which [`update_security_counts`] writes.
pub(crate) fn index_differs(a: &Server, b: &Server) -> bool {
    sort_name(a) != sort_name(b)
        || (&a.environment, &a.os, a.reboot_required) != (&b.environment, &b.os, b.reboot_required)
}

/// Adds enrolled servers, at most as many as fit into one statement.
pub(crate) async fn add(tx: &mut Tx, servers: &[Server]) -> Result<()> {
    on!(tx, |c| {
        Text::new(
            "insert into server_index
                (org_id, id, sort_name, environment, os_id, os_release, reboot_required,
                 security_updates) ",
        )
        .rows(servers, |row, server| {
            row.bind(put(&server.org_id)).bind(put(&server.id));
            push_index_columns!(row, server);
        })
        .build()
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Saves a server whose columns in this table changed.
pub(crate) async fn save(tx: &mut Tx, before: &Server, after: &Server) -> Result<()> {
    on!(tx, |c| {
        let mut text = Text::new(
            "update server_index set (sort_name, environment, os_id, os_release, reboot_required,
                security_updates) = ",
        );
        text.tuple(|row| {
            push_index_columns!(row, after);
        });
        text.add(" where org_id = ").bind(put(&before.org_id));
        text.add(" and sort_name = ").bind(sort_name(before));
        text.add(" and id = ").bind(put(&before.id));
        text.build().execute(c).await.map(drop)
    })?;
    Ok(())
}

/// Saves the names and environments of edited servers, at most as many as fit into one statement.
pub(crate) async fn save_edits(tx: &mut Tx, edits: &[(&Server, &Server)]) -> Result<()> {
    let changed: Vec<_> =
        edits.iter().filter(|(before, after)| index_differs(before, after)).collect();
    if changed.is_empty() {
        return Ok(());
    }
    on!(tx, |c| {
        Text::new("with v (owner, was, server, sorted, belongs) as (")
            .rows(&changed, |row, (before, after)| {
                row.bind(put(&before.org_id)).bind(sort_name(before)).bind(put(&before.id));
                row.bind(sort_name(after)).bind(put(&after.environment));
            })
            .add(
                ") update server_index set sort_name = v.sorted, environment = v.belongs from v
                    where org_id = v.owner and sort_name = v.was and id = v.server",
            )
            .build()
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

row! {
    /// The number of pending security updates, as the server's own row has it now.
    pub(crate) struct SecurityCount in "servers" by "id" {
        pub(crate) org_id: OrgId,
        pub(crate) sort_name: String,
        pub(crate) id: ServerId,
        pub(crate) security_updates: u32,
    }
}

impl SecurityCount {
    pub(crate) fn from_server(server: &Server) -> SecurityCount {
        SecurityCount {
            org_id: server.org_id,
            sort_name: sort_name(server),
            id: server.id,
            security_updates: server.security_updates,
        }
    }
}

/// Writes the numbers where they differ. The caller has just written the servers' own rows and
/// holds their locks, so no other transaction writes these rows.
pub(crate) async fn update_security_counts(tx: &mut Tx, all: &[SecurityCount]) -> Result<()> {
    for chunk in all.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("with v (owner, name, server, truth) as (")
                .rows(chunk, |row, one| {
                    row.bind(put(&one.org_id)).bind(put(&one.sort_name)).bind(put(&one.id));
                    row.bind(put(&one.security_updates));
                })
                .add(
                    ") update server_index set security_updates = v.truth from v
                        where org_id = v.owner and sort_name = v.name and id = v.server
                          and security_updates <> v.truth",
                )
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Removes a server.
pub(crate) async fn remove(tx: &mut Tx, server: &Server) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from server_index where org_id = $1 and sort_name = $2 and id = $3")
            .bind(put(&server.org_id))
            .bind(sort_name(server))
            .bind(put(&server.id))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
