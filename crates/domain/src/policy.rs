//! Policies: by when a server must have installed its fixes.
//!
//! Three steps, all pure:
//!
//! 1. A scan gives the server's [`Fix`]es: what is vulnerable or pending, and whether a fix exists.
//! 2. [`advance`] updates the server's [`Obligation`]s, which hold the clocks. The clocks depend on
//!    the server alone, never on policies, so that a policy that is created or changed today judges
//!    the time since each fix became available.
//! 3. [`judge`] compares the obligations with the rules of one policy.
//!
//! The clock of an obligation starts when both are known: the server is affected, and it was offered
//! a fix. It ends when the server is no longer affected, which is when the fixed version is installed
//! and runs; a fix that is only on disk does not end it. If the fix is withdrawn, the clock pauses,
//! and continues when a fix is offered again: a repository that was unreachable for an hour must not
//! forgive weeks. A suppression does not touch the clock; it only hides the obligation while it is
//! active.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{ComplianceState, Severity, UnknownCompliance};

#[cfg(test)]
mod tests;

/// What a policy requires for the fixes that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub matches: Match,
    /// The time from the start of the clock to the due date.
    pub within_days: u32,
}

/// Which fixes a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    /// Fixes of CVEs that are known to be exploited.
    Kev,
    /// Fixes of CVEs of at least this severity.
    Severity(Severity),
    /// All fixes of CVEs, and updates that the package manager marks as security updates.
    Security,
}

impl Match {
    pub fn applies_to(self, obligation: &Obligation) -> bool {
        match self {
            Match::Kev => obligation.kev,
            Match::Severity(least) => obligation.severity >= least,
            Match::Security => true,
        }
    }
}

/// A server is `due_soon` from this time before a due date.
pub const DUE_SOON: SignedDuration = SignedDuration::from_hours(48);

/// What a server is vulnerable to, or has to update, as its last scan shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    pub subject: Subject,
    pub severity: Severity,
    /// Whether the CVE is known to be exploited.
    pub kev: bool,
    pub availability: Availability,
}

/// Identifies an obligation on a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    /// The CVE; empty for a security update that names none.
    #[serde(rename = "c", default, skip_serializing_if = "String::is_empty")]
    pub cve: String,
    /// The source package of the finding, or the package of the update.
    #[serde(rename = "p")]
    pub package: String,
}

/// Whether the server can install a fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// The server is not offered a fix.
    NoFix,
    /// The fix is installed, but the old code still runs.
    FixedOnDisk,
    /// A pending update contains the fix.
    Offered,
}

/// Something that a server has to fix, with the clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obligation {
    #[serde(flatten)]
    pub subject: Subject,
    #[serde(rename = "s")]
    pub severity: Severity,
    #[serde(rename = "k", default, skip_serializing_if = "std::ops::Not::not")]
    pub kev: bool,
    /// When the fix became available to this server. If it was withdrawn for a time, later by that
    /// time.
    #[serde(rename = "t")]
    pub since: Timestamp,
    /// Since when no fix is offered any more: the clock is paused.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_at: Option<Timestamp>,
    /// Whether the fix is installed and only waits for a restart.
    #[serde(rename = "d", default, skip_serializing_if = "std::ops::Not::not")]
    pub on_disk: bool,
}

/// Updates a server's obligations after a scan, or after its findings changed. What has no fix and
/// never had one is no obligation. The result is sorted by subject.
pub fn advance(before: &[Obligation], fixes: Vec<Fix>, now: Timestamp) -> Vec<Obligation> {
    let known: BTreeMap<&Subject, &Obligation> =
        before.iter().map(|one| (&one.subject, one)).collect();
    let mut merged: BTreeMap<Subject, Fix> = BTreeMap::new();
    for fix in fixes {
        // Several versions of one source package, such as kernels: the worst of them counts.
        match merged.get_mut(&fix.subject) {
            Some(same) => {
                same.severity = same.severity.max(fix.severity);
                same.kev |= fix.kev;
                same.availability = same.availability.max(fix.availability);
            }
            None => {
                merged.insert(fix.subject.clone(), fix);
            }
        }
    }
    let next = merged.into_values().filter_map(|fix| {
        let known = known.get(&fix.subject).copied();
        let (since, withdrawn_at) = match (fix.availability, known) {
            (Availability::NoFix, None) => return None,
            (Availability::NoFix, Some(known)) => {
                (known.since, Some(known.withdrawn_at.unwrap_or(now)))
            }
            (_, None) => (now, None),
            (_, Some(known)) => (resume(known, now), None),
        };
        Some(Obligation {
            subject: fix.subject,
            severity: fix.severity,
            kev: fix.kev,
            since,
            withdrawn_at,
            on_disk: fix.availability == Availability::FixedOnDisk,
        })
    });
    next.collect()
}

