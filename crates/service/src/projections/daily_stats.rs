//! Daily statistics of an organization: up-to-date servers and open findings, from existing counts.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use store::daily_stats::DailyStats;
use store::findings::WithSuppressed;
use store::server_list::{self, Filter};
use store::{Conn, Result, StoreError, findings, patches};
use vocab::{OrgId, Severity};

use super::patches::{Counts, severity_at};

/// The current day in UTC, whatever the time zones of servers and users.
pub fn utc_day(now: Timestamp) -> Date {
    now.to_zoned(TimeZone::UTC).date()
}

/// The current counts of an organization for this day's row. `None` until everything has been
/// counted for the first time, or if there are no servers. Reads about ten rows and one index of
/// findings, never the servers.
#[boxed]
pub async fn current_counts(conn: &mut Conn, org: OrgId, day: Date) -> Result<Option<DailyStats>> {
    let servers = server_list::count(conn, org, &Filter::default()).await?;
    let seen = patches::summary(conn, org).await?;
    let summary = findings::summary(conn, org).await?;
    let (Some(seen), Some(_), true) = (seen, summary, servers > 0) else { return Ok(None) };
    let counts: Counts = serde_json::from_value(seen.counts).map_err(|error| {
        StoreError::Corrupt { table: "fleet_summaries", id: org.to_string(), source: error.into() }
    })?;
    let mut row = DailyStats {
        day,
        servers,
        up_to_date: counts.up_to_date,
        critical: 0,
        high: 0,
        medium: 0,
        low: 0,
        unknown: 0,
        exploited: 0,
    };
    for some in findings::count_by_severity(conn, org, WithSuppressed::No).await? {
        *match severity_at(some.severity_order) {
            Severity::Critical => &mut row.critical,
            Severity::High => &mut row.high,
            Severity::Medium => &mut row.medium,
            Severity::Low => &mut row.low,
            Severity::Unknown => &mut row.unknown,
        } += some.cves;
        if some.kev_order == 0 {
            row.exploited += some.cves;
        }
    }
    Ok(Some(row))
}
