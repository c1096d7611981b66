//! What a page listens to: a word whenever something changed that it may show. The page then asks for itself again.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use store::{Bell, Topic, events, rollouts};
use vocab::BatchId;

use crate::app::App;
use crate::http::problem::{ApiError, chain};
use crate::web::Viewer;
use crate::web::answer::Answer;
use crate::web::asked::Asked;
use service::auth::users;
use service::queries;

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
pub(crate) async fn live(State(app): State<App>, viewer: Viewer, asked: Asked<About>) -> Answer {
    let batch = match asked.meant.batch {
        None => None,
        Some(text) => {
            let id: BatchId = text.parse().map_err(|_| ApiError::not_found("batch", &text))?;
            queries::batches::find(&mut *app.db.read().await?, &viewer.caller().scope(), id)
                .await?;
            Some(id)
        }
    };
    let bells = (app.db.bell(Topic::Events), app.db.bell(Topic::Rollouts));
    let seq = events::latest(&mut *app.db.read().await?).await?;
    let mut listener = Listener { app, viewer, batch, bells, seq, revision: None };
    listener.revision = listener.revision().await?;
    let told = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    Ok(Sse::new(told).keep_alive(KeepAlive::default()).into_response())
}

/// A page that listens.
struct Listener {
    app: App,
    viewer: Viewer,
    batch: Option<BatchId>,
    bells: (Bell, Bell),
    seq: i64,
    revision: Option<i64>,
}

impl Listener {
    /// The next word; nothing once nobody is signed in any more, or the service about to end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                () = self.bells.0.rung() => {}
                () = self.bells.1.rung(), if self.batch.is_some() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.app.until_drain() => return None,
            }
            match self.look().await {
                Ok(Some(true)) => {
                    tokio::time::sleep(REST).await;
                    return Some(Event::default().event("changed").data(self.seq.to_string()));
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
        let before = self.revision;
        let mut reader = self.app.db.read().await?;
        // The number is taken first: what comes after it is found the next time.
        let latest = events::latest(&mut reader).await?;
        let ours = events::after(&mut reader, self.viewer.user.org_id, self.seq, 1).await?;
        drop(reader);
        self.revision = self.revision().await?;
        self.seq = latest;
        Ok(Some(!ours.is_empty() || self.revision != before))
    }

    /// How often anything of the batch has changed.
    async fn revision(&self) -> store::Result<Option<i64>> {
        let Some(batch) = self.batch else { return Ok(None) };
        let mut reader = self.app.db.read().await?;
        let row = rollouts::get(&mut reader, self.viewer.user.org_id, batch).await?;
        Ok(Some(row.revision))
    }
}
