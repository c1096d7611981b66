//! Data for charts: daily statistics, and how long patches have been pending.

use async_recursion::async_recursion as boxed;
use jiff::SignedDuration;
use jiff::civil::Date;
pub use store::daily_stats::DailyStats;
use vocab::Severity;

use super::Scope;
use crate::projections::daily_stats::{current_counts, utc_day};
use crate::projections::patches::severity_at;
use crate::{App, Result};

/// The days from `first` until today. The row for today has the current counts.
#[boxed]
pub async fn days(app: &App, scope: &Scope, first: Date) -> Result<Vec<DailyStats>> {
    let today = utc_day(app.clock.now());
    let mut reader = app.db.read().await?;
    let mut days = store::daily_stats::since(&mut reader, scope.org, first).await?;
    // The row for today is written a little later. After the system clock was set back, there may
    // be rows for days in the future.
    if let Some(now) = current_counts(&mut reader, scope.org, today).await? {
        days.retain(|day| day.day < today);
        days.push(now);
    }
    Ok(days)
}

/// The number of patches of one severity in one age range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchAge {
    /// The number of bounds that the age exceeds.
    pub older_than: usize,
    pub severity: Severity,
    pub patches: u64,
}

/// How long patches have been pending, by severity.
#[boxed]
pub async fn patch_ages(
    app: &App,
    scope: &Scope,
    spans: [SignedDuration; 3],
) -> Result<Vec<PatchAge>> {
    let now = app.clock.now();
    let bounds = spans.map(|span| now.checked_sub(span).unwrap_or(now));
    let found = store::patches::ages(&mut *app.db.read().await?, scope.org, bounds).await?;
    let age = |row: store::patches::AgeCount| PatchAge {
        older_than: usize::try_from(row.older_than).unwrap_or(usize::MAX),
        severity: severity_at(row.severity_order),
        patches: row.patches,
    };
    Ok(found.into_iter().map(age).collect())
}
