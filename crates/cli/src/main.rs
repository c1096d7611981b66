//! The command `fleetmend`.
//!
//! It ends with 0 if it did what it was asked, 1 if it could not, 2 if it was asked wrongly. What is meant for
//! programs goes to standard output, everything else to standard error.

mod feeds;
mod init;
mod logs;
mod serve;
mod settings;
mod tls;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Patch management for Linux fleets.
#[derive(Parser)]
#[command(name = "fleetmend", version, about, after_help = EXAMPLES)]
struct Fleetmend {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  fleetmend init --data-dir /var/lib/fleetmend --org Acme
  fleetmend server --data-dir /var/lib/fleetmend
  curl -H \"Authorization: Bearer $FLEETMEND_API_KEY\" http://127.0.0.1:7600/v1/servers";

#[derive(Subcommand)]
enum Command {
    /// Make the database, the secrets, an organization and its first admin key
    Init(init::Init),
    /// Serve the API and the agents
    Server(serve::Server),
    /// Take in what is published about flaws, and see what is there
    Feeds(feeds::Feeds),
    /// Print the description of the API (OpenAPI 3.1, JSON)
    #[command(after_help = "Example:\n  fleetmend openapi > openapi.json")]
    Openapi,
}

fn main() -> ExitCode {
    // Before anything that may speak TLS: rustls asks for its provider once and for all.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match act(Fleetmend::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "fleetmend: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        match command {
            Command::Init(init) => init.run().await,
            Command::Server(server) => server.run().await,
            Command::Feeds(feeds) => feeds.run().await,
            Command::Openapi => say(server::http::openapi::text()),
        }
    })
}

/// Writes a line for programs.
fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
