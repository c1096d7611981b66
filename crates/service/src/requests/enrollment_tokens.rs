//! Requests about enrollment tokens: create, revoke.

use async_recursion::async_recursion as boxed;
use vocab::TokenId;
use wire::v1::CreateEnrollmentToken;

use super::{Body, Versions, check_version, forbidden};
use crate::auth::caller::Caller;
use crate::auth::enrollment_tokens::{self as tokens, NewToken};
use crate::queries::credentials::{EnrollmentToken, find_enrollment_token};
use crate::{App, Result};

const USES_MAX: i64 = 1_000_000;
pub(super) const TAGS_MAX: usize = 50;

/// Creates a token. The text is shown once.
#[boxed]
pub async fn create(
    app: &App,
    caller: &Caller,
    body: Body<CreateEnrollmentToken>,
) -> Result<(EnrollmentToken, String)> {
    let new = validate(body)?;
    if !caller.may_touch(new.environment.as_ref()) {
        return forbidden(
            "This API key is limited to certain environments: set `environment` to one of them.",
        );
    }
    tokens::create(app, &caller.actor(), new).await
}

/// Revokes a token. Revoking a revoked token is not an error.
#[boxed]
pub async fn revoke(
    app: &App,
    caller: &Caller,
    id: TokenId,
    wanted_version: &Versions,
) -> Result<()> {
    let token = find_enrollment_token(app, &caller.scope(), id).await?;
    check_version(wanted_version, version(&token))?;
    if !caller.may_touch(token.environment.as_ref()) {
        return forbidden(
            "This API key is limited to certain environments, and this token is for another one.",
        );
    }
    tokens::revoke(app, &caller.actor(), &token).await
}

/// The version of a token, computed because its row has no generation: the number of uses only
/// grows, and a token is revoked at most once.
pub fn version(token: &EnrollmentToken) -> i64 {
    2 * i64::from(token.uses) + i64::from(token.revoked_at.is_some())
}

fn validate((body, mut errors): Body<CreateEnrollmentToken>) -> Result<NewToken> {
    let name = body.name.map(|name| errors.name("/name", name)).unwrap_or_default();
    let environment = body
        .environment
        .and_then(|text| errors.parse("/environment", "invalid_environment", &text));
    let tags = body.tags.unwrap_or_default();
    if tags.len() > TAGS_MAX {
        errors.add("/tags", "too_many", format!("must have at most {TAGS_MAX} entries"));
    }
    let tags = errors.parse_all("/tags", "invalid_tag", &tags);
    if body.max_uses.is_some_and(|uses| !(1..=USES_MAX).contains(&uses)) {
        errors.add("/max_uses", "out_of_range", format!("must be from 1 to {USES_MAX}"));
    }
    let uses_max = body.max_uses.and_then(|uses| u32::try_from(uses).ok());
    let expires_at = errors.time("/expires_at", body.expires_at.as_deref());
    errors.into_result()?;
    Ok(NewToken { name, environment, tags, uses_max, expires_at })
}
