//! What a server is as far as others care: what selects it, and whether it is there.
//!
//! The one definition of "online" is here. The API, the dashboard and the planner all ask this.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use vocab::{Environment, Os, ServerId, Status, Tag};

/// What a selector looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Which server.
    pub id: ServerId,
    /// The environment that it is in, if any.
    pub environment: Option<Environment>,
    /// The tags that it carries.
    pub tags: BTreeSet<Tag>,
    /// The system that it runs, once its agent has said so.
    pub os: Option<Os>,
}

/// When a server was last heard from, and how often it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// When its agent last said anything.
    pub last_seen: Option<Timestamp>,
    /// How often its agent was told to.
    pub sync_seconds: u32,
}

/// What a slow network and a busy server may take on top.
const GRACE: SignedDuration = SignedDuration::from_secs(30);

impl Presence {
    /// How long a server may be silent: three sync intervals and 30 s.
    pub fn patience(self) -> SignedDuration {
        SignedDuration::from_secs(3 * i64::from(self.sync_seconds)) + GRACE
    }

    /// Online from the moment of a contact until the patience has run out, not including that
    /// instant.
    ///
    /// A contact that lies ahead of `now` was recorded before the clock was set back. As far
    /// ahead as the patience reaches, it is taken for a recent one; beyond that it says nothing,
    /// because a server that died just before the clock went back a year would be shown online
    /// for that year. The next contact puts it right in either case.
    pub fn status(self, now: Timestamp) -> Status {
        match self.last_seen {
            Some(seen) if now.duration_since(seen).abs() < self.patience() => Status::Online,
            _ => Status::Offline,
        }
    }

    /// Whether its status is [`Status::Online`].
    pub fn is_online(self, now: Timestamp) -> bool {
        self.status(now) == Status::Online
    }

    /// The first instant at which it is offline if nothing more is heard; nothing if it was never
    /// heard from.
    pub fn goes_offline_at(self) -> Option<Timestamp> {
        // Beyond the end of time there is no such instant.
        self.last_seen.and_then(|seen| seen.checked_add(self.patience()).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn seen_at_noon() -> Presence {
        Presence { last_seen: Some(at("2026-11-15T12:00:00Z")), sync_seconds: 60 }
    }

    #[test]
    fn a_server_is_online_for_three_intervals_and_thirty_seconds() {
        let presence = seen_at_noon();
        assert_eq!(presence.status(at("2026-11-15T12:00:00Z")), Status::Online);
        assert_eq!(presence.status(at("2026-11-15T12:03:29.999Z")), Status::Online);
        assert_eq!(presence.status(at("2026-11-15T12:03:30Z")), Status::Offline);
        assert_eq!(presence.goes_offline_at(), Some(at("2026-11-15T12:03:30Z")));
    }

    #[test]
    fn a_server_that_never_spoke_is_offline() {
        let never = Presence { last_seen: None, sync_seconds: 60 };
        assert!(!never.is_online(at("2026-11-15T12:00:00Z")));
        assert_eq!(never.goes_offline_at(), None);
    }

    /// The clock was set back after the contact.
    #[test]
    fn a_contact_in_the_future_counts_only_as_far_as_one_in_the_past() {
        let presence = seen_at_noon();
        assert_eq!(presence.status(at("2026-11-15T11:59:00Z")), Status::Online);
        assert_eq!(presence.status(at("2026-11-15T11:56:30Z")), Status::Offline);
        assert_eq!(presence.status(at("2016-11-15T12:00:00Z")), Status::Offline);
    }

    #[test]
    fn the_ends_of_time_do_not_panic() {
        let last = Presence { last_seen: Some(Timestamp::MAX), sync_seconds: u32::MAX };
        assert_eq!(last.status(Timestamp::MIN), Status::Offline);
        assert_eq!(last.status(Timestamp::MAX), Status::Online);
        assert_eq!(last.goes_offline_at(), None);
    }
}
