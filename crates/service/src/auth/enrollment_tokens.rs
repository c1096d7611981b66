//! Enrollment tokens, with which new servers join.
//!
//! A token is 24 random bytes and a tag that only this installation can compute, followed by the
//! hash of the service's certificate: an agent that was given a token knows which service to trust
//! before it sends anything. The database stores a hash of the random bytes only.

use async_recursion::async_recursion as boxed;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::json;
use store::Topic;
use store::enrollment_tokens::{self, EnrollmentToken};
use vocab::{Environment, Tag, TokenId};

use crate::App;
use crate::audit::Action;
use crate::auth::opaque_token;
use crate::clock::random_u128;
use crate::secrets::Secrets;
use crate::{Actor, EventKind, FieldError, Result, ServiceError, audit};

const PREFIX: &str = "fme_";
const PURPOSE: &str = "fleetmend enrolment token v1";
const RANDOM_BYTES: usize = 24;
/// Used in place of the certificate's hash if there is no certificate.
const NO_CERTIFICATE: &str = "plain";

/// Creates a token. Returns its text, which is shown once, and the hash that the database stores.
pub fn mint(secrets: &Secrets, certificate_sha256: Option<[u8; 32]>) -> (String, Vec<u8>) {
    let (secret, hash) = opaque_token::mint::<RANDOM_BYTES>(secrets, PURPOSE);
    let pin =
        certificate_sha256.map_or(NO_CERTIFICATE.to_owned(), |hash| URL_SAFE_NO_PAD.encode(hash));
    (format!("{PREFIX}{secret}.{pin}"), hash)
}

/// The hash of a token that this installation created; `None` for any other text. The part after
/// the dot is not checked: it is for the agent, and the certificate may have been renewed since.
pub fn recognize(secrets: &Secrets, text: &str) -> Option<Vec<u8>> {
    let (secret, _) = text.strip_prefix(PREFIX)?.split_once('.')?;
    opaque_token::recognize::<RANDOM_BYTES>(secrets, PURPOSE, secret)
}

/// An enrollment token to create.
#[derive(Debug, Clone)]
pub struct NewToken {
    pub name: String,
    /// The environment of servers that join with this token.
    pub environment: Option<Environment>,
    /// The tags of servers that join with this token.
    pub tags: Vec<Tag>,
    /// The maximum number of servers that may join; `None` means no limit.
    pub uses_max: Option<u32>,
    pub expires_at: Option<Timestamp>,
}

/// Creates a token. The returned text is not stored anywhere.
#[boxed]
pub async fn create(app: &App, actor: &Actor, new: NewToken) -> Result<(EnrollmentToken, String)> {
    let now = app.clock.now();
    if new.expires_at.is_some_and(|end| end <= now) {
        let error = FieldError::new("/expires_at", "in_the_past", "must be in the future");
        return Err(ServiceError::Invalid(vec![error]));
    }
    let (text, hash) = mint(&app.secrets, app.certificate_sha256());
    let token = EnrollmentToken {
        id: TokenId::new(now, random_u128()),
        org_id: actor.org,
        name: new.name,
        hash,
        environment: new.environment,
        tags: new.tags,
        uses: 0,
        uses_max: new.uses_max,
        created_at: now,
        created_by: actor.id.clone(),
        expires_at: new.expires_at,
        revoked_at: None,
    };
    let mut tx = app.db.begin().await?;
    enrollment_tokens::create(&mut tx, &token).await?;
    let detail = json!({"name": token.name, "environment": token.environment, "tags": token.tags,
        "max_uses": token.uses_max, "expires_at": token.expires_at});
    audit::record(app, &mut tx, actor, Action::EnrollmentTokenCreate, token.id, detail);
    let detail = json!({"enrollment_token_id": token.id});
    audit::emit(app, &mut tx, actor, EventKind::EnrollmentTokenCreated, token.id, detail);
    tx.commit().await?;
    Ok((token, text))
}

/// Revokes a token. Servers that joined with it stay. Revoking a revoked token is not an error.
#[boxed]
pub async fn revoke(app: &App, actor: &Actor, seen: &EnrollmentToken) -> Result<()> {
    if seen.revoked_at.is_some() {
        return Ok(());
    }
    let mut tx = app.db.begin().await?;
    enrollment_tokens::revoke(&mut tx, actor.org, seen.id, app.clock.now()).await?;
    let detail = json!({"name": seen.name});
    audit::record(app, &mut tx, actor, Action::EnrollmentTokenRevoke, seen.id, detail);
    let detail = json!({"enrollment_token_id": seen.id});
    audit::emit(app, &mut tx, actor, EventKind::EnrollmentTokenRevoked, seen.id, detail);
    tx.notify(Topic::Credentials);
    Ok(tx.commit().await?)
}
