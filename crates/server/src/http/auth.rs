//! Who is asking: an API key in `Authorization`, and what it may do.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use vocab::{Environment, KeyId, OrgId, Role, UserId};

use crate::app::App;
use crate::http::problem::{ApiError, Code, internal};
use service::auth::api_keys::Refused;
use service::auth::users;
use service::commands::batches::Origin;
use service::queries::Scope;
use service::{Actor, ServiceError};

/// Whoever sent a request, once it is known. Put there by `http::routes`, for every route under `/v1`.
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
    /// Whoever holds this key.
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

/// What a caller showed. A request that stays open looks at it again from time to time.
#[derive(Clone)]
pub(crate) enum Credential {
    /// The text of an API key.
    Key(String),
    /// The token of a session of the dashboard.
    Session(String),
}

impl Credential {
    /// Whether it still lets its bearer in.
    pub(crate) async fn is_valid(&self, app: &App) -> Result<bool, ServiceError> {
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

/// Where a connection comes from. Put there by `http::serve`.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

impl Caller {
    /// What it may see.
    pub fn scope(&self) -> Scope {
        Scope { org: self.org, environments: self.environments.clone() }
    }

    /// On whose behalf the service acts.
    pub fn actor(&self) -> Actor {
        Actor { org: self.org, who: self.who.to_string(), role: self.role }
    }

    /// By which door the caller came.
    pub fn origin(&self) -> Origin {
        match self.who {
            Who::Key(_) => Origin::Api,
            Who::User(_) => Origin::Dashboard,
        }
    }

    /// Whether the caller may touch what is in this environment.
    pub fn may_touch(&self, environment: Option<&Environment>) -> bool {
        match &self.environments {
            None => true,
            Some(allowed) => environment.is_some_and(|asked| allowed.contains(asked)),
        }
    }

    /// Refuses a caller whose role does not reach.
    pub fn require(&self, needed: Role) -> Result<(), ApiError> {
        if self.role.may(needed) {
            return Ok(());
        }
        let Caller { role, .. } = self;
        let detail = match self.who {
            Who::Key(_) => {
                format!("This needs a key with the role `{needed}`; this one has `{role}`.")
            }
            Who::User(_) => format!("This needs the role `{needed}`; yours is `{role}`."),
        };
        Err(ApiError::new(Code::Forbidden, detail))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
            tracing::error!(
                path = parts.uri.path(),
                "a route asks for its caller and states no role"
            );
            internal()
        })
    }
}

/// Finds out who is asking.
pub(crate) async fn identify(
    app: &App,
    headers: &HeaderMap,
    peer: Option<Peer>,
) -> Result<(Caller, KeyId, Credential), ApiError> {
    let Some(text) = bearer(headers)? else {
        return Err(refusal("Send an API key: `Authorization: Bearer fmk_…`."));
    };
    let key = match app.keys().admit(app, text).await {
        Ok(key) => key,
        Err(Refused::Service(error)) => return Err(error.into()),
        Err(refused) => {
            let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(peer)| peer.ip());
            app.limits().bad_credential(address)?;
            return Err(refusal(match refused {
                Refused::Expired => "This API key has expired.",
                Refused::Revoked => "This API key was revoked.",
                Refused::Unknown | Refused::Service(_) => "This is not an API key of this service.",
            }));
        }
    };
    let caller = Caller {
        org: key.org_id,
        who: Who::Key(key.id),
        role: key.role,
        environments: key.environments.map(Arc::from),
    };
    Ok((caller, key.id, Credential::Key(text.to_owned())))
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(refusal("`Authorization` is given more than once."));
    }
    let text = value.to_str().unwrap_or("");
    let (scheme, credential) = text.split_once(' ').unwrap_or((text, ""));
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(Some(credential.trim()))
    } else {
        Err(refusal("This service takes API keys: `Authorization: Bearer fmk_…`."))
    }
}

fn refusal(detail: &str) -> ApiError {
    ApiError::new(Code::Unauthenticated, detail)
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"fleetmend\""))
}
