//! What plots are drawn from: the organization's days, and how long patches have been pending.

use jiff::SignedDuration;
use pages::ages::Ages;
use pages::trend::{Trend, TrendDay};
use store::days::Day;

use crate::app::App;
use crate::http::problem::ApiError;
use crate::web::Viewer;
use service::projections::daily_stats::{counted, day_of};
use service::projections::patches::severity;

/// A day, a week, 30 days: between these times of pending, plots tell ages apart.
const SPANS: [SignedDuration; 3] = [
    SignedDuration::from_hours(24),
    SignedDuration::from_hours(7 * 24),
    SignedDuration::from_hours(30 * 24),
];

/// The last 30 days.
pub(crate) async fn trend(app: &App, viewer: &Viewer) -> Result<Trend, ApiError> {
    let today = day_of(app.clock.now());
    let mut reader = app.db.read().await?;
    let org = viewer.user.org_id;
    let mut days = store::days::since(&mut reader, org, Trend::first(today)).await?;
    // Today is as it is now: its row follows a little later, and a clock that was set back may have left days that are still
    // to come.
    if let Some(now) = counted(&mut reader, org, today).await? {
        days.retain(|day| day.day < today);
        days.push(now);
    }
    Ok(Trend { days: days.into_iter().map(shown).collect(), today })
}

fn shown(row: Day) -> TrendDay {
    let Day { day, servers, up_to_date, critical, high, medium, low, unknown, exploited } = row;
    TrendDay { day, servers, up_to_date, cves: [critical, high, medium, low, unknown], exploited }
}

/// How long patches have been pending.
pub(crate) async fn ages(app: &App, viewer: &Viewer) -> Result<Ages, ApiError> {
    let now = app.clock.now();
    let bounds = SPANS.map(|span| now.checked_sub(span).unwrap_or(now));
    let mut reader = app.db.read().await?;
    let mut ages = Ages::default();
    for age in store::patches::ages(&mut reader, viewer.user.org_id, bounds).await? {
        let word = severity(age.severity_order).to_string();
        let column = pages::trend::SEVERITIES.iter().position(|known| *known == word);
        let row = usize::try_from(age.older_than).unwrap_or(usize::MAX);
        if let (Some(counts), Some(column)) = (ages.0.get_mut(row), column) {
            counts[column] += age.patches;
        }
    }
    Ok(ages)
}
