//! Lists of packages, held against what is published: each once, and after a change only what it touches.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::Ecosystem;
use domain::finding::touch::{self, Part, Touched};
use domain::finding::{Index, Report};
use store::findings::{self, Judged, Kind};
use store::listings::Kind as ListingKind;
use store::{Conn, advisories};
use vocab::{Digest, Installed, OrgId};

use super::carried;
use crate::app::App;
use crate::service::Result;
use crate::service::servers::entries;

/// A list that has to be judged: wholly, or a part of what is known of it.
struct Task {
    set: Digest,
    part: Option<Part>,
}

/// Judges every list that was not, or not since what is published about it changed.
pub(super) async fn judge_all(
    app: &App,
    org: OrgId,
    kinds: &[Kind],
    judged: &[Judged],
    revision: i64,
) -> Result<()> {
    let judged: BTreeMap<(Digest, &str), i64> =
        judged.iter().map(|one| ((one.package_set, one.base.as_str()), one.revision)).collect();
    let mut wanted: BTreeMap<Ecosystem, BTreeSet<Digest>> = BTreeMap::new();
    for kind in kinds {
        if let Some(base) = Ecosystem::of(&kind.os) {
            wanted.entry(base).or_default().extend(carried(kind));
        }
    }
    for (base, sets) in wanted {
        let mut reader = app.db.snapshot().await?;
        let mut changes: BTreeMap<i64, Touched> = BTreeMap::new();
        let mut names: BTreeSet<String> = BTreeSet::new();
        let (mut tasks, mut same) = (Vec::new(), Vec::new());
        for set in sets {
            let known = judged.get(&(set, base.as_str())).copied();
            if known == Some(revision) {
                continue;
            }
            let packages = packages(&mut reader, org, set).await?;
            // One that only old code is from may be gone; what is known of it stays.
            if packages.is_empty() && known.is_some() {
                same.push(set);
                continue;
            }
            let Some(since) = known else {
                names.extend(touch::names(&base, &packages).into_iter().map(Cow::into_owned));
                tasks.push(Task { set, part: None });
                continue;
            };
            let touched = match changes.entry(since) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let mut touched = Touched::default();
                    for name in advisories::changed_since(&mut reader, &base, since).await? {
                        touched.add(base.clone(), name);
                    }
                    new.insert(touched)
                }
            };
            let part = touched.part(&base, &packages);
            if part.is_empty() {
                same.push(set);
                continue;
            }
            names.extend(part.names.iter().cloned());
            tasks.push(Task { set, part: Some(part) });
        }
        let index = Index::new(&base, advisories::naming(&mut reader, &base, &names).await?);
        for task in tasks {
            let report = judge(&mut reader, org, &index, &task).await?;
            let judged = Judged {
                package_set: task.set,
                base: base.as_str().to_owned(),
                revision,
                changed: revision,
            };
            let mut tx = app.db.begin().await?;
            findings::put_report(&mut tx, org, &judged, &report).await?;
            tx.commit().await?;
        }
        if !same.is_empty() {
            let mut tx = app.db.begin().await?;
            findings::still_true(&mut tx, org, base.as_str(), &same, revision).await?;
            tx.commit().await?;
        }
    }
    Ok(())
}

async fn judge(conn: &mut Conn, org: OrgId, index: &Index, task: &Task) -> Result<Report> {
    let base = index.base();
    let packages = packages(conn, org, task.set).await?;
    let Some(part) = &task.part else { return Ok(index.judge(&packages)) };
    let known = findings::report(conn, org, task.set, base.as_str()).await?;
    let mut report = known.unwrap_or_default();
    report.renew(part, index.judge(&part.of(base, &packages)));
    Ok(report)
}

pub(super) async fn packages(conn: &mut Conn, org: OrgId, set: Digest) -> Result<Vec<Installed>> {
    entries(conn, org, ListingKind::Packages, set).await
}
