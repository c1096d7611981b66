//! The pages of the webhooks: where events are sent, and the log of their deliveries.

use axum::extract::State;
use httpkit::filters::{CommaSeparated, DeliveryStateParam};
use httpkit::problem::ApiError;
use httpkit::{Body, Id, Ids, Limit, NoQuery, Offset, Query, RequestUrl, page as paging};
use serde_json::{Map, Value, json};
use service::queries::webhooks::{self as queries, DeliveryState};
use service::queries::{Page, servers};
use service::requests::Versions;
use service::requests::webhooks as requests;
use vocab::{DeliveryId, WebhookId};
use wire::v1::{CreateWebhook, EditWebhook, RotateWebhook, Webhook, WebhookTest};

use crate::extract::{Form, PageQuery, split_words};
use crate::names::names;
use crate::pages::Section;
use crate::pages::form::{WEBHOOK_FIELDS, WebhookForm};
use crate::pages::form_errors::FormErrors;
use crate::response::{PageResult, form_errors, frame, invalid_input_with, page, redirect};
use crate::{Dashboard, Viewer, pages};

const PATH: &str = "/settings/webhooks";

/// The webhooks of the organization.
pub(crate) async fn list(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let webhooks = queries::list(&app, &viewer.caller().scope()).await?;
    page(&pages::SettingsWebhooks {
        frame: frame(&app, &viewer, Section::Settings, "Webhooks"),
        webhooks,
    })
}

/// The filter of the log.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeliveryQuery {
    #[serde(default)]
    state: CommaSeparated<DeliveryStateParam>,
    #[serde(default)]
    limit: Limit,
    #[serde(default)]
    offset: Offset,
}

impl DeliveryQuery {
    pub(crate) fn states(&self) -> Vec<DeliveryState> {
        self.state.0.iter().map(|state| state.0).collect()
    }

    fn page(&self) -> Page {
        paging::page(self.limit, self.offset)
    }
}

/// A webhook and its log.
pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Id(id): Id<WebhookId>,
    query: PageQuery<DeliveryQuery>,
) -> PageResult {
    page(&webhook_page(&app, &viewer, &url, id, Some(query), None).await?)
}

async fn webhook_page(
    app: &Dashboard,
    viewer: &Viewer,
    url: &RequestUrl,
    id: WebhookId,
    query: Option<PageQuery<DeliveryQuery>>,
    test: Option<WebhookTest>,
) -> Result<pages::WebhookPage, ApiError> {
    let scope = viewer.caller().scope();
    let (_, it) = queries::get(app, &scope, id).await?;
    let states = query.as_ref().map(|query| query.parameters.states()).unwrap_or_default();
    let first = || paging::page(Limit::default(), Offset::default());
    let part = query.as_ref().map_or_else(first, |query| query.parameters.page());
    let found = queries::deliveries(app, &scope, id, &states, part).await?;
    let state = query.as_ref().map(|query| query.text("state")).unwrap_or_default();
    Ok(pages::WebhookPage {
        frame: frame(app, viewer, Section::Settings, it.name.clone()),
        names: names(app, viewer, [it.created_by.clone()]).await?,
        state,
        query: query.map(|query| query.query()).unwrap_or_default(),
        deliveries: paging::list(url, part, found, |delivery| delivery).0,
        it,
        test,
    })
}

/// The form for a new webhook.
pub(crate) async fn new_form(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    let form = WebhookForm { format: "standard".into(), ..WebhookForm::default() };
    page(&form_page(&app, &viewer, None, form, FormErrors::default()).await?)
}

/// The form to edit a webhook.
pub(crate) async fn edit_form(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<WebhookId>,
) -> PageResult {
    let (generation, it) = queries::get(&app, &viewer.caller().scope(), id).await?;
    let form = form_of(generation, it);
    page(&form_page(&app, &viewer, Some(id), form, FormErrors::default()).await?)
}

