//! Advisories by feed and id and by the packages that they name, KEV entries, and EPSS scores.
//!
//! An advisory is stored as compressed JSON. A feed replaces its own advisories only; the caller
//! decides which of two versions to keep.

use async_recursion::async_recursion as boxed;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::{Advisory, Ecosystem, Epss, Family, KevEntry};
use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use zstd::bulk::{Compressor, Decompressor};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::feeds;
use crate::row::{Column, TimestampMicros, put, row, to_json};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

const COMPRESSION_LEVEL: i32 = 1;
/// Maximum size of an advisory. A feed with a larger one is rejected.
const STATEMENT_BYTES_MAX: usize = 128 * 1024 * 1024;

/// The feed of advisories that were stored before the feed was recorded.
pub const UNKNOWN_FEED: &str = "";

row! {
    struct Stored in "advisories" by "id" {
        feed: String,
        id: String,
        statement: Vec<u8>,
    }
}

impl Stored {
    fn decode(&self) -> Result<Advisory> {
        decompress_json(&self.statement).map_err(|source| StoreError::Corrupt {
            table: "advisories",
            id: self.id.clone(),
            source,
        })
    }
}

thread_local! {
    // Creating one takes longer than compressing an advisory of usual size, and a feed has hundreds
    // of thousands.
    static COMPRESSOR: RefCell<Compressor<'static>> =
        RefCell::new(Compressor::new(COMPRESSION_LEVEL).expect("enough memory for a compressor"));
    static DECOMPRESSOR: RefCell<Decompressor<'static>> =
        RefCell::new(Decompressor::new().expect("enough memory for a decompressor"));
}

pub(crate) fn compress_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let text = to_json(value);
    COMPRESSOR
        .with_borrow_mut(|packer| packer.compress(text.as_bytes()))
        .expect("compressing into memory does not fail")
}

pub(crate) fn decompress_json<T: serde::de::DeserializeOwned>(
    bytes: &[u8],
) -> std::result::Result<T, crate::Cause> {
    let size = zstd::zstd_safe::get_frame_content_size(bytes)
        .map_err(|_| "not a zstd frame")?
        .and_then(|size| usize::try_from(size).ok())
        .filter(|size| *size <= STATEMENT_BYTES_MAX)
        .ok_or("too large")?;
    let text = DECOMPRESSOR.with_borrow_mut(|unpacker| unpacker.decompress(bytes, size))?;
    Ok(serde_json::from_slice(&text)?)
}

/// The stored advisories of a feed that have one of these ids.
#[boxed]
pub async fn get_all(
    conn: &mut Conn,
    feed: &str,
    ids: &[String],
) -> Result<BTreeMap<String, Advisory>> {
    let mut found = BTreeMap::new();
    for chunk in ids.chunks(ROWS_MAX) {
        let rows: Vec<Stored> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Stored::COLUMNS).add(" from advisories where feed = ").bind(feed.to_owned());
            text.add(" and id in ").list(chunk.iter().cloned()).build_as().fetch_all(c).await
        })?;
        for row in rows {
            found.insert(row.id.clone(), row.decode()?);
        }
    }
    Ok(found)
}

