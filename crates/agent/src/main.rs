//! The command `fleetmend-agent`.
//!
//! It ends with 0 if it did what it was asked, 1 if it could not, 2 if it was asked wrongly.

use std::path::PathBuf;
use std::process::ExitCode;

use agent::output;
use agent::shell::{enroll::Enroll, run::Run, scan::Scan, status::Status};
use clap::{Parser, Subcommand};

/// Keeps this server patched, as its Fleetmend server and its own administrator will have it.
#[derive(Parser)]
#[command(name = "fleetmend-agent", version, about, after_help = EXAMPLES)]
struct FleetmendAgent {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  fleetmend-agent enroll --server https://fleet.example:7600 --token fme_…
  fleetmend-agent run
  fleetmend-agent status
  fleetmend-agent scan --json";

#[derive(Subcommand)]
enum Command {
    Enroll(Enroll),
    Run(Run),
    Status(Status),
    Scan(Scan),
    /// Run a package manager in a session of its own; the agent starts this by itself
    #[command(hide = true)]
    Supervise {
        /// Where the job lies
        job: PathBuf,
    },
}

fn main() -> ExitCode {
    // Before anything that may speak TLS: rustls asks for its provider once and for all.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = FleetmendAgent::parse().command;
    if let Command::Supervise { job } = &command {
        return agent::work::supervise::main(job);
    }
    match act(command) {
        Ok(said) => {
            let shown = said.is_empty() || output::print(&said).is_ok();
            if shown { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            output::note(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn act(command: Command) -> anyhow::Result<String> {
    match command {
        Command::Enroll(enroll) => {
            let id = wait(enroll.run())??;
            Ok(format!("enrolled as {id}; `fleetmend-agent run` keeps in touch"))
        }
        Command::Run(run) => wait(run.run())?,
        Command::Status(status) => status.run(),
        Command::Scan(scan) => scan.run(),
        Command::Supervise { .. } => Ok(String::new()),
    }
}

/// One thread is enough to talk to one server.
fn wait<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(future))
}
