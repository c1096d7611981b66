//! CSV export of the tables on the Settings page: users, API keys, enrollment tokens and feeds.
//! They contain no secrets, like the page itself.

use axum::extract::State;
use httpkit::filters::Listing;
use httpkit::{NoQuery, Query};
use service::queries;
use service::queries::Page;

use super::{ROWS_MAX, all, ends, gathered, page_by_page, table, text, time, words};
use crate::extract::Asked;
use crate::response::Answer;
use crate::{Dashboard, Viewer};

pub(crate) async fn users(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let page = Page { limit: u32::try_from(ROWS_MAX).unwrap_or(u32::MAX), offset: 0 };
    let found = queries::users::list(&app, &viewer.caller().scope(), page).await?;
    table(
        "users.csv",
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
    _: Asked<Listing>,
) -> Answer {
    let scope = viewer.caller().scope();
    let rows = all!(|page| queries::credentials::api_keys(&app, &scope, page));
    table(
        "keys.csv",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("role", &|row| row.role.to_string()),
            ("environments", &|row| words(row.environments.iter().flatten())),
            ("created_at", &|row| row.created_at.to_string()),
            ("last_used_at", &|row| time(row.last_used_at)),
            ("expires_at", &|row| time(row.expires_at)),
            ("revoked_at", &|row| time(row.revoked_at)),
        ],
    )
}

pub(crate) async fn tokens(
    State(app): State<Dashboard>,
    viewer: Viewer,
    _: Asked<Listing>,
) -> Answer {
    let scope = viewer.caller().scope();
    let rows = all!(|page| queries::credentials::enrollment_tokens(&app, &scope, page));
    table(
        "tokens.csv",
        &rows,
        &[
            ("id", &|row| row.id.to_string()),
            ("name", &|row| row.name.clone()),
            ("environment", &|row| text(&row.environment)),
            ("tags", &|row| words(&row.tags)),
            ("uses", &|row| row.uses.to_string()),
            ("max_uses", &|row| text(&row.max_uses)),
            ("created_at", &|row| row.created_at.to_string()),
            ("expires_at", &|row| time(row.expires_at)),
            ("revoked_at", &|row| time(row.revoked_at)),
        ],
    )
}

pub(crate) async fn feeds(
    State(app): State<Dashboard>,
    _viewer: Viewer,
    _: Asked<Listing>,
) -> Answer {
    let rows = all!(|page| queries::feeds::page(&app, page));
    table(
        "feeds.csv",
        &rows,
        &[
            ("name", &|row| row.name.clone()),
            ("kind", &|row| row.kind.clone()),
            ("source", &|row| row.source.clone()),
            ("records", &|row| row.records.to_string()),
            ("as_of", &|row| time(row.as_of)),
            ("checked_at", &|row| time(row.checked_at)),
            ("next_update_at", &|row| time(row.next_update_at)),
            ("last_error", &|row| text(&row.last_error)),
        ],
    )
}
