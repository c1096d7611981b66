//! Notifications between tasks and replicas.
//!
//! A notification carries only a topic. It says that something changed, never what: the listener
//! reads the database. On PostgreSQL, `notify` in the writing transaction reaches the other
//! replicas. Notifications are lost while a listener's connection is down, so it notifies every
//! topic when it reconnects, and every listener must also poll now and then.
//!
//! The listener's connection also shows the other replicas that this process is alive: see
//! [`Holder`].

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
        /// What a bell rings for.
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
    /// A rollout or one of its targets.
    Rollouts = "rollouts",
    /// A schedule, or a run of one.
    Schedules = "schedules",
    /// A server, or what is known of its packages.
    Servers = "servers",
    /// An event was written.
    Events = "events",
    /// Keys, tokens, organizations: what a cache of credentials must forget.
    Credentials = "credentials",
    /// Someone who was away is heard from, or went away.
    Presence = "presence",
    /// Somebody wants to know now what lies on a server.
    Refreshes = "refreshes",
    /// What is published about flaws, or was decided of them.
    Feeds = "feeds",
    /// Which flaws servers have.
    Findings = "findings",
}

/// One listener's end. Rings that come while nobody waits are one ring.
#[derive(Debug, Clone)]
pub struct Bell(watch::Receiver<u64>);

impl Bell {
    /// Returns when the bell has rung since the last call; never, once the database was dropped.
    #[boxed]
    pub async fn rung(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether it has rung since it was last waited for or asked.
    pub fn has_rung(&mut self) -> bool {
        let rung = self.0.has_changed().unwrap_or(false);
        self.0.mark_unchanged();
        rung
    }
}

/// The ropes of all bells.
#[derive(Debug, Clone)]
pub(crate) struct Bells(Vec<watch::Sender<u64>>);

impl Bells {
    pub(crate) fn new() -> Self {
        Self(Topic::ALL.iter().map(|_| watch::Sender::new(0)).collect())
    }

    pub(crate) fn listen(&self, topic: Topic) -> Bell {
        Bell(self.0[topic as usize].subscribe())
    }

    pub(crate) fn ring(&self, topic: Topic) {
        self.0[topic as usize].send_modify(|rings| *rings = rings.wrapping_add(1));
    }

    fn ring_word(&self, word: &str) {
        // A word that we do not know is a newer replica's: ring everything rather than miss it.
        match Topic::ALL.iter().find(|topic| topic.word() == word) {
            Some(topic) => self.ring(*topic),
            None => self.ring_all(),
        }
    }

    fn ring_all(&self) {
        Topic::ALL.iter().for_each(|topic| self.ring(*topic));
    }
}

/// The number of an advisory lock that the listener's connection holds for as long as it stands. When
/// a process dies, PostgreSQL frees the lock at once, and whoever can take it knows that the process is gone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holder(Arc<AtomicI64>);

impl Holder {
    pub(crate) fn number(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes a lock with a new number: the old connection may not have ended yet for PostgreSQL.
    async fn lock(&self, listener: &mut PgListener) -> sqlx::Result<()> {
        const DRAW: &str = "select hashtextextended(gen_random_uuid()::text, 0)";
        let number: i64 = sqlx::query_scalar(DRAW).fetch_one(&mut *listener).await?;
        sqlx::query("select pg_advisory_lock($1)").bind(number).execute(listener).await?;
        self.0.store(number, Ordering::Relaxed);
        Ok(())
    }
}

/// Rings the topics of a transaction at its commit, in every replica.
pub(crate) const NOTIFY: &str = "select pg_notify('fleetmend', $1)";

/// Listens for the other replicas. The connection stands when this returns; the task keeps it up.
pub(crate) async fn follow(
    options: PgConnectOptions,
    bells: Bells,
    holder: Holder,
) -> sqlx::Result<tokio::task::JoinHandle<()>> {
    let first = connect(&options, &holder).await?;
    Ok(tokio::spawn(async move {
        let mut listener = Some(first);
        loop {
            if let Some(connected) = &mut listener {
                hear(connected, &bells, &holder).await;
            }
            listener = match connect(&options, &holder).await {
                Ok(again) => Some(again),
                Err(_) => {
                    tokio::time::sleep(RECONNECT_AFTER).await;
                    None
                }
            };
            if listener.is_some() {
                bells.ring_all();
            }
        }
    }))
}

async fn connect(options: &PgConnectOptions, holder: &Holder) -> sqlx::Result<PgListener> {
    // A pool of its own, so that the listener does not sit on one of the working connections.
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    holder.lock(&mut listener).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Until the connection is beyond repair.
async fn hear(listener: &mut PgListener, bells: &Bells, holder: &Holder) {
    while let Ok(heard) = listener.try_recv().await {
        match heard {
            Some(notification) => bells.ring_word(notification.payload()),
            // The connection was lost and is back: what was said in between is lost too.
            None => {
                bells.ring_all();
                if holder.lock(listener).await.is_err() {
                    return;
                }
            }
        }
    }
}
