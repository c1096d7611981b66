//! CSV export of the tables on the page of one server, patch, CVE, batch or schedule.

use axum::extract::State;
use httpkit::filters::{PageParams, TaskFilter};
use httpkit::problem::ApiError;
use httpkit::{Id, Ids, NoQuery, Query};
use service::queries;
use service::queries::Page;
use vocab::{BatchId, ScheduleId, ServerId, TaskId};
use wire::v1::{PackageChange, PatchDetail};

use super::{
    all, csv_response, file_response, format_option, format_time, gathered, is_last_page,
    join_list, page_by_page,
};
use crate::extract::PageQuery;
use crate::response::PageResult;
use crate::servers::history;
use crate::{Dashboard, Viewer, pages};
use httpkit::csv::csv;

pub(crate) async fn server_packages(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    csv_response(
        "packages",
        &it.packages,
        &[
            ("name", &|row| row.name.clone()),
            ("version", &|row| row.version.clone()),
            ("arch", &|row| row.arch.clone()),
            ("source", &|row| row.source.clone()),
            ("available_version", &|row| format_option(&row.available_version)),
            ("security", &|row| row.security.to_string()),
            ("held", &|row| row.held.to_string()),
            ("blocked_by", &|row| {
                row.blocked_by.map(|why| pages::api_name(&why)).unwrap_or_default()
            }),
        ],
    )
}

pub(crate) async fn server_cves(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    csv_response(
        "cves",
        &it.cves,
        &[
            ("id", &|row| row.id.clone()),
            ("severity", &|row| row.severity.to_string()),
            ("cvss", &|row| format_option(&row.cvss)),
            ("epss", &|row| format_option(&row.epss)),
            ("kev", &|row| row.kev.to_string()),
            ("package", &|row| row.package.clone()),
            ("installed_version", &|row| row.installed_version.clone()),
            ("fixed_version", &|row| format_option(&row.fixed_version)),
            ("state", &|row| pages::api_name(&row.state)),
            ("fix", &|row| pages::api_name(&row.fix)),
            ("suppressed", &|row| row.suppressed.is_some().to_string()),
            ("published", &|row| format_time(row.published)),
        ],
    )
}

pub(crate) async fn server_unassessed(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    csv_response(
        "unassessed",
        &it.unassessed,
        &[
            ("package", &|row| row.package.clone()),
            ("version", &|row| format_option(&row.version)),
            ("reason", &|row| row.reason.to_string()),
            ("detail", &|row| row.detail.clone()),
        ],
    )
}

fn format_changes(packages: &[PackageChange]) -> String {
    let one = |change: &PackageChange| {
        let [from, to] =
            [&change.from, &change.to].map(|version| version.as_deref().unwrap_or("–"));
        format!("{} {from} → {to}", change.name)
    };
    join_list(packages.iter().map(one))
}

/// The columns of a task, starting with its state.
const TASK_COLUMNS: [&str; 13] = [
    "state",
    "waiting_for",
    "started_at",
    "finished_at",
    "duration_seconds",
    "failure_code",
    "message",
    "notes",
    "packages",
    "reboot_needed",
    "reboot_done",
    "health",
    "health_problems",
];

fn task_cells(row: &wire::v1::Task) -> Vec<String> {
    let result = row.result.as_ref();
    let shown = |text: Option<String>| text.unwrap_or_default();
    vec![
        pages::api_name(&row.state),
        shown(row.waiting_for.map(|what| pages::api_name(&what))),
        format_time(row.started_at),
        format_time(row.finished_at),
        shown(result.map(|result| result.duration.to_string())),
        shown(result.and_then(|result| result.failure_code).map(|code| code.to_string())),
        shown(result.and_then(|result| result.message.as_ref()).map(ToString::to_string)),
        shown(result.map(|result| join_list(result.notes.iter().map(ToString::to_string)))),
        shown(result.map(|result| format_changes(&result.packages))),
        shown(result.map(|result| result.reboot.needed.to_string())),
        shown(result.map(|result| result.reboot.done.to_string())),
        shown(row.health.as_ref().map(|health| health.state.to_string())),
        shown(row.health.as_ref().map(|health| {
            join_list(health.problems.iter().map(|problem| problem.description.clone()))
        })),
    ]
}

pub(crate) async fn server_history(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    queries::servers::find(&app, &viewer.caller().scope(), id).await?;
    let rows = gathered!(page_by_page(), |page| {
        let found = history(&app, id, page).await?;
        (found.items, is_last_page(page, found.total))
    });
    let rows = rows.into_iter().map(|row| {
        let row_head = [row.batch.to_string(), row.ordered_at.to_string(), row.what];
        row_head.into_iter().chain(task_cells(&row.task)).collect()
    });
    let head: Vec<&str> = ["batch", "ordered_at", "what"].into_iter().chain(TASK_COLUMNS).collect();
    file_response("history", csv(&head, rows))
}

