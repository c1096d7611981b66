//! `fleetmend secrets`: the keys of an installation, and their rotation.

mod root;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use serde_json::json;
use server::app::App;
use service::auth::orders_keys;
use service::auth::orders_keys::Untrusting;
use service::secrets::{ORDERS, ORDERS_NEXT, ROOT, ROOT_OLD, Secrets as Keys};

use crate::installation::Installation;
use crate::operator::screen::{Screen, count, cut, whole};
use crate::operator::{print, sure};
use crate::settings::Durability;

/// List the keys of the installation, and rotate them
#[derive(Args)]
pub(crate) struct Secrets {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the keys, with what still depends on an old one
    #[command(
        after_help = "Example:\n  fleetmend secrets list --data-dir /var/lib/fleetmend --json"
    )]
    List(Place),
    /// Create a new key; the old one stays valid until it is retired
    ///
    /// Restart the service afterwards, with the same files on every replica.
    #[command(
        after_help = "Examples:\n  fleetmend secrets rotate orders --data-dir /var/lib/fleetmend\n  fleetmend secrets rotate root --data-dir /var/lib/fleetmend"
    )]
    Rotate {
        key: Rotatable,
        #[command(flatten)]
        place: Place,
    },
    /// Delete the old key, once nothing depends on it
    ///
    /// Restart the service afterwards, with the same files on every replica. There is no way back but a backup.
    #[command(after_help = "\
Examples:
  fleetmend secrets retire orders --data-dir /var/lib/fleetmend
  fleetmend secrets retire orders --data-dir /var/lib/fleetmend --force
  fleetmend secrets retire root --data-dir /var/lib/fleetmend")]
    Retire {
        key: Rotatable,
        #[command(flatten)]
        place: Place,
        /// Also if something depends on the old key; it is refused from then on
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(long, short, requires = "force")]
        yes: bool,
    },
}

/// The keys that can be rotated.
#[derive(Clone, Copy, ValueEnum)]
enum Rotatable {
    /// The key that signs orders and answers to agents
    Orders,
    /// The key that credentials, seals and encryption are derived from
    Root,
}

#[derive(Args)]
struct Place {
    #[command(flatten)]
    installation: Installation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const RESTART: &str =
    "Copy the key files to every replica, if there are several, and restart the service.";

impl Secrets {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let place = match &self.command {
            Command::List(place)
            | Command::Rotate { place, .. }
            | Command::Retire { place, .. } => place,
        };
        let app = place.installation.app(Some(Durability::Full)).await?;
        let done = match &self.command {
            Command::List(place) => list(&app, place).await,
            Command::Rotate { key: Rotatable::Orders, place } => rotate(&app, place).await,
            Command::Rotate { key: Rotatable::Root, place } => root::rotate(&app, place).await,
            Command::Retire { key: Rotatable::Orders, place, force, yes } => {
                retire(&app, place, *force, *yes).await
            }
            Command::Retire { key: Rotatable::Root, place, force, yes } => {
                root::retire(&app, place, *force, *yes).await
            }
        };
        app.db.close().await;
        done
    }
}

/// A line of the list.
struct Row {
    file: &'static str,
    id: String,
    state: &'static str,
    created_at: Option<Timestamp>,
    untrusting: Option<Untrusting>,
}

