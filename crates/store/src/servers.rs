//! The servers and their reported state. [`crate::server_list`] finds servers; [`crate::presence`]
//! stores when each was last seen.
//!
//! A removed server keeps its row, because its agent must learn that it was removed, and its id
//! must not be used again. No list and no [`get`] shows it.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;
use vocab::{Digest, Environment, Hostname, OrgId, Os, PackageManager, ServerId, Tag};

use crate::counts::CountKey as Counted;
use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::package_sets;
use crate::package_sets::SetKind;
use crate::row::{parse, put, row};
use crate::server_index;
use crate::server_index::sort_name;
use crate::server_tags;
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

row! {
    /// A server.
    pub struct Server in "servers" by "id" {
        pub id: ServerId,
        pub org_id: OrgId,
        pub hostname: Hostname,
        /// Shown instead of the hostname.
        pub display_name: Option<String>,
        pub notes: String,
        pub environment: Option<Environment>,
        pub tags: Vec<Tag>,
        pub os: Os,
        /// The running kernel.
        pub kernel: String,
        pub arch: String,
        pub package_manager: Option<PackageManager>,
        pub agent_version: String,
        /// The key that its agent signs with.
        pub public_key: Vec<u8>,
        pub enrolled_at: Timestamp,
        pub last_scan_at: Option<Timestamp>,
        pub reboot_required: bool,
        pub reboot_reasons: Vec<String>,
        /// What its agent is doing, such as `patching`.
        pub activity: String,
        /// The digest of its installed packages, in [`crate::package_sets`].
        pub package_set: Option<Digest>,
        /// The digest of its pending updates, in [`crate::package_sets`].
        pub update_set: Option<Digest>,
        pub packages: u32,
        pub updates: u32,
        /// The number of pending updates that fix vulnerabilities.
        pub security_updates: u32,
        /// Everything else that its agent reports.
        pub facts: Value,
        /// Running code that differs from the installed packages, as `domain::finding::RunningCode`
        /// formats it.
        pub runs: String,
        /// Why it gets no orders until a user decides.
        pub quarantine: Option<String>,
        /// Incremented by every change. A contact is not a change.
        pub generation: i64,
        pub last_seen_at: Timestamp,
        pub counter: i64,
    }
}

row! {
    /// The identity that an agent's request is checked against.
    pub struct Identity in "servers" by "id" {
        pub id: ServerId,
        pub org_id: OrgId,
        /// The key that its agent signs with.
        pub public_key: Vec<u8>,
        pub removed_at: Option<Timestamp>,
        /// Why it gets no orders until a user decides.
        pub quarantine: Option<String>,
        /// The counter of its last sync; `None` for a removed server.
        pub counter: Option<i64>,
    }
}

row! {
    /// What decides which versions a server can install.
    pub struct ServerSystem in "servers" by "id" {
        pub id: ServerId,
        pub os: Os,
        pub package_manager: Option<PackageManager>,
        pub arch: String,
    }
}

row! {
    /// The facts that an agent reports, with the server's name.
    pub struct ServerFacts in "servers" by "id" {
        pub id: ServerId,
        pub hostname: Hostname,
        pub facts: Value,
    }
}

/// Adds a server with `generation` 1.
#[boxed]
pub async fn enroll(tx: &mut Tx, server: &Server) -> Result<()> {
    enroll_all(tx, std::slice::from_ref(server)).await
}

/// Adds many servers, or none if one fails.
#[boxed]
pub async fn enroll_all(tx: &mut Tx, servers: &[Server]) -> Result<()> {
    let root_key = tx.seal().key_id();
    for chunk in servers.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new(
                "insert into servers (generation, id, org_id, public_key, enrolled_at, root_key_id, hostname,
                    display_name, notes, sort_name, environment, tags, os, os_id, os_release, kernel, arch, package_manager,
                    agent_version, last_scan_at, reboot_required, reboot_reasons, activity, package_set,
                    update_set, packages, updates, security_updates, facts, runs, quarantine) ",
            );
            text.rows(chunk, |row, server| {
                row.bind(1_i64).bind(put(&server.id)).bind(put(&server.org_id));
                row.bind(put(&server.public_key)).bind(put(&server.enrolled_at));
                row.bind(root_key.clone());
                changeable!(row, server);
            });
            text.build().execute(c).await.map(drop)
        })
        .map_err(already_exists("the agent's key"))?;
        on!(tx, |c| {
            Text::new("insert into presence (org, server_id, last_seen_at, counter) ")
                .rows(chunk, |row, server| {
                    row.bind(put(&server.org_id)).bind(put(&server.id));
                    row.bind(put(&server.last_seen_at)).bind(server.counter);
                })
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
        chunk.iter().for_each(|server| tx.adjust_count(Counted::from_server(server), 1));
        server_index::add(tx, chunk).await?;
        server_tags::add(tx, chunk).await?;
    }
    Ok(())
}

