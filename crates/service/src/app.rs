//! What every part of the service holds: the database, the clock, the secrets, the settings.

use async_recursion::async_recursion as boxed;
use std::sync::{Arc, OnceLock};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use vocab::ServerId;

use crate::auth::api_keys::KeyRing;
use crate::auth::oidc::{self, Provider};
use crate::clock::Clock;
use crate::condition::Condition;
use crate::secrets::Secrets;

/// What commands, queries and background work need. Cheap to clone. It knows none of those that use it.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    parts: Parts,
    keys: KeyRing,
    oidc: Option<Provider>,
    draining: watch::Sender<bool>,
    condition: Condition,
    contacts: OnceLock<Contacts>,
}

/// When this process last heard from a server, if it did.
pub type Contacts = Box<dyn Fn(ServerId) -> Option<Timestamp> + Send + Sync>;

/// What an [`App`] is made of.
pub struct Parts {
    /// Where everything is.
    pub db: store::Db,
    /// What time it is.
    pub clock: Clock,
    /// What is not in the database.
    pub secrets: Secrets,
    /// What an operator may set.
    pub settings: Settings,
}

/// What an operator may set, with its defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How often an agent syncs if there is nothing to say.
    pub sync_seconds: u32,
    /// After how many days without a scan a server counts as stale.
    pub stale_after_days: u32,
    /// Who this process is among replicas.
    pub replica: String,
    /// How many requests a key may send in a second, for long.
    pub requests_per_second: u32,
    /// How many requests a key may send at once.
    pub requests_burst: u32,
    /// The SHA-256 of the certificate that agents will see; `None` without TLS.
    pub certificate_sha256: Option<[u8; 32]>,
    /// Where people may sign in other than with a password.
    pub oidc: Option<oidc::Config>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sync_seconds: 60,
            stale_after_days: 7,
            replica: "main".into(),
            requests_per_second: 200,
            requests_burst: 2_000,
            certificate_sha256: None,
            oidc: None,
        }
    }
}

impl App {
    /// Puts the parts together.
    pub fn new(parts: Parts) -> App {
        let keys = KeyRing::new(&parts.db);
        let oidc = parts.settings.oidc.clone().map(Provider::new);
        let (draining, condition) = (watch::Sender::new(false), Condition::default());
        let contacts = OnceLock::new();
        App(Arc::new(Inner { parts, keys, oidc, draining, condition, contacts }))
    }

    /// Servers whose last scan is older than this are stale.
    pub fn stale_before(&self) -> Timestamp {
        let days = SignedDuration::from_hours(24 * i64::from(self.settings.stale_after_days));
        self.clock.now().saturating_sub(days).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// What this process remembers about its own condition.
    pub fn condition(&self) -> &Condition {
        &self.0.condition
    }

    /// Says who knows when this process last heard from a server. The first one counts.
    pub fn set_contacts(&self, contacts: Contacts) {
        let _ = self.0.contacts.set(contacts);
    }

    /// When this process last heard from a server. The database may learn of it a little later.
    pub fn last_contact(&self, server: ServerId) -> Option<Timestamp> {
        self.0.contacts.get().and_then(|contacts| contacts(server))
    }

    /// The API keys that this process has seen.
    pub fn keys(&self) -> &KeyRing {
        &self.0.keys
    }

    /// The identity provider that people may sign in with.
    pub fn oidc(&self) -> Option<&Provider> {
        self.0.oidc.as_ref()
    }

    /// Tells everyone who holds a request open to answer it now: the service is about to end.
    pub fn start_drain(&self) {
        self.0.draining.send_replace(true);
    }

    /// Whether the service is about to end.
    pub fn is_draining(&self) -> bool {
        *self.0.draining.borrow()
    }

    /// Returns when the service is about to end.
    #[boxed]
    pub async fn until_drain(&self) {
        let mut draining = self.0.draining.subscribe();
        // The sender lives as long as `self`.
        let _ = draining.wait_for(|draining| *draining).await;
    }
}

impl std::ops::Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0.parts
    }
}
