//! Charts of the last 30 days: one bar per day, and a gap where no statistics were recorded.

use std::fmt::Write as _;

use jiff::ToSpan as _;
use jiff::civil::Date;

use crate::pages::number;

/// The number of days shown.
pub const DAYS: i64 = 30;
/// The severities, worst first.
pub const SEVERITIES: [&str; 5] = ["critical", "high", "medium", "low", "unknown"];

/// The viewBox of a chart. The page stretches it to the available space.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 100.0;
/// The gap between two bars.
const GAP: f64 = 3.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrendDay {
    pub day: Date,
    pub servers: u64,
    pub up_to_date: u64,
    pub cves: [u64; 5],
    /// Open CVEs that are known to be exploited.
    pub exploited: u64,
}

impl TrendDay {
    /// The number of open CVEs of all severities.
    pub fn open(&self) -> u64 {
        self.cves.iter().sum()
    }
}

/// The last [`DAYS`] days, oldest first.
#[derive(Debug)]
pub struct Trend {
    /// The days with recorded statistics.
    pub days: Vec<TrendDay>,
    /// The last day of the chart, recorded or not.
    pub today: Date,
}

/// A date for display.
pub fn format_date(day: &Date) -> String {
    day.strftime("%-d %b").to_string()
}

impl Trend {
    /// The first day of the chart.
    pub fn first_day(today: Date) -> Date {
        today.saturating_sub((DAYS - 1).days())
    }

    /// The first recorded day, if it is after the first day of the chart.
    pub fn since(&self) -> Option<String> {
        let first = self.days.first().filter(|first| first.day > Trend::first_day(self.today))?;
        Some(first.day.strftime("%-d %B %Y").to_string())
    }

