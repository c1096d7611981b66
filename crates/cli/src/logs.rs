//! The log: lines for people on a terminal, JSON for everything else.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs: one object a line
    Json,
}

/// Starts the log on standard error.
pub(crate) fn start(filter: &str, format: Option<Format>) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)?;
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { Format::Text } else { Format::Json });
    let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        Format::Text => log.with_ansi(colours).with_target(false).init(),
        Format::Json => log.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}
