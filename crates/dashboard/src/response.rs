//! Responses of page handlers: pages, redirects and errors.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use httpkit::problem::{ApiError, Code, from_status_code, internal};
use service::clock::random_bytes;

use crate::pages::form_errors::{FormErrors, FormFields};
use crate::pages::{Appearance, Frame, Section, Template};
use crate::{Dashboard, Viewer, pages};

tokio::task_local! {
    /// How pages look for the request that is being handled. Every page needs it, and only the
    /// middleware and [`render`] use it.
    static APPEARANCE: Appearance;
}

/// Renders the pages of `work` like this.
pub(crate) async fn with_appearance<T>(appearance: Appearance, work: impl Future<Output = T>) -> T {
    APPEARANCE.scope(appearance, work).await
}

/// How pages look for the request that is being handled.
pub(crate) fn appearance() -> Appearance {
    APPEARANCE.try_with(|appearance| *appearance).unwrap_or(Appearance::DEFAULT)
}

fn render(page: &impl Template) -> askama::Result<String> {
    let appearance = appearance();
    page.render_with_values(&(pages::APPEARANCE_VALUE, &appearance as &dyn std::any::Any))
}

pub(crate) type PageResult = Result<Response<Body>, ApiError>;

/// The frame around a page: the user, the navigation and the CSRF token.
pub(crate) fn frame(
    app: &Dashboard,
    viewer: &Viewer,
    section: Section,
    title: impl Into<String>,
) -> Frame {
    Frame {
        title: title.into(),
        section,
        user: viewer.user.name.clone(),
        role: viewer.user.role,
        org: viewer.org_name.clone(),
        csrf: viewer.csrf.clone(),
        idempotency_key: URL_SAFE_NO_PAD.encode(random_bytes::<16>()),
        now: app.clock.now(),
        live: None,
    }
}

/// The layout of a page with live updates.
pub(crate) fn live_frame(
    app: &Dashboard,
    viewer: &Viewer,
    section: Section,
    title: impl Into<String>,
) -> Frame {
    Frame { live: Some("/live".into()), ..frame(app, viewer, section, title) }
}

pub(crate) fn page(page: &impl Template) -> PageResult {
    with_status(StatusCode::OK, page)
}

/// A page that shows why the input is invalid (422).
pub(crate) fn invalid_input(page: &impl Template) -> PageResult {
    invalid_input_with(StatusCode::UNPROCESSABLE_ENTITY, page)
}

/// A page that shows why the request was refused, with this status.
pub(crate) fn invalid_input_with(status: StatusCode, page: &impl Template) -> PageResult {
    with_status(status, page).map(|mut answer| {
        answer.extensions_mut().insert(ErrorPage);
        answer
    })
}

/// Marks a response that is an error page already, so that the middleware does not replace it.
#[derive(Clone, Copy)]
pub(crate) struct ErrorPage;

fn with_status(status: StatusCode, page: &impl Template) -> PageResult {
    let text = render(page).map_err(|error| {
        tracing::error!(%error, "failed to render a page");
        internal()
    })?;
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    Ok((status, [(CONTENT_TYPE, kind)], text).into_response())
}

/// Redirects with 303, so that a reload does not submit the form again.
pub(crate) fn redirect(path: &str) -> PageResult {
    Ok((StatusCode::SEE_OTHER, [(LOCATION, path.to_owned())]).into_response())
}

/// Renders an API error as a page.
pub(crate) fn error_page(
    app: &Dashboard,
    viewer: Option<&Viewer>,
    response: Response<Body>,
    path: &str,
    request_id: &str,
) -> Response<Body> {
    if response.extensions().get::<ErrorPage>().is_some() {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let error =
        parts.extensions.remove::<ApiError>().unwrap_or_else(|| from_status_code(parts.status));
    let title = error.code().title().to_owned();
    let (detail, request_id) = (error.detail().to_owned(), request_id.to_owned());
    let text = match viewer {
        None => render(&pages::ProblemBare { title, detail, request_id }),
        Some(viewer) => {
            let section = Section::from_path(path);
            let back = section.path();
            let errors =
                error.errors().iter().map(|e| (e.pointer.clone(), e.detail.clone())).collect();
            let frame = frame(app, viewer, section, title);
            render(&pages::Problem { frame, detail, errors, back: back.into(), request_id })
        }
    };
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    Response::from_parts(parts, Body::from(text.unwrap_or_default()))
}

/// The errors of a rejected form by field. An error that the user cannot correct in the form is
/// returned unchanged.
pub(crate) fn form_errors(error: ApiError, fields: FormFields) -> Result<FormErrors, ApiError> {
    let mut errors = FormErrors::new(fields);
    add_form_errors(&mut errors, error)?;
    Ok(errors)
}

/// Adds the errors of a rejected request to those of its form.
pub(crate) fn add_form_errors(errors: &mut FormErrors, error: ApiError) -> Result<(), ApiError> {
    match error.code() {
        Code::InvalidBody if !error.errors().is_empty() => {
            for wrong in error.errors() {
                errors.add_at(&wrong.pointer, &wrong.detail);
            }
        }
        // Names are the only values of our forms that must be unique.
        Code::AlreadyExists => errors.add("name", error.detail()),
        Code::InvalidBody | Code::PreconditionFailed => errors.add_general(error.detail()),
        _ => return Err(error),
    }
    Ok(())
}

/// The errors of a request, one sentence each, for pages without labels.
pub(crate) fn error_sentences(error: &ApiError) -> Vec<String> {
    if error.errors().is_empty() {
        return vec![error.detail().to_owned()];
    }
    let label = error.errors().iter().map(|wrong| {
        let field = wrong.pointer.trim_start_matches('/').replace('_', " ");
        format!("{field}: {}", wrong.detail).trim_start_matches(": ").to_owned()
    });
    label.collect()
}
