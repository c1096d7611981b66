//! Notifications: the user's email address and rules, and the pages that links in messages open.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use httpkit::Id;
use httpkit::problem::{ApiError, Code};
use serde_json::{Map, Value, json};
use service::commands::notifications as commands;
use service::queries::{notifications as queries, servers};
use service::requests::notifications as requests;
use service::{EventKind, ServiceError};
use vocab::NotificationRuleId;

use crate::calendar::browser_zone;
use crate::extract::{Form, PageQuery, split_words};
use crate::names::names;
use crate::pages::Section;
use crate::pages::form::{EMAIL_FIELDS, NOTIFICATION_FIELDS, NotificationForm};
use crate::pages::form_errors::FormErrors;
use crate::pages::webhooks::EventGroup;
use crate::response::{PageResult, form_errors, frame, invalid_input_with, page, redirect};
use crate::{Dashboard, Viewer, pages};

const PATH: &str = "/account/notifications";

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NotificationsQuery {
    /// What the previous form changed.
    #[serde(default)]
    done: String,
}

const NOTICES: [(&str, &str); 4] = [
    ("address", "Saved."),
    ("removed", "Your address and your rules were deleted. You get no more email."),
    ("rule", "The rule was added. It applies to what happens from now on."),
    ("deleted", "The rule was deleted."),
];

/// What the page shows besides the stored address and rules.
#[derive(Default)]
struct Shown {
    notice: Option<&'static str>,
    /// The fields of a rejected address.
    rejected: Option<(String, String, FormErrors)>,
    test: Option<Result<String, String>>,
}

async fn notifications_page(
    app: &Dashboard,
    viewer: &Viewer,
    headers: &HeaderMap,
    shown: Shown,
) -> Result<pages::Notifications, ApiError> {
    let (address, rules) = queries::of_user(app, &viewer.user).await?;
    let (email, timezone, errors) = shown.rejected.unwrap_or_else(|| match &address {
        Some(known) => {
            (known.address.clone(), known.timezone.to_string(), FormErrors::new(EMAIL_FIELDS))
        }
        None => (String::new(), browser_zone(headers).to_string(), FormErrors::new(EMAIL_FIELDS)),
    });
    let role = viewer.user.role;
    let is_offered =
        |kind: &&EventKind| kind.is_problem() && role.includes(kind.subject().readable_by());
    Ok(pages::Notifications {
        frame: frame(app, viewer, Section::Account, "Notifications"),
        is_configured: app.settings.mail.is_some(),
        address,
        rules,
        email,
        timezone,
        errors,
        notice: shown.notice,
        test: shown.test,
        problem_types: EventKind::ALL.iter().filter(is_offered).map(|kind| kind.as_str()).collect(),
    })
}

/// The address and the rules of the user.
pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    query: PageQuery<NotificationsQuery>,
) -> PageResult {
    let done = &query.parameters.done;
    let notice = NOTICES.iter().find(|(name, _)| name == done).map(|(_, text)| *text);
    let shown = Shown { notice, ..Shown::default() };
    page(&notifications_page(&app, &viewer, &headers, shown).await?)
}

/// Sets the address, and sends a link to it.
pub(crate) async fn set_address(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    form: Form,
) -> PageResult {
    app.throttle().count_email(viewer.user.id)?;
    let (address, timezone) = (form.text("address"), form.text("timezone"));
    match commands::set_address(&app, &viewer.user, &address, &timezone).await {
        Ok(()) => redirect("/account/notifications?done=address"),
        Err(error @ ServiceError::Invalid(_)) => {
            let errors = form_errors(error.into(), EMAIL_FIELDS)?;
            let shown = Shown { rejected: Some((address, timezone, errors)), ..Shown::default() };
            let page = notifications_page(&app, &viewer, &headers, shown).await?;
            invalid_input_with(StatusCode::UNPROCESSABLE_ENTITY, &page)
        }
        Err(error) => Err(error.into()),
    }
}

/// Deletes the address with all rules.
pub(crate) async fn remove_address(
    State(app): State<Dashboard>,
    viewer: Viewer,
    form: Form,
) -> PageResult {
    if !form.is_confirmed() {
        let line = "Your notification rules are deleted with it. You get no more email.";
        return page(&pages::Confirm {
            frame: frame(&app, &viewer, Section::Account, "Remove your email address?"),
            errors: Vec::new(),
            lines: vec![line.into()],
            previewed: None,
            action: format!("{PATH}/address/remove"),
            verb: "Remove".into(),
            back: PATH.into(),
            risky: true,
        });
    }
    commands::remove_address(&app, &viewer.user).await?;
    redirect("/account/notifications?done=removed")
}

