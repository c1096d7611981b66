//! API keys: create, verify and revoke.
//!
//! A key is 32 random bytes and a tag that only this installation can compute, so a made-up key is
//! refused without a database query. The database stores a hash of the random bytes; the key itself
//! is shown once and not stored.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::api_keys::{self, ApiKey};
use store::{Db, Page, Subscription, Topic, Tx};
use vocab::{Environment, KeyId, Role};

use crate::App;
use crate::audit::Action;
use crate::auth::opaque_token;
use crate::clock::random_u128;
use crate::secrets::Secrets;
use crate::{Actor, EventKind, FieldError, Result, ServiceError, audit};

const PREFIX: &str = "fmk_";
const PURPOSE: &str = "fleetmend api key v1";
const RANDOM_BYTES: usize = 32;
/// How long a cached key is used without checking the database. Changes arrive as notifications;
/// this limit covers a lost notification.
const CACHE_TTL: SignedDuration = SignedDuration::from_millis(900);
/// The maximum number of cached keys. More distinct keys than this indicate that someone is trying
/// keys.
const CACHED_KEYS_MAX: usize = 10_000;

/// A newly created key.
pub struct NewSecret {
    /// The text of the key, which is shown once.
    pub text: String,
    /// The hash that the database stores.
    pub hash: Vec<u8>,
}

pub fn mint(secrets: &Secrets) -> NewSecret {
    let (text, hash) = opaque_token::mint::<RANDOM_BYTES>(secrets, PURPOSE);
    NewSecret { text: format!("{PREFIX}{text}"), hash }
}

/// The hash of a key that this installation created; `None` for any other text.
pub fn recognize(secrets: &Secrets, text: &str) -> Option<Vec<u8>> {
    opaque_token::recognize::<RANDOM_BYTES>(secrets, PURPOSE, text.strip_prefix(PREFIX)?)
}

/// Why a key is rejected.
#[derive(Debug)]
pub enum KeyRejection {
    Unknown,
    Expired,
    Revoked,
    /// The database query failed.
    Service(ServiceError),
}

/// A cache of recently used keys, so that not every request queries the database for its key.
pub struct ApiKeyCache(Mutex<CacheState>);

struct CacheState {
    changes: Subscription,
    cached: HashMap<Vec<u8>, (ApiKey, Timestamp)>,
    /// Contains only keys that exist in the database. Each call of `flush_uses` empties it.
    used: BTreeMap<KeyId, Timestamp>,
}

