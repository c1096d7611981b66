//! CSV export of every list: the rows that the page would show, read page by page up to a limit.
//! The main lists are also offered as JSON, with the same fields as in the API.

mod details;
mod previews;
mod settings;

pub(crate) use details::{
    changes, cve_servers, patch_cves, patch_servers, patch_versions, runs, server_cves,
    server_history, server_packages, server_unassessed, tasks,
};
pub(crate) use previews::{batch_preview, calendar, next_runs, retry_preview, schedule_preview};
pub(crate) use settings::{deliveries, feeds, keys, tokens, users, webhooks};

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::Response;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::response::IntoResponse as _;
use httpkit::filters::{
    BatchFilter, ComplianceFilter, ComplianceServers, CveFilter, PatchFilter, ScheduleList,
    ServerFilter,
};
use httpkit::page::LIMIT_MAX;
use httpkit::{NoQuery, Query};
use jiff::Timestamp;
use service::queries;
use service::queries::Page;
use wire::v1::PatchVersion;

use crate::activity::{self, ActivityQuery};
use crate::extract::PageQuery;
use crate::names::names;
use crate::response::PageResult;
use crate::{Dashboard, Viewer, pages, plots};
use httpkit::csv::csv;

/// Maximum number of rows in a file: 20 pages of the API.
const ROWS_MAX: u64 = 10_000;

/// Collects rows in parts. `$asked` yields the rows of a part and whether it is the last one.
macro_rules! gathered {
    ($parts:expr, |$part:ident| $asked:expr) => {{
        let mut rows = Vec::new();
        for $part in $parts {
            let (some, last) = $asked;
            rows.extend(some);
            if last {
                break;
            }
        }
        rows
    }};
}
use gathered;

/// Collects all rows of a query, up to [`ROWS_MAX`].
macro_rules! all {
    (|$page:ident| $query:expr) => {
        gathered!(page_by_page(), |$page| {
            let found = $query.await?;
            (found.items, is_last_page($page, found.total))
        })
    };
}
use all;

/// The pages that make up a file.
fn page_by_page() -> impl Iterator<Item = Page> {
    let offsets = (0..ROWS_MAX).step_by(LIMIT_MAX as usize);
    offsets.map(|offset| Page { limit: LIMIT_MAX, offset })
}

/// Whether `page` is the last page of a list with `rows` rows.
fn is_last_page(page: Page, rows: u64) -> bool {
    page.offset + u64::from(page.limit) >= rows
}

/// A column: its header, and the function that renders its cells.
type Column<'a, T> = (&'static str, &'a (dyn Fn(&T) -> String + Sync));

/// The format of a file, by the extension in its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    Json,
}

impl<S: Send + Sync> FromRequestParts<S> for Format {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Format, Infallible> {
        let is_json = parts.uri.path().ends_with(".json");
        Ok(if is_json { Format::Json } else { Format::Csv })
    }
}

/// A list in the requested format. `name` is the name of the file without extension.
fn list_response<T: serde::Serialize>(
    format: Format,
    name: &'static str,
    rows: &[T],
    columns: &[Column<'_, T>],
) -> PageResult {
    match format {
        Format::Csv => csv_response(name, rows, columns),
        Format::Json => {
            let text =
                serde_json::to_string_pretty(rows).map_err(|_| httpkit::problem::internal())?;
            Ok(attachment(&format!("{name}.json"), "application/json", text))
        }
    }
}

fn csv_response<T>(name: &'static str, rows: &[T], columns: &[Column<'_, T>]) -> PageResult {
    let head: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let cells = |row: &T| columns.iter().map(|(_, cell)| cell(row)).collect();
    file_response(name, csv(&head, rows.iter().map(cells)))
}

fn file_response(name: &'static str, text: String) -> PageResult {
    Ok(attachment(&format!("{name}.csv"), "text/csv; charset=utf-8", text))
}

