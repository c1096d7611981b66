//! The interface: words to meaning, act, meaning to words.
//!
//! A handler here reads its request, asks `store` or acts through `service`, and shows the outcome; it holds no SQL and
//! decides nothing of the domain. [`routes()`] is the one table of all of them.

pub(crate) mod api_keys;
pub mod auth;
pub(crate) mod batches;
pub mod body;
mod constraints;
pub(crate) mod credentials;
pub(crate) mod cves;
mod docs;
pub(crate) mod enrollment_tokens;
pub mod etag;
mod examples;
pub(crate) mod feeds;
mod health;
pub mod idempotency;
pub(crate) mod limit;
mod links;
pub(crate) mod logs;
pub mod metrics;
mod objects;
pub mod observe;
pub mod openapi;
pub mod page;
pub(crate) mod patches;
pub mod path;
pub(crate) mod preview;
pub mod problem;
pub mod query;
mod read;
pub mod routes;
pub(crate) mod schedules;
pub mod serve;
pub(crate) mod servers;
pub(crate) mod summary;
mod suppressions;
pub(crate) mod tasks;
pub(crate) mod throttle;

pub use auth::Caller;
pub use body::{Body, NoBody};
pub use etag::{ETag, IfMatch};
pub use page::{Here, Limit, Offset};
pub use path::{Id, Ids};
pub use problem::{ApiError, Code};
pub use query::{NoQuery, Query};
pub use routes::Routes;
pub(crate) use service::queries::show;

use axum::Router;
use axum::middleware::from_fn;
use utoipa_axum::routes as handlers;

use crate::app::App;
use crate::web;

/// Every route of the public interface.
pub fn routes() -> Routes {
    Routes::new()
        .open(handlers!(health::healthz))
        .open(handlers!(health::readyz))
        .open(handlers!(metrics::metrics))
        .open(handlers!(openapi::openapi_json))
        .open(handlers!(docs::docs))
        .merge(schedules::routes())
        .merge(servers::routes())
        .merge(patches::routes())
        .merge(cves::routes())
        .merge(feeds::routes())
        .merge(suppressions::routes())
        .merge(batches::routes())
        .merge(preview::routes())
        .merge(summary::routes())
        .merge(api_keys::routes())
        .merge(enrollment_tokens::routes())
}

/// The whole service as one router.
pub fn router(app: App) -> Router {
    guarded(&app, routes()).with_state(app)
}

fn guarded(app: &App, routes: Routes) -> Router<App> {
    // Before the first request, so that no measurement is lost.
    metrics::handle();
    routes
        .mount(app)
        .merge(gateway::router(app.gateway()))
        .merge(web::routes(app))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_this_way)
        .layer(from_fn(observe::observe))
}

async fn nothing_here() -> ApiError {
    ApiError::new(Code::NotFound, "There is nothing at this path.")
}

async fn not_this_way() -> ApiError {
    ApiError::new(Code::MethodNotAllowed, "This path does not take this method; see `Allow`.")
}
