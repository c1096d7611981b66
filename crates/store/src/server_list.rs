//! Lists, counts and selects servers by filter.
//!
//! The rows of `servers` are wide and rewritten by every scan, so a list must never read all of
//! them. It finds the ids of its page in narrow tables (`server_index`, `server_tags`, `presence`) and then
//! reads the rows of that page alone. `scan` builds the SQL; `servers` reads and writes whole rows.
//!
//! A page is found in one of two ways:
//!
//! - **Collect and sort**, if few servers can match: read the ids of all candidates, check the
//!   other criteria, sort, and cut out the page. `small_candidate_set` decides whether they are few
//!   enough.
//! - **Scan in order**, otherwise: read an index in the order that the list is sorted by, skip what
//!   does not match, and stop when the page is full.
//!
//! "Few enough" is √(fleet × (offset + limit)), and at most 2,500. If `m` of `n` servers match, a
//! scan fills a page of `p` after about `p × n / m` servers; for `m` below √(n × p) that is more
//! than `m`.
//!
//! # Worked examples
//!
//! A fleet of 20,000 servers in one organization, and pages of 50: candidates are few up to
//! √(20,000 × 50) = 1,000. The texts are SQLite's. PostgreSQL gets `$1` for `?`, no `indexed by`,
//! and `= any($2)` for a list of ids. The plans are those of SQLite without statistics and of
//! PostgreSQL 15 after `vacuum analyze`. SQLite may have statistics, which the store lets it
//! collect when the database is closed; after a full `analyze`, tried with 8,000 servers, only the
//! count of example 3 changed. PostgreSQL always chooses by statistics, so another fleet may get
//! another plan. `tests/store/worked_examples.rs` compares the texts, and the plans of SQLite, with
//! this page.
//!
//! Two statements belong to every list and are not repeated below. The first reads the size of the
//! fleet; example 1 shows it. The last reads the rows of the page by primary key, unless it is
//! empty: `select … from servers join presence … where removed_at is null and id in (?, …)`.
//!
//! ## 1. No filter, sorted by name
//!
//! ```sql
//! -- SQLite: SEARCH server_counts USING PRIMARY KEY (org_id=?)
//! -- PostgreSQL: Seq Scan on server_counts
//! select cast(coalesce(sum(servers), 0) as bigint) from server_counts where org_id = ?;
//!
//! -- SQLite: SEARCH server_index USING PRIMARY KEY (org_id=?)
//! -- PostgreSQL: Index Only Scan using server_index_pkey
//! select server_index.id from server_index where org_id = ? order by sort_name, id limit ? offset ?;
//! ```
//!
//! All 20,000 match, so the list scans in order. The primary key of `server_index` is `(org_id,
//! sort_name, id)`: its first 50 entries are the page, and nothing is sorted. The total is a sum
//! over `server_counts`, which has one row for each environment and operating system, so few that
//! PostgreSQL reads them all. Without a filter the fleet's size, the number of matches and the
//! total are the same statement, which is sent three times.
//!
//! ## 2. One tag
//!
//! `rack=7`, on 500 servers, sorted by name:
//!
//! ```sql
//! -- SQLite: SEARCH server_tags USING PRIMARY KEY (owner=? AND tag=?)
//! -- PostgreSQL: Bitmap Index Scan on server_tags_pkey, Sort
//! select named from server_tags where owner = ? and tag = ? order by name, named limit ?;
//!
//! -- SQLite: SEARCH server_index USING COVERING INDEX server_index_id (org_id=? AND id=?)
//! -- SQLite: USE TEMP B-TREE FOR ORDER BY
//! -- PostgreSQL: Seq Scan on server_index, Sort
//! select server_index.id from server_index indexed by server_index_id
//!  where org_id = ? and server_index.id in (?, …) order by sort_name, id;
//! ```
//!
//! The first statement asks for at most 1,001 ids and gets 500: few, so they are collected and
//! sorted. The number of ids that the second statement returns is the total. The text names an
//! index for SQLite, which may have no statistics: if the filter had an environment too, it might
//! read the whole environment for each id. PostgreSQL finds one scan of the narrow table cheaper
//! than 500 lookups.
//!
//! `web`, on 10,000 servers, sorted by name:
//!
//! ```sql
//! -- SQLite: SEARCH server_tags USING PRIMARY KEY (owner=? AND tag=?)
//! -- PostgreSQL: Index Only Scan using server_tags_pkey
//! select named from server_tags where owner = ? and tag = ? order by name, named limit ?;
//!
//! -- SQLite: SEARCH server_tags USING PRIMARY KEY (owner=? AND tag=?)
//! -- PostgreSQL: Seq Scan on server_tags
//! select count(*) from server_tags where owner = ? and tag = ?;
//!
//! -- SQLite: SEARCH server_tags USING PRIMARY KEY (owner=? AND tag=?)
//! -- PostgreSQL: Index Only Scan using server_tags_pkey
//! select server_tags.named from server_tags where owner = ? and tag = ?
//!  order by name, named limit ? offset ?;
//! ```
//!
//! The first statement gets 1,001 ids: too many, so the list counts and scans in order. The primary
//! key of `server_tags` is `(owner, tag, name, named)`, so a scan by name passes only servers with the
//! tag.
//!
//! ## 3. Name search
//!
//! `q` = `b-199`, in the names of 111 servers, sorted by name:
//!
//! ```sql
//! -- SQLite: SEARCH server_index USING COVERING INDEX server_index_reboot (org_id=?)
//! -- PostgreSQL: Seq Scan on server_index
//! select count(*) from server_index where org_id = ? and server_index.sort_name like ? escape '\';
//!
//! -- SQLite: SEARCH server_index USING PRIMARY KEY (org_id=?)
//! -- PostgreSQL: Seq Scan on server_index, Sort
//! select server_index.id from server_index where org_id = ? and server_index.sort_name like ? escape '\'
//!  order by sort_name, id limit ? offset ?;
//! ```
//!
//! No index answers `like '%…%'`, so every name is compared, but in a narrow table or index and not
//! in `servers`. For the count SQLite takes any index that holds `sort_name` (after `analyze`:
//! `server_index_id`). For the page it reads names in order and stops after 50 matches.
//!
//! ## 4. Environment and required reboot
//!
//! `environment` = `production` (18,000 servers) and `reboot_required` = `true` (541 servers),
//! sorted by name; 486 match both:
//!
//! ```sql
//! -- SQLite: SEARCH server_index USING COVERING INDEX server_index_id (org_id=?)
//! -- PostgreSQL: Bitmap Index Scan on server_index_reboot
//! select count(*) from server_index where org_id = ? and environment = ? and reboot_required = ?;
//!
//! -- SQLite: SEARCH server_index USING PRIMARY KEY (org_id=?)
//! -- PostgreSQL: Index Scan using server_index_reboot
//! select server_index.id from server_index where org_id = ? and environment = ? and reboot_required = ?
//!  order by sort_name, id limit ? offset ?;
//! ```
//!
//! Candidates are not collected first, although they are few: in the order of names, one scan finds
//! and sorts them at once. PostgreSQL knows from statistics that few servers require a reboot, and
//! `server_index_reboot` continues with `sort_name, id`, so the page needs no sort. SQLite does not use
//! that index here, not even after `analyze`. It counts in `server_index_id`, which holds both columns,
//! and finds the page by reading `server_index` in the order of its primary key until 50 servers match.
//!
//! ## 5. Sorted by security updates
//!
//! No filter:
//!
//! ```sql
//! -- SQLite: SEARCH server_index USING COVERING INDEX server_index_security (org_id=?)
//! -- PostgreSQL: Index Only Scan using server_index_security
//! select server_index.id from server_index indexed by server_index_security where org_id = ?
//!  order by security_updates desc, sort_name, id limit ? offset ?;
//! ```
//!
//! `server_index_security` starts with `(org_id, security_updates desc, sort_name, id)`: its first 50
//! entries are the page. It also holds environment, operating system and `reboot_required`, so a
//! filter on them is checked in the index.
//!
//! ## 6. Large offset
//!
//! No filter, sorted by name, offset 15,000:
//!
//! ```sql
//! -- SQLite: SEARCH server_index USING PRIMARY KEY (org_id=?)
//! -- PostgreSQL: Index Only Scan using server_index_pkey
//! select server_index.id from server_index where org_id = ? order by sort_name, id limit ? offset ?;
//! ```
//!
//! The same text as in example 1. The database reads 15,050 narrow entries and drops 15,000 of
//! them; the cost grows with the offset, but still only 50 rows of `servers` are read.

