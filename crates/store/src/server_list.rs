//! Finding servers: filters, pages, and whom a selector means.

use std::collections::BTreeMap;

use jiff::Timestamp;
use vocab::{Criteria, Environment, OrgId, OsFilter, Selector, ServerId, Status, Tag};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{parse, put};
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text};
use crate::{Page, Paged};

/// What servers must match; the default is every server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Heard from, or not heard from, since this time.
    pub status: Option<(Status, Timestamp)>,
    /// In this environment.
    pub environment: Option<Environment>,
    /// In one of these; `None`: wherever. What a key's limit to environments comes to.
    pub environments: Option<Vec<Environment>>,
    /// Running this system.
    pub os: Option<OsFilter>,
    /// With all of these tags.
    pub tags: Vec<Tag>,
    /// One of these; empty: any.
    pub ids: Vec<ServerId>,
    /// With this in its name, upper or lower case.
    pub q: Option<String>,
    /// Wanting a reboot, or not.
    pub reboot_required: Option<bool>,
}

/// In which order. Every one ends with the id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// By name.
    #[default]
    Hostname,
    /// Those longest not heard from first.
    LastSeen,
    /// Those with the most pending security updates first.
    SecurityUpdates,
    /// Those that joined last first.
    Newest,
}

impl Sort {
    /// In the words of the table that is walked, so that its own order is seen to be the one that is asked for.
    fn clause(self, walk: Walk) -> &'static str {
        match (self, walk) {
            (Sort::Hostname, Walk::Names) => " order by name, named",
            (Sort::Hostname, _) => " order by sort_name, id",
            (Sort::LastSeen, _) => " order by last_seen_at, server_id",
            (Sort::SecurityUpdates, _) => " order by security_updates desc, sort_name, id",
            (Sort::Newest, _) => " order by id desc",
        }
    }
}

impl From<&Selector> for Filter {
    fn from(selector: &Selector) -> Self {
        match selector {
            Selector::All => Filter::default(),
            Selector::Matching(criteria) => criteria.into(),
        }
    }
}

impl From<&Criteria> for Filter {
    fn from(criteria: &Criteria) -> Self {
        Filter {
            environment: criteria.environment().cloned(),
            os: criteria.os().cloned(),
            tags: criteria.tags().to_vec(),
            ids: criteria.server_ids().to_vec(),
            ..Filter::default()
        }
    }
}

/// Which table to walk and which to look up in. SQLite takes a `cross join` at its word; for
/// PostgreSQL it is a join like any other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// The servers by name, each looked up in `presence`.
    Servers,
    /// Those of the wanted status, each looked up in `servers`.
    Presence,
    /// The names in which the searched text is, each looked up in the two others.
    Names,
}

impl Walk {
    fn joined(self) -> &'static str {
        match self {
            Walk::Servers => {
                " from servers cross join presence where server_id = id and org = org_id"
            }
            Walk::Presence => {
                " from presence cross join servers where server_id = id and org = org_id"
            }
            Walk::Names => {
                " from server_names cross join servers cross join presence
                 where id = named and server_id = id and org = org_id"
            }
        }
    }
}

/// The walk that ends sooner. Few of a status or of a name are read and sorted, `some` of them; if they are many, walking
/// all servers in the order that is asked for fills the page after some `page * all / some`.
async fn walk(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    sort: Sort,
    page: Page,
) -> Result<Walk> {
    // When they were seen is in one order there, and in none among the servers.
    let otherwise = if sort == Sort::LastSeen { Walk::Presence } else { Walk::Servers };
    if filter.status.is_none() && filter.q.is_none() {
        return Ok(otherwise);
    }
    let all = sum(conn, org, &Filter::default()).await?;
    let page = page.offset.saturating_add(page.limit.into());
    let worth = all.saturating_mul(page).isqrt();
    let most = worth.saturating_add(1);
    if let Some(status) = filter.status
        && sort != Sort::LastSeen
        && of_status(conn, org, status, most).await? <= worth
    {
        return Ok(Walk::Presence);
    }
    if let Some(q) = &filter.q
        && (sort == Sort::Hostname || called(conn, org, q, most).await? <= worth)
    {
        return Ok(Walk::Names);
    }
    Ok(otherwise)
}

/// How many servers have this status, counted no further than `most`.
async fn of_status(
    conn: &mut Conn,
    org: OrgId,
    (status, since): (Status, Timestamp),
    most: u64,
) -> Result<u64> {
    let (some,): (i64,) = on!(conn, |c| {
        let mut text =
            Text::new("select count(*) from (select 1 as one from presence where org = ");
        text.bind(put(&org)).add(" and last_seen_at").add(than(status));
        // In the order of the index, or PostgreSQL would rather read everyone.
        text.bind(put(&since)).add(" order by last_seen_at limit ").bind(put(&most));
        text.add(") counted");
        text.build_as().fetch_one(c).await
    })?;
    Ok(some.unsigned_abs())
}

