//! The event log: read in parts, or followed.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use store::events::{self, Filter};
use store::{Conn, Subscription, Topic, server_list};
use vocab::{OrgId, Selector, ServerId};
use wire::v1::{ActorKind, EventActor, EventSubject};

use crate::auth::caller::{Caller, Credential};
use crate::events::{EventKind, SubjectKind};
use crate::{App, Result, ServiceError};

/// The number of events that a follower reads at a time, and keeps in memory for a slow client.
const FOLLOW_CHUNK: u32 = 100;
/// The interval at which a follower checks without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Which events to read. An empty filter selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    pub kinds: Vec<EventKind>,
    /// The id of what they are about.
    pub subject: Option<String>,
}

impl EventFilter {
    /// The filter for the store; `None` if the caller may read no event that it selects. A caller
    /// sees events about resources that they may read, and one who is limited to environments only
    /// events about servers that were in one of them.
    fn for_caller(&self, caller: &Caller) -> Option<Filter> {
        let wanted = if self.kinds.is_empty() { EventKind::ALL } else { &self.kinds };
        let readable = |kind: &&EventKind| caller.role.includes(kind.subject().readable_by());
        let kinds: Vec<String> =
            wanted.iter().filter(readable).map(|kind| kind.as_str().to_owned()).collect();
        (!kinds.is_empty()).then(|| Filter {
            kinds,
            subject_id: self.subject.as_ref().map(|id| id.replace('\0', "\u{fffd}")),
            environments: caller.environments.as_deref().map(<[_]>::to_vec),
        })
    }
}

/// A part of the event log.
#[derive(Debug, Clone, PartialEq)]
pub struct EventsPart {
    /// Oldest first.
    pub events: Vec<wire::v1::Event>,
    /// The sequence number up to which the log was read; later events come with the next part.
    pub last: i64,
    /// The sequence number of the organization's latest event.
    pub latest: i64,
}

/// The first events after a sequence number that match; without a number, the oldest ones.
#[boxed]
pub async fn list(
    app: &App,
    caller: &Caller,
    after: Option<i64>,
    filter: &EventFilter,
    limit: u32,
) -> Result<EventsPart> {
    let mut reader = app.db.snapshot().await?;
    let latest = events::latest(&mut reader, caller.org).await?;
    if let Some(after) = after {
        check_position(&mut reader, caller.org, after, latest).await?;
    }
    let after = after.unwrap_or(0);
    let found = match filter.for_caller(caller) {
        Some(filter) => events::after(&mut reader, caller.org, after, &filter, limit).await?,
        None => Vec::new(),
    };
    let last = match found.last() {
        Some(last) if found.len() >= limit as usize => last.sequence,
        _ => latest,
    };
    let events = found.into_iter().map(|row| to_wire(app, row)).collect();
    Ok(EventsPart { events, last, latest })
}

/// Fails if events after `after` were deleted, or if `after` is not of this log: the reader would
/// miss events without knowing it.
async fn check_position(conn: &mut Conn, org: OrgId, after: i64, latest: i64) -> Result<()> {
    if after > latest {
        let detail = format!("The latest event has the sequence number {latest}.");
        return Err(ServiceError::conflict("unknown_sequence", detail));
    }
    // A number before the first event is the beginning.
    let oldest = events::oldest(conn, org).await?.unwrap_or(latest + 1);
    if after > 0 && after + 1 < oldest {
        let detail = format!(
            "Events are kept for 90 days; those up to sequence number {} were deleted. Continue after that number.",
            oldest - 1
        );
        return Err(ServiceError::conflict("events_expired", detail));
    }
    Ok(())
}

/// The types that these patterns select.
pub fn kinds(patterns: &[String]) -> BTreeSet<EventKind> {
    patterns.iter().flat_map(|pattern| EventKind::matching(pattern)).collect()
}

