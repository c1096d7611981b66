//! The `fleetmend feeds` commands that use the API: `add`, `update`, `remove` and `status`.
//!
//! With `--data-dir`, `crate::feeds` does the same on the database.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use wire::v1::{CreateFeed, Feed, FeedState, List};

use super::api::{ApiResponse, PAGE_MAX, Query};
use super::credentials::Connection;
use super::table::{Screen, Tone};
use super::{Session, confirm, print, print_message};
use crate::feeds::{describe_progress, print_feeds};
use crate::output;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Add {
    /// Name of a built-in feed (Debian, Ubuntu, KEV, …), or the URL of a feed
    #[arg(value_name = "NAME|URL")]
    feed: String,
    /// Name of a feed from a URL [default: from the URL]
    #[arg(long)]
    name: Option<String>,
    /// Update interval in hours [default: that of the built-in feed, or 6]
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u32).range(1..=168))]
    every_hours: Option<u32>,
    /// Wait until the feed is imported
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Add {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        let is_url = self.feed.contains("://");
        if !is_url && self.name.is_some() {
            bail!("--name is for feeds from a URL: built-in feeds have a name");
        }
        let (url, name) =
            if is_url { (Some(self.feed), self.name) } else { (None, Some(self.feed)) };
        let body = CreateFeed { url, name, every_hours: self.every_hours };
        let body = session.api.post(&["feeds"], Some(&body)).await?;
        let added: Feed = body.read()?;
        if !self.wait {
            session.show(&body, |_| Ok(format!("{}\n", added.id)))?;
            return match session.json {
                true => Ok(()),
                false => print_message(&format!(
                    "Added {}. The service imports it now: `fleetmend feeds status` shows the progress.",
                    added.name
                )),
            };
        }
        wait(&session, &added).await
    }
}

/// Requests an update of these feeds, or of all that have a URL.
pub(crate) async fn update(
    connection: &Connection,
    names: &[String],
    and_wait: bool,
) -> anyhow::Result<()> {
    let session = Session::open(connection)?;
    let (_, all) = list(&session).await?;
    let mut chosen = Vec::new();
    for name in names {
        chosen.push(find(&all, name)?);
    }
    if names.is_empty() {
        chosen.extend(all.iter().filter(|feed| feed.next_update_at.is_some()));
    }
    if chosen.is_empty() {
        return print_message(
            "Nothing to update: no feed has a URL. `fleetmend feeds add` adds one.",
        );
    }
    for feed in chosen {
        let path = ["feeds", &feed.id.to_string(), "update"];
        let body = session.api.post(&path, None::<&()>).await?;
        let requested: Feed = body.read()?;
        match and_wait {
            true => wait(&session, &requested).await?,
            false if session.json => print(&format!("{}\n", body.text))?,
            false => print_message(&format!("The service updates {} now.", feed.name))?,
        }
    }
    Ok(())
}

pub(crate) async fn remove(connection: &Connection, name: &str, yes: bool) -> anyhow::Result<()> {
    let session = Session::open(connection)?;
    let (_, all) = list(&session).await?;
    let feed = find(&all, name)?;
    confirm(&format!("Delete the feed `{}` with its advisories?", feed.name), yes)?;
    session.api.delete(&["feeds", &feed.id.to_string()], None).await?;
    print_message(&format!("Removed {} ({}).", feed.name, feed.id))
}

pub(crate) async fn status(connection: &Connection) -> anyhow::Result<()> {
    let session = Session::open(connection)?;
    let (body, all) = list(&session).await?;
    match session.json {
        true => print(&format!("{}\n", body.text)),
        false if all.is_empty() => print(
            "No feeds yet. The service imports them when the first server enrolls, unless it is set to `feeds = \"manual\"` or `offline`.\n",
        ),
        false => print_feeds(&all),
    }
}

async fn list(session: &Session) -> anyhow::Result<(ApiResponse, Vec<Feed>)> {
    let query = Query::default().with("limit", Some(PAGE_MAX));
    let body = session.api.get_with_query(&["feeds"], &query).await?;
    let feeds = body.read::<List<Feed>>()?.data;
    Ok((body, feeds))
}

fn find<'a>(all: &'a [Feed], name: &str) -> anyhow::Result<&'a Feed> {
    let by_id = all.iter().find(|feed| feed.id.to_string() == name || feed.name == name);
    let found = by_id.or_else(|| all.iter().find(|feed| feed.name.eq_ignore_ascii_case(name)));
    match found {
        Some(feed) => Ok(feed),
        None => bail!("no feed named `{name}`: see `fleetmend feeds status`"),
    }
}

/// Shows the progress of a feed until its import has ended. `requested` is the feed at the time when
/// the import was requested.
async fn wait(session: &Session, requested: &Feed) -> anyhow::Result<()> {
    type Outcome = (Option<Timestamp>, u32);
    let outcome = |feed: &Feed| -> Outcome { (feed.checked_at, feed.failures) };
    let path = ["feeds", &requested.id.to_string()];
    let is_terminal = Screen::stderr().width.is_some();
    loop {
        let body = session.api.get(&path).await?;
        let feed: Feed = body.read()?;
        if is_terminal {
            output::err(&output::clear_line())?;
        }
        if outcome(&feed) != outcome(requested) && feed.state != FeedState::Importing {
            return finish(session, &body, &feed);
        }
        if let (true, Some(progress)) = (is_terminal, &feed.progress) {
            output::err(&format!("{}: {}", feed.name, describe_progress(progress)))?;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn finish(session: &Session, body: &ApiResponse, feed: &Feed) -> anyhow::Result<()> {
    if let Some(error) = &feed.last_error {
        bail!("{} was not updated: {error}", feed.name);
    }
    let done = format!("{}: {} records", feed.name, feed.records);
    session.show(body, |screen| Ok(format!("{}\n", screen.paint(&done, Tone::Plain))))
}
