//! The `fleetmend` command: argument parsing and dispatch to one module per subcommand.
//!
//! Exit codes: 0 on success, 1 on failure, 2 on a usage error. Machine-readable output goes to
//! standard output, everything else to standard error.

mod backup;
mod completions;
#[cfg(feature = "demo")]
mod demo;
mod dev;
mod doctor;
mod feeds;
mod health;
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

Exit codes: 0 on success, 1 on failure, 2 on a usage error.
FLEETMEND_URL and FLEETMEND_API_KEY set the service to connect to and the API key to use.";

#[derive(Subcommand)]
enum Command {
    /// Start a service and an agent on this machine, to try Fleetmend out
    Dev(dev::Dev),
    /// Start a service with a simulated fleet and sample data for every feature
    #[cfg(feature = "demo")]
    Demo(demo::Demo),
    /// Create the database, the secrets, an organization and its first admin key
    Init(init::Init),
    /// Run the service: the API, the dashboard and the agent endpoint
    Server(serve::Server),
    /// Write a backup to a single file while the service keeps running
    Backup(backup::Backup),
    /// Restore a backup; work done since the backup is not repeated
    Restore(backup::restore::Restore),
    /// Migrate the database to the current schema
    Migrate(migrate::Migrate),
    /// Check the whole installation and suggest a remedy for each problem
    Doctor(doctor::Doctor),
    /// Ask a running service whether it is ready
    Health(health::Health),
    /// Create, list and remove organizations
    Orgs(orgs::Orgs),
    /// List the installation's keys, and rotate the order-signing and root keys
    Secrets(secrets::Secrets),
    #[command(flatten)]
    Operator(operator::Operator),
    /// Add, update and inspect vulnerability feeds
    Feeds(feeds::Feeds),
    /// Invite and manage dashboard users, on the machine where the service runs
    Users(users::Users),
    /// Print the OpenAPI 3.1 document as JSON
    #[command(after_help = "Example:\n  fleetmend openapi > openapi.json")]
    Openapi,
    /// Print a shell completion script
    Completions(completions::Completions),
    /// Write the man pages to a directory
    Man(completions::Man),
    /// Run a package manager in its own session; started automatically by the agent of `fleetmend
    /// dev`
    #[command(hide = true)]
    Supervise {
        /// Directory of the job
        job: PathBuf,
    },
}

fn main() -> ExitCode {
    // Before anything uses TLS: rustls reads its process-wide crypto provider only once.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = Fleetmend::parse().command;
    if let Command::Supervise { job } = &command {
        return agent::work::supervise::main(job);
    }
    match run_command(command) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe early, as in `fleetmend servers list | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let message = format!("{error:#}");
            let _ = output::err(&format!("fleetmend: {}\n", message.trim_end()));
            ExitCode::from(if error.is::<operator::UsageError>() { 2 } else { 1 })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run_command(command: Command) -> anyhow::Result<()> {
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
            Command::Health(health) => health.run().await,
            Command::Orgs(orgs) => orgs.run().await,
            Command::Secrets(secrets) => secrets.run().await,
            Command::Operator(operator) => operator.run().await,
            Command::Feeds(feeds) => feeds.run().await,
            Command::Users(users) => users.run().await,
            Command::Openapi => print_line(server::openapi()),
            Command::Completions(completions) => completions.run(Fleetmend::command()),
            Command::Man(man) => man.run(Fleetmend::command()),
            Command::Supervise { .. } => Ok(()),
        }
    })
}

/// Prints one line to standard output.
fn print_line(line: &str) -> anyhow::Result<()> {
    Ok(output::out(&format!("{line}\n"))?)
}
