//! Prints API lists page by page, each page as soon as it arrives.

use clap::Args;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use serde_json::value::RawValue;
use wire::v1::List;

use super::api::{PAGE_MAX, Query};
use super::table::{Cell, Column, Table, Tone, group_thousands};
use super::{Session, print, print_message};

#[derive(Args, Clone)]
pub(super) struct PageArgs {
    /// Maximum number of rows [default: all; with --json, one API page of 50]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Number of rows to skip
    #[arg(long, value_name = "N")]
    offset: Option<u64>,
    /// Print all rows, also with --json
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub(super) struct ListView<'a> {
    pub(super) path: &'a [&'a str],
    /// Plural noun for the rows, such as `servers`.
    pub(super) noun: &'static str,
    pub(super) columns: &'a [Column],
}

/// Which rows of a list were printed.
struct PrintedRows {
    offset: u64,
    count: u64,
    total: u64,
}

impl Session {
    /// Prints a list. With `--json` it is one page, exactly as the API returns it, unless `--all`
    /// is set; otherwise the whole list.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        listing: ListView<'_>,
        page_args: &PageArgs,
        query: impl Fn() -> Query,
        row: impl Fn(&T) -> Vec<Cell>,
    ) -> anyhow::Result<()> {
        let ListView { path, noun, columns } = listing;
        if self.json && page_args.all {
            return self.print_all_json(path, page_args, query).await;
        }
        if self.json {
            let query = query().with("limit", page_args.limit).with("offset", page_args.offset);
            let body = self.api.get_with_query(path, &query).await?;
            print(&format!("{}\n", body.text))?;
            return match body.read::<List<IgnoredAny>>() {
                Ok(List { data, meta, .. }) => print_if_cut(
                    noun,
                    &PrintedRows {
                        offset: meta.offset,
                        count: data.len() as u64,
                        total: meta.total,
                    },
                ),
                // The response was printed unchanged, whatever it is.
                Err(_) => Ok(()),
            };
        }
        let mut table = Table::new(self.screen, columns);
        let mut empty = true;
        let printed = self
            .read_pages(path, page_args, query, |rows: &[T]| {
                empty &= rows.is_empty();
                if empty && self.screen.width.is_some() {
                    let line = self.screen.paint(&format!("No {noun}."), Tone::Faint);
                    return print(&format!("{line}\n"));
                }
                print(&table.page(&rows.iter().map(&row).collect::<Vec<_>>()))
            })
            .await?;
        print_if_cut(noun, &printed)
    }

    /// Prints the whole list as one JSON object, each page as soon as it arrives.
    async fn print_all_json(
        &self,
        path: &[&str],
        page_args: &PageArgs,
        query: impl Fn() -> Query,
    ) -> anyhow::Result<()> {
        // Printed only after the first page arrived: if that fails, there is no output.
        let mut before_row = r#"{"data":["#;
        let mut any = false;
        let printed = self
            .read_pages(path, page_args, query, |rows: &[Box<RawValue>]| {
                let mut text = String::new();
                for row in rows {
                    text.push_str(before_row);
                    text.push_str(row.get());
                    before_row = ",";
                    any = true;
                }
                print(&text)
            })
            .await?;
        let PrintedRows { offset, count, total } = printed;
        let meta = json!({"total": total, "limit": count, "offset": offset});
        let opening = if any { "" } else { before_row };
        print(&format!("{opening}],\"meta\":{meta}}}\n"))
    }

    /// Reads a list page by page, up to `--limit`, and calls `show` with each page.
    async fn read_pages<T: DeserializeOwned>(
        &self,
        path: &[&str],
        page_args: &PageArgs,
        query: impl Fn() -> Query,
        mut show: impl FnMut(&[T]) -> anyhow::Result<()>,
    ) -> anyhow::Result<PrintedRows> {
        let offset = page_args.offset.unwrap_or(0);
        let mut shown: u32 = 0;
        loop {
            let left = page_args.limit.map_or(PAGE_MAX, |limit| limit.saturating_sub(shown));
            let page = left.min(PAGE_MAX);
            let at = offset.saturating_add(u64::from(shown));
            // The API rejects an invalid limit and says why.
            let query = query().with("limit", Some(page)).with("offset", Some(at));
            let list: List<T> = self.api.get_with_query(path, &query).await?.read()?;
            show(&list.data)?;
            shown = shown.saturating_add(u32::try_from(list.data.len()).unwrap_or(u32::MAX));
            let (count, total) = (u64::from(shown), list.meta.total);
            let whole = list.data.len() < page as usize || offset.saturating_add(count) >= total;
            if whole || page_args.limit.is_some_and(|limit| shown >= limit) {
                return Ok(PrintedRows { offset, count, total });
            }
        }
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

/// Prints a note to standard error if the list has more rows than were printed.
fn print_if_cut(noun: &str, printed: &PrintedRows) -> anyhow::Result<()> {
    let PrintedRows { offset, count, total } = *printed;
    if offset.saturating_add(count) >= total {
        return Ok(());
    }
    let [count, total] = [count, total].map(group_thousands);
    print_message(&format!("Showing {count} of {total} {noun}; use --all or --limit."))
}
