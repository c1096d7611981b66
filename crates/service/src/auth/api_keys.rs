//! API keys: how they are made, recognized and ended.
//!
//! A key is 32 random bytes and a tag that only this installation can make, so a made-up key is refused without
//! asking the database. The database has a hash of the random bytes; the key itself is told once and kept nowhere.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::api_keys::{self, ApiKey};
use store::{Bell, Db, Page, Topic, Tx};
use vocab::{Environment, KeyId, Role};

use crate::App;
use crate::auth::opaque_token;
use crate::clock::dice;
use crate::secrets::Secrets;
use crate::{Actor, FieldError, Result, ServiceError, audit};

const PREFIX: &str = "fmk_";
const PURPOSE: &str = "fleetmend api key v1";
const RANDOM_BYTES: usize = 32;
/// How long a key is believed without looking again. The bell comes first; this covers a bell that was lost.
const BELIEVED_FOR: SignedDuration = SignedDuration::from_millis(900);
/// More than this many keys at once is somebody trying them out.
const REMEMBERED_MAX: usize = 10_000;

/// A key as its owner holds it.
pub struct Secret {
    /// The text that is told once.
    pub text: String,
    /// What the database keeps of it.
    pub hash: Vec<u8>,
}

/// Makes a key.
pub fn mint(secrets: &Secrets) -> Secret {
    let (text, hash) = opaque_token::mint::<RANDOM_BYTES>(secrets, PURPOSE);
    Secret { text: format!("{PREFIX}{text}"), hash }
}

/// The hash of a key that this installation made, or nothing if it did not.
pub fn recognize(secrets: &Secrets, text: &str) -> Option<Vec<u8>> {
    opaque_token::recognize::<RANDOM_BYTES>(secrets, PURPOSE, text.strip_prefix(PREFIX)?)
}

/// Why a key does not let anyone in.
#[derive(Debug)]
pub enum Refused {
    /// There is no such key.
    Unknown,
    /// Its time is over.
    Expired,
    /// It was revoked.
    Revoked,
    /// The database does not answer.
    Service(ServiceError),
}

/// The keys that were seen lately, so that a request does not ask the database for its key.
pub struct KeyRing(Mutex<Ring>);

struct Ring {
    bell: Bell,
    known: HashMap<Vec<u8>, (ApiKey, Timestamp)>,
    /// Only keys that the database knows get in, and each pass of `note_uses` empties it.
    used: BTreeMap<KeyId, Timestamp>,
}

impl KeyRing {
    /// An empty one.
    pub fn new(db: &Db) -> KeyRing {
        KeyRing(Mutex::new(Ring {
            bell: db.bell(Topic::Credentials),
            known: HashMap::new(),
            used: BTreeMap::new(),
        }))
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key behind `text`, if it lets its bearer in at this moment.
    #[boxed]
    pub async fn admit(&self, app: &App, text: &str) -> Result<ApiKey, Refused> {
        let hash = recognize(&app.secrets, text).ok_or(Refused::Unknown)?;
        let now = app.clock.now();
        let key = match self.remembered(&hash, now) {
            Some(key) => key,
            None => self.look(app, &hash, now).await?,
        };
        if key.revoked_at.is_some() {
            return Err(Refused::Revoked);
        }
        if key.expires_at.is_some_and(|end| end <= now) {
            return Err(Refused::Expired);
        }
        self.ring().used.insert(key.id, now);
        Ok(key)
    }

    fn remembered(&self, hash: &[u8], now: Timestamp) -> Option<ApiKey> {
        let mut ring = self.ring();
        if ring.bell.has_rung() {
            ring.known.clear();
        }
        let (key, at) = ring.known.get(hash)?;
        (now.duration_since(*at).abs() < BELIEVED_FOR).then(|| key.clone())
    }

    async fn look(&self, app: &App, hash: &[u8], now: Timestamp) -> Result<ApiKey, Refused> {
        let found = async {
            let mut reader = app.db.read().await?;
            api_keys::by_hash(&mut reader, hash).await
        };
        let found = found.await.map_err(|error| Refused::Service(error.into()))?;
        let key = found.ok_or(Refused::Unknown)?;
        let mut ring = self.ring();
        // What was read before the bell rang may be old already: use it, do not remember it.
        if ring.bell.has_rung() {
            ring.known.clear();
        } else {
            if ring.known.len() >= REMEMBERED_MAX {
                ring.known.clear();
            }
            ring.known.insert(hash.to_vec(), (key.clone(), now));
        }
        Ok(key)
    }

    /// Writes down when keys were used since the last call.
    #[boxed]
    pub async fn note_uses(&self, db: &Db) -> Result<()> {
        let used = std::mem::take(&mut self.ring().used);
        if used.is_empty() {
            return Ok(());
        }
        let mut tx = db.begin().await?;
        api_keys::used(&mut tx, &used.into_iter().collect::<Vec<_>>()).await?;
        Ok(tx.commit().await?)
    }
}

/// A key to be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Where it may do it; `None`: everywhere.
    pub environments: Option<Vec<Environment>>,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
}

