//! Events: what happened, for people and other systems.
//!
//! An event is written in the transaction of the change that it reports, so none is lost and none
//! is invented. Within an organization, events are numbered without gaps in the order of their
//! commits ([`store::events`]).

use jiff::Timestamp;
use serde_json::Value;
use store::Tx;
use store::events::NewEvent;
use vocab::{EventId, OrgId, Role};

use crate::clock::random_u128;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal about $subject:ident;)*) => {
        /// The type of an event. Every event is written with one of these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $($(#[doc = $doc])* $name,)*
        }

        impl EventKind {
            pub const ALL: &'static [EventKind] = &[$(EventKind::$name,)*];

            /// The name in the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(EventKind::$name => $word,)*
                }
            }

            /// What it means, for documentation and menus.
            pub const fn description(self) -> &'static str {
                match self {
                    $(EventKind::$name => concat!($($doc),*).trim_ascii_start(),)*
                }
            }

            /// What events of this type are about.
            pub const fn subject(self) -> SubjectKind {
                match self {
                    $(EventKind::$name => SubjectKind::$subject,)*
                }
            }
        }
    };
}

kinds! {
    /// A batch was created.
    BatchCreated = "batch.created" about Batch;
    /// A batch started to patch servers.
    BatchStarted = "batch.started" about Batch;
    /// A batch was paused.
    BatchPaused = "batch.paused" about Batch;
    /// A paused or halted batch was resumed.
    BatchResumed = "batch.resumed" about Batch;
    /// A batch halted automatically, because servers failed.
    BatchHalted = "batch.halted" about Batch;
    /// The next wave of a batch needs an approval.
    BatchAwaitingApproval = "batch.awaiting_approval" about Batch;
    /// Someone approved a wave of a batch.
    BatchApproved = "batch.approved" about Batch;
    /// Someone rejected a wave of a batch; servers that have started continue.
    BatchRejected = "batch.rejected" about Batch;
    /// A batch was canceled; servers that have started continue.
    BatchCanceled = "batch.canceled" about Batch;
    /// Every task of a batch has ended.
    BatchFinished = "batch.finished" about Batch;
    /// A batch was changed in the database and was stopped.
    BatchTampered = "batch.tampered" about Batch;
    /// A task ended without failure.
    TaskFinished = "task.finished" about Server;
    /// A task failed or timed out.
    TaskFailed = "task.failed" about Server;
    /// A schedule was created.
    ScheduleCreated = "schedule.created" about Schedule;
    /// A schedule was changed.
    ScheduleUpdated = "schedule.updated" about Schedule;
    /// A schedule was deleted.
    ScheduleDeleted = "schedule.deleted" about Schedule;
    /// A run of a schedule started.
    RunStarted = "schedule.run_started" about Schedule;
    /// A run of a schedule was skipped.
    RunSkipped = "schedule.run_skipped" about Schedule;
    /// A run of a schedule ended.
    RunFinished = "schedule.run_finished" about Schedule;
    /// A schedule or a run of it was changed in the database and is not executed.
    ScheduleTampered = "schedule.tampered" about Schedule;
    /// A freeze was created.
    FreezeCreated = "freeze.created" about Freeze;
    /// A freeze was changed.
    FreezeUpdated = "freeze.updated" about Freeze;
    /// A freeze was deleted.
    FreezeDeleted = "freeze.deleted" about Freeze;
    /// A policy was created.
    PolicyCreated = "policy.created" about Policy;
    /// A policy was changed.
    PolicyUpdated = "policy.updated" about Policy;
    /// A policy was deleted.
    PolicyDeleted = "policy.deleted" about Policy;
    /// A server breached a policy: a fix is overdue.
    PolicyBreached = "policy.breached" about Server;
    /// A server that had breached a policy satisfies it again.
    PolicySatisfied = "policy.satisfied" about Server;
    /// A server was enrolled.
    ServerEnrolled = "server.enrolled" about Server;
    /// The environment, tags, name or notes of a server were changed.
    ServerEdited = "server.edited" about Server;
    /// A server was removed.
    ServerRemoved = "server.removed" about Server;
    /// A server stopped responding.
    ServerOffline = "server.offline" about Server;
    /// A server that was offline is back.
    ServerOnline = "server.online" about Server;
    /// A server was quarantined, because its agent's key is used twice.
    ServerQuarantined = "server.quarantined" about Server;
    /// A server was released from quarantine.
    ServerReleased = "server.released" about Server;
    /// Something on a server is worse than before its updates, such as a service that failed.
    ServerHealthDegraded = "server.health_degraded" about Server;
    /// A server now needs a reboot.
    ServerRebootRequired = "server.reboot_required" about Server;
    /// Someone asked a server to refresh its package lists.
    ServerRefreshRequested = "server.refresh_requested" about Server;
    /// A server refreshed its package lists, or failed to.
    ServerRefreshed = "server.refreshed" about Server;
    /// A refresh was changed in the database and is not executed.
    ServerRefreshTampered = "server.refresh_tampered" about Server;
    /// Someone asked for an upgrade of a server's agent.
    AgentUpgradeRequested = "server.agent_upgrade_requested" about Server;
    /// A server's agent was upgraded, or the upgrade failed.
    AgentUpgraded = "server.agent_upgraded" about Server;
    /// A CVE affects a server, and affected none before.
    CveOpened = "cve.opened" about Cve;
    /// A CVE affects no server any more.
    CveClosed = "cve.closed" about Cve;
    /// A CVE that affects servers is now known to be exploited.
    CveExploited = "cve.exploited" about Cve;
    /// A feed was added.
    FeedAdded = "feed.added" about Feed;
    /// Someone asked for an update of a feed.
    FeedUpdateRequested = "feed.update_requested" about Feed;
    /// A feed was removed.
    FeedRemoved = "feed.removed" about Feed;
    /// A feed could not be updated.
    FeedFailed = "feed.failed" about Feed;
    /// A feed that could not be updated works again.
    FeedRecovered = "feed.recovered" about Feed;
    /// A CVE was suppressed.
    SuppressionCreated = "suppression.created" about Cve;
    /// The suppression of a CVE was deleted.
    SuppressionDeleted = "suppression.deleted" about Cve;
    /// A user was created.
    UserCreated = "user.created" about User;
    /// The role or the sign-in of a user was changed.
    UserChanged = "user.changed" about User;
    /// A user got a new link to set a password.
    UserReset = "user.reset" about User;
    /// A user was removed.
    UserRemoved = "user.removed" about User;
    /// An API key was created.
    ApiKeyCreated = "api_key.created" about ApiKey;
    /// An API key was revoked.
    ApiKeyRevoked = "api_key.revoked" about ApiKey;
    /// An enrollment token was created.
    EnrollmentTokenCreated = "enrollment_token.created" about EnrollmentToken;
    /// An enrollment token was revoked.
    EnrollmentTokenRevoked = "enrollment_token.revoked" about EnrollmentToken;
    /// A webhook was created.
    WebhookCreated = "webhook.created" about Webhook;
    /// A webhook was changed.
    WebhookChanged = "webhook.changed" about Webhook;
    /// A webhook was deleted.
    WebhookDeleted = "webhook.deleted" about Webhook;
    /// A webhook was disabled, because its deliveries failed for five days.
    WebhookDisabled = "webhook.disabled" about Webhook;
    /// The installation was restored from a backup.
    InstallationRestored = "installation.restored" about Organization;
    /// Entries are missing at the end of the audit log.
    AuditCut = "audit.cut" about Organization;
}

