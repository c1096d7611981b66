//! The sessions of the agents that talk to this process.
//!
//! A session is created at a server's first contact and stays in memory. [`crate::dispatcher`]
//! updates it when its server is removed or quarantined. So a sync without new content needs no
//! database access.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use domain::server::Presence;
use jiff::Timestamp;
use store::package_sets::SetKind;
use store::presence::{self, Contact};
use store::presence_transitions::BlockedServer;
use store::sync_sessions::{self, SyncSession};
use store::{Topic, servers};
use tokio::sync::{Notify, Semaphore, watch};
use vocab::{Digest, OrgId, ServerId, TaskId};
use wire::agent::SyncRequest;
use wire::v1::Activity;

use crate::Gateway;
use crate::Refusal;
use crate::credentials::Credential;
use crate::health_watches::HealthWatchList;
use crate::ingest::{PackageSetCounts, WriteBatcher};
use crate::limits::AgentLimits;
use crate::outbox::Outbox;
use crate::security_package_cache::SecurityPackageCache;
use crate::sync::quarantine;
use crate::upload_singleflight::UploadRequests;
use service::secrets::{RootKeyAge, Secrets};

/// Maximum number of package sets whose counts are cached: more than a large fleet has.
const CACHED_COUNTS_MAX: usize = 20_000;

/// How many recent syncs a session remembers to recognize replays: about an hour for an idle agent.
const RECENT_SYNCS_MAX: usize = 64;
/// Size of a counter epoch. An agent's counter moves to the next epoch only when its server is
/// released from quarantine.
const EPOCH: u64 = presence::EPOCH.unsigned_abs();
/// How many different bodies one sync may have. An agent that retries a sync may add new content.
const REPEATED_BODIES_MAX: usize = 16;
/// The length of a counter and a nonce in [`SyncSession::recent`].
const PAIR_BYTES: usize = 16;

/// Concurrent database lookups for agents at their first contact. Must be less than the number of
/// connections that `store::Options` opens.
const FIRST_CONTACTS_MAX: usize = 3;

/// The sessions and shared state of the gateway.
pub(crate) struct Registry {
    /// Contains only servers that exist in the database, so its size is limited by the fleet.
    sessions: RwLock<BTreeMap<ServerId, Arc<Session>>>,
    /// The latest heartbeat of each server that is not written yet.
    heartbeats: Mutex<BTreeMap<ServerId, Contact>>,
    /// Notified when an offline agent comes back, so that its heartbeat is written immediately.
    pub returned: Notify,
    /// Limits the lookups of agents that this process does not know yet. After a restart the whole
    /// fleet connects at once, and must leave database connections for other requests.
    first_contacts: Semaphore,
    drain: watch::Sender<bool>,
    /// Cached counts of package sets. Thousands of servers have the same ones.
    counts: Mutex<BTreeMap<(OrgId, SetKind, Digest), PackageSetCounts>>,
    pub(super) upload_requests: UploadRequests,
    pub(super) limits: AgentLimits,
    pub(super) outbox: Outbox,
    pub(super) health_watches: HealthWatchList,
    pub(super) write_batcher: WriteBatcher,
    pub(super) security_packages: SecurityPackageCache,
}

/// One server's session with this process.
pub(super) struct Session {
    pub(super) server: ServerId,
    pub(super) org: OrgId,
    /// Notified when there may be something to send.
    pub(super) wake: Notify,
    /// Allows one upload at a time.
    pub(super) upload: Semaphore,
    state: Mutex<SessionState>,
}

struct SessionState {
    access: AccessState,
    /// The counter that the next sync should carry.
    expected: u64,
    /// The nonce of the last sync, if this process received it.
    nonce: Option<u64>,
    /// The digests of the bodies of the latest sync and its retries, newest last.
    bodies: Vec<Digest>,
    /// The counters and nonces of the recent syncs, latest first. A pair that is received again was
    /// late or replayed; another nonce for the same counter means another host.
    recent: VecDeque<(u64, u64)>,
    /// Whether this replica owns the session ([`sync_sessions`]). Always true without replicas.
    owned: bool,
    last_seen: Option<Timestamp>,
    /// Whether to request the agent's facts again.
    wants_facts: bool,
    stored: StoredState,
    /// The sync whose report led to `stored`.
    stored_by: SyncOrder,
    /// The latest sync with a report to write. Until it is written, `stored` is not what the
    /// database will contain.
    reported_by: SyncOrder,
    /// The messages that were sent with a response.
    sent: Vec<Message>,
    /// The number of the latest sync; older syncs are no longer held open. Never 0, which is
    /// the number of ignored syncs.
    sync_number: u64,
    /// How many times the latest sync was repeated.
    repeat: u32,
    /// The number of the sync to which messages were last sent.
    sent_in_sync: u64,
    /// The root key of the agent's identity, once that is recorded in the database.
    recorded_root_key: Option<RootKeyAge>,
    /// Whether a new tag was sent to the agent.
    tag_offered: bool,
}

