//! Writes feed records to the database in chunks, and records which package names they affect.

use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::{Advisory, Ecosystem, Epss, KevEntry};
use domain::finding::invalidation::ChangedNames;
use feed::Record;
use jiff::Timestamp;
use store::{StoreError, Tx, advisories, feeds};

use super::FeedTransactions;

pub(super) struct RecordWriter<'a> {
    transactions: FeedTransactions<'a>,
    /// Whether advisories without a known feed are stored. Early releases stored advisories without
    /// one.
    has_advisories_without_feed: Option<bool>,
    /// The number of records that were new or changed.
    pub(super) changed: u64,
    /// The date of the newest advisory.
    pub(super) newest: Option<Timestamp>,
}

/// The records of a chunk by type. One SQL statement cannot write the same row twice, so the last
/// record for a CVE wins.
#[derive(Default)]
struct RecordsByType {
    statements: Vec<Advisory>,
    exploited: BTreeMap<String, (Timestamp, KevEntry)>,
    estimates: BTreeMap<String, (Timestamp, Epss)>,
}

impl<'a> RecordWriter<'a> {
    pub(super) fn new(transactions: FeedTransactions<'a>) -> RecordWriter<'a> {
        RecordWriter { transactions, has_advisories_without_feed: None, changed: 0, newest: None }
    }

    /// Stores records of one feed. Each comes with the date that applies if the record does not
    /// state one.
    pub(super) async fn write_records(
        &mut self,
        feed: &str,
        chunk: impl IntoIterator<Item = (Record, Timestamp)>,
    ) -> Result<(), StoreError> {
        let mut by_type = RecordsByType::default();
        for (record, as_of) in chunk {
            match record {
                Record::Advisory(advisory) => by_type.statements.push(*advisory),
                Record::Exploited(one) => {
                    by_type.exploited.insert(one.cve.clone(), (as_of, one));
                }
                Record::Epss(one) => {
                    by_type.estimates.insert(one.cve.clone(), (as_of, one));
                }
            }
        }
        let newest = by_type.statements.iter().filter_map(|one| one.modified).max();
        self.newest = self.newest.max(newest);
        // Most records are unchanged since the last import and need no transaction.
        let ids: Vec<String> = by_type.statements.iter().map(|one| one.id.clone()).collect();
        let mut reader = self.transactions.db.read().await?;
        let stored = advisories::get_all(&mut reader, feed, &ids).await?;
        let has_unknown = match self.has_advisories_without_feed {
            Some(known) => known,
            None => advisories::has_any(&mut reader, advisories::UNKNOWN_FEED).await?,
        };
        self.has_advisories_without_feed = Some(has_unknown);
        drop(reader);
        by_type
            .statements
            .retain(|new| stored.get(&new.id).is_none_or(|known| new.supersedes(known)));
        if by_type.statements.is_empty()
            && by_type.exploited.is_empty()
            && by_type.estimates.is_empty()
        {
            return Ok(());
        }
        let mut tx = self.transactions.begin().await?;
        let changed = write_chunk(&mut tx, (feed, has_unknown), by_type).await?;
        tx.commit().await?;
        self.changed += changed;
        Ok(())
    }
}

/// Writes a chunk under a new revision. Returns the number of its records that were new or changed.
async fn write_chunk(
    tx: &mut Tx,
    (feed, has_unknown): (&str, bool),
    chunk: RecordsByType,
) -> Result<u64, StoreError> {
    // Locks the revision: concurrent writers wait here.
    let revision = feeds::next_revision(tx).await?;
    let mut changed_names = ChangedNames::default();
    if has_unknown {
        delete_replaced_without_feed(tx, &chunk.statements, &mut changed_names).await?;
    }
    let mut changed = write_statements(tx, feed, chunk.statements, &mut changed_names).await?;
    for (as_of, exploited) in group_by_time(chunk.exploited) {
        changed += advisories::put_exploited(tx, &exploited, as_of).await?;
    }
    for (as_of, estimates) in group_by_time(chunk.estimates) {
        changed += advisories::put_epss(tx, &estimates, as_of).await?;
    }
    if changed == 0 {
        feeds::revert_revision(tx).await?;
    }
    for base in changed_names.bases() {
        advisories::record_changes(tx, base, changed_names.names(base), revision).await?;
    }
    Ok(changed)
}

fn group_by_time<T>(dated: BTreeMap<String, (Timestamp, T)>) -> BTreeMap<Timestamp, Vec<T>> {
    let mut by_time: BTreeMap<Timestamp, Vec<T>> = BTreeMap::new();
    for (as_of, one) in dated.into_values() {
        by_time.entry(as_of).or_default().push(one);
    }
    by_time
}

/// Deletes advisories without a known feed that these statements replace: they have the same id,
/// and the new statement covers every release of the old one. An advisory that also covers another
/// release stays, because another feed may have published it.
async fn delete_replaced_without_feed(
    tx: &mut Tx,
    statements: &[Advisory],
    changed_names: &mut ChangedNames,
) -> Result<(), StoreError> {
    let ids: Vec<String> = statements.iter().map(|one| one.id.clone()).collect();
    let unknown = advisories::get_all(tx, advisories::UNKNOWN_FEED, &ids).await?;
    let bases = |one: &Advisory| -> BTreeSet<Ecosystem> {
        one.affected.iter().map(|affected| affected.ecosystem.base().0).collect()
    };
    let replaced =
        |new: &&Advisory| unknown.get(&new.id).is_some_and(|old| bases(old).is_subset(&bases(new)));
    let mut gone = Vec::new();
    for new in statements.iter().filter(replaced) {
        changed_names.record(unknown.get(&new.id), Some(new));
        gone.push(new.id.clone());
    }
    advisories::delete(tx, advisories::UNKNOWN_FEED, &gone).await
}

async fn write_statements(
    tx: &mut Tx,
    feed: &str,
    statements: Vec<Advisory>,
    changed_names: &mut ChangedNames,
) -> Result<u64, StoreError> {
    let ids: Vec<String> = statements.iter().map(|one| one.id.clone()).collect();
    // Read again, now that no other transaction can change them.
    let stored = advisories::get_all(tx, feed, &ids).await?;
    let mut next: BTreeMap<String, Advisory> = BTreeMap::new();
    for new in statements {
        let known = next.get(&new.id).or_else(|| stored.get(&new.id));
        if known.is_none_or(|known| new.supersedes(known)) {
            changed_names.record(known, Some(&new));
            next.insert(new.id.clone(), new);
        }
    }
    let changed = next.len() as u64;
    let next: Vec<Advisory> = next.into_values().collect();
    advisories::put_all(tx, feed, &next).await?;
    Ok(changed)
}
