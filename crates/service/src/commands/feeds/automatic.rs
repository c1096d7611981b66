//! Which built-in feeds the service follows on its own, and which feed is due.
//!
//! The decisions are pure ([`to_follow`], [`next_due`]); [`follow_needed`] carries out the first.
//! Nothing is ever deleted here: a feed that no server needs any more is only no longer fetched.

use async_recursion::async_recursion as boxed;
use feed::catalog::{self, BuiltIn};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::feed_sources::{self, FeedSource};
use store::feeds::{self, Feed};
use store::{Conn, StoreError, Topic, feed_removals, server_labels};
use vocab::Os;

use super::manage::record_for_all;
use super::{FeedTransactions, remote};
use crate::audit::Action;

/// The operating systems of all servers.
#[boxed]
pub async fn systems(conn: &mut Conn) -> store::Result<Vec<Os>> {
    let all = server_labels::systems(conn).await?;
    Ok(all.iter().filter_map(|(id, release)| system(id, release)).collect())
}

/// A system from its labels, which do not have its name. LMDE is the only one that needs it: it
/// has the id of Linux Mint, and its releases have lower numbers.
fn system(id: &str, release: &str) -> Option<Os> {
    let version = release.strip_prefix(id).unwrap_or("").trim_start();
    let is_lmde =
        id == "linuxmint" && version.split('.').next().is_some_and(|major| major.len() == 1);
    Os::new(id, version, if is_lmde { "LMDE" } else { "" }).ok()
}

/// The built-in feeds that servers need and no user has decided about: there is no feed with the
/// same name or URL, and no operator removed it.
pub fn to_follow(
    systems: &[Os],
    sources: &[FeedSource],
    feeds: &[Feed],
    removed: &[String],
) -> Vec<&'static BuiltIn> {
    let is_known = |feed: &BuiltIn| {
        sources.iter().any(|source| source.name == feed.name || source.url == feed.url)
            || feeds.iter().any(|one| one.name == feed.name && one.imported_at.is_some())
            || removed.iter().any(|name| name == feed.name)
    };
    let mut needed = catalog::needed(systems);
    needed.retain(|feed| feed.opt_in.is_none() && !is_known(feed));
    needed
}

/// Whether a source is not fetched because no server needs it any more.
pub fn is_unused(source: &FeedSource, systems: &[Os]) -> bool {
    source.automatic && !catalog::needed(systems).iter().any(|feed| feed.name == source.name)
}

/// The source that is due first, with the time at which it is due.
pub fn next_due(
    sources: &[FeedSource],
    systems: &[Os],
    now: Timestamp,
) -> Option<(FeedSource, Timestamp)> {
    let used = sources.iter().filter(|source| !is_unused(source, systems));
    let due = used.map(|source| (remote::due_at(source, now), source));
    let (due_at, source) = due.min_by_key(|(due_at, source)| (*due_at, &source.name))?;
    Some((source.clone(), due_at))
}

/// Starts to follow the built-in feeds that servers need. Returns their names.
#[boxed]
pub async fn follow_needed(
    transactions: &FeedTransactions<'_>,
    now: Timestamp,
) -> Result<Vec<&'static str>, StoreError> {
    let mut reader = transactions.db.read().await?;
    if missing(&mut reader).await?.is_empty() {
        return Ok(Vec::new());
    }
    drop(reader);
    let mut tx = transactions.begin().await?;
    // Again, now that no operator can decide at the same time.
    let missing = missing(&mut tx).await?;
    for feed in &missing {
        feed_sources::save(&mut tx, &source(feed, true, now)).await?;
        let detail = json!({"name": feed.name, "url": feed.url});
        record_for_all(&mut tx, now, "engine", Action::FeedAdd, feed.name, &detail).await?;
    }
    tx.notify(Topic::Feeds);
    tx.commit().await?;
    Ok(missing.into_iter().map(|feed| feed.name).collect())
}

async fn missing(conn: &mut Conn) -> Result<Vec<&'static BuiltIn>, StoreError> {
    let systems = systems(conn).await?;
    let sources = feed_sources::list(conn).await?;
    let feeds = feeds::list(conn).await?;
    let removed = feed_removals::list(conn).await?;
    Ok(to_follow(&systems, &sources, &feeds, &removed))
}

