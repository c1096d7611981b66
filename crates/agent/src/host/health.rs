//! The health of the host: what is worse now than before a change.
//!
//! [`Host::measure_health`] takes a [`HealthSnapshot`]; [`HealthSnapshot::problems`] compares two of
//! them and is pure. A measurement runs `systemctl` once or twice and reads `/proc`; it never uses
//! the network. The administrator's hooks are run by `work`, which fills in their results.
//!
//! The rules avoid false alarms rather than report everything:
//!
//! - A unit counts as failed if systemd says so, except scopes, units of users and transient units.
//! - A service counts as stopped only if a process of it was running before. One that ends on its
//!   own does not count: a oneshot service, a static one (which something else starts on demand),
//!   or one that an active socket, timer or path starts again. Sockets, timers and paths count if
//!   they were active.
//! - A socket counts by protocol and port, not by address, because addresses change. Ports that the
//!   kernel assigns at random do not count, nor sockets of login sessions, nor UDP above port 1023,
//!   where resolvers and clients have short-lived ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{HealthProblemKind, Line};
use wire::agent::{HEALTH_PROBLEMS_MAX, HealthProblem, HealthReport};

use super::{Host, environment};
use crate::command::Command;

/// Timeout of a query to systemd, which takes milliseconds.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of units, and of sockets, in a snapshot.
const ENTRIES_MAX: usize = 5_000;
/// Maximum number of processes whose sockets are inspected.
const PROCESSES_MAX: usize = 50_000;
/// Maximum number of units whose properties are queried.
const SUSPECTS_MAX: usize = 100;

/// The state of the host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthSnapshot {
    pub at: Timestamp,
    pub boot_id: Line,
    /// `None` without systemd.
    pub units: Option<Units>,
    /// The ports on which services listen; `None` if they cannot be read.
    pub sockets: Option<BTreeSet<Socket>>,
    /// The results of the administrator's health hooks, by name.
    pub hooks: BTreeMap<String, HookState>,
    /// The state of the boot, if it is not complete: `starting`.
    pub boot_state: Option<Line>,
    /// What could not be measured, and why.
    pub unreadable: Option<Line>,
}

/// The units of systemd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Units {
    pub failed: BTreeSet<String>,
    /// Running services, and active sockets, timers and paths.
    pub active: BTreeSet<String>,
    /// Services that ended with an error and wait for systemd to start them again.
    pub restarting: BTreeSet<String>,
    /// Units that were active in the earlier snapshot and may be inactive.
    pub expected_inactive: BTreeSet<String>,
}

/// A port on which a service listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Socket {
    pub is_udp: bool,
    pub port: u16,
    /// Whether it can be reached from this host only.
    pub is_loopback: bool,
}

/// The result of a health hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookState {
    Passed,
    Failed,
    /// It was not run, because others than root can change it, or because there are too many.
    Refused,
}

impl Socket {
    fn name(&self) -> Line {
        let protocol = if self.is_udp { "udp" } else { "tcp" };
        let scope = if self.is_loopback { " (loopback)" } else { "" };
        format!("{protocol}/{}{scope}", self.port).into()
    }

    /// Whether a client of this socket can use the other one instead.
    fn is_served_by(&self, other: &Socket) -> bool {
        (self.is_udp, self.port) == (other.is_udp, other.port)
            && (self.is_loopback || !other.is_loopback)
    }
}

impl HealthSnapshot {
    /// Whether anything but hooks was measured.
    pub fn is_measured(&self) -> bool {
        self.units.is_some() || self.sockets.is_some()
    }

