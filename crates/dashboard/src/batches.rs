//! Batch pages: the list, one batch with live updates, task logs, and the actions pause, resume,
//! cancel and retry.

use axum::extract::{Path, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderValue};
use httpkit::filters::{BatchFilter, TaskFilter};
use httpkit::problem::{ApiError, Code};
use httpkit::{Body, Id, Ids, RequestUrl, page as paging, task_log};
use serde_json::json;
use service::auth::caller::Credential;
use service::commands::batches::{self as commands, Decision, SeenBatch};
use service::queries::Page;
use service::{queries, requests};
use vocab::{BatchId, ServerId, TaskId};

use crate::display::display;
use crate::extract::{Form, ListQuery, PageQuery};
use crate::names::names;
use crate::pages::display::BATCHES;
use crate::pages::{Frame, Section};
use crate::patch_form::PREVIEW_SERVERS_MAX;
use crate::preview_token::server_set;
use crate::response::{PageResult, frame, invalid_input, live_frame, page, redirect};
use crate::{Dashboard, Viewer, pages, preview_token};

/// The longest log that a page includes. The API returns the rest.
const LOG_BYTES_MAX: usize = 1 << 20;
/// Maximum number of tasks that a page lists.
const TASKS_MAX: u32 = 200;
/// Maximum number of tasks in a timeline.
const SPANS_MAX: u32 = 5_000;

pub(crate) async fn list(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    list_query: ListQuery<BatchFilter>,
) -> PageResult {
    let filters = list_query.filters("/batches", &["state"]);
    let display = display(&app, &viewer, &BATCHES, &list_query, &filters).await?;
    let page_query = list_query.page;
    let menus = vec![filters.choices("State", "state", pages::choice::BATCH_STATE)];
    let query = page_query.query();
    let (part, states) = (page_query.parameters.page(), page_query.parameters.states());
    let found = queries::batches::list(&app, &viewer.caller().scope(), &states, part).await?;
    let list = paging::list(&url, part, found, |batch| batch).0;
    let frame = live_frame(&app, &viewer, Section::Batches, "Batches");
    let by = list.data.iter().filter_map(|batch| batch.started_by.clone());
    let names = names(&app, &viewer, by).await?;
    page(&pages::Batches { frame, list, menus, query, names, display })
}

pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Id(id): Id<BatchId>,
    query: PageQuery<TaskFilter>,
) -> PageResult {
    let (scope, state) = (viewer.caller().scope(), query.text("state"));
    let it = queries::batches::get(&app, &scope, id).await?;
    let first = Page { limit: TASKS_MAX, offset: 0 };
    let is_part = ["limit", "offset"].iter().any(|name| !query.text(name).is_empty());
    let part = if is_part { query.parameters.page() } else { first };
    let states = query.parameters.states();
    let found = queries::tasks::list(&app, &scope, id, &states, part).await?;
    let drawn = if is_part { part } else { Page { limit: SPANS_MAX, offset: 0 } };
    let timeline = match () {
        () if !state.is_empty() => String::new(),
        () if pages::plot::fits_lanes(it.progress.total, drawn) => {
            pages::plot::timeline(&found.items, &app.clock.now())
        }
        () => {
            let spans = queries::tasks::spans(&app, &scope, id, drawn).await?;
            let place = (drawn.offset, it.progress.total);
            pages::plot::grouped_timeline(&spans, place, id, &app.clock.now())
        }
    };
    let tasks = paging::list(&url, part, found, |task| task).0;
    let failed = match it.progress.failed + it.progress.timed_out {
        0 => Vec::new(),
        _ => queries::tasks::list(&app, &scope, id, &["failed", "timed_out"], first).await?.items,
    };
    let people = it.waves.iter().filter_map(|wave| wave.approved_by.clone());
    let names = names(&app, &viewer, it.started_by.clone().into_iter().chain(people)).await?;
    let frame = frame(&app, &viewer, Section::Batches, it.name.to_string());
    let frame = Frame { live: Some(format!("/live?batch={id}")), ..frame };
    let viewer = viewer.caller().actor().id;
    page(&pages::BatchPage { frame, it, tasks, timeline, is_part, state, failed, names, viewer })
}

pub(crate) async fn task(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Ids(batch, id): Ids<BatchId, TaskId>,
) -> PageResult {
    let caller = viewer.caller();
    let it = queries::tasks::get(&app, &caller.scope(), batch, id).await?;
    let mut reader = queries::task_logs::LogReader::open(&app, &caller, batch, id).await?;
    let mut bytes = Vec::new();
    while bytes.len() < LOG_BYTES_MAX
        && let Some(part) = reader.next().await?
    {
        bytes.extend_from_slice(&part);
    }
    bytes.truncate(LOG_BYTES_MAX);
    let log = String::from_utf8_lossy(&bytes).into_owned();
    let frame = frame(&app, &viewer, Section::Batches, format!("Log of {}", it.name()));
    let frame = Frame { live: Some(format!("/live?batch={batch}")), ..frame };
    page(&pages::TaskPage { frame, batch: batch.to_string(), it, log })
}

/// Streams a task log while it grows.
pub(crate) async fn log(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Ids(batch, id): Ids<BatchId, TaskId>,
    mut headers: HeaderMap,
) -> PageResult {
    // `EventSource` always sends `Accept: text/event-stream`. A request without `Accept` gets plain
    // text.
    if !headers.contains_key(ACCEPT) {
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain"));
    }
    let session = Some(Credential::Session(viewer.session.clone()));
    task_log::respond(&app, viewer.caller(), session, (batch, id), &headers).await
}

