//! What a task printed: as text, or live as it is printed.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use domain::rollout::Target;
use futures_util::stream::{self, Stream};
use store::{Topic, rollout_targets, task_logs};
use utoipa_axum::routes as handlers;
use vocab::{BatchId, Role, TaskId};

use crate::app::App;
use crate::http::auth::Credential;
use crate::http::problem::{chain, internal};
use crate::http::{ApiError, Caller, Code, Ids, NoQuery, Query, Routes};
use service::queries::batches::find;
use service::queries::tasks::find_task;

/// How many chunks are read at once.
const CHUNKS: u32 = 64;
/// How often a log that is followed is looked at when no bell rings.
const LOOK: Duration = Duration::from_secs(1);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(log))
}

/// Get the log of a task
///
/// What its package manager printed, as text. With `Accept: text/event-stream` it is followed live: events `log` whose `id` is where
/// in the log they end (`Last-Event-ID` goes on from there), and one event `end` when the task has ended.
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks/{task_id}/log", tag = "Batches", operation_id = "get_task_log",
    params(("batch_id" = BatchId, Path, description = "Which batch."),
        ("task_id" = TaskId, Path, description = "Which task.")),
    responses((status = 200, description = "The log.",
        content((String = "text/plain"), (String = "text/event-stream")))))]
pub(crate) async fn log(
    State(app): State<App>,
    caller: Caller,
    Ids(batch, id): Ids<BatchId, TaskId>,
    Query(NoQuery {}): Query<NoQuery>,
    credential: Option<Extension<Credential>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut reader = app.db.read().await?;
    find(&mut reader, &caller.scope(), batch).await?;
    find_task(&mut reader, &caller.scope(), batch, id).await?;
    let live = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if live.is_some_and(|accept| accept.contains("text/event-stream")) {
        let from = resume_from(&headers)?;
        drop(reader);
        let Extension(credential) = credential.ok_or_else(internal)?;
        return Ok(Sse::new(follow(app, caller, credential, id, from))
            .keep_alive(KeepAlive::default())
            .into_response());
    }
    let mut bytes = Vec::new();
    loop {
        let chunks = task_logs::read(&mut reader, id, bytes.len() as u64, CHUNKS).await?;
        let end = chunks.len() < CHUNKS as usize;
        chunks.iter().for_each(|chunk| bytes.extend_from_slice(&chunk.body));
        if end {
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, text).into_response())
}

fn resume_from(headers: &HeaderMap) -> Result<u64, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(0) };
    let place = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    place.ok_or_else(|| {
        let detail = "`Last-Event-ID` holds the `id` of the last event that was received.";
        ApiError::new(Code::InvalidHeader, detail)
    })
}

/// A log that is being followed.
struct Follower {
    app: App,
    caller: Caller,
    /// Looked at before each event, so that a revoked key or an ended session hears no more.
    credential: Credential,
    task: TaskId,
    from: u64,
    bell: store::Bell,
    credentials: store::Bell,
    over: bool,
}

fn follow(
    app: App,
    caller: Caller,
    credential: Credential,
    task: TaskId,
    from: u64,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let bell = app.db.bell(Topic::Rollouts);
    let credentials = app.db.bell(Topic::Credentials);
    let follower = Follower { app, caller, credential, task, from, bell, credentials, over: false };
    stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    })
}

impl Follower {
    /// The next event; nothing once the log is over, or the service about to end.
    async fn next(&mut self) -> Option<Event> {
        while !self.over {
            match self.credential.is_valid(&self.app).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(cause = chain(&error), "a log is not followed further");
                    return None;
                }
            }
            match self.look().await {
                Ok(Some(event)) => return Some(event),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a log is not followed further"
                    );
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

    async fn look(&mut self) -> store::Result<Option<Event>> {
        let mut reader = self.app.db.read().await?;
        // Asked first: what was printed before the end is then read before the end is told.
        let target =
            rollout_targets::of_task(&mut reader, self.caller.org, self.task).await?.target;
        let chunks = task_logs::read(&mut reader, self.task, self.from, 1).await?;
        if let Some(chunk) = chunks.first() {
            let skip =
                usize::try_from(self.from.saturating_sub(chunk.position)).unwrap_or(usize::MAX);
            let text =
                String::from_utf8_lossy(chunk.body.get(skip..).unwrap_or_default()).into_owned();
            self.from = chunk.position + chunk.size;
            // A carriage return would end a line of the stream, and the browser's `data` with it.
            let text = text.replace('\r', "");
            return Ok(Some(Event::default().event("log").id(self.from.to_string()).data(text)));
        }
        self.over = matches!(target, Target::Done(_));
        let word = rollout_targets::state_word(target);
        Ok(self.over.then(|| Event::default().event("end").data(word)))
    }
}