async fn list(app: &App, place: &Place) -> anyhow::Result<()> {
    let dir = &place.installation.data_dir;
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
    let root = root::Listed::read(app, dir).await?;
    let mut rows = vec![row(ROOT, &root.id, if root.old.is_some() { "new" } else { "current" })];
    if let Some(old) = &root.old {
        rows.push(row(ROOT_OLD, old, "old"));
    }
    rows.push(row(ORDERS, keys.orders_key().id(), state));
    if let Some(next) = next {
        let untrusting = orders_keys::untrusting(&mut *app.db.read().await?, next.id()).await?;
        rows.push(Row { untrusting: Some(untrusting), ..row(ORDERS_NEXT, next.id(), "new") });
    }
    if place.json {
        let data = rows.iter().map(|row| {
            let untrusting = row.untrusting.as_ref();
            json!({"file": row.file, "id": row.id, "state": row.state, "created_at": row.created_at,
                "agents_without_it": untrusting.map(|found| found.count),
                "agents": untrusting.map(|found| found.servers)})
        });
        let mut told = json!({"data": data.collect::<Vec<_>>()});
        if let Some(rotation) = root.json() {
            told["root_rotation"] = rotation;
        }
        return crate::say(&told.to_string());
    }
    let screen = Screen::stdout();
    let columns = [
        cut("FILE"),
        whole("ID"),
        whole("STATE"),
        whole("CREATED"),
        whole("AGENTS WITHOUT IT").number(),
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
    match root.told() {
        Some(told) => crate::say(&told),
        None => Ok(()),
    }
}

/// When the file was written. Copies and restored files are as old as they are.
fn created_at(path: &Path) -> Option<Timestamp> {
    Timestamp::try_from(fs::metadata(path).ok()?.modified().ok()?).ok()
}

async fn rotate(app: &App, place: &Place) -> anyhow::Result<()> {
    let dir = &place.installation.data_dir;
    if let Some(next) = app.secrets.next_orders_key() {
        bail!(
            "orders.key is being rotated already, to {}: `fleetmend secrets list` shows how far that \
             is, and `fleetmend secrets retire orders` ends it",
            next.id()
        );
    }
    let keys = Keys::rotate_orders(dir)?;
    let new = keys.next_orders_key().context("the new key is not there")?.id();
    let old = keys.orders_key().id();
    orders_keys::audit(
        app,
        "secrets.rotate",
        new,
        &json!({"key": "orders", "old": old, "new": new}),
    )
    .await
    .context("the new key was created, but not written into the audit log")?;
    if place.json {
        return crate::say(&json!({"key": "orders", "old": old, "new": new}).to_string());
    }
    crate::say(&format!(
        "The new key {new} is in {}. The old key {old} stays valid.\n{RESTART} Agents then learn \
         the new key at their next contact.\nTake a backup. Once `fleetmend secrets list` shows no \
         agents without the new key, run\n\n  fleetmend secrets retire orders --data-dir {}",
        dir.join(ORDERS_NEXT).display(),
        dir.display(),
    ))
}

async fn retire(app: &App, place: &Place, force: bool, yes: bool) -> anyhow::Result<()> {
    let dir = &place.installation.data_dir;
    let Some(next) = app.secrets.next_orders_key() else {
        bail!("there is no new key: create one with `fleetmend secrets rotate orders` first");
    };
    let (old, new) = (app.secrets.orders_key().id(), next.id());
    let found = orders_keys::untrusting(&mut *app.db.read().await?, new).await?;
    if found.count > 0 {
        let agents = named(&found);
        ensure!(
            force,
            "{agents} not reported to trust the new key, and would refuse everything after \
             this. Start and update these agents, or remove the servers; `--force` retires the old key \
             all the same, and they have to be enrolled again"
        );
        let question = format!(
            "{agents} not reported to trust the new key, and will have to be enrolled again. \
             Retire the old key?"
        );
        sure(&question, yes)?;
    }
    let detail = json!({"key": "orders", "old": old, "new": new, "agents_without_it": found.count});
    orders_keys::audit(app, "secrets.retire", old, &detail).await?;
    Keys::retire_orders(dir)?;
    if place.json {
        return crate::say(&detail.to_string());
    }
    crate::say(&format!(
        "The old key {old} is deleted; {new} is orders.key now.\n{RESTART} Agents then drop the old \
         key at their next contact.\nTake a backup: one from before the rotation has only the old key.",
    ))
}

/// `2 of 9 agents have (web-1, web-2)`.
fn named(found: &Untrusting) -> String {
    let names: Vec<_> =
        found.first.iter().map(|(hostname, id)| format!("{hostname} ({id})")).collect();
    let more = found.count - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let have = if found.count == 1 { "has" } else { "have" };
    format!(
        "{} of {}: {}{more} {have}",
        found.count,
        count(found.servers, "agent", "agents"),
        names.join(", ")
    )
}