/// Pauses, resumes, cancels or retries a batch.
pub(crate) async fn act(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Path((id, action)): Path<(String, String)>,
    form: Form,
) -> PageResult {
    let no_batch = || ApiError::not_found("batch", &id);
    let batch: BatchId = id.parse().map_err(|_| no_batch())?;
    let caller = viewer.caller();
    match action.as_str() {
        "pause" => drop(requests::batches::pause(&app, &caller, batch).await?),
        "resume" => resume(&app, &viewer, batch, &form).await?,
        "approve" => decide(&app, &viewer, batch, Decision::Approve, &form).await?,
        "reject" if form.is_confirmed() => {
            decide(&app, &viewer, batch, Decision::Reject, &form).await?;
        }
        "reject" => return confirm_reject(&app, &viewer, batch),
        "cancel" if form.is_confirmed() => {
            drop(requests::batches::cancel(&app, &caller, batch).await?);
        }
        "cancel" => return confirm_cancel(&app, &viewer, batch),
        "retry" => return retry(&app, &viewer, batch, &form).await,
        _ => return Err(ApiError::new(Code::NotFound, "There is nothing at this path.")),
    }
    redirect(&format!("/batches/{batch}"))
}

/// Approves or rejects the wave that the page showed, not a later one.
async fn decide(
    app: &Dashboard,
    viewer: &Viewer,
    id: BatchId,
    decision: Decision,
    form: &Form,
) -> Result<(), ApiError> {
    let wave: Option<u32> = form.text("wave").parse().ok();
    let body: Body<wire::v1::Decision> =
        Body::from_value(&json!({"comment": form.text("comment"), "wave": wave}))?;
    let caller = viewer.caller();
    drop(requests::batches::decide(app, &caller, id, decision, body.into_parts()).await?);
    Ok(())
}

fn confirm_reject(app: &Dashboard, viewer: &Viewer, id: BatchId) -> PageResult {
    let line =
        "The batch is canceled: servers that have not started are skipped. Nothing is rolled back.";
    let here = format!("/batches/{id}");
    page(&pages::Confirm {
        frame: frame(app, viewer, Section::Batches, "Reject this wave?"),
        errors: Vec::new(),
        lines: vec![line.to_owned()],
        previewed: None,
        action: format!("{here}/reject"),
        verb: "Reject wave".into(),
        back: here,
        risky: true,
    })
}

fn confirm_cancel(app: &Dashboard, viewer: &Viewer, id: BatchId) -> PageResult {
    let line = "Servers that have not started are skipped. Servers in progress finish; nothing is rolled back.";
    let here = format!("/batches/{id}");
    page(&pages::Confirm {
        frame: frame(app, viewer, Section::Batches, "Cancel this batch?"),
        errors: Vec::new(),
        lines: vec![line.to_owned()],
        previewed: None,
        action: format!("{here}/cancel"),
        verb: "Cancel batch".into(),
        back: here,
        risky: true,
    })
}

/// Resumes the batch only if its state and its number of failures are still those that the page
/// showed.
async fn resume(
    app: &Dashboard,
    viewer: &Viewer,
    id: BatchId,
    form: &Form,
) -> Result<(), ApiError> {
    let failures = form.text("failures").parse().unwrap_or(u32::MAX);
    let seen = SeenBatch { state: form.text("state"), failures };
    drop(requests::batches::resume_seen(app, &viewer.caller(), id, &seen).await?);
    Ok(())
}

/// Action name of a retry in its preview token. The content is the batch id and the servers; the
/// options of a batch never change.
const RETRY_ACTION: &str = "retry";
const RETRY_OUTDATED: &str = "The failed servers changed since the preview, or the preview has expired. \
                              Review it and start again.";

fn retry_token_content(id: BatchId, servers: &[ServerId]) -> String {
    format!("{id} {}", server_set(servers))
}

/// Retries the failed servers: shows a preview first, then starts a batch for exactly the servers
/// of the preview.
async fn retry(app: &Dashboard, viewer: &Viewer, id: BatchId, form: &Form) -> PageResult {
    let caller = viewer.caller();
    let mut errors = Vec::new();
    if form.is_confirmed() {
        let token = form.raw("preview");
        let approve = |servers: &[ServerId]| {
            let content = retry_token_content(id, servers);
            preview_token::check(app, viewer, RETRY_ACTION, &content, token).is_ok()
        };
        let created = commands::retry_if(app, &caller.actor(), caller.org, id, &approve).await?;
        if let Some(made) = created {
            return redirect(&format!("/batches/{}", made.id));
        }
        errors.push(RETRY_OUTDATED.to_owned());
    }
    let (servers, preview) = preview_retry(app, viewer, id, PREVIEW_SERVERS_MAX).await?;
    let token = preview_token::issue(app, viewer, RETRY_ACTION, &retry_token_content(id, &servers));
    let here = format!("/batches/{id}");
    let rejected = !errors.is_empty();
    let question = pages::Confirm {
        frame: frame(app, viewer, Section::Batches, "Retry failed servers?"),
        errors,
        lines: vec![
            "Creates a batch with the same options for the servers that failed or timed out."
                .to_owned(),
        ],
        verb: pages::start_label(&preview.options, preview.total),
        previewed: Some(pages::PreviewWithToken { preview, token }),
        action: format!("{here}/retry"),
        back: here,
        risky: false,
    };
    if rejected { invalid_input(&question) } else { page(&question) }
}

/// The servers that a retry would patch, and what it would do.
pub(crate) async fn preview_retry(
    app: &Dashboard,
    viewer: &Viewer,
    id: BatchId,
    shown: usize,
) -> Result<(Vec<ServerId>, wire::v1::Preview), ApiError> {
    Ok(requests::preview::preview_retry(app, &viewer.caller(), id, shown).await?)
}
