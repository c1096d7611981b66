//! Authentication by the API key in the `Authorization` header.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use httpkit::{ApiError, Code, Peer};
use service::auth::api_keys::KeyRejection;
use service::auth::caller::{Caller, CallerId, Credential};
use vocab::KeyId;

use crate::Api;

/// Authenticates the caller.
pub(crate) async fn authenticate(
    app: &Api,
    headers: &HeaderMap,
    peer: Option<Peer>,
) -> Result<(Caller, KeyId, Credential), ApiError> {
    let Some(text) = bearer(headers)? else {
        return Err(unauthenticated("An API key is required: `Authorization: Bearer fmk_…`."));
    };
    let key = match app.api_keys().authenticate(app, text).await {
        Ok(key) => key,
        Err(KeyRejection::Service(error)) => return Err(error.into()),
        Err(refused) => {
            let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(peer)| peer.ip());
            app.limits().count_invalid_credential(address)?;
            return Err(unauthenticated(match refused {
                KeyRejection::Expired => "This API key has expired.",
                KeyRejection::Revoked => "This API key was revoked.",
                KeyRejection::Unknown | KeyRejection::Service(_) => "Unknown API key.",
            }));
        }
    };
    let caller = Caller {
        org: key.org_id,
        id: CallerId::Key(key.id),
        role: key.role,
        environments: key.environments.map(Arc::from),
    };
    Ok((caller, key.id, Credential::Key(text.to_owned())))
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(unauthenticated("`Authorization` was sent more than once."));
    }
    let text = value.to_str().unwrap_or("");
    let (scheme, credential) = text.split_once(' ').unwrap_or((text, ""));
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(Some(credential.trim()))
    } else {
        Err(unauthenticated(
            "Unsupported authentication scheme. Send an API key: `Authorization: Bearer fmk_…`.",
        ))
    }
}

fn unauthenticated(detail: &str) -> ApiError {
    ApiError::new(Code::Unauthenticated, detail)
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"fleetmend\""))
}