/// Those with this in their name, among the names.
macro_rules! named {
    ($text:ident, $org:ident, $q:ident) => {
        $text.add("owner = ").bind(put(&$org));
        $text.add(" and name like ").bind(pattern($q)).add(" escape '\\'");
    };
}

/// How many servers have this in their name, counted no further than `most`.
async fn called(conn: &mut Conn, org: OrgId, q: &str, most: u64) -> Result<u64> {
    let (some,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from (select 1 as one from server_names where ");
        named!(text, org, q);
        text.add(" limit ").bind(put(&most)).add(") counted");
        text.build_as().fetch_one(c).await
    })?;
    Ok(some.unsigned_abs())
}

macro_rules! matching {
    ($text:ident, $org:ident, $filter:ident, $walk:expr) => {
        $text.add(" and removed_at is null and org_id = ").bind(put(&$org));
        $text.add(" and org = ").bind(put(&$org));
        if let Some((status, since)) = $filter.status {
            match $walk {
                Walk::Presence => $text.add(" and last_seen_at"),
                // PostgreSQL chooses the walk itself, by what it last knew of these times: where all have moved on since then
                // it takes those who are online for none. This it cannot reckon with, nor look up.
                Walk::Servers | Walk::Names => {
                    $text.add(" and coalesce(last_seen_at, ").bind(put(&since)).add(")")
                }
            };
            $text.add(than(status)).bind(put(&since));
        }
        conditions!($text, $org, $filter);
    };
}

/// When someone of this status was last seen, as compared with the time that parts them.
fn than(status: Status) -> &'static str {
    match status {
        Status::Online => " >= ",
        Status::Offline => " < ",
    }
}

/// Everything but the status.
macro_rules! conditions {
    ($text:ident, $org:ident, $filter:ident) => {
        if let Some(environment) = &$filter.environment {
            $text.add(" and environment = ").bind(put(environment));
        }
        if let Some(environments) = &$filter.environments {
            // `in ()` is SQLite's alone, and a key that is limited to nothing sees nothing.
            match environments.is_empty() {
                true => $text.add(" and 1 = 0"),
                false => $text.add(" and environment in ").list(environments.iter().map(put)),
            };
        }
        if let Some(os) = &$filter.os {
            let wanted = os.as_str().to_ascii_lowercase();
            let id = wanted.split(' ').next().unwrap_or_default().to_owned();
            $text.add(" and os_id = ").bind(id.clone());
            if id != wanted {
                // `debian 12` means 12 and 12.5, not 120: from "12." up to the character after the
                // dot.
                $text.add(" and (os_release = ").bind(wanted.clone());
                $text.add(" or (os_release >= ").bind(format!("{wanted}."));
                $text.add(" and os_release < ").bind(format!("{wanted}/")).add("))");
            }
        }
        for tag in &$filter.tags {
            $text.add(" and id in (select t.server_id from server_tags t where t.org_id = ");
            $text.bind(put(&$org)).add(" and t.tag = ").bind(tag.to_string()).add(")");
        }
        if !$filter.ids.is_empty() {
            $text.add(" and id").among($filter.ids.iter().map(put));
        }
        if let Some(q) = &$filter.q {
            $text.add(" and sort_name like ").bind(pattern(q)).add(" escape '\\'");
        }
        if let Some(required) = $filter.reboot_required {
            $text.add(" and reboot_required = ").bind(required);
        }
    };
}

/// `%text%` with the characters that `like` obeys made plain.
fn pattern(q: &str) -> String {
    let mut pattern = String::from("%");
    for c in q.to_ascii_lowercase().chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}

/// A page of the servers that match, and how many do.
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    sort: Sort,
    page: Page,
) -> Result<Paged<Server>> {
    let items = items(conn, org, filter, sort, page).await?;
    let total = count(conn, org, filter).await?;
    Ok(Paged { items, total })
}

/// A page of the servers that match.
pub async fn items(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    sort: Sort,
    page: Page,
) -> Result<Vec<Server>> {
    let walk = walk(conn, org, filter, sort, page).await?;
    let q = filter.q.as_deref().filter(|_| walk == Walk::Names);
    let unnamed = Filter { q: None, ..filter.clone() };
    let rest = if q.is_some() { &unnamed } else { filter };
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Server::COLUMNS).add(walk.joined());
        if let Some(q) = q {
            text.add(" and ");
            named!(text, org, q);
        }
        matching!(text, org, rest, walk);
        text.add(sort.clause(walk)).add(" limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?)
}

