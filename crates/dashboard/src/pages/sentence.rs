//! Entries of the audit log as sentences.

use serde_json::Value;
use service::audit::Action;
use service::queries::activity::{Entry, Resources};

use crate::pages::{describe_updates, escape, number, plural, with_spaces};

/// An entry as a sentence in HTML, such as `ann paused batch Security updates`. An action that this
/// version does not know is shown unchanged.
pub fn sentence(entry: &Entry, known: &Resources) -> String {
    let detail = serde_json::from_str(&entry.detail).unwrap_or(Value::Null);
    let facts = Facts { entry, detail: &detail, known };
    let actor = facts.actor();
    match Action::parse(&entry.action) {
        Some(action) => format!("{actor} {}", phrase(action, &facts)),
        None => {
            let (action, subject) = (escape(&entry.action), facts.link(&entry.subject));
            format!("{actor} <code>{action}</code> {subject}")
        }
    }
}

/// Several entries of one actor and one action as a sentence in HTML, such as
/// `ann edited 12 servers`.
pub fn folded_sentence(first: &Entry, count: usize, known: &Resources) -> String {
    let facts = Facts { entry: first, detail: &Value::Null, known };
    let phrase = match Action::parse(&first.action) {
        Some(action) => many(action, count),
        None => format!("<code>{}</code> {} times", escape(&first.action), number(count)),
    };
    format!("{} {phrase}", facts.actor())
}

/// Actors that are part of the service.
pub const SYSTEM_ACTORS: [(&str, &str); 8] = [
    ("engine", "Fleetmend"),
    ("schedule", "The scheduler"),
    ("oidc", "The identity provider"),
    ("local", "The command line on the host"),
    ("command", "The command line on the host"),
    ("init", "The setup"),
    ("restore", "The restore"),
    ("migrate", "The migration"),
];

/// The display name of an actor, as text.
pub fn actor_name(id: &str, known: &Resources) -> String {
    let system = SYSTEM_ACTORS.iter().find(|(actor, _)| *actor == id);
    match (system, known.names.get(id)) {
        (Some((_, name)), _) => (*name).to_owned(),
        (None, Some(name)) if id.starts_with("key_") => format!("API key {name}"),
        (None, Some(name)) if id.starts_with("enr_") => format!("Enrollment token {name}"),
        (None, Some(name)) => name.clone(),
        (None, None) => id.to_owned(),
    }
}

/// The pages of resources, by the prefix of their id.
const PAGES: [(&str, &str); 3] =
    [("srv_", "/servers/"), ("sch_", "/schedules/"), ("bat_", "/batches/")];

/// An entry and the names of its resources.
struct Facts<'a> {
    entry: &'a Entry,
    detail: &'a Value,
    known: &'a Resources,
}

impl Facts<'_> {
    fn actor(&self) -> String {
        let id = &self.entry.actor;
        let name = escape(&actor_name(id, self.known));
        format!("<strong title=\"{}\">{name}</strong>", escape(id))
    }

    /// A value of the detail as text; empty if it is missing.
    fn text(&self, name: &str) -> &str {
        self.detail[name].as_str().unwrap_or("")
    }

    /// A value of the detail, escaped.
    fn html(&self, name: &str) -> String {
        escape(self.text(name))
    }

    /// The name of a resource, linked to its page if it still exists.
    fn link(&self, id: &str) -> String {
        let batch = self.known.batches.get(id).map(describe_updates);
        let recorded = ["hostname", "name"].map(|key| self.text(key));
        let recorded =
            recorded.into_iter().find(|name| !name.is_empty() && id == self.entry.subject);
        let name = batch.as_deref().or(self.known.names.get(id).map(String::as_str));
        let name = escape(name.or(recorded).unwrap_or(id));
        let page = PAGES.iter().find(|(prefix, _)| id.starts_with(prefix));
        let exists = self.known.batches.contains_key(id) || self.known.existing.contains(id);
        match page.filter(|_| exists) {
            Some((_, path)) => format!("<a href=\"{path}{}\">{name}</a>", escape(id)),
            None => format!("<strong>{name}</strong>"),
        }
    }

    fn subject(&self) -> String {
        self.link(&self.entry.subject)
    }

    /// The resource whose id the detail has under this name.
    fn named(&self, name: &str) -> String {
        self.link(self.text(name))
    }

    /// The number under this name with its noun.
    fn count(&self, name: &str, one: &'static str, more: &'static str) -> String {
        let count = self.detail[name].as_u64().unwrap_or(0);
        format!("{} {}", number(count), plural(count, one, more))
    }

    /// `: reason`, or nothing without a reason.
    fn because(&self, name: &str) -> String {
        match self.text(name) {
            "" => String::new(),
            // A code of the API, or a sentence.
            code if !code.contains(' ') => format!(": {}", escape(&with_spaces(code))),
            sentence => format!(": {}", escape(sentence)),
        }
    }

    fn is_true(&self, name: &str) -> bool {
        self.detail[name] == Value::Bool(true)
    }

    fn has_failed(&self) -> bool {
        ["failed", "timed_out"].contains(&self.text("state"))
    }
}

