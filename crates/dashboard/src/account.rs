//! The user's own account page: password, second factor, sessions and color theme.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, StatusCode};
use httpkit::Peer;
use httpkit::problem::{ApiError, Code};
use service::auth::users::PasswordChange;
use service::auth::{sessions, two_factor, users};
use service::{FieldError, ServiceError};
use vocab::SessionId;

use crate::extract::{Form, PageQuery};
use crate::login::{BUSY, PASSWORDS_DIFFER, client_address};
use crate::pages::{PasswordErrors, Section, SessionRow, Theme, describe_user_agent};
use crate::response::{PageResult, appearance, frame, invalid_input_with, page, redirect};
use crate::{Dashboard, Viewer, cookies, pages};

/// What the page shows besides the state of the account.
#[derive(Default)]
struct Shown {
    notice: Option<&'static str>,
    password_errors: PasswordErrors,
    /// The secret of the authenticator that is being set up.
    secret: Option<String>,
    /// Why a code was refused.
    code_error: Option<String>,
}

async fn account_page(
    app: &Dashboard,
    viewer: &Viewer,
    shown: Shown,
) -> Result<pages::Account, ApiError> {
    let user = &viewer.user;
    let name = user.name.replace([':', '%', '?', '&', '#', ' ', '/'], "_");
    let uri = format!(
        "otpauth://totp/Fleetmend:{name}?issuer=Fleetmend&secret={}",
        shown.secret.as_deref().unwrap_or("")
    );
    let found = sessions::list(app, user).await?;
    let has_more_sessions = found.len() >= sessions::LIST_MAX as usize;
    let row = |session: sessions::Session| SessionRow {
        id: session.id,
        client: describe_user_agent(&session.user_agent),
        address: session.address,
        created_at: session.created_at,
        used_at: session.used_at,
        is_this: session.id == viewer.session_id,
    };
    Ok(pages::Account {
        frame: frame(app, viewer, Section::Account, "Account"),
        notice: shown.notice,
        has_password: user.password.is_some(),
        password_errors: shown.password_errors,
        has_totp: user.totp_secret.is_some(),
        codes_left: two_factor::recovery_codes_left(app, user).await?,
        secret: shown.secret,
        uri,
        message: shown.code_error,
        sessions: found.into_iter().map(row).collect(),
        has_more_sessions,
        theme: appearance().theme,
    })
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountQuery {
    /// What the previous form changed.
    #[serde(default)]
    done: String,
}

const NOTICES: [(&str, &str); 4] = [
    ("password", "Password changed. All your other sessions were signed out."),
    ("session", "The session was signed out."),
    ("sessions", "All your other sessions were signed out."),
    ("totp", "Two-factor authentication is off."),
];

pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    query: PageQuery<AccountQuery>,
) -> PageResult {
    let done = &query.parameters.done;
    let notice = NOTICES.iter().find(|(name, _)| name == done).map(|(_, text)| *text);
    page(&account_page(&app, &viewer, Shown { notice, ..Shown::default() }).await?)
}

/// Changes the password of a user who knows the current one.
pub(crate) async fn change_password(
    State(app): State<Dashboard>,
    viewer: Viewer,
    peer: Option<Extension<Peer>>,
    form: Form,
) -> PageResult {
    let refuse = async |status: StatusCode, password_errors: PasswordErrors| {
        let shown = Shown { password_errors, ..Shown::default() };
        invalid_input_with(status, &account_page(&app, &viewer, shown).await?)
    };
    let wrong_current =
        |detail: String| PasswordErrors { current: Some(detail), ..PasswordErrors::default() };
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    if viewer.user.password.is_none() {
        let detail = "You have no password: you sign in through an identity provider.";
        return Err(ApiError::new(Code::Conflict, detail));
    }
    if form.raw("password") != form.raw("again") {
        let again = Some(PASSWORDS_DIFFER.to_owned());
        return refuse(unprocessable, PasswordErrors { again, ..PasswordErrors::default() }).await;
    }
    if let Err(error) = app.throttle().count_password(viewer.user.id, client_address(peer)) {
        let errors = wrong_current(error.detail().to_owned());
        return refuse(StatusCode::TOO_MANY_REQUESTS, errors).await;
    }
    let (current, new) = (form.raw("current"), form.raw("password"));
    match users::change_password(&app, &viewer.user, viewer.session_id, current, new).await {
        Ok(PasswordChange::Changed) => redirect("/account?done=password"),
        Ok(PasswordChange::WrongPassword) => {
            refuse(unprocessable, wrong_current("Incorrect password.".to_owned())).await
        }
        Ok(PasswordChange::Busy) => {
            refuse(StatusCode::TOO_MANY_REQUESTS, wrong_current(BUSY.to_owned())).await
        }
        Err(ServiceError::Invalid(errors)) => {
            let new = errors.first().map(field_sentence);
            refuse(unprocessable, PasswordErrors { new, ..PasswordErrors::default() }).await
        }
        Err(error) => Err(error.into()),
    }
}