/// Makes a key. The text is in the answer and nowhere else.
#[boxed]
pub async fn create(app: &App, actor: &Actor, new: NewKey) -> Result<(ApiKey, String)> {
    let now = app.clock.now();
    if new.expires_at.is_some_and(|end| end <= now) {
        return Err(ServiceError::Invalid(vec![FieldError::new(
            "/expires_at",
            "in_the_past",
            "it is over already",
        )]));
    }
    let secret = mint(&app.secrets);
    let key = ApiKey {
        id: KeyId::new(now, dice()),
        org_id: actor.org,
        name: new.name,
        hash: secret.hash,
        role: new.role,
        environments: new.environments,
        created_at: now,
        created_by: actor.who.clone(),
        expires_at: new.expires_at,
        revoked_at: None,
        last_used_at: None,
        generation: 1,
    };
    let mut tx = app.db.begin().await?;
    api_keys::create(&mut tx, &key).await?;
    let detail = json!({"name": key.name, "role": key.role, "environments": key.environments,
        "expires_at": key.expires_at});
    audit::record(app, &mut tx, actor, "api_key.create", key.id, detail);
    audit::emit(app, &mut tx, actor, "api_key.created", json!({"api_key_id": key.id}));
    tx.commit().await?;
    Ok((key, secret.text))
}

/// Ends a key, for this and every other replica. To end one twice is no error.
#[boxed]
pub async fn revoke(app: &App, actor: &Actor, seen: &ApiKey) -> Result<()> {
    if seen.revoked_at.is_some() {
        return Ok(());
    }
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    if seen.role == Role::Admin && !another_admin(&mut tx, seen, now).await? {
        return Err(ServiceError::Conflict {
            code: "last_admin_key",
            detail: "this is the last key of an administrator; make another one first".into(),
        });
    }
    api_keys::revoke(&mut tx, seen, now).await?;
    audit::record(app, &mut tx, actor, "api_key.revoke", seen.id, json!({"name": seen.name}));
    audit::emit(app, &mut tx, actor, "api_key.revoked", json!({"api_key_id": seen.id}));
    tx.ring(Topic::Credentials);
    Ok(tx.commit().await?)
}

/// Whether somebody could still manage keys without this one.
async fn another_admin(tx: &mut Tx, without: &ApiKey, now: Timestamp) -> store::Result<bool> {
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
        let dir =
            std::env::temp_dir().join(format!("fleetmend_keys_{}_{}", std::process::id(), dice()));
        std::fs::create_dir_all(&dir).unwrap();
        let secrets = Secrets::create(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        secrets
    }

    #[test]
    fn a_key_is_recognized_by_the_installation_that_made_it_and_by_no_other() {
        let ours = secrets();
        let key = mint(&ours);
        assert_eq!(recognize(&ours, &key.text), Some(key.hash));
        assert_eq!(recognize(&secrets(), &key.text), None);
    }

    #[test]
    fn a_key_with_one_character_changed_is_not_recognized() {
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
