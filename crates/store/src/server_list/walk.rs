//! Builds the SQL that scans servers in an order and checks a filter.
//!
//! [`super`] decides which scan to use and has worked examples. The texts are built by macros,
//! because bound values have other types for SQLite than for PostgreSQL.

use vocab::Tag;

use super::{Filter, Sort};

/// A table in whose order servers are looked at, and how they are looked up in the two others if it takes them to tell who
/// matches. SQLite takes a `cross join` at its word; for PostgreSQL it is a join like any other.
///
/// SQLite is told the index wherever it might take another: it may have no statistics, and then takes an environment for a
/// narrow choice, and would go through the whole of it for each server that it looks up (18 s for 100,000).
pub(super) struct Walk {
    /// Where a server's id is.
    pub(super) id: &'static str,
    /// And its name.
    pub(super) name: &'static str,
    /// Whether they have a tag, up to whose and which: SQLite looks up those who match otherwise, by the whole key. That takes
    /// PostgreSQL long, which rather gathers all who have the tag.
    pub(super) also_tagged: [&'static str; 2],
    pub(super) table: [&'static str; 2],
    /// Up to the organization.
    pub(super) of: &'static str,
    /// `roster`, unless it is the table.
    pub(super) roster: Option<Joined>,
    /// `presence`, unless it is the table.
    pub(super) presence: Option<Joined>,
    pub(super) order: &'static str,
}

/// A table that everyone is looked up in, by the whole of a key.
#[derive(Clone, Copy)]
pub(super) struct Joined {
    pub(super) table: [&'static str; 2],
    pub(super) on: &'static str,
}

const BY_ID: [&str; 2] = [" from roster indexed by roster_id", " from roster"];

impl Walk {
    const NAMES: Walk = Walk {
        id: "roster.id",
        name: "roster.sort_name",
        also_tagged: [
            " and exists (select 1 from tagged t where t.name = roster.sort_name and t.named = roster.id and",
            " and roster.id in (select t.named from tagged t where",
        ],
        table: [" from roster"; 2],
        of: " where org_id = ",
        roster: None,
        presence: Some(Joined {
            table: [" cross join presence"; 2],
            on: " and org = org_id and server_id = id",
        }),
        order: " order by sort_name, id",
    };
    const NEWEST: Walk = Walk { table: BY_ID, order: " order by id desc", ..Walk::NAMES };
    const UPDATES: Walk = Walk {
        table: [" from roster indexed by roster_security", " from roster"],
        order: " order by security_updates desc, sort_name, id",
        ..Walk::NAMES
    };
    const SEEN: Walk = Walk {
        id: "presence.server_id",
        table: [" from presence indexed by presence_seen", " from presence"],
        of: " where org = ",
        roster: Some(Joined {
            table: [" cross join roster indexed by roster_id", " cross join roster"],
            on: " and org_id = org and id = server_id",
        }),
        presence: None,
        order: " order by last_seen_at, server_id",
        ..Walk::NAMES
    };
    const KNOWN_SEEN: Walk = Walk {
        table: [
            " from roster indexed by roster_id cross join presence",
            " from roster cross join presence",
        ],
        of: " where org = org_id and server_id = id and org_id = ",
        presence: None,
        ..Walk::NAMES
    };
    const TAGGED: Walk = Walk {
        id: "tagged.named",
        name: "tagged.name",
        also_tagged: [
            " and exists (select 1 from tagged t where t.name = tagged.name and t.named = tagged.named and",
            " and tagged.named in (select t.named from tagged t where",
        ],
        table: [" from tagged"; 2],
        of: " where owner = ",
        roster: Some(Joined {
            table: [" cross join roster"; 2],
            on: " and org_id = owner and sort_name = name and id = named",
        }),
        presence: Some(Joined {
            table: [" cross join presence"; 2],
            on: " and org = owner and server_id = named",
        }),
        order: " order by name, named",
    };

    fn by(sort: Sort) -> Walk {
        match sort {
            Sort::Hostname => Walk::NAMES,
            Sort::LastSeen => Walk::SEEN,
            Sort::SecurityUpdates => Walk::UPDATES,
            Sort::Newest => Walk::NEWEST,
        }
    }
}

/// Who is looked at, and what they must match.
pub(super) struct Way<'a> {
    pub(super) walk: Walk,
    /// Those alone who have it, of `tagged`.
    pub(super) tag: Option<&'a Tag>,
    pub(super) rest: Filter,
}

impl<'a> Way<'a> {
    /// In this order.
    pub(super) fn by(sort: Sort, filter: &'a Filter) -> Way<'a> {
        match (sort, filter.tags.split_first()) {
            (Sort::Hostname, Some((tag, tags))) if filter.ids.is_empty() => {
                let rest = Filter { tags: tags.to_vec(), ..filter.clone() };
                Way { walk: Walk::TAGGED, tag: Some(tag), rest }
            }
            _ if filter.ids.is_empty() => {
                Way { walk: Walk::by(sort), tag: None, rest: filter.clone() }
            }
            _ => Way::of_known(sort, filter),
        }
    }

    /// In this order, those alone whose ids are given.
    pub(super) fn of_known(sort: Sort, filter: &Filter) -> Way<'a> {
        let order = Walk::by(sort).order;
        let walk = match sort {
            Sort::LastSeen => Walk { order, ..Walk::KNOWN_SEEN },
            Sort::Hostname | Sort::SecurityUpdates | Sort::Newest => {
                Walk { table: BY_ID, order, ..Walk::NAMES }
            }
        };
        Way { walk, tag: None, rest: filter.clone() }
    }

    /// In no order, past as few as possible: those who want a reboot are fewer than those who have a tag.
    pub(super) fn past_few(filter: &'a Filter) -> Way<'a> {
        match filter.reboot_required {
            Some(true) if filter.ids.is_empty() => {
                Way { walk: Walk::NAMES, tag: None, rest: filter.clone() }
            }
            _ => Way::by(Sort::Hostname, filter),
        }
    }

    /// How to look them up in `roster`, unless all that is asked for is where they are.
    pub(super) fn roster(&self) -> Option<Joined> {
        let Filter { tags, ids, q, status, .. } = self.rest.clone();
        let there = match self.tag {
            Some(_) => Filter { tags, ids, q, status, ..Filter::default() },
            None => Filter { status, ..Filter::default() },
        };
        self.walk.roster.filter(|_| self.rest != there)
    }

    /// How to look them up in `presence`, if it takes that.
    pub(super) fn presence(&self) -> Option<Joined> {
        self.walk.presence.filter(|_| self.rest.status.is_some())
    }
}

/// Whoever matches, on this way, in no order yet.
macro_rules! walk {
    ($text:ident, $way:expr, $org:ident) => {
        let Way { walk, tag, rest } = &$way;
        let joined = [$way.roster(), $way.presence()];
        $text.add_own(walk.table);
        for other in joined.iter().flatten() {
            $text.add_own(other.table);
        }
        $text.add(walk.of).bind(put(&$org));
        for other in joined.iter().flatten() {
            $text.add(other.on);
        }
        if let Some(tag) = tag {
            $text.add(" and tag = ").bind(tag.to_string());
        }
        if let Some((status, online)) = rest.status {
            let [from, or_to, end] = match status {
                Status::Online => [" >= ", " and ", " <= "],
                Status::Offline => [" < ", " or ", " > "],
            };
            $text.add(" and (");
            for (joint, compared, time) in [("", from, online.since), (or_to, end, online.until)] {
                $text.add(joint);
                match joined[1] {
                    // PostgreSQL chooses the walk itself, by what it last knew of these times: where all have moved on since
                    // then it takes those who are online for none. This it cannot reckon with, nor look up.
                    Some(_) => $text.add("coalesce(last_seen_at, ").bind(put(&time)).add(")"),
                    None => $text.add("last_seen_at"),
                };
                $text.add(compared).bind(put(&time));
            }
            $text.add(")");
        }
        of_kind!($text, rest);
        for tag in &rest.tags {
            $text.add_own(walk.also_tagged).add(" t.owner = ").bind(put(&$org));
            $text.add(" and t.tag = ").bind(tag.to_string()).add(")");
        }
        if !rest.ids.is_empty() {
            $text.add(" and ").add(walk.id).each(rest.ids.iter().map(put));
        }
        if let Some(q) = &rest.q {
            $text.add(" and ").add(walk.name).add(" like ").bind(pattern(q)).add(" escape '\\'");
        }
        if let Some(required) = rest.reboot_required {
            $text.add(" and reboot_required = ").bind(required);
        }
    };
}

/// In which environment and of which system, in `roster` or `server_counts`.
macro_rules! of_kind {
    ($text:ident, $filter:expr) => {
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
    };
}

/// `%text%` with the characters that `like` obeys made plain.
pub(super) fn pattern(q: &str) -> String {
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

pub(super) use {of_kind, walk};
