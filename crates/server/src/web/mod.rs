//! The dashboard: pages over the same functions as the API, for people who signed in.
//!
//! A page reads its request, calls what the API's own handler is, and hands the answer to `pages`, which makes markup of it. Nothing here
//! has a query of its own where the API has one, and nothing is written but through `service`.

mod account;
mod activity;
mod answer;
mod asked;
mod assets;
mod batches;
mod calendar;
mod cookies;
mod door;
mod files;
mod flaws;
mod flow;
pub(crate) mod gate;
mod guard;
mod live;
mod names;
mod oidc;
mod once;
mod order;
mod overview;
mod plots;
mod preview_token;
mod schedules;
mod servers;
mod settings;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use vocab::Role;

use crate::app::App;
use guard::{Needs, Viewer};

/// Who may see a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever signed in with this role, or a greater one.
    Signed(Role),
    /// Anyone: the way in, and what it looks like.
    Open,
}

/// Every path of the dashboard with who may use it: the one table of them, from which the router is made.
fn table() -> Vec<(Access, &'static str, MethodRouter<App>)> {
    use Access::{Open, Signed};
    use Role::{Admin, Operator, Viewer};
    vec![
        (Open, "/sign-in", get(door::form).post(door::sign_in)),
        (Open, "/welcome/{link}", get(door::invited).post(door::accept)),
        (Open, "/assets/{mark}/{name}", get(assets::asset)),
        (Open, "/sign-in/code", post(door::code)),
        (Open, "/sign-in/oidc", get(oidc::begin)),
        (Open, "/sign-in/oidc/back", get(oidc::back)),
        (Signed(Viewer), "/account", get(account::account)),
        (Signed(Viewer), "/account/totp", post(account::totp)),
        (Signed(Viewer), "/sign-out", post(door::sign_out)),
        (Signed(Viewer), "/", get(overview::overview)),
        (Signed(Viewer), "/trend.csv", get(files::trend)),
        (Signed(Viewer), "/live", get(live::live)),
        (Signed(Viewer), "/servers", get(servers::list)),
        (Signed(Viewer), "/servers.csv", get(files::servers)),
        (Signed(Viewer), "/servers/{id}", get(servers::one)),
        (Signed(Viewer), "/servers/{id}/packages.csv", get(files::server_packages)),
        (Signed(Viewer), "/servers/{id}/cves.csv", get(files::server_cves)),
        (Signed(Viewer), "/servers/{id}/unassessed.csv", get(files::server_unassessed)),
        (Signed(Viewer), "/servers/{id}/history.csv", get(files::server_history)),
        (Signed(Operator), "/servers/{id}/refresh", post(servers::refresh)),
        (Signed(Admin), "/servers/{id}/remove", get(servers::ask_remove).post(servers::remove)),
        (Signed(Admin), "/servers/{id}/release", post(servers::release)),
        (Signed(Viewer), "/patches", get(flaws::patches)),
        (Signed(Viewer), "/patches.csv", get(files::patches)),
        (Signed(Viewer), "/patch-ages.csv", get(files::ages)),
        (Signed(Viewer), "/patches/{name}", get(flaws::patch)),
        (Signed(Viewer), "/patches/{name}/servers.csv", get(files::patch_servers)),
        (Signed(Viewer), "/patches/{name}/versions.csv", get(files::patch_versions)),
        (Signed(Viewer), "/patches/{name}/cves.csv", get(files::patch_cves)),
        (Signed(Viewer), "/cves", get(flaws::cves)),
        (Signed(Viewer), "/cves.csv", get(files::cves)),
        (Signed(Viewer), "/cves/{id}", get(flaws::cve)),
        (Signed(Viewer), "/cves/{id}/servers.csv", get(files::cve_servers)),
        (Signed(Viewer), "/batches", get(batches::list)),
        (Signed(Viewer), "/batches.csv", get(files::batches)),
        (Signed(Viewer), "/batches/{id}", get(batches::one)),
        (Signed(Viewer), "/batches/{id}/tasks.csv", get(files::tasks)),
        (Signed(Operator), "/batches/{id}/{action}", post(batches::steer)),
        (Signed(Operator), "/batches/{id}/retry.csv", get(files::retry_outlook)),
        (Signed(Viewer), "/batches/{id}/tasks/{task}", get(batches::task)),
        (Signed(Viewer), "/batches/{id}/tasks/{task}/log", get(batches::log)),
        (Signed(Viewer), "/batches/{id}/tasks/{task}/changes.csv", get(files::changes)),
        (Signed(Operator), "/order", post(order::order)),
        (Signed(Operator), "/order.csv", post(files::order)),
        (Signed(Viewer), "/schedules", get(schedules::list)),
        (Signed(Viewer), "/schedules.csv", get(files::schedules)),
        (Signed(Operator), "/schedules/new", get(schedules::blank).post(schedules::create)),
        (Signed(Operator), "/schedules/next", get(schedules::next)),
        (Signed(Viewer), "/schedules/next.csv", get(files::next_runs)),
        (Signed(Viewer), "/schedules/calendar.csv", get(files::calendar)),
        (Signed(Viewer), "/schedules/{id}", get(schedules::one)),
        (Signed(Viewer), "/schedules/{id}/runs.csv", get(files::runs)),
        (Signed(Operator), "/schedules/{id}/edit", get(schedules::edit).post(schedules::replace)),
        (Signed(Operator), "/schedules/{id}/run", post(schedules::run)),
        (Signed(Operator), "/schedules/{id}/run.csv", get(files::schedule_outlook)),
        (Signed(Operator), "/schedules/{id}/delete", post(schedules::delete)),
        (Signed(Admin), "/activity", get(activity::activity)),
        (Signed(Admin), "/activity.csv", get(files::activity)),
        (Signed(Admin), "/settings", get(settings::settings)),
        (Signed(Admin), "/settings/users.csv", get(files::users)),
        (Signed(Admin), "/settings/keys.csv", get(files::keys)),
        (Signed(Admin), "/settings/tokens.csv", get(files::tokens)),
        (Signed(Admin), "/settings/feeds.csv", get(files::feeds)),
        (Signed(Admin), "/settings/users", post(settings::invite)),
        (Signed(Admin), "/settings/users/{id}/reset", post(settings::reset)),
        (Signed(Admin), "/settings/users/{id}/remove", post(settings::remove)),
        (Signed(Admin), "/settings/keys", post(settings::make_key)),
        (Signed(Admin), "/settings/keys/{id}/revoke", post(settings::revoke_key)),
        (Signed(Admin), "/settings/tokens", post(settings::make_token)),
        (Signed(Admin), "/settings/tokens/{id}/revoke", post(settings::revoke_token)),
    ]
}

/// Every path of the dashboard, and who may use it.
pub fn paths() -> Vec<(Access, &'static str)> {
    table().into_iter().map(|(access, path, _)| (access, path)).collect()
}

/// The pages with their guards.
pub(crate) fn routes(app: &App) -> Router<App> {
    table().into_iter().fold(Router::new(), |router, (access, path, handlers)| {
        let needs = Needs { app: app.clone(), access };
        router.route(path, handlers.route_layer(from_fn_with_state(needs, guard::guard)))
    })
}
