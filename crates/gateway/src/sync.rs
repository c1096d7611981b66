//! `POST /agent/v1/sync`: the only operation of a running agent. The request is held open while
//! there is nothing to send.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::json;
use store::listings::{self, Kind};
use store::{StoreError, Topic, servers};
use tokio::time::Instant;
use vocab::{Digest, TaskId};
use wire::agent::{Envelope, SyncRequest, SyncResponse};

use crate::Gateway;
use crate::Refusal;
use crate::credentials::{Verified, trusted_keys, verified};
use crate::ingest::{Counted, News, Part, Written, write};
use crate::limits::Reserved;
use crate::outbox::Assignment;
use crate::registry::{
    AccessState, Challenge, Count, Message, Session, Turn, activity_word, heard_twice,
};
use crate::security_package_cache::{Names, secured};
use crate::uploads;
use service::secrets::{Age, SigningKey, TrustedKeys};
use service::{TRIES, emit, record};

const BODY_BYTES_MAX: usize = 1024 * 1024;
/// The most results, and the most progress reports, in one sync. An agent has one order at a time.
const REPORTS_MAX: usize = 1_000;
/// The most packages in one result.
const MOVES_MAX: usize = 20_000;
/// The most lines in each other list of a result.
const LINES_MAX: usize = 2_000;
/// The earliest valid time; no agent existed before. PostgreSQL does not support every time that
/// JSON can express, and an invalid one would fail the writes of many agents together.
const EARLIEST: Timestamp = Timestamp::constant(946_684_800, 0);
/// Proxies close idle requests after a minute at the earliest.
const HOLD_SECONDS_MAX: u32 = 50;

pub(super) async fn sync(
    State(app): State<Gateway>,
    request: Request<Body>,
) -> Result<Json<SyncResponse>, Refusal> {
    let trusted = trusted_keys(request.headers());
    let Verified { who, age, body, reserved, slot: _slot } =
        verified(&app, request, BODY_BYTES_MAX).await?;
    let mut sync: SyncRequest = serde_json::from_slice(&body)
        .map_err(|error| Refusal::bad_request(format!("invalid sync request: {error}")))?;
    let digest = Digest::of(&body);
    drop(body);
    check_size(&sync)?;
    let door = app.registry();
    let link = door.link(&app, &who).await?;
    if let Some(counter) = door.claim(&app, &link).await? {
        quarantine(&app, &link, heard_twice(counter)).await?;
    }
    let challenge = Challenge::new(&app.secrets, link.server, app.clock.now());
    let turn = link.turn(sync.counter, sync.nonce, digest, &challenge);
    let hold = Duration::from_secs(sync.hold_seconds.min(HOLD_SECONDS_MAX).into());
    let mentioned = mentioned(&sync);
    let over = Instant::now() + hold;
    let mut call =
        SyncContext { app: &app, link: &link, turn, mentioned, trusted, tag: None, over };
    match call.turn.count {
        // Its content is older than what later syncs reported.
        Count::Behind => {
            tracing::debug!(server = %link.server, counter = sync.counter, "ignored a sync with an old counter");
            drop(reserved);
            return call.hold(&without_reports(sync), Answer::default()).await;
        }
        Count::Copy => {
            quarantine(&app, &link, out_of_turn(call.turn.next_counter)).await?;
            drop(reserved);
            return call.hold(&without_reports(sync), Answer::default()).await;
        }
        Count::Next | Count::Again | Count::Ahead => {}
    }
    // Release an earlier sync that was held until now.
    link.wake.notify_waiters();
    if call.turn.is_sign_of_life {
        door.beat(&app, &link, call.turn.next_counter, app.clock.now());
    }
    note_root_key(&app, &link, age).await;
    call.tag = (age == Age::Old).then(|| STANDARD.encode(who.tag(&app.secrets)));
    if link.bar() == AccessState::Quarantine {
        // It is unknown which of the two hosts is genuine, or whether this request was captured.
        // Results still count: only the host that got an order can report on it. Facts are
        // requested again afterwards.
        sync.facts = None;
        (sync.installed, sync.pending, sync.scanned_at) = (None, None, None);
        sync.activity = link.known().activity();
    }
    let (wanted, acknowledged) = match link.is_old_news(&sync) {
        true => {
            drop(reserved);
            (Vec::new(), Vec::new())
        }
        false => call.told(&mut sync, reserved).await?,
    };
    let wants_facts = link.takes_wish_for_facts() || call.turn.count == Count::Ahead;
    let answer = Answer { wanted, acknowledged, wants_facts };
    call.hold(&without_reports(sync), answer).await
}