async fn form_page(
    app: &Dashboard,
    viewer: &Viewer,
    id: Option<WebhookId>,
    form: WebhookForm,
    errors: FormErrors,
) -> Result<pages::WebhookEdit, ApiError> {
    let facets = servers::facets(app, &viewer.caller().scope()).await?;
    let values = |facet: Vec<(String, u64)>| facet.into_iter().map(|(value, _)| value).collect();
    let (title, action, back) = match id {
        None => ("New webhook", format!("{PATH}/new"), PATH.to_owned()),
        Some(id) => ("Edit webhook", format!("{PATH}/{id}/edit"), format!("{PATH}/{id}")),
    };
    Ok(pages::WebhookEdit {
        frame: frame(app, viewer, Section::Settings, title),
        names: names(app, viewer, form.server_ids.clone()).await?,
        environments: values(facets.environments),
        systems: values(facets.systems),
        action,
        back,
        form,
        errors,
    })
}

fn form_of(generation: i64, it: Webhook) -> WebhookForm {
    let targets = json!(it.targets);
    let text = |name: &str| targets.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let texts = |name: &str| -> Vec<String> {
        let list = targets.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    WebhookForm {
        generation: generation.to_string(),
        format: pages::api_name(&it.format),
        name: it.name,
        url: it.url,
        types: it.types,
        environment: text("environment"),
        os: text("os"),
        tags: texts("tags").join(", "),
        server_ids: texts("server_ids"),
    }
}

fn parse(sent: &Form) -> WebhookForm {
    let [generation, name, url, format, environment, os, tags] =
        ["generation", "name", "url", "format", "environment", "os", "tags"]
            .map(|name| sent.text(name));
    let (types, server_ids) = (sent.all("types"), sent.all("server_ids"));
    WebhookForm { generation, name, url, format, types, environment, os, tags, server_ids }
}

fn api_body(form: &WebhookForm) -> Value {
    let mut targets = Map::new();
    for (name, text) in [("environment", &form.environment), ("os", &form.os)] {
        if !text.is_empty() {
            targets.insert(name.into(), json!(text));
        }
    }
    for (name, list) in [("tags", split_words(&form.tags)), ("server_ids", form.server_ids.clone())]
    {
        if !list.is_empty() {
            targets.insert(name.into(), json!(list));
        }
    }
    let targets = if targets.is_empty() { Value::Null } else { targets.into() };
    json!({"name": form.name, "url": form.url, "types": form.types, "format": form.format, "targets": targets})
}

/// Creates a webhook and shows its signing secret.
pub(crate) async fn create(State(app): State<Dashboard>, viewer: Viewer, sent: Form) -> PageResult {
    let form = parse(&sent);
    let body: Body<CreateWebhook> = Body::from_value(&api_body(&form))?;
    match requests::create(&app, &viewer.caller(), body.into_parts()).await {
        Ok((webhook, secret)) => {
            let lines = vec![format!(
                "{} gets the events from now on. With this signing secret, the receiver can verify \
                 that requests come from here. Slack and Microsoft Teams do not need it.",
                webhook.name
            )];
            secret_page(&app, &viewer, webhook.id, "Webhook created", lines, secret.text())
        }
        Err(error) => rejected(&app, &viewer, None, form, error.into()).await,
    }
}

/// Changes a webhook.
pub(crate) async fn edit(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<WebhookId>,
    sent: Form,
) -> PageResult {
    let form = parse(&sent);
    let seen = Versions::Only(form.generation.parse().into_iter().collect());
    let body: Body<EditWebhook> = Body::from_value(&api_body(&form))?;
    match requests::edit(&app, &viewer.caller(), id, body.into_parts(), &seen).await {
        Ok(_) => redirect(&format!("{PATH}/{id}")),
        Err(error) => rejected(&app, &viewer, Some(id), form, error.into()).await,
    }
}

/// Shows the form again with all of its errors.
async fn rejected(
    app: &Dashboard,
    viewer: &Viewer,
    id: Option<WebhookId>,
    form: WebhookForm,
    error: ApiError,
) -> PageResult {
    let status = error.code().status();
    let errors = form_errors(error, WEBHOOK_FIELDS)?;
    invalid_input_with(status, &form_page(app, viewer, id, form, errors).await?)
}

fn secret_page(
    app: &Dashboard,
    viewer: &Viewer,
    id: WebhookId,
    title: &str,
    lines: Vec<String>,
    secret: String,
) -> PageResult {
    let frame = frame(app, viewer, Section::Settings, title);
    page(&pages::Secret { frame, lines, secret, back: format!("{PATH}/{id}") })
}

/// Sends a test event and shows the result.
pub(crate) async fn test(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Id(id): Id<WebhookId>,
    _form: Form,
) -> PageResult {
    let response = requests::test(&app, &viewer.caller(), id).await?;
    let result = WebhookTest {
        delivered: response.is_delivered(),
        response_status: response.status,
        response_body: response.body,
        error: response.error,
        duration_ms: response.duration_ms,
    };
    page(&webhook_page(&app, &viewer, &url, id, None, Some(result)).await?)
}

pub(crate) async fn enable(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<WebhookId>,
    _form: Form,
) -> PageResult {
    set_enabled(&app, &viewer, id, true).await
}

pub(crate) async fn disable(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<WebhookId>,
    _form: Form,
) -> PageResult {
    set_enabled(&app, &viewer, id, false).await
}

async fn set_enabled(app: &Dashboard, viewer: &Viewer, id: WebhookId, enabled: bool) -> PageResult {
    let body: Body<EditWebhook> = Body::from_value(&json!({"enabled": enabled}))?;
    requests::edit(app, &viewer.caller(), id, body.into_parts(), &Versions::Any).await?;
    redirect(&format!("{PATH}/{id}"))
}

/// Replaces the signing secret and shows the new one.
pub(crate) async fn rotate(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<WebhookId>,
    form: Form,
) -> PageResult {
    let (_, it) = queries::get(&app, &viewer.caller().scope(), id).await?;
    if !form.is_confirmed() {
        let line = "You get a new signing secret. For 24 hours, requests are signed with both \
                    secrets, so that you can change the receiver without losing events.";
        let title = format!("Rotate the secret of {}?", it.name);
        return confirm_page(&app, &viewer, id, title, line, "rotate", "Rotate secret");
    }
    let body: Body<RotateWebhook> = Body::from_value(&json!({}))?;
    let (_, secret) = requests::rotate(&app, &viewer.caller(), id, body.into_parts()).await?;
    let lines = vec![format!(
        "This is the new signing secret of {}. The previous one works for another 24 hours.",
        it.name
    )];
    secret_page(&app, &viewer, id, "Secret rotated", lines, secret.text())
}

/// Deletes a webhook with its log.
pub(crate) async fn delete(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<WebhookId>,
    form: Form,
) -> PageResult {
    if !form.is_confirmed() {
        let (_, it) = queries::get(&app, &viewer.caller().scope(), id).await?;
        let line = "No more events are sent, and its log is deleted. This cannot be undone.";
        let title = format!("Delete {}?", it.name);
        return confirm_page(&app, &viewer, id, title, line, "delete", "Delete");
    }
    requests::delete(&app, &viewer.caller(), id, &Versions::Any).await?;
    redirect(PATH)
}

fn confirm_page(
    app: &Dashboard,
    viewer: &Viewer,
    id: WebhookId,
    title: String,
    line: &str,
    action: &str,
    verb: &str,
) -> PageResult {
    page(&pages::Confirm {
        frame: frame(app, viewer, Section::Settings, title),
        errors: Vec::new(),
        lines: vec![line.into()],
        previewed: None,
        action: format!("{PATH}/{id}/{action}"),
        verb: verb.into(),
        back: format!("{PATH}/{id}"),
        risky: true,
    })
}

/// Sends a delivery again.
pub(crate) async fn redeliver(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Ids(id, delivery): Ids<WebhookId, DeliveryId>,
    _form: Form,
) -> PageResult {
    requests::redeliver(&app, &viewer.caller(), id, delivery).await?;
    redirect(&format!("{PATH}/{id}"))
}
