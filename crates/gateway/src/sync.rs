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
use store::package_sets::{self, SetKind};
use store::{StoreError, Topic, servers};
use tokio::time::Instant;
use vocab::{Digest, TaskId};
use wire::agent::{Envelope, SyncRequest, SyncResponse};

use crate::Gateway;
use crate::Refusal;
use crate::credentials::{VerifiedRequest, trusted_keys, verify_request};
use crate::ingest::{AgentReport, IngestPart, PackageSetCounts, WriteResult, write};
use crate::limits::ReservedMemory;
use crate::outbox::Assignment;
use crate::registry::{
    AccessState, Challenge, CounterCheck, Message, Session, SyncPosition, activity_name,
    clone_reason,
};
use crate::security_package_cache::{PackageNames, security_packages};
use crate::uploads;
use service::audit::Action;
use service::clock::Stopwatch;
use service::secrets::{RootKeyAge, SigningKey, TrustedKeys};
use service::{ATTEMPTS_MAX, EventKind, emit, record};

const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of results, and of progress reports, in one sync. An agent has one order at a
/// time.
const REPORTS_MAX: usize = 1_000;
/// Maximum number of packages in one result.
const PACKAGE_CHANGES_MAX: usize = 20_000;
/// Maximum number of lines in each other list of a result.
const LINES_MAX: usize = 2_000;
/// The earliest valid time; no agent existed before. PostgreSQL does not support every time that
/// JSON can express, and an invalid one would fail the writes of many agents together.
const EARLIEST_TIME: Timestamp = Timestamp::constant(946_684_800, 0);
/// Proxies close idle requests after a minute at the earliest.
const HOLD_SECONDS_MAX: u32 = 50;

pub(super) async fn sync(
    State(app): State<Gateway>,
    request: Request<Body>,
) -> Result<Json<SyncResponse>, Refusal> {
    let watch = Stopwatch::start();
    let trusted = trusted_keys(request.headers());
    let VerifiedRequest { who, root_key_age: age, body, reserved, slot: _slot } =
        verify_request(&app, request, BODY_BYTES_MAX).await?;
    let mut sync: SyncRequest = serde_json::from_slice(&body)
        .map_err(|error| Refusal::bad_request(format!("invalid sync request: {error}")))?;
    let digest = Digest::compute(&body);
    drop(body);
    check_size(&sync)?;
    let registry = app.registry();
    let session = registry.session(&app, &who).await?;
    if let Some(counter) = registry.claim(&app, &session).await? {
        quarantine(&app, &session, clone_reason(counter)).await?;
    }
    let challenge = Challenge::new(&app.secrets, session.server, app.clock.now());
    let position = session.accept_counter(sync.counter, sync.nonce, digest, &challenge);
    let hold = Duration::from_secs(sync.hold_seconds.min(HOLD_SECONDS_MAX).into());
    let mentioned = reported_orders(&sync);
    let over = Instant::now() + hold;
    let mut context = SyncContext {
        app: &app,
        session: &session,
        position,
        reported_orders: mentioned,
        trusted,
        tag: None,
        deadline: over,
    };
    match context.position.count {
        // Its content is older than what later syncs reported.
        CounterCheck::Behind => {
            tracing::debug!(server = %session.server, counter = sync.counter, "ignored a sync with an old counter");
            drop(reserved);
            return context
                .hold_and_respond(&without_reports(sync), PendingResponse::default())
                .await;
        }
        CounterCheck::CloneDetected => {
            quarantine(&app, &session, clone_reason_for_counter(context.position.next_counter))
                .await?;
            drop(reserved);
            return context
                .hold_and_respond(&without_reports(sync), PendingResponse::default())
                .await;
        }
        CounterCheck::Next | CounterCheck::Repeated | CounterCheck::Ahead => {}
    }
    // Release an earlier sync that was held until now.
    session.wake.notify_waiters();
    if context.position.is_sign_of_life {
        registry.record_heartbeat(&app, &session, context.position.next_counter, app.clock.now());
    }
    record_root_key(&app, &session, age).await;
    context.tag = (age == RootKeyAge::Old).then(|| STANDARD.encode(who.tag(&app.secrets)));
    if session.access() == AccessState::Quarantine {
        // It is unknown which of the two hosts is genuine, or whether this request was captured.
        // Results still count: only the host that got an order can report on it. Facts are
        // requested again afterwards.
        sync.facts = None;
        (sync.installed, sync.pending, sync.scanned_at) = (None, None, None);
        sync.activity = session.stored().activity();
    }
    let (wanted, acknowledged) = match session.has_nothing_new(&sync) {
        true => {
            drop(reserved);
            (Vec::new(), Vec::new())
        }
        false => context.write_report(&mut sync, reserved).await?,
    };
    metrics::histogram!("fleetmend_sync_duration_seconds").record(watch.seconds());
    let wants_facts = session.take_facts_request() || context.position.count == CounterCheck::Ahead;
    let response = PendingResponse { wanted, acknowledged, wants_facts };
    context.hold_and_respond(&without_reports(sync), response).await
}

