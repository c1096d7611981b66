//! The days of the past: how much of the fleet was up to date, how many flaws were open, since when patches are pending.
//!
//! The last day is counted as the service counts; the days before lead there as they would have: each night of patching closes
//! flaws, and what is published during the week opens others.

use anyhow::Context as _;
use jiff::civil::{Date, Weekday};
use jiff::{SignedDuration, Timestamp};
use server::app::App;
use service::projections::daily_stats::{counted, day_of};
use service::projections::{findings, patches};
use store::days::{self, Day};
use store::patches::{Changes, Patch};
use swarm::Chance;
use vocab::OrgId;

/// How old the oldest pending patch is: older than the fleet's oldest scan would be a lie.
const OLDEST_HOURS: u64 = 21 * 24 - 1;

/// Writes down how the organization stood from the app's time until the day before `now`, and since when its patches are
/// pending.
pub(super) async fn write(app: &App, org: OrgId, seed: u64, now: Timestamp) -> anyhow::Result<()> {
    findings::rebuild(app, org).await?;
    patches::rebuild(app, org).await?;
    let today = day_of(now);
    let mut reader = app.db.snapshot().await?;
    let last = counted(&mut reader, org, today).await?.context("nothing was counted")?;
    let pending = store::patches::all(&mut reader, org).await?;
    drop(reader);
    let mut tx = app.db.begin().await?;
    let mut day = day_of(app.clock.now());
    while day < today {
        days::write(&mut tx, org, &before(&last, day, today, seed)).await?;
        day = day.tomorrow()?;
    }
    // A row keeps the time at which it was first put: so the row goes first.
    let gone = pending.iter().map(|patch| patch.package_name.clone()).collect();
    let gone = Changes { gone, ..Changes::default() };
    store::patches::change(&mut tx, org, &gone).await?;
    let put = (0..).zip(pending).map(|(place, patch)| seen(patch, seed, place, now)).collect();
    store::patches::change(&mut tx, org, &Changes { put, ..Changes::default() }).await?;
    Ok(tx.commit().await?)
}

/// How it stood on a day before the last.
fn before(last: &Day, day: Date, today: Date, seed: u64) -> Day {
    let ago = today.since(day).map_or(0, |span| span.get_days()).unsigned_abs();
    let mut chance = Chance::about(seed, "day", u64::from(ago));
    // Over three weeks a third of what was open was closed, not counting what came with each Tuesday.
    let since_tuesday = u64::from(day.weekday().since(Weekday::Tuesday).unsigned_abs());
    let mut open = |count: u64| {
        let slope = count * u64::from(ago) / 60;
        let fresh = count * (6 - since_tuesday.min(6)) / 50;
        count + slope + fresh + chance.below(2 + count / 40)
    };
    let [critical, high, medium] = [last.critical, last.high, last.medium].map(&mut open);
    let [low, unknown] = [last.low, last.unknown].map(&mut open);
    let exploited = (last.exploited + u64::from(ago / 6)).min(critical + high);
    // Every night some more are brought up to date, until the next Tuesday.
    let share = 12 + since_tuesday * 6 + Chance::about(seed, "share", u64::from(ago)).below(5);
    let up_to_date = (last.servers * share / 100).max(last.up_to_date);
    Day { day, up_to_date, critical, high, medium, low, unknown, exploited, ..last.clone() }
}

/// Most of what is pending is new; some of it has been waiting for as long as anyone looked.
fn seen(patch: Patch, seed: u64, place: u64, now: Timestamp) -> Patch {
    let mut chance = Chance::about(seed, "pending since", place);
    let hours = match chance.below(10) {
        0..=2 => chance.below(24),
        3..=6 => chance.between(24, 7 * 24),
        _ => chance.between(7 * 24, OLDEST_HOURS),
    };
    let hours = i64::try_from(hours).unwrap_or(0);
    Patch { first_seen_at: now - SignedDuration::from_hours(hours), ..patch }
}
