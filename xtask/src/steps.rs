//! `cargo xtask test`: runs the checks one after another.
//!
//! A failed check does not skip the next one. The output of a check is shown in full if it fails,
//! and not otherwise.

use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::ValueEnum as _;

use crate::args::{Check, TestOptions};
use crate::clock;
use crate::contract;
use crate::node;
use crate::postgres::{self, Durability, Keep, Postgres};
use crate::process::{Processes, TERMINATE_GROUP, TaskError};
use crate::report::{self, Step, Totals, Verdict, format_seconds};
use crate::requirements;
use crate::screen::Screen;
use crate::tests_output::{LineEvent, Suite, TestsOutput};
use crate::workspace::Workspace;

/// Makes tests fail instead of skip if a tool is missing.
const REQUIRE_TOOLS: &str = "FLEETMEND_TEST_REQUIRE_TOOLS";

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
    };
    run.install_tools(&checks)?;
    for check in checks {
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
            Check::Doc => run.cargo("doc", &["doc", "--workspace", "--no-deps"])?,
            Check::Contract => run.contract()?,
        }
    }
    Ok(run.print_summary())
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
}

impl Run<'_> {
    fn begin(&mut self, name: &str) -> Instant {
        self.screen.begin(&format!("[{}/{}] {name}", self.steps.len() + 1, self.planned));
        clock::now()
    }

    fn end(&mut self, name: &'static str, verdict: Verdict, since: Instant) {
        let took = since.elapsed();
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
        let mut cargo = self.workspace.cargo();
        cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
        cargo.env("CARGO_TERM_COLOR", self.color_option());
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
        self.end("contract", if good { Verdict::Ok } else { Verdict::Failed }, since);
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
        let mut cargo = self.cargo_test();
        postgres.export(&mut cargo);
        let mut output = TestsOutput::new();
        let mut failure_output = FailureOutput::default();
        let screen = &mut *self.screen;
        let status =
            self.processes.run_with_lines(&mut cargo, TERMINATE_GROUP, &mut |line| match output
                .line(line)
            {
                LineEvent::Ignored => {}
                LineEvent::Progress(what) => screen.show_activity(&what),
                LineEvent::SlowTest(test) => screen.line(&format!("      still running: {test}")),
                LineEvent::SuiteStarted(name) => {
                    screen.show_activity(&name);
                    failure_output.begin();
                }
                LineEvent::SuiteEnded => {
                    if let Some(suite) = output.suites.last() {
                        show_suite(suite, screen);
                        failure_output.end(suite, line);
                    }
                }
                LineEvent::FailureDetail => failure_output.lines.push(line.to_owned()),
            })?;
        let expected = self.workspace.store_mentions(postgres::URL_VARIABLE);
        let mut objections =
            report::find_problems(&output.suites, self.options.runs_every_test(), expected);
        objections.extend(postgres.unexpected_exit(self.processes));
        let good = status.success() && objections.is_empty();
        if !status.success() {
            failure_output.lines.iter().for_each(|line| self.screen.line(line));
        }
        for objection in &objections {
            let words = self.screen.red(objection);
            self.screen.line(&words);
        }
        self.suites = Some(output.suites);
        self.end("test", if good { Verdict::Ok } else { Verdict::Failed }, since);
        Ok(())
    }

    fn cargo_test(&self) -> Command {
        let mut cargo = self.workspace.cargo();
        cargo.args(["test", "--no-fail-fast", "--color", "never"]);
        if self.options.packages.is_empty() {
            cargo.arg("--workspace");
        }
        for package in &self.options.packages {
            cargo.args(["--package", package]);
        }
        cargo.args(self.options.cargo_arguments());
        // A passing test reports in its output what it skipped.
        cargo.args(["--", "--show-output"]).args(self.options.program_arguments());
        cargo.env(REQUIRE_TOOLS, "1");
        cargo
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
