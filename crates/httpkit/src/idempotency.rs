//! `Idempotency-Key`: a repeated POST has no second effect and returns the first response.
//!
//! The claim is committed before the handler starts, and completed after it ends. The handler
//! records what it created next to the key, in the same transaction. So a crash at any time leaves
//! at most one effect, and a repeated request is redirected to what was created. The stored
//! response is sealed with a key that is not in the database, because the response to "create an
//! API key" contains an API key.

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LOCATION};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse as _;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use service::App;
use service::auth::caller::Caller;
use service::clock::random_bytes;
use service::idempotency::{self, Claim, ResponseClaim, STORED_RESPONSES_MAX};

use crate::body::BODY_BYTES_MAX;
use crate::problem::{ApiError, Code};
use crate::{body, problem};

pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Marks a replayed response.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

const KEY_CHARS_MAX: usize = 255;
/// Far larger than the largest response to a POST.
const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// The largest response that is stored. A repeated request with a larger one is redirected to what
/// was created.
const STORED_BYTES_MAX: usize = 256 << 10;
const STORED_HEADERS: [HeaderName; 3] = [CONTENT_TYPE, LOCATION, ETAG];

/// Runs the handler, unless this request was answered before.
pub async fn run_once<F>(
    app: App,
    caller: &Caller,
    request: Request,
    run: impl FnOnce(Request) -> F + Send + 'static,
) -> Result<Response<Body>, ApiError>
where
    F: Future<Output = Response<Body>> + Send,
{
    let Some(key) = parse_key(request.headers())? else { return Ok(run(request).await) };
    let request_id = request.extensions().get::<crate::RequestId>().cloned();
    let (parts, body) = request.into_parts();
    let bytes = body::read(Request::from_parts(parts.clone(), body), BODY_BYTES_MAX).await?;
    let fingerprint = fingerprint(caller, &parts, &bytes);
    let cipher = ResponseCipher::new(&app, caller, &key);
    let claim = idempotency::claim(&app, caller, &key, fingerprint).await?.ok_or_else(too_many)?;
    let ticket = match claim {
        Claim::New(ticket) => ticket,
        Claim::InProgress => return Err(in_progress()),
        Claim::Mismatch => return Err(reused()),
        Claim::Replay(answer) => return Ok(replay(&cipher, answer, request_id.as_ref())),
        Claim::ResponseLost { subject } => return redirect_to_created(&subject),
    };
    // In a separate task: if the client disconnects, the work still completes and its response is
    // stored.
    let work = async move {
        let handler = run(body::with_body(parts, bytes));
        let response = idempotency::with_ticket(ticket.clone(), handler).await;
        store_response(&app, &cipher, &ticket, response, request_id.as_ref()).await
    };
    let span = tracing::Span::current();
    match tokio::spawn(tracing::Instrument::instrument(work, span)).await {
        Ok(answer) => answer,
        Err(_) => Err(problem::internal()),
    }
}

fn parse_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or("");
    let plain = !text.is_empty() && text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if values.next().is_some() || !plain || text.len() > KEY_CHARS_MAX {
        return Err(ApiError::new(
            Code::InvalidHeader,
            format!(
                "`Idempotency-Key` must be sent once, with 1 to {KEY_CHARS_MAX} ASCII characters."
            ),
        ));
    }
    Ok(Some(text.to_owned()))
}

fn fingerprint(caller: &Caller, parts: &axum::http::request::Parts, body: &Bytes) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    for part in [&caller.id.to_string(), parts.method.as_str(), target] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.update(body);
    *hasher.finalize().as_bytes()
}

fn too_many() -> ApiError {
    let detail = format!(
        "This caller has used {STORED_RESPONSES_MAX} different values of `Idempotency-Key` in 24 hours. Send the request without one."
    );
    ApiError::new(Code::RateLimited, detail)
        .with_header(axum::http::header::RETRY_AFTER, HeaderValue::from_static("3600"))
}

fn in_progress() -> ApiError {
    ApiError::new(
        Code::IdempotencyKeyInProgress,
        "The first request with this `Idempotency-Key` is still in progress. Try again soon.",
    )
    .with_header(axum::http::header::RETRY_AFTER, HeaderValue::from_static("1"))
}

fn reused() -> ApiError {
    ApiError::new(
        Code::IdempotencyKeyReused,
        "This `Idempotency-Key` was used for a different request. Use a new key for a new request.",
    )
}

