//! The REST API: `/v1`, its OpenAPI document, and the API reference page.
//!
//! A handler parses its request, calls `service` and renders the result. [`routes()`] is the only
//! table of routes. It defines the role that each route requires, and the OpenAPI document is
//! generated from it.

mod agents;
mod api_keys;
mod audit;
mod auth;
mod batches;
mod compliance;
mod cves;
mod docs;
mod enrollment_tokens;
mod events;
mod examples;
mod feeds;
mod forecast;
mod freezes;
mod health;
mod limit;
mod links;
mod logs;
pub mod metrics;
mod notifications;
pub mod openapi;
mod openapi_rules;
mod patches;
mod policies;
mod preview;
mod routes;
mod schedules;
mod servers;
mod summary;
mod suppressions;
mod tasks;
mod webhooks;

pub use docs::SharedAssets;
pub use routes::{Access, Routes};

use std::sync::Arc;

use axum::Router;
use service::App;
use utoipa_axum::routes as handlers;

use limit::RateLimits;

/// State of the API: the service, the rate limits, the rendered metrics, and the rendered
/// reference.
#[derive(Clone)]
pub struct Api {
    app: App,
    limits: Arc<RateLimits>,
    metrics_page: Arc<metrics::MetricsPage>,
    docs_page: Arc<docs::Page>,
}

impl Api {
    pub fn new(app: App, assets: SharedAssets) -> Api {
        let limits = Arc::new(RateLimits::new(&app.settings));
        let docs_page = Arc::new(docs::Page::new(assets));
        Api { app, limits, metrics_page: Arc::default(), docs_page }
    }

    pub(crate) fn limits(&self) -> &RateLimits {
        &self.limits
    }

    pub(crate) fn metrics_page(&self) -> &metrics::MetricsPage {
        &self.metrics_page
    }

    pub(crate) fn docs_page(&self) -> &docs::Page {
        &self.docs_page
    }
}

impl std::ops::Deref for Api {
    type Target = App;
    fn deref(&self) -> &App {
        &self.app
    }
}

/// Every route of the public API.
pub fn routes() -> Routes {
    Routes::new()
        .open(handlers!(health::healthz))
        .open(handlers!(health::readyz))
        .open(handlers!(metrics::metrics))
        .open(handlers!(openapi::openapi_json))
        .open(handlers!(docs::docs))
        .merge(schedules::routes())
        .merge(freezes::routes())
        .merge(policies::routes())
        .merge(compliance::routes())
        .merge(servers::routes())
        .merge(patches::routes())
        .merge(cves::routes())
        .merge(feeds::routes())
        .merge(suppressions::routes())
        .merge(batches::routes())
        .merge(preview::routes())
        .merge(forecast::routes())
        .merge(summary::routes())
        .merge(events::routes())
        .merge(audit::routes())
        .merge(webhooks::routes())
        .merge(notifications::routes())
        .merge(agents::routes())
        .merge(api_keys::routes())
        .merge(enrollment_tokens::routes())
}

/// The router of the API, with the access checks on every route.
pub fn router<S: Clone + Send + Sync + 'static>(api: Api) -> Router<S> {
    // Before the first request, so that no measurement is lost.
    metrics::recorder();
    routes().mount(&api).merge(docs::assets()).with_state(api)
}
