//! Charts as SVG with an equivalent text. They use no scripts or inline styles, which the Content
//! Security Policy forbids.

use std::fmt::Write as _;

use jiff::Timestamp;
use service::queries::Page;
use service::queries::tasks::TaskSpan;
use vocab::BatchId;
use wire::v1::{Progress, SeverityCounts, Task, TaskState};

use crate::pages::batch::progress_parts;
use crate::pages::{api_name, escape, number, plural};

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
        let class = OUTCOMES[outcome(task.state)].0;
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

/// The colors of a timeline: class and label.
const OUTCOMES: [(&str, &str); 4] = [
    ("succeeded", "succeeded"),
    ("failed", "failed"),
    ("low", "skipped or canceled"),
    ("running", "in progress"),
];

/// The index in [`OUTCOMES`].
fn outcome(state: TaskState) -> usize {
    use TaskState as S;
    match state {
        S::Succeeded | S::NoChange => 0,
        S::Failed | S::TimedOut => 1,
        S::Skipped | S::Canceled => 2,
        S::Pending
        | S::Waiting
        | S::Dispatched
        | S::Preflight
        | S::Downloading
        | S::Installing
        | S::RestartingServices
        | S::Rebooting
        | S::Verifying => 3,
    }
}

/// Whether a timeline of this part of a batch has a bar for each server.
pub fn fits_lanes(servers: u32, part: Page) -> bool {
    u64::from(servers).saturating_sub(part.offset).min(part.limit.into()) <= BARS_MAX as u64
}

/// The sizes of groups: round numbers, up to the number of servers that a page lists.
const GROUP_SIZES: [usize; 7] = [5, 10, 20, 50, 100, 200, 500];

/// The timeline of a large batch: one bar per group of servers, in the order of their start. Each
/// group links to its own timeline. `first` is the position of the first of these servers, and
/// `total` the number of servers of the batch.
pub fn grouped_timeline(
    spans: &[TaskSpan],
    (first, total): (u64, u32),
    batch: BatchId,
    now: &Timestamp,
) -> String {
    let started = spans.iter().filter_map(|span| Some((span.started_at?, span.finished_at)));
    let ran: Vec<(Timestamp, Timestamp)> =
        started.map(|(from, to)| (from, to.unwrap_or(*now))).collect();
    let (Some(begin), Some(end)) =
        (ran.iter().map(|span| span.0).min(), ran.iter().map(|span| span.1).max())
    else {
        return "<p class=\"dim\">No server has started yet.</p>".into();
    };
    let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64().max(0.0);
    let whole = seconds(begin, end).max(1.0);
    let fits = |size: &&usize| spans.len().div_ceil(**size) <= BARS_MAX;
    let size = GROUP_SIZES.iter().find(fits).copied().unwrap_or(500);
    let mut lanes = "<div class=\"lanes\" role=\"group\" aria-label=\"Servers in the order of their start; each bar is a group from its first start to its last end\">".to_owned();
    for (nth, group) in (0_u64..).zip(spans.chunks(size)) {
        let offset = first + nth * size as u64;
        let range = format!("{}–{}", number(offset + 1), number(offset + group.len() as u64));
        let bar = GroupBar::new(group, now);
        let label = match &bar {
            Some(bar) => bar.label(),
            None => "not started".to_owned(),
        };
        let _ = write!(
            lanes,
            "<a href=\"/batches/{batch}?offset={offset}&amp;limit={size}\" aria-label=\"Servers {range}: {label}\">{range}</a><svg class=\"lane\" viewBox=\"0 0 {WIDTH} 11\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><title>{range}: {label}</title>"
        );
        if let Some(bar) = bar {
            let width = (seconds(bar.from, bar.to) / whole * WIDTH).max(6.0);
            let mut at = (seconds(begin, bar.from) / whole * WIDTH).min(WIDTH - width);
            let total: f64 = bar.counts.iter().map(|count| f64::from(*count)).sum();
            for ((class, _), count) in OUTCOMES.iter().zip(bar.counts).filter(|(_, n)| *n > 0) {
                let part = f64::from(count) / total * width;
                let _ = write!(
                    lanes,
                    "<rect class=\"bar is-{class}\" x=\"{at:.1}\" y=\"0\" width=\"{part:.1}\" height=\"11\"/>"
                );
                at += part;
            }
        }
        lanes.push_str("</svg>");
    }
    let servers = match (first, spans.len() < total as usize) {
        (0, true) => format!("first {} of {} servers", number(spans.len()), number(total)),
        _ => format!("{} {}", number(spans.len()), plural(spans.len(), "server", "servers")),
    };
    format!(
        "{lanes}<div class=\"axis dim\"><span>0 s</span><span>{servers}, {whole:.0} s</span></div></div>"
    )
}

