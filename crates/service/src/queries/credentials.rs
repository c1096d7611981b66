//! API keys and enrollment tokens, without their secrets.

use async_recursion::async_recursion as boxed;
pub use store::api_keys::ApiKey;
pub use store::enrollment_tokens::EnrollmentToken;
use store::{Page, Paged};
use vocab::{KeyId, TokenId};

use super::Scope;
use crate::{App, Result};

/// A page of the API keys, newest first, including revoked and expired ones.
#[boxed]
pub async fn api_keys(app: &App, scope: &Scope, page: Page) -> Result<Paged<wire::v1::ApiKey>> {
    let Paged { items, total } =
        store::api_keys::list(&mut *app.db.snapshot().await?, scope.org, page).await?;
    Ok(Paged { items: items.into_iter().map(api_key).collect(), total })
}

/// A page of the enrollment tokens, newest first, including those that can no longer be used.
#[boxed]
pub async fn enrollment_tokens(
    app: &App,
    scope: &Scope,
    page: Page,
) -> Result<Paged<wire::v1::EnrollmentToken>> {
    let Paged { items, total } =
        store::enrollment_tokens::list(&mut *app.db.snapshot().await?, scope.org, page).await?;
    Ok(Paged { items: items.into_iter().map(enrollment_token).collect(), total })
}

/// One API key, as the database row.
#[boxed]
pub async fn find_api_key(app: &App, scope: &Scope, id: KeyId) -> Result<ApiKey> {
    Ok(store::api_keys::get(&mut *app.db.read().await?, scope.org, id).await?)
}

/// One enrollment token, as the database row.
#[boxed]
pub async fn find_enrollment_token(
    app: &App,
    scope: &Scope,
    id: TokenId,
) -> Result<EnrollmentToken> {
    Ok(store::enrollment_tokens::get(&mut *app.db.read().await?, scope.org, id).await?)
}

/// An API key as clients see it.
pub fn api_key(key: ApiKey) -> wire::v1::ApiKey {
    wire::v1::ApiKey {
        id: key.id,
        name: key.name,
        role: key.role,
        environments: key.environments,
        created_at: key.created_at,
        created_by: key.created_by,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
        last_used_at: key.last_used_at,
    }
}

/// An enrollment token as clients see it.
pub fn enrollment_token(token: EnrollmentToken) -> wire::v1::EnrollmentToken {
    wire::v1::EnrollmentToken {
        id: token.id,
        name: token.name,
        environment: token.environment,
        tags: token.tags,
        uses: token.uses,
        max_uses: token.uses_max,
        created_at: token.created_at,
        created_by: token.created_by,
        expires_at: token.expires_at,
        revoked_at: token.revoked_at,
    }
}
