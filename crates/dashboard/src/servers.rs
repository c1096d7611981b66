//! Server pages: the list, one server, and the actions edit, refresh, remove and release.

use axum::extract::{Path, State};
use httpkit::filters::PageParams;
use httpkit::problem::{ApiError, Code};
use httpkit::{Body, Id, Ids, RequestUrl, filters, page as paging};
use serde_json::json;
use service::queries::servers::Facets;
use service::queries::{Page, Paged};
use service::requests::Versions;
use service::requests::validate::SERVER_IDS_MAX;
use service::{queries, requests};
use vocab::{Digest, Line, ServerId};
use wire::v1::{AgentUpgrades, EditServer, EditServers, Explanation, UpgradeAgents};

use crate::display::display;
use crate::extract::{Form, ListQuery, PageQuery};
use crate::names::names;
use crate::pages::display::SERVERS;
use crate::pages::facets::{FacetMenu, Filters};
use crate::pages::form::{SERVER_FIELDS, SERVERS_FIELDS, ServersForm};
use crate::pages::form_errors::FormErrors;
use crate::pages::{HistoryRow, Section, ServerTab};
use crate::response::{PageResult, form_errors, frame, invalid_input, live_frame, page, redirect};
use crate::{Dashboard, Viewer, pages};

/// Maximum number of history entries on a server's page.
const HISTORY_ROWS: u32 = 20;
/// Maximum number of names that the form for several servers lists.
const NAMES_MAX: usize = 200;

/// `/servers`, with the same filters as the API.
pub(crate) async fn list(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    list_query: ListQuery<filters::ServerFilter>,
) -> PageResult {
    let names = ["q", "status", "environment", "os", "tag", "reboot_required", "sort"];
    let filters = list_query.filters("/servers", &names);
    let display = display(&app, &viewer, &SERVERS, &list_query, &filters).await?;
    let page_query = list_query.page;
    let query = page_query.query();
    let (part, scope) = (page_query.parameters.page(), viewer.caller().scope());
    let (wanted, sort) = page_query.parameters.into_filter();
    let found = queries::servers::list(&app, &scope, wanted, sort, part).await?;
    let list = paging::list(&url, part, found, |server| server).0;
    let facets = queries::servers::facets(&app, &scope).await?;
    let online = queries::servers::online(&app, &scope).await?;
    let menus = menus(&filters, facets, online);
    let frame = live_frame(&app, &viewer, Section::Servers, "Servers");
    page(&pages::Servers { frame, list, filters, menus, query, display })
}

/// The filter menus of the list.
fn menus(filters: &Filters, facets: Facets, online: u64) -> Vec<FacetMenu> {
    let counted = |values: Vec<(String, u64)>| {
        values.into_iter().map(|(value, count)| (value.clone(), value, Some(count)))
    };
    vec![
        filters.menu("Environment", "environment", counted(facets.environments)),
        filters.menu("System", "os", counted(facets.systems)),
        filters.menu("Tag", "tag", counted(facets.tags)),
        filters.counted("Status", "status", pages::choice::STATUS, |value| match value {
            "online" => online,
            _ => facets.servers.saturating_sub(online),
        }),
        filters.choices("Reboot", "reboot_required", pages::choice::REBOOT_REQUIRED),
        filters.choices("Sort", "sort", pages::choice::SORT),
    ]
}

/// The servers that a form selects: those that were picked, or all that match the filters of the
/// list that was shown.
pub(crate) async fn selected(
    app: &Dashboard,
    viewer: &Viewer,
    form: &Form,
) -> Result<Vec<String>, ApiError> {
    if form.text("all_matching").is_empty() {
        return Ok(form.all("server_ids"));
    }
    let query = form.text("matching");
    let filter: filters::ServerFilter = httpkit::query::parse(query.trim_start_matches('?'))?;
    let (wanted, _) = filter.into_filter();
    let scope = viewer.caller().scope();
    let ids = queries::servers::matching(app, &scope, wanted, SERVER_IDS_MAX + 1).await?;
    if ids.len() > SERVER_IDS_MAX {
        let max = pages::number(SERVER_IDS_MAX);
        let detail = format!("More than {max} servers match. Filter the list further.");
        return Err(ApiError::new(Code::InvalidBody, detail));
    }
    Ok(ids.iter().map(ToString::to_string).collect())
}

