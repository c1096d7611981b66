//! Who talks to this process, and what was last said.
//!
//! A link is made at a server's first contact and stays in memory; [`crate::dispatcher`] tells it when
//! its server was removed or put into quarantine. So a sync with nothing new needs no database.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use domain::server::Presence;
use jiff::Timestamp;
use store::absences::Barred;
use store::listings::Kind;
use store::presence::{self, Beat};
use store::sync_sessions::{self, SyncSession};
use store::{Topic, servers};
use tokio::sync::{Notify, Semaphore, watch};
use vocab::{Digest, OrgId, ServerId, TaskId};
use wire::agent::SyncRequest;
use wire::v1::Activity;

use crate::Gateway;
use crate::Refusal;
use crate::credentials::Credential;
use crate::ingest::{Counted, WriteBatcher};
use crate::limits::AgentLimits;
use crate::outbox::Desk;
use crate::security_package_cache::Secured;
use crate::sync::quarantine;
use crate::upload_singleflight::Awaited;
use service::secrets::{Age, Secrets};

/// How many lists are remembered: more kinds of servers than a large fleet has.
const COUNTS_MAX: usize = 20_000;

/// How many syncs back a repetition is recognized: about an hour of an idle agent.
const HEARD: usize = 64;
/// Counters of an agent are in one epoch until its server is released from quarantine.
const EPOCH: u64 = presence::EPOCH.unsigned_abs();
/// How many repetitions of one sync may differ from each other: an agent repeats one when it has news.
const BODIES: usize = 16;
/// The length of a counter and a nonce in [`SyncSession::recent`].
const PAIR_BYTES: usize = 16;

/// The number of agents that are asked for in the database at the same time, at their first contact. Fewer than
/// the connections that `store::Options` opens.
const FIRST_CONTACTS: usize = 3;

/// What this process knows of the agents that talk to it.
pub(crate) struct Registry {
    /// Only servers that the database knows get in, so it is as large as the fleet.
    links: RwLock<BTreeMap<ServerId, Arc<Session>>>,
    /// The last sign of life of each server that is not written down yet.
    beats: Mutex<BTreeMap<ServerId, Beat>>,
    /// Someone is back who was away: worth writing down at once.
    pub returned: Notify,
    /// Agents that this process does not know yet read and claim by turns: after a restart the whole fleet
    /// comes at once, and must leave connections to the database for everyone else.
    first_contacts: Semaphore,
    drain: watch::Sender<bool>,
    /// The numbers of lists that this process has looked at: thousands of servers carry the same.
    counts: Mutex<BTreeMap<(OrgId, Kind, Digest), Counted>>,
    pub(super) awaited: Awaited,
    pub(super) limits: AgentLimits,
    pub(super) desk: Desk,
    pub(super) press: WriteBatcher,
    pub(super) secured: Secured,
}

/// One server's link to this process.
pub(super) struct Session {
    pub(super) server: ServerId,
    pub(super) org: OrgId,
    /// Rings when there may be something to say.
    pub(super) wake: Notify,
    /// One upload at a time.
    pub(super) upload: Semaphore,
    standing: Mutex<Standing>,
}

struct Standing {
    bar: AccessState,
    /// The counter that the next sync should carry.
    expected: u64,
    /// The nonce of the last sync, if this process heard it.
    nonce: Option<u64>,
    /// The bodies of the latest sync and its repetitions, by digest, the latest last.
    bodies: Vec<Digest>,
    /// The counters and nonces of the last syncs, the latest first: one of them that comes again
    /// was late or was replayed, and another nonce for a counter is another host.
    heard: VecDeque<(u64, u64)>,
    /// Whether this replica owns the session ([`sync_sessions`]). Without replicas it always does.
    owned: bool,
    last_seen: Option<Timestamp>,
    /// Whether the agent is to send its facts again.
    wants_facts: bool,
    known: Known,
    /// Orders and withdrawals that went out with an answer.
    handed: Vec<Message>,
    /// Which sync is the latest; an older one that is still held open need not be any longer. Never 0, which is the
    /// number of syncs that get nothing.
    turn: u64,
    /// How often the latest one was repeated.
    repeat: u32,
    /// The sync that orders and withdrawals last went out to.
    handed_in: u64,
    /// Which root key its identity was made with, once that is in the database.
    noted_age: Option<Age>,
    /// Whether an answer brought it a new tag.
    tag_offered: bool,
}

