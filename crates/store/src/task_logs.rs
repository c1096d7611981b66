//! What an agent's package manager printed, in chunks, in the order in which it was printed.
//!
//! A chunk has a position; one that comes again, wholly or in part, changes nothing.

use jiff::Timestamp;
use vocab::TaskId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// Part of a log.
    pub struct Chunk in "task_logs" by "task_id" {
        /// Of which task.
        pub task_id: TaskId,
        /// Where it begins.
        pub position: u64,
        /// How long it is.
        pub size: u64,
        /// What was printed.
        pub body: Vec<u8>,
        /// When it arrived.
        pub at: Timestamp,
    }
}

/// What came of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Append {
    /// It is there, now or already; the log is this long.
    Kept(u64),
    /// Something before it is missing: the log is only this long.
    Gap(u64),
}

/// How long a log is.
pub async fn length(conn: &mut Conn, task: TaskId) -> Result<u64> {
    let last: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as(
            "select position + size from task_logs
              where task_id = $1 order by position desc limit 1",
        )
        .bind(put(&task))
        .fetch_optional(c)
        .await
    })?;
    Ok(last.map_or(0, |(end,)| end.unsigned_abs()))
}

/// Adds what is new of a chunk.
pub async fn append(
    tx: &mut Tx,
    task: TaskId,
    position: u64,
    body: &[u8],
    now: Timestamp,
) -> Result<Append> {
    let end = length(tx, task).await?;
    if position > end {
        return Ok(Append::Gap(end));
    }
    let known = usize::try_from(end - position).unwrap_or(usize::MAX);
    let Some(fresh) = body.get(known..).filter(|fresh| !fresh.is_empty()) else {
        return Ok(Append::Kept(end));
    };
    on!(tx, |c| {
        sqlx::query(
            "insert into task_logs (task_id, position, size, body, at) values ($1, $2, $3, $4, $5)
             on conflict do nothing",
        )
        .bind(put(&task))
        .bind(put(&end))
        .bind(fresh.len() as i64)
        .bind(fresh)
        .bind(put(&now))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(Append::Kept(end + fresh.len() as u64))
}

/// The chunks that hold what comes at `from` and after it, at most `limit` of them.
pub async fn read(conn: &mut Conn, task: TaskId, from: u64, limit: u32) -> Result<Vec<Chunk>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Chunk::COLUMNS,
            " from task_logs where task_id = $1 and position + size > $2 order by position limit $3",
        ]))
        .bind(put(&task))
        .bind(put(&from))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Forgets up to `limit` chunks from before `cutoff`, and says how many it were.
pub async fn purge(tx: &mut Tx, cutoff: Timestamp, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from task_logs where (task_id, position) in
                (select task_id, position from task_logs where at < $1 order by at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}
