//! Around every request, outermost: an id, a line in the log, the metrics, a time limit, a net for panics.
//!
//! Nothing here knows an operation. It is also where an error gets its body: see `http::problem`.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::{Method, Response};
use axum::middleware::Next;
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use crate::http::problem;
use crate::http::problem::{ApiError, Code};
use service::clock::{Stopwatch, chance};

/// What the header with a request's id is called.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How long an operator's request may take, its body included.
const TIME_MAX: Duration = Duration::from_secs(30);
/// An agent's sync is held open while there is nothing to say, and a listing may come over a slow line.
const AGENT_TIME_MAX: Duration = Duration::from_secs(120);

/// By what a request is known in the logs.
#[derive(Debug, Clone)]
pub struct RequestId(String);

impl RequestId {
    fn new() -> RequestId {
        let id = u128::from_be_bytes(chance());
        RequestId(format!("req_{id:032x}"))
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Lets a request through.
pub(crate) async fn observe(mut request: Request, next: Next) -> Response<Body> {
    let watch = Stopwatch::start();
    let id = RequestId::new();
    request.extensions_mut().insert(id.clone());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let matched = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let matched = matched.unwrap_or_else(|| "unmatched".into());
    let span = tracing::info_span!("request", id = id.as_str(), key = tracing::field::Empty);
    let time_max = if path.starts_with("/agent/") { AGENT_TIME_MAX } else { TIME_MAX };
    let answered = tokio::time::timeout(time_max, safely(request, next)).instrument(span.clone());
    let answer = answered.await.unwrap_or_else(|_| too_long().into_response());
    let mut answer = problem::render(answer, id.as_str());
    if let Ok(value) = HeaderValue::try_from(id.as_str()) {
        answer.headers_mut().insert(X_REQUEST_ID, value);
    }
    let seconds = watch.seconds();
    let status = answer.status().as_u16();
    // A one-time link is a credential until it is used.
    let shown = if path.starts_with("/welcome/") { &matched } else { &path };
    span.in_scope(|| note(&method, shown, &matched, status, seconds));
    super::metrics::count(&method, matched, status, seconds);
    answer
}

/// What a handler answers; a panic is answered too, and ends nothing but its own request.
async fn safely(request: Request, next: Next) -> Response<Body> {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(answer) => answer,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(panic = said, "a handler panicked");
            problem::internal().into_response()
        }
    }
}

fn too_long() -> ApiError {
    ApiError::new(Code::TimedOut, "The service did not answer in time; try again.")
}

fn note(method: &Method, path: &str, matched: &str, status: u16, seconds: f64) {
    let millis = (seconds * 1e5).round() / 100.0;
    // What machines ask all the time is worth a line only when something is wrong.
    let routine =
        matched.starts_with("/agent/") || matches!(path, "/healthz" | "/readyz" | "/metrics");
    match (status, routine) {
        (500.., _) => tracing::warn!(%method, path, status, millis, "answered"),
        (..400, true) => tracing::debug!(%method, path, status, millis, "answered"),
        _ => tracing::info!(%method, path, status, millis, "answered"),
    }
}
