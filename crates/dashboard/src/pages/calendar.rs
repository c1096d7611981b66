//! When schedules run next, as a calendar: weeks of days, each with the runs that begin on it by the reader's clocks.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};
use vocab::{ScheduleId, Zone};

/// How many days are looked ahead, today included.
pub const DAYS: i32 = 14;
/// A schedule and when it runs next.
#[derive(Debug)]
pub struct Runs {
    pub id: ScheduleId,
    pub name: String,
    pub zone: Zone,
    pub at: Vec<Timestamp>,
}

/// The weeks that the next days lie in.
#[derive(Debug)]
pub struct Calendar {
    /// By whose clocks.
    pub zone: Zone,
    /// Each begins with the weekday that it is today.
    pub weeks: Vec<Vec<Day>>,
    /// Until when it is complete, if that is not its end: some schedules run too often to count it all.
    pub until: Option<String>,
}

/// A day.
#[derive(Debug)]
pub struct Day {
    /// Which one.
    pub date: Date,
    /// Whether it is the one that it is.
    pub today: bool,
    /// What begins on it, in the order of the clock.
    pub entries: Vec<Entry>,
}

/// What a schedule does on a day.
#[derive(Debug)]
pub struct Entry {
    pub id: ScheduleId,
    pub name: String,
    /// The first time, by the reader's clocks.
    pub first: String,
    /// The same by the schedule's, if that differs.
    pub there: Option<String>,
    /// How many times.
    pub times: usize,
}

fn rules(zone: &Zone) -> TimeZone {
    TimeZone::get(&zone.to_string()).unwrap_or(TimeZone::UTC)
}

impl Day {
    /// The name of its weekday.
    pub fn weekday(&self) -> String {
        self.date.strftime("%A").to_string()
    }

    /// As it is written on the calendar.
    pub fn said(&self) -> String {
        self.date.strftime("%-d %b").to_string()
    }

    /// As it is read aloud.
    pub fn spoken(&self) -> String {
        self.date.strftime("%A, %-d %B").to_string()
    }
}

impl Calendar {
    /// Where the days that are looked ahead end.
    pub fn end(now: Timestamp, zone: &Zone) -> Timestamp {
        let today = now.to_zoned(rules(zone)).date();
        let end = today.saturating_add(DAYS.days()).to_zoned(rules(zone));
        end.map_or(now, |end| end.timestamp())
    }

    /// Lays runs out. `until` is when the first of them ends that has more than were counted.
    pub fn of(runs: &[Runs], zone: Zone, now: Timestamp, until: Option<Timestamp>) -> Calendar {
        let here = rules(&zone);
        let today = now.to_zoned(here.clone()).date();
        let mut found: Vec<(Zoned, &Runs)> = Vec::new();
        for one in runs {
            found.extend(one.at.iter().map(|at| (at.to_zoned(here.clone()), one)));
        }
        found.sort_by_key(|(at, _)| at.timestamp());
        let mut weeks: Vec<Vec<Day>> = Vec::new();
        for first in (0..DAYS).step_by(7) {
            let week = (first..first + 7).map(|place| today.saturating_add(place.days()));
            weeks.push(week.map(|date| day(date, today, &found)).collect());
        }
        let until = until.filter(|until| *until < Calendar::end(now, &zone));
        let until =
            until.map(|until| until.to_zoned(here).strftime("%A, %-d %B, %H:%M").to_string());
        Calendar { zone, weeks, until }
    }

    /// Whether nothing runs.
    pub fn is_empty(&self) -> bool {
        self.weeks.iter().flatten().all(|day| day.entries.is_empty())
    }
}

fn day(date: Date, today: Date, found: &[(Zoned, &Runs)]) -> Day {
    let mut entries: Vec<Entry> = Vec::new();
    for (at, of) in found.iter().filter(|(at, _)| at.date() == date) {
        if let Some(known) = entries.iter_mut().find(|entry| entry.id == of.id) {
            known.times += 1;
            continue;
        }
        let there = at.with_time_zone(rules(&of.zone));
        let differs = there.datetime() != at.datetime();
        let form = if there.date() == at.date() { "%H:%M" } else { "%a %H:%M" };
        entries.push(Entry {
            id: of.id,
            name: of.name.clone(),
            first: at.strftime("%H:%M").to_string(),
            there: differs.then(|| format!("{} {}", there.strftime(form), of.zone)),
            times: 1,
        });
    }
    Day { date, today: date == today, entries }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(zone: &str, at: &[&str]) -> Runs {
        let id = ScheduleId::new(Timestamp::UNIX_EPOCH, 1);
        let at = at.iter().map(|at| at.parse().unwrap()).collect();
        Runs { id, name: "Nightly".into(), zone: zone.parse().unwrap(), at }
    }

    #[test]
    fn a_run_lies_on_the_readers_day_and_says_the_schedules_time() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let nightly = runs(
            "Europe/Berlin",
            &["2026-11-16T02:00:00Z", "2026-11-16T23:30:00Z", "2026-11-17T02:00:00Z"],
        );
        let shown = Calendar::of(&[nightly], "America/New_York".parse().unwrap(), now, None);
        // In New York it is Saturday still, and the run of early Monday lies on Sunday.
        let entries: Vec<String> = shown
            .weeks
            .iter()
            .flatten()
            .flat_map(|day| {
                let said = |entry: &Entry| {
                    format!(
                        "{} {} {} ×{}",
                        day.date,
                        entry.first,
                        entry.there.clone().unwrap_or_default(),
                        entry.times
                    )
                };
                day.entries.iter().map(said).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(
            entries,
            [
                "2026-11-15 21:00 Mon 03:00 Europe/Berlin ×1",
                "2026-11-16 18:30 Tue 00:30 Europe/Berlin ×2"
            ]
        );
        let days: Vec<&Day> = shown.weeks.iter().flatten().collect();
        assert!(days.len() == 14 && days[0].today && !days[1].today);
        assert_eq!(days[0].spoken(), "Saturday, 14 November");
    }

    #[test]
    fn a_calendar_that_is_cut_short_says_where() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let utc = || "UTC".parse::<Zone>().unwrap();
        let cut = Calendar::of(&[], utc(), now, Some("2026-11-16T04:00:00Z".parse().unwrap()));
        assert_eq!(cut.until.as_deref(), Some("Monday, 16 November, 04:00"));
        assert!(cut.is_empty());
        let beyond = Calendar::of(&[], utc(), now, Some("2026-12-16T04:00:00Z".parse().unwrap()));
        assert_eq!(beyond.until, None);
    }
}
