//! `cargo xtask test`: runs the checks and prints the results in their order.
//!
//! A failed check does not skip the next one. The output of a check is shown in full if it fails,
//! and not otherwise. The test programs run side by side, and next to them the checks that spend
//! most of their time waiting (`BESIDE_TESTS`).

use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;

use crate::args::{Check, TestOptions};
use crate::clock;
use crate::contract;
use crate::jobs::{self, Job, JobEvent, Lane};
use crate::node;
use crate::postgres::{self, Durability, Keep, Postgres};
use crate::process::{Processes, TERMINATE_GROUP, TaskError};
use crate::report::{self, Step, Totals, Verdict, format_seconds};
use crate::requirements;
use crate::screen::Screen;
use crate::test_programs::{self, Part, TestProgram};
use crate::tests_output::{LineEvent, Suite, TestsOutput};
use crate::workspace::Workspace;

/// Makes tests fail instead of skip if a tool is missing.
const REQUIRE_TOOLS: &str = "FLEETMEND_TEST_REQUIRE_TOOLS";

/// The checks that run next to the test programs, and their names.
const BESIDE_TESTS: [(Check, &str); 2] = [(Check::Doc, "doc"), (Check::Contract, "contract")];

/// Runs the selected checks and prints the results.
pub(crate) fn test(
    workspace: &Workspace,
    options: &TestOptions,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<ExitCode, TaskError> {
    let checks: Vec<Check> = Check::value_variants()
        .iter()
        .copied()
        .filter(|c| options.only.is_none_or(|only| only == *c))
        .collect();
    let with_postgres = usize::from(checks.contains(&Check::Test));
    let mut run = Run {
        workspace,
        options,
        processes,
        screen,
        planned: 1 + checks.len() + with_postgres,
        steps: Vec::new(),
        suites: None,
        beside: Vec::new(),
    };
    if checks.contains(&Check::Test) {
        let selected = BESIDE_TESTS.iter().filter(|(check, _)| checks.contains(check));
        run.beside.extend(selected.map(|(check, name)| CheckBesideTests::new(*check, name)));
    }
    run.install_tools(&checks)?;
    for check in checks {
        if let Some(complete) = run.take_complete(check) {
            run.show_complete(&complete);
            continue;
        }
        match check {
            Check::Fmt => {
                let colour = run.color_option();
                run.cargo("fmt", &["fmt", "--all", "--check", "--", "--color", colour])?;
            }
            Check::Clippy => {
                let lint = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
                run.cargo("clippy", &lint)?;
            }
            Check::Test => run.run_tests_with_postgres()?,
            Check::Doc => run.cargo("doc", &DOC_ARGUMENTS)?,
            Check::Contract => run.contract()?,
        }
    }
    Ok(run.print_summary())
}

const DOC_ARGUMENTS: [&str; 3] = ["doc", "--workspace", "--no-deps"];

/// A check that runs next to the tests, and is displayed after them.
struct CheckBesideTests {
    check: Check,
    name: &'static str,
    lines: Vec<String>,
    since: Option<Instant>,
    /// How it ended, and after how long.
    ended: Option<(Verdict, Duration)>,
}

impl CheckBesideTests {
    fn new(check: Check, name: &'static str) -> CheckBesideTests {
        CheckBesideTests { check, name, lines: Vec::new(), since: None, ended: None }
    }

    fn on_event(&mut self, event: JobEvent) {
        match event {
            JobEvent::Started => self.since = Some(clock::now()),
            JobEvent::Line(line) => self.lines.push(line),
            JobEvent::Ended(status) => {
                let duration = self.since.map(|since| since.elapsed()).unwrap_or_default();
                self.ended = Some((Verdict::from_success(status.success()), duration));
            }
        }
    }
}

struct Run<'a> {
    workspace: &'a Workspace,
    options: &'a TestOptions,
    processes: &'a mut Processes,
    screen: &'a mut Screen,
    planned: usize,
    steps: Vec<Step>,
    /// The test suites, once they ran.
    suites: Option<Vec<Suite>>,
    /// The selected checks that run next to the tests, until they are displayed.
    beside: Vec<CheckBesideTests>,
}