/// A message to an agent: execute this order, drop it, or report on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Execute(TaskId),
    Withdraw(TaskId),
    Report(TaskId),
}

/// Whether a server gets orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessState {
    /// No restriction.
    None,
    /// No orders until an administrator releases the server.
    Quarantine,
    /// No orders ever again.
    Removed,
}

/// The stored state of a server that a sync may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredState {
    pub(super) package_set: Option<Digest>,
    pub(super) update_set: Option<Digest>,
    pub(super) scanned_at: Option<Timestamp>,
    pub(super) activity: String,
}

impl StoredState {
    /// The activity that the agent last reported.
    pub(super) fn activity(&self) -> Activity {
        let all = [Activity::Scanning, Activity::Patching, Activity::Rebooting];
        all.into_iter().find(|one| activity_name(*one) == self.activity).unwrap_or(Activity::Idle)
    }

    /// Whether the sync contains nothing new.
    pub(super) fn has_nothing_new(&self, sync: &SyncRequest) -> bool {
        let unchanged =
            |word: Option<Digest>, known: Option<Digest>| word.is_none() || word == known;
        unchanged(sync.installed, self.package_set)
            && unchanged(sync.pending, self.update_set)
            && (sync.scanned_at.is_none() || sync.scanned_at == self.scanned_at)
            && activity_name(sync.activity) == self.activity
            && sync.facts.is_none()
            && sync.results.is_empty()
            && sync.progress.is_empty()
            && sync.health.is_none()
    }
}

pub(super) fn activity_name(activity: Activity) -> &'static str {
    match activity {
        Activity::Idle => "idle",
        Activity::Scanning => "scanning",
        Activity::Patching => "patching",
        Activity::Rebooting => "rebooting",
    }
}

/// How a sync's counter compares with the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CounterCheck {
    /// The expected counter.
    Next,
    /// The previous counter again: the response was lost.
    Repeated,
    /// Higher than expected: the database was restored, or another replica received some syncs.
    Ahead,
    /// Lower than expected: the agent abandoned the sync and later ones overtook it, it was
    /// captured, or a clone of the host sent it. The response contains the counter with which a
    /// live host can continue; nothing else happens.
    Behind,
    /// A second host uses this identity: it answered a challenge, or used another nonce for a
    /// counter that was already received.
    CloneDetected,
}

/// Distinguishes a clone of a host from a captured request.
///
/// Both have an old counter. The response to such a sync requests a counter that cannot be guessed;
/// only a host that holds the key of the identity can sign a sync with it. The counter is derived,
/// so that every replica recognizes it, and changes every hour, so that it cannot be captured for
/// later.
///
/// When a server is released from quarantine, its counters continue in the next [epoch](EPOCH).
/// Requests that were captured before are then behind, and challenges of an earlier epoch are no
/// longer valid.
pub(super) struct Challenge<'a> {
    secrets: &'a Secrets,
    server: ServerId,
    hour: i64,
}

impl Challenge<'_> {
    /// Counters from here on are challenges. No agent reaches this value by counting.
    const LEAST: u64 = 1 << 61;

    pub(super) fn new(secrets: &Secrets, server: ServerId, now: Timestamp) -> Challenge<'_> {
        Challenge { secrets, server, hour: now.as_second().div_euclid(3600) }
    }

    fn counter(&self, epoch: u64) -> u64 {
        self.counter_at(epoch, self.hour)
    }

    /// Whether this counter is the challenge of this hour or of the previous one.
    fn is_met_by(&self, counter: u64, epoch: u64) -> bool {
        [self.hour, self.hour - 1].iter().any(|hour| self.counter_at(epoch, *hour) == counter)
    }

    fn counter_at(&self, epoch: u64, hour: i64) -> u64 {
        let server = self.server.to_string();
        let parts = [server.as_bytes(), &epoch.to_be_bytes(), &hour.to_be_bytes()];
        let tag = self.secrets.tag("fleetmend sync challenge v1", &parts);
        let number = tag.iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        Self::LEAST | (number & (Self::LEAST - 1))
    }
}

