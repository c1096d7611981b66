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
mod compliance;
mod cookies;
mod csv_export;
mod display;
mod extract;
mod feeds;
mod find;
mod form_idempotency;
mod freezes;
mod live;
mod login;
mod login_throttle;
mod middleware;
mod names;
mod notifications;
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
#[cfg(debug_assertions)]
mod styleguide;
mod vulnerabilities;
mod webhooks;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::http::header::ACCEPT;
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use login_throttle::LoginThrottle;
use middleware::{PageAccess, Viewer};
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
    SignedIn(Role),
    /// Everyone: the sign-in pages and the assets.
    Open,
}

/// Every path of the dashboard with its required access. The router is built from this table.
fn route_table() -> Vec<(Access, &'static str, MethodRouter<Dashboard>)> {
    use Access::{Open, SignedIn};
    use Role::{Admin, Operator, Viewer};
    #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "for development builds only"))]
    let mut routes = vec![
        (Open, "/sign-in", get(login::show).post(login::sign_in)),
        (Open, "/welcome/{link}", get(login::show_invitation).post(login::accept_invitation)),
        (Open, "/assets/{mark}/{name}", get(assets::asset)),
        (Open, "/sign-in/code", post(login::code)),
        (Open, "/sign-in/oidc", get(oidc::begin)),
        (Open, "/sign-in/oidc/back", get(oidc::callback)),
        (SignedIn(Viewer), "/account", get(account::show)),
        (SignedIn(Viewer), "/account/password", post(account::change_password)),
        (SignedIn(Viewer), "/account/totp", post(account::totp)),
        (SignedIn(Viewer), "/account/recovery-codes", post(account::renew_recovery_codes)),
        (SignedIn(Viewer), "/account/sessions/end-others", post(account::end_other_sessions)),
        (SignedIn(Viewer), "/account/sessions/{id}/end", post(account::end_session)),
        (SignedIn(Viewer), "/account/theme", post(account::choose_theme)),
        (
            Open,
            "/confirm-email/{link}",
            get(notifications::show_confirm).post(notifications::confirm),
        ),
        (
            Open,
            "/unsubscribe/{link}",
            get(notifications::show_unsubscribe).post(notifications::unsubscribe),
        ),
        (SignedIn(Viewer), "/account/notifications", get(notifications::show)),
        (SignedIn(Viewer), "/account/notifications/address", post(notifications::set_address)),
        (
            SignedIn(Viewer),
            "/account/notifications/address/remove",
            post(notifications::remove_address),
        ),
        (SignedIn(Viewer), "/account/notifications/test", post(notifications::send_test)),
        (
            SignedIn(Viewer),
            "/account/notifications/new",
            get(notifications::new_form).post(notifications::create),
        ),
        (SignedIn(Viewer), "/account/notifications/{id}/delete", post(notifications::delete)),
        (SignedIn(Viewer), "/sign-out", post(login::sign_out)),
        (SignedIn(Viewer), "/display", post(display::choose)),
        (SignedIn(Viewer), "/views", post(display::save)),
        (SignedIn(Viewer), "/views/{id}/delete", post(display::delete)),
        (SignedIn(Viewer), "/", get(overview::overview)),
        (SignedIn(Viewer), "/trend.csv", get(csv_export::trend)),
        (SignedIn(Viewer), "/live", get(live::live)),
        (SignedIn(Viewer), "/find", get(find::find)),
        (SignedIn(Viewer), "/servers", get(servers::list)),
        (SignedIn(Viewer), "/servers.csv", get(csv_export::servers)),
        (SignedIn(Viewer), "/servers.json", get(csv_export::servers)),
        (SignedIn(Operator), "/servers/edit", post(servers::edit_many)),
        (SignedIn(Operator), "/servers/matching", post(schedules::show_matches)),
        (SignedIn(Viewer), "/servers/{id}", get(servers::show)),
        (SignedIn(Viewer), "/servers/{id}/{tab}", get(servers::show_other_tab)),
        (SignedIn(Viewer), "/servers/{id}/updates/{package}", get(servers::explain_update)),
        (SignedIn(Viewer), "/servers/{id}/cves/{cve}", get(servers::explain_cve)),
        (SignedIn(Viewer), "/servers/{id}/packages.csv", get(csv_export::server_packages)),
        (SignedIn(Viewer), "/servers/{id}/cves.csv", get(csv_export::server_cves)),
        (SignedIn(Viewer), "/servers/{id}/unassessed.csv", get(csv_export::server_unassessed)),
        (SignedIn(Viewer), "/servers/{id}/history.csv", get(csv_export::server_history)),
        (SignedIn(Operator), "/servers/{id}/refresh", post(servers::refresh)),
        (SignedIn(Admin), "/servers/{id}/upgrade-agent", post(servers::upgrade_agent)),
        (SignedIn(Operator), "/servers/{id}/edit", get(servers::show_edit).post(servers::edit)),
        (
            SignedIn(Admin),
            "/servers/{id}/remove",
            get(servers::confirm_remove).post(servers::remove),
        ),
        (SignedIn(Admin), "/servers/{id}/release", post(servers::release)),
        (SignedIn(Viewer), "/patches", get(vulnerabilities::patches)),
        (SignedIn(Viewer), "/patches.csv", get(csv_export::patches)),
        (SignedIn(Viewer), "/patches.json", get(csv_export::patches)),
        (SignedIn(Viewer), "/patch-ages.csv", get(csv_export::ages)),
        (SignedIn(Viewer), "/patches/{name}", get(vulnerabilities::patch)),
        (SignedIn(Viewer), "/patches/{name}/servers.csv", get(csv_export::patch_servers)),
        (SignedIn(Viewer), "/patches/{name}/versions.csv", get(csv_export::patch_versions)),
        (SignedIn(Viewer), "/patches/{name}/cves.csv", get(csv_export::patch_cves)),
        (SignedIn(Viewer), "/cves", get(vulnerabilities::cves)),
        (SignedIn(Viewer), "/cves.csv", get(csv_export::cves)),
        (SignedIn(Viewer), "/cves.json", get(csv_export::cves)),
        (SignedIn(Viewer), "/cves/{id}", get(vulnerabilities::cve)),
        (
            SignedIn(Operator),
            "/cves/{id}/suppress",
            get(vulnerabilities::suppress_form).post(vulnerabilities::suppress),
        ),
        (
            SignedIn(Operator),
            "/suppressions/{id}/delete",
            post(vulnerabilities::delete_suppression),
        ),
        (SignedIn(Viewer), "/cves/{id}/servers.csv", get(csv_export::cve_servers)),
        (SignedIn(Viewer), "/batches", get(batches::list)),
        (SignedIn(Viewer), "/batches.csv", get(csv_export::batches)),
        (SignedIn(Viewer), "/batches.json", get(csv_export::batches)),
        (SignedIn(Viewer), "/batches/{id}", get(batches::show)),
        (SignedIn(Viewer), "/batches/{id}/tasks.csv", get(csv_export::tasks)),
        (SignedIn(Operator), "/batches/{id}/{action}", post(batches::act)),
        (SignedIn(Operator), "/batches/{id}/retry.csv", get(csv_export::retry_preview)),
        (SignedIn(Viewer), "/batches/{id}/tasks/{task}", get(batches::task)),
        (SignedIn(Viewer), "/batches/{id}/tasks/{task}/log", get(batches::log)),
        (SignedIn(Viewer), "/batches/{id}/tasks/{task}/changes.csv", get(csv_export::changes)),
        (SignedIn(Operator), "/order", post(patch_form::submit)),
        (SignedIn(Operator), "/order.csv", post(csv_export::batch_preview)),
        (SignedIn(Viewer), "/schedules", get(schedules::list)),
        (SignedIn(Viewer), "/schedules.csv", get(csv_export::schedules)),
        (SignedIn(Viewer), "/schedules.json", get(csv_export::schedules)),
        (SignedIn(Operator), "/schedules/new", get(schedules::new_form).post(schedules::create)),
        (SignedIn(Operator), "/schedules/next", get(schedules::show_next_runs)),
        (SignedIn(Viewer), "/schedules/next.csv", get(csv_export::next_runs)),
        (SignedIn(Viewer), "/schedules/calendar.csv", get(csv_export::calendar)),
        (SignedIn(Viewer), "/schedules/{id}", get(schedules::show)),
        (SignedIn(Viewer), "/schedules/{id}/runs.csv", get(csv_export::runs)),
        (
            SignedIn(Operator),
            "/schedules/{id}/edit",
            get(schedules::edit_form).post(schedules::replace),
        ),
        (SignedIn(Operator), "/schedules/{id}/run", post(schedules::run)),
        (SignedIn(Operator), "/schedules/{id}/run.csv", get(csv_export::schedule_preview)),
        (SignedIn(Operator), "/schedules/{id}/delete", post(schedules::delete)),
        (SignedIn(Viewer), "/freezes", get(freezes::list)),
        (SignedIn(Viewer), "/freezes.csv", get(csv_export::freezes)),
        (SignedIn(Viewer), "/freezes.json", get(csv_export::freezes)),
        (SignedIn(Operator), "/freezes/new", get(freezes::new_form).post(freezes::create)),
        (SignedIn(Operator), "/freezes/{id}/edit", get(freezes::edit_form).post(freezes::replace)),
        (SignedIn(Operator), "/freezes/{id}/delete", post(freezes::delete)),
        (SignedIn(Viewer), "/compliance", get(compliance::show)),
        (SignedIn(Viewer), "/compliance.csv", get(csv_export::compliance)),
        (SignedIn(Viewer), "/compliance.json", get(csv_export::compliance)),
        (SignedIn(Viewer), "/compliance/servers", get(compliance::servers)),
        (SignedIn(Viewer), "/compliance/servers.csv", get(csv_export::compliance_servers)),
        (SignedIn(Viewer), "/compliance/servers.json", get(csv_export::compliance_servers)),
        (SignedIn(Viewer), "/compliance/report", get(compliance::report)),
        (
            SignedIn(Operator),
            "/compliance/policies/new",
            get(compliance::new_form).post(compliance::create),
        ),
        (
            SignedIn(Operator),
            "/compliance/policies/{id}/edit",
            get(compliance::edit_form).post(compliance::replace),
        ),
        (SignedIn(Operator), "/compliance/policies/{id}/delete", post(compliance::delete)),
        (SignedIn(Admin), "/activity", get(activity::activity)),
        (SignedIn(Admin), "/activity.csv", get(csv_export::activity)),
        (SignedIn(Admin), "/settings", get(settings::organization)),
        (SignedIn(Admin), "/settings/organization", post(settings::rename_organization)),
        (SignedIn(Admin), "/settings/people", get(settings::people)),
        (SignedIn(Admin), "/settings/sign-in", get(settings::sign_in)),
        (SignedIn(Admin), "/settings/agents", get(settings::agents)),
        (SignedIn(Admin), "/settings/agents/upgrade", post(settings::upgrade_agents)),
        (SignedIn(Admin), "/settings/users.csv", get(csv_export::users)),
        (SignedIn(Admin), "/settings/keys.csv", get(csv_export::keys)),
        (SignedIn(Admin), "/settings/tokens.csv", get(csv_export::tokens)),
        (SignedIn(Admin), "/settings/feeds.csv", get(csv_export::feeds)),
        (SignedIn(Admin), "/settings/feeds", get(feeds::show).post(feeds::add)),
        (SignedIn(Admin), "/settings/feeds/{id}/update", post(feeds::update)),
        (SignedIn(Admin), "/settings/feeds/{id}/remove", post(feeds::remove)),
        (SignedIn(Admin), "/settings/webhooks", get(webhooks::list)),
        (SignedIn(Admin), "/settings/webhooks.csv", get(csv_export::webhooks)),
        (SignedIn(Admin), "/settings/webhooks/new", get(webhooks::new_form).post(webhooks::create)),
        (SignedIn(Admin), "/settings/webhooks/{id}", get(webhooks::show)),
        (
            SignedIn(Admin),
            "/settings/webhooks/{id}/edit",
            get(webhooks::edit_form).post(webhooks::edit),
        ),
        (SignedIn(Admin), "/settings/webhooks/{id}/test", post(webhooks::test)),
        (SignedIn(Admin), "/settings/webhooks/{id}/enable", post(webhooks::enable)),
        (SignedIn(Admin), "/settings/webhooks/{id}/disable", post(webhooks::disable)),
        (SignedIn(Admin), "/settings/webhooks/{id}/rotate", post(webhooks::rotate)),
        (SignedIn(Admin), "/settings/webhooks/{id}/delete", post(webhooks::delete)),
        (SignedIn(Admin), "/settings/webhooks/{id}/deliveries.csv", get(csv_export::deliveries)),
        (
            SignedIn(Admin),
            "/settings/webhooks/{id}/deliveries/{delivery}/redeliver",
            post(webhooks::redeliver),
        ),
        (SignedIn(Admin), "/settings/users", post(settings::invite)),
        (SignedIn(Admin), "/settings/users/{id}/reset", post(settings::reset)),
        (SignedIn(Admin), "/settings/users/{id}/remove", post(settings::remove)),
        (SignedIn(Admin), "/settings/keys", get(settings::keys).post(settings::create_key)),
        (SignedIn(Admin), "/settings/keys/{id}/revoke", post(settings::revoke_key)),
        (SignedIn(Admin), "/settings/tokens", get(settings::tokens).post(settings::create_token)),
        (SignedIn(Admin), "/settings/tokens/{id}/revoke", post(settings::revoke_token)),
    ];
    #[cfg(debug_assertions)]
    routes.push((SignedIn(Viewer), "/styleguide", get(styleguide::show)));
    routes
}

/// Every path of the dashboard with its required access.
pub fn paths() -> Vec<(Access, &'static str)> {
    route_table().into_iter().map(|(access, path, _)| (access, path)).collect()
}

/// The page for a path that does not exist, if a browser asks for one.
pub async fn unknown_path(dashboard: &Dashboard, request: &Parts) -> Option<Response> {
    let accept = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accept.is_some_and(|types| types.contains("text/html"));
    let path = request.uri.path();
    let is_page = !path.starts_with("/v1/") && !path.starts_with("/agent/");
    match wants_page && is_page && request.method == Method::GET {
        true => Some(middleware::unknown_path(dashboard, request).await),
        false => None,
    }
}

/// The router of the dashboard, with the access check on every path.
pub fn router<S: Clone + Send + Sync + 'static>(dashboard: Dashboard) -> Router<S> {
    let router =
        route_table().into_iter().fold(Router::new(), |router, (access, path, handlers)| {
            let needs = PageAccess { app: dashboard.clone(), access };
            router.route(path, handlers.route_layer(from_fn_with_state(needs, middleware::handle)))
        });
    router.with_state(dashboard)
}