fn attachment(name: &str, media_type: &str, text: String) -> Response<Body> {
    let named = format!("attachment; filename=\"{name}\"");
    let headers = [(CONTENT_TYPE, media_type.to_owned()), (CONTENT_DISPOSITION, named)];
    (headers, text).into_response()
}

fn format_time(at: Option<Timestamp>) -> String {
    at.map(|at| at.to_string()).unwrap_or_default()
}

fn format_option(value: &Option<impl ToString>) -> String {
    value.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn join_words<'a, T: ToString + 'a>(some: impl IntoIterator<Item = &'a T>) -> String {
    some.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Joins several values into one cell with a separator, for values that contain spaces.
fn join_list(some: impl Iterator<Item = String>) -> String {
    some.collect::<Vec<_>>().join("; ")
}

pub(crate) async fn servers(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<ServerFilter>,
) -> PageResult {
    let ((wanted, sort), scope) = (query.parameters.into_filter(), viewer.caller().scope());
    let rows = all!(|page| queries::servers::list(&app, &scope, wanted.clone(), sort, page));
    list_response(
        format,
        "servers",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("hostname", &|row| row.hostname.to_string()),
            ("status", &|row| row.status.to_string()),
            ("environment", &|row| format_option(&row.environment)),
            ("tags", &|row| join_words(&row.tags)),
            ("os", &|row| format_option(&row.os)),
            ("kernel", &|row| format_option(&row.kernel)),
            ("updates", &|row| row.summary.updates.to_string()),
            ("security_updates", &|row| row.summary.security_updates.to_string()),
            ("cves_critical", &|row| row.summary.cves.critical.to_string()),
            ("cves_high", &|row| row.summary.cves.high.to_string()),
            ("cves_medium", &|row| row.summary.cves.medium.to_string()),
            ("cves_low", &|row| row.summary.cves.low.to_string()),
            ("cves_unknown", &|row| row.summary.cves.unknown.to_string()),
            ("assessment", &|row| row.assessment.to_string()),
            ("unassessed_packages", &|row| row.summary.unassessed.to_string()),
            ("reboot_required", &|row| row.reboot_required.to_string()),
            ("last_scan_at", &|row| format_time(row.last_scan_at)),
            ("stale", &|row| row.stale.to_string()),
            ("last_seen_at", &|row| format_time(row.last_seen_at)),
            ("display_name", &|row| format_option(&row.display_name)),
            ("notes", &|row| row.notes.clone()),
        ],
    )
}

pub(crate) async fn patches(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<PatchFilter>,
) -> PageResult {
    let (wanted, scope) = (query.parameters.into_filter(), viewer.caller().scope());
    let rows = all!(|page| queries::patches::list(&app, &scope, wanted.clone(), page));
    list_response(
        format,
        "patches",
        &rows,
        &[
            ("package_name", &|row| row.package_name.clone()),
            ("severity", &|row| row.severity.to_string()),
            ("type", &|row| pages::api_name(&row.update_type)),
            ("affected_servers", &|row| row.affected_servers.to_string()),
            ("cves", &|row| row.cves.join(" ")),
            ("kev", &|row| row.kev.to_string()),
            ("versions", &|row| {
                let one = |it: &PatchVersion| format!("{} → {} {}", it.from, it.to, it.os);
                join_list(row.versions.iter().map(one))
            }),
            ("first_seen_at", &|row| row.first_seen_at.to_string()),
        ],
    )
}

pub(crate) async fn cves(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<CveFilter>,
) -> PageResult {
    let (wanted, scope) = (query.parameters.into_filter(), viewer.caller().scope());
    let rows = all!(|page| queries::cves::list(&app, &scope, wanted.clone(), page));
    list_response(
        format,
        "cves",
        &rows,
        &[
            ("id", &|row| row.id.clone()),
            ("severity", &|row| row.severity.to_string()),
            ("cvss", &|row| format_option(&row.cvss)),
            ("epss", &|row| format_option(&row.epss)),
            ("kev", &|row| row.kev.to_string()),
            ("affected_servers", &|row| row.affected_servers.to_string()),
            ("packages", &|row| row.packages.join(" ")),
            ("published", &|row| format_time(row.published)),
        ],
    )
}

pub(crate) async fn batches(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<BatchFilter>,
) -> PageResult {
    let (states, scope) = (query.parameters.states(), viewer.caller().scope());
    let rows = all!(|page| queries::batches::list(&app, &scope, &states, page));
    let by = rows.iter().filter_map(|row| row.started_by.clone());
    let names = names(&app, &viewer, by).await?;
    list_response(
        format,
        "batches",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("state", &|row| pages::api_name(&row.state)),
            ("what", &|row| pages::describe_updates(&row.options)),
            ("servers", &|row| row.progress.total.to_string()),
            ("failed", &|row| (row.progress.failed + row.progress.timed_out).to_string()),
            ("percent", &|row| row.progress.percent.to_string()),
            ("origin", &|row| pages::api_name(&row.origin)),
            ("created_at", &|row| row.created_at.to_string()),
            ("finished_at", &|row| format_time(row.finished_at)),
            ("started_by_name", &|row| {
                row.started_by.as_deref().map(|by| names.name(by).to_owned()).unwrap_or_default()
            }),
            ("started_by", &|row| format_option(&row.started_by)),
            ("name", &|row| row.name.to_string()),
        ],
    )
}

