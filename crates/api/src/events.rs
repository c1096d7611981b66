//! `/v1/events`.

use std::convert::Infallible;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use futures_util::stream;
use httpkit::filters::{CommaSeparated, EventTypes};
use httpkit::problem::internal;
use httpkit::{ApiError, Code, Limit, Offset, Query, RequestUrl};
use service::auth::caller::{Caller, Credential};
use service::queries::events::{self, EventFilter, EventFollower};
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{EventList, EventsMeta, Links};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(list)).add(Role::Viewer, handlers!(follow))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only events after this sequence number; from the oldest one if omitted.
    #[param(value_type = Option<u64>, minimum = 0, required = false, example = 1_204)]
    after: Option<Offset>,
    /// Only events of these types, separated by commas. `batch.*` stands for all types of a group.
    #[serde(default, rename = "type")]
    #[param(value_type = Option<String>, required = false, example = "batch.*,server.offline")]
    kind: CommaSeparated<EventTypes>,
    /// Only events about the resource with this ID.
    #[param(min_length = 1)]
    subject: Option<String>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
}

/// List events
///
/// What happened, oldest first. Events are written together with the change that they report, and
/// numbered without gaps within the organization; after a restore from a backup, the numbers
/// continue at a much larger one, with the event `installation.restored`. To read everything once,
/// pass `meta.last` as `after` with the next request. Events are kept for 90 days: if events after
/// `after` were deleted, the response is an error (`events_expired`). Events about users, keys,
/// tokens, webhooks and the organization need the role `admin`. A key that is limited to
/// environments sees only events about servers that were in one of them.
#[utoipa::path(get, path = "/v1/events", tag = "Events", operation_id = "list_events", params(ListParams),
    responses((status = 200, description = "Events after the sequence number.", body = EventList),
        (status = 409, description = "The sequence number is larger than that of the latest event."),
        (status = 410, description = "Events after the sequence number were deleted.")))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(params): Query<ListParams>,
) -> Result<Json<EventList>, ApiError> {
    let after = params.after.map(|Offset(after)| i64::try_from(after).unwrap_or(i64::MAX));
    let filter = filter(params.kind, params.subject);
    let limit = params.limit.0;
    let part = events::list(&app, &caller, after, &filter, limit).await?;
    let number = |sequence: i64| u64::try_from(sequence).unwrap_or(0);
    let more = part.last < part.latest;
    let next = more.then(|| url.with("after", &part.last.to_string()));
    Ok(Json(EventList {
        data: part.events,
        meta: EventsMeta { limit, last: number(part.last), latest: number(part.latest) },
        links: Links { this: url.url(), next, prev: None },
    }))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamParams {
    /// Only events after this sequence number; from now on if omitted. `Last-Event-ID` takes
    /// precedence.
    #[param(value_type = Option<u64>, minimum = 0, required = false, example = 1_204)]
    after: Option<Offset>,
    /// Only events of these types, separated by commas. `batch.*` stands for all types of a group.
    #[serde(default, rename = "type")]
    #[param(value_type = Option<String>, required = false, example = "batch.*,server.offline")]
    kind: CommaSeparated<EventTypes>,
    /// Only events about the resource with this ID.
    #[param(min_length = 1)]
    subject: Option<String>,
}

/// Follow events
///
/// Server-sent events as they happen: `id` is the sequence number, `event` the type, and `data` the
/// same JSON object as in the list. Send the last `id` as `Last-Event-ID` to resume without losing
/// an event; browsers and most clients do so on their own.
#[utoipa::path(get, path = "/v1/events/stream", tag = "Events", operation_id = "follow_events", params(StreamParams),
    responses((status = 200, description = "The event stream.", content((String = "text/event-stream"))),
        (status = 409, description = "The sequence number is larger than that of the latest event."),
        (status = 410, description = "Events after the sequence number were deleted.")))]
async fn follow(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    credential: Option<Extension<Credential>>,
    headers: HeaderMap,
    Query(params): Query<StreamParams>,
) -> Result<Response, ApiError> {
    let Extension(credential) = credential.ok_or_else(internal)?;
    let after = match last_event_id(&headers)? {
        Some(id) => Some(id),
        None => params.after.map(|Offset(after)| i64::try_from(after).unwrap_or(i64::MAX)),
    };
    let filter = filter(params.kind, params.subject);
    let follower = EventFollower::new(&app, &caller, credential, filter, after).await?;
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        let data = serde_json::to_string(&event).unwrap_or_default();
        let event = SseEvent::default().id(event.sequence.to_string()).event(event.kind).data(data);
        Some((Ok::<_, Infallible>(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

fn filter(kinds: CommaSeparated<EventTypes>, subject: Option<String>) -> EventFilter {
    EventFilter { kinds: kinds.0.into_iter().flat_map(|types| types.0).collect(), subject }
}

/// The sequence number in `Last-Event-ID`.
fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    match number.filter(|number| *number >= 0) {
        Some(number) => Ok(Some(number)),
        None => {
            let detail = "`Last-Event-ID` must be the `id` of the last event that was received.";
            Err(ApiError::new(Code::InvalidHeader, detail))
        }
    }
}
