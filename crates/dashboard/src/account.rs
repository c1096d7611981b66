//! One's own account: the second factor.

use axum::Extension;
use axum::extract::State;
use httpkit::Peer;
use httpkit::problem::ApiError;
use service::ServiceError;
use service::auth::two_factor;

use crate::extract::Form;
use crate::login::address;
use crate::pages::Section;
use crate::response::{Answer, frame, page, refused, see, sentences};
use crate::{Dashboard, Viewer, pages};

fn shown(
    app: &Dashboard,
    viewer: &Viewer,
    secret: Option<String>,
    told: Option<String>,
) -> pages::Account {
    let name = viewer.user.name.replace([':', '%', '?', '&', '#', ' ', '/'], "_");
    let uri = format!(
        "otpauth://totp/Fleetmend:{name}?issuer=Fleetmend&secret={}",
        secret.as_deref().unwrap_or("")
    );
    let frame = frame(app, viewer, Section::Account, "Account");
    pages::Account { frame, has_totp: viewer.user.totp_secret.is_some(), secret, uri, told }
}

/// `/account`.
pub(crate) async fn account(State(app): State<Dashboard>, viewer: Viewer) -> Answer {
    page(&shown(&app, &viewer, None, None))
}

/// Turns the second factor on or off; without a code, shows what the authenticator needs.
pub(crate) async fn totp(
    State(app): State<Dashboard>,
    viewer: Viewer,
    peer: Option<Extension<Peer>>,
    form: Form,
) -> Answer {
    let (secret, code) = (form.text("secret"), form.text("code"));
    // Without a code there is nothing to guess.
    if !code.is_empty() {
        app.throttle().code(Some(viewer.user.id), address(peer))?;
    }
    let done = match (viewer.user.totp_secret.is_some(), secret.is_empty()) {
        (true, _) => two_factor::turn_off(&app, &viewer.user, &code).await,
        (false, true) => return page(&shown(&app, &viewer, Some(two_factor::propose()), None)),
        (false, false) => two_factor::turn_on(&app, &viewer.user, &secret, &code).await,
    };
    match done {
        Ok(()) => see("/account"),
        Err(ServiceError::Invalid(errors)) => {
            let told = Some(sentences(&ApiError::invalid(errors)).join("; "));
            refused(&shown(&app, &viewer, (!secret.is_empty()).then_some(secret), told))
        }
        Err(error) => Err(error.into()),
    }
}
