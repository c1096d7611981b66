//! Checks the API contract with tools that know the service only from its OpenAPI document.
//!
//! A validator and two linters check the document, a client is generated from it and calls the
//! sixteen core operations, the reference libraries of Standard Webhooks verify signatures, and
//! schemathesis tests all operations with valid and invalid input. The service is the real one,
//! with its own database and port, and simulated agents carry out the work. `steps` calls this
//! module.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node;
use crate::process::{Processes, TERMINATE_GROUP, TaskError};
use crate::python::Python;
use crate::screen::Screen;
use crate::service::{ENVIRONMENT, SERVERS, Service};
use crate::workspace::Workspace;

/// Run time of schemathesis. It always uses all of it, so this is most of the duration of the
/// check.
const SCHEMATHESIS_SECONDS: u32 = 120;

/// Arguments for cargo. Naming a test makes cargo use the same features as for the tests. Without
/// it, dependencies would lose the features that only tests enable and would be compiled again.
const BUILD_ARGUMENTS: [&str; 5] = ["build", "--workspace", "--bins", "--test", "end_to_end"];

/// Runs all parts and shows the output of those that fail. Returns whether all succeeded.
pub(crate) fn check(
    workspace: &Workspace,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<bool, TaskError> {
    let python = Python::ensure_installed(workspace, processes, screen)?;
    let linters = node::ensure_installed(node::LINTERS, workspace, processes, screen)?;
    screen.show_activity("building the service");
    let mut cargo = workspace.cargo();
    cargo.args(BUILD_ARGUMENTS);
    if !run_showing_failure("cargo build", &mut cargo, processes, screen)? {
        return Ok(false);
    }
    screen.show_activity("starting the service");
    let service = Service::start(workspace, processes)?;
    let parts = ContractChecks {
        workspace,
        python: &python,
        linters,
        service: &service,
        processes,
        screen,
    };
    let result = parts.run();
    let ended = service.unexpected_exit(processes);
    service.stop(processes);
    if let Some(sentence) = &ended {
        screen.line(&screen.red(sentence));
    }
    Ok(result? && ended.is_none())
}

struct ContractChecks<'a> {
    workspace: &'a Workspace,
    python: &'a Python,
    /// The directory of the npm packages.
    linters: PathBuf,
    service: &'a Service,
    processes: &'a mut Processes,
    screen: &'a mut Screen,
}

