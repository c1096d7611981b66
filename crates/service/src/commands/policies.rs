//! Commands on policies: create, replace and delete.

use async_recursion::async_recursion as boxed;
use domain::policy::Rule;
use jiff::Timestamp;
use serde_json::json;
use store::policies::{self, Policy};
use store::{Topic, Tx};
use vocab::{PolicyId, Selector};

use crate::App;
use crate::audit::Action;
use crate::clock::random_u128;
use crate::{Actor, EventKind, Result, ServiceError, emit, record};

/// Maximum number of policies of an organization. Each has one row for each of its servers.
const POLICIES_MAX: usize = 50;

/// The complete content of a policy, as a user submits it.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyInput {
    pub name: String,
    pub description: String,
    pub targets: Selector,
    pub rules: Vec<Rule>,
}

#[boxed]
pub async fn create(app: &App, actor: &Actor, input: PolicyInput) -> Result<Policy> {
    let now = app.clock.now();
    let made = Policy {
        id: PolicyId::new(now, random_u128()),
        org_id: actor.org,
        name: input.name,
        description: input.description,
        targets: input.targets,
        rules: input.rules,
        created_at: now,
        created_by: actor.id.clone(),
        updated_at: now,
        generation: 1,
    };
    let mut tx = app.db.begin().await?;
    if policies::list(&mut tx, actor.org).await?.len() >= POLICIES_MAX {
        let detail =
            format!("an organization has at most {POLICIES_MAX} policies; delete old ones");
        return Err(ServiceError::conflict("conflict", detail));
    }
    policies::create(&mut tx, &made).await?;
    record_change(&mut tx, actor, &made, Action::PolicyCreate, EventKind::PolicyCreated, now);
    tx.commit().await?;
    Ok(made)
}

/// Replaces a policy, unless it has changed since it was `seen`. The new rules judge the time that
/// has already passed.
#[boxed]
pub async fn replace(
    app: &App,
    actor: &Actor,
    seen: &Policy,
    input: PolicyInput,
) -> Result<Policy> {
    let now = app.clock.now();
    let after = Policy {
        name: input.name,
        description: input.description,
        targets: input.targets,
        rules: input.rules,
        updated_at: now,
        ..seen.clone()
    };
    let mut tx = app.db.begin().await?;
    policies::save(&mut tx, &after).await?;
    let after = Policy { generation: seen.generation + 1, ..after };
    record_change(&mut tx, actor, &after, Action::PolicyUpdate, EventKind::PolicyUpdated, now);
    tx.commit().await?;
    Ok(after)
}

/// Deletes a policy with its trend, unless it has changed since it was `seen`.
#[boxed]
pub async fn delete(app: &App, actor: &Actor, seen: &Policy) -> Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    policies::delete(&mut tx, seen).await?;
    record_change(&mut tx, actor, seen, Action::PolicyDelete, EventKind::PolicyDeleted, now);
    Ok(tx.commit().await?)
}

fn record_change(
    tx: &mut Tx,
    actor: &Actor,
    policy: &Policy,
    action: Action,
    event: EventKind,
    now: Timestamp,
) {
    let detail = json!({"policy_id": policy.id, "name": policy.name,
        "description": policy.description, "targets": policy.targets,
        "rules": policy.rules.iter().map(crate::queries::policies::rule).collect::<Vec<_>>()});
    record(tx, actor.org, now, &actor.id, action, policy.id, &detail);
    let data = json!({"policy_id": policy.id, "name": policy.name});
    emit(tx, actor.org, now, &actor.id, event, policy.id, data);
    tx.notify(Topic::Policies);
}