    pub fn open_cves(&self) -> String {
        let parts = |day: &TrendDay| {
            let named = SEVERITIES.iter().copied().zip(day.cves);
            named.collect::<Vec<(&'static str, u64)>>()
        };
        let label = |day: &TrendDay| describe_counts(&parts(day), "open");
        self.bar_chart("Open CVEs", None, parts, label)
    }

    pub fn exploited(&self) -> String {
        let parts = |day: &TrendDay| vec![("kev", day.exploited)];
        let label = |day: &TrendDay| format!("{} known exploited", number(day.exploited));
        self.bar_chart("Known exploited", None, parts, label)
    }

    /// The percentage of servers that were up to date.
    pub fn up_to_date(&self) -> String {
        let parts = |day: &TrendDay| {
            let all = day.servers.max(1);
            vec![("yes", day.up_to_date.min(all).saturating_mul(100) / all)]
        };
        let label = |day: &TrendDay| {
            let share = crate::pages::share(day.up_to_date, day.servers);
            format!("{share} up to date, {} of {}", number(day.up_to_date), number(day.servers))
        };
        self.bar_chart("Servers up to date", Some((100, " %")), parts, label)
    }

    /// `most` is the value at full height and its unit. By default the highest bar has full height.
    fn bar_chart(
        &self,
        name: &str,
        max: Option<(u64, &str)>,
        parts: impl Fn(&TrendDay) -> Vec<(&'static str, u64)>,
        describe: impl Fn(&TrendDay) -> String,
    ) -> String {
        let whole = |day: &TrendDay| parts(day).iter().map(|(_, count)| count).sum::<u64>();
        let highest = self.days.iter().map(whole).max().unwrap_or(0);
        let (most, unit) = max.unwrap_or((highest, ""));
        let words = match (self.days.first(), self.days.last()) {
            (Some(first), Some(last)) if first.day < last.day => {
                let (from, to) = (format_date(&first.day), format_date(&last.day));
                format!("{name} by day. {from}: {}. {to}: {}.", describe(first), describe(last))
            }
            (Some(only), _) => format!("{name}. {}: {}.", format_date(&only.day), describe(only)),
            _ => format!("{name}: no data yet."),
        };
        let mut svg = format!(
            "<svg class=\"plot bars\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{words}\">"
        );
        let first = Trend::first_day(self.today);
        let step = WIDTH / DAYS as f64;
        for day in &self.days {
            let place = day.day.since(first).map_or(0, |span| span.get_days());
            let x = f64::from(place) * step + GAP / 2.0;
            let _ = write!(svg, "<g><title>{}: {}</title>", format_date(&day.day), describe(day));
            let _ = write!(
                svg,
                "<rect class=\"ground\" x=\"{x:.1}\" y=\"0\" width=\"{:.1}\" height=\"{HEIGHT}\"/>",
                step - GAP
            );
            draw_bar(&mut svg, &parts(day), most, (x, step - GAP));
            svg.push_str("</g>");
        }
        svg.push_str("</svg>");
        let now = self.days.last().map_or_else(|| "–".into(), |day| number(whole(day)) + unit);
        format!(
            "<figure class=\"chart\"><figcaption>{name} <strong>{now}</strong></figcaption>{svg}<div class=\"axis dim\"><span>{}</span><span>at most {}{unit}</span><span>{}</span></div></figure>",
            format_date(&first),
            number(most),
            format_date(&self.today)
        )
    }
}

/// One bar: its parts stacked, the worst severity at the bottom.
fn draw_bar(svg: &mut String, parts: &[(&'static str, u64)], max: u64, (x, width): (f64, f64)) {
    let mut floor = HEIGHT;
    for (class, count) in parts.iter().filter(|(_, count)| *count > 0) {
        let height = *count as f64 / max.max(1) as f64 * HEIGHT;
        floor -= height;
        let _ = write!(
            svg,
            "<rect class=\"bar is-{class}\" x=\"{x:.1}\" y=\"{floor:.2}\" width=\"{width:.1}\" height=\"{height:.2}\"/>"
        );
    }
}

/// The counts greater than zero, as text.
fn describe_counts(parts: &[(&'static str, u64)], what: &str) -> String {
    let total: u64 = parts.iter().map(|(_, count)| count).sum();
    let some = parts.iter().filter(|(_, count)| *count > 0);
    let some: Vec<String> =
        some.map(|(name, count)| format!("{} {name}", number(*count))).collect();
    match some.is_empty() {
        true => format!("none {what}"),
        false => format!("{} {what}, {}", number(total), some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str, critical: u64, exploited: u64, up_to_date: u64) -> TrendDay {
        let cves = [critical, 3, 0, 0, 0];
        TrendDay { day: text.parse().unwrap(), servers: 200, up_to_date, cves, exploited }
    }

    #[test]
    fn trend_has_one_bar_per_recorded_day() {
        let trend = Trend {
            days: vec![day("2026-11-10", 7, 1, 100), day("2026-11-15", 1, 0, 199)],
            today: "2026-11-15".parse().unwrap(),
        };
        let svg = trend.open_cves();
        assert_eq!(svg.matches("<g>").count(), 2);
        assert!(svg.contains("10 Nov: 10 open, 7 critical, 3 high. 15 Nov: 4 open"), "{svg}");
        // The highest bar has full height, and the day before yesterday has no bar.
        assert!(svg.contains("y=\"0.00\"") && !svg.contains("13 Nov"), "{svg}");
        assert!(!svg.contains("style="), "{svg}");
        assert!(trend.up_to_date().contains("99 % up to date, 199 of 200"));
        assert!(trend.exploited().contains("1 known exploited"));
        assert_eq!(trend.since().unwrap(), "10 November 2026");
    }

    #[test]
    fn empty_trend_says_so_and_full_trend_shows_no_start() {
        let today: Date = "2026-11-15".parse().unwrap();
        let none = Trend { days: Vec::new(), today };
        assert!(none.open_cves().contains("no data yet"));
        let whole = Trend { days: vec![day("2026-10-17", 0, 0, 0)], today };
        assert_eq!((whole.since(), Trend::first_day(today)), (None, whole.days[0].day));
    }
}
