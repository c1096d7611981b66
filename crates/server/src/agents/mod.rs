//! The side door `/agent/v1`: what agents say, and what they are told.
//!
//! Every request but the first is signed by the agent's own key and carries a tag that only this
//! installation can have made, so a forged one is refused before the database is touched. A sync
//! with nothing new costs a signature and a look into memory: `links` knows who is who, `desk` what
//! is to be said to whom, and `follow` keeps both up to date. Nothing here decides what a server
//! is to do; that is the engine's.

mod answer_signature;
mod awaited;
mod credentials;
mod desk;
mod enroll;
mod follow;
mod limits;
mod links;
mod news;
mod secured;
mod sync;
mod uploads;
#[cfg(feature = "fuzzing")]
pub use uploads::fuzz as fuzz_package_set;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use serde_json::json;
use store::StoreError;

use crate::app::App;

pub use credentials::{Credential, signed_text};
pub(crate) use follow::{follow, watch_barred};
pub use links::Door;

/// The side door by itself.
pub fn router(app: App) -> Router {
    routes(&app).with_state(app)
}

/// The routes of the side door, with their whole paths: to be merged, not nested.
pub(crate) fn routes(app: &App) -> Router<App> {
    Router::new()
        .route("/agent/v1/enroll", post(enroll::enroll))
        .route("/agent/v1/sync", post(sync::sync))
        .route("/agent/v1/listings/{kind}/{digest}", put(uploads::listing))
        .route("/agent/v1/orders/{task_id}/log", post(uploads::log))
        .route_layer(from_fn_with_state(app.clone(), answer_signature::sign_answer))
        .method_not_allowed_fallback(async || {
            Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "not with this method",
            )
        })
}

/// Why an agent is sent away. Rendered as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// The reason, for programs.
    pub code: &'static str,
    /// The reason, for people.
    pub detail: String,
    /// After how many seconds to try again.
    pub retry_after: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Refusal { status, code, detail: detail.into(), retry_after: None }
    }

    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Refusal { retry_after: Some(seconds), ..self }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, "malformed_request", detail)
    }

    pub(crate) fn removed() -> Self {
        let detail = "this server was removed from its organization; enrol again to join";
        Refusal::new(StatusCode::GONE, "server_removed", detail)
    }

    pub(crate) fn disk_full() -> Self {
        let detail = "the database's disk is full; nothing was lost, try again";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    pub(crate) fn unavailable() -> Self {
        let detail = "the database does not answer; nothing was lost, try again";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            // It was removed a moment ago, and the bell has not rung yet.
            StoreError::NotFound { kind: "server", .. } => Refusal::removed(),
            StoreError::NotFound { kind, id } => {
                Refusal::new(StatusCode::NOT_FOUND, "not_found", format!("no {kind} `{id}`"))
            }
            StoreError::Corrupt { .. } => {
                tracing::error!(error = &error as &dyn std::error::Error, "a row does not parse");
                let detail = "something is wrong here that the agent cannot mend";
                Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            }
            error => {
                tracing::warn!(error = &error as &dyn std::error::Error, "an agent must try again");
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
        let mut answer = (self.status, kind, body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        answer
    }
}
