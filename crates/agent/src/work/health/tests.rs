use super::*;
use std::collections::BTreeSet;

use crate::host::health::Socket;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_763_200_000 + second).unwrap()
}

fn snapshot(ports: &[u16]) -> HealthSnapshot {
    let socket = |port: &u16| Socket { is_udp: false, port: *port, is_loopback: false };
    let sockets: BTreeSet<Socket> = ports.iter().map(socket).collect();
    HealthSnapshot { at: at(0), sockets: Some(sockets), ..HealthSnapshot::default() }
}

/// Runs the steps of an order on a host whose measurements are these; the last one repeats. Returns
/// the steps, and whether the host is healthy in the end.
fn steps(baseline: &HealthSnapshot, looks: &[HealthSnapshot]) -> (String, bool) {
    let (mut steps, mut check, mut looks) = (String::new(), None, looks.iter().peekable());
    let mut last = HealthSnapshot::default();
    while let Some(step) = next_step(baseline, check.as_ref()) {
        match step {
            Step::Pause => {
                steps.push('.');
                let check: &mut HealthCheck = check.as_mut().unwrap();
                check.pause();
            }
            Step::Health { hooks } => {
                steps.push(if hooks { 'H' } else { 'L' });
                if let Some(next) = looks.next() {
                    last = next.clone();
                }
                let mut now = last.clone();
                if !hooks {
                    now.hooks.clear();
                }
                check = Some(HealthCheck::after(check, now.report(baseline), hooks));
            }
            other => panic!("{other:?}"),
        }
        assert!(steps.len() < 200, "{steps}");
    }
    let report = check.unwrap().report;
    (steps, report.problems.is_empty() && report.not_measured.is_none())
}

#[test]
fn two_good_measurements_are_enough() {
    assert_eq!(steps(&snapshot(&[80]), &[snapshot(&[80])]), ("L.L".to_owned(), true));
}

#[test]
fn restarting_service_is_healthy_and_dying_service_is_not() {
    let (up, down) = (|| snapshot(&[80]), || snapshot(&[]));
    let restarting = steps(&up(), &[down(), down(), up()]);
    assert_eq!(restarting, ("L.L.L.L".to_owned(), true));
    let dying = steps(&up(), &[up(), down()]);
    assert_eq!(dying, ("L.L.L.L.L.L.L".to_owned(), false));
    let booting =
        HealthSnapshot { boot_state: Some("starting".into()), boot_id: "2".into(), ..up() };
    let (boot, healthy) = steps(&up(), &[booting]);
    assert_eq!((boot.matches('.').count(), healthy), (24, false));
}

#[test]
fn hooks_run_once_settled_and_failing_ones_again() {
    let with = |state| {
        let mut snapshot = snapshot(&[80]);
        snapshot.hooks.insert("10-web".to_owned(), state);
        snapshot
    };
    let (good, bad) = (with(HookState::Passed), with(HookState::Failed));
    let looks = [good.clone(), good.clone(), good.clone()];
    assert_eq!(steps(&good, &looks), ("L.LH".to_owned(), true));
    let late = [good.clone(), good.clone(), bad.clone(), good.clone()];
    assert_eq!(steps(&good, &late), ("L.LH.H".to_owned(), true));
    let (broken, healthy) = steps(&good, &[good.clone(), good.clone(), bad]);
    assert_eq!((broken.matches('H').count(), healthy), (3, false));
}

/// A host on which nothing can be measured costs no time.
#[test]
fn host_without_measurements_is_not_waited_for() {
    let blank = HealthSnapshot::default();
    assert_eq!(steps(&blank, std::slice::from_ref(&blank)), ("L".to_owned(), false));
}

fn names(report: &HealthReport) -> Vec<String> {
    report.problems.iter().map(|problem| problem.name.to_string()).collect()
}

#[test]
fn watch_reports_changes_and_the_end() {
    let mut watch = HealthWatch::default();
    let until = Some(at(600));
    assert_eq!(watch.apply(None, at(0), at(0)), None, "no watch");
    assert_eq!(watch, HealthWatch::default());
    assert_eq!(watch.apply(until, at(0), at(0)), Some(WatchStep::Measure));
    assert_eq!(watch.record(snapshot(&[80]), WatchStep::Measure), None, "the baseline");
    assert_eq!(watch.record(snapshot(&[80]), WatchStep::Measure), None, "nothing changed");
    let lost = watch.record(snapshot(&[]), WatchStep::Measure).unwrap();
    assert_eq!(names(&lost), ["tcp/80"]);
    assert_eq!(watch.record(snapshot(&[]), WatchStep::Measure), None, "reported already");
    let back = watch.record(snapshot(&[80]), WatchStep::Measure).unwrap();
    assert_eq!(names(&back), [""; 0]);
    assert_eq!(watch.apply(until, at(599), at(599)), Some(WatchStep::Measure));
    // The service no longer asks, since the end has passed.
    assert_eq!(watch.apply(None, at(601), at(601)), Some(WatchStep::MeasureAtEnd));
    assert!(watch.record(snapshot(&[80]), WatchStep::MeasureAtEnd).is_some());
    assert_eq!(watch.apply(None, at(660), at(660)), None);
}

#[test]
fn watch_after_an_order_compares_with_the_health_before_it() {
    let mut watch = HealthWatch::default();
    watch.set_order(snapshot(&[22, 80]), None, at(0));
    assert_eq!(watch.apply(Some(at(600)), at(10), at(10)), Some(WatchStep::Measure));
    let report = watch.record(snapshot(&[22]), WatchStep::Measure).unwrap();
    assert_eq!(names(&report), ["tcp/80"]);
    // A later watch has nothing to do with an order of long ago.
    assert_eq!(watch.apply(None, at(700), at(700)), Some(WatchStep::MeasureAtEnd));
    assert_eq!(watch.apply(Some(at(9_999)), at(7_200), at(7_200)), Some(WatchStep::Measure));
    assert_eq!(watch.baseline, None);
    assert!(!watch.runs_hooks());
}

#[test]
fn watch_that_the_service_cancels_ends_without_a_report() {
    let mut watch = HealthWatch::default();
    watch.apply(Some(at(600)), at(0), at(0));
    assert_eq!(watch.apply(None, at(60), at(60)), None);
    assert_eq!(watch.until, None);
}

#[test]
fn failing_hook_stands_until_the_hooks_run_again() {
    let with = |state| {
        let mut snapshot = snapshot(&[80]);
        snapshot.hooks.insert("10-web".to_owned(), state);
        snapshot
    };
    let before = with(HookState::Passed);
    let after = with(HookState::Failed).report(&before);
    let mut watch = HealthWatch::default();
    watch.set_order(before, Some(after), at(0));
    watch.apply(Some(at(600)), at(0), at(0));
    assert_eq!(watch.record(snapshot(&[80]), WatchStep::Measure), None);
    assert!(watch.runs_hooks());
    let end = watch.record(with(HookState::Passed), WatchStep::MeasureAtEnd).unwrap();
    assert_eq!(names(&end), [""; 0]);
}
