//! Server pages: the list, one server, and the actions edit, refresh, remove and release.

use axum::extract::State;
use httpkit::filters::PageParams;
use httpkit::problem::{ApiError, Code};
use httpkit::{Body, Id, RequestUrl, filters, page as paging};
use serde_json::json;
use service::queries::{Page, Paged};
use service::requests::Versions;
use service::{queries, requests};
use vocab::ServerId;
use wire::v1::{EditServer, UpgradeAgents};

use crate::extract::{Form, PageQuery};
use crate::pages::{HistoryRow, Section, ServerFilter};
use crate::response::{
    PageResult, error_sentences, frame, invalid_input, live_frame, page, redirect,
};
use crate::{Dashboard, Viewer, pages};

/// Maximum number of history entries on a server's page.
const HISTORY_ROWS: u32 = 20;

/// `/servers`, with the same filters as the API.
pub(crate) async fn list(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    page_query: PageQuery<filters::ServerFilter>,
) -> PageResult {
    let filter = ServerFilter {
        q: page_query.text("q"),
        status: page_query.text("status"),
        environment: page_query.text("environment"),
        os: page_query.text("os"),
        tag: page_query.text("tag"),
        reboot_required: page_query.text("reboot_required"),
        sort: page_query.text("sort"),
    };
    let query = page_query.query();
    let (part, scope) = (page_query.parameters.page(), viewer.caller().scope());
    let (wanted, sort) = page_query.parameters.into_filter();
    let found = queries::servers::list(&app, &scope, wanted, sort, part).await?;
    let list = paging::list(&url, part, found, |server| server).0;
    let frame = live_frame(&app, &viewer, Section::Servers, "Servers");
    page(&pages::Servers { frame, list, filter, query })
}

pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Id(id): Id<ServerId>,
    query: PageQuery<PageParams>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    let part = match query.text("limit").is_empty() {
        true => Page { limit: HISTORY_ROWS, offset: query.parameters.offset.0 },
        false => paging::page(query.parameters.limit, query.parameters.offset),
    };
    let found = history(&app, id, part).await?;
    let history = paging::list(&url, part, found, |row| row).0;
    let frame = live_frame(&app, &viewer, Section::Servers, it.server.hostname.to_string());
    page(&pages::ServerPage { frame, it, history })
}

/// The batches that a server took part in, newest first.
pub(crate) async fn history(
    app: &Dashboard,
    id: ServerId,
    part: Page,
) -> Result<Paged<HistoryRow>, ApiError> {
    let found = queries::tasks::history_of_server(app, id, part).await?;
    let row = |(batch, ordered_at, options, task): queries::tasks::PastTask| HistoryRow {
        batch,
        ordered_at,
        what: pages::describe_updates(&options),
        task,
    };
    Ok(Paged { items: found.items.into_iter().map(row).collect(), total: found.total })
}

/// Requests a package scan from the agent.
pub(crate) async fn refresh(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> PageResult {
    requests::servers::refresh(&app, &viewer.caller(), id).await?;
    redirect(&format!("/servers/{id}"))
}

/// Requests an upgrade of the agent.
pub(crate) async fn upgrade_agent(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> PageResult {
    let body: Body<UpgradeAgents> = Body::from_value(&json!({"targets": {"server_ids": [id]}}))?;
    requests::agents::upgrade(&app, &viewer.caller(), body.into_parts()).await?;
    redirect(&format!("/servers/{id}"))
}

/// The form with the environment and the tags of a server.
pub(crate) async fn show_edit(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    page(&pages::ServerEdit {
        frame: frame(&app, &viewer, Section::Servers, format!("Edit {}", it.server.hostname)),
        id: id.to_string(),
        hostname: it.server.hostname.to_string(),
        shown: edited_values(&it.server),
        tags: it.server.tags.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        environment: it.server.environment.map(|it| it.to_string()).unwrap_or_default(),
        errors: Vec::new(),
    })
}

/// Saves the form, unless the server was edited since the form was shown.
pub(crate) async fn edit(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    form: Form,
) -> PageResult {
    let (environment, tags) = (form.text("environment"), form.text("tags"));
    let list: Vec<&str> =
        tags.split([' ', ',', '\n', '\r', '\t']).filter(|tag| !tag.is_empty()).collect();
    let new_environment = (!environment.is_empty()).then_some(&environment);
    let body = serde_json::json!({"environment": new_environment, "tags": list});
    let body: Body<EditServer> = Body::from_value(&body)?;
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    // Syncs change a server all the time, so the form is compared by what it edits.
    let shown = form.text("shown");
    if shown != edited_values(&it.server) {
        let detail = "The server was edited since this form was shown. Open the form again.";
        return Err(ApiError::new(Code::ChangedMeanwhile, detail));
    }
    let caller = viewer.caller();
    let edited = requests::servers::edit(&app, &caller, id, body.into_parts(), &Versions::Any);
    match edited.await.map_err(ApiError::from) {
        Ok(_) => redirect(&format!("/servers/{id}")),
        Err(error) if error.code() != Code::InvalidBody => Err(error),
        Err(error) => {
            let hostname = it.server.hostname.to_string();
            let title = format!("Edit {hostname}");
            let frame = frame(&app, &viewer, Section::Servers, title);
            let errors = error_sentences(&error);
            let id = id.to_string();
            invalid_input(&pages::ServerEdit {
                frame,
                id,
                hostname,
                environment,
                tags,
                shown,
                errors,
            })
        }
    }
}

/// The values that the form edits, as one text, to detect a concurrent edit.
fn edited_values(server: &wire::v1::Server) -> String {
    let environment = server.environment.as_ref().map(ToString::to_string).unwrap_or_default();
    let tags = server.tags.iter().map(ToString::to_string);
    std::iter::once(environment).chain(tags).collect::<Vec<_>>().join(" ")
}

/// The confirmation page before a server is removed.
pub(crate) async fn confirm_remove(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    let title = format!("Remove {}?", it.server.hostname);
    let lines = vec![
        "The server disappears from all lists, and its unfinished tasks are canceled.".into(),
        "Its agent stays installed, is notified at its next contact, and executes no more orders. To add the server \
         again, enroll it again; it is then a new server."
            .into(),
    ];
    let here = format!("/servers/{id}");
    page(&pages::Confirm {
        frame: frame(&app, &viewer, Section::Servers, title),
        errors: Vec::new(),
        lines,
        previewed: None,
        action: format!("{here}/remove"),
        verb: "Remove server".into(),
        back: here,
        risky: true,
    })
}

pub(crate) async fn remove(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    form: Form,
) -> PageResult {
    if !form.is_confirmed() {
        return redirect(&format!("/servers/{id}/remove"));
    }
    requests::servers::remove(&app, &viewer.caller(), id, &Versions::Any).await?;
    redirect("/servers")
}

/// Releases a server from the quarantine that the page showed. A later quarantine stays in place.
pub(crate) async fn release(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    form: Form,
) -> PageResult {
    let reason = form.text("reason");
    let released =
        requests::servers::release_if_reason_unchanged(&app, &viewer.caller(), id, &reason).await?;
    if released.is_none() {
        let detail = "The reason for the quarantine changed since the page was shown. Review it and \
                      release the server again.";
        return Err(ApiError::new(Code::ChangedMeanwhile, detail));
    }
    redirect(&format!("/servers/{id}"))
}