/// `/schedules.csv`: all schedules.
pub(crate) async fn schedules(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<ScheduleList>,
) -> PageResult {
    let ((limit, offset), scope) = (query.parameters.limit_and_offset(), viewer.caller().scope());
    let (_, found) = queries::schedules::list(&app, &scope, limit, offset).await?;
    list_response(
        format,
        "schedules",
        &found.items,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("enabled", &|row| row.enabled.to_string()),
            ("cron", &|row| row.cron.to_string()),
            ("timezone", &|row| row.timezone.to_string()),
            ("targets", &|row| pages::describe_targets(&row.targets)),
            ("what", &|row| pages::describe_updates(&row.options)),
            ("next_run_at", &|row| format_time(row.next_runs.first().copied())),
            ("last_run_state", &|row| {
                row.last_run.as_ref().map(|run| pages::api_name(&run.state)).unwrap_or_default()
            }),
            ("last_run_at", &|row| format_time(row.last_run.as_ref().map(|run| run.scheduled_for))),
            ("when", &|row| row.cron.describe()),
        ],
    )
}

/// `/freezes.csv`: all freezes.
pub(crate) async fn freezes(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<ScheduleList>,
) -> PageResult {
    let ((limit, offset), scope) = (query.parameters.limit_and_offset(), viewer.caller().scope());
    let (_, found) = queries::freezes::list(&app, &scope, limit, offset).await?;
    list_response(
        format,
        "freezes",
        &found.items,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("reason", &|row| row.reason.clone()),
            ("active", &|row| row.active.to_string()),
            ("active_until", &|row| format_time(row.active_until)),
            ("next_start_at", &|row| format_time(row.next.first().map(|next| next.starts_at))),
            ("when", &pages::freeze_when),
            ("starts_at", &|row| format_time(row.starts_at)),
            ("ends_at", &|row| format_time(row.ends_at)),
            ("cron", &|row| format_option(&row.cron)),
            ("duration_minutes", &|row| format_option(&row.duration_minutes)),
            ("timezone", &|row| format_option(&row.timezone)),
            ("targets", &|row| pages::describe_targets(&row.targets)),
            ("servers", &|row| row.servers.to_string()),
        ],
    )
}

/// `/compliance.csv`: the figures of all policies.
pub(crate) async fn compliance(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<ComplianceFilter>,
) -> PageResult {
    let (scope, wanted) = (viewer.caller().scope(), query.parameters.wanted());
    let rows = all!(|page| queries::compliance::list(&app, &scope, &wanted, page));
    list_response(
        format,
        "compliance",
        &rows,
        &[
            ("policy_id", &|row| row.policy_id.to_string()),
            ("policy", &|row| row.policy.clone()),
            ("environment", &|row| format_option(&row.environment)),
            ("servers", &|row| row.servers.to_string()),
            ("compliant", &|row| row.compliant.to_string()),
            ("due_soon", &|row| row.due_soon.to_string()),
            ("breaching", &|row| row.breaching.to_string()),
            ("unknown", &|row| row.unknown.to_string()),
            ("oldest_breach_at", &|row| format_time(row.oldest_breach_at)),
        ],
    )
}

