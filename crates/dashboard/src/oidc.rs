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
use service::auth::oidc::{Attempt, OidcError, Person, Provider};
use service::auth::sso as federated;
use service::auth::sso::Refusal;
use service::auth::users::SignIn;

use crate::extract::Asked;
use crate::login::{Next, Typed, address, door, remembered};
use crate::oidc_state::{Flow, LIVES, is_same};
use crate::response::{Answer, page, refused_with};
use crate::{Dashboard, cookies, pages};

/// The parameters of the provider's callback. Unknown parameters are allowed.
#[derive(Debug, Default, serde::Deserialize)]
pub(crate) struct Back {
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
type Told = (StatusCode, String);

fn provider(app: &Dashboard) -> Result<&Provider, ApiError> {
    let none = || ApiError::new(Code::NotFound, "Single sign-on is not configured.");
    app.oidc().ok_or_else(none)
}

fn attempt(app: &Dashboard, headers: &HeaderMap, flow: &Flow) -> Attempt {
    flow.attempt(app, format!("{}/sign-in/oidc/back", cookies::base(app, headers)))
}

/// Redirects the browser to the identity provider.
pub(crate) async fn begin(
    State(app): State<Dashboard>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Asked { meant, .. }: Asked<Next>,
) -> Answer {
    let provider = provider(&app)?;
    let flow = Flow::begin(&app, meant.path());
    if let Err(error) = app.throttle().pass(address(peer)) {
        return refused(&app, &headers, flow.next, too_often(&error)).await;
    }
    match provider.door(app.clock.now(), &attempt(&app, &headers, &flow)).await {
        Err(error) => refused(&app, &headers, flow.next, told(provider, &error)).await,
        Ok(there) => {
            let cookie = flow.cookie(&app);
            let cookie = cookies::for_the_way_back(&app, &headers, &cookie, LIVES.as_secs());
            let there = there.to_string();
            Ok((StatusCode::SEE_OTHER, [(LOCATION, there)], [(SET_COOKIE, cookie)]).into_response())
        }
    }
}

/// The callback: signs the user in, or shows why not.
pub(crate) async fn back(
    State(app): State<Dashboard>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Asked { meant, .. }: Asked<Back>,
) -> Answer {
    let provider = provider(&app)?;
    let flow = cookies::read(&headers, cookies::FLOW).and_then(|text| Flow::read(&app, text));
    // If the sign-in was started in another browser, was already used or has expired, no other
    // parameter is read.
    let begun = flow.filter(|flow| is_same(&meant.state, &attempt(&app, &headers, flow).state));
    let Some(flow) = begun else {
        let told = "This sign-in was started in another browser, was already used, or has expired. Sign in again.";
        return refused(
            &app,
            &headers,
            "/".into(),
            (StatusCode::UNPROCESSABLE_ENTITY, told.into()),
        )
        .await;
    };
    if let Err(error) = app.throttle().pass(address(peer)) {
        return refused(&app, &headers, flow.next, too_often(&error)).await;
    }
    let person = match vouched(&app, provider, &attempt(&app, &headers, &flow), &meant).await {
        Ok(person) => person,
        Err(told) => return refused(&app, &headers, flow.next, told).await,
    };
    match federated::sign_in(&app, &provider.config, &person).await? {
        Ok(signed) => entered(&app, &headers, signed, flow.next).await,
        Err(refusal) => {
            tracing::warn!(
                subject = person.subject,
                ?refusal,
                "rejected a user of the identity provider"
            );
            let told = (StatusCode::FORBIDDEN, advice(provider, refusal, &person));
            refused(&app, &headers, flow.next, told).await
        }
    }
}

fn too_often(error: &ApiError) -> Told {
    (StatusCode::TOO_MANY_REQUESTS, error.detail().to_owned())
}

/// Validates the callback and redeems the code for the user's claims.
async fn vouched(
    app: &Dashboard,
    provider: &Provider,
    attempt: &Attempt,
    back: &Back,
) -> Result<Person, Told> {
    let now = app.clock.now();
    let ours = provider.is_its_answer(now, &back.iss).await;
    if !ours.map_err(|error| told(provider, &error))? {
        let error = OidcError::Proof("the response came from a different issuer".into());
        return Err(told(provider, &error));
    }
    if !back.error.is_empty() || back.code.is_empty() {
        return Err((StatusCode::FORBIDDEN, declined(provider, &back.error)));
    }
    provider.redeem(now, attempt, &back.code).await.map_err(|error| told(provider, &error))
}

async fn entered(app: &Dashboard, headers: &HeaderMap, signed: SignIn, next: String) -> Answer {
    let mut answer = match signed {
        SignIn::In(user, session) => {
            remembered(app, headers, &user, &session, page(&pages::Arrived { next })?)?
        }
        SignIn::NeedsCode { ticket } => page(&pages::Code { next, ticket, told: None })?,
        SignIn::No | SignIn::Busy => page(&door(app, Typed::default(), next, None).await?)?,
    };
    answer.headers_mut().append(SET_COOKIE, used_up(app, headers));
    Ok(answer)
}

/// Back to the sign-in page. The state cookie is removed in any case.
async fn refused(
    app: &Dashboard,
    headers: &HeaderMap,
    next: String,
    (status, told): Told,
) -> Answer {
    let mut answer = refused_with(status, &door(app, Typed::default(), next, Some(told)).await?)?;
    answer.headers_mut().append(SET_COOKIE, used_up(app, headers));
    Ok(answer)
}

fn used_up(app: &Dashboard, headers: &HeaderMap) -> axum::http::HeaderValue {
    cookies::for_the_way_back(app, headers, "", 0)
}

/// The message for the user when the identity provider fails. The log has the details.
fn told(provider: &Provider, error: &OidcError) -> Told {
    let name = &provider.config.name;
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::warn!(%error, cause, issuer = provider.config.issuer, "OIDC sign-in failed");
    let bad = StatusCode::BAD_GATEWAY;
    match error {
        OidcError::Unreachable { .. } => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{name} does not respond. Try again later, or sign in with a password."),
        ),
        OidcError::Code(_) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!(
                "{name} rejected this sign-in: it was already used or has expired. Sign in again."
            ),
        ),
        OidcError::Client(word) => (
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
        OidcError::Proof(why) => (
            bad,
            format!(
                "{name} returned an invalid ID token: {why}. Sign in again; if this persists, tell an administrator."
            ),
        ),
    }
}

