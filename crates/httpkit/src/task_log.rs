//! The log of a task as a response: plain text, or server-sent events while it grows.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use service::App;
use service::ServiceError;
use service::auth::caller::{Caller, Credential};
use service::queries::task_logs::{LogFollower, LogPart, LogReader, LossyText};
use vocab::{BatchId, TaskId};

use crate::problem::{ApiError, Code, error_chain, internal};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Responds with the log as text, or streams it if the client accepts `text/event-stream`.
pub async fn respond(
    app: &App,
    caller: Caller,
    credential: Option<Credential>,
    (batch, id): (BatchId, TaskId),
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/event-stream")) {
        let from = resume_from(headers)?;
        let credential = credential.ok_or_else(internal)?;
        let follower = LogFollower::new(app, caller, credential, (batch, id), from).await?;
        let events = stream::unfold(follower, |mut follower| async move {
            let event = match follower.next().await? {
                // A carriage return would end the line of the event stream, and with it the event's
                // `data`.
                LogPart::Text(text, end) => {
                    Event::default().event("log").id(end.to_string()).data(text.replace('\r', ""))
                }
                LogPart::End(state) => Event::default().event("end").data(state),
            };
            Some((Ok::<_, Infallible>(event), follower))
        });
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    let log = LogReader::open(app, &caller, batch, id).await?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, Body::from_stream(text_stream(log))).into_response())
}

/// The log as text. Each part is read from the database when the connection can take it. If that
/// fails, the response is truncated, which the client detects.
fn text_stream(log: LogReader) -> impl Stream<Item = Result<String, ServiceError>> {
    let start = Some((log, LossyText::default()));
    stream::try_unfold(start, |state| async {
        let Some((mut log, mut text)) = state else { return Ok(None) };
        Ok(
            match log.next().await.inspect_err(|error| {
                tracing::warn!(cause = error_chain(error), "failed to read the rest of a task log");
            })? {
                Some(part) => Some((text.push(&part), Some((log, text)))),
                None => Some((text.finish(), None)),
            },
        )
    })
}

fn resume_from(headers: &HeaderMap) -> Result<u64, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(0) };
    let offset = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    offset.ok_or_else(|| {
        let detail = "`Last-Event-ID` must be the `id` of the last event that was received.";
        ApiError::new(Code::InvalidHeader, detail)
    })
}
