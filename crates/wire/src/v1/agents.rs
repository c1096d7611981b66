//! `/v1/agents`: the agents that the service carries, and those of the fleet.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vocab::Line;

use super::RefreshState;

/// The agents of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agents {
    /// The agents that servers install and upgrade from this service, by architecture.
    pub releases: Vec<AgentRelease>,
    /// The agents of the servers, by architecture and version.
    pub versions: Vec<AgentVersion>,
    /// Number of servers whose agent is older than the release for their architecture.
    pub outdated: u64,
    /// Number of requested upgrades that have not ended.
    pub upgrades_pending: u64,
}

impl Agents {
    /// Number of servers with an older agent that can be upgraded: the service carries a signed one
    /// for their architecture.
    pub fn upgradable(&self) -> u64 {
        let signed = |architecture: &str| {
            self.releases.iter().any(|one| one.signed && one.architecture == architecture)
        };
        let outdated = self.versions.iter().filter(|one| one.outdated == Some(true));
        outdated.filter(|one| signed(&one.architecture)).map(|one| one.servers).sum()
    }
}

/// An agent that the service carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRelease {
    /// CPU architecture.
    #[cfg_attr(feature = "openapi", schema(example = "x86_64"))]
    pub architecture: String,
    /// Version.
    #[cfg_attr(feature = "openapi", schema(example = "0.1.0"))]
    pub version: String,
    /// SHA-256 digest of the program, in hexadecimal.
    pub sha256: String,
    /// Size of the program.
    pub size_bytes: u64,
    /// Whether its publisher signed it. Agents accept no upgrade without a signature; servers can
    /// still install it.
    pub signed: bool,
}

/// The servers with one version of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentVersion {
    /// CPU architecture.
    #[cfg_attr(feature = "openapi", schema(example = "x86_64"))]
    pub architecture: String,
    /// Version.
    #[cfg_attr(feature = "openapi", schema(example = "0.1.0"))]
    pub version: String,
    /// Number of servers.
    pub servers: u64,
    /// Whether it is older than the release for the architecture; null without a release.
    pub outdated: Option<bool>,
}

/// The body of `POST /v1/agents/upgrade`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UpgradeAgents {
    /// The servers whose agents to upgrade.
    #[cfg_attr(feature = "openapi", schema(value_type = vocab::Selector))]
    pub targets: Value,
}

/// The response of `POST /v1/agents/upgrade`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentUpgrades {
    /// Number of servers whose upgrade is requested now, or was already.
    pub requested: u64,
    /// Number of servers whose agent is not older than the release.
    pub current: u64,
    /// Number of servers with an architecture for which the service carries no signed agent.
    pub no_release: u64,
}

/// The last upgrade of the agent of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentUpgradeStatus {
    /// The version to upgrade to.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub version: Line,
    /// State.
    pub state: RefreshState,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// Why it failed, or what the agent reported.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub message: Option<Line>,
}
