//! Form idempotency: a form that is submitted twice, by a double click or a reload, takes effect
//! once. The second submission returns the result of the first.
//!
//! The page puts a random value into the form, which serves as its `Idempotency-Key`.
//! `httpkit::idempotency` does the rest, as for the API.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::middleware::Next;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use httpkit::idempotency::{IDEMPOTENCY_KEY, REPLAYED};
use httpkit::problem::{ApiError, Code, CompleteBody};
use httpkit::{RequestId, body, idempotency};

use crate::extract::{form_pairs, value};
use crate::middleware::FORM_BYTES_MAX;
use crate::response::ErrorPage;
use crate::{Dashboard, Viewer, response};

/// How often the second submission checks whether the first has finished. No request takes longer
/// than 30 s.
const POLL_EVERY: Duration = Duration::from_millis(100);
const POLLS_MAX: u32 = 350;

/// The idempotency key of a form.
pub(crate) enum FormKey {
    /// A random value that the page generated. The key also covers the content of the form: a user
    /// may go back, change a field and submit something else, and a page may contain two forms.
    Form(String),
    /// The token of a preview. It is valid for one start, regardless of the other fields of the
    /// form.
    Preview(String),
}

/// The field in which the patch page sends the token of its preview.
const START_FIELD: &str = "start";
/// The field in which a confirmation page sends the token of its preview. With [`CONFIRM_FIELD`],
/// the form starts something; without it, the handler shows a new preview.
const PREVIEW_FIELD: &str = "preview";
const CONFIRM_FIELD: &str = "go";
/// The field in which a page without a preview sends a random idempotency key.
const KEY_FIELD: &str = "once";

impl FormKey {
    /// The token of a preview takes precedence, wherever it is in the form. A form with two tokens
    /// is rejected: otherwise one could be the idempotency key while the other starts a batch.
    pub(crate) fn find(form: &[(String, String)]) -> Result<Option<FormKey>, ApiError> {
        let text = |name| Some(value(form, name)).filter(|text| !text.is_empty());
        let confirmed = text(CONFIRM_FIELD).and(text(PREVIEW_FIELD));
        match (text(START_FIELD), confirmed) {
            (Some(_), Some(_)) => Err(ApiError::new(
                Code::BadRequest,
                "The form has two preview tokens. Reload the page and try again.",
            )),
            (Some(token), None) | (None, Some(token)) => {
                Ok(Some(FormKey::Preview(token.to_owned())))
            }
            (None, None) => Ok(text(KEY_FIELD).map(|word| FormKey::Form(word.to_owned()))),
        }
    }
}

/// Runs the handler, or returns the response to the first submission.
pub(crate) async fn run_once(
    app: &Dashboard,
    viewer: &Viewer,
    key: FormKey,
    request: Request,
    next: Next,
) -> Result<Response<Body>, ApiError> {
    let (mut parts, body) = request.into_parts();
    let bytes = body::read(Request::from_parts(parts.clone(), body), FORM_BYTES_MAX).await?;
    let digest = |parts: &[&[u8]]| {
        let mut hasher = blake3::Hasher::new();
        parts.iter().for_each(|part| _ = hasher.update(part).update(&[0]));
        URL_SAFE_NO_PAD.encode(&hasher.finalize().as_bytes()[..16])
    };
    let (key, is_preview) = match key {
        FormKey::Form(word) => {
            (format!("form {word} {}", digest(&[parts.uri.path().as_bytes(), &bytes])), false)
        }
        FormKey::Preview(token) => (format!("preview {}", digest(&[token.as_bytes()])), true),
    };
    let key = HeaderValue::try_from(key).map_err(|_| {
        ApiError::new(Code::BadRequest, "The form is not valid. Reload the page and try again.")
    })?;
    parts.headers.insert(IDEMPOTENCY_KEY, key);
    let mut response = Err(ApiError::new(Code::IdempotencyKeyInProgress, ""));
    for look in 0..POLLS_MAX {
        if look > 0 {
            tokio::time::sleep(POLL_EVERY).await;
        }
        let (app, viewer, next) = (app.clone(), viewer.clone(), next.clone());
        let request = body::with_body(parts.clone(), bytes.clone());
        let caller = viewer.caller();
        let run = {
            let app = app.clone();
            move |request| run_handler(app, viewer, request, next)
        };
        response = idempotency::run_once((*app).clone(), &caller, request, run).await;
        match &response {
            Err(error) if error.code() == Code::IdempotencyKeyInProgress => {}
            _ => break,
        }
    }
    match response {
        Err(error) if is_preview && error.code() == Code::IdempotencyKeyReused => {
            parts.headers.remove(IDEMPOTENCY_KEY);
            let request = body::with_body(parts, invalidate_token(&bytes)?);
            Ok(run_handler(app.clone(), viewer.clone(), request, next).await)
        }
        answered => answered.map(redirect_replayed),
    }
}

/// The same form with its token replaced by an invalid one, so that the handler shows a new
/// preview.
fn invalidate_token(form: &[u8]) -> Result<String, ApiError> {
    let mut fields = form_pairs(form)?;
    for (name, text) in &mut fields {
        if matches!(name.as_str(), START_FIELD | PREVIEW_FIELD) {
            "used".clone_into(text);
        }
    }
    serde_html_form::to_string(fields)
        .map_err(|_| ApiError::new(Code::BadRequest, "The request is not a valid form."))
}

/// Runs the handler and renders errors as pages too, because the stored response is replayed
/// unchanged.
async fn run_handler(
    app: Dashboard,
    viewer: Viewer,
    request: Request,
    next: Next,
) -> Response<Body> {
    let id = request.extensions().get::<RequestId>().map_or("", |id| id.as_str()).to_owned();
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    if response.status().is_client_error() || response.status().is_server_error() {
        response = response::error_page(&app, Some(&viewer), response, &path, &id);
    }
    response.extensions_mut().insert(ErrorPage);
    response.extensions_mut().insert(CompleteBody);
    response
}

/// The page that corresponds to an API path. A lost secret cannot be shown again, so this leads to
/// the list where its key or token can be revoked.
fn page_for_api_path(path: &str) -> String {
    let listed = [("/api-keys/", "/settings/keys"), ("/enrollment-tokens/", "/settings/tokens")];
    let list = listed.iter().find(|(start, _)| path.starts_with(start));
    list.map_or(path, |(_, page)| page).to_owned()
}

fn redirect_replayed(mut response: Response<Body>) -> Response<Body> {
    if response.headers_mut().remove(REPLAYED).is_some() {
        response.extensions_mut().insert(ErrorPage);
        // If the service stopped before it could respond, the stored result has the path of the
        // API.
        let path = response.headers().get(LOCATION).and_then(|path| path.to_str().ok());
        let ours = path.and_then(|path| path.strip_prefix("/v1")).map(page_for_api_path);
        if let Some(Ok(ours)) = ours.map(HeaderValue::try_from) {
            response.headers_mut().insert(LOCATION, ours);
            *response.status_mut() = StatusCode::SEE_OTHER;
        }
    }
    response
}