/// `/compliance/servers.csv`: the servers behind a number.
pub(crate) async fn compliance_servers(
    State(app): State<Dashboard>,
    viewer: Viewer,
    format: Format,
    query: PageQuery<ComplianceServers>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let ComplianceServers { policy, environment, state, .. } = query.parameters;
    let rows = all!(|page| queries::compliance::servers(
        &app,
        &scope,
        policy,
        environment.clone(),
        state,
        page
    ));
    list_response(
        format,
        "compliance-servers",
        &rows,
        &[
            ("server_id", &|row| row.server_id.to_string()),
            ("server", &|row| row.server_name().to_owned()),
            ("environment", &|row| format_option(&row.environment)),
            ("policy", &|row| row.policy.clone()),
            ("state", &|row| pages::api_name(&row.state)),
            ("unknown_reason", &|row| {
                row.unknown_reason.map(|why| why.as_str().to_owned()).unwrap_or_default()
            }),
            ("due_at", &|row| format_time(row.due_at)),
            ("open", &|row| row.open.to_string()),
            ("overdue", &|row| row.overdue.to_string()),
        ],
    )
}

/// `/activity.csv`: the newest entries that match the filters.
pub(crate) async fn activity(
    State(app): State<Dashboard>,
    viewer: Viewer,
    query: PageQuery<ActivityQuery>,
) -> PageResult {
    let mut before = i64::MAX;
    let rows = gathered!(page_by_page(), |page| {
        let (found, older) =
            activity::matching(&app, &viewer, &query.parameters, before, page.limit).await?;
        before = older.unwrap_or(0);
        (found, older.is_none())
    });
    let known = activity::resources(&app, &viewer, &rows, []).await?;
    let name = |id: &str| known.names.get(id).map_or(id, String::as_str).to_owned();
    csv_response(
        "activity",
        &rows,
        &[
            ("seq", &|row| row.seq.to_string()),
            ("at", &|row| row.at.to_string()),
            ("actor_name", &|row| name(&row.actor)),
            ("actor", &|row| row.actor.clone()),
            ("action", &|row| row.action.clone()),
            ("subject_name", &|row| name(&row.subject)),
            ("subject", &|row| row.subject.clone()),
            ("detail", &|row| row.detail.clone()),
        ],
    )
}

/// `/trend.csv`: the data of the charts on the Overview.
pub(crate) async fn trend(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let trend = plots::trend(&app, &viewer).await?;
    let rows = trend.days.iter().map(|day| {
        let counts = [day.servers, day.up_to_date].into_iter().chain(day.cves);
        let counts = counts.chain([day.exploited]).map(|count| count.to_string());
        [day.day.to_string()].into_iter().chain(counts).collect()
    });
    let head = ["day", "servers", "up_to_date"].into_iter();
    let head: Vec<&str> = head.chain(pages::trend::SEVERITIES).chain(["known_exploited"]).collect();
    file_response("trend", csv(&head, rows))
}

/// `/patch-ages.csv`: the data of the chart "Time pending".
pub(crate) async fn ages(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let ages = plots::ages(&app, &viewer).await?;
    let rows = ages.spans().into_iter().map(|span| {
        let counts = span.counts.into_iter().chain([span.total]).map(|count| count.to_string());
        [span.label.to_owned()].into_iter().chain(counts).collect()
    });
    let head = ["pending"].into_iter().chain(pages::trend::SEVERITIES);
    let head: Vec<&str> = head.chain(["packages"]).collect();
    file_response("patch-ages", csv(&head, rows))
}
