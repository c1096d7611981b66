//! CSV export of the tables of the settings: users, API keys, enrollment tokens, feeds and webhooks.
//! They contain no secrets, like the page itself.

use axum::extract::State;
use httpkit::filters::PageParams;
use httpkit::{Id, NoQuery, Query};
use service::queries;
use service::queries::Page;
use vocab::WebhookId;

use super::{
    ROWS_MAX, all, csv_response, format_option, format_time, gathered, is_last_page, join_words,
    page_by_page,
};
use crate::extract::PageQuery;
use crate::pages::{self, api_name};
use crate::response::PageResult;
use crate::webhooks::DeliveryQuery;
use crate::{Dashboard, Viewer};

pub(crate) async fn users(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let page = Page { limit: u32::try_from(ROWS_MAX).unwrap_or(u32::MAX), offset: 0 };
    let found = queries::users::list(&app, &viewer.caller().scope(), page).await?;
    csv_response(
        "users",
        &found.items,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("role", &|row| row.role.to_string()),
            ("second_factor", &|row| row.totp_secret.is_some().to_string()),
            ("created_at", &|row| row.created_at.to_string()),
        ],
    )
}

pub(crate) async fn keys(
    State(app): State<Dashboard>,
    viewer: Viewer,
    _: PageQuery<PageParams>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let rows = all!(|page| queries::credentials::api_keys(&app, &scope, page));
    csv_response(
        "keys",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("role", &|row| row.role.to_string()),
            ("environments", &|row| join_words(row.environments.iter().flatten())),
            ("created_at", &|row| row.created_at.to_string()),
            ("last_used_at", &|row| format_time(row.last_used_at)),
            ("expires_at", &|row| format_time(row.expires_at)),
            ("revoked_at", &|row| format_time(row.revoked_at)),
        ],
    )
}

pub(crate) async fn tokens(
    State(app): State<Dashboard>,
    viewer: Viewer,
    _: PageQuery<PageParams>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let rows = all!(|page| queries::credentials::enrollment_tokens(&app, &scope, page));
    csv_response(
        "tokens",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("environment", &|row| format_option(&row.environment)),
            ("tags", &|row| join_words(&row.tags)),
            ("uses", &|row| row.uses.to_string()),
            ("max_uses", &|row| format_option(&row.max_uses)),
            ("created_at", &|row| row.created_at.to_string()),
            ("expires_at", &|row| format_time(row.expires_at)),
            ("revoked_at", &|row| format_time(row.revoked_at)),
        ],
    )
}

pub(crate) async fn feeds(
    State(app): State<Dashboard>,
    _viewer: Viewer,
    _: PageQuery<PageParams>,
) -> PageResult {
    let rows = all!(|page| queries::feeds::page(&app, page));
    csv_response(
        "feeds",
        &rows,
        &[
            ("name", &|row| row.name.clone()),
            ("kind", &|row| row.kind.clone()),
            ("state", &|row| api_name(&row.state)),
            ("source", &|row| row.source.clone()),
            ("records", &|row| row.records.to_string()),
            ("as_of", &|row| format_time(row.as_of)),
            ("checked_at", &|row| format_time(row.checked_at)),
            ("next_update_at", &|row| format_time(row.next_update_at)),
            ("last_error", &|row| format_option(&row.last_error)),
        ],
    )
}

/// Only the scheme and the host of the URL, because the rest may contain a secret.
pub(crate) async fn webhooks(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let rows = queries::webhooks::list(&app, &viewer.caller().scope()).await?;
    csv_response(
        "webhooks",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("sent_to", &|row| row.origin().to_owned()),
            ("format", &|row| api_name(&row.format)),
            ("types", &|row| join_words(&row.types)),
            ("servers", &|row| pages::webhooks::describe_servers(&row.targets)),
            ("state", &|row| pages::webhooks::state(row).to_owned()),
            ("disabled_reason", &|row| format_option(&row.disabled_reason)),
            ("failing_since", &|row| format_time(row.failing_since)),
            ("pending", &|row| row.pending.to_string()),
            ("created_at", &|row| row.created_at.to_string()),
        ],
    )
}

pub(crate) async fn deliveries(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<WebhookId>,
    query: PageQuery<DeliveryQuery>,
) -> PageResult {
    let (states, scope) = (query.parameters.states(), viewer.caller().scope());
    let rows = all!(|page| queries::webhooks::deliveries(&app, &scope, id, &states, page));
    csv_response(
        "deliveries",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("event_id", &|row| row.event_id.to_string()),
            ("sequence", &|row| row.sequence.to_string()),
            ("event_type", &|row| row.event_type.clone()),
            ("subject_name", &|row| row.subject_name.clone()),
            ("state", &|row| api_name(&row.state)),
            ("attempts", &|row| row.attempts.to_string()),
            ("created_at", &|row| row.created_at.to_string()),
            ("last_attempt_at", &|row| format_time(row.last_attempt_at)),
            ("next_attempt_at", &|row| format_time(row.next_attempt_at)),
            ("duration_ms", &|row| format_option(&row.duration_ms)),
            ("response_status", &|row| format_option(&row.response_status)),
            ("response_body", &|row| format_option(&row.response_body)),
            ("error", &|row| format_option(&row.error)),
        ],
    )
}
