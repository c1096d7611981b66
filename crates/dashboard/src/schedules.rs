//! Schedule pages: the list, one schedule with its history, the form, and the actions run and
//! delete.

use axum::extract::State;
use axum::http::HeaderMap;
use domain::schedule::next_runs;
use httpkit::filters::{PageParams, ScheduleList};
use httpkit::problem::ApiError;
use httpkit::{Body, Id, RequestUrl, page as paging};
use serde_json::{Map, Value, json};
use service::queries::schedules::{NEXT_RUNS, Schedule};
use service::queries::targets::TargetCount;
use service::requests::Versions;
use service::requests::schedules::NO_SERVERS_MATCH;
use service::{queries, requests};
use vocab::{Cron, ScheduleId, Selector, ServerId, Zone};
use wire::v1::ScheduleRequest;

use crate::calendar::calendar;
use crate::extract::{Form, PageQuery, split_words};
use crate::names::names;
use crate::pages::Section;
use crate::pages::form::{PatchForm, SCHEDULE_FIELDS, ScheduleForm};
use crate::pages::form_errors::FormErrors;
use crate::pages::schedule_builder::ScheduleBuilder;
use crate::patch_form::{PREVIEW_SERVERS_MAX, preview};
use crate::preview_token::server_set;
use crate::response::{
    PageResult, add_form_errors, frame, invalid_input, live_frame, page, redirect,
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

/// The time fields of the schedule form. A link has only `cron` and `timezone`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CronQuery {
    cron: String,
    timezone: String,
    repeat: String,
    time: String,
    month_day: String,
    nth: String,
    nth_weekday: String,
    weekday_mon: String,
    weekday_tue: String,
    weekday_wed: String,
    weekday_thu: String,
    weekday_fri: String,
    weekday_sat: String,
    weekday_sun: String,
}

impl CronQuery {
    fn builder(&self) -> ScheduleBuilder {
        let text = |name: &str| match name {
            "cron" => &self.cron,
            "repeat" => &self.repeat,
            "time" => &self.time,
            "month_day" => &self.month_day,
            "nth" => &self.nth,
            "nth_weekday" => &self.nth_weekday,
            "weekday_mon" => &self.weekday_mon,
            "weekday_tue" => &self.weekday_tue,
            "weekday_wed" => &self.weekday_wed,
            "weekday_thu" => &self.weekday_thu,
            "weekday_fri" => &self.weekday_fri,
            "weekday_sat" => &self.weekday_sat,
            _ => &self.weekday_sun,
        };
        ScheduleBuilder::read(|name| text(name).trim().to_owned())
    }

    /// The next run times of the times in the query, or what is wrong with them.
    pub(crate) fn next_runs(&self, app: &Dashboard) -> pages::NextRunsFragment {
        next_run_times(app, &self.builder(), self.timezone.trim())
    }
}

/// The next run times of the times in the form, or what is wrong with them.
pub(crate) fn next_run_times(
    app: &Dashboard,
    builder: &ScheduleBuilder,
    timezone: &str,
) -> pages::NextRunsFragment {
    let utc = || "UTC".parse::<Zone>().unwrap_or_default();
    let (zone, wrong_zone) = match timezone {
        "" => (utc(), None),
        text => match text.parse::<Zone>() {
            Ok(zone) => (zone, None),
            Err(error) => (utc(), Some(error.to_string())),
        },
    };
    let nothing = |cron: String, message: Option<String>| pages::NextRunsFragment {
        next: Vec::new(),
        cron,
        zone: zone.clone(),
        message,
        sentence: None,
    };
    let cron = match builder.to_cron() {
        Ok(cron) => cron,
        Err(wrong) => {
            let message = wrong.into_iter().next().map(|(_, message)| message);
            return nothing(String::new(), message);
        }
    };
    if wrong_zone.is_some() || cron.is_empty() {
        return nothing(cron, wrong_zone);
    }
    match cron.parse::<Cron>() {
        Err(error) => nothing(cron, Some(error.to_string())),
        Ok(parsed) => {
            let next = next_runs(&parsed, &zone, app.clock.now(), NEXT_RUNS);
            let message = next.is_empty().then(|| "This schedule never runs.".to_owned());
            let sentence = parsed.pattern().map(|pattern| pattern.to_string());
            pages::NextRunsFragment { next, cron, zone, message, sentence }
        }
    }
}

/// The next run times, updated while the user types.
pub(crate) async fn show_next_runs(
    State(app): State<Dashboard>,
    _viewer: Viewer,
    query: PageQuery<CronQuery>,
) -> PageResult {
    page(&query.parameters.next_runs(&app))
}

