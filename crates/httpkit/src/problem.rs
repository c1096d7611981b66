//! Error responses: RFC 9457 problems (`application/problem+json`) with a `code` from a closed
//! list.
//!
//! An [`ApiError`] becomes a response without a body that carries the error. `render` writes the
//! body last, because only then the request id is known. It also gives a body to errors from
//! elsewhere (the router, a panic), so that every error has the same format.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use service::requests::schedules::NO_SERVERS_MATCH;
use service::{FieldError, ServiceError};

use crate::etag::ETag;

pub const MEDIA_TYPE: &str = "application/problem+json";

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal, $status:literal, $title:literal;)*) => {
        /// The error codes. Programs may rely on them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $($(#[doc = $doc])* $name,)*
        }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code as it appears in JSON.
            pub const fn word(self) -> &'static str {
                match self { $(Code::$name => $word,)* }
            }

            pub fn status(self) -> StatusCode {
                let number = match self { $(Code::$name => $status,)* };
                StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }

            pub const fn title(self) -> &'static str {
                match self { $(Code::$name => $title,)* }
            }

            /// The description in the API reference.
            pub fn about(self) -> &'static str {
                match self { $(Code::$name => concat!($($doc,)*).trim_ascii(),)* }
            }
        }
    };
}

codes! {
    /// The body is not valid JSON.
    InvalidJson = "invalid_json", 400, "Invalid JSON";
    /// The query string names a parameter that this operation does not have.
    UnknownParameter = "unknown_parameter", 400, "Unknown parameter";
    /// A query parameter occurs more than once.
    RepeatedParameter = "repeated_parameter", 400, "Repeated parameter";
    /// A query parameter has an invalid value.
    InvalidParameter = "invalid_parameter", 400, "Invalid parameter";
    /// A request header is invalid.
    InvalidHeader = "invalid_header", 400, "Invalid header";
    /// The request is malformed.
    BadRequest = "bad_request", 400, "Bad request";
    /// The credential is missing, wrong, expired or revoked.
    Unauthenticated = "unauthenticated", 401, "Not authenticated";
    /// The credential does not permit this operation.
    Forbidden = "forbidden", 403, "Not allowed";
    /// The creator of a batch may not approve its waves.
    OwnBatch = "own_batch", 403, "The creator cannot approve";
    /// The resource does not exist, or the caller cannot see it.
    NotFound = "not_found", 404, "Not found";
    /// The path does not support this method.
    MethodNotAllowed = "method_not_allowed", 405, "Method not allowed";
    /// The request body did not arrive in time.
    RequestTimeout = "request_timeout", 408, "The request took too long";
    /// The operation is not possible in the current state.
    Conflict = "conflict", 409, "Conflict";
    /// The resource was changed at the same time: read it again and repeat the request.
    ChangedMeanwhile = "changed_meanwhile", 409, "Changed concurrently";
    /// A value that must be unique is in use, such as a name.
    AlreadyExists = "already_exists", 409, "Already exists";
    /// The `Idempotency-Key` was used for another request.
    IdempotencyKeyReused = "idempotency_key_reused", 409, "Idempotency key reused";
    /// The first request with this `Idempotency-Key` is still being processed.
    IdempotencyKeyInProgress = "idempotency_key_in_progress", 409, "Idempotency key in progress";
    /// A run of this schedule has not ended.
    RunInProgress = "run_in_progress", 409, "A run is in progress";
    /// The server's agent is not connected.
    ServerOffline = "server_offline", 409, "The server is offline";
    /// The operation is not possible in the current state of the batch.
    BatchState = "batch_state", 409, "The batch is in another state";
    /// The batch is still under way; it can be retried once it has ended.
    BatchNotEnded = "batch_not_ended", 409, "The batch has not ended";
    /// No task of the batch failed.
    NothingToRetry = "nothing_to_retry", 409, "Nothing to retry";
    /// The server is not quarantined.
    NotQuarantined = "not_quarantined", 409, "Not quarantined";
    /// The last admin key cannot be revoked, because no key could create another one.
    LastAdminKey = "last_admin_key", 409, "The last admin key";
    /// The service has no SMTP server to send email with.
    EmailNotConfigured = "email_not_configured", 409, "Email is not set up";
    /// The sequence number is larger than that of the latest event or audit entry.
    UnknownSequence = "unknown_sequence", 409, "Unknown sequence number";
    /// Events after this sequence number were deleted, because they are older than 90 days.
    EventsExpired = "events_expired", 410, "The events were deleted";
    /// The server was removed; its agent stops.
    ServerRemoved = "server_removed", 410, "The server was removed";
    /// The resource has another version than `If-Match` names.
    PreconditionFailed = "precondition_failed", 412, "Precondition failed";
    /// The request body is too large for this operation.
    BodyTooLarge = "body_too_large", 413, "The body is too large";
    /// The media type of the request body is not `application/json`.
    UnsupportedMediaType = "unsupported_media_type", 415, "Unsupported media type";
    /// Fields of the request body are invalid; `errors` lists them.
    InvalidBody = "invalid_body", 422, "Invalid body";
    /// Too many requests; `Retry-After` says how long to wait.
    RateLimited = "rate_limited", 429, "Too many requests";
    /// The service failed. Its log has details under the same `request_id`.
    InternalError = "internal_error", 500, "Internal error";
    /// The database does not respond or cannot write, for example because its disk is full, or the
    /// service is out of capacity. Nothing was changed.
    Unavailable = "unavailable", 503, "Unavailable";
    /// The service did not respond in time.
    TimedOut = "timed_out", 503, "The service took too long";
}