/// Something that an agent is told: carry out this order, drop it, or report about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Do(TaskId),
    Drop(TaskId),
    Report(TaskId),
}

/// Whether a server gets orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessState {
    /// It does.
    None,
    /// Not until a person decides.
    Quarantine,
    /// Never again.
    Removed,
}

/// What is written down of a server that a sync may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) package_set: Option<Digest>,
    pub(super) update_set: Option<Digest>,
    pub(super) scanned_at: Option<Timestamp>,
    pub(super) activity: String,
}

impl Known {
    /// What the agent last said that it does.
    pub(super) fn activity(&self) -> Activity {
        let all = [Activity::Scanning, Activity::Patching, Activity::Rebooting];
        all.into_iter().find(|one| activity_word(*one) == self.activity).unwrap_or(Activity::Idle)
    }

    /// Whether the sync says anything that is not written down.
    pub(super) fn is_old_news(&self, sync: &SyncRequest) -> bool {
        let told = |word: Option<Digest>, known: Option<Digest>| word.is_none() || word == known;
        told(sync.installed, self.package_set)
            && told(sync.pending, self.update_set)
            && (sync.scanned_at.is_none() || sync.scanned_at == self.scanned_at)
            && activity_word(sync.activity) == self.activity
            && sync.facts.is_none()
            && sync.results.is_empty()
            && sync.progress.is_empty()
    }
}

pub(super) fn activity_word(activity: Activity) -> &'static str {
    match activity {
        Activity::Idle => "idle",
        Activity::Scanning => "scanning",
        Activity::Patching => "patching",
        Activity::Rebooting => "rebooting",
    }
}

/// What a sync's counter tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// The next one, as expected.
    Next,
    /// The same once more: its answer was lost.
    Again,
    /// We have forgotten some: the control plane was restored, or another replica heard them.
    Ahead,
    /// Behind: an agent let go of it and later ones overtook it, or it was captured, or a copy of the host sent
    /// it. The answer says with which counter a live host may go on, and nothing else happens.
    Behind,
    /// A second host holds this identity: it met a challenge, or used another nonce for a counter that was heard.
    Copy,
}

/// Tells a copy of a host from a captured request.
///
/// Both are behind in their counters. The answer to such a sync asks for a counter that nobody can
/// guess; only a host that has the key of the identity can sign a sync that carries it. The counter is derived,
/// so that every replica recognizes it, and changes every hour, so that it cannot be captured for later.
///
/// When a server is released from quarantine, its counters continue in the next [epoch](EPOCH). What was captured
/// before is behind then, and a challenge that was met in an earlier epoch is none.
pub(super) struct Challenge<'a> {
    secrets: &'a Secrets,
    server: ServerId,
    hour: i64,
}

impl Challenge<'_> {
    /// Counters from here on are challenges. No agent gets here by counting.
    const LEAST: u64 = 1 << 61;

    pub(super) fn new(secrets: &Secrets, server: ServerId, now: Timestamp) -> Challenge<'_> {
        Challenge { secrets, server, hour: now.as_second().div_euclid(3600) }
    }

    fn counter(&self, epoch: u64) -> u64 {
        self.of(epoch, self.hour)
    }

    /// Whether this counter is the one of this hour, or of the hour before.
    fn is_met_by(&self, counter: u64, epoch: u64) -> bool {
        [self.hour, self.hour - 1].iter().any(|hour| self.of(epoch, *hour) == counter)
    }

    fn of(&self, epoch: u64, hour: i64) -> u64 {
        let server = self.server.to_string();
        let parts = [server.as_bytes(), &epoch.to_be_bytes(), &hour.to_be_bytes()];
        let tag = self.secrets.tag("fleetmend sync challenge v1", &parts);
        let number = tag.iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        Self::LEAST | (number & (Self::LEAST - 1))
    }
}