impl ContractChecks<'_> {
    /// Runs the parts one after another. A failed part does not skip the next one, unless that
    /// depends on it.
    fn run(mut self) -> Result<bool, TaskError> {
        let document = self.service.directory().join("openapi.json");
        let text = self.service.get("/openapi.json")?;
        std::fs::write(&document, text)
            .map_err(|error| TaskError::Failed(format!("cannot write the document: {error}")))?;

        let mut validator = self.command("openapi-spec-validator");
        let valid = self.run_part("openapi-spec-validator", validator.arg("openapi.json"))?;
        let clean = self.run_spectral()? & self.run_redocly()?;
        let client = self.service.directory().join("client");
        let called = self.generate_client(&document, &client)? && self.run_client_smoke(&client)?;
        let signed = self.verify_webhook_signatures()?;
        let sound = self.run_schemathesis()? && self.check_coverage(&document)?;
        Ok(valid && clean && called && signed && sound)
    }

    fn run_spectral(&mut self) -> Result<bool, TaskError> {
        let mut spectral = self.linter("spectral");
        spectral.args(["lint", "openapi.json", "--fail-severity", "warn", "--ruleset"]);
        spectral.arg(self.workspace.path("xtask/contract/spectral.yaml"));
        self.run_part("spectral", &mut spectral)
    }

    fn run_redocly(&mut self) -> Result<bool, TaskError> {
        let mut redocly = self.linter("redocly");
        redocly.args(["lint", "openapi.json", "--config"]);
        redocly.arg(self.workspace.path("xtask/contract/redocly.yaml"));
        // It would contact its publisher otherwise.
        redocly.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
        self.run_part("redocly", &mut redocly)
    }

    /// A linter, run in the directory of the document.
    fn linter(&self, program: &str) -> Command {
        let mut command = Command::new(self.linters.join("node_modules/.bin").join(program));
        command.current_dir(self.service.directory());
        command
    }

    fn generate_client(&mut self, document: &Path, client: &Path) -> Result<bool, TaskError> {
        let mut generator = self.command("openapi-python-client");
        generator.args(["generate", "--meta", "none", "--fail-on-warning", "--path"]);
        generator.arg(document).arg("--output-path").arg(client.join("fleetmend_client"));
        std::fs::create_dir_all(client).map_err(|error| {
            TaskError::Failed(format!("cannot create the client's directory: {error}"))
        })?;
        self.screen.show_activity("openapi-python-client");
        run_showing_failure("openapi-python-client", &mut generator, self.processes, self.screen)
    }

    fn run_client_smoke(&mut self, client: &Path) -> Result<bool, TaskError> {
        let mut script = self.command("python");
        script.arg(self.workspace.path("xtask/contract/client_smoke.py")).arg(client);
        self.run_part("openapi-python-client", &mut script)
    }

    /// With the reference libraries of Standard Webhooks.
    fn verify_webhook_signatures(&mut self) -> Result<bool, TaskError> {
        let mut script = self.command("python");
        script.arg(self.workspace.path("xtask/contract/webhook_signatures.py"));
        script.arg(&self.linters).arg(self.workspace.path("xtask/contract/webhook_signatures.mjs"));
        self.run_part("standardwebhooks", &mut script)
    }

    fn run_schemathesis(&mut self) -> Result<bool, TaskError> {
        let settings = self.workspace.path("xtask/contract/schemathesis.toml");
        let mut walk = self.command("schemathesis");
        walk.arg("--config-file").arg(settings).arg("run");
        walk.arg(format!("{}/openapi.json", self.service.url()));
        walk.arg("--no-color").arg(format!("--max-time={SCHEMATHESIS_SECONDS}"));
        walk.env("PYTHONPATH", self.workspace.path("xtask/contract"));
        walk.env("SCHEMATHESIS_HOOKS", "hooks");
        self.screen.show_activity(&format!("schemathesis, for {SCHEMATHESIS_SECONDS} s"));
        run_showing_failure("schemathesis", &mut walk, self.processes, self.screen)
    }

    fn check_coverage(&mut self, document: &Path) -> Result<bool, TaskError> {
        let mut script = self.command("python");
        script.arg(self.workspace.path("xtask/contract/coverage.py")).arg(document);
        self.run_part("schemathesis", &mut script)
    }

    /// A command with the service's address in its environment. It runs in the service's directory
    /// and leaves no files elsewhere.
    fn command(&self, program: &str) -> Command {
        let mut command = self.python.program(program);
        let directory = self.service.directory();
        command.current_dir(directory);
        command.env("FLEETMEND_URL", self.service.url());
        command.env("FLEETMEND_API_KEY", self.service.key());
        command.env("FLEETMEND_CONTRACT_SERVERS", SERVERS.to_string());
        command.env("FLEETMEND_CONTRACT_ENVIRONMENT", ENVIRONMENT);
        command.env("FLEETMEND_CONTRACT_TALLY", directory.join("tally.json"));
        command
    }

    /// Runs a part. If it succeeds, its last line of output with text is shown as a summary.
    fn run_part(&mut self, name: &str, command: &mut Command) -> Result<bool, TaskError> {
        self.screen.show_activity(name);
        let mut last = String::new();
        let good = run_capturing_last_line(command, self.processes, self.screen, name, &mut last)?;
        if good {
            self.screen.line(&format!("      {name}: {last}"));
        }
        Ok(good)
    }
}

/// Runs a command and shows its output if it failed.
fn run_showing_failure(
    name: &str,
    command: &mut Command,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<bool, TaskError> {
    run_capturing_last_line(command, processes, screen, name, &mut String::new())
}

fn run_capturing_last_line(
    command: &mut Command,
    processes: &mut Processes,
    screen: &mut Screen,
    name: &str,
    last: &mut String,
) -> Result<bool, TaskError> {
    let mut lines = Vec::new();
    let status = processes.run_with_lines(command, TERMINATE_GROUP, &mut |line| {
        lines.push(line.to_owned());
    })?;
    if !status.success() {
        screen.line(&screen.red(&format!("{name} ({status}):")));
        lines.iter().for_each(|line| screen.line(line));
    }
    *last = lines.into_iter().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Ok(status.success())
}
