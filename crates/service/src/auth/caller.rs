//! Who asks for something, and what they may see and do.

use async_recursion::async_recursion as boxed;
use std::sync::Arc;

use vocab::{Environment, KeyId, OrgId, Role, UserId};

use crate::auth::api_keys::Refused;
use crate::auth::users;
use crate::commands::batches::Origin;
use crate::queries::Scope;
use crate::{Actor, App, Result, ServiceError};

/// The sender of a request, once it is known who that is.
#[derive(Debug, Clone)]
pub struct Caller {
    /// In which organization.
    pub org: OrgId,
    /// Who it is.
    pub who: Who,
    /// What it may do.
    pub role: Role,
    /// Where it may do it; `None`: everywhere.
    pub environments: Option<Arc<[Environment]>>,
}

/// Who sends requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Whoever holds this API key.
    Key(KeyId),
    /// A person who signed in to the dashboard.
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
    /// What it may see.
    pub fn scope(&self) -> Scope {
        Scope { org: self.org, environments: self.environments.clone() }
    }

    /// On whose behalf the service acts.
    pub fn actor(&self) -> Actor {
        Actor { org: self.org, who: self.who.to_string(), role: self.role }
    }

    /// Through which interface the caller came.
    pub fn origin(&self) -> Origin {
        match self.who {
            Who::Key(_) => Origin::Api,
            Who::User(_) => Origin::Dashboard,
        }
    }

    /// Whether the caller may touch what is in this environment.
    pub fn may_touch(&self, environment: Option<&Environment>) -> bool {
        self.scope().includes(environment)
    }

    /// Refuses a caller whose role is not enough.
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

/// What a caller showed. A request that stays open looks at it again from time to time.
#[derive(Clone)]
pub enum Credential {
    /// The text of an API key.
    Key(String),
    /// The token of a session of the dashboard.
    Session(String),
}

impl Credential {
    /// Whether it still lets its bearer in.
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