/// The part of a sync that is needed while it is held, so that it uses little memory.
fn without_reports(sync: SyncRequest) -> SyncRequest {
    SyncRequest { facts: None, results: Vec::new(), progress: Vec::new(), ..sync }
}

/// Rejects a sync with larger lists than any genuine agent sends. Results are rejected as a whole
/// and never truncated: a truncated result is not what the host reported.
fn check_size(sync: &SyncRequest) -> Result<(), Refusal> {
    let fits = sync.results.len() <= REPORTS_MAX
        && sync.progress.len() <= REPORTS_MAX
        && sync.results.iter().all(|result| {
            result.packages.len() <= MOVES_MAX
                && result.set_aside.len() <= LINES_MAX
                && result.restarted.len() <= LINES_MAX
                && result.notes.len() <= LINES_MAX
        });
    if fits {
        return Ok(());
    }
    let detail = "this sync contains more reports than one agent can have";
    Err(Refusal::new(axum::http::StatusCode::UNPROCESSABLE_ENTITY, "too_many_reports", detail))
}

/// The orders that a sync reports on.
fn mentioned(sync: &SyncRequest) -> Vec<TaskId> {
    let results = sync.results.iter().map(|result| result.order_id);
    results.chain(sync.progress.iter().map(|progress| progress.order_id)).collect()
}

/// A sync in progress.
struct SyncContext<'a> {
    app: &'a Gateway,
    link: &'a Arc<Session>,
    turn: Turn,
    /// The orders that it reports on.
    mentioned: Vec<TaskId>,
    /// The keys that its agent trusts.
    trusted: TrustedKeys,
    /// The tag of the current root key, for an agent that sent one of the old key.
    tag: Option<String>,
    /// The latest time for the response.
    over: Instant,
}

impl SyncContext<'_> {
    /// Writes what is new. Returns the package sets to request, and the results that are committed.
    async fn told(
        &self,
        sync: &mut SyncRequest,
        reserved: Reserved,
    ) -> Result<(Vec<Digest>, Vec<TaskId>), Refusal> {
        let SyncContext { app, link, .. } = *self;
        let known = link.known();
        let packages = sync.installed.filter(|digest| known.package_set != Some(*digest));
        let packages = self.listed(Kind::Packages, packages, sync).await?;
        let updates = sync.pending.filter(|digest| known.update_set != Some(*digest));
        let updates = self.listed(Kind::Updates, updates, sync).await?;
        // The sync may have waited for a package set, and its agent may have sent a newer one.
        if sync.results.is_empty() && !link.is_latest(&self.turn) {
            return Ok((Vec::new(), Vec::new()));
        }
        let results = std::mem::take(&mut sync.results);
        let acknowledged: Vec<TaskId> = results.iter().map(|result| result.order_id).collect();
        let wanted = [(Kind::Packages, packages.wanted()), (Kind::Updates, updates.wanted())];
        let news = News {
            wanted: wanted.iter().filter_map(|(kind, digest)| Some((*kind, (*digest)?))).collect(),
            org: link.org,
            server: link.server,
            facts: sync.facts.take(),
            packages: packages.counted(),
            updates: updates.counted(),
            // A scan counts only when its package sets are stored.
            scanned_at: sync
                .scanned_at
                .filter(|at| *at > EARLIEST && packages.is_here() && updates.is_here()),
            activity: activity_word(sync.activity),
            progress: std::mem::take(&mut sync.progress),
            results,
            now: app.clock.now(),
        };
        match write(app, Part::News(Box::new(news)), reserved).await {
            Ok(Written::Server(known)) => link.learns(known),
            Ok(Written::Listing | Written::Log(_)) => {}
            // An unused package set was deleted after it was counted. It will be requested again.
            Err(refusal) if refusal.code == "not_found" => {
                app.registry().forget_counts();
                return Err(Refusal::unavailable());
            }
            Err(refusal) => return Err(refusal),
        }
        // These tasks have ended; the dispatcher notices it a little later.
        for task in &acknowledged {
            app.registry().desk.clear(link.server, *task);
        }
        let wanted = [packages, updates].iter().filter_map(Listed::wanted).collect();
        Ok((wanted, acknowledged))
    }

    /// Looks up a package set. If another agent is about to upload it, waits for it as long as the
    /// sync may be held. A sync that reports a result does not wait.
    async fn listed(
        &self,
        kind: Kind,
        digest: Option<Digest>,
        sync: &SyncRequest,
    ) -> Result<Listed, Refusal> {
        let SyncContext { app, link, .. } = *self;
        let Some(digest) = digest else { return Ok(Listed::Same) };
        let mut draining = app.registry().draining();
        loop {
            if let Some(counted) = counted(app, link, kind, digest).await? {
                return Ok(Listed::Here(counted));
            }
            let other = app.registry().awaited.other((link.org, kind, digest), link.server);
            let Some(other) = other else { return Ok(Listed::Wanted(digest)) };
            if !sync.results.is_empty() || *draining.borrow() {
                return Ok(Listed::Elsewhere);
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.over) => return Ok(Listed::Elsewhere),
                // There is something to send, or the agent has sent another sync.
                () = link.wake.notified() => return Ok(Listed::Elsewhere),
                _ = draining.changed() => {}
                () = other.wait() => {}
            }
        }
    }

    /// Waits until there is something to send, at most as long as the agent and the service allow.
    async fn hold(
        &self,
        sync: &SyncRequest,
        answer: Answer,
    ) -> Result<Json<SyncResponse>, Refusal> {
        let SyncContext { app, link, ref turn, .. } = *self;
        let announces = app.secrets.should_announce(&self.trusted);
        // An agent of the previous version keeps its old tag. After the first offer it is held as
        // usual.
        let renews = self.tag.is_some() && link.offers_tag();
        let mut patient = sync.hold_seconds > 0 && answer.is_empty() && !announces && !renews;
        let over = tokio::time::sleep_until(self.over);
        tokio::pin!(over);
        let mut draining = app.registry().draining();
        loop {
            let woken = link.wake.notified();
            tokio::pin!(woken);
            // From here on, no notification is lost.
            woken.as_mut().enable();
            if link.bar() == AccessState::Removed {
                return Err(Refusal::removed());
            }
            // If the agent has sent another sync meanwhile, that one gets the messages.
            let latest = link.is_latest(turn);
            let said = match latest {
                true => Outgoing::to(app, link, &self.mentioned),
                false => Outgoing::default(),
            };
            let wait = latest && patient && !said.is_fresh(link, turn) && !*draining.borrow();
            if !wait {
                let key = app.secrets.key_for(&self.trusted);
                let orders = match latest {
                    true => said.hand_out(app, link, turn, sync, key).await?,
                    false => Vec::new(),
                };
                return Ok(Json(SyncResponse {
                    counter: turn.next_counter,
                    orders,
                    wanted: answer.wanted,
                    wants_facts: answer.wants_facts,
                    acknowledged: answer.acknowledged,
                    withdrawn: said.withdrawn,
                    unreported: said.unreported,
                    sync_seconds: app.settings.sync_seconds,
                    server_time: app.clock.now(),
                    orders_keys: if announces { app.secrets.announced() } else { Vec::new() },
                    renewed_tag: self.tag.clone(),
                }));
            }
            tokio::select! {
                () = &mut woken => {}
                () = &mut over => patient = false,
                _ = draining.changed() => {}
            }
        }
    }
}

