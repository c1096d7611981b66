//! Pinned versions: what the first wave of a batch installed, which later waves install too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use domain::rollout::pins::{PinnedVersion, Pins, System};
use domain::rollout::{TaskOutcome, TaskStatus};
use jiff::Timestamp;
use store::rollout_pins::{self, PinSet};
use store::rollouts::Rollout;
use store::servers::{self, ServerSystem};
use store::{Conn, Db, Page, rollout_tasks};
use vocab::ServerId;
use wire::agent::{OrderResult, PackageVersion, VERSIONS_MAX};

use crate::PatchOptions;

/// The number of results that are read at a time.
const RESULTS_PER_READ: u32 = 500;

/// The versions for an order, shared by all servers with the same system.
pub type Versions = Arc<Vec<PackageVersion>>;

/// Whether the first wave of a batch decides which versions the others install. A dry run installs
/// nothing, so there is nothing to pin.
pub fn are_pinned(row: &Rollout) -> bool {
    row.head.pace.pin_versions
        && PatchOptions::from_json(&row.options).is_ok_and(|options| !options.order.dry_run)
}

pub fn system_of(server: &ServerSystem) -> System {
    System::new(&server.os, server.package_manager, &server.arch)
}

/// What the servers that succeeded in the first wave installed.
#[boxed]
pub async fn collect(conn: &mut Conn, row: &Rollout, now: Timestamp) -> store::Result<Vec<PinSet>> {
    let mut pins = Pins::default();
    for nth in 0_u64.. {
        let page = Page { limit: RESULTS_PER_READ, offset: nth * u64::from(RESULTS_PER_READ) };
        let read = rollout_tasks::list(conn, row, &["succeeded"], page).await?.items;
        let servers: Vec<ServerId> = read.iter().map(|task| task.server_id).collect();
        let systems = servers::systems(conn, &servers).await?;
        let systems: BTreeMap<_, _> =
            systems.into_iter().map(|server| (server.id, system_of(&server))).collect();
        let is_last = (read.len() as u64) < u64::from(RESULTS_PER_READ);
        for task in read {
            let in_first_wave = matches!(
                task.target,
                TaskStatus::Done(done) if done.outcome == TaskOutcome::Succeeded && done.wave <= 1
            );
            if let (true, Some(system), Some(result)) =
                (in_first_wave, systems.get(&task.server_id), task.result)
            {
                pins.add(system, installed(result));
            }
        }
        if is_last {
            break;
        }
    }
    let to_row = |(system, versions): (System, Vec<PinnedVersion>)| PinSet {
        rollout_id: row.id,
        system: system.to_string(),
        versions,
        created_at: now,
        seal: store::seals::SealCode::default(),
    };
    Ok(pins.into_systems(VERSIONS_MAX).into_iter().map(to_row).collect())
}

/// The versions that an agent reported as installed. An order could not name a package with an
/// invalid name, so it is left out.
fn installed(result: serde_json::Value) -> Vec<PinnedVersion> {
    let report: OrderResult = match serde_json::from_value(result) {
        Ok(report) => report,
        Err(_) => return Vec::new(),
    };
    let pin = |change: wire::agent::PackageMove| {
        Some(PinnedVersion {
            name: change.name.to_string(),
            arch: change.arch.to_string(),
            version: change.to?.to_string(),
        })
    };
    let named = |pin: &PinnedVersion| pin.name.parse::<vocab::PackageName>().is_ok();
    report.packages.into_iter().filter_map(pin).filter(named).collect()
}

/// The stored versions of a batch, by system; `None` if one of the rows does not verify.
#[boxed]
pub async fn load(
    db: &Db,
    conn: &mut Conn,
    row: &Rollout,
) -> store::Result<Option<BTreeMap<String, Versions>>> {
    let sets = rollout_pins::all(conn, row.id).await?;
    if !sets.iter().all(|set| db.is_authentic(set)) {
        return Ok(None);
    }
    let to_version = |pin: PinnedVersion| {
        Some(PackageVersion {
            name: pin.name.parse().ok()?,
            arch: pin.arch.as_str().into(),
            version: pin.version.as_str().into(),
        })
    };
    let sets = sets.into_iter().map(|set| {
        let versions: Vec<_> = set.versions.into_iter().filter_map(to_version).collect();
        (set.system, Arc::new(versions))
    });
    Ok(Some(sets.collect()))
}

/// Which of these servers have a system that is not among the pinned ones.
#[boxed]
pub async fn unproven_servers(
    conn: &mut Conn,
    row: &Rollout,
    servers: &[ServerId],
) -> store::Result<BTreeSet<ServerId>> {
    let proven: BTreeSet<String> =
        rollout_pins::all(conn, row.id).await?.into_iter().map(|set| set.system).collect();
    let systems = servers::systems(conn, servers).await?;
    let unproven = systems.iter().filter(|server| !proven.contains(&system_of(server).to_string()));
    Ok(unproven.map(|server| server.id).collect())
}
