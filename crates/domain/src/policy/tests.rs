//! The policy clock, as tables: each case is the story of one server, day by day.

use super::*;

/// Midnight of a day of the story; the day may have a fraction.
fn day(number: f64) -> Timestamp {
    let seconds = (number * 86_400.0).round() as i64;
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

fn subject(text: &str) -> Subject {
    let (cve, package) = text.split_once(' ').unwrap_or(("", text));
    Subject { cve: cve.to_owned(), package: package.to_owned() }
}

fn fix(text: &str, severity: Severity, availability: Availability) -> Fix {
    Fix { subject: subject(text), severity, kev: false, availability }
}

const CRITICAL_IN_7: &[Rule] =
    &[Rule { matches: Match::Severity(Severity::Critical), within_days: 7 }];
const OPENSSL: &str = "CVE-2026-1 openssl";

/// What happens on a day.
enum Step {
    /// A scan finds the CVE in openssl, with this availability of the fix.
    Scan(Availability),
    /// A scan does not find the CVE.
    Clean,
    Suppress(bool),
    /// The policy that applies to the server is now this one.
    Rules(&'static [Rule]),
    /// The server is scanned, but cannot be assessed.
    NoFeed,
}
use Availability::{FixedOnDisk, NoFix, Offered};
use ComplianceState::{Breaching, Compliant, DueSoon, Unknown};
use Step::{Clean, NoFeed, Rules, Scan, Suppress};

/// A server is stale this many days after its last scan.
const STALE_AFTER_DAYS: f64 = 14.0;

/// Plays the steps, and compares the state and the due date (as a day) at the given days.
fn play(name: &str, steps: &[(f64, Step)], expected: &[(f64, ComplianceState, Option<f64>)]) {
    for (at, state, due) in expected {
        let (mut obligations, mut rules) = (Vec::new(), CRITICAL_IN_7);
        let (mut suppressed, mut knowledge) =
            (false, Knowledge::Unknown(UnknownCompliance::NotScanned));
        for (when, step) in steps.iter().filter(|(when, _)| when <= at) {
            let now = day(*when);
            match step {
                Scan(availability) => {
                    let found = fix(OPENSSL, Severity::Critical, *availability);
                    obligations = advance(&obligations, vec![found], now);
                    knowledge = Knowledge::Until(day(when + STALE_AFTER_DAYS));
                }
                Clean => {
                    obligations = advance(&obligations, Vec::new(), now);
                    knowledge = Knowledge::Until(day(when + STALE_AFTER_DAYS));
                }
                Suppress(is_suppressed) => suppressed = *is_suppressed,
                Rules(changed) => rules = changed,
                NoFeed => knowledge = Knowledge::Unknown(UnknownCompliance::NoFeed),
            }
        }
        let judged = judge(rules, knowledge, &obligations, |_| suppressed, day(*at));
        assert_eq!(judged.state, *state, "{name}: state on day {at}: {judged:?}");
        assert_eq!(judged.due_at, due.map(day), "{name}: due date on day {at}");
    }
}

#[test]
fn clock_runs_from_the_offered_fix_to_its_due_date() {
    play(
        "offered at once",
        &[(1.0, Scan(Offered))],
        &[
            (0.5, Unknown, None),
            (1.0, Compliant, Some(8.0)),
            (5.9, Compliant, Some(8.0)),
            (6.0, DueSoon, Some(8.0)),
            (7.9, DueSoon, Some(8.0)),
            (8.0, Breaching, Some(8.0)),
            (14.9, Breaching, Some(8.0)),
        ],
    );
    play(
        "installed and running in time",
        &[(1.0, Scan(Offered)), (7.0, Clean)],
        &[(6.5, DueSoon, Some(8.0)), (7.0, Compliant, None), (9.0, Compliant, None)],
    );
}

#[test]
fn fix_that_is_published_later_starts_the_clock_later() {
    play(
        "no fix for ten days",
        &[(1.0, Scan(NoFix)), (6.0, Scan(NoFix)), (11.0, Scan(Offered))],
        &[(10.9, Compliant, None), (11.0, Compliant, Some(18.0)), (18.0, Breaching, Some(18.0))],
    );
}

#[test]
fn withdrawn_fix_pauses_the_clock_and_forgives_nothing() {
    play(
        "withdrawn for ten days after five",
        &[(1.0, Scan(Offered)), (6.0, Scan(NoFix)), (9.0, Scan(NoFix)), (16.0, Scan(Offered))],
        &[
            (5.9, Compliant, Some(8.0)),
            (6.0, Compliant, None),
            (9.0, Compliant, None),
            // Two of the seven days were left.
            (16.0, DueSoon, Some(18.0)),
            (18.0, Breaching, Some(18.0)),
        ],
    );
    play(
        "withdrawn in breach: no breach while nothing can be installed, and again afterwards",
        &[(1.0, Scan(Offered)), (10.0, Scan(NoFix)), (12.0, Scan(Offered))],
        &[(9.0, Breaching, Some(8.0)), (11.0, Compliant, None), (12.0, Breaching, Some(10.0))],
    );
    play(
        "fixed otherwise, and affected again: a new clock",
        &[(1.0, Scan(Offered)), (5.0, Clean), (9.0, Scan(Offered))],
        &[(6.0, Compliant, None), (9.0, Compliant, Some(16.0))],
    );
}

#[test]
fn server_that_is_offline_for_a_month_is_unknown_and_its_clock_runs_on() {
    play(
        "offline from day 2 to day 32",
        &[(1.0, Scan(Offered)), (32.0, Scan(Offered))],
        &[
            (9.0, Breaching, Some(8.0)),
            (14.9, Breaching, Some(8.0)),
            // The last known due date stays visible.
            (15.0, Unknown, Some(8.0)),
            (31.9, Unknown, Some(8.0)),
            (32.0, Breaching, Some(8.0)),
        ],
    );
    play(
        "clean before, and offered the fix only when it is back",
        &[(1.0, Clean), (32.0, Scan(Offered))],
        &[(20.0, Unknown, None), (32.0, Compliant, Some(39.0))],
    );
}

#[test]
fn suppression_hides_the_obligation_and_does_not_stop_its_clock() {
    play(
        "suppressed from day 2 to day 12",
        &[(1.0, Scan(Offered)), (2.0, Suppress(true)), (12.0, Suppress(false))],
        &[(1.5, Compliant, Some(8.0)), (9.0, Compliant, None), (12.0, Breaching, Some(8.0))],
    );
}

#[test]
fn fix_on_disk_does_not_stop_the_clock_until_it_runs() {
    play(
        "installed on day 3, restarted on day 10",
        &[(1.0, Scan(Offered)), (3.0, Scan(FixedOnDisk)), (10.0, Clean)],
        &[
            (3.0, Compliant, Some(8.0)),
            (7.0, DueSoon, Some(8.0)),
            (8.0, Breaching, Some(8.0)),
            (10.0, Compliant, None),
        ],
    );
    play(
        "installed between two scans: the clock starts when it was first seen",
        &[(3.0, Scan(FixedOnDisk))],
        &[(3.0, Compliant, Some(10.0)), (10.0, Breaching, Some(10.0))],
    );
}

#[test]
fn server_that_moves_to_another_environment_keeps_its_clock() {
    const STRICT: &[Rule] =
        &[Rule { matches: Match::Severity(Severity::Critical), within_days: 3 }];
    play(
        "from staging (7 days) to production (3 days) on day 5",
        &[(1.0, Scan(Offered)), (5.0, Rules(STRICT))],
        &[(4.9, Compliant, Some(8.0)), (5.0, Breaching, Some(4.0))],
    );
    play(
        "to an environment without rules for it, and back",
        &[(1.0, Scan(Offered)), (5.0, Rules(&[])), (9.0, Rules(CRITICAL_IN_7))],
        &[(6.0, Compliant, None), (9.0, Breaching, Some(8.0))],
    );
}

#[test]
fn changed_policy_judges_the_time_that_has_already_passed() {
    const IN_30: &[Rule] = &[Rule { matches: Match::Security, within_days: 30 }];
    const AT_ONCE: &[Rule] = &[Rule { matches: Match::Security, within_days: 0 }];
    play(
        "7 days, then 30, then 0",
        &[(1.0, Scan(Offered)), (9.0, Rules(IN_30)), (12.0, Rules(AT_ONCE))],
        &[(8.5, Breaching, Some(8.0)), (9.0, Compliant, Some(31.0)), (12.0, Breaching, Some(1.0))],
    );
    play(
        "the policy is created after the fix",
        &[(0.0, Rules(&[])), (1.0, Scan(Offered)), (9.0, Rules(CRITICAL_IN_7))],
        &[(8.5, Compliant, None), (9.0, Breaching, Some(8.0))],
    );
}

#[test]
fn server_without_a_feed_is_unknown_however_clean_it_looks() {
    play(
        "never scanned, and scanned without a feed",
        &[(2.0, NoFeed)],
        &[(1.0, Unknown, None), (2.0, Unknown, None)],
    );
    play(
        "the feed was removed for a while: the clock runs on",
        &[(1.0, Scan(Offered)), (3.0, NoFeed), (9.0, Scan(Offered))],
        &[(4.0, Unknown, Some(8.0)), (9.0, Breaching, Some(8.0))],
    );
}

#[test]
fn rules_match_by_exploitation_severity_and_any_security_fix() {
    let obligation = |severity, kev| Obligation {
        subject: subject(OPENSSL),
        severity,
        kev,
        since: day(0.0),
        withdrawn_at: None,
        on_disk: false,
    };
    let due = |rules: &[Rule], severity, kev| due_at(rules, &obligation(severity, kev));
    let kev = Rule { matches: Match::Kev, within_days: 2 };
    let high = Rule { matches: Match::Severity(Severity::High), within_days: 7 };
    let any = Rule { matches: Match::Security, within_days: 30 };
    // (rules, severity, exploited, due on day)
    let table: &[(&[Rule], Severity, bool, Option<f64>)] = &[
        (&[kev], Severity::Critical, false, None),
        (&[kev], Severity::Unknown, true, Some(2.0)),
        (&[high], Severity::Critical, false, Some(7.0)),
        (&[high], Severity::High, false, Some(7.0)),
        (&[high], Severity::Medium, false, None),
        (&[high], Severity::Unknown, false, None),
        (&[any], Severity::Unknown, false, Some(30.0)),
        (&[any, high, kev], Severity::Critical, true, Some(2.0)),
        (&[any, high, kev], Severity::Critical, false, Some(7.0)),
        (&[any, high, kev], Severity::Low, false, Some(30.0)),
        (&[], Severity::Critical, true, None),
    ];
    for (rules, severity, kev, expected) in table {
        assert_eq!(due(rules, *severity, *kev), expected.map(day), "{rules:?} {severity} {kev}");
    }
}

#[test]
fn several_versions_of_a_package_are_one_obligation_with_the_worst_of_them() {
    let mut old = fix("CVE-2026-2 linux", Severity::Medium, FixedOnDisk);
    old.kev = true;
    let next = advance(
        &[],
        vec![
            old,
            fix("CVE-2026-2 linux", Severity::High, Offered),
            fix("curl", Severity::Low, NoFix),
        ],
        day(1.0),
    );
    assert_eq!(next.len(), 1, "{next:?}");
    assert_eq!((next[0].severity, next[0].kev, next[0].on_disk), (Severity::High, true, false));
}

#[test]
fn severity_and_exploitation_follow_the_advisory_and_the_clock_stays() {
    let before = advance(&[], vec![fix(OPENSSL, Severity::Low, Offered)], day(1.0));
    let mut worse = fix(OPENSSL, Severity::Critical, Offered);
    worse.kev = true;
    let after = advance(&before, vec![worse], day(9.0));
    assert_eq!(
        (after[0].severity, after[0].kev, after[0].since),
        (Severity::Critical, true, day(1.0))
    );
}

#[test]
fn judgement_names_when_it_changes_next() {
    let obligations = advance(&[], vec![fix(OPENSSL, Severity::Critical, Offered)], day(1.0));
    let known = Knowledge::Until(day(12.0));
    // (now, changes at)
    let table = [(1.0, Some(6.0)), (6.0, Some(8.0)), (8.0, Some(12.0)), (12.0, None), (20.0, None)];
    for (now, expected) in table {
        let judged = judge(CRITICAL_IN_7, known, &obligations, |_| false, day(now));
        assert_eq!(judged.changes_at, expected.map(day), "on day {now}");
    }
}

#[test]
fn judgement_is_constant_until_the_time_it_names() {
    let mut obligations = Vec::new();
    for (index, at) in [0.0, 1.5, 3.0, 9.0].into_iter().enumerate() {
        let mut fixes: Vec<Fix> =
            obligations.iter().map(|one: &Obligation| offered(&one.subject)).collect();
        fixes.push(offered(&subject(&format!("CVE-2026-{index} curl"))));
        obligations = advance(&obligations, fixes, day(at));
    }
    let known = Knowledge::Until(day(15.0));
    let mut judged: Option<Judgement> = None;
    for hour in (9 * 24)..(20 * 24) {
        let now = day(f64::from(hour) / 24.0);
        let fresh = judge(CRITICAL_IN_7, known, &obligations, |_| false, now);
        if let Some(before) = judged.filter(|before| before.changes_at.is_none_or(|at| now < at)) {
            assert_eq!(before, fresh, "hour {hour}");
        }
        judged = Some(fresh);
    }
}

fn offered(subject: &Subject) -> Fix {
    Fix {
        subject: subject.clone(),
        severity: Severity::Critical,
        kev: false,
        availability: Offered,
    }
}

#[test]
fn counts_and_due_date_are_those_of_the_earliest_obligation() {
    let first = advance(&[], vec![fix(OPENSSL, Severity::Critical, Offered)], day(1.0));
    let both = vec![
        fix(OPENSSL, Severity::Critical, Offered),
        fix("CVE-2026-9 curl", Severity::Critical, Offered),
        fix("CVE-2026-8 vim", Severity::Low, Offered),
    ];
    let obligations = advance(&first, both, day(5.0));
    let judged =
        judge(CRITICAL_IN_7, Knowledge::Until(day(30.0)), &obligations, |_| false, day(9.0));
    assert_eq!((judged.open, judged.overdue, judged.due_at), (2, 1, Some(day(8.0))));
    let judged = judge(
        CRITICAL_IN_7,
        Knowledge::Until(day(30.0)),
        &obligations,
        |subject| subject.package == "openssl",
        day(9.0),
    );
    assert_eq!((judged.open, judged.overdue, judged.due_at), (1, 0, Some(day(12.0))));
}

#[test]
fn clock_that_was_set_back_never_moves_a_start_into_the_future() {
    let before = advance(&[], vec![fix(OPENSSL, Severity::Critical, Offered)], day(5.0));
    let paused = advance(&before, vec![fix(OPENSSL, Severity::Critical, NoFix)], day(9.0));
    let after = advance(&paused, vec![fix(OPENSSL, Severity::Critical, Offered)], day(2.0));
    assert_eq!(after[0].since, day(5.0));
}

#[test]
fn obligations_survive_their_stored_form() {
    let mut fixes =
        vec![fix("CVE-2026-7 linux", Severity::High, FixedOnDisk), offered(&subject("curl"))];
    fixes[0].kev = true;
    let before = advance(&[], fixes, day(1.0));
    let after = advance(&before, vec![fix("curl", Severity::Critical, NoFix)], day(2.0));
    for obligations in [before, after] {
        let text = serde_json::to_string(&obligations).unwrap();
        let read: Vec<Obligation> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, obligations);
    }
}
