//! Parses the output of `cargo test -- --show-output`, line by line.
//!
//! Text in, counts out: this module runs nothing and prints nothing. `steps` feeds it while the
//! tests run, and `report` summarizes the result.

use std::collections::BTreeSet;

/// The database engine that a test names in the last segment of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    fn from_test_name(name: &str) -> Option<Engine> {
        match name.rsplit("::").next() {
            Some("sqlite") => Some(Engine::Sqlite),
            Some("postgres") => Some(Engine::Postgres),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Failed,
    Ignored,
}

impl Outcome {
    fn parse(word: &str) -> Option<Outcome> {
        match word.split([' ', ',']).next() {
            Some("ok") => Some(Outcome::Ok),
            Some("FAILED") => Some(Outcome::Failed),
            Some("ignored") => Some(Outcome::Ignored),
            _ => None,
        }
    }
}

/// A test that passed without doing its work, and the reason it printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) reason: String,
}

/// One test program, or the documentation tests of one crate.
#[derive(Debug, Default)]
pub(crate) struct Suite {
    pub(crate) name: String,
    outcomes: Vec<(String, Outcome)>,
    pub(crate) skips: Vec<Skip>,
    /// Passed, failed and ignored, as the suite's summary line states them.
    result: Option<[usize; 3]>,
    /// The program exited without a summary line.
    pub(crate) crashed: bool,
}

impl Suite {
    fn count(&self, outcome: Outcome) -> usize {
        self.outcomes.iter().filter(|(_, is)| *is == outcome).count()
    }

    /// Number of tests that reported that they skipped their work. A test may give several reasons.
    pub(crate) fn skipped(&self) -> usize {
        let named: BTreeSet<&str> = self.skips.iter().map(|skip| skip.test.as_str()).collect();
        named.len()
    }

    /// Number of tests that passed and did their work.
    pub(crate) fn passed(&self) -> usize {
        let passed = self.result.map_or_else(|| self.count(Outcome::Ok), |[passed, ..]| passed);
        passed.saturating_sub(self.skipped())
    }

    /// Number of failed tests. A crash counts as one, because it hides which test failed.
    pub(crate) fn failed(&self) -> usize {
        let failed =
            self.result.map_or_else(|| self.count(Outcome::Failed), |[_, failed, _]| failed);
        failed + usize::from(self.crashed)
    }

    pub(crate) fn ignored(&self) -> usize {
        self.result.map_or_else(|| self.count(Outcome::Ignored), |[.., ignored]| ignored)
    }

    /// Number of tests that did their work on this engine, whatever the outcome.
    pub(crate) fn ran_on(&self, engine: Engine) -> usize {
        self.outcomes
            .iter()
            .filter(|(name, is)| {
                *is != Outcome::Ignored && Engine::from_test_name(name) == Some(engine)
            })
            .filter(|(name, _)| !self.skips.iter().any(|skip| skip.test == *name))
            .count()
    }

    /// Number of tests for this engine, whether they ran or not.
    pub(crate) fn declared_for(&self, engine: Engine) -> usize {
        self.outcomes
            .iter()
            .filter(|(name, _)| Engine::from_test_name(name) == Some(engine))
            .count()
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = &str> {
        self.outcomes.iter().filter(|(_, is)| *is == Outcome::Failed).map(|(name, _)| name.as_str())
    }
}

/// The meaning of a line for a live display.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineEvent {
    /// Normal output.
    Ignored,
    /// Cargo is compiling or downloading something.
    Progress(String),
    SuiteStarted(String),
    SuiteEnded,
    /// A test takes unusually long.
    SlowTest(String),
    /// Output that explains a failure, if there is one.
    FailureDetail,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Section {
    /// Outside a suite: output of cargo.
    Cargo,
    /// In the list of tests. `open` is a test whose outcome has not been printed yet.
    List {
        open: Option<String>,
    },
    /// In the captured output of passed tests.
    Successes {
        test: Option<String>,
    },
    Failures,
}

/// The parser and its results so far.
#[derive(Debug)]
pub(crate) struct TestsOutput {
    pub(crate) suites: Vec<Suite>,
    section: Section,
}

impl TestsOutput {
    pub(crate) fn new() -> TestsOutput {
        TestsOutput { suites: Vec::new(), section: Section::Cargo }
    }

    /// Processes the next line.
    pub(crate) fn line(&mut self, line: &str) -> LineEvent {
        if self.section != Section::Cargo {
            if let Some(result) = read_result(line) {
                self.section = Section::Cargo;
                self.current().result = Some(result);
                return LineEvent::SuiteEnded;
            }
            if is_cargo_failure_line(line) {
                self.section = Section::Cargo;
                self.current().crashed = true;
                return LineEvent::SuiteEnded;
            }
        }
        match self.section.clone() {
            Section::Cargo => self.in_cargo(line),
            Section::List { open } => self.in_list(line, open),
            Section::Successes { test } => self.in_successes(line, test),
            Section::Failures => LineEvent::FailureDetail,
        }
    }

