//! The dashboard: pages, forms and CSV files for signed-in users.
//!
//! A handler parses its request, calls `service` as the API does, and passes the result to
//! [`pages`], which renders HTML. Pages use the queries of the API where one exists, and every
//! write goes through `service`.

mod account;
mod activity;
mod assets;
mod batches;
mod calendar;
mod cookies;
mod csv_export;
mod extract;
mod form_idempotency;
mod live;
mod login;
mod login_throttle;
mod middleware;
mod names;
mod oidc;
mod oidc_state;
mod overview;
pub mod pages;
mod patch_form;
mod plots;
mod preview_token;
mod response;
mod schedules;
mod servers;
mod settings;
mod vulnerabilities;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use login_throttle::LoginThrottle;
use middleware::{Needs, Viewer};
use service::App;
use vocab::Role;

/// State of the dashboard: the service, and the rate limits for sign-in attempts.
#[derive(Clone)]
pub struct Dashboard {
    app: App,
    throttle: Arc<LoginThrottle>,
}

impl Dashboard {
    pub fn new(app: App) -> Dashboard {
        Dashboard { app, throttle: Arc::new(LoginThrottle::new()) }
    }

    pub(crate) fn throttle(&self) -> &LoginThrottle {
        &self.throttle
    }
}

impl Deref for Dashboard {
    type Target = App;
    fn deref(&self) -> &App {
        &self.app
    }
}

/// Who may use a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Signed-in users with this role or a higher one.
    Signed(Role),
    /// Everyone: the sign-in pages and the assets.
    Open,
}

