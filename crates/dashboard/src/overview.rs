//! The Overview page: the state of the fleet at a glance.

use axum::extract::State;
use httpkit::{NoQuery, Query};
use service::queries;

use crate::pages::{NextRun, Section};
use crate::response::{PageResult, live_frame, page};
use crate::{Dashboard, Viewer, pages, plots};

/// Maximum number of rows in each list.
const ROWS_MAX: u32 = 6;

pub(crate) async fn overview(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let caller = viewer.caller();
    let summary = queries::summary::fleet(&app, &caller.scope()).await?;
    let (cves_by_severity, worst) =
        queries::cves::most_important(&app, &caller.scope(), ROWS_MAX).await?;
    let open = queries::batches::open(&app, &caller.scope(), ROWS_MAX).await?;
    let schedules = queries::schedules::all(&app, &caller.scope()).await?;
    let next = schedules
        .into_iter()
        .filter_map(|one| Some(NextRun { id: one.id, name: one.name, at: one.next_run_at? }));
    let mut next: Vec<NextRun> = next.collect();
    next.sort_by_key(|run| run.at);
    next.truncate(ROWS_MAX as usize);
    let trend = plots::trend(&app, &viewer).await?;
    let frame = live_frame(&app, &viewer, Section::Overview, "Overview");
    page(&pages::Overview { frame, summary, cves_by_severity, worst, open, next, trend })
}