mod scan;

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use vocab::{Criteria, Environment, OrgId, OsFilter, Selector, ServerId, Status, Tag};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{parse, put};
use crate::server_index::{SEPARATOR, lower_case};
use crate::servers;
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text, escape_like, like_pattern};
use crate::{Page, Paged};
use scan::{QueryPlan, push_count_columns, push_scan};

/// What servers must match; the default is every server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Online or offline. The [`OnlineSpan`] defines which contacts make a server online.
    pub status: Option<(Status, OnlineSpan)>,
    pub environment: Option<Environment>,
    /// In one of these environments; `None` means any. Used for keys that are limited to
    /// environments.
    pub environments: Option<Vec<Environment>>,
    pub os: Option<OsFilter>,
    pub tags: Vec<Tag>,
    /// One of these servers; empty means any.
    pub ids: Vec<ServerId>,
    /// Part of its name; not case-sensitive.
    pub q: Option<String>,
    pub reboot_required: Option<bool>,
}

/// The range of contact times that makes a server online, both ends included. A later contact was
/// recorded by a wrong clock and is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnlineSpan {
    pub since: Timestamp,
    pub until: Timestamp,
}

impl OnlineSpan {
    /// Any time from this one on.
    pub fn since(since: Timestamp) -> OnlineSpan {
        OnlineSpan { since, until: Timestamp::MAX }
    }