    /// What is worse now than in the earlier snapshot `before`, sorted.
    pub fn problems(&self, before: &HealthSnapshot) -> Vec<HealthProblem> {
        let mut problems = BTreeSet::new();
        let mut add = |kind, name: Line| {
            problems.insert(HealthProblem { kind, name });
        };
        if let (Some(was), Some(now)) = (&before.units, &self.units) {
            for unit in now.failed.difference(&was.failed) {
                add(HealthProblemKind::UnitFailed, unit.as_str().into());
            }
            for unit in was.active.difference(&now.active) {
                if now.restarting.contains(unit) {
                    add(HealthProblemKind::UnitFailed, unit.as_str().into());
                } else if !now.failed.contains(unit) && !now.expected_inactive.contains(unit) {
                    add(HealthProblemKind::UnitInactive, unit.as_str().into());
                }
            }
        }
        if let (Some(was), Some(now)) = (&before.sockets, &self.sockets) {
            for socket in was.iter().filter(|lost| !now.iter().any(|s| lost.is_served_by(s))) {
                add(HealthProblemKind::SocketLost, socket.name());
            }
        }
        for (name, state) in &self.hooks {
            let failed_before = before.hooks.get(name) == Some(&HookState::Failed);
            if *state == HookState::Refused || (*state == HookState::Failed && !failed_before) {
                add(HealthProblemKind::HookFailed, name.as_str().into());
            }
        }
        if let Some(state) = &self.boot_state
            && self.boot_id != before.boot_id
        {
            add(HealthProblemKind::BootIncomplete, state.clone());
        }
        problems.into_iter().take(HEALTH_PROBLEMS_MAX).collect()
    }

    /// Why the comparison with `before` says nothing, if so: something that should have been
    /// measured was not, or there is nothing to measure.
    pub fn not_measured(&self, before: &HealthSnapshot) -> Option<Line> {
        let unreadable = before.unreadable.as_ref().or(self.unreadable.as_ref());
        let nothing = !before.is_measured() && before.hooks.is_empty();
        let lost = (before.units.is_some() && self.units.is_none())
            || (before.sockets.is_some() && self.sockets.is_none());
        let incomplete = before.is_measured() && unreadable.is_some();
        (nothing || lost || incomplete).then(|| {
            unreadable.cloned().unwrap_or_else(|| "nothing can be measured on this host".into())
        })
    }

    /// The comparison with `before` as a report.
    pub fn report(&self, before: &HealthSnapshot) -> HealthReport {
        HealthReport {
            measured_at: self.at,
            baseline_at: before.at,
            problems: self.problems(before),
            not_measured: self.not_measured(before),
        }
    }
}

impl Host {
    /// Measures the health of the host, without hooks. `before` is the earlier snapshot with which
    /// this one will be compared.
    pub fn measure_health(&self, at: Timestamp, before: Option<&HealthSnapshot>) -> HealthSnapshot {
        let mut snapshot =
            HealthSnapshot { at, boot_id: self.boot_id(), ..HealthSnapshot::default() };
        if !self.is_running {
            let dir = self.root.dir().display();
            let why = format!("the managed system under {dir} is not the running one");
            snapshot.unreadable = Some(Line::sanitize(&why));
            return snapshot;
        }
        if environment::has_systemd(&self.root) {
            match self.units(before.and_then(|before| before.units.as_ref())) {
                Ok(units) => snapshot.units = Some(units),
                Err(why) => snapshot.unreadable = Some(Line::sanitize(&why)),
            }
            if before.is_some_and(|before| before.boot_id != snapshot.boot_id) {
                snapshot.boot_state = self.incomplete_boot();
            }
        }
        match self.listening_sockets() {
            Ok(sockets) => snapshot.sockets = Some(sockets),
            Err(why) => drop(snapshot.unreadable.get_or_insert(Line::sanitize(&why))),
        }
        snapshot
    }

    fn systemctl(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new("systemctl").args(args.iter().copied()).query(QUERY_TIMEOUT);
        let output = output.map_err(|error| error.to_string())?;
        match output.exit {
            Some(0) => Ok(output.stdout),
            _ => Err(format!("systemctl {}: {}", args[0], output.stderr.trim())),
        }
    }

