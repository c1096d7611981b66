//! Cookies for the session, for browsers that have signed in before, for the OIDC redirect, and for
//! how pages look.

use axum::http::header::{COOKIE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use cookie::time::Duration;
use cookie::{Cookie, CookieBuilder, SameSite};

use service::agent_install;

use crate::Dashboard;
use crate::pages::display::{Columns, ListKind};
use crate::pages::{Appearance, Density, Theme};

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

pub(crate) const SESSION: &str = "fleetmend_session";
/// Marks a browser that has signed in before. Its sign-in attempts are counted separately from
/// those of unknown browsers.
pub(crate) const DEVICE: &str = "fleetmend_device";
/// Holds the state of an OIDC sign-in while the browser is at the identity provider.
pub(crate) const OIDC_STATE: &str = "fleetmend_flow";

/// The color theme of this browser. Without it, the theme of the system applies.
const THEME: &str = "fleetmend_theme";
/// How long a browser remembers how pages look.
const PREFERENCE_SECONDS: i64 = 365 * 86_400;

/// The color theme that the user chose in this browser.
fn theme(headers: &HeaderMap) -> Theme {
    read(headers, THEME).map_or(Theme::System, Theme::from_name)
}

/// The cookie that stores a color theme. It is `SameSite=Lax`: a page that is opened from a link in
/// an email has the right colors at once.
pub(crate) fn theme_cookie(app: &Dashboard, headers: &HeaderMap, theme: Theme) -> HeaderValue {
    let (value, seconds) = match theme {
        Theme::System => ("", 0),
        Theme::Light | Theme::Dark => (theme.name(), PREFERENCE_SECONDS),
    };
    let cookie = Cookie::build((THEME, value)).path("/").same_site(SameSite::Lax);
    header(app, headers, cookie, seconds)
}

/// The columns of a list, in this browser: `fleetmend_columns_servers`.
const COLUMNS: &str = "fleetmend_columns_";
const DENSITY: &str = "fleetmend_density";

/// The columns that the user chose in this browser for the list at this path.
pub(crate) fn columns(headers: &HeaderMap, path: &str) -> Option<String> {
    let name = format!("{COLUMNS}{}", path.trim_start_matches('/'));
    read(headers, &name).map(str::to_owned)
}

/// The cookie that stores the columns of a list.
pub(crate) fn columns_cookie(
    app: &Dashboard,
    headers: &HeaderMap,
    list: &ListKind,
    columns: &Columns,
) -> HeaderValue {
    let (value, seconds) = match columns.is_all() {
        true => (String::new(), 0),
        false => (columns.to_string(), PREFERENCE_SECONDS),
    };
    let name = format!("{COLUMNS}{}", list.name);
    let cookie = Cookie::build((name, value)).path("/").same_site(SameSite::Lax);
    header(app, headers, cookie, seconds)
}

/// How the user chose in this browser that pages look.
pub(crate) fn appearance(headers: &HeaderMap) -> Appearance {
    let density = read(headers, DENSITY).map_or(Density::Comfortable, Density::from_name);
    Appearance { theme: theme(headers), density }
}

/// The cookie that stores the density of lists.
pub(crate) fn density_cookie(
    app: &Dashboard,
    headers: &HeaderMap,
    density: Density,
) -> HeaderValue {
    let (value, seconds) = match density {
        Density::Comfortable => ("", 0),
        Density::Compact => (density.name(), PREFERENCE_SECONDS),
    };
    let cookie = Cookie::build((DENSITY, value)).path("/").same_site(SameSite::Lax);
    header(app, headers, cookie, seconds)
}

/// The value of a cookie. If it is sent several times, the first one wins: browsers send the one
/// with the longest path first.
pub(crate) fn read<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let cookies = lines.flat_map(Cookie::split_parse).filter_map(Result::ok);
    cookies.into_iter().find(|cookie| cookie.name() == name)?.value_raw()
}

/// A cookie that scripts cannot read (`HttpOnly`) and other sites do not send (`SameSite=Strict`).
pub(crate) fn session_cookie(
    app: &Dashboard,
    headers: &HeaderMap,
    name: &str,
    value: &str,
    seconds: i64,
) -> HeaderValue {
    let cookie = Cookie::build((name, value)).path("/").same_site(SameSite::Strict);
    header(app, headers, cookie, seconds)
}

/// A cookie for the redirect back from the identity provider only. It is `SameSite=Lax`, because
/// browsers do not send a strict cookie on a navigation from another site.
pub(crate) fn oidc_cookie(
    app: &Dashboard,
    headers: &HeaderMap,
    value: &str,
    seconds: i64,
) -> HeaderValue {
    let cookie = Cookie::build((OIDC_STATE, value)).path("/sign-in/oidc").same_site(SameSite::Lax);
    header(app, headers, cookie, seconds)
}

fn header(
    app: &Dashboard,
    headers: &HeaderMap,
    cookie: CookieBuilder<'_>,
    seconds: i64,
) -> HeaderValue {
    let cookie = cookie.max_age(Duration::seconds(seconds)).http_only(true);
    let cookie = cookie.secure(is_secure(app, headers)).build();
    HeaderValue::try_from(cookie.to_string()).unwrap_or(HeaderValue::from_static(""))
}

/// Whether the browser uses TLS. A TLS-terminating proxy reports it in a header. A client that
/// forges the header only locks itself out.
fn is_secure(app: &Dashboard, headers: &HeaderMap) -> bool {
    let proxied = headers.get(FORWARDED_PROTO).is_some_and(|proto| proto == "https");
    app.settings.certificate_sha256.is_some() || proxied
}

/// The base URL at which the browser reaches this service.
pub(crate) fn base_url(app: &Dashboard, headers: &HeaderMap) -> String {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    agent_install::public_url(app, text(HOST), text(FORWARDED_PROTO))
        .unwrap_or_else(|| "http://localhost:7600".to_owned())
}