/// Binds the columns that can change, in the order of `enroll` and `save`.
macro_rules! changeable {
    ($to:ident, $server:ident) => {
        $to.bind(put(&$server.hostname)).bind(put(&$server.display_name));
        $to.bind(put(&$server.notes)).bind(sort_name(&$server));
        $to.bind(put(&$server.environment)).bind(put(&$server.tags)).bind(put(&$server.os));
        $to.bind($server.os.id().to_ascii_lowercase());
        $to.bind($server.os.to_string().to_ascii_lowercase());
        $to.bind(put(&$server.kernel)).bind(put(&$server.arch));
        $to.bind(put(&$server.package_manager)).bind(put(&$server.agent_version));
        $to.bind(put(&$server.last_scan_at)).bind($server.reboot_required);
        $to.bind(put(&$server.reboot_reasons)).bind(put(&$server.activity));
        $to.bind(put(&$server.package_set)).bind(put(&$server.update_set));
        $to.bind(put(&$server.packages)).bind(put(&$server.updates));
        $to.bind(put(&$server.security_updates));
        $to.bind(put(&$server.facts)).bind(put(&$server.runs)).bind(put(&$server.quarantine));
    };
}
use changeable;

/// Saves everything in `after` that can change, unless the server changed since `before` was read.
/// Its package sets must be stored already: a missing one fails with `NotFound`, and the agent must
/// upload it.
#[boxed]
pub async fn save(tx: &mut Tx, before: &Server, after: &Server, now: Timestamp) -> Result<()> {
    for (kind, was, is) in [
        (SetKind::Packages, before.package_set, after.package_set),
        (SetKind::Updates, before.update_set, after.update_set),
    ] {
        if let Some(digest) = is.filter(|_| was != is) {
            package_sets::mark_used(tx, after.org_id, kind, digest, now).await?;
        }
    }
    let saved = on!(tx, |c| {
        let mut text = Text::new(
            "update servers set (hostname, display_name, notes, sort_name, environment, tags, os,
                os_id, os_release, kernel, arch, package_manager, agent_version, last_scan_at,
                reboot_required, reboot_reasons, activity, package_set, update_set, packages,
                updates, security_updates, facts, runs, quarantine, generation) = ",
        );
        text.tuple(|row| {
            changeable!(row, after);
            row.bind(before.generation + 1);
        });
        text.add(" where removed_at is null and id = ").bind(put(&before.id));
        text.add(" and generation = ").bind(before.generation);
        text.build().execute(c).await.map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)?;
    let (was, is) = (Counted::from_server(before), Counted::from_server(after));
    if was != is {
        tx.adjust_count(was, -1);
        tx.adjust_count(is, 1);
    }
    match server_index::index_differs(before, after) {
        true => server_index::save(tx, before, after).await?,
        // The number may have been corrected since it was read.
        false => {
            server_index::update_security_counts(
                tx,
                &[server_index::SecurityCount::from_server(after)],
            )
            .await?;
        }
    }
    if sort_name(before) != sort_name(after) || before.tags != after.tags {
        server_tags::remove(tx, &[after.id]).await?;
        server_tags::add(tx, [after]).await?;
    }
    Ok(())
}

