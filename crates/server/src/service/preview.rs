//! What an order would do, as far as it is known before it is given. Changes nothing.
//!
//! Times are those of the pace alone: how long a server takes is not known before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::{SignedDuration, Timestamp};
use store::server_list::{self, Filter, OnlineSpan, Sort};
use store::servers::{self, Server};
use store::{Conn, Page, Paged};
use vocab::{Digest, OrgId, Pending, RebootPolicy, ServerId, Status};

use super::{PatchOptions, Result, findings};

/// How many servers are shown one by one, at the most.
pub const SHOWN_MAX: usize = 500;

/// What an order would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// How many servers are meant.
    pub total: u32,
    /// How many of them are offline.
    pub offline: u32,
    /// How many the window leaves out.
    pub beyond_window: u32,
    /// When the last one could start.
    pub last_start_at: Option<Timestamp>,
    /// The first servers, in the order of their turns.
    pub servers: Vec<ServerOutlook>,
}

/// What an order would do to one server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerOutlook {
    /// The server.
    pub server: Server,
    /// When it starts at the earliest; `None`: the window has closed by then.
    pub starts_at: Option<Timestamp>,
    /// Whether it goes first.
    pub canary: bool,
    /// Whether it must wait for those that go first.
    pub waits_for_canary: bool,
    /// Whether it must wait for one in work to end.
    pub waits_for_parallel: bool,
    /// What would be installed.
    pub updates: Vec<Pending>,
    /// What is meant and would not be installed.
    pub blocked: Vec<Pending>,
    /// What is named and of which nothing is pending.
    pub nothing_pending: Vec<String>,
    /// Whether it would be rebooted; `None`: that is seen afterwards.
    pub reboots: Option<bool>,
}

/// Who is meant by an order.
#[derive(Debug, Clone, PartialEq)]
pub struct Meant {
    total: u64,
    offline: u64,
    /// The first, in the order of their turns.
    first: Vec<Server>,
}

impl Meant {
    /// These servers, in this order; so many of them are shown.
    pub async fn named(
        conn: &mut Conn,
        org: OrgId,
        servers: &[ServerId],
        shown: usize,
        online: OnlineSpan,
    ) -> Result<Meant> {
        let first = &servers[..servers.len().min(shown)];
        let rows = servers::get_all(conn, first).await?;
        let mut rows: BTreeMap<_, _> = rows.into_iter().map(|row| (row.id, row)).collect();
        let mut offline = 0;
        for chunk in servers.chunks(SHOWN_MAX) {
            let status = Some((Status::Offline, online));
            let filter = Filter { ids: chunk.to_vec(), status, ..Filter::default() };
            offline += server_list::count(conn, org, &filter).await?;
        }
        Ok(Meant {
            total: servers.len() as u64,
            offline,
            first: first.iter().filter_map(|id| rows.remove(id)).collect(),
        })
    }

    /// Whoever matches, by name; so many of them are shown.
    pub async fn matching(
        conn: &mut Conn,
        org: OrgId,
        filter: &Filter,
        shown: usize,
        online: OnlineSpan,
    ) -> Result<Meant> {
        let page = Page { limit: shown as u32, offset: 0 };
        let Paged { items: first, total } =
            server_list::list(conn, org, filter, Sort::Hostname, page).await?;
        let status = Some((Status::Offline, online));
        let offline = Filter { status, ..filter.clone() };
        Ok(Meant { total, offline: server_list::count(conn, org, &offline).await?, first })
    }
}

/// What this order would do to them.
pub async fn outlook(
    conn: &mut Conn,
    options: &PatchOptions,
    meant: Meant,
    now: Timestamp,
) -> Result<Outlook> {
    let total = u32::try_from(meant.total).unwrap_or(u32::MAX);
    let mut lists: BTreeMap<Digest, Vec<Pending>> = BTreeMap::new();
    let mut outlooks = Vec::with_capacity(meant.first.len());
    for (turn, server) in (0_u32..).zip(meant.first) {
        let alike = findings::alike_by(&server);
        if let Some(alike) = alike
            && let Entry::Vacant(new) = lists.entry(alike)
        {
            new.insert(findings::pending(conn, &server).await?);
        }
        let pending = alike.and_then(|alike| lists.get(&alike)).map_or(&[][..], Vec::as_slice);
        outlooks.push(of_server(options, server, pending, turn, total, now));
    }
    Ok(Outlook {
        total,
        offline: u32::try_from(meant.offline).unwrap_or(u32::MAX),
        beyond_window: (0..total)
            .rev()
            .take_while(|turn| start(options, *turn, now).is_none())
            .count() as u32,
        last_start_at: (0..total).rev().find_map(|turn| start(options, turn, now)),
        servers: outlooks,
    })
}

/// When the server whose turn this is starts at the earliest.
fn start(options: &PatchOptions, turn: u32, now: Timestamp) -> Option<Timestamp> {
    let minutes = i64::from(options.pace.stagger_minutes) * i64::from(turn);
    let inside = options.pace.window_minutes.is_none_or(|window| minutes < i64::from(window));
    inside.then(|| now.saturating_add(SignedDuration::from_mins(minutes)).unwrap_or(Timestamp::MAX))
}

fn of_server(
    options: &PatchOptions,
    server: Server,
    pending: &[Pending],
    turn: u32,
    total: u32,
    now: Timestamp,
) -> ServerOutlook {
    let order = &options.order;
    let asked = |update: &&Pending| {
        let named = order.packages.is_empty()
            || order.packages.iter().any(|name| name.as_str() == update.name);
        named && (update.security || !order.security_only)
    };
    let excluded = |update: &Pending| order.exclude.iter().any(|out| out.matches(&update.name));
    let (blocked, updates): (Vec<Pending>, Vec<Pending>) = pending
        .iter()
        .filter(asked)
        .map(|update| match excluded(update) {
            true => Pending { blocked_by: Some(vocab::BlockedBy::Excluded), ..update.clone() },
            false => update.clone(),
        })
        .partition(|update| update.blocked_by.is_some());
    let pends = |name: &str| pending.iter().any(|update| update.name == name);
    let named = order.packages.iter().map(vocab::PackageName::as_str);
    let canaries = options.pace.limits(total).canary();
    ServerOutlook {
        starts_at: start(options, turn, now),
        canary: turn < canaries,
        waits_for_canary: canaries > 0 && turn >= canaries,
        waits_for_parallel: options.pace.max_parallel.is_some_and(|at_once| turn >= at_once),
        nothing_pending: named.filter(|name| !pends(name)).map(str::to_owned).collect(),
        reboots: reboots(options, &server, !updates.is_empty()),
        updates,
        blocked,
        server,
    }
}

fn reboots(options: &PatchOptions, server: &Server, installs: bool) -> Option<bool> {
    if options.order.dry_run {
        return Some(false);
    }
    match options.order.reboot {
        RebootPolicy::Never | RebootPolicy::ServicesOnly => Some(false),
        RebootPolicy::Always => Some(true),
        RebootPolicy::IfRequired if server.reboot_required => Some(true),
        RebootPolicy::IfRequired if !installs => Some(false),
        RebootPolicy::IfRequired => None,
    }
}
