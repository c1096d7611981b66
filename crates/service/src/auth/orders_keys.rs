//! Rotation of `orders.key`: finds the agents that do not trust the new key yet, and writes the
//! audit log.
//!
//! [`crate::secrets`] handles the files; the command line decides when to rotate.

use async_recursion::async_recursion as boxed;
use serde_json::Value;
use store::{Conn, organizations, servers};
use vocab::ServerId;

use crate::App;
use crate::audit::Action;
use crate::{Result, host_facts, record};

/// The actor in audit entries: commands on the data directory run without an API key.
const ACTOR: &str = "command";
/// The maximum number of names in [`UntrustingAgents`].
const NAMES_MAX: usize = 10;
/// The number of servers that are read at a time.
const CHUNK: u32 = 500;

/// Agents that would refuse orders signed with a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UntrustingAgents {
    /// The number of such agents. Includes quarantined and offline servers, but not removed ones.
    pub count: usize,
    /// The total number of servers.
    pub servers: usize,
    /// The first of these agents: hostname and id.
    pub first: Vec<(String, ServerId)>,
}

/// The agents of all organizations that have not reported that they trust the key with this id.
#[boxed]
pub async fn untrusting_agents(conn: &mut Conn, key_id: &str) -> Result<UntrustingAgents> {
    let mut found = UntrustingAgents::default();
    let mut after = None;
    loop {
        let rows = servers::facts_after(conn, after, CHUNK).await?;
        let Some(last) = rows.last() else { return Ok(found) };
        after = Some(last.id);
        found.servers += rows.len();
        for row in rows {
            if host_facts::from_stored(&row.facts)
                .trusted_keys
                .iter()
                .any(|id| id.as_str() == key_id)
            {
                continue;
            }
            found.count += 1;
            if found.first.len() < NAMES_MAX {
                found.first.push((row.hostname.to_string(), row.id));
            }
        }
    }
}

/// Writes a key rotation step to the audit log of every organization.
#[boxed]
pub async fn record_rotation(
    app: &App,
    action: Action,
    key_id: &str,
    detail: &Value,
) -> Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    for organization in organizations::list(&mut tx).await? {
        record(&mut tx, organization.id, now, ACTOR, action, key_id, detail);
    }
    tx.commit().await?;
    Ok(())
}