/// A group of servers in a timeline.
struct GroupBar {
    /// The first start and the last end.
    from: Timestamp,
    to: Timestamp,
    /// The number of servers that started, by [`OUTCOMES`].
    counts: [u32; 4],
    waiting: u32,
}

impl GroupBar {
    /// `None` if no server of the group has started.
    fn new(group: &[TaskSpan], now: &Timestamp) -> Option<GroupBar> {
        let mut bar: Option<GroupBar> = None;
        let mut waiting = 0;
        for span in group {
            let Some(from) = span.started_at else {
                waiting += 1;
                continue;
            };
            let to = span.finished_at.unwrap_or(*now);
            let bar = bar.get_or_insert(GroupBar { from, to, counts: [0; 4], waiting: 0 });
            (bar.from, bar.to) = (bar.from.min(from), bar.to.max(to));
            bar.counts[outcome(span.state)] += 1;
        }
        bar.map(|bar| GroupBar { waiting, ..bar })
    }

    fn label(&self) -> String {
        let counts = OUTCOMES.iter().zip(self.counts).map(|((_, label), count)| (*label, count));
        let parts = counts.chain([("not started", self.waiting)]);
        let parts = parts.filter(|(_, count)| *count > 0);
        let parts: Vec<String> =
            parts.map(|(label, count)| format!("{} {label}", number(count))).collect();
        parts.join(", ")
    }
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

    /// 5,000 servers, of which the last 100 have not started, and one in 50 failed.
    #[test]
    fn timeline_of_a_large_batch_is_grouped() {
        let start = Timestamp::UNIX_EPOCH;
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let spans: Vec<TaskSpan> = (0..5_000)
            .map(|nth| match nth {
                4_900.. => {
                    TaskSpan { state: TaskState::Waiting, started_at: None, finished_at: None }
                }
                _ => TaskSpan {
                    state: if nth % 50 == 0 { TaskState::Failed } else { TaskState::Succeeded },
                    started_at: Some(at(nth)),
                    finished_at: Some(at(nth + 30)),
                },
            })
            .collect();
        let batch = BatchId::new(start, 1);
        let html = grouped_timeline(&spans, (0, 8_000), batch, &at(9_000));
        assert_eq!(html.matches("<a ").count(), 50);
        let link = format!("href=\"/batches/{batch}?offset=100&amp;limit=100\"");
        assert!(html.contains(&link), "{html}");
        assert!(html.contains("Servers 101–200: 98 succeeded, 2 failed"), "{html}");
        assert!(html.contains("Servers 4,901–5,000: not started"), "{html}");
        assert!(html.contains("first 5,000 of 8,000 servers"), "{html}");
        // A large group is divided again.
        let html = grouped_timeline(&spans[100..200], (100, 8_000), batch, &at(9_000));
        assert_eq!(html.matches("<a ").count(), 20);
        assert!(html.contains("offset=105&amp;limit=5"), "{html}");
        assert!(fits_lanes(5_000, Page { limit: 5, offset: 105 }));
        assert!(!fits_lanes(5_000, Page { limit: 20_000, offset: 0 }));
        assert!(grouped_timeline(&[], (0, 0), batch, &start).contains("No server has started"));
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
