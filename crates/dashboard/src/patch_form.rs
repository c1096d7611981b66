//! The patch page: options, preview, start.
//!
//! One form holds every option. A start is accepted only with the token of a preview of the same
//! options and servers ([`preview_token`]).

use axum::body::Body as Bytes;
use axum::extract::State;
use axum::http::Response;
use httpkit::Body;
use httpkit::problem::{ApiError, Code};
use serde_json::{Map, Value, json};
use service::requests::validate::SERVER_IDS_MAX;
use service::{queries, requests};
use vocab::{Wave, WaveError};
use wire::v1::{CreateBatch, Options, PreviewRequest, WaveRequest};

use crate::extract::{Form, split_words};
use crate::names::names;
use crate::pages::Section;
use crate::pages::form::{PATCH_FIELDS, PatchForm};
use crate::pages::form_errors::FormErrors;
use crate::preview_token::Rejection;
use crate::response::{PageResult, add_form_errors, frame, invalid_input, page, redirect};
use crate::servers::selected;
use crate::{Dashboard, Viewer, pages, preview_token};

/// Reads the form.
pub(crate) fn parse(form: &Form) -> PatchForm {
    let or = |name: &str, usual: &str| match form.text(name) {
        text if text.is_empty() => usual.to_owned(),
        text => text,
    };
    PatchForm {
        name: form.text("name"),
        server_ids: form.all("server_ids"),
        what: or("what", "security"),
        packages: form.text("packages"),
        exclude: form.text("exclude"),
        reboot: or("reboot", "never"),
        stagger_minutes: form.text("stagger_minutes"),
        max_parallel: form.text("max_parallel"),
        canary: form.text("canary"),
        waves: form.text("waves"),
        override_freeze: form.text("override_freeze"),
        max_failures: form.text("max_failures"),
        health: or("health", "report"),
        max_unhealthy: form.text("max_unhealthy"),
        window_minutes: form.text("window_minutes"),
        pin_versions: !form.text("pin_versions").is_empty(),
        dry_run: !form.text("dry_run").is_empty(),
    }
    .sorted()
}

/// The form with these options, without servers.
pub(crate) fn from_options(options: &Options) -> PatchForm {
    let packages: Vec<String> = options.packages.iter().map(ToString::to_string).collect();
    let exclude: Vec<String> = options.exclude.iter().map(ToString::to_string).collect();
    let number = |value: Option<String>| value.unwrap_or_default();
    let what = match (packages.is_empty(), options.security_only) {
        (false, false) => "packages",
        (false, true) => "packages_security",
        (true, true) => "security",
        (true, false) => "all",
    };
    PatchForm {
        name: String::new(),
        server_ids: Vec::new(),
        what: what.into(),
        packages: packages.join(", "),
        exclude: exclude.join(", "),
        reboot: pages::api_name(&options.reboot),
        stagger_minutes: options.stagger_minutes.to_string(),
        max_parallel: number(options.max_parallel.map(|max| max.to_string())),
        canary: options.canary.to_string(),
        waves: options.waves.iter().map(|wave| format!("{wave}\n")).collect(),
        override_freeze: options.override_freeze.clone().unwrap_or_default(),
        max_failures: number(options.max_failures.map(|limit| limit.to_string())),
        health: pages::api_name(&options.health),
        max_unhealthy: match options.max_unhealthy.to_string() {
            zero if zero == "0" => String::new(),
            limit => limit,
        },
        window_minutes: number(options.window_minutes.map(|window| window.to_string())),
        pin_versions: options.pin_versions,
        dry_run: options.dry_run,
    }
}

