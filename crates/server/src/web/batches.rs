//! Batches: the list, one as it happens, its logs, and how a person steers it.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use pages::{Frame, Section};
use vocab::{BatchId, ServerId, TaskId};

use crate::app::App;
use crate::http::auth::Credential;
use crate::http::problem::{ApiError, Code};
use crate::http::{Here, Id, Ids, NoBody, NoQuery, Query, batches, logs, page as paging, show};
use crate::web::answer::{Answer, frame, live, page, refused, see};
use crate::web::asked::{Asked, Form};
use crate::web::names::names;
use crate::web::order::ON_PAGE;
use crate::web::preview_token::server_set;
use crate::web::{Viewer, preview_token};
use service::commands::batches::{self as commands, SeenBatch};
use service::queries;

/// The longest log that a page is made with; the API has the rest.
const LOG_BYTES_MAX: usize = 1 << 20;

/// `/batches`.
pub(crate) async fn list(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<batches::BatchFilter>,
) -> Answer {
    let (state, query) = (asked.text("state"), asked.query());
    let (part, states) = (asked.meant.page(), asked.meant.states());
    let found = queries::batches::list(&app, &viewer.caller().scope(), &states, part).await?;
    let list = paging::list(&here, part, found, |batch| batch).0;
    let frame = live(&app, &viewer, Section::Batches, "Batches");
    let by = list.data.iter().filter_map(|batch| batch.started_by.clone());
    let names = names(&app, &viewer, by).await?;
    page(&pages::Batches { frame, list, state, query, names })
}

/// `/batches/{id}`.
pub(crate) async fn one(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let row =
        queries::batches::find(&mut *app.db.read().await?, &viewer.caller().scope(), id).await?;
    let it = queries::batches::whole(&app, row).await?;
    let names = names(&app, &viewer, it.started_by.clone()).await?;
    let frame = frame(&app, &viewer, Section::Batches, "Batch");
    let frame = Frame { live: Some(format!("/live?batch={id}")), ..frame };
    page(&pages::BatchPage { frame, it, names })
}

/// `/batches/{id}/tasks/{task}`.
pub(crate) async fn task(
    State(app): State<App>,
    viewer: Viewer,
    Ids(batch, id): Ids<BatchId, TaskId>,
) -> Answer {
    let none = || Query(NoQuery {});
    let caller = viewer.caller();
    let it = queries::tasks::get(&app, &caller.scope(), batch, id).await?;
    let log = logs::log(State(app.clone()), caller, Ids(batch, id), none(), None, HeaderMap::new())
        .await?;
    let bytes = axum::body::to_bytes(log.into_body(), usize::MAX).await.unwrap_or_default();
    let log = String::from_utf8_lossy(&bytes[..bytes.len().min(LOG_BYTES_MAX)]).into_owned();
    let frame = frame(&app, &viewer, Section::Batches, format!("Log of {}", it.hostname));
    let frame = Frame { live: Some(format!("/live?batch={batch}")), ..frame };
    page(&pages::TaskPage { frame, batch: batch.to_string(), it, log })
}

/// The log as it grows.
pub(crate) async fn log(
    State(app): State<App>,
    viewer: Viewer,
    ids: Ids<BatchId, TaskId>,
    mut headers: HeaderMap,
) -> Answer {
    // `EventSource` asks for nothing else; a person who opens the path sees text.
    if !headers.contains_key(ACCEPT) {
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain"));
    }
    let session = Some(Extension(Credential::Session(viewer.session.clone())));
    let answer =
        logs::log(State(app), viewer.caller(), ids, Query(NoQuery {}), session, headers).await?;
    debug_assert!(answer.headers().contains_key(CONTENT_TYPE));
    Ok(answer)
}