impl EventKind {
    /// The type with this name. `None` for an event of another version.
    pub fn parse(text: &str) -> Option<EventKind> {
        EventKind::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }

    /// The types that a pattern selects: the name of a type, all types of a group (`batch.*`), or
    /// all types (`*`). Empty if it selects none.
    pub fn matching(pattern: &str) -> Vec<EventKind> {
        let selects = |kind: &EventKind| match pattern.strip_suffix('*') {
            Some("") => true,
            Some(group) => group.ends_with('.') && kind.as_str().starts_with(group),
            None => kind.as_str() == pattern,
        };
        EventKind::ALL.iter().copied().filter(selects).collect()
    }
}

impl EventKind {
    /// Whether something went wrong that a person should look at.
    pub const fn is_problem(self) -> bool {
        use EventKind as K;
        matches!(
            self,
            K::BatchHalted
                | K::BatchTampered
                | K::TaskFailed
                | K::RunSkipped
                | K::ScheduleTampered
                | K::ServerOffline
                | K::ServerQuarantined
                | K::ServerHealthDegraded
                | K::ServerRefreshTampered
                | K::PolicyBreached
                | K::CveExploited
                | K::FeedFailed
                | K::WebhookDisabled
                | K::AuditCut
        )
    }

    /// Like [`EventKind::matching`], with an error that names the nearest type if there is none.
    pub fn select(pattern: &str) -> Result<Vec<EventKind>, String> {
        let found = EventKind::matching(pattern);
        if !found.is_empty() {
            return Ok(found);
        }
        let known = EventKind::ALL.iter().map(|kind| kind.as_str());
        Err(match vocab::nearest(pattern, known) {
            Some(nearest) => format!("not a type of event; did you mean `{nearest}`?"),
            None => "not a type of event; `batch.*` selects a group of them".to_owned(),
        })
    }
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SubjectKind {
    Batch,
    Server,
    Schedule,
    Freeze,
    Policy,
    Cve,
    Feed,
    User,
    ApiKey,
    EnrollmentToken,
    Webhook,
    Organization,
}

impl SubjectKind {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            SubjectKind::Batch => "batch",
            SubjectKind::Server => "server",
            SubjectKind::Schedule => "schedule",
            SubjectKind::Freeze => "freeze",
            SubjectKind::Policy => "policy",
            SubjectKind::Cve => "cve",
            SubjectKind::Feed => "feed",
            SubjectKind::User => "user",
            SubjectKind::ApiKey => "api_key",
            SubjectKind::EnrollmentToken => "enrollment_token",
            SubjectKind::Webhook => "webhook",
            SubjectKind::Organization => "organization",
        }
    }

    /// The role that may read events about it: the one that may read the resource.
    pub const fn readable_by(self) -> Role {
        match self {
            SubjectKind::Batch
            | SubjectKind::Server
            | SubjectKind::Schedule
            | SubjectKind::Freeze
            | SubjectKind::Policy
            | SubjectKind::Cve
            | SubjectKind::Feed => Role::Viewer,
            SubjectKind::User
            | SubjectKind::ApiKey
            | SubjectKind::EnrollmentToken
            | SubjectKind::Webhook
            | SubjectKind::Organization => Role::Admin,
        }
    }

    /// The path of the dashboard page that shows the resource with this id.
    pub fn page(self, id: &str) -> String {
        match self {
            SubjectKind::Batch => format!("/batches/{id}"),
            SubjectKind::Server => format!("/servers/{id}"),
            SubjectKind::Schedule => format!("/schedules/{id}"),
            SubjectKind::Freeze => "/freezes".to_owned(),
            SubjectKind::Policy => "/compliance".to_owned(),
            SubjectKind::Cve => format!("/cves/{id}"),
            SubjectKind::Feed => "/settings/feeds".to_owned(),
            SubjectKind::User => "/settings/people".to_owned(),
            SubjectKind::ApiKey => "/settings/keys".to_owned(),
            SubjectKind::EnrollmentToken => "/settings/tokens".to_owned(),
            SubjectKind::Webhook => format!("/settings/webhooks/{id}"),
            SubjectKind::Organization => "/settings".to_owned(),
        }
    }
}