/// How many servers the selector in the form matches, updated while the user types.
pub(crate) async fn show_matches(
    State(app): State<Dashboard>,
    viewer: Viewer,
    sent: Form,
) -> PageResult {
    let matches = count_matches(&app, &viewer, parse(&sent)).await?;
    page(&pages::MatchesFragment { matches })
}

pub(crate) async fn count_matches(
    app: &Dashboard,
    viewer: &Viewer,
    mut form: ScheduleForm,
) -> Result<pages::Matches, ApiError> {
    let mut errors = FormErrors::new(SCHEDULE_FIELDS);
    add_servers(app, viewer, &mut form, &mut errors).await?;
    if let Some(message) = errors.first("add_servers") {
        return Ok(pages::Matches::Invalid { message: message.to_owned() });
    }
    let targets = api_targets(&form);
    if targets.is_empty() {
        return Ok(pages::Matches::Nothing);
    }
    let selector = match Selector::parse(&Value::Object(targets)) {
        Ok(selector) => selector,
        Err(wrong) => {
            let message = wrong.first().map(ToString::to_string).unwrap_or_default();
            return Ok(pages::Matches::Invalid { message });
        }
    };
    let scope = viewer.caller().scope();
    Ok(match queries::targets::count(app, &scope, &selector).await? {
        TargetCount::Servers(count) => {
            pages::Matches::Servers { count, href: pages::servers_path(&selector) }
        }
        TargetCount::None(unmatched) => pages::Matches::Unmatched { reason: unmatched.reason },
    })
}

/// A form page: the path that it is sent to and its title.
struct FormPage {
    title: &'static str,
    action: String,
}

impl FormPage {
    fn new_schedule() -> FormPage {
        FormPage { title: "New schedule", action: "/schedules/new".to_owned() }
    }

    fn edit(id: ScheduleId) -> FormPage {
        FormPage { title: "Edit schedule", action: format!("/schedules/{id}/edit") }
    }

    async fn render(
        self,
        app: &Dashboard,
        viewer: &Viewer,
        form: ScheduleForm,
        errors: FormErrors,
        is_unmatched: bool,
    ) -> Result<pages::ScheduleEdit, ApiError> {
        let pages::NextRunsFragment { next, cron, zone, message, sentence } =
            next_run_times(app, &form.when, &form.timezone);
        let frame = frame(app, viewer, Section::Schedules, self.title);
        let names = names(app, viewer, form.order.server_ids.clone()).await?;
        let matches = count_matches(app, viewer, form.clone()).await?;
        let facets = queries::servers::facets(app, &viewer.caller().scope()).await?;
        let values =
            |facet: Vec<(String, u64)>| facet.into_iter().map(|(value, _)| value).collect();
        Ok(pages::ScheduleEdit {
            frame,
            form,
            action: self.action,
            errors,
            next,
            cron,
            zone,
            message,
            sentence,
            names,
            matches,
            environments: values(facets.environments),
            systems: values(facets.systems),
            is_unmatched,
        })
    }
}

/// The form for a new schedule.
pub(crate) async fn new_form(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    let order =
        PatchForm { what: "security".into(), reboot: "never".into(), ..PatchForm::default() };
    let form = ScheduleForm {
        enabled: true,
        when: ScheduleBuilder::new(),
        timezone: "UTC".into(),
        order,
        ..ScheduleForm::default()
    };
    let errors = FormErrors::default();
    page(&FormPage::new_schedule().render(&app, &viewer, form, errors, false).await?)
}

/// The form to edit a schedule.
pub(crate) async fn edit_form(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
) -> PageResult {
    let (generation, it) = find(&app, &viewer, id).await?;
    let base = target_fields(&it.targets);
    let order = PatchForm {
        server_ids: base.order.server_ids.clone(),
        ..patch_form::from_options(&it.options)
    };
    let form = ScheduleForm {
        generation: generation.to_string(),
        name: it.name.clone(),
        description: it.description.clone(),
        enabled: it.enabled,
        when: ScheduleBuilder::from_cron(&it.cron),
        timezone: it.timezone.to_string(),
        order,
        ..base
    };
    let errors = FormErrors::default();
    page(&FormPage::edit(id).render(&app, &viewer, form, errors, false).await?)
}