    fn units(&self, before: Option<&Units>) -> Result<Units, String> {
        const LIST: [&str; 6] =
            ["list-units", "--all", "--plain", "--no-legend", "--no-pager", "--full"];
        let transient = fs::read_dir(self.root.path("/run/systemd/transient"));
        let transient: BTreeSet<String> = transient
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        let mut units = parse_units(&self.systemctl(&LIST)?, &transient);
        let Some(before) = before else { return Ok(units) };
        let suspects: Vec<&str> = before
            .active
            .difference(&units.active)
            .filter(|unit| !units.failed.contains(*unit) && !units.restarting.contains(*unit))
            .map(String::as_str)
            .take(SUSPECTS_MAX)
            .collect();
        if !suspects.is_empty() {
            const SHOW: [&str; 3] = [
                "show",
                "--property=Type,ActiveState,SubState,UnitFileState,Transient,TriggeredBy",
                "--",
            ];
            let shown = self.systemctl(&[&SHOW[..], &suspects].concat())?;
            units.expected_inactive = parse_expected_inactive(&shown, &suspects, &units.active);
        }
        Ok(units)
    }

    /// The state of a boot that is not complete.
    fn incomplete_boot(&self) -> Option<Line> {
        // It exits with 1 in every state except `running`.
        let output =
            Command::new("systemctl").arg("is-system-running").query(QUERY_TIMEOUT).ok()?;
        let state = output.stdout.trim();
        matches!(state, "initializing" | "starting").then(|| Line::sanitize(state))
    }

    fn listening_sockets(&self) -> Result<BTreeSet<Socket>, String> {
        let random = fs::read_to_string(self.proc.join("sys/net/ipv4/ip_local_port_range"));
        let random = parse_port_range(&random.unwrap_or_default());
        let mut bound: Vec<BoundSocket> = Vec::new();
        let mut read = false;
        for (table, is_udp) in [("tcp", false), ("tcp6", false), ("udp", true), ("udp6", true)] {
            // The tables for IPv6 do not exist if the kernel does not support it.
            match fs::read_to_string(self.proc.join("net").join(table)) {
                Ok(text) => {
                    bound.extend(parse_sockets(&text, is_udp));
                    read = true;
                }
                Err(error) if table == "tcp" => {
                    return Err(format!("cannot read /proc/net/{table}: {error}"));
                }
                Err(_) => {}
            }
        }
        if !read {
            return Err("cannot read /proc/net".to_owned());
        }
        bound.retain(|bound| is_long_lived(bound.socket, random));
        let inodes: BTreeSet<u64> = bound.iter().map(|bound| bound.inode).collect();
        let sessions = session_inodes(&self.proc, &inodes);
        let bound = bound.into_iter().filter(|bound| !sessions.contains(&bound.inode));
        Ok(bound.map(|bound| bound.socket).take(ENTRIES_MAX).collect())
    }
}

/// Parses `systemctl list-units`: `UNIT LOAD ACTIVE SUB DESCRIPTION`.
fn parse_units(text: &str, transient: &BTreeSet<String>) -> Units {
    let mut units = Units::default();
    for line in text.lines().take(ENTRIES_MAX) {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        let [unit, _, active, sub] = words[..] else { continue };
        let of_user = unit.starts_with("user@") || unit.starts_with("user-runtime-dir@");
        if unit.ends_with(".scope") || of_user || transient.contains(unit) {
            continue;
        }
        let is_service = unit.ends_with(".service");
        let is_trigger = [".socket", ".timer", ".path"].iter().any(|kind| unit.ends_with(kind));
        let name = || unit.to_owned();
        match (active, sub) {
            ("failed", _) => drop(units.failed.insert(name())),
            ("activating", "auto-restart") => drop(units.restarting.insert(name())),
            ("active" | "reloading" | "refreshing", sub)
                if is_trigger || (is_service && sub != "exited") =>
            {
                units.active.insert(name());
            }
            _ => {}
        }
    }
    units
}

