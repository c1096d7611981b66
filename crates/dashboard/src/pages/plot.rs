//! Charts as SVG with an equivalent text. They use no scripts or inline styles, which the Content
//! Security Policy forbids.

use std::fmt::Write as _;

use jiff::Timestamp;
use wire::v1::{Progress, SeverityCounts, Task};

use crate::pages::batch::progress_parts;
use crate::pages::{api_name, escape, number};

const WIDTH: f64 = 720.0;
/// Maximum number of bars in a timeline. More would be unreadable.
const BARS_MAX: usize = 60;

/// One bar of the number of CVEs by severity.
pub fn severities(counts: &SeverityCounts) -> String {
    let parts = [
        ("critical", counts.critical),
        ("high", counts.high),
        ("medium", counts.medium),
        ("low", counts.low),
        ("unknown", counts.unknown),
    ];
    let total: f64 = parts.iter().map(|(_, count)| f64::from(*count)).sum();
    let label: Vec<String> = parts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{} {name}", number(*count)))
        .collect();
    if total == 0.0 {
        return String::new();
    }
    let label = label.join(", ");
    let mut svg = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} 14\" role=\"img\" aria-label=\"{label}\"><title>{label}</title>"
    );
    let mut at = 0.0;
    for (name, count) in parts.iter().filter(|(_, count)| *count > 0) {
        let width = (f64::from(*count) / total * WIDTH).max(3.0);
        let _ = write!(
            svg,
            "<rect class=\"bar is-{name}\" x=\"{at:.1}\" y=\"0\" width=\"{:.1}\" height=\"14\" rx=\"2\"/>",
            (width - 1.5).max(1.5)
        );
        at += width;
    }
    svg.push_str("</svg>");
    format!("{svg}<p class=\"dim\">{label}</p>")
}

/// The progress of a batch: one bar, a part for each outcome.
pub fn progress(progress: &Progress) -> String {
    let parts = progress_parts(progress);
    let total: f64 = parts.iter().map(|(.., count)| f64::from(*count)).sum();
    let label: Vec<String> =
        parts.iter().map(|(_, name, count)| format!("{} {name}", number(*count))).collect();
    let label = label.join(", ");
    let mut svg = format!(
        "<svg class=\"plot progress\" viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}\"><title>{label}</title>"
    );
    let mut at = 0.0;
    for (class, _, count) in &parts {
        let width = f64::from(*count) / total * WIDTH;
        let _ = write!(
            svg,
            "<rect class=\"bar is-{class}\" x=\"{at:.1}\" y=\"0\" width=\"{width:.1}\" height=\"10\"/>"
        );
        at += width;
    }
    svg.push_str("</svg>");
    svg
}

/// The timeline of a batch: one bar per server, from its start to its end.
pub fn timeline(tasks: &[Task], now: &Timestamp) -> String {
    let spans: Vec<(&Task, Timestamp, Timestamp)> = tasks
        .iter()
        .filter_map(|task| Some((task, task.started_at?, task.finished_at.unwrap_or(*now))))
        .take(BARS_MAX)
        .collect();
    let (Some(first), Some(last)) =
        (spans.iter().map(|span| span.1).min(), spans.iter().map(|span| span.2).max())
    else {
        return "<p class=\"dim\">No server has started yet.</p>".into();
    };
    let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64().max(0.0);
    let whole = seconds(first, last).max(1.0);
    let label =
        format!("{} servers in {whole:.0} s, one bar per server from start to end", spans.len());
    let mut lanes = format!("<div class=\"lanes\" role=\"img\" aria-label=\"{label}\">");
    for (task, from, to) in &spans {
        let scale = WIDTH / whole;
        let (x, width) = (seconds(first, *from) * scale, (seconds(*from, *to) * scale).max(3.0));
        let state = api_name(&task.state);
        let class = match state.as_str() {
            "succeeded" | "no_change" | "failed" | "timed_out" | "canceled" | "skipped" => &state,
            _ => "running",
        };
        let (name, took) = (escape(task.name()), seconds(*from, *to));
        let _ = write!(
            lanes,
            "<span title=\"{name}\">{name}</span><svg class=\"lane\" viewBox=\"0 0 {WIDTH} 11\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"bar is-{class}\" x=\"{:.1}\" y=\"0\" width=\"{width:.1}\" height=\"11\"><title>{name}: {}, {took:.0} s</title></rect></svg>",
            x.min(WIDTH - width),
            escape(&state.replace('_', " ")),
        );
    }
    format!("{lanes}<div class=\"axis dim\"><span>0 s</span><span>{whole:.0} s</span></div></div>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_each_outcome() {
        let progress = Progress {
            total: 5,
            succeeded: 2,
            failed: 1,
            timed_out: 1,
            waiting: 1,
            ..Progress::default()
        };
        let svg = super::progress(&progress);
        assert!(svg.contains("aria-label=\"2 succeeded, 2 failed, 1 waiting\""), "{svg}");
        assert_eq!(super::progress(&Progress::default()).matches("<rect").count(), 0);
    }

    #[test]
    fn chart_text_contains_its_numbers() {
        let counts = SeverityCounts { critical: 3, high: 1_200, medium: 0, low: 1, unknown: 0 };
        let svg = severities(&counts);
        assert!(svg.contains("aria-label=\"3 critical, 1,200 high, 1 low\""), "{svg}");
        assert!(!svg.contains("is-medium") && !svg.contains("style="), "{svg}");
        assert_eq!(severities(&SeverityCounts::default()), "");
    }
}
