//! The summary of a run: what ran, how long it took, and whether it counts as a success.
//!
//! Evaluates and formats only; it runs nothing. `steps` provides the data.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::tests_output::{Engine, Suite};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    Failed,
    /// A prerequisite was missing.
    NotRun,
}

impl Verdict {
    pub(crate) fn from_success(success: bool) -> Verdict {
        if success { Verdict::Ok } else { Verdict::Failed }
    }
}

/// A completed step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) duration: Duration,
}

/// Totals over all test suites.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    pub(crate) skipped: usize,
    pub(crate) on_sqlite: usize,
    pub(crate) on_postgres: usize,
    /// The skipped tests for each reason.
    reasons: BTreeMap<String, Vec<String>>,
}

impl Totals {
    pub(crate) fn from_suites(suites: &[Suite]) -> Totals {
        let mut totals = Totals::default();
        for suite in suites {
            totals.passed += suite.passed();
            totals.failed += suite.failed();
            totals.ignored += suite.ignored();
            totals.skipped += suite.skipped();
            totals.on_sqlite += suite.ran_on(Engine::Sqlite);
            totals.on_postgres += suite.ran_on(Engine::Postgres);
            for skip in &suite.skips {
                totals.reasons.entry(skip.reason.clone()).or_default().push(skip.test.clone());
            }
        }
        totals
    }

    fn ran(&self) -> usize {
        self.passed + self.failed
    }
}

/// Finds problems in a run in which every executed test passed.
///
/// A successful run of no tests is easily overlooked: a leftover filter, a database that was not
/// found, a module that is no longer compiled.
pub(crate) fn find_problems(
    suites: &[Suite],
    every_test: bool,
    engines_expected: bool,
) -> Vec<String> {
    let totals = Totals::from_suites(suites);
    if totals.ran() == 0 {
        return vec!["no test ran".to_owned()];
    }
    if !every_test {
        return Vec::new();
    }
    let is_declared = |engine| suites.iter().any(|suite| suite.declared_for(engine) > 0);
    let expected = engines_expected || is_declared(Engine::Sqlite) || is_declared(Engine::Postgres);
    let mut objections = Vec::new();
    if expected && totals.on_sqlite == 0 {
        objections.push("no test ran on SQLite".to_owned());
    }
    if expected && totals.on_postgres == 0 {
        objections.push("no test ran on PostgreSQL".to_owned());
    }
    objections
}

/// The last lines of the output.
pub(crate) fn summary(steps: &[Step], totals: Option<&Totals>) -> Vec<String> {
    let mut lines = vec![String::new()];
    for step in steps {
        let verdict = match step.verdict {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::NotRun => "not run",
        };
        lines.push(format!(
            "  {:<10} {:<7} {:>8}",
            step.name,
            verdict,
            format_seconds(step.duration)
        ));
    }
    if let Some(totals) = totals {
        lines.push(format!(
            "tests: {} passed, {} failed, {} ignored",
            totals.passed, totals.failed, totals.ignored
        ));
        lines.push(format!("on SQLite: {}", totals.on_sqlite));
        lines.push(format!("on PostgreSQL: {}", totals.on_postgres));
        for (reason, tests) in &totals.reasons {
            let others = match tests.len() {
                0 | 1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            let first = tests.first().map_or("", String::as_str);
            lines.push(format!("skipped: {reason} ({first}{others})"));
        }
    }
    lines.push(last_line(steps, totals));
    lines
}

/// `N passed, N failed, N skipped`, which programs parse. A step that failed without a failed test
/// counts as one failure, so that a failed run never reports `0 failed`.
fn last_line(steps: &[Step], totals: Option<&Totals>) -> String {
    let tests_failed = totals.map_or(0, |totals| totals.failed);
    let failed_steps = steps
        .iter()
        .filter(|step| step.verdict == Verdict::Failed)
        .filter(|step| !(step.name == "test" && tests_failed > 0))
        .count();
    let passed = totals.map_or(0, |totals| totals.passed);
    let skipped = totals.map_or(0, |totals| totals.ignored + totals.skipped);
    format!("{passed} passed, {} failed, {skipped} skipped", tests_failed + failed_steps)
}

pub(crate) fn format_seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests_output::TestsOutput;

    fn suites(tests: &[&str]) -> Vec<Suite> {
        let mut output = TestsOutput::new();
        output.line("     Running unittests src/lib.rs (target/debug/deps/store-1)");
        output.line("running 9 tests");
        for test in tests {
            output.line(&format!("test {test}"));
        }
        output.suites
    }

    #[test]
    fn run_without_tests_is_not_a_success() {
        assert_eq!(find_problems(&[], true, false), ["no test ran"]);
        assert_eq!(find_problems(&suites(&["a ... ignored"]), false, false), ["no test ran"]);
    }

    #[test]
    fn tests_must_run_on_both_engines() {
        let half = suites(&["a::sqlite ... ok", "a::postgres ... ignored"]);
        assert_eq!(find_problems(&half, true, false), ["no test ran on PostgreSQL"]);
        assert_eq!(
            find_problems(&half, false, true),
            [""; 0],
            "a filtered run may use only one engine"
        );
        let both = suites(&["a::sqlite ... ok", "a::postgres ... ok"]);
        assert_eq!(find_problems(&both, true, true), [""; 0]);
    }

    #[test]
    fn missing_engine_tests_are_reported() {
        let plain = suites(&["a ... ok"]);
        assert_eq!(find_problems(&plain, true, false), [""; 0]);
        assert_eq!(
            find_problems(&plain, true, true),
            ["no test ran on SQLite", "no test ran on PostgreSQL"]
        );
    }

    #[test]
    fn failed_run_reports_at_least_one_failure() {
        let step = |name, verdict| Step { name, verdict, duration: Duration::ZERO };
        let totals = Totals::from_suites(&suites(&["a ... ok", "b ... FAILED", "c ... ignored"]));
        let steps = [step("fmt", Verdict::Ok), step("test", Verdict::Failed)];
        assert_eq!(last_line(&steps, Some(&totals)), "1 passed, 1 failed, 1 skipped");
        let steps = [step("fmt", Verdict::Failed), step("test", Verdict::Failed)];
        assert_eq!(last_line(&steps, Some(&totals)), "1 passed, 2 failed, 1 skipped");
        let green = Totals::from_suites(&suites(&["a ... ok"]));
        let steps = [step("clippy", Verdict::Failed), step("test", Verdict::Ok)];
        assert_eq!(last_line(&steps, Some(&green)), "1 passed, 1 failed, 0 skipped");
        assert_eq!(last_line(&[step("fmt", Verdict::Ok)], None), "0 passed, 0 failed, 0 skipped");
    }
}
