//! The table of routes. Every route states its required role; there is no other way to add one.
//!
//! The middleware around each handler authenticates the caller, applies the rate limit, checks the
//! role, and handles `Idempotency-Key`. `Routes` also contains the OpenAPI description of each
//! route, so that the document and the router come from one table.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse as _;
use httpkit::problem::ApiError;
use httpkit::{Peer, idempotency};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::UtoipaMethodRouter;
use vocab::Role;

use crate::{Api, auth};

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// API keys with this role or a higher one.
    Key(Role),
    /// Everyone. Only for routes that reveal nothing about any organization.
    Open,
}

#[derive(Default)]
pub struct Routes(Vec<(Access, UtoipaMethodRouter<Api>)>);

impl Routes {
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds the handlers of one path that require this role; `routes` comes from
    /// `utoipa_axum::routes!(…)`.
    pub fn add(mut self, role: Role, routes: UtoipaMethodRouter<Api>) -> Routes {
        self.0.push((Access::Key(role), routes));
        self
    }

    /// Adds handlers that need no API key.
    pub fn open(mut self, routes: UtoipaMethodRouter<Api>) -> Routes {
        self.0.push((Access::Open, routes));
        self
    }

    pub fn merge(mut self, other: Routes) -> Routes {
        self.0.extend(other.0);
        self
    }

    /// The OpenAPI description of the routes.
    pub fn document(&self) -> OpenApi {
        let mut api = OpenApi::default();
        let components = api.components.get_or_insert_default();
        for (_, (schemas, paths, _)) in &self.0 {
            components.schemas.extend(schemas.iter().cloned());
            for (path, item) in paths.paths.clone() {
                match api.paths.paths.get_mut(&path) {
                    Some(there) => there.merge_operations(item),
                    None => {
                        api.paths.paths.insert(path, item);
                    }
                }
            }
        }
        api
    }

    /// Every operation of the table: method, path, and required access.
    pub fn operations(&self) -> Vec<(Method, String, Access)> {
        let mut operations = Vec::new();
        for (access, (_, paths, _)) in &self.0 {
            for (path, item) in &paths.paths {
                let stated = [
                    (Method::GET, &item.get),
                    (Method::POST, &item.post),
                    (Method::PUT, &item.put),
                    (Method::PATCH, &item.patch),
                    (Method::DELETE, &item.delete),
                ];
                for (method, _) in stated.into_iter().filter(|(_, operation)| operation.is_some()) {
                    operations.push((method, path.clone(), *access));
                }
            }
        }
        operations
    }

    /// The router, with the middleware on every route.
    pub(crate) fn mount(self, app: &Api) -> Router<Api> {
        self.0.into_iter().fold(Router::new(), |router, (access, (_, paths, handlers))| {
            let guarded = match access {
                Access::Open => handlers,
                Access::Key(role) => {
                    handlers.route_layer(from_fn_with_state((app.clone(), role), guard))
                }
            };
            paths.paths.keys().fold(router, |router, path| router.route(path, guarded.clone()))
        })
    }
}

/// The middleware in front of every handler.
async fn guard(
    State((app, role)): State<(Api, Role)>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let peer = request.extensions().get::<Peer>().copied();
    let (caller, key, credential) = match auth::authenticate(&app, request.headers(), peer).await {
        Ok(found) => found,
        Err(refusal) => return refusal.into_response(),
    };
    tracing::Span::current().record("key", tracing::field::display(key));
    let left = match app.limits().take(key) {
        Ok(left) => left,
        Err(refusal) => return refusal.into_response(),
    };
    let response: Result<_, ApiError> = match caller.require(role) {
        Err(refusal) => Err(refusal.into()),
        Ok(()) => {
            request.extensions_mut().insert(caller.clone());
            request.extensions_mut().insert(credential);
            match *request.method() == Method::POST {
                true => {
                    idempotency::run_once((*app).clone(), &caller, request, |again| next.run(again))
                        .await
                }
                false => Ok(next.run(request).await),
            }
        }
    };
    let mut response = response.unwrap_or_else(ApiError::into_response);
    left.add_to_headers(response.headers_mut());
    response
}