impl Run<'_> {
    fn begin(&mut self, name: &str) -> Instant {
        self.screen.begin(&format!("[{}/{}] {name}", self.steps.len() + 1, self.planned));
        clock::now()
    }

    fn end(&mut self, name: &'static str, verdict: Verdict, since: Instant) {
        self.end_after(name, verdict, since.elapsed());
    }

    fn end_after(&mut self, name: &'static str, verdict: Verdict, took: Duration) {
        let word = match verdict {
            Verdict::Ok => self.screen.green("ok"),
            Verdict::Failed => self.screen.red("FAILED"),
            Verdict::NotRun => "not run".to_owned(),
        };
        self.screen.end(&format!("{word} {}", format_seconds(took)));
        self.steps.push(Step { name, verdict, duration: took });
    }

    /// Cargo and rustfmt write to a pipe and cannot detect the terminal.
    fn color_option(&self) -> &'static str {
        if self.screen.has_color() { "always" } else { "never" }
    }

    /// Installs missing tools. Without them the other checks are meaningless, so a failure ends the
    /// run.
    fn install_tools(&mut self, checks: &[Check]) -> Result<(), TaskError> {
        let since = self.begin("tools");
        let needs = requirements::for_checks(checks);
        let mut provided = requirements::ensure_installed(&needs, self.processes, self.screen);
        let packages = &self.options.packages;
        let browser = packages.is_empty() || packages.iter().any(|name| name == "cli");
        if provided.is_ok() && checks.contains(&Check::Test) && browser {
            let (workspace, packages) = (self.workspace, node::BROWSER);
            provided =
                node::ensure_installed(packages, workspace, self.processes, self.screen).map(drop);
        }
        match provided {
            Ok(()) => self.end("tools", Verdict::Ok, since),
            Err(halt) => {
                self.end("tools", Verdict::Failed, since);
                return Err(halt);
            }
        }
        Ok(())
    }

    /// Runs a check that is a single cargo command.
    fn cargo(&mut self, name: &'static str, arguments: &[&str]) -> Result<(), TaskError> {
        let since = self.begin(name);
        let mut cargo = self.cargo_command(arguments);
        let mut lines = Vec::new();
        let status = self.processes.run_with_lines(&mut cargo, TERMINATE_GROUP, &mut |line| {
            if line.trim_start().starts_with("Checking ") || line.contains("Compiling ") {
                self.screen.show_activity(line.trim_start());
            }
            lines.push(line.to_owned());
        })?;
        if status.success() {
            self.end(name, Verdict::Ok, since);
        } else {
            lines.iter().for_each(|line| self.screen.line(line));
            self.end(name, Verdict::Failed, since);
        }
        Ok(())
    }

    fn cargo_command(&self, arguments: &[&str]) -> Command {
        let mut cargo = self.workspace.cargo();
        cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
        cargo.env("CARGO_TERM_COLOR", self.color_option());
        cargo
    }

    /// The command of a check that runs next to the tests.
    fn command_beside_tests(&self, check: &CheckBesideTests) -> Command {
        if check.check == Check::Doc {
            return self.cargo_command(&DOC_ARGUMENTS);
        }
        // This program, even if cargo has replaced its file since it started.
        let mut xtask = Command::new("/proc/self/exe");
        xtask.args(["test", "--only", check.name]);
        xtask
    }

    /// The check, if it ran next to the tests.
    fn take_complete(&mut self, check: Check) -> Option<CheckBesideTests> {
        let is_complete = |one: &CheckBesideTests| one.check == check && one.ended.is_some();
        self.beside.iter().position(is_complete).map(|index| self.beside.remove(index))
    }

    fn show_complete(&mut self, check: &CheckBesideTests) {
        let Some((verdict, duration)) = check.ended else { return };
        self.begin(check.name);
        // Of a successful check, only its summaries, which are indented below its name.
        let is_shown = |line: &&String| verdict != Verdict::Ok || line.starts_with("      ");
        check.lines.iter().filter(is_shown).for_each(|line| self.screen.line(line));
        self.end_after(check.name, verdict, duration);
    }

    fn contract(&mut self) -> Result<(), TaskError> {
        let since = self.begin("contract");
        let good = match contract::check(self.workspace, self.processes, self.screen) {
            Ok(good) => good,
            Err(TaskError::Interrupted) => return Err(TaskError::Interrupted),
            Err(TaskError::Failed(sentence)) => {
                self.screen.line(&sentence);
                false
            }
        };
        self.end("contract", Verdict::from_success(good), since);
        Ok(())
    }

    fn run_tests_with_postgres(&mut self) -> Result<(), TaskError> {
        let since = self.begin("postgres");
        let postgres = match Postgres::start(Durability::Off, self.processes) {
            Ok(postgres) => postgres,
            Err(TaskError::Interrupted) => return Err(TaskError::Interrupted),
            Err(TaskError::Failed(sentence)) => {
                self.screen.line(&sentence);
                self.end("postgres", Verdict::Failed, since);
                let since = self.begin("test");
                self.end("test", Verdict::NotRun, since);
                return Ok(());
            }
        };
        self.end("postgres", Verdict::Ok, since);
        let result = self.run_tests(&postgres);
        let keep = if self.options.keep { Keep::Yes } else { Keep::No };
        postgres.stop(keep, self.processes, self.screen);
        result
    }

    fn run_tests(&mut self, postgres: &Postgres) -> Result<(), TaskError> {
        let since = self.begin("test");
        let Some(test_jobs) = self.build_tests()? else {
            self.end("test", Verdict::Failed, since);
            return Ok(());
        };
        let mut test_runs = Vec::new();
        let mut jobs = Vec::new();
        for mut job in test_jobs {
            postgres.export(&mut job.command);
            job.command.env(REQUIRE_TOOLS, "1");
            jobs.push(Job { lane: job.lane, command: job.command });
            test_runs.push(TestRun::new(job.program));
        }
        for check in &self.beside {
            let command = self.command_beside_tests(check);
            jobs.push(Job { lane: Lane::Cargo, command });
        }
        let (screen, beside) = (&mut *self.screen, &mut self.beside);
        // Without the time that the checks next to the tests take longer.
        let mut duration = since.elapsed();
        jobs::run(jobs, self.processes, &mut |index, event| match test_runs.get_mut(index) {
            Some(run) => {
                run.on_event(event, screen);
                duration = since.elapsed();
            }
            None => beside[index - test_runs.len()].on_event(event),
        })?;
        let success = test_runs.iter().all(|run| run.success);
        let (mut suites, mut failure_lines) = (Vec::new(), Vec::new());
        for run in test_runs {
            suites.extend(run.output.suites);
            failure_lines.extend(run.failure_output.lines);
        }
        let expected = self.workspace.store_mentions(postgres::URL_VARIABLE);
        let mut objections =
            report::find_problems(&suites, self.options.runs_every_test(), expected);
        objections.extend(postgres.unexpected_exit(self.processes));
        if !success {
            failure_lines.iter().for_each(|line| self.screen.line(line));
        }
        for objection in &objections {
            let words = self.screen.red(objection);
            self.screen.line(&words);
        }
        self.suites = Some(suites);
        self.end_after("test", Verdict::from_success(success && objections.is_empty()), duration);
        Ok(())
    }

    /// Builds all test programs. Returns how to run them; none if they could not be built.
    ///
    /// A run with arguments for cargo is a single job, because only cargo can tell a filter from
    /// the value of an option.
    fn build_tests(&mut self) -> Result<Option<Vec<TestJob>>, TaskError> {
        if !self.options.cargo_arguments().is_empty() {
            let mut cargo = self.cargo_test(&["--no-fail-fast"]);
            cargo.args(self.options.cargo_arguments()).arg("--");
            let command = self.with_program_arguments(cargo);
            return Ok(Some(vec![TestJob { lane: Lane::Cargo, command, program: None }]));
        }
        let mut build =
            self.cargo_test(&["--no-run", "--message-format", "json-render-diagnostics"]);
        let (mut programs, mut lines) = (Vec::new(), Vec::new());
        let screen = &mut *self.screen;
        let status = self.processes.run_with_lines(&mut build, TERMINATE_GROUP, &mut |line| {
            if let Some(program) = TestProgram::from_message(line) {
                programs.push(program);
            } else if !line.starts_with('{') {
                screen.show_activity(line.trim_start());
                lines.push(line.to_owned());
            }
        })?;
        if !status.success() {
            lines.iter().for_each(|line| self.screen.line(line));
            return Ok(None);
        }
        test_programs::sort(&mut programs);
        let has_library = programs.iter().any(TestProgram::is_library);
        // A name in the arguments would select tests in addition to those of a part.
        let is_whole = !self.options.program_arguments().is_empty();
        let mut jobs = Vec::new();
        for program in &programs {
            for part in if is_whole { &[Part::All] } else { program.parts() } {
                let lane = match part {
                    Part::WholeMachine => Lane::Alone,
                    Part::All | Part::Others => Lane::TestPrograms,
                };
                let command = self.with_program_arguments(program.command(self.workspace, *part));
                jobs.push(TestJob { lane, command, program: Some(program.clone()) });
            }
        }
        // They start when nothing else runs, so they are first. The sort keeps the order otherwise.
        jobs.sort_by_key(|job| job.lane != Lane::Alone);
        if has_library {
            let mut cargo = self.cargo_test(&["--doc", "--no-fail-fast"]);
            cargo.arg("--");
            let command = self.with_program_arguments(cargo);
            jobs.push(TestJob { lane: Lane::Cargo, command, program: None });
        }
        Ok(Some(jobs))
    }

    /// `cargo test` for the selected packages.
    fn cargo_test(&self, arguments: &[&str]) -> Command {
        let mut cargo = self.workspace.cargo();
        cargo.args(["test", "--color", "never"]).args(arguments);
        if self.options.packages.is_empty() {
            cargo.arg("--workspace");
        }
        for package in &self.options.packages {
            cargo.args(["--package", package]);
        }
        cargo
    }

    fn with_program_arguments(&self, mut command: Command) -> Command {
        // A passing test reports in its output what it skipped.
        command.arg("--show-output").args(self.options.program_arguments());
        command
    }

    fn print_summary(self) -> ExitCode {
        let totals = self.suites.as_deref().map(Totals::from_suites);
        for suite in self.suites.iter().flatten() {
            for test in suite.failures() {
                self.screen.line(&self.screen.red(&format!("failed: {} {test}", suite.name)));
            }
        }
        for line in report::summary(&self.steps, totals.as_ref()) {
            self.screen.line(&line);
        }
        match self.steps.iter().all(|step| step.verdict == Verdict::Ok) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// How to run a test program, or those that a cargo command runs one after another.
struct TestJob {
    lane: Lane,
    command: Command,
    program: Option<TestProgram>,
}

/// The output of a `TestJob` so far.
struct TestRun {
    /// None if the output is cargo's, which announces the programs itself.
    program: Option<TestProgram>,
    output: TestsOutput,
    failure_output: FailureOutput,
    success: bool,
}

impl TestRun {
    fn new(program: Option<TestProgram>) -> TestRun {
        let (output, failure_output) = (TestsOutput::new(), FailureOutput::default());
        TestRun { program, output, failure_output, success: false }
    }

    fn on_event(&mut self, event: JobEvent, screen: &mut Screen) {
        match event {
            JobEvent::Started => {
                if let Some(line) = self.program.as_ref().map(TestProgram::running_line) {
                    self.line(&line, screen);
                }
            }
            JobEvent::Line(line) => self.line(&line, screen),
            JobEvent::Ended(status) => self.end(status, screen),
        }
    }

    fn end(&mut self, status: ExitStatus, screen: &mut Screen) {
        self.success = status.success();
        if let Some(line) = self.program.as_ref().map(TestProgram::failed_line)
            && !self.success
        {
            self.line(&format!("{line} ({status})"), screen);
        }
    }

    fn line(&mut self, line: &str, screen: &mut Screen) {
        match self.output.line(line) {
            LineEvent::Ignored => {}
            LineEvent::Progress(what) => screen.show_activity(&what),
            LineEvent::SlowTest(test) => screen.line(&format!("      still running: {test}")),
            LineEvent::SuiteStarted(name) => {
                screen.show_activity(&name);
                self.failure_output.begin();
            }
            LineEvent::SuiteEnded => {
                if let Some(suite) = self.output.suites.last() {
                    show_suite(suite, screen);
                    self.failure_output.end(suite, line);
                }
            }
            LineEvent::FailureDetail => self.failure_output.lines.push(line.to_owned()),
        }
    }
}

/// The output that explains failures, in order, under the names of the failed suites.
#[derive(Default)]
struct FailureOutput {
    lines: Vec<String>,
    /// Index of the current suite's first line.
    suite_from: usize,
}

impl FailureOutput {
    fn begin(&mut self) {
        self.suite_from = self.lines.len();
    }

    fn end(&mut self, suite: &Suite, result: &str) {
        if suite.failed() > 0 {
            self.lines.insert(self.suite_from, format!("\n{}", suite.name));
            self.lines.push(result.to_owned());
        } else {
            self.lines.truncate(self.suite_from);
        }
    }
}

/// Prints one line for a suite that has tests.
fn show_suite(suite: &Suite, screen: &mut Screen) {
    let counts = [
        (suite.passed(), "passed"),
        (suite.failed(), "failed"),
        (suite.ignored(), "ignored"),
        (suite.skipped(), "skipped"),
    ];
    let words: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !words.is_empty() {
        let crashed = if suite.crashed { ", crashed without a result" } else { "" };
        screen.line(&format!("      {}: {}{crashed}", suite.name, words.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// The test run of a program with this output and wait status.
    fn run(lines: &[&str], status: i32) -> TestRun {
        let message = r#"{"manifest_path": "/src/crates/store/Cargo.toml", "profile": {"test": true},
            "target": {"kind": ["lib"], "name": "store", "src_path": "/src/crates/store/src/lib.rs"},
            "executable": "/target/debug/deps/store-1a2b"}"#;
        let mut screen = Screen::stdout();
        let mut run = TestRun::new(TestProgram::from_message(message));
        assert!(run.program.is_some());
        run.on_event(JobEvent::Started, &mut screen);
        for line in lines {
            run.on_event(JobEvent::Line((*line).to_owned()), &mut screen);
        }
        run.on_event(JobEvent::Ended(ExitStatus::from_raw(status)), &mut screen);
        run
    }

    #[test]
    fn program_without_result_line_has_crashed() {
        let run = run(&["running 2 tests", "test a ... ok", "memory allocation failed"], 6);
        assert!(!run.success);
        let suite = &run.output.suites[0];
        assert_eq!((suite.name.as_str(), suite.crashed), ("store (src/lib.rs)", true));
        assert_eq!((suite.passed(), suite.failed()), (1, 1));
        let shown = run.failure_output.lines.join("\n");
        assert!(shown.contains("memory allocation failed"), "{shown}");
        assert!(shown.contains("rerun pass `-p store --lib` (signal: 6"), "{shown}");
    }

    #[test]
    fn failure_is_shown_in_full_and_success_not_at_all() {
        let failed = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let lines = ["running 1 test", "test a ... FAILED", "failures:", "left: 1", failed];
        let failing = run(&lines, 101 << 8);
        let shown = failing.failure_output.lines.join("\n");
        assert!(!failing.success && !failing.output.suites[0].crashed);
        for line in ["store (src/lib.rs)", "left: 1", failed, "to rerun pass `-p store --lib`"] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        let passed = failed.replace("FAILED. 0 passed; 1 failed", "ok. 1 passed; 0 failed");
        let passing = run(&["running 1 test", "test a ... ok", &passed], 0);
        assert!(passing.success);
        assert_eq!(passing.failure_output.lines, [""; 0]);
    }
}