/// When the clock started, without the time for which the fix was withdrawn.
fn resume(known: &Obligation, now: Timestamp) -> Timestamp {
    let paused = known.withdrawn_at.map_or(SignedDuration::ZERO, |at| now.duration_since(at));
    let paused = paused.max(SignedDuration::ZERO);
    known.since.checked_add(paused).unwrap_or(Timestamp::MAX).min(now.max(known.since))
}

/// When an obligation is due. `None` if no rule matches or the clock is paused. The strictest rule
/// decides.
pub fn due_at(rules: &[Rule], obligation: &Obligation) -> Option<Timestamp> {
    if obligation.withdrawn_at.is_some() {
        return None;
    }
    let matching = rules.iter().filter(|rule| rule.matches.applies_to(obligation));
    let days = matching.map(|rule| rule.within_days).min()?;
    let within = SignedDuration::from_hours(24 * i64::from(days));
    Some(obligation.since.checked_add(within).unwrap_or(Timestamp::MAX))
}

/// Whether the obligations of a server are complete and current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// They are, until this time, unless the server is scanned again.
    Until(Timestamp),
    /// They are not. The last known obligations are kept, but decide nothing.
    Unknown(UnknownCompliance),
}

impl Knowledge {
    /// What is known at `now`.
    pub fn at(self, now: Timestamp) -> Knowledge {
        match self {
            Knowledge::Until(until) if until <= now => Knowledge::Unknown(UnknownCompliance::Stale),
            known => known,
        }
    }
}

/// Where a server stands with a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    pub state: ComplianceState,
    /// Why the state is unknown.
    pub unknown: Option<UnknownCompliance>,
    /// The earliest due date of its obligations. For an unknown server: as last known.
    pub due_at: Option<Timestamp>,
    /// The number of obligations that a rule matches, and how many of them are overdue.
    pub open: u32,
    pub overdue: u32,
    /// When this judgement changes if nothing but time passes.
    pub changes_at: Option<Timestamp>,
}

/// Judges a server by the rules of a policy. `suppressed` says which obligations a person suppressed;
/// they do not count.
pub fn judge(
    rules: &[Rule],
    knowledge: Knowledge,
    obligations: &[Obligation],
    suppressed: impl Fn(&Subject) -> bool,
    now: Timestamp,
) -> Judgement {
    let mut judgement = Judgement {
        state: ComplianceState::Compliant,
        unknown: None,
        due_at: None,
        open: 0,
        overdue: 0,
        changes_at: None,
    };
    let mut changes = |at: Timestamp| {
        if at > now && judgement.changes_at.is_none_or(|known| at < known) {
            judgement.changes_at = Some(at);
        }
    };
    let counting = obligations.iter().filter(|one| !suppressed(&one.subject));
    for due in counting.filter_map(|one| due_at(rules, one)) {
        judgement.open += 1;
        judgement.overdue += u32::from(due <= now);
        judgement.due_at = Some(judgement.due_at.map_or(due, |known| known.min(due)));
        changes(due);
        changes(warning_at(due));
    }
    let knowledge = knowledge.at(now);
    if let Knowledge::Until(until) = knowledge {
        changes(until);
    }
    judgement.state = match (knowledge, judgement.due_at) {
        (Knowledge::Unknown(why), _) => {
            judgement.unknown = Some(why);
            ComplianceState::Unknown
        }
        (_, Some(due)) if due <= now => ComplianceState::Breaching,
        (_, Some(due)) if warning_at(due) <= now => ComplianceState::DueSoon,
        _ => ComplianceState::Compliant,
    };
    judgement
}

fn warning_at(due: Timestamp) -> Timestamp {
    due.checked_sub(DUE_SOON).unwrap_or(Timestamp::MIN)
}