    /// Whether a server with this last contact has this status.
    pub fn matches(self, status: Status, last_seen_at: Timestamp) -> bool {
        let online = self.since <= last_seen_at && last_seen_at <= self.until;
        online == (status == Status::Online)
    }

    /// The intervals of last contact, ends included, that have this status. Times have
    /// microseconds.
    fn intervals(self, status: Status) -> Vec<(Option<Timestamp>, Option<Timestamp>)> {
        const STEP: SignedDuration = SignedDuration::from_micros(1);
        match status {
            Status::Online => vec![(Some(self.since), Some(self.until))],
            Status::Offline => {
                let before = self.since.checked_sub(STEP).ok().map(|end| (None, Some(end)));
                let after = self.until.checked_add(STEP).ok().map(|start| (Some(start), None));
                before.into_iter().chain(after).collect()
            }
        }
    }
}

impl Filter {
    /// Whether it uses only the columns that servers are counted by.
    fn uses_count_columns_only(&self) -> bool {
        let Filter { environment, environments, os, .. } = self.clone();
        *self == Filter { environment, environments, os, ..Filter::default() }
    }
}

/// The sort order of a list. Ties are sorted by id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Hostname,
    /// Least recently seen first.
    LastSeen,
    /// The most pending security updates first.
    SecurityUpdates,
    /// Most recently enrolled first.
    Newest,
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

/// Maximum number of candidates that are collected and sorted for a page. If there are more servers
/// online than this, and also more offline, servers of one status are counted by a scan of all
/// servers.
const CANDIDATES_MAX: u64 = 2_500;

/// Returns a page of the servers that match, and their total number.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    sort: Sort,
    page: Page,
) -> Result<Paged<Server>> {
    list_with_candidate_limit(conn, org, filter, sort, page, CANDIDATES_MAX).await
}

/// [`list`] with another limit than [`CANDIDATES_MAX`].
///
/// Public only for `tests/store`: a low limit makes a fleet of some hundred servers take the path
/// that in production only more than 2,500 candidates take.
#[doc(hidden)]
#[boxed]
pub async fn list_with_candidate_limit(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    sort: Sort,
    page: Page,
    gathered_max: u64,
) -> Result<Paged<Server>> {
    let (ids, total) =
        match small_candidate_set(conn, org, filter, sort, page, gathered_max).await? {
            Some((few, rest)) => {
                let all = filter_and_sort(conn, org, &rest, &few, sort).await?;
                let offset = usize::try_from(page.offset).unwrap_or(usize::MAX);
                let ids = all.iter().copied().skip(offset).take(page.limit as usize).collect();
                (ids, all.len() as u64)
            }
            None => {
                let total = count_with_candidate_limit(conn, org, filter, gathered_max).await?;
                (scan_page(conn, org, filter, sort, page).await?, total)
            }
        };
    let rows = servers::get_all(conn, &ids).await?;
    let mut rows: BTreeMap<_, _> = rows.into_iter().map(|row| (row.id, row)).collect();
    let items = ids.iter().filter_map(|id| rows.remove(id)).collect();
    Ok(Paged { items, total })
}