/// The content of the response besides orders.
#[derive(Default)]
struct Answer {
    wanted: Vec<Digest>,
    acknowledged: Vec<TaskId>,
    wants_facts: bool,
}

impl Answer {
    fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.acknowledged.is_empty() && !self.wants_facts
    }
}

/// A package set whose digest a sync contains.
enum Listed {
    /// Unchanged.
    Same,
    Here(Counted),
    Wanted(Digest),
    /// Another agent was just asked to upload it. This agent will report the digest again.
    Elsewhere,
}

impl Listed {
    fn counted(&self) -> Option<Counted> {
        match self {
            Listed::Here(counted) => Some(*counted),
            Listed::Same | Listed::Wanted(_) | Listed::Elsewhere => None,
        }
    }

    fn wanted(&self) -> Option<Digest> {
        match self {
            Listed::Wanted(digest) => Some(*digest),
            Listed::Same | Listed::Here(_) | Listed::Elsewhere => None,
        }
    }

    fn is_here(&self) -> bool {
        matches!(self, Listed::Same | Listed::Here(_))
    }
}

/// The counts of a stored package set.
async fn counted(
    app: &Gateway,
    link: &Session,
    kind: Kind,
    digest: Digest,
) -> Result<Option<Counted>, Refusal> {
    if let Some(counted) = app.registry().counted(link.org, kind, digest) {
        return Ok(Some(counted));
    }
    let entries = listings::entries(&mut *app.db.read().await?, link.org, kind, digest).await;
    let counted = match (entries, kind) {
        (Ok(entries), Kind::Packages) => Counted { digest, entries, security: 0 },
        // The number of security updates is only in the package set itself.
        (Ok(_), Kind::Updates) => {
            let _decoder = app.registry().limits.decoder().await?;
            let bytes = listings::get(&mut *app.db.read().await?, link.org, kind, digest).await?;
            let count = move || uploads::count(kind, digest, &bytes);
            tokio::task::spawn_blocking(count).await.map_err(|_| Refusal::unavailable())??
        }
        (Err(StoreError::NotFound { .. }), _) => return Ok(None),
        (Err(error), _) => return Err(error.into()),
    };
    app.registry().count(link.org, kind, counted);
    Ok(Some(counted))
}

