//! The Overview page: the state of the fleet at a glance.

use axum::extract::State;
use httpkit::{NoQuery, Query};
use service::queries;
use service::queries::Page;

use crate::pages::attention::{self, Facts};
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
    let kev = queries::cves::Filter {
        kev: Some(true),
        suppressed: Some(false),
        ..queries::cves::Filter::default()
    };
    let first = Page { limit: 1, offset: 0 };
    let exploited = queries::cves::list(&app, &caller.scope(), kev, first).await?.total;
    // Only administrators can open the page of the feeds.
    let feeds = match viewer.user.role.includes(vocab::Role::Admin) {
        true => queries::feeds::list(&app).await?,
        false => Vec::new(),
    };
    let failed_feeds = feeds.iter().filter(|feed| feed.last_error.is_some()).count() as u64;
    let facts = Facts { summary: &summary, exploited, open: &open, failed_feeds };
    let (verdict, attention) = (attention::verdict(&facts), attention::items(&facts));
    let frame = live_frame(&app, &viewer, Section::Overview, "Overview");
    page(&pages::Overview {
        frame,
        summary,
        cves_by_severity,
        worst,
        open,
        next,
        trend,
        verdict,
        attention,
    })
}