/// Pauses, resumes, cancels, or tries again what failed.
pub(crate) async fn steer(
    State(app): State<App>,
    viewer: Viewer,
    Path((id, action)): Path<(String, String)>,
    form: Form,
) -> Answer {
    let no_batch = || ApiError::not_found("batch", &id);
    let batch: BatchId = id.parse().map_err(|_| no_batch())?;
    let (state, caller) = (State(app.clone()), viewer.caller());
    let (at, none) = (Id(batch), Query(NoQuery {}));
    match action.as_str() {
        "pause" => drop(batches::pause(state, caller, at, none, NoBody).await?),
        "resume" => resume(&app, &viewer, batch, &form).await?,
        "cancel" if form.goes() => drop(batches::cancel(state, caller, at, none, NoBody).await?),
        "cancel" => return ask_cancel(&app, &viewer, batch),
        "retry" => return retry(&app, &viewer, batch, &form).await,
        _ => return Err(ApiError::new(Code::NotFound, "There is nothing at this path.")),
    }
    see(&format!("/batches/{batch}"))
}

fn ask_cancel(app: &App, viewer: &Viewer, id: BatchId) -> Answer {
    let line = "Servers that have not started are skipped. Servers in progress finish; nothing is rolled back.";
    let here = format!("/batches/{id}");
    page(&pages::Confirm {
        frame: frame(app, viewer, Section::Batches, "Cancel this batch?"),
        errors: Vec::new(),
        lines: vec![line.to_owned()],
        previewed: None,
        action: format!("{here}/cancel"),
        verb: "Cancel it".into(),
        back: here,
        risky: true,
    })
}

/// Resumes the batch if it is still in the state, and has the failures, that the page showed.
async fn resume(app: &App, viewer: &Viewer, id: BatchId, form: &Form) -> Result<(), ApiError> {
    let caller = viewer.caller();
    queries::batches::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    let failures = form.text("failures").parse().unwrap_or(u32::MAX);
    let seen = SeenBatch { state: form.text("state"), failures };
    drop(commands::resume_seen(app, &caller.actor(), caller.org, id, &seen).await?);
    Ok(())
}

/// What a preview token for a retry covers, with the id of the batch and the servers. The options
/// of a batch never change.
const RETRY: &str = "retry";
const RETRY_OUTDATED: &str = "The failed servers changed since the preview, or the preview has expired. \
                              Review it and start again.";

fn retry_content(id: BatchId, servers: &[ServerId]) -> String {
    format!("{id} {}", server_set(servers))
}

/// Retries what failed: first a preview, then the servers that it showed.
async fn retry(app: &App, viewer: &Viewer, id: BatchId, form: &Form) -> Answer {
    let caller = viewer.caller();
    let mut errors = Vec::new();
    if form.goes() {
        let token = form.exact("preview");
        let approve = |servers: &[ServerId]| {
            let content = retry_content(id, servers);
            preview_token::check(app, viewer, RETRY, &content, token).is_ok()
        };
        let made = commands::retry_if(app, &caller.actor(), caller.org, id, &approve).await?;
        if let Some(made) = made {
            return see(&format!("/batches/{}", made.id));
        }
        errors.push(RETRY_OUTDATED.to_owned());
    }
    let (servers, preview) = retry_outlook(app, viewer, id, ON_PAGE).await?;
    let token = preview_token::issue(app, viewer, RETRY, &retry_content(id, &servers));
    let here = format!("/batches/{id}");
    let rejected = !errors.is_empty();
    let question = pages::Confirm {
        frame: frame(app, viewer, Section::Batches, "Retry failed servers?"),
        errors,
        lines: vec![
            "A new batch with the same options, for the servers that failed or timed out."
                .to_owned(),
        ],
        verb: pages::start_label(&preview.options, preview.total),
        previewed: Some(pages::OrderPreview { preview, token }),
        action: format!("{here}/retry"),
        back: here,
        risky: false,
    };
    if rejected { refused(&question) } else { page(&question) }
}

/// The servers that a retry would patch, and what it would do.
pub(crate) async fn retry_outlook(
    app: &App,
    viewer: &Viewer,
    id: BatchId,
    shown: usize,
) -> Result<(Vec<ServerId>, wire::v1::Preview), ApiError> {
    let (org, now) = (viewer.user.org_id, app.clock.now());
    let (row, servers) =
        commands::retryable(app, &mut *app.db.snapshot().await?, org, id, now).await?;
    let (options, _) = show::stored_options("rollouts", row.id, &row.options)?;
    let preview =
        queries::preview::of_servers(app, &viewer.caller().scope(), &options, &servers, shown)
            .await?;
    Ok((servers, preview))
}