impl Code {
    pub fn from_name(word: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.word() == word)
    }

    /// The code for an error status from elsewhere.
    fn from_status(status: StatusCode) -> Code {
        match status.as_u16() {
            401 => Code::Unauthenticated,
            403 => Code::Forbidden,
            404 => Code::NotFound,
            405 => Code::MethodNotAllowed,
            408 => Code::RequestTimeout,
            409 => Code::Conflict,
            412 => Code::PreconditionFailed,
            413 => Code::BodyTooLarge,
            415 => Code::UnsupportedMediaType,
            422 => Code::InvalidBody,
            429 => Code::RateLimited,
            503 => Code::Unavailable,
            400..=499 => Code::BadRequest,
            _ => Code::InternalError,
        }
    }
}

/// An error response.
#[derive(Debug, Clone)]
pub struct ApiError {
    code: Code,
    detail: String,
    errors: Vec<FieldError>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl ApiError {
    /// `detail` is a sentence about this request.
    pub fn new(code: Code, detail: impl Into<String>) -> ApiError {
        ApiError { code, detail: detail.into(), errors: Vec::new(), headers: Vec::new() }
    }

    /// A body with invalid fields.
    pub fn invalid(errors: Vec<FieldError>) -> ApiError {
        ApiError::new(Code::InvalidBody, error_summary(&errors)).with_errors(errors)
    }

    pub fn with_errors(mut self, errors: Vec<FieldError>) -> ApiError {
        self.errors = errors;
        self
    }

    pub fn with_header(mut self, name: HeaderName, value: impl TryInto<HeaderValue>) -> ApiError {
        if let Ok(value) = value.try_into() {
            self.headers.push((name, value));
        }
        self
    }

    pub fn not_found(kind: &str, id: &str) -> ApiError {
        let id: String = id.chars().take(64).flat_map(char::escape_debug).collect();
        ApiError::new(Code::NotFound, format!("There is no {kind} `{id}`."))
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    fn to_wire(&self, request_id: &str) -> wire::v1::Problem {
        let status = self.code.status().as_u16();
        wire::v1::Problem {
            kind: format!("/docs#problem-{}", self.code.word()),
            title: self.code.title().into(),
            status,
            detail: self.detail.clone(),
            code: self.code.word().into(),
            request_id: request_id.into(),
            errors: self.errors.iter().map(field).collect(),
        }
    }
}

fn field(error: &FieldError) -> wire::v1::FieldError {
    wire::v1::FieldError {
        pointer: error.pointer.clone(),
        code: error.code.into(),
        detail: error.detail.clone(),
    }
}

fn error_summary(errors: &[FieldError]) -> String {
    match errors {
        [one] if one.code == NO_SERVERS_MATCH => {
            "No server matches `targets`. Correct them, or set `allow_empty` to true to save the schedule anyway."
                .to_owned()
        }
        [one] if one.pointer.is_empty() => {
            with_full_stop(format!("The body is invalid: {}", one.detail))
        }
        [one] => with_full_stop(format!("`{}` is invalid: {}", one.pointer, one.detail)),
        many => format!("{} fields are invalid; `errors` lists them.", many.len()),
    }
}

/// Adds a full stop, unless the sentence ends with one or with a question mark.
fn with_full_stop(sentence: String) -> String {
    if sentence.ends_with(['?', '.']) { sentence } else { sentence + "." }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.code.status();
        response.headers_mut().extend(self.headers.iter().cloned());
        response.extensions_mut().insert(self);
        response
    }
}

/// Marks an error response that already has a body, such as a page of the dashboard.
#[derive(Debug, Clone, Copy)]
pub struct CompleteBody;

/// Adds the body to every error response. Other responses, and problems that have a body, pass
/// unchanged.
pub fn render(response: Response<Body>, request_id: &str) -> Response<Body> {
    let status = response.status();
    let wrong = status.is_client_error() || status.is_server_error();
    if response.extensions().get::<CompleteBody>().is_some() {
        return response;
    }
    let written = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == MEDIA_TYPE);
    if !wrong || written {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let error = parts.extensions.remove::<ApiError>().unwrap_or_else(|| from_status_code(status));
    let mut problem = error.to_wire(request_id);
    problem.status = status.as_u16();
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    Response::from_parts(parts, Body::from(body))
}

/// An error from elsewhere, such as the router.
pub fn from_status_code(status: StatusCode) -> ApiError {
    let code = Code::from_status(status);
    ApiError::new(code, format!("{}.", code.title()))
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> ApiError {
        match error {
            ServiceError::NotFound { kind, id } => ApiError::not_found(kind, &id),
            ServiceError::Conflict { code, detail } => {
                // The list of codes is closed: an unknown code is a bug, but still a conflict.
                let known = Code::from_name(code);
                debug_assert!(known.is_some(), "`{code}` is not on the list of codes");
                ApiError::new(known.unwrap_or(Code::Conflict), capitalized(&detail))
            }
            ServiceError::Invalid(errors) => ApiError::invalid(errors),
            ServiceError::OwnBatch => ApiError::new(
                Code::OwnBatch,
                "Someone other than the creator of the batch must approve it.",
            ),
            ServiceError::Forbidden(detail) => ApiError::new(Code::Forbidden, detail),
            ServiceError::VersionMismatch { current } => ApiError::new(
                Code::PreconditionFailed,
                format!(
                    "The resource has changed; its version is now {}. Read it again, then repeat the request.",
                    ETag(current)
                ),
            ),
            ServiceError::Stale => ApiError::new(
                Code::ChangedMeanwhile,
                "Another request changed the resource at the same time. Read it again, then repeat the request.",
            ),
            ServiceError::Unavailable(cause) => {
                tracing::warn!(cause = error_chain(&cause), "the database does not respond");
                if cause.is_disk_full() { disk_full() } else { unavailable() }
            }
            ServiceError::Internal(cause) => {
                tracing::error!(
                    cause = error_chain(&*cause),
                    "a request failed with an internal error"
                );
                internal()
            }
        }
    }
}

/// The response to an internal error. It reveals no internals.
pub fn internal() -> ApiError {
    ApiError::new(
        Code::InternalError,
        "The service failed. Its log has details under this `request_id`.",
    )
}

pub fn unavailable() -> ApiError {
    retry_soon("The database does not respond. Nothing was changed; try again soon.")
}

pub fn disk_full() -> ApiError {
    retry_soon(
        "The database's disk is full. Nothing was changed; free some disk space, then try again.",
    )
}

/// A 503 response that asks the client to retry after two seconds.
pub fn retry_soon(detail: &str) -> ApiError {
    ApiError::new(Code::Unavailable, detail)
        .with_header(axum::http::header::RETRY_AFTER, HeaderValue::from_static("2"))
}

/// An error with all its causes, for the log.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    let mut text: String = first.to_uppercase().chain(chars).collect();
    if !text.ends_with(['.', '?', '!']) {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_names_are_unique() {
        for code in Code::ALL {
            assert_eq!(Code::from_name(code.word()), Some(*code));
            assert!(code.status().as_u16() >= 400, "{code:?}");
            assert!(!code.about().is_empty(), "{code:?} is not documented");
        }
    }

    #[tokio::test]
    async fn errors_from_elsewhere_become_problems() {
        let mut strange = Response::new(Body::from("plain text"));
        *strange.status_mut() = StatusCode::IM_A_TEAPOT;
        let response = render(strange, "req_1");
        assert_eq!(response.headers()[CONTENT_TYPE], MEDIA_TYPE);
        let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        let problem: wire::v1::Problem = serde_json::from_slice(&body).unwrap();
        assert_eq!((problem.code.as_str(), problem.request_id.as_str()), ("bad_request", "req_1"));
    }

    #[test]
    fn internal_error_reveals_no_details() {
        let cause = std::io::Error::other("password=hunter2");
        let error = ApiError::from(ServiceError::Internal(cause.into()));
        assert!(!error.to_wire("r").detail.contains("hunter2"));
    }
}
