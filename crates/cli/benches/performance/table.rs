//! The results table: one line per measurement, with its growth and its target.

use crate::installation::Engine;

/// The target of a measurement.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// At most this, at the largest size.
    Most(f64),
    /// At least this, at the largest size.
    Least(f64),
    /// At most this, with at most this growth exponent.
    Flat(f64, f64),
    /// No target; shown for comparison.
    None,
}

/// One line: a measurement at one or more fleet sizes.
pub(crate) struct Line<'a> {
    pub(crate) row: u32,
    pub(crate) what: &'a str,
    pub(crate) engine: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) figures: &'a [(u64, f64)],
    pub(crate) target: Target,
}

/// Prints a measurement immediately: a run takes minutes and may be stopped before its table.
pub(crate) fn print_figure(what: &str, engine: Engine, size: u64, figure: f64, unit: &str) {
    let engine = engine.name();
    println!("     {size:>7} servers, {engine:<8}  {what:<58} {:>9} {unit}", digits(figure));
}

/// Collects the lines and the missed targets. Printed when everything is measured.
#[derive(Default)]
pub(crate) struct Table {
    lines: Vec<String>,
    missed: Vec<String>,
}

impl Table {
    fn head() -> String {
        format!(
            "\n{:>3}  {:<50} {:<8} {:>11} {:>11} {:>11} {:>7}  {:<22} load",
            "row", "measurement", "engine", "1,000", "10,000", "100,000", "growth", "target"
        )
    }

    pub(crate) fn add_line(&mut self, line: &Line<'_>) {
        let Line { row, what, engine, unit, figures, target } = line;
        let at = |size: u64| {
            let known = figures.iter().find(|(known, _)| *known == size);
            known.map_or_else(String::new, |(_, figure)| format!("{} {unit}", digits(*figure)))
        };
        let growth = growth(figures);
        let last = figures.last().map_or(f64::NAN, |(_, figure)| *figure);
        let (met, wanted) = match target {
            Target::Most(most) => (Some(last <= *most), format!("≤ {} {unit}", digits(*most))),
            Target::Least(least) => (Some(last >= *least), format!("≥ {} {unit}", digits(*least))),
            Target::Flat(most, exponent) => {
                let flat = growth.is_none_or(|growth| growth <= *exponent);
                (Some(last <= *most && flat), format!("≤ {} {unit}, ^{exponent}", digits(*most)))
            }
            Target::None => (None, String::new()),
        };
        let word = met.map_or("", |met| if met { "met" } else { "MISSED" });
        let growth = growth.map_or_else(String::new, |growth| format!("^{growth:.2}"));
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or_default();
        self.lines.push(format!(
            "{row:>3}  {what:<50} {engine:<8} {:>11} {:>11} {:>11} {growth:>7}  {:<22} {load}",
            at(1_000),
            at(10_000),
            at(100_000),
            format!("{wanted} {word}"),
        ));
        if met == Some(false) {
            self.missed.push(format!("row {row}, {engine}: {what}"));
        }
    }

    /// Prints the table. A missed target is not a failure: the machine may have been busy.
    pub(crate) fn print(&self) {
        println!("{}\n{}", Table::head(), self.lines.join("\n"));
        match self.missed.as_slice() {
            [] => println!("\nall targets met"),
            missed => println!("\nmissed targets:\n  {}", missed.join("\n  ")),
        }
    }
}

/// The exponent `e` in `figure = size ^ e`, from the smallest size to the largest.
fn growth(figures: &[(u64, f64)]) -> Option<f64> {
    let ((small, first), (large, last)) = (figures.first()?, figures.last()?);
    (small < large).then(|| (last / first).ln() / (*large as f64 / *small as f64).ln())
}

fn digits(figure: f64) -> String {
    match figure {
        figure if figure.abs() >= 100.0 => format!("{figure:.0}"),
        figure if figure.abs() >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}

/// The 99th percentile.
pub(crate) fn p99(mut figures: Vec<f64>) -> f64 {
    assert!(!figures.is_empty(), "nothing was measured");
    figures.sort_unstable_by(f64::total_cmp);
    figures[(figures.len() * 99 / 100).min(figures.len() - 1)]
}
