//! Builds the SQL that scans servers in an order and checks a filter.
//!
//! [`super`] decides which scan to use and has worked examples. The texts are built by macros,
//! because bound values have different types for SQLite and PostgreSQL.

use vocab::Tag;

use super::{Filter, Sort};

/// The table that a scan reads in order, and how each server is looked up in the two other tables
/// if the filter needs their columns. SQLite keeps the order of a `cross join`; for PostgreSQL it
/// is a join like any other.
///
/// The texts name the index for SQLite wherever it might choose another one. Without statistics
/// SQLite assumes that an environment has few servers, and would read the whole environment for
/// each server that it looks up (18 s for 100,000 servers).
///
/// A scan by name with a filter on one tag and on `reboot_required` reads `server_tags` in order and
/// looks up `server_index`:
///
/// ```sql
/// select server_tags.named from server_tags cross join server_index
///  where owner = ? and org_id = owner and sort_name = name and id = named and tag = ?
///    and reboot_required = ? order by name, named limit ? offset ?
/// ```
pub(super) struct ScanPlan {
    /// The column with a server's id.
    pub(super) id: &'static str,
    /// The column with a server's name.
    pub(super) name: &'static str,
    /// The condition that a server has a tag, up to the owner and the tag. SQLite looks up each
    /// server by the whole key. That is slow on PostgreSQL, which rather collects all servers with
    /// the tag.
    pub(super) tag_condition: [&'static str; 2],
    pub(super) table: [&'static str; 2],
    /// The `where` clause up to the organization.
    pub(super) org_condition: &'static str,
    /// How to join `server_index`, unless it is the table that is scanned.
    pub(super) server_index: Option<JoinedTable>,
    /// How to join `presence`, unless it is the table that is scanned.
    pub(super) presence: Option<JoinedTable>,
    pub(super) order: &'static str,
}

/// A table in which each server is looked up by a whole key.
#[derive(Clone, Copy)]
pub(super) struct JoinedTable {
    pub(super) table: [&'static str; 2],
    pub(super) on: &'static str,
}

const BY_ID: [&str; 2] = [" from server_index indexed by server_index_id", " from server_index"];

impl ScanPlan {
    const BY_NAME: ScanPlan = ScanPlan {
        id: "server_index.id",
        name: "server_index.sort_name",
        tag_condition: [
            " and exists (select 1 from server_tags t where t.name = server_index.sort_name and t.named = server_index.id and",
            " and server_index.id in (select t.named from server_tags t where",
        ],
        table: [" from server_index"; 2],
        org_condition: " where org_id = ",
        server_index: None,
        presence: Some(JoinedTable {
            table: [" cross join presence"; 2],
            on: " and org = org_id and server_id = id",
        }),
        order: " order by sort_name, id",
    };
    const BY_NEWEST: ScanPlan =
        ScanPlan { table: BY_ID, order: " order by id desc", ..ScanPlan::BY_NAME };
    const BY_SECURITY_UPDATES: ScanPlan = ScanPlan {
        table: [" from server_index indexed by server_index_security", " from server_index"],
        order: " order by security_updates desc, sort_name, id",
        ..ScanPlan::BY_NAME
    };
    const BY_LAST_SEEN: ScanPlan = ScanPlan {
        id: "presence.server_id",
        table: [" from presence indexed by presence_seen", " from presence"],
        org_condition: " where org = ",
        server_index: Some(JoinedTable {
            table: [
                " cross join server_index indexed by server_index_id",
                " cross join server_index",
            ],
            on: " and org_id = org and id = server_id",
        }),
        presence: None,
        order: " order by last_seen_at, server_id",
        ..ScanPlan::BY_NAME
    };
    const IDS_BY_LAST_SEEN: ScanPlan = ScanPlan {
        table: [
            " from server_index indexed by server_index_id cross join presence",
            " from server_index cross join presence",
        ],
        org_condition: " where org = org_id and server_id = id and org_id = ",
        presence: None,
        ..ScanPlan::BY_NAME
    };
    const BY_TAG: ScanPlan = ScanPlan {
        id: "server_tags.named",
        name: "server_tags.name",
        tag_condition: [
            " and exists (select 1 from server_tags t where t.name = server_tags.name and t.named = server_tags.named and",
            " and server_tags.named in (select t.named from server_tags t where",
        ],
        table: [" from server_tags"; 2],
        org_condition: " where owner = ",
        server_index: Some(JoinedTable {
            table: [" cross join server_index"; 2],
            on: " and org_id = owner and sort_name = name and id = named",
        }),
        presence: Some(JoinedTable {
            table: [" cross join presence"; 2],
            on: " and org = owner and server_id = named",
        }),
        order: " order by name, named",
    };

    fn for_sort(sort: Sort) -> ScanPlan {
        match sort {
            Sort::Hostname => ScanPlan::BY_NAME,
            Sort::LastSeen => ScanPlan::BY_LAST_SEEN,
            Sort::SecurityUpdates => ScanPlan::BY_SECURITY_UPDATES,
            Sort::Newest => ScanPlan::BY_NEWEST,
        }
    }
}

/// The table to scan, and the criteria to check.
///
/// A filter on status `offline` that is sorted by name scans `server_index` and joins `presence`:
///
/// ```sql
/// select server_index.id from server_index cross join presence
///  where org_id = ? and org = org_id and server_id = id
///    and (coalesce(last_seen_at, ?) < ? or coalesce(last_seen_at, ?) > ?)
///  order by sort_name, id limit ? offset ?
/// ```
pub(super) struct QueryPlan<'a> {
    pub(super) scan: ScanPlan,
    /// Scan only the servers with this tag, in `server_tags`.
    pub(super) tag: Option<&'a Tag>,
    pub(super) filter: Filter,
}

impl<'a> QueryPlan<'a> {
    /// Scans in this order.
    pub(super) fn for_sort(sort: Sort, filter: &'a Filter) -> QueryPlan<'a> {
        match (sort, filter.tags.split_first()) {
            (Sort::Hostname, Some((tag, tags))) if filter.ids.is_empty() => {
                let rest = Filter { tags: tags.to_vec(), ..filter.clone() };
                QueryPlan { scan: ScanPlan::BY_TAG, tag: Some(tag), filter: rest }
            }
            _ if filter.ids.is_empty() => {
                QueryPlan { scan: ScanPlan::for_sort(sort), tag: None, filter: filter.clone() }
            }
            _ => QueryPlan::for_ids(sort, filter),
        }
    }

    /// Reads only servers whose ids are given, in this order.
    pub(super) fn for_ids(sort: Sort, filter: &Filter) -> QueryPlan<'a> {
        let order = ScanPlan::for_sort(sort).order;
        let scan = match sort {
            Sort::LastSeen => ScanPlan { order, ..ScanPlan::IDS_BY_LAST_SEEN },
            Sort::Hostname | Sort::SecurityUpdates | Sort::Newest => {
                ScanPlan { table: BY_ID, order, ..ScanPlan::BY_NAME }
            }
        };
        QueryPlan { scan, tag: None, filter: filter.clone() }
    }

    /// Scans in no particular order, over as few servers as possible: fewer servers require a
    /// reboot than have a tag.
    pub(super) fn unordered(filter: &'a Filter) -> QueryPlan<'a> {
        match filter.reboot_required {
            Some(true) if filter.ids.is_empty() => {
                QueryPlan { scan: ScanPlan::BY_NAME, tag: None, filter: filter.clone() }
            }
            _ => QueryPlan::for_sort(Sort::Hostname, filter),
        }
    }

    /// How to join `server_index`, if the filter needs columns that the scanned table does not have.
    pub(super) fn server_index(&self) -> Option<JoinedTable> {
        let Filter { tags, ids, q, status, .. } = self.filter.clone();
        let there = match self.tag {
            Some(_) => Filter { tags, ids, q, status, ..Filter::default() },
            None => Filter { status, ..Filter::default() },
        };
        self.scan.server_index.filter(|_| self.filter != there)
    }

    /// How to join `presence`, if the filter needs it.
    pub(super) fn presence(&self) -> Option<JoinedTable> {
        self.scan.presence.filter(|_| self.filter.status.is_some())
    }
}

/// Adds the SQL after the selected columns: tables, joins and conditions, without an order.
macro_rules! push_scan {
    ($text:ident, $plan:expr, $org:ident) => {
        let QueryPlan { scan, tag, filter } = &$plan;
        let joined = [$plan.server_index(), $plan.presence()];
        $text.add_for_engine(scan.table);
        for other in joined.iter().flatten() {
            $text.add_for_engine(other.table);
        }
        $text.add(scan.org_condition).bind(put(&$org));
        for other in joined.iter().flatten() {
            $text.add(other.on);
        }
        if let Some(tag) = tag {
            $text.add(" and tag = ").bind(tag.to_string());
        }
        if let Some((status, online)) = filter.status {
            let [from, or_to, end] = match status {
                Status::Online => [" >= ", " and ", " <= "],
                Status::Offline => [" < ", " or ", " > "],
            };
            $text.add(" and (");
            for (joint, compared, time) in [("", from, online.since), (or_to, end, online.until)] {
                $text.add(joint);
                match joined[1] {
                    // PostgreSQL chooses the scan by its statistics about these times. If all
                    // servers were seen again since, it expects none to be online. It can neither
                    // estimate this expression nor look it up in an index.
                    Some(_) => $text.add("coalesce(last_seen_at, ").bind(put(&time)).add(")"),
                    None => $text.add("last_seen_at"),
                };
                $text.add(compared).bind(put(&time));
            }
            $text.add(")");
        }
        push_count_columns!($text, filter);
        for tag in &filter.tags {
            $text.add_for_engine(scan.tag_condition).add(" t.owner = ").bind(put(&$org));
            $text.add(" and t.tag = ").bind(tag.to_string()).add(")");
        }
        if !filter.ids.is_empty() {
            $text.add(" and ").add(scan.id).in_ids(filter.ids.iter().map(put));
        }
        if let Some(q) = &filter.q {
            $text
                .add(" and ")
                .add(scan.name)
                .add(" like ")
                .bind(like_pattern(q))
                .add(" escape '\\'");
        }
        if let Some(required) = filter.reboot_required {
            $text.add(" and reboot_required = ").bind(required);
        }
    };
}

/// Adds the conditions on environment and operating system, for `server_index` or `server_counts`.
macro_rules! push_count_columns {
    ($text:ident, $filter:expr) => {
        if let Some(environment) = &$filter.environment {
            $text.add(" and environment = ").bind(put(environment));
        }
        if let Some(environments) = &$filter.environments {
            // Only SQLite accepts `in ()`. A key that is limited to no environment sees no server.
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
                // `debian 12` matches 12 and 12.5, but not 120: from "12." up to the character
                // after the dot.
                $text.add(" and (os_release = ").bind(wanted.clone());
                $text.add(" or (os_release >= ").bind(format!("{wanted}."));
                $text.add(" and os_release < ").bind(format!("{wanted}/")).add("))");
            }
        }
    };
}

pub(super) use {push_count_columns, push_scan};
