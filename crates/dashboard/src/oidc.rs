//! OIDC sign-in: the redirect to the identity provider, and the callback.
//!
//! Every failure returns to the sign-in page with the reason and what to do. Signing in with a
//! password keeps working.

use axum::Extension;
use axum::extract::State;
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use httpkit::Peer;
use httpkit::problem::{ApiError, Code};
use service::auth::oidc::{AuthRequest, OidcError, OidcIdentity, Provider};
use service::auth::sso as federated;
use service::auth::sso::SsoRefusal;
use service::auth::users::SignInOutcome;

use crate::extract::PageQuery;
use crate::login::{
    NextQuery, SignInInput, client_address, sign_in_client, sign_in_page, with_session_cookies,
};
use crate::oidc_state::{OidcState, VALID_FOR, is_same};
use crate::response::{PageResult, invalid_input_with, page};
use crate::{Dashboard, cookies, pages};

/// The parameters of the provider's callback. Unknown parameters are allowed.
#[derive(Debug, Default, serde::Deserialize)]
pub(crate) struct CallbackQuery {
    #[serde(default)]
    code: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    iss: String,
    #[serde(default)]
    error: String,
}

/// Why a sign-in failed: the status and the sentence for the user.
type SignInFailure = (StatusCode, String);

fn provider(app: &Dashboard) -> Result<&Provider, ApiError> {
    let none = || ApiError::new(Code::NotFound, "Single sign-on is not configured.");
    app.oidc().ok_or_else(none)
}

fn auth_request(app: &Dashboard, headers: &HeaderMap, oidc_state: &OidcState) -> AuthRequest {
    oidc_state.auth_request(app, format!("{}/sign-in/oidc/back", cookies::base_url(app, headers)))
}

/// Redirects the browser to the identity provider.
pub(crate) async fn begin(
    State(app): State<Dashboard>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    PageQuery { parameters: meant, .. }: PageQuery<NextQuery>,
) -> PageResult {
    let provider = provider(&app)?;
    let state = OidcState::begin(&app, meant.path());
    if let Err(error) = app.throttle().count_redirect(client_address(peer)) {
        return sign_in_failed(&app, &headers, state.next, rate_limited(&error)).await;
    }
    match provider.authorization_url(app.clock.now(), &auth_request(&app, &headers, &state)).await {
        Err(error) => {
            sign_in_failed(&app, &headers, state.next, provider_failure(provider, &error)).await
        }
        Ok(there) => {
            let cookie = state.cookie(&app);
            let cookie = cookies::oidc_cookie(&app, &headers, &cookie, VALID_FOR.as_secs());
            let there = there.to_string();
            Ok((StatusCode::SEE_OTHER, [(LOCATION, there)], [(SET_COOKIE, cookie)]).into_response())
        }
    }
}

/// The callback: signs the user in, or shows why not.
pub(crate) async fn callback(
    State(app): State<Dashboard>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    PageQuery { parameters: meant, .. }: PageQuery<CallbackQuery>,
) -> PageResult {
    let (provider, from) = (provider(&app)?, client_address(peer));
    let state =
        cookies::read(&headers, cookies::OIDC_STATE).and_then(|text| OidcState::parse(&app, text));
    // If the sign-in was started in another browser, was already used or has expired, no other
    // parameter is read.
    let begun =
        state.filter(|flow| is_same(&meant.state, &auth_request(&app, &headers, flow).state));
    let Some(flow) = begun else {
        let message = "This sign-in was started in another browser, was already used, or has expired. Sign in again.";
        return sign_in_failed(
            &app,
            &headers,
            "/".into(),
            (StatusCode::UNPROCESSABLE_ENTITY, message.into()),
        )
        .await;
    };
    if let Err(error) = app.throttle().count_redirect(from) {
        return sign_in_failed(&app, &headers, flow.next, rate_limited(&error)).await;
    }
    let person = match redeem(&app, provider, &auth_request(&app, &headers, &flow), &meant).await {
        Ok(person) => person,
        Err(message) => return sign_in_failed(&app, &headers, flow.next, message).await,
    };
    let client = sign_in_client(from, &headers);
    match federated::sign_in(&app, &provider.config, &person, &client).await? {
        Ok(signed) => sign_in(&app, &headers, signed, flow.next).await,
        Err(refusal) => {
            tracing::warn!(
                subject = person.subject,
                ?refusal,
                "rejected a user of the identity provider"
            );
            let message = (StatusCode::FORBIDDEN, refusal_message(provider, refusal, &person));
            sign_in_failed(&app, &headers, flow.next, message).await
        }
    }
}

fn rate_limited(error: &ApiError) -> SignInFailure {
    (StatusCode::TOO_MANY_REQUESTS, error.detail().to_owned())
}

