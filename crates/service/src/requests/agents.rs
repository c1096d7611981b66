//! Requests about agents: upgrade.

use async_recursion::async_recursion as boxed;
use wire::v1::{AgentUpgrades, UpgradeAgents};

use super::{Body, CHUNK, validate};
use crate::auth::caller::Caller;
use crate::commands::refreshes;
use crate::commands::refreshes::UpgradeRequest;
use crate::queries;
use crate::{App, Result, ServiceError};

/// Requests upgrades of the agents of the selected servers.
#[boxed]
pub async fn upgrade(
    app: &App,
    caller: &Caller,
    (body, mut errors): Body<UpgradeAgents>,
) -> Result<AgentUpgrades> {
    let targets = validate::targets(&mut errors, &body.targets);
    errors.into_result()?;
    let targets = targets.ok_or_else(|| {
        ServiceError::Internal("the selector is missing although validation succeeded".into())
    })?;
    let ids = queries::servers::select(app, &caller.scope(), &targets).await?;
    refreshes::record_upgrade_request(app, &caller.actor(), &targets, ids.len()).await?;
    let mut done = AgentUpgrades { requested: 0, current: 0, no_release: 0 };
    for chunk in ids.chunks(CHUNK) {
        for one in refreshes::request_upgrades(app, &caller.actor(), chunk).await? {
            match one {
                UpgradeRequest::Requested => done.requested += 1,
                UpgradeRequest::Current => done.current += 1,
                UpgradeRequest::NoRelease => done.no_release += 1,
            }
        }
    }
    Ok(done)
}
