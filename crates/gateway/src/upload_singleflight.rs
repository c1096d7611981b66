//! Lists that one agent was asked for, and for which the others that carry them wait.
//!
//! After an update, servers that are alike come at once with the digest of one and the same new list. To ask each of them
//! for it would cost as much again as several of its syncs.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use store::listings::Kind;
use tokio::sync::watch;
use tokio::time::Instant;
use vocab::{Digest, OrgId, ServerId};

use crate::registry::lock;

/// How long a list is waited for; then the next who carries it is asked.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many lists are remembered that were asked for and never came.
const LISTS_MAX: usize = 10_000;

/// Which list.
pub(super) type Key = (OrgId, Kind, Digest);

/// Who was asked for which list.
#[derive(Default)]
pub(super) struct Awaited(Mutex<BTreeMap<Key, Asked>>);

struct Asked {
    whom: ServerId,
    since: Instant,
    /// Dropped when there is nothing to wait for any more.
    open: watch::Sender<()>,
}

/// Another server was asked for the list.
pub(super) struct Other {
    since: Instant,
    open: watch::Receiver<()>,
}

impl Other {
    /// Waits until the list has come, or the other has had time enough.
    pub(super) async fn wait(mut self) {
        // Either is an end of waiting.
        let _ = tokio::time::timeout_at(self.since + PATIENCE, self.open.changed()).await;
    }
}

impl Awaited {
    /// Whether another server was asked for this list a moment ago. If not, this one is from now on.
    pub(super) fn other(&self, key: Key, server: ServerId) -> Option<Other> {
        let mut all = lock(&self.0);
        match all.get(&key) {
            Some(asked) if asked.since.elapsed() < PATIENCE => {
                let other = || Other { since: asked.since, open: asked.open.subscribe() };
                (asked.whom != server).then(other)
            }
            _ => {
                if all.len() >= LISTS_MAX {
                    all.clear();
                }
                let since = Instant::now();
                all.insert(key, Asked { whom: server, since, open: watch::Sender::default() });
                None
            }
        }
    }

    /// The list is here.
    pub(super) fn came(&self, key: Key) {
        lock(&self.0).remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn server(nth: u128) -> ServerId {
        ServerId::new(Timestamp::UNIX_EPOCH, nth)
    }

    fn key() -> Key {
        (OrgId::new(Timestamp::UNIX_EPOCH, 1), Kind::Packages, Digest::of(b"list"))
    }

    #[tokio::test(start_paused = true)]
    async fn one_is_asked_and_the_others_wait_until_it_came() {
        let awaited = Awaited::default();
        assert!(awaited.other(key(), server(1)).is_none());
        assert!(awaited.other(key(), server(1)).is_none(), "it may be asked again");
        let other = awaited.other(key(), server(2)).unwrap();
        let begin = Instant::now();
        tokio::join!(other.wait(), async { awaited.came(key()) });
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert!(awaited.other(key(), server(2)).is_none(), "nobody is waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_sends_it_is_waited_for_once() {
        let awaited = Awaited::default();
        assert!(awaited.other(key(), server(1)).is_none());
        let (second, third) =
            (awaited.other(key(), server(2)).unwrap(), awaited.other(key(), server(3)).unwrap());
        let begin = Instant::now();
        tokio::join!(second.wait(), third.wait());
        assert_eq!(begin.elapsed().as_secs(), PATIENCE.as_secs());
        assert!(awaited.other(key(), server(2)).is_none(), "now this one is asked");
        assert!(awaited.other(key(), server(3)).is_some(), "and waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_asked_again_and_again_is_not_waited_for_any_longer() {
        let awaited = Awaited::default();
        for _ in 0..4 {
            assert!(awaited.other(key(), server(1)).is_none());
            assert!(awaited.other(key(), server(2)).is_some());
            tokio::time::advance(PATIENCE / 4).await;
        }
        assert!(awaited.other(key(), server(2)).is_none());
    }
}
