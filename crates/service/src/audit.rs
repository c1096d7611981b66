//! What is written down of every change: who did what to what.

use serde_json::Value;
use store::Tx;

use crate::Actor;
use crate::App;

/// Writes into the actor's audit log with the commit.
pub fn record(
    app: &App,
    tx: &mut Tx,
    actor: &Actor,
    action: &str,
    subject: impl ToString,
    detail: Value,
) {
    super::record(tx, actor.org, app.clock.now(), &actor.who, action, subject, &detail);
}

/// Writes an event with the commit.
pub fn emit(app: &App, tx: &mut Tx, actor: &Actor, kind: &str, data: Value) {
    super::emit(tx, actor.org, kind, app.clock.now(), data);
}
