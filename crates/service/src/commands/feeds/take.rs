//! Writes feed records to the database in chunks, and records which package names they affect.

use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::{Advisory, Ecosystem, Epss, Exploited};
use domain::finding::touch::Touched;
use feed::Record;
use jiff::Timestamp;
use store::{StoreError, Tx, advisories, feeds};

use super::Desk;

pub(super) struct Taker<'a> {
    desk: Desk<'a>,
    /// Whether advisories without a known feed are stored. Early releases stored advisories without
    /// one.
    has_unknown: Option<bool>,
    /// The number of records that were new or changed.
    pub(super) changed: u64,
    /// The date of the newest advisory.
    pub(super) newest: Option<Timestamp>,
}

/// The records of a chunk by type. One SQL statement cannot write the same row twice, so the last
/// record for a CVE wins.
#[derive(Default)]
struct Apart {
    statements: Vec<Advisory>,
    exploited: BTreeMap<String, (Timestamp, Exploited)>,
    estimates: BTreeMap<String, (Timestamp, Epss)>,
}

impl<'a> Taker<'a> {
    pub(super) fn new(desk: Desk<'a>) -> Taker<'a> {
        Taker { desk, has_unknown: None, changed: 0, newest: None }
    }

    /// Stores records of one feed. Each comes with the date that applies if the record does not
    /// state one.
    pub(super) async fn take(
        &mut self,
        feed: &str,
        bunch: impl IntoIterator<Item = (Record, Timestamp)>,
    ) -> Result<(), StoreError> {
        let mut apart = Apart::default();
        for (record, as_of) in bunch {
            match record {
                Record::Advisory(advisory) => apart.statements.push(*advisory),
                Record::Exploited(one) => {
                    apart.exploited.insert(one.cve.clone(), (as_of, one));
                }
                Record::Epss(one) => {
                    apart.estimates.insert(one.cve.clone(), (as_of, one));
                }
            }
        }
        let newest = apart.statements.iter().filter_map(|one| one.modified).max();
        self.newest = self.newest.max(newest);
        // Most records are unchanged since the last import and need no transaction.
        let ids: Vec<String> = apart.statements.iter().map(|one| one.id.clone()).collect();
        let mut reader = self.desk.db.read().await?;
        let stored = advisories::get_all(&mut reader, feed, &ids).await?;
        let has_unknown = match self.has_unknown {
            Some(known) => known,
            None => advisories::has_any(&mut reader, advisories::UNKNOWN_FEED).await?,
        };
        self.has_unknown = Some(has_unknown);
        drop(reader);
        apart
            .statements
            .retain(|new| stored.get(&new.id).is_none_or(|known| new.supersedes(known)));
        if apart.statements.is_empty() && apart.exploited.is_empty() && apart.estimates.is_empty() {
            return Ok(());
        }
        let mut tx = self.desk.begin().await?;
        let changed = write(&mut tx, (feed, has_unknown), apart).await?;
        tx.commit().await?;
        self.changed += changed;
        Ok(())
    }
}

/// Writes a chunk under a new revision. Returns the number of its records that were new or changed.
async fn write(
    tx: &mut Tx,
    (feed, has_unknown): (&str, bool),
    bunch: Apart,
) -> Result<u64, StoreError> {
    // Locks the revision: concurrent writers wait here.
    let revision = feeds::next_revision(tx).await?;
    let mut touched = Touched::default();
    if has_unknown {
        adopt(tx, &bunch.statements, &mut touched).await?;
    }
    let mut changed = write_statements(tx, feed, bunch.statements, &mut touched).await?;
    for (as_of, exploited) in by_time(bunch.exploited) {
        changed += advisories::put_exploited(tx, &exploited, as_of).await?;
    }
    for (as_of, estimates) in by_time(bunch.estimates) {
        changed += advisories::put_epss(tx, &estimates, as_of).await?;
    }
    if changed == 0 {
        feeds::keep_revision(tx).await?;
    }
    for base in touched.bases() {
        advisories::changed(tx, base, touched.names(base), revision).await?;
    }
    Ok(changed)
}

fn by_time<T>(dated: BTreeMap<String, (Timestamp, T)>) -> BTreeMap<Timestamp, Vec<T>> {
    let mut by_time: BTreeMap<Timestamp, Vec<T>> = BTreeMap::new();
    for (as_of, one) in dated.into_values() {
        by_time.entry(as_of).or_default().push(one);
    }
    by_time
}

/// Deletes advisories without a known feed that these statements replace: they have the same id,
/// and the new statement covers every release of the old one. An advisory that also covers another
/// release stays, because another feed may have published it.
async fn adopt(
    tx: &mut Tx,
    statements: &[Advisory],
    touched: &mut Touched,
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
        touched.note(unknown.get(&new.id), Some(new));
        gone.push(new.id.clone());
    }
    advisories::delete(tx, advisories::UNKNOWN_FEED, &gone).await
}

async fn write_statements(
    tx: &mut Tx,
    feed: &str,
    statements: Vec<Advisory>,
    touched: &mut Touched,
) -> Result<u64, StoreError> {
    let ids: Vec<String> = statements.iter().map(|one| one.id.clone()).collect();
    // Read again, now that no other transaction can change them.
    let stored = advisories::get_all(tx, feed, &ids).await?;
    let mut next: BTreeMap<String, Advisory> = BTreeMap::new();
    for new in statements {
        let known = next.get(&new.id).or_else(|| stored.get(&new.id));
        if known.is_none_or(|known| new.supersedes(known)) {
            touched.note(known, Some(&new));
            next.insert(new.id.clone(), new);
        }
    }
    let changed = next.len() as u64;
    let next: Vec<Advisory> = next.into_values().collect();
    advisories::put_all(tx, feed, &next).await?;
    Ok(changed)
}
