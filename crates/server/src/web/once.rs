//! A form that starts something counts once: pressed twice, or sent again by a reload, it leads to what the first one made.
//!
//! The page that asks gives it a word, and that is its `Idempotency-Key`: the rest is the API's own (`http::idempotency`).

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::middleware::Next;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::app::App;
use crate::http::body;
use crate::http::idempotency;
use crate::http::idempotency::{IDEMPOTENCY_KEY, REPLAYED};
use crate::http::observe::RequestId;
use crate::http::problem::{ApiError, Code, Finished};
use crate::web::Viewer;
use crate::web::answer;
use crate::web::answer::Told;
use crate::web::guard::FORM_BYTES_MAX;

/// The second press of a button waits for what comes of the first. No request takes longer than 30 s.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOKS_MAX: u32 = 350;

/// What a form has to count once by.
pub(crate) enum Once {
    /// A word that the page drew. It counts with what is in the form: a page that is gone back to and
    /// filled in anew asks for something else, and a page may hold two forms.
    Form(String),
    /// The token of a preview. It starts once, whatever else is in the form.
    Preview(String),
}

/// Runs the handler, or answers as the first time.
pub(crate) async fn once(
    app: &App,
    viewer: &Viewer,
    key: Once,
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
        Once::Form(word) => {
            (format!("form {word} {}", digest(&[parts.uri.path().as_bytes(), &bytes])), false)
        }
        Once::Preview(token) => (format!("preview {}", digest(&[token.as_bytes()])), true),
    };
    let key = HeaderValue::try_from(key).map_err(|_| {
        ApiError::new(Code::BadRequest, "The form is not valid. Reload the page and try again.")
    })?;
    parts.headers.insert(IDEMPOTENCY_KEY, key);
    let mut answered = Err(ApiError::new(Code::IdempotencyKeyInProgress, ""));
    for look in 0..LOOKS_MAX {
        if look > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let (app, viewer, next) = (app.clone(), viewer.clone(), next.clone());
        let request = Request::from_parts(parts.clone(), Body::from(bytes.clone()));
        let caller = viewer.caller();
        let run = {
            let app = app.clone();
            move |request| shown(app, viewer, request, next)
        };
        answered = idempotency::once(app, &caller, request, run).await;
        match &answered {
            Err(error) if error.code() == Code::IdempotencyKeyInProgress => {}
            _ => break,
        }
    }
    match answered {
        Err(error) if is_preview && error.code() == Code::IdempotencyKeyReused => {
            parts.headers.remove(IDEMPOTENCY_KEY);
            let request = Request::from_parts(parts, Body::from(without_token(&bytes)));
            Ok(shown(app.clone(), viewer.clone(), request, next).await)
        }
        answered => answered.map(again),
    }
}

/// The same form with a token that starts nothing: the handler shows a new preview instead.
fn without_token(form: &[u8]) -> Vec<u8> {
    let fields = form.split(|byte| *byte == b'&').map(|field| match field {
        field if field.starts_with(b"start=") => b"start=used".as_slice(),
        field => field,
    });
    fields.collect::<Vec<_>>().join(&b'&')
}

/// What the handler answers, as a page also where it is an error: it is remembered as it is shown.
async fn shown(app: App, viewer: Viewer, request: Request, next: Next) -> Response<Body> {
    let id = request.extensions().get::<RequestId>().map_or("", |id| id.as_str()).to_owned();
    let path = request.uri().path().to_owned();
    let mut answered = next.run(request).await;
    if answered.status().is_client_error() || answered.status().is_server_error() {
        answered = answer::problem(&app, Some(&viewer), answered, &path, &id);
    }
    answered.extensions_mut().insert(Told);
    answered.extensions_mut().insert(Finished);
    answered
}

/// Where the dashboard shows what the API has there. A secret that was lost is not shown: what it belongs to is, and can be revoked.
fn page_of(path: &str) -> String {
    let listed = [("/api-keys/", "/settings#keys"), ("/enrollment-tokens/", "/settings#tokens")];
    let list = listed.iter().find(|(start, _)| path.starts_with(start));
    list.map_or(path, |(_, page)| page).to_owned()
}

fn again(mut answer: Response<Body>) -> Response<Body> {
    if answer.headers_mut().remove(REPLAYED).is_some() {
        answer.extensions_mut().insert(Told);
        // What was done when the service died before it could answer is told by the API's path.
        let path = answer.headers().get(LOCATION).and_then(|path| path.to_str().ok());
        let ours = path.and_then(|path| path.strip_prefix("/v1")).map(page_of);
        if let Some(Ok(ours)) = ours.map(HeaderValue::try_from) {
            answer.headers_mut().insert(LOCATION, ours);
            *answer.status_mut() = StatusCode::SEE_OTHER;
        }
    }
    answer
}