/// The position of a sync among those of its server.
pub(super) struct SyncPosition {
    pub(super) count: CounterCheck,
    pub(super) next_counter: u64,
    number: u64,
    repeat: u32,
    /// Whether it proves that the host is alive. The same bytes again may come from anyone.
    pub(super) is_sign_of_life: bool,
}

/// The order in which the syncs of a server were accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SyncOrder {
    number: u64,
    repeat: u32,
}

impl SyncPosition {
    pub(super) fn order(&self) -> SyncOrder {
        SyncOrder { number: self.number, repeat: self.repeat }
    }
}

impl Session {
    fn new(server: &servers::Server, access: AccessState) -> Session {
        let known = StoredState {
            package_set: server.package_set,
            update_set: server.update_set,
            scanned_at: server.last_scan_at,
            activity: server.activity.clone(),
        };
        Session {
            server: server.id,
            org: server.org_id,
            wake: Notify::new(),
            upload: Semaphore::new(1),
            state: Mutex::new(SessionState {
                access,
                expected: server.counter.unsigned_abs(),
                nonce: None,
                bodies: Vec::new(),
                recent: VecDeque::new(),
                owned: false,
                last_seen: None,
                wants_facts: false,
                stored: known,
                stored_by: SyncOrder::default(),
                reported_by: SyncOrder::default(),
                sent: Vec::new(),
                sync_number: 1,
                repeat: 0,
                sent_in_sync: 0,
                recorded_root_key: None,
                tag_offered: false,
            }),
        }
    }

    fn removed(server: ServerId, org: OrgId) -> Session {
        let known = StoredState {
            package_set: None,
            update_set: None,
            scanned_at: None,
            activity: String::new(),
        };
        let state = SessionState {
            access: AccessState::Removed,
            expected: 0,
            nonce: None,
            bodies: Vec::new(),
            recent: VecDeque::new(),
            owned: false,
            last_seen: None,
            wants_facts: false,
            stored: known,
            stored_by: SyncOrder::default(),
            reported_by: SyncOrder::default(),
            sent: Vec::new(),
            sync_number: 1,
            repeat: 0,
            sent_in_sync: 0,
            recorded_root_key: None,
            tag_offered: false,
        };
        Session {
            server,
            org,
            wake: Notify::new(),
            upload: Semaphore::new(1),
            state: Mutex::new(state),
        }
    }

    /// Processes a sync's counter. In quarantine, the server and its clone both continue their own
    /// counters.
    pub(super) fn accept_counter(
        &self,
        counter: u64,
        nonce: u64,
        body: Digest,
        challenge: &Challenge<'_>,
    ) -> SyncPosition {
        let mut state = self.state();
        let number = state.sync_number + 1;
        let expected = state.expected;
        let ignored = |next_counter| SyncPosition {
            count: CounterCheck::Behind,
            next_counter,
            number: 0,
            repeat: 0,
            is_sign_of_life: false,
        };
        let taken = |count, next_counter| SyncPosition {
            count,
            next_counter,
            number,
            repeat: 0,
            is_sign_of_life: true,
        };
        if state.access == AccessState::Quarantine {
            // A clone that answered its challenge continues with the regular counter.
            let next_counter = match counter {
                Challenge::LEAST.. => expected,
                _ => counter.saturating_add(1),
            };
            if state.recent.contains(&(counter, nonce)) {
                return ignored(next_counter);
            }
            state.sync_number = number;
            return taken(CounterCheck::Next, next_counter);
        }
        let (epoch, is_first_of_epoch) = (expected / EPOCH, expected.is_multiple_of(EPOCH));
        let same_nonce = state.nonce.is_none_or(|last| last == nonce);
        let count = match counter {
            Challenge::LEAST.. if challenge.is_met_by(counter, epoch) => {
                CounterCheck::CloneDetected
            }
            Challenge::LEAST.. => CounterCheck::Behind,
            _ if counter == expected => CounterCheck::Next,
            _ if counter.checked_add(1) == Some(expected) && same_nonce => CounterCheck::Repeated,
            _ if counter > expected => CounterCheck::Ahead,
            _ if state.recent.iter().any(|entry| entry.0 == counter && entry.1 != nonce) => {
                CounterCheck::CloneDetected
            }
            _ => CounterCheck::Behind,
        };
        match count {
            CounterCheck::Next | CounterCheck::Ahead => {
                state.expected = counter.saturating_add(1);
                state.nonce = Some(nonce);
                state.recent.push_front((counter, nonce));
                state.recent.truncate(RECENT_SYNCS_MAX);
                state.bodies = vec![body];
            }
            CounterCheck::Repeated => {
                let is_last = state.bodies.last() == Some(&body);
                // The agent has sent something newer since.
                if !is_last
                    && (state.bodies.contains(&body) || state.bodies.len() >= REPEATED_BODIES_MAX)
                {
                    return ignored(expected);
                }
                if !is_last {
                    state.bodies.push(body);
                }
                // Keep the number: a request that has been waiting since the first time still gets
                // the response. The retry may come from an attacker.
                state.repeat = state.repeat.saturating_add(1);
                return SyncPosition {
                    count,
                    next_counter: expected,
                    number: state.sync_number,
                    repeat: state.repeat,
                    is_sign_of_life: !is_last,
                };
            }
            // After a release, the host that sends the first counter of the new epoch is the
            // server.
            CounterCheck::Behind if is_first_of_epoch && counter < expected => {
                return ignored(expected);
            }
            // A genuine agent has moved on and does not read this response.
            CounterCheck::Behind => return ignored(challenge.counter(epoch)),
            CounterCheck::CloneDetected => {}
        }
        (state.sync_number, state.repeat) = (number, 0);
        taken(count, state.expected)
    }

