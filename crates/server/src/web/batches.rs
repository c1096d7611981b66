//! Batches: the list, one as it happens, its logs, and how a person steers it.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::IntoResponse as _;
use pages::{Frame, Section};
use vocab::{BatchId, TaskId};

use crate::app::App;
use crate::http::auth::Credential;
use crate::http::problem::{ApiError, Code};
use crate::http::{Here, Id, Ids, NoBody, NoQuery, Query, batches, logs, tasks};
use crate::web::Viewer;
use crate::web::answer::{Answer, frame, live, page, see};
use crate::web::asked::{Asked, Form};
use crate::web::names::names;
use crate::web::order::location;

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
    let list =
        batches::list(State(app.clone()), viewer.caller(), here, Query(asked.meant)).await?.0;
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
    let row = batches::find(&mut *app.db.read().await?, &viewer.caller(), id).await?;
    let it = batches::whole(&app, row).await?;
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
    let it = tasks::get(State(app.clone()), caller.clone(), Ids(batch, id), none()).await?.0;
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
        "resume" => drop(batches::resume(state, caller, at, none, NoBody).await?),
        "cancel" if form.goes() => drop(batches::cancel(state, caller, at, none, NoBody).await?),
        "retry" if form.goes() => {
            let answer = batches::retry(state, caller, at, none, NoBody).await?;
            return see(&location(&answer.into_response()));
        }
        "cancel" | "retry" => return ask(&app, &viewer, batch, &action).await,
        _ => return Err(ApiError::new(Code::NotFound, "There is nothing at this path.")),
    }
    see(&format!("/batches/{batch}"))
}

async fn ask(app: &App, viewer: &Viewer, id: BatchId, action: &str) -> Answer {
    let row = batches::find(&mut *app.db.read().await?, &viewer.caller(), id).await?;
    let it = batches::whole(app, row).await?;
    let failed = it.progress.failed + it.progress.timed_out;
    let (title, line, verb) = match action {
        "cancel" => (
            "Cancel this batch?",
            "Servers that have not started will not. Those in work end what they have begun; nothing is undone.".to_owned(),
            "Cancel it",
        ),
        _ => (
            "Retry what failed?",
            format!("A new batch with the same options, of the {failed} servers that failed or timed out: {}.", pages::what(&it.options)),
            "Retry",
        ),
    };
    let here = format!("/batches/{id}");
    page(&pages::Confirm {
        frame: frame(app, viewer, Section::Batches, title),
        lines: vec![line],
        preview: None,
        action: format!("{here}/{action}"),
        verb: verb.into(),
        back: here,
        risky: action == "cancel",
    })
}