/// A sync's place among those of its server.
pub(super) struct Turn {
    pub(super) count: Count,
    pub(super) next_counter: u64,
    number: u64,
    repeat: u32,
    /// Whether it shows that the host lives. The same bytes once more may come from anyone.
    pub(super) is_sign_of_life: bool,
}

impl Session {
    fn new(server: &servers::Server, bar: AccessState) -> Session {
        let known = Known {
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
            standing: Mutex::new(Standing {
                bar,
                expected: server.counter.unsigned_abs(),
                nonce: None,
                bodies: Vec::new(),
                heard: VecDeque::new(),
                owned: false,
                last_seen: None,
                wants_facts: false,
                known,
                handed: Vec::new(),
                turn: 1,
                repeat: 0,
                handed_in: 0,
                noted_age: None,
                tag_offered: false,
            }),
        }
    }

    fn removed(server: ServerId, org: OrgId) -> Session {
        let known = Known {
            package_set: None,
            update_set: None,
            scanned_at: None,
            activity: String::new(),
        };
        let standing = Standing {
            bar: AccessState::Removed,
            expected: 0,
            nonce: None,
            bodies: Vec::new(),
            heard: VecDeque::new(),
            owned: false,
            last_seen: None,
            wants_facts: false,
            known,
            handed: Vec::new(),
            turn: 1,
            repeat: 0,
            handed_in: 0,
            noted_age: None,
            tag_offered: false,
        };
        Session {
            server,
            org,
            wake: Notify::new(),
            upload: Semaphore::new(1),
            standing: Mutex::new(standing),
        }
    }

    /// Takes the sync's counter. In quarantine both copies go on counting, each for itself.
    pub(super) fn turn(
        &self,
        counter: u64,
        nonce: u64,
        body: Digest,
        challenge: &Challenge<'_>,
    ) -> Turn {
        let mut standing = self.standing();
        let number = standing.turn + 1;
        let expected = standing.expected;
        let ignored = |next_counter| Turn {
            count: Count::Behind,
            next_counter,
            number: 0,
            repeat: 0,
            is_sign_of_life: false,
        };
        let taken = |count, next_counter| Turn {
            count,
            next_counter,
            number,
            repeat: 0,
            is_sign_of_life: true,
        };
        if standing.bar == AccessState::Quarantine {
            // A copy that met its challenge counts like the others from now on.
            let next_counter = match counter {
                Challenge::LEAST.. => expected,
                _ => counter.saturating_add(1),
            };
            if standing.heard.contains(&(counter, nonce)) {
                return ignored(next_counter);
            }
            standing.turn = number;
            return taken(Count::Next, next_counter);
        }
        let (epoch, is_first_of_epoch) = (expected / EPOCH, expected.is_multiple_of(EPOCH));
        let same_nonce = standing.nonce.is_none_or(|last| last == nonce);
        let count = match counter {
            Challenge::LEAST.. if challenge.is_met_by(counter, epoch) => Count::Copy,
            Challenge::LEAST.. => Count::Behind,
            _ if counter == expected => Count::Next,
            _ if counter.checked_add(1) == Some(expected) && same_nonce => Count::Again,
            _ if counter > expected => Count::Ahead,
            _ if standing.heard.iter().any(|heard| heard.0 == counter && heard.1 != nonce) => {
                Count::Copy
            }
            _ => Count::Behind,
        };
        match count {
            Count::Next | Count::Ahead => {
                standing.expected = counter.saturating_add(1);
                standing.nonce = Some(nonce);
                standing.heard.push_front((counter, nonce));
                standing.heard.truncate(HEARD);
                standing.bodies = vec![body];
            }
            Count::Again => {
                let is_last = standing.bodies.last() == Some(&body);
                // The agent has said something newer since.
                if !is_last && (standing.bodies.contains(&body) || standing.bodies.len() >= BODIES)
                {
                    return ignored(expected);
                }
                if !is_last {
                    standing.bodies.push(body);
                }
                // The same turn: whoever waits for its answer since the first time still gets it. Someone else may
                // have sent this.
                standing.repeat = standing.repeat.saturating_add(1);
                return Turn {
                    count,
                    next_counter: expected,
                    number: standing.turn,
                    repeat: standing.repeat,
                    is_sign_of_life: !is_last,
                };
            }
            // After a release, whoever answers to the first counter of the new epoch is the server.
            Count::Behind if is_first_of_epoch && counter < expected => return ignored(expected),
            // An honest agent has gone on and does not read this.
            Count::Behind => return ignored(challenge.counter(epoch)),
            Count::Copy => {}
        }
        (standing.turn, standing.repeat) = (number, 0);
        taken(count, standing.expected)
    }