impl ApiKeyCache {
    pub fn new(db: &Db) -> ApiKeyCache {
        ApiKeyCache(Mutex::new(CacheState {
            changes: db.subscribe(Topic::Credentials),
            cached: HashMap::new(),
            used: BTreeMap::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key with this text, if it is valid now.
    #[boxed]
    pub async fn authenticate(&self, app: &App, text: &str) -> Result<ApiKey, KeyRejection> {
        let hash = recognize(&app.secrets, text).ok_or(KeyRejection::Unknown)?;
        let now = app.clock.now();
        let key = match self.cached(&hash, now) {
            Some(key) => key,
            None => self.load(app, &hash, now).await?,
        };
        if key.revoked_at.is_some() {
            return Err(KeyRejection::Revoked);
        }
        if key.expires_at.is_some_and(|end| end <= now) {
            return Err(KeyRejection::Expired);
        }
        self.lock().used.insert(key.id, now);
        Ok(key)
    }

    fn cached(&self, hash: &[u8], now: Timestamp) -> Option<ApiKey> {
        let mut cache = self.lock();
        if cache.changes.take_notified() {
            cache.cached.clear();
        }
        let (key, at) = cache.cached.get(hash)?;
        (now.duration_since(*at).abs() < CACHE_TTL).then(|| key.clone())
    }

    async fn load(&self, app: &App, hash: &[u8], now: Timestamp) -> Result<ApiKey, KeyRejection> {
        let found = async {
            let mut reader = app.db.read().await?;
            api_keys::by_hash(&mut reader, hash).await
        };
        let found = found.await.map_err(|error| KeyRejection::Service(error.into()))?;
        let key = found.ok_or(KeyRejection::Unknown)?;
        let mut cache = self.lock();
        // A key read before the notification may be outdated: use it, but do not cache it.
        if cache.changes.take_notified() {
            cache.cached.clear();
        } else {
            if cache.cached.len() >= CACHED_KEYS_MAX {
                cache.cached.clear();
            }
            cache.cached.insert(hash.to_vec(), (key.clone(), now));
        }
        Ok(key)
    }

    /// Stores when keys were used since the last call.
    #[boxed]
    pub async fn flush_uses(&self, db: &Db) -> Result<()> {
        let used = std::mem::take(&mut self.lock().used);
        if used.is_empty() {
            return Ok(());
        }
        let mut tx = db.begin().await?;
        api_keys::record_uses(&mut tx, &used.into_iter().collect::<Vec<_>>()).await?;
        Ok(tx.commit().await?)
    }
}

/// An API key to create.
#[derive(Debug, Clone)]
pub struct NewKey {
    pub name: String,
    pub role: Role,
    /// The environments it is limited to; `None` means all.
    pub environments: Option<Vec<Environment>>,
    pub expires_at: Option<Timestamp>,
}

/// Creates a key. The returned text is not stored anywhere.
#[boxed]
pub async fn create(app: &App, actor: &Actor, new: NewKey) -> Result<(ApiKey, String)> {
    let now = app.clock.now();
    if new.expires_at.is_some_and(|end| end <= now) {
        return Err(ServiceError::Invalid(vec![FieldError::new(
            "/expires_at",
            "in_the_past",
            "must be in the future",
        )]));
    }
    let secret = mint(&app.secrets);
    let key = ApiKey {
        id: KeyId::new(now, random_u128()),
        org_id: actor.org,
        name: new.name,
        hash: secret.hash,
        role: new.role,
        environments: new.environments,
        created_at: now,
        created_by: actor.id.clone(),
        expires_at: new.expires_at,
        revoked_at: None,
        last_used_at: None,
        generation: 1,
    };
    let mut tx = app.db.begin().await?;
    api_keys::create(&mut tx, &key).await?;
    let detail = json!({"name": key.name, "role": key.role, "environments": key.environments,
        "expires_at": key.expires_at});
    audit::record(app, &mut tx, actor, Action::ApiKeyCreate, key.id, detail);
    audit::emit(
        app,
        &mut tx,
        actor,
        EventKind::ApiKeyCreated,
        key.id,
        json!({"api_key_id": key.id}),
    );
    tx.commit().await?;
    Ok((key, secret.text))
}

/// Revokes a key, on this and every other replica. Revoking a revoked key is not an error.
#[boxed]
pub async fn revoke(app: &App, actor: &Actor, seen: &ApiKey) -> Result<()> {
    if seen.revoked_at.is_some() {
        return Ok(());
    }
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    if seen.role == Role::Admin && !has_another_admin(&mut tx, seen, now).await? {
        return Err(ServiceError::Conflict {
            code: "last_admin_key",
            detail: "this is the last admin key; create another one first".into(),
        });
    }
    api_keys::revoke(&mut tx, seen, now).await?;
    audit::record(app, &mut tx, actor, Action::ApiKeyRevoke, seen.id, json!({"name": seen.name}));
    audit::emit(
        app,
        &mut tx,
        actor,
        EventKind::ApiKeyRevoked,
        seen.id,
        json!({"api_key_id": seen.id}),
    );
    tx.notify(Topic::Credentials);
    Ok(tx.commit().await?)
}

/// Whether keys can still be managed without this one: by another valid admin key, which must have
/// no environment limit if this one has none.
async fn has_another_admin(tx: &mut Tx, without: &ApiKey, now: Timestamp) -> store::Result<bool> {
    let limit = 500;
    for offset in (0..).step_by(limit as usize) {
        let keys = api_keys::list(tx, without.org_id, Page { limit, offset }).await?.items;
        let stands_in = |key: &ApiKey| {
            key.id != without.id
                && key.role == Role::Admin
                && key.revoked_at.is_none()
                && key.expires_at.is_none_or(|end| end > now)
                && (key.environments.is_none() || without.environments.is_some())
        };
        if keys.iter().any(stands_in) {
            return Ok(true);
        }
        if keys.len() < limit as usize {
            break;
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        let dir = std::env::temp_dir().join(format!(
            "fleetmend_keys_{}_{}",
            std::process::id(),
            random_u128()
        ));
        std::fs::create_dir_all(&dir).unwrap();
        let secrets = Secrets::create(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        secrets
    }

    #[test]
    fn key_is_recognized_only_by_its_own_installation() {
        let ours = secrets();
        let key = mint(&ours);
        assert_eq!(recognize(&ours, &key.text), Some(key.hash));
        assert_eq!(recognize(&secrets(), &key.text), None);
    }

    #[test]
    fn key_with_one_changed_character_is_not_recognized() {
        let ours = secrets();
        let text = mint(&ours).text;
        for place in PREFIX.len()..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(recognize(&ours, &changed), None, "{changed}");
        }
        for bad in ["", "fmk_", "fmk_AAAA", "Bearer", &text[..50], &text.replace("fmk", "fme")] {
            assert_eq!(recognize(&ours, bad), None, "{bad}");
        }
    }
}
