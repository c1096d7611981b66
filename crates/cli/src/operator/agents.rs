//! `fleetmend agents`: shows and upgrades the agents of the fleet.

use clap::{Args, Subcommand};
use wire::v1::{AgentUpgrades, Agents as Overview, UpgradeAgents};

use super::credentials::Connection;
use super::patch_request::confirm;
use super::selection::SelectionArgs;
use super::table::{Cell, Column, Tone, empty_cell, full_column, pluralize};
use super::{Session, print_message};

/// Show the agents of the fleet, and upgrade them.
#[derive(Args)]
pub(crate) struct Agents {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show how many servers have which version, and what the service carries
    #[command(after_help = "Example:\n  fleetmend agents status")]
    Status,
    /// Upgrade agents to the version that the service carries
    #[command(after_help = "\
Examples:
  fleetmend agents upgrade web-1
  fleetmend agents upgrade --in-environment staging
  fleetmend agents upgrade --all

Each agent downloads the new version from the service, verifies it, and replaces itself when it is
not working on an order. If the new agent does not reach the service within two minutes, the
previous one is restored. `fleetmend servers show NAME` shows the result. An agent that was
installed as a package is upgraded with the package manager instead.")]
    Upgrade(Upgrade),
}

#[derive(Args)]
struct Upgrade {
    #[command(flatten)]
    selection: SelectionArgs,
    /// Skip the confirmation prompt
    #[arg(long, short)]
    yes: bool,
}

const COLUMNS: [Column; 4] = [
    full_column("VERSION"),
    full_column("ARCHITECTURE"),
    full_column("SERVERS").align_right(),
    full_column("STATE"),
];

impl Agents {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::Status => status(&session).await,
            Command::Upgrade(upgrade) => upgrade.run(&session).await,
        }
    }
}

async fn status(session: &Session) -> anyhow::Result<()> {
    let body = session.api.get(&["agents"]).await?;
    let overview: Overview = body.read()?;
    session.show(&body, |screen| {
        let rows = overview.versions.iter().map(|one| {
            let state = match one.outdated {
                Some(true) => Cell::new("outdated", Tone::Warning),
                Some(false) => Cell::new("current", Tone::Good),
                None => empty_cell(),
            };
            let version = if one.version.is_empty() { "unknown" } else { &one.version };
            vec![version.into(), (&one.architecture).into(), one.servers.into(), state]
        });
        let mut text = screen.table(&COLUMNS, &rows.collect::<Vec<_>>());
        text.push_str(&describe(&overview));
        Ok(text)
    })
}

/// What the service carries, and what is in progress.
fn describe(overview: &Overview) -> String {
    let carried: Vec<String> = overview
        .releases
        .iter()
        .map(|release| {
            let unsigned = if release.signed { "" } else { ", not signed" };
            format!("{} ({}{unsigned})", release.version, release.architecture)
        })
        .collect();
    let mut text = match carried.is_empty() {
        true => "\nThe service carries no agent, so it cannot upgrade any.\n".to_owned(),
        false => format!("\nThe service carries {}.\n", carried.join(", ")),
    };
    let blocked = overview.outdated.saturating_sub(overview.upgradable());
    if blocked > 0 {
        let agents = pluralize(blocked, "outdated agent", "outdated agents");
        text.push_str(&format!(
            "{agents} cannot be upgraded from here, because agents accept only a release that its \
             publisher signed. Run the install command on those servers again.\n"
        ));
    }
    if overview.upgrades_pending > 0 {
        let upgrades = pluralize(overview.upgrades_pending, "upgrade", "upgrades");
        text.push_str(&format!("{upgrades} in progress.\n"));
    }
    text
}

impl Upgrade {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let (targets, shown) = self.selection.targets(session).await?;
        confirm(&format!("Upgrade the agents of {shown}?"), self.yes)?;
        let request = UpgradeAgents { targets };
        let body = session.api.post(&["agents", "upgrade"], Some(&request)).await?;
        let AgentUpgrades { requested, current, no_release } = body.read()?;
        session.show(&body, |_| {
            let servers = |count| pluralize(count, "server", "servers");
            let mut text = format!("Upgrade requested for {}.", servers(requested));
            if current > 0 {
                text.push_str(&format!(" Already current: {}.", servers(current)));
            }
            if no_release > 0 {
                text.push_str(&format!(
                    " The service carries no signed agent for the architecture of {}.",
                    servers(no_release)
                ));
            }
            text.push('\n');
            Ok(text)
        })?;
        if requested > 0 && !session.json {
            print_message("Follow it with `fleetmend agents status`.")?;
        }
        Ok(())
    }
}
