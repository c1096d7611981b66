//! The user's own account page: turns two-factor authentication on and off.

use axum::Extension;
use axum::extract::State;
use httpkit::Peer;
use httpkit::problem::ApiError;
use service::ServiceError;
use service::auth::two_factor;

use crate::extract::Form;
use crate::login::client_address;
use crate::pages::Section;
use crate::response::{PageResult, error_sentences, frame, invalid_input, page, redirect};
use crate::{Dashboard, Viewer, pages};

fn account_page(
    app: &Dashboard,
    viewer: &Viewer,
    secret: Option<String>,
    message: Option<String>,
) -> pages::Account {
    let name = viewer.user.name.replace([':', '%', '?', '&', '#', ' ', '/'], "_");
    let uri = format!(
        "otpauth://totp/Fleetmend:{name}?issuer=Fleetmend&secret={}",
        secret.as_deref().unwrap_or("")
    );
    let frame = frame(app, viewer, Section::Account, "Account");
    pages::Account { frame, has_totp: viewer.user.totp_secret.is_some(), secret, uri, message }
}

pub(crate) async fn show(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    page(&account_page(&app, &viewer, None, None))
}

/// Turns two-factor authentication on or off. Without a code, shows the secret for the
/// authenticator app.
pub(crate) async fn totp(
    State(app): State<Dashboard>,
    viewer: Viewer,
    peer: Option<Extension<Peer>>,
    form: Form,
) -> PageResult {
    let (secret, code) = (form.text("secret"), form.text("code"));
    // A request without a code guesses nothing, so it is not throttled.
    if !code.is_empty() {
        app.throttle().count_code(Some(viewer.user.id), client_address(peer))?;
    }
    let done = match (viewer.user.totp_secret.is_some(), secret.is_empty()) {
        (true, _) => two_factor::turn_off(&app, &viewer.user, &code).await,
        (false, true) => {
            return page(&account_page(&app, &viewer, Some(two_factor::new_secret()), None));
        }
        (false, false) => two_factor::turn_on(&app, &viewer.user, &secret, &code).await,
    };
    match done {
        Ok(()) => redirect("/account"),
        Err(ServiceError::Invalid(errors)) => {
            let message = Some(error_sentences(&ApiError::invalid(errors)).join("; "));
            invalid_input(&account_page(
                &app,
                &viewer,
                (!secret.is_empty()).then_some(secret),
                message,
            ))
        }
        Err(error) => Err(error.into()),
    }
}