/// Saves what operators edit of servers: names, notes, environments and tags. The rest of each pair
/// must be equal. Fails with `Stale` if one of the servers changed since it was read.
#[boxed]
pub async fn save_edits(tx: &mut Tx, edits: &[(Server, Server)]) -> Result<()> {
    // Sorted, so that replicas lock rows in the same order.
    let mut sorted: Vec<(&Server, &Server)> =
        edits.iter().map(|(before, after)| (before, after)).collect();
    sorted.sort_unstable_by_key(|(before, _)| before.id);
    for chunk in sorted.chunks(ROWS_MAX) {
        let saved = on!(tx, |c| {
            let mut text =
                Text::new("with v (server, seen, shown, noted, sorted, belongs, tagged) as (");
            text.rows(chunk, |row, (before, after)| {
                row.bind(put(&before.id)).bind(before.generation);
                row.bind(put(&after.display_name)).bind(put(&after.notes));
                row.bind(sort_name(after)).bind(put(&after.environment)).bind(put(&after.tags));
            });
            text.add(
                ") update servers
                      set display_name = v.shown, notes = v.noted, sort_name = v.sorted,
                          environment = v.belongs, tags = v.tagged, generation = generation + 1
                     from v
                    where id = v.server and generation = v.seen and removed_at is null",
            );
            text.build().execute(c).await.map(|done| done.rows_affected())
        })?;
        if saved != chunk.len() as u64 {
            return Err(StoreError::Stale);
        }
        for (before, after) in chunk {
            let (was, is) = (Counted::from_server(before), Counted::from_server(after));
            if was != is {
                tx.adjust_count(was, -1);
                tx.adjust_count(is, 1);
            }
        }
        server_index::save_edits(tx, chunk).await?;
        let is_tag_row_changed = |(before, after): &&(&Server, &Server)| {
            sort_name(before) != sort_name(after) || before.tags != after.tags
        };
        let tagged: Vec<&Server> =
            chunk.iter().filter(is_tag_row_changed).map(|(_, after)| *after).collect();
        let ids: Vec<ServerId> = tagged.iter().map(|server| server.id).collect();
        server_tags::remove(tx, &ids).await?;
        server_tags::add(tx, tagged).await?;
    }
    Ok(())
}

/// What an agent reports most often: its package sets and its activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    pub id: ServerId,
    /// The generation of the server that this was decided on.
    pub seen: i64,
    pub last_scan_at: Option<Timestamp>,
    /// What its agent is doing.
    pub activity: String,
    pub package_set: Option<Digest>,
    pub update_set: Option<Digest>,
    pub packages: u32,
    pub updates: u32,
    pub security_updates: u32,
}

/// Saves scans of many servers in one statement, which touches only the columns and indexes that a
/// scan changes. Returns the servers that were saved: the others were removed, or saved by another
/// writer since. Their package sets must be stored already ([`package_sets::mark_all_used`]).
#[boxed]
pub async fn save_scans(tx: &mut Tx, scans: &[Scan]) -> Result<BTreeSet<ServerId>> {
    // Sorted, so that replicas lock rows in the same order.
    let mut sorted: Vec<&Scan> = scans.iter().collect();
    sorted.sort_unstable_by_key(|scan| scan.id);
    let mut saved = BTreeSet::new();
    for chunk in sorted.chunks(ROWS_MAX) {
        let found: Vec<server_index::SecurityCount> = on!(tx, |c| {
            let mut text = Text::new(
                "with v (server, seen, scanned, doing, has, wants, had, wanted, insecure) as (",
            );
            text.rows(chunk, |row, scan| {
                row.bind(put(&scan.id)).bind(scan.seen).bind(put(&scan.last_scan_at));
                row.bind(put(&scan.activity)).bind(put(&scan.package_set));
                row.bind(put(&scan.update_set)).bind(put(&scan.packages));
                row.bind(put(&scan.updates)).bind(put(&scan.security_updates));
            });
            text.add(
                ") update servers
                      set last_scan_at = v.scanned, activity = v.doing, package_set = v.has,
                          update_set = v.wants, packages = v.had, updates = v.wanted,
                          security_updates = v.insecure, generation = generation + 1
                     from v
                    where id = v.server and generation = v.seen and removed_at is null
                   returning ",
            );
            text.add(server_index::SecurityCount::COLUMNS).build_as().fetch_all(c).await
        })?;
        server_index::update_security_counts(tx, &found).await?;
        saved.extend(found.iter().map(|one| one.id));
    }
    Ok(saved)
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: ServerId) -> Result<Server> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Server::COLUMNS,
            " from servers join presence on org = org_id and server_id = id
              where id = $1 and org_id = $2 and removed_at is null",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("server", id))
}

