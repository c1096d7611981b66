//! Shows how far a copy is, on a terminal.

use std::io::IsTerminal as _;

use service::clock::Stopwatch;
use store::transfer::{Phase, Progress};

use crate::operator::table::{format_duration, group_thousands};
use crate::output;

/// How often the line is written again.
const SECONDS_BETWEEN: f64 = 0.1;

pub(super) struct ProgressLine {
    /// The rows of each table, and of all tables.
    tables: Vec<(&'static str, u64)>,
    total: u64,
    /// The rows that were copied and verified so far.
    done: u64,
    clock: Stopwatch,
    /// When the line was last written; `None` if it is not shown.
    shown_at: Option<f64>,
}

impl ProgressLine {
    pub(super) fn new(tables: Vec<(&'static str, u64)>) -> Self {
        let total = tables.iter().map(|(_, rows)| rows).sum();
        let shown_at = std::io::stderr().is_terminal().then_some(f64::NEG_INFINITY);
        Self { tables, total, done: 0, clock: Stopwatch::start(), shown_at }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.clock.seconds()
    }

    pub(super) fn show(&mut self, step: Progress) {
        self.done += step.new_rows;
        let now = self.clock.seconds();
        if self.shown_at.is_none_or(|shown| now - shown < SECONDS_BETWEEN) {
            return;
        }
        self.shown_at = Some(now);
        // A copy does not fail because its progress cannot be shown.
        let _ = output::err(&(output::clear_line() + &self.line(step, now)));
    }

    /// Every row is read twice: to copy it, and to verify it.
    fn line(&self, step: Progress, seconds: f64) -> String {
        let word = match step.phase {
            Phase::Copy => "copying",
            Phase::Verify => "verifying",
        };
        let find = |(table, _): &&(&str, u64)| *table == step.table;
        let rows = self.tables.iter().find(find).map_or(0, |(_, rows)| *rows);
        let whole = 2 * self.total;
        let percent = (self.done * 100).checked_div(whole).unwrap_or(100).min(100);
        let rate = self.done as f64 / seconds.max(0.001);
        let left = whole.saturating_sub(self.done) as f64 / rate.max(1.0);
        format!(
            "{word} {}: {} of {} rows; {percent}%, {} rows/s, about {} left",
            step.table,
            group_thousands(step.rows),
            group_thousands(rows),
            group_thousands(rate as u64),
            format_duration(left.ceil() as u64),
        )
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown_at.is_some() {
            let _ = output::err(&output::clear_line());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_table_rate_and_time_left() {
        let mut progress = ProgressLine::new(vec![("servers", 10_000), ("events", 90_000)]);
        progress.done = 50_000;
        let step = Progress { phase: Phase::Copy, table: "events", rows: 40_000, new_rows: 1_000 };
        assert_eq!(
            progress.line(step, 10.0),
            "copying events: 40,000 of 90,000 rows; 25%, 5,000 rows/s, about 30 s left"
        );
        let empty = ProgressLine::new(vec![("servers", 0)]);
        let step = Progress { phase: Phase::Verify, table: "servers", rows: 0, new_rows: 0 };
        assert_eq!(
            empty.line(step, 0.0),
            "verifying servers: 0 of 0 rows; 100%, 0 rows/s, about 0 s left"
        );
    }
}