    pub(super) fn noted_age(&self) -> Option<Age> {
        self.standing().noted_age
    }

    pub(super) fn notes_age(&self, age: Age) {
        self.standing().noted_age = Some(age);
    }

    /// Whether a new tag is offered for the first time.
    pub(super) fn offers_tag(&self) -> bool {
        !std::mem::replace(&mut self.standing().tag_offered, true)
    }

    pub(super) fn bar(&self) -> AccessState {
        self.standing().bar
    }

    /// Another standing, and whoever is held open hears of it.
    pub(super) fn set_bar(&self, bar: AccessState) {
        let mut standing = self.standing();
        if standing.bar == bar {
            return;
        }
        if standing.bar == AccessState::Quarantine {
            // Those who are held open may be the server or its copy.
            standing.turn += 1;
        }
        standing.bar = bar;
        drop(standing);
        self.wake.notify_waiters();
    }

    /// Whether this replica must claim the session before it can judge a counter. In quarantine
    /// nothing is judged.
    fn needs_claim(&self) -> bool {
        let standing = self.standing();
        !standing.owned && standing.bar == AccessState::None
    }

    /// The session as this replica would write it, if it owns it.
    fn session(&self) -> Option<(ServerId, i64, Vec<u8>)> {
        let standing = self.standing();
        if !standing.owned || standing.bar != AccessState::None {
            return None;
        }
        let counter = i64::try_from(standing.expected).unwrap_or(i64::MAX);
        Some((self.server, counter, to_bytes(&standing.heard)))
    }

    /// Another replica claimed the session. What it wrote may be older than what was told here, if it heard
    /// a captured request: the agent is asked for its facts again.
    fn loses_session(&self) {
        let mut standing = self.standing();
        standing.owned = false;
        standing.wants_facts = true;
    }

    /// Whether the agent is to send its facts again. Says so once.
    pub(super) fn takes_wish_for_facts(&self) -> bool {
        std::mem::take(&mut self.standing().wants_facts)
    }

    /// Whether two hosts answered for one counter, as this replica and another one heard it. An
    /// agent keeps its nonce until a sync is answered, so it never uses two for one counter.
    fn contradicts(&self, heard_elsewhere: &[u8]) -> Option<u64> {
        contradiction(&self.standing().heard, &from_bytes(heard_elsewhere))
    }

    fn heard(&self) -> Vec<u8> {
        to_bytes(&self.standing().heard)
    }

    /// Goes on from where another replica left off. Its counter may be behind, if it died before it
    /// wrote it down; an honest agent's is never behind what was written.
    fn takes_over(&self, session: &SyncSession) {
        self.learns_of(&session.recent);
        let mut standing = self.standing();
        standing.expected = standing.expected.max(session.counter.unsigned_abs());
        let last = standing.expected.checked_sub(1);
        let of_last = standing.heard.iter().find(|(counter, _)| Some(*counter) == last);
        standing.nonce = of_last.map(|(_, nonce)| *nonce);
        standing.owned = true;
    }

