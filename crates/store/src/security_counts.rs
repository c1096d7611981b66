//! Corrects the number of pending security updates of servers.
//!
//! The number is the same for all servers of a [`PatchServerKind`]. `service::projections::patches`
//! computes it once per kind; this module finds the servers that have another number and writes it.

use async_recursion::async_recursion as boxed;
use vocab::{OrgId, ServerId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::patches::PatchServerKind;
use crate::row::{put, row};
use crate::server_index;
use crate::sql::{ROWS_MAX, Text};
use crate::tx::Tx;

row! {
    /// A server whose number is wrong.
    pub struct CountCorrection in "servers" by "id" {
        pub id: ServerId,
        /// The generation of the server from which the count was computed.
        pub generation: i64,
        /// The correct number of pending security updates.
        pub security_updates: u32,
    }
}

/// The servers of these kinds whose number differs from the one given with their kind, by id.
/// Servers that have uploaded only one of their two package sets are never included.
#[boxed]
pub async fn find_wrong(
    conn: &mut Conn,
    org: OrgId,
    correct: &[(&PatchServerKind, u32)],
) -> Result<Vec<CountCorrection>> {
    let mut found: Vec<CountCorrection> = Vec::new();
    for chunk in correct.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("with v (wants, has, system, running, beside, truth) as (");
            text.rows(chunk, |row, (kind, truth)| {
                row.bind(put(&kind.update_set)).bind(put(&kind.package_set));
                row.bind(put(&kind.os_release)).bind(put(&kind.kernel)).bind(put(&kind.runs));
                row.bind(put(truth));
            });
            text.add(") select ").add(CountCorrection::COLUMNS);
            // From each kind to its servers: SQLite keeps the order of a `cross join`.
            text.add(
                " from (select s.id, s.generation, v.truth as security_updates
                          from v cross join servers s
                         where s.update_set = v.wants and s.package_set = v.has
                           and s.os_release = v.system and s.kernel = v.running
                           and s.runs = v.beside and s.security_updates <> v.truth
                           and s.removed_at is null and s.org_id = ",
            );
            text.bind(put(&org)).add(") wrong");
            text.build_as::<CountCorrection>().fetch_all(c).await
        })?);
    }
    // All transactions lock servers in this order.
    found.sort_unstable_by_key(|one| one.id);
    Ok(found)
}

/// Writes the numbers. Skips a server that was saved since. This is not a change of the server and
/// its generation stays the same, so a report of its agent does not become stale.
#[boxed]
pub async fn write(tx: &mut Tx, all: &[CountCorrection]) -> Result<()> {
    for chunk in all.chunks(ROWS_MAX) {
        let written: Vec<server_index::SecurityCount> = on!(tx, |c| {
            let mut text = Text::new("with v (server, seen, truth) as (");
            text.rows(chunk, |row, one| {
                row.bind(put(&one.id)).bind(one.generation).bind(put(&one.security_updates));
            });
            text.add(
                ") update servers set security_updates = v.truth from v
                    where id = v.server and generation = v.seen and removed_at is null
                      and security_updates <> v.truth
                   returning ",
            );
            text.add(server_index::SecurityCount::COLUMNS).build_as().fetch_all(c).await
        })?;
        server_index::update_security_counts(tx, &written).await?;
    }
    Ok(())
}
