//! Freeze pages: the list, the form, and the deletion.

use axum::extract::State;
use httpkit::filters::ScheduleList;
use httpkit::problem::ApiError;
use httpkit::{Body, Id, RequestUrl, page as paging};
use jiff::Timestamp;
use jiff::civil::DateTime;
use serde_json::{Value, json};
use service::queries::freezes::Freeze;
use service::requests::Versions;
use service::{queries, requests};
use vocab::{FreezeId, Zone};
use wire::v1::FreezeRequest;

use crate::extract::{Form, PageQuery};
use crate::names::names;
use crate::pages::Section;
use crate::pages::form::{FREEZE_FIELDS, FreezeFields, ScheduleForm};
use crate::pages::form_errors::FormErrors;
use crate::pages::schedule_builder::ScheduleBuilder;
use crate::response::{
    PageResult, add_form_errors, frame, invalid_input, live_frame, page, redirect,
};
use crate::schedules::{self, VALID_CRON};
use crate::{Dashboard, Viewer, pages};

/// The form of times in `datetime-local` controls.
const LOCAL_TIME: &str = "%Y-%m-%dT%H:%M";

pub(crate) async fn list(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    query: PageQuery<ScheduleList>,
) -> PageResult {
    let (limit, offset) = query.parameters.limit_and_offset();
    let scope = viewer.caller().scope();
    let (part, found) = queries::freezes::list(&app, &scope, limit, offset).await?;
    let mut list = paging::list(&url, part, found, |freeze| freeze).0;
    // Active freezes first, then those that start next; ended ones last.
    list.data.sort_by_key(|freeze| {
        let starts = freeze.next.first().map_or(Timestamp::MAX, |next| next.starts_at);
        (freeze.active_until.is_none(), freeze.active_until.unwrap_or(starts))
    });
    let frame = live_frame(&app, &viewer, Section::Schedules, "Freezes");
    page(&pages::Freezes { frame, list })
}

/// A form page: the path that it is sent to and its title.
struct FormPage {
    title: &'static str,
    action: String,
}

impl FormPage {
    fn new_freeze() -> FormPage {
        FormPage { title: "New freeze", action: "/freezes/new".to_owned() }
    }

    fn edit(id: FreezeId) -> FormPage {
        FormPage { title: "Edit freeze", action: format!("/freezes/{id}/edit") }
    }

    async fn render(
        self,
        app: &Dashboard,
        viewer: &Viewer,
        (form, fields): (ScheduleForm, FreezeFields),
        errors: FormErrors,
    ) -> Result<pages::FreezeEdit, ApiError> {
        let pages::NextRunsFragment { next, cron, zone, message, sentence } =
            schedules::next_run_times(app, &form.when, &form.timezone);
        let frame = frame(app, viewer, Section::Schedules, self.title);
        let names = names(app, viewer, form.order.server_ids.clone()).await?;
        let matches = schedules::count_matches(app, viewer, form.clone()).await?;
        let facets = queries::servers::facets(app, &viewer.caller().scope()).await?;
        let values =
            |facet: Vec<(String, u64)>| facet.into_iter().map(|(value, _)| value).collect();
        Ok(pages::FreezeEdit {
            frame,
            form,
            fields,
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
        })
    }
}

/// The form for a new freeze.
pub(crate) async fn new_form(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    let form = ScheduleForm {
        when: ScheduleBuilder::new(),
        timezone: "UTC".into(),
        ..ScheduleForm::default()
    };
    let fields = FreezeFields { kind: "one_off".into(), ..FreezeFields::default() };
    let errors = FormErrors::default();
    page(&FormPage::new_freeze().render(&app, &viewer, (form, fields), errors).await?)
}