    /// Takes over what another replica heard: its syncs are not new here, should they be sent again.
    fn learns_of(&self, heard_elsewhere: &[u8]) {
        let mut standing = self.standing();
        let known: BTreeSet<_> = standing.heard.iter().copied().collect();
        let theirs = from_bytes(heard_elsewhere);
        let more = theirs.iter().filter(|pair| !known.contains(pair));
        let mut heard: Vec<_> = known.iter().chain(more).copied().collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        heard.truncate(HEARD);
        if let Some((counter, nonce)) = heard.first().filter(|(last, _)| *last >= standing.expected)
        {
            standing.expected = counter.saturating_add(1);
            standing.nonce = Some(*nonce);
        }
        standing.heard = heard.into();
    }

    pub(super) fn known(&self) -> Known {
        self.standing().known.clone()
    }

    pub(super) fn learns(&self, known: Known) {
        self.standing().known = known;
    }

    pub(super) fn is_old_news(&self, sync: &SyncRequest) -> bool {
        self.standing().known.is_old_news(sync)
    }

    /// Whether no later sync came. One that was repeated is answered as well as its last repetition. Two copies in
    /// quarantine do not push each other out: they would never rest.
    pub(super) fn is_latest(&self, turn: &Turn) -> bool {
        let standing = self.standing();
        let is_held = turn.repeat == 0 || turn.repeat == standing.repeat;
        (standing.turn == turn.number && is_held) || standing.bar == AccessState::Quarantine
    }

    /// Notes what goes out with the answer to a sync.
    pub(super) fn hands_out(&self, turn: &Turn, words: Vec<Message>) {
        let mut standing = self.standing();
        standing.handed = words;
        standing.handed_in = turn.number;
    }

