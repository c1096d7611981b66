//! Suppressions: CVEs that a user decided not to act on, with the reason.

use async_recursion::async_recursion as boxed;
use store::suppressions::{self, Suppression};
use store::{Conn, Page, Paged, StoreError};
use vocab::SuppressionId;

use super::Scope;
use crate::{App, Result};

/// A page of the suppressions, newest first, optionally only those of one CVE.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    cve: Option<String>,
    page: Page,
) -> Result<Paged<wire::v1::Suppression>> {
    let wanted = suppressions::Filter {
        cve: cve.map(|cve| cve.replace('\0', "\u{fffd}")),
        environments: scope.environments.as_deref().map(<[_]>::to_vec),
    };
    let mut reader = app.db.snapshot().await?;
    let Paged { items, total } = suppressions::list(&mut reader, scope.org, &wanted, page).await?;
    Ok(Paged { items: items.into_iter().map(|row| to_wire(app, row)).collect(), total })
}

/// A suppression that the reader may see.
#[boxed]
pub async fn find(app: &App, scope: &Scope, id: SuppressionId) -> Result<Suppression> {
    find_in(&mut *app.db.read().await?, scope, id).await
}

pub(crate) async fn find_in(
    conn: &mut Conn,
    scope: &Scope,
    id: SuppressionId,
) -> Result<Suppression> {
    let row = suppressions::get(conn, scope.org, id).await?;
    match row.environment.is_none() || scope.includes(row.environment.as_ref()) {
        true => Ok(row),
        false => Err(StoreError::not_found("suppression", id).into()),
    }
}

/// Converts a suppression to the API type.
pub fn to_wire(app: &App, row: Suppression) -> wire::v1::Suppression {
    let now = app.clock.now();
    wire::v1::Suppression {
        id: row.id,
        cve: row.cve,
        package: row.package,
        environment: row.environment,
        reason: row.reason,
        expires_at: row.expires_at,
        active: row.expires_at.is_none_or(|until| now < until),
        created_at: row.created_at,
        created_by: row.created_by,
    }
}
