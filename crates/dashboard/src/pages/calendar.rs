//! The calendar of upcoming runs: weeks of days, each with the runs that start on it in the
//! browser's time zone.

use domain::freeze::Period;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};
use vocab::{ScheduleId, Zone};

/// The number of days shown, including today.
pub const DAYS: i32 = 14;
/// A schedule and its next run times.
#[derive(Debug)]
pub struct ScheduleRuns {
    pub id: ScheduleId,
    pub name: String,
    pub zone: Zone,
    pub at: Vec<Timestamp>,
}

/// A freeze and its next periods.
#[derive(Debug)]
pub struct FreezePeriods {
    pub name: String,
    pub periods: Vec<Period>,
}

/// A freeze on one day.
#[derive(Debug, PartialEq, Eq)]
pub struct CalendarFreeze {
    pub name: String,
    /// `all day`, or when it starts and ends on this day.
    pub time: String,
}

/// The next [`DAYS`] days as weeks.
#[derive(Debug)]
pub struct Calendar {
    /// The browser's time zone.
    pub zone: Zone,
    /// Every week starts with today's weekday.
    pub weeks: Vec<Vec<CalendarDay>>,
    /// Set if the calendar is incomplete from this time on, because some schedules run too often to
    /// list every run.
    pub until: Option<String>,
}

#[derive(Debug)]
pub struct CalendarDay {
    pub date: Date,
    pub today: bool,
    /// The runs that start on this day, in order of time.
    pub entries: Vec<CalendarEntry>,
    /// The freezes that are active on this day.
    pub freezes: Vec<CalendarFreeze>,
}

/// The runs of one schedule on one day.
#[derive(Debug)]
pub struct CalendarEntry {
    pub id: ScheduleId,
    pub name: String,
    /// The time of the first run in the browser's time zone.
    pub first: String,
    /// The same time in the schedule's time zone, if it differs.
    pub schedule_time: Option<String>,
    /// The number of runs on this day.
    pub times: usize,
}

fn time_zone(zone: &Zone) -> TimeZone {
    TimeZone::get(&zone.to_string()).unwrap_or(TimeZone::UTC)
}

impl CalendarDay {
    pub fn weekday(&self) -> String {
        self.date.strftime("%A").to_string()
    }

    /// The date as the calendar shows it, such as `14 Nov`.
    pub fn short_date(&self) -> String {
        self.date.strftime("%-d %b").to_string()
    }

    /// The date for screen readers, such as `Saturday, 14 November`.
    pub fn spoken(&self) -> String {
        self.date.strftime("%A, %-d %B").to_string()
    }
}

impl Calendar {
    /// The end of the period shown.
    pub fn end(now: Timestamp, zone: &Zone) -> Timestamp {
        let today = now.to_zoned(time_zone(zone)).date();
        let end = today.saturating_add(DAYS.days()).to_zoned(time_zone(zone));
        end.map_or(now, |end| end.timestamp())
    }

    /// Lays out runs by day. `until` is the time up to which the runs of all schedules were
    /// computed.
    pub fn lay_out(
        runs: &[ScheduleRuns],
        freezes: &[FreezePeriods],
        zone: Zone,
        now: Timestamp,
        until: Option<Timestamp>,
    ) -> Calendar {
        let here = time_zone(&zone);
        let today = now.to_zoned(here.clone()).date();
        let mut found: Vec<(Zoned, &ScheduleRuns)> = Vec::new();
        for one in runs {
            found.extend(one.at.iter().map(|at| (at.to_zoned(here.clone()), one)));
        }
        found.sort_by_key(|(at, _)| at.timestamp());
        let mut weeks: Vec<Vec<CalendarDay>> = Vec::new();
        for first in (0..DAYS).step_by(7) {
            let week = (first..first + 7).map(|place| today.saturating_add(place.days()));
            let day = |date| CalendarDay {
                freezes: freezes_on(date, freezes, &here),
                ..day(date, today, &found)
            };
            weeks.push(week.map(day).collect());
        }
        let until = until.filter(|until| *until < Calendar::end(now, &zone));
        let until =
            until.map(|until| until.to_zoned(here).strftime("%A, %-d %B, %H:%M").to_string());
        Calendar { zone, weeks, until }
    }

    pub fn is_empty(&self) -> bool {
        self.weeks.iter().flatten().all(|day| day.entries.is_empty() && day.freezes.is_empty())
    }
}

fn day(date: Date, today: Date, found: &[(Zoned, &ScheduleRuns)]) -> CalendarDay {
    let mut entries: Vec<CalendarEntry> = Vec::new();
    for (at, of) in found.iter().filter(|(at, _)| at.date() == date) {
        if let Some(known) = entries.iter_mut().find(|entry| entry.id == of.id) {
            known.times += 1;
            continue;
        }
        let there = at.with_time_zone(time_zone(&of.zone));
        let differs = there.datetime() != at.datetime();
        let form = if there.date() == at.date() { "%H:%M" } else { "%a %H:%M" };
        entries.push(CalendarEntry {
            id: of.id,
            name: of.name.clone(),
            first: at.strftime("%H:%M").to_string(),
            schedule_time: differs.then(|| format!("{} {}", there.strftime(form), of.zone)),
            times: 1,
        });
    }
    CalendarDay { date, today: date == today, entries, freezes: Vec::new() }
}

