//! One matching round: reads what changed, updates the findings in memory, and writes the
//! difference.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::advisory::{Advisory, Ecosystem};
use domain::finding::tally::Mention;
use domain::finding::{RULES, each_told, touch};
use jiff::Timestamp;
use store::findings::{self, Summary};
use store::listings::Kind as ListingKind;
use store::{Conn, advisories, feeds};
use vocab::{Digest, Installed, OrgId, Pending};

use super::memory::{Memory, News, Walked};
use super::shelf::{Shelf, Stored};
use super::writing::{Writes, write};
use super::{Aside, carried};
use crate::App;
use crate::commands::servers::entries;
use crate::{Result, ServiceError};

/// Which changes a round looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// All changes. Groups the servers again, which takes longer the more servers there are.
    Servers,
    /// Changed feeds and suppressions. Reuses the groups of servers from the last full round.
    Published,
    /// Like `Published`. If nothing changed, loads the state into memory, so that the next change
    /// is cheap.
    Idle,
}

/// Keeps an organization's findings up to date. It caches its state in memory; a new matcher loads
/// it from the database first.
#[derive(Debug)]
pub struct Matcher {
    org: OrgId,
    /// `None` if the cache is stale because another replica has written, or after an error. Then
    /// the state is loaded again.
    memory: Option<Memory>,
}

impl Matcher {
    pub fn new(org: OrgId) -> Matcher {
        Matcher { org, memory: None }
    }

    /// Whether the state is in memory, so that the cost of a round depends only on what changed.
    pub fn is_warm(&self) -> bool {
        self.memory.is_some()
    }

    /// Updates the findings if the servers, the feeds or the suppressions have changed. Returns
    /// whether it wrote anything.
    #[boxed]
    pub async fn round(&mut self, app: &App, look: Look) -> Result<bool> {
        let org = self.org;
        let memory = self.memory.take();
        let mut reader = app.db.snapshot().await?;
        let aside = Aside::read(&mut reader, org, app.clock.now()).await?;
        let revision = feeds::revision(&mut reader).await?;
        let seen = findings::summary(&mut reader, org).await?;
        let generation = seen.as_ref().map_or(0, |seen| seen.generation);
        let memory = memory.filter(|known| known.generation == generation);
        let memory = memory.filter(|known| !known.tally.is_worn());
        let walked = match &memory {
            Some(known)
                if look != Look::Servers && known.aside.environments() == aside.environments() =>
            {
                known.walked.clone()
            }
            _ => {
                let kinds = findings::kinds(&mut reader, org, None, aside.environments()).await?;
                Arc::new(Walked::new(kinds))
            }
        };
        let basis = basis(&walked, revision, &aside);
        let is_done = seen.as_ref().is_some_and(|seen| seen.basis == basis);
        if is_done && (memory.is_some() || look != Look::Idle) {
            self.memory = memory;
            return Ok(false);
        }
        let seen = seen.unwrap_or_else(|| nothing_yet(org));
        let mut writes = Writes::default();
        let mut memory = match memory {
            Some(known) => known,
            None => load(&mut reader, &seen, &aside).await?,
        };
        let rules_changed = seen.generation > 0 && seen.rules != RULES;
        let mut stored = match memory.walked.kinds.is_empty() {
            true => stored(&mut reader, org, &seen).await?,
            false => BTreeMap::new(),
        };
        take_lists(&mut reader, org, &mut memory, &walked, (&mut stored, &mut writes)).await?;
        if rules_changed {
            memory.shelves.values_mut().for_each(Shelf::touch_all);
        }
        let advisories = published(&mut reader, &mut memory, revision).await?;
        let news = News { revision, walked, aside, advisories };
        memory.learn(news, &mut writes);
        look_up_exploited(&mut reader, &mut memory, &mut writes).await?;
        let covered = covered(&mut reader, memory.shelves.keys()).await?;
        drop(reader);
        if is_done {
            self.memory = Some(memory);
            return Ok(false);
        }
        let assessments = memory.assessments(&covered);
        let made_at = app.clock.now();
        let next = Summary { basis, made_at, revision, rules: RULES, assessments, ..seen.clone() };
        match write(app, &seen, &next, &writes, &memory.rows).await {
            Ok(()) => {}
            // Another replica was faster; its rows are equivalent.
            Err(ServiceError::Stale) => return Ok(false),
            Err(error) => return Err(error),
        }
        memory.generation = generation + 1;
        self.memory = Some(memory);
        Ok(true)
    }
}

fn nothing_yet(org: OrgId) -> Summary {
    let basis = Digest::of(b"nothing yet");
    Summary {
        org_id: org,
        basis,
        made_at: Timestamp::UNIX_EPOCH,
        generation: 0,
        revision: 0,
        rules: RULES,
        assessments: BTreeMap::new(),
    }
}

/// Those of these base ecosystems that a feed covers.
pub(super) async fn covered(
    conn: &mut Conn,
    bases: impl Iterator<Item = &Ecosystem>,
) -> Result<BTreeSet<Ecosystem>> {
    let mut covered = BTreeSet::new();
    for base in bases {
        if advisories::covers(conn, base).await? {
            covered.insert(base.clone());
        }
    }
    Ok(covered)
}

fn basis(walked: &Walked, revision: i64, aside: &Aside) -> Digest {
    let text = format!("{RULES} {revision} {} {}", aside.ids().join(" "), walked.basis);
    Digest::of(text.as_bytes())
}

