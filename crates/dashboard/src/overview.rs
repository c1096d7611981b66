//! The Overview page: the state of the fleet at a glance.

use axum::extract::State;
use httpkit::{NoQuery, Query};
use service::attention::{self, Facts};
use service::queries;
use service::queries::freezes::Freeze;

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
    let facts = Facts::load(&app, &caller, ROWS_MAX).await?;
    let (cves_by_severity, worst) =
        queries::cves::most_important(&app, &caller.scope(), ROWS_MAX).await?;
    let schedules = queries::schedules::all(&app, &caller.scope()).await?;
    let mut due: Vec<_> =
        schedules.into_iter().filter_map(|one| Some((one.next_run_at?, one))).collect();
    due.sort_by_key(|(at, _)| *at);
    due.truncate(ROWS_MAX as usize);
    let runs: Vec<_> = due.iter().map(|(at, one)| (one.targets.clone(), *at)).collect();
    let freezes = queries::freezes::covered_runs(&app, &caller.scope(), &runs).await?;
    let next = due.into_iter().zip(freezes).map(|((at, one), freeze)| {
        let freeze = freeze.map(|(_, name)| name);
        NextRun { id: one.id, name: one.name, at, freeze }
    });
    let next: Vec<NextRun> = next.collect();
    let now = app.clock.now();
    let current = queries::freezes::current(&app, &caller.scope()).await?;
    let active = |freeze: Freeze| Some((freeze.name, freeze.rule.active_period(now)?.ends_at));
    let mut frozen: Vec<_> = current.into_iter().filter_map(active).collect();
    frozen.sort_by_key(|(_, until)| *until);
    frozen.truncate(ROWS_MAX as usize);
    let wanted = queries::compliance::Wanted::default();
    let part = queries::Page { limit: ROWS_MAX, offset: 0 };
    let compliance = queries::compliance::list(&app, &caller.scope(), &wanted, part).await?.items;
    let trend = plots::trend(&app, &viewer).await?;
    let (verdict, attention) = (attention::verdict(&facts), attention::items(&facts));
    let frame = live_frame(&app, &viewer, Section::Overview, "Overview");
    page(&pages::Overview {
        frame,
        cves_by_severity,
        worst,
        next,
        frozen,
        compliance,
        trend,
        verdict,
        attention,
        summary: facts.summary,
        open: facts.open,
    })
}
