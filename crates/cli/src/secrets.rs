//! `fleetmend secrets`: lists and rotates the keys of an installation.
//!
//! This module handles `orders.key`; `root` handles `root.key`.

mod root;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use serde_json::json;
use server::app::App;
use service::audit::Action;
use service::auth::orders_keys;
use service::auth::orders_keys::UntrustingAgents;
use service::secrets::{ORDERS, ORDERS_NEXT, ROOT, ROOT_OLD, Secrets as Keys};

use crate::installation::Installation;
use crate::operator::table::{Screen, full_column, pluralize, truncated_column};
use crate::operator::{confirm, print};
use crate::settings::Durability;

/// List the installation's keys, and rotate them
#[derive(Args)]
pub(crate) struct Secrets {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the keys and what still depends on an old one
    #[command(
        after_help = "Example:\n  fleetmend secrets list --data-dir /var/lib/fleetmend --json"
    )]
    List(CommonArgs),
    /// Create a new key; the old one stays valid until it is retired
    ///
    /// Restart the service afterwards, with the same files on every replica.
    #[command(
        after_help = "Examples:\n  fleetmend secrets rotate orders --data-dir /var/lib/fleetmend\n  fleetmend secrets rotate root --data-dir /var/lib/fleetmend"
    )]
    Rotate {
        key: RotatableKey,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Delete the old key, once nothing depends on it
    ///
    /// Restart the service afterwards, with the same files on every replica. The only way to undo
    /// this is to restore a backup.
    #[command(after_help = "\
Examples:
  fleetmend secrets retire orders --data-dir /var/lib/fleetmend
  fleetmend secrets retire orders --data-dir /var/lib/fleetmend --force
  fleetmend secrets retire root --data-dir /var/lib/fleetmend")]
    Retire {
        key: RotatableKey,
        #[command(flatten)]
        common: CommonArgs,
        /// Retire the old key even if something depends on it; those credentials stop working
        #[arg(long)]
        force: bool,
        /// Skip the confirmation prompt
        #[arg(long, short, requires = "force")]
        yes: bool,
    },
}

/// The keys that can be rotated.
#[derive(Clone, Copy, ValueEnum)]
enum RotatableKey {
    /// The key that signs orders and replies to agents
    Orders,
    /// The key from which credentials, seals and encryption keys are derived
    Root,
}

#[derive(Args)]
struct CommonArgs {
    #[command(flatten)]
    installation: Installation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const RESTART_ADVICE: &str =
    "Copy the key files to every replica, if there are several, and restart the service.";

impl Secrets {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let place = match &self.command {
            Command::List(place)
            | Command::Rotate { common: place, .. }
            | Command::Retire { common: place, .. } => place,
        };
        let app = place.installation.app(Some(Durability::Full)).await?;
        let done = match &self.command {
            Command::List(place) => list(&app, place).await,
            Command::Rotate { key: RotatableKey::Orders, common: place } => {
                rotate(&app, place).await
            }
            Command::Rotate { key: RotatableKey::Root, common: place } => {
                root::rotate(&app, place).await
            }
            Command::Retire { key: RotatableKey::Orders, common: place, force, yes } => {
                retire(&app, place, *force, *yes).await
            }
            Command::Retire { key: RotatableKey::Root, common: place, force, yes } => {
                root::retire(&app, place, *force, *yes).await
            }
        };
        app.db.close().await;
        done
    }
}

struct Row {
    file: &'static str,
    id: String,
    state: &'static str,
    created_at: Option<Timestamp>,
    untrusting: Option<UntrustingAgents>,
}