/// What the outbox holds for a server. Empty in quarantine.
#[derive(Default)]
struct Outgoing {
    orders: Vec<Assignment>,
    withdrawn: Vec<TaskId>,
    /// Started orders that the sync does not report on.
    unreported: Vec<TaskId>,
}

impl Outgoing {
    fn to(app: &Gateway, link: &Session, mentioned: &[TaskId]) -> Outgoing {
        let now = app.clock.now();
        let mut said = Outgoing::default();
        if link.bar() == AccessState::None {
            let all = app.registry().desk.of(link.server).into_iter();
            // A server takes no orders of another organization.
            for assignment in all.filter(|assignment| assignment.org == link.org) {
                match assignment.withdrawn {
                    _ if assignment.started => {
                        if !mentioned.contains(&assignment.task) {
                            said.unreported.push(assignment.task);
                        }
                    }
                    true => said.withdrawn.push(assignment.task),
                    false if now < assignment.expires_at => said.orders.push(assignment),
                    false => {}
                }
            }
        }
        said
    }

    fn words(&self) -> impl Iterator<Item = Message> {
        let withdrawn = self.withdrawn.iter().map(|task| Message::Drop(*task));
        let unreported = self.unreported.iter().map(|task| Message::Report(*task));
        self.orders.iter().map(|order| Message::Do(order.task)).chain(withdrawn).chain(unreported)
    }

    /// Whether any of it is a reason to respond immediately.
    fn is_fresh(&self, link: &Session, turn: &Turn) -> bool {
        self.words().any(|word| link.is_news(turn, word))
    }

    async fn hand_out(
        &self,
        app: &Gateway,
        link: &Session,
        turn: &Turn,
        sync: &SyncRequest,
        key: &SigningKey,
    ) -> Result<Vec<Envelope>, Refusal> {
        let secured = match self.orders.iter().any(Assignment::is_for_security) {
            true => secured(app, link).await?,
            false => Names::default(),
        };
        link.hands_out(turn, self.words().collect());
        let sign = |order: &Assignment| order.envelope(key, link.server, &sync.boot_id, &secured);
        Ok(self.orders.iter().map(sign).collect())
    }
}

fn out_of_turn(expected: u64) -> String {
    format!(
        "Two hosts use the identity of this server: one is behind counter {expected} and holds the \
         same key. One of them is a clone or a restored snapshot."
    )
}

/// Records the root key of an agent's identity during a rotation. Servers without a record count as
/// using the old key.
async fn note_root_key(app: &Gateway, link: &Session, age: Age) {
    if app.secrets.old_root_key_id().is_none() || link.noted_age() == Some(age) {
        return;
    }
    let current = app.secrets.root_key_id();
    let note = async {
        let known = servers::root_key(&mut *app.db.read().await?, link.server).await?;
        if (known.as_deref() == Some(current)) != (age == Age::Current) {
            let mut tx = app.db.begin().await?;
            let id = app.secrets.root_key_id_of(age);
            servers::set_root_key(&mut tx, link.server, id).await?;
            tx.commit().await?;
        }
        Ok::<_, StoreError>(())
    };
    match note.await {
        Ok(()) => link.notes_age(age),
        // The next sync records it.
        Err(error) => {
            tracing::warn!(server = %link.server, %error, "failed to record the root key of a server")
        }
    }
}

/// Puts a server into quarantine because two hosts use its identity. Neither gets orders until an
/// administrator releases it.
pub(super) async fn quarantine(
    app: &Gateway,
    link: &Session,
    reason: String,
) -> Result<(), Refusal> {
    for _ in 0..TRIES {
        let now = app.clock.now();
        let mut tx = app.db.begin().await?;
        let before = servers::get(&mut tx, link.org, link.server).await?;
        if before.quarantine.is_some() {
            link.set_bar(AccessState::Quarantine);
            return Ok(());
        }
        let after = servers::Server { quarantine: Some(reason.clone()), ..before.clone() };
        match servers::save(&mut tx, &before, &after, now).await {
            Err(StoreError::Stale) => continue,
            saved => saved?,
        }
        let told = json!({"server_id": link.server, "reason": reason});
        record(&mut tx, link.org, now, "engine", "server.quarantine", link.server, &told);
        emit(&mut tx, link.org, "server.quarantined", now, told);
        tx.ring(Topic::Servers);
        tx.commit().await?;
        link.set_bar(AccessState::Quarantine);
        return Ok(());
    }
    Err(Refusal::unavailable())
}
