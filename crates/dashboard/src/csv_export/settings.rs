//! CSV export of the tables on the Settings page: users, API keys, enrollment tokens and feeds.
//! They contain no secrets, like the page itself.

use axum::extract::State;
use httpkit::filters::PageParams;
use httpkit::{NoQuery, Query};
use service::queries;
use service::queries::Page;

use super::{
    ROWS_MAX, all, csv_response, format_option, format_time, gathered, is_last_page, join_words,
    page_by_page,
};
use crate::extract::PageQuery;
use crate::pages::api_name;
use crate::response::PageResult;
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
