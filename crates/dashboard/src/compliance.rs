//! Compliance pages: the figures, the servers behind them, the report, and the forms of policies.

use axum::extract::State;
use httpkit::filters::{ComplianceFilter, ComplianceReportFilter, ComplianceServers};
use httpkit::problem::ApiError;
use httpkit::{Body, Id, RequestUrl, page as paging};
use serde_json::{Value, json};
use service::queries::policies::Policy;
use service::requests::Versions;
use service::{ServiceError, queries, requests};
use vocab::{PolicyId, Severity};
use wire::v1::{ComplianceReport, PolicyRequest, PolicyRule};

use crate::extract::{Form, PageQuery};
use crate::names::names;
use crate::pages::Section;
use crate::pages::form::{POLICY_FIELDS, PolicyDays, ScheduleForm};
use crate::pages::form_errors::FormErrors;
use crate::response::{
    PageResult, add_form_errors, frame, invalid_input, live_frame, page, redirect,
};
use crate::{Dashboard, Viewer, pages, schedules};

/// The figures per policy and environment, and the policies.
pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    query: PageQuery<ComplianceFilter>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let part = query.parameters.page();
    let found = queries::compliance::list(&app, &scope, &query.parameters.wanted(), part).await?;
    let list = paging::list(&url, part, found, |row| row).0;
    let (_, policies) = queries::policies::list(&app, &scope, None, 0).await?;
    let frame = live_frame(&app, &viewer, Section::Compliance, "Compliance");
    page(&pages::CompliancePage { frame, list, policies: policies.items })
}