    pub(super) fn recorded_root_key(&self) -> Option<RootKeyAge> {
        self.state().recorded_root_key
    }

    pub(super) fn record_root_key(&self, age: RootKeyAge) {
        self.state().recorded_root_key = Some(age);
    }

    /// Whether a new tag is offered for the first time.
    pub(super) fn offer_tag(&self) -> bool {
        !std::mem::replace(&mut self.state().tag_offered, true)
    }

    pub(super) fn access(&self) -> AccessState {
        self.state().access
    }

    /// Changes the access state and wakes the held syncs.
    pub(super) fn set_access(&self, access: AccessState) {
        let mut state = self.state();
        if state.access == access {
            return;
        }
        if state.access == AccessState::Quarantine {
            // The held syncs may come from the server or from its clone.
            state.sync_number += 1;
        }
        state.access = access;
        drop(state);
        self.wake.notify_waiters();
    }

    /// Whether this replica must claim the session before it can check a counter. In quarantine,
    /// counters are not checked.
    fn needs_claim(&self) -> bool {
        let state = self.state();
        !state.owned && state.access == AccessState::None
    }

    /// The session for the database, if this replica owns it.
    fn stored_session(&self) -> Option<(ServerId, i64, Vec<u8>)> {
        let state = self.state();
        if !state.owned || state.access != AccessState::None {
            return None;
        }
        let counter = i64::try_from(state.expected).unwrap_or(i64::MAX);
        Some((self.server, counter, to_bytes(&state.recent)))
    }

    /// Another replica claimed the session. What it wrote may be older than what this replica
    /// knows, if it received a captured request. So the agent's facts are requested again.
    fn release_session(&self) {
        let mut state = self.state();
        state.owned = false;
        state.wants_facts = true;
    }

    /// Whether to request the agent's facts again. Returns true once.
    pub(super) fn take_facts_request(&self) -> bool {
        std::mem::take(&mut self.state().wants_facts)
    }

    /// Whether this replica and another one received different nonces for one counter, which means
    /// two hosts. An agent keeps its nonce until a sync is answered, so it never uses two for one
    /// counter.
    fn conflicting_counter(&self, heard_elsewhere: &[u8]) -> Option<u64> {
        first_conflict(&self.state().recent, &from_bytes(heard_elsewhere))
    }

    fn recent_bytes(&self) -> Vec<u8> {
        to_bytes(&self.state().recent)
    }

    /// Continues the session of another replica. The stored counter may be too low, if that replica
    /// died before it wrote it; a genuine agent's counter is never below the stored one.
    fn take_over(&self, session: &SyncSession) {
        self.merge_recent(&session.recent);
        let mut state = self.state();
        state.expected = state.expected.max(session.counter.unsigned_abs());
        let last = state.expected.checked_sub(1);
        let of_last = state.recent.iter().find(|(counter, _)| Some(*counter) == last);
        state.nonce = of_last.map(|(_, nonce)| *nonce);
        state.owned = true;
    }

