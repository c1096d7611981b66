//! A list of the API: page after page, each shown as soon as it is there.

use clap::Args;
use serde::de::DeserializeOwned;
use wire::v1::List;

use super::api::{PAGE_MAX, Query};
use super::screen::{Cell, Column, Table, Tone};
use super::{Session, print};

/// Which part of a list.
#[derive(Args, Clone)]
pub(super) struct Part {
    /// How many rows at most [default: all; with --json, the API's page of 50]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Number of rows to skip
    #[arg(long, value_name = "N")]
    offset: Option<u64>,
}

/// What a list is of.
pub(super) struct Listing<'a> {
    pub(super) path: &'a [&'a str],
    /// What its rows are called.
    pub(super) noun: &'static str,
    pub(super) columns: &'a [Column],
}

impl Session {
    /// Shows a list. For programs it is one page, as the API has it; for people it is all of it.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        listing: Listing<'_>,
        part: &Part,
        query: impl Fn() -> Query,
        row: impl Fn(&T) -> Vec<Cell>,
    ) -> anyhow::Result<()> {
        let Listing { path, noun, columns } = listing;
        if self.json {
            let query = query().with("limit", part.limit).with("offset", part.offset);
            let body = self.api.find(path, &query).await?;
            return print(&format!("{}\n", body.text));
        }
        let mut table = Table::new(self.screen, columns);
        let first = part.offset.unwrap_or(0);
        let mut shown = 0;
        loop {
            let left = part.limit.map_or(PAGE_MAX, |limit| limit.saturating_sub(shown));
            let page = left.min(PAGE_MAX);
            let at = first + u64::from(shown);
            // What is no number of rows is refused by the API, which says why.
            let query = query().with("limit", Some(page)).with("offset", Some(at));
            let list: List<T> = self.api.find(path, &query).await?.read()?;
            let rows: Vec<_> = list.data.iter().map(&row).collect();
            if rows.is_empty() && shown == 0 && self.screen.width.is_some() {
                return print(&format!(
                    "{}\n",
                    self.screen.paint(&format!("No {noun}."), Tone::Faint)
                ));
            }
            print(&table.page(&rows))?;
            shown = shown.saturating_add(u32::try_from(rows.len()).unwrap_or(u32::MAX));
            let whole = rows.len() < page as usize || first + u64::from(shown) >= list.meta.total;
            if whole || part.limit.is_some_and(|limit| shown >= limit) {
                return self.rest(noun, u64::from(shown), list.meta.total);
            }
        }
    }

    /// Says so if there is more than was shown.
    fn rest(&self, noun: &str, shown: u64, total: u64) -> anyhow::Result<()> {
        if shown == total || self.screen.width.is_none() {
            return Ok(());
        }
        let line = format!("{shown} of {total} {noun}");
        print(&format!("{}\n", self.screen.paint(&line, Tone::Faint)))
    }

    /// Everything on a list, for our own use.
    pub(super) async fn all<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: impl Fn() -> Query,
    ) -> anyhow::Result<Vec<T>> {
        let mut rows: Vec<T> = Vec::new();
        loop {
            let query = query().with("limit", Some(PAGE_MAX)).with("offset", Some(rows.len()));
            let list: List<T> = self.api.find(path, &query).await?.read()?;
            let last = list.data.len() < PAGE_MAX as usize;
            rows.extend(list.data);
            if last || rows.len() as u64 >= list.meta.total {
                return Ok(rows);
            }
        }
    }
}