/// The form to edit a freeze.
pub(crate) async fn edit_form(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<FreezeId>,
) -> PageResult {
    let (generation, it) = queries::freezes::get(&app, &viewer.caller().scope(), id).await?;
    let local = |at: Option<Timestamp>| {
        at.map(|at| at.strftime(LOCAL_TIME).to_string()).unwrap_or_default()
    };
    let fields = FreezeFields {
        reason: it.reason.clone(),
        kind: if it.cron.is_some() { "recurring" } else { "one_off" }.to_owned(),
        starts_at: local(it.starts_at),
        ends_at: local(it.ends_at),
        duration: it.duration_minutes.map(|minutes| minutes.to_string()).unwrap_or_default(),
    };
    let form = ScheduleForm {
        generation: generation.to_string(),
        name: it.name.clone(),
        when: it.cron.as_ref().map_or_else(ScheduleBuilder::new, ScheduleBuilder::from_cron),
        timezone: it.timezone.as_ref().map_or_else(|| "UTC".to_owned(), ToString::to_string),
        ..schedules::target_fields(&it.targets)
    };
    let errors = FormErrors::default();
    page(&FormPage::edit(id).render(&app, &viewer, (form, fields), errors).await?)
}

fn parse(sent: &Form) -> (ScheduleForm, FreezeFields) {
    let kind = match sent.text("kind").as_str() {
        "recurring" => "recurring",
        _ => "one_off",
    };
    let fields = FreezeFields {
        reason: sent.text("reason"),
        kind: kind.to_owned(),
        starts_at: sent.text("starts_at"),
        ends_at: sent.text("ends_at"),
        duration: sent.text("duration_minutes"),
    };
    (schedules::parse(sent), fields)
}

/// The time of a `datetime-local` control, in UTC. A time that cannot be read is an error of its
/// field.
fn utc_time(text: &str, zone: &Zone, field: &str, errors: &mut FormErrors) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let local = text.parse::<DateTime>();
    match local.and_then(|local| local.to_zoned(zone.time_zone().clone())) {
        Ok(at) => Some(at.timestamp().to_string()),
        Err(_) => {
            errors.add(field, "must be a date and a time such as 2026-12-24 18:00");
            None
        }
    }
}

/// Parses `90`, `90m`, `10h` or `2d` as minutes.
fn minutes(text: &str) -> Option<i64> {
    let text = text.trim();
    let (number, factor) = match text.char_indices().last()? {
        (at, 'm') => (&text[..at], 1),
        (at, 'h') => (&text[..at], 60),
        (at, 'd') => (&text[..at], 24 * 60),
        _ => (text, 1),
    };
    number.trim().parse::<i64>().ok()?.checked_mul(factor)
}

/// The body for the API. Adds the errors of what the API does not see.
fn api_body(form: &ScheduleForm, fields: &FreezeFields, errors: &mut FormErrors) -> Value {
    let timezone = if form.timezone.is_empty() { "UTC" } else { &form.timezone };
    let mut body = json!({"name": form.name, "reason": fields.reason,
        "targets": schedules::api_targets(form)});
    if fields.kind == "recurring" {
        let cron = form.when.to_cron().unwrap_or_else(|wrong| {
            wrong.into_iter().for_each(|(field, message)| errors.add(field, message));
            VALID_CRON.to_owned()
        });
        let minutes = minutes(&fields.duration);
        if minutes.is_none() {
            let message = "must be a number of minutes, or a number with m, h or d";
            errors.add("duration_minutes", message);
        }
        body["cron"] = json!(cron);
        body["timezone"] = json!(timezone);
        body["duration_minutes"] = json!(minutes.unwrap_or(1));
        return body;
    }
    let zone = timezone.parse::<Zone>().unwrap_or_else(|error| {
        errors.add("timezone", error.to_string());
        Zone::default()
    });
    if let Some(starts_at) = utc_time(&fields.starts_at, &zone, "starts_at", errors) {
        body["starts_at"] = json!(starts_at);
    }
    match utc_time(&fields.ends_at, &zone, "ends_at", errors) {
        Some(ends_at) => body["ends_at"] = json!(ends_at),
        None if !errors.has("ends_at") => errors.add("ends_at", "is required"),
        None => {}
    }
    body
}

