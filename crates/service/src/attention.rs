//! What needs a person, for the overview and for digests: facts in, a short list out.

use async_recursion::async_recursion as boxed;
use vocab::Role;
use wire::v1::{Batch, BatchState, FleetSummary};

use crate::auth::caller::Caller;
use crate::queries::{self, Page};
use crate::{App, Result};

/// What the list is computed from.
#[derive(Debug)]
pub struct Facts {
    pub summary: FleetSummary,
    /// Open CVEs that are known to be exploited.
    pub exploited: u64,
    /// The active batches.
    pub open: Vec<Batch>,
    pub failed_feeds: u64,
}

impl Facts {
    /// Reads the facts that this caller may see, with at most `batches_max` active batches.
    #[boxed]
    pub async fn load(app: &App, caller: &Caller, batches_max: u32) -> Result<Facts> {
        let scope = caller.scope();
        let kev = queries::cves::Filter {
            kev: Some(true),
            suppressed: Some(false),
            ..queries::cves::Filter::default()
        };
        let first = Page { limit: 1, offset: 0 };
        // Only administrators can open the page of the feeds.
        let feeds = match caller.role.includes(Role::Admin) {
            true => queries::feeds::list(app).await?,
            false => Vec::new(),
        };
        Ok(Facts {
            summary: queries::summary::fleet(app, &scope).await?,
            exploited: queries::cves::list(app, &scope, kev, first).await?.total,
            open: queries::batches::open(app, &scope, batches_max).await?,
            failed_feeds: feeds.iter().filter(|feed| feed.last_error.is_some()).count() as u64,
        })
    }
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

/// What an item is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    Batches,
    Cves,
    Servers,
    Patches,
    Reboots,
    Feeds,
    Scans,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Item {
    pub urgency: Urgency,
    pub area: Area,
    pub text: String,
    /// The path of the page that shows it.
    pub path: String,
}

/// The list, the most urgent first. Empty: nothing needs a person.
pub fn items(facts: &Facts) -> Vec<Item> {
    let (servers, known) = (&facts.summary.servers, &facts.summary.assessment);
    let counted = |count: u64, one: &'static str, many: &'static str| {
        format!("{} {}", number(count), plural(count, one, many))
    };
    let item = |urgency, area, text: String, path: &str| Item {
        urgency,
        area,
        text,
        path: path.to_owned(),
    };
    let mut all = Vec::new();
    for batch in facts.open.iter().filter(|batch| batch.state == BatchState::Halted) {
        let left = u64::from(batch.progress.waiting);
        let text =
            format!("A batch halted: {} not patched", counted(left, "server is", "servers are"));
        all.push(item(Urgency::Bad, Area::Batches, text, &format!("/batches/{}", batch.id)));
    }
    for batch in facts.open.iter().filter(|batch| batch.state == BatchState::AwaitingApproval) {
        let text = "A batch waits for the approval of its next wave".to_owned();
        all.push(item(Urgency::Warn, Area::Batches, text, &format!("/batches/{}", batch.id)));
    }
    let rows = [
        (
            facts.exploited,
            Urgency::Bad,
            Area::Cves,
            "open CVE is known to be exploited",
            "open CVEs are known to be exploited",
            "/cves?kev=true",
        ),
        (
            servers.quarantined,
            Urgency::Bad,
            Area::Servers,
            "server is in quarantine",
            "servers are in quarantine",
            "/servers",
        ),
        (
            servers.with_security_updates,
            Urgency::Warn,
            Area::Patches,
            "server has security updates pending",
            "servers have security updates pending",
            "/servers?sort=security_updates",
        ),
        (
            servers.reboot_required,
            Urgency::Warn,
            Area::Reboots,
            "server needs a reboot",
            "servers need a reboot",
            "/servers?reboot_required=true",
        ),
        (
            servers.offline,
            Urgency::Warn,
            Area::Servers,
            "server is offline",
            "servers are offline",
            "/servers?status=offline",
        ),
        (
            facts.failed_feeds,
            Urgency::Warn,
            Area::Feeds,
            "feed could not be updated",
            "feeds could not be updated",
            "/settings/feeds",
        ),
        (
            servers.stale,
            Urgency::Unknown,
            Area::Scans,
            "server was not scanned recently",
            "servers were not scanned recently",
            "/servers?sort=last_seen",
        ),
        (
            known.not_scanned,
            Urgency::Unknown,
            Area::Scans,
            "server was never scanned",
            "servers were never scanned",
            "/servers",
        ),
        (
            known.no_feed,
            Urgency::Unknown,
            Area::Cves,
            "server has a system that no feed covers",
            "servers have systems that no feed covers",
            "/servers",
        ),
        (
            known.partial,
            Urgency::Unknown,
            Area::Cves,
            "server is only partly assessed",
            "servers are only partly assessed",
            "/servers",
        ),
    ];
    for (count, urgency, area, one, many, path) in rows {
        if count > 0 {
            all.push(item(urgency, area, counted(count, one, many), path));
        }
    }
    all
}

/// The state of the fleet in one sentence, and how urgent it is; `None` if all is well.
pub fn verdict(facts: &Facts) -> (Option<Urgency>, String) {
    let (servers, known) = (&facts.summary.servers, &facts.summary.assessment);
    let unknown = known.not_scanned + known.no_feed + known.partial + servers.stale;
    if facts.exploited > 0 {
        let cves = plural(facts.exploited, "CVE that is", "CVEs that are");
        let are = plural(facts.exploited, "is", "are");
        let count = number(facts.exploited);
        return (
            Some(Urgency::Bad),
            format!("{count} {cves} known to be exploited {are} open on your servers."),
        );
    }
    if servers.with_security_updates > 0 {
        let share =
            format!("{} of {}", number(servers.with_security_updates), number(servers.total));
        return (Some(Urgency::Warn), format!("{share} servers have security updates pending."));
    }
    match unknown {
        0 => (None, "No security update is pending on any server.".to_owned()),
        _ => (Some(Urgency::Warn), "No security update is pending where that is known.".to_owned()),
    }
}

/// A number with a comma between thousands.
pub fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut label = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            label.push(',');
        }
        label.push(digit);
    }
    label
}

/// The word for this count.
pub const fn plural(count: u64, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_never_called_good() {
        let summary = FleetSummary {
            servers: Default::default(),
            assessment: Default::default(),
            patches: Default::default(),
            batches: Default::default(),
            schedules: Default::default(),
            counted_at: None,
        };
        let mut facts = Facts { summary, exploited: 0, open: Vec::new(), failed_feeds: 0 };
        facts.summary.servers.total = 3;
        assert_eq!(verdict(&facts).0, None);
        assert!(items(&facts).is_empty());
        facts.summary.assessment.no_feed = 1;
        assert_eq!(verdict(&facts).0, Some(Urgency::Warn));
        assert_eq!(items(&facts)[0].text, "1 server has a system that no feed covers");
        facts.summary.servers.with_security_updates = 2;
        facts.summary.servers.offline = 1;
        let shown: Vec<String> = items(&facts).into_iter().map(|one| one.text).collect();
        assert_eq!(
            shown,
            [
                "2 servers have security updates pending",
                "1 server is offline",
                "1 server has a system that no feed covers",
            ]
        );
        let exploited = Facts { exploited: 1, ..facts };
        assert_eq!(verdict(&exploited).0, Some(Urgency::Bad));
        assert_eq!(items(&exploited)[0].path, "/cves?kev=true");
    }
}
