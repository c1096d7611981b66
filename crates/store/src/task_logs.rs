//! Output of the package manager, in chunks and in the order in which it was printed.
//!
//! A chunk has a position. A chunk that arrives again, wholly or in part, changes nothing.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::Timestamp;
use vocab::TaskId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{parse, put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

row! {
    /// A part of a log.
    pub struct Chunk in "task_logs" by "task_id" {
        pub task_id: TaskId,
        pub position: u64,
        pub size: u64,
        pub body: Vec<u8>,
        pub at: Timestamp,
    }
}

/// The result of [`append`] for one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendResult {
    /// The chunk is stored, now or already; the log has this length.
    Stored(u64),
    /// Something before the chunk is missing; the log has this length.
    Gap(u64),
}

/// The length of a log in bytes.
#[boxed]
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

/// A chunk as it arrives.
#[derive(Debug, Clone, Copy)]
pub struct NewChunk<'a> {
    pub task: TaskId,
    pub position: u64,
    pub body: &'a [u8],
    pub at: Timestamp,
}

/// Appends what is new of each chunk, one after the other, and returns the result for each.
#[boxed]
pub async fn append(tx: &mut Tx, chunks: &[NewChunk<'_>]) -> Result<Vec<AppendResult>> {
    let mut done = Vec::with_capacity(chunks.len());
    for chunk in chunks.chunks(ROWS_MAX) {
        let mut ends = log_lengths(tx, chunk).await?;
        let mut fresh = Vec::with_capacity(chunk.len());
        for piece in chunk {
            let end = ends.entry(piece.task).or_default();
            let known = end.checked_sub(piece.position);
            done.push(match known {
                None => AppendResult::Gap(*end),
                Some(known) => {
                    let known = usize::try_from(known).unwrap_or(usize::MAX);
                    let body = piece.body.get(known..).unwrap_or_default();
                    if !body.is_empty() {
                        fresh.push(NewChunk { position: *end, body, ..*piece });
                        *end += body.len() as u64;
                    }
                    AppendResult::Stored(*end)
                }
            });
        }
        if !fresh.is_empty() {
            insert(tx, &fresh).await?;
        }
    }
    Ok(done)
}

/// The lengths of these logs, read from the last chunk of each, because a long upgrade has
/// thousands.
async fn log_lengths(conn: &mut Conn, chunks: &[NewChunk<'_>]) -> Result<BTreeMap<TaskId, u64>> {
    let tasks: BTreeSet<TaskId> = chunks.iter().map(|piece| piece.task).collect();
    let found: Vec<(String, Option<i64>)> = on!(conn, |c| {
        let mut text = Text::new("with v (task) as (");
        text.rows(&tasks, |row, task| {
            row.bind(put(task));
        });
        text.add(
            ") select v.task, (select position + size from task_logs
                  where task_id = v.task order by position desc limit 1)
               from v",
        );
        text.build_as().fetch_all(c).await
    })?;
    let end = |(id, end): (String, Option<i64>)| {
        Ok((parse("task_logs", id)?, end.map_or(0, i64::unsigned_abs)))
    };
    found.into_iter().map(end).collect()
}

async fn insert(tx: &mut Tx, chunks: &[NewChunk<'_>]) -> Result<()> {
    on!(tx, |c| {
        Text::new("insert into task_logs (task_id, position, size, body, at) ")
            .rows(chunks, |row, piece| {
                row.bind(put(&piece.task)).bind(put(&piece.position));
                row.bind(piece.body.len() as i64).bind(piece.body).bind(put(&piece.at));
            })
            .add(" on conflict do nothing")
            .build()
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Returns the chunks that contain position `from` and what follows, at most `limit`.
#[boxed]
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

/// The part of a chunk that is inside a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSlice {
    /// Its position in the log.
    pub position: u64,
    pub body: Vec<u8>,
}

/// Returns a range of the log, chunk by chunk, at most `limit` chunks. Nothing outside the range is
/// read from a chunk, so a small range takes little memory even if the chunks are large.
#[boxed]
pub async fn read_range(
    conn: &mut Conn,
    task: TaskId,
    range: Range<u64>,
    limit: u32,
) -> Result<Vec<LogSlice>> {
    let bytes_max = i32::try_from(range.end.saturating_sub(range.start)).unwrap_or(i32::MAX);
    let found: Vec<(i64, Vec<u8>)> = on!(conn, |c| {
        sqlx::query_as(
            "select case when position < $2 then $2 else position end,
                    substr(body, cast(case when position < $2 then $2 - position else 0 end as integer) + 1, $5)
               from task_logs
              where task_id = $1 and position + size > $2 and position < $3
                and position >= coalesce(
                    (select max(position) from task_logs where task_id = $1 and position <= $2), 0)
              order by position limit $4",
        )
        .bind(put(&task))
        .bind(put(&range.start))
        .bind(put(&range.end))
        .bind(i64::from(limit))
        .bind(bytes_max)
        .fetch_all(c)
        .await
    })?;
    let extract = |(position, mut body): (i64, Vec<u8>)| {
        let position = position.unsigned_abs();
        body.truncate(usize::try_from(range.end - position).unwrap_or(usize::MAX));
        LogSlice { position, body }
    };
    Ok(found.into_iter().map(extract).collect())
}

/// Deletes up to `limit` chunks from before `cutoff`. Returns their number.
#[boxed]
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
