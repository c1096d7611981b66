//! Developer tasks for the workspace: `cargo xtask test` and related commands.
//!
//! `args` parses the command line, `steps` runs the checks (`jobs` side by side), `bench` the
//! benchmarks, `package` builds the packages, `release` everything that is published, and
//! `postgres` is the private database for tests and benchmarks. Nothing here is shipped: the
//! services never call this crate, and it never touches a database that it did not create.

mod apt;
mod args;
mod bench;
mod clock;
mod contract;
mod fuzz;
mod jobs;
mod node;
mod package;
mod postgres;
mod process;
mod python;
mod release;
mod report;
mod requirements;
mod screen;
mod service;
mod steps;
mod test_programs;
mod tests_output;
mod workspace;

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use args::{Cli, Task};
use clap::Parser as _;
use postgres::{Durability, Keep, Postgres};
use process::{Processes, TaskError};
use screen::Screen;
use workspace::Workspace;

fn main() -> ExitCode {
    let mut screen = Screen::stdout();
    let task = Cli::parse().task;
    match Processes::new().and_then(|mut processes| run(task, &mut processes, &mut screen)) {
        Ok(code) => code,
        Err(TaskError::Interrupted) => {
            screen.abandon();
            screen.line("interrupted");
            ExitCode::from(130)
        }
        Err(TaskError::Failed(sentence)) => {
            screen.line(&screen.red(&sentence));
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task, processes: &mut Processes, screen: &mut Screen) -> Result<ExitCode, TaskError> {
    let workspace = Workspace::find();
    match task {
        Task::Setup => {
            requirements::ensure_installed(&requirements::all(), processes, screen)?;
            for packages in [node::BROWSER, node::LINTERS] {
                node::ensure_installed(packages, &workspace, processes, screen)?;
            }
            screen.line("all required tools are installed");
            Ok(ExitCode::SUCCESS)
        }
        Task::Test(options) => steps::test(&workspace, &options, processes, screen),
        Task::Postgres { command } => with_postgres(&workspace, &command, processes, screen),
        Task::Sim { arguments } => {
            let mut cargo = workspace.cargo();
            cargo.args(["run", "--release", "-p", "domain", "--bin", "sim", "--"]);
            cargo.args(arguments).stdin(Stdio::null());
            Ok(exit_code(processes.run(&mut cargo)?))
        }
        Task::Fuzz(options) => fuzz::run(&workspace, &options, processes, screen),
        Task::Package(options) => {
            package::build_packages(&workspace, &options, processes, screen)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Release(options) => release::create(&workspace, &options, processes, screen),
        Task::Bench { filter } => bench::run_all(&workspace, filter.as_deref(), processes, screen),
    }
}

/// `cargo xtask postgres`: runs a database for the duration of a command, or until Ctrl-C.
fn with_postgres(
    workspace: &Workspace,
    command: &[String],
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<ExitCode, TaskError> {
    requirements::ensure_installed(&requirements::for_postgres(), processes, screen)?;
    let postgres = Postgres::start(Durability::Off, processes)?;
    let result = match command.split_first() {
        Some((program, arguments)) => {
            let mut child = workspace::without_cargo_run_variables(Command::new(program));
            child.args(arguments).current_dir(workspace.started_in());
            export_environment(&postgres, &mut child);
            match std::io::stdin().is_terminal() {
                true => processes.run_in_foreground(&mut child).map(exit_code),
                false => processes.run(&mut child).map(exit_code),
            }
        }
        None => {
            screen.line(&format!("{}={}", postgres::URL_VARIABLE, postgres.url()));
            screen.line("Press Ctrl-C to stop PostgreSQL.");
            processes.wait(postgres.process(), Duration::MAX);
            Err(postgres
                .unexpected_exit(processes)
                .map_or(TaskError::Interrupted, TaskError::Failed))
        }
    };
    postgres.stop(Keep::No, processes, screen);
    result
}

/// Sets the variable that tests read, and those that let a plain `psql` connect.
fn export_environment(postgres: &Postgres, child: &mut Command) {
    postgres.export(child);
    child.env("PGHOST", postgres.directory()).env("PGPORT", postgres::PORT.to_string());
    child.env("PGUSER", postgres::SUPERUSER).env("PGDATABASE", postgres::SUPERUSER);
}

/// Converts a child's exit status to our own, like a shell: a signal becomes 128 plus its number.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