/// A form with only the fields of a selector.
pub(crate) fn target_fields(targets: &Selector) -> ScheduleForm {
    let targets = json!(targets);
    let text = |name: &str| targets.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let texts = |name: &str| -> Vec<String> {
        let list = targets.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    ScheduleForm {
        all: targets.get("all").and_then(Value::as_bool).unwrap_or(false),
        environment: text("environment"),
        os: text("os"),
        tags: texts("tags").join(", "),
        order: PatchForm { server_ids: texts("server_ids"), ..PatchForm::default() },
        ..ScheduleForm::default()
    }
}

pub(crate) fn parse(sent: &Form) -> ScheduleForm {
    let [generation, name, description, timezone, environment, os, tags] =
        ["generation", "name", "description", "timezone", "environment", "os", "tags"]
            .map(|name| sent.text(name));
    let [enabled, all, allow_empty] =
        ["enabled", "all", "allow_empty"].map(|name| !sent.text(name).is_empty());
    ScheduleForm {
        generation,
        name,
        description,
        enabled,
        when: ScheduleBuilder::read(|name| sent.text(name)),
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

pub(crate) fn api_targets(form: &ScheduleForm) -> Map<String, Value> {
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
    targets
}

fn api_body(form: &ScheduleForm, cron: &str) -> Value {
    let timezone = if form.timezone.is_empty() { "UTC" } else { &form.timezone };
    json!({"name": form.name, "description": form.description, "enabled": form.enabled, "cron": cron,
        "timezone": timezone, "targets": api_targets(form), "options": patch_form::api_options(&form.order),
        "allow_empty": form.allow_empty})
}

/// Adds servers by name to the selected servers. Every name must match exactly one server.
pub(crate) async fn add_servers(
    app: &Dashboard,
    viewer: &Viewer,
    form: &mut ScheduleForm,
    errors: &mut FormErrors,
) -> Result<(), ApiError> {
    let names = split_words(&form.add_servers);
    if names.len() > ADDED_NAMES_MAX {
        errors.add("add_servers", format!("Enter at most {ADDED_NAMES_MAX} names at a time."));
        return Ok(());
    }
    let mut added = Vec::new();
    for name in names {
        let found = queries::servers::by_name(app, &viewer.caller().scope(), &name).await?;
        match found.as_slice() {
            [one] => added.push(one.to_string()),
            [] => errors.add("add_servers", format!("No server is named {name}.")),
            _ => errors.add(
                "add_servers",
                format!("{} servers are named {name}. The name must be unique.", found.len()),
            ),
        }
    }
    if !errors.has("add_servers") {
        form.order.server_ids.extend(added);
        form.order.server_ids.sort();
        form.order.server_ids.dedup();
        form.add_servers.clear();
    }
    Ok(())
}

/// Maximum number of names that are looked up, one query each.
const ADDED_NAMES_MAX: usize = 100;
/// Stands for a time that is invalid and already reported, while the other fields are checked.
pub(crate) const VALID_CRON: &str = "@daily";

/// Saves the form with `save`, or shows it again with all its errors: its own and those of the API.
async fn submit<F: Future<Output = service::Result<Schedule>>>(
    app: &Dashboard,
    viewer: &Viewer,
    form_page: FormPage,
    mut form: ScheduleForm,
    save: impl FnOnce(requests::Body<ScheduleRequest>) -> F,
) -> PageResult {
    let mut errors = FormErrors::new(SCHEDULE_FIELDS);
    patch_form::check(&form.order, &mut errors);
    add_servers(app, viewer, &mut form, &mut errors).await?;
    let cron = form.when.to_cron().unwrap_or_else(|wrong| {
        wrong.into_iter().for_each(|(field, message)| errors.add(field, message));
        VALID_CRON.to_owned()
    });
    let body: Body<ScheduleRequest> = Body::from_value(&api_body(&form, &cron))?;
    let rejected = if errors.is_empty() {
        match save(body.into_parts()).await {
            Ok(saved) => return redirect(&format!("/schedules/{}", saved.id)),
            Err(error) => Some(error),
        }
    } else {
        requests::schedules::check(app, &viewer.caller(), body.into_parts()).await.err()
    };
    let mut is_unmatched = false;
    if let Some(error) = rejected {
        let error = ApiError::from(error);
        is_unmatched = error.errors().iter().any(|wrong| wrong.code == NO_SERVERS_MATCH);
        add_form_errors(&mut errors, error)?;
    }
    invalid_input(&form_page.render(app, viewer, form, errors, is_unmatched).await?)
}

pub(crate) async fn create(State(app): State<Dashboard>, viewer: Viewer, sent: Form) -> PageResult {
    let caller = viewer.caller();
    let save = |body| requests::schedules::create(&app, &caller, body);
    submit(&app, &viewer, FormPage::new_schedule(), parse(&sent), save).await
}

pub(crate) async fn replace(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ScheduleId>,
    sent: Form,
) -> PageResult {
    let form = parse(&sent);
    let seen = match form.generation.parse() {
        Ok(generation) => Versions::Only(vec![generation]),
        Err(_) if form.generation.is_empty() => Versions::Any,
        Err(_) => Versions::Only(Vec::new()),
    };
    let caller = viewer.caller();
    let save = |body| requests::schedules::replace(&app, &caller, id, body, &seen);
    submit(&app, &viewer, FormPage::edit(id), form, save).await
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
