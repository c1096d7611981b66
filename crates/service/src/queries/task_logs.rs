//! Task logs: read completely, or followed while the task runs.

use async_recursion::async_recursion as boxed;
use std::time::Duration;

use domain::rollout::TaskStatus;
use store::{Subscription, Topic, rollout_tasks, task_logs};
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
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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
    incomplete: Vec<u8>,
}

impl LossyText {
    /// The text of this part, including the incomplete character before it.
    pub fn push(&mut self, part: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.incomplete);
        bytes.extend_from_slice(part);
        self.incomplete = bytes.split_off(bytes.len() - incomplete_bytes(&bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The replacement for a character that was never completed.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.incomplete).into_owned()
    }
}

/// The number of bytes at the end that are the start of an incomplete character.
fn incomplete_bytes(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}

/// Follows a log while the task runs.
pub struct LogFollower {
    app: App,
    caller: Caller,
    /// Checked before each part, so that a revoked key or an ended session receives no more.
    credential: Credential,
    task: TaskId,
    from: u64,
    log_changes: Subscription,
    credential_changes: Subscription,
    has_ended: bool,
}

/// New content of a log.
#[derive(Debug, PartialEq, Eq)]
pub enum LogPart {
    /// More text, and the byte position at which it ends.
    Text(String, u64),
    /// The task has ended in this state. Nothing follows.
    End(&'static str),
}

impl LogFollower {
    /// Follows the log of a task from this byte position.
    #[boxed]
    pub async fn new(
        app: &App,
        caller: Caller,
        credential: Credential,
        (batch, task): (BatchId, TaskId),
        from: u64,
    ) -> Result<LogFollower> {
        let mut reader = app.db.read().await?;
        find_in(&mut reader, &caller.scope(), batch).await?;
        find_task(&mut reader, &caller.scope(), batch, task).await?;
        drop(reader);
        let (log_changes, credential_changes) =
            (app.db.subscribe(Topic::Rollouts), app.db.subscribe(Topic::Credentials));
        let app = app.clone();
        Ok(LogFollower {
            app,
            caller,
            credential,
            task,
            from,
            log_changes,
            credential_changes,
            has_ended: false,
        })
    }

    /// The next part; `None` once the log has ended or the service is shutting down.
    #[boxed]
    pub async fn next(&mut self) -> Option<LogPart> {
        while !self.has_ended {
            match self.poll().await {
                Ok(PollResult::Available(part)) => return Some(part),
                Ok(PollResult::Nothing) => {}
                Ok(PollResult::Refused) => return None,
                Err(error) => {
                    let cause: &dyn std::error::Error = &error;
                    tracing::warn!(error = cause, "failed to follow a task log");
                    return None;
                }
            }
            tokio::select! {
                () = self.log_changes.notified() => {}
                () = self.credential_changes.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.app.until_drain() => return None,
            }
        }
        None
    }

    async fn poll(&mut self) -> Result<PollResult> {
        if !self.credential.is_valid(&self.app).await? {
            return Ok(PollResult::Refused);
        }
        let mut reader = self.app.db.read().await?;
        // Read the state first: everything printed before the end is then sent before the end is
        // reported.
        let target = rollout_tasks::get(&mut reader, self.caller.org, self.task).await?.target;
        let length = task_logs::length(&mut reader, self.task).await?;
        while self.from < length {
            let to = length.min(self.from + PART_BYTES);
            let found = task_logs::read_range(&mut reader, self.task, self.from..to, 1).await?;
            let Some(mut part) = found.into_iter().next() else {
                // Retention removes the oldest chunks first, so the start may be missing.
                self.from = to;
                continue;
            };
            let cut = incomplete_bytes(&part.body);
            // A part that ends only because it is full must not end within a character.
            if part.position + part.body.len() as u64 == to && to < length && cut < part.body.len()
            {
                part.body.truncate(part.body.len() - cut);
            }
            let text = String::from_utf8_lossy(&part.body).into_owned();
            self.from = part.position + part.body.len() as u64;
            return Ok(PollResult::Available(LogPart::Text(text, self.from)));
        }
        self.has_ended = matches!(target, TaskStatus::Done(_));
        match self.has_ended {
            true => Ok(PollResult::Available(LogPart::End(rollout_tasks::state_name(target)))),
            false => Ok(PollResult::Nothing),
        }
    }
}

enum PollResult {
    Available(LogPart),
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
