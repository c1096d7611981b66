//! Findings per package group, and which package sets were already assessed.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use domain::finding::MatchReport;
use vocab::{Digest, OrgId};

use crate::advisories::{compress_json, decompress_json};
use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

row! {
    /// A package set that was assessed.
    pub struct AssessedSet in "finding_sets" by "base" {
        pub package_set: Digest,
        /// The base of the ecosystem that it was matched against.
        pub base: String,
        /// The revision of the advisory data at which the result last changed.
        pub changed: i64,
    }
}

row! {
    struct Stored in "finding_groups" by "base" {
        base: String,
        digest: Digest,
        report: Vec<u8>,
    }
}

impl Stored {
    fn decode(self) -> Result<(String, Digest, MatchReport)> {
        let report = decompress_json(&self.report).map_err(|source| StoreError::Corrupt {
            table: "finding_groups",
            id: format!("{} {}", self.base, self.digest),
            source,
        })?;
        Ok((self.base, self.digest, report))
    }
}

/// The base ecosystems of the package sets that were assessed.
#[boxed]
pub async fn assessed_bases(conn: &mut Conn, org: OrgId) -> Result<Vec<String>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as("select distinct base from finding_sets where org_id = $1 order by base")
            .bind(put(&org))
            .fetch_all(c)
            .await
    })?;
    Ok(found.into_iter().map(|(base,)| base).collect())
}

/// All package sets that were assessed.
#[boxed]
pub async fn assessed_sets(conn: &mut Conn, org: OrgId) -> Result<Vec<AssessedSet>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            AssessedSet::COLUMNS,
            " from finding_sets where org_id = $1 order by package_set, base",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// The revision at which the findings of a package set last changed; `None` if it was never
/// assessed.
#[boxed]
pub async fn last_changed(
    conn: &mut Conn,
    org: OrgId,
    set: Digest,
    base: &str,
) -> Result<Option<i64>> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as(
            "select changed from finding_sets where org_id = $1 and package_set = $2 and base = $3",
        )
        .bind(put(&org))
        .bind(put(&set))
        .bind(base)
        .fetch_optional(c)
        .await
    })?;
    Ok(found.map(|(changed,)| changed))
}

/// Returns which of these package sets were assessed, each with its base.
#[boxed]
pub async fn filter_assessed(
    conn: &mut Conn,
    org: OrgId,
    sets: &BTreeSet<Digest>,
) -> Result<BTreeSet<(Digest, String)>> {
    row! {
        struct Matched in "finding_sets" by "base" {
            package_set: Digest,
            base: String,
        }
    }
    let sets: Vec<Digest> = sets.iter().copied().collect();
    let mut found = BTreeSet::new();
    for chunk in sets.chunks(ROWS_MAX) {
        let rows: Vec<Matched> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Matched::COLUMNS).add(" from finding_sets where org_id = ").bind(put(&org));
            text.add(" and package_set").equals_any(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        found.extend(rows.into_iter().map(|row| (row.package_set, row.base)));
    }
    Ok(found)
}

/// Records that package sets were assessed, and the revision at which the result last changed.
#[boxed]
pub async fn put_assessed(tx: &mut Tx, org: OrgId, sets: &[AssessedSet]) -> Result<()> {
    for chunk in sets.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into finding_sets (org_id, package_set, base, changed) ")
                .rows(chunk, |row, set| {
                    row.bind(put(&org)).bind(put(&set.package_set));
                    row.bind(put(&set.base)).bind(set.changed);
                })
                .add(" on conflict (org_id, package_set, base) do update set changed = excluded.changed")
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Keeps the findings of a package set that running code comes from: the set itself may be deleted
/// before the code stops running.
#[boxed]
pub async fn save_report(
    tx: &mut Tx,
    org: OrgId,
    set: Digest,
    base: &str,
    report: &MatchReport,
) -> Result<()> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "update finding_sets set report = $1
              where org_id = $2 and package_set = $3 and base = $4",
        )
        .bind(compress_json(report))
        .bind(put(&org))
        .bind(put(&set))
        .bind(base)
        .execute(c)
        .await
        .map(drop)
    })?)
}