/// Returns which of these servers exist, in any organization. The caller must have checked their
/// organization.
#[boxed]
pub async fn get_all(conn: &mut Conn, ids: &[ServerId]) -> Result<Vec<Server>> {
    let mut found = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Server::COLUMNS);
            text.add(" from servers join presence on org = org_id and server_id = id");
            text.add(" where removed_at is null and id").in_ids(chunk.iter().map(put));
            text.build_as::<Server>().fetch_all(c).await
        })?);
    }
    Ok(found)
}

/// The facts of up to `limit` servers after `after`, in the order of their ids. Includes all
/// organizations, but no removed servers.
#[boxed]
pub async fn facts_after(
    conn: &mut Conn,
    after: Option<ServerId>,
    limit: u32,
) -> Result<Vec<ServerFacts>> {
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(ServerFacts::COLUMNS).add(" from servers where removed_at is null");
        if let Some(after) = &after {
            text.add(" and id > ").bind(put(after));
        }
        text.add(" order by id limit ").bind(i64::from(limit));
        text.build_as::<ServerFacts>().fetch_all(c).await
    })?)
}

/// What decides which versions these servers can install. Omits removed servers.
#[boxed]
pub async fn systems(conn: &mut Conn, ids: &[ServerId]) -> Result<Vec<ServerSystem>> {
    let mut found = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(ServerSystem::COLUMNS).add(" from servers where removed_at is null and id");
            text.in_ids(chunk.iter().map(put));
            text.build_as::<ServerSystem>().fetch_all(c).await
        })?);
    }
    Ok(found)
}

/// Records the root key that the agent's identity was created with.
#[boxed]
pub async fn set_root_key(tx: &mut Tx, id: ServerId, root_key: &str) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update servers set root_key_id = $1 where id = $2")
            .bind(root_key)
            .bind(put(&id))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// The root key that the agent's identity was created with, if it was recorded.
#[boxed]
pub async fn root_key(conn: &mut Conn, id: ServerId) -> Result<Option<String>> {
    let found: Option<(Option<String>,)> = on!(conn, |c| {
        sqlx::query_as("select root_key_id from servers where id = $1")
            .bind(put(&id))
            .fetch_optional(c)
            .await
    })?;
    Ok(found.and_then(|(id,)| id))
}

/// Returns which of these servers have pending updates.
#[boxed]
pub async fn with_updates(conn: &mut Conn, ids: &[ServerId]) -> Result<BTreeSet<ServerId>> {
    let mut found = BTreeSet::new();
    for chunk in ids.chunks(ROWS_MAX) {
        let rows: Vec<(String,)> = on!(conn, |c| {
            let mut text = Text::new("select id from servers where removed_at is null");
            text.add(" and updates > 0 and id").in_ids(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        for (id,) in rows {
            found.insert(parse("servers", id)?);
        }
    }
    Ok(found)
}

/// The identity of a server; also of a removed one.
#[boxed]
pub async fn identity(conn: &mut Conn, id: ServerId) -> Result<Option<Identity>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Identity::COLUMNS,
            " from servers left join presence on org = org_id and server_id = id where id = $1",
        ]))
        .bind(put(&id))
        .fetch_optional(c)
        .await
    })?)
}

/// The server with this key, even if it was removed. An agent that did not receive the response to
/// its enrollment enrolls again.
#[boxed]
pub async fn by_public_key(conn: &mut Conn, public_key: &[u8]) -> Result<Option<Identity>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Identity::COLUMNS,
            " from servers left join presence on org = org_id and server_id = id
              where public_key = $1",
        ]))
        .bind(public_key)
        .fetch_optional(c)
        .await
    })?)
}

/// Removes a server from every list. Its id and its key are never used again.
#[boxed]
pub async fn remove(tx: &mut Tx, seen: &Server, now: Timestamp) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update servers set removed_at = $1, generation = generation + 1
              where id = $2 and generation = $3 and removed_at is null",
        )
        .bind(put(&now))
        .bind(put(&seen.id))
        .bind(seen.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)?;
    tx.adjust_count(Counted::from_server(seen), -1);
    server_tags::remove(tx, &[seen.id]).await?;
    server_index::remove(tx, seen).await?;
    on!(tx, |c| {
        sqlx::query("delete from presence where org = $1 and server_id = $2")
            .bind(put(&seen.org_id))
            .bind(put(&seen.id))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