/// Returns the ids of all servers that may match and the criteria that remain to be checked, or
/// `None` if there are too many to collect and sort. If `m` of `n` servers match, a scan fills a
/// page of `p` after about `p × n / m` servers.
async fn small_candidate_set(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    sort: Sort,
    page: Page,
    gathered_max: u64,
) -> Result<Option<(Vec<ServerId>, Filter)>> {
    let all = sum_counts(conn, org, &Filter::default()).await?;
    let end = page.offset.saturating_add(page.limit.into());
    let limit = all.saturating_mul(end).isqrt().min(gathered_max);
    if filter.uses_count_columns_only() && sum_counts(conn, org, filter).await? > limit {
        return Ok(None);
    }
    let any_status = Filter { status: None, ..filter.clone() };
    if let Some(status) = filter.status
        && let Some(found) = with_status(conn, org, status, limit).await?
    {
        return Ok(Some((found, any_status)));
    }
    let others = filter.tags.iter().skip(1).cloned().collect();
    let untagged = Filter { tags: others, ..filter.clone() };
    if let Some(tag) = filter.tags.first()
        && let Some(found) = with_tag(conn, org, tag, limit).await?
    {
        return Ok(Some((found, untagged)));
    }
    let of_status = Filter { status: filter.status, ..Filter::default() };
    // In the order of names, a scan finds and sorts them at once.
    if untagged == of_status || sort == Sort::Hostname {
        return Ok(None);
    }
    let plan = QueryPlan::unordered(&any_status);
    let found: Vec<(String,)> = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(plan.scan.id);
        push_scan!(text, plan, org);
        text.add(" limit ").bind(put(&limit.saturating_add(1)));
        text.build_as().fetch_all(c).await
    })?;
    Ok(parse_at_most(limit, found)?.map(|found| (found, of_status)))
}

/// The servers with this status, or `None` if there are more than `max`.
async fn with_status(
    conn: &mut Conn,
    org: OrgId,
    (status, online): (Status, OnlineSpan),
    max: u64,
) -> Result<Option<Vec<ServerId>>> {
    let mut all: Vec<(String,)> = Vec::new();
    for (start, end) in online.intervals(status) {
        let found: Vec<(String,)> = on!(conn, |c| {
            let mut text = Text::new("select server_id from presence where org = ");
            text.bind(put(&org));
            if let Some(start) = start {
                text.add(" and last_seen_at >= ").bind(put(&start));
            }
            if let Some(end) = end {
                text.add(" and last_seen_at <= ").bind(put(&end));
            }
            // Ordered as the index is. Otherwise PostgreSQL would read all servers.
            text.add(" order by last_seen_at limit ").bind(put(&max.saturating_add(1)));
            text.build_as().fetch_all(c).await
        })?;
        all.extend(found);
        if all.len() as u64 > max {
            break;
        }
    }
    parse_at_most(max, all)
}

/// The servers with this tag, or `None` if there are more than `max`.
async fn with_tag(
    conn: &mut Conn,
    org: OrgId,
    tag: &Tag,
    max: u64,
) -> Result<Option<Vec<ServerId>>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        let mut text = Text::new("select named from server_tags where owner = ");
        text.bind(put(&org)).add(" and tag = ").bind(tag.to_string());
        text.add(" order by name, named limit ").bind(put(&max.saturating_add(1)));
        text.build_as().fetch_all(c).await
    })?;
    parse_at_most(max, found)
}

fn parse_at_most(max: u64, found: Vec<(String,)>) -> Result<Option<Vec<ServerId>>> {
    if found.len() as u64 > max { Ok(None) } else { parse_ids(found).map(Some) }
}

pub(crate) fn parse_ids(found: Vec<(String,)>) -> Result<Vec<ServerId>> {
    found.into_iter().map(|(id,)| parse("servers", id)).collect()
}

/// Returns the candidates that match, in order.
async fn filter_and_sort(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    gathered: &[ServerId],
    sort: Sort,
) -> Result<Vec<ServerId>> {
    if gathered.is_empty() {
        return Ok(Vec::new());
    }
    let plan = QueryPlan::for_ids(sort, filter);
    parse_ids(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(plan.scan.id);
        push_scan!(text, plan, org);
        text.add(" and ").add(plan.scan.id).equals_any(gathered.iter().map(put));
        text.add(plan.scan.order);
        text.build_as().fetch_all(c).await
    })?)
}

