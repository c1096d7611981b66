//! `/v1/feeds`, and the feed metrics of `/metrics`.

use std::fmt::Write as _;

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::{ApiError, Limit, Offset, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries::feeds;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{Feed, List};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(list))
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
/// Imported vulnerability feeds, with age, size and the error of the last import if it failed. All
/// organizations of an installation share its feeds. Sorted by name.
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
