//! Commands on suppressions: hide findings with a reason, in a scope, for a time.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use serde_json::json;
use store::Topic;
use store::suppressions::{self, Suppression};
use vocab::{Environment, SuppressionId};

use crate::App;
use crate::audit::Action;
use crate::clock::random_u128;
use crate::{Actor, EventKind, FieldError, Result, ServiceError, audit};

#[derive(Debug, Clone)]
pub struct NewSuppression {
    pub cve: String,
    /// The source package; `None` suppresses the CVE in every package.
    pub package: Option<String>,
    /// `None` suppresses the CVE in every environment.
    pub environment: Option<Environment>,
    pub reason: String,
    pub expires_at: Option<Timestamp>,
}

#[boxed]
pub async fn create(app: &App, actor: &Actor, new: NewSuppression) -> Result<Suppression> {
    let now = app.clock.now();
    if new.expires_at.is_some_and(|end| end <= now) {
        let error = FieldError::new("/expires_at", "in_the_past", "must be in the future");
        return Err(ServiceError::Invalid(vec![error]));
    }
    let created = Suppression {
        id: SuppressionId::new(now, random_u128()),
        org_id: actor.org,
        cve: new.cve,
        package: new.package,
        environment: new.environment,
        reason: new.reason,
        expires_at: new.expires_at,
        created_at: now,
        created_by: actor.id.clone(),
    };
    let mut tx = app.db.begin().await?;
    suppressions::create(&mut tx, &created).await?;
    audit::record(app, &mut tx, actor, Action::SuppressionCreate, created.id, details(&created));
    audit::emit(
        app,
        &mut tx,
        actor,
        EventKind::SuppressionCreated,
        &created.cve,
        details(&created),
    );
    tx.notify(Topic::Feeds);
    tx.commit().await?;
    Ok(created)
}

#[boxed]
pub async fn delete(app: &App, actor: &Actor, seen: &Suppression) -> Result<()> {
    let mut tx = app.db.begin().await?;
    suppressions::delete(&mut tx, actor.org, seen.id).await?;
    audit::record(app, &mut tx, actor, Action::SuppressionDelete, seen.id, details(seen));
    audit::emit(app, &mut tx, actor, EventKind::SuppressionDeleted, &seen.cve, details(seen));
    tx.notify(Topic::Feeds);
    Ok(tx.commit().await?)
}

fn details(row: &Suppression) -> serde_json::Value {
    json!({"suppression_id": row.id, "cve": row.cve, "package": row.package,
        "environment": row.environment, "reason": row.reason, "expires_at": row.expires_at})
}