/// The options as the API expects them. A value that is not a number stays text, so that the API
/// rejects it with the field's name.
pub(crate) fn api_options(form: &PatchForm) -> Map<String, Value> {
    let number =
        |text: &str| text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number));
    let mut options = Map::new();
    let mut put = |name: &str, value: Value| drop(options.insert(name.to_owned(), value));
    match form.what.as_str() {
        "security" => put("security_only", json!(true)),
        "all" => put("security_only", json!(false)),
        "packages_security" => {
            put("packages", json!(split_words(&form.packages)));
            put("security_only", json!(true));
        }
        _ => put("packages", json!(split_words(&form.packages))),
    }
    put("reboot", json!(form.reboot));
    if !form.exclude.is_empty() {
        put("exclude", json!(split_words(&form.exclude)));
    }
    for (name, text) in [
        ("stagger_minutes", &form.stagger_minutes),
        ("max_parallel", &form.max_parallel),
        ("canary", &form.canary),
        ("max_failures", &form.max_failures),
        ("window_minutes", &form.window_minutes),
        ("max_unhealthy", &form.max_unhealthy),
    ] {
        if !text.is_empty() {
            put(name, number(text));
        }
    }
    let waves: Vec<WaveRequest> = wave_lines(form).flatten().map(WaveRequest::from).collect();
    if !waves.is_empty() {
        put("waves", json!(waves));
    }
    if form.health != "report" {
        put("health", json!(form.health));
    }
    if !form.override_freeze.is_empty() {
        put("override_freeze", json!(form.override_freeze));
    }
    if form.pin_versions {
        put("pin_versions", json!(true));
    }
    if form.dry_run {
        put("dry_run", json!(true));
    }
    options
}

fn wave_lines(form: &PatchForm) -> impl Iterator<Item = Result<Wave, WaveError>> {
    form.waves.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::parse)
}

/// Checks what the API cannot check: lines that are no waves, and "these packages" without a
/// package. For the API, an empty list of packages means every update.
pub(crate) fn check(form: &PatchForm, errors: &mut FormErrors) {
    for error in wave_lines(form).filter_map(Result::err) {
        errors.add("waves", format!("A line is not a wave: {error}."));
    }
    let by_name = form.what.starts_with("packages");
    if by_name && split_words(&form.packages).is_empty() {
        errors.add(
            "packages",
            "Enter at least one package, or choose another option under “Install”.",
        );
    }
}

/// The whole request as the API expects it.
pub(crate) fn api_body(form: &PatchForm) -> Result<Value, ApiError> {
    if form.server_ids.is_empty() {
        return Err(ApiError::new(Code::BadRequest, "No server was selected."));
    }
    let mut body = api_options(form);
    body.insert("server_ids".into(), json!(form.server_ids));
    if !form.name.is_empty() {
        body.insert("name".into(), json!(form.name));
    }
    Ok(Value::Object(body))
}

/// Action name in the preview token for these options and servers.
const BATCH_ACTION: &str = "batch";

/// `POST /order`: renders a preview, or starts what was previewed if the Start button sent the
/// preview's token as `start`.
pub(crate) async fn submit(State(app): State<Dashboard>, viewer: Viewer, sent: Form) -> PageResult {
    let form = match affected(&app, &viewer, &sent).await? {
        Some(affected) => affected,
        None => PatchForm { server_ids: selected(&app, &viewer, &sent).await?, ..parse(&sent) },
    }
    .sorted();
    let mut errors = FormErrors::new(PATCH_FIELDS);
    check(&form, &mut errors);
    match preview_or_start(&app, &viewer, &sent, &form, errors.is_empty()).await {
        Ok(Outcome::Started(answer)) => Ok(answer),
        Ok(Outcome::Previewed { preview, token, rejected }) if errors.is_empty() => {
            if let Some(rejection) = &rejected {
                errors.add_general(rejection.message());
            }
            let previewed = Some(pages::PreviewWithToken { preview: *preview, token });
            let view = page_with_preview(&app, &viewer, form, previewed, errors).await?;
            if rejected.is_some() { invalid_input(&view) } else { page(&view) }
        }
        outcome => {
            if let Err(error) = outcome {
                add_form_errors(&mut errors, error)?;
            }
            invalid_input(&page_with_preview(&app, &viewer, form, None, errors).await?)
        }
    }
}

