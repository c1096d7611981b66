//! Sends events to webhooks, while this process leads.
//!
//! Every webhook has its own worker, so a receiver that does not respond delays no other. A
//! worker reads the events after the webhook's position, sends them, and stores the results and the
//! new position in one transaction. What was in flight when the process died is sent again by the
//! next leader. An event that could not be delivered is stored and tried again later; later events
//! about the same subject are stored behind it, so that they arrive in order. Events about other
//! subjects are not held up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::events::{self, Event, Filter};
use store::leases::{self, Lease};
use store::webhooks::{self, Delivery, DeliveryState, Webhook};
use store::{StoreError, Topic};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vocab::{DeliveryId, WebhookId};

use crate::{LeaderLease, log_error, sleep_time, wait_for_lead};
use service::audit::Action;
use service::clock::random_u128;
use service::queries::events::{self as event_queries, to_wire};
use service::webhooks::{Client, DISABLE_AFTER, Format, Message, Response, next_attempt};
use service::{App, EventKind, emit, record};

/// The number of events that are sent before their results are stored. If the process dies, the next
/// leader sends at most these again.
const SEND_CHUNK: u32 = 64;
/// The same, if they are one request, or if they are only stored because the receiver is down.
const LARGE_CHUNK: u32 = 200;
/// The number of requests to one receiver at the same time.
const REQUESTS_MAX: usize = 8;
/// After this many failures in a row, a receiver is assumed to be down: one request at a time is
/// tried, with a pause after it, and new events are stored without an attempt.
const FAILURES_UNTIL_DOWN: u32 = 8;
/// The delay before the first attempt of an event that arrived while the receiver was down.
const DELAY_WHILE_DOWN: SignedDuration = SignedDuration::from_secs(5);
/// The pause after a chat message, during which further events are collected for the next one.
const CHAT_PAUSE: Duration = Duration::from_secs(1);

/// Runs a worker for each enabled webhook while this process leads. Runs until it is aborted.
pub(super) async fn run(app: App, poll: Duration, mut lead: watch::Receiver<LeaderLease>) {
    let mut client = None;
    let mut changed = app.db.subscribe(Topic::Webhooks);
    loop {
        let lease = wait_for_lead(&mut lead).await;
        let mut workers = Workers::default();
        loop {
            match enabled(&app).await {
                Ok(enabled) => {
                    if client.is_none() && !enabled.is_empty() {
                        client = new_client(&app);
                    }
                    if let Some(client) = &client {
                        workers.update(enabled, |webhook| Worker {
                            app: app.clone(),
                            client: client.clone(),
                            lease: (*lease).clone(),
                            webhook,
                            poll,
                            failures: 0,
                        });
                    }
                }
                Err(error) => log_error("webhooks", &error),
            }
            tokio::select! {
                () = changed.notified() => {}
                () = tokio::time::sleep(poll) => {}
                _ = lead.changed() => break,
            }
        }
        lead.mark_changed();
    }
}

/// Called when there is a webhook: it reads the trusted authorities of the system, and warns if there
/// are none.
fn new_client(app: &App) -> Option<Client> {
    let created = Client::new(app.settings.webhook_allow_local);
    created
        .inspect_err(|error| {
            let error = error as &dyn std::error::Error;
            tracing::error!(error, "webhooks are not delivered: no HTTP client");
        })
        .ok()
}

async fn enabled(app: &App) -> store::Result<Vec<Webhook>> {
    webhooks::enabled(&mut *app.db.read().await?).await
}

/// The running workers. Dropping them aborts them.
#[derive(Default)]
struct Workers(BTreeMap<WebhookId, (i64, AbortOnDrop)>);

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Workers {
    /// Ends the workers of webhooks that were changed or are gone, and starts those that are
    /// missing. A worker that has ended is started again.
    fn update(&mut self, enabled: Vec<Webhook>, worker: impl Fn(Webhook) -> Worker) {
        let current: BTreeMap<_, _> =
            enabled.iter().map(|hook| (hook.id, hook.generation)).collect();
        self.0.retain(|id, (generation, task)| {
            current.get(id) == Some(generation) && !task.0.is_finished()
        });
        for webhook in enabled {
            let generation = webhook.generation;
            self.0
                .entry(webhook.id)
                .or_insert_with(|| (generation, AbortOnDrop(tokio::spawn(worker(webhook).run()))));
        }
    }
}

