//! Idempotency keys: claims a key for a request, and stores the response for repeated requests.

use async_recursion::async_recursion as boxed;
use jiff::SignedDuration;
use store::idempotency::{self, Request};
pub use store::idempotency::{Claim, Response, ResponseClaim, with_ticket};

use crate::auth::caller::Caller;
use crate::{App, Result};

const RESPONSE_TTL: SignedDuration = SignedDuration::from_hours(24);
/// A request that is not finished after this time was interrupted by a crash: none may take longer
/// than 30 s.
const LOCK_TTL: SignedDuration = SignedDuration::from_secs(35);
/// The maximum number of stored responses per caller.
pub const STORED_RESPONSES_MAX: u32 = 10_000;

/// Claims a key for a request. `None` if the caller has too many stored responses.
#[boxed]
pub async fn claim(
    app: &App,
    caller: &Caller,
    key: &str,
    fingerprint: [u8; 32],
) -> Result<Option<Claim>> {
    let (now, who) = (app.clock.now(), caller.id.to_string());
    let request = Request { org: caller.org, caller: &who, key, fingerprint };
    let mut tx = app.db.begin().await?;
    let claim =
        idempotency::claim(&mut tx, &request, now, now + LOCK_TTL, now + RESPONSE_TTL).await?;
    if matches!(claim, Claim::New(_)) {
        let stored =
            idempotency::count(&mut tx, caller.org, &who, STORED_RESPONSES_MAX + 1).await?;
        if stored > STORED_RESPONSES_MAX {
            return Ok(None);
        }
    }
    tx.commit().await?;
    Ok(Some(claim))
}

/// Stores the response for a key. Releases the key instead if the response is not final, or if the
/// request changed nothing: then repeating it changes nothing either, and its response would only
/// fill the database.
#[boxed]
pub async fn finish(
    app: &App,
    ticket: &ResponseClaim,
    is_final: bool,
    response: Option<Response>,
) -> Result<()> {
    let mut tx = app.db.begin().await?;
    match is_final {
        true => idempotency::finish_effect(&mut tx, ticket, response.as_ref()).await?,
        false => idempotency::release(&mut tx, ticket).await?,
    }
    Ok(tx.commit().await?)
}

/// Releases the keys of requests that a crash interrupted, so that clients can repeat them
/// immediately. With PostgreSQL, other replicas may be running: there a claim names its process,
/// and a repeated request finds out that the process is gone.
#[boxed]
pub async fn release_abandoned(app: &App) -> Result<()> {
    if !app.db.is_exclusive() {
        return Ok(());
    }
    let mut tx = app.db.begin().await?;
    idempotency::expire_locks(&mut tx, app.clock.now()).await?;
    Ok(tx.commit().await?)
}