/// Every path of the dashboard with its required access. The router is built from this table.
fn table() -> Vec<(Access, &'static str, MethodRouter<Dashboard>)> {
    use Access::{Open, Signed};
    use Role::{Admin, Operator, Viewer};
    vec![
        (Open, "/sign-in", get(login::form).post(login::sign_in)),
        (Open, "/welcome/{link}", get(login::invited).post(login::accept)),
        (Open, "/assets/{mark}/{name}", get(assets::asset)),
        (Open, "/sign-in/code", post(login::code)),
        (Open, "/sign-in/oidc", get(oidc::begin)),
        (Open, "/sign-in/oidc/back", get(oidc::back)),
        (Signed(Viewer), "/account", get(account::account)),
        (Signed(Viewer), "/account/totp", post(account::totp)),
        (Signed(Viewer), "/sign-out", post(login::sign_out)),
        (Signed(Viewer), "/", get(overview::overview)),
        (Signed(Viewer), "/trend.csv", get(csv_export::trend)),
        (Signed(Viewer), "/live", get(live::live)),
        (Signed(Viewer), "/servers", get(servers::list)),
        (Signed(Viewer), "/servers.csv", get(csv_export::servers)),
        (Signed(Viewer), "/servers/{id}", get(servers::one)),
        (Signed(Viewer), "/servers/{id}/packages.csv", get(csv_export::server_packages)),
        (Signed(Viewer), "/servers/{id}/cves.csv", get(csv_export::server_cves)),
        (Signed(Viewer), "/servers/{id}/unassessed.csv", get(csv_export::server_unassessed)),
        (Signed(Viewer), "/servers/{id}/history.csv", get(csv_export::server_history)),
        (Signed(Operator), "/servers/{id}/refresh", post(servers::refresh)),
        (Signed(Admin), "/servers/{id}/remove", get(servers::ask_remove).post(servers::remove)),
        (Signed(Admin), "/servers/{id}/release", post(servers::release)),
        (Signed(Viewer), "/patches", get(vulnerabilities::patches)),
        (Signed(Viewer), "/patches.csv", get(csv_export::patches)),
        (Signed(Viewer), "/patch-ages.csv", get(csv_export::ages)),
        (Signed(Viewer), "/patches/{name}", get(vulnerabilities::patch)),
        (Signed(Viewer), "/patches/{name}/servers.csv", get(csv_export::patch_servers)),
        (Signed(Viewer), "/patches/{name}/versions.csv", get(csv_export::patch_versions)),
        (Signed(Viewer), "/patches/{name}/cves.csv", get(csv_export::patch_cves)),
        (Signed(Viewer), "/cves", get(vulnerabilities::cves)),
        (Signed(Viewer), "/cves.csv", get(csv_export::cves)),
        (Signed(Viewer), "/cves/{id}", get(vulnerabilities::cve)),
        (Signed(Viewer), "/cves/{id}/servers.csv", get(csv_export::cve_servers)),
        (Signed(Viewer), "/batches", get(batches::list)),
        (Signed(Viewer), "/batches.csv", get(csv_export::batches)),
        (Signed(Viewer), "/batches/{id}", get(batches::one)),
        (Signed(Viewer), "/batches/{id}/tasks.csv", get(csv_export::tasks)),
        (Signed(Operator), "/batches/{id}/{action}", post(batches::steer)),
        (Signed(Operator), "/batches/{id}/retry.csv", get(csv_export::retry_outlook)),
        (Signed(Viewer), "/batches/{id}/tasks/{task}", get(batches::task)),
        (Signed(Viewer), "/batches/{id}/tasks/{task}/log", get(batches::log)),
        (Signed(Viewer), "/batches/{id}/tasks/{task}/changes.csv", get(csv_export::changes)),
        (Signed(Operator), "/order", post(patch_form::order)),
        (Signed(Operator), "/order.csv", post(csv_export::order)),
        (Signed(Viewer), "/schedules", get(schedules::list)),
        (Signed(Viewer), "/schedules.csv", get(csv_export::schedules)),
        (Signed(Operator), "/schedules/new", get(schedules::blank).post(schedules::create)),
        (Signed(Operator), "/schedules/next", get(schedules::next)),
        (Signed(Viewer), "/schedules/next.csv", get(csv_export::next_runs)),
        (Signed(Viewer), "/schedules/calendar.csv", get(csv_export::calendar)),
        (Signed(Viewer), "/schedules/{id}", get(schedules::one)),
        (Signed(Viewer), "/schedules/{id}/runs.csv", get(csv_export::runs)),
        (Signed(Operator), "/schedules/{id}/edit", get(schedules::edit).post(schedules::replace)),
        (Signed(Operator), "/schedules/{id}/run", post(schedules::run)),
        (Signed(Operator), "/schedules/{id}/run.csv", get(csv_export::schedule_outlook)),
        (Signed(Operator), "/schedules/{id}/delete", post(schedules::delete)),
        (Signed(Admin), "/activity", get(activity::activity)),
        (Signed(Admin), "/activity.csv", get(csv_export::activity)),
        (Signed(Admin), "/settings", get(settings::settings)),
        (Signed(Admin), "/settings/users.csv", get(csv_export::users)),
        (Signed(Admin), "/settings/keys.csv", get(csv_export::keys)),
        (Signed(Admin), "/settings/tokens.csv", get(csv_export::tokens)),
        (Signed(Admin), "/settings/feeds.csv", get(csv_export::feeds)),
        (Signed(Admin), "/settings/users", post(settings::invite)),
        (Signed(Admin), "/settings/users/{id}/reset", post(settings::reset)),
        (Signed(Admin), "/settings/users/{id}/remove", post(settings::remove)),
        (Signed(Admin), "/settings/keys", post(settings::make_key)),
        (Signed(Admin), "/settings/keys/{id}/revoke", post(settings::revoke_key)),
        (Signed(Admin), "/settings/tokens", post(settings::make_token)),
        (Signed(Admin), "/settings/tokens/{id}/revoke", post(settings::revoke_token)),
    ]
}

/// Every path of the dashboard with its required access.
pub fn paths() -> Vec<(Access, &'static str)> {
    table().into_iter().map(|(access, path, _)| (access, path)).collect()
}

/// The router of the dashboard, with the access check on every path.
pub fn router<S: Clone + Send + Sync + 'static>(dashboard: Dashboard) -> Router<S> {
    let router = table().into_iter().fold(Router::new(), |router, (access, path, handlers)| {
        let needs = Needs { app: dashboard.clone(), access };
        router.route(path, handlers.route_layer(from_fn_with_state(needs, middleware::guard)))
    });
    router.with_state(dashboard)
}
