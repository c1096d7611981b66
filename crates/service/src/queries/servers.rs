//! Servers: the list, and the details of one server.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::Ecosystem;
use domain::server::Presence;
use jiff::{SignedDuration, Timestamp};
pub use store::server_list::Sort;
use store::server_list::{self, OnlineSpan};
use store::servers::{self, Server};
use store::{Conn, Page, Paged, StoreError, counts, refreshes};
use vocab::{Assessment, Environment, OsFilter, Selector, ServerId, Status, Tag, TaskId};
use wire::v1::{Coverage, Cve, Package, ServerDetail};

use super::{Scope, convert};
use crate::commands::servers::{inventory, match_updates};
use crate::projections::findings::{self, ActiveSuppressions};
use crate::{App, Result, host_facts};

/// The maximum length of a server name.
const SEARCH_CHARS_MAX: usize = 253;

#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub status: Option<Status>,
    pub environment: Option<Environment>,
    pub os: Option<OsFilter>,
    /// Part of the hostname or the display name; case does not matter.
    pub search: Option<String>,
    /// The tags that a server must have, all of them.
    pub tags: Vec<Tag>,
    pub reboot_required: Option<bool>,
}

#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    filter: Filter,
    sort: Sort,
    page: Page,
) -> Result<Paged<wire::v1::Server>> {
    let wanted = stored_filter(app, scope, filter);
    let mut reader = app.db.snapshot().await?;
    let Paged { items, total } =
        server_list::list(&mut reader, scope.org, &wanted, sort, page).await?;
    let assessed = findings::assess_servers(&mut reader, scope.org, &items).await?;
    let shown = items.into_iter().zip(assessed);
    let items = shown.map(|(row, assessed)| convert::server(app, row, &assessed)).collect();
    Ok(Paged { items, total })
}

fn stored_filter(app: &App, scope: &Scope, filter: Filter) -> server_list::Filter {
    server_list::Filter {
        status: filter.status.map(|status| (status, online_span(app))),
        environment: filter.environment,
        environments: scope.environments.as_deref().map(<[Environment]>::to_vec),
        os: filter.os,
        tags: filter.tags,
        ids: Vec::new(),
        // No hostname is longer, so a longer search finds nothing. Neither does a search for NUL,
        // which PostgreSQL does not accept in text.
        q: filter
            .search
            .map(|q| q.replace('\0', "\u{fffd}").chars().take(SEARCH_CHARS_MAX + 1).collect()),
        reboot_required: filter.reboot_required,
    }
}

/// The servers that match a filter, at most `limit` of them.
#[boxed]
pub async fn matching(
    app: &App,
    scope: &Scope,
    filter: Filter,
    limit: usize,
) -> Result<Vec<ServerId>> {
    let mut reader = app.db.read().await?;
    let wanted = stored_filter(app, scope, filter);
    let mut ids = server_list::ids(&mut reader, scope.org, &wanted).await?;
    ids.truncate(limit);
    Ok(ids)
}

/// The values that servers can be filtered by, with the number of servers of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facets {
    pub environments: Vec<(String, u64)>,
    /// Operating systems with their versions, in lower case.
    pub systems: Vec<(String, u64)>,
    /// The most frequent tags.
    pub tags: Vec<(String, u64)>,
    /// All of them.
    pub servers: u64,
}

const TAGS_SHOWN_MAX: u32 = 200;

/// The values that the servers of this reader can be filtered by. Tags are counted over all
/// environments, so a reader that is limited to some gets none.
#[boxed]
pub async fn facets(app: &App, scope: &Scope) -> Result<Facets> {
    let mut reader = app.db.read().await?;
    let mut environments: BTreeMap<String, u64> = BTreeMap::new();
    let mut systems: BTreeMap<String, u64> = BTreeMap::new();
    let mut servers = 0;
    for count in counts::by_environment_and_os(&mut reader, scope.org).await? {
        let environment: Option<Environment> = count.environment.parse().ok();
        if !scope.includes(environment.as_ref()) {
            continue;
        }
        servers += count.servers;
        *systems.entry(count.os).or_default() += count.servers;
        if environment.is_some() {
            *environments.entry(count.environment).or_default() += count.servers;
        }
    }
    let tags = match scope.environments {
        None => counts::by_tag(&mut reader, scope.org, TAGS_SHOWN_MAX).await?,
        Some(_) => Vec::new(),
    };
    Ok(Facets {
        environments: environments.into_iter().collect(),
        systems: systems.into_iter().collect(),
        tags,
        servers,
    })
}

/// The number of servers that are online.
#[boxed]
pub async fn online(app: &App, scope: &Scope) -> Result<u64> {
    let wanted = Filter { status: Some(Status::Online), ..Filter::default() };
    let wanted = stored_filter(app, scope, wanted);
    Ok(server_list::count(&mut *app.db.read().await?, scope.org, &wanted).await?)
}

/// Returns which of these servers exist and are visible to this reader.
pub(crate) async fn existing(
    conn: &mut Conn,
    scope: &Scope,
    ids: impl IntoIterator<Item = ServerId>,
) -> Result<BTreeSet<ServerId>> {
    const CHUNK: usize = 500;
    let ids: Vec<ServerId> = ids.into_iter().collect();
    let mut found = BTreeSet::new();
    for chunk in ids.chunks(CHUNK) {
        let filter = server_list::Filter {
            ids: chunk.to_vec(),
            environments: scope.environments.as_deref().map(<[_]>::to_vec),
            ..server_list::Filter::default()
        };
        found.extend(server_list::ids(conn, scope.org, &filter).await?);
    }
    Ok(found)
}