/// The form that changes several servers, and its submission.
pub(crate) async fn edit_many(
    State(app): State<Dashboard>,
    viewer: Viewer,
    sent: Form,
) -> PageResult {
    let mut server_ids = selected(&app, &viewer, &sent).await?;
    server_ids.sort();
    server_ids.dedup();
    if server_ids.is_empty() {
        return Err(ApiError::new(Code::BadRequest, "No server was selected."));
    }
    let change = sent.text("environment_change");
    let form = ServersForm {
        server_ids,
        environment_change: if change.is_empty() { "keep".to_owned() } else { change },
        environment: sent.text("environment"),
        add_tags: sent.text("add_tags"),
        remove_tags: sent.text("remove_tags"),
    };
    if !sent.is_confirmed() {
        return page(&edit_many_page(&app, &viewer, form, FormErrors::default()).await?);
    }
    let mut body = json!({
        "targets": {"server_ids": form.server_ids},
        "add_tags": split_tags(&form.add_tags),
        "remove_tags": split_tags(&form.remove_tags),
    });
    match form.environment_change.as_str() {
        "set" => body["environment"] = json!(form.environment),
        "remove" => body["environment"] = json!(null),
        _ => {}
    }
    let body: Body<EditServers> = Body::from_value(&body)?;
    let caller = viewer.caller();
    let edited = requests::servers::edit_many(&app, &caller, body.into_parts());
    match edited.await.map_err(ApiError::from) {
        Ok(_) => redirect("/servers"),
        Err(error) => {
            let errors = form_errors(error, SERVERS_FIELDS)?;
            invalid_input(&edit_many_page(&app, &viewer, form, errors).await?)
        }
    }
}

/// The environments of all servers, as suggestions in forms.
pub(crate) async fn environments(
    app: &Dashboard,
    viewer: &Viewer,
) -> Result<Vec<String>, ApiError> {
    let facets = queries::servers::facets(app, &viewer.caller().scope()).await?;
    Ok(facets.environments.into_iter().map(|(name, _)| name).collect())
}

async fn edit_many_page(
    app: &Dashboard,
    viewer: &Viewer,
    form: ServersForm,
    errors: FormErrors,
) -> Result<pages::ServersEdit, ApiError> {
    let shown = form.server_ids.iter().take(NAMES_MAX).cloned();
    let names = names(app, viewer, shown).await?;
    let environments = environments(app, viewer).await?;
    let frame = frame(app, viewer, Section::Servers, "Edit servers");
    Ok(pages::ServersEdit { frame, form, names, environments, errors })
}

pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Id(id): Id<ServerId>,
    query: PageQuery<PageParams>,
) -> PageResult {
    show_tab(&app, &viewer, &url, id, &query, ServerTab::Overview).await
}

/// `/servers/{id}/{tab}`
pub(crate) async fn show_other_tab(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Path((id, tab)): Path<(String, String)>,
    query: PageQuery<PageParams>,
) -> PageResult {
    let id: ServerId = id.parse().map_err(|_| ApiError::not_found("server", &id))?;
    let nothing = || ApiError::new(Code::NotFound, "There is no page at this address.");
    let tab = ServerTab::from_path(&tab).ok_or_else(nothing)?;
    show_tab(&app, &viewer, &url, id, &query, tab).await
}

async fn show_tab(
    app: &Dashboard,
    viewer: &Viewer,
    url: &RequestUrl,
    id: ServerId,
    query: &PageQuery<PageParams>,
    tab: ServerTab,
) -> PageResult {
    let (_, it) = queries::servers::detail(app, &viewer.caller().scope(), id).await?;
    let part = match query.text("limit").is_empty() {
        true => Page { limit: HISTORY_ROWS, offset: query.parameters.offset.0 },
        false => paging::page(query.parameters.limit, query.parameters.offset),
    };
    let found = history(app, id, part).await?;
    let history = paging::list(url, part, found, |row| row).0;
    let frame = live_frame(app, viewer, Section::Servers, it.server.name().to_owned());
    let architecture = it.server.arch.as_ref().map_or("", Line::as_str);
    let can_upgrade_agent = queries::agents::has_signed_release(app, architecture);
    let frozen = queries::freezes::of_server(app, &viewer.caller().scope(), id).await?;
    let policies = queries::compliance::of_server(app, &viewer.caller().scope(), id).await?;
    page(&pages::ServerPage { frame, tab, it, history, can_upgrade_agent, frozen, policies })
}

/// Why an update is not installed.
pub(crate) async fn explain_update(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Ids(id, package): Ids<ServerId, String>,
) -> PageResult {
    let it = queries::explain::update(&app, &viewer.caller().scope(), id, &package).await?;
    explanation_page(&app, &viewer, it, ServerTab::Updates)
}

/// Why a CVE is not fixed.
pub(crate) async fn explain_cve(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Ids(id, cve): Ids<ServerId, String>,
) -> PageResult {
    let it = queries::explain::cve(&app, &viewer.caller().scope(), id, &cve).await?;
    explanation_page(&app, &viewer, it, ServerTab::Cves)
}

