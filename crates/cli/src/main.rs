//! The command `fleetmend`.
//!
//! It ends with 0 if it did what it was asked, 1 if it could not, 2 if it was asked wrongly. What is meant for
//! programs goes to standard output, everything else to standard error.

mod backup;
#[cfg(feature = "demo")]
mod demo;
mod dev;
mod doctor;
mod feeds;
mod init;
mod installation;
mod listen;
mod logs;
mod migrate;
mod oidc;
mod operator;
mod orgs;
mod output;
mod secrets;
mod serve;
mod settings;
mod shells;
mod tls;
mod users;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Patch management for Linux fleets.
#[derive(Parser)]
#[command(name = "fleetmend", version, about, after_help = EXAMPLES)]
struct Fleetmend {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  fleetmend dev
  fleetmend servers list --status offline
  fleetmend servers patch web-1 --security-only --watch
  fleetmend init --data-dir /var/lib/fleetmend --org Acme
  fleetmend server --data-dir /var/lib/fleetmend

It ends with 0 if it did what it was asked, 1 if it could not, 2 if it was asked wrongly.
FLEETMEND_URL and FLEETMEND_API_KEY say which service is meant, and with which key.";

#[derive(Subcommand)]
enum Command {
    /// Start everything on this machine: a service, and an agent that observes this very machine
    Dev(dev::Dev),
    /// Start a service with a simulated fleet that has something to show everywhere
    #[cfg(feature = "demo")]
    Demo(demo::Demo),
    /// Create the database, the secrets, an organization and its first admin key
    Init(init::Init),
    /// Serve the API and the agents
    Server(serve::Server),
    /// Copy everything into one file, while the service goes on
    Backup(backup::Backup),
    /// Bring a backup back; nothing that was done since is done again
    Restore(backup::restore::Restore),
    /// Migrate the database to the current schema
    Migrate(migrate::Migrate),
    /// Check the whole installation, with a remedy for each finding
    Doctor(doctor::Doctor),
    /// Create, list and remove organizations
    Orgs(orgs::Orgs),
    /// List the keys of the installation, and rotate the key that signs orders
    Secrets(secrets::Secrets),
    #[command(flatten)]
    Operator(operator::Operator),
    /// Import and inspect vulnerability feeds
    Feeds(feeds::Feeds),
    /// Invite people to the dashboard, on the machine of the service
    Users(users::Users),
    /// Print the description of the API (OpenAPI 3.1, JSON)
    #[command(after_help = "Example:\n  fleetmend openapi > openapi.json")]
    Openapi,
    /// Print completions for a shell
    Completions(shells::Completions),
    /// Write man pages into a directory
    Man(shells::Man),
    /// Run a package manager in a session of its own; the agent of `dev` starts this by itself
    #[command(hide = true)]
    Supervise {
        /// Where the job lies
        job: PathBuf,
    },
}

fn main() -> ExitCode {
    // Before anything that may speak TLS: rustls asks for its provider once and for all.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = Fleetmend::parse().command;
    if let Command::Supervise { job } = &command {
        return agent::work::supervise::main(job);
    }
    match act(command) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough: `fleetmend servers list | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let said = format!("{error:#}");
            let _ = output::err(&format!("fleetmend: {}\n", said.trim_end()));
            ExitCode::from(if error.is::<operator::Usage>() { 2 } else { 1 })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn act(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        match command {
            Command::Dev(dev) => dev.run().await,
            #[cfg(feature = "demo")]
            Command::Demo(demo) => demo.run().await,
            Command::Init(init) => init.run().await,
            Command::Server(server) => server.run().await,
            Command::Backup(backup) => backup.run().await,
            Command::Restore(restore) => restore.run().await,
            Command::Migrate(migrate) => migrate.run().await,
            Command::Doctor(doctor) => doctor.run().await,
            Command::Orgs(orgs) => orgs.run().await,
            Command::Secrets(secrets) => secrets.run().await,
            Command::Operator(operator) => operator.run().await,
            Command::Feeds(feeds) => feeds.run().await,
            Command::Users(users) => users.run().await,
            Command::Openapi => say(server::openapi()),
            Command::Completions(completions) => completions.run(Fleetmend::command()),
            Command::Man(man) => man.run(Fleetmend::command()),
            Command::Supervise { .. } => Ok(()),
        }
    })
}

/// Writes a line for programs.
fn say(line: &str) -> anyhow::Result<()> {
    Ok(output::out(&format!("{line}\n"))?)
}
