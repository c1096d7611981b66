//! The data of the charts: daily statistics of the organization, and how long patches have been
//! pending.

use httpkit::problem::ApiError;
use jiff::SignedDuration;
use service::projections::daily_stats::utc_day;
use service::queries;
use service::queries::trends::DailyStats;

use crate::pages::ages::PendingAges;
use crate::pages::trend::{Trend, TrendDay};
use crate::{Dashboard, Viewer, pages};

/// The limits between the age groups: a day, a week, 30 days.
const AGE_LIMITS: [SignedDuration; 3] = [
    SignedDuration::from_hours(24),
    SignedDuration::from_hours(7 * 24),
    SignedDuration::from_hours(30 * 24),
];

/// The last 30 days.
pub(crate) async fn trend(app: &Dashboard, viewer: &Viewer) -> Result<Trend, ApiError> {
    let today = utc_day(app.clock.now());
    let days =
        queries::trends::days(app, &viewer.caller().scope(), Trend::first_day(today)).await?;
    Ok(Trend { days: days.into_iter().map(trend_day).collect(), today })
}

fn trend_day(row: DailyStats) -> TrendDay {
    let DailyStats { day, servers, up_to_date, critical, high, medium, low, unknown, exploited } =
        row;
    TrendDay { day, servers, up_to_date, cves: [critical, high, medium, low, unknown], exploited }
}

/// The number of patches by how long they have been pending.
pub(crate) async fn ages(app: &Dashboard, viewer: &Viewer) -> Result<PendingAges, ApiError> {
    let found = queries::trends::patch_ages(app, &viewer.caller().scope(), AGE_LIMITS).await?;
    let mut ages = PendingAges::default();
    for age in found {
        let word = age.severity.to_string();
        let column = pages::trend::SEVERITIES.iter().position(|known| *known == word);
        if let (Some(counts), Some(column)) = (ages.0.get_mut(age.older_than), column) {
            counts[column] += age.patches;
        }
    }
    Ok(ages)
}
