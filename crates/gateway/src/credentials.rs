//! Authenticates agents without the database: checks the format, then the tag, then the signature,
//! in order of increasing cost.

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, UnparsedPublicKey};
use vocab::{Digest, ServerId};

use crate::Gateway;
use crate::Refusal;
use crate::limits::{BodyKind, RequestSlot, ReservedMemory};
use crate::response_signature::RequestSender;
use service::secrets::{RootKeyAge, Secrets, TrustedKeys};
use wire::agent::TRUSTED_KEYS_HEADER;

const TAG_PURPOSE: &str = "fleetmend agent v1";
const TAG_BYTES: usize = 32;

/// The identity that an agent claims. Its tag proves that this installation issued it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    pub server: ServerId,
    /// The public key of its signatures.
    pub key: [u8; 32],
}

impl Credential {
    /// The tag of this server and key.
    pub fn tag(&self, secrets: &Secrets) -> [u8; 32] {
        secrets.tag(TAG_PURPOSE, &[self.server.to_string().as_bytes(), &self.key])
    }

    /// The root key that made this tag, if this installation issued it for this server and key.
    fn tag_root_key(&self, secrets: &Secrets, tag: &[u8]) -> Option<RootKeyAge> {
        secrets.tag_age(
            TAG_PURPOSE,
            &[self.server.to_string().as_bytes(), &self.key],
            TAG_BYTES,
            tag,
        )
    }
}

/// The text that an agent signs: the method, the path and query, and the digest of the body.
pub fn signed_text(method: &str, path_and_query: &str, body: &[u8]) -> String {
    format!("fleetmend-agent-v1\n{method}\n{path_and_query}\n{}", Digest::compute(body))
}

/// The keys that the agent declares as trusted.
pub(super) fn trusted_keys(headers: &HeaderMap) -> TrustedKeys {
    let header = headers.get(TRUSTED_KEYS_HEADER).and_then(|value| value.to_str().ok());
    TrustedKeys::parse(header.unwrap_or_default())
}

/// A request with a valid signature.
pub(super) struct VerifiedRequest {
    pub(super) who: Credential,
    /// The root key that made its tag.
    pub(super) root_key_age: RootKeyAge,
    pub(super) body: Bytes,
    /// The memory charged for the body.
    pub(super) reserved: ReservedMemory,
    /// Held until the request is answered.
    pub(super) slot: RequestSlot,
}

/// Authenticates a request and reads its body. Uses no database.
pub(super) async fn verify_request(
    app: &Gateway,
    request: Request<Body>,
    body_bytes_max: usize,
) -> Result<VerifiedRequest, Refusal> {
    let unread = UnreadRequest::new(app, request)?;
    let verified = unread.verify(app, BodyKind::Request, body_bytes_max).await?;
    app.registry().limits.request_body(verified.who.server, verified.body.len())?;
    Ok(verified)
}

/// A request with a genuine tag, within its rate limit, whose body was not read yet. Only the
/// signature over the body proves that the sender holds the key.
pub(super) struct UnreadRequest {
    pub(super) who: Credential,
    age: RootKeyAge,
    signature: Vec<u8>,
    parts: Parts,
    body: Body,
    slot: RequestSlot,
}

impl UnreadRequest {
    pub(super) fn new(app: &Gateway, request: Request<Body>) -> Result<UnreadRequest, Refusal> {
        let (parts, body) = request.into_parts();
        let AgentAuthorization { who, tag, signature } =
            AgentAuthorization::parse(&parts.headers).ok_or_else(malformed)?;
        let age = who
            .tag_root_key(&app.secrets, &tag)
            .ok_or_else(|| forged("this identity was not issued by this service"))?;
        if let Some(sender) = parts.extensions.get::<RequestSender>() {
            sender.set_claim(who.server, &signature);
        }
        app.registry().limits.request(who.server)?;
        let slot = app.registry().limits.slot(who.server)?;
        Ok(UnreadRequest { who, age, signature, parts, body, slot })
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Reads the body and checks the signature.
    pub(super) async fn verify(
        self,
        app: &Gateway,
        kind: BodyKind,
        body_bytes_max: usize,
    ) -> Result<VerifiedRequest, Refusal> {
        let UnreadRequest { who, age, signature, parts, body, slot } = self;
        let limits = &app.registry().limits;
        let (body, reserved) = limits.read(kind, &parts.headers, body, body_bytes_max).await?;
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let text = signed_text(parts.method.as_str(), path, &body);
        UnparsedPublicKey::new(&ED25519, who.key)
            .verify(text.as_bytes(), &signature)
            .map_err(|_| forged("the signature does not match this key and request"))?;
        if let Some(sender) = parts.extensions.get::<RequestSender>() {
            sender.set_verified();
        }
        Ok(VerifiedRequest { who, root_key_age: age, body, reserved, slot })
    }
}

struct AgentAuthorization {
    who: Credential,
    tag: Vec<u8>,
    signature: Vec<u8>,
}

impl AgentAuthorization {
    /// Parses `Agent id=…,key=…,tag=…,sig=…`, each field once, in any order.
    fn parse(headers: &HeaderMap) -> Option<AgentAuthorization> {
        let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Agent ")?;
        let (mut id, mut key, mut tag, mut sig) = (None, None, None, None);
        for part in text.split(',') {
            let (name, value) = part.trim().split_once('=')?;
            let place = match name {
                "id" => &mut id,
                "key" => &mut key,
                "tag" => &mut tag,
                "sig" => &mut sig,
                // A newer agent may send more fields.
                _ => continue,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        let bytes = |text: Option<&str>| STANDARD.decode(text?).ok();
        let who = Credential { server: id?.parse().ok()?, key: bytes(key)?.try_into().ok()? };
        Some(AgentAuthorization { who, tag: bytes(tag)?, signature: bytes(sig)? })
    }
}

fn malformed() -> Refusal {
    let detail = "expected `Authorization: Agent id=…,key=…,tag=…,sig=…`";
    Refusal::new(StatusCode::UNAUTHORIZED, "malformed_credential", detail)
}

fn forged(detail: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "bad_credential", detail)
}
