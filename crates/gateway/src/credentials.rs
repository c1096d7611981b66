//! Who an agent is, as far as it can be said without the database: shape, tag, signature, in this
//! order, the cheapest first.

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, UnparsedPublicKey};
use vocab::{Digest, ServerId};

use crate::Gateway;
use crate::Refusal;
use crate::answer_signature::Sender;
use crate::limits::{BodyOf, Reserved, Slot};
use service::secrets::{Age, Secrets, TrustedKeys};
use wire::agent::TRUSTED_KEYS_HEADER;

const AGENT: &str = "fleetmend agent v1";
const TAG_BYTES: usize = 32;

/// Who an agent claims to be, with the tag that shows that we said so once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The server.
    pub server: ServerId,
    /// The key with which it signs.
    pub key: [u8; 32],
}

impl Credential {
    /// The tag that this installation gives to this server and this key.
    pub fn tag(&self, secrets: &Secrets) -> [u8; 32] {
        secrets.tag(AGENT, &[self.server.to_string().as_bytes(), &self.key])
    }

    /// Which key made this tag, if this installation gave it to this server and this key.
    fn maker(&self, secrets: &Secrets, tag: &[u8]) -> Option<Age> {
        secrets.maker(AGENT, &[self.server.to_string().as_bytes(), &self.key], TAG_BYTES, tag)
    }
}

/// What an agent signs: the method, path and query, and the digest of the body.
pub fn signed_text(method: &str, path_and_query: &str, body: &[u8]) -> String {
    format!("fleetmend-agent-v1\n{method}\n{path_and_query}\n{}", Digest::of(body))
}

/// The keys that an agent says it trusts.
pub(super) fn trusted_keys(headers: &HeaderMap) -> TrustedKeys {
    let header = headers.get(TRUSTED_KEYS_HEADER).and_then(|value| value.to_str().ok());
    TrustedKeys::parse(header.unwrap_or_default())
}

/// A request whose signature was checked.
pub(super) struct Verified {
    pub(super) who: Credential,
    /// The root key that its tag was made with.
    pub(super) age: Age,
    pub(super) body: Bytes,
    /// Memory that the body is charged for.
    pub(super) reserved: Reserved,
    /// To be kept until the request is answered.
    pub(super) slot: Slot,
}

/// Who sent this request, and its body. Nothing but memory is touched.
pub(super) async fn verified(
    app: &Gateway,
    request: Request<Body>,
    body_bytes_max: usize,
) -> Result<Verified, Refusal> {
    let unread = Unread::new(app, request)?;
    let verified = unread.verify(app, BodyOf::Request, body_bytes_max).await?;
    app.registry().limits.request_body(verified.who.server, verified.body.len())?;
    Ok(verified)
}

/// A request with a genuine tag within its rate limit, whose body was not read yet. Only the
/// signature over the body shows that the sender holds the key.
pub(super) struct Unread {
    pub(super) who: Credential,
    age: Age,
    signature: Vec<u8>,
    parts: Parts,
    body: Body,
    slot: Slot,
}

impl Unread {
    pub(super) fn new(app: &Gateway, request: Request<Body>) -> Result<Unread, Refusal> {
        let (parts, body) = request.into_parts();
        let Claim { who, tag, signature } = Claim::read(&parts.headers).ok_or_else(malformed)?;
        let age = who
            .maker(&app.secrets, &tag)
            .ok_or_else(|| forged("this identity was not given out here"))?;
        if let Some(sender) = parts.extensions.get::<Sender>() {
            sender.claims(who.server, &signature);
        }
        app.registry().limits.request(who.server)?;
        let slot = app.registry().limits.slot(who.server)?;
        Ok(Unread { who, age, signature, parts, body, slot })
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Reads the body and checks the signature.
    pub(super) async fn verify(
        self,
        app: &Gateway,
        of: BodyOf,
        body_bytes_max: usize,
    ) -> Result<Verified, Refusal> {
        let Unread { who, age, signature, parts, body, slot } = self;
        let limits = &app.registry().limits;
        let (body, reserved) = limits.read(of, &parts.headers, body, body_bytes_max).await?;
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let text = signed_text(parts.method.as_str(), path, &body);
        UnparsedPublicKey::new(&ED25519, who.key)
            .verify(text.as_bytes(), &signature)
            .map_err(|_| forged("the signature is not that of this key over this request"))?;
        if let Some(sender) = parts.extensions.get::<Sender>() {
            sender.is_verified();
        }
        Ok(Verified { who, age, body, reserved, slot })
    }
}

struct Claim {
    who: Credential,
    tag: Vec<u8>,
    signature: Vec<u8>,
}

impl Claim {
    /// `Agent id=…,key=…,tag=…,sig=…`, each once, in any order.
    fn read(headers: &HeaderMap) -> Option<Claim> {
        let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Agent ")?;
        let (mut id, mut key, mut tag, mut sig) = (None, None, None, None);
        for part in text.split(',') {
            let (name, value) = part.trim().split_once('=')?;
            let place = match name {
                "id" => &mut id,
                "key" => &mut key,
                "tag" => &mut tag,
                "sig" => &mut sig,
                // A newer agent may say more.
                _ => continue,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        let bytes = |text: Option<&str>| STANDARD.decode(text?).ok();
        let who = Credential { server: id?.parse().ok()?, key: bytes(key)?.try_into().ok()? };
        Some(Claim { who, tag: bytes(tag)?, signature: bytes(sig)? })
    }
}

fn malformed() -> Refusal {
    let detail = "an agent says `Authorization: Agent id=…,key=…,tag=…,sig=…`";
    Refusal::new(StatusCode::UNAUTHORIZED, "malformed_credential", detail)
}

fn forged(detail: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "bad_credential", detail)
}
