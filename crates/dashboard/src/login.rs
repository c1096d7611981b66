//! Sign-in, sign-out, two-factor codes and invitation links.

use std::net::{IpAddr, Ipv4Addr};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use httpkit::Peer;
use httpkit::problem::{ApiError, Code};
use service::auth::two_factor::FirstStep;
use service::auth::users::{SESSION_LIVES, SignIn};
use service::auth::{two_factor as second, users};
use service::clock::chance;
use service::queries::users::User;
use service::{ServiceError, queries};
use vocab::OrgId;

use crate::extract::{Asked, SignInForm};
use crate::login_throttle::Browser;
use crate::response::{Answer, page, refused, refused_with, see, sentences};
use crate::{Dashboard, Viewer, cookies, pages};

/// How long a browser that signed in stays recognized.
const DEVICE_SECONDS: i64 = 180 * 86_400;
/// Length of each part of the device cookie.
const DEVICE_BYTES: usize = 16;
const DEVICE_PURPOSE: &str = "fleetmend device of any account v1";
const DEVICE: &str = "fleetmend device v1";
/// The target path has to fit into the OIDC cookie and into a sign-in form of 4 KiB.
const NEXT_BYTES_MAX: usize = 1_000;
const BUSY: &str = "Too many sign-in attempts right now. Try again in a minute.";
const WRONG: &str = "Incorrect username or password.";

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Next {
    #[serde(default)]
    next: String,
}

impl Next {
    pub(crate) fn path(&self) -> String {
        inside(&self.next)
    }
}

/// The sign-in page.
pub(crate) async fn form(State(app): State<Dashboard>, Asked { meant, .. }: Asked<Next>) -> Answer {
    page(&door(&app, Typed::default(), meant.path(), None).await?)
}

/// What the user typed into the sign-in form, except the password.
#[derive(Default)]
pub(crate) struct Typed {
    /// The organization; empty for the oldest one.
    organization: String,
    name: String,
}

impl Typed {
    /// The key for the rate limit per account. It includes the organization: otherwise users of one
    /// organization could lock out users with the same name in another.
    fn account(&self, org: Option<OrgId>) -> String {
        match org {
            Some(org) => account(org, &self.name),
            None => format!("{}/{}", self.organization, self.name),
        }
    }
}

/// The key of a user: the organization and the name.
fn account(org: OrgId, name: &str) -> String {
    format!("{org}/{name}")
}

/// The sign-in page with every configured sign-in method.
pub(crate) async fn door(
    app: &Dashboard,
    typed: Typed,
    next: String,
    told: Option<String>,
) -> Result<pages::SignIn, ApiError> {
    let provider = app.oidc().map(|provider| provider.config.name.clone());
    let several = queries::users::has_several_organizations(app).await?;
    let organization = several.then_some(typed.organization);
    Ok(pages::SignIn { organization, name: typed.name, next, told, provider })
}

/// Restricts `next` to a path of this service, to prevent open redirects from the sign-in page.
pub(crate) fn inside(next: &str) -> String {
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
) -> Answer {
    let name = users::plain_name(&form.text("name"));
    let organization = form.text("organization").trim().to_owned();
    let (typed, next) = (Typed { organization, name }, inside(&form.text("next")));
    let is_sound = users::may_be_a_name(&typed.name)
        && (typed.organization.is_empty() || users::may_be_a_name(&typed.organization));
    let from = address(peer);
    let device = cookies::read(&headers, cookies::DEVICE).filter(|device| is_ours(&app, device));
    // Throttle before the first query, so that excessive attempts cost no database access.
    if let Err(error) = app.throttle().arrive(from, device) {
        return throttled(&app, typed, next, &error);
    }
    let org = match is_sound {
        true => users::organization(&app, &typed.organization).await?,
        false => None,
    };
    let account = typed.account(org);
    let browser = match device {
        Some(device) if is_known(&app, device, &account) => Browser::Known,
        Some(_) => Browser::OfAnother,
        None => Browser::Unknown,
    };
    if let Err(error) = app.throttle().knock(&account, from, browser) {
        return throttled(&app, typed, next, &error);
    }
    if !is_sound {
        return refused(&door(&app, Typed::default(), next, Some(WRONG.into())).await?);
    }
    let is_known = browser == Browser::Known;
    match users::sign_in(&app, org, &typed.name, form.exact("password"), is_known).await? {
        SignIn::In(user, session) => entered(&app, &headers, &user, &session, &next),
        SignIn::NeedsCode { ticket } => page(&pages::Code { next, ticket, told: None }),
        SignIn::No => refused(&door(&app, typed, next, Some(WRONG.into())).await?),
        SignIn::Busy => throttled(&app, typed, next, &ApiError::new(Code::RateLimited, BUSY)),
    }
}