    /// Merges the syncs that another replica received, so that they are not new here if they are
    /// sent again.
    fn merge_recent(&self, heard_elsewhere: &[u8]) {
        let mut state = self.state();
        let known: BTreeSet<_> = state.recent.iter().copied().collect();
        let theirs = from_bytes(heard_elsewhere);
        let more = theirs.iter().filter(|pair| !known.contains(pair));
        let mut heard: Vec<_> = known.iter().chain(more).copied().collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        heard.truncate(RECENT_SYNCS_MAX);
        if let Some((counter, nonce)) = heard.first().filter(|(last, _)| *last >= state.expected) {
            state.expected = counter.saturating_add(1);
            state.nonce = Some(*nonce);
        }
        state.recent = heard.into();
    }

    pub(super) fn stored(&self) -> StoredState {
        self.state().stored.clone()
    }

    /// Records that the report of a sync is about to be written.
    pub(super) fn begin_report(&self, order: SyncOrder) {
        let mut state = self.state();
        state.reported_by = state.reported_by.max(order);
    }

    /// Records what the report of a sync has written. Requests may learn of their writes in another
    /// order than that of their syncs.
    pub(super) fn set_stored(&self, stored: StoredState, order: SyncOrder) {
        let mut state = self.state();
        if order >= state.stored_by {
            (state.stored, state.stored_by) = (stored, order);
        }
    }

    /// Whether the sync contains nothing that has to be written. The report of an abandoned sync may
    /// still be written; then a later one counts even if it only repeats what was stored before.
    pub(super) fn has_nothing_new(&self, sync: &SyncRequest) -> bool {
        let state = self.state();
        state.reported_by <= state.stored_by && state.stored.has_nothing_new(sync)
    }

    /// Whether this sync is the latest one. If an agent repeats a sync, both the first request and
    /// the last retry get the response. In quarantine, every sync counts as the latest:
    /// otherwise the server and its clone would displace each other and reconnect endlessly.
    pub(super) fn is_latest(&self, position: &SyncPosition) -> bool {
        let state = self.state();
        let is_held = position.repeat == 0 || position.repeat == state.repeat;
        (state.sync_number == position.number && is_held) || state.access == AccessState::Quarantine
    }

    /// Records what is sent with the response to a sync.
    pub(super) fn record_sent(&self, position: &SyncPosition, messages: Vec<Message>) {
        let mut state = self.state();
        state.sent = messages;
        state.sent_in_sync = position.number;
    }