/// The servers behind a number.
pub(crate) async fn servers(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    query: PageQuery<ComplianceServers>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let part = query.parameters.page();
    let shown_query = query.query();
    let ComplianceServers { policy, environment, state, .. } = query.parameters;
    let name = queries::compliance::policy_name(&app, &scope, policy).await?;
    let (only, limits) = (environment.clone(), state);
    let found =
        queries::compliance::servers(&app, &scope, policy, environment, state, part).await?;
    let list = paging::list(&url, part, found, |row| row).0;
    let frame = live_frame(&app, &viewer, Section::Compliance, name);
    let filters: Vec<String> = [
        limits.map(|state| pages::api_name(&state).replace('_', " ")),
        only.map(|environment| format!("in {environment}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    page(&pages::ComplianceServersPage {
        frame,
        list,
        query: shown_query,
        filters: filters.join(" "),
    })
}

/// The report, to read and to print.
pub(crate) async fn report(
    State(app): State<Dashboard>,
    viewer: Viewer,
    query: PageQuery<ComplianceReportFilter>,
) -> PageResult {
    let wanted = query.parameters.wanted();
    let signed = queries::compliance::report(&app, &viewer.caller().scope(), &wanted).await?;
    let it: ComplianceReport = serde_json::from_str(&signed.report)
        .map_err(|error| ServiceError::Internal(error.into()))?;
    let frame = frame(&app, &viewer, Section::Compliance, "Compliance report");
    page(&pages::ComplianceReportPage { frame, it, signed })
}

/// A form page: the path that it is sent to and its title.
struct FormPage {
    title: &'static str,
    action: String,
}

impl FormPage {
    fn new_policy() -> FormPage {
        FormPage { title: "New policy", action: "/compliance/policies/new".to_owned() }
    }

    fn edit(id: PolicyId) -> FormPage {
        FormPage { title: "Edit policy", action: format!("/compliance/policies/{id}/edit") }
    }

    async fn render(
        self,
        app: &Dashboard,
        viewer: &Viewer,
        (form, days): (ScheduleForm, PolicyDays),
        errors: FormErrors,
    ) -> Result<pages::PolicyEdit, ApiError> {
        let frame = frame(app, viewer, Section::Compliance, self.title);
        let names = names(app, viewer, form.order.server_ids.clone()).await?;
        let matches = schedules::count_matches(app, viewer, form.clone()).await?;
        let facets = queries::servers::facets(app, &viewer.caller().scope()).await?;
        let values =
            |facet: Vec<(String, u64)>| facet.into_iter().map(|(value, _)| value).collect();
        Ok(pages::PolicyEdit {
            frame,
            form,
            days,
            action: self.action,
            errors,
            names,
            matches,
            environments: values(facets.environments),
            systems: values(facets.systems),
        })
    }
}

/// The form for a new policy.
pub(crate) async fn new_form(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    let fields = (ScheduleForm::default(), PolicyDays::default());
    page(&FormPage::new_policy().render(&app, &viewer, fields, FormErrors::default()).await?)
}

/// The form to edit a policy.
pub(crate) async fn edit_form(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<PolicyId>,
) -> PageResult {
    let (generation, it) = queries::policies::get(&app, &viewer.caller().scope(), id).await?;
    let days = |wanted: &dyn Fn(&PolicyRule) -> bool| {
        // Of several rules of one kind, the strictest one counts.
        let matching = it.rules.iter().filter(|rule| wanted(rule));
        matching.map(|rule| rule.within_days).min().map(|days| days.to_string()).unwrap_or_default()
    };
    let severity = |severity: Severity| days(&|rule| rule.matches.severity == Some(severity));
    let fields = PolicyDays {
        description: it.description.clone(),
        kev: days(&|rule| rule.matches.kev == Some(true)),
        critical: severity(Severity::Critical),
        high: severity(Severity::High),
        medium: severity(Severity::Medium),
        low: severity(Severity::Low),
        security: days(&|rule| rule.matches.security == Some(true)),
    };
    let form = ScheduleForm {
        generation: generation.to_string(),
        name: it.name.clone(),
        ..schedules::target_fields(&it.targets)
    };
    page(&FormPage::edit(id).render(&app, &viewer, (form, fields), FormErrors::default()).await?)
}

fn parse(sent: &Form) -> (ScheduleForm, PolicyDays) {
    let days = PolicyDays {
        description: sent.text("description"),
        kev: sent.text("kev"),
        critical: sent.text("critical"),
        high: sent.text("high"),
        medium: sent.text("medium"),
        low: sent.text("low"),
        security: sent.text("security"),
    };
    (schedules::parse(sent), days)
}

/// The body for the API. Adds the errors of what the API does not see.
fn api_body(form: &ScheduleForm, fields: &PolicyDays, errors: &mut FormErrors) -> Value {
    let mut rules = Vec::new();
    let severity = |name: &str| json!({"severity": name});
    for (field, text, matches) in [
        ("kev", &fields.kev, json!({"kev": true})),
        ("critical", &fields.critical, severity("critical")),
        ("high", &fields.high, severity("high")),
        ("medium", &fields.medium, severity("medium")),
        ("low", &fields.low, severity("low")),
        ("security", &fields.security, json!({"security": true})),
    ] {
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        let days: Option<i64> = text.parse().ok().filter(|days| (0..=3_650).contains(days));
        if days.is_none() {
            errors.add(field, "must be a whole number of days from 0 to 3650");
        }
        rules.push(json!({"match": matches, "within_days": days.unwrap_or(1)}));
    }
    json!({"name": form.name, "description": fields.description,
        "targets": schedules::api_targets(form), "rules": rules})
}

/// Saves the form with `save`, or shows it again with all its errors: its own and those of the API.
async fn submit<F: Future<Output = service::Result<Policy>>>(
    app: &Dashboard,
    viewer: &Viewer,
    form_page: FormPage,
    (mut form, fields): (ScheduleForm, PolicyDays),
    save: impl FnOnce(requests::Body<PolicyRequest>) -> F,
) -> PageResult {
    let mut errors = FormErrors::new(POLICY_FIELDS);
    schedules::add_servers(app, viewer, &mut form, &mut errors).await?;
    let body = api_body(&form, &fields, &mut errors);
    let body: Body<PolicyRequest> = Body::from_value(&body)?;
    let rejected = if errors.is_empty() {
        match save(body.into_parts()).await {
            Ok(_) => return redirect("/compliance"),
            Err(error) => Some(error),
        }
    } else {
        requests::policies::check(&viewer.caller(), body.into_parts()).err()
    };
    if let Some(error) = rejected {
        let mut found = FormErrors::new(POLICY_FIELDS);
        add_form_errors(&mut found, ApiError::from(error))?;
        errors.merge(found, |_| false);
    }
    invalid_input(&form_page.render(app, viewer, (form, fields), errors).await?)
}

pub(crate) async fn create(State(app): State<Dashboard>, viewer: Viewer, sent: Form) -> PageResult {
    let caller = viewer.caller();
    let save = |body| requests::policies::create(&app, &caller, body);
    submit(&app, &viewer, FormPage::new_policy(), parse(&sent), save).await
}

pub(crate) async fn replace(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<PolicyId>,
    sent: Form,
) -> PageResult {
    let form = parse(&sent);
    let seen = match form.0.generation.parse() {
        Ok(generation) => Versions::Only(vec![generation]),
        Err(_) if form.0.generation.is_empty() => Versions::Any,
        Err(_) => Versions::Only(Vec::new()),
    };
    let caller = viewer.caller();
    let save = |body| requests::policies::replace(&app, &caller, id, body, &seen);
    submit(&app, &viewer, FormPage::edit(id), form, save).await
}

/// Deletes a policy after a confirmation.
pub(crate) async fn delete(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<PolicyId>,
    form: Form,
) -> PageResult {
    if form.is_confirmed() {
        requests::policies::delete(&app, &viewer.caller(), id, &Versions::Any).await?;
        return redirect("/compliance");
    }
    let (_, it) = queries::policies::get(&app, &viewer.caller().scope(), id).await?;
    page(&pages::Confirm {
        frame: frame(&app, &viewer, Section::Compliance, format!("Delete {}?", it.name)),
        errors: Vec::new(),
        lines: vec!["Its figures and its trend are deleted as well.".to_owned()],
        previewed: None,
        action: format!("/compliance/policies/{id}/delete"),
        verb: "Delete policy".into(),
        back: "/compliance".into(),
        risky: true,
    })
}
