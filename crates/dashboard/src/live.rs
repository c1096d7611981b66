//! Live updates: a server-sent event whenever something changes that the page may show. The page
//! then fetches itself again.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use httpkit::problem::{ApiError, error_chain};
use service::auth::sessions;
use service::queries::changes::ChangeWatcher;

use crate::extract::PageQuery;
use crate::response::PageResult;
use crate::{Dashboard, Viewer};

/// How often to check for changes without a notification. Also the longest time that a signed-out
/// user keeps receiving events.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// The shortest time between two events. Faster updates would not be readable.
const EVENT_INTERVAL_MIN: Duration = Duration::from_millis(250);

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LiveQuery {
    batch: Option<String>,
}

pub(crate) async fn live(
    State(app): State<Dashboard>,
    viewer: Viewer,
    query: PageQuery<LiveQuery>,
) -> PageResult {
    let batch = match query.parameters.batch {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| ApiError::not_found("batch", &text))?),
    };
    let changes = ChangeWatcher::new(&app, viewer.caller().scope(), batch).await?;
    let message = stream::unfold(Listener { app, viewer, changes }, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    Ok(Sse::new(message).keep_alive(KeepAlive::default()).into_response())
}

/// The event stream of one open page.
struct Listener {
    app: Dashboard,
    viewer: Viewer,
    changes: ChangeWatcher,
}

impl Listener {
    /// The next event. `None` once the user is signed out or the service shuts down.
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                () = self.changes.wait() => {}
                () = tokio::time::sleep(POLL_EVERY) => {}
                () = self.app.until_drain() => return None,
            }
            match self.has_changes().await {
                Ok(Some(true)) => {
                    tokio::time::sleep(EVENT_INTERVAL_MIN).await;
                    let seq = self.changes.seq().to_string();
                    return Some(Event::default().event("changed").data(seq));
                }
                Ok(Some(false)) => {}
                Ok(None) => return None,
                Err(error) => {
                    tracing::warn!(
                        cause = error_chain(&error),
                        "closed the live updates of a page after an error"
                    );
                    return None;
                }
            }
        }
    }

    /// Whether anything changed; `None` if the user is signed out.
    async fn has_changes(&mut self) -> Result<Option<bool>, service::ServiceError> {
        if sessions::find(&self.app, &self.viewer.session).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(self.changes.has_changed().await?))
    }
}
