//! Requests each package set from one agent, while the others that have it wait.
//!
//! After an update, many servers report the digest of the same new package set at the same time.
//! Requesting it from each of them would cost as much as several of their syncs.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use store::package_sets::SetKind;
use tokio::sync::watch;
use tokio::time::Instant;
use vocab::{Digest, OrgId, ServerId};

use crate::registry::lock;

/// How long to wait for an upload before the next server is asked.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of package sets that are remembered as requested but not uploaded.
const REQUESTS_MAX: usize = 10_000;

pub(super) type Key = (OrgId, SetKind, Digest);

/// The package sets that were requested, and from which server.
#[derive(Default)]
pub(super) struct UploadRequests(Mutex<BTreeMap<Key, UploadRequest>>);

struct UploadRequest {
    server: ServerId,
    since: Instant,
    /// Dropped when waiting is over.
    open: watch::Sender<()>,
}

/// Another server was asked for the package set.
pub(super) struct OtherUpload {
    since: Instant,
    open: watch::Receiver<()>,
}

impl OtherUpload {
    /// Waits until the package set has arrived, or the other server has had enough time.
    pub(super) async fn wait(mut self) {
        // Both outcomes end the wait.
        let _ = tokio::time::timeout_at(self.since + UPLOAD_TIMEOUT, self.open.changed()).await;
    }
}

impl UploadRequests {
    /// Whether another server was recently asked for this package set. If not, this server is asked
    /// now.
    pub(super) fn pending_elsewhere(&self, key: Key, server: ServerId) -> Option<OtherUpload> {
        let mut all = lock(&self.0);
        match all.get(&key) {
            Some(pending) if pending.since.elapsed() < UPLOAD_TIMEOUT => {
                let other = || OtherUpload { since: pending.since, open: pending.open.subscribe() };
                (pending.server != server).then(other)
            }
            _ => {
                if all.len() >= REQUESTS_MAX {
                    all.clear();
                }
                let since = Instant::now();
                all.insert(key, UploadRequest { server, since, open: watch::Sender::default() });
                None
            }
        }
    }

    /// The package set has arrived.
    pub(super) fn complete(&self, key: Key) {
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
        (OrgId::new(Timestamp::UNIX_EPOCH, 1), SetKind::Packages, Digest::compute(b"list"))
    }

    #[tokio::test(start_paused = true)]
    async fn one_server_is_asked_and_the_others_wait() {
        let awaited = UploadRequests::default();
        assert!(awaited.pending_elsewhere(key(), server(1)).is_none());
        assert!(
            awaited.pending_elsewhere(key(), server(1)).is_none(),
            "the same server may be asked again"
        );
        let other = awaited.pending_elsewhere(key(), server(2)).unwrap();
        let begin = Instant::now();
        tokio::join!(other.wait(), async { awaited.complete(key()) });
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert!(awaited.pending_elsewhere(key(), server(2)).is_none(), "nothing to wait for");
    }

    #[tokio::test(start_paused = true)]
    async fn next_server_is_asked_after_a_timeout() {
        let awaited = UploadRequests::default();
        assert!(awaited.pending_elsewhere(key(), server(1)).is_none());
        let (second, third) = (
            awaited.pending_elsewhere(key(), server(2)).unwrap(),
            awaited.pending_elsewhere(key(), server(3)).unwrap(),
        );
        let begin = Instant::now();
        tokio::join!(second.wait(), third.wait());
        assert_eq!(begin.elapsed().as_secs(), UPLOAD_TIMEOUT.as_secs());
        assert!(awaited.pending_elsewhere(key(), server(2)).is_none(), "this server is asked now");
        assert!(awaited.pending_elsewhere(key(), server(3)).is_some(), "the others wait for it");
    }

    #[tokio::test(start_paused = true)]
    async fn asking_again_does_not_extend_the_wait() {
        let awaited = UploadRequests::default();
        for _ in 0..4 {
            assert!(awaited.pending_elsewhere(key(), server(1)).is_none());
            assert!(awaited.pending_elsewhere(key(), server(2)).is_some());
            tokio::time::advance(UPLOAD_TIMEOUT / 4).await;
        }
        assert!(awaited.pending_elsewhere(key(), server(2)).is_none());
    }
}
