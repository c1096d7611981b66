//! `/v1/summary`: the organization in numbers.

use axum::Json;
use axum::extract::State;
use utoipa_axum::routes as handlers;
use vocab::{Assessment, Role};
use wire::v1::{
    AssessmentCounts, BatchCounts, FleetSummary, PatchCounts, ScheduleCounts, ServerCounts,
    SeverityCounts,
};

use crate::app::App;
use crate::http::{ApiError, Caller, NoQuery, Query, Routes};
use service::queries::summary::numbers;

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(summary))
}

/// Get the summary
///
/// Counts for an overview. Those of patches and reboots follow the scans by about a second: `counted_at` says as of when they are.
#[utoipa::path(get, path = "/v1/summary", tag = "Summary", operation_id = "get_summary",
    responses((status = 200, description = "The organization in numbers.", body = FleetSummary)))]
pub(crate) async fn summary(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<FleetSummary>, ApiError> {
    let mut reader = app.db.snapshot().await?;
    let online = service::queries::servers::online_span(&app);
    let within = caller.environments.as_deref();
    let seen = numbers(&app, &mut reader, caller.org, within, online).await?;
    let assessed = |state| seen.assessments.get(&state).copied().unwrap_or_default();
    let [critical, high, medium, low, unknown] = seen.counts.severities;
    let [_, running, paused, halted, _] = seen.batches;
    Ok(Json(FleetSummary {
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
        batches: BatchCounts { open: seen.batches.iter().sum(), running, paused, halted },
        schedules: ScheduleCounts {
            total: seen.schedules,
            enabled: seen.enabled,
            next_run_at: seen.next_run_at,
        },
        counted_at: seen.counted_at,
    }))
}
