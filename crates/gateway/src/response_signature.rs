//! Signs responses to agents with `orders.key`, bound to the request that each one answers. While
//! that key is rotated, signs with the newest key that the agent trusts.
//!
//! Without the signature, anything between an agent and this service could deliver a canceled order
//! later, forge "this server was removed", or acknowledge a result that never arrived. Agents that
//! send no nonce are older and get no signature.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use vocab::ServerId;
use wire::agent::{NONCE_CHARS_MAX, NONCE_HEADER, SIGNATURE_HEADER, response_signing_text};

use crate::Gateway;
use crate::Refusal;
use crate::credentials::trusted_keys;

/// What was learned about the sender while the request was handled. A request extension, filled in
/// by `credentials`.
#[derive(Clone, Default)]
pub(super) struct RequestSender(Arc<SenderState>);

#[derive(Default)]
struct SenderState {
    /// The server whose tag is genuine, and the request's signature in Base64.
    claim: OnceLock<(ServerId, String)>,
    /// Whether the signature is the server's signature over this request.
    verified: AtomicBool,
}

impl RequestSender {
    /// The tag is genuine. The request itself may still have been modified in transit.
    pub(super) fn set_claim(&self, server: ServerId, signature: &[u8]) {
        let _ = self.0.claim.set((server, STANDARD.encode(signature)));
    }

    /// The request arrived as its sender signed it.
    pub(super) fn set_verified(&self) {
        self.0.verified.store(true, Ordering::Relaxed);
    }

    /// The server for which a response with this status can be signed. A rejection applies only to
    /// the request that the agent sent, so a request that was modified in transit must not get a
    /// signed one. The response to a removed server does not depend on the request.
    fn recipient(&self, status: StatusCode) -> Option<&(ServerId, String)> {
        let verified = self.0.verified.load(Ordering::Relaxed);
        self.0.claim.get().filter(|_| verified || status == StatusCode::GONE)
    }
}

/// Signs the response to a request with a nonce, if its sender is known.
pub(super) async fn sign_response(
    State(app): State<Gateway>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(nonce) = nonce(request.headers()) else { return next.run(request).await };
    let trusted = trusted_keys(request.headers());
    let sender = RequestSender::default();
    request.extensions_mut().insert(sender.clone());
    let (mut parts, body) = next.run(request).await.into_parts();
    let Some((server, signature)) = sender.recipient(parts.status) else {
        return Response::from_parts(parts, body);
    };
    // The body comes from one of our handlers and is in memory already.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return Refusal::unavailable().into_response();
    };
    let text = response_signing_text(*server, &nonce, signature, parts.status.as_u16(), &body);
    let key = app.secrets.key_for(&trusted);
    let proof = format!("{} {}", key.id(), STANDARD.encode(key.sign(text.as_bytes())));
    if let Ok(proof) = HeaderValue::try_from(proof) {
        parts.headers.insert(SIGNATURE_HEADER, proof);
    }
    Response::from_parts(parts, Body::from(body))
}

fn nonce(headers: &HeaderMap) -> Option<String> {
    let nonce = headers.get(NONCE_HEADER)?.to_str().ok()?;
    (1..=NONCE_CHARS_MAX).contains(&nonce.len()).then(|| nonce.to_owned())
}
