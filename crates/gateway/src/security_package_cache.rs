//! Caches which packages a security-only order includes, for servers with the same package set.
//! Read once per package set, and again when the feeds change what they state about it.
//!
//! A batch over a fleet sends its orders within seconds, and most servers share their package set
//! with many others. Without the cache, every order would read a package set and all of its
//! findings.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use domain::advisory::Ecosystem;
use store::servers::Server;
use store::{findings as known, servers as stored};
use tokio::sync::OnceCell;
use vocab::{Digest, OrgId, PackageName};

use crate::Gateway;
use crate::Refusal;
use crate::registry::{Session, lock};
use service::ServiceError;
use service::projections::findings;

/// The most package names in the cache, over all package sets: about 20 MB.
const NAMES_MAX: usize = 400_000;
/// The most package sets. Those without security updates have no names.
const KINDS_MAX: usize = 20_000;

/// The packages that a security-only order includes.
pub(super) type Names = Arc<[PackageName]>;

/// The key of servers with the same package set.
type Alike = (OrgId, Digest);

#[derive(Default)]
pub(super) struct Secured(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    kinds: BTreeMap<Alike, Known>,
    names: usize,
}

struct Known {
    /// The revision at which the findings of this package set last changed.
    changed: Option<i64>,
    /// The first request reads the names; concurrent ones wait for it.
    names: Arc<OnceCell<Names>>,
}

impl Secured {
    /// The names for a package set, from memory unless its findings have `changed` since.
    async fn of<E>(
        &self,
        alike: Alike,
        changed: Option<i64>,
        read: impl AsyncFnOnce() -> Result<Names, E>,
    ) -> Result<Names, E> {
        let cell = lock(&self.0).cell(alike, changed);
        let mut is_new = false;
        let names = cell
            .get_or_try_init(async || {
                is_new = true;
                read().await
            })
            .await?
            .clone();
        if is_new {
            lock(&self.0).weigh(names.len());
        }
        Ok(names)
    }
}

impl Shelf {
    fn cell(&mut self, alike: Alike, changed: Option<i64>) -> Arc<OnceCell<Names>> {
        match self.kinds.get(&alike) {
            Some(known) if known.changed == changed => return known.names.clone(),
            _ => {}
        }
        if self.kinds.len() >= KINDS_MAX {
            self.clear();
        }
        let names = Arc::<OnceCell<Names>>::default();
        self.kinds.insert(alike, Known { changed, names: names.clone() });
        names
    }

    /// Counts cached names. If there are too many, the cache is cleared; names are read again when
    /// needed.
    fn weigh(&mut self, names: usize) {
        self.names += names;
        if self.names > NAMES_MAX {
            self.clear();
        }
    }

    fn clear(&mut self) {
        *self = Shelf::default();
    }
}

/// The packages of a server with pending security updates, according to its package manager or the
/// feeds.
pub(super) async fn secured(app: &Gateway, link: &Session) -> Result<Names, Refusal> {
    let mut reader = app.db.snapshot().await?;
    let server = stored::get(&mut reader, link.org, link.server).await?;
    let Some(alike) = findings::alike_by(&server) else { return Ok(Names::default()) };
    let changed = match (server.package_set, Ecosystem::of(&server.os)) {
        (Some(set), Some(base)) => {
            known::changed(&mut reader, link.org, set, base.as_str()).await?
        }
        _ => None,
    };
    drop(reader);
    // Read after `changed`: the names may be newer than `changed` states, and are then read once
    // more, but they are never older.
    let read = async || names(app, &server).await;
    match app.registry().secured.of((link.org, alike), changed, read).await {
        Ok(names) => Ok(names),
        Err(ServiceError::Unavailable(error)) => Err(error.into()),
        // What the host itself classifies as security updates is installed anyway.
        Err(error) => {
            tracing::error!(server = %link.server, %error, "failed to read the security updates of a server");
            Ok(Names::default())
        }
    }
}

async fn names(app: &Gateway, server: &Server) -> Result<Names, ServiceError> {
    let mut reader = app.db.snapshot().await?;
    let pending = findings::pending(&mut reader, server).await?;
    let secured = pending.iter().filter(|update| update.security);
    Ok(secured.filter_map(|update| update.name.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn kind(nth: usize) -> Alike {
        let org = OrgId::new(jiff::Timestamp::UNIX_EPOCH, 1);
        (org, Digest::of(&nth.to_be_bytes()))
    }

    fn some(names: usize) -> Names {
        (0..names).map(|nth| format!("lib{nth}").parse().expect("a name")).collect()
    }

    #[tokio::test]
    async fn package_set_is_read_once_and_again_after_a_feed_change() {
        let (secured, reads) = (Secured::default(), AtomicUsize::new(0));
        let ask = async |changed| {
            let read = async || {
                reads.fetch_add(1, Ordering::Relaxed);
                // Concurrent requests wait.
                tokio::task::yield_now().await;
                Ok::<_, ()>(some(3))
            };
            secured.of(kind(1), changed, read).await
        };
        for (changed, read) in [(None, 1), (Some(1), 2), (Some(2), 3)] {
            let all = futures_util::future::join_all((0..200).map(|_| ask(changed))).await;
            assert!(all.iter().all(|names| *names == Ok(some(3))));
            assert_eq!(reads.load(Ordering::Relaxed), read);
        }
    }

    #[tokio::test]
    async fn failed_read_is_retried_by_the_next_request() {
        let secured = Secured::default();
        let cut = async || Err("no database");
        assert_eq!(secured.of(kind(1), None, cut).await, Err("no database"));
        assert_eq!(secured.of(kind(1), None, async || Ok::<_, &str>(some(1))).await, Ok(some(1)));
    }

    #[tokio::test]
    async fn number_of_package_sets_and_names_is_bounded() {
        let secured = Secured::default();
        for nth in 0..=KINDS_MAX {
            secured.of(kind(nth), None, async || Ok::<_, ()>(some(0))).await.expect("it is read");
        }
        assert_eq!(lock(&secured.0).kinds.len(), 1);
        let large = some(NAMES_MAX / 4);
        for nth in 0..5 {
            secured.of(kind(nth), None, async || Ok::<_, ()>(large.clone())).await.expect("read");
            assert!(lock(&secured.0).names <= NAMES_MAX);
        }
        assert!(lock(&secured.0).kinds.len() < 5);
    }
}