    fn current(&mut self) -> &mut Suite {
        if self.suites.is_empty() {
            self.suites.push(Suite::default());
        }
        let last = self.suites.len() - 1;
        &mut self.suites[last]
    }

    fn in_cargo(&mut self, line: &str) -> LineEvent {
        let words = line.trim_start();
        // Cargo right-aligns its status verbs in twelve columns.
        let is_status = line.len() > words.len() && line.len() - words.len() < 12;
        match words.split_once(' ') {
            Some(("Running", rest)) if is_status => self.begin(suite_name(rest)),
            Some(("Doc-tests", name)) if is_status => self.begin(format!("{name} (doc)")),
            Some(("Compiling" | "Checking" | "Downloading" | "Blocking", _)) if is_status => {
                LineEvent::Progress(words.to_owned())
            }
            Some(("Finished" | "Downloaded" | "Updating" | "Locking", _)) if is_status => {
                LineEvent::Ignored
            }
            Some(("running", count)) if count.ends_with(" test") || count.ends_with(" tests") => {
                self.section = Section::List { open: None };
                LineEvent::Ignored
            }
            _ if words.is_empty() || words.starts_with("all doctests ran in") => LineEvent::Ignored,
            _ => LineEvent::FailureDetail,
        }
    }

    fn begin(&mut self, name: String) -> LineEvent {
        self.suites.push(Suite { name: name.clone(), ..Suite::default() });
        LineEvent::SuiteStarted(name)
    }

    fn in_list(&mut self, line: &str, open: Option<String>) -> LineEvent {
        if line == "successes:" {
            self.section = Section::Successes { test: None };
            return LineEvent::Ignored;
        }
        if line == "failures:" {
            self.section = Section::Failures;
            return LineEvent::FailureDetail;
        }
        if let Some(test) = line.strip_prefix("test ") {
            if let Some((name, _)) = test.split_once(" has been running for over ") {
                return LineEvent::SlowTest(name.to_owned());
            }
            if let Some((name, word)) = test.rsplit_once(" ... ") {
                let name = name.strip_suffix(" - should panic").unwrap_or(name).to_owned();
                let Some(outcome) = Outcome::parse(word) else {
                    // With a single thread, the name is printed first, and the output of the test's
                    // child processes appears between the name and the outcome.
                    self.section = Section::List { open: Some(name) };
                    return LineEvent::FailureDetail;
                };
                return self.outcome(name, outcome);
            }
        }
        match (open, Outcome::parse(line)) {
            (Some(name), Some(outcome)) => self.outcome(name, outcome),
            _ if line.is_empty() => LineEvent::Ignored,
            _ => LineEvent::FailureDetail,
        }
    }

    fn outcome(&mut self, name: String, outcome: Outcome) -> LineEvent {
        self.section = Section::List { open: None };
        let seen =
            if outcome == Outcome::Failed { LineEvent::FailureDetail } else { LineEvent::Ignored };
        self.current().outcomes.push((name, outcome));
        seen
    }