/// What the actor did, in HTML.
fn phrase(action: Action, it: &Facts<'_>) -> String {
    use Action as A;
    match action {
        A::UserCreate => format!("created user {} with the role {}", it.subject(), it.html("role")),
        A::UserReset => format!("created a reset link for user {}", it.subject()),
        A::UserRemove => format!("removed user {}", it.subject()),
        A::UserPassword => "set a password".into(),
        A::UserPasswordChange => "changed their password".into(),
        A::UserSignIn if it.text("by") == "oidc" => {
            "signed in through the identity provider".into()
        }
        A::UserSignIn => "signed in".into(),
        A::UserLink => "linked their account at the identity provider".into(),
        A::UserRole => format!(
            "changed the role of {} from {} to {}",
            it.subject(),
            it.html("before"),
            it.html("role")
        ),
        A::UserTotpOn => "turned on two-factor authentication".into(),
        A::UserTotpOff => "turned off two-factor authentication".into(),
        A::UserRecoveryCode => {
            format!("used a recovery code ({} left)", it.count("left", "code", "codes"))
        }
        A::UserRecoveryCodes => "created new recovery codes".into(),
        A::UserSignOut => "signed out".into(),
        A::UserSessionEnd => "signed out one of their sessions".into(),
        A::UserSessionsEnd => "signed out all their other sessions".into(),
        A::ViewSave if it.is_true("shared") => format!("shared view {}", it.subject()),
        A::ViewSave => format!("saved view {}", it.subject()),
        A::ViewDelete => format!("deleted view {}", it.subject()),
        A::EmailSet => format!("set the email address {}", it.html("address")),
        A::EmailConfirm => format!("confirmed the email address {}", it.html("address")),
        A::EmailRemove => format!("removed the email address {}", it.html("address")),
        A::EmailStop => format!(
            "stopped sending email to {}, because its messages were refused for five days",
            it.html("address")
        ),
        A::NotificationRuleCreate => format!("added a notification rule ({})", it.html("rhythm")),
        A::NotificationRuleDelete if it.text("by") == "link" => {
            format!("unsubscribed from notifications ({})", it.html("rhythm"))
        }
        A::NotificationRuleDelete => format!("deleted a notification rule ({})", it.html("rhythm")),
        A::NotificationTest => format!("sent a test message to {}", it.html("to")),
        A::ApiKeyCreate => {
            format!("created API key {} with the role {}", it.subject(), it.html("role"))
        }
        A::ApiKeyRevoke => format!("revoked API key {}", it.subject()),
        A::EnrollmentTokenCreate => format!("created enrollment token {}", it.subject()),
        A::EnrollmentTokenRevoke => format!("revoked enrollment token {}", it.subject()),
        A::ServerEnroll => format!("enrolled server {}", it.subject()),
        A::ServerEdit => format!("edited server {}", it.subject()),
        A::ServerRemove => format!("removed server {}", it.subject()),
        A::ServerQuarantine => {
            format!("quarantined server {}{}", it.subject(), it.because("reason"))
        }
        A::ServerRelease => format!("released server {} from quarantine", it.subject()),
        A::ServerRefresh => format!("requested a refresh of server {}", it.subject()),
        A::RefreshFinish if it.has_failed() => {
            format!("could not refresh server {}{}", it.subject(), it.because("message"))
        }
        A::RefreshFinish => format!("refreshed server {}", it.subject()),
        A::RefreshTampered => {
            format!(
                "rejected a refresh of server {} that was changed in the database",
                it.subject()
            )
        }
        A::AgentUpgradeRequest => {
            format!("requested the upgrade of {}", it.count("servers", "agent", "agents"))
        }
        A::AgentUpgrade => format!(
            "requested the upgrade of the agent on server {} to {}",
            it.subject(),
            it.html("to")
        ),
        A::AgentUpgradeFinish if it.has_failed() => {
            format!(
                "could not upgrade the agent on server {}{}",
                it.subject(),
                it.because("message")
            )
        }
        A::AgentUpgradeFinish => format!("upgraded the agent on server {}", it.subject()),
        A::BatchCreate => {
            format!(
                "created batch {} for {}",
                it.subject(),
                it.count("servers", "server", "servers")
            )
        }
        A::BatchPause => format!("paused batch {}", it.subject()),
        A::BatchResume => format!("resumed batch {}", it.subject()),
        A::BatchCancel => format!("canceled batch {}", it.subject()),
        A::BatchApprove => format!("approved a wave of batch {}", it.subject()),
        A::BatchReject => format!("rejected a wave of batch {}", it.subject()),
        A::BatchRetry => {
            format!("retried batch {} as {}", it.subject(), it.named("retried_as"))
        }
        A::BatchChange => format!(
            "changed batch {} to {}{}",
            it.subject(),
            escape(&with_spaces(it.text("state"))),
            it.because("reason")
        ),
        A::BatchFinish => format!("finished batch {}{}", it.subject(), it.because("state")),
        A::BatchTampered => {
            format!("stopped batch {}, which was changed in the database", it.subject())
        }
        A::TaskMove => format!(
            "changed server {} in batch {} from {} to {}",
            it.named("server_id"),
            it.named("batch_id"),
            escape(&with_spaces(it.text("from"))),
            escape(&with_spaces(it.text("state")))
        ),
        A::ScheduleCreate => format!("created schedule {}", it.subject()),
        A::ScheduleUpdate => format!("edited schedule {}", it.subject()),
        A::ScheduleDelete => format!("deleted schedule {}", it.subject()),
        A::ScheduleTampered => {
            format!("stopped schedule {}, which was changed in the database", it.subject())
        }
        A::PolicyCreate => format!("created policy {}", it.subject()),
        A::PolicyUpdate => format!("edited policy {}", it.subject()),
        A::PolicyDelete => format!("deleted policy {}", it.subject()),
        A::FreezeCreate => format!("created freeze {}", it.subject()),
        A::FreezeUpdate => format!("edited freeze {}", it.subject()),
        A::FreezeDelete => format!("deleted freeze {}", it.subject()),
        A::RunStart => format!("started a run of schedule {}", it.named("schedule_id")),
        A::RunSkip => {
            format!("skipped a run of schedule {}{}", it.named("schedule_id"), it.because("reason"))
        }
        A::RunCancel => format!("canceled a run of schedule {}", it.named("schedule_id")),
        A::RunTampered => {
            format!(
                "stopped a run of schedule {}, which was changed in the database",
                it.named("schedule_id")
            )
        }
        A::WebhookCreate => format!("created webhook {}", it.subject()),
        A::WebhookUpdate => format!("edited webhook {}", it.subject()),
        A::WebhookDelete => format!("deleted webhook {}", it.html("name")),
        A::WebhookRotate => format!("rotated the secret of webhook {}", it.subject()),
        A::WebhookTest => format!("tested webhook {}", it.subject()),
        A::WebhookRedeliver => format!("sent a delivery of webhook {} again", it.subject()),
        A::WebhookDisable => {
            format!("disabled webhook {}, because its deliveries failed", it.subject())
        }
        A::FeedAdd => format!("added feed {}", it.subject()),
        A::FeedUpdate => format!("requested an update of feed {}", it.subject()),
        A::FeedRemove => format!("removed feed {}", it.subject()),
        A::FeedImport => format!("imported feed {}", it.subject()),
        A::FeedForget => format!("stopped the updates of feed {}", it.subject()),
        A::SuppressionCreate => format!("suppressed {}{}", cve(it), it.because("reason")),
        A::SuppressionDelete => format!("removed the suppression of {}", cve(it)),
        A::OrganizationCreate => format!("created organization {}", it.subject()),
        A::OrganizationRename => {
            format!("renamed the organization from {} to {}", it.html("before"), it.html("name"))
        }
        A::OrganizationRemove => format!("removed organization {}", it.subject()),
        A::InstallationRestore => {
            format!("restored this installation from a backup of {}", it.html("taken_at"))
        }
        A::InstallationMigrate => {
            format!("moved this installation from {} to {}", it.html("from"), it.html("to"))
        }
        A::SecretsRotate => "started to rotate a key of this installation".into(),
        A::SecretsRetire => "retired an old key of this installation".into(),
        A::AuditCut => "found that entries are missing at the end of the audit log".into(),
    }
}