async fn list(app: &App, common: &CommonArgs) -> anyhow::Result<()> {
    let dir = &common.installation.data_dir;
    let row = |file, id: &str, state| Row {
        file,
        id: id.to_owned(),
        state,
        created_at: created_at(&dir.join(file)),
        untrusting: None,
    };
    let keys = &app.secrets;
    let next = keys.next_orders_key();
    let state = if next.is_some() { "old" } else { "current" };
    let root = root::RootKeyStatus::read(app, dir).await?;
    let mut rows = vec![row(ROOT, &root.id, if root.old.is_some() { "new" } else { "current" })];
    if let Some(old) = &root.old {
        rows.push(row(ROOT_OLD, old, "old"));
    }
    rows.push(row(ORDERS, keys.orders_key().id(), state));
    if let Some(next) = next {
        let untrusting =
            orders_keys::untrusting_agents(&mut *app.db.read().await?, next.id()).await?;
        rows.push(Row { untrusting: Some(untrusting), ..row(ORDERS_NEXT, next.id(), "new") });
    }
    if common.json {
        let data = rows.iter().map(|row| {
            let untrusting = row.untrusting.as_ref();
            json!({"file": row.file, "id": row.id, "state": row.state, "created_at": row.created_at,
                "agents_without_it": untrusting.map(|found| found.count),
                "agents": untrusting.map(|found| found.servers)})
        });
        let mut report = json!({"data": data.collect::<Vec<_>>()});
        if let Some(rotation) = root.json() {
            report["root_rotation"] = rotation;
        }
        return crate::print_line(&report.to_string());
    }
    let screen = Screen::stdout();
    let columns = [
        truncated_column("FILE"),
        full_column("ID"),
        full_column("STATE"),
        full_column("CREATED"),
        full_column("AGENTS WITHOUT IT").align_right(),
    ];
    let row = |row: &Row| {
        let without = row.untrusting.as_ref().map(|found| found.count.to_string());
        vec![
            row.file.to_owned().into(),
            row.id.clone().into(),
            row.state.to_owned().into(),
            row.created_at.map_or_else(|| "-".to_owned().into(), |at| screen.time(at)),
            without.unwrap_or_else(|| "-".to_owned()).into(),
        ]
    };
    print(&screen.table(&columns, &rows.iter().map(row).collect::<Vec<_>>()))?;
    match root.describe() {
        Some(report) => crate::print_line(&report),
        None => Ok(()),
    }
}

/// The file's modification time. Copying or restoring a file may preserve or change it.
fn created_at(path: &Path) -> Option<Timestamp> {
    Timestamp::try_from(fs::metadata(path).ok()?.modified().ok()?).ok()
}

async fn rotate(app: &App, common: &CommonArgs) -> anyhow::Result<()> {
    let dir = &common.installation.data_dir;
    if let Some(next) = app.secrets.next_orders_key() {
        bail!(
            "orders.key is already being rotated, to {}: `fleetmend secrets list` shows the progress, \
             and `fleetmend secrets retire orders` completes it",
            next.id()
        );
    }
    let keys = Keys::rotate_orders(dir)?;
    let new = keys.next_orders_key().context("the new key is missing")?.id();
    let old = keys.orders_key().id();
    orders_keys::record_rotation(
        app,
        Action::SecretsRotate,
        new,
        &json!({"key": "orders", "old": old, "new": new}),
    )
    .await
    .context("the new key was created, but the audit log entry could not be written")?;
    if common.json {
        return crate::print_line(&json!({"key": "orders", "old": old, "new": new}).to_string());
    }
    crate::print_line(&format!(
        "The new key {new} is in {}. The old key {old} stays valid.\n{RESTART_ADVICE} Agents then receive \
         the new key at their next contact.\nTake a backup. Once `fleetmend secrets list` shows no \
         agents without the new key, run\n\n  fleetmend secrets retire orders --data-dir {}",
        dir.join(ORDERS_NEXT).display(),
        dir.display(),
    ))
}

async fn retire(app: &App, common: &CommonArgs, force: bool, yes: bool) -> anyhow::Result<()> {
    let dir = &common.installation.data_dir;
    let Some(next) = app.secrets.next_orders_key() else {
        bail!("there is no new key: create one with `fleetmend secrets rotate orders` first");
    };
    let (old, new) = (app.secrets.orders_key().id(), next.id());
    let found = orders_keys::untrusting_agents(&mut *app.db.read().await?, new).await?;
    if found.count > 0 {
        let agents = describe_agents(&found);
        ensure!(
            force,
            "{agents} not confirmed the new key and would reject every order and reply \
             from now on. Start and update these agents, or remove the servers. `--force` retires the old \
             key anyway, and these agents must then be enrolled again"
        );
        let question = format!(
            "{agents} not confirmed the new key and must be enrolled again. \
             Retire the old key?"
        );
        confirm(&question, yes)?;
    }
    let detail = json!({"key": "orders", "old": old, "new": new, "agents_without_it": found.count});
    orders_keys::record_rotation(app, Action::SecretsRetire, old, &detail).await?;
    Keys::retire_orders(dir)?;
    if common.json {
        return crate::print_line(&detail.to_string());
    }
    crate::print_line(&format!(
        "Deleted the old key {old}; orders.key is now {new}.\n{RESTART_ADVICE} Agents then discard the old \
         key at their next contact.\nTake a backup: earlier backups contain only the old key.",
    ))
}

/// `2 of 9 agents: web-1 (srv_…), web-2 (srv_…) have`, to be followed by a participle.
fn describe_agents(found: &UntrustingAgents) -> String {
    let names: Vec<_> =
        found.first.iter().map(|(hostname, id)| format!("{hostname} ({id})")).collect();
    let more = found.count - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let have = if found.count == 1 { "has" } else { "have" };
    format!(
        "{} of {}: {}{more} {have}",
        found.count,
        pluralize(found.servers, "agent", "agents"),
        names.join(", ")
    )
}
