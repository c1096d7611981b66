//! Attributes and presence of a server.
//!
//! Defines "online" for the API, the dashboard and the planner.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use vocab::{Environment, Os, ServerId, Status, Tag};

/// The attributes of a server that a selector matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    pub id: ServerId,
    pub environment: Option<Environment>,
    pub tags: BTreeSet<Tag>,
    /// The operating system, once the agent has reported it.
    pub os: Option<Os>,
}

/// When a server's agent last reported, and how often it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    pub last_seen: Option<Timestamp>,
    /// The sync interval that the agent was given.
    pub sync_seconds: u32,
}

/// Allowance for a slow network and a busy server.
const GRACE: SignedDuration = SignedDuration::from_secs(30);

impl Presence {
    /// Returns how long a server may be silent: three sync intervals and 30 s.
    pub fn offline_after(self) -> SignedDuration {
        SignedDuration::from_secs(3 * i64::from(self.sync_seconds)) + GRACE
    }

    /// Online from the moment of a contact until the server has been silent for that long,
    /// excluding that instant.
    ///
    /// A contact later than `now` was recorded before the clock was set back. If it is at most that
    /// long ahead, it counts as recent. Beyond that it is ignored, because a server that died
    /// just before the clock went back a year would be shown as online for that year. The next
    /// contact corrects the status in either case.
    pub fn status(self, now: Timestamp) -> Status {
        match self.last_seen {
            Some(seen) if now.duration_since(seen).abs() < self.offline_after() => Status::Online,
            _ => Status::Offline,
        }
    }

    pub fn is_online(self, now: Timestamp) -> bool {
        self.status(now) == Status::Online
    }

    /// Returns the first instant at which the server is offline if nothing more arrives; `None` if
    /// its agent never reported.
    pub fn goes_offline_at(self) -> Option<Timestamp> {
        // Beyond the maximum timestamp there is no such instant.
        self.last_seen.and_then(|seen| seen.checked_add(self.offline_after()).ok())
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
    fn server_is_online_for_three_intervals_and_30_seconds() {
        let presence = seen_at_noon();
        assert_eq!(presence.status(at("2026-11-15T12:00:00Z")), Status::Online);
        assert_eq!(presence.status(at("2026-11-15T12:03:29.999Z")), Status::Online);
        assert_eq!(presence.status(at("2026-11-15T12:03:30Z")), Status::Offline);
        assert_eq!(presence.goes_offline_at(), Some(at("2026-11-15T12:03:30Z")));
    }

    #[test]
    fn server_that_never_reported_is_offline() {
        let never = Presence { last_seen: None, sync_seconds: 60 };
        assert!(!never.is_online(at("2026-11-15T12:00:00Z")));
        assert_eq!(never.goes_offline_at(), None);
    }

    /// The clock was set back after the contact.
    #[test]
    fn contact_in_the_future_counts_within_patience() {
        let presence = seen_at_noon();
        assert_eq!(presence.status(at("2026-11-15T11:59:00Z")), Status::Online);
        assert_eq!(presence.status(at("2026-11-15T11:56:30Z")), Status::Offline);
        assert_eq!(presence.status(at("2016-11-15T12:00:00Z")), Status::Offline);
    }

    #[test]
    fn extreme_timestamps_do_not_panic() {
        let last = Presence { last_seen: Some(Timestamp::MAX), sync_seconds: u32::MAX };
        assert_eq!(last.status(Timestamp::MIN), Status::Offline);
        assert_eq!(last.status(Timestamp::MAX), Status::Online);
        assert_eq!(last.goes_offline_at(), None);
    }
}
