//! CSV export of previews: what a batch would do, and when schedules run.

use axum::extract::State;
use axum::http::HeaderMap;
use httpkit::problem::{ApiError, Code};
use httpkit::{Id, NoQuery, Query};
use service::queries::preview::SHOWN_MAX;
use vocab::{BatchId, ScheduleId};
use wire::v1::{Preview, PreviewUpdate};

use super::{csv_response, format_time, join_list, join_words};
use crate::extract::{Form, PageQuery};
use crate::pages::form::PATCH_FIELDS;
use crate::pages::form_errors::FormErrors;
use crate::patch_form::{api_body, check, parse, preview};
use crate::response::PageResult;
use crate::schedules::CronQuery;
use crate::{Dashboard, Viewer, batches, pages, schedules};

fn format_updates(some: &[PreviewUpdate]) -> String {
    join_list(some.iter().map(|update| {
        let why = update.blocked_by.map(|why| format!(": {}", pages::label(why)));
        format!("{} {} → {}{}", update.name, update.from, update.to, why.unwrap_or_default())
    }))
}

fn preview_table(it: &Preview) -> PageResult {
    csv_response(
        "preview",
        &it.servers,
        &[
            ("server_id", &|row| row.server_id.to_string()),
            ("hostname", &|row| row.hostname.to_string()),
            ("canary", &|row| row.canary.to_string()),
            ("starts_at", &|row| format_time(row.starts_at)),
            ("waits_for", &|row| {
                join_words(&row.waits_for.iter().map(pages::api_name).collect::<Vec<_>>())
            }),
            ("updates", &|row| format_updates(&row.updates)),
            ("blocked", &|row| format_updates(&row.blocked)),
            ("nothing_pending", &|row| row.nothing_pending.join(" ")),
            ("host_limits", &|row| row.host_limits.join("; ")),
            ("reboot", &|row| pages::api_name(&row.reboot)),
        ],
    )
}

/// `/order.csv`: the preview of a batch. It is a POST, like `/order`: it names up to 500 servers,
/// too many for a URL.
pub(crate) async fn batch_preview(
    State(app): State<Dashboard>,
    viewer: Viewer,
    sent: Form,
) -> PageResult {
    let form = parse(&sent);
    let mut errors = FormErrors::new(PATCH_FIELDS);
    check(&form, &mut errors);
    if let Some(message) = errors.first("packages") {
        return Err(ApiError::new(Code::InvalidBody, message));
    }
    preview_table(&preview(&app, &viewer, &api_body(&form)?, SHOWN_MAX).await?)
}

/// `/schedules/{id}/run.csv`: what a run would do now.
pub(crate) async fn schedule_preview(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    preview_table(&schedules::schedule_preview(&app, &viewer, id, SHOWN_MAX).await?.1)
}

/// `/batches/{id}/retry.csv`: what a retry would do now.
pub(crate) async fn retry_preview(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    preview_table(&batches::preview_retry(&app, &viewer, id, SHOWN_MAX).await?.1)
}

/// `/schedules/next.csv`: the next run times of a cron expression.
pub(crate) async fn next_runs(
    State(app): State<Dashboard>,
    _viewer: Viewer,
    query: PageQuery<CronQuery>,
) -> PageResult {
    let it = query.parameters.next_runs(&app);
    if let Some(message) = it.message {
        return Err(ApiError::new(Code::BadRequest, message));
    }
    csv_response(
        "next-runs",
        &it.next,
        &[
            ("local_time", &|at| pages::in_zone(at, &it.zone)),
            ("timezone", &|_| it.zone.to_string()),
            ("at", &|at| at.to_string()),
        ],
    )
}

/// `/schedules/calendar.csv`: in the browser's time zone, like the page.
pub(crate) async fn calendar(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let it = crate::calendar::calendar(&app, &viewer, &headers).await?;
    let days = it.weeks.iter().flatten();
    let entries: Vec<_> =
        days.flat_map(|day| day.entries.iter().map(move |entry| (day.date, entry))).collect();
    csv_response(
        "calendar",
        &entries,
        &[
            ("date", &|(date, _)| date.to_string()),
            ("first_time", &|(_, entry)| entry.first.clone()),
            ("timezone", &|_| it.zone.to_string()),
            ("times", &|(_, entry)| entry.times.to_string()),
            ("schedule", &|(_, entry)| entry.name.clone()),
            ("schedule_time", &|(_, entry)| entry.schedule_time.clone().unwrap_or_default()),
            ("schedule_id", &|(_, entry)| entry.id.to_string()),
        ],
    )
}