pub(crate) async fn tasks(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<BatchId>,
    query: PageQuery<TaskFilter>,
) -> PageResult {
    let (states, scope) = (query.parameters.states(), viewer.caller().scope());
    let rows = all!(|page| queries::tasks::list(&app, &scope, id, &states, page));
    let rows = rows.into_iter().map(|row| {
        let row_head = [row.id.to_string(), row.server_id.to_string(), row.hostname.to_string()];
        row_head.into_iter().chain(task_cells(&row)).collect()
    });
    let head: Vec<&str> = ["id", "server_id", "hostname"].into_iter().chain(TASK_COLUMNS).collect();
    file_response("tasks", csv(&head, rows))
}

pub(crate) async fn changes(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Ids(batch, id): Ids<BatchId, TaskId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let it = queries::tasks::get(&app, &viewer.caller().scope(), batch, id).await?;
    csv_response(
        "changes",
        &it.result.map(|result| result.packages).unwrap_or_default(),
        &[
            ("name", &|row| row.name.clone()),
            ("from", &|row| format_option(&row.from)),
            ("to", &|row| format_option(&row.to)),
        ],
    )
}

pub(crate) async fn patch_servers(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(name): Id<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let rows = gathered!(page_by_page(), |page| {
        let it = queries::patches::get(&app, &viewer.caller().scope(), &name, page).await?;
        (it.servers, is_last_page(page, it.patch.affected_servers))
    });
    csv_response(
        "servers",
        &rows,
        &[
            ("server_id", &|row| row.server_id.to_string()),
            ("hostname", &|row| row.hostname.to_string()),
            ("status", &|row| row.status.to_string()),
            ("environment", &|row| format_option(&row.environment)),
            ("installed_version", &|row| row.installed_version.clone()),
            ("available_version", &|row| row.available_version.clone()),
            ("blocked_by", &|row| {
                row.blocked_by.map(|why| pages::api_name(&why)).unwrap_or_default()
            }),
        ],
    )
}

/// A patch without its affected servers.
async fn find_patch(app: Dashboard, viewer: &Viewer, name: &str) -> Result<PatchDetail, ApiError> {
    let first = Page { limit: 1, offset: 0 };
    Ok(queries::patches::get(&app, &viewer.caller().scope(), name, first).await?)
}

pub(crate) async fn patch_versions(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(name): Id<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    csv_response(
        "versions",
        &find_patch(app, &viewer, &name).await?.patch.versions,
        &[
            ("os", &|row| row.os.clone()),
            ("from", &|row| row.from.clone()),
            ("to", &|row| row.to.clone()),
        ],
    )
}

pub(crate) async fn patch_cves(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(name): Id<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    csv_response(
        "cves",
        &find_patch(app, &viewer, &name).await?.cve_details,
        &[
            ("id", &|row| row.id.clone()),
            ("severity", &|row| row.severity.to_string()),
            ("cvss", &|row| format_option(&row.cvss)),
            ("kev", &|row| row.kev.to_string()),
        ],
    )
}

pub(crate) async fn cve_servers(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(cve): Id<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let rows = gathered!(page_by_page(), |page| {
        let it = queries::cves::get(&app, &viewer.caller().scope(), &cve, page).await?;
        let all = it.cve.affected_servers.saturating_add(it.cve.suppressed_servers);
        (it.servers, is_last_page(page, all))
    });
    csv_response(
        "servers",
        &rows,
        &[
            ("server_id", &|row| row.server_id.to_string()),
            ("hostname", &|row| row.hostname.to_string()),
            ("status", &|row| row.status.to_string()),
            ("environment", &|row| format_option(&row.environment)),
            ("package", &|row| row.package.clone()),
            ("installed_version", &|row| row.installed_version.clone()),
            ("fixed_version", &|row| format_option(&row.fixed_version)),
            ("state", &|row| pages::api_name(&row.state)),
            ("suppressed", &|row| row.suppressed.is_some().to_string()),
        ],
    )
}

pub(crate) async fn runs(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
    _: PageQuery<PageParams>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let rows = all!(|page| queries::schedules::runs(&app, &scope, id, page));
    csv_response(
        "runs",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("scheduled_for", &|row| row.scheduled_for.to_string()),
            ("state", &|row| pages::api_name(&row.state)),
            ("skip_reason", &|row| {
                row.skip_reason.map(|why| pages::api_name(&why)).unwrap_or_default()
            }),
            ("trigger", &|row| pages::api_name(&row.trigger)),
            ("batch", &|row| format_option(&row.batch_id)),
            ("servers", &|row| {
                format_option(&row.progress.as_ref().map(|progress| progress.total))
            }),
            ("failed", &|row| {
                format_option(
                    &row.progress.as_ref().map(|progress| progress.failed + progress.timed_out),
                )
            }),
            ("finished_at", &|row| format_time(row.finished_at)),
        ],
    )
}
