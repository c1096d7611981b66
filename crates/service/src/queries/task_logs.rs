//! Task logs: read completely, or followed while the task runs.

use async_recursion::async_recursion as boxed;
use std::time::Duration;

use domain::rollout::Target;
use store::{Bell, Topic, rollout_targets, task_logs};
use vocab::{BatchId, TaskId};

use super::batches::find_in;
use super::tasks::find_task;
use crate::auth::caller::{Caller, Credential};
use crate::{App, Result};

/// The number of bytes that are read at a time, and kept in memory for a slow client.
const PART_BYTES: u64 = 32 * 1024;
/// The maximum number of chunks that are read at a time.
const PART_CHUNKS: u32 = 1_000;
/// The interval at which a followed log is checked without a notification.
const LOOK: Duration = Duration::from_secs(1);

/// Reads a log, up to its length at the time of opening, in parts. Between two parts it holds no
/// memory and no database connection, so that a slow client costs little.
pub struct LogReader {
    app: App,
    task: TaskId,
    from: u64,
    end: u64,
}

impl LogReader {
    /// Opens the log of a task that the caller may see.
    #[boxed]
    pub async fn open(app: &App, caller: &Caller, batch: BatchId, id: TaskId) -> Result<LogReader> {
        let mut reader = app.db.read().await?;
        find_in(&mut reader, &caller.scope(), batch).await?;
        find_task(&mut reader, &caller.scope(), batch, id).await?;
        let end = task_logs::length(&mut reader, id).await?;
        Ok(LogReader { app: app.clone(), task: id, from: 0, end })
    }

    /// The next part; `None` at the end.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        while self.from < self.end {
            let to = self.end.min(self.from + PART_BYTES);
            let mut reader = self.app.db.read().await?;
            let chunks =
                task_logs::read_range(&mut reader, self.task, self.from..to, PART_CHUNKS).await?;
            drop(reader);
            let last = chunks.last().map_or(0, |last| last.position + last.body.len() as u64);
            self.from = if chunks.len() < PART_CHUNKS as usize { to } else { last };
            let mut bytes = Vec::new();
            chunks.iter().for_each(|chunk| bytes.extend_from_slice(&chunk.body));
            // Retention removes the oldest chunks first, so the start may be missing.
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// Decodes bytes that arrive in parts, with the same result as `String::from_utf8_lossy` on all
/// bytes.
#[derive(Debug, Default)]
pub struct LossyText {
    /// The first bytes of a character that is not complete yet.
    unfinished: Vec<u8>,
}

impl LossyText {
    /// The text of this part, including the incomplete character before it.
    pub fn push(&mut self, part: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.unfinished);
        bytes.extend_from_slice(part);
        self.unfinished = bytes.split_off(bytes.len() - unfinished(&bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The replacement for a character that was never completed.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.unfinished).into_owned()
    }
}

/// The number of bytes at the end that are the start of an incomplete character.
fn unfinished(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}

/// Follows a log while the task runs.
pub struct Follower {
    app: App,
    caller: Caller,
    /// Checked before each part, so that a revoked key or an ended session receives no more.
    credential: Credential,
    task: TaskId,
    from: u64,
    bell: Bell,
    credentials: Bell,
    over: bool,
}

/// New content of a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// More text, and the byte position at which it ends.
    Text(String, u64),
    /// The task has ended in this state. Nothing follows.
    End(&'static str),
}

impl Follower {
    /// Follows the log of a task from this byte position.
    #[boxed]
    pub async fn new(
        app: &App,
        caller: Caller,
        credential: Credential,
        (batch, task): (BatchId, TaskId),
        from: u64,
    ) -> Result<Follower> {
        let mut reader = app.db.read().await?;
        find_in(&mut reader, &caller.scope(), batch).await?;
        find_task(&mut reader, &caller.scope(), batch, task).await?;
        drop(reader);
        let (bell, credentials) = (app.db.bell(Topic::Rollouts), app.db.bell(Topic::Credentials));
        let app = app.clone();
        Ok(Follower { app, caller, credential, task, from, bell, credentials, over: false })
    }

    /// The next part; `None` once the log has ended or the service is shutting down.
    #[boxed]
    pub async fn next(&mut self) -> Option<Part> {
        while !self.over {
            match self.look().await {
                Ok(Look::New(part)) => return Some(part),
                Ok(Look::Nothing) => {}
                Ok(Look::Refused) => return None,
                Err(error) => {
                    let cause: &dyn std::error::Error = &error;
                    tracing::warn!(error = cause, "following a task log failed");
                    return None;
                }
            }
            tokio::select! {
                () = self.bell.rung() => {}
                () = self.credentials.rung() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.app.until_drain() => return None,
            }
        }
        None
    }

    async fn look(&mut self) -> Result<Look> {
        if !self.credential.is_valid(&self.app).await? {
            return Ok(Look::Refused);
        }
        let mut reader = self.app.db.read().await?;
        // Read the state first: everything printed before the end is then sent before the end is
        // reported.
        let target =
            rollout_targets::of_task(&mut reader, self.caller.org, self.task).await?.target;
        let length = task_logs::length(&mut reader, self.task).await?;
        while self.from < length {
            let to = length.min(self.from + PART_BYTES);
            let found = task_logs::read_range(&mut reader, self.task, self.from..to, 1).await?;
            let Some(mut part) = found.into_iter().next() else {
                // Retention removes the oldest chunks first, so the start may be missing.
                self.from = to;
                continue;
            };
            let cut = unfinished(&part.body);
            // A part that ends only because it is full must not end within a character.
            if part.position + part.body.len() as u64 == to && to < length && cut < part.body.len()
            {
                part.body.truncate(part.body.len() - cut);
            }
            let text = String::from_utf8_lossy(&part.body).into_owned();
            self.from = part.position + part.body.len() as u64;
            return Ok(Look::New(Part::Text(text, self.from)));
        }
        self.over = matches!(target, Target::Done(_));
        match self.over {
            true => Ok(Look::New(Part::End(rollout_targets::state_word(target)))),
            false => Ok(Look::Nothing),
        }
    }
}

enum Look {
    New(Part),
    Nothing,
    /// The credential is no longer valid.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::LossyText;

    #[test]
    fn text_decoded_in_parts_equals_text_decoded_at_once() {
        let samples: [&[u8]; 6] = [
            "plain, ä, €, 🦀 and again 🦀€ä".as_bytes(),
            b"\xff\xf0\x9f\xa6x\xe2\x82\xc3\xa4\xf0\x9f",
            b"\xf0\x9f\xa6",
            b"\xe2\xe2\x82\xe2\x82\xac\x80\x80",
            b"\xed\xa0\x80\xf4\x90\x80\x80\xc0\x80",
            b"",
        ];
        for bytes in samples {
            for size in 1..=bytes.len().max(1) {
                let mut text = LossyText::default();
                let mut shown: String = bytes.chunks(size).map(|part| text.push(part)).collect();
                shown += &text.finish();
                assert_eq!(shown, String::from_utf8_lossy(bytes), "in parts of {size}");
            }
        }
    }
}
