//! `/v1/notifications`.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::{ApiError, Body, NoQuery, Query};
use service::auth::caller::Caller;
use service::requests::notifications as requests;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{NotificationTest, TestNotification};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Admin, handlers!(test))
}

/// Send a test message
///
/// Sends an email to any address, and returns what the SMTP server answered. People choose their
/// own notifications in the dashboard.
#[utoipa::path(post, path = "/v1/notifications/test", tag = "Notifications", operation_id = "test_notification",
    request_body = TestNotification,
    responses((status = 200, description = "The result.", body = NotificationTest)))]
async fn test(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<TestNotification>,
) -> Result<Json<NotificationTest>, ApiError> {
    let result = requests::test(&app, &caller, body.into_parts()).await?;
    let (response, error) = match result.response {
        Ok(response) => (Some(response), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let duration_ms = result.duration_ms;
    Ok(Json(NotificationTest { sent: error.is_none(), response, error, duration_ms }))
}
