//! Computes the next runs of all schedules for the calendar. `pages::calendar` lays them out by
//! day.

use axum::http::HeaderMap;
use domain::schedule::next_runs;
use httpkit::problem::ApiError;
use service::queries;
use vocab::Zone;

use crate::pages::calendar::{Calendar, FreezePeriods, ScheduleRuns};
use crate::{Dashboard, Viewer, cookies};

/// Cookie in which the page's script stores the browser's time zone. It is not secret; it only
/// selects the days of the calendar.
const ZONE_COOKIE: &str = "fleetmend_zone";
/// Maximum number of run times computed for all schedules together.
const RUN_TIMES_MAX: usize = 2_000;
/// Maximum number of run times computed for one schedule. Enough for an hourly schedule to fill the
/// calendar.
const RUN_TIMES_PER_SCHEDULE_MAX: usize = 14 * 25;

/// Maximum number of periods of one freeze: enough for one every hour.
const PERIODS_PER_FREEZE_MAX: usize = 14 * 25;

/// The browser's time zone, or UTC if it is unknown.
pub(crate) fn browser_zone(headers: &HeaderMap) -> Zone {
    let message = cookies::read(headers, ZONE_COOKIE).and_then(|text| text.parse().ok());
    message.or_else(|| "UTC".parse().ok()).unwrap_or_default()
}

/// The runs of all enabled schedules in the next two weeks.
pub(crate) async fn calendar(
    app: &Dashboard,
    viewer: &Viewer,
    headers: &HeaderMap,
) -> Result<Calendar, ApiError> {
    let all = queries::schedules::all(app, &viewer.caller().scope()).await?;
    let mut enabled: Vec<_> = all.into_iter().filter(|schedule| schedule.enabled).collect();
    enabled.sort_by_key(|schedule| schedule.next_run_at);
    enabled.truncate(RUN_TIMES_MAX);
    let max = (RUN_TIMES_MAX / enabled.len().max(1)).clamp(1, RUN_TIMES_PER_SCHEDULE_MAX);
    let (now, zone) = (app.clock.now(), browser_zone(headers));
    let end = Calendar::end(now, &zone);
    let mut until = None;
    let runs: Vec<ScheduleRuns> = enabled
        .into_iter()
        .map(|schedule| {
            let mut at = next_runs(&schedule.cron, &schedule.timezone, now, max);
            if let Some(last) = at.last().filter(|last| at.len() == max && **last < end) {
                until = Some(until.map_or(*last, |known: jiff::Timestamp| known.min(*last)));
            }
            at.retain(|at| *at < end);
            ScheduleRuns { id: schedule.id, name: schedule.name, zone: schedule.timezone, at }
        })
        .collect();
    let freezes: Vec<FreezePeriods> = queries::freezes::current(app, &viewer.caller().scope())
        .await?
        .into_iter()
        .map(|freeze| FreezePeriods {
            periods: freeze.rule.periods(now, end, PERIODS_PER_FREEZE_MAX),
            name: freeze.name,
        })
        .collect();
    Ok(Calendar::lay_out(&runs, &freezes, zone, now, until))
}
