//! Shortcuts for audit entries and events on behalf of an actor.

use serde_json::Value;
use store::Tx;

use crate::Actor;
use crate::App;

/// Adds an audit entry to the transaction.
pub fn record(
    app: &App,
    tx: &mut Tx,
    actor: &Actor,
    action: &str,
    subject: impl ToString,
    detail: Value,
) {
    super::record(tx, actor.org, app.clock.now(), &actor.id, action, subject, &detail);
}

/// Adds an event to the transaction.
pub fn emit(app: &App, tx: &mut Tx, actor: &Actor, kind: &str, data: Value) {
    super::emit(tx, actor.org, kind, app.clock.now(), data);
}
