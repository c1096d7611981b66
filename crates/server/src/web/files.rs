//! Tables as files: the rows that the list would show, page by page, up to a limit.

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse as _;
use jiff::Timestamp;
use pages::csv::csv;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::http::page::LIMIT_MAX;
use crate::http::problem::ApiError;
use crate::http::{Here, Query, batches, cves, patches, query, servers};
use crate::web::Viewer;
use crate::web::answer::Answer;
use crate::web::asked::Asked;

/// How many rows a file has at the most: what the API's own pages would be asked for twenty times.
const ROWS_MAX: u64 = 10_000;

/// The questions for page after page with the same filters.
fn parts<F: DeserializeOwned>(asked: &Asked<F>) -> Result<Vec<Query<F>>, ApiError> {
    let filters = asked.query();
    let filters = filters.trim_start_matches('?');
    let part = |offset: u64| {
        let text = format!("{filters}&limit={LIMIT_MAX}&offset={offset}");
        query::parse(text.trim_start_matches('&')).map(Query)
    };
    (0..ROWS_MAX).step_by(LIMIT_MAX as usize).map(part).collect()
}

/// All rows of a list: asks until there is no further page.
macro_rules! all {
    ($list:path, $app:ident, $viewer:ident, $here:ident, $asked:ident) => {{
        let mut rows = Vec::new();
        for query in parts(&$asked)? {
            let part = $list(State($app.clone()), $viewer.caller(), $here.clone(), query).await?.0;
            let last = part.links.next.is_none();
            rows.extend(part.data);
            if last {
                break;
            }
        }
        rows
    }};
}

fn file(name: &'static str, text: String) -> Answer {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8")),
        (CONTENT_DISPOSITION, HeaderValue::from_static(name)),
    ];
    Ok((headers, text).into_response())
}

fn time(at: Option<Timestamp>) -> String {
    at.map(|at| at.to_string()).unwrap_or_default()
}

fn text(value: &Option<impl ToString>) -> String {
    value.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// `/servers.csv`.
pub(crate) async fn servers(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<servers::Filter>,
) -> Answer {
    let rows = all!(servers::list, app, viewer, here, asked);
    let rows = rows.into_iter().map(|row| {
        let tags: Vec<String> = row.tags.iter().map(ToString::to_string).collect();
        vec![
            row.id.to_string(),
            row.hostname.to_string(),
            row.status.to_string(),
            text(&row.environment),
            tags.join(" "),
            text(&row.os),
            text(&row.kernel),
            row.summary.updates.to_string(),
            row.summary.security_updates.to_string(),
            row.reboot_required.to_string(),
            time(row.last_seen_at),
        ]
    });
    let head = [
        "id",
        "hostname",
        "status",
        "environment",
        "tags",
        "os",
        "kernel",
        "updates",
        "security_updates",
        "reboot_required",
        "last_seen_at",
    ];
    file("attachment; filename=\"servers.csv\"", csv(&head, rows))
}

/// `/patches.csv`.
pub(crate) async fn patches(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<patches::Filter>,
) -> Answer {
    let rows = all!(patches::list, app, viewer, here, asked);
    let rows = rows.into_iter().map(|row| {
        vec![
            row.package_name,
            row.severity.to_string(),
            pages::word(&row.update_type),
            row.affected_servers.to_string(),
            row.cves.join(" "),
            row.kev.to_string(),
            row.first_seen_at.to_string(),
        ]
    });
    let head =
        ["package_name", "severity", "type", "affected_servers", "cves", "kev", "first_seen_at"];
    file("attachment; filename=\"patches.csv\"", csv(&head, rows))
}

/// `/cves.csv`.
pub(crate) async fn cves(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<cves::Filter>,
) -> Answer {
    let rows = all!(cves::list, app, viewer, here, asked);
    let rows = rows.into_iter().map(|row| {
        vec![
            row.id,
            row.severity.to_string(),
            text(&row.cvss),
            text(&row.epss),
            row.kev.to_string(),
            row.affected_servers.to_string(),
            row.packages.join(" "),
            time(row.published),
        ]
    });
    let head =
        ["id", "severity", "cvss", "epss", "kev", "affected_servers", "packages", "published"];
    file("attachment; filename=\"cves.csv\"", csv(&head, rows))
}

/// `/batches.csv`.
pub(crate) async fn batches(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<batches::BatchFilter>,
) -> Answer {
    let rows = all!(batches::list, app, viewer, here, asked);
    let rows = rows.into_iter().map(|row| {
        vec![
            row.id.to_string(),
            pages::word(&row.state),
            pages::what(&row.options),
            row.progress.total.to_string(),
            (row.progress.failed + row.progress.timed_out).to_string(),
            row.created_at.to_string(),
            time(row.finished_at),
            text(&row.started_by),
        ]
    });
    let head =
        ["id", "state", "what", "servers", "failed", "created_at", "finished_at", "started_by"];
    file("attachment; filename=\"batches.csv\"", csv(&head, rows))
}