/// Stores a feed's advisories. Each replaces the feed's own advisory with the same id. Each id must
/// be listed once.
#[boxed]
pub async fn put_all(tx: &mut Tx, feed: &str, statements: &[Advisory]) -> Result<()> {
    for chunk in statements.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into advisories (feed, id, statement) ")
                .rows(chunk, |row, statement| {
                    row.bind(feed.to_owned())
                        .bind(put(&statement.id))
                        .bind(compress_json(statement));
                })
                .add(" on conflict (feed, id) do update set statement = excluded.statement")
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    let ids: Vec<String> = statements.iter().map(|statement| statement.id.clone()).collect();
    drop_names(tx, feed, &ids).await?;
    let named: BTreeSet<(String, &str, &str)> = statements
        .iter()
        .flat_map(|statement| statement.affected.iter().map(move |one| (statement, one)))
        // Advisories for operating systems that are not matched are kept, but not indexed.
        .filter(|(_, affected)| affected.ecosystem.family() != Family::Other)
        .map(|(statement, affected)| {
            let (base, _) = affected.ecosystem.base();
            (base.as_str().to_owned(), affected.package.as_str(), statement.id.as_str())
        })
        .collect();
    let named: Vec<_> = named.into_iter().collect();
    for chunk in named.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into advisory_names (base, name, feed, id) ")
                .rows(chunk, |row, (base, name, id)| {
                    row.bind(base.clone()).bind((*name).to_owned());
                    row.bind(feed.to_owned()).bind((*id).to_owned());
                })
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

async fn drop_names(tx: &mut Tx, feed: &str, ids: &[String]) -> Result<()> {
    for chunk in ids.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from advisory_names where feed = ");
            text.bind(feed.to_owned()).add(" and id in ").list(chunk.iter().cloned());
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}

/// Deletes some of a feed's advisories.
#[boxed]
pub async fn delete(tx: &mut Tx, feed: &str, ids: &[String]) -> Result<()> {
    drop_names(tx, feed, ids).await?;
    for chunk in ids.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from advisories where feed = ");
            text.bind(feed.to_owned()).add(" and id in ").list(chunk.iter().cloned());
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}

/// The advisories with these ids, of all feeds, ordered by id.
#[boxed]
pub async fn with_ids(conn: &mut Conn, ids: &[String]) -> Result<Vec<Advisory>> {
    let mut found = Vec::new();
    for feed in feeds::list(conn).await? {
        found.extend(get_all(conn, &feed.name, ids).await?.into_values());
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found.dedup_by(|a, b| a.id == b.id);
    Ok(found)
}

/// The time of the list that the EPSS score of a CVE comes from. Newer lists had the same score.
#[boxed]
pub async fn epss_as_of(conn: &mut Conn, cve: &str) -> Result<Option<Timestamp>> {
    let row: Option<(TimestampMicros,)> = on!(conn, |c| {
        sqlx::query_as("select as_of from epss where cve = $1").bind(cve).fetch_optional(c).await
    })?;
    let read = |(as_of,)| {
        let corrupt = |source| StoreError::Corrupt { table: "epss", id: cve.to_owned(), source };
        <Timestamp as Column>::from_raw(as_of).map_err(corrupt)
    };
    row.map(read).transpose()
}

/// Whether a feed has any advisory.
#[boxed]
pub async fn has_any(conn: &mut Conn, feed: &str) -> Result<bool> {
    let found = on!(conn, |c| {
        sqlx::query("select 1 from advisories where feed = $1 limit 1")
            .bind(feed)
            .fetch_optional(c)
            .await
            .map(|row| row.is_some())
    })?;
    Ok(found)
}

/// The number of advisories.
#[boxed]
pub async fn count(conn: &mut Conn) -> Result<u64> {
    let (count,): (i64,) =
        on!(conn, |c| { sqlx::query_as("select count(*) from advisories").fetch_one(c).await })?;
    Ok(count.unsigned_abs())
}

/// Whether any advisory is for this base ecosystem ([`Ecosystem::base`]). A feed whose first import
/// has not ended does not count, because its other advisories are missing.
#[boxed]
pub async fn covers(conn: &mut Conn, base: &Ecosystem) -> Result<bool> {
    let found = on!(conn, |c| {
        sqlx::query(join(&[
            "select 1 from advisory_names where base = $1 and feed not in (",
            feeds::INCOMPLETE,
            ") limit 1",
        ]))
        .bind(base.as_str())
        .fetch_optional(c)
        .await
        .map(|row| row.is_some())
    })?;
    Ok(found)
}

/// Whether one of these feeds has an advisory for this base ecosystem.
#[boxed]
pub async fn covered_by(conn: &mut Conn, base: &Ecosystem, feeds: &[String]) -> Result<bool> {
    if feeds.is_empty() {
        return Ok(false);
    }
    let found = on!(conn, |c| {
        let mut text = Text::new("select 1 from advisory_names where base = ");
        text.bind(base.as_str().to_owned()).add(" and feed in ").list(feeds.iter().cloned());
        text.add(" limit 1").build().fetch_optional(c).await.map(|row| row.is_some())
    })?;
    Ok(found)
}

/// Returns the next page of all advisories with their feeds, ordered by feed and id, starting after
/// `after`. Empty at the end.
#[boxed]
pub async fn page(
    conn: &mut Conn,
    after: (&str, &str),
    limit: u32,
) -> Result<Vec<(String, Advisory)>> {
    let rows: Vec<Stored> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Stored::COLUMNS,
            " from advisories where (feed, id) > ($1, $2) order by feed, id limit $3",
        ]))
        .bind(after.0)
        .bind(after.1)
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?;
    rows.into_iter().map(|row| Ok((row.feed.clone(), row.decode()?))).collect()
}