/// Adds an event about the resource with the id `subject` to the transaction.
pub fn emit(
    tx: &mut Tx,
    org: OrgId,
    at: Timestamp,
    actor: &str,
    kind: EventKind,
    subject: impl ToString,
    data: Value,
) {
    tx.emit(NewEvent {
        id: EventId::new(at, random_u128()),
        org_id: org,
        kind: kind.as_str(),
        at,
        actor: actor.to_owned(),
        subject_kind: kind.subject().as_str(),
        subject_id: subject.to_string(),
        data,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_has_its_own_name_and_a_description() {
        let words: BTreeSet<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(words.len(), EventKind::ALL.len());
        for kind in EventKind::ALL {
            assert_eq!(EventKind::parse(kind.as_str()), Some(*kind));
            assert!(kind.description().ends_with('.'), "{kind:?}: {}", kind.description());
        }
    }

    #[test]
    fn patterns_select_one_type_a_group_or_all() {
        assert_eq!(EventKind::matching("task.failed"), [EventKind::TaskFailed]);
        assert_eq!(EventKind::matching("task.*"), [EventKind::TaskFinished, EventKind::TaskFailed]);
        assert_eq!(EventKind::matching("*"), EventKind::ALL);
        for nothing in ["", "task", "task.", "tas*", "*.failed", "task.dance", "**"] {
            assert_eq!(EventKind::matching(nothing), [], "{nothing}");
        }
    }
}
