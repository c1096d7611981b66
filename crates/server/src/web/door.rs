//! The way in and out.

use std::net::{IpAddr, Ipv4Addr};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use store::users::User;

use crate::app::App;
use crate::clock::chance;
use crate::http::auth::Peer;
use crate::http::problem::{ApiError, Code};
use crate::service::ServiceError;
use crate::service::second;
use crate::service::users::{self, SESSION_LIVES, SignIn};
use crate::web::answer::{Answer, page, refused, refused_with, see, sentences};
use crate::web::asked::{Asked, SignInForm};
use crate::web::{Viewer, cookies};

/// How long a browser is known.
const DEVICE_SECONDS: i64 = 180 * 86_400;
const DEVICE_BYTES: usize = 16;
/// It has to fit into a cookie on the way to a provider and back, and into a sign-in form of 4 KiB.
const NEXT_BYTES_MAX: usize = 1_000;
const WRONG: &str = "Name and password do not fit.";

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

/// Where to sign in.
pub(crate) async fn form(State(app): State<App>, Asked { meant, .. }: Asked<Next>) -> Answer {
    page(&door(&app, String::new(), meant.path(), None))
}

/// The page where one signs in, by whatever ways there are.
pub(crate) fn door(app: &App, name: String, next: String, told: Option<String>) -> pages::SignIn {
    let provider = app.oidc().map(|provider| provider.config.name.clone());
    pages::SignIn { name, next, told, provider }
}

/// A path of ours: a link to the door must not lead elsewhere from there.
pub(crate) fn inside(next: &str) -> String {
    let ours = next.starts_with('/')
        && !next.starts_with("//")
        && next.len() <= NEXT_BYTES_MAX
        && !next.contains(|letter: char| letter == '\\' || letter.is_control());
    if ours { next.to_owned() } else { "/".to_owned() }
}

/// Signs in, if that is the password.
pub(crate) async fn sign_in(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> Answer {
    let (name, next) = (users::plain_name(&form.text("name")), inside(&form.text("next")));
    if let Err(error) = knock(&app, peer, &headers, &name) {
        let told = Some(error.detail().to_owned());
        return refused_with(StatusCode::TOO_MANY_REQUESTS, &door(&app, name, next, told));
    }
    if !users::may_be_a_name(&name) {
        return refused(&door(&app, String::new(), next, Some(WRONG.into())));
    }
    match users::sign_in(&app, &name, form.exact("password")).await? {
        SignIn::In(user, session) => entered(&app, &headers, &user, &session, &next),
        SignIn::NeedsCode { name, ticket } => page(&pages::Code { name, next, ticket, told: None }),
        SignIn::No => refused(&door(&app, name, next, Some(WRONG.into()))),
    }
}

/// The second step: a code of the authenticator.
pub(crate) async fn code(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> Answer {
    let (name, next) = (users::plain_name(&form.text("name")), inside(&form.text("next")));
    let ticket = form.text("ticket");
    let again = |status, told: &str| {
        let (name, next, ticket) = (name.clone(), next.clone(), ticket.clone());
        refused_with(status, &pages::Code { name, next, ticket, told: Some(told.to_owned()) })
    };
    if let Err(error) = knock(&app, peer, &headers, &name) {
        return again(StatusCode::TOO_MANY_REQUESTS, error.detail());
    }
    if !users::may_be_a_name(&name) {
        return refused(&door(&app, String::new(), next, Some(WRONG.into())));
    }
    match second::sign_in(&app, &name, &ticket, &form.text("code")).await? {
        SignIn::In(user, session) => entered(&app, &headers, &user, &session, &next),
        SignIn::NeedsCode { .. } => {
            again(StatusCode::UNPROCESSABLE_ENTITY, "That is not the code of now.")
        }
        SignIn::No => {
            let told = Some("That took too long. Begin again.".into());
            refused(&door(&app, name, next, told))
        }
    }
}

/// From where a browser comes.
pub(crate) fn address(peer: Option<Extension<Peer>>) -> IpAddr {
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Extension(Peer(peer))| peer.ip())
}

fn knock(
    app: &App,
    peer: Option<Extension<Peer>>,
    headers: &HeaderMap,
    name: &str,
) -> Result<(), ApiError> {
    let address = address(peer);
    let device = cookies::read(headers, cookies::DEVICE);
    app.gate().knock(name, address, device.filter(|device| is_known(app, device, name)))
}

/// What a browser keeps that has signed in as `name`.
fn device(app: &App, name: &str) -> String {
    let random = chance::<DEVICE_BYTES>();
    let tag = app.secrets.tag("fleetmend device v1", &[&random, name.as_bytes()]);
    URL_SAFE_NO_PAD.encode([&random[..], &tag[..16]].concat())
}

fn is_known(app: &App, device: &str, name: &str) -> bool {
    let Ok(bytes) = URL_SAFE_NO_PAD.decode(device) else { return false };
    let Some((random, shown)) = bytes.split_at_checked(DEVICE_BYTES) else { return false };
    let tag = app.secrets.tag("fleetmend device v1", &[random, name.as_bytes()]);
    // `blake3::Hash` compares in constant time.
    blake3::hash(shown) == blake3::hash(&tag[..16])
}

fn entered(app: &App, headers: &HeaderMap, user: &User, session: &str, next: &str) -> Answer {
    remembered(app, headers, user, session, see(next)?)
}

/// With what a browser keeps that has signed in.
pub(crate) fn remembered(
    app: &App,
    headers: &HeaderMap,
    user: &User,
    session: &str,
    mut answer: Response<Body>,
) -> Answer {
    let session = cookies::make(app, headers, cookies::SESSION, session, SESSION_LIVES.as_secs());
    let known = device(app, &user.name);
    let device = cookies::make(app, headers, cookies::DEVICE, &known, DEVICE_SECONDS);
    answer.headers_mut().append(SET_COOKIE, session);
    answer.headers_mut().append(SET_COOKIE, device);
    Ok(answer)
}

/// Signs out.
pub(crate) async fn sign_out(State(app): State<App>, viewer: Viewer, headers: HeaderMap) -> Answer {
    users::sign_out(&app, &viewer.session).await?;
    let mut answer = see("/sign-in")?;
    answer.headers_mut().append(SET_COOKIE, cookies::make(&app, &headers, cookies::SESSION, "", 0));
    Ok(answer)
}

fn used_up() -> ApiError {
    let detail = "This link was used, has expired or was replaced. Whoever runs this service makes another: \
                  `fleetmend users reset`.";
    ApiError::new(Code::NotFound, detail)
}

/// Where a one-time link leads.
pub(crate) async fn invited(State(app): State<App>, Path(link): Path<String>) -> Answer {
    let user = users::invited(&app, &link).await?.ok_or_else(used_up)?;
    page(&pages::Welcome { name: user.name, told: None })
}

/// Sets the password, and signs in.
pub(crate) async fn accept(
    State(app): State<App>,
    Path(link): Path<String>,
    headers: HeaderMap,
    SignInForm(form): SignInForm,
) -> Answer {
    let user = users::invited(&app, &link).await?.ok_or_else(used_up)?;
    let again =
        |told: String| refused(&pages::Welcome { name: user.name.clone(), told: Some(told) });
    if form.exact("password") != form.exact("again") {
        return again("The two are not the same.".into());
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
