//! Combines the service and the gateway into one application with one router.

use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use gateway::Gateway;
use httpkit::{ApiError, BodyBudget, Code};
pub use service::app::{AppParts, Settings};

use crate::request_log::observe;
use crate::response_budget::ResponseBudget;

/// The service with its gateway. Cheap to clone.
#[derive(Clone)]
pub struct App(Gateway);

impl App {
    pub fn new(parts: AppParts) -> App {
        App(Gateway::new(service::App::new(parts)))
    }

    /// The state that commands and queries need.
    pub fn service(&self) -> &service::App {
        &self.0
    }

    /// The gateway to the agents.
    pub fn gateway(&self) -> &Gateway {
        &self.0
    }
}

impl std::ops::Deref for App {
    type Target = service::App;
    fn deref(&self) -> &service::App {
        self.service()
    }
}

/// All routes of this process: the API, the dashboard and the agent protocol.
pub fn router(app: &App) -> Router {
    let assets = api::SharedAssets {
        stylesheet: dashboard::pages::STYLE.path(),
        icon: dashboard::pages::ICON.path(),
    };
    let dashboard = dashboard::Dashboard::new(app.service().clone());
    let pages = dashboard.clone();
    let router = Router::new()
        .merge(api::router(api::Api::new(app.service().clone(), assets)))
        .merge(gateway::router(app.gateway()))
        .merge(dashboard::router(dashboard))
        .fallback(move |request: Request| not_found(pages, request.into_parts().0))
        .method_not_allowed_fallback(method_not_allowed);
    with_request_log(router, Budgets::default())
}

/// Memory limits for requests and responses over all connections. `gateway` has separate limits for
/// the requests of agents.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    /// For request bodies.
    pub requests: BodyBudget,
    /// For large responses.
    pub responses: ResponseBudget,
}

/// Adds what surrounds every request: an id, a log line, metrics and limits.
pub fn with_request_log(router: Router, budgets: Budgets) -> Router {
    router.layer(from_fn_with_state(budgets, observe))
}

/// A page for browsers, and an error of the API for everyone else.
async fn not_found(pages: dashboard::Dashboard, request: Parts) -> Response {
    let error = || ApiError::new(Code::NotFound, "There is nothing at this path.").into_response();
    dashboard::unknown_path(&pages, &request).await.unwrap_or_else(error)
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(
        Code::MethodNotAllowed,
        "This path does not support this method; see the `Allow` header.",
    )
}
