//! Compares the forecast of today's plan with that of a changed plan.

use std::collections::BTreeSet;

use jiff::civil::Date;

use super::{Day, Forecast};

/// The effect of a change. Servers are indexes into the fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// Servers that a schedule covers only with the change.
    pub covered: Vec<usize>,
    /// Servers that a schedule covers only without the change.
    pub uncovered: Vec<usize>,
    /// Servers that are patched only with the change.
    pub patched: Vec<usize>,
    /// Servers that are patched only without the change.
    pub not_patched: Vec<usize>,
    /// Servers that are patched earlier.
    pub earlier: Vec<usize>,
    /// Servers that are patched later.
    pub later: Vec<usize>,
    /// The days that differ.
    pub days: Vec<DayDifference>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayDifference {
    pub date: Date,
    pub before: Day,
    pub after: Day,
}

/// Compares two forecasts of the same servers.
pub fn compare(before: &Forecast, after: &Forecast) -> Differences {
    let mut differences = Differences::default();
    for (server, (old, new)) in before.servers.iter().zip(&after.servers).enumerate() {
        match (old.gap.is_some(), new.gap.is_some()) {
            (true, false) => differences.covered.push(server),
            (false, true) => differences.uncovered.push(server),
            (true, true) | (false, false) => {}
        }
        match (old.patch.patched_at(), new.patch.patched_at()) {
            (None, Some(_)) => differences.patched.push(server),
            (Some(_), None) => differences.not_patched.push(server),
            (Some(old), Some(new)) if new < old => differences.earlier.push(server),
            (Some(old), Some(new)) if old < new => differences.later.push(server),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
    let dates: BTreeSet<Date> = before.days.keys().chain(after.days.keys()).copied().collect();
    let day = |forecast: &Forecast, date| forecast.days.get(&date).copied().unwrap_or_default();
    differences.days = dates
        .into_iter()
        .map(|date| DayDifference { date, before: day(before, date), after: day(after, date) })
        .filter(|day| day.before != day.after)
        .collect();
    differences
}