/// The advisories of all feeds that name one of these packages of a base ecosystem, by id and feed.
#[boxed]
pub async fn by_package_names(
    conn: &mut Conn,
    base: &Ecosystem,
    names: &BTreeSet<String>,
) -> Result<Vec<Advisory>> {
    let names: Vec<&String> = names.iter().collect();
    let mut found: Vec<(String, Advisory)> = Vec::new();
    for chunk in names.chunks(ROWS_MAX) {
        on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Stored::COLUMNS)
                .add(" from advisories where (feed, id) in (select n.feed, n.id");
            text.add(" from advisory_names n where n.base = ").bind(base.as_str().to_owned());
            text.add(" and n.name in ").list(chunk.iter().map(|name| (*name).clone())).add(")");
            // One advisory is decompressed while the database looks for the next: both take about
            // as long.
            let mut rows = text.build_as::<Stored>().fetch(c);
            while let Some(row) = rows.try_next().await? {
                let statement = row.decode()?;
                found.push((row.feed, statement));
            }
        });
    }
    // An advisory that names packages of two chunks is found twice.
    found.sort_by(|(feed, a), (other, b)| (&a.id, feed).cmp(&(&b.id, other)));
    found.dedup_by(|(feed, a), (other, b)| a.id == b.id && feed == other);
    Ok(found.into_iter().map(|(_, statement)| statement).collect())
}

/// Records that advisories for these packages of a base ecosystem changed.
pub async fn record_changes<'a>(
    tx: &mut Tx,
    base: &Ecosystem,
    names: impl Iterator<Item = &'a str>,
    revision: i64,
) -> Result<()> {
    let names: Vec<&str> = names.collect();
    for chunk in names.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into advisory_changes (base, name, revision) ")
                .rows(chunk, |row, name| {
                    row.bind(base.as_str().to_owned()).bind((*name).to_owned()).bind(revision);
                })
                .add(" on conflict (base, name) do update set revision = excluded.revision")
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// The packages of a base ecosystem whose advisories changed after this revision.
#[boxed]
pub async fn changed_since(
    conn: &mut Conn,
    base: &Ecosystem,
    revision: i64,
) -> Result<Vec<String>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as(
            "select name from advisory_changes where base = $1 and revision > $2 order by name",
        )
        .bind(base.as_str())
        .bind(revision)
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|(name,)| name).collect())
}

/// The number of CVEs that are known to be exploited. No CVE is ever removed from that list, so if
/// the number is the same, the list is the same.
#[boxed]
pub async fn exploited_count(conn: &mut Conn) -> Result<i64> {
    let (count,): (i64,) =
        on!(conn, |c| { sqlx::query_as("select count(*) from exploited").fetch_one(c).await })?;
    Ok(count)
}

