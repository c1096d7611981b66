//! Audit entries and events on behalf of an actor, and the actions that entries name.

use serde_json::Value;
use store::Tx;

use crate::Actor;
use crate::App;
use crate::EventKind;

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident = $word:literal in $group:ident;)*) => {
        /// What an audit entry says was done. Every entry is written with one of these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $($(#[$doc])* $name,)*
        }

        impl Action {
            pub const ALL: &'static [Action] = &[$(Action::$name,)*];

            /// The text in the audit log.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Action::$name => $word,)*
                }
            }

            pub const fn group(self) -> ActionGroup {
                match self {
                    $(Action::$name => ActionGroup::$group,)*
                }
            }
        }
    };
}

actions! {
    UserCreate = "user.create" in Accounts;
    UserReset = "user.reset" in Accounts;
    UserRemove = "user.remove" in Accounts;
    /// A password was set with a one-time link.
    UserPassword = "user.password" in Accounts;
    UserPasswordChange = "user.password_change" in Accounts;
    UserSignIn = "user.sign_in" in Accounts;
    UserSignOut = "user.sign_out" in Accounts;
    UserLink = "user.link" in Accounts;
    UserRole = "user.role" in Accounts;
    UserTotpOn = "user.totp_on" in Accounts;
    UserTotpOff = "user.totp_off" in Accounts;
    /// A recovery code was used.
    UserRecoveryCode = "user.recovery_code" in Accounts;
    /// New recovery codes were created.
    UserRecoveryCodes = "user.recovery_codes" in Accounts;
    UserSessionEnd = "user.session_end" in Accounts;
    UserSessionsEnd = "user.sessions_end" in Accounts;
    ViewSave = "view.save" in Accounts;
    ViewDelete = "view.delete" in Accounts;
    EmailSet = "email.set" in Accounts;
    EmailConfirm = "email.confirm" in Accounts;
    EmailRemove = "email.remove" in Accounts;
    /// Messages could not be sent for too long.
    EmailStop = "email.stop" in Accounts;
    NotificationRuleCreate = "notification_rule.create" in Accounts;
    NotificationRuleDelete = "notification_rule.delete" in Accounts;
    NotificationTest = "notification.test" in Accounts;
    ApiKeyCreate = "api_key.create" in Credentials;
    ApiKeyRevoke = "api_key.revoke" in Credentials;
    EnrollmentTokenCreate = "enrollment_token.create" in Credentials;
    EnrollmentTokenRevoke = "enrollment_token.revoke" in Credentials;
    ServerEnroll = "server.enroll" in Servers;
    ServerEdit = "server.edit" in Servers;
    ServerRemove = "server.remove" in Servers;
    ServerQuarantine = "server.quarantine" in Servers;
    ServerRelease = "server.release" in Servers;
    ServerRefresh = "server.refresh" in Servers;
    RefreshFinish = "refresh.finish" in Servers;
    RefreshTampered = "refresh.tampered" in Servers;
    AgentUpgradeRequest = "agent.upgrade_request" in Servers;
    AgentUpgrade = "agent.upgrade" in Servers;
    AgentUpgradeFinish = "agent.upgrade_finish" in Servers;
    BatchCreate = "batch.create" in Batches;
    BatchPause = "batch.pause" in Batches;
    BatchResume = "batch.resume" in Batches;
    BatchCancel = "batch.cancel" in Batches;
    BatchRetry = "batch.retry" in Batches;
    /// A wave was approved.
    BatchApprove = "batch.approve" in Batches;
    /// A wave was rejected.
    BatchReject = "batch.reject" in Batches;
    /// The planner changed the state.
    BatchChange = "batch.change" in Batches;
    BatchFinish = "batch.finish" in Batches;
    BatchTampered = "batch.tampered" in Batches;
    TaskMove = "task.move" in Batches;
    ScheduleCreate = "schedule.create" in Schedules;
    ScheduleUpdate = "schedule.update" in Schedules;
    ScheduleDelete = "schedule.delete" in Schedules;
    ScheduleTampered = "schedule.tampered" in Schedules;
    FreezeCreate = "freeze.create" in Schedules;
    FreezeUpdate = "freeze.update" in Schedules;
    FreezeDelete = "freeze.delete" in Schedules;
    PolicyCreate = "policy.create" in Policies;
    PolicyUpdate = "policy.update" in Policies;
    PolicyDelete = "policy.delete" in Policies;
    RunStart = "run.start" in Schedules;
    RunSkip = "run.skip" in Schedules;
    RunCancel = "run.cancel" in Schedules;
    RunTampered = "run.tampered" in Schedules;
    WebhookCreate = "webhook.create" in Webhooks;
    WebhookUpdate = "webhook.update" in Webhooks;
    WebhookDelete = "webhook.delete" in Webhooks;
    WebhookRotate = "webhook.rotate" in Webhooks;
    WebhookTest = "webhook.test" in Webhooks;
    WebhookRedeliver = "webhook.redeliver" in Webhooks;
    /// Its deliveries failed for too long.
    WebhookDisable = "webhook.disable" in Webhooks;
    FeedAdd = "feed.add" in Feeds;
    FeedUpdate = "feed.update" in Feeds;
    FeedRemove = "feed.remove" in Feeds;
    /// Imported by a command on this installation.
    FeedImport = "feed.import" in Feeds;
    /// The feed is no longer updated; its advisories stay.
    FeedForget = "feed.forget" in Feeds;
    SuppressionCreate = "suppression.create" in Feeds;
    SuppressionDelete = "suppression.delete" in Feeds;
    OrganizationCreate = "organization.create" in Installation;
    OrganizationRename = "organization.rename" in Installation;
    OrganizationRemove = "organization.remove" in Installation;
    InstallationRestore = "installation.restore" in Installation;
    InstallationMigrate = "installation.migrate" in Installation;
    SecretsRotate = "secrets.rotate" in Installation;
    SecretsRetire = "secrets.retire" in Installation;
    /// Entries are missing at the end of the audit log.
    AuditCut = "audit.cut" in Installation;
}