fn cve(it: &Facts<'_>) -> String {
    let id = it.html("cve");
    format!("<a href=\"/cves/{id}\">{id}</a>")
}

/// What the actor did several times, in HTML.
fn many(action: Action, count: usize) -> String {
    use Action as A;
    let n = number(count);
    match action {
        A::UserCreate => format!("created {n} users"),
        A::UserReset => format!("created reset links for {n} users"),
        A::UserRemove => format!("removed {n} users"),
        A::UserRole => format!("changed the roles of {n} users"),
        A::ApiKeyCreate => format!("created {n} API keys"),
        A::ApiKeyRevoke => format!("revoked {n} API keys"),
        A::EnrollmentTokenCreate => format!("created {n} enrollment tokens"),
        A::EnrollmentTokenRevoke => format!("revoked {n} enrollment tokens"),
        A::ServerEnroll => format!("enrolled {n} servers"),
        A::ServerEdit => format!("edited {n} servers"),
        A::ServerRemove => format!("removed {n} servers"),
        A::ServerQuarantine => format!("quarantined {n} servers"),
        A::ServerRelease => format!("released {n} servers from quarantine"),
        A::ServerRefresh => format!("requested a refresh of {n} servers"),
        A::RefreshFinish => format!("finished the refresh of {n} servers"),
        A::RefreshTampered => format!("rejected {n} refreshes that were changed in the database"),
        A::AgentUpgrade => format!("requested the upgrade of {n} agents"),
        A::AgentUpgradeFinish => format!("finished the upgrade of {n} agents"),
        A::BatchCreate => format!("created {n} batches"),
        A::BatchPause => format!("paused {n} batches"),
        A::BatchResume => format!("resumed {n} batches"),
        A::BatchCancel => format!("canceled {n} batches"),
        A::BatchApprove => format!("approved waves of batches {n} times"),
        A::BatchReject => format!("rejected waves of {n} batches"),
        A::BatchRetry => format!("retried {n} batches"),
        A::BatchChange => format!("changed the state of batches {n} times"),
        A::BatchFinish => format!("finished {n} batches"),
        A::BatchTampered => format!("stopped {n} batches, which were changed in the database"),
        A::TaskMove => format!("changed the state of servers in batches {n} times"),
        A::ScheduleCreate => format!("created {n} schedules"),
        A::ScheduleUpdate => format!("edited schedules {n} times"),
        A::ScheduleDelete => format!("deleted {n} schedules"),
        A::ScheduleTampered => format!("stopped {n} schedules, which were changed in the database"),
        A::PolicyCreate => format!("created {n} policies"),
        A::PolicyUpdate => format!("edited policies {n} times"),
        A::PolicyDelete => format!("deleted {n} policies"),
        A::FreezeCreate => format!("created {n} freezes"),
        A::FreezeUpdate => format!("edited freezes {n} times"),
        A::FreezeDelete => format!("deleted {n} freezes"),
        A::RunStart => format!("started {n} runs of schedules"),
        A::RunSkip => format!("skipped {n} runs of schedules"),
        A::RunCancel => format!("canceled {n} runs of schedules"),
        A::RunTampered => format!("stopped {n} runs, which were changed in the database"),
        A::WebhookCreate => format!("created {n} webhooks"),
        A::WebhookUpdate => format!("edited webhooks {n} times"),
        A::WebhookDelete => format!("deleted {n} webhooks"),
        A::WebhookRotate => format!("rotated the secrets of webhooks {n} times"),
        A::WebhookTest => format!("tested webhooks {n} times"),
        A::WebhookRedeliver => format!("sent {n} deliveries of webhooks again"),
        A::WebhookDisable => format!("disabled {n} webhooks, because their deliveries failed"),
        A::FeedAdd => format!("added {n} feeds"),
        A::FeedUpdate => format!("requested {n} updates of feeds"),
        A::FeedRemove => format!("removed {n} feeds"),
        A::FeedImport => format!("imported {n} feeds"),
        A::FeedForget => format!("stopped the updates of {n} feeds"),
        A::SuppressionCreate => format!("created {n} suppressions"),
        A::SuppressionDelete => format!("removed {n} suppressions"),
        A::UserSignIn => format!("signed in {n} times"),
        A::UserSignOut => format!("signed out {n} times"),
        A::AgentUpgradeRequest => format!("requested agent upgrades {n} times"),
        A::UserPassword => format!("set a password {n} times"),
        A::UserPasswordChange => format!("changed their password {n} times"),
        A::UserLink => format!("linked their account at the identity provider {n} times"),
        A::UserTotpOn => format!("turned on two-factor authentication {n} times"),
        A::UserTotpOff => format!("turned off two-factor authentication {n} times"),
        A::UserRecoveryCode => format!("used {n} recovery codes"),
        A::UserRecoveryCodes => format!("created new recovery codes {n} times"),
        A::UserSessionEnd => format!("signed out {n} of their sessions"),
        A::UserSessionsEnd => format!("signed out all their other sessions {n} times"),
        A::ViewSave => format!("saved {n} views"),
        A::ViewDelete => format!("deleted {n} views"),
        A::EmailSet => format!("set email addresses {n} times"),
        A::EmailConfirm => format!("confirmed {n} email addresses"),
        A::EmailRemove => format!("removed {n} email addresses"),
        A::EmailStop => format!("stopped sending email to {n} addresses"),
        A::NotificationRuleCreate => format!("added {n} notification rules"),
        A::NotificationRuleDelete => format!("deleted {n} notification rules"),
        A::NotificationTest => format!("sent {n} test messages"),
        A::OrganizationCreate => format!("created {n} organizations"),
        A::OrganizationRename => format!("renamed the organization {n} times"),
        A::OrganizationRemove => format!("removed {n} organizations"),
        A::InstallationRestore => format!("restored this installation {n} times"),
        A::InstallationMigrate => format!("moved this installation {n} times"),
        A::SecretsRotate => format!("started to rotate keys of this installation {n} times"),
        A::SecretsRetire => format!("retired {n} old keys of this installation"),
        A::AuditCut => format!("found {n} times that entries of the audit log are missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(actor: &str, action: &str, subject: &str, detail: &Value) -> Entry {
        Entry {
            org_id: vocab::OrgId::new(jiff::Timestamp::UNIX_EPOCH, 1),
            seq: 1,
            at: jiff::Timestamp::UNIX_EPOCH,
            actor: actor.into(),
            action: action.into(),
            subject: subject.into(),
            detail: detail.to_string(),
            previous: vec![],
            hash: vec![],
        }
    }

    fn resources() -> Resources {
        let names = [("usr_1", "ann"), ("key_1", "ci"), ("srv_1", "web-1"), ("srv_2", "<b>")];
        Resources {
            names: names.map(|(id, name)| (id.to_owned(), name.to_owned())).into(),
            existing: ["srv_1".to_owned()].into(),
            batches: [].into(),
        }
    }

    fn text(html: &str) -> String {
        let parts = html.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
        parts.collect()
    }

    #[test]
    fn sentence_names_actor_and_subject_and_links_what_exists() {
        let known = resources();
        let html = sentence(&entry("usr_1", "server.edit", "srv_1", &json!({})), &known);
        assert_eq!(
            html,
            "<strong title=\"usr_1\">ann</strong> edited server <a href=\"/servers/srv_1\">web-1</a>"
        );
        for (actor, action, subject, detail, expected) in [
            (
                "usr_1",
                "server.remove",
                "srv_9",
                json!({"hostname": "db-1"}),
                "ann removed server db-1",
            ),
            ("key_1", "server.remove", "srv_2", json!({}), "API key ci removed server &lt;b&gt;"),
            (
                "engine",
                "batch.finish",
                "bat_1",
                json!({"state": "completed_with_errors"}),
                "Fleetmend finished batch bat_1: completed with errors",
            ),
            ("usr_1", "feed.add", "feed_1", json!({"name": "Debian"}), "ann added feed Debian"),
            (
                "engine",
                "task.move",
                "tsk_1",
                json!({"server_id": "srv_1", "batch_id": "bat_1", "from": "waiting", "state": "running"}),
                "Fleetmend changed server web-1 in batch bat_1 from waiting to running",
            ),
            ("usr_1", "later.action", "x", json!({}), "ann later.action x"),
            ("usr_1", "server.edit", "srv_1", json!("nonsense"), "ann edited server web-1"),
        ] {
            let html = sentence(&entry(actor, action, subject, &detail), &known);
            assert_eq!(text(&html), expected);
        }
    }

    #[test]
    fn removed_server_is_not_linked() {
        let html = sentence(&entry("usr_1", "server.remove", "srv_2", &json!({})), &resources());
        assert!(!html.contains("<a "), "{html}");
    }

    #[test]
    fn texts_from_the_log_are_escaped() {
        let bad = "<img src=x>";
        let keys = [
            "name",
            "hostname",
            "role",
            "before",
            "reason",
            "message",
            "state",
            "from",
            "to",
            "cve",
            "taken_at",
            "server_id",
            "batch_id",
            "schedule_id",
            "retried_as",
            "by",
        ];
        let detail: Value = keys
            .iter()
            .map(|key| ((*key).to_owned(), json!(bad)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let actions = Action::ALL.iter().map(|action| action.as_str()).chain([bad]);
        for action in actions {
            let entry = entry(bad, action, bad, &detail);
            assert!(!sentence(&entry, &resources()).contains("<img"), "{action}");
            assert!(!folded_sentence(&entry, 2, &resources()).contains("<img"), "{action}");
        }
    }

    /// The match is exhaustive; this finds sentences that a detail without values leaves unfinished.
    #[test]
    fn every_action_has_a_sentence_for_one_and_for_many() {
        for action in Action::ALL {
            let entry = entry("usr_1", action.as_str(), "subject", &json!({}));
            let (one, more) =
                (text(&sentence(&entry, &resources())), folded_sentence(&entry, 12, &resources()));
            assert!(one.starts_with("ann ") && one.len() > 8, "{one}");
            assert!(!one.contains(action.as_str()), "{one}");
            assert!(text(&more).contains("12"), "{more}");
        }
    }
}
