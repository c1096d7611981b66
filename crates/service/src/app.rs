//! The shared state of the service: the database, the clock, the secrets and the settings.

use async_recursion::async_recursion as boxed;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use vocab::ServerId;

use crate::agent_releases::AgentReleases;
use crate::auth::api_keys::ApiKeyCache;
use crate::auth::oidc::{self, Provider};
use crate::clock::Clock;
use crate::health::ProcessHealth;
use crate::mail::MailSettings;
use crate::secrets::Secrets;

/// What commands, queries and background tasks need. Cheap to clone. It does not depend on its
/// users.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    parts: AppParts,
    keys: ApiKeyCache,
    oidc: Option<Provider>,
    draining: watch::Sender<bool>,
    health: ProcessHealth,
    contacts: OnceLock<LastContactFn>,
    certificate: RwLock<CertificateHashes>,
}

/// What tokens and the install command contain about the certificate.
#[derive(Debug, Clone, Copy)]
struct CertificateHashes {
    sha256: Option<[u8; 32]>,
    untrusted_public_key: Option<[u8; 32]>,
}

/// Returns the time at which a server last contacted this process, if it did.
pub type LastContactFn = Box<dyn Fn(ServerId) -> Option<Timestamp> + Send + Sync>;

pub struct AppParts {
    pub db: store::Db,
    pub clock: Clock,
    /// The keys that are not stored in the database.
    pub secrets: Secrets,
    pub settings: Settings,
}

/// The settings of the service, with their defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The interval at which an idle agent syncs.
    pub sync_seconds: u32,
    /// The number of days without an inventory after which a server counts as stale.
    pub stale_after_days: u32,
    /// The name of this process among the replicas.
    pub replica: String,
    /// The sustained request rate limit of an API key.
    pub requests_per_second: u32,
    /// The burst limit of an API key.
    pub requests_burst: u32,
    /// The SHA-256 of the certificate that agents see when the service starts; `None` without TLS.
    pub certificate_sha256: Option<[u8; 32]>,
    /// The SHA-256 of the public key in the service's certificate, if this machine does not trust
    /// the certificate: curl can verify the service by it.
    pub untrusted_public_key: Option<[u8; 32]>,
    /// The agents that servers can install from this service.
    pub agents: AgentReleases,
    /// The identity provider with which users may sign in.
    pub oidc: Option<oidc::Config>,
    pub feeds: FeedSettings,
    /// The address at which people reach the dashboard, without a slash at the end. For links in
    /// events and messages.
    pub public_url: Option<String>,
    /// How email is sent; `None` if it is not. Links in messages need the public URL.
    pub mail: Option<MailSettings>,
    /// Whether webhooks may send to this host and to link-local addresses.
    pub webhook_allow_local: bool,
    /// The directory with the files of this process, such as the anchor of the audit log.
    pub data_dir: Option<PathBuf>,
}

/// How the service gets vulnerability feeds.
#[derive(Debug, Clone, Default)]
pub struct FeedSettings {
    pub mode: FeedMode,
    /// Whether the service never fetches a feed.
    pub offline: bool,
    /// The URL of a mirror of the built-in feeds.
    pub mirror: Option<String>,
}

/// Whether the service follows built-in feeds on its own. The binaries choose `Auto`; here the
/// default is the mode that makes no requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FeedMode {
    /// It follows the built-in feeds that its servers need.
    Auto,
    /// It updates the feeds that operators added.
    #[default]
    Manual,
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
            untrusted_public_key: None,
            agents: AgentReleases::default(),
            oidc: None,
            feeds: FeedSettings::default(),
            public_url: None,
            mail: None,
            webhook_allow_local: false,
            data_dir: None,
        }
    }
}

impl App {
    pub fn new(parts: AppParts) -> App {
        let keys = ApiKeyCache::new(&parts.db);
        let oidc = parts.settings.oidc.clone().map(Provider::new);
        let (draining, condition) = (watch::Sender::new(false), ProcessHealth::default());
        let contacts = OnceLock::new();
        let certificate = RwLock::new(CertificateHashes {
            sha256: parts.settings.certificate_sha256,
            untrusted_public_key: parts.settings.untrusted_public_key,
        });
        let health = condition;
        App(Arc::new(Inner { parts, keys, oidc, draining, health, contacts, certificate }))
    }

    /// The address of a page of the dashboard; only the path if the public URL is not set.
    pub fn page_url(&self, path: &str) -> String {
        format!("{}{path}", self.settings.public_url.as_deref().unwrap_or_default())
    }

    /// Servers whose last inventory is older than this are stale.
    pub fn stale_before(&self) -> Timestamp {
        let days = SignedDuration::from_hours(24 * i64::from(self.settings.stale_after_days));
        self.clock.now().saturating_sub(days).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// What this process knows about its own health.
    pub fn condition(&self) -> &ProcessHealth {
        &self.0.health
    }

    /// Sets the function that knows when this process last heard from a server. Only the first call
    /// has an effect.
    pub fn set_contacts(&self, last_contact: LastContactFn) {
        let _ = self.0.contacts.set(last_contact);
    }

    /// When this process last heard from a server. The database is updated a little later.
    pub fn last_contact(&self, server: ServerId) -> Option<Timestamp> {
        self.0.contacts.get().and_then(|contacts| contacts(server))
    }

    /// The SHA-256 of the certificate that agents see now; `None` without TLS.
    pub fn certificate_sha256(&self) -> Option<[u8; 32]> {
        self.certificate().sha256
    }

    /// The SHA-256 of the public key in the certificate, if this machine does not trust it.
    pub fn untrusted_public_key(&self) -> Option<[u8; 32]> {
        self.certificate().untrusted_public_key
    }

    fn certificate(&self) -> CertificateHashes {
        *self.0.certificate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the certificate was replaced while the service runs.
    pub fn set_certificate(&self, sha256: [u8; 32], untrusted_public_key: Option<[u8; 32]>) {
        let mut current = self.0.certificate.write().unwrap_or_else(PoisonError::into_inner);
        *current = CertificateHashes { sha256: Some(sha256), untrusted_public_key };
    }

    /// The cache of API keys.
    pub fn api_keys(&self) -> &ApiKeyCache {
        &self.0.keys
    }

    /// The identity provider with which users may sign in.
    pub fn oidc(&self) -> Option<&Provider> {
        self.0.oidc.as_ref()
    }

    /// Tells long-lived requests to finish now, because the service is about to stop.
    pub fn start_drain(&self) {
        self.0.draining.send_replace(true);
    }

    pub fn is_draining(&self) -> bool {
        *self.0.draining.borrow()
    }

    /// Waits until the service is about to stop.
    #[boxed]
    pub async fn until_drain(&self) {
        let mut draining = self.0.draining.subscribe();
        // The sender lives as long as `self`.
        let _ = draining.wait_for(|draining| *draining).await;
    }
}

impl std::ops::Deref for App {
    type Target = AppParts;
    fn deref(&self) -> &AppParts {
        &self.0.parts
    }
}
