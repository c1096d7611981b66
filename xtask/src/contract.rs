//! The contract, checked by programs that know the service only by its own description.
//!
//! A validator reads the document; a client is generated from it and calls the sixteen operations; schemathesis
//! walks all of them with what the document allows and forbids. The service is the real one, on a database and a
//! port of its own, with simulated agents that do the work. `steps` calls it.

use std::path::Path;
use std::process::Command;

use crate::process::{AT_ONCE, Halt, Processes};
use crate::python::Python;
use crate::screen::Screen;
use crate::service::{ENVIRONMENT, SERVERS, Service};
use crate::workspace::Workspace;

/// How long schemathesis walks. It goes on until then, so this is most of what the check takes.
const WALK_SECONDS: u32 = 120;

/// Cargo's words for the programs. A test is named so that what the tests were built from is built from again:
/// without one, dependencies lose the features that only tests ask of them, and are compiled anew.
const BUILD: [&str; 5] = ["build", "--workspace", "--bins", "--test", "end_to_end"];

/// Runs every part; what is wrong has been shown. Whether all went well.
pub(crate) fn check(
    workspace: &Workspace,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<bool, Halt> {
    let python = Python::provide(workspace, processes, screen)?;
    screen.at("building the service");
    let mut cargo = workspace.cargo();
    cargo.args(BUILD);
    if !shown("cargo build", &mut cargo, processes, screen)? {
        return Ok(false);
    }
    screen.at("starting the service");
    let service = Service::start(workspace, processes)?;
    let parts = Parts { workspace, python: &python, service: &service, processes, screen };
    let result = parts.run();
    let ended = service.ended_early(processes);
    service.stop(processes);
    if let Some(sentence) = &ended {
        screen.line(&screen.red(sentence));
    }
    Ok(result? && ended.is_none())
}

struct Parts<'a> {
    workspace: &'a Workspace,
    python: &'a Python,
    service: &'a Service,
    processes: &'a mut Processes,
    screen: &'a mut Screen,
}

impl Parts<'_> {
    /// One after the other. What fails does not hide the next, unless there is nothing to go on with.
    fn run(mut self) -> Result<bool, Halt> {
        let document = self.service.directory().join("openapi.json");
        let text = self.service.get("/openapi.json")?;
        std::fs::write(&document, text)
            .map_err(|error| Halt::Failed(format!("cannot write the document: {error}")))?;

        let mut validator = self.command("openapi-spec-validator");
        let valid = self.part("openapi-spec-validator", validator.arg("openapi.json"))?;
        let client = self.service.directory().join("client");
        let called = self.generate(&document, &client)? && self.call(&client)?;
        let sound = self.walk()? && self.reached(&document)?;
        Ok(valid && called && sound)
    }

    fn generate(&mut self, document: &Path, client: &Path) -> Result<bool, Halt> {
        let mut generator = self.command("openapi-python-client");
        generator.args(["generate", "--meta", "none", "--fail-on-warning", "--path"]);
        generator.arg(document).arg("--output-path").arg(client.join("fleetmend_client"));
        std::fs::create_dir_all(client)
            .map_err(|error| Halt::Failed(format!("cannot make the client's place: {error}")))?;
        self.screen.at("openapi-python-client");
        shown("openapi-python-client", &mut generator, self.processes, self.screen)
    }

    fn call(&mut self, client: &Path) -> Result<bool, Halt> {
        let mut script = self.command("python");
        script.arg(self.workspace.path("xtask/contract/sixteen.py")).arg(client);
        self.part("openapi-python-client", &mut script)
    }

    fn walk(&mut self) -> Result<bool, Halt> {
        let settings = self.workspace.path("xtask/contract/schemathesis.toml");
        let mut walk = self.command("schemathesis");
        walk.arg("--config-file").arg(settings).arg("run");
        walk.arg(format!("{}/openapi.json", self.service.url()));
        walk.arg("--no-color").arg(format!("--max-time={WALK_SECONDS}"));
        walk.env("PYTHONPATH", self.workspace.path("xtask/contract"));
        walk.env("SCHEMATHESIS_HOOKS", "hooks");
        self.screen.at(&format!("schemathesis, for {WALK_SECONDS} s"));
        shown("schemathesis", &mut walk, self.processes, self.screen)
    }

    fn reached(&mut self, document: &Path) -> Result<bool, Halt> {
        let mut script = self.command("python");
        script.arg(self.workspace.path("xtask/contract/reached.py")).arg(document);
        self.part("schemathesis", &mut script)
    }

    /// A program that is told where the service is. It works in the service's directory, and leaves nothing elsewhere.
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

    /// A part whose last line, if all is well, says what it did.
    fn part(&mut self, name: &str, command: &mut Command) -> Result<bool, Halt> {
        self.screen.at(name);
        let mut last = String::new();
        let good = shown_unless(command, self.processes, self.screen, name, &mut last)?;
        if good {
            self.screen.line(&format!("      {name}: {last}"));
        }
        Ok(good)
    }
}

/// Runs a command; what it said is shown if it failed.
fn shown(
    name: &str,
    command: &mut Command,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<bool, Halt> {
    shown_unless(command, processes, screen, name, &mut String::new())
}

fn shown_unless(
    command: &mut Command,
    processes: &mut Processes,
    screen: &mut Screen,
    name: &str,
    last: &mut String,
) -> Result<bool, Halt> {
    let mut said = Vec::new();
    let status = processes.run_with_lines(command, AT_ONCE, &mut |line| {
        said.push(line.to_owned());
    })?;
    if !status.success() {
        screen.line(&screen.red(&format!("{name} ({status}):")));
        said.iter().for_each(|line| screen.line(line));
    }
    *last = said.pop().unwrap_or_default();
    Ok(status.success())
}
