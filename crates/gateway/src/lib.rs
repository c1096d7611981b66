//! The agent protocol, `/agent/v1`: receives reports from agents and sends them orders.
//!
//! One sync, from request to response:
//!
//! 1. `limits` reserves memory for the body and one of the server's eight slots. `credentials`
//!    checks the format, the tag and the signature, in order of increasing cost. A forged request
//!    is rejected here, without database access.
//! 2. `registry` has a `Session` for each agent that this process has heard from. It compares the
//!    counter and the nonce with those of earlier syncs. A sync with an old counter is ignored, and
//!    its response carries a challenge: a clone of the host can answer it, which puts the server
//!    into quarantine; a captured request cannot. A repeated sync after a lost response is neither.
//! 3. New content (facts, results, progress, digests of package sets) goes to `ingest`, which
//!    writes the reports of many agents in one transaction. A package set that is not in the
//!    database is requested: `upload_singleflight` requests it from one of the servers that have
//!    it, and `uploads` receives it. A sync without new content writes only a heartbeat, together
//!    with others, every two seconds.
//! 4. `outbox` holds what is to be sent to the server. If it is empty, the sync is held open until
//!    the `dispatcher`, which follows rollouts and refreshes in the database, adds something.
//! 5. An order is built from its row, verified, signed and returned. `response_signature` signs the
//!    whole response and binds it to the request.
//!
//! The gateway does not decide what a server has to do; the engine does. `security_package_cache`
//! only remembers which updates of a package set fix vulnerabilities.

mod background;
mod credentials;
mod dispatcher;
mod enroll;
mod health_watches;
mod ingest;
mod install;
mod limits;
mod outbox;
mod registry;
mod response_signature;
mod security_package_cache;
mod sync;
mod upload_singleflight;
mod uploads;

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use jiff::Timestamp;
use serde_json::json;
use service::App;
use store::StoreError;
use vocab::ServerId;

pub use background::{Background, Intervals};
pub use credentials::{Credential, signed_text};
#[cfg(feature = "fuzzing")]
pub use uploads::fuzz as fuzz_package_set;

use registry::Registry;

/// The gateway of this process. Cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    app: App,
    registry: Arc<Registry>,
}

impl Gateway {
    /// A gateway without any sessions.
    pub fn new(app: App) -> Gateway {
        let registry = Arc::new(Registry::new());
        let known = registry.clone();
        app.set_contacts(Box::new(move |server| known.last_seen(server)));
        Gateway(Arc::new(Inner { app, registry }))
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// When this process last heard from a server.
    pub fn last_seen(&self, server: ServerId) -> Option<Timestamp> {
        self.registry().last_seen(server)
    }

    /// Responds to every held sync, because this process is shutting down.
    pub fn drain(&self) {
        self.registry().drain();
    }

    /// Writes pending heartbeats now. For tests.
    #[doc(hidden)]
    pub async fn flush(&self) {
        let _ = self.registry().write_heartbeats(self, false).await;
    }
}

impl std::ops::Deref for Gateway {
    type Target = App;
    fn deref(&self) -> &App {
        &self.0.app
    }
}

/// The routes of the agent protocol with their full paths. Merge this router; do not nest it.
pub fn router<S: Clone + Send + Sync + 'static>(gateway: &Gateway) -> Router<S> {
    Router::new()
        .route("/agent/v1/enroll", post(enroll::enroll))
        .route("/agent/v1/sync", post(sync::sync))
        .route("/agent/v1/listings/{kind}/{digest}", put(uploads::put_package_set))
        .route("/agent/v1/orders/{task_id}/log", post(uploads::append_log))
        .route_layer(from_fn_with_state(gateway.clone(), response_signature::sign_response))
        // Not signed: a client that is not enrolled has no key to verify them with.
        .route("/install.sh", get(install::script))
        .route("/agent/v1/releases/{architecture}", get(install::program))
        .method_not_allowed_fallback(async || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "method not allowed")
        })
        .with_state(gateway.clone())
}

/// Why a request of an agent was rejected. Rendered as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    /// The reason for programs.
    pub code: &'static str,
    /// Human-readable reason.
    pub detail: String,
    /// The seconds after which to try again.
    pub retry_after: Option<u64>,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Refusal { status, code, detail: detail.into(), retry_after: None }
    }

    pub fn retry_after(self, seconds: u64) -> Self {
        Refusal { retry_after: Some(seconds), ..self }
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, "malformed_request", detail)
    }

    pub fn removed() -> Self {
        let detail = "this server was removed from its organization; enroll it again to add it";
        Refusal::new(StatusCode::GONE, "server_removed", detail)
    }

    pub fn disk_full() -> Self {
        let detail = "the database's disk is full; nothing was lost, try again";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    pub fn unavailable() -> Self {
        let detail = "the database does not respond; nothing was lost, try again";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            // The server was just removed, and the notification has not arrived yet.
            StoreError::NotFound { kind: "server", .. } => Refusal::removed(),
            StoreError::NotFound { kind, id } => {
                Refusal::new(StatusCode::NOT_FOUND, "not_found", format!("no {kind} `{id}`"))
            }
            StoreError::Corrupt { .. } => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "failed to parse a database row"
                );
                let detail = "internal error; see the log of the service";
                Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            }
            error => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a request of an agent failed; the agent retries"
                );
                match error {
                    StoreError::DiskFull(_) => Refusal::disk_full(),
                    _ => Refusal::unavailable(),
                }
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