    /// Whether this is a reason to answer a sync at once. What went out with an answer goes out with every later one, and
    /// is a reason only for repetitions of the sync that it went out to.
    pub(super) fn is_news(&self, turn: &Turn, word: Message) -> bool {
        let standing = self.standing();
        standing.handed_in == turn.number || !standing.handed.contains(&word)
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        lock(&self.standing)
    }
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry {
            links: RwLock::default(),
            beats: Mutex::default(),
            returned: Notify::new(),
            first_contacts: Semaphore::new(FIRST_CONTACTS),
            drain: watch::Sender::new(false),
            counts: Mutex::default(),
            awaited: Awaited::default(),
            limits: AgentLimits::new(),
            desk: Desk::default(),
            press: WriteBatcher::default(),
            secured: Secured::default(),
        }
    }

    /// Answers every sync that is held open: this process is about to end.
    pub(crate) fn drain(&self) {
        self.drain.send_replace(true);
    }

    pub(super) fn draining(&self) -> watch::Receiver<bool> {
        self.drain.subscribe()
    }

    /// When this process last heard from a server.
    pub(crate) fn last_seen(&self, server: ServerId) -> Option<Timestamp> {
        let link = self.known_link(server)?;
        link.standing().last_seen
    }

    pub(super) fn known_link(&self, server: ServerId) -> Option<Arc<Session>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).get(&server).cloned()
    }

    /// The link of whoever showed this credential. Asks the database at the first contact only.
    pub(super) async fn link(
        &self,
        app: &Gateway,
        who: &Credential,
    ) -> Result<Arc<Session>, Refusal> {
        let link = match self.known_link(who.server) {
            Some(link) => link,
            None => self.first_contact(app, who).await?,
        };
        match link.bar() {
            AccessState::Removed => Err(Refusal::removed()),
            AccessState::None | AccessState::Quarantine => Ok(link),
        }
    }

    async fn first_contact(
        &self,
        app: &Gateway,
        who: &Credential,
    ) -> Result<Arc<Session>, Refusal> {
        let _turn = self.first_contacts.acquire().await.map_err(|_| Refusal::unavailable())?;
        let mut reader = app.db.read().await?;
        let identity = servers::identity(&mut reader, who.server).await?;
        // The tag is ours, so it was let in once; the database was restored from before that.
        let Some(identity) = identity.filter(|known| known.public_key == who.key) else {
            tracing::warn!(server = %who.server, "it joined once, and this database does not know it: it must enrol again");
            let detail = "this server is not known here any more; enrol again to join";
            return Err(Refusal::new(
                axum::http::StatusCode::UNAUTHORIZED,
                "unknown_server",
                detail,
            ));
        };
        let link = if identity.removed_at.is_some() {
            Session::removed(identity.id, identity.org_id)
        } else {
            let row = servers::get(&mut reader, identity.org_id, identity.id).await?;
            let bar =
                if row.quarantine.is_some() { AccessState::Quarantine } else { AccessState::None };
            Session::new(&row, bar)
        };
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        Ok(links.entry(who.server).or_insert_with(|| Arc::new(link)).clone())
    }

    /// A sign of life. It is written down with others, a little later.
    pub(super) fn beat(&self, app: &Gateway, link: &Session, counter: u64, now: Timestamp) {
        let beat = Beat {
            org: link.org,
            server_id: link.server,
            seen_at: now,
            counter: i64::try_from(counter).unwrap_or(i64::MAX),
        };
        let last_seen = link.standing().last_seen.replace(now);
        lock(&self.beats).insert(link.server, beat);
        let sync_seconds = app.settings.sync_seconds;
        if !(Presence { last_seen, sync_seconds }.is_online(now)) {
            self.returned.notify_one();
        }
    }

    /// Makes sure that this replica may judge the counters of an agent. `Some`: two hosts were heard
    /// under one counter, which this is.
    ///
    /// A replica that an agent stays with claims once; then it counts in memory.
    pub(super) async fn claim(
        &self,
        app: &Gateway,
        link: &Session,
    ) -> Result<Option<u64>, Refusal> {
        if !has_replicas(app) || !link.needs_claim() {
            return Ok(None);
        }
        let counter = i64::try_from(link.standing().expected).unwrap_or(i64::MAX);
        let _turn = self.first_contacts.acquire().await.map_err(|_| Refusal::unavailable())?;
        let mut tx = app.db.begin().await?;
        let replica = &app.settings.replica;
        let session = sync_sessions::claim(&mut tx, link.server, replica, counter).await?;
        tx.commit().await?;
        let twice =
            link.contradicts(&session.recent).or_else(|| link.contradicts(&session.contested));
        link.takes_over(&session);
        Ok(twice)
    }

    /// Writes down who was heard from since the last time.
    pub(crate) async fn write_beats(
        &self,
        app: &Gateway,
        someone_returned: bool,
    ) -> store::Result<()> {
        // They stay until they are committed: whoever is cut off in the middle has lost none.
        let beats: Vec<Beat> = lock(&self.beats).values().copied().collect();
        if beats.is_empty() {
            return Ok(());
        }
        let sessions: Vec<_> = match has_replicas(app) {
            true => {
                beats.iter().filter_map(|beat| self.known_link(beat.server_id)?.session()).collect()
            }
            false => Vec::new(),
        };
        let written = async {
            let mut tx = app.db.begin().await?;
            presence::beat(&mut tx, &beats, app.clock.now()).await?;
            let kept = sync_sessions::write(&mut tx, &app.settings.replica, &sessions).await?;
            if someone_returned {
                tx.ring(Topic::Presence);
            }
            tx.commit().await?;
            Ok::<_, store::StoreError>(kept)
        };
        let kept = written.await?;
        for (server, ..) in &sessions {
            let Some(link) = self.known_link(*server) else { continue };
            let twice = match kept.get(server) {
                Some(contested) => link.contradicts(contested).or_else(|| {
                    link.learns_of(contested);
                    None
                }),
                None => lost_session(app, &link).await?,
            };
            if let Some(counter) = twice
                && quarantine(app, &link, heard_twice(counter)).await.is_err()
            {
                tracing::error!(server = %server, "a copy was noticed and cannot be quarantined");
            }
        }
        let mut waiting = lock(&self.beats);
        for beat in beats {
            if waiting.get(&beat.server_id) == Some(&beat) {
                waiting.remove(&beat.server_id);
            }
        }
        Ok(())
    }

    pub(super) fn counted(&self, org: OrgId, kind: Kind, digest: Digest) -> Option<Counted> {
        lock(&self.counts).get(&(org, kind, digest)).copied()
    }

    pub(super) fn count(&self, org: OrgId, kind: Kind, counted: Counted) {
        let mut counts = lock(&self.counts);
        if counts.len() >= COUNTS_MAX {
            counts.clear();
        }
        counts.insert((org, kind, counted.digest), counted);
    }

    pub(super) fn forget_counts(&self) {
        lock(&self.counts).clear();
    }

    /// Every server that gets no orders, as the database has it now.
    pub(super) fn set_barred(&self, barred: &[Barred]) {
        let bars: BTreeMap<_, _> = barred
            .iter()
            .map(|server| match server.removed_at {
                Some(_) => (server.id, AccessState::Removed),
                None => (server.id, AccessState::Quarantine),
            })
            .collect();
        let mut released = Vec::new();
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        for (server, link) in links.iter() {
            let was = link.bar();
            let now = bars.get(server).copied().unwrap_or(AccessState::None);
            link.set_bar(now);
            if was == AccessState::Quarantine && now == AccessState::None {
                released.push(*server);
            }
        }
        drop(links);
        if released.is_empty() {
            return;
        }
        // The database says how their counters continue.
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        for server in released {
            links.remove(&server);
        }
    }
}