/// Saves the form with `save`, or shows it again with all its errors: its own and those of the API.
async fn submit<F: Future<Output = service::Result<Freeze>>>(
    app: &Dashboard,
    viewer: &Viewer,
    form_page: FormPage,
    (mut form, fields): (ScheduleForm, FreezeFields),
    save: impl FnOnce(requests::Body<FreezeRequest>) -> F,
) -> PageResult {
    let mut errors = FormErrors::new(FREEZE_FIELDS);
    schedules::add_servers(app, viewer, &mut form, &mut errors).await?;
    let body = api_body(&form, &fields, &mut errors);
    let body: Body<FreezeRequest> = Body::from_value(&body)?;
    let rejected = if errors.is_empty() {
        match save(body.into_parts()).await {
            Ok(_) => return redirect("/freezes"),
            Err(error) => Some(error),
        }
    } else {
        requests::freezes::check(app, &viewer.caller(), body.into_parts()).err()
    };
    if let Some(error) = rejected {
        // What the form reports about a time itself, the API would report again.
        let own_timing = errors.has("ends_at") || errors.has("starts_at");
        let mut found = FormErrors::new(FREEZE_FIELDS);
        add_form_errors(&mut found, ApiError::from(error))?;
        errors.merge(found, |field| own_timing && matches!(field, None | Some("ends_at")));
    }
    invalid_input(&form_page.render(app, viewer, (form, fields), errors).await?)
}

pub(crate) async fn create(State(app): State<Dashboard>, viewer: Viewer, sent: Form) -> PageResult {
    let caller = viewer.caller();
    let save = |body| requests::freezes::create(&app, &caller, body);
    submit(&app, &viewer, FormPage::new_freeze(), parse(&sent), save).await
}

pub(crate) async fn replace(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<FreezeId>,
    sent: Form,
) -> PageResult {
    let form = parse(&sent);
    let seen = match form.0.generation.parse() {
        Ok(generation) => Versions::Only(vec![generation]),
        Err(_) if form.0.generation.is_empty() => Versions::Any,
        Err(_) => Versions::Only(Vec::new()),
    };
    let caller = viewer.caller();
    let save = |body| requests::freezes::replace(&app, &caller, id, body, &seen);
    submit(&app, &viewer, FormPage::edit(id), form, save).await
}

/// Deletes a freeze after a confirmation.
pub(crate) async fn delete(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<FreezeId>,
    form: Form,
) -> PageResult {
    if form.is_confirmed() {
        requests::freezes::delete(&app, &viewer.caller(), id, &Versions::Any).await?;
        return redirect("/freezes");
    }
    let (_, it) = queries::freezes::get(&app, &viewer.caller().scope(), id).await?;
    let effect = match it.active {
        true => {
            let noun = pages::plural(it.servers, "server", "servers");
            format!(
                "It freezes {} {noun} now. What is waiting there may start immediately.",
                pages::number(it.servers)
            )
        }
        false => "It is not active now.".to_owned(),
    };
    page(&pages::Confirm {
        frame: frame(&app, &viewer, Section::Schedules, format!("Delete {}?", it.name)),
        errors: Vec::new(),
        lines: vec![effect],
        previewed: None,
        action: format!("/freezes/{id}/delete"),
        verb: "Delete freeze".into(),
        back: "/freezes".into(),
        risky: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_is_converted_from_its_zone() {
        let berlin: Zone = "Europe/Berlin".parse().unwrap();
        let mut errors = FormErrors::new(FREEZE_FIELDS);
        let mut utc = |text: &str| utc_time(text, &berlin, "ends_at", &mut errors);
        assert_eq!(utc("2026-12-24T18:00").as_deref(), Some("2026-12-24T17:00:00Z"));
        assert_eq!(utc("2026-07-01T18:00").as_deref(), Some("2026-07-01T16:00:00Z"));
        assert_eq!(utc(""), None);
        assert_eq!(utc("soon"), None);
        assert!(errors.has("ends_at"));
    }

    #[test]
    fn durations_are_minutes_or_have_a_unit() {
        for (text, expected) in [("90", 90), ("90m", 90), (" 10 h ", 600), ("2d", 2_880)] {
            assert_eq!(minutes(text), Some(expected), "{text}");
        }
        for wrong in ["", "h", "1.5h", "5x", "9223372036854775807d"] {
            assert_eq!(minutes(wrong), None, "{wrong}");
        }
    }
}
