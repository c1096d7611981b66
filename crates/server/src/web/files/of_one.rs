//! The tables on the page of one thing: of a server, a patch, a CVE, a batch, a schedule.

use axum::extract::State;
use pages::csv::csv;
use store::Page;
use vocab::{BatchId, ScheduleId, ServerId};
use wire::v1::PackageChange;

use super::{ROWS_MAX, all, file, parts, text, time};
use crate::app::App;
use crate::http::credentials::Listing;
use crate::http::page::LIMIT_MAX;
use crate::http::{Here, Id, NoQuery, Query, cves, patches, query, schedules, servers, tasks};
use crate::web::Viewer;
use crate::web::answer::Answer;
use crate::web::asked::Asked;
use crate::web::servers::history;

/// `/servers/{id}/packages.csv`.
pub(crate) async fn server_packages(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let (_, it) = servers::detail(&app, &viewer.caller(), id).await?;
    let rows = it.packages.into_iter().map(|row| {
        vec![
            row.name,
            row.version,
            row.arch,
            row.source,
            text(&row.available_version),
            row.security.to_string(),
            row.held.to_string(),
            row.blocked_by.map(|why| pages::word(&why)).unwrap_or_default(),
        ]
    });
    let head = [
        "name",
        "version",
        "arch",
        "source",
        "available_version",
        "security",
        "held",
        "blocked_by",
    ];
    file("packages.csv", csv(&head, rows))
}

/// `/servers/{id}/cves.csv`.
pub(crate) async fn server_cves(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let (_, it) = servers::detail(&app, &viewer.caller(), id).await?;
    let rows = it.cves.into_iter().map(|row| {
        vec![
            row.id,
            row.severity.to_string(),
            text(&row.cvss),
            text(&row.epss),
            row.kev.to_string(),
            row.package,
            row.installed_version,
            text(&row.fixed_version),
            pages::word(&row.state),
            pages::word(&row.fix),
            row.suppressed.is_some().to_string(),
            time(row.published),
        ]
    });
    let head = [
        "id",
        "severity",
        "cvss",
        "epss",
        "kev",
        "package",
        "installed_version",
        "fixed_version",
        "state",
        "fix",
        "suppressed",
        "published",
    ];
    file("cves.csv", csv(&head, rows))
}

