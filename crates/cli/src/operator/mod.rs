//! The operator commands. They use the public API only.
//!
//! `api` is the HTTP client, `table` formats output, `patch_request` previews and confirms before
//! anything starts, `watch` follows a batch, `batch_view` formats one. Every other module is one
//! resource of the API. Results go to standard output, everything else to standard error.

mod agents;
pub(crate) mod api;
mod audit;
mod batch_view;
mod batches;
mod compliance;
pub(crate) mod credentials;
mod cves;
mod events;
mod explain;
pub(crate) mod feeds;
mod forecast;
mod freezes;
mod keys;
mod list;
mod names;
mod notifications;
pub(crate) mod patch_request;
mod patches;
mod policies;
mod schedules;
mod selection;
mod servers;
mod summary;
mod suppressions;
pub(crate) mod table;
mod tokens;
mod trust;
mod watch;
mod webhooks;

use clap::Subcommand;
use serde::Serialize;

use api::{Api, ApiResponse};
use credentials::Connection;
pub(crate) use patch_request::confirm;
use table::{Cell, Screen, Tone};

use crate::output;

#[derive(Subcommand)]
pub(crate) enum Operator {
    /// Show key figures of the organization
    Summary(summary::Summary),
    /// List, show, patch and remove servers
    Servers(servers::Servers),
    /// List and show pending updates
    Patches(patches::Patches),
    /// List and show CVEs with the affected servers
    Cves(cves::Cves),
    /// Explain why an update or a CVE on a server is not patched
    #[command(
        after_help = "Examples:\n  fleetmend explain web-1 openssl\n  fleetmend explain web-1 CVE-2026-1234"
    )]
    Explain(explain::Explain),
    /// Suppress CVEs that do not matter, with a reason
    Suppressions(suppressions::Suppressions),
    /// Patch several servers at once
    Batches(batches::Batches),
    /// Manage recurring patch runs
    Schedules(schedules::Schedules),
    /// Forecast what the schedules will do in the next days
    #[command(
        after_help = "Examples:\n  fleetmend forecast --days 14\n  fleetmend forecast --schedule-file nightly.json"
    )]
    Forecast(forecast::ForecastArgs),
    /// Manage the times in which no task starts
    Freezes(freezes::Freezes),
    /// Manage by when fixes must be installed
    Policies(policies::Policies),
    /// Show which servers comply with which policy, and write signed reports
    Compliance(compliance::Compliance),
    /// Show what happens
    Events(events::Events),
    /// Read and verify the audit log
    Audit(audit::Audit),
    /// Send events to other systems
    Webhooks(webhooks::Webhooks),
    /// Test notifications by email
    Notifications(notifications::Notifications),
    /// Show the agents of the fleet, and upgrade them
    Agents(agents::Agents),
    /// Manage enrollment tokens, which servers use to join
    Tokens(tokens::Tokens),
    /// Manage API keys
    Keys(keys::Keys),
}

impl Operator {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Operator::Summary(summary) => summary.run().await,
            Operator::Servers(servers) => servers.run().await,
            Operator::Patches(patches) => patches.run().await,
            Operator::Cves(cves) => cves.run().await,
            Operator::Explain(explain) => explain.run().await,
            Operator::Suppressions(suppressions) => suppressions.run().await,
            Operator::Batches(batches) => batches.run().await,
            Operator::Schedules(schedules) => schedules.run().await,
            Operator::Forecast(forecast) => forecast.run().await,
            Operator::Freezes(freezes) => freezes.run().await,
            Operator::Policies(policies) => policies.run().await,
            Operator::Compliance(compliance) => compliance.run().await,
            Operator::Events(events) => events.run().await,
            Operator::Audit(audit) => audit.run().await,
            Operator::Webhooks(webhooks) => webhooks.run().await,
            Operator::Notifications(notifications) => notifications.run().await,
            Operator::Agents(agents) => agents.run().await,
            Operator::Tokens(tokens) => tokens.run().await,
            Operator::Keys(keys) => keys.run().await,
        }
    }
}

/// The state of one command: API client and output settings.
struct Session {
    api: Api,
    screen: Screen,
    json: bool,
}

impl Session {
    fn open(connection: &Connection) -> anyhow::Result<Session> {
        let api = connection.open()?;
        Ok(Session { api, screen: Screen::stdout(), json: connection.json })
    }

    /// Prints a response: unchanged with `--json`, otherwise formatted by `draw`.
    fn show(
        &self,
        body: &ApiResponse,
        draw: impl FnOnce(&Screen) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        match self.json {
            true => print(&format!("{}\n", body.text)),
            false => print(&draw(&self.screen)?),
        }
    }
}

pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    Ok(output::out(text)?)
}

/// Prints a message to standard error.
fn print_message(text: &str) -> anyhow::Result<()> {
    Ok(output::err(&format!("{text}\n"))?)
}

/// An enum value as the API spells it.
fn api_name(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// An enum value in the color of its meaning.
fn toned_cell(value: impl Serialize) -> Cell {
    let word = api_name(value);
    let tone = match vocab::Tone::for_word(&word) {
        vocab::Tone::Good => Tone::Good,
        vocab::Tone::Busy => Tone::Busy,
        vocab::Tone::Warn => Tone::Warning,
        vocab::Tone::Bad => Tone::Bad,
        vocab::Tone::Critical => Tone::Critical,
        vocab::Tone::Idle => Tone::Faint,
    };
    Cell::new(word, tone)
}

/// A usage error: the exit code is 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