/// The part of a sync that is needed while it is held, so that it uses little memory.
fn without_reports(sync: SyncRequest) -> SyncRequest {
    SyncRequest { facts: None, results: Vec::new(), progress: Vec::new(), health: None, ..sync }
}

/// Rejects a sync with larger lists than any genuine agent sends. Results are rejected as a whole
/// and never truncated: a truncated result is not what the host reported.
fn check_size(sync: &SyncRequest) -> Result<(), Refusal> {
    let fits = sync.results.len() <= REPORTS_MAX
        && sync.progress.len() <= REPORTS_MAX
        && sync.results.iter().all(|result| {
            result.packages.len() <= PACKAGE_CHANGES_MAX
                && result.set_aside.len() <= LINES_MAX
                && result.restarted.len() <= LINES_MAX
                && result.notes.len() <= LINES_MAX
        });
    if fits {
        return Ok(());
    }
    let detail = "this sync contains too many reports";
    Err(Refusal::new(axum::http::StatusCode::UNPROCESSABLE_ENTITY, "too_many_reports", detail))
}

/// The orders that a sync reports on.
fn reported_orders(sync: &SyncRequest) -> Vec<TaskId> {
    let results = sync.results.iter().map(|result| result.order_id);
    results.chain(sync.progress.iter().map(|progress| progress.order_id)).collect()
}

/// A sync in progress.
struct SyncContext<'a> {
    app: &'a Gateway,
    session: &'a Arc<Session>,
    position: SyncPosition,
    /// The orders that it reports on.
    reported_orders: Vec<TaskId>,
    /// The keys that its agent trusts.
    trusted: TrustedKeys,
    /// The tag of the current root key, for an agent that sent one of the old key.
    tag: Option<String>,
    /// The latest time for the response.
    deadline: Instant,
}

