//! Fleets of any size, written directly to the database so that a run does not spend its time on
//! enrollments: the same hosts that `swarm` simulates, with their inventories, last seen a moment
//! ago.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use ring::signature::KeyPair as _;
use serde_json::json;
use store::package_sets::{self, PackedSet, SetKind};
use store::presence::{self, Contact};
use store::servers::{self, Server};
use swarm::fleet::{Fleet, Host};
use vocab::listing::{Entry, encode};
use vocab::{Digest, OrgId, ServerId};

use crate::client::key_pair;
use crate::installation::Installation;
use crate::now;

pub(crate) const SEED: u64 = 1;
const SERVERS_PER_TRANSACTION: usize = 1_000;
/// The furthest a contact may be in the future and still count.
pub(crate) const CONTACT_AHEAD: SignedDuration = SignedDuration::from_secs(100);

/// The ID of the nth server, the same in every run.
pub(crate) fn id(nth: u64) -> ServerId {
    ServerId::new(Timestamp::UNIX_EPOCH, u128::from(nth) + 1)
}

/// Fills an organization with this many servers.
pub(crate) async fn fill(place: &Installation, size: u64) {
    fill_with(place, size, |nth| nth).await;
}

/// Fills an organization with servers that share package sets, fifty servers per set.
pub(crate) async fn fill_with_shared_sets(place: &Installation, size: u64) {
    fill_with(place, size, first_with_same_set).await;
}

/// The first server with the same package set as the nth. Eight sets of fifty servers alternate.
pub(crate) fn first_with_same_set(nth: u64) -> u64 {
    nth / 400 * 400 + nth % 8
}

/// Each server has the packages of the server that `like` returns.
async fn fill_with(place: &Installation, size: u64, like: impl Fn(u64) -> u64) {
    let db = place.db().await;
    let fleet = Fleet::new(SEED, size);
    let mut stored = HashMap::new();
    let at = now();
    let all: Vec<u64> = (0..size).collect();
    for some in all.chunks(SERVERS_PER_TRANSACTION) {
        let mut lists = Vec::new();
        let mut rows = Vec::with_capacity(some.len());
        for nth in some {
            let mut host = fleet.host(*nth);
            host.state = fleet.host(like(*nth)).state;
            let (packages, updates) =
                (host.state.packages, host.group().digests(host.state.packages));
            if stored.insert(updates.installed, (0, 0)).is_none() {
                lists.push((SetKind::Packages, pack(&host.group().installed(packages))));
            }
            let waiting = stored.entry(updates.pending).or_insert_with(|| {
                let pending = host.group().pending(packages);
                lists.push((SetKind::Updates, pack(&pending)));
                let security = pending.iter().filter(|update| update.security).count();
                (pending.len(), security)
            });
            rows.push(server(place.org, *nth, &host, *waiting, at));
        }
        let lists: Vec<_> = lists.iter().map(|(kind, list)| (place.org, *kind, list)).collect();
        let mut tx = db.begin().await.unwrap();
        package_sets::store_all(&mut tx, &lists, at).await.unwrap();
        servers::enroll_all(&mut tx, &rows).await.unwrap();
        tx.commit().await.unwrap();
    }
    db.close().await;
    place.analyze().await;
}

/// Marks all servers as seen a moment ago: most are rows without an agent, and would become offline
/// after a while.
pub(crate) async fn mark_all_seen(place: &Installation, size: u64) {
    let (db, org, seen_at) = (place.db().await, place.org, now() + CONTACT_AHEAD);
    let beat = |nth| Contact { org, server_id: id(nth), seen_at, counter: 1 };
    let beats: Vec<Contact> = (0..size).map(beat).collect();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(presence::record_contacts(&mut tx, &beats, Timestamp::MAX).await.unwrap(), size);
    tx.commit().await.unwrap();
    db.close().await;
}

fn pack<T: Entry>(entries: &[T]) -> PackedSet {
    PackedSet::new(u32::try_from(entries.len()).unwrap(), &encode(entries))
}

/// The nth server, with this many pending updates and security updates.
fn server(
    org_id: OrgId,
    nth: u64,
    host: &Host,
    (updates, security): (usize, usize),
    at: Timestamp,
) -> Server {
    let facts = host.facts();
    let digests = host.group().digests(host.state.packages);
    Server {
        id: id(nth),
        org_id,
        // In a large fleet, each server has its own hostname.
        hostname: facts.hostname,
        display_name: None,
        notes: String::new(),
        environment: host.environment(),
        tags: host.tags(),
        os: facts.os,
        kernel: facts.kernel.to_string(),
        arch: facts.arch.to_string(),
        package_manager: Some(facts.package_manager),
        agent_version: facts.agent_version.to_string(),
        public_key: key_pair(nth).public_key().as_ref().to_vec(),
        enrolled_at: at,
        last_scan_at: Some(at),
        reboot_required: facts.reboot_required,
        reboot_reasons: facts.reboot_reasons.iter().map(ToString::to_string).collect(),
        activity: "idle".into(),
        package_set: Some(digests.installed),
        update_set: Some(digests.pending),
        packages: 600,
        updates: u32::try_from(updates).unwrap(),
        security_updates: u32::try_from(security).unwrap(),
        facts: json!({}),
        runs: String::new(),
        quarantine: None,
        generation: 1,
        last_seen_at: at,
        counter: 1,
    }
}

/// A list of 600 packages that was never sent before, and its compressed form as an agent sends it.
pub(crate) fn new_package_list(salt: u64) -> (Digest, Vec<u8>) {
    let name = |n: u64| format!("lib{:x}-{n}", n.wrapping_mul(2_654_435_761) % 0xffff_ffff);
    let version = |n: u64| format!("1.{n}.{}-1+deb12u{}", if n == 7 { salt } else { n % 9 }, n % 5);
    let entries: Vec<_> =
        (0..600).map(|n| vocab::Installed::new(&name(n), &version(n), "amd64")).collect();
    let bytes = encode(&entries);
    (Digest::compute(&bytes), zstd::bulk::compress(&bytes, 3).unwrap())
}