/// Another replica claimed a session while this one heard a host, too. `Some`: each heard another nonce
/// for this counter, so there are two hosts.
async fn lost_session(app: &Gateway, link: &Session) -> store::Result<Option<u64>> {
    link.loses_session();
    let mut tx = app.db.begin().await?;
    let session = sync_sessions::contest(&mut tx, link.server, link.heard()).await?;
    tx.commit().await?;
    Ok(session.and_then(|session| link.contradicts(&session.recent)))
}

/// SQLite belongs to one process.
fn has_replicas(app: &Gateway) -> bool {
    app.db.engine() != "sqlite"
}

/// Why a server is in quarantine whose two copies were heard by two replicas.
pub(super) fn heard_twice(counter: u64) -> String {
    format!(
        "two copies of this server are talking: both sent counter {counter}, to different \
         replicas; a clone, or a restored snapshot"
    )
}

/// The first counter that has different nonces in the two.
fn contradiction(ours: &VecDeque<(u64, u64)>, theirs: &[(u64, u64)]) -> Option<u64> {
    let ours: BTreeMap<_, _> = ours.iter().copied().collect();
    let differs = |(counter, nonce): &&(u64, u64)| ours.get(counter).is_some_and(|n| n != nonce);
    theirs.iter().filter(differs).map(|(counter, _)| *counter).min()
}

fn to_bytes(heard: &VecDeque<(u64, u64)>) -> Vec<u8> {
    let pair =
        |(counter, nonce): &(u64, u64)| [counter.to_be_bytes(), nonce.to_be_bytes()].concat();
    heard.iter().flat_map(pair).collect()
}

fn from_bytes(bytes: &[u8]) -> Vec<(u64, u64)> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    let pair = |pair: &[u8]| (number(&pair[..8]), number(&pair[8..]));
    bytes.chunks_exact(PAIR_BYTES).take(HEARD).map(pair).collect()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
