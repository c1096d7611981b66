//! The audit log, with filters. Every query reads a limited number of entries.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
pub use store::audit::Entry;
use store::audit::{self, EntryKey};
use vocab::BatchId;
use wire::v1::Options;

use super::{Scope, convert};
use crate::audit::Action;
use crate::{App, Result};

/// Maximum number of entries that one query reads to find those that match all filters.
const SCAN_MAX: usize = 5_000;
const CHUNK: u32 = 200;
/// Maximum number of actions that are looked up by index.
const KEYS_MAX: usize = 20;

/// Which entries to list. An empty filter selects all.
#[derive(Debug, Clone, Default)]
pub struct ActivityFilter {
    /// The id of a user or key, or the name of a part of the service.
    pub actor: Option<String>,
    pub actions: Vec<Action>,
    /// The id of the resource that was changed.
    pub subject: Option<String>,
    pub from: Option<Timestamp>,
    /// Exclusive.
    pub until: Option<Timestamp>,
}

impl ActivityFilter {
    /// The index that finds the fewest entries, and its keys. [`ActivityFilter::selects`] checks
    /// the rest.
    fn keys(&self) -> Vec<EntryKey> {
        // PostgreSQL rejects a null character. No entry has one.
        let text = |id: &str| id.replace('\0', "\u{fffd}");
        match (&self.subject, &self.actor, self.actions.as_slice()) {
            (Some(subject), ..) => vec![EntryKey::Subject(text(subject))],
            (None, Some(actor), _) => vec![EntryKey::Actor(text(actor))],
            // There is one query per key.
            (None, None, actions) if (1..=KEYS_MAX).contains(&actions.len()) => {
                actions.iter().map(|action| EntryKey::Action(action.as_str())).collect()
            }
            (None, None, _) => vec![EntryKey::All],
        }
    }

    fn selects(&self, entry: &Entry) -> bool {
        let is_selected = |action: &Action| action.as_str() == entry.action;
        self.subject.as_ref().is_none_or(|subject| *subject == entry.subject)
            && self.actor.as_ref().is_none_or(|actor| *actor == entry.actor)
            && (self.actions.is_empty() || self.actions.iter().any(is_selected))
            && self.from.is_none_or(|from| entry.at >= from)
            && self.until.is_none_or(|until| entry.at < until)
    }
}

/// A part of the audit log.
#[derive(Debug, Default)]
pub struct ActivityPage {
    /// Newest first.
    pub entries: Vec<Entry>,
    /// Where the older entries begin: pass it as `before`. There may be older entries even if the
    /// page is empty: a query reads a limited number of entries.
    pub older: Option<i64>,
}

/// The newest entries before the one with this sequence number that match the filter.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    filter: &ActivityFilter,
    before: i64,
    limit: u32,
) -> Result<ActivityPage> {
    let mut reader = app.db.snapshot().await?;
    let Some((after, mut before)) = range(&mut reader, scope, filter, before).await? else {
        return Ok(ActivityPage::default());
    };
    let (keys, mut found, mut scanned) = (filter.keys(), ActivityPage::default(), 0);
    loop {
        let mut rows = Vec::new();
        for key in &keys {
            rows.extend(audit::between(&mut reader, scope.org, key, (after, before), CHUNK).await?);
        }
        rows.sort_by_key(|entry| std::cmp::Reverse(entry.seq));
        rows.truncate(CHUNK as usize);
        let is_last = rows.len() < CHUNK as usize;
        scanned += rows.len();
        for entry in rows {
            before = entry.seq;
            if !filter.selects(&entry) {
                continue;
            }
            if found.entries.len() >= limit as usize {
                found.older = found.entries.last().map(|entry| entry.seq);
                return Ok(found);
            }
            found.entries.push(entry);
        }
        if is_last {
            return Ok(found);
        }
        if scanned >= SCAN_MAX {
            found.older = Some(before);
            return Ok(found);
        }
    }
}

/// The positions between which the entries of the time span are, both exclusive; `None` if there is
/// no entry in it. If the clock was set back, entries that were written before that and have a
/// later time may be left out.
async fn range(
    reader: &mut store::Conn,
    scope: &Scope,
    filter: &ActivityFilter,
    mut before: i64,
) -> Result<Option<(i64, i64)>> {
    let mut after = 0;
    if let Some(until) = filter.until {
        match audit::last_before(reader, scope.org, until).await? {
            Some(last) => before = before.min(last.saturating_add(1)),
            None => return Ok(None),
        }
    }
    if let Some(from) = filter.from {
        match audit::first_since(reader, scope.org, from).await? {
            Some(first) => after = first - 1,
            None => return Ok(None),
        }
    }
    Ok(Some((after, before)))
}

/// What is known about the resources that entries name.
#[derive(Debug, Default)]
pub struct Resources {
    /// Names by id, also those of removed resources.
    pub names: BTreeMap<String, String>,
    /// The options of batches by id.
    pub batches: BTreeMap<String, Options>,
    /// The ids of servers and schedules that still exist.
    pub existing: BTreeSet<String>,
}

/// Looks up the resources with these ids.
#[boxed]
pub async fn resources(app: &App, scope: &Scope, ids: &BTreeSet<String>) -> Result<Resources> {
    let mut reader = app.db.snapshot().await?;
    let names = store::names::find(&mut reader, scope.org, ids).await?;
    let existing = store::names::existing(&mut reader, scope.org, ids).await?;
    let batches: Vec<BatchId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
    let batches = store::batches::options(&mut reader, scope.org, &batches).await?;
    let readable = |(id, options): (BatchId, serde_json::Value)| {
        Some((id.to_string(), convert::stored_options("rollouts", id, &options).ok()?.1))
    };
    Ok(Resources { names, existing, batches: batches.into_iter().filter_map(readable).collect() })
}