/// Those of these events that have one of these types. Events about servers are limited to the
/// servers that `targets` selects; other events are not.
#[boxed]
pub async fn select(
    conn: &mut Conn,
    org: OrgId,
    kinds: &BTreeSet<EventKind>,
    targets: Option<&Selector>,
    mut events: Vec<events::Event>,
) -> store::Result<Vec<events::Event>> {
    events.retain(|event| EventKind::parse(&event.kind).is_some_and(|kind| kinds.contains(&kind)));
    let Some(targets) = targets else { return Ok(events) };
    let mut filter = server_list::Filter::from(targets);
    let servers: BTreeSet<ServerId> =
        events.iter().filter_map(|event| event.subject_id.parse().ok()).collect();
    let listed = |server: &ServerId| filter.ids.is_empty() || filter.ids.contains(server);
    let servers: Vec<ServerId> = servers.into_iter().filter(listed).collect();
    let selected: BTreeSet<ServerId> = match servers.is_empty() {
        true => BTreeSet::new(),
        false => {
            filter.ids = servers;
            server_list::ids(conn, org, &filter).await?.into_iter().collect()
        }
    };
    events.retain(|event| match event.subject_id.parse::<ServerId>() {
        Ok(server) => selected.contains(&server) || event.kind == "server.removed",
        Err(_) => true,
    });
    Ok(events)
}

/// Converts an event to the API type.
pub fn to_wire(app: &App, row: events::Event) -> wire::v1::Event {
    let page = EventKind::parse(&row.kind).map(|kind| page(kind, &row));
    let data = match row.data {
        serde_json::Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    wire::v1::Event {
        id: row.id,
        sequence: u64::try_from(row.sequence).unwrap_or(0),
        kind: row.kind,
        occurred_at: row.at,
        actor: EventActor { kind: ActorKind::of(&row.actor), id: row.actor, name: row.actor_name },
        subject: EventSubject {
            kind: row.subject_kind,
            id: row.subject_id,
            name: row.subject_name,
        },
        environment: row.environment,
        data,
        url: app.page_url(page.as_deref().unwrap_or("/activity")),
    }
}

/// The page that shows what happened.
fn page(kind: EventKind, row: &events::Event) -> String {
    let field = |name: &str| row.data.get(name).and_then(serde_json::Value::as_str);
    match (kind, field("batch_id"), field("task_id")) {
        (EventKind::TaskFailed | EventKind::TaskFinished, Some(batch), Some(task)) => {
            format!("/batches/{batch}/tasks/{task}")
        }
        (EventKind::RunStarted | EventKind::RunFinished, Some(batch), _) => {
            SubjectKind::Batch.page(batch)
        }
        (EventKind::ServerRemoved, ..) => "/servers".to_owned(),
        (EventKind::ScheduleDeleted, ..) => "/schedules".to_owned(),
        (EventKind::WebhookDeleted, ..) => "/settings/webhooks".to_owned(),
        (kind, ..) => kind.subject().page(&row.subject_id),
    }
}

/// Follows the event log of an organization.
pub struct EventFollower {
    app: App,
    caller: Caller,
    /// Checked before each part, so that a revoked key receives no more.
    credential: Credential,
    filter: EventFilter,
    after: i64,
    changes: (Subscription, Subscription),
    /// Read, but not returned yet.
    ready: VecDeque<wire::v1::Event>,
}

impl EventFollower {
    /// Follows the log after a sequence number; without one, from now on.
    #[boxed]
    pub async fn new(
        app: &App,
        caller: &Caller,
        credential: Credential,
        filter: EventFilter,
        after: Option<i64>,
    ) -> Result<EventFollower> {
        let changes = (app.db.subscribe(Topic::Events), app.db.subscribe(Topic::Credentials));
        let mut reader = app.db.read().await?;
        let latest = events::latest(&mut reader, caller.org).await?;
        if let Some(after) = after {
            check_position(&mut reader, caller.org, after, latest).await?;
        }
        drop(reader);
        let (after, ready) = (after.unwrap_or(latest), VecDeque::new());
        let (app, caller) = (app.clone(), caller.clone());
        Ok(EventFollower { app, caller, credential, filter, after, changes, ready })
    }

    /// The next event. `None` once the credential is revoked or the service shuts down.
    #[boxed]
    pub async fn next(&mut self) -> Option<wire::v1::Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.read().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    let cause: &dyn std::error::Error = &error;
                    tracing::warn!(error = cause, "failed to follow the event log");
                    return None;
                }
            }
            if !self.ready.is_empty() {
                continue;
            }
            tokio::select! {
                () = self.changes.0.notified() => {}
                () = self.changes.1.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.app.until_drain() => return None,
            }
        }
    }

    /// Reads the next events. False if the credential is no longer valid.
    async fn read(&mut self) -> Result<bool> {
        if !self.credential.is_valid(&self.app).await? {
            return Ok(false);
        }
        let part =
            list(&self.app, &self.caller, Some(self.after), &self.filter, FOLLOW_CHUNK).await?;
        self.after = part.last;
        self.ready.extend(part.events);
        Ok(true)
    }
}
