//! The totals of an organization, from stored counts and a few counts over narrow indexes.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use jiff::Timestamp;
use store::server_list::{self, Filter, OnlineSpan};
use store::{Conn, batches, findings, patches, rollouts, schedules};
use vocab::{Assessment, Environment, OrgId, Selector, Status};
use wire::v1::{
    AssessmentCounts, BatchCounts, FleetSummary, PatchCounts, ScheduleCounts, ServerCounts,
    SeverityCounts,
};

use super::Scope;
use crate::projections::patches::Counts;
use crate::{App, Result, ServiceError};

#[derive(Debug, Clone, PartialEq)]
pub struct FleetTotals {
    pub servers: u64,
    pub online: u64,
    /// The totals that are stored with the patches.
    pub counts: Counts,
    /// Servers by assessment, without servers that never reported their packages.
    pub assessments: BTreeMap<Assessment, u64>,
    /// When `counts` was computed.
    pub counted_at: Option<Timestamp>,
    /// Batches in each of [`OPEN_PHASES`].
    pub batches: [u64; OPEN_PHASES.len()],
    pub schedules: u64,
    /// Enabled schedules.
    pub enabled: u64,
    /// The earliest upcoming run of any schedule.
    pub next_run_at: Option<Timestamp>,
}

/// The phases of an unfinished batch.
pub const OPEN_PHASES: [&str; 6] =
    ["scheduled", "running", "paused", "halted", "canceling", "awaiting_approval"];

/// The totals of these environments; `None` means all environments.
#[boxed]
pub async fn fleet_totals(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    environments: Option<&[Environment]>,
    online: OnlineSpan,
) -> Result<FleetTotals> {
    let filter =
        Filter { environments: environments.map(<[Environment]>::to_vec), ..Filter::default() };
    let servers = server_list::count(conn, org, &filter).await?;
    let online = Filter { status: Some((Status::Online, online)), ..filter };
    let online = server_list::count(conn, org, &online).await?;
    let (counts, counted_at) = match environments {
        Some(within) => {
            let (_, counts) =
                crate::projections::patches::patches_in_environments(app, conn, org, within)
                    .await?;
            (counts, Some(app.clock.now()))
        }
        None => match patches::summary(conn, org).await? {
            Some(seen) => {
                let counts = serde_json::from_value(seen.counts)
                    .map_err(|error| ServiceError::Internal(error.into()))?;
                (counts, Some(seen.made_at))
            }
            None => (Counts::default(), None),
        },
    };
    let assessments = match environments {
        Some(within) => {
            crate::projections::findings::assessments_within(conn, org, within, app.clock.now())
                .await?
        }
        None => {
            findings::summary(conn, org).await?.map(|seen| seen.assessments).unwrap_or_default()
        }
    };
    let mut batches = [0; OPEN_PHASES.len()];
    // Without an environment limit, all unfinished batches are counted in one query: few are
    // unfinished, and many have ended.
    let open = rollouts::open_counts(conn, org).await?;
    for (count, phase) in batches.iter_mut().zip(OPEN_PHASES) {
        let none = store::Page { limit: 1, offset: 0 };
        if environments.is_none() {
            *count = open.get(phase).copied().unwrap_or_default();
            continue;
        }
        *count = batches::list(conn, org, &[phase], environments, none).await?.total;
    }
    let all = schedules::list(conn, org).await?;
    let seen: Vec<_> = all.iter().filter(|one| is_limited_to(environments, &one.targets)).collect();
    Ok(FleetTotals {
        servers,
        online,
        counts,
        assessments,
        counted_at,
        batches,
        schedules: seen.len() as u64,
        enabled: seen.iter().filter(|one| one.enabled).count() as u64,
        next_run_at: seen.iter().filter_map(|one| one.next_run_at).min(),
    })
}

/// Whether a selector is limited to one of these environments. With `None`, any selector is
/// accepted.
pub fn is_limited_to(environments: Option<&[Environment]>, targets: &Selector) -> bool {
    let Some(allowed) = environments else { return true };
    match targets {
        Selector::All => false,
        Selector::Matching(criteria) => {
            criteria.environment().is_some_and(|environment| allowed.contains(environment))
        }
    }
}

/// The totals of an organization for the overview.
#[boxed]
pub async fn fleet(app: &App, scope: &Scope) -> Result<FleetSummary> {
    let mut reader = app.db.snapshot().await?;
    let online = super::servers::online_span(app);
    let within = scope.environments.as_deref();
    let seen = fleet_totals(app, &mut reader, scope.org, within, online).await?;
    let assessed = |state| seen.assessments.get(&state).copied().unwrap_or_default();
    let [critical, high, medium, low, unknown] = seen.counts.severities;
    let [_, running, paused, halted, _, awaiting_approval] = seen.batches;
    Ok(FleetSummary {
        servers: ServerCounts {
            total: seen.servers,
            online: seen.online,
            offline: seen.servers.saturating_sub(seen.online),
            reboot_required: seen.counts.reboot_required,
            quarantined: seen.counts.quarantined,
            up_to_date: seen.counts.up_to_date,
            with_updates: seen.counts.with_updates,
            stale: seen.counts.stale,
            not_scanned: seen.counts.not_scanned,
            with_security_updates: seen.counts.with_security_updates,
        },
        assessment: AssessmentCounts {
            assessed: assessed(Assessment::Assessed),
            partial: assessed(Assessment::Partial),
            no_feed: assessed(Assessment::NoFeed),
            not_scanned: seen.servers.saturating_sub(seen.assessments.values().sum()),
        },
        patches: PatchCounts {
            total: seen.counts.patches,
            security: seen.counts.security_patches,
            severity: SeverityCounts { critical, high, medium, low, unknown },
        },
        batches: BatchCounts {
            open: seen.batches.iter().sum(),
            running,
            paused,
            halted,
            awaiting_approval,
        },
        schedules: ScheduleCounts {
            total: seen.schedules,
            enabled: seen.enabled,
            next_run_at: seen.next_run_at,
        },
        counted_at: seen.counted_at,
    })
}
