//! The meaning of a state or severity as a color, the same in the dashboard and on the command line.

/// What a color means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Being worked on.
    Busy,
    /// Waits for someone, or deserves attention.
    Warn,
    Bad,
    /// Worse than bad: the severity `critical`, and CVEs that are known to be exploited.
    Critical,
    /// Neither good nor bad.
    Idle,
}

impl Tone {
    pub const ALL: [Tone; 6] =
        [Tone::Good, Tone::Busy, Tone::Warn, Tone::Bad, Tone::Critical, Tone::Idle];

    /// The tone of a state or severity, as the API names it.
    pub fn for_word(word: &str) -> Tone {
        match word {
            "online" | "succeeded" | "no_change" | "current" | "delivered" | "up_to_date"
            | "compliant" | "healthy" => Tone::Good,
            "running"
            | "dispatched"
            | "preflight"
            | "downloading"
            | "installing"
            | "restarting_services"
            | "rebooting"
            | "verifying"
            | "patching"
            | "scanning"
            | "importing"
            | "in_progress" => Tone::Busy,
            "waiting"
            | "paused"
            | "awaiting_approval"
            | "canceling"
            | "expired"
            | "medium"
            | "unscheduled"
            | "due_soon"
            | "not_measured"
            | "waiting_for_restart" => Tone::Warn,
            "failed"
            | "timed_out"
            | "completed_with_errors"
            | "halted"
            | "degraded"
            | "high"
            | "blocked"
            | "breaching"
            | "no_fix" => Tone::Bad,
            "critical" => Tone::Critical,
            _ => Tone::Idle,
        }
    }

    /// The name of its class in the stylesheet.
    pub fn class(self) -> &'static str {
        match self {
            Tone::Good => "tone-good",
            Tone::Busy => "tone-busy",
            Tone::Warn => "tone-warn",
            Tone::Bad => "tone-bad",
            Tone::Critical => "tone-critical",
            Tone::Idle => "tone-idle",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    #[test]
    fn severities_get_more_alarming() {
        let tones = [Severity::Low, Severity::Medium, Severity::High, Severity::Critical]
            .map(|severity| Tone::for_word(&severity.to_string()));
        assert_eq!(tones, [Tone::Idle, Tone::Warn, Tone::Bad, Tone::Critical]);
    }

    /// An unknown word is never shown as good or bad.
    #[test]
    fn unknown_is_idle() {
        for word in ["unknown", "", "offline", "later_state"] {
            assert_eq!(Tone::for_word(word), Tone::Idle, "{word}");
        }
    }
}
