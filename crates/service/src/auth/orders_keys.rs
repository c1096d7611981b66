//! Rotation of `orders.key`: which agents do not trust the new key yet, and the audit log.
//!
//! The files are the business of [`crate::secrets`]; when to rotate, of the command line.

use async_recursion::async_recursion as boxed;
use serde_json::Value;
use store::{Conn, organizations, servers};
use vocab::ServerId;

use crate::App;
use crate::{Result, host_facts, record};

/// Who the audit log names: commands on the data directory know no keys.
const ACTOR: &str = "command";
/// The number of names in [`Untrusting`].
const NAMES_MAX: usize = 10;
/// The number of servers that are read at once.
const CHUNK: u32 = 500;

/// Agents that would refuse everything that is signed with a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Untrusting {
    /// How many. Removed servers do not count, quarantined and offline ones do.
    pub count: usize,
    /// How many servers there are.
    pub servers: usize,
    /// The first of them: hostname and id.
    pub first: Vec<(String, ServerId)>,
}

/// The agents, of all organizations, that have not reported that they trust the key with this id.
#[boxed]
pub async fn untrusting(conn: &mut Conn, key_id: &str) -> Result<Untrusting> {
    let mut found = Untrusting::default();
    let mut after = None;
    loop {
        let rows = servers::facts_after(conn, after, CHUNK).await?;
        let Some(last) = rows.last() else { return Ok(found) };
        after = Some(last.id);
        found.servers += rows.len();
        for row in rows {
            if host_facts::kept(&row.facts).trusted_keys.iter().any(|id| id.as_str() == key_id) {
                continue;
            }
            found.count += 1;
            if found.first.len() < NAMES_MAX {
                found.first.push((row.hostname.to_string(), row.id));
            }
        }
    }
}

/// Writes an action on the keys into the audit log of every organization.
#[boxed]
pub async fn audit(app: &App, action: &str, key_id: &str, detail: &Value) -> Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    for organization in organizations::list(&mut tx).await? {
        record(&mut tx, organization.id, now, ACTOR, action, key_id, detail);
    }
    tx.commit().await?;
    Ok(())
}
