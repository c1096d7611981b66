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

/// Maximum number of package names in the cache, over all package sets: about 20 MB.
const NAMES_MAX: usize = 400_000;
/// Maximum number of package sets. Those without security updates have no names.
const PACKAGE_SETS_MAX: usize = 20_000;

/// The packages that a security-only order includes.
pub(super) type PackageNames = Arc<[PackageName]>;

/// The key of servers with the same package set.
type PackageSetKey = (OrgId, Digest);

#[derive(Default)]
pub(super) struct SecurityPackageCache(Mutex<CacheState>);

#[derive(Default)]
struct CacheState {
    package_sets: BTreeMap<PackageSetKey, CacheEntry>,
    names: usize,
}

struct CacheEntry {
    /// The revision at which the findings of this package set last changed.
    changed: Option<i64>,
    /// The first request reads the names; concurrent ones wait for it.
    names: Arc<OnceCell<PackageNames>>,
}

impl SecurityPackageCache {
    /// Returns the cached package names for a package set. Reads them again if the cached entry has
    /// another `changed` revision.
    async fn get_or_read<E>(
        &self,
        key: PackageSetKey,
        changed: Option<i64>,
        read: impl AsyncFnOnce() -> Result<PackageNames, E>,
    ) -> Result<PackageNames, E> {
        let cell = lock(&self.0).cell(key, changed);
        let mut is_new = false;
        let names = cell
            .get_or_try_init(async || {
                is_new = true;
                read().await
            })
            .await?
            .clone();
        if is_new {
            lock(&self.0).add_names(names.len());
        }
        Ok(names)
    }
}

impl CacheState {
    fn cell(&mut self, key: PackageSetKey, changed: Option<i64>) -> Arc<OnceCell<PackageNames>> {
        match self.package_sets.get(&key) {
            Some(known) if known.changed == changed => return known.names.clone(),
            _ => {}
        }
        if self.package_sets.len() >= PACKAGE_SETS_MAX {
            self.clear();
        }
        let names = Arc::<OnceCell<PackageNames>>::default();
        self.package_sets.insert(key, CacheEntry { changed, names: names.clone() });
        names
    }

    /// Counts cached names. If there are too many, the cache is cleared; names are read again when
    /// needed.
    fn add_names(&mut self, names: usize) {
        self.names += names;
        if self.names > NAMES_MAX {
            self.clear();
        }
    }

    fn clear(&mut self) {
        *self = CacheState::default();
    }
}

/// The packages of a server with pending security updates, according to its package manager or the
/// feeds.
pub(super) async fn security_packages(
    app: &Gateway,
    session: &Session,
) -> Result<PackageNames, Refusal> {
    let mut reader = app.db.snapshot().await?;
    let server = stored::get(&mut reader, session.org, session.server).await?;
    let Some(count_key) = findings::count_key(&server) else { return Ok(PackageNames::default()) };
    let changed = match (server.package_set, Ecosystem::for_os(&server.os)) {
        (Some(set), Some(base)) => {
            known::last_changed(&mut reader, session.org, set, base.as_str()).await?
        }
        _ => None,
    };
    drop(reader);
    // Read after `changed`: the names may be newer than `changed` states, and are then read once
    // more, but they are never older.
    let read = async || read_names(app, &server).await;
    match app
        .registry()
        .security_packages
        .get_or_read((session.org, count_key), changed, read)
        .await
    {
        Ok(names) => Ok(names),
        Err(ServiceError::Unavailable(error)) => Err(error.into()),
        // What the host itself classifies as security updates is installed anyway.
        Err(error) => {
            tracing::error!(server = %session.server, %error, "failed to read the security updates of a server");
            Ok(PackageNames::default())
        }
    }
}

async fn read_names(app: &Gateway, server: &Server) -> Result<PackageNames, ServiceError> {
    let mut reader = app.db.snapshot().await?;
    let pending = findings::pending_updates(&mut reader, server).await?;
    let secured = pending.iter().filter(|update| update.security);
    Ok(secured.filter_map(|update| update.name.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn kind(nth: usize) -> PackageSetKey {
        let org = OrgId::new(jiff::Timestamp::UNIX_EPOCH, 1);
        (org, Digest::compute(&nth.to_be_bytes()))
    }

    fn package_names(names: usize) -> PackageNames {
        (0..names).map(|nth| format!("lib{nth}").parse().expect("a name")).collect()
    }

    #[tokio::test]
    async fn package_set_is_read_once_and_again_after_a_feed_change() {
        let (secured, reads) = (SecurityPackageCache::default(), AtomicUsize::new(0));
        let ask = async |changed| {
            let read = async || {
                reads.fetch_add(1, Ordering::Relaxed);
                // Concurrent requests wait.
                tokio::task::yield_now().await;
                Ok::<_, ()>(package_names(3))
            };
            secured.get_or_read(kind(1), changed, read).await
        };
        for (changed, read) in [(None, 1), (Some(1), 2), (Some(2), 3)] {
            let all = futures_util::future::join_all((0..200).map(|_| ask(changed))).await;
            assert!(all.iter().all(|names| *names == Ok(package_names(3))));
            assert_eq!(reads.load(Ordering::Relaxed), read);
        }
    }

    #[tokio::test]
    async fn failed_read_is_retried_by_the_next_request() {
        let secured = SecurityPackageCache::default();
        let cut = async || Err("no database");
        assert_eq!(secured.get_or_read(kind(1), None, cut).await, Err("no database"));
        assert_eq!(
            secured.get_or_read(kind(1), None, async || Ok::<_, &str>(package_names(1))).await,
            Ok(package_names(1))
        );
    }

    #[tokio::test]
    async fn number_of_package_sets_and_names_is_bounded() {
        let secured = SecurityPackageCache::default();
        for nth in 0..=PACKAGE_SETS_MAX {
            secured
                .get_or_read(kind(nth), None, async || Ok::<_, ()>(package_names(0)))
                .await
                .expect("it is read");
        }
        assert_eq!(lock(&secured.0).package_sets.len(), 1);
        let large = package_names(NAMES_MAX / 4);
        for nth in 0..5 {
            secured
                .get_or_read(kind(nth), None, async || Ok::<_, ()>(large.clone()))
                .await
                .expect("read");
            assert!(lock(&secured.0).names <= NAMES_MAX);
        }
        assert!(lock(&secured.0).package_sets.len() < 5);
    }
}