/// The message for an error that the provider returned. Only error codes from the specification are
/// repeated.
fn declined(provider: &Provider, word: &str) -> String {
    let name = &provider.config.name;
    match word {
        "access_denied" => format!("{name} denied the request. Sign in again, or use a password."),
        "login_required"
        | "interaction_required"
        | "consent_required"
        | "account_selection_required" => {
            format!("{name} requires you to sign in there first. Sign in again.")
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
                "{name} rejected this service ({word}). An administrator should check how it is registered there."
            )
        }
        _ => format!("{name} returned an error. Sign in again, or use a password."),
    }
}

/// Why a user of the identity provider may not sign in, and what they can do.
fn advice(provider: &Provider, refusal: Refusal, person: &Person) -> String {
    let name = &provider.config.name;
    let email = person.email.as_deref().unwrap_or("your address");
    match refusal {
        Refusal::NotVerified => {
            format!(
                "{name} has not verified your email address. Verify it there, then sign in again."
            )
        }
        Refusal::NotInvited => {
            format!(
                "No user here is named {email}. Ask an administrator to invite {email}, then sign in again."
            )
        }
        Refusal::Removed => format!("{email} was removed. An administrator can invite you again."),
        Refusal::SomeoneElse => {
            format!(
                "{email} is linked to a different account of {name}. If it is yours, ask an administrator to reset the user, then sign in again."
            )
        }
        Refusal::NoRole => {
            format!(
                "{name} assigns you no role in this service. Ask the administrator of your groups there."
            )
        }
    }
}