fn explanation_page(
    app: &Dashboard,
    viewer: &Viewer,
    it: Explanation,
    tab: ServerTab,
) -> PageResult {
    let frame = live_frame(app, viewer, Section::Servers, it.subject.clone());
    page(&pages::ExplanationPage { frame, it, tab })
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
    let done = requests::agents::upgrade(&app, &viewer.caller(), body.into_parts()).await?;
    refuse_if_none_requested(&done)?;
    redirect(&format!("/servers/{id}"))
}

/// Returns an error that says why no upgrade was requested, if none was.
pub(crate) fn refuse_if_none_requested(done: &AgentUpgrades) -> Result<(), ApiError> {
    if done.requested > 0 {
        return Ok(());
    }
    let detail = match done.no_release {
        0 => "No agent is older than the one that this service carries.",
        _ => {
            "This service carries no agent that its publisher signed. Run the install command on \
             the server again to upgrade its agent."
        }
    };
    Err(ApiError::new(Code::Conflict, detail))
}

/// The form with what operators write about a server.
pub(crate) async fn show_edit(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    let title = format!("Edit {}", it.server.name());
    page(&pages::ServerEdit {
        frame: frame(&app, &viewer, Section::Servers, title),
        id: id.to_string(),
        name: it.server.name().to_owned(),
        hostname: it.server.hostname.to_string(),
        form: ServerForm::from_server(&it.server),
        shown: ServerForm::from_server(&it.server).digest(),
        environments: environments(&app, &viewer).await?,
        errors: FormErrors::default(),
    })
}

/// Saves the form, unless the server was edited since the form was shown.
pub(crate) async fn edit(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    form: Form,
) -> PageResult {
    let shown = form.text("shown");
    let form = ServerForm {
        display_name: form.text("display_name"),
        environment: form.text("environment"),
        tags: form.text("tags"),
        notes: form.text("notes").replace("\r\n", "\n"),
    };
    let body: Body<EditServer> = Body::from_value(&form.body())?;
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    // Syncs change a server all the time, so the form is compared by what it edits.
    if shown != ServerForm::from_server(&it.server).digest() {
        let detail = "The server was edited since this form was shown. Open the form again.";
        return Err(ApiError::new(Code::ChangedMeanwhile, detail));
    }
    let caller = viewer.caller();
    let edited = requests::servers::edit(&app, &caller, id, body.into_parts(), &Versions::Any);
    match edited.await.map_err(ApiError::from) {
        Ok(_) => redirect(&format!("/servers/{id}")),
        Err(error) => {
            let errors = form_errors(error, SERVER_FIELDS)?;
            let name = it.server.name().to_owned();
            invalid_input(&pages::ServerEdit {
                frame: frame(&app, &viewer, Section::Servers, format!("Edit {name}")),
                id: id.to_string(),
                name,
                hostname: it.server.hostname.to_string(),
                form,
                shown,
                environments: environments(&app, &viewer).await?,
                errors,
            })
        }
    }
}

/// The confirmation page before a server is removed.
pub(crate) async fn confirm_remove(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> PageResult {
    let (_, it) = queries::servers::detail(&app, &viewer.caller().scope(), id).await?;
    let title = format!("Remove {}?", it.server.name());
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

/// The fields of the edit form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerForm {
    pub display_name: String,
    pub environment: String,
    /// Separated by spaces.
    pub tags: String,
    pub notes: String,
}

impl ServerForm {
    fn from_server(server: &wire::v1::Server) -> ServerForm {
        let text = |value: Option<String>| value.unwrap_or_default();
        ServerForm {
            display_name: text(server.display_name.as_ref().map(ToString::to_string)),
            environment: text(server.environment.as_ref().map(ToString::to_string)),
            tags: server.tags.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            notes: server.notes.clone(),
        }
    }

    /// A digest of the fields, to detect a concurrent edit.
    fn digest(&self) -> String {
        let fields = [&self.display_name, &self.environment, &self.tags, &self.notes];
        Digest::compute(json!(fields).to_string().as_bytes()).to_string()
    }

    fn body(&self) -> serde_json::Value {
        let given = |text: &str| (!text.trim().is_empty()).then(|| text.to_owned());
        json!({
            "display_name": given(&self.display_name),
            "environment": given(&self.environment),
            "tags": split_tags(&self.tags),
            "notes": given(&self.notes),
        })
    }
}

fn split_tags(text: &str) -> Vec<&str> {
    text.split([' ', ',', '\n', '\r', '\t']).filter(|tag| !tag.is_empty()).collect()
}