/// The form for all servers that a CVE affects or on which packages are pending, if the page of a
/// CVE or of patches sent it.
async fn affected(
    app: &Dashboard,
    viewer: &Viewer,
    sent: &Form,
) -> Result<Option<PatchForm>, ApiError> {
    let (cve, pending) = (sent.text("cve"), sent.all("pending"));
    let scope = viewer.caller().scope();
    let canceled_in = sent.text("canceled_in");
    if !canceled_in.is_empty() {
        let batch = canceled_in.parse().map_err(|_| ApiError::not_found("batch", &canceled_in))?;
        let (batch, server_ids) = queries::batches::canceled(app, &scope, batch).await?;
        let server_ids = server_ids.iter().map(ToString::to_string).collect();
        return Ok(Some(PatchForm { server_ids, ..from_options(&batch.options) }));
    }
    let (server_ids, packages) = if !cve.is_empty() {
        queries::cves::patchable_servers(app, &scope, &cve).await?
    } else if !pending.is_empty() {
        let limit = SERVER_IDS_MAX + 1;
        (queries::patches::waiting_servers(app, &scope, &pending, limit).await?, pending)
    } else {
        return Ok(None);
    };
    if server_ids.len() > SERVER_IDS_MAX {
        let max = pages::number(SERVER_IDS_MAX);
        let detail = format!(
            "More than {max} servers have this update pending. Filter the list of servers, and \
             patch a part of them."
        );
        return Err(ApiError::new(Code::InvalidBody, detail));
    }
    Ok(Some(PatchForm {
        server_ids: server_ids.iter().map(ToString::to_string).collect(),
        what: "packages".to_owned(),
        packages: packages.join(", "),
        ..parse(sent)
    }))
}

enum Outcome {
    Started(Response<Bytes>),
    Previewed { preview: Box<wire::v1::Preview>, token: String, rejected: Option<Rejection> },
}

async fn preview_or_start(
    app: &Dashboard,
    viewer: &Viewer,
    sent: &Form,
    form: &PatchForm,
    may_start: bool,
) -> Result<Outcome, ApiError> {
    let body = api_body(form)?;
    // The body holds the options and the sorted server ids, and is what the API is called with.
    let content = body.to_string();
    let rejected = match sent.raw("start") {
        "" => None,
        _ if !may_start => None,
        token => match preview_token::check(app, viewer, BATCH_ACTION, &content, token) {
            Ok(()) => return start(app, viewer, &body).await.map(Outcome::Started),
            Err(rejection) => Some(rejection),
        },
    };
    let preview = preview(app, viewer, &body, PREVIEW_SERVERS_MAX).await?;
    let token = preview_token::issue(app, viewer, BATCH_ACTION, &content);
    Ok(Outcome::Previewed { preview: Box::new(preview), token, rejected })
}

async fn page_with_preview(
    app: &Dashboard,
    viewer: &Viewer,
    form: PatchForm,
    previewed: Option<pages::PreviewWithToken>,
    errors: FormErrors,
) -> Result<pages::OrderPage, ApiError> {
    let names = names(app, viewer, form.server_ids.clone()).await?;
    let frame = frame(app, viewer, Section::Servers, "Patch");
    Ok(pages::OrderPage { frame, form, names, previewed, errors })
}

/// Maximum number of servers that a page lists. Every preview computes the outcome for each of
/// them; the CSV file has more.
pub(crate) const PREVIEW_SERVERS_MAX: usize = 100;

/// Computes a preview that lists at most `shown` servers.
pub(crate) async fn preview(
    app: &Dashboard,
    viewer: &Viewer,
    body: &Value,
    shown: usize,
) -> Result<wire::v1::Preview, ApiError> {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.remove("name");
    }
    let body: Body<PreviewRequest> = Body::from_value(&body)?;
    Ok(requests::preview::preview_order(app, &viewer.caller(), body.into_parts(), shown).await?)
}

async fn start(app: &Dashboard, viewer: &Viewer, body: &Value) -> PageResult {
    let body: Body<CreateBatch> = Body::from_value(body)?;
    let created = requests::batches::create(app, &viewer.caller(), body.into_parts()).await?;
    redirect(&format!("/batches/{}", created.id))
}
