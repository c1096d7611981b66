//! Which kinds of servers have which CVEs.
//!
//! A kind that has any CVE is a carrier and has a number. A row of `cve_server_kinds` lists the carriers
//! of one CVE within one page of numbers. So there are few rows, however many kinds and CVEs there
//! are, and a kind that changes touches one short row for each CVE that it gained or lost.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vocab::{Digest, OrgId};

use super::server_kinds::kind_digest;
use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

/// Number of carriers per page. [`KINDS_WITH_CVE`] contains it too.
const PAGE_SIZE: u32 = 256;

/// Selects the kinds that have a CVE. [`crate::sql::Dialect::each_kind`] goes between the two
/// texts; after them, the organization and the CVE are bound. `cross join`, because SQLite then
/// keeps this join order.
pub(super) const KINDS_WITH_CVE: [&str; 2] = [
    "(select f.package_set, f.os_release, f.kernel, f.runs from cve_server_kinds k cross join ",
    " e cross join server_kinds f
      where f.org_id = k.org_id and f.number = k.page * 256 + cast(e.value as bigint) and k.org_id = ",
];

row! {
    /// A kind of servers that has any CVE: servers that are equal in everything that decides about
    /// findings.
    pub struct Carrier in "server_kinds" by "os_release" {
        /// Identifies this kind in `cve_server_kinds`.
        pub number: u32,
        /// The digest of their installed packages.
        pub package_set: Digest,
        /// The operating system: `debian 12`.
        pub os_release: String,
        /// The running kernel.
        pub kernel: String,
        /// Running code that differs from the installed packages.
        pub runs: String,
    }
}

impl Carrier {
    /// See [`ServerKind::digest`](super::ServerKind::digest).
    pub fn digest(&self) -> Digest {
        kind_digest(self.package_set, [&self.os_release, &self.kernel, &self.runs])
    }
}

/// The carriers that gained or lost a CVE, by number. Each is listed once, in one of the two lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CveChange {
    pub cve: Arc<str>,
    pub gained: Vec<u32>,
    pub lost: Vec<u32>,
}

#[boxed]
pub async fn carriers(conn: &mut Conn, org: OrgId) -> Result<Vec<Carrier>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Carrier::COLUMNS,
            " from server_kinds where org_id = $1 order by number",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// Inserts new carriers.
#[boxed]
pub async fn put_carriers(tx: &mut Tx, org: OrgId, carriers: &[Carrier]) -> Result<()> {
    for chunk in carriers.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("insert into server_kinds (org_id, ");
            text.add(Carrier::COLUMNS).add(") ").rows(chunk, |row, one| {
                row.bind(put(&org)).bind(put(&one.number)).bind(put(&one.package_set));
                row.bind(put(&one.os_release)).bind(put(&one.kernel)).bind(put(&one.runs));
            });
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}

/// Deletes carriers that no longer have a CVE. Their numbers may be used again.
#[boxed]
pub async fn delete_carriers(tx: &mut Tx, org: OrgId, numbers: &[u32]) -> Result<()> {
    for chunk in numbers.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from server_kinds where org_id = ");
            text.bind(put(&org)).add(" and number").equals_any(chunk.iter().map(put));
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}

row! {
    /// The carriers of one CVE on one page.
    struct CvePageRow in "cve_server_kinds" by "cve" {
        cve: String,
        page: u32,
        kinds: BTreeSet<u32>,
    }
}

/// Which carriers have which CVE. A CVE may be listed several times; each pair of CVE and number is
/// listed once.
#[boxed]
pub async fn carriers_by_cve(conn: &mut Conn, org: OrgId) -> Result<Vec<(String, Vec<u32>)>> {
    let rows: Vec<CvePageRow> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            CvePageRow::COLUMNS,
            " from cve_server_kinds where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let named = |CvePageRow { cve, page, kinds }: CvePageRow| {
        (cve, kinds.into_iter().map(|place| page * PAGE_SIZE + place).collect())
    };
    Ok(rows.into_iter().map(named).collect())
}

/// Records which carriers gained or lost CVEs.
#[boxed]
pub async fn apply_cve_changes(tx: &mut Tx, org: OrgId, cve_changes: &[&CveChange]) -> Result<()> {
    let mut pages: BTreeMap<(&str, u32), Vec<(u32, bool)>> = BTreeMap::new();
    for CveChange { cve, gained, lost } in cve_changes {
        let gained = gained.iter().map(|number| (number, true));
        for (number, has) in gained.chain(lost.iter().map(|number| (number, false))) {
            pages.entry((cve, number / PAGE_SIZE)).or_default().push((number % PAGE_SIZE, has));
        }
    }
    let pages: Vec<_> = pages.into_iter().collect();
    for chunk in pages.chunks(ROWS_MAX) {
        let mut known = read_pages(tx, org, chunk.iter().map(|(page, _)| *page)).await?;
        let mut rows = Vec::with_capacity(chunk.len());
        for ((cve, page), changes) in chunk {
            let mut kinds = known.remove(&((*cve).to_owned(), *page)).unwrap_or_default();
            for (place, has) in changes {
                match has {
                    true => kinds.insert(*place),
                    false => kinds.remove(place),
                };
            }
            rows.push((*cve, *page, kinds));
        }
        put_rows(tx, org, &rows).await?;
        delete_empty(tx, org, &rows).await?;
    }
    Ok(())
}

type PageRow<'a> = (&'a str, u32, BTreeSet<u32>);

async fn read_pages<'a>(
    tx: &mut Tx,
    org: OrgId,
    pages: impl Iterator<Item = (&'a str, u32)> + Clone,
) -> Result<BTreeMap<(String, u32), BTreeSet<u32>>> {
    let found: Vec<CvePageRow> = on!(tx, |c| {
        let mut text = Text::new("with v (cve_id, at) as (");
        text.rows(pages.clone(), |row, (cve, page)| {
            row.bind(cve.to_owned()).bind(put(&page));
        });
        text.add(") select ")
            .add(CvePageRow::COLUMNS)
            .add(" from v cross join cve_server_kinds where org_id = ");
        text.bind(put(&org))
            .add(" and cve = v.cve_id and page = v.at")
            .build_as()
            .fetch_all(c)
            .await
    })?;
    Ok(found.into_iter().map(|row| ((row.cve, row.page), row.kinds)).collect())
}

async fn put_rows(tx: &mut Tx, org: OrgId, rows: &[PageRow<'_>]) -> Result<()> {
    Ok(on!(tx, |c| {
        Text::new("insert into cve_server_kinds (org_id, cve, page, kinds) ")
            .rows(rows, |row, (cve, page, kinds)| {
                row.bind(put(&org)).bind((*cve).to_owned()).bind(put(page)).bind(put(kinds));
            })
            .add(" on conflict (org_id, cve, page) do update set kinds = excluded.kinds")
            .build()
            .execute(c)
            .await
            .map(drop)
    })?)
}

/// Deletes rows without carriers.
async fn delete_empty(tx: &mut Tx, org: OrgId, rows: &[PageRow<'_>]) -> Result<()> {
    let empty: BTreeSet<&str> =
        rows.iter().filter(|(.., kinds)| kinds.is_empty()).map(|(cve, ..)| *cve).collect();
    if empty.is_empty() {
        return Ok(());
    }
    Ok(on!(tx, |c| {
        let mut text = Text::new("delete from cve_server_kinds where kinds = '[]' and org_id = ");
        text.bind(put(&org)).add(" and cve").equals_any(empty.iter().map(|cve| (*cve).to_owned()));
        text.build().execute(c).await.map(drop)
    })?)
}