/// Finds a page of the servers that match by scanning in the requested order.
async fn scan_page(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    sort: Sort,
    page: Page,
) -> Result<Vec<ServerId>> {
    let plan = QueryPlan::for_sort(sort, filter);
    parse_ids(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(plan.scan.id);
        push_scan!(text, plan, org);
        text.add(plan.scan.order).add(" limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?)
}

/// Whether any server matches.
#[boxed]
pub async fn any(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<bool> {
    if filter.uses_count_columns_only() {
        return Ok(sum_counts(conn, org, filter).await? > 0);
    }
    let plan = QueryPlan::unordered(filter);
    let found: Option<(String,)> = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(plan.scan.id);
        push_scan!(text, plan, org);
        text.add(" limit 1").build_as().fetch_optional(c).await
    })?;
    Ok(found.is_some())
}

/// The number of servers that match.
#[boxed]
pub async fn count(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<u64> {
    count_with_candidate_limit(conn, org, filter, CANDIDATES_MAX).await
}

/// [`count`] with another limit than [`CANDIDATES_MAX`]; public for the same reason as
/// [`list_with_candidate_limit`].
#[doc(hidden)]
#[boxed]
pub async fn count_with_candidate_limit(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    gathered_max: u64,
) -> Result<u64> {
    let Some((status, online)) = filter.status else {
        return count_any_status(conn, org, filter).await;
    };
    if !filter.ids.is_empty() {
        return count_by_scan(conn, org, QueryPlan::unordered(filter)).await;
    }
    let any_status = Filter { status: None, ..filter.clone() };
    // Usually one status has few servers: count those, and subtract them from the total if the
    // other status is wanted.
    for side in [Status::Offline, Status::Online] {
        let Some(found) = with_status(conn, org, (side, online), gathered_max).await? else {
            continue;
        };
        let found = count_candidates(conn, org, &any_status, &found).await?;
        return match side == status {
            true => Ok(found),
            false => Ok(count_any_status(conn, org, &any_status).await?.saturating_sub(found)),
        };
    }
    count_by_scan(conn, org, QueryPlan::for_sort(Sort::LastSeen, filter)).await
}

/// The number of candidates that match.
async fn count_candidates(
    conn: &mut Conn,
    org: OrgId,
    any_status: &Filter,
    gathered: &[ServerId],
) -> Result<u64> {
    if gathered.is_empty() || *any_status == Filter::default() {
        return Ok(gathered.len() as u64);
    }
    let plan = QueryPlan::for_ids(Sort::Hostname, any_status);
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*)");
        push_scan!(text, plan, org);
        text.add(" and ").add(plan.scan.id).equals_any(gathered.iter().map(put));
        text.build_as().fetch_one(c).await
    })?;
    Ok(total.unsigned_abs())
}

async fn count_any_status(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<u64> {
    match filter.uses_count_columns_only() {
        true => sum_counts(conn, org, filter).await,
        false => count_by_scan(conn, org, QueryPlan::unordered(filter)).await,
    }
}

/// Sums up the counts per environment and operating system.
async fn sum_counts(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<u64> {
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new(
            "select cast(coalesce(sum(servers), 0) as bigint) from server_counts where org_id = ",
        );
        text.bind(put(&org));
        push_count_columns!(text, filter);
        text.build_as().fetch_one(c).await
    })?;
    Ok(total.unsigned_abs())
}

/// Counts by scanning.
async fn count_by_scan(conn: &mut Conn, org: OrgId, plan: QueryPlan<'_>) -> Result<u64> {
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*)");
        push_scan!(text, plan, org);
        text.build_as().fetch_one(c).await
    })?;
    Ok(total.unsigned_abs())
}

/// All servers that match, by name.
#[boxed]
pub async fn ids(conn: &mut Conn, org: OrgId, filter: &Filter) -> Result<Vec<ServerId>> {
    let plan = QueryPlan::for_sort(Sort::Hostname, filter);
    parse_ids(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(plan.scan.id);
        push_scan!(text, plan, org);
        text.add(plan.scan.order);
        text.build_as().fetch_all(c).await
    })?)
}

/// The servers with this hostname or display name; not case-sensitive. Scans the index: a display
/// name may be in front of the hostname.
#[boxed]
pub async fn by_name(conn: &mut Conn, org: OrgId, name: &str) -> Result<Vec<ServerId>> {
    let name = lower_case(name);
    let escaped = escape_like(&name);
    let as_hostname = format!("%{SEPARATOR}{escaped}");
    let as_display_name = format!("{escaped}{SEPARATOR}%");
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as(
            r"select id from server_index where org_id = $1 and (sort_name = $2
                or sort_name like $3 escape '\' or sort_name like $4 escape '\') order by id",
        )
        .bind(put(&org))
        .bind(name.clone())
        .bind(as_hostname.clone())
        .bind(as_display_name.clone())
        .fetch_all(c)
        .await
    })?;
    parse_ids(found)
}

/// The sort names of those of these servers that exist. Reads many at once.
#[boxed]
pub async fn names(
    conn: &mut Conn,
    org: OrgId,
    ids: &[ServerId],
) -> Result<BTreeMap<ServerId, String>> {
    let mut names = BTreeMap::new();
    for chunk in ids.chunks(ROWS_MAX) {
        let found: Vec<(String, String)> = on!(conn, |c| {
            let mut text = Text::new("select id, sort_name from server_index where org_id = ");
            text.bind(put(&org)).add(" and id").in_ids(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        for (id, name) in found {
            names.insert(parse("servers", id)?, name);
        }
    }
    Ok(names)
}
