//! The `fleetmend-agent` command.
//!
//! Exit codes: 0 on success, 1 on failure, 2 for invalid arguments.

use std::path::PathBuf;
use std::process::ExitCode;

use agent::output;
use agent::shell::upgrade::{Restore, Upgrade};
use agent::shell::{enroll::Enroll, run::Run, scan::Scan, status::Status};
use clap::{Parser, Subcommand};

/// Reports packages and installs updates for a Fleetmend server, within the limits of this host
#[derive(Parser)]
#[command(name = "fleetmend-agent", version = agent::version(), about, after_help = EXAMPLES)]
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
    #[command(hide = true)]
    Upgrade(Upgrade),
    #[command(hide = true)]
    Restore(Restore),
    /// Run a package manager in its own session (started by the agent, not by users)
    #[command(hide = true)]
    Supervise {
        /// Directory of the job
        job: PathBuf,
    },
}

fn main() -> ExitCode {
    // Must come before anything that uses TLS: rustls accepts only one process-wide crypto
    // provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = FleetmendAgent::parse().command;
    if let Command::Supervise { job } = &command {
        return agent::work::supervise::main(job);
    }
    match execute(command) {
        Ok(message) => {
            let printed = message.is_empty() || output::print(&message).is_ok();
            if printed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            output::note(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<String> {
    match command {
        Command::Enroll(enroll) => {
            let id = block_on(enroll.run())??;
            Ok(format!("enrolled as {id}; start the agent with `fleetmend-agent run`"))
        }
        Command::Run(run) => block_on(run.run())?,
        Command::Status(status) => status.run(),
        Command::Scan(scan) => scan.run(),
        Command::Upgrade(upgrade) => block_on(upgrade.run())?,
        Command::Restore(restore) => restore.run(),
        Command::Supervise { .. } => Ok(String::new()),
    }
}

/// One thread is enough for one connection.
fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(future))
}