/// Defines the functions of a table with one row per CVE, in which a newer list replaces rows of an
/// older one.
macro_rules! cve_table {
    ($kind:ty, $table:literal, $put:ident, $put_doc:literal, $get:ident, $get_doc:literal,
     $page:ident, $page_doc:literal) => {
        #[doc = $put_doc]
        ///
        /// Returns how many rows changed. Each CVE must be listed once.
        pub async fn $put(tx: &mut Tx, list: &[$kind], as_of: Timestamp) -> Result<u64> {
            let mut changed = 0;
            for chunk in list.chunks(ROWS_MAX) {
                changed += on!(tx, |c| {
                    Text::new(concat!("insert into ", $table, " (cve, statement, as_of) "))
                        .rows(chunk, |row, one| {
                            row.bind(one.cve.clone()).bind(put(one)).bind(put(&as_of));
                        })
                        .add(concat!(
                            " on conflict (cve) do update
                                 set statement = excluded.statement, as_of = excluded.as_of
                               where ",
                            $table,
                            ".as_of <= excluded.as_of and ",
                            $table,
                            ".statement <> excluded.statement"
                        ))
                        .build()
                        .execute(c)
                        .await
                        .map(|done| done.rows_affected())
                })?;
            }
            Ok(changed)
        }

        #[doc = $get_doc]
        pub async fn $get(
            conn: &mut Conn,
            cves: &BTreeSet<&str>,
        ) -> Result<BTreeMap<String, $kind>> {
            let cves: Vec<&str> = cves.iter().copied().collect();
            let mut found = BTreeMap::new();
            for chunk in cves.chunks(ROWS_MAX) {
                let rows: Vec<(String, String)> = on!(conn, |c| {
                    let mut text =
                        Text::new(concat!("select cve, statement from ", $table, " where cve in "));
                    text.list(chunk.iter().map(|cve| (*cve).to_owned()));
                    text.build_as().fetch_all(c).await
                })?;
                for (cve, statement) in rows {
                    let read = <$kind as Column>::from_raw(statement).map_err(|source| {
                        StoreError::Corrupt { table: $table, id: cve.clone(), source }
                    })?;
                    found.insert(cve, read);
                }
            }
            Ok(found)
        }

        #[doc = $page_doc]
        ///
        /// Returns the entries after `after`, ordered by CVE, each with the time of the list that
        /// contains it. Empty at the end.
        pub async fn $page(
            conn: &mut Conn,
            after: &str,
            limit: u32,
        ) -> Result<Vec<($kind, Timestamp)>> {
            let rows: Vec<(String, String, TimestampMicros)> = on!(conn, |c| {
                sqlx::query_as(concat!(
                    "select cve, statement, as_of from ",
                    $table,
                    " where cve > $1 order by cve limit $2"
                ))
                .bind(after)
                .bind(i64::from(limit))
                .fetch_all(c)
                .await
            })?;
            let read = |(cve, statement, as_of): (String, String, TimestampMicros)| {
                let corrupt = |source| StoreError::Corrupt { table: $table, id: cve, source };
                let read = <$kind as Column>::from_raw(statement)
                    .and_then(|one| Ok((one, <Timestamp as Column>::from_raw(as_of)?)));
                read.map_err(corrupt)
            };
            rows.into_iter().map(read).collect()
        }
    };
}

cve_table!(
    KevEntry,
    "exploited",
    put_exploited,
    "Stores CVEs that are known to be exploited, unless a newer list is stored.",
    exploited,
    "Those of these CVEs that are known to be exploited.",
    exploited_page,
    "Returns a page of the CVEs that are known to be exploited."
);
cve_table!(
    Epss,
    "epss",
    put_epss,
    "Stores EPSS scores, unless newer ones are stored.",
    epss,
    "The EPSS scores of these CVEs.",
    epss_page,
    "Returns a page of the EPSS scores."
);
