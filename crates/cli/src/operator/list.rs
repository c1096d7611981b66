//! Prints API lists page by page, each page as soon as it arrives.

use clap::Args;
use serde::de::DeserializeOwned;
use wire::v1::List;

use super::api::{PAGE_MAX, Query};
use super::table::{Cell, Column, Table, Tone};
use super::{Session, print};

#[derive(Args, Clone)]
pub(super) struct PageArgs {
    /// Maximum number of rows [default: all; with --json, one API page of 50]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Number of rows to skip
    #[arg(long, value_name = "N")]
    offset: Option<u64>,
}

pub(super) struct ListView<'a> {
    pub(super) path: &'a [&'a str],
    /// Plural noun for the rows, such as `servers`.
    pub(super) noun: &'static str,
    pub(super) columns: &'a [Column],
}

impl Session {
    /// Prints a list. With `--json` it is one page, exactly as the API returns it; otherwise the
    /// whole list.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        listing: ListView<'_>,
        page_args: &PageArgs,
        query: impl Fn() -> Query,
        row: impl Fn(&T) -> Vec<Cell>,
    ) -> anyhow::Result<()> {
        let ListView { path, noun, columns } = listing;
        if self.json {
            let query = query().with("limit", page_args.limit).with("offset", page_args.offset);
            let body = self.api.get_with_query(path, &query).await?;
            return print(&format!("{}\n", body.text));
        }
        let mut table = Table::new(self.screen, columns);
        let first = page_args.offset.unwrap_or(0);
        let mut shown = 0;
        loop {
            let left = page_args.limit.map_or(PAGE_MAX, |limit| limit.saturating_sub(shown));
            let page = left.min(PAGE_MAX);
            let at = first + u64::from(shown);
            // The API rejects an invalid limit and says why.
            let query = query().with("limit", Some(page)).with("offset", Some(at));
            let list: List<T> = self.api.get_with_query(path, &query).await?.read()?;
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
            if whole || page_args.limit.is_some_and(|limit| shown >= limit) {
                return self.print_remaining(noun, u64::from(shown), list.meta.total);
            }
        }
    }

    /// Prints how many rows of the total were shown, if not all.
    fn print_remaining(&self, noun: &str, shown: u64, total: u64) -> anyhow::Result<()> {
        if shown == total || self.screen.width.is_none() {
            return Ok(());
        }
        let line = format!("{shown} of {total} {noun}");
        print(&format!("{}\n", self.screen.paint(&line, Tone::Faint)))
    }

    /// Reads a whole list for internal use.
    pub(super) async fn read_all<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: impl Fn() -> Query,
    ) -> anyhow::Result<Vec<T>> {
        let mut rows: Vec<T> = Vec::new();
        loop {
            let query = query().with("limit", Some(PAGE_MAX)).with("offset", Some(rows.len()));
            let list: List<T> = self.api.get_with_query(path, &query).await?.read()?;
            let last = list.data.len() < PAGE_MAX as usize;
            rows.extend(list.data);
            if last || rows.len() as u64 >= list.meta.total {
                return Ok(rows);
            }
        }
    }
}
