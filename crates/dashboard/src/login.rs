//! Sign-in, sign-out, two-factor codes and invitation links.

use std::net::{IpAddr, Ipv4Addr};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{SET_COOKIE, USER_AGENT};
use axum::http::{HeaderMap, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use httpkit::Peer;
use httpkit::problem::{ApiError, Code};
use service::auth::sessions::{Client, SESSION_TTL};
use service::auth::two_factor::PendingSignIn;
use service::auth::users::SignInOutcome;
use service::auth::{sessions, two_factor as second, users};
use service::clock::random_bytes;
use service::queries::users::User;
use service::{ServiceError, queries};
use vocab::OrgId;

use crate::extract::{PageQuery, SignInForm};
use crate::login_throttle::BrowserHistory;
use crate::response::{
    PageResult, error_sentences, invalid_input, invalid_input_with, page, redirect,
};
use crate::{Dashboard, Viewer, cookies, pages};

/// How long a browser that signed in stays recognized.
const DEVICE_SECONDS: i64 = 180 * 86_400;
/// Length of each part of the device cookie.
const DEVICE_BYTES: usize = 16;
const DEVICE_ACCOUNT_PURPOSE: &str = "fleetmend device of any account v1";
const DEVICE_TAG_PURPOSE: &str = "fleetmend device v1";
/// The target path has to fit into the OIDC cookie and into a sign-in form of 4 KiB.
const NEXT_BYTES_MAX: usize = 1_000;
pub(crate) const BUSY: &str = "Too many sign-in attempts right now. Try again in a minute.";
pub(crate) const PASSWORDS_DIFFER: &str = "The passwords do not match.";
const WRONG_PASSWORD: &str = "Incorrect username or password.";

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NextQuery {
    #[serde(default)]
    next: String,
}

impl NextQuery {
    pub(crate) fn path(&self) -> String {
        local_path(&self.next)
    }
}

/// The sign-in page.
pub(crate) async fn show(
    State(app): State<Dashboard>,
    PageQuery { parameters: meant, .. }: PageQuery<NextQuery>,
) -> PageResult {
    page(&sign_in_page(&app, SignInInput::default(), meant.path(), None).await?)
}

/// What the user typed into the sign-in form, except the password.
#[derive(Default)]
pub(crate) struct SignInInput {
    /// The organization; empty for the oldest one.
    organization: String,
    name: String,
}

impl SignInInput {
    /// The key for the rate limit per account. It includes the organization: otherwise users of one
    /// organization could lock out users with the same name in another.
    fn account_key(&self, org: Option<OrgId>) -> String {
        match org {
            Some(org) => account_key(org, &self.name),
            None => format!("{}/{}", self.organization, self.name),
        }
    }
}

/// The key of a user: the organization and the name.
fn account_key(org: OrgId, name: &str) -> String {
    format!("{org}/{name}")
}

/// The sign-in page with every configured sign-in method.
pub(crate) async fn sign_in_page(
    app: &Dashboard,
    input: SignInInput,
    next: String,
    message: Option<String>,
) -> Result<pages::SignIn, ApiError> {
    let provider = app.oidc().map(|provider| provider.config.name.clone());
    let several = queries::users::has_several_organizations(app).await?;
    let organization = several.then_some(input.organization);
    Ok(pages::SignIn { organization, name: input.name, next, message, provider })
}

/// Restricts `next` to a path of this service, to prevent open redirects from the sign-in page.
pub(crate) fn local_path(next: &str) -> String {
    let ours = next.starts_with('/')
        && !next.starts_with("//")
        && next.len() <= NEXT_BYTES_MAX
        && !next.contains(|letter: char| letter == '\\' || letter.is_control());
    if ours { next.to_owned() } else { "/".to_owned() }
}

/// Signs in with a name and a password.
pub(crate) async fn sign_in(
    State(app): State<Dashboard>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> PageResult {
    let name = users::normalize_name(&form.text("name"));
    let organization = form.text("organization").trim().to_owned();
    let (typed, next) = (SignInInput { organization, name }, local_path(&form.text("next")));
    let is_sound = users::is_valid_name(&typed.name)
        && (typed.organization.is_empty() || users::is_valid_name(&typed.organization));
    let from = client_address(peer);
    let device =
        cookies::read(&headers, cookies::DEVICE).filter(|device| is_issued_here(&app, device));
    // Throttle before the first query, so that excessive attempts cost no database access.
    if let Err(error) = app.throttle().count_attempt(from, device) {
        return throttled_page(&app, typed, next, &error);
    }
    let org = match is_sound {
        true => users::find_organization(&app, &typed.organization).await?,
        false => None,
    };
    let account = typed.account_key(org);
    let browser = match device {
        Some(device) if has_signed_in_as(&app, device, &account) => BrowserHistory::SameUser,
        Some(_) => BrowserHistory::OtherUser,
        None => BrowserHistory::NoCookie,
    };
    if let Err(error) = app.throttle().count_name(&account, from, browser) {
        return throttled_page(&app, typed, next, &error);
    }
    if !is_sound {
        return invalid_input(
            &sign_in_page(&app, SignInInput::default(), next, Some(WRONG_PASSWORD.into())).await?,
        );
    }
    let is_known = browser == BrowserHistory::SameUser;
    let client = sign_in_client(from, &headers);
    match users::sign_in(&app, org, &typed.name, form.raw("password"), is_known, &client).await? {
        SignInOutcome::SignedIn(user, session) => signed_in(&app, &headers, &user, &session, &next),
        SignInOutcome::NeedsCode { ticket } => page(&pages::Code { next, ticket, message: None }),
        SignInOutcome::Rejected => {
            invalid_input(&sign_in_page(&app, typed, next, Some(WRONG_PASSWORD.into())).await?)
        }
        SignInOutcome::Busy => {
            throttled_page(&app, typed, next, &ApiError::new(Code::RateLimited, BUSY))
        }
    }
}

/// The second step of a sign-in: a code from the authenticator app.
pub(crate) async fn code(
    State(app): State<Dashboard>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> PageResult {
    let (ticket, next) = (form.text("ticket"), local_path(&form.text("next")));
    let begin_again = async || {
        let message = Some("The sign-in timed out. Sign in again.".into());
        invalid_input(&sign_in_page(&app, SignInInput::default(), next.clone(), message).await?)
    };
    let again = |status, message: &str| {
        let (next, ticket) = (next.clone(), ticket.clone());
        invalid_input_with(status, &pages::Code { next, ticket, message: Some(message.to_owned()) })
    };
    let (first, from) = (PendingSignIn::read(&app, &ticket).await?, client_address(peer));
    // Only a valid ticket counts against its user; otherwise anyone could lock that user out.
    if let Err(error) = app.throttle().count_code(first.as_ref().map(PendingSignIn::owner), from) {
        return again(StatusCode::TOO_MANY_REQUESTS, error.detail());
    }
    let Some(first) = first else { return begin_again().await };
    let client = sign_in_client(from, &headers);
    match second::sign_in(&app, first, &form.text("code"), &client).await? {
        SignInOutcome::SignedIn(user, session) => signed_in(&app, &headers, &user, &session, &next),
        SignInOutcome::NeedsCode { .. } => {
            again(StatusCode::UNPROCESSABLE_ENTITY, "Incorrect or expired code.")
        }
        SignInOutcome::Rejected | SignInOutcome::Busy => begin_again().await,
    }
}

/// The client's address.
pub(crate) fn client_address(peer: Option<Extension<Peer>>) -> IpAddr {
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Extension(Peer(peer))| peer.ip())
}

/// What a new session records about its client.
pub(crate) fn sign_in_client(from: IpAddr, headers: &HeaderMap) -> Client {
    let user_agent = headers.get(USER_AGENT).and_then(|text| text.to_str().ok());
    Client::new((!from.is_unspecified()).then_some(from), user_agent.unwrap_or(""))
}

/// The sign-in page for a client that tried too often. It needs no database query.
fn throttled_page(
    app: &Dashboard,
    input: SignInInput,
    next: String,
    error: &ApiError,
) -> PageResult {
    let provider = app.oidc().map(|provider| provider.config.name.clone());
    let organization = (!input.organization.is_empty()).then_some(input.organization);
    let message = Some(error.detail().to_owned());
    let page = pages::SignIn { organization, name: input.name, next, message, provider };
    invalid_input_with(StatusCode::TOO_MANY_REQUESTS, &page)
}

/// The device cookie of a browser that signed in to `account_key`: random bytes, a tag for the
/// account, and a tag over both. The last tag identifies the cookie as ours before the account is
/// known.
fn device_cookie(app: &Dashboard, account: &str) -> String {
    let random = random_bytes::<DEVICE_BYTES>();
    let of_account = account_tag(app, &random, account);
    let ours = app.secrets.tag(DEVICE_ACCOUNT_PURPOSE, &[&random, &of_account]);
    URL_SAFE_NO_PAD.encode([&random[..], &of_account, &ours[..DEVICE_BYTES]].concat())
}

fn account_tag(app: &Dashboard, random: &[u8], account: &str) -> Vec<u8> {
    app.secrets.tag(DEVICE_TAG_PURPOSE, &[random, account.as_bytes()])[..DEVICE_BYTES].to_vec()
}

/// The three parts of a device cookie.
fn device_parts(device: &str) -> Option<[Vec<u8>; 3]> {
    let bytes = URL_SAFE_NO_PAD.decode(device).ok()?;
    let parts: Vec<Vec<u8>> = bytes.chunks(DEVICE_BYTES).map(<[u8]>::to_vec).collect();
    parts.try_into().ok()
}

/// Whether this service issued the device cookie.
fn is_issued_here(app: &Dashboard, device: &str) -> bool {
    let Some([random, of_account, shown]) = device_parts(device) else { return false };
    app.secrets.verifies(DEVICE_ACCOUNT_PURPOSE, &[&random, &of_account], DEVICE_BYTES, &shown)
}

/// Whether the browser signed in to `account_key` before. Check [`is_issued_here`] first.
fn has_signed_in_as(app: &Dashboard, device: &str, account: &str) -> bool {
    let Some([random, of_account, _]) = device_parts(device) else { return false };
    app.secrets.verifies(
        DEVICE_TAG_PURPOSE,
        &[&random, account.as_bytes()],
        DEVICE_BYTES,
        &of_account,
    )
}

fn signed_in(
    app: &Dashboard,
    headers: &HeaderMap,
    user: &User,
    session: &str,
    next: &str,
) -> PageResult {
    with_session_cookies(app, headers, user, session, redirect(next)?)
}

/// Sets the session cookie and the device cookie.
pub(crate) fn with_session_cookies(
    app: &Dashboard,
    headers: &HeaderMap,
    user: &User,
    session: &str,
    mut response: Response<Body>,
) -> PageResult {
    let session =
        cookies::session_cookie(app, headers, cookies::SESSION, session, SESSION_TTL.as_secs());
    let known = device_cookie(app, &account_key(user.org_id, &user.name));
    let device = cookies::session_cookie(app, headers, cookies::DEVICE, &known, DEVICE_SECONDS);
    response.headers_mut().append(SET_COOKIE, session);
    response.headers_mut().append(SET_COOKIE, device);
    Ok(response)
}

pub(crate) async fn sign_out(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
) -> PageResult {
    sessions::sign_out(&app, &viewer.session).await?;
    let mut response = redirect("/sign-in")?;
    response
        .headers_mut()
        .append(SET_COOKIE, cookies::session_cookie(&app, &headers, cookies::SESSION, "", 0));
    Ok(response)
}

fn link_invalid() -> ApiError {
    let detail = "This link was already used, has expired or was replaced. Ask an administrator for a new link \
                  (fleetmend users reset).";
    ApiError::new(Code::NotFound, detail)
}

/// The page that an invitation or reset link opens.
pub(crate) async fn show_invitation(
    State(app): State<Dashboard>,
    Path(link): Path<String>,
) -> PageResult {
    let user = users::user_of_link(&app, &link).await?.ok_or_else(link_invalid)?;
    page(&pages::Welcome { name: user.name, message: None })
}

/// Sets the password and signs in.
pub(crate) async fn accept_invitation(
    State(app): State<Dashboard>,
    Path(link): Path<String>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> PageResult {
    let user = users::user_of_link(&app, &link).await?.ok_or_else(link_invalid)?;
    let again = |message: String| {
        invalid_input(&pages::Welcome { name: user.name.clone(), message: Some(message) })
    };
    if form.raw("password") != form.raw("again") {
        return again(PASSWORDS_DIFFER.into());
    }
    let client = sign_in_client(client_address(peer), &headers);
    match users::accept_invitation(&app, &link, form.raw("password"), &client).await {
        Ok(Some((user, session))) => signed_in(&app, &headers, &user, &session, "/"),
        Ok(None) => Err(link_invalid()),
        Err(ServiceError::Invalid(errors)) => {
            again(error_sentences(&ApiError::invalid(errors)).join("; "))
        }
        Err(error) => Err(error.into()),
    }
}