/// Loads the stored state that the new one is compared with.
async fn load(conn: &mut Conn, seen: &Summary, aside: &Aside) -> Result<Memory> {
    let org = seen.org_id;
    let mut memory = Memory::new(seen.generation, seen.revision, aside.clone());
    let carriers = findings::carriers(conn, org).await?;
    memory.carried_before(carriers, findings::carried(conn, org).await?);
    memory.counts = findings::counts(conn, org, None).await?;
    memory.telling = findings::telling(conn, org).await?;
    let rows = findings::all(conn, org).await?;
    let exploited = rows.iter().filter(|row| row.kev_order == 0);
    memory.exploited = exploited.map(|row| row.id.clone()).collect();
    memory.rows = rows.into_iter().map(|row| (Arc::from(row.id.as_str()), Box::new(row))).collect();
    Ok(memory)
}

/// Per base ecosystem: the package sets that were assessed, and the results of their groups.
type Before = BTreeMap<String, (BTreeSet<Digest>, Stored)>;

async fn stored(conn: &mut Conn, org: OrgId, seen: &Summary) -> Result<Before> {
    let mut before = Before::new();
    // Rows of an interrupted first round are not trusted; they are written again.
    if seen.generation > 0 {
        for set in findings::judged(conn, org).await? {
            before.entry(set.base).or_default().0.insert(set.package_set);
        }
    }
    for (base, groups) in findings::all_groups(conn, org).await? {
        before.entry(base).or_default().1 = groups;
    }
    Ok(before)
}

/// Reads the package sets that are new, and drops those that no server has any more.
async fn take_lists(
    conn: &mut Conn,
    org: OrgId,
    memory: &mut Memory,
    walked: &Arc<Walked>,
    (before, writes): (&mut Before, &mut Writes),
) -> Result<()> {
    if Arc::ptr_eq(&memory.walked, walked) {
        return Ok(());
    }
    let mut wanted: BTreeMap<Ecosystem, BTreeSet<Digest>> = BTreeMap::new();
    for kind in &walked.kinds {
        if let Some(base) = Ecosystem::of(&kind.os) {
            wanted.entry(base).or_default().extend(carried(kind));
        }
        if let Some(set) = kind.update_set
            && !memory.told.contains_key(&set)
        {
            let pending: Vec<Pending> = entries(conn, org, ListingKind::Updates, set).await?;
            let mut cells = Vec::new();
            each_told(&kind.os_release, &pending, |finding| {
                cells.push(memory.tally.cell(Mention::from(&finding)));
            });
            memory.told.insert(set, cells);
        }
    }
    let updates: BTreeSet<Digest> = walked.kinds.iter().filter_map(|one| one.update_set).collect();
    memory.told.retain(|set, _| updates.contains(set));
    for base in memory.shelves.keys().cloned().collect::<Vec<_>>() {
        wanted.entry(base).or_default();
    }
    for (base, sets) in wanted {
        let word = base.as_str().to_owned();
        let (judged, mut groups) = before.remove(&word).unwrap_or_default();
        let shelf = memory.shelves.entry(base.clone()).or_insert_with(|| Shelf::new(base.clone()));
        for set in &sets {
            if shelf.has(set) {
                continue;
            }
            let packages = packages(conn, org, *set).await?;
            let was_judged = judged.contains(set);
            if packages.is_empty() && was_judged {
                // The package set that only outdated processes still run from may be deleted; its
                // findings are kept.
                let kept = findings::kept_report(conn, org, *set, &word).await?;
                shelf.add_memory(&mut memory.tally, *set, kept.unwrap_or_default());
                continue;
            }
            let stored = was_judged.then_some(&mut groups);
            shelf.add(&mut memory.tally, *set, touch::groups(&base, &packages), stored);
        }
        let (mut sets_gone, mut groups_gone) = shelf.retain(&sets);
        sets_gone.extend(judged.difference(&sets));
        groups_gone.extend(groups.into_keys());
        writes.forget(&word, sets_gone, groups_gone);
    }
    // Base ecosystems that no server has any more.
    for (word, (judged, groups)) in std::mem::take(before) {
        writes.forget(&word, judged.into_iter().collect(), groups.into_keys().collect());
    }
    Ok(())
}

/// The advisories that name a package to assess: of new package sets, or changed since the last
/// round.
async fn published(
    conn: &mut Conn,
    memory: &mut Memory,
    revision: i64,
) -> Result<BTreeMap<Ecosystem, Vec<Advisory>>> {
    let mut found = BTreeMap::new();
    for (base, shelf) in &mut memory.shelves {
        if memory.revision != revision {
            let names = advisories::changed_since(conn, base, memory.revision).await?;
            shelf.touch(&names);
        }
        let names = shelf.unjudged_names();
        if !names.is_empty() {
            found.insert(base.clone(), advisories::naming(conn, base, &names).await?);
        }
    }
    Ok(found)
}

async fn look_up_exploited(
    conn: &mut Conn,
    memory: &mut Memory,
    writes: &mut Writes,
) -> Result<()> {
    let count = advisories::exploited_count(conn).await?;
    let ids: BTreeSet<&str> = match count == memory.exploited_count {
        true => writes.rows.iter().map(AsRef::as_ref).collect(),
        false => memory.rows.keys().map(AsRef::as_ref).collect(),
    };
    let exploited = advisories::exploited(conn, &ids).await?;
    memory.exploited_count = count;
    memory.exploit(exploited.into_keys().collect(), writes);
    Ok(())
}

pub(super) async fn packages(conn: &mut Conn, org: OrgId, set: Digest) -> Result<Vec<Installed>> {
    entries(conn, org, ListingKind::Packages, set).await
}
