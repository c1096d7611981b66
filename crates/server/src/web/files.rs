//! Tables as files: the rows that the list would show, page by page, up to a limit.

mod of_one;
mod of_settings;

pub(crate) use of_one::{
    cve_servers, patch_servers, runs, server_cves, server_history, server_packages, tasks,
};
pub(crate) use of_settings::{feeds, keys, tokens, users};

use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse as _;
use jiff::Timestamp;
use pages::csv::csv;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::http::page::LIMIT_MAX;
use crate::http::problem::ApiError;
use crate::http::{Here, NoQuery, Query, batches, cves, patches, query, schedules, servers};
use crate::web::answer::Answer;
use crate::web::asked::Asked;
use crate::web::names::names;
use crate::web::{Viewer, plots};

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
    ($list:path, $app:ident, $viewer:ident, $here:ident, $asked:ident $(, $of:expr)?) => {{
        let mut rows = Vec::new();
        for query in parts(&$asked)? {
            let (state, caller) = (State($app.clone()), $viewer.caller());
            let part = $list(state, caller, $here.clone(), $($of,)? query).await?.0;
            let last = part.links.next.is_none();
            rows.extend(part.data);
            if last {
                break;
            }
        }
        rows
    }};
}
use all;

fn file(name: &'static str, text: String) -> Answer {
    let named = format!("attachment; filename=\"{name}\"");
    let headers =
        [(CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()), (CONTENT_DISPOSITION, named)];
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
    file("servers.csv", csv(&head, rows))
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
    file("patches.csv", csv(&head, rows))
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
    file("cves.csv", csv(&head, rows))
}

/// `/batches.csv`.
pub(crate) async fn batches(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<batches::BatchFilter>,
) -> Answer {
    let rows = all!(batches::list, app, viewer, here, asked);
    let by = rows.iter().filter_map(|row| row.started_by.clone());
    let names = names(&app, &viewer, by).await?;
    let rows = rows.into_iter().map(|row| {
        vec![
            row.id.to_string(),
            pages::word(&row.state),
            pages::what(&row.options),
            row.progress.total.to_string(),
            (row.progress.failed + row.progress.timed_out).to_string(),
            row.created_at.to_string(),
            time(row.finished_at),
            row.started_by.as_deref().map(|by| names.name(by).to_owned()).unwrap_or_default(),
            text(&row.started_by),
        ]
    });
    let head = [
        "id",
        "state",
        "what",
        "servers",
        "failed",
        "created_at",
        "finished_at",
        "started_by_name",
        "started_by",
    ];
    file("batches.csv", csv(&head, rows))
}

/// `/schedules.csv`: all of them.
pub(crate) async fn schedules(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<schedules::Part>,
) -> Answer {
    let list = schedules::list(State(app), viewer.caller(), here, Query(asked.meant)).await?.0;
    let rows = list.data.into_iter().map(|row| {
        vec![
            row.id.to_string(),
            row.name,
            row.enabled.to_string(),
            row.cron.to_string(),
            row.timezone.to_string(),
            pages::targets(&row.targets),
            pages::what(&row.options),
            time(row.next_runs.first().copied()),
            row.last_run.as_ref().map(|run| pages::word(&run.state)).unwrap_or_default(),
            time(row.last_run.as_ref().map(|run| run.scheduled_for)),
        ]
    });
    let head = [
        "id",
        "name",
        "enabled",
        "cron",
        "timezone",
        "targets",
        "what",
        "next_run_at",
        "last_run_state",
        "last_run_at",
    ];
    file("schedules.csv", csv(&head, rows))
}

/// `/activity.csv`: the newest entries.
pub(crate) async fn activity(
    State(app): State<App>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let mut rows: Vec<store::audit::Entry> = Vec::new();
    let org = viewer.user.org_id;
    while (rows.len() as u64) < ROWS_MAX {
        let before = rows.last().map_or(i64::MAX, |entry| entry.seq);
        let mut reader = app.db.read().await?;
        let found = store::audit::before(&mut reader, org, before, LIMIT_MAX).await?;
        let last = found.len() < LIMIT_MAX as usize;
        rows.extend(found);
        if last {
            break;
        }
    }
    let ids = rows.iter().flat_map(|entry| [entry.actor.clone(), entry.subject.clone()]);
    let names = names(&app, &viewer, ids).await?;
    let rows = rows.into_iter().map(|row| {
        let [actor, subject] = [&row.actor, &row.subject].map(|id| names.name(id).to_owned());
        vec![
            row.seq.to_string(),
            row.at.to_string(),
            actor,
            row.actor,
            row.action,
            subject,
            row.subject,
            row.detail,
        ]
    });
    let head = ["seq", "at", "actor_name", "actor", "action", "subject_name", "subject", "detail"];
    file("activity.csv", csv(&head, rows))
}

/// `/trend.csv`: what the plots of the last days are drawn from.
pub(crate) async fn trend(
    State(app): State<App>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let trend = plots::trend(&app, &viewer).await?;
    let rows = trend.days.iter().map(|day| {
        let counts = [day.servers, day.up_to_date].into_iter().chain(day.cves);
        let counts = counts.chain([day.exploited]).map(|count| count.to_string());
        [day.day.to_string()].into_iter().chain(counts).collect()
    });
    let head = ["day", "servers", "up_to_date"].into_iter();
    let head: Vec<&str> = head.chain(pages::trend::SEVERITIES).chain(["known_exploited"]).collect();
    file("trend.csv", csv(&head, rows))
}

/// `/patch-ages.csv`: what the plot of how long patches have been pending is drawn from.
pub(crate) async fn ages(
    State(app): State<App>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let ages = plots::ages(&app, &viewer).await?;
    let rows = ages.spans().into_iter().map(|span| {
        let counts = span.counts.into_iter().map(|count| count.to_string());
        [span.said.to_owned()].into_iter().chain(counts).collect()
    });
    let head: Vec<&str> = ["pending"].into_iter().chain(pages::trend::SEVERITIES).collect();
    file("patch-ages.csv", csv(&head, rows))
}