    /// Whether to respond immediately because of this message. A message that was sent before is
    /// repeated in every later response, but only retries of the sync that first received it get
    /// an immediate response.
    pub(super) fn is_unsent(&self, position: &SyncPosition, message: Message) -> bool {
        let state = self.state();
        state.sent_in_sync == position.number || !state.sent.contains(&message)
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        lock(&self.state)
    }
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry {
            sessions: RwLock::default(),
            heartbeats: Mutex::default(),
            returned: Notify::new(),
            first_contacts: Semaphore::new(FIRST_CONTACTS_MAX),
            drain: watch::Sender::new(false),
            counts: Mutex::default(),
            upload_requests: UploadRequests::default(),
            limits: AgentLimits::new(),
            outbox: Outbox::default(),
            health_watches: HealthWatchList::default(),
            write_batcher: WriteBatcher::default(),
            security_packages: SecurityPackageCache::default(),
        }
    }

    /// Responds to every held sync, because this process is shutting down.
    pub(crate) fn drain(&self) {
        self.drain.send_replace(true);
    }

    pub(super) fn draining(&self) -> watch::Receiver<bool> {
        self.drain.subscribe()
    }

    /// When this process last heard from a server.
    pub(crate) fn last_seen(&self, server: ServerId) -> Option<Timestamp> {
        let session = self.find_session(server)?;
        session.state().last_seen
    }

    pub(super) fn find_session(&self, server: ServerId) -> Option<Arc<Session>> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).get(&server).cloned()
    }

    /// The number of agents that this process has a session of.
    pub(super) fn session_count(&self) -> usize {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The session for a credential. Reads the database at the first contact only.
    pub(super) async fn session(
        &self,
        app: &Gateway,
        credential: &Credential,
    ) -> Result<Arc<Session>, Refusal> {
        let session = match self.find_session(credential.server) {
            Some(agent_session) => agent_session,
            None => self.first_contact(app, credential).await?,
        };
        match session.access() {
            AccessState::Removed => Err(Refusal::removed()),
            AccessState::None | AccessState::Quarantine => Ok(session),
        }
    }

    async fn first_contact(
        &self,
        app: &Gateway,
        credential: &Credential,
    ) -> Result<Arc<Session>, Refusal> {
        let _turn = self.first_contacts.acquire().await.map_err(|_| Refusal::unavailable())?;
        let mut reader = app.db.read().await?;
        let identity = servers::identity(&mut reader, credential.server).await?;
        // The tag is genuine, so the server was enrolled once. The database was restored from an
        // older backup.
        let Some(identity) = identity.filter(|known| known.public_key == credential.key) else {
            tracing::warn!(server = %credential.server, "an enrolled server is not in this database; it must enroll again");
            let detail = "this server is no longer known; enroll it again";
            return Err(Refusal::new(
                axum::http::StatusCode::UNAUTHORIZED,
                "unknown_server",
                detail,
            ));
        };
        let session = if identity.removed_at.is_some() {
            Session::removed(identity.id, identity.org_id)
        } else {
            let row = servers::get(&mut reader, identity.org_id, identity.id).await?;
            let access =
                if row.quarantine.is_some() { AccessState::Quarantine } else { AccessState::None };
            Session::new(&row, access)
        };
        let mut links = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        Ok(links.entry(credential.server).or_insert_with(|| Arc::new(session)).clone())
    }

    /// Records a heartbeat. It is written later, together with others.
    pub(super) fn record_heartbeat(
        &self,
        app: &Gateway,
        agent_session: &Session,
        counter: u64,
        now: Timestamp,
    ) {
        let beat = Contact {
            org: agent_session.org,
            server_id: agent_session.server,
            seen_at: now,
            counter: i64::try_from(counter).unwrap_or(i64::MAX),
        };
        let last_seen = agent_session.state().last_seen.replace(now);
        lock(&self.heartbeats).insert(agent_session.server, beat);
        let sync_seconds = app.settings.sync_seconds;
        if !(Presence { last_seen, sync_seconds }.is_online(now)) {
            self.returned.notify_one();
        }
    }

    /// Makes sure that this replica owns the session, so that it can check counters. Returns the
    /// counter for which two hosts were detected, if any.
    ///
    /// While an agent stays with one replica, that replica claims the session once and then counts
    /// in memory.
    pub(super) async fn claim(
        &self,
        app: &Gateway,
        agent_session: &Session,
    ) -> Result<Option<u64>, Refusal> {
        if !has_replicas(app) || !agent_session.needs_claim() {
            return Ok(None);
        }
        let counter = i64::try_from(agent_session.state().expected).unwrap_or(i64::MAX);
        let _turn = self.first_contacts.acquire().await.map_err(|_| Refusal::unavailable())?;
        let mut tx = app.db.begin().await?;
        let replica = &app.settings.replica;
        let session = sync_sessions::claim(&mut tx, agent_session.server, replica, counter).await?;
        tx.commit().await?;
        let twice = agent_session
            .conflicting_counter(&session.recent)
            .or_else(|| agent_session.conflicting_counter(&session.contested));
        agent_session.take_over(&session);
        Ok(twice)
    }

    /// Writes the heartbeats since the last call.
    pub(crate) async fn write_heartbeats(
        &self,
        app: &Gateway,
        someone_returned: bool,
    ) -> store::Result<()> {
        // Heartbeats are kept until they are committed, so that an aborted write loses none.
        let contacts: Vec<Contact> = lock(&self.heartbeats).values().copied().collect();
        if contacts.is_empty() {
            return Ok(());
        }
        let sessions: Vec<_> = match has_replicas(app) {
            true => contacts
                .iter()
                .filter_map(|beat| self.find_session(beat.server_id)?.stored_session())
                .collect(),
            false => Vec::new(),
        };
        let written = async {
            let mut tx = app.db.begin().await?;
            presence::record_contacts(&mut tx, &contacts, app.clock.now()).await?;
            let kept = sync_sessions::write(&mut tx, &app.settings.replica, &sessions).await?;
            if someone_returned {
                tx.notify(Topic::Presence);
            }
            tx.commit().await?;
            Ok::<_, store::StoreError>(kept)
        };
        let kept = written.await?;
        for (server, ..) in &sessions {
            let Some(agent_session) = self.find_session(*server) else { continue };
            let twice = match kept.get(server) {
                Some(contested) => agent_session.conflicting_counter(contested).or_else(|| {
                    agent_session.merge_recent(contested);
                    None
                }),
                None => session_conflict(app, &agent_session).await?,
            };
            if let Some(counter) = twice
                && quarantine(app, &agent_session, clone_reason(counter)).await.is_err()
            {
                tracing::error!(server = %server, "failed to quarantine a server with a clone");
            }
        }
        let mut waiting = lock(&self.heartbeats);
        for beat in contacts {
            if waiting.get(&beat.server_id) == Some(&beat) {
                waiting.remove(&beat.server_id);
            }
        }
        Ok(())
    }

    pub(super) fn cached_counts(
        &self,
        org: OrgId,
        kind: SetKind,
        digest: Digest,
    ) -> Option<PackageSetCounts> {
        lock(&self.counts).get(&(org, kind, digest)).copied()
    }

    pub(super) fn cache_counts(&self, org: OrgId, kind: SetKind, counted: PackageSetCounts) {
        let mut counts = lock(&self.counts);
        if counts.len() >= CACHED_COUNTS_MAX {
            counts.clear();
        }
        counts.insert((org, kind, counted.digest), counted);
    }

    pub(super) fn clear_counts(&self) {
        lock(&self.counts).clear();
    }

    /// Applies the removed and quarantined servers from the database.
    pub(super) fn set_access_states(&self, blocked: &[BlockedServer]) {
        let bars: BTreeMap<_, _> = blocked
            .iter()
            .map(|server| match server.removed_at {
                Some(_) => (server.id, AccessState::Removed),
                None => (server.id, AccessState::Quarantine),
            })
            .collect();
        let mut released = Vec::new();
        let links = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        for (server, link) in links.iter() {
            let was = link.access();
            let now = bars.get(server).copied().unwrap_or(AccessState::None);
            link.set_access(now);
            if was == AccessState::Quarantine && now == AccessState::None {
                released.push(*server);
            }
        }
        drop(links);
        if released.is_empty() {
            return;
        }
        // After a release, the database determines how the counters continue.
        let mut links = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        for server in released {
            links.remove(&server);
        }
    }
}

