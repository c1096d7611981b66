//! What a page listens to: a word whenever something changed that it may show. The page then asks for itself again.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use httpkit::problem::{ApiError, chain};
use service::auth::users;
use service::queries::changes::Changes;

use crate::extract::Asked;
use crate::response::Answer;
use crate::{Dashboard, Viewer};

/// How often it looks when no bell rings; also how soon someone who was signed out hears no more.
const LOOK: Duration = Duration::from_secs(5);
/// The least time between two words: a page that changes faster is not read anyway.
const REST: Duration = Duration::from_millis(250);

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct About {
    /// The batch that the page shows.
    batch: Option<String>,
}

/// `/live`.
pub(crate) async fn live(
    State(app): State<Dashboard>,
    viewer: Viewer,
    asked: Asked<About>,
) -> Answer {
    let batch = match asked.meant.batch {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| ApiError::not_found("batch", &text))?),
    };
    let changes = Changes::new(&app, viewer.caller().scope(), batch).await?;
    let told = stream::unfold(Listener { app, viewer, changes }, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    Ok(Sse::new(told).keep_alive(KeepAlive::default()).into_response())
}

/// A page that listens.
struct Listener {
    app: Dashboard,
    viewer: Viewer,
    changes: Changes,
}

impl Listener {
    /// The next event; nothing once nobody is signed in any more, or the service about to end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                () = self.changes.rung() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.app.until_drain() => return None,
            }
            match self.look().await {
                Ok(Some(true)) => {
                    tokio::time::sleep(REST).await;
                    let seq = self.changes.seq().to_string();
                    return Some(Event::default().event("changed").data(seq));
                }
                Ok(Some(false)) => {}
                Ok(None) => return None,
                Err(error) => {
                    tracing::warn!(cause = chain(&error), "a page is not told of changes further");
                    return None;
                }
            }
        }
    }

    /// Whether anything changed; nothing if nobody is signed in any more.
    async fn look(&mut self) -> Result<Option<bool>, service::ServiceError> {
        if users::signed_in(&self.app, &self.viewer.session).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(self.changes.look().await?))
    }
}
