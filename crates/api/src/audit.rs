//! `/v1/audit`.

use axum::body::{Body as ResponseBody, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use futures_util::stream;
use httpkit::filters::{Actions, CommaSeparated};
use httpkit::problem::internal;
use httpkit::{ApiError, Body, Limit, NoQuery, Offset, Query, RequestUrl, csv};
use jiff::Timestamp;
use service::audit::Action;
use service::auth::caller::{Caller, Credential};
use service::queries::activity::ActivityFilter;
use service::queries::audit::{self, AuditExport};
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{AuditEntry, AuditEntryList, AuditMeta, AuditVerification, Links, VerifyAudit};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Admin, handlers!(list))
        .add(Role::Admin, handlers!(export))
        .add(Role::Admin, handlers!(verify))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only entries of the user, key or token with this ID, or of a part of the service: `engine`.
    #[param(min_length = 1)]
    actor: Option<String>,
    /// Only entries with these actions, separated by commas. `batch.*` stands for all actions on a
    /// kind of resource.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "batch.*,api_key.create")]
    action: CommaSeparated<Actions>,
    /// Only entries about the resource with this ID.
    #[param(min_length = 1)]
    subject: Option<String>,
    /// Only entries from this time on.
    since: Option<Timestamp>,
    /// Only entries before this time.
    until: Option<Timestamp>,
    /// Only entries before this sequence number; the newest ones if omitted.
    #[param(value_type = Option<u64>, minimum = 0, required = false, example = 1_155)]
    before: Option<Offset>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
}

/// List audit entries
///
/// Who changed what, newest first. A request reads a limited number of entries to find those that
/// match, so a page may have fewer entries than `limit`, or none: follow `links.next` until it is
/// null. A key that is limited to environments cannot read the log, because it covers the whole
/// organization.
#[utoipa::path(get, path = "/v1/audit", tag = "Audit log", operation_id = "list_audit_entries", params(ListParams),
    responses((status = 200, description = "A page of entries.", body = AuditEntryList)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(params): Query<ListParams>,
) -> Result<Json<AuditEntryList>, ApiError> {
    let filter = ActivityFilter {
        actor: params.actor,
        actions: actions(params.action),
        subject: params.subject,
        from: params.since,
        until: params.until,
    };
    let before = params.before.map_or(i64::MAX, |Offset(n)| i64::try_from(n).unwrap_or(i64::MAX));
    let limit = params.limit.0;
    let part = audit::list(&app, &caller.scope(), &filter, before, limit).await?;
    let next = part.older.map(|before| url.with("before", &before.to_string()));
    let next_before = part.older.and_then(|before| u64::try_from(before).ok());
    Ok(Json(AuditEntryList {
        data: part.entries,
        meta: AuditMeta { limit, next_before },
        links: Links { this: url.url(), next, prev: None },
    }))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportParams {
    /// Only entries of the user, key or token with this ID, or of a part of the service: `engine`.
    #[param(min_length = 1)]
    actor: Option<String>,
    /// Only entries with these actions, separated by commas. `batch.*` stands for all actions on a
    /// kind of resource.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "batch.*,api_key.create")]
    action: CommaSeparated<Actions>,
    /// Only entries about the resource with this ID.
    #[param(min_length = 1)]
    subject: Option<String>,
    /// Only entries from this time on.
    since: Option<Timestamp>,
    /// Only entries before this time.
    until: Option<Timestamp>,
}

/// Export audit entries as CSV
///
/// All entries that match, newest first, as a stream. A cell that a spreadsheet would take for a
/// formula starts with an apostrophe. If the export fails, the connection is closed before the end
/// of the response.
#[utoipa::path(get, path = "/v1/audit.csv", tag = "Audit log", operation_id = "export_audit_entries", params(ExportParams),
    responses((status = 200, description = "The entries.", content((String = "text/csv")))))]
async fn export(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    credential: Option<Extension<Credential>>,
    Query(params): Query<ExportParams>,
) -> Result<Response, ApiError> {
    let Extension(credential) = credential.ok_or_else(internal)?;
    let filter = ActivityFilter {
        actor: params.actor,
        actions: actions(params.action),
        subject: params.subject,
        from: params.since,
        until: params.until,
    };
    let mut export = AuditExport::new(&app, &caller, credential, filter)?;
    // The first part is read before the response starts, so that its errors are reported.
    let first = export.next().await?.unwrap_or_default();
    let head = csv::csv(&COLUMNS, first.into_iter().map(cells));
    let rest =
        stream::try_unfold(export, async |mut export: AuditExport| match export.next().await {
            Ok(Some(entries)) => {
                let lines: String =
                    entries.into_iter().map(|entry| csv::line(cells(entry))).collect();
                Ok(Some((Bytes::from(lines), export)))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                let cause: &dyn std::error::Error = &error;
                tracing::warn!(error = cause, "an export of the audit log failed");
                Err(error)
            }
        });
    let body = stream::once(async { Ok(Bytes::from(head)) });
    let body = ResponseBody::from_stream(futures_util::StreamExt::chain(body, rest));
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8"),
        (CONTENT_DISPOSITION, "attachment; filename=\"audit.csv\""),
    ];
    Ok((headers, body).into_response())
}

const COLUMNS: [&str; 9] = [
    "sequence",
    "at",
    "actor_type",
    "actor_id",
    "actor_name",
    "action",
    "subject_id",
    "subject_name",
    "details",
];

fn cells(entry: AuditEntry) -> Vec<String> {
    let kind = serde_json::to_value(entry.actor.kind).unwrap_or_default();
    vec![
        entry.sequence.to_string(),
        entry.at.to_string(),
        kind.as_str().unwrap_or_default().to_owned(),
        entry.actor.id,
        entry.actor.name.unwrap_or_default(),
        entry.action,
        entry.subject.id,
        entry.subject.name.unwrap_or_default(),
        serde_json::Value::Object(entry.details).to_string(),
    ]
}

/// Verify the audit log
///
/// Verifies the hashes of up to `limit` entries, from the oldest one on, for up to 10 seconds, and
/// whether entries are missing at the end. To verify a longer log, repeat the request with `verified_to` as `after`
/// until `complete` is true. Changes nothing.
#[utoipa::path(post, path = "/v1/audit/verify", tag = "Audit log", operation_id = "verify_audit_log",
    request_body(content = VerifyAudit, example = json!({})),
    responses((status = 200, description = "The result, also if the log is not intact.", body = AuditVerification)))]
async fn verify(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<VerifyAudit>,
) -> Result<Json<AuditVerification>, ApiError> {
    Ok(Json(service::requests::audit::verify(&app, &caller, body.into_parts()).await?))
}

/// The actions to select; empty for all, which includes those of a later version.
fn actions(patterns: CommaSeparated<Actions>) -> Vec<Action> {
    let all = |Actions(actions): &Actions| actions.len() == Action::ALL.len();
    match patterns.0.iter().any(all) {
        true => Vec::new(),
        false => patterns.0.into_iter().flat_map(|Actions(actions)| actions).collect(),
    }
}