struct Worker {
    app: App,
    client: Client,
    lease: Lease,
    webhook: Webhook,
    poll: Duration,
    /// Failures since the last success.
    failures: u32,
}

/// An event to send, and its row in the log.
struct Item {
    event: service::webhooks::Event,
    delivery: Delivery,
}

impl Worker {
    async fn run(mut self) {
        let mut happened = self.app.db.subscribe(Topic::Events);
        let mut changed = self.app.db.subscribe(Topic::Webhooks);
        loop {
            let pause = match self.step().await {
                // Not again at once: a receiver that is down refuses thousands of times per second.
                Ok(Step::More) if self.is_down() => self.poll,
                Ok(Step::More) => continue,
                Ok(Step::Idle(next)) => sleep_time(next, self.app.clock.now(), self.poll),
                // Deleted or disabled.
                Ok(Step::Over) => return,
                Err(error) => {
                    log_error("webhooks", &error);
                    if matches!(error, StoreError::LeaseLost { .. }) {
                        return;
                    }
                    tokio::time::sleep(self.poll).await;
                    continue;
                }
            };
            tokio::select! {
                () = happened.notified(), if !self.is_down() => {}
                () = changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn is_down(&self) -> bool {
        self.failures >= FAILURES_UNTIL_DOWN
    }

    /// Sends what is due: deliveries that are tried again, and new events.
    async fn step(&mut self) -> store::Result<Step> {
        let retried = self.send_due().await?;
        let new = self.send_new().await?;
        match (retried, new) {
            (Progress::Over, _) | (_, Progress::Over) => return Ok(Step::Over),
            (Progress::None, Progress::None) => {}
            _ => {
                if self.format().combines_events() {
                    tokio::time::sleep(CHAT_PAUSE).await;
                }
                return Ok(Step::More);
            }
        }
        let mut reader = self.app.db.read().await?;
        Ok(Step::Idle(webhooks::next_due(&mut reader, self.webhook.id).await?))
    }

    /// The number of events to read at a time.
    fn chunk(&self) -> u32 {
        match self.is_down() || self.format().combines_events() {
            true => LARGE_CHUNK,
            false => SEND_CHUNK,
        }
    }

    fn format(&self) -> Format {
        Format::parse(&self.webhook.format).unwrap_or(Format::Standard)
    }

    /// Sends deliveries whose next attempt is due.
    async fn send_due(&mut self) -> store::Result<Progress> {
        let limit = if self.is_down() { 1 } else { self.chunk() };
        let now = self.app.clock.now();
        let mut reader = self.app.db.snapshot().await?;
        let due = webhooks::due(&mut reader, self.webhook.id, now, limit).await?;
        let sequences: Vec<i64> = due.iter().map(|delivery| delivery.sequence).collect();
        let mut found = events::by_sequence(&mut reader, self.webhook.org_id, &sequences).await?;
        let mut items = Vec::with_capacity(due.len());
        let mut expired = Vec::new();
        for delivery in due {
            match found.remove(&delivery.sequence) {
                Some(event) => items.push(Item { event: to_wire(&self.app, event), delivery }),
                None => expired.push(delivery),
            }
        }
        drop(reader);
        if items.is_empty() && expired.is_empty() {
            return Ok(Progress::None);
        }
        let mut tried = self.send_all(items).await;
        for delivery in expired {
            let error = Some("the event was deleted, because it is older than 90 days".to_owned());
            let (state, next_at) = (DeliveryState::Failed, None);
            tried.push(Delivery { state, next_at, error, ..delivery });
        }
        self.store(&tried, self.webhook.position, StoreMode::Update).await
    }

    /// Sends events after the webhook's position.
    async fn send_new(&mut self) -> store::Result<Progress> {
        let now = self.app.clock.now();
        let mut reader = self.app.db.snapshot().await?;
        let (org, from) = (self.webhook.org_id, self.webhook.position);
        let found = events::after(&mut reader, org, from, &Filter::default(), self.chunk()).await?;
        let Some(last) = found.last().map(|event| event.sequence) else {
            return Ok(Progress::None);
        };
        let kinds = event_queries::kinds(&self.webhook.types);
        let targets = self.webhook.targets.as_ref();
        let wanted = event_queries::select(&mut reader, org, &kinds, targets, found).await?;
        let subjects = wanted.iter().map(|event| event.subject_id.clone()).collect();
        let blocked = webhooks::blocked_subjects(&mut reader, self.webhook.id, &subjects).await?;
        drop(reader);
        let (mut stored, mut items) = (Vec::new(), Vec::new());
        for event in wanted {
            let delivery = self.new_delivery(&event, now);
            if blocked.contains(&event.subject_id) {
                stored.push(delivery);
            } else if self.is_down() {
                stored
                    .push(Delivery { next_at: now.checked_add(DELAY_WHILE_DOWN).ok(), ..delivery });
            } else {
                items.push(Item { event: to_wire(&self.app, event), delivery });
            }
        }
        stored.extend(self.send_all(items).await);
        block_behind_pending(&mut stored);
        self.store(&stored, last, StoreMode::Insert).await
    }

    fn new_delivery(&self, event: &Event, now: Timestamp) -> Delivery {
        Delivery {
            webhook_id: self.webhook.id,
            sequence: event.sequence,
            id: DeliveryId::new(now, random_u128()),
            event_id: event.id,
            kind: event.kind.clone(),
            subject_id: event.subject_id.clone(),
            subject_name: event.subject_name.clone(),
            state: DeliveryState::Pending,
            attempts: 0,
            next_at: None,
            created_at: now,
            tried_at: None,
            duration_ms: None,
            status: None,
            response: None,
            error: None,
        }
    }

    /// Sends all items: those about the same subject one after the other, the others beside each
    /// other. After a failure, later items about the same subject are not sent.
    async fn send_all(&mut self, items: Vec<Item>) -> Vec<Delivery> {
        if items.is_empty() {
            return Vec::new();
        }
        let groups: Vec<Vec<Item>> = if self.format().combines_events() {
            vec![items]
        } else {
            let mut by_subject: BTreeMap<String, Vec<Item>> = BTreeMap::new();
            for item in items {
                by_subject.entry(item.delivery.subject_id.clone()).or_default().push(item);
            }
            by_subject.into_values().collect()
        };
        let worker = &*self;
        let mut tried: Vec<Delivery> = stream::iter(groups)
            .map(|group| worker.send_group(group))
            .buffer_unordered(REQUESTS_MAX)
            .concat()
            .await;
        tried.sort_by_key(|delivery| delivery.sequence);
        for delivery in tried.iter().filter(|delivery| delivery.attempts > 0) {
            match delivery.state {
                DeliveryState::Delivered => self.failures = 0,
                DeliveryState::Pending | DeliveryState::Failed => {
                    self.failures = self.failures.saturating_add(1);
                }
            }
        }
        tried
    }

    async fn send_group(&self, group: Vec<Item>) -> Vec<Delivery> {
        let mut done = Vec::with_capacity(group.len());
        if self.format().combines_events() {
            let events: Vec<_> = group.iter().map(|item| item.event.clone()).collect();
            let message = Message::new(self.format(), &events);
            let response = self.client.send(&self.app, &self.webhook, &message).await;
            let now = self.app.clock.now();
            done.extend(group.into_iter().map(|item| after_attempt(item.delivery, &response, now)));
            return done;
        }
        let mut failed = false;
        for item in group {
            if failed {
                done.push(Delivery { next_at: None, ..item.delivery });
                continue;
            }
            let message = Message::new(self.format(), std::slice::from_ref(&item.event));
            let response = self.client.send(&self.app, &self.webhook, &message).await;
            failed = !response.is_delivered();
            done.push(after_attempt(item.delivery, &response, self.app.clock.now()));
        }
        done
    }

    /// Stores the results and the position. Disables the webhook if it has failed for too long.
    async fn store(
        &mut self,
        tried: &[Delivery],
        position: i64,
        mode: StoreMode,
    ) -> store::Result<Progress> {
        let now = self.app.clock.now();
        // One success among them is enough, whatever failed after it.
        let succeeded = tried.iter().any(|delivery| delivery.state == DeliveryState::Delivered);
        let before = self.webhook.failing_since.filter(|_| !succeeded);
        let failing_since =
            match (tried.iter().any(|delivery| delivery.attempts > 0), self.failures) {
                (false, _) => before,
                (true, 0) => None,
                (true, _) => before.or(Some(now)),
            };
        let mut tx = self.app.db.begin().await?;
        leases::fence(&mut tx, &self.lease).await?;
        if !webhooks::advance(&mut tx, self.webhook.id, position, failing_since).await? {
            return Ok(Progress::Over);
        }
        match mode {
            StoreMode::Insert => webhooks::insert_deliveries(&mut tx, tried).await?,
            StoreMode::Update => {
                for delivery in tried {
                    webhooks::save_delivery(&mut tx, delivery).await?;
                    if delivery.state != DeliveryState::Pending {
                        let (id, subject) = (self.webhook.id, &delivery.subject_id);
                        webhooks::release_next(&mut tx, id, subject, now).await?;
                    }
                }
            }
        }
        let expired = failing_since.is_some_and(|since| now.duration_since(since) >= DISABLE_AFTER);
        if expired {
            self.disable(&mut tx, now).await?;
        }
        tx.commit().await?;
        self.webhook.position = self.webhook.position.max(position);
        self.webhook.failing_since = failing_since;
        Ok(if expired { Progress::Over } else { Progress::Some })
    }

    async fn disable(&self, tx: &mut store::Tx, now: Timestamp) -> store::Result<()> {
        let current = webhooks::get(tx, self.webhook.org_id, self.webhook.id).await?;
        let reason = "Every delivery failed for five days.";
        let (org, id) = (current.org_id, current.id);
        let data = json!({"webhook_id": id, "name": current.name, "reason": reason});
        let after = Webhook { enabled: false, disabled_reason: Some(reason.to_owned()), ..current };
        webhooks::save(tx, &after).await?;
        record(tx, org, now, "engine", Action::WebhookDisable, id, &data);
        emit(tx, org, now, "engine", EventKind::WebhookDisabled, id, data);
        Ok(())
    }
}

enum Step {
    /// There may be more to do.
    More,
    /// Nothing is due until this time.
    Idle(Option<Timestamp>),
    Over,
}

#[derive(PartialEq, Eq)]
enum Progress {
    None,
    Some,
    /// The webhook was deleted or disabled.
    Over,
}

#[derive(Clone, Copy)]
enum StoreMode {
    Insert,
    Update,
}

/// The delivery after an attempt.
fn after_attempt(before: Delivery, response: &Response, now: Timestamp) -> Delivery {
    let attempts = before.attempts.saturating_add(1);
    let next_at = if response.is_delivered() { None } else { next_attempt(attempts, now) };
    let state = match (response.is_delivered(), next_at) {
        (true, _) => DeliveryState::Delivered,
        (false, Some(_)) => DeliveryState::Pending,
        (false, None) => DeliveryState::Failed,
    };
    Delivery {
        state,
        attempts,
        next_at,
        tried_at: Some(now),
        duration_ms: Some(response.duration_ms),
        status: response.status,
        response: response.body.clone(),
        error: response.error.clone(),
        ..before
    }
}

/// Of the pending deliveries about one subject, only the first has a time: the others wait for it.
fn block_behind_pending(deliveries: &mut [Delivery]) {
    let mut pending: BTreeSet<String> = BTreeSet::new();
    deliveries.sort_by_key(|delivery| delivery.sequence);
    for delivery in deliveries.iter_mut().filter(|one| one.state == DeliveryState::Pending) {
        if !pending.insert(delivery.subject_id.clone()) {
            delivery.next_at = None;
        }
    }
}
