//! The outermost middleware of every request: request id, log line, metrics, time and memory
//! limits, and panic handling.
//!
//! It is independent of the operation. It also renders the bodies of errors; see
//! `httpkit::problem`.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::HeaderValue;
use axum::http::{Method, Response};
use axum::middleware::Next;
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use httpkit::{ApiError, Code, RequestId, X_REQUEST_ID, problem};
use service::clock::Stopwatch;
use tracing::Instrument as _;

use crate::app::Budgets;
use crate::lingering_close::UnreadBody;

/// The time limit for requests of operators, including the body.
const TIME_MAX: Duration = Duration::from_secs(30);
/// The time limit for agents: a sync is held open while there is nothing to send, and a package set
/// may arrive over a slow connection.
const AGENT_TIME_MAX: Duration = Duration::from_secs(120);

/// Runs a request with a request id, a time limit, a log entry and metrics.
pub(crate) async fn observe(
    State(budgets): State<Budgets>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let watch = Stopwatch::start();
    let id = RequestId::new();
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(budgets.requests);
    let unread = request.extensions().get::<UnreadBody>().cloned();
    let has_body = !request.body().is_end_stream();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let matched = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let matched = matched.unwrap_or_else(|| "unmatched".into());
    let span = tracing::info_span!("request", id = id.as_str(), key = tracing::field::Empty);
    let time_max = if path.starts_with("/agent/") { AGENT_TIME_MAX } else { TIME_MAX };
    let answered =
        tokio::time::timeout(time_max, run_handler(request, next)).instrument(span.clone());
    let response = answered.await.unwrap_or_else(|_| timed_out().into_response());
    // Responses to agents are small, and other clients must not be able to block them.
    let response =
        if path.starts_with("/agent/") { response } else { budgets.responses.charge(response) };
    let mut response = problem::render(response, id.as_str());
    if let Ok(value) = HeaderValue::try_from(id.as_str()) {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    let seconds = watch.seconds();
    let status = response.status().as_u16();
    if let Some(unread) = unread {
        unread.set(has_body && status >= 400);
    }
    // A one-time link is a credential until it is used, so it is not logged.
    let shown = if path.starts_with("/welcome/") { &matched } else { &path };
    span.in_scope(|| log_request(&method, shown, &matched, status, seconds));
    api::metrics::count_response(&method, matched, status, seconds);
    response
}

/// Runs the handler. A panic becomes a 500 response and ends only its own request.
async fn run_handler(request: Request, next: Next) -> Response<Body> {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(answer) => answer,
        Err(panic) => {
            let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message =
                message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(panic = message, "a handler panicked");
            problem::internal().into_response()
        }
    }
}

fn timed_out() -> ApiError {
    ApiError::new(Code::TimedOut, "The service did not respond in time; try again.")
}

fn log_request(method: &Method, path: &str, matched: &str, status: u16, seconds: f64) {
    let millis = (seconds * 1e5).round() / 100.0;
    // Routine requests are logged only when something is wrong.
    let routine =
        matched.starts_with("/agent/") || matches!(path, "/healthz" | "/readyz" | "/metrics");
    match (status, routine) {
        (500.., _) => tracing::warn!(%method, path, status, millis, "request finished"),
        (..400, true) => tracing::debug!(%method, path, status, millis, "request finished"),
        _ => tracing::info!(%method, path, status, millis, "request finished"),
    }
}
