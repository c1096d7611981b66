//! Authentication by the API key in the `Authorization` header.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use httpkit::{ApiError, Code, Peer};
use service::auth::api_keys::Refused;
use service::auth::caller::{Caller, Credential, Who};
use vocab::KeyId;

use crate::Api;

/// Authenticates the caller.
pub(crate) async fn identify(
    app: &Api,
    headers: &HeaderMap,
    peer: Option<Peer>,
) -> Result<(Caller, KeyId, Credential), ApiError> {
    let Some(text) = bearer(headers)? else {
        return Err(refusal("An API key is required: `Authorization: Bearer fmk_…`."));
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
                Refused::Unknown | Refused::Service(_) => "Unknown API key.",
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
        return Err(refusal("`Authorization` was sent more than once."));
    }
    let text = value.to_str().unwrap_or("");
    let (scheme, credential) = text.split_once(' ').unwrap_or((text, ""));
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(Some(credential.trim()))
    } else {
        Err(refusal(
            "Unsupported authentication scheme. Send an API key: `Authorization: Bearer fmk_…`.",
        ))
    }
}

fn refusal(detail: &str) -> ApiError {
    ApiError::new(Code::Unauthenticated, detail)
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"fleetmend\""))
}
