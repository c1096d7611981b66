//! The sender of a request, and what they may see and do.

use async_recursion::async_recursion as boxed;
use std::sync::Arc;

use vocab::{Environment, KeyId, OrgId, Role, UserId};

use crate::auth::api_keys::KeyRejection;
use crate::auth::sessions;
use crate::commands::batches::Origin;
use crate::queries::Scope;
use crate::{Actor, App, Result, ServiceError};

/// The authenticated sender of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    pub org: OrgId,
    pub id: CallerId,
    pub role: Role,
    /// The environments the caller is limited to; `None` means all.
    pub environments: Option<Arc<[Environment]>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerId {
    /// A client with this API key.
    Key(KeyId),
    /// A user who signed in to the dashboard.
    User(UserId),
}

impl std::fmt::Display for CallerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallerId::Key(key) => key.fmt(f),
            CallerId::User(user) => user.fmt(f),
        }
    }
}

impl Caller {
    /// What the caller may see.
    pub fn scope(&self) -> Scope {
        Scope { org: self.org, environments: self.environments.clone() }
    }

    /// The caller as the actor of a command.
    pub fn actor(&self) -> Actor {
        Actor { org: self.org, id: self.id.to_string(), role: self.role }
    }

    /// The interface that the caller uses.
    pub fn origin(&self) -> Origin {
        match self.id {
            CallerId::Key(_) => Origin::Api,
            CallerId::User(_) => Origin::Dashboard,
        }
    }

    /// Whether the caller may access objects in this environment.
    pub fn may_touch(&self, environment: Option<&Environment>) -> bool {
        self.scope().includes(environment)
    }

    /// Returns an error if the caller's role is not sufficient.
    pub fn require(&self, needed: Role) -> Result<()> {
        if self.role.includes(needed) {
            return Ok(());
        }
        let Caller { role, .. } = self;
        Err(ServiceError::Forbidden(match self.id {
            CallerId::Key(_) => {
                format!("This needs a key with the role `{needed}`; this one has `{role}`.")
            }
            CallerId::User(_) => format!("This needs the role `{needed}`; yours is `{role}`."),
        }))
    }
}

/// The credential of a request. Long-lived requests check it again from time to time.
#[derive(Clone)]
pub enum Credential {
    Key(String),
    /// The token of a dashboard session.
    Session(String),
}

impl Credential {
    /// Whether the credential is still valid.
    #[boxed]
    pub async fn is_valid(&self, app: &App) -> Result<bool> {
        match self {
            Credential::Key(text) => match app.api_keys().authenticate(app, text).await {
                Ok(_) => Ok(true),
                Err(KeyRejection::Service(error)) => Err(error),
                Err(KeyRejection::Unknown | KeyRejection::Expired | KeyRejection::Revoked) => {
                    Ok(false)
                }
            },
            Credential::Session(token) => Ok(sessions::find(app, token).await?.is_some()),
        }
    }
}
