//! Daily statistics of the simulated past: servers up to date, open findings, and the age of
//! pending patches.
//!
//! The last day is counted the way the service counts. The days before are extrapolated from it:
//! each night of patching closes findings, and advisories published during the week open others.

use anyhow::Context as _;
use jiff::civil::{Date, Weekday};
use jiff::{SignedDuration, Span, Timestamp};
use server::app::App;
use service::projections::daily_stats::{current_counts, utc_day};
use service::projections::{findings, patches};
use store::daily_stats::{self, DailyStats};
use store::patches::{Changes, Patch};
use swarm::Rng;
use vocab::OrgId;

/// Maximum age of a pending patch: it cannot be older than the fleet's oldest scan.
const OLDEST_HOURS: u64 = 21 * 24 - 1;

/// The number of days with statistics, so that every chart has a curve.
const DAYS: i32 = 90;

/// Writes the statistics of the last [`DAYS`] days before `now`, and the times since which patches
/// are pending.
pub(super) async fn write(app: &App, org: OrgId, seed: u64, now: Timestamp) -> anyhow::Result<()> {
    findings::rebuild(app, org).await?;
    patches::rebuild(app, org).await?;
    let today = utc_day(now);
    let mut reader = app.db.snapshot().await?;
    let last = current_counts(&mut reader, org, today).await?.context("nothing was counted")?;
    let pending = store::patches::all(&mut reader, org).await?;
    drop(reader);
    let mut tx = app.db.begin().await?;
    let mut day = today.checked_sub(Span::new().days(DAYS))?;
    while day < today {
        daily_stats::write(&mut tx, org, &earlier_day(&last, day, today, seed)).await?;
        day = day.tomorrow()?;
    }
    // A row keeps the time at which it was first inserted, so delete it first.
    let gone = pending.iter().map(|patch| patch.package_name.clone()).collect();
    let gone = Changes { removed: gone, ..Changes::default() };
    store::patches::apply_changes(&mut tx, org, &gone).await?;
    let put =
        (0..).zip(pending).map(|(place, patch)| with_first_seen(patch, seed, place, now)).collect();
    store::patches::apply_changes(&mut tx, org, &Changes { put, ..Changes::default() }).await?;
    Ok(tx.commit().await?)
}

/// Invents the statistics of an earlier `day` from those of the `last` day.
fn earlier_day(last: &DailyStats, day: Date, today: Date, seed: u64) -> DailyStats {
    let ago = today.since(day).map_or(0, |span| span.get_days()).unsigned_abs();
    let mut rng = Rng::for_entity(seed, "day", u64::from(ago));
    // Over three weeks, a third of the open findings were closed, not counting those added each
    // Tuesday. Before, when nobody patched regularly, there were twice as many for a while.
    let since_tuesday = u64::from(day.weekday().since(Weekday::Tuesday).unsigned_abs());
    let mut open = |count: u64| {
        let slope =
            count * u64::from(ago.min(45)) / 60 + count * u64::from(ago.clamp(45, 90) - 45) / 180;
        let fresh = count * (6 - since_tuesday.min(6)) / 50;
        count + slope + fresh + rng.below(2 + count / 40)
    };
    let [critical, high, medium] = [last.critical, last.high, last.medium].map(&mut open);
    let [low, unknown] = [last.low, last.unknown].map(&mut open);
    let exploited = (last.exploited + u64::from(ago.min(60) / 6)).min(critical + high);
    // Every night more servers are brought up to date, until the next Tuesday.
    let share = 12 + since_tuesday * 6 + Rng::for_entity(seed, "share", u64::from(ago)).below(5);
    // Fewer, the longer ago.
    let share = share * u64::from(120 - ago.min(90)) / 120;
    let up_to_date = (last.servers * share / 100).max(last.up_to_date);
    DailyStats { day, up_to_date, critical, high, medium, low, unknown, exploited, ..last.clone() }
}

/// Most pending patches are new; some have been pending since the first scan.
fn with_first_seen(patch: Patch, seed: u64, place: u64, now: Timestamp) -> Patch {
    let mut rng = Rng::for_entity(seed, "pending since", place);
    let hours = match rng.below(10) {
        0..=2 => rng.below(24),
        3..=6 => rng.between(24, 7 * 24),
        _ => rng.between(7 * 24, OLDEST_HOURS),
    };
    let hours = i64::try_from(hours).unwrap_or(0);
    Patch { first_seen_at: now - SignedDuration::from_hours(hours), ..patch }
}
