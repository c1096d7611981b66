//! The operator's commands, over the public API only.
//!
//! `api` speaks to the service, `screen` draws, `order` asks before anything starts, `watch` follows a
//! batch, `batch_view` formats one. Every other module is one resource of the API. Output for programs
//! goes to standard output, everything else to standard error.

pub(crate) mod api;
mod batch_view;
mod batches;
pub(crate) mod credentials;
mod cves;
mod keys;
mod list;
mod names;
pub(crate) mod order;
mod patches;
mod schedules;
pub(crate) mod screen;
mod servers;
mod summary;
mod suppressions;
mod tokens;
mod watch;

use clap::Subcommand;
use serde::Serialize;

use api::{Api, Body};
use credentials::Connection;
pub(crate) use order::sure;
use screen::{Cell, Screen, Tone};

use crate::output;

#[derive(Subcommand)]
pub(crate) enum Operator {
    /// The organization in numbers
    Summary(summary::Summary),
    /// Servers: what they have, what they lack
    Servers(servers::Servers),
    /// Updates that are pending somewhere
    Patches(patches::Patches),
    /// Where the organization is exposed to a CVE
    Cves(cves::Cves),
    /// CVEs that were looked at and set aside
    Suppressions(suppressions::Suppressions),
    /// Patch operations on several servers at once
    Batches(batches::Batches),
    /// Patch runs that the calendar starts
    Schedules(schedules::Schedules),
    /// Enrolment tokens, with which servers join
    Tokens(tokens::Tokens),
    /// API keys
    Keys(keys::Keys),
}

impl Operator {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Operator::Summary(summary) => summary.run().await,
            Operator::Servers(servers) => servers.run().await,
            Operator::Patches(patches) => patches.run().await,
            Operator::Cves(cves) => cves.run().await,
            Operator::Suppressions(suppressions) => suppressions.run().await,
            Operator::Batches(batches) => batches.run().await,
            Operator::Schedules(schedules) => schedules.run().await,
            Operator::Tokens(tokens) => tokens.run().await,
            Operator::Keys(keys) => keys.run().await,
        }
    }
}

/// One command at work.
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

    /// Shows an answer: as it came for programs, else as `draw` has it.
    fn show(
        &self,
        body: &Body,
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

/// Tells a person something, beside what is printed.
fn tell(text: &str) -> anyhow::Result<()> {
    Ok(output::err(&format!("{text}\n"))?)
}

/// A word of the API as it is written there.
fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A word in the colour of what it means.
fn toned(value: impl Serialize) -> Cell {
    let word = word(value);
    let tone = match word.as_str() {
        "online" | "succeeded" | "completed" => Tone::Good,
        "critical" | "high" | "failed" | "timed_out" | "halted" => Tone::Bad,
        "medium" | "completed_with_errors" | "paused" | "expired" | "canceling" => Tone::Warning,
        "offline" | "skipped" | "canceled" | "unknown" | "no_change" => Tone::Faint,
        _ => Tone::Plain,
    };
    Cell::new(word, tone)
}

/// The command was asked wrongly: it ends with 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