    fn in_successes(&mut self, line: &str, test: Option<String>) -> LineEvent {
        if line == "failures:" {
            self.section = Section::Failures;
            return LineEvent::FailureDetail;
        }
        let header = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = header {
            self.section = Section::Successes { test: Some(name.to_owned()) };
        } else if let (Some(test), Some(reason)) = (test, line.strip_prefix("skipped:")) {
            self.current().skips.push(Skip { test, reason: reason.trim().to_owned() });
        }
        LineEvent::Ignored
    }
}

/// `unittests src/lib.rs (…/deps/vocab-0123abcd)` becomes `vocab (src/lib.rs)`.
fn suite_name(rest: &str) -> String {
    let (source, program) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let source = source.strip_prefix("unittests ").unwrap_or(source);
    let program = program.trim_end_matches(')').rsplit('/').next().unwrap_or_default();
    match program.rsplit_once('-') {
        Some((name, _)) => format!("{name} ({source})"),
        None => source.to_owned(),
    }
}

/// The line that cargo prints after a test program that failed.
fn is_cargo_failure_line(line: &str) -> bool {
    line.starts_with("error: test failed, to rerun")
        || line.starts_with("error: doctest failed, to rerun")
}

fn read_result(line: &str) -> Option<[usize; 3]> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, counts) = rest.split_once(". ")?;
    let count = |what: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
    };
    Some([count(" passed")?, count(" failed")?, count(" ignored")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> TestsOutput {
        let mut output = TestsOutput::new();
        for line in text.lines() {
            output.line(line);
        }
        output
    }

    const MIXED: &str = "\
   Compiling store v0.1.0 (/src/crates/store)
    Finished `test` profile [unoptimized + debuginfo] target(s) in 0.43s
     Running unittests src/lib.rs (target/debug/deps/store-3110576fc3c3c96d)

running 6 tests
test servers::stale::postgres ... ok
test servers::gone::postgres ... FAILED
test servers::big ... ignored, needs a large machine
test servers::torn - should panic ... ok
test oracle::rpm ... ok
test servers::stale::sqlite ... ok

successes:

---- oracle::rpm stdout ----
looking for rpm
skipped: no rpm here
skipped: no macros either

---- servers::stale::sqlite stdout ----
test servers::made_up::sqlite ... ok


successes:
    oracle::rpm
    servers::stale::sqlite

failures:

---- servers::gone::postgres stdout ----
skipped: not a skip, since this test failed

thread 'servers::gone::postgres' (7) panicked at crates/store/src/servers.rs:8:81:
still there


failures:
    servers::gone::postgres

test result: FAILED. 4 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.09s

error: test failed, to rerun pass `-p store --lib`
   Doc-tests store

running 1 test
test crates/store/src/lib.rs - open (line 2) ... ok

successes:

successes:
    crates/store/src/lib.rs - open (line 2)

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.08s

error: 1 target failed:
    `-p store --lib`
";

    #[test]
    fn skipped_test_is_neither_passed_nor_failed() {
        let output = parse(MIXED);
        let [store, doc] = output.suites.as_slice() else { panic!("two suites") };
        assert_eq!(store.name, "store (src/lib.rs)");
        assert_eq!((store.passed(), store.failed(), store.ignored()), (3, 1, 1));
        assert_eq!(store.skipped(), 1, "one test with two reasons");
        assert_eq!(store.skips[0].reason, "no rpm here");
        assert_eq!(store.failures().collect::<Vec<_>>(), ["servers::gone::postgres"]);
        assert_eq!((doc.name.as_str(), doc.passed()), ("store (doc)", 1));
    }

    #[test]
    fn engines_are_counted_by_last_path_segment() {
        let store = &parse(MIXED).suites[0];
        assert_eq!(store.ran_on(Engine::Postgres), 2);
        assert_eq!(store.ran_on(Engine::Sqlite), 1);
    }

    #[test]
    fn skipped_or_ignored_test_did_not_run_on_engine() {
        let output = parse(
            "     Running unittests src/lib.rs (target/debug/deps/store-1)

running 2 tests
test a::postgres ... ok
test b::postgres ... ignored

successes:

---- a::postgres stdout ----
skipped: FLEETMEND_TEST_POSTGRES is not set

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(output.suites[0].ran_on(Engine::Postgres), 0);
        assert_eq!(output.suites[0].declared_for(Engine::Postgres), 2);
    }

    #[test]
    fn crashed_program_is_one_failure_and_parsing_continues() {
        let output = parse(
            "     Running tests/crash.rs (target/debug/deps/crash-8d3f5b302eaad4a8)

running 2 tests
test other ... ok
error: test failed, to rerun pass `-p b --test crash`

Caused by:
  process didn't exit successfully: `crash --show-output` (signal: 6, SIGABRT)
     Running tests/calm.rs (target/debug/deps/calm-8d3f5b302eaad4a8)

running 1 test
test fine ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        let [crash, calm] = output.suites.as_slice() else { panic!("two suites") };
        assert!(crash.crashed);
        assert_eq!((crash.passed(), crash.failed()), (1, 1));
        assert_eq!((calm.passed(), calm.failed()), (1, 0));
    }

    #[test]
    fn outcome_is_found_after_child_process_output() {
        let output = parse(
            "     Running unittests src/lib.rs (target/debug/deps/store-1)

running 1 test
test kill::postgres ... a word from a child
and another
ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(output.suites[0].ran_on(Engine::Postgres), 1);
    }

    #[test]
    fn failure_output_is_separated_from_normal_output() {
        let mut output = TestsOutput::new();
        let telling: Vec<&str> =
            MIXED.lines().filter(|line| output.line(line) == LineEvent::FailureDetail).collect();
        assert!(telling.contains(&"still there"));
        assert!(telling.contains(&"error: test failed, to rerun pass `-p store --lib`"));
        assert!(!telling.contains(&"looking for rpm"));
        assert!(!telling.contains(&"test servers::stale::postgres ... ok"));
    }

    #[test]
    fn slow_test_is_reported_while_running() {
        let mut output = parse(
            "     Running unittests src/lib.rs (target/debug/deps/store-1)\n\nrunning 2 tests\n",
        );
        let seen = output.line("test long::story has been running for over 60 seconds");
        assert_eq!(seen, LineEvent::SlowTest("long::story".into()));
    }

    #[test]
    fn compile_error_creates_no_suite() {
        let output = parse("   Compiling a v0.1.0 (/a)\nerror[E0425]: cannot find value `x`\n");
        assert!(output.suites.is_empty());
    }
}
