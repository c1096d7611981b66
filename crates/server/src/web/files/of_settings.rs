//! The tables of Settings: users, API keys, enrolment tokens, feeds. No secret is in them, as none is on the page.

use axum::extract::State;
use pages::csv::csv;
use store::Page;

use super::{ROWS_MAX, all, file, parts, text, time};
use crate::app::App;
use crate::http::credentials::Listing;
use crate::http::{Here, NoQuery, Query, api_keys, enrollment_tokens, feeds};
use crate::web::Viewer;
use crate::web::answer::Answer;
use crate::web::asked::Asked;

/// `/settings/users.csv`.
pub(crate) async fn users(
    State(app): State<App>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let page = Page { limit: u32::try_from(ROWS_MAX).unwrap_or(u32::MAX), offset: 0 };
    let mut reader = app.db.snapshot().await?;
    let found = store::users::list(&mut reader, viewer.user.org_id, page).await?;
    let rows = found.items.into_iter().map(|row| {
        vec![
            row.id.to_string(),
            row.name,
            row.role.to_string(),
            row.totp_secret.is_some().to_string(),
            row.created_at.to_string(),
        ]
    });
    file("users.csv", csv(&["id", "name", "role", "second_factor", "created_at"], rows))
}

/// `/settings/keys.csv`.
pub(crate) async fn keys(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<Listing>,
) -> Answer {
    let rows = all!(api_keys::list, app, viewer, here, asked);
    let rows = rows.into_iter().map(|row| {
        let within = row.environments.iter().flatten().map(ToString::to_string);
        vec![
            row.id.to_string(),
            row.name,
            row.role.to_string(),
            within.collect::<Vec<_>>().join(" "),
            row.created_at.to_string(),
            time(row.last_used_at),
            time(row.expires_at),
            time(row.revoked_at),
        ]
    });
    let head = [
        "id",
        "name",
        "role",
        "environments",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    ];
    file("keys.csv", csv(&head, rows))
}

/// `/settings/tokens.csv`.
pub(crate) async fn tokens(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<Listing>,
) -> Answer {
    let rows = all!(enrollment_tokens::list, app, viewer, here, asked);
    let rows = rows.into_iter().map(|row| {
        let tags: Vec<String> = row.tags.iter().map(ToString::to_string).collect();
        vec![
            row.id.to_string(),
            row.name,
            text(&row.environment),
            tags.join(" "),
            row.uses.to_string(),
            text(&row.max_uses),
            row.created_at.to_string(),
            time(row.expires_at),
            time(row.revoked_at),
        ]
    });
    let head = [
        "id",
        "name",
        "environment",
        "tags",
        "uses",
        "max_uses",
        "created_at",
        "expires_at",
        "revoked_at",
    ];
    file("tokens.csv", csv(&head, rows))
}

/// `/settings/feeds.csv`.
pub(crate) async fn feeds(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<feeds::Part>,
) -> Answer {
    let rows = all!(feeds::list, app, viewer, here, asked);
    let rows = rows.into_iter().map(|row| {
        vec![
            row.name,
            row.kind,
            row.source,
            row.records.to_string(),
            time(row.as_of),
            time(row.checked_at),
            time(row.next_update_at),
            text(&row.last_error),
        ]
    });
    let head = [
        "name",
        "kind",
        "source",
        "records",
        "as_of",
        "checked_at",
        "next_update_at",
        "last_error",
    ];
    file("feeds.csv", csv(&head, rows))
}