/// The findings that [`save_report`] kept.
#[boxed]
pub async fn saved_report(
    conn: &mut Conn,
    org: OrgId,
    set: Digest,
    base: &str,
) -> Result<Option<MatchReport>> {
    row! {
        struct SavedReport in "finding_sets" by "base" {
            base: String,
            report: Option<Vec<u8>>,
        }
    }
    let found: Option<SavedReport> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            SavedReport::COLUMNS,
            " from finding_sets where org_id = $1 and package_set = $2 and base = $3",
        ]))
        .bind(put(&org))
        .bind(put(&set))
        .bind(base)
        .fetch_optional(c)
        .await
    })?;
    let Some(bytes) = found.and_then(|kept| kept.report) else { return Ok(None) };
    decompress_json(&bytes).map(Some).map_err(|source| StoreError::Corrupt {
        table: "finding_sets",
        id: format!("{set} {base}"),
        source,
    })
}

/// Deletes package sets that no server has anymore.
#[boxed]
pub async fn delete_assessed(tx: &mut Tx, org: OrgId, base: &str, sets: &[Digest]) -> Result<()> {
    let table = ("delete from finding_sets where org_id = ", " and package_set");
    delete_by_digest(tx, org, base, table, sets).await
}

/// The findings of all package groups, by base. A group that is not in the result has none.
#[boxed]
pub async fn all_groups(
    conn: &mut Conn,
    org: OrgId,
) -> Result<BTreeMap<String, BTreeMap<Digest, MatchReport>>> {
    let rows: Vec<Stored> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Stored::COLUMNS,
            " from finding_groups where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let mut found: BTreeMap<String, BTreeMap<Digest, MatchReport>> = BTreeMap::new();
    for row in rows {
        let (base, digest, report) = row.decode()?;
        found.entry(base).or_default().insert(digest, report);
    }
    Ok(found)
}

/// The findings of some package groups. A group that is not in the result has none.
#[boxed]
pub async fn groups(
    conn: &mut Conn,
    org: OrgId,
    base: &str,
    digests: &[Digest],
) -> Result<BTreeMap<Digest, MatchReport>> {
    let mut found = BTreeMap::new();
    for chunk in digests.chunks(ROWS_MAX) {
        let rows: Vec<Stored> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Stored::COLUMNS).add(" from finding_groups where org_id = ").bind(put(&org));
            text.add(" and base = ").bind(base.to_owned()).add(" and digest");
            text.equals_any(chunk.iter().map(put)).build_as().fetch_all(c).await
        })?;
        for row in rows {
            let (_, digest, report) = row.decode()?;
            found.insert(digest, report);
        }
    }
    Ok(found)
}

/// Stores the findings of package groups. Each group must be listed once.
#[boxed]
pub async fn put_groups(
    tx: &mut Tx,
    org: OrgId,
    base: &str,
    groups: &[(Digest, &MatchReport)],
) -> Result<()> {
    for chunk in groups.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into finding_groups (org_id, base, digest, report) ")
                .rows(chunk, |row, (digest, report)| {
                    row.bind(put(&org)).bind(base.to_owned());
                    row.bind(put(digest)).bind(compress_json(report));
                })
                .add(" on conflict (org_id, base, digest) do update set report = excluded.report")
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Deletes package groups that have no findings, or that no server has anymore.
#[boxed]
pub async fn delete_groups(tx: &mut Tx, org: OrgId, base: &str, groups: &[Digest]) -> Result<()> {
    let table = ("delete from finding_groups where org_id = ", " and digest");
    delete_by_digest(tx, org, base, table, groups).await
}

async fn delete_by_digest(
    tx: &mut Tx,
    org: OrgId,
    base: &str,
    (table, column): (&'static str, &'static str),
    removed: &[Digest],
) -> Result<()> {
    for chunk in removed.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new(table);
            text.bind(put(&org)).add(" and base = ").bind(base.to_owned());
            text.add(column).equals_any(chunk.iter().map(put));
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}
