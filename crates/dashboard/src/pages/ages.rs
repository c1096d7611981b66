//! How long updates have been pending: one bar per age group, split by severity.

use std::fmt::Write as _;

use crate::pages::number;
use crate::pages::trend::SEVERITIES;

/// The age groups, shortest first.
pub const AGE_GROUPS: [&str; 4] =
    ["less than a day", "less than a week", "less than 30 days", "longer"];

const WIDTH: f64 = 300.0;

/// The number of patches per age group and severity, with the severities in the order of
/// [`SEVERITIES`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PendingAges(pub [[u64; 5]; 4]);

/// One age group.
#[derive(Debug)]
pub struct AgeGroup {
    pub label: &'static str,
    pub counts: [u64; 5],
    pub total: u64,
    pub bar: String,
}

impl AgeGroup {
    /// The severities that occur, with their counts.
    pub fn nonzero_counts(&self) -> Vec<(&'static str, u64)> {
        SEVERITIES.into_iter().zip(self.counts).filter(|(_, count)| *count > 0).collect()
    }
}

impl PendingAges {
    pub fn is_empty(&self) -> bool {
        self.0.iter().flatten().all(|count| *count == 0)
    }

    pub fn spans(&self) -> Vec<AgeGroup> {
        let max = self.0.iter().map(|counts| counts.iter().sum::<u64>()).max().unwrap_or(0);
        let span = |(said, counts): (&'static str, [u64; 5])| {
            let total = counts.iter().sum();
            AgeGroup { label: said, counts, total, bar: bar(said, counts, total, max) }
        };
        AGE_GROUPS.into_iter().zip(self.0).map(span).collect()
    }
}

fn bar(label: &str, counts: [u64; 5], total: u64, max: u64) -> String {
    let some = SEVERITIES.iter().zip(counts).filter(|(_, count)| *count > 0);
    let words: Vec<String> =
        some.clone().map(|(name, count)| format!("{} {name}", number(count))).collect();
    let mut svg = format!(
        "<svg class=\"plot age\" viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Pending {label}: {}{}\">",
        number(total),
        if words.is_empty() { String::new() } else { format!(", {}", words.join(", ")) }
    );
    let mut at = 0.0;
    for (name, count) in some {
        let width = count as f64 / max.max(1) as f64 * WIDTH;
        let _ = write!(
            svg,
            "<rect class=\"bar is-{name}\" x=\"{at:.2}\" y=\"0\" width=\"{width:.2}\" height=\"10\"/>"
        );
        at += width;
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_scaled_to_the_largest_and_labeled_with_counts() {
        let ages = PendingAges([[1, 1, 0, 0, 0], [0; 5], [0, 4, 0, 0, 0], [0, 0, 0, 0, 1]]);
        let spans = ages.spans();
        assert_eq!(spans.iter().map(|span| span.total).collect::<Vec<_>>(), [2, 0, 4, 1]);
        assert!(spans[2].bar.contains("width=\"300.00\""), "{}", spans[2].bar);
        assert!(spans[0].bar.contains("Pending less than a day: 2, 1 critical, 1 high"));
        assert!(!ages.is_empty() && PendingAges::default().is_empty());
    }
}
