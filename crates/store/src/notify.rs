//! Notifications between tasks and replicas.
//!
//! A notification carries only a topic: the listener reads the database to see what changed. On
//! PostgreSQL, `notify` in the writing transaction reaches the other replicas. Notifications are
//! lost while a listener's connection is down, so the listener notifies every topic when it
//! reconnects, and every subscriber must also poll from time to time.
//!
//! The listener's connection also shows the other replicas that this process is alive: see
//! [`LivenessLock`].

use async_recursion::async_recursion as boxed;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::watch;

const CHANNEL: &str = "fleetmend";
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

macro_rules! topics {
    ($($(#[$doc:meta])* $topic:ident = $word:literal,)*) => {
        /// What a subscriber is notified of.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Topic {
            $($(#[$doc])* $topic,)*
        }

        impl Topic {
            const ALL: &'static [Topic] = &[$(Topic::$topic,)*];

            pub(crate) fn word(self) -> &'static str {
                match self {
                    $(Topic::$topic => $word,)*
                }
            }
        }
    };
}

topics! {
    /// A rollout or one of its tasks changed.
    Rollouts = "rollouts",
    /// A schedule or one of its runs changed.
    Schedules = "schedules",
    /// A freeze changed.
    Freezes = "freezes",
    /// A server or its inventory changed.
    Servers = "servers",
    /// A policy changed.
    Policies = "policies",
    /// An event was written.
    Events = "events",
    /// Keys, tokens or organizations changed: caches of credentials must be invalidated.
    Credentials = "credentials",
    /// A server went online or offline.
    Presence = "presence",
    /// A user requested a scan of a server.
    Refreshes = "refreshes",
    /// Advisories or suppressions changed.
    Feeds = "feeds",
    /// A webhook was changed, or a delivery is due.
    Webhooks = "webhooks",
    /// The findings of an organization changed.
    Findings = "findings",
}

/// A subscription to one topic. Several notifications between two waits count as one.
#[derive(Debug, Clone)]
pub struct Subscription(watch::Receiver<u64>);

impl Subscription {
    /// Waits for a notification since the last call. Never returns once the database was dropped.
    #[boxed]
    pub async fn notified(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether there was a notification since the last call of this function or of
    /// [`Subscription::notified`].
    pub fn take_notified(&mut self) -> bool {
        let rung = self.0.has_changed().unwrap_or(false);
        self.0.mark_unchanged();
        rung
    }
}

/// The sending side of all subscriptions.
#[derive(Debug, Clone)]
pub(crate) struct Notifier(Vec<watch::Sender<u64>>);

impl Notifier {
    pub(crate) fn new() -> Self {
        Self(Topic::ALL.iter().map(|_| watch::Sender::new(0)).collect())
    }

    pub(crate) fn subscribe(&self, topic: Topic) -> Subscription {
        Subscription(self.0[topic as usize].subscribe())
    }

    pub(crate) fn notify(&self, topic: Topic) {
        self.0[topic as usize].send_modify(|rings| *rings = rings.wrapping_add(1));
    }

    fn notify_by_name(&self, word: &str) {
        // An unknown name comes from a newer replica: notify every topic rather than miss a change.
        match Topic::ALL.iter().find(|topic| topic.word() == word) {
            Some(topic) => self.notify(*topic),
            None => self.notify_all(),
        }
    }

    fn notify_all(&self) {
        Topic::ALL.iter().for_each(|topic| self.notify(*topic));
    }
}

/// The key of an advisory lock that the listener's connection holds while it is open. When a
/// process dies, PostgreSQL releases the lock immediately: another replica that can take the lock
/// knows that the process is gone.
#[derive(Debug, Clone, Default)]
pub(crate) struct LivenessLock(Arc<AtomicI64>);

impl LivenessLock {
    pub(crate) fn key(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes a lock with a new key: PostgreSQL may not have closed the old connection yet.
    async fn lock(&self, listener: &mut PgListener) -> sqlx::Result<()> {
        const RANDOM_KEY: &str = "select hashtextextended(gen_random_uuid()::text, 0)";
        let number: i64 = sqlx::query_scalar(RANDOM_KEY).fetch_one(&mut *listener).await?;
        sqlx::query("select pg_advisory_lock($1)").bind(number).execute(listener).await?;
        self.0.store(number, Ordering::Relaxed);
        Ok(())
    }
}

/// Notifies every replica of a topic when the transaction commits.
pub(crate) const NOTIFY: &str = "select pg_notify('fleetmend', $1)";

/// Listens for notifications of the other replicas. The connection is open when this returns; the
/// task reconnects when it is lost.
pub(crate) async fn spawn_listener(
    options: PgConnectOptions,
    notifier: Notifier,
    lock: LivenessLock,
) -> sqlx::Result<tokio::task::JoinHandle<()>> {
    let first = connect(&options, &lock).await?;
    Ok(tokio::spawn(async move {
        let mut listener = Some(first);
        loop {
            if let Some(connected) = &mut listener {
                forward_notifications(connected, &notifier, &lock).await;
            }
            listener = match connect(&options, &lock).await {
                Ok(again) => Some(again),
                Err(_) => {
                    tokio::time::sleep(RECONNECT_AFTER).await;
                    None
                }
            };
            if listener.is_some() {
                notifier.notify_all();
            }
        }
    }))
}

async fn connect(options: &PgConnectOptions, lock: &LivenessLock) -> sqlx::Result<PgListener> {
    // A separate pool, so that the listener does not occupy one of the working connections.
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    lock.lock(&mut listener).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Forwards notifications until the connection cannot be restored.
async fn forward_notifications(
    listener: &mut PgListener,
    notifier: &Notifier,
    lock: &LivenessLock,
) {
    while let Ok(heard) = listener.try_recv().await {
        match heard {
            Some(notification) => notifier.notify_by_name(notification.payload()),
            // The connection was lost and restored: notifications in between were lost.
            None => {
                notifier.notify_all();
                if lock.lock(listener).await.is_err() {
                    return;
                }
            }
        }
    }
}