/// The suspects that may be inactive, from `systemctl show` of them: one block of properties each.
fn parse_expected_inactive(
    text: &str,
    suspects: &[&str],
    active: &BTreeSet<String>,
) -> BTreeSet<String> {
    let mut expected = BTreeSet::new();
    for (unit, block) in suspects.iter().zip(text.split("\n\n")) {
        let value = |key: &str| {
            let lines = block.lines().filter_map(|line| line.split_once('='));
            lines.filter(|(name, _)| *name == key).map(|(_, value)| value).next().unwrap_or("")
        };
        // An alias of a unit that is active, or it has become active in the meantime.
        let is_active = value("ActiveState") == "active" && value("SubState") != "exited";
        let ends_itself = value("Type") == "oneshot"
            || value("Transient") == "yes"
            || ["static", "indirect", "transient"].contains(&value("UnitFileState"));
        let mut triggers = value("TriggeredBy").split_whitespace();
        if is_active
            || (unit.ends_with(".service")
                && (ends_itself || triggers.any(|trigger| active.contains(trigger))))
        {
            expected.insert((*unit).to_owned());
        }
    }
    expected
}

struct BoundSocket {
    socket: Socket,
    inode: u64,
}

/// Parses `/proc/net/tcp` and the like: listening TCP sockets, and UDP sockets without a peer.
fn parse_sockets(text: &str, is_udp: bool) -> Vec<BoundSocket> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take(10).collect();
        let [_, local, remote, state, .., inode] = words[..] else { return None };
        let (address, port) = local.split_once(':')?;
        let (_, remote_port) = remote.split_once(':')?;
        let waits = if is_udp { state == "07" } else { state == "0A" };
        let port = u16::from_str_radix(port, 16).ok()?;
        let socket = Socket { is_udp, port, is_loopback: is_loopback(address) };
        (waits && remote_port == "0000")
            .then_some(BoundSocket { socket, inode: inode.parse().ok()? })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

/// Whether an address in a table of `/proc/net` is that of the loopback interface. The kernel
/// prints each group of four bytes as a number in its own byte order.
fn is_loopback(address: &str) -> bool {
    const LITTLE: [&str; 2] =
        ["00000000000000000000000001000000", "0000000000000000FFFF00000100007F"];
    const BIG: [&str; 2] = ["00000000000000000000000000000001", "00000000000000000000FFFF7F000001"];
    let (v4, v6) = match cfg!(target_endian = "big") {
        true => (address.starts_with("7F"), BIG),
        false => (address.ends_with("7F"), LITTLE),
    };
    (address.len() == 8 && v4) || v6.contains(&address)
}

/// Parses `ip_local_port_range`; the kernel's default if it cannot be read.
fn parse_port_range(text: &str) -> (u16, u16) {
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) => (first, last),
        _ => (32_768, 60_999),
    }
}

/// Whether a port belongs to a service that is meant to listen on it.
fn is_long_lived(socket: Socket, random: (u16, u16)) -> bool {
    /// DHCP clients, which open them for a renewal only.
    const SHORT_LIVED_UDP: [u16; 2] = [68, 546];
    let is_random = (random.0..=random.1).contains(&socket.port);
    let is_udp_service = socket.port < 1024 && !SHORT_LIVED_UDP.contains(&socket.port);
    !is_random && (!socket.is_udp || is_udp_service)
}

/// Those of the sockets that belong to processes of login sessions and of users' services, such as
/// ports that ssh forwards: they end with the session.
fn session_inodes(proc: &Path, inodes: &BTreeSet<u64>) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
        .take(PROCESSES_MAX);
    for process in processes {
        let process = process.path();
        let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        if !groups.contains("/user.slice") {
            continue;
        }
        for file in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default();
            let inode = target.to_str().and_then(|target| {
                target.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
            });
            found.extend(inode.filter(|inode| inodes.contains(inode)));
        }
    }
    found
}

#[cfg(test)]
#[path = "health/tests.rs"]
mod tests;