impl SyncContext<'_> {
    /// Writes what is new. Returns the package sets to request, and the results that are committed.
    async fn write_report(
        &self,
        sync: &mut SyncRequest,
        reserved: ReservedMemory,
    ) -> Result<(Vec<Digest>, Vec<TaskId>), Refusal> {
        let SyncContext { app, session: link, .. } = *self;
        let known = link.stored();
        let packages = sync.installed.filter(|digest| known.package_set != Some(*digest));
        let packages = self.find_package_set(SetKind::Packages, packages, sync).await?;
        let updates = sync.pending.filter(|digest| known.update_set != Some(*digest));
        let updates = self.find_package_set(SetKind::Updates, updates, sync).await?;
        // The sync may have waited for a package set, and its agent may have sent a newer one.
        let reports = !sync.results.is_empty() || sync.health.is_some();
        if !reports && !link.is_latest(&self.position) {
            return Ok((Vec::new(), Vec::new()));
        }
        let order = self.position.order();
        link.begin_report(order);
        let results = std::mem::take(&mut sync.results);
        let acknowledged: Vec<TaskId> = results.iter().map(|result| result.order_id).collect();
        let wanted = [(SetKind::Packages, packages.wanted()), (SetKind::Updates, updates.wanted())];
        let report = AgentReport {
            wanted: wanted.iter().filter_map(|(kind, digest)| Some((*kind, (*digest)?))).collect(),
            org: link.org,
            server: link.server,
            order,
            facts: sync.facts.take(),
            packages: packages.counted(),
            updates: updates.counted(),
            // A scan counts only when its package sets are stored.
            scanned_at: sync
                .scanned_at
                .filter(|at| *at > EARLIEST_TIME && packages.is_stored() && updates.is_stored()),
            activity: activity_name(sync.activity),
            progress: std::mem::take(&mut sync.progress),
            results,
            health: sync.health.take(),
            now: app.clock.now(),
        };
        match write(app, IngestPart::Report(Box::new(report)), reserved).await {
            Ok(WriteResult::Server(known)) => link.set_stored(known, order),
            Ok(WriteResult::Superseded | WriteResult::Listing | WriteResult::Log(_)) => {}
            // An unused package set was deleted after it was counted. It will be requested again.
            Err(refusal) if refusal.code == "not_found" => {
                app.registry().clear_counts();
                return Err(Refusal::unavailable());
            }
            Err(refusal) => return Err(refusal),
        }
        // These tasks have ended; the dispatcher notices it a little later.
        for task in &acknowledged {
            app.registry().outbox.remove(link.server, *task);
        }
        let wanted = [packages, updates].iter().filter_map(PackageSetState::wanted).collect();
        Ok((wanted, acknowledged))
    }

    /// Looks up a package set. If another agent is about to upload it, waits for it as long as the
    /// sync may be held. A sync that reports a result does not wait.
    async fn find_package_set(
        &self,
        kind: SetKind,
        digest: Option<Digest>,
        sync: &SyncRequest,
    ) -> Result<PackageSetState, Refusal> {
        let SyncContext { app, session: link, .. } = *self;
        let Some(digest) = digest else { return Ok(PackageSetState::Unchanged) };
        let mut draining = app.registry().draining();
        loop {
            if let Some(counted) = counted(app, link, kind, digest).await? {
                return Ok(PackageSetState::Stored(counted));
            }
            let other = app
                .registry()
                .upload_requests
                .pending_elsewhere((link.org, kind, digest), link.server);
            let Some(other) = other else { return Ok(PackageSetState::Wanted(digest)) };
            if !sync.results.is_empty() || *draining.borrow() {
                return Ok(PackageSetState::RequestedElsewhere);
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.deadline) => return Ok(PackageSetState::RequestedElsewhere),
                // There is something to send, or the agent has sent another sync.
                () = link.wake.notified() => return Ok(PackageSetState::RequestedElsewhere),
                _ = draining.changed() => {}
                () = other.wait() => {}
            }
        }
    }

    /// Waits until there is something to send, at most as long as the agent and the service allow.
    async fn hold_and_respond(
        &self,
        sync: &SyncRequest,
        response: PendingResponse,
    ) -> Result<Json<SyncResponse>, Refusal> {
        let SyncContext { app, session: link, position: ref turn, .. } = *self;
        let announces = app.secrets.should_announce(&self.trusted);
        // An agent of the previous version keeps its old tag. After the first offer it is held as
        // usual.
        let renews = self.tag.is_some() && link.offer_tag();
        let mut patient = sync.hold_seconds > 0 && response.is_empty() && !announces && !renews;
        let over = tokio::time::sleep_until(self.deadline);
        tokio::pin!(over);
        let mut draining = app.registry().draining();
        loop {
            let woken = link.wake.notified();
            tokio::pin!(woken);
            // From here on, no notification is lost.
            woken.as_mut().enable();
            if link.access() == AccessState::Removed {
                return Err(Refusal::removed());
            }
            // If the agent has sent another sync meanwhile, that one gets the messages.
            let latest = link.is_latest(turn);
            let outgoing = match latest {
                true => Outgoing::collect(app, link, &self.reported_orders),
                false => Outgoing::default(),
            };
            let wait = latest && patient && !outgoing.has_unsent(link, turn) && !*draining.borrow();
            if !wait {
                let key = app.secrets.key_for(&self.trusted);
                let orders = match latest {
                    true => outgoing.send(app, link, turn, sync, key).await?,
                    false => Vec::new(),
                };
                let now = app.clock.now();
                let watch_until = app.registry().health_watches.until(link.org, link.server, now);
                return Ok(Json(SyncResponse {
                    counter: turn.next_counter,
                    orders,
                    wanted: response.wanted,
                    wants_facts: response.wants_facts,
                    acknowledged: response.acknowledged,
                    withdrawn: outgoing.withdrawn,
                    unreported: outgoing.unreported,
                    sync_seconds: app.settings.sync_seconds,
                    server_time: app.clock.now(),
                    orders_keys: if announces { app.secrets.announced_keys() } else { Vec::new() },
                    renewed_tag: self.tag.clone(),
                    watch_health_until: watch_until,
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
struct PendingResponse {
    wanted: Vec<Digest>,
    acknowledged: Vec<TaskId>,
    wants_facts: bool,
}

impl PendingResponse {
    fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.acknowledged.is_empty() && !self.wants_facts
    }
}

/// A package set whose digest a sync contains.
enum PackageSetState {
    /// Unchanged.
    Unchanged,
    Stored(PackageSetCounts),
    Wanted(Digest),
    /// Another agent was just asked to upload it. This agent will report the digest again.
    RequestedElsewhere,
}

impl PackageSetState {
    fn counted(&self) -> Option<PackageSetCounts> {
        match self {
            PackageSetState::Stored(counted) => Some(*counted),
            PackageSetState::Unchanged
            | PackageSetState::Wanted(_)
            | PackageSetState::RequestedElsewhere => None,
        }
    }

    fn wanted(&self) -> Option<Digest> {
        match self {
            PackageSetState::Wanted(digest) => Some(*digest),
            PackageSetState::Unchanged
            | PackageSetState::Stored(_)
            | PackageSetState::RequestedElsewhere => None,
        }
    }

    fn is_stored(&self) -> bool {
        matches!(self, PackageSetState::Unchanged | PackageSetState::Stored(_))
    }
}

/// The counts of a stored package set.
async fn counted(
    app: &Gateway,
    session: &Session,
    kind: SetKind,
    digest: Digest,
) -> Result<Option<PackageSetCounts>, Refusal> {
    if let Some(counted) = app.registry().cached_counts(session.org, kind, digest) {
        return Ok(Some(counted));
    }
    let entries =
        package_sets::entries(&mut *app.db.read().await?, session.org, kind, digest).await;
    let counted = match (entries, kind) {
        (Ok(entries), SetKind::Packages) => PackageSetCounts { digest, entries, security: 0 },
        // The number of security updates is only in the package set itself.
        (Ok(_), SetKind::Updates) => {
            let _decoder = app.registry().limits.decoder().await?;
            let bytes =
                package_sets::get(&mut *app.db.read().await?, session.org, kind, digest).await?;
            let count = move || uploads::count_entries(kind, digest, &bytes);
            tokio::task::spawn_blocking(count).await.map_err(|_| Refusal::unavailable())??
        }
        (Err(StoreError::NotFound { .. }), _) => return Ok(None),
        (Err(error), _) => return Err(error.into()),
    };
    app.registry().cache_counts(session.org, kind, counted);
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
    fn collect(app: &Gateway, session: &Session, mentioned: &[TaskId]) -> Outgoing {
        let now = app.clock.now();
        let mut outgoing = Outgoing::default();
        if session.access() == AccessState::None {
            let all = app.registry().outbox.assignments(session.server).into_iter();
            // A server takes no orders of another organization.
            for assignment in all.filter(|assignment| assignment.org == session.org) {
                match assignment.withdrawn {
                    _ if assignment.started => {
                        if !mentioned.contains(&assignment.task) {
                            outgoing.unreported.push(assignment.task);
                        }
                    }
                    true => outgoing.withdrawn.push(assignment.task),
                    false if now < assignment.expires_at => outgoing.orders.push(assignment),
                    false => {}
                }
            }
        }
        outgoing
    }

    fn messages(&self) -> impl Iterator<Item = Message> {
        let withdrawn = self.withdrawn.iter().map(|task| Message::Withdraw(*task));
        let unreported = self.unreported.iter().map(|task| Message::Report(*task));
        self.orders
            .iter()
            .map(|order| Message::Execute(order.task))
            .chain(withdrawn)
            .chain(unreported)
    }

    /// Whether any of it is a reason to respond immediately.
    fn has_unsent(&self, session: &Session, position: &SyncPosition) -> bool {
        self.messages().any(|word| session.is_unsent(position, word))
    }

    async fn send(
        &self,
        app: &Gateway,
        session: &Session,
        position: &SyncPosition,
        sync: &SyncRequest,
        key: &SigningKey,
    ) -> Result<Vec<Envelope>, Refusal> {
        let secured = match self.orders.iter().any(Assignment::is_for_security) {
            true => security_packages(app, session).await?,
            false => PackageNames::default(),
        };
        session.record_sent(position, self.messages().collect());
        let sign = |order: &Assignment| order.sign(key, session.server, &sync.boot_id, &secured);
        Ok(self.orders.iter().map(sign).collect())
    }
}

fn clone_reason_for_counter(expected: u64) -> String {
    format!(
        "Two hosts use the identity of this server: one is behind counter {expected} and holds the \
         same key. One of them is a clone or a restored snapshot."
    )
}

/// Records the root key of an agent's identity during a rotation. Servers without a record count as
/// using the old key.
async fn record_root_key(app: &Gateway, session: &Session, age: RootKeyAge) {
    if app.secrets.old_root_key_id().is_none() || session.recorded_root_key() == Some(age) {
        return;
    }
    let current = app.secrets.root_key_id();
    let note = async {
        let known = servers::root_key(&mut *app.db.read().await?, session.server).await?;
        if (known.as_deref() == Some(current)) != (age == RootKeyAge::Current) {
            let mut tx = app.db.begin().await?;
            let id = app.secrets.root_key_id_of(age);
            servers::set_root_key(&mut tx, session.server, id).await?;
            tx.commit().await?;
        }
        Ok::<_, StoreError>(())
    };
    match note.await {
        Ok(()) => session.record_root_key(age),
        // The next sync records it.
        Err(error) => {
            tracing::warn!(server = %session.server, %error, "failed to record the root key of a server");
        }
    }
}

/// Puts a server into quarantine because two hosts use its identity. Neither gets orders until an
/// administrator releases it.
pub(super) async fn quarantine(
    app: &Gateway,
    session: &Session,
    reason: String,
) -> Result<(), Refusal> {
    for _ in 0..ATTEMPTS_MAX {
        let now = app.clock.now();
        let mut tx = app.db.begin().await?;
        let before = servers::get(&mut tx, session.org, session.server).await?;
        if before.quarantine.is_some() {
            session.set_access(AccessState::Quarantine);
            return Ok(());
        }
        let after = servers::Server { quarantine: Some(reason.clone()), ..before.clone() };
        match servers::save(&mut tx, &before, &after, now).await {
            Err(StoreError::Stale) => continue,
            saved => saved?,
        }
        let detail = json!({"server_id": session.server, "reason": reason});
        record(
            &mut tx,
            session.org,
            now,
            "engine",
            Action::ServerQuarantine,
            session.server,
            &detail,
        );
        let (org, server) = (session.org, session.server);
        emit(&mut tx, org, now, "engine", EventKind::ServerQuarantined, server, detail);
        tx.notify(Topic::Servers);
        tx.commit().await?;
        session.set_access(AccessState::Quarantine);
        return Ok(());
    }
    Err(Refusal::unavailable())
}