/// The servers that a selector matches and the caller may see.
pub async fn select(app: &App, scope: &Scope, targets: &Selector) -> Result<Vec<ServerId>> {
    let environments = scope.environments.as_deref().map(<[Environment]>::to_vec);
    let filter = server_list::Filter { environments, ..server_list::Filter::from(targets) };
    let mut reader = app.db.read().await?;
    Ok(server_list::ids(&mut reader, scope.org, &filter).await?)
}

/// The servers with this hostname or display name that this reader may see.
#[boxed]
pub async fn by_name(app: &App, scope: &Scope, name: &str) -> Result<Vec<ServerId>> {
    let mut reader = app.db.read().await?;
    let found = server_list::by_name(&mut reader, scope.org, name).await?;
    let seen = existing(&mut reader, scope, found.iter().copied()).await?;
    Ok(found.into_iter().filter(|id| seen.contains(id)).collect())
}

/// A refresh of a server's inventory.
#[boxed]
pub async fn refresh(
    app: &App,
    scope: &Scope,
    server: ServerId,
    id: TaskId,
) -> Result<wire::v1::Refresh> {
    let mut reader = app.db.read().await?;
    let found = refreshes::get(&mut reader, scope.org, id).await?;
    if found.server_id != server {
        return Err(StoreError::not_found("refresh", id).into());
    }
    // The refresh of a removed server stays visible to readers without an environment limit.
    if scope.environments.is_some() {
        find_in(&mut reader, scope, server).await?;
    }
    Ok(convert::refresh(found))
}

/// The range of contact times in which a server counts as online now: [`Presence::status`] as a
/// range for a query.
pub fn online_span(app: &App) -> OnlineSpan {
    let presence = Presence { last_seen: None, sync_seconds: app.settings.sync_seconds };
    // Excludes the instant at which the timeout ends; times are stored with microsecond precision.
    let patience = presence.offline_after() - SignedDuration::from_micros(1);
    let now = app.clock.now();
    OnlineSpan {
        since: now.saturating_sub(patience).unwrap_or(Timestamp::MIN),
        until: now.saturating_add(patience).unwrap_or(Timestamp::MAX),
    }
}

/// Returns a server that the caller may see.
#[boxed]
pub async fn find(app: &App, scope: &Scope, id: ServerId) -> Result<Server> {
    find_in(&mut *app.db.read().await?, scope, id).await
}

pub(crate) async fn find_in(conn: &mut Conn, scope: &Scope, id: ServerId) -> Result<Server> {
    let server = servers::get(conn, scope.org, id).await?;
    match scope.includes(server.environment.as_ref()) {
        true => Ok(server),
        false => Err(StoreError::not_found("server", id).into()),
    }
}

/// A server with its inventory and findings, and its generation.
#[boxed]
pub async fn detail(app: &App, scope: &Scope, id: ServerId) -> Result<(i64, ServerDetail)> {
    let mut reader = app.db.snapshot().await?;
    let row = find_in(&mut reader, scope, id).await?;
    let (installed, pending) = inventory(&mut reader, &row).await?;
    let (exposed, unassessed) = findings::server_findings(&mut reader, &row).await?;
    let assessed =
        findings::assess_servers(&mut reader, scope.org, std::slice::from_ref(&row)).await?;
    let is_covered = !matches!(assessed[0].assessment, Assessment::NoFeed);
    let cves_checked = matches!(assessed[0].assessment, Assessment::Assessed | Assessment::Partial);
    let coverage = match Ecosystem::for_os(&row.os).filter(|_| is_covered) {
        None => None,
        Some(base) => Some(Coverage {
            lists_unfixed: findings::lists_unfixed(&mut reader, &base).await?,
            derived_from: Ecosystem::derived_from(&row.os),
            ecosystem: base.as_str().to_owned(),
        }),
    };
    let suppressions = ActiveSuppressions::read(&mut reader, scope.org, app.clock.now()).await?;
    let upgrade = store::refreshes::last_upgrade(&mut reader, id).await?;
    drop(reader);
    let secured = findings::security_packages(&row, &installed, &exposed, &pending);
    let updates = match_updates(&installed, &pending);
    let packages = installed.iter().enumerate().map(|(place, package)| {
        let update = updates.get(&place);
        Package {
            name: package.name.clone(),
            version: package.version.clone(),
            arch: package.arch.clone(),
            source: package.source().to_owned(),
            available_version: update.map(|update| update.candidate.clone()),
            security: update.is_some_and(|update| secured.contains(update.name.as_str())),
            held: package.held,
            blocked_by: update.and_then(|update| update.blocked_by),
        }
    });
    let packages = packages.collect();
    let environment = row.environment.as_ref();
    let mut cves: Vec<Cve> =
        exposed.iter().map(|one| convert::cve(one, &suppressions, environment)).collect();
    cves.sort_by(|a, b| {
        b.severity.cmp(&a.severity).then_with(|| (&a.id, &a.package).cmp(&(&b.id, &b.package)))
    });
    let suppressed = cves.iter().filter(|cve| cve.suppressed.is_some()).count();
    let suppressed_cves = u32::try_from(suppressed).unwrap_or(u32::MAX);
    let generation = row.generation;
    let old_code =
        host_facts::from_stored(&row.facts).old_code.into_iter().map(convert::old_code).collect();
    let server = convert::server(app, row, &assessed[0]);
    let detail = ServerDetail {
        server,
        packages,
        cves,
        suppressed_cves,
        cves_checked,
        unassessed: match assessed[0].assessment {
            Assessment::Partial => unassessed.into_iter().map(convert::unassessed).collect(),
            Assessment::Assessed | Assessment::NoFeed | Assessment::NotScanned => Vec::new(),
        },
        coverage,
        agent_upgrade: upgrade.and_then(convert::agent_upgrade),
        old_code,
    };
    Ok((generation, detail))
}
