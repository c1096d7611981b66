//! Saved views: filters, order and columns of a list in the dashboard, under a name.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{OrgId, UserId, ViewId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// A saved view. Its user and its name identify it among the views of a list.
    pub struct SavedView in "saved_views" by "id" {
        pub id: ViewId,
        pub org_id: OrgId,
        /// Who saved it.
        pub user_id: UserId,
        /// The list that it is a view of.
        pub list: String,
        pub name: String,
        /// The query string of the list, without the question mark.
        pub query: String,
        /// Whether everyone in the organization sees it.
        pub shared: bool,
        pub created_at: Timestamp,
    }
}

/// Inserts a view. It replaces the view of the same user with the same name, list and visibility.
#[boxed]
pub async fn save(tx: &mut Tx, view: &SavedView) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "delete from saved_views where user_id = $1 and list = $2 and shared = $3 and name = $4",
        )
        .bind(put(&view.user_id))
        .bind(put(&view.list))
        .bind(view.shared)
        .bind(put(&view.name))
        .execute(c)
        .await
        .map(drop)
    })?;
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into saved_views (",
            SavedView::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8)",
        ]))
        .bind(put(&view.id))
        .bind(put(&view.org_id))
        .bind(put(&view.user_id))
        .bind(put(&view.list))
        .bind(put(&view.name))
        .bind(put(&view.query))
        .bind(view.shared)
        .bind(put(&view.created_at))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// The views of a list that a user sees: their own and the shared ones of the organization, at most
/// `limit`, by name.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    user: UserId,
    list: &str,
    limit: u32,
) -> Result<Vec<SavedView>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            SavedView::COLUMNS,
            " from saved_views where org_id = $1 and list = $2 and (shared or user_id = $3)
              order by name, id limit $4",
        ]))
        .bind(put(&org))
        .bind(list)
        .bind(put(&user))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// A view that this user sees.
#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, user: UserId, id: ViewId) -> Result<SavedView> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            SavedView::COLUMNS,
            " from saved_views where id = $1 and org_id = $2 and (shared or user_id = $3)",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .bind(put(&user))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("view", id))
}

/// The number of views that a user saved.
#[boxed]
pub async fn count(conn: &mut Conn, user: UserId) -> Result<u64> {
    let (count,): (i64,) = on!(conn, |c| {
        sqlx::query_as("select count(*) from saved_views where user_id = $1")
            .bind(put(&user))
            .fetch_one(c)
            .await
    })?;
    Ok(count.unsigned_abs())
}

/// Deletes a view.
#[boxed]
pub async fn delete(tx: &mut Tx, org: OrgId, id: ViewId) -> Result<()> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from saved_views where id = $1 and org_id = $2")
            .bind(put(&id))
            .bind(put(&org))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    if gone == 1 { Ok(()) } else { Err(StoreError::not_found("view", id)) }
}

/// Deletes the views that only this user sees.
#[boxed]
pub async fn delete_personal(tx: &mut Tx, user: UserId) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from saved_views where user_id = $1 and not shared")
            .bind(put(&user))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
