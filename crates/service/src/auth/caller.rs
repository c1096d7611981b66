//! The sender of a request, and what they may see and do.

use async_recursion::async_recursion as boxed;
use std::sync::Arc;

use vocab::{Environment, KeyId, OrgId, Role, UserId};

use crate::auth::api_keys::Refused;
use crate::auth::users;
use crate::commands::batches::Origin;
use crate::queries::Scope;
use crate::{Actor, App, Result, ServiceError};

/// The authenticated sender of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    pub org: OrgId,
    pub who: Who,
    pub role: Role,
    /// The environments the caller is limited to; `None` means all.
    pub environments: Option<Arc<[Environment]>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A client with this API key.
    Key(KeyId),
    /// A user who signed in to the dashboard.
    User(UserId),
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Key(key) => key.fmt(f),
            Who::User(user) => user.fmt(f),
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
        Actor { org: self.org, who: self.who.to_string(), role: self.role }
    }

    /// The interface that the caller uses.
    pub fn origin(&self) -> Origin {
        match self.who {
            Who::Key(_) => Origin::Api,
            Who::User(_) => Origin::Dashboard,
        }
    }

    /// Whether the caller may access objects in this environment.
    pub fn may_touch(&self, environment: Option<&Environment>) -> bool {
        self.scope().includes(environment)
    }

    /// Returns an error if the caller's role is not sufficient.
    pub fn require(&self, needed: Role) -> Result<()> {
        if self.role.may(needed) {
            return Ok(());
        }
        let Caller { role, .. } = self;
        Err(ServiceError::Forbidden(match self.who {
            Who::Key(_) => {
                format!("This needs a key with the role `{needed}`; this one has `{role}`.")
            }
            Who::User(_) => format!("This needs the role `{needed}`; yours is `{role}`."),
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
            Credential::Key(text) => match app.keys().admit(app, text).await {
                Ok(_) => Ok(true),
                Err(Refused::Service(error)) => Err(error),
                Err(Refused::Unknown | Refused::Expired | Refused::Revoked) => Ok(false),
            },
            Credential::Session(token) => Ok(users::signed_in(app, token).await?.is_some()),
        }
    }
}
