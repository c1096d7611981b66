//! Middleware around every page: authentication, role check, CSRF check, idempotency and security
//! headers.

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, LOCATION, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::middleware::Next;
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use httpkit::problem::{ApiError, Code, CompleteBody, internal};
use httpkit::{RequestId, body};
use service::auth::caller::{Caller, CallerId};
use service::auth::sessions;
use service::queries;
use service::queries::users::User;
use vocab::SessionId;

use crate::extract::value;
use crate::form_idempotency::FormKey;
use crate::{Access, Dashboard, cookies, extract, form_idempotency, response};

/// The largest form: 500 servers with their options.
pub(crate) const FORM_BYTES_MAX: usize = 256 << 10;

/// The purpose and the length of the CSRF tag in every form.
const CSRF_PURPOSE: &str = "fleetmend form v1";
const CSRF_TAG_BYTES: usize = 16;

/// Content Security Policy: pages may load our assets and connect to this service, nothing else.
const CONTENT_SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// State of the middleware: the dashboard, and the access that the path requires.
#[derive(Clone)]
pub(crate) struct PageAccess {
    pub(crate) app: Dashboard,
    pub(crate) access: Access,
}

/// The signed-in user.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    pub(crate) user: User,
    pub(crate) org_name: String,
    pub(crate) csrf: String,
    /// The session token, which sign-out needs.
    pub(crate) session: String,
    pub(crate) session_id: SessionId,
}

impl Viewer {
    /// The user as a [`Caller`], for requests to `service`.
    pub(crate) fn caller(&self) -> Caller {
        let User { id, org_id, role, .. } = self.user;
        Caller { org: org_id, id: CallerId::User(id), role, environments: None }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Viewer>().cloned().ok_or_else(|| {
            tracing::error!(
                path = parts.uri.path(),
                "a handler requires a signed-in user but its path is open"
            );
            internal()
        })
    }
}

/// Checks the access to a page, runs its handler, renders errors as pages, and adds security
/// headers.
pub(crate) async fn handle(
    State(access): State<PageAccess>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let id = request.extensions().get::<RequestId>().map_or("", |id| id.as_str()).to_owned();
    let path = request.uri().path().to_owned();
    let appearance = cookies::appearance(request.headers());
    response::with_appearance(appearance, async {
        let (viewer, answered) = check_access(&access, request, next).await;
        let mut response = match answered {
            Ok(answered) => answered,
            Err(error) => error.into_response(),
        };
        if response.status().is_client_error() || response.status().is_server_error() {
            response = response::error_page(&access.app, viewer.as_ref(), response, &path, &id);
        }
        with_security_headers(response)
    })
    .await
}

/// The page for a path that does not exist, with the navigation if the user is signed in.
pub(crate) async fn unknown_path(app: &Dashboard, request: &Parts) -> Response<Body> {
    let id = request.extensions.get::<RequestId>().map_or("", |id| id.as_str()).to_owned();
    let viewer = authenticate(app, &request.headers).await.ok().flatten();
    let error = ApiError::new(Code::NotFound, "There is no page at this address.");
    let path = request.uri.path();
    let appearance = cookies::appearance(&request.headers);
    let page = response::with_appearance(appearance, async {
        response::error_page(app, viewer.as_ref(), error.into_response(), path, &id)
    });
    with_security_headers(page.await)
}

fn with_security_headers(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(CompleteBody);
    response
}

async fn check_access(
    needs: &PageAccess,
    mut request: Request,
    next: Next,
) -> (Option<Viewer>, Result<Response<Body>, ApiError>) {
    let writes = *request.method() == Method::POST;
    if writes && !is_same_origin(request.headers()) {
        let detail = "This form came from another site.";
        return (None, Err(ApiError::new(Code::Forbidden, detail)));
    }
    let role = match needs.access {
        Access::Open => return (None, Ok(next.run(request).await)),
        Access::SignedIn(role) => role,
    };
    let viewer = match authenticate(&needs.app, request.headers()).await {
        Ok(Some(viewer)) => viewer,
        Ok(None) => return (None, redirect_to_sign_in(&request, writes)),
        Err(error) => return (None, Err(error)),
    };
    if let Err(refused) = viewer.caller().require(role) {
        return (Some(viewer), Err(refused.into()));
    }
    let mut once = None;
    if writes {
        match verify_form(&needs.app, &viewer, request).await {
            Ok((again, key)) => (request, once) = (again, key),
            Err(refused) => return (Some(viewer), Err(refused)),
        }
    }
    request.extensions_mut().insert(viewer.clone());
    tracing::Span::current().record("key", tracing::field::display(viewer.user.id));
    let response = match once {
        Some(key) => form_idempotency::run_once(&needs.app, &viewer, key, request, next).await,
        None => Ok(next.run(request).await),
    };
    (Some(viewer), response)
}

async fn authenticate(app: &Dashboard, headers: &HeaderMap) -> Result<Option<Viewer>, ApiError> {
    let Some(session) = cookies::read(headers, cookies::SESSION) else { return Ok(None) };
    let Some((found, user)) = sessions::find(app, session).await? else { return Ok(None) };
    let org_name = queries::users::organization_name(app, user.org_id).await?;
    let tag = app.secrets.tag(CSRF_PURPOSE, &[session.as_bytes()]);
    let csrf = URL_SAFE_NO_PAD.encode(&tag[..CSRF_TAG_BYTES]);
    Ok(Some(Viewer { user, org_name, csrf, session: session.to_owned(), session_id: found.id }))
}

/// Whether a form comes from our own pages, by the `Sec-Fetch-Site` and `Origin` headers of the
/// browser.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let site = text("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"));
    let host = text(HOST.as_str()).unwrap_or("");
    let origin = text(ORIGIN.as_str());
    site && origin.is_none_or(|origin| {
        let named = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        named.is_some_and(|named| named == host)
    })
}

/// Redirects to the sign-in page, which returns to the requested page afterwards. Forms and live
/// updates get an error instead.
fn redirect_to_sign_in(request: &Request, writes: bool) -> Result<Response<Body>, ApiError> {
    if writes || request.headers().contains_key("x-live") {
        let detail = "You are no longer signed in. Nothing was changed.";
        return Err(ApiError::new(Code::Unauthenticated, detail));
    }
    let wanted = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let next = serde_html_form::to_string([("next", wanted)]).unwrap_or_default();
    let location = if wanted == "/" { "/sign-in".to_owned() } else { format!("/sign-in?{next}") };
    Ok((StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response())
}

/// Verifies the CSRF tag of a form, and returns the request with its idempotency key.
async fn verify_form(
    app: &Dashboard,
    viewer: &Viewer,
    request: Request,
) -> Result<(Request, Option<FormKey>), ApiError> {
    let (parts, body) = request.into_parts();
    let bytes = body::read(Request::from_parts(parts.clone(), body), FORM_BYTES_MAX).await?;
    let form = extract::form_pairs(&bytes)?;
    let tag = URL_SAFE_NO_PAD.decode(value(&form, "csrf")).unwrap_or_default();
    if !app.secrets.verifies(CSRF_PURPOSE, &[viewer.session.as_bytes()], CSRF_TAG_BYTES, &tag) {
        let detail = "This form belongs to another session. Reload the page and try again.";
        return Err(ApiError::new(Code::Forbidden, detail));
    }
    let once = FormKey::find(&form)?;
    Ok((body::with_body(parts, bytes), once))
}