/// Validates the callback and redeems the code for the user's claims.
async fn redeem(
    app: &Dashboard,
    provider: &Provider,
    auth_request: &AuthRequest,
    back: &CallbackQuery,
) -> Result<OidcIdentity, SignInFailure> {
    let now = app.clock.now();
    let ours = provider.accepts_response_issuer(now, &back.iss).await;
    if !ours.map_err(|error| provider_failure(provider, &error))? {
        let error = OidcError::InvalidToken("the response came from a different issuer".into());
        return Err(provider_failure(provider, &error));
    }
    if !back.error.is_empty() || back.code.is_empty() {
        return Err((StatusCode::FORBIDDEN, provider_error_message(provider, &back.error)));
    }
    provider
        .redeem(now, auth_request, &back.code)
        .await
        .map_err(|error| provider_failure(provider, &error))
}

async fn sign_in(
    app: &Dashboard,
    headers: &HeaderMap,
    signed: SignInOutcome,
    next: String,
) -> PageResult {
    let mut response = match signed {
        SignInOutcome::SignedIn(user, session) => {
            with_session_cookies(app, headers, &user, &session, page(&pages::Arrived { next })?)?
        }
        SignInOutcome::NeedsCode { ticket } => page(&pages::Code { next, ticket, message: None })?,
        SignInOutcome::Rejected | SignInOutcome::Busy => {
            page(&sign_in_page(app, SignInInput::default(), next, None).await?)?
        }
    };
    response.headers_mut().append(SET_COOKIE, clear_state_cookie(app, headers));
    Ok(response)
}

/// Back to the sign-in page. The state cookie is removed in any case.
async fn sign_in_failed(
    app: &Dashboard,
    headers: &HeaderMap,
    next: String,
    (status, message): SignInFailure,
) -> PageResult {
    let mut response = invalid_input_with(
        status,
        &sign_in_page(app, SignInInput::default(), next, Some(message)).await?,
    )?;
    response.headers_mut().append(SET_COOKIE, clear_state_cookie(app, headers));
    Ok(response)
}

fn clear_state_cookie(app: &Dashboard, headers: &HeaderMap) -> axum::http::HeaderValue {
    cookies::oidc_cookie(app, headers, "", 0)
}

/// The message for the user when the identity provider fails. The log has the details.
fn provider_failure(provider: &Provider, error: &OidcError) -> SignInFailure {
    let name = &provider.config.name;
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::warn!(%error, cause, issuer = provider.config.issuer, "OIDC sign-in failed");
    let bad = StatusCode::BAD_GATEWAY;
    match error {
        OidcError::Unreachable { .. } => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{name} does not respond. Try again later, or sign in with a password."),
        ),
        OidcError::RejectedCode(_) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!(
                "{name} rejected this sign-in: it was already used or has expired. Sign in again."
            ),
        ),
        OidcError::RejectedClient(word) => (
            bad,
            format!(
                "{name} rejected this service ({word}). An administrator should check --oidc-client-id, the client secret, and the \
                     redirect URI that is registered with {name}."
            ),
        ),
        OidcError::Unusable { what, .. } => (
            bad,
            format!(
                "The {what} of {name} is not usable; the service's log has the reason. Sign in with a password."
            ),
        ),
        OidcError::InvalidToken(why) => (
            bad,
            format!(
                "{name} returned an invalid ID token: {why}. Sign in again; if this persists, tell an administrator."
            ),
        ),
    }
}

/// The message for an error that the provider returned. Only error codes from the specification are
/// repeated.
fn provider_error_message(provider: &Provider, word: &str) -> String {
    let name = &provider.config.name;
    match word {
        "access_denied" => format!("{name} denied the request. Sign in again, or use a password."),
        "login_required"
        | "interaction_required"
        | "consent_required"
        | "account_selection_required" => {
            format!("{name} requires you to sign in there first. Then sign in here again.")
        }
        "temporarily_unavailable" | "server_error" => {
            format!(
                "{name} is temporarily unavailable. Try again later, or sign in with a password."
            )
        }
        "invalid_request"
        | "unauthorized_client"
        | "unsupported_response_type"
        | "invalid_scope" => {
            format!(
                "{name} rejected this service ({word}). Ask an administrator to check its registration at {name}."
            )
        }
        _ => format!("{name} returned an error. Sign in again, or use a password."),
    }
}

/// Why a user of the identity provider may not sign in, and what they can do.
fn refusal_message(provider: &Provider, refusal: SsoRefusal, identity: &OidcIdentity) -> String {
    let name = &provider.config.name;
    let email = identity.email.as_deref().unwrap_or("your address");
    match refusal {
        SsoRefusal::NotVerified => {
            format!(
                "{name} has not verified your email address. Verify it there, then sign in again."
            )
        }
        SsoRefusal::NotInvited => {
            format!(
                "No user here is named {email}. Ask an administrator to invite {email}, then sign in again."
            )
        }
        SsoRefusal::Removed => {
            format!("{email} was removed. An administrator can invite you again.")
        }
        SsoRefusal::LinkedToAnother => {
            format!(
                "{email} is linked to a different account of {name}. If it is yours, ask an administrator to reset the user, then sign in again."
            )
        }
        SsoRefusal::NoRole => {
            format!(
                "{name} assigns you no role in this service. Ask the administrator of {name} to add you to a group that has one."
            )
        }
    }
}
