//! Policies, as readers see them.

use async_recursion::async_recursion as boxed;
use domain::policy::{Match, Rule};
use store::policies;
pub use store::policies::Policy;
use store::server_list::{self, Filter};
use store::{Conn, Page, Paged, StoreError};
use vocab::{Environment, PolicyId};
use wire::v1::{PolicyMatch, PolicyRule};

use super::Scope;
use super::summary::is_limited_to;
use super::targets::explain_unmatched;
use crate::{App, Result};

/// The policies by name: all of them, or at most `limit` after the first `offset`. Also returns the
/// effective page.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    limit: Option<u32>,
    offset: u64,
) -> Result<(Page, Paged<wire::v1::Policy>)> {
    let mut reader = app.db.snapshot().await?;
    let mut all = policies::list(&mut reader, scope.org).await?;
    all.retain(|one| is_limited_to(scope.environments.as_deref(), &one.targets));
    let everything = u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
    let page = Page { limit: limit.unwrap_or(everything), offset };
    let Paged { items: rows, total } = Paged::paginate(all, page);
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        items.push(to_wire_in(&mut reader, scope, row).await?);
    }
    Ok((page, Paged { items, total }))
}

/// A policy that this reader may see. A key that is limited to environments sees the policies that
/// target one of them.
#[boxed]
pub async fn find(app: &App, scope: &Scope, id: PolicyId) -> Result<Policy> {
    find_in(&mut *app.db.read().await?, scope, id).await
}

async fn find_in(conn: &mut Conn, scope: &Scope, id: PolicyId) -> Result<Policy> {
    let found = policies::get(conn, scope.org, id).await?;
    match is_limited_to(scope.environments.as_deref(), &found.targets) {
        true => Ok(found),
        false => Err(StoreError::not_found("policy", id).into()),
    }
}

/// A policy as this reader sees it, and its generation.
#[boxed]
pub async fn get(app: &App, scope: &Scope, id: PolicyId) -> Result<(i64, wire::v1::Policy)> {
    let mut reader = app.db.snapshot().await?;
    let row = find_in(&mut reader, scope, id).await?;
    Ok((row.generation, to_wire_in(&mut reader, scope, row).await?))
}

/// A policy as this reader sees it.
#[boxed]
pub async fn to_wire(app: &App, scope: &Scope, row: Policy) -> Result<wire::v1::Policy> {
    to_wire_in(&mut *app.db.snapshot().await?, scope, row).await
}

/// A rule as the API shows it.
pub fn rule(rule: &Rule) -> PolicyRule {
    let mut matches = PolicyMatch::default();
    match rule.matches {
        Match::Kev => matches.kev = Some(true),
        Match::Severity(severity) => matches.severity = Some(severity),
        Match::Security => matches.security = Some(true),
    }
    PolicyRule { matches, within_days: rule.within_days }
}

async fn to_wire_in(conn: &mut Conn, scope: &Scope, row: Policy) -> Result<wire::v1::Policy> {
    let visible = scope.environments.as_deref();
    let (mut warnings, mut servers) = (Vec::new(), 0);
    match explain_unmatched(conn, row.org_id, visible, &row.targets).await? {
        Some(unmatched) => {
            let reason = unmatched.reason;
            warnings.push(format!("{reason} Nothing is judged until a server matches."));
        }
        None => {
            let environments = visible.map(<[Environment]>::to_vec);
            let filter = Filter { environments, ..Filter::from(&row.targets) };
            servers = server_list::count(conn, row.org_id, &filter).await?;
        }
    }
    Ok(wire::v1::Policy {
        id: row.id,
        name: row.name,
        description: row.description,
        rules: row.rules.iter().map(rule).collect(),
        targets: row.targets,
        servers,
        created_at: row.created_at,
        updated_at: row.updated_at,
        created_by: row.created_by,
        warnings,
    })
}
