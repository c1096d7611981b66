//! `/v1/feeds`, `/v1/feed-catalog`, and the feed metrics of `/metrics`.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::{ApiError, Body, Id, Limit, NoBody, NoQuery, Offset, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries::feeds;
use service::requests::feeds as requests;
use utoipa_axum::routes as handlers;
use vocab::{FeedId, Role};
use wire::v1::{CatalogFeed, CreateFeed, Feed, List};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Admin, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Admin, handlers!(delete))
        .add(Role::Admin, handlers!(update))
        .add(Role::Viewer, handlers!(catalog))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FeedPage {
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

/// List feeds
///
/// Vulnerability feeds, with state, age, size, the progress of a running import, and the error of
/// the last import if it failed. All organizations of an installation share its feeds. Sorted by
/// name.
#[utoipa::path(get, path = "/v1/feeds", tag = "Feeds", operation_id = "list_feeds", params(FeedPage),
    responses((status = 200, description = "A page of feeds.", body = List<Feed>)))]
pub(crate) async fn list(
    State(app): State<Api>,
    _caller: Extension<Caller>,
    url: RequestUrl,
    Query(part): Query<FeedPage>,
) -> Result<Json<List<Feed>>, ApiError> {
    let page = page::page(part.limit, part.offset);
    Ok(page::list(&url, page, feeds::page(&app, page).await?, |feed| feed))
}

/// Add a feed
///
/// Imports a feed from its URL, or a built-in feed by its name, and keeps it up to date. The import
/// starts within seconds; `state` and `progress` of the feed show how far it is. A feed that was
/// removed earlier is added again.
#[utoipa::path(post, path = "/v1/feeds", tag = "Feeds", operation_id = "create_feed",
    request_body = CreateFeed,
    responses((status = 201, description = "The feed was added.", body = Feed)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateFeed>,
) -> Result<impl IntoResponse, ApiError> {
    let created = requests::create(&app, &caller, body.into_parts()).await?;
    let location = format!("/v1/feeds/{}", created.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(created)))
}

/// Get a feed
#[utoipa::path(get, path = "/v1/feeds/{feed_id}", tag = "Feeds", operation_id = "get_feed",
    params(("feed_id" = FeedId, Path, description = "ID of the feed.")),
    responses((status = 200, description = "The feed.", body = Feed)))]
async fn get(
    State(app): State<Api>,
    _caller: Extension<Caller>,
    Id(id): Id<FeedId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Feed>, ApiError> {
    Ok(Json(feeds::get(&app, id).await?))
}

/// Update a feed now
///
/// Fetches the feed within seconds instead of at its next time. It is downloaded only if it has
/// changed.
#[utoipa::path(post, path = "/v1/feeds/{feed_id}/update", tag = "Feeds", operation_id = "update_feed",
    params(("feed_id" = FeedId, Path, description = "ID of the feed.")),
    responses((status = 202, description = "The update was requested.", body = Feed)))]
async fn update(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<FeedId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<impl IntoResponse, ApiError> {
    Ok((StatusCode::ACCEPTED, Json(requests::update(&app, &caller, id).await?)))
}

/// Remove a feed
///
/// Deletes the feed with its advisories, in the background: CVEs that appear only in this feed
/// disappear from every server. The service does not follow a removed built-in feed on its own
/// again. KEV and EPSS entries stay.
#[utoipa::path(delete, path = "/v1/feeds/{feed_id}", tag = "Feeds", operation_id = "delete_feed",
    params(("feed_id" = FeedId, Path, description = "ID of the feed.")),
    responses((status = 204, description = "The feed was removed.")))]
async fn delete(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<FeedId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<StatusCode, ApiError> {
    requests::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List built-in feeds
///
/// The feeds that can be added by name, with what they cover and whether a server needs them.
#[utoipa::path(get, path = "/v1/feed-catalog", tag = "Feeds", operation_id = "list_feed_catalog", params(FeedPage),
    responses((status = 200, description = "A page of built-in feeds.", body = List<CatalogFeed>)))]
async fn catalog(
    State(app): State<Api>,
    _caller: Extension<Caller>,
    url: RequestUrl,
    Query(part): Query<FeedPage>,
) -> Result<Json<List<CatalogFeed>>, ApiError> {
    let page = page::page(part.limit, part.offset);
    let all = service::queries::Paged::paginate(feeds::catalog(&app).await?, page);
    Ok(page::list(&url, page, all, |feed| feed))
}

/// The feed metrics for Prometheus. They are written directly, without the metrics registry: a
/// registered gauge would outlive its feed and would use another process's clock.
pub(crate) async fn metrics(app: &Api) -> service::Result<String> {
    let all = feeds::list(app).await?;
    let now = app.clock.now();
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Feed) -> Option<u64>| {
        let lines: Vec<(String, u64)> =
            all.iter().filter_map(|feed| Some((escape_label(&feed.name), value(feed)?))).collect();
        if !lines.is_empty() {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        }
        for (feed, value) in lines {
            let _ = writeln!(text, "{name}{{feed=\"{feed}\"}} {value}");
        }
    };
    gauge("fleetmend_feed_age_seconds", "Age of the newest record of a feed.", &|feed| {
        feed.age_seconds
    });
    gauge(
        "fleetmend_feed_checked_age_seconds",
        "Time since a feed was last checked against its source.",
        &|feed| feed.checked_at.map(|time| feeds::seconds_since(time, now)),
    );
    gauge("fleetmend_feed_records", "Number of records of a feed.", &|feed| Some(feed.records));
    gauge("fleetmend_feed_size_bytes", "Size of a feed in bytes.", &|feed| Some(feed.size_bytes));
    gauge("fleetmend_feed_failed", "Whether the last import of a feed failed.", &|feed| {
        Some(u64::from(feed.last_error.is_some()))
    });
    Ok(text)
}

/// Escapes a name as a Prometheus label value.
fn escape_label(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
