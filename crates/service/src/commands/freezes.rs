//! Commands on freezes: create, replace and delete.

use async_recursion::async_recursion as boxed;
use domain::freeze::{Freeze as Rule, Timing};
use jiff::Timestamp;
use serde_json::{Value, json};
use store::freezes::{self, Freeze};
use store::{Topic, Tx};
use vocab::FreezeId;

use crate::App;
use crate::audit::Action;
use crate::clock::random_u128;
use crate::{Actor, EventKind, Result, ServiceError, emit, record};

/// Maximum number of freezes of an organization. All that have not ended are evaluated whenever the
/// engine plans.
const FREEZES_MAX: usize = 500;

/// The complete content of a freeze, as a user submits it.
#[derive(Debug, Clone, PartialEq)]
pub struct FreezeInput {
    pub name: String,
    pub reason: String,
    pub rule: Rule,
}

#[boxed]
pub async fn create(app: &App, actor: &Actor, input: FreezeInput) -> Result<Freeze> {
    let now = app.clock.now();
    let made = Freeze {
        id: FreezeId::new(now, random_u128()),
        org_id: actor.org,
        name: input.name,
        reason: input.reason,
        rule: input.rule,
        created_at: now,
        created_by: actor.id.clone(),
        updated_at: now,
        generation: 1,
    };
    let mut tx = app.db.begin().await?;
    if freezes::list(&mut tx, actor.org).await?.len() >= FREEZES_MAX {
        let detail = format!("an organization has at most {FREEZES_MAX} freezes; delete old ones");
        return Err(ServiceError::conflict("conflict", detail));
    }
    freezes::create(&mut tx, &made).await?;
    record_change(&mut tx, actor, &made, Action::FreezeCreate, EventKind::FreezeCreated, now);
    tx.commit().await?;
    Ok(made)
}

/// Replaces a freeze, unless it has changed since it was `seen`.
#[boxed]
pub async fn replace(
    app: &App,
    actor: &Actor,
    seen: &Freeze,
    input: FreezeInput,
) -> Result<Freeze> {
    let now = app.clock.now();
    let after = Freeze {
        name: input.name,
        reason: input.reason,
        rule: input.rule,
        updated_at: now,
        ..seen.clone()
    };
    let mut tx = app.db.begin().await?;
    freezes::save(&mut tx, &after).await?;
    let after = Freeze { generation: seen.generation + 1, ..after };
    record_change(&mut tx, actor, &after, Action::FreezeUpdate, EventKind::FreezeUpdated, now);
    tx.commit().await?;
    Ok(after)
}

/// Deletes a freeze, unless it has changed since it was `seen`. What it held back may start at once.
#[boxed]
pub async fn delete(app: &App, actor: &Actor, seen: &Freeze) -> Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    freezes::delete(&mut tx, seen).await?;
    record_change(&mut tx, actor, seen, Action::FreezeDelete, EventKind::FreezeDeleted, now);
    Ok(tx.commit().await?)
}

fn record_change(
    tx: &mut Tx,
    actor: &Actor,
    freeze: &Freeze,
    action: Action,
    event: EventKind,
    now: Timestamp,
) {
    let mut detail = json!({"freeze_id": freeze.id, "name": freeze.name, "reason": freeze.reason,
        "targets": freeze.rule.targets});
    let timing = match &freeze.rule.timing {
        Timing::OneOff { starts_at, ends_at } => {
            json!({"starts_at": starts_at, "ends_at": ends_at})
        }
        Timing::Recurring { cron, duration, timezone } => {
            json!({"cron": cron, "duration_minutes": duration.as_mins(), "timezone": timezone})
        }
    };
    if let (Value::Object(fields), Value::Object(timing)) = (&mut detail, timing) {
        fields.extend(timing);
    }
    record(tx, actor.org, now, &actor.id, action, freeze.id, &detail);
    let data = json!({"freeze_id": freeze.id, "name": freeze.name});
    emit(tx, actor.org, now, &actor.id, event, freeze.id, data);
    // Waiting servers may start, or must not start any more; the warnings of schedules change.
    tx.notify(Topic::Freezes);
    tx.notify(Topic::Rollouts);
    tx.notify(Topic::Schedules);
}