/// How many servers match. Without a walk over the fleet, unless the filter speaks of tags or reboots, or of a name and
/// something else: there are counts by environment and system, a search by name reads the names alone, and those who are
/// offline are counted one by one, whoever else there is being online.
pub async fn count(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<u64> {
    let whichever = Filter { status: None, ..filter.clone() };
    let Some((status, since)) = filter.status else {
        return of_any_status(conn, org, filter).await;
    };
    if !(whichever.is_by_kind() || whichever.is_by_name()) {
        return walked(conn, org, filter, Walk::Servers).await;
    }
    let offline = (Status::Offline, since);
    let offline = if whichever == Filter::default() {
        of_status(conn, org, offline, u64::MAX).await?
    } else {
        let filter = Filter { status: Some(offline), ..whichever.clone() };
        walked(conn, org, &filter, Walk::Presence).await?
    };
    match status {
        Status::Offline => Ok(offline),
        Status::Online => Ok(of_any_status(conn, org, &whichever).await?.saturating_sub(offline)),
    }
}

impl Filter {
    /// Whether it asks for nothing but what servers are counted by.
    fn is_by_kind(&self) -> bool {
        let Filter { environment, environments, os, .. } = self.clone();
        *self == Filter { environment, environments, os, ..Filter::default() }
    }

    /// Whether it asks for a name and nothing else.
    fn is_by_name(&self) -> bool {
        self.q.is_some() && *self == Filter { q: self.q.clone(), ..Filter::default() }
    }
}

async fn of_any_status(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<u64> {
    match &filter.q {
        Some(q) if filter.is_by_name() => called(conn, org, q, u64::MAX).await,
        _ if filter.is_by_kind() => sum(conn, org, filter).await,
        _ => walked(conn, org, filter, Walk::Servers).await,
    }
}

/// From what is counted by environment and system.
async fn sum(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<u64> {
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new(
            "select cast(coalesce(sum(servers), 0) as bigint) from server_counts where org_id = ",
        );
        text.bind(put(&org));
        conditions!(text, org, filter);
        text.build_as().fetch_one(c).await
    })?;
    Ok(total.unsigned_abs())
}

async fn walked(conn: &mut Conn, org: OrgId, filter: &Filter, walk: Walk) -> Result<u64> {
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*)");
        if filter.status.is_none() {
            text.add(" from servers where removed_at is null and org_id = ").bind(put(&org));
            conditions!(text, org, filter);
        } else {
            text.add(walk.joined());
            matching!(text, org, filter, walk);
        }
        text.build_as().fetch_one(c).await
    })?;
    Ok(total.unsigned_abs())
}

/// Whom a filter means: every server that matches, by name.
pub async fn ids(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<Vec<ServerId>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        let mut text = Text::new("select id");
        if filter.status.is_some() {
            text.add(Walk::Servers.joined());
            matching!(text, org, filter, Walk::Servers);
        } else {
            text.add(" from servers where removed_at is null and org_id = ").bind(put(&org));
            conditions!(text, org, filter);
        }
        text.add(" order by sort_name, id");
        text.build_as().fetch_all(c).await
    })?;
    found.into_iter().map(|(id,)| parse("servers", id)).collect()
}

/// The servers of this name, upper or lower case.
pub async fn of_name(conn: &mut Conn, org: OrgId, name: &str) -> Result<Vec<ServerId>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as(
            "select id from servers where removed_at is null and org_id = $1 and sort_name = $2
              order by id",
        )
        .bind(put(&org))
        .bind(name.to_ascii_lowercase())
        .fetch_all(c)
        .await
    })?;
    found.into_iter().map(|(id,)| parse("servers", id)).collect()
}

/// Those of these servers that are there, and the name that each is sorted by: for who asks on behalf of many.
pub async fn names(
    conn: &mut Conn,
    org: OrgId,
    ids: &[ServerId],
) -> Result<BTreeMap<ServerId, String>> {
    let mut names = BTreeMap::new();
    for chunk in ids.chunks(ROWS_MAX) {
        let found: Vec<(String, String)> = on!(conn, |c| {
            let mut text = Text::new(
                "select id, sort_name from servers where removed_at is null and org_id = ",
            );
            text.bind(put(&org)).add(" and id").among(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        for (id, name) in found {
            names.insert(parse("servers", id)?, name);
        }
    }
    Ok(names)
}