fn changes(packages: &[PackageChange]) -> String {
    let one = |change: &PackageChange| {
        let [from, to] =
            [&change.from, &change.to].map(|version| version.as_deref().unwrap_or("–"));
        format!("{} {from} → {to}", change.name)
    };
    packages.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// What a task's columns are called, from its state on.
const TASK: [&str; 8] = [
    "state",
    "started_at",
    "finished_at",
    "failure_code",
    "message",
    "packages",
    "reboot_needed",
    "reboot_done",
];

fn task(row: &wire::v1::Task) -> Vec<String> {
    let result = row.result.as_ref();
    let shown = |text: Option<String>| text.unwrap_or_default();
    vec![
        pages::word(&row.state),
        time(row.started_at),
        time(row.finished_at),
        shown(result.and_then(|result| result.failure_code).map(|code| code.to_string())),
        shown(result.and_then(|result| result.message.as_ref()).map(ToString::to_string)),
        shown(result.map(|result| changes(&result.packages))),
        shown(result.map(|result| result.reboot.needed.to_string())),
        shown(result.map(|result| result.reboot.done.to_string())),
    ]
}

/// `/servers/{id}/history.csv`.
pub(crate) async fn server_history(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    servers::find(&mut *app.db.read().await?, &viewer.caller(), id).await?;
    let mut rows = Vec::new();
    for offset in (0..ROWS_MAX).step_by(LIMIT_MAX as usize) {
        let found = history(&app, id, Page { limit: LIMIT_MAX, offset }).await?.items;
        let last = found.len() < LIMIT_MAX as usize;
        rows.extend(found);
        if last {
            break;
        }
    }
    let rows = rows.into_iter().map(|row| {
        let of = [row.batch.to_string(), row.ordered_at.to_string(), row.what];
        of.into_iter().chain(task(&row.task)).collect()
    });
    let head: Vec<&str> = ["batch", "ordered_at", "what"].into_iter().chain(TASK).collect();
    file("history.csv", csv(&head, rows))
}

/// `/batches/{id}/tasks.csv`.
pub(crate) async fn tasks(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    Id(id): Id<BatchId>,
    asked: Asked<tasks::Filter>,
) -> Answer {
    let rows = all!(tasks::list, app, viewer, here, asked, Id(id));
    let rows = rows.into_iter().map(|row| {
        let of = [row.id.to_string(), row.server_id.to_string(), row.hostname.to_string()];
        of.into_iter().chain(task(&row)).collect()
    });
    let head: Vec<&str> = ["id", "server_id", "hostname"].into_iter().chain(TASK).collect();
    file("tasks.csv", csv(&head, rows))
}

/// `/patches/{name}/servers.csv`.
pub(crate) async fn patch_servers(
    State(app): State<App>,
    viewer: Viewer,
    Id(name): Id<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let mut rows = Vec::new();
    for offset in (0..ROWS_MAX).step_by(LIMIT_MAX as usize) {
        let part = Query(query::parse(&format!("limit={LIMIT_MAX}&offset={offset}"))?);
        let (state, id) = (State(app.clone()), Id(name.clone()));
        let it = patches::get(state, viewer.caller(), id, part).await?.0;
        rows.extend(it.servers);
        if offset + u64::from(LIMIT_MAX) >= it.patch.affected_servers {
            break;
        }
    }
    let rows = rows.into_iter().map(|row| {
        vec![
            row.server_id.to_string(),
            row.hostname.to_string(),
            row.status.to_string(),
            text(&row.environment),
            row.installed_version,
            row.available_version,
            row.blocked_by.map(|why| pages::word(&why)).unwrap_or_default(),
        ]
    });
    let head = [
        "server_id",
        "hostname",
        "status",
        "environment",
        "installed_version",
        "available_version",
        "blocked_by",
    ];
    file("servers.csv", csv(&head, rows))
}

/// `/cves/{id}/servers.csv`.
pub(crate) async fn cve_servers(
    State(app): State<App>,
    viewer: Viewer,
    Id(cve): Id<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let mut rows = Vec::new();
    for offset in (0..ROWS_MAX).step_by(LIMIT_MAX as usize) {
        let part = Query(query::parse(&format!("limit={LIMIT_MAX}&offset={offset}"))?);
        let (state, id) = (State(app.clone()), Id(cve.clone()));
        let it = cves::get(state, viewer.caller(), id, part).await?.0;
        rows.extend(it.servers);
        let all = it.cve.affected_servers.saturating_add(it.cve.suppressed_servers);
        if offset + u64::from(LIMIT_MAX) >= all {
            break;
        }
    }
    let rows = rows.into_iter().map(|row| {
        vec![
            row.server_id.to_string(),
            row.hostname.to_string(),
            row.status.to_string(),
            text(&row.environment),
            row.package,
            row.installed_version,
            text(&row.fixed_version),
            pages::word(&row.state),
            row.suppressed.is_some().to_string(),
        ]
    });
    let head = [
        "server_id",
        "hostname",
        "status",
        "environment",
        "package",
        "installed_version",
        "fixed_version",
        "state",
        "suppressed",
    ];
    file("servers.csv", csv(&head, rows))
}

/// `/schedules/{id}/runs.csv`.
pub(crate) async fn runs(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    Id(id): Id<ScheduleId>,
    asked: Asked<Listing>,
) -> Answer {
    let rows = all!(schedules::history, app, viewer, here, asked, Id(id));
    let rows = rows.into_iter().map(|row| {
        let count = |count: Option<u32>| count.map(|count| count.to_string()).unwrap_or_default();
        let progress = row.progress.as_ref();
        vec![
            row.id.to_string(),
            row.scheduled_for.to_string(),
            pages::word(&row.state),
            row.skip_reason.map(|why| pages::word(&why)).unwrap_or_default(),
            pages::word(&row.trigger),
            text(&row.batch_id),
            count(progress.map(|progress| progress.total)),
            count(progress.map(|progress| progress.failed + progress.timed_out)),
            time(row.finished_at),
        ]
    });
    let head = [
        "id",
        "scheduled_for",
        "state",
        "skip_reason",
        "trigger",
        "batch",
        "servers",
        "failed",
        "finished_at",
    ];
    file("runs.csv", csv(&head, rows))
}
