//! The agents that this service carries, and those of the fleet.

use async_recursion::async_recursion as boxed;
use store::{health, refreshes};
use wire::v1::{AgentRelease, AgentVersion, Agents};

use super::{Scope, convert};
use crate::{App, Result};

/// The agents of the servers that the caller may see.
#[boxed]
pub async fn agents(app: &App, scope: &Scope) -> Result<Agents> {
    let mut reader = app.db.read().await?;
    let counted = health::agents(&mut reader, scope.org, scope.environments.as_deref()).await?;
    let pending = refreshes::count_open_upgrades(&mut reader, scope.org).await?;
    let visible = pending.iter().filter(|(environment, _)| scope.includes(environment.as_ref()));
    let upgrades_pending = visible.map(|(_, count)| count).sum();
    drop(reader);
    let versions: Vec<AgentVersion> = counted
        .into_iter()
        .map(|(architecture, version, servers)| AgentVersion {
            outdated: convert::agent_outdated(app, &architecture, &version),
            architecture,
            version,
            servers,
        })
        .collect();
    let outdated = versions.iter().filter(|one| one.outdated == Some(true));
    let release = |release: &crate::agent_releases::AgentRelease| AgentRelease {
        architecture: release.architecture.to_string(),
        version: release.version.clone(),
        sha256: release.sha256.clone(),
        size_bytes: release.size_bytes,
        signed: release.signature.is_some(),
    };
    Ok(Agents {
        releases: app.settings.agents.list().map(release).collect(),
        outdated: outdated.map(|one| one.servers).sum(),
        versions,
        upgrades_pending,
    })
}

/// Whether the service carries an agent for this architecture that agents accept as an upgrade.
pub fn has_signed_release(app: &App, architecture: &str) -> bool {
    let release = architecture.parse().ok().and_then(|one| app.settings.agents.get(one));
    release.is_some_and(|release| release.signature.is_some())
}
