//! Package sets that servers were asked to upload.
//!
//! In the database and not in memory, because the upload may reach another replica than the one
//! that asked. One row per server and kind: a newer request replaces the older one.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use jiff::Timestamp;
use vocab::{Digest, ServerId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::package_sets::SetKind;
use crate::row::put;
use crate::sql::{ROWS_MAX, Text};
use crate::tx::Tx;

/// Records which package sets servers are asked to upload.
#[boxed]
pub async fn record_requests(
    tx: &mut Tx,
    wanted: &[(ServerId, SetKind, Digest)],
    now: Timestamp,
) -> Result<()> {
    // Sorted, so that replicas lock rows in the same order. The last request of a server counts.
    let latest: BTreeMap<_, _> =
        wanted.iter().map(|(server, kind, digest)| ((*server, *kind), *digest)).collect();
    let latest: Vec<_> = latest.into_iter().collect();
    for chunk in latest.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into package_set_requests (server_id, kind, digest, asked_at) ")
                .rows(chunk, |row, ((server, kind), digest)| {
                    row.bind(put(server)).bind(kind.as_str()).bind(put(digest)).bind(put(&now));
                })
                .add(
                    " on conflict (server_id, kind) do update
                        set digest = excluded.digest, asked_at = excluded.asked_at",
                )
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Whether this server was asked for this package set at `since` or later.
#[boxed]
pub async fn is_requested(
    conn: &mut Conn,
    server: ServerId,
    kind: SetKind,
    digest: Digest,
    since: Timestamp,
) -> Result<bool> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as(
            "select cast(1 as bigint) from package_set_requests
              where server_id = $1 and kind = $2 and digest = $3 and asked_at >= $4",
        )
        .bind(put(&server))
        .bind(kind.as_str())
        .bind(put(&digest))
        .bind(put(&since))
        .fetch_optional(c)
        .await
    })?;
    Ok(found.is_some())
}