/// The second step of a sign-in: a code from the authenticator app.
pub(crate) async fn code(
    State(app): State<Dashboard>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> Answer {
    let (ticket, next) = (form.text("ticket"), inside(&form.text("next")));
    let begin_again = async || {
        let told = Some("The sign-in timed out. Sign in again.".into());
        refused(&door(&app, Typed::default(), next.clone(), told).await?)
    };
    let again = |status, told: &str| {
        let (next, ticket) = (next.clone(), ticket.clone());
        refused_with(status, &pages::Code { next, ticket, told: Some(told.to_owned()) })
    };
    let first = FirstStep::read(&app, &ticket).await?;
    // Only a valid ticket counts against its user; otherwise anyone could lock that user out.
    if let Err(error) = app.throttle().code(first.as_ref().map(FirstStep::owner), address(peer)) {
        return again(StatusCode::TOO_MANY_REQUESTS, error.detail());
    }
    let Some(first) = first else { return begin_again().await };
    match second::sign_in(&app, first, &form.text("code")).await? {
        SignIn::In(user, session) => entered(&app, &headers, &user, &session, &next),
        SignIn::NeedsCode { .. } => {
            again(StatusCode::UNPROCESSABLE_ENTITY, "Incorrect or expired code.")
        }
        SignIn::No | SignIn::Busy => begin_again().await,
    }
}

/// The client's address.
pub(crate) fn address(peer: Option<Extension<Peer>>) -> IpAddr {
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Extension(Peer(peer))| peer.ip())
}

/// The sign-in page for a client that tried too often. It needs no database query.
fn throttled(app: &Dashboard, typed: Typed, next: String, error: &ApiError) -> Answer {
    let provider = app.oidc().map(|provider| provider.config.name.clone());
    let organization = (!typed.organization.is_empty()).then_some(typed.organization);
    let told = Some(error.detail().to_owned());
    let page = pages::SignIn { organization, name: typed.name, next, told, provider };
    refused_with(StatusCode::TOO_MANY_REQUESTS, &page)
}

/// The device cookie of a browser that signed in to `account`: random bytes, a tag for the account,
/// and a tag over both. The last tag identifies the cookie as ours before the account is known.
fn device(app: &Dashboard, account: &str) -> String {
    let random = chance::<DEVICE_BYTES>();
    let of_account = account_tag(app, &random, account);
    let ours = app.secrets.tag(DEVICE_PURPOSE, &[&random, &of_account]);
    URL_SAFE_NO_PAD.encode([&random[..], &of_account, &ours[..DEVICE_BYTES]].concat())
}

fn account_tag(app: &Dashboard, random: &[u8], account: &str) -> Vec<u8> {
    app.secrets.tag(DEVICE, &[random, account.as_bytes()])[..DEVICE_BYTES].to_vec()
}

/// The three parts of a device cookie.
fn device_parts(device: &str) -> Option<[Vec<u8>; 3]> {
    let bytes = URL_SAFE_NO_PAD.decode(device).ok()?;
    let parts: Vec<Vec<u8>> = bytes.chunks(DEVICE_BYTES).map(<[u8]>::to_vec).collect();
    parts.try_into().ok()
}

/// Whether this service issued the device cookie.
fn is_ours(app: &Dashboard, device: &str) -> bool {
    let Some([random, of_account, shown]) = device_parts(device) else { return false };
    app.secrets.verifies(DEVICE_PURPOSE, &[&random, &of_account], DEVICE_BYTES, &shown)
}

/// Whether the browser signed in to `account` before. Check [`is_ours`] first.
fn is_known(app: &Dashboard, device: &str, account: &str) -> bool {
    let Some([random, of_account, _]) = device_parts(device) else { return false };
    app.secrets.verifies(DEVICE, &[&random, account.as_bytes()], DEVICE_BYTES, &of_account)
}

fn entered(app: &Dashboard, headers: &HeaderMap, user: &User, session: &str, next: &str) -> Answer {
    remembered(app, headers, user, session, see(next)?)
}

/// Sets the session cookie and the device cookie.
pub(crate) fn remembered(
    app: &Dashboard,
    headers: &HeaderMap,
    user: &User,
    session: &str,
    mut answer: Response<Body>,
) -> Answer {
    let session = cookies::make(app, headers, cookies::SESSION, session, SESSION_LIVES.as_secs());
    let known = device(app, &account(user.org_id, &user.name));
    let device = cookies::make(app, headers, cookies::DEVICE, &known, DEVICE_SECONDS);
    answer.headers_mut().append(SET_COOKIE, session);
    answer.headers_mut().append(SET_COOKIE, device);
    Ok(answer)
}

pub(crate) async fn sign_out(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
) -> Answer {
    users::sign_out(&app, &viewer.session).await?;
    let mut answer = see("/sign-in")?;
    answer.headers_mut().append(SET_COOKIE, cookies::make(&app, &headers, cookies::SESSION, "", 0));
    Ok(answer)
}

fn used_up() -> ApiError {
    let detail = "This link was already used, has expired or was replaced. Ask an administrator for a new link \
                  (fleetmend users reset).";
    ApiError::new(Code::NotFound, detail)
}

/// The page that an invitation or reset link opens.
pub(crate) async fn invited(State(app): State<Dashboard>, Path(link): Path<String>) -> Answer {
    let user = users::invited(&app, &link).await?.ok_or_else(used_up)?;
    page(&pages::Welcome { name: user.name, told: None })
}

/// Sets the password and signs in.
pub(crate) async fn accept(
    State(app): State<Dashboard>,
    Path(link): Path<String>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> Answer {
    let user = users::invited(&app, &link).await?.ok_or_else(used_up)?;
    let again =
        |told: String| refused(&pages::Welcome { name: user.name.clone(), told: Some(told) });
    if form.exact("password") != form.exact("again") {
        return again("The passwords do not match.".into());
    }
    match users::accept(&app, &link, form.exact("password")).await {
        Ok(Some((user, session))) => entered(&app, &headers, &user, &session, "/"),
        Ok(None) => Err(used_up()),
        Err(ServiceError::Invalid(errors)) => {
            again(sentences(&ApiError::invalid(errors)).join("; "))
        }
        Err(error) => Err(error.into()),
    }
}