/// An error beside its field, as a sentence.
fn field_sentence(error: &FieldError) -> String {
    let mut letters = error.detail.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", letters.as_str())
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
    let is_on = viewer.user.totp_secret.is_some();
    if !is_on && secret.is_empty() {
        let secret = Some(two_factor::new_secret());
        return page(&account_page(&app, &viewer, Shown { secret, ..Shown::default() }).await?);
    }
    let done = if secret.is_empty() {
        two_factor::turn_off(&app, &viewer.user, &code).await.map(|()| None)
    } else {
        two_factor::turn_on(&app, &viewer.user, &secret, &code).await.map(Some)
    };
    match done {
        Ok(None) => redirect("/account?done=totp"),
        Ok(Some(codes)) => recovery_codes_page(&app, &viewer, codes, true),
        Err(error) => refuse_code(&app, &viewer, Some(secret), error).await,
    }
}

/// Replaces the recovery codes, and shows the new ones.
pub(crate) async fn renew_recovery_codes(
    State(app): State<Dashboard>,
    viewer: Viewer,
    peer: Option<Extension<Peer>>,
    form: Form,
) -> PageResult {
    app.throttle().count_code(Some(viewer.user.id), client_address(peer))?;
    match two_factor::renew_recovery_codes(&app, &viewer.user, &form.text("code")).await {
        Ok(codes) => recovery_codes_page(&app, &viewer, codes, false),
        Err(error) => refuse_code(&app, &viewer, None, error).await,
    }
}

fn recovery_codes_page(
    app: &Dashboard,
    viewer: &Viewer,
    codes: Vec<String>,
    was_off: bool,
) -> PageResult {
    let frame = frame(app, viewer, Section::Account, "Recovery codes");
    page(&pages::RecoveryCodes { frame, codes, was_off })
}

/// The page again, with the reason why the code was refused.
async fn refuse_code(
    app: &Dashboard,
    viewer: &Viewer,
    secret: Option<String>,
    error: ServiceError,
) -> PageResult {
    let ServiceError::Invalid(errors) = error else { return Err(error.into()) };
    let secret = secret.filter(|secret| !secret.is_empty());
    let code_error = errors.first().map(field_sentence);
    let shown = Shown { secret, code_error, ..Shown::default() };
    let page = account_page(app, viewer, shown).await?;
    invalid_input_with(StatusCode::UNPROCESSABLE_ENTITY, &page)
}

/// Ends one of the user's sessions.
pub(crate) async fn end_session(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Path(id): Path<String>,
) -> PageResult {
    let Ok(id) = id.parse::<SessionId>() else {
        let detail = "There is no such session. It may have ended already.";
        return Err(ApiError::new(Code::NotFound, detail));
    };
    match sessions::end(&app, &viewer.user, id).await {
        // It has ended meanwhile, which is what the user wanted.
        Ok(()) | Err(ServiceError::NotFound { .. }) => redirect("/account?done=session"),
        Err(error) => Err(error.into()),
    }
}

/// Ends all sessions of the user except this one.
pub(crate) async fn end_other_sessions(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    sessions::end_others(&app, &viewer.user, viewer.session_id).await?;
    redirect("/account?done=sessions")
}

/// Stores the color theme in this browser.
pub(crate) async fn choose_theme(
    State(app): State<Dashboard>,
    headers: HeaderMap,
    form: Form,
) -> PageResult {
    let chosen = Theme::from_name(&form.text("theme"));
    let mut response = redirect("/account")?;
    response.headers_mut().append(SET_COOKIE, cookies::theme_cookie(&app, &headers, chosen));
    Ok(response)
}
