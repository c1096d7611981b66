//! The data of the charts: daily statistics of the organization, and how long patches have been
//! pending.

use httpkit::problem::ApiError;
use jiff::SignedDuration;
use service::projections::daily_stats::day_of;
use service::queries;
use service::queries::trends::Day;

use crate::pages::ages::Ages;
use crate::pages::trend::{Trend, TrendDay};
use crate::{Dashboard, Viewer, pages};

/// The limits between the age groups: a day, a week, 30 days.
const SPANS: [SignedDuration; 3] = [
    SignedDuration::from_hours(24),
    SignedDuration::from_hours(7 * 24),
    SignedDuration::from_hours(30 * 24),
];

/// The last 30 days.
pub(crate) async fn trend(app: &Dashboard, viewer: &Viewer) -> Result<Trend, ApiError> {
    let today = day_of(app.clock.now());
    let days = queries::trends::days(app, &viewer.caller().scope(), Trend::first(today)).await?;
    Ok(Trend { days: days.into_iter().map(shown).collect(), today })
}

fn shown(row: Day) -> TrendDay {
    let Day { day, servers, up_to_date, critical, high, medium, low, unknown, exploited } = row;
    TrendDay { day, servers, up_to_date, cves: [critical, high, medium, low, unknown], exploited }
}

/// The number of patches by how long they have been pending.
pub(crate) async fn ages(app: &Dashboard, viewer: &Viewer) -> Result<Ages, ApiError> {
    let found = queries::trends::patch_ages(app, &viewer.caller().scope(), SPANS).await?;
    let mut ages = Ages::default();
    for age in found {
        let word = age.severity.to_string();
        let column = pages::trend::SEVERITIES.iter().position(|known| *known == word);
        if let (Some(counts), Some(column)) = (ages.0.get_mut(age.older_than), column) {
            counts[column] += age.patches;
        }
    }
    Ok(ages)
}
