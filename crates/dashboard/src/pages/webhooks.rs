//! How webhooks and types of events are shown.

use service::EventKind;
use vocab::{Role, Selector};
use wire::v1::Webhook;

use crate::pages::describe_targets;

/// The maximum number of types that a list shows for a webhook or a notification rule.
const TYPES_SHOWN: usize = 5;

/// The types of events with the same prefix.
#[derive(Debug, PartialEq, Eq)]
pub struct EventGroup {
    /// The part of their names before the dot, such as `batch`.
    pub prefix: &'static str,
    pub kinds: Vec<EventKind>,
}

impl EventGroup {
    /// Every type of event, in groups.
    pub fn all() -> Vec<EventGroup> {
        EventGroup::readable_by(Role::Admin)
    }

    /// The types of events that users with this role may see, in groups.
    pub fn readable_by(role: Role) -> Vec<EventGroup> {
        let mut groups: Vec<EventGroup> = Vec::new();
        let readable = |kind: &&EventKind| role.includes(kind.subject().readable_by());
        for kind in EventKind::ALL.iter().filter(readable) {
            let name = kind.as_str();
            let prefix = name.split_once('.').map_or(name, |(prefix, _)| prefix);
            match groups.iter_mut().find(|group| group.prefix == prefix) {
                Some(group) => group.kinds.push(*kind),
                None => groups.push(EventGroup { prefix, kinds: vec![*kind] }),
            }
        }
        groups
    }

    /// The pattern that selects the group, also types that a later version adds.
    pub fn pattern(&self) -> String {
        format!("{}.*", self.prefix)
    }

    pub fn label(&self) -> &'static str {
        match self.prefix {
            "batch" => "Batches",
            "task" => "Tasks",
            "schedule" => "Schedules",
            "freeze" => "Freezes",
            "policy" => "Policies",
            "server" => "Servers",
            "cve" => "CVEs",
            "feed" => "Feeds",
            "suppression" => "Suppressions",
            "user" => "Users",
            "api_key" => "API keys",
            "enrollment_token" => "Enrollment tokens",
            "webhook" => "Webhooks",
            "installation" => "Installation",
            "audit" => "Audit log",
            other => other,
        }
    }
}

/// Whether a webhook works, in one word.
pub fn state(webhook: &Webhook) -> &'static str {
    match (webhook.enabled, webhook.failing_since) {
        (false, _) => "disabled",
        (true, Some(_)) => "failing",
        (true, None) => "enabled",
    }
}

/// The class of the color of [`state`].
pub fn state_class(webhook: &Webhook) -> &'static str {
    match (webhook.enabled, webhook.failing_since) {
        (false, _) => "tone-idle",
        (true, Some(_)) => "tone-bad",
        (true, None) => "tone-good",
    }
}

/// The first of these types of events, and how many more there are.
pub fn some_types(types: &[String]) -> (&[String], usize) {
    let shown = types.len().min(TYPES_SHOWN);
    (&types[..shown], types.len() - shown)
}

/// The servers whose events are sent.
pub fn describe_servers(targets: &Option<Selector>) -> String {
    targets.as_ref().map_or_else(|| "all servers".to_owned(), describe_targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_contain_every_type_and_have_a_label() {
        let groups = EventGroup::all();
        let grouped: usize = groups.iter().map(|group| group.kinds.len()).sum();
        assert_eq!(grouped, EventKind::ALL.len());
        for group in &groups {
            assert_eq!(EventKind::matching(&group.pattern()), group.kinds);
            assert_ne!(group.label(), group.prefix, "a new group needs a label");
        }
    }
}
