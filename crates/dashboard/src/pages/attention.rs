//! What needs a person, for the Overview page: facts in, a short list out.

use wire::v1::{Batch, BatchState, FleetSummary};

use crate::pages::{number, plural};

/// What the list is computed from.
#[derive(Debug)]
pub struct Facts<'a> {
    pub summary: &'a FleetSummary,
    /// Open CVEs that are known to be exploited.
    pub exploited: u64,
    /// The active batches.
    pub open: &'a [Batch],
    pub failed_feeds: u64,
}

/// How urgent an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// It endangers servers, or patching has stopped.
    Bad,
    /// It should be looked at.
    Warn,
    /// The state of something is not known.
    Unknown,
}

impl Urgency {
    pub const fn class(self) -> &'static str {
        match self {
            Urgency::Bad => "is-bad",
            Urgency::Warn => "is-warn",
            Urgency::Unknown => "is-open",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Item {
    pub urgency: Urgency,
    pub icon: &'static str,
    pub text: String,
    pub href: String,
}

/// The list, the most urgent first. Empty: nothing needs a person.
pub fn items(facts: &Facts<'_>) -> Vec<Item> {
    let (servers, known) = (&facts.summary.servers, &facts.summary.assessment);
    let counted = |count: u64, one: &'static str, many: &'static str| {
        format!("{} {}", number(count), plural(count, one, many))
    };
    let item = |urgency, icon, text: String, href: &str| Item {
        urgency,
        icon,
        text,
        href: href.to_owned(),
    };
    let mut all = Vec::new();
    for batch in facts.open.iter().filter(|batch| batch.state == BatchState::Halted) {
        let left = u64::from(batch.progress.waiting);
        let text =
            format!("A batch halted: {} not patched", counted(left, "server is", "servers are"));
        all.push(item(Urgency::Bad, "batches", text, &format!("/batches/{}", batch.id)));
    }
    let rows = [
        (
            facts.exploited,
            Urgency::Bad,
            "cves",
            "open CVE is known to be exploited",
            "open CVEs are known to be exploited",
            "/cves?kev=true",
        ),
        (
            servers.quarantined,
            Urgency::Bad,
            "servers",
            "server is in quarantine",
            "servers are in quarantine",
            "/servers",
        ),
        (
            servers.with_security_updates,
            Urgency::Warn,
            "patches",
            "server has security updates pending",
            "servers have security updates pending",
            "/servers?sort=security_updates",
        ),
        (
            servers.reboot_required,
            Urgency::Warn,
            "power",
            "server needs a reboot",
            "servers need a reboot",
            "/servers?reboot_required=true",
        ),
        (
            servers.offline,
            Urgency::Warn,
            "servers",
            "server is offline",
            "servers are offline",
            "/servers?status=offline",
        ),
        (
            facts.failed_feeds,
            Urgency::Warn,
            "download",
            "feed could not be updated",
            "feeds could not be updated",
            "/settings/feeds",
        ),
        (
            servers.stale,
            Urgency::Unknown,
            "clock",
            "server was not scanned recently",
            "servers were not scanned recently",
            "/servers?sort=last_seen",
        ),
        (
            known.not_scanned,
            Urgency::Unknown,
            "clock",
            "server was never scanned",
            "servers were never scanned",
            "/servers",
        ),
        (
            known.no_feed,
            Urgency::Unknown,
            "cves",
            "server has a system that no feed covers",
            "servers have systems that no feed covers",
            "/servers",
        ),
        (
            known.partial,
            Urgency::Unknown,
            "cves",
            "server is only partly assessed",
            "servers are only partly assessed",
            "/servers",
        ),
    ];
    for (count, urgency, icon, one, many, href) in rows {
        if count > 0 {
            all.push(item(urgency, icon, counted(count, one, many), href));
        }
    }
    all
}

/// The state of the fleet in one sentence, and its class.
pub fn verdict(facts: &Facts<'_>) -> (&'static str, String) {
    let (servers, known) = (&facts.summary.servers, &facts.summary.assessment);
    let unknown = known.not_scanned + known.no_feed + known.partial + servers.stale;
    if facts.exploited > 0 {
        let cves = plural(facts.exploited, "CVE that is", "CVEs that are");
        let are = plural(facts.exploited, "is", "are");
        let count = number(facts.exploited);
        return (
            "bad",
            format!("{count} {cves} known to be exploited {are} open on your servers."),
        );
    }
    if servers.with_security_updates > 0 {
        let share =
            format!("{} of {}", number(servers.with_security_updates), number(servers.total));
        return ("warn", format!("{share} servers have security updates pending."));
    }
    match unknown {
        0 => ("good", "No security update is pending on any server.".to_owned()),
        _ => ("warn", "No security update is pending where that is known.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(summary: &FleetSummary) -> Facts<'_> {
        Facts { summary, exploited: 0, open: &[], failed_feeds: 0 }
    }

    #[test]
    fn unknown_is_never_called_good() {
        let mut summary = FleetSummary {
            servers: Default::default(),
            assessment: Default::default(),
            patches: Default::default(),
            batches: Default::default(),
            schedules: Default::default(),
            counted_at: None,
        };
        summary.servers.total = 3;
        assert_eq!(verdict(&facts(&summary)).0, "good");
        assert!(items(&facts(&summary)).is_empty());
        summary.assessment.no_feed = 1;
        assert_eq!(verdict(&facts(&summary)).0, "warn");
        assert_eq!(items(&facts(&summary))[0].text, "1 server has a system that no feed covers");
        summary.servers.with_security_updates = 2;
        summary.servers.offline = 1;
        let shown: Vec<String> = items(&facts(&summary)).into_iter().map(|one| one.text).collect();
        assert_eq!(
            shown,
            [
                "2 servers have security updates pending",
                "1 server is offline",
                "1 server has a system that no feed covers",
            ]
        );
        let exploited = Facts { exploited: 1, ..facts(&summary) };
        assert_eq!(verdict(&exploited).0, "bad");
        assert_eq!(items(&exploited)[0].href, "/cves?kev=true");
    }
}