/// The source of a built-in feed, due now.
pub(super) fn source(feed: &BuiltIn, automatic: bool, now: Timestamp) -> FeedSource {
    let every = SignedDuration::from_hours(feed.refresh_hours.into());
    FeedSource {
        name: feed.name.to_owned(),
        url: feed.url.to_owned(),
        kind: Some(feed.kind.to_owned()),
        every_seconds: u32::try_from(every.as_secs()).unwrap_or(u32::MAX),
        next_at: now,
        failures: 0,
        etag: None,
        last_modified: None,
        automatic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + 60 * minutes).unwrap()
    }

    fn debian() -> Vec<Os> {
        vec![Os::new("debian", "12", "").unwrap()]
    }

    fn built_in(name: &str, automatic: bool) -> FeedSource {
        source(catalog::find(name).unwrap(), automatic, at(0))
    }

    fn imported(name: &str, imported_at: Option<Timestamp>) -> Feed {
        Feed {
            name: name.into(),
            kind: "osv".into(),
            source: "file".into(),
            records: 1,
            size_bytes: 1,
            as_of: None,
            imported_at,
            last_error: None,
            tried_at: at(0),
            checked_at: None,
        }
    }

    fn names(feeds: &[&'static BuiltIn]) -> Vec<&'static str> {
        feeds.iter().map(|feed| feed.name).collect()
    }

    #[test]
    fn nothing_is_followed_before_the_first_server() {
        assert_eq!(names(&to_follow(&[], &[], &[], &[])), [""; 0]);
        assert_eq!(names(&to_follow(&debian(), &[], &[], &[])), ["Debian", "KEV", "EPSS"]);
    }

    #[test]
    fn decisions_of_operators_are_respected() {
        let rest = ["KEV", "EPSS"];
        let systems = debian();
        assert_eq!(names(&to_follow(&systems, &[], &[], &["Debian".into()])), rest, "removed");
        let by_hand = imported("Debian", Some(at(0)));
        assert_eq!(names(&to_follow(&systems, &[], &[by_hand], &[])), rest, "imported by hand");
        let own = FeedSource {
            url: "https://mirror.example/debian.zip".into(),
            ..built_in("Debian", false)
        };
        assert_eq!(names(&to_follow(&systems, &[own], &[], &[])), rest, "the same name");
        let renamed = FeedSource { name: "deb".into(), ..built_in("Debian", false) };
        assert_eq!(names(&to_follow(&systems, &[renamed], &[], &[])), rest, "the same URL");
        let failed = imported("Debian", None);
        assert_eq!(to_follow(&systems, &[], &[failed], &[]).len(), 3, "it was never imported");
    }

    #[test]
    fn opt_in_feeds_are_not_followed_automatically() {
        let wolfi = [Os::new("wolfi", "20230201", "").unwrap()];
        assert_eq!(names(&to_follow(&wolfi, &[], &[], &[])), ["KEV", "EPSS"]);
    }

    #[test]
    fn unused_feeds_are_not_due() {
        let sources = [built_in("Alpine", true), built_in("Debian", true)];
        let next = |systems: &[Os]| next_due(&sources, systems, at(1)).map(|(next, _)| next.name);
        assert_eq!(next(&debian()).as_deref(), Some("Debian"));
        assert_eq!(next(&[]), None);
        let added = [built_in("Alpine", false)];
        let (next, due_at) = next_due(&added, &debian(), at(1)).unwrap();
        assert_eq!((next.name.as_str(), due_at), ("Alpine", at(0)), "an operator added it");
    }

    #[test]
    fn first_due_source_comes_first() {
        let later = FeedSource { next_at: at(5), ..built_in("KEV", true) };
        let (next, due_at) = next_due(&[later, built_in("EPSS", true)], &debian(), at(1)).unwrap();
        assert_eq!((next.name.as_str(), due_at), ("EPSS", at(0)));
    }

    #[test]
    fn systems_are_read_from_their_labels() {
        let shown =
            |id, release| system(id, release).map(|os| (os.to_string(), os.name().to_owned()));
        assert_eq!(shown("debian", "debian 12"), Some(("debian 12".into(), String::new())));
        assert_eq!(shown("arch", "arch"), Some(("arch".into(), String::new())));
        assert_eq!(shown("linuxmint", "linuxmint 6"), Some(("linuxmint 6".into(), "LMDE".into())));
        let mint = [system("linuxmint", "linuxmint 22.1").unwrap()];
        assert_eq!(names(&to_follow(&mint, &[], &[], &[]))[0], "Ubuntu");
        let lmde = [system("linuxmint", "linuxmint 6").unwrap()];
        assert_eq!(names(&to_follow(&lmde, &[], &[], &[]))[0], "Debian");
    }
}