/// Redirects to the created resource: the first request was committed, but the process died before
/// it could respond.
fn redirect_to_created(subject: &str) -> Result<Response<Body>, ApiError> {
    let places = [
        ("key_", "/v1/api-keys/"),
        ("enr_", "/v1/enrollment-tokens/"),
        ("sch_", "/v1/schedules/"),
        ("frz_", "/v1/freezes/"),
        ("pol_", "/v1/policies/"),
        ("bat_", "/v1/batches/"),
        ("srv_", "/v1/servers/"),
        ("sup_", "/v1/suppressions/"),
        ("whk_", "/v1/webhooks/"),
        ("feed_", "/v1/feeds/"),
        ("agents", "/v1/"),
    ];
    let place = places.iter().find(|(prefix, _)| subject.starts_with(prefix));
    let location = place.map(|(_, path)| format!("{path}{subject}"));
    match location.and_then(|location| HeaderValue::try_from(location).ok()) {
        Some(location) => {
            let headers = [(LOCATION, location), (REPLAYED, HeaderValue::from_static("true"))];
            Ok((StatusCode::SEE_OTHER, headers).into_response())
        }
        None => Err(ApiError::new(
            Code::Conflict,
            format!(
                "The first request with this `Idempotency-Key` succeeded (`{subject}`), but its response was lost."
            ),
        )),
    }
}

/// Whether a response is final and stored. After a client error that started nothing, or after a
/// server error, the key is released so that the request can be repeated.
fn is_final(status: StatusCode) -> bool {
    let not_understood = matches!(status.as_u16(), 400 | 408 | 413 | 415 | 422 | 429);
    !status.is_server_error() && !not_understood
}

async fn store_response(
    app: &App,
    cipher: &ResponseCipher,
    ticket: &ResponseClaim,
    answer: Response<Body>,
    request_id: Option<&crate::RequestId>,
) -> Result<Response<Body>, ApiError> {
    let answer = problem::render(answer, request_id.map_or("", |id| id.as_str()));
    let status = answer.status();
    let (parts, body) = answer.into_parts();
    let body = to_bytes(body, RESPONSE_BYTES_MAX).await.map_err(|_| problem::internal())?;
    let kept: Vec<(&str, &str)> = STORED_HEADERS
        .iter()
        .filter_map(|name| Some((name.as_str(), parts.headers.get(name)?.to_str().ok()?)))
        .collect();
    let response = (body.len() <= STORED_BYTES_MAX).then(|| idempotency::Response {
        status: status.as_u16(),
        headers: serde_json::to_string(&kept).unwrap_or_default(),
        body: cipher.encrypt(&body),
    });
    if let Err(error) = idempotency::finish(app, ticket, is_final(status), response).await {
        // The work is committed and its response is correct; it only cannot be replayed.
        tracing::warn!(
            cause = problem::error_chain(&error),
            "failed to store a response for its idempotency key"
        );
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

fn replay(
    cipher: &ResponseCipher,
    stored: idempotency::Response,
    request_id: Option<&crate::RequestId>,
) -> Response<Body> {
    let Some(mut body) = cipher.decrypt(&stored.body) else {
        tracing::warn!("a stored response cannot be decrypted: its `root.key` was retired");
        let detail = "The first request with this `Idempotency-Key` succeeded, but its response was \
                      lost when the key that it was stored under was retired.";
        return ApiError::new(Code::Conflict, detail).into_response();
    };
    if let (Ok(mut told), Some(id)) =
        (serde_json::from_slice::<wire::v1::Problem>(&body), request_id)
    {
        // A problem contains the id of the current request, not of the first one.
        told.request_id = id.as_str().to_owned();
        body = serde_json::to_vec(&told).unwrap_or(body);
    }
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::OK);
    let kept: Vec<(String, String)> = serde_json::from_str(&stored.headers).unwrap_or_default();
    for (name, value) in kept {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    answer
}

/// Encrypts stored responses, so that the database alone does not reveal them.
struct ResponseCipher {
    current: LessSafeKey,
    /// From the root key that is being rotated out.
    old: Option<LessSafeKey>,
}

impl ResponseCipher {
    fn new(app: &App, caller: &Caller, key: &str) -> ResponseCipher {
        let org = caller.org.to_string();
        let parts: [&[u8]; 2] = [org.as_bytes(), key.as_bytes()];
        let mut keys = app.secrets.root_key_ages().map(|age| {
            let secret = app.secrets.tag_of(age, "fleetmend remembered answer v1", &parts);
            let key = UnboundKey::new(&AES_256_GCM, &secret).expect("AES-256 takes 32 bytes");
            LessSafeKey::new(key)
        });
        ResponseCipher { current: keys.next().expect("there is a current key"), old: keys.next() }
    }

    fn encrypt(&self, body: &[u8]) -> Vec<u8> {
        let nonce = random_bytes::<NONCE_LEN>();
        let mut sealed = body.to_vec();
        let closed = self.current.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::empty(),
            &mut sealed,
        );
        closed.expect("a response is far shorter than the limit of AES-GCM");
        [&nonce[..], &sealed].concat()
    }

    fn decrypt(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        [Some(&self.current), self.old.as_ref()].into_iter().flatten().find_map(|key| {
            let mut rest = rest.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            Some(key.open_in_place(nonce, Aad::empty(), &mut rest).ok()?.to_vec())
        })
    }
}
