//! `GET /docs`: the API reference as a page, rendered from the OpenAPI document.
//!
//! [`reference`] reads the document into what the page shows, [`fields`] its schemas, and [`markup`]
//! builds the HTML of prose, JSON and commands. The templates escape everything else. The page can
//! be read without its script, which adds search, copy buttons and test requests. The stylesheet of
//! the dashboard is used too; `server` passes its path, because this crate does not know the
//! dashboard.

mod fields;
mod markup;
mod reference;

use std::io::Write as _;
use std::sync::OnceLock;

use askama::Template as _;
use axum::Extension;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use httpkit::{Asset, SharedBody};
use reference::Reference;

use crate::{Api, openapi};

/// Content Security Policy: the page loads our assets and sends requests to this service, nothing
/// else. Its script handles its forms, so none is submitted.
const CONTENT_SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

const STYLE: Asset = Asset {
    name: "docs.css",
    media_type: "text/css; charset=utf-8",
    text: include_str!("../../assets/docs.css"),
};
const SCRIPT: Asset = Asset {
    name: "docs.js",
    media_type: "text/javascript; charset=utf-8",
    text: include_str!("../../assets/docs.js"),
};

/// The paths of assets that the reference shares with the dashboard.
#[derive(Debug, Clone)]
pub struct SharedAssets {
    pub stylesheet: String,
    pub icon: String,
}

/// The rendered page. Rendered for the first reader.
pub(crate) struct Page {
    shared: SharedAssets,
    rendered: OnceLock<Rendered>,
}

struct Rendered {
    html: Bytes,
    gzip: Bytes,
}

#[derive(askama::Template)]
#[template(path = "docs.html")]
struct PageTemplate<'a> {
    reference: &'a Reference,
    shared: &'a SharedAssets,
    style: String,
    script: String,
}

impl Page {
    pub(crate) fn new(shared: SharedAssets) -> Page {
        Page { shared, rendered: OnceLock::new() }
    }

    fn rendered(&self) -> &Rendered {
        self.rendered.get_or_init(|| {
            let html = render(&Reference::new(&openapi::document()), &self.shared);
            let gzip = compress(html.as_bytes());
            Rendered { html: html.into(), gzip }
        })
    }
}

fn render(reference: &Reference, shared: &SharedAssets) -> String {
    let (style, script) = (STYLE.path(), SCRIPT.path());
    let page = PageTemplate { reference, shared, style, script };
    page.render().unwrap_or_else(|error| {
        tracing::error!(%error, "cannot render the API reference");
        String::new()
    })
}

fn compress(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.unwrap_or_default().into()
}

/// The routes of the page's own assets. They are not part of the API.
pub(crate) fn assets() -> Router<Api> {
    [STYLE, SCRIPT].into_iter().fold(Router::new(), |router, asset| {
        router.route(&asset.path(), get(move || async move { asset }))
    })
}

/// The reference
///
/// This description as a page to read.
#[utoipa::path(get, path = "/docs", tag = "Service", operation_id = "docs",
    responses((status = 200, description = "A page.", content_type = "text/html", body = String)))]
pub(crate) async fn docs(State(api): State<Api>, request: HeaderMap) -> Response {
    let page = api.docs_page().rendered();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (VARY, HeaderValue::from_static("Accept-Encoding")),
    ];
    if accepts_gzip(&request) {
        let encoding = [(CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
        (Extension(SharedBody), headers, encoding, page.gzip.clone()).into_response()
    } else {
        (Extension(SharedBody), headers, page.html.clone()).into_response()
    }
}

/// Whether the client accepts gzip. An encoding with the weight 0 is not accepted.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|encoding| {
        let mut parts = encoding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        let refused = weight.and_then(|weight| weight.parse::<f32>().ok()) == Some(0.0);
        name.eq_ignore_ascii_case("gzip") && !refused
    })
}

#[cfg(test)]
mod tests;
