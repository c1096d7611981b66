//! When schedules run next.

use axum::http::HeaderMap;
use domain::schedule::next_runs;
use httpkit::problem::ApiError;
use service::queries;
use vocab::Zone;

use crate::pages::calendar::{Calendar, Runs};
use crate::{Dashboard, Viewer, cookies};

/// Where the page's script keeps the zone of the reader: it is no secret, and nothing but days is laid out by it.
const ZONE: &str = "fleetmend_zone";
/// How many instants are computed at the most, of all schedules together.
const INSTANTS_MAX: usize = 2_000;
/// How many of one schedule: one that runs every hour fills the calendar.
const INSTANTS_OF_ONE_MAX: usize = 14 * 25;

/// The zone of the reader, or UTC.
fn zone_of(headers: &HeaderMap) -> Zone {
    let told = cookies::read(headers, ZONE).and_then(|text| text.parse().ok());
    told.or_else(|| "UTC".parse().ok()).unwrap_or_default()
}

/// The next two weeks of all schedules.
pub(crate) async fn calendar(
    app: &Dashboard,
    viewer: &Viewer,
    headers: &HeaderMap,
) -> Result<Calendar, ApiError> {
    let all = queries::schedules::all(app, &viewer.caller().scope()).await?;
    let mut enabled: Vec<_> = all.into_iter().filter(|schedule| schedule.enabled).collect();
    enabled.sort_by_key(|schedule| schedule.next_run_at);
    enabled.truncate(INSTANTS_MAX);
    let most = (INSTANTS_MAX / enabled.len().max(1)).clamp(1, INSTANTS_OF_ONE_MAX);
    let (now, zone) = (app.clock.now(), zone_of(headers));
    let end = Calendar::end(now, &zone);
    let mut until = None;
    let runs: Vec<Runs> = enabled
        .into_iter()
        .map(|schedule| {
            let mut at = next_runs(&schedule.cron, &schedule.timezone, now, most);
            if let Some(last) = at.last().filter(|last| at.len() == most && **last < end) {
                until = Some(until.map_or(*last, |known: jiff::Timestamp| known.min(*last)));
            }
            at.retain(|at| *at < end);
            Runs { id: schedule.id, name: schedule.name, zone: schedule.timezone, at }
        })
        .collect();
    Ok(Calendar::of(&runs, zone, now, until))
}