/// Another replica claimed a session while this one received syncs, too. Returns the counter for
/// which each received a different nonce, if any: then there are two hosts.
async fn session_conflict(app: &Gateway, agent_session: &Session) -> store::Result<Option<u64>> {
    agent_session.release_session();
    let mut tx = app.db.begin().await?;
    let session =
        sync_sessions::contest(&mut tx, agent_session.server, agent_session.recent_bytes()).await?;
    tx.commit().await?;
    Ok(session.and_then(|session| agent_session.conflicting_counter(&session.recent)))
}

/// SQLite is used by one process only.
fn has_replicas(app: &Gateway) -> bool {
    app.db.engine() != "sqlite"
}

/// The quarantine reason when two replicas detected a clone.
pub(super) fn clone_reason(counter: u64) -> String {
    format!(
        "Two hosts use the identity of this server: both sent counter {counter}, to different \
         replicas. One of them is a clone or a restored snapshot."
    )
}

/// The first counter with different nonces.
fn first_conflict(ours: &VecDeque<(u64, u64)>, theirs: &[(u64, u64)]) -> Option<u64> {
    let ours: BTreeMap<_, _> = ours.iter().copied().collect();
    let differs = |(counter, nonce): &&(u64, u64)| ours.get(counter).is_some_and(|n| n != nonce);
    theirs.iter().filter(differs).map(|(counter, _)| *counter).min()
}

fn to_bytes(recent: &VecDeque<(u64, u64)>) -> Vec<u8> {
    let pair =
        |(counter, nonce): &(u64, u64)| [counter.to_be_bytes(), nonce.to_be_bytes()].concat();
    recent.iter().flat_map(pair).collect()
}

fn from_bytes(bytes: &[u8]) -> Vec<(u64, u64)> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    let pair = |pair: &[u8]| (number(&pair[..8]), number(&pair[8..]));
    bytes.chunks_exact(PAIR_BYTES).take(RECENT_SYNCS_MAX).map(pair).collect()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
