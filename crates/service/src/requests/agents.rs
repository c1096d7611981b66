//! Requests about agents: upgrade.

use async_recursion::async_recursion as boxed;
use store::server_list::{self, Filter};
use vocab::{Environment, Selector, ServerId};
use wire::v1::{AgentUpgrades, UpgradeAgents};

use super::{Body, validate};
use crate::auth::caller::Caller;
use crate::commands::refreshes;
use crate::commands::refreshes::UpgradeRequest;
use crate::queries::Scope;
use crate::{App, Result, ServiceError};

/// Servers per transaction, so that others can write in between.
const CHUNK: usize = 200;

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
    let ids = select(app, &caller.scope(), &targets).await?;
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

/// The servers that a selector matches and the caller may see.
pub(super) async fn select(app: &App, scope: &Scope, targets: &Selector) -> Result<Vec<ServerId>> {
    let environments = scope.environments.as_deref().map(<[Environment]>::to_vec);
    let filter = Filter { environments, ..Filter::from(targets) };
    let mut reader = app.db.read().await?;
    Ok(server_list::ids(&mut reader, scope.org, &filter).await?)
}