/// Sends a test message to the user's own confirmed address.
pub(crate) async fn send_test(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    _form: Form,
) -> PageResult {
    let (address, _) = queries::of_user(&app, &viewer.user).await?;
    let Some(address) = address.filter(|address| address.confirmed_at.is_some()) else {
        return Err(ApiError::new(Code::Conflict, "Confirm your email address first."));
    };
    app.throttle().count_email(viewer.user.id)?;
    let actor = viewer.caller().actor();
    let result = commands::send_test(&app, &actor, &address.address).await?;
    let test = Some(result.response.map_err(|error| error.to_string()));
    let shown = Shown { test, ..Shown::default() };
    page(&notifications_page(&app, &viewer, &headers, shown).await?)
}

/// The form for a new rule. Problems are selected at first.
pub(crate) async fn new_form(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    let role = viewer.user.role;
    let selected = EventKind::ALL
        .iter()
        .filter(|kind| kind.is_problem() && role.includes(kind.subject().readable_by()));
    let form = NotificationForm {
        rhythm: "immediate".into(),
        types: selected.map(|kind| kind.as_str().to_owned()).collect(),
        ..NotificationForm::default()
    };
    page(&form_page(&app, &viewer, form, FormErrors::default()).await?)
}

async fn form_page(
    app: &Dashboard,
    viewer: &Viewer,
    form: NotificationForm,
    errors: FormErrors,
) -> Result<pages::NotificationNew, ApiError> {
    let facets = servers::facets(app, &viewer.caller().scope()).await?;
    let values = |facet: Vec<(String, u64)>| facet.into_iter().map(|(value, _)| value).collect();
    Ok(pages::NotificationNew {
        frame: frame(app, viewer, Section::Account, "New notification rule"),
        names: names(app, viewer, form.server_ids.clone()).await?,
        groups: EventGroup::readable_by(viewer.user.role),
        environments: values(facets.environments),
        systems: values(facets.systems),
        form,
        errors,
    })
}

/// Creates a rule.
pub(crate) async fn create(State(app): State<Dashboard>, viewer: Viewer, sent: Form) -> PageResult {
    let [rhythm, environment, os, tags] =
        ["rhythm", "environment", "os", "tags"].map(|name| sent.text(name));
    let (types, server_ids) = (sent.all("types"), sent.all("server_ids"));
    let form = NotificationForm { rhythm, types, environment, os, tags, server_ids };
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
    let targets = (!targets.is_empty()).then(|| Value::from(targets));
    let (types, rhythm) = (form.types.clone(), form.rhythm.clone());
    match requests::create_rule(&app, &viewer.user, types, targets, &rhythm).await {
        Ok(_) => redirect("/account/notifications?done=rule"),
        Err(error) => {
            let error = ApiError::from(error);
            let status = error.code().status();
            let errors = form_errors(error, NOTIFICATION_FIELDS)?;
            invalid_input_with(status, &form_page(&app, &viewer, form, errors).await?)
        }
    }
}

/// Deletes a rule of the user.
pub(crate) async fn delete(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<NotificationRuleId>,
    _form: Form,
) -> PageResult {
    commands::delete_rule(&app, &viewer.user, id).await?;
    redirect("/account/notifications?done=deleted")
}

fn link_invalid() -> ApiError {
    let detail = "This link is not valid any more. Sign in, and look at your notifications.";
    ApiError::new(Code::NotFound, detail)
}

/// The page that the link to confirm an address opens. It has a button, because programs that check
/// links in messages open them, too.
pub(crate) async fn show_confirm(
    State(app): State<Dashboard>,
    Path(link): Path<String>,
) -> PageResult {
    let (address, user) = commands::address_of_link(&app, &link).await?.ok_or_else(link_invalid)?;
    page(&pages::EmailLink {
        title: "Confirm your email address",
        text: format!("Notifications for the user {} are sent to {}.", user.name, address.address),
        button: Some("Confirm"),
    })
}

pub(crate) async fn confirm(State(app): State<Dashboard>, Path(link): Path<String>) -> PageResult {
    let address = commands::confirm(&app, &link).await?.ok_or_else(link_invalid)?;
    page(&pages::EmailLink {
        title: "Address confirmed",
        text: format!("Notifications are sent to {}.", address.address),
        button: None,
    })
}

/// The page that the link to unsubscribe opens.
pub(crate) async fn show_unsubscribe(
    State(app): State<Dashboard>,
    Path(link): Path<String>,
) -> PageResult {
    commands::rule_of_link(&app, &link).await?.ok_or_else(link_invalid)?;
    page(&pages::EmailLink {
        title: "Unsubscribe",
        text: "You get no more messages of this kind. You can add them again in your account."
            .into(),
        button: Some("Unsubscribe"),
    })
}

/// Unsubscribes: from the page, or by the mail program of the recipient (RFC 8058). Succeeds for
/// any link, because mail programs repeat the request.
pub(crate) async fn unsubscribe(
    State(app): State<Dashboard>,
    Path(link): Path<String>,
) -> PageResult {
    commands::unsubscribe(&app, &link).await?;
    page(&pages::EmailLink {
        title: "Unsubscribed",
        text: "You get no more messages of this kind.".into(),
        button: None,
    })
}