/// The freezes that are active on a day, each once.
fn freezes_on(date: Date, freezes: &[FreezePeriods], here: &TimeZone) -> Vec<CalendarFreeze> {
    let midnight = |date: Date| date.to_zoned(here.clone()).map(|start| start.timestamp()).ok();
    let Some((start, end)) = midnight(date).zip(midnight(date.saturating_add(1.days()))) else {
        return Vec::new();
    };
    let time = |at: Timestamp| at.to_zoned(here.clone()).strftime("%H:%M").to_string();
    let on_day = |period: &&Period| period.starts_at < end && start < period.ends_at;
    let mut found = Vec::new();
    for freeze in freezes {
        let mut periods = freeze.periods.iter().filter(on_day);
        let Some(first) = periods.next() else { continue };
        let time = match (first.starts_at <= start, end <= first.ends_at) {
            (true, true) => "all day".to_owned(),
            (true, false) => format!("until {}", time(first.ends_at)),
            (false, true) => format!("from {}", time(first.starts_at)),
            (false, false) => format!("{}–{}", time(first.starts_at), time(first.ends_at)),
        };
        let more = match periods.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        found.push(CalendarFreeze { name: freeze.name.clone(), time: format!("{time}{more}") });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(zone: &str, at: &[&str]) -> ScheduleRuns {
        let id = ScheduleId::new(Timestamp::UNIX_EPOCH, 1);
        let at = at.iter().map(|at| at.parse().unwrap()).collect();
        ScheduleRuns { id, name: "Nightly".into(), zone: zone.parse().unwrap(), at }
    }

    #[test]
    fn run_is_on_the_browsers_day_with_the_schedules_time() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let nightly = runs(
            "Europe/Berlin",
            &["2026-11-16T02:00:00Z", "2026-11-16T23:30:00Z", "2026-11-17T02:00:00Z"],
        );
        let shown =
            Calendar::lay_out(&[nightly], &[], "America/New_York".parse().unwrap(), now, None);
        // In New York it is still Saturday, and the run of early Monday falls on Sunday.
        let entries: Vec<String> = shown
            .weeks
            .iter()
            .flatten()
            .flat_map(|day| {
                let label = |entry: &CalendarEntry| {
                    format!(
                        "{} {} {} ×{}",
                        day.date,
                        entry.first,
                        entry.schedule_time.clone().unwrap_or_default(),
                        entry.times
                    )
                };
                day.entries.iter().map(label).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(
            entries,
            [
                "2026-11-15 21:00 Mon 03:00 Europe/Berlin ×1",
                "2026-11-16 18:30 Tue 00:30 Europe/Berlin ×2"
            ]
        );
        let days: Vec<&CalendarDay> = shown.weeks.iter().flatten().collect();
        assert!(days.len() == 14 && days[0].today && !days[1].today);
        assert_eq!(days[0].spoken(), "Saturday, 14 November");
    }

    #[test]
    fn freeze_is_on_every_day_that_it_covers() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let period = Period {
            starts_at: "2026-11-15T17:00:00Z".parse().unwrap(),
            ends_at: "2026-11-17T05:00:00Z".parse().unwrap(),
        };
        let freezes = [FreezePeriods { name: "Sale".into(), periods: vec![period] }];
        let berlin = "Europe/Berlin".parse().unwrap();
        let shown = Calendar::lay_out(&[], &freezes, berlin, now, None);
        let days: Vec<_> = shown.weeks.iter().flatten().map(|day| &day.freezes).collect();
        let times = |day: usize| days[day].iter().map(|it| it.time.as_str()).collect::<Vec<_>>();
        assert_eq!(
            (times(0), times(1), times(2)),
            (vec!["from 18:00"], vec!["all day"], vec!["until 06:00"])
        );
        assert!(days[3].is_empty() && !shown.is_empty());
    }

    #[test]
    fn truncated_calendar_shows_where_it_ends() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let utc = || "UTC".parse::<Zone>().unwrap();
        let cut =
            Calendar::lay_out(&[], &[], utc(), now, Some("2026-11-16T04:00:00Z".parse().unwrap()));
        assert_eq!(cut.until.as_deref(), Some("Monday, 16 November, 04:00"));
        assert!(cut.is_empty());
        let beyond =
            Calendar::lay_out(&[], &[], utc(), now, Some("2026-12-16T04:00:00Z".parse().unwrap()));
        assert_eq!(beyond.until, None);
    }
}