impl Action {
    /// The action with this text. `None` for an entry of a later version.
    pub fn parse(text: &str) -> Option<Action> {
        Action::ALL.iter().copied().find(|action| action.as_str() == text)
    }

    /// The actions that a pattern selects: the name of an action, all actions on a kind of resource
    /// (`batch.*`), or all actions (`*`). Empty if it selects none.
    pub fn matching(pattern: &str) -> Vec<Action> {
        let selects = |action: &Action| match pattern.strip_suffix('*') {
            Some("") => true,
            Some(kind) => kind.ends_with('.') && action.as_str().starts_with(kind),
            None => action.as_str() == pattern,
        };
        Action::ALL.iter().copied().filter(selects).collect()
    }
}

/// Actions that are looked for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionGroup {
    Accounts,
    Credentials,
    Servers,
    Batches,
    /// Schedules, their runs, and freezes.
    Schedules,
    Policies,
    /// Feeds and suppressions.
    Feeds,
    Webhooks,
    Installation,
}

impl ActionGroup {
    /// Its actions.
    pub fn actions(self) -> impl Iterator<Item = Action> {
        Action::ALL.iter().copied().filter(move |action| action.group() == self)
    }
}

/// Adds an audit entry to the transaction.
pub fn record(
    app: &App,
    tx: &mut Tx,
    actor: &Actor,
    action: Action,
    subject: impl ToString,
    detail: Value,
) {
    super::record(tx, actor.org, app.clock.now(), &actor.id, action, subject, &detail);
}

/// Adds an event to the transaction.
pub fn emit(
    app: &App,
    tx: &mut Tx,
    actor: &Actor,
    kind: EventKind,
    subject: impl ToString,
    data: Value,
) {
    super::emit(tx, actor.org, app.clock.now(), &actor.id, kind, subject, data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_action_has_its_own_text() {
        let words: BTreeSet<&str> = Action::ALL.iter().map(|action| action.as_str()).collect();
        assert_eq!(words.len(), Action::ALL.len());
        for action in Action::ALL {
            assert_eq!(Action::parse(action.as_str()), Some(*action));
        }
        assert_eq!(Action::parse("server.dance"), None);
    }

    #[test]
    fn a_pattern_selects_an_action_a_kind_or_all() {
        assert_eq!(Action::matching("batch.pause"), [Action::BatchPause]);
        assert_eq!(
            Action::matching("api_key.*"),
            [Action::ApiKeyCreate, Action::ApiKeyRevoke],
            "the actions on one kind of resource"
        );
        assert_eq!(Action::matching("*"), Action::ALL);
        for nothing in ["", "batch", "batch*", "batch.", "bat*", ".*", "**"] {
            assert_eq!(Action::matching(nothing), [], "{nothing:?}");
        }
    }
}
