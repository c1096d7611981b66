//! Suppressions: decisions to hide a finding, each with a reason.
//!
//! A suppression is created and deleted, never changed.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{Environment, OrgId, SuppressionId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row};
use crate::sql::{Text, join};
use crate::tx::Tx;
use crate::{Page, Paged};

row! {
    /// A CVE that is suppressed, with a reason.
    pub struct Suppression in "suppressions" by "id" {
        pub id: SuppressionId,
        pub org_id: OrgId,
        pub cve: String,
        /// The source package that it applies to; `None` means all packages.
        pub package: Option<String>,
        /// The environment that it applies to; `None` means all servers.
        pub environment: Option<Environment>,
        pub reason: String,
        /// When it ends; `None` means when it is deleted.
        pub expires_at: Option<Timestamp>,
        pub created_at: Timestamp,
        pub created_by: String,
    }
}

/// Which suppressions to list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Only suppressions of this CVE.
    pub cve: Option<String>,
    /// Only suppressions that apply to one of these environments, or to all servers.
    pub environments: Option<Vec<Environment>>,
}

/// Inserts a suppression.
#[boxed]
pub async fn create(tx: &mut Tx, new: &Suppression) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into suppressions (",
            Suppression::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        ]))
        .bind(put(&new.id))
        .bind(put(&new.org_id))
        .bind(put(&new.cve))
        .bind(put(&new.package))
        .bind(put(&new.environment))
        .bind(put(&new.reason))
        .bind(put(&new.expires_at))
        .bind(put(&new.created_at))
        .bind(put(&new.created_by))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: SuppressionId) -> Result<Suppression> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Suppression::COLUMNS,
            " from suppressions where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("suppression", id))
}

macro_rules! push_filter {
    ($text:ident, $org:ident, $filter:ident) => {
        $text.bind(put(&$org));
        if let Some(cve) = &$filter.cve {
            $text.add(" and cve = ").bind(cve.clone());
        }
        match $filter.environments.as_deref() {
            None => {}
            Some([]) => drop($text.add(" and environment is null")),
            Some(some) => {
                $text.add(" and (environment is null or environment in ");
                $text.list(some.iter().map(put)).add(")");
            }
        }
    };
}

/// Returns a page of the suppressions, newest first.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    page: Page,
) -> Result<Paged<Suppression>> {
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Suppression::COLUMNS).add(" from suppressions where org_id = ");
        push_filter!(text, org, filter);
        text.add(" order by id desc limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from suppressions where org_id = ");
        push_filter!(text, org, filter);
        text.build_as().fetch_one(c).await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}

/// The suppressions that apply at `now`, by id.
#[boxed]
pub async fn active(conn: &mut Conn, org: OrgId, now: Timestamp) -> Result<Vec<Suppression>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Suppression::COLUMNS,
            " from suppressions where org_id = $1 and (expires_at is null or expires_at > $2) order by id",
        ]))
        .bind(put(&org))
        .bind(put(&now))
        .fetch_all(c)
        .await
    })?)
}

/// Deletes a suppression.
#[boxed]
pub async fn delete(tx: &mut Tx, org: OrgId, id: SuppressionId) -> Result<()> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from suppressions where id = $1 and org_id = $2")
            .bind(put(&id))
            .bind(put(&org))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    if gone == 1 { Ok(()) } else { Err(StoreError::not_found("suppression", id)) }
}
