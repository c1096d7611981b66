//! Schedule pages: the list, one schedule with its history, the form, and the actions run and
//! delete.

use axum::extract::State;
use axum::http::HeaderMap;
use domain::schedule::next_runs;
use httpkit::filters::{PageParams, ScheduleList};
use httpkit::problem::{ApiError, Code};
use httpkit::{Body, Id, RequestUrl, page as paging};
use serde_json::{Map, Value, json};
use service::queries::schedules::{NEXT_RUNS, Schedule};
use service::requests::Versions;
use service::requests::schedules::NO_SERVERS_MATCH;
use service::{queries, requests};
use vocab::{Cron, ScheduleId, ServerId, Zone};
use wire::v1::ScheduleRequest;

use crate::calendar::calendar;
use crate::extract::{Form, PageQuery, split_words};
use crate::names::names;
use crate::pages::Section;
use crate::pages::form::{PatchForm, ScheduleForm};
use crate::patch_form::{PREVIEW_SERVERS_MAX, preview};
use crate::preview_token::server_set;
use crate::response::{
    PageResult, error_sentences, frame, invalid_input, live_frame, page, redirect,
};
use crate::{Dashboard, Viewer, pages, patch_form, preview_token};

pub(crate) async fn list(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    url: RequestUrl,
    query: PageQuery<ScheduleList>,
) -> PageResult {
    let (limit, offset) = query.parameters.limit_and_offset();
    let scope = viewer.caller().scope();
    let (part, found) = queries::schedules::list(&app, &scope, limit, offset).await?;
    let list = paging::list(&url, part, found, |schedule| schedule).0;
    let calendar = calendar(&app, &viewer, &headers).await?;
    let frame = live_frame(&app, &viewer, Section::Schedules, "Schedules");
    page(&pages::Schedules { frame, list, calendar })
}

async fn find(
    app: &Dashboard,
    viewer: &Viewer,
    id: ScheduleId,
) -> Result<(i64, wire::v1::Schedule), ApiError> {
    Ok(queries::schedules::get(app, &viewer.caller().scope(), id).await?)
}

pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Id(id): Id<ScheduleId>,
    query: PageQuery<PageParams>,
) -> PageResult {
    let (_, it) = find(&app, &viewer, id).await?;
    let part = query.parameters.page();
    let found = queries::schedules::runs(&app, &viewer.caller().scope(), id, part).await?;
    let runs = paging::list(&url, part, found, |run| run).0;
    page(&pages::SchedulePage {
        frame: live_frame(&app, &viewer, Section::Schedules, it.name.clone()),
        it,
        runs,
    })
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CronQuery {
    #[serde(default)]
    cron: String,
    #[serde(default)]
    timezone: String,
}

/// The next run times of the cron expression in the form, or what is wrong with it.
pub(crate) fn next_run_times(app: &Dashboard, query: &CronQuery) -> pages::NextRunsFragment {
    let [cron, timezone] = [&query.cron, &query.timezone].map(|text| text.trim());
    let utc = || "UTC".parse::<Zone>();
    let shown = |next, zone, message| pages::NextRunsFragment {
        next,
        cron: cron.to_owned(),
        zone,
        message,
    };
    let nothing = |zone: Zone, message: Option<String>| shown(Vec::new(), zone, message);
    let Ok(utc) = utc() else { return nothing(Zone::default(), None) };
    let zone = match timezone {
        "" => utc,
        text => match text.parse::<Zone>() {
            Ok(zone) => zone,
            Err(error) => return nothing(utc, Some(error.to_string())),
        },
    };
    if cron.is_empty() {
        return nothing(zone, None);
    }
    match cron.parse::<Cron>() {
        Err(error) => nothing(zone, Some(error.to_string())),
        Ok(read) => {
            let next = next_runs(&read, &zone, app.clock.now(), NEXT_RUNS);
            let never = next.is_empty().then(|| "This schedule never runs.".to_owned());
            shown(next, zone, never)
        }
    }
}

/// The next run times, updated while the user types.
pub(crate) async fn show_next_runs(
    State(app): State<Dashboard>,
    _viewer: Viewer,
    query: PageQuery<CronQuery>,
) -> PageResult {
    page(&next_run_times(&app, &query.parameters))
}

async fn form_page(
    app: &Dashboard,
    viewer: &Viewer,
    title: &str,
    action: String,
    form: ScheduleForm,
    errors: Vec<String>,
    unmatched: Option<String>,
) -> Result<pages::ScheduleEdit, ApiError> {
    let query = CronQuery { cron: form.cron.clone(), timezone: form.timezone.clone() };
    let pages::NextRunsFragment { next, cron, zone, message } = next_run_times(app, &query);
    let frame = frame(app, viewer, Section::Schedules, title);
    let names = names(app, viewer, form.order.server_ids.clone()).await?;
    Ok(pages::ScheduleEdit {
        frame,
        form,
        action,
        errors,
        next,
        cron,
        zone,
        message,
        names,
        unmatched,
    })
}

/// The form for a new schedule.
pub(crate) async fn new_form(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    let order =
        PatchForm { what: "security".into(), reboot: "never".into(), ..PatchForm::default() };
    let form =
        ScheduleForm { enabled: true, timezone: "UTC".into(), order, ..ScheduleForm::default() };
    let action = "/schedules/new".into();
    page(&form_page(&app, &viewer, "New schedule", action, form, Vec::new(), None).await?)
}

/// The form to edit a schedule.
pub(crate) async fn edit_form(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
) -> PageResult {
    let (generation, it) = find(&app, &viewer, id).await?;
    let targets = json!(it.targets);
    let text = |name: &str| targets.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let texts = |name: &str| -> Vec<String> {
        let list = targets.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let order =
        PatchForm { server_ids: texts("server_ids"), ..patch_form::from_options(&it.options) };
    let form = ScheduleForm {
        generation: generation.to_string(),
        name: it.name.clone(),
        description: it.description.clone(),
        enabled: it.enabled,
        cron: it.cron.to_string(),
        timezone: it.timezone.to_string(),
        all: targets.get("all").and_then(Value::as_bool).unwrap_or(false),
        environment: text("environment"),
        os: text("os"),
        tags: texts("tags").join(", "),
        add_servers: String::new(),
        allow_empty: false,
        order,
    };
    let action = format!("/schedules/{id}/edit");
    page(&form_page(&app, &viewer, "Edit schedule", action, form, Vec::new(), None).await?)
}

fn parse(sent: &Form) -> ScheduleForm {
    let [generation, name, description, cron, timezone, environment, os, tags] =
        ["generation", "name", "description", "cron", "timezone", "environment", "os", "tags"]
            .map(|name| sent.text(name));
    let [enabled, all, allow_empty] =
        ["enabled", "all", "allow_empty"].map(|name| !sent.text(name).is_empty());
    ScheduleForm {
        generation,
        name,
        description,
        enabled,
        cron,
        timezone,
        all,
        environment,
        os,
        tags,
        add_servers: sent.text("add_servers"),
        allow_empty,
        order: patch_form::parse(sent),
    }
}

fn api_body(form: &ScheduleForm) -> Value {
    let mut targets = Map::new();
    if form.all {
        targets.insert("all".into(), json!(true));
    }
    for (name, text) in [("environment", &form.environment), ("os", &form.os)] {
        if !text.is_empty() {
            targets.insert(name.into(), json!(text));
        }
    }
    if !form.tags.is_empty() {
        targets.insert("tags".into(), json!(split_words(&form.tags)));
    }
    if !form.order.server_ids.is_empty() {
        targets.insert("server_ids".into(), json!(form.order.server_ids));
    }
    let timezone = if form.timezone.is_empty() { "UTC" } else { &form.timezone };
    json!({"name": form.name, "description": form.description, "enabled": form.enabled, "cron": form.cron,
        "timezone": timezone, "targets": targets, "options": patch_form::api_options(&form.order),
        "allow_empty": form.allow_empty})
}

/// The response to a submitted form: a redirect, or the form with its errors.
async fn form_response(
    app: &Dashboard,
    viewer: &Viewer,
    title: &str,
    action: String,
    form: ScheduleForm,
    done: Result<String, ApiError>,
) -> PageResult {
    match done {
        Ok(path) => redirect(&path),
        Err(error)
            if matches!(
                error.code(),
                Code::InvalidBody | Code::AlreadyExists | Code::PreconditionFailed
            ) =>
        {
            let unmatched = error.errors().iter().find(|wrong| wrong.code == NO_SERVERS_MATCH);
            let unmatched = unmatched.map(|wrong| wrong.detail.clone());
            let errors = match unmatched {
                Some(_) => vec!["Not saved: no server matches. See “Servers” below.".into()],
                None => error_sentences(&error),
            };
            invalid_input(&form_page(app, viewer, title, action, form, errors, unmatched).await?)
        }
        Err(error) => Err(error),
    }
}

/// Adds servers by name to the selected servers. Every name must match exactly one server.
async fn add_servers(
    app: &Dashboard,
    viewer: &Viewer,
    form: &mut ScheduleForm,
) -> Result<(), ApiError> {
    let wrong = |detail: String| Err(ApiError::new(Code::InvalidBody, detail));
    let mut added = Vec::new();
    for name in split_words(&form.add_servers) {
        let found = queries::servers::by_name(app, &viewer.caller().scope(), &name).await?;
        match found.as_slice() {
            [one] => added.push(one.to_string()),
            [] => return wrong(format!("No server is named {name}.")),
            _ => {
                return wrong(format!(
                    "{} servers are named {name}. The name must be unique.",
                    found.len()
                ));
            }
        }
    }
    form.order.server_ids.extend(added);
    form.order.server_ids.sort();
    form.order.server_ids.dedup();
    form.add_servers.clear();
    Ok(())
}

pub(crate) async fn create(State(app): State<Dashboard>, viewer: Viewer, sent: Form) -> PageResult {
    let mut form = parse(&sent);
    let make = async {
        patch_form::require_packages(&form.order)?;
        add_servers(&app, &viewer, &mut form).await?;
        let body: Body<ScheduleRequest> = Body::from_value(&api_body(&form))?;
        let created =
            requests::schedules::create(&app, &viewer.caller(), body.into_parts()).await?;
        Ok(format!("/schedules/{}", created.id))
    };
    let done = make.await;
    form_response(&app, &viewer, "New schedule", "/schedules/new".into(), form, done).await
}

pub(crate) async fn replace(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
    sent: Form,
) -> PageResult {
    let mut form = parse(&sent);
    let seen = match form.generation.parse() {
        Ok(generation) => Versions::Only(vec![generation]),
        Err(_) if form.generation.is_empty() => Versions::Any,
        Err(_) => Versions::Only(Vec::new()),
    };
    let change = async {
        patch_form::require_packages(&form.order)?;
        add_servers(&app, &viewer, &mut form).await?;
        let body: Body<ScheduleRequest> = Body::from_value(&api_body(&form))?;
        requests::schedules::replace(&app, &viewer.caller(), id, body.into_parts(), &seen).await?;
        Ok(format!("/schedules/{id}"))
    };
    let done = change.await;
    form_response(&app, &viewer, "Edit schedule", format!("/schedules/{id}/edit"), form, done).await
}

/// A schedule, and a preview of what it would do now that lists at most `shown` servers.
pub(crate) async fn schedule_preview(
    app: &Dashboard,
    viewer: &Viewer,
    id: ScheduleId,
    shown: usize,
) -> Result<(wire::v1::Schedule, wire::v1::Preview), ApiError> {
    let (_, it) = find(app, viewer, id).await?;
    let mut order = json!(it.options);
    order["targets"] = json!(it.targets);
    if let Some(fields) = order.as_object_mut() {
        // Options that the schedule leaves unset are omitted from the request.
        fields.retain(|_, value| !value.is_null());
    }
    let preview = preview(app, viewer, &order, shown).await?;
    Ok((it, preview))
}

/// Action name of a run in its preview token. The content is the options and the matching servers.
const RUN_ACTION: &str = "run";
const RUN_OUTDATED: &str = "The schedule or the servers that match it changed since the preview, or the preview \
                            has expired. Review it and start again.";

fn run_token_content(schedule: &Schedule, servers: &[ServerId]) -> String {
    format!("{} {} {}", schedule.id, schedule.options, server_set(servers))
}

/// Runs a schedule now: shows a preview first, then starts exactly what the preview showed.
pub(crate) async fn run(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
    form: Form,
) -> PageResult {
    let caller = viewer.caller();
    let mut errors = Vec::new();
    // Read before the preview is computed: after a change in between, the token does not match and
    // the run is rejected.
    let (schedule, servers) =
        queries::schedules::with_matching_servers(&app, &caller.scope(), id).await?;
    if form.is_confirmed() {
        let token = form.raw("preview");
        let approve = |schedule: &Schedule, servers: &[ServerId]| {
            let content = run_token_content(schedule, servers);
            preview_token::check(&app, &viewer, RUN_ACTION, &content, token).is_ok()
        };
        let run = service::commands::schedules::run_if(&app, &caller.actor(), &schedule, &approve)
            .await?;
        if run.is_some() {
            return redirect(&format!("/schedules/{id}"));
        }
        errors.push(RUN_OUTDATED.to_owned());
    }
    let token =
        preview_token::issue(&app, &viewer, RUN_ACTION, &run_token_content(&schedule, &servers));
    let (it, preview) = schedule_preview(&app, &viewer, id, PREVIEW_SERVERS_MAX).await?;
    let here = format!("/schedules/{id}");
    let rejected = !errors.is_empty();
    let question = pages::Confirm {
        frame: frame(&app, &viewer, Section::Schedules, format!("Run {} now?", it.name)),
        errors,
        lines: vec!["This is what a run would do now.".into()],
        verb: match preview.total {
            0 => "Run now".into(),
            total => pages::start_label(&preview.options, total),
        },
        previewed: Some(pages::PreviewWithToken { preview, token }),
        action: format!("{here}/run"),
        back: here,
        risky: false,
    };
    if rejected { invalid_input(&question) } else { page(&question) }
}

/// Deletes a schedule after a confirmation.
pub(crate) async fn delete(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
    form: Form,
) -> PageResult {
    if form.is_confirmed() {
        requests::schedules::delete(&app, &viewer.caller(), id, &Versions::Any).await?;
        return redirect("/schedules");
    }
    let (_, it) = find(&app, &viewer, id).await?;
    let here = format!("/schedules/{id}");
    page(&pages::Confirm {
        frame: frame(&app, &viewer, Section::Schedules, format!("Delete {}?", it.name)),
        errors: Vec::new(),
        lines: vec!["Its history is deleted as well. Batches that it started continue.".into()],
        previewed: None,
        action: format!("{here}/delete"),
        verb: "Delete schedule".into(),
        back: here,
        risky: true,
    })
}
