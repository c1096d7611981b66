//! The activity page: the audit log, newest entry first.

use axum::extract::State;
use service::queries;
use service::queries::activity::Entry;

use crate::extract::PageQuery;
use crate::names::names;
use crate::pages::{ActivityEntry, Section};
use crate::response::{PageResult, frame, page};
use crate::{Dashboard, Viewer, pages};

const PAGE_ROWS: u32 = 50;

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActivityQuery {
    before: Option<u32>,
}

pub(crate) async fn activity(
    State(app): State<Dashboard>,
    viewer: Viewer,
    query: PageQuery<ActivityQuery>,
) -> PageResult {
    let before = query.parameters.before.map(i64::from);
    let (scope, first) = (viewer.caller().scope(), before.unwrap_or(i64::MAX));
    let found = queries::activity::before(&app, &scope, first, PAGE_ROWS).await?;
    let step = i64::from(PAGE_ROWS);
    let older = found.last().map(|entry| entry.seq).filter(|seq| *seq > 1);
    let newer = before.map(|before| before.saturating_add(step));
    let shown = |entry: Entry| ActivityEntry {
        at: entry.at,
        actor: entry.actor,
        action: entry.action,
        subject: entry.subject,
        detail: entry.detail,
    };
    let ids = found.iter().flat_map(|entry| [entry.actor.clone(), entry.subject.clone()]);
    let names = names(&app, &viewer, ids).await?;
    let entries = found.into_iter().map(shown).collect();
    let frame = frame(&app, &viewer, Section::Activity, "Activity");
    page(&pages::Activity { frame, entries, newer, older, names })
}
